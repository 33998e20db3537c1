//! Builds the review that an API server would send for the creation of an object, for callers that have no API server.

use serde_json::{Value as Json, json};

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
}
