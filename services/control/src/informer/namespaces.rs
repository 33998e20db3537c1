//! Reduces a namespace to its labels and annotations, which take a few hundred bytes. The whole object takes about
//! 5,000 bytes.

use std::sync::Arc;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use pillion_api::opt_in::OptIn;
use pillion_engine::snapshot::{Namespace, Snapshot};
use tracing::debug;

use crate::informer::objects::Change;

/// `kubectl apply` stores the whole object in this annotation. Profiles do not need it, and it is the largest part of
/// most namespaces.
pub(crate) const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";

/// Maximum bytes of an annotation, key and value together. Larger annotations are dropped, so profiles cannot read
/// them. The API server accepts 256 KiB, but only tools that store their state in annotations need that.
pub(crate) const ANNOTATION_BYTES: usize = 4 * 1024;
/// Maximum bytes of all annotations of a namespace. The largest annotations are dropped until the others fit.
pub(crate) const ANNOTATIONS_BYTES: usize = 16 * 1024;

/// A namespace with its name.
pub type Named = (Box<str>, Namespace);

/// A change from a watch of namespaces.
pub type NamespaceChange = Change<Box<str>, Named>;

/// Reduces the metadata of a namespace. `opt_in` has the labels by which namespaces opt in.
#[must_use]
pub fn read(metadata: ObjectMeta, opt_in: &OptIn) -> Named {
    let name: Box<str> = metadata.name.unwrap_or_default().into();
    let annotations = metadata.annotations.into_iter().flatten().filter(|(key, _)| key != LAST_APPLIED);
    let mut annotations: Vec<_> = annotations.collect();
    let bytes = |(key, value): &(String, String)| key.len() + value.len();
    if annotations.iter().map(bytes).sum::<usize>() > ANNOTATION_BYTES {
        annotations.sort_by(|one, other| (bytes(one), &one.0).cmp(&(bytes(other), &other.0)));
        let (count, mut kept) = (annotations.len(), 0);
        annotations.retain(|annotation| {
            kept += bytes(annotation);
            bytes(annotation) <= ANNOTATION_BYTES && kept <= ANNOTATIONS_BYTES
        });
        if let Some(dropped) = count.checked_sub(annotations.len()).filter(|dropped| *dropped > 0) {
            debug!(namespace = %name, dropped, "annotations are too large to be kept; profiles cannot read them");
        }
    }
    (name, Namespace::new(metadata.labels.into_iter().flatten(), annotations).opting_in_by(opt_in))
}

/// Applies the changes from a watch of namespaces to the snapshot. Only the snapshot stores the namespaces, so each is
/// in memory once. This index has only the namespaces of an unfinished list.
#[derive(Debug, Default)]
pub struct NamespaceIndex {
    listing: Option<Listing>,
    synced: bool,
}

#[derive(Debug, Default)]
struct Listing {
    namespaces: Vec<(Box<str>, Arc<Namespace>)>,
    /// Whether some of these namespaces differ from the snapshot.
    changed: bool,
}

impl NamespaceIndex {
    /// Applies a change. Returns whether the snapshot changed. The first complete list counts as a change even if it is
    /// empty.
    pub fn update(&mut self, change: NamespaceChange, snapshot: &mut Snapshot) -> bool {
        match change {
            Change::Restarted => {
                self.listing = Some(Listing::default());
                false
            }
            Change::Listed((name, namespace)) => {
                let listing = self.listing.get_or_insert_default();
                let known = snapshot.namespace(&name).filter(|known| **known == namespace);
                listing.changed |= known.is_none();
                listing.namespaces.push((name, known.unwrap_or_else(|| Arc::new(namespace))));
                false
            }
            Change::ListComplete => {
                let Listing { namespaces, changed } = self.listing.take().unwrap_or_default();
                let first = !std::mem::replace(&mut self.synced, true);
                if !first && !changed && namespaces.len() == snapshot.namespace_count() {
                    return false;
                }
                *snapshot = snapshot.with_shared_namespaces(namespaces);
                true
            }
            Change::Applied((name, namespace)) => {
                if snapshot.namespace(&name).is_some_and(|known| *known == namespace) {
                    return false;
                }
                snapshot.set_namespace(&name, Some(Arc::new(namespace)));
                true
            }
            Change::Deleted(name) => {
                let known = snapshot.namespace(&name).is_some();
                if known {
                    snapshot.set_namespace(&name, None);
                }
                known
            }
        }
    }

    /// Whether a list was completed.
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
    fn drops_last_applied_annotation() {
        let metadata = ObjectMeta {
            name: Some("shop".to_owned()),
            labels: Some(BTreeMap::from([("team".to_owned(), "red".to_owned())])),
            annotations: Some(BTreeMap::from([
                (LAST_APPLIED.to_owned(), "{}".to_owned()),
                ("pillion.dev/profiles".to_owned(), "nginx".to_owned()),
            ])),
            ..ObjectMeta::default()
        };
        let (name, namespace) = read(metadata, &OptIn::default());
        assert_eq!(&*name, "shop");
        assert_eq!(namespace, Namespace::new([("team", "red")], [("pillion.dev/profiles", "nginx")]));
    }

    #[test]
    fn largest_annotations_are_dropped_first() {
        let annotations = |sizes: &[usize]| {
            let pairs = sizes.iter().enumerate().map(|(number, size)| (format!("a{number}"), "x".repeat(*size)));
            let metadata = ObjectMeta { annotations: Some(pairs.collect()), ..ObjectMeta::default() };
            let kept = read(metadata, &OptIn::default()).1;
            kept.annotations().map(|(key, _)| key.to_owned()).collect::<Vec<_>>()
        };
        assert_eq!(annotations(&[10, 256 * 1024, 20]), ["a0", "a2"]);
        assert_eq!(annotations(&[ANNOTATION_BYTES - 2]), ["a0"]);
        assert!(annotations(&[ANNOTATION_BYTES - 1]).is_empty());
        let many = annotations(&[4000, 4000, 4000, 4000, 4000, 10]);
        assert_eq!(many, ["a0", "a1", "a2", "a3", "a5"], "the smallest annotations that fit are kept");
    }

    #[test]
    fn unchanged_namespace_changes_no_snapshot() {
        let mut index = NamespaceIndex::default();
        let red = || Namespace::new([("team", "red")], []);
        let mut snapshot = Snapshot::default();
        let mut update = |change| index.update(change, &mut snapshot);
        assert!(update(Change::Applied(("shop".into(), red()))));
        assert!(!update(Change::Applied(("shop".into(), red()))));
        assert!(!update(Change::Deleted("other".into())));
        assert!(update(Change::Applied(("shop".into(), Namespace::default()))));
        assert!(update(Change::Deleted("shop".into())));
    }

    #[test]
    fn unchanged_namespaces_keep_their_allocation() {
        let mut index = NamespaceIndex::default();
        let mut snapshot = Snapshot::default();
        let named = |name: &str, team| Change::Listed((name.into(), Namespace::new([("team", team)], [])));
        let mut list = |snapshot: &mut Snapshot, all: &[(&str, &'static str)]| {
            index.update(Change::Restarted, snapshot);
            for (name, team) in all {
                assert!(!index.update(named(name, *team), snapshot));
            }
            index.update(Change::ListComplete, snapshot)
        };
        assert!(list(&mut snapshot, &[]), "the first list is a change even if it is empty");
        assert!(list(&mut snapshot, &[("a", "red"), ("b", "red")]));
        let before = snapshot.namespace("a").unwrap();
        assert!(!list(&mut snapshot, &[("b", "red"), ("a", "red")]));
        assert!(list(&mut snapshot, &[("a", "red"), ("b", "blue")]));
        assert!(Arc::ptr_eq(&before, &snapshot.namespace("a").unwrap()));
        assert!(list(&mut snapshot, &[("a", "red")]));
        assert_eq!(snapshot.namespace("b"), None);
    }
}
