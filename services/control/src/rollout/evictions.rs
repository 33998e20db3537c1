//! Evictions of pods that cannot be upgraded in place, so that their workloads replace them.
//!
//! The task remembers the evictions of its own term until each pod is replaced. A new leader does not know those of its
//! predecessor, so it evicts no pod until they have ended: for the time limit of one pod.

use kube::Client;
use kube::api::{DynamicObject, PostParams};
use serde_json::{Value, json};
use tokio::time::Instant;
use tracing::info;

use super::change::pods as api_of;
use crate::audit::ProfilePod;
use crate::client::chain;

/// The kinds of controllers that replace an evicted pod.
const REPLACING: [(&str, &str); 4] =
    [("apps/v1", "ReplicaSet"), ("apps/v1", "StatefulSet"), ("apps/v1", "DaemonSet"), ("v1", "ReplicationController")];

/// An eviction whose pod is not replaced yet.
#[derive(Clone, Debug)]
pub(super) struct Eviction {
    /// The namespace of the pod.
    pub(super) namespace: Box<str>,
    /// The name and kind of the controller, which the new pod has too.
    pub(super) controller: String,
    /// When the pod was evicted.
    pub(super) at: Instant,
    /// The same time in seconds since 1970. The new pod is not older.
    pub(super) since: i64,
}

impl Eviction {
    /// Whether a pod may be the one that replaces the evicted pod.
    pub(super) fn may_be_replaced_by(&self, pod: &ProfilePod) -> bool {
        let metadata = || serde_json::from_str(&pod.metadata).ok();
        pod.namespace == self.namespace
            && pod.created >= self.since
            && metadata().as_ref().and_then(controller_in).is_some_and(|controller| controller == self.controller)
    }
}

/// What became of a request to evict a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Evicted {
    /// The pod is being deleted.
    Done,
    /// The pod was deleted already, or replaced by one of the same name.
    Gone,
    /// The API server refuses, for this reason. For example, a `PodDisruptionBudget` does not allow the eviction now.
    Refused(String),
}

/// Returns the kind and name of the controller that replaces a pod. The error is the reason why none does.
pub(super) fn controller(pod: &DynamicObject) -> Result<String, String> {
    let owners = pod.metadata.owner_references.iter().flatten();
    let Some(owner) = owners.into_iter().find(|owner| owner.controller == Some(true)) else {
        return Err("no controller would replace it".to_owned());
    };
    if !REPLACING.contains(&(&*owner.api_version, &*owner.kind)) {
        return Err(format!("the controller does not evict pods of the kind {}", owner.kind));
    }
    Ok(format!("{}/{}", owner.kind, owner.name))
}

/// Returns the controller in the metadata of a pod, as [`controller`] does.
fn controller_in(metadata: &Value) -> Option<String> {
    let owner = metadata.pointer("/metadata/ownerReferences/0")?;
    Some(format!("{}/{}", owner.get("kind")?.as_str()?, owner.get("name")?.as_str()?))
}

/// Evicts a pod.
///
/// # Errors
/// The API server is unavailable.
pub(super) async fn evict(client: &Client, pod: &ProfilePod, uid: &str) -> kube::Result<Evicted> {
    // `Api::evict` does not send preconditions, so it could evict a new pod of the same name.
    let eviction = json!({
        "apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"namespace": pod.namespace, "name": pod.name},
        "deleteOptions": {"preconditions": {"uid": uid}},
    });
    let (api, parameters) = (api_of(client, &pod.namespace), PostParams::default());
    match api.create_subresource::<_, Value>("eviction", &pod.name, &parameters, &eviction).await {
        Ok(_) => {
            info!(namespace = &*pod.namespace, name = &*pod.name, "a pod was evicted, because it needs a new revision");
            Ok(Evicted::Done)
        }
        Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => Ok(Evicted::Gone),
        Err(kube::Error::Api(status)) if matches!(status.code, 400 | 403 | 422 | 429) => {
            Ok(Evicted::Refused(format!("the API server refuses to evict it: {}", status.message)))
        }
        Err(error) => {
            tracing::warn!(
                namespace = &*pod.namespace,
                name = &*pod.name,
                error = chain(&error),
                "a pod could not be evicted"
            );
            Err(error)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(owners: &Value) -> DynamicObject {
        serde_json::from_value(json!({"metadata": {"name": "web-1", "ownerReferences": owners}})).unwrap()
    }

    #[test]
    fn only_replaced_pods_are_evicted() {
        let owner = |version: &str, kind: &str, is_controller: bool| json!([{"apiVersion": version, "kind": kind, "name": "web", "uid": "u", "controller": is_controller}]);
        let owners = owner("apps/v1", "ReplicaSet", true);
        assert_eq!(controller(&pod(&owners)), Ok("ReplicaSet/web".to_owned()));
        let metadata = json!({"metadata": {"ownerReferences": owners}});
        assert_eq!(controller_in(&metadata).as_deref(), Some("ReplicaSet/web"));
        for owners in [owner("batch/v1", "Job", true), owner("apps/v1", "ReplicaSet", false), json!([])] {
            assert!(controller(&pod(&owners)).is_err(), "{owners}");
        }
    }
}
