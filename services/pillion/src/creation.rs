//! The review that the API server would send if a pod were created: what the commands that have no API server give to the
//! engine.

use serde_json::{Value, json};

/// A review of a dry run. `uid` is the request's, `user` its `userInfo`.
pub(crate) fn review(pod: &Value, namespace: &str, uid: &str, user: &Value) -> Value {
    let kind = json!({"group": "", "version": "v1", "kind": "Pod"});
    let resource = json!({"group": "", "version": "v1", "resource": "pods"});
    json!({
        "apiVersion": "admission.k8s.io/v1",
        "kind": "AdmissionReview",
        "request": {
            "uid": uid,
            "kind": kind,
            "resource": resource,
            "requestKind": kind,
            "requestResource": resource,
            "name": pod.pointer("/metadata/name").and_then(Value::as_str).unwrap_or_default(),
            "namespace": namespace,
            "operation": "CREATE",
            "userInfo": user,
            "object": pod,
            "oldObject": null,
            "dryRun": true,
            "options": {"apiVersion": "meta.k8s.io/v1", "kind": "CreateOptions"},
        },
    })
}
