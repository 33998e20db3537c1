//! Finds the workload of a pod: the Deployment of its ReplicaSet, the CronJob of its Job, or its direct controller.

use std::collections::HashMap;
use std::fmt;

use k8s_openapi::api::apps::v1::ReplicaSet;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::{Api, Client};
use pillion_control::audit::kind_with_group;

/// The maximum length of an owner chain.
pub(crate) const MAX_OWNERS: usize = 4;

/// A workload, or a pod without a controller.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Workload {
    /// The namespace.
    pub(crate) namespace: Box<str>,
    /// The kind, such as `Deployment`; `Pod` for a pod without a controller. Kinds outside Kubernetes' own groups
    /// include the group, as in `StatefulSet.apps.kruise.io`.
    pub(crate) kind: Box<str>,
    /// The name.
    pub(crate) name: Box<str>,
}

impl Workload {
    /// Creates a workload from its parts.
    pub(crate) fn new(namespace: &str, kind: &str, name: &str) -> Self {
        Self { namespace: namespace.into(), kind: kind.into(), name: name.into() }
    }
}

impl fmt::Display for Workload {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{} {}/{}", self.kind, self.namespace, self.name)
    }
}

/// Looks up the owners of objects, and caches the results.
pub(crate) struct Owners {
    client: Client,
    known: HashMap<Workload, Option<Workload>>,
}

impl Owners {
    /// Creates an empty cache.
    pub(crate) fn new(client: Client) -> Self {
        Self { client, known: HashMap::new() }
    }

    /// Returns the workload of a pod: its controller, or the workload behind a `ReplicaSet` or a `Job`. Without a
    /// controller, it is the pod itself. `owner` is the kind and name of the pod's controller.
    ///
    /// # Errors
    /// An owner cannot be read from the API server.
    pub(crate) async fn workload(
        &mut self,
        namespace: &str,
        pod: &str,
        owner: Option<(&str, &str)>,
    ) -> kube::Result<Workload> {
        let Some((kind, name)) = owner else { return Ok(Workload::new(namespace, "Pod", pod)) };
        let mut workload = Workload::new(namespace, kind, name);
        for _ in 0..MAX_OWNERS {
            match self.behind(&workload).await? {
                Some(behind) => workload = behind,
                None => break,
            }
        }
        Ok(workload)
    }

    async fn behind(&mut self, owner: &Workload) -> kube::Result<Option<Workload>> {
        if let Some(known) = self.known.get(owner) {
            return Ok(known.clone());
        }
        let (client, name) = (self.client.clone(), &*owner.name);
        let metadata = match &*owner.kind {
            "ReplicaSet" => Api::<ReplicaSet>::namespaced(client, &owner.namespace)
                .get_metadata_opt(name)
                .await?
                .map(|found| found.metadata),
            "Job" => Api::<Job>::namespaced(client, &owner.namespace)
                .get_metadata_opt(name)
                .await?
                .map(|found| found.metadata),
            _ => None,
        };
        let behind = metadata.as_ref().and_then(controller);
        let behind = behind.map(|(kind, name)| Workload::new(&owner.namespace, &kind, name));
        self.known.insert(owner.clone(), behind.clone());
        Ok(behind)
    }
}

/// Returns the kind and name of the owner that controls the object. The kind has the format of [`kind_with_group`].
pub(crate) fn controller(metadata: &ObjectMeta) -> Option<(String, &str)> {
    let mut references = metadata.owner_references.iter().flatten();
    let controller = references.find(|reference| reference.controller == Some(true));
    controller.map(|reference| {
        (kind_with_group(&reference.api_version, &reference.kind).into_owned(), reference.name.as_str())
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn owner_of_other_group_is_not_builtin() {
        let controlled = |version: &str| -> ObjectMeta {
            let owner =
                json!({"apiVersion": version, "kind": "StatefulSet", "name": "db", "uid": "u", "controller": true});
            serde_json::from_value(json!({"ownerReferences": [owner]})).unwrap()
        };
        assert_eq!(controller(&controlled("apps/v1")), Some(("StatefulSet".to_owned(), "db")));
        assert_eq!(
            controller(&controlled("apps.kruise.io/v1beta1")),
            Some(("StatefulSet.apps.kruise.io".to_owned(), "db"))
        );
        assert_eq!(controller(&ObjectMeta::default()), None);
    }
}
