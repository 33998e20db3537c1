#!/usr/bin/env bash
# Prints COUNT namespaces for the load tests, load-test-0 and so on, in which profile.yaml injects, and load-test-plain, in
# which nothing is injected.
#
#   namespaces.sh [COUNT]                              COUNT is 50 by default
#   namespaces.sh | kubectl apply -f -                 in a cluster
#   pillion dev --namespace-file <(namespaces.sh)     without a cluster
set -euo pipefail

count=${1:-50}
for ((number = 0; number < count; number++)); do
  cat <<YAML
---
apiVersion: v1
kind: Namespace
metadata:
  name: load-test-$number
  labels:
    example.com/load-test: "true"
    pillion.dev/injection: enabled
YAML
done
cat <<YAML
---
apiVersion: v1
kind: Namespace
metadata:
  name: load-test-plain
YAML
