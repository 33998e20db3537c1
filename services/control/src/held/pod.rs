//! The data that the controller stores for a pod with the scheduling gate of `held` namespaces. All other data is
//! dropped when the pod is read.

use std::borrow::Cow;
use std::sync::Arc;

use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use kube::Resource;
use pillion_api::names::INJECTION_GATE;
use serde::Deserialize;

/// The finalizer for Job tracking. The Job controller removes it once it has counted the finished pod.
pub(crate) const JOB_TRACKING: &str = "batch.kubernetes.io/job-tracking";

/// A pod as the watch delivers it. It has only the metadata, and the fields of the spec that show whether the pod
/// waits.
#[derive(Clone, Debug, Default, Deserialize)]
pub struct StoredPod {
    #[serde(default)]
    metadata: ObjectMeta,
    #[serde(default)]
    spec: StoredSpec,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct StoredSpec {
    #[serde(default)]
    node_name: String,
    #[serde(default)]
    scheduling_gates: Vec<Gate>,
}

#[derive(Clone, Debug, Deserialize)]
struct Gate {
    name: String,
}

impl Resource for StoredPod {
    type DynamicType = ();
    type Scope = NamespaceResourceScope;

    fn kind((): &()) -> Cow<'_, str> {
        Pod::kind(&())
    }

    fn group((): &()) -> Cow<'_, str> {
        Pod::group(&())
    }

    fn version((): &()) -> Cow<'_, str> {
        Pod::version(&())
    }

    fn plural((): &()) -> Cow<'_, str> {
        Pod::plural(&())
    }

    fn meta(&self) -> &ObjectMeta {
        &self.metadata
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
}

/// Namespace and name of a pod.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key {
    /// The namespace.
    pub namespace: Arc<str>,
    /// The name.
    pub name: Arc<str>,
}

impl StoredPod {
    /// Returns the namespace and name of the pod.
    #[must_use]
    pub fn key(&self) -> Key {
        let text = |text: &Option<String>| text.as_deref().unwrap_or_default().into();
        Key { namespace: text(&self.metadata.namespace), name: text(&self.metadata.name) }
    }
}

pillion_api::labelled! {
    /// The kind of a pod's controlling owner, which may create a new pod when the pod is deleted.
    #[derive(Hash, PartialOrd, Ord)]
    pub enum OwnerKind {
        /// A `ReplicaSet`, most often a Deployment's.
        ReplicaSet => "replicaset",
        /// A `ReplicationController`.
        ReplicationController => "replicationcontroller",
        /// A `StatefulSet`.
        StatefulSet => "statefulset",
        /// A `DaemonSet`.
        DaemonSet => "daemonset",
        /// A `Job`.
        Job => "job",
        /// Another kind, whose reaction to a deleted pod is unknown.
        Other => "other",
        /// The pod has no controlling owner.
        NoOwner => "none",
    }
}

impl OwnerKind {
    /// Whether the owner's controller recreates a deleted pod, so that deleting it is safe.
    #[must_use]
    pub(crate) const fn recreates_pods(self) -> bool {
        !matches!(self, Self::Other | Self::NoOwner)
    }

    fn of(owner: &OwnerReference) -> Self {
        let group = owner.api_version.rsplit_once('/').map_or("", |(group, _)| group);
        match (group, owner.kind.as_str()) {
            ("apps", "ReplicaSet") => Self::ReplicaSet,
            ("", "ReplicationController") => Self::ReplicationController,
            ("apps", "StatefulSet") => Self::StatefulSet,
            ("apps", "DaemonSet") => Self::DaemonSet,
            ("batch", "Job") => Self::Job,
            _ => Self::Other,
        }
    }
}

/// A pod that waits for injection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeldPod {
    /// The UID of the pod.
    pub uid: Arc<str>,
    /// The `resourceVersion` that was read. It is a precondition of the first write, so that write fails if the pod has
    /// changed.
    pub resource_version: Arc<str>,
    /// The kind of the pod's owner.
    pub owner_kind: OwnerKind,
    /// The UID of the controlling owner. If there is none, the UID of the pod.
    pub owner: Arc<str>,
    /// Scheduling gates that are not Pillion's.
    pub other_gates: Vec<String>,
    /// The finalizers of the pod.
    pub finalizers: Vec<String>,
}

impl HeldPod {
    /// Reads a pod. Returns `None` if it does not have Pillion's gate, is scheduled, or is terminating.
    ///
    /// The injection record is ignored, since a pod author can write one. The gate alone shows that no replica has
    /// processed the pod.
    #[must_use]
    pub fn read(pod: StoredPod) -> Option<Self> {
        let StoredPod { metadata, spec } = pod;
        let is_ours = |gate: &Gate| gate.name == INJECTION_GATE;
        if metadata.deletion_timestamp.is_some()
            || !spec.node_name.is_empty()
            || !spec.scheduling_gates.iter().any(is_ours)
        {
            return None;
        }
        let uid: Arc<str> = metadata.uid?.into();
        let owners = metadata.owner_references.unwrap_or_default();
        let owner = owners.iter().find(|owner| owner.controller == Some(true));
        Some(Self {
            resource_version: metadata.resource_version?.into(),
            owner_kind: owner.map_or(OwnerKind::NoOwner, OwnerKind::of),
            owner: owner.map_or_else(|| Arc::clone(&uid), |owner| owner.uid.as_str().into()),
            other_gates: spec
                .scheduling_gates
                .into_iter()
                .filter(|gate| !is_ours(gate))
                .map(|gate| gate.name)
                .collect(),
            finalizers: metadata.finalizers.unwrap_or_default(),
            uid,
        })
    }

    /// Whether the Job controller would count the pod's deletion as a failure.
    #[must_use]
    pub(crate) fn is_tracked(&self) -> bool {
        self.finalizers.iter().any(|finalizer| finalizer == JOB_TRACKING)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(pod: serde_json::Value) -> Option<HeldPod> {
        HeldPod::read(serde_json::from_value(pod).unwrap())
    }

    fn pod(spec: &serde_json::Value, owner: Option<(&str, &str)>) -> serde_json::Value {
        let owners: Vec<_> = owner
            .into_iter()
            .map(|(api_version, kind)| {
                json!({"apiVersion": api_version, "kind": kind, "name": "o", "uid": "owner", "controller": true})
            })
            .collect();
        json!({"metadata": {"name": "p", "namespace": "n", "uid": "u", "resourceVersion": "7", "ownerReferences": owners,
                "managedFields": [{"manager": "x"}]}, "spec": spec, "status": {"phase": "Pending"}})
    }

    #[test]
    fn keeps_only_unscheduled_pods_with_the_gate() {
        let ours = json!({"name": INJECTION_GATE});
        let other = json!({"name": "example.com/quota"});
        for (spec, expected) in [
            (json!({}), None),
            (json!({"schedulingGates": [other]}), None),
            (json!({"schedulingGates": [ours]}), Some(vec![])),
            (json!({"schedulingGates": [other, ours]}), Some(vec!["example.com/quota".to_owned()])),
            (json!({"schedulingGates": [ours], "nodeName": "n1"}), None),
        ] {
            assert_eq!(read(pod(&spec, None)).map(|pod| pod.other_gates), expected, "{spec}");
        }
        let mut going = pod(&json!({"schedulingGates": [ours]}), None);
        going["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
        assert_eq!(read(going), None);
    }

    #[test]
    fn owner_kind_is_known_by_group_and_kind() {
        let spec = json!({"schedulingGates": [{"name": INJECTION_GATE}]});
        for (owner, kind, id) in [
            (None, OwnerKind::NoOwner, "u"),
            (Some(("apps/v1", "ReplicaSet")), OwnerKind::ReplicaSet, "owner"),
            (Some(("v1", "ReplicationController")), OwnerKind::ReplicationController, "owner"),
            (Some(("apps/v1", "StatefulSet")), OwnerKind::StatefulSet, "owner"),
            (Some(("apps/v1", "DaemonSet")), OwnerKind::DaemonSet, "owner"),
            (Some(("batch/v1", "Job")), OwnerKind::Job, "owner"),
            (Some(("apps.kruise.io/v1beta1", "StatefulSet")), OwnerKind::Other, "owner"),
            (Some(("argoproj.io/v1alpha1", "Workflow")), OwnerKind::Other, "owner"),
        ] {
            let read = read(pod(&spec, owner)).unwrap();
            assert_eq!((read.owner_kind, &*read.owner), (kind, id), "{owner:?}");
        }
    }
}
