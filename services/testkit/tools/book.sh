#!/usr/bin/env bash
# Builds the documentation as a site into target/book. The first call fetches mdBook (prebuilt.sh) and mermaid, which draws
# diagrams in the reader's browser.
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/../../.."
version=12.3.0
integrity=sha512-4113TdXeLAsMruJ79OpFL5O8+LTFXhQqZ260rF3tgUmiNAtRm4Uume04I+65PRN6yZ69J4f8rVYWW8zRk65UYw==
cache=${PILLION_TOOLS:-${XDG_CACHE_HOME:-${HOME:?no folder for the cache: set PILLION_TOOLS}/.cache}/pillion/tools}
script=$cache/mermaid-$version.min.js
if [ ! -e "$script" ]; then
  command -v npm >/dev/null || { echo "error: mermaid is fetched from npm once, and there is no 'npm' on the PATH" >&2 && exit 2; }
  mkdir -p "$cache"
  work=$(mktemp -d "$cache/.mermaid-XXXXXX")
  trap 'rm -rf "$work"' EXIT
  npm pack --silent --pack-destination "$work" "mermaid@$version" >/dev/null
  found=sha512-$(openssl dgst -sha512 -binary "$work"/*.tgz | base64 --wrap=0)
  [ "$found" = "$integrity" ] || { echo "error: mermaid $version has the hash $found, expected $integrity" >&2 && exit 1; }
  tar -xzf "$work"/*.tgz -C "$work" package/dist/mermaid.min.js
  mv "$work/package/dist/mermaid.min.js" "$script"
fi
mkdir -p target
cp "$script" target/mermaid.min.js
"$(services/testkit/tools/prebuilt.sh mdbook)" build
