//! Simulates creations of pods: reconstructs the pod as its author submitted it, and creates the review that an API
//! server would send.

use pillion_engine::creation::Creation;
use pillion_json::OwnedTape;
use serde_json::{Value, json};

/// The UID of simulated requests.
const UID: &str = "00000000-0000-4000-8000-000000000000";

/// Returns the review of creating a pod with a dry run. `user` is the request's `userInfo`.
pub(crate) fn review(pod: &Value, namespace: &str, user: &Value) -> Value {
    Creation { object: pod, namespace, uid: UID, user, dry_run: true }.review()
}

/// Returns the review of creating a pod without a dry run.
pub(crate) fn of_creation(pod: &Value, namespace: &str, user: &Value) -> Value {
    Creation { object: pod, namespace, uid: UID, user, dry_run: false }.review()
}

/// Returns the owner reference from a pod to its workload. It has a UID only if the workload has one, that is, if the
/// workload was read from a cluster. `None` if the workload has no name.
pub(crate) fn owner_reference(workload: &Value, api_version: &str, kind: &str) -> Option<Value> {
    let metadata = |field: &str| workload.get("metadata")?.get(field)?.as_str();
    let name = metadata("name")?;
    let mut owner = json!({"apiVersion": api_version, "kind": kind, "name": name, "controller": true});
    if let (Some(fields), Some(uid)) = (owner.as_object_mut(), metadata("uid")) {
        fields.insert("uid".to_owned(), uid.into());
    }
    Some(owner)
}

/// Returns a stored pod as its author wrote it, where that can be reconstructed. Removes Pillion's injection record,
/// the changes that it lists, and all fields that only stored pods have. A record that Pillion did not write is kept
/// but not evaluated.
pub(crate) fn original_object(pod: &Value) -> Value {
    let tape = OwnedTape::parse(pod.to_string()).ok();
    let read = tape.as_ref().map(|tape| pillion_engine::audit::read(tape.root()));
    let original = read.and_then(|read| serde_json::from_str(read.original_object?.root().raw()).ok());
    let mut original: Value = original.unwrap_or_else(|| pod.clone());
    let Some(fields) = original.as_object_mut() else { return original };
    fields.shift_remove("status");
    // Items of a list from the API server have no `apiVersion` and `kind`.
    fields.insert("apiVersion".to_owned(), "v1".into());
    fields.insert("kind".to_owned(), "Pod".into());
    if !has_authored_node_name(pod)
        && let Some(spec) = fields.get_mut("spec").and_then(Value::as_object_mut)
    {
        spec.shift_remove("nodeName");
    }
    if let Some(metadata) = fields.get_mut("metadata").and_then(Value::as_object_mut) {
        for field in ["uid", "resourceVersion", "creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds"]
        {
            metadata.shift_remove(field);
        }
        // The name was generated from `generateName`, after the review.
        if metadata.contains_key("generateName") {
            metadata.shift_remove("name");
        }
    }
    original
}

/// Whether the pod's author set `nodeName`. The scheduler sets it through a binding, which leaves no entry in
/// `managedFields`.
fn has_authored_node_name(pod: &Value) -> bool {
    let managers = pod.pointer("/metadata/managedFields").and_then(Value::as_array);
    managers.into_iter().flatten().any(|entry| entry.pointer("/fieldsV1/f:spec/f:nodeName").is_some())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// Returns a pod with an injection record, which the pod's author wrote if `record_is_authors` is true.
    fn pod(record_is_authors: bool) -> Value {
        let record = json!({"version": 1, "profiles": [{
            "profile": "nginx", "revision": "ab", "added": ["/spec/containers/proxy"],
        }]});
        let fields = if record_is_authors {
            json!({"f:metadata": {"f:annotations": {"f:pillion.dev/injected": {}}}})
        } else {
            json!({"f:spec": {}})
        };
        json!({
            "metadata": {
                "name": "web-x", "generateName": "web-", "uid": "u", "resourceVersion": "7",
                "annotations": {"a": "b", "pillion.dev/injected": record.to_string()},
                "managedFields": [{"manager": "kubectl", "fieldsV1": fields}],
            },
            "spec": {"containers": [{"name": "app"}, {"name": "proxy"}], "nodeName": "node-1"},
            "status": {"phase": "Running"},
        })
    }

    #[test]
    fn injected_and_stored_fields_are_removed() {
        let original = original_object(&pod(false));
        let managed = json!([{"manager": "kubectl", "fieldsV1": {"f:spec": {}}}]);
        let expected = json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {"generateName": "web-", "annotations": {"a": "b"}, "managedFields": managed},
            "spec": {"containers": [{"name": "app"}]},
        });
        assert_eq!(original, expected);
    }

    #[test]
    fn node_name_of_author_is_kept() {
        let mut bound = pod(false);
        bound["metadata"]["managedFields"][0]["fieldsV1"] = json!({"f:spec": {"f:nodeName": {}}});
        assert_eq!(original_object(&bound)["spec"]["nodeName"], "node-1");
        assert!(original_object(&pod(false))["spec"].get("nodeName").is_none());
    }

    #[test]
    fn foreign_record_is_ignored() {
        let original = original_object(&pod(true));
        assert_eq!(original["spec"], json!({"containers": [{"name": "app"}, {"name": "proxy"}]}));
        assert!(original["metadata"]["annotations"].get("pillion.dev/injected").is_some(), "{original}");
    }
}
