#!/usr/bin/env bash
# Runs the end-to-end tests on the Kubernetes version in KUBERNETES, by default the newest. Skips tests of features that the
# version lacks, and prints the reason. The last line is one JSON object.
#
#   e2e.sh [FILTER]    runs the tests whose names contain FILTER
#   e2e.sh --record    runs all tests, and writes the version's row in docs/releases.md
set -uo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
kubernetes=${KUBERNETES:-1.37}
record=
[ "${1:-}" != --record ] || { record=yes && shift; }
"$here/build.sh" >/dev/null || exit
left_out='none()'
printed=()
reasons=()
while IFS=';' read -r versions filter reason; do
  [[ " $versions " == *" $kubernetes "* ]] || continue
  left_out="$left_out | $filter"
  printed+=("skipped on Kubernetes $kubernetes:$reason (${filter# })")
  reasons+=("${reason# }")
done < <(grep -v '^#' "$here/versions.txt")
said=$("$here/result.sh" --counts --workspace --test e2e --test-threads $((3 * $(nproc))) -E "all() - ($left_out)" "$@")
status=$?
[ ${#printed[@]} -eq 0 ] || printf '%s\n' "${printed[@]}"
version=$(sed -n 's/^\tk8s.io\/kubernetes v\([0-9.]*\).*/\1/p' "$here/kubernetes/$kubernetes/go.mod" | head -1)
echo "$said" | sed '$d'
result=$(echo "$said" | tail -1)
if [ -n "$record" ]; then
  page=$here/../../../docs/releases.md
  counts=$(echo "$result" | sed 's/[{}"]//g; s/\([a-z]*\):\([0-9]*\)/\2 \1/g; s/,/, /g')
  why=$(IFS=';'; echo "${reasons[*]}" | sed 's/;/; /g')
  row="| $version | $counts | $why |"
  # Replaces the row of this minor version, or adds one below the table's heading.
  sed -i "/^| ${kubernetes//./\\.}\.[0-9]/d" "$page"
  awk -v row="$row" '{ print } /^\| tested version /{ heading = 1 } heading && /^\|---/ { print row; heading = 0 }' "$page" >"$page.new"
  mv "$page.new" "$page"
fi
echo "{\"kubernetes\":\"$version\",${result#\{}"
exit "$status"
