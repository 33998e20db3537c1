//! Who controls a pod: its ReplicaSet and its Deployment, its Job and its CronJob.
//!
//! A chain begins with the pod's own reference. A ReplicaSet that a Deployment made is called like it, with the hash that
//! the pod has as a label, so the Deployment is known without a look-up. Of another ReplicaSet, and of a Job, it has to
//! be looked up who made it. The chain ends at the first that is neither.

use std::borrow::Cow;
use std::sync::Arc;

use crate::json::{OwnedTape, Value};

/// How long a chain may be.
const MAX_OWNERS: usize = 4;

/// The label by which a Deployment tells apart the pods of its versions.
const TEMPLATE_HASH: &str = "pod-template-hash";

/// The kinds that make pods: group, kind, resource, and whether they may be made by another one.
const KINDS: [(&str, &str, &str, bool); 7] = [
    ("apps", "ReplicaSet", "replicasets", true),
    ("apps", "Deployment", "deployments", false),
    ("apps", "StatefulSet", "statefulsets", false),
    ("apps", "DaemonSet", "daemonsets", false),
    ("batch", "Job", "jobs", true),
    ("batch", "CronJob", "cronjobs", false),
    ("", "ReplicationController", "replicationcontrollers", false),
];

/// Who an owner is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OwnerReference {
    /// `apps/v1`.
    pub api_version: Box<str>,
    /// `ReplicaSet`.
    pub kind: Box<str>,
    /// Its name, in the namespace of the pod.
    pub name: Box<str>,
    /// Its UID; `None` if it is known by its name only.
    pub uid: Option<Box<str>>,
}

/// An owner, and what a look-up told of it.
#[derive(Clone, Debug)]
pub(crate) struct Owner {
    pub(crate) reference: OwnerReference,
    /// `{"metadata": {...}}`.
    pub(crate) object: Option<Arc<OwnedTape>>,
    asked: bool,
}

/// The owners of a pod that are known, the nearest first.
#[derive(Clone, Debug, Default)]
pub struct OwnerChain {
    owners: Vec<Owner>,
    with_metadata: bool,
}

impl OwnerReference {
    /// From an entry of `metadata.ownerReferences`.
    fn read(entry: Value<'_>) -> Option<Self> {
        let text = |field: &str| entry.get(field).and_then(Value::as_str).filter(|text| !text.is_empty());
        Some(Self {
            api_version: text("apiVersion")?.into(),
            kind: text("kind")?.into(),
            name: text("name")?.into(),
            uid: text("uid").map(Into::into),
        })
    }

    /// The API group; empty for the core group.
    #[must_use]
    pub fn group(&self) -> &str {
        self.api_version.split_once('/').map_or("", |(group, _)| group)
    }

    /// The version within the group.
    #[must_use]
    pub fn version(&self) -> &str {
        self.api_version.split_once('/').map_or(&*self.api_version, |(_, version)| version)
    }

    /// The resource in the plural; `None` for a kind that is not one of Kubernetes' own and is never looked up.
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
    /// The owners of a pod that are known from the pod alone.
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

    /// A chain that begins with an object that is known whole: for manifests, in which a workload has the template of its
    /// pods.
    #[must_use]
    pub fn from_owner(reference: OwnerReference, object: Arc<OwnedTape>) -> Self {
        let mut chain = Self { owners: Vec::new(), with_metadata: true };
        chain.push(reference);
        chain.found(Some(object));
        chain
    }

    /// The owner that has to be looked up next; `None` if all is known that can be.
    #[must_use]
    pub fn next(&self) -> Option<&OwnerReference> {
        self.place_of_next().and_then(|place| self.owners.get(place)).map(|owner| &owner.reference)
    }

    /// Says what the look-up of [`OwnerChain::next`] brought: the object with its metadata, or that there is none.
    pub fn found(&mut self, object: Option<Arc<OwnedTape>>) {
        let Some(place) = self.place_of_next() else { return };
        let is_last = place + 1 == self.owners.len();
        let Some(owner) = self.owners.get_mut(place) else { return };
        owner.asked = true;
        let uid = object.as_ref().and_then(|object| object.root().at(&["metadata", "uid"])?.as_str());
        // One of the same name that came later is another one.
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

    /// Whether it is not known where the chain ends.
    pub(crate) fn is_open(&self) -> bool {
        self.owners.last().is_some_and(|last| !last.asked && last.reference.may_be_made_by_another())
    }

    fn push(&mut self, reference: OwnerReference) {
        if self.owners.len() < MAX_OWNERS {
            self.owners.push(Owner { reference, object: None, asked: false });
        }
    }

    fn place_of_next(&self) -> Option<usize> {
        let last = self.owners.len().checked_sub(1)?;
        self.owners.iter().enumerate().position(|(place, owner)| {
            let open = place == last && owner.reference.may_be_made_by_another();
            !owner.asked && owner.reference.resource().is_some() && (self.with_metadata || open)
        })
    }
}

/// What the pods of one workload are called after, as far as it is known without a look-up: the Deployment, also of its
/// next ReplicaSet; the CronJob, also of its next Job; else who controls the object, or its own name.
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

/// The name of a Job without the time for which its CronJob made it, in minutes.
fn without_schedule(job: &str) -> &str {
    match job.rsplit_once('-') {
        Some((name, minutes)) if minutes.len() >= 8 && minutes.bytes().all(|byte| byte.is_ascii_digit()) => name,
        _ => job,
    }
}

/// The owner that controls an object.
fn controller(object: Value<'_>) -> Option<OwnerReference> {
    let references = object.at(&["metadata", "ownerReferences"])?;
    let is_controller = |entry: &Value<'_>| entry.get("controller").and_then(Value::as_bool) == Some(true);
    references.items().find(is_controller).and_then(OwnerReference::read)
}

/// The Deployment that made a pod's ReplicaSet.
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
