//! Simulates creations of pods: creates the review that an API server would send.

use std::sync::Arc;

use pillion_engine::creation::Creation;
pub(crate) use pillion_engine::creation::original_object;
use pillion_engine::lookup::LookedUp;
use pillion_engine::review::{Decided, Endpoint, Facts, Review};
use pillion_engine::snapshot::{Namespace, Snapshot};
use serde_json::{Value, json};

/// The UID of simulated requests.
const UID: &str = "00000000-0000-4000-8000-000000000000";

/// Returns the review of creating a pod with a dry run. `user` is the request's `userInfo`.
pub(crate) fn review(pod: &Value, namespace: &str, user: &Value) -> Value {
    Creation { object: pod, namespace, uid: UID, user, dry_run: true }.review()
}

/// Returns the webhook's decision for a pod that `pillion doctor` would create. Looks up no objects. `None` if the
/// decision cannot be computed.
pub(crate) fn decide(pod: &Value, name: &str, namespace: &Arc<Namespace>, snapshot: &Snapshot) -> Option<Decided> {
    let facts = Facts {
        namespace: Some(Arc::clone(namespace)),
        looked_up: LookedUp { cluster: LookedUp::unknown_cluster(), ..LookedUp::default() },
        ..Facts::default()
    };
    let body = review(pod, name, &json!({"username": "pillion-doctor"})).to_string();
    Review::parse(body.as_bytes()).ok()?.decide(Endpoint::Any, snapshot, &facts).ok()
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
