//! The owners of a pod, such as its ReplicaSet and Deployment, or its Job and CronJob.
//!
//! The chain begins with the pod's owner reference. The name of a Deployment's ReplicaSet consists of the Deployment's
//! name and the pod's template hash, so the Deployment is known without a lookup. The owners of other `ReplicaSet`s and
//! of Jobs must be looked up. The chain ends at the first owner of any other kind.

use std::borrow::Cow;
use std::sync::Arc;

use crate::json::{OwnedTape, Value};

/// The maximum number of owners in a chain.
const MAX_OWNERS: usize = 4;

/// The label that distinguishes the pods of a Deployment's `ReplicaSet`s.
const TEMPLATE_HASH: &str = "pod-template-hash";

/// The kinds of workloads: group, kind, resource, and whether an object of this kind may have an owner to follow.
const KINDS: [(&str, &str, &str, bool); 7] = [
    ("apps", "ReplicaSet", "replicasets", true),
    ("apps", "Deployment", "deployments", false),
    ("apps", "StatefulSet", "statefulsets", false),
    ("apps", "DaemonSet", "daemonsets", false),
    ("batch", "Job", "jobs", true),
    ("batch", "CronJob", "cronjobs", false),
    ("", "ReplicationController", "replicationcontrollers", false),
];

/// A reference to an owner.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OwnerReference {
    /// The API group and version, such as `apps/v1`.
    pub api_version: Box<str>,
    /// The kind, such as `ReplicaSet`.
    pub kind: Box<str>,
    /// The name of the owner. Owners that are looked up are in the pod's namespace.
    pub name: Box<str>,
    /// The UID of the owner. `None` if only the name is known.
    pub uid: Option<Box<str>>,
}

/// An owner, and the result of its lookup.
#[derive(Clone, Debug)]
pub(crate) struct Owner {
    pub(crate) reference: OwnerReference,
    /// The metadata that was found, as `{"metadata": {...}}`.
    pub(crate) object: Option<Arc<OwnedTape>>,
    asked: bool,
}

/// The known owners of a pod, the nearest first.
#[derive(Clone, Debug, Default)]
pub struct OwnerChain {
    owners: Vec<Owner>,
    with_metadata: bool,
}

impl OwnerReference {
    /// Parses an entry of `metadata.ownerReferences`. `None` if a required field is missing.
    fn read(entry: Value<'_>) -> Option<Self> {
        let text = |field: &str| entry.get(field).and_then(Value::as_str).filter(|text| !text.is_empty());
        Some(Self {
            api_version: text("apiVersion")?.into(),
            kind: text("kind")?.into(),
            name: text("name")?.into(),
            uid: text("uid").map(Into::into),
        })
    }

    /// Returns the API group. Empty for the core group.
    #[must_use]
    pub fn group(&self) -> &str {
        self.api_version.split_once('/').map_or("", |(group, _)| group)
    }

    /// Returns the version without the group.
    #[must_use]
    pub fn version(&self) -> &str {
        self.api_version.split_once('/').map_or(&*self.api_version, |(_, version)| version)
    }

    /// Returns the plural resource name. `None` if the kind is not a Kubernetes workload; such an owner is never looked
    /// up.
    #[must_use]
    pub fn resource(&self) -> Option<&'static str> {
        self.known().map(|(_, _, resource, _)| *resource)
    }

    fn known(&self) -> Option<&'static (&'static str, &'static str, &'static str, bool)> {
        KINDS.iter().find(|(group, kind, _, _)| *group == self.group() && *kind == &*self.kind)
    }

    fn may_be_made_by_another(&self) -> bool {
        self.known().is_some_and(|(_, _, _, by_another)| *by_another)
    }
}

impl OwnerChain {
    /// Creates the chain that is known from the pod alone. If `with_metadata` is set, [`OwnerChain::next`] returns
    /// every owner whose kind can be looked up. Otherwise, it returns only the owners that must be looked up to
    /// complete the chain.
    pub(crate) fn of_pod(pod: Value<'_>, with_metadata: bool) -> Self {
        let mut chain = Self { owners: Vec::new(), with_metadata };
        let Some(controller) = controller(pod) else { return chain };
        let deployment = deployment_of(pod, &controller);
        chain.push(controller);
        if let Some(deployment) = deployment {
            chain.push(deployment);
        }
        chain
    }

    /// Creates a chain that begins with the given workload, for a manifest in which a workload contains the template of
    /// its pods.
    #[must_use]
    pub fn from_owner(reference: OwnerReference, object: Arc<OwnedTape>) -> Self {
        let mut chain = Self { owners: Vec::new(), with_metadata: true };
        chain.push(reference);
        chain.found(Some(object));
        chain
    }

    /// Returns the next owner to look up. `None` if no further lookup is needed.
    #[must_use]
    pub fn next(&self) -> Option<&OwnerReference> {
        self.next_owner_index().and_then(|place| self.owners.get(place)).map(|owner| &owner.reference)
    }

    /// Sets the result of the lookup of [`OwnerChain::next`]: the object with its metadata, or `None` if it does not
    /// exist.
    pub fn found(&mut self, object: Option<Arc<OwnedTape>>) {
        let Some(place) = self.next_owner_index() else { return };
        let is_last = place + 1 == self.owners.len();
        let Some(owner) = self.owners.get_mut(place) else { return };
        owner.asked = true;
        let uid = object.as_ref().and_then(|object| object.root().at(&["metadata", "uid"])?.as_str());
        // An object with the same name but a different UID was created later, so it is not the owner.
        if owner.reference.uid.is_some() && uid.is_some() && owner.reference.uid.as_deref() != uid.as_deref() {
            return;
        }
        if owner.reference.uid.is_none() {
            owner.reference.uid = uid.map(Into::into);
        }
        let goes_on = is_last && owner.reference.may_be_made_by_another();
        let controller = object.as_ref().filter(|_| goes_on).and_then(|object| controller(object.root()));
        owner.object = object;
        if let Some(controller) = controller {
            self.push(controller);
        }
    }

    pub(crate) fn owners(&self) -> &[Owner] {
        &self.owners
    }

    /// Whether the last owner was not looked up and may have an owner itself.
    pub(crate) fn is_open(&self) -> bool {
        self.owners.last().is_some_and(|last| !last.asked && last.reference.may_be_made_by_another())
    }

    fn push(&mut self, reference: OwnerReference) {
        if self.owners.len() < MAX_OWNERS {
            self.owners.push(Owner { reference, object: None, asked: false });
        }
    }

    fn next_owner_index(&self) -> Option<usize> {
        let last = self.owners.len().checked_sub(1)?;
        self.owners.iter().enumerate().position(|(place, owner)| {
            let open = place == last && owner.reference.may_be_made_by_another();
            !owner.asked && owner.reference.resource().is_some() && (self.with_metadata || open)
        })
    }
}

/// Returns the name of a pod's workload, if known without a lookup: the Deployment or the CronJob, which stay the same
/// for later `ReplicaSet`s and Jobs. Otherwise returns the name of the controlling owner. Without one, returns the
/// `generateName` or the name of the object.
pub(crate) fn workload(object: Value<'_>) -> Cow<'_, str> {
    if let Some(controller) = controller(object) {
        let name = match deployment_of(object, &controller) {
            Some(deployment) => deployment.name,
            None if &*controller.kind == "Job" => without_schedule(&controller.name).into(),
            None => controller.name,
        };
        return Cow::Owned(name.into());
    }
    let name = |field| object.at(&["metadata", field]).and_then(Value::as_str).filter(|name| !name.is_empty());
    name("generateName").or_else(|| name("name")).unwrap_or_default()
}

/// Returns the name of a Job without the scheduled time, in minutes, that its CronJob appends.
fn without_schedule(job: &str) -> &str {
    match job.rsplit_once('-') {
        Some((name, minutes)) if minutes.len() >= 8 && minutes.bytes().all(|byte| byte.is_ascii_digit()) => name,
        _ => job,
    }
}

/// Returns the controlling owner of an object, if it has one.
fn controller(object: Value<'_>) -> Option<OwnerReference> {
    let references = object.at(&["metadata", "ownerReferences"])?;
    let is_controller = |entry: &Value<'_>| entry.get("controller").and_then(Value::as_bool) == Some(true);
    references.items().find(is_controller).and_then(OwnerReference::read)
}

/// Returns the Deployment of a ReplicaSet whose name ends with the pod's template hash. `None` for other owners.
fn deployment_of(pod: Value<'_>, replica_set: &OwnerReference) -> Option<OwnerReference> {
    if replica_set.group() != "apps" || &*replica_set.kind != "ReplicaSet" {
        return None;
    }
    let hash = pod.at(&["metadata", "labels", TEMPLATE_HASH])?.as_str()?;
    let name = replica_set.name.strip_suffix(&*hash)?.strip_suffix('-')?;
    (!name.is_empty() && !hash.is_empty()).then(|| OwnerReference {
        api_version: replica_set.api_version.clone(),
        kind: "Deployment".into(),
        name: name.into(),
        uid: None,
    })
}
