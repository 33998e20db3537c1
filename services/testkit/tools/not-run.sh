#!/usr/bin/env bash
# Lists the tests that `just test` does not run, with the reasons, except for the tests named in the arguments.
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/../../.."
echo
echo "not run:"
grep -rn --include='*.rs' -A4 '#\[ignore = "' services/*/tests services/*/src | awk -v ran=" $* " '
  match($0, /#\[ignore = ".*"\]/) { reason = substr($0, RSTART + 12, RLENGTH - 14) }
  reason != "" && match($0, /fn [a-z0-9_]+/) {
    name = substr($0, RSTART + 3, RLENGTH - 3)
    if (!index(ran, " " name " ")) print "  " name ": " reason
    reason = ""
  }'
