#!/usr/bin/env bash
# Builds the real programs that the tests drive from the pinned Go modules beside this script, once for each version, into a
# cache outside the checkout. Prints the folder in which they are.
#
#   build.sh [TOOL...]    all of them when none is named; does nothing for a tool that is there already
#
# PILLION_TOOLS names another cache folder. KUBEBUILDER_ASSETS, when set, is taken as it is for the programs of the control
# plane, and they are not built.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
all=(etcd kube-apiserver kubectl kube-controller-manager prometheus promtool k6 otelcol)
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
    prometheus | promtool) echo prometheus ;;
    k6) echo k6 ;;
    otelcol) echo collector ;;
    *)
      echo "error: there is no tool named '$1'; there are: ${all[*]}" >&2
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
    kube-apiserver | kubectl | kube-controller-manager)
      module=$(module_of "$tool")
      version=$(pinned "$module" k8s.io/kubernetes)
      minor=$(echo "$version" | cut -d. -f2)
      stamp="-X k8s.io/component-base/version.gitVersion=$version -X k8s.io/component-base/version.gitMajor=1"
      stamp="$stamp -X k8s.io/component-base/version.gitMinor=$minor -X k8s.io/client-go/pkg/version.gitVersion=$version"
      build "$module" "k8s.io/kubernetes/cmd/$tool" "$tool" "$stamp"
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
  esac
done
linked
