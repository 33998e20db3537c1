#!/usr/bin/env bash
# Prints COUNT namespaces for the load tests, load-test-0 and so on, which the profile beside this script acts in, and
# load-test-plain, in which nothing is injected.
#
#   namespaces.sh [COUNT]                              50 if none is said
#   namespaces.sh | kubectl apply -f -                 in a cluster
#   pillion dev --namespaces-file <(namespaces.sh)     without one
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
