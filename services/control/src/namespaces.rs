//! What is kept of a namespace: labels and annotations, a third of a kilobyte instead of the five that the object takes.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use pillion_engine::snapshot::{Namespace, Snapshot};

use crate::change::Change;

/// `kubectl apply` keeps the whole object in this annotation. Nobody asks for a profile there, and it is the largest part
/// of most namespaces.
const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";

/// A namespace with its name.
pub type Named = (Box<str>, Namespace);

/// What a watch of namespaces says.
pub type NamespaceChange = Change<Box<str>, Named>;

/// The name and what is kept.
#[must_use]
pub fn read(metadata: ObjectMeta) -> Named {
    let annotations = metadata.annotations.into_iter().flatten().filter(|(key, _)| key != LAST_APPLIED);
    let namespace = Namespace::new(metadata.labels.into_iter().flatten(), annotations);
    (metadata.name.unwrap_or_default().into(), namespace)
}

/// Follows a watch of namespaces. The namespaces themselves are kept in the snapshot alone, so that they are in memory
/// once; only a list that is not complete yet is kept here.
#[derive(Debug, Default)]
pub struct NamespaceIndex {
    listing: Option<Vec<Named>>,
    synced: bool,
}

impl NamespaceIndex {
    /// The snapshot after a change; `None` if it is the same as before.
    pub fn update(&mut self, change: NamespaceChange, snapshot: &Snapshot) -> Option<Snapshot> {
        match change {
            Change::Restarted => {
                self.listing = Some(Vec::new());
                None
            }
            Change::Listed(named) => {
                self.listing.get_or_insert_default().push(named);
                None
            }
            Change::ListComplete => {
                self.synced = true;
                Some(snapshot.with_namespaces(self.listing.take().unwrap_or_default()))
            }
            Change::Applied((name, namespace)) => {
                let same = snapshot.namespace(&name).is_some_and(|known| *known == namespace);
                (!same).then(|| snapshot.with_namespace(&name, Some(namespace)))
            }
            Change::Deleted(name) => snapshot.namespace(&name).is_some().then(|| snapshot.with_namespace(&name, None)),
        }
    }

    /// Whether a list was complete at least once.
    #[must_use]
    pub const fn synced(&self) -> bool {
        self.synced
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[test]
    fn the_copy_that_kubectl_keeps_is_not_kept() {
        let metadata = ObjectMeta {
            name: Some("shop".to_owned()),
            labels: Some(BTreeMap::from([("team".to_owned(), "red".to_owned())])),
            annotations: Some(BTreeMap::from([
                (LAST_APPLIED.to_owned(), "{}".to_owned()),
                ("pillion.dev/profiles".to_owned(), "nginx".to_owned()),
            ])),
            ..ObjectMeta::default()
        };
        let (name, namespace) = read(metadata);
        assert_eq!(&*name, "shop");
        assert_eq!(namespace, Namespace::new([("team", "red")], [("pillion.dev/profiles", "nginx")]));
    }

    #[test]
    fn what_changes_nothing_makes_no_snapshot() {
        let mut index = NamespaceIndex::default();
        let red = || Namespace::new([("team", "red")], []);
        let snapshot = index.update(Change::Applied(("shop".into(), red())), &Snapshot::default()).unwrap();
        assert!(index.update(Change::Applied(("shop".into(), red())), &snapshot).is_none());
        assert!(index.update(Change::Deleted("other".into()), &snapshot).is_none());
        assert!(index.update(Change::Applied(("shop".into(), Namespace::default())), &snapshot).is_some());
    }
}
