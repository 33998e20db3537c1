#!/usr/bin/env bash
# Builds the real programs that the tests drive (etcd, kube-apiserver, kubectl) from the pinned Go modules beside this
# script, once for each version, into a cache outside the checkout. Prints the folder that holds them.
#
#   build.sh [TOOL...]    all of them when none is named; does nothing for a tool that is there already
#
# PILLION_TOOLS names another cache folder. KUBEBUILDER_ASSETS, when set, is taken as it is and nothing is built.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
if [ -n "${KUBEBUILDER_ASSETS:-}" ]; then
  echo "$KUBEBUILDER_ASSETS"
  exit 0
fi

# The cache is keyed by what is built: a new pin is a new folder. A new way of building (flags, stamps) needs a new
# number here; what is said in comments and messages does not cost everybody ten minutes.
recipe=1
key=$(cat "$here"/*/go.mod "$here"/*/go.sum <(echo "recipe $recipe") | sha256sum | cut -c1-12)
if [ -z "${PILLION_TOOLS:-}${XDG_CACHE_HOME:-}${HOME:-}" ]; then
  echo "error: no folder to build the tools in; set PILLION_TOOLS, XDG_CACHE_HOME or HOME" >&2
  exit 2
fi
tools=${PILLION_TOOLS:-${XDG_CACHE_HOME:-${HOME:-}/.cache}/pillion/tools}/$key
mkdir -p "$tools"

wanted=("$@")
[ ${#wanted[@]} -gt 0 ] || wanted=(etcd kube-apiserver kubectl)

missing() {
  for tool in "${wanted[@]}"; do
    [ -x "$tools/$tool" ] || echo "$tool"
  done
}

absent=$(missing)
if [ -z "$absent" ]; then
  echo "$tools"
  exit 0
fi

if ! command -v go >/dev/null 2>&1; then
  {
    echo "error: building ${absent//$'\n'/, } needs Go (1.26 or newer), and there is no 'go' on the PATH"
    echo "  help: install Go from https://go.dev/doc/install, or set KUBEBUILDER_ASSETS to a folder that holds"
    echo "        etcd, kube-apiserver and kubectl (for instance: setup-envtest use 1.36.x -p path)"
  } >&2
  exit 2
fi

# One build at a time: several test processes may find the cache empty at once.
exec 9>"$tools/.lock"
flock 9

# Go's own build cache for these modules is over ten gigabytes; it lives beside the tools and goes when they are built.
export GOCACHE=$tools/.go-build CGO_ENABLED=0 GOFLAGS=-trimpath GOWORK=off
trap 'rm -rf "$GOCACHE"' EXIT

pinned() { (cd "$here/$1" && go list -m -f '{{.Version}}' "$2"); }

build() { # MODULE-FOLDER PACKAGE TOOL LDFLAGS
  echo "building $3 (once; about four minutes for a program of Kubernetes on two cores)" >&2
  (cd "$here/$1" && go build -ldflags "-s -w $4" -o "$tools/.$3" "$2") >&2
  mv "$tools/.$3" "$tools/$3"
}

for tool in $(missing); do
  case $tool in
    etcd)
      build etcd go.etcd.io/etcd/server/v3 etcd ""
      ;;
    kube-apiserver | kubectl)
      version=$(pinned kubernetes k8s.io/kubernetes)
      minor=$(echo "$version" | cut -d. -f2)
      stamp="-X k8s.io/component-base/version.gitVersion=$version -X k8s.io/component-base/version.gitMajor=1"
      stamp="$stamp -X k8s.io/component-base/version.gitMinor=$minor -X k8s.io/client-go/pkg/version.gitVersion=$version"
      build kubernetes "k8s.io/kubernetes/cmd/$tool" "$tool" "$stamp"
      ;;
    *)
      echo "error: there is no tool named '$tool'; there are: etcd, kube-apiserver, kubectl" >&2
      exit 2
      ;;
  esac
done
echo "$tools"
