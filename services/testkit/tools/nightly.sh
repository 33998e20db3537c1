#!/usr/bin/env bash
# Runs the end-to-end tests on every Kubernetes version, and long versions of tests that `just test` runs briefly. Continues
# after a failure. The last line is one JSON object with the result of each part. Arguments select parts by their names. With
# --record before them, each part also writes its row in docs/reliability.md.
set -uo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
record=
[ "${1:-}" != --record ] || { record=yes && shift; }
parts=" $* "
known=()
results=()
status=0
# Writes the result of a part into its row. The first two columns stay. Parts whose results are on other pages have no row.
record() { # NAME passed|failed RESULT SECONDS
  local page=$here/../../../docs/reliability.md processor version commit result="$2 \`$3\`"
  # docs/benchmarks.md shows results with tables.
  [[ $3 != *[[:alnum:]\"]*[[{]* ]] || result=$2
  [[ $3 != null ]] || result="$2, without a result"
  commit=$(git -C "$here" describe --always --dirty --abbrev=10)
  processor=$(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | head -1)
  version=$(sed -n 's/^\tk8s.io\/kubernetes v\([0-9.]*\).*/\1/p' "$here/kubernetes/${KUBERNETES:-1.37}/go.mod" | head -1)
  awk -F ' *[|] *' -v name="\`$1\`" -v rest="$result | $((($4 + 59) / 60)) | $(date -u +%F) | $commit, Kubernetes $version, $(nproc) cores, $processor |" \
    '$2 == name { print "| " $2 " | " $3 " | " rest; next } { print }' "$page" >"$page.new" && mv "$page.new" "$page"
}
part() { # NAME COMMAND...
  local name=$1 output began=$SECONDS outcome=passed
  shift
  known+=("$name")
  [[ $parts =~ ^\ +$ || $parts == *" $name "* ]] || return 0
  output=$("$@" | tee /dev/stderr) || { status=1 && outcome=failed; }
  output=$(echo "$output" | tail -1)
  [[ $output == \{* ]] || output=null
  results+=("\"$name\":$output")
  [ -z "$record" ] || record "$name" "$outcome" "$output" $((SECONDS - began))
}
for version in $(cd "$here/kubernetes" && echo *); do part "kubernetes-$version" env KUBERNETES="$version" "$here/e2e.sh" --record; done
part rotations env PILLION_ROTATIONS=1000 "$here/result.sh" --workspace --test e2e rotation::rotations_lose_no_pod
part restart env PILLION_RATE=200 PILLION_ROLLS=20 "$here/result.sh" --workspace --test e2e rolling::rolling_restarts_lose_no_pod
part crashes env PILLION_RATE=200 PILLION_KILLS=20 "$here/result.sh" --workspace --test e2e crashes::
part leader env PILLION_THOROUGH=1 "$here/result.sh" --counts --workspace --test e2e clock:: rotation::
part api-loss "$here/result.sh" --workspace --test e2e api_loss::
part rotation-states env PILLION_THOROUGH=1 PILLION_ROTATION_STATES=1000000 "$here/result.sh" --release --workspace --test integration rotation_model::
part cold-start env PILLION_TEST_NAMESPACES=10000 "$here/result.sh" --workspace --test e2e cold_start::
# Tests cannot build tools, because they have no network.
rollout() { "$here/build.sh" kwok >&2 && "$here/result.sh" --workspace --test e2e --run-ignored only in_place_at_scale::; }
part rollout rollout
autoscalers() {
  "$here/build.sh" kwok metrics-server vpa-admission-controller vpa-updater kube-controller-manager >&2 &&
    "$here/result.sh" --workspace --test e2e --run-ignored only --no-capture autoscalers::
}
part autoscalers autoscalers
burst() {
  cargo build --release --locked -p pillion >&2 &&
    PILLION_PROGRAM=$here/../../../target/release/pillion \
      "$here/result.sh" --workspace --test e2e --run-ignored only --no-capture gang_burst::
}
part burst burst
large_cluster() {
  "$here/build.sh" kwok >&2 &&
    cargo build --release --locked -p pillion >&2 &&
    PILLION_PROGRAM=$here/../../../target/release/pillion PILLION_PODS=${PILLION_PODS:-1000,10000,150000} \
      PILLION_NAMESPACES=${PILLION_NAMESPACES:-10000} PILLION_PROFILES=${PILLION_PROFILES:-2000} PILLION_NODES=${PILLION_NODES:-5000} \
      "$here/result.sh" --workspace --test e2e --run-ignored only --no-capture large_cluster::
}
part large-cluster large_cluster
part oracle env PILLION_ORACLE_CASES=10000 "$here/result.sh" --workspace --test integration oracle::
part bombs env PILLION_BOMBS=10000000 "$here/result.sh" --release --workspace --test integration bombs::
part properties env PROPTEST_CASES=20000 PILLION_MUTATIONS=100000 PILLION_INTERFERENCE_CASES=200000 "$here/result.sh" --release --workspace --test integration fuzz:: properties:: directives:: untouched:: interference::
part load env PILLION_LOAD=full "$here/result.sh" --workspace --test integration load_tests::
part soak env PILLION_SOAK_SECONDS=600 "$here/result.sh" --workspace --test integration soak::
part gates bash -c 'cargo bench --locked -p pillion-engine --bench answers && echo "{\"broken\":0}"'
node() {
  cargo run --locked --quiet -p pillion-testkit --bin cluster -- build >&2 &&
    "$here/result.sh" --workspace --test node --run-ignored only
}
part node node
for name in $parts; do
  [[ " ${known[*]} " == *" $name "* ]] || { echo "error: there is no part '$name'; expected one of: ${known[*]}" >&2 && status=2; }
done
echo "{$(IFS=,; echo "${results[*]}")}"
exit "$status"
