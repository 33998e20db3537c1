#!/usr/bin/env bash
# Prints the service account of pods.js. It may create pods in COUNT namespaces of the load tests and in load-test-plain,
# and nowhere else.
#
#   account.sh [COUNT] | kubectl apply -f -            COUNT is 50 by default; run it after namespaces.sh
set -euo pipefail

count=${1:-50}
cat <<YAML
apiVersion: v1
kind: ServiceAccount
metadata:
  name: load-test
  namespace: load-test-plain
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata:
  name: load-test
rules:
- apiGroups: [""]
  resources: [pods]
  verbs: [create, deletecollection]
YAML
for namespace in plain $(seq 0 $((count - 1))); do
  cat <<YAML
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata:
  name: load-test
  namespace: load-test-$namespace
roleRef:
  apiGroup: rbac.authorization.k8s.io
  kind: ClusterRole
  name: load-test
subjects:
- kind: ServiceAccount
  name: load-test
  namespace: load-test-plain
YAML
done
