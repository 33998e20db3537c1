#!/usr/bin/env bash
# Writes all generated files of the repository: CRDs, copies in the chart, manifests, dashboards, tables in documents,
# the table of a pod's fields, seeds of the fuzz corpus and the expected output of `pillion lint`.
#
#   generate.sh           writes them
#   generate.sh --check   writes them too, and fails if that changed a file
set -euo pipefail

tools=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
cd "$tools/../../.."
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

chart=charts/pillion
mistakes=services/pillion/tests/mistakes
written=(
  "$chart/README.md" "$chart/values.schema.json" "$chart/crds" "$chart/files" dashboards deploy/manifests docs/cli.md docs/configuration.md docs/metrics.md fuzz/corpus
  services/engine/src/profile/pod_schema.txt "$mistakes"
)
sums() { find "${written[@]}" -type f -exec sha256sum {} + | sort; }
sums >"$work/before"

# Uses the workspace, features and profile of the tests, so that nothing is compiled twice.
cargo build --locked --profile test --workspace --bin pillion --example generate
target=$(realpath "${CARGO_TARGET_DIR:-target}")/debug

"$target/pillion" crds >"$chart/crds/pillion.dev.yaml"
cp "$chart/crds/pillion.dev.yaml" deploy/manifests/crds.yaml

"$target/pillion" reference configuration >"$work/configuration"
"$target/pillion" reference cli >"$work/cli"
# Removes dashboards whose source was deleted.
rm -f dashboards/*.json
newest=$(cd "$tools/kubernetes" && printf '%s\n' * | sort -V | tail -1)
kubernetes=$(cd "$tools/kubernetes/$newest" && go mod download k8s.io/kubernetes && go list -m -f '{{.Dir}}' k8s.io/kubernetes)
"$target/examples/generate" --openapi "$kubernetes/api/openapi-spec/v3/api__v1_openapi.json" \
  --configuration "$work/configuration" --cli "$work/cli"

rm -rf "$chart/files"
mkdir -p "$chart/files/"{profiles,dashboards,rules}
cp dashboards/*.json "$chart/files/dashboards"
cp dashboards/rules/*.yaml "$chart/files/rules"
for profile in profiles/*/profile.yaml; do
  folder=${profile%/*}
  # If the folder has a policy.yaml, that exported policy replaces the profile in the chart.
  [ ! -f "$folder/policy.yaml" ] || profile=$folder/policy.yaml
  cp "$profile" "$chart/files/profiles/${folder##*/}.yaml"
done

# Renders the manifests without hooks, and removes labels and comments that only apply to Helm.
{
  cat <<'HEADER'
# Pillion with the default values of the chart charts/pillion, for the namespace pillion-system.
# Written by `just generate`; docs/deploying.md describes its use.
apiVersion: v1
kind: Namespace
metadata:
  name: pillion-system
  labels:
    app.kubernetes.io/name: pillion
    app.kubernetes.io/instance: pillion
HEADER
  HELM_CACHE_HOME=$work HELM_CONFIG_HOME=$work HELM_DATA_HOME=$work "$("$tools/build.sh" helm)/helm" \
    template pillion "$chart" --namespace pillion-system --no-hooks --kube-version 1.36.3 |
    sed -E '/^ *(# Source: |app\.kubernetes\.io\/managed-by: |helm\.sh\/chart: )/d' |
    awk 'NF || !blank { print } { blank = !NF || $0 == "---" }'
} >deploy/manifests/pillion.yaml

for file in "$mistakes"/*.yaml; do
  # Lint fails on each of these files.
  (cd "$mistakes" && "$target/pillion" lint "${file##*/}") 2>"${file%.yaml}.txt" || true
done

sums >"$work/after"
changed=$(comm -3 "$work/before" "$work/after" | awk '{ print $2 }' | sort -u)
if [ "${1:-}" = --check ] && [ -n "$changed" ]; then
  echo "error: these generated files were out of date; run \`just generate\` and commit them:" >&2
  echo "$changed" >&2
  exit 1
fi
