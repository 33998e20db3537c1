#!/usr/bin/env bash
# Runs cargo-nextest with these arguments. The last line is one JSON object: the result that the test wrote to the file
# PILLION_RESULT, or else the counts of the run. With --counts before the arguments, it is always the counts.
set -uo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
[ "${1:-}" != --counts ] || { counts=yes && shift; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
# Uses a pipe and not a process substitution, so that the log is complete when the pipeline has ended.
{
  PILLION_RESULT=$work/result "$("$here/prebuilt.sh" cargo-nextest)" nextest run --locked "$@" 2>&1 1>&3 | tee "$work/log" >&2
  status=${PIPESTATUS[0]}
} 3>&1
if [ -s "$work/result" ] && [ -z "${counts:-}" ]; then
  cat "$work/result"
else
  # Example: Summary [  12.3s] 6 tests run: 5 passed (1 slow), 1 failed, 2 skipped
  summary=$(sed 's/\x1b\[[0-9;]*m//g' "$work/log" | grep ' tests\{0,1\} run: ' | tail -1)
  count() { echo "${summary#*run: }" | grep -oE "[0-9]+ $1" | head -1 | grep -oE '[0-9]+' || echo 0; }
  echo "{\"passed\":$(count passed),\"failed\":$(($(count failed) + $(count 'timed out'))),\"skipped\":$(count skipped)}"
fi
exit "$status"
