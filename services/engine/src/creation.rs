//! Simulates the creation of objects: reconstructs a pod as its author submitted it, and builds the review that an API
//! server would send.

use serde_json::{Value as Json, json};

use crate::audit;
use crate::json::OwnedTape;
use crate::lookup::{group_of, plural};

/// The creation of an object.
#[derive(Clone, Copy, Debug)]
pub struct Creation<'c> {
    /// The object, with `apiVersion` and `kind`.
    pub object: &'c Json,
    /// The namespace of the request.
    pub namespace: &'c str,
    /// The UID of the request.
    pub uid: &'c str,
    /// The `userInfo` of the request.
    pub user: &'c Json,
    /// Whether the request is a dry run.
    pub dry_run: bool,
}

impl Creation<'_> {
    /// Returns the AdmissionReview.
    #[must_use]
    pub fn review(&self) -> Json {
        review(&self.request())
    }

    /// Returns the request of the review.
    #[must_use]
    pub fn request(&self) -> Json {
        let text = |field: &str| self.object.get(field).and_then(Json::as_str).unwrap_or_default();
        let (group, version) =
            (group_of(text("apiVersion")), text("apiVersion").rsplit('/').next().unwrap_or_default());
        let kind = json!({"group": group, "version": version, "kind": text("kind")});
        let resource = json!({"group": group, "version": version, "resource": plural(text("kind"))});
        json!({
            "uid": self.uid,
            "kind": kind,
            "resource": resource,
            "requestKind": kind,
            "requestResource": resource,
            "name": self.object.pointer("/metadata/name").and_then(Json::as_str).unwrap_or_default(),
            "namespace": self.namespace,
            "operation": "CREATE",
            "userInfo": self.user,
            "object": self.object,
            "oldObject": null,
            "dryRun": self.dry_run,
            "options": {"apiVersion": "meta.k8s.io/v1", "kind": "CreateOptions"},
        })
    }
}

/// Wraps a request in an AdmissionReview.
#[must_use]
pub fn review(request: &Json) -> Json {
    json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request})
}

/// Returns a stored pod as its author wrote it, as far as that can be reconstructed. Removes Pillion's injection
/// record, the changes that it lists, `status`, a generated name, the scheduler's `nodeName`, and metadata such as
/// `uid`, but not `managedFields`. A record that Pillion did not write is kept but not evaluated.
#[must_use]
pub fn original_object(pod: &Json) -> Json {
    let tape = OwnedTape::parse(pod.to_string()).ok();
    let read = tape.as_ref().map(|tape| audit::read(tape.root()));
    let original = read.and_then(|read| serde_json::from_str(read.original_object?.root().raw()).ok());
    let mut original: Json = original.unwrap_or_else(|| pod.clone());
    let Some(fields) = original.as_object_mut() else { return original };
    fields.shift_remove("status");
    // Items of a list from the API server have no `apiVersion` and `kind`.
    fields.insert("apiVersion".to_owned(), "v1".into());
    fields.insert("kind".to_owned(), "Pod".into());
    if !has_authored_node_name(pod)
        && let Some(spec) = fields.get_mut("spec").and_then(Json::as_object_mut)
    {
        spec.shift_remove("nodeName");
    }
    if let Some(metadata) = fields.get_mut("metadata").and_then(Json::as_object_mut) {
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
fn has_authored_node_name(pod: &Json) -> bool {
    let managers = pod.pointer("/metadata/managedFields").and_then(Json::as_array);
    managers.into_iter().flatten().any(|entry| entry.pointer("/fieldsV1/f:spec/f:nodeName").is_some())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::review::Review;

    #[test]
    fn creation_review_names_resource_of_object() {
        let object = json!({
            "apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": {"name": "closed"},
        });
        let user = json!({"username": "jane"});
        let creation = Creation { object: &object, namespace: "shop", uid: "u", user: &user, dry_run: true };
        let review = creation.review();
        let request = &review["request"];
        assert_eq!(
            request["resource"],
            json!({"group": "networking.k8s.io", "version": "v1", "resource": "networkpolicies"})
        );
        assert_eq!((&request["name"], &request["dryRun"]), (&json!("closed"), &json!(true)));
        assert_eq!(Review::parse(review.to_string().as_bytes()).unwrap().namespace(), "shop");
    }

    /// Returns a pod with an injection record, which the pod's author wrote if `record_is_authors` is true.
    fn pod(record_is_authors: bool) -> Json {
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
