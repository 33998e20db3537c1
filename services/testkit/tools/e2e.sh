#!/usr/bin/env bash
# Runs the end-to-end tests on the Kubernetes version that KUBERNETES names, by default on the newest. What that version
# lacks is left out, and said. The last line is one JSON object.
#
#   e2e.sh [FILTER]    FILTER is a part of the tests' names
set -uo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
kubernetes=${KUBERNETES:-1.37}
"$here/build.sh" >/dev/null || exit
left_out='none()'
reasons=()
while IFS=: read -r versions filter reason; do
  [[ " $versions " == *" $kubernetes "* ]] || continue
  left_out="$left_out | $filter"
  reasons+=("left out on Kubernetes $kubernetes:$reason (${filter# })")
done < <(grep -v '^#' "$here/versions.txt")
said=$("$here/result.sh" --workspace --test e2e --test-threads $(($(nproc) + 1)) -E "all() - ($left_out)" "$@")
status=$?
for reason in "${reasons[@]}"; do echo "$reason"; done
version=$(sed -n 's/^\tk8s.io\/kubernetes v\([0-9.]*\).*/\1/p' "$here/kubernetes/$kubernetes/go.mod" | head -1)
echo "$said" | sed '$d'
echo "$said" | tail -1 | sed "s/^{/{\"kubernetes\":\"$version\",/"
exit "$status"
