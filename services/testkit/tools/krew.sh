#!/usr/bin/env bash
# Writes the manifest of a release for Krew, the package manager of kubectl's plugins. It needs the archives of all
# platforms, so `just publish` runs it.
#
#   krew.sh FOLDER    writes FOLDER/pillion-VERSION-krew.yaml for the release in FOLDER
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../../.." && pwd)
folder=$1
version=$(sed -n 's/^version = "\(.*\)"/\1/p' "$root/Cargo.toml")
manifest=
archive=
while IFS= read -r line; do
  line=${line//\{version\}/$version}
  case $line in
    *' uri: '*) archive=$folder/${line##*/} ;;
    *' sha256: '*)
      [ -f "$archive" ] || { echo "error: there is no $archive: build or fetch it first" >&2; exit 1; }
      line=${line/\{sha256\}/$(sha256sum "$archive" | cut -d' ' -f1)}
      ;;
  esac
  manifest+=$line$'\n'
done <"$root/services/testkit/tools/dist/krew.yaml"
printf %s "$manifest" >"$folder/pillion-$version-krew.yaml"
