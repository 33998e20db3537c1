//! Owner references for cluster-scoped objects: the release's namespace owns them. When the namespace is deleted,
//! Kubernetes deletes these objects too. So no webhook configuration is left behind that would reject pods.
//!
//! The namespace's UID is read before each write. A recreated namespace has a new UID, and Kubernetes deletes objects
//! that refer to the old UID.

use k8s_openapi::api::core::v1::Namespace;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use kube::{Api, Client};
use tracing::debug;

use crate::client::chain;
use crate::release::Release;

const VERSION: &str = "v1";
const KIND: &str = "Namespace";

/// Returns an owner reference to the release's namespace. `None` if the namespace's UID cannot be read: the caller then
/// writes the object without an owner.
pub(crate) async fn for_namespace(client: &Client, release: &Release) -> Option<OwnerReference> {
    let namespaces = Api::<Namespace>::all(client.clone());
    match namespaces.get_metadata_opt(release.namespace()).await {
        Ok(found) => Some(reference(release, found?.metadata.uid?)),
        Err(error) => {
            debug!(error = chain(&error), "the release's namespace cannot be read: created objects get no owner");
            None
        }
    }
}

fn reference(release: &Release, uid: String) -> OwnerReference {
    OwnerReference {
        api_version: VERSION.to_owned(),
        kind: KIND.to_owned(),
        name: release.namespace().to_owned(),
        uid,
        ..OwnerReference::default()
    }
}

/// Whether the object has this owner, and no reference to a deleted owner of the same name.
pub(crate) fn has_owner(metadata: &ObjectMeta, owner: &OwnerReference) -> bool {
    let mut owners = metadata.owner_references.iter().flatten();
    owners.clone().any(|known| known.uid == owner.uid) && !owners.any(|known| has_same_kind_and_name(known, owner))
}

/// Sets this owner and removes references to deleted owners of the same name.
pub(crate) fn set_owner(metadata: &mut ObjectMeta, owner: OwnerReference) {
    let owners = metadata.owner_references.get_or_insert_default();
    owners.retain(|known| !has_same_kind_and_name(known, &owner));
    if owners.iter().all(|known| known.uid != owner.uid) {
        owners.push(owner);
    }
}

/// Whether the reference is to an object of the same kind and name, but with a different UID.
fn has_same_kind_and_name(known: &OwnerReference, owner: &OwnerReference) -> bool {
    let key = |owner: &OwnerReference| (owner.api_version.clone(), owner.kind.clone(), owner.name.clone());
    known.uid != owner.uid && key(known) == key(owner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::release::DEFAULT_CLUSTER_DOMAIN;

    #[test]
    fn owner_is_the_existing_namespace_of_the_release() {
        let release = Release::new("pillion", "platform", DEFAULT_CLUSTER_DOMAIN).unwrap();
        let ours = |uid: &str| reference(&release, uid.to_owned());
        assert_eq!((&*ours("now").name, &*ours("now").uid), ("platform", "now"));
        assert_eq!((ours("now").controller, ours("now").block_owner_deletion), (None, None));
        let another = OwnerReference { kind: "ClusterRole".to_owned(), ..ours("another") };
        for (before, after) in [
            (None, vec![ours("now")]),
            (Some(vec![ours("now")]), vec![ours("now")]),
            (Some(vec![ours("gone")]), vec![ours("now")]),
            (Some(vec![ours("gone"), ours("now")]), vec![ours("now")]),
            (Some(vec![another.clone()]), vec![another.clone(), ours("now")]),
            (Some(vec![ours("gone"), another.clone()]), vec![another, ours("now")]),
        ] {
            let mut metadata = ObjectMeta { owner_references: before, ..ObjectMeta::default() };
            let is_as_wanted = metadata.owner_references.as_ref() == Some(&after);
            assert_eq!(has_owner(&metadata, &ours("now")), is_as_wanted, "{metadata:?}");
            set_owner(&mut metadata, ours("now"));
            assert_eq!(metadata.owner_references, Some(after));
        }
    }
}
