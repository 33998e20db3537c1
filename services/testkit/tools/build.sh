#!/usr/bin/env bash
# Builds the real programs that the tests drive from the pinned Go modules beside this script, once for each version, into a
# cache outside the checkout. Prints the folder in which they are.
#
#   build.sh [TOOL...]              those that every test needs when none is named; does nothing for a tool that is there already
#   build.sh --if-built TOOL...     builds nothing; fails with status 3 and the names of those that are not there
#
# PILLION_TOOLS names another cache folder. KUBEBUILDER_ASSETS, when set, is taken as it is for the programs of the control
# plane, and they are not built.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
all=(etcd kube-apiserver kubectl kube-controller-manager prometheus promtool k6 otelcol helm kubeconform)
# What makes a control plane a cluster (../cluster): a quarter of an hour more, for those who ask for it by name.
cluster=(kube-scheduler kubelet kube-proxy containerd containerd-shim-runc-v2 ctr kind)
only_if_built=
[ "${1:-}" != --if-built ] || { only_if_built=yes && shift; }
wanted=("$@")
[ ${#wanted[@]} -gt 0 ] || wanted=("${all[@]}")

if [ -z "${PILLION_TOOLS:-}${XDG_CACHE_HOME:-}${HOME:-}" ]; then
  echo "error: no folder to build the tools in; set PILLION_TOOLS, XDG_CACHE_HOME or HOME" >&2
  exit 2
fi
cache=${PILLION_TOOLS:-${XDG_CACHE_HOME:-${HOME:-}/.cache}/pillion/tools}

# The folder of a tool's Go module beside this script.
module_of() {
  case $1 in
    etcd) echo etcd ;;
    kube-apiserver | kubectl) echo kubernetes ;;
    # Beside them, since it needs modules that they do not: a pin of its own does not cost everybody their programs.
    kube-controller-manager) echo controller-manager ;;
    # And so do those of a node.
    kube-scheduler | kubelet | kube-proxy) echo node ;;
    containerd | containerd-shim-runc-v2 | ctr) echo containerd ;;
    kind) echo kind ;;
    prometheus | promtool) echo prometheus ;;
    k6) echo k6 ;;
    otelcol) echo collector ;;
    helm) echo helm ;;
    kubeconform) echo kubeconform ;;
    *)
      echo "error: there is no tool named '$1'; there are: ${all[*]} ${cluster[*]}" >&2
      exit 2
      ;;
  esac
}

# Each module's programs are kept by what is pinned there: a new pin is a new folder, and nothing else is built again. A new
# way of building (flags, stamps) needs a new number here; what is said in comments does not cost everybody ten minutes.
recipe=2
key_of() { cat "$here/$1"/go.mod "$here/$1"/go.sum <(cat "$here/$1"/*.go 2>/dev/null) <(echo "recipe $recipe") | sha256sum | cut -c1-12; }
folder_of() { echo "$cache/$1-$(key_of "$1")"; }

# One folder with all that was asked for, by links, named by what it holds.
linked() {
  local tool module names=() paths=() folder
  for tool in "${wanted[@]}"; do
    module=$(module_of "$tool")
    names+=("$tool")
    paths+=("$(program_of "$tool" "$module")")
  done
  folder=$cache/bin-$(printf '%s\n' "${paths[@]}" | sha256sum | cut -c1-12)
  mkdir -p "$folder"
  for index in "${!names[@]}"; do
    [ "$(readlink "$folder/${names[index]}" 2>/dev/null)" = "${paths[index]}" ] ||
      ln -sfn "${paths[index]}" "$folder/${names[index]}"
  done
  echo "$folder"
}

program_of() { # TOOL MODULE
  case $2 in
    etcd | kubernetes) if [ -n "${KUBEBUILDER_ASSETS:-}" ]; then echo "$KUBEBUILDER_ASSETS/$1" && return; fi ;;
  esac
  echo "$(folder_of "$2")/$1"
}

missing() {
  local tool
  for tool in "${wanted[@]}"; do
    case $(module_of "$tool") in
      etcd | kubernetes) [ -z "${KUBEBUILDER_ASSETS:-}" ] || continue ;;
    esac
    [ -x "$(folder_of "$(module_of "$tool")")/$tool" ] || echo "$tool"
  done
}

for tool in "${wanted[@]}"; do module_of "$tool" >/dev/null; done
absent=$(missing)
if [ -z "$absent" ]; then
  linked
  exit 0
fi

if [ -n "$only_if_built" ]; then
  echo "not built: ${absent//$'\n'/, }" >&2
  exit 3
fi

if ! command -v go >/dev/null 2>&1; then
  {
    echo "error: building ${absent//$'\n'/, } needs Go (1.26 or newer), and there is no 'go' on the PATH"
    echo "  help: install Go from https://go.dev/doc/install; for etcd, kube-apiserver and kubectl, KUBEBUILDER_ASSETS may name"
    echo "        a folder that holds them (for instance: setup-envtest use 1.36.x -p path)"
  } >&2
  exit 2
fi

# One build at a time: several test processes may find the cache empty at once.
mkdir -p "$cache"
exec 9>"$cache/.lock"
flock 9

# Go's own build cache for these modules is over ten gigabytes; it lives beside the tools and goes when they are built.
export GOCACHE=$cache/.go-build CGO_ENABLED=0 GOFLAGS=-trimpath GOWORK=off
trap 'chmod -R u+w "$GOCACHE" 2>/dev/null; rm -rf "$GOCACHE"' EXIT

pinned() { (cd "$here/$1" && go list -m -f '{{.Version}}' "$2"); }

build() { # MODULE-FOLDER PACKAGE TOOL LDFLAGS [BUILD-FLAGS...]
  local folder
  folder=$(folder_of "$1")
  mkdir -p "$folder"
  echo "building $3 (once; two to four minutes on two cores)" >&2
  (cd "$here/$1" && go build -ldflags "-s -w $4" "${@:5}" -o "$folder/.$3" "$2") >&2
  mv "$folder/.$3" "$folder/$3"
}

for tool in $(missing); do
  case $tool in
    etcd)
      build etcd go.etcd.io/etcd/server/v3 etcd ""
      ;;
    kube-apiserver | kubectl | kube-controller-manager | kube-scheduler | kubelet | kube-proxy)
      module=$(module_of "$tool")
      version=$(pinned "$module" k8s.io/kubernetes)
      minor=$(echo "$version" | cut -d. -f2)
      stamp="-X k8s.io/component-base/version.gitVersion=$version -X k8s.io/component-base/version.gitMajor=1"
      stamp="$stamp -X k8s.io/component-base/version.gitMinor=$minor -X k8s.io/client-go/pkg/version.gitVersion=$version"
      build "$module" "k8s.io/kubernetes/cmd/$tool" "$tool" "$stamp"
      ;;
    containerd | containerd-shim-runc-v2 | ctr)
      # Without the file systems that a node here does not have.
      version=$(pinned containerd github.com/containerd/containerd/v2)
      build containerd "github.com/containerd/containerd/v2/cmd/$tool" "$tool" \
        "-X github.com/containerd/containerd/v2/version.Version=$version" -tags "no_btrfs no_devmapper no_zfs"
      ;;
    kind)
      build kind sigs.k8s.io/kind kind ""
      ;;
    prometheus | promtool)
      # Without the discovery of a dozen clouds: the tests name their targets.
      build prometheus "github.com/prometheus/prometheus/cmd/$tool" "$tool" "" -tags remove_all_sd
      ;;
    k6)
      build k6 go.k6.io/k6 k6 ""
      ;;
    otelcol)
      build collector . otelcol ""
      ;;
    helm)
      build helm helm.sh/helm/v4/cmd/helm helm "-X helm.sh/helm/v4/internal/version.version=$(pinned helm helm.sh/helm/v4)"
      ;;
    kubeconform)
      build kubeconform github.com/yannh/kubeconform/cmd/kubeconform kubeconform ""
      ;;
  esac
done
linked
