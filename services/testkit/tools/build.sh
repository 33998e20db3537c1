#!/usr/bin/env bash
# Builds the programs that the tests run, from the pinned Go modules beside this script, into a cache outside the
# checkout. Each program is built once per pinned version. Prints the folder that holds the programs.
#
#   build.sh [TOOL...]              builds missing programs; by default, all that `just test` needs
#   build.sh --if-built TOOL...     builds nothing; exits with status 3 and lists the missing programs
#
# KUBERNETES=1.34 (1.35, 1.36, 1.37) selects the Kubernetes minor version; the newest is the default.
# PILLION_TOOLS names another cache folder. With KUBEBUILDER_ASSETS, etcd, kube-apiserver and kubectl are taken from that
# folder and not built.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
kubernetes=kubernetes/${KUBERNETES:-1.37}
all=(etcd kube-apiserver kubectl kube-controller-manager prometheus promtool k6 otelcol helm kubeconform actionlint crane)
# A node (../cluster) and large tests also need these, which take another quarter of an hour to build.
node=(kube-scheduler kubelet kube-proxy containerd containerd-shim-runc-v2 ctr kind kwok)
# The test of autoscalers also needs these.
autoscalers=(metrics-server vpa-admission-controller vpa-updater)

only_if_built=
[ "${1:-}" != --if-built ] || { only_if_built=yes && shift; }
wanted=("$@")
[ ${#wanted[@]} -gt 0 ] || wanted=("${all[@]}")

if [ ! -f "$here/$kubernetes/go.mod" ]; then
  echo "error: KUBERNETES=${KUBERNETES:-} is not pinned here; use one of $(cd "$here/kubernetes" && echo *)" >&2
  exit 2
fi
if [ -z "${PILLION_TOOLS:-}${XDG_CACHE_HOME:-}${HOME:-}" ]; then
  echo "error: no folder to build the tools in; set PILLION_TOOLS, XDG_CACHE_HOME or HOME" >&2
  exit 2
fi
cache=${PILLION_TOOLS:-${XDG_CACHE_HOME:-${HOME:-}/.cache}/pillion/tools}

# Prints the folder of a program's Go module.
module_of() {
  case $1 in
    etcd) echo etcd ;;
    kube-apiserver | kubectl | kube-controller-manager | kube-scheduler | kubelet | kube-proxy) echo "$kubernetes" ;;
    containerd | containerd-shim-runc-v2 | ctr) echo containerd ;;
    prometheus | promtool) echo prometheus ;;
    otelcol) echo collector ;;
    vpa-*) echo vpa ;;
    kind | kwok | metrics-server | crane | k6 | helm | kubeconform | actionlint) echo "$1" ;;
    *)
      echo "error: there is no tool named '$1'; there are: ${all[*]} ${node[*]} ${autoscalers[*]}" >&2
      exit 2
      ;;
  esac
}

# Prints the programs that are built with this one, because they share most of their packages.
family_of() {
  case $1 in
    kube-apiserver | kubectl | kube-controller-manager) echo kube-apiserver kubectl kube-controller-manager ;;
    kube-scheduler | kubelet | kube-proxy) echo kube-scheduler kubelet kube-proxy ;;
    containerd | containerd-shim-runc-v2 | ctr) echo containerd containerd-shim-runc-v2 ctr ;;
    prometheus | promtool) echo prometheus promtool ;;
    *) echo "$1" ;;
  esac
}

package_of() {
  case $1 in
    etcd) echo go.etcd.io/etcd/server/v3 ;;
    containerd* | ctr) echo "github.com/containerd/containerd/v2/cmd/$1" ;;
    prometheus | promtool) echo "github.com/prometheus/prometheus/cmd/$1" ;;
    kind) echo sigs.k8s.io/kind ;;
    kwok) echo sigs.k8s.io/kwok/cmd/kwok ;;
    metrics-server) echo sigs.k8s.io/metrics-server/cmd/metrics-server ;;
    vpa-*) echo "k8s.io/autoscaler/vertical-pod-autoscaler/pkg/${1#vpa-}" ;;
    crane) echo github.com/google/go-containerregistry/cmd/crane ;;
    k6) echo go.k6.io/k6 ;;
    helm) echo helm.sh/helm/v4/cmd/helm ;;
    kubeconform) echo github.com/yannh/kubeconform/cmd/kubeconform ;;
    kube*) echo "k8s.io/kubernetes/cmd/$1" ;;
    actionlint) echo github.com/rhysd/actionlint/cmd/actionlint ;;
    otelcol) echo . ;;
  esac
}

# The name of a folder is a hash of the pinned versions of its programs. Increase the number after a change of build flags.
recipe=3
folder_of() { # MODULE
  local key
  key=$(cat "$here/$1"/go.mod "$here/$1"/go.sum <(cat "$here/$1"/*.go 2>/dev/null) <(echo "recipe $recipe") | sha256sum | cut -c1-12)
  echo "$cache/${1//\//-}-$key"
}

program_of() { # TOOL
  case $1 in
    etcd | kube-apiserver | kubectl) if [ -n "${KUBEBUILDER_ASSETS:-}" ]; then echo "$KUBEBUILDER_ASSETS/$1" && return; fi ;;
  esac
  echo "$(folder_of "$(module_of "$1")")/$1"
}

missing() {
  local tool path
  for tool in "${wanted[@]}"; do
    path=$(program_of "$tool")
    [ -x "$path" ] || [ "$path" = "${KUBEBUILDER_ASSETS:-}/$tool" ] || echo "$tool"
  done
}

# Prints one folder with links to all requested programs.
linked() {
  local tool names=() paths=() folder
  for tool in "${wanted[@]}"; do
    names+=("$tool")
    paths+=("$(program_of "$tool")")
  done
  folder=$cache/bin-$(printf '%s\n' "${paths[@]}" | sha256sum | cut -c1-12)
  mkdir -p "$folder"
  for index in "${!names[@]}"; do
    [ "$(readlink "$folder/${names[index]}" 2>/dev/null)" = "${paths[index]}" ] ||
      ln -sfn "${paths[index]}" "$folder/${names[index]}"
  done
  echo "$folder"
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
    echo "        a folder that holds them (for instance: setup-envtest use ${KUBERNETES:-1.37}.x -p path)"
  } >&2
  exit 2
fi

# One build at a time: several tests may find the cache empty at once.
mkdir -p "$cache"
exec 9>"$cache/.lock"
flock 9

# Go's build cache for these modules takes over ten gigabytes; it is deleted once everything is built.
export GOCACHE=$cache/.go-build CGO_ENABLED=0 GOFLAGS=-trimpath GOWORK=off
# If another process has built everything in the meantime, there is no cache, and chmod fails.
trap 'chmod -R u+w "$GOCACHE" 2>/dev/null || true; rm -rf "$GOCACHE"' EXIT

pinned() { (cd "$here/$1" && go list -m -f '{{.Version}}' "$2"); } # MODULE GO-MODULE

for tool in $(missing); do
  module=$(module_of "$tool")
  folder=$(folder_of "$module")
  # An earlier build of the same family may have built this program too.
  [ ! -x "$folder/$tool" ] || continue
  flags=()
  stamp=
  case $module in
    kubernetes/*)
      version=$(pinned "$module" k8s.io/kubernetes)
      minor=$(echo "$version" | cut -d. -f2)
      stamp="-X k8s.io/component-base/version.gitVersion=$version -X k8s.io/component-base/version.gitMajor=1"
      stamp="$stamp -X k8s.io/component-base/version.gitMinor=$minor -X k8s.io/client-go/pkg/version.gitVersion=$version"
      ;;
    containerd)
      stamp="-X github.com/containerd/containerd/v2/version.Version=$(pinned containerd github.com/containerd/containerd/v2)"
      flags=(-tags "no_btrfs no_devmapper no_zfs") # file systems that the test node does not have
      ;;
    prometheus) flags=(-tags remove_all_sd) ;; # no service discovery: the tests' configurations list the targets
    helm) stamp="-X helm.sh/helm/v4/internal/version.version=$(pinned helm helm.sh/helm/v4)" ;;
  esac
  read -ra family <<<"$(family_of "$tool")"
  packages=()
  for member in "${family[@]}"; do packages+=("$(package_of "$member")"); done
  echo "building ${family[*]} (once)" >&2
  rm -rf "$folder/.new"
  mkdir -p "$folder/.new"
  (cd "$here/$module" && go build -ldflags "-s -w $stamp" "${flags[@]}" -o "$folder/.new/" "${packages[@]}") >&2
  for member in "${family[@]}"; do
    # Go names a program after its package, which may differ from the tool's name.
    built=$folder/.new/$member
    [ -e "$built" ] || built=$(find "$folder/.new" -type f | head -1)
    mv "$built" "$folder/$member"
  done
  rmdir "$folder/.new"
done
linked
