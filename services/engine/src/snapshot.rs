//! Everything a decision depends on besides the request: the compiled profiles, and what is known of the namespaces.
//!
//! A [`Snapshot`] never changes. Whoever watches the cluster makes a new one from the last one and publishes it whole, so
//! that a request sees one state from its beginning to its end, and reading it takes no lock. Making a new one costs the
//! part that changed: namespaces are kept in shards, and a change to one of them copies its shard's table, not the index.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::{Arc, OnceLock};

use pillion_api::names::{INJECTION_LABEL, InjectionLevel};

use crate::limits::Guardrails;
use crate::profile::ProfileSet;
use crate::select::candidates::Candidates;

/// How many tables the index of namespaces is kept in.
const SHARDS: usize = 64;

/// What is known of a namespace: its metadata, as far as selectors, requests and expressions read it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Namespace {
    /// Its labels, sorted by key.
    pub labels: Box<[(Box<str>, Box<str>)]>,
    /// Its annotations, sorted by key.
    pub annotations: Box<[(Box<str>, Box<str>)]>,
}

impl Namespace {
    /// From labels and annotations in any order. Of two with the same key, the last one counts.
    #[must_use]
    pub fn new<K: Into<Box<str>>, V: Into<Box<str>>>(
        labels: impl IntoIterator<Item = (K, V)>,
        annotations: impl IntoIterator<Item = (K, V)>,
    ) -> Self {
        Self { labels: sorted(labels), annotations: sorted(annotations) }
    }

    /// A namespace that is opted in, without anything else.
    #[must_use]
    pub fn opted_in(level: InjectionLevel) -> Self {
        Self::new([(INJECTION_LABEL, level.label_value())], [])
    }

    /// The value of a label.
    #[must_use]
    pub fn label(&self, key: &str) -> Option<&str> {
        find(&self.labels, key)
    }

    /// The value of an annotation.
    #[must_use]
    pub fn annotation(&self, key: &str) -> Option<&str> {
        find(&self.annotations, key)
    }

    /// How firmly it is opted in; `None` if it is not.
    #[must_use]
    pub fn level(&self) -> Option<InjectionLevel> {
        self.label(INJECTION_LABEL).and_then(InjectionLevel::from_label_value)
    }
}

fn sorted<K: Into<Box<str>>, V: Into<Box<str>>>(
    pairs: impl IntoIterator<Item = (K, V)>,
) -> Box<[(Box<str>, Box<str>)]> {
    let map: std::collections::BTreeMap<Box<str>, Box<str>> =
        pairs.into_iter().map(|(key, value)| (key.into(), value.into())).collect();
    map.into_iter().collect()
}

fn find<'p>(pairs: &'p [(Box<str>, Box<str>)], key: &str) -> Option<&'p str> {
    let index = pairs.binary_search_by(|(candidate, _)| (**candidate).cmp(key)).ok()?;
    pairs.get(index).map(|(_, value)| &**value)
}

/// A namespace in the index, with the profiles that may act in it once somebody asked for them.
#[derive(Debug)]
pub(crate) struct Entry {
    pub(crate) namespace: Arc<Namespace>,
    candidates: OnceLock<Arc<Candidates>>,
}

type Shard = HashMap<Box<str>, Arc<Entry>>;

/// Profiles and namespaces at one moment.
#[derive(Clone, Debug)]
pub struct Snapshot {
    profiles: Arc<ProfileSet>,
    guardrails: Arc<Guardrails>,
    shards: Arc<[Arc<Shard>]>,
}

impl Default for Snapshot {
    fn default() -> Self {
        Self::new(ProfileSet::default())
    }
}

impl Snapshot {
    /// Profiles, and no namespace.
    #[must_use]
    pub fn new(profiles: ProfileSet) -> Self {
        Self {
            profiles: Arc::new(profiles),
            guardrails: Arc::default(),
            shards: (0..SHARDS).map(|_| Arc::default()).collect(),
        }
    }

    /// The compiled profiles.
    #[must_use]
    pub fn profiles(&self) -> &ProfileSet {
        &self.profiles
    }

    /// What the platform allows tenants' profiles to do.
    #[must_use]
    pub fn guardrails(&self) -> &Guardrails {
        &self.guardrails
    }

    /// The same with other guardrails. Whatever is made from it has them too.
    #[must_use]
    pub fn with_guardrails(self, guardrails: Guardrails) -> Self {
        Self { guardrails: Arc::new(guardrails), ..self }
    }

    /// The same namespaces with other profiles.
    #[must_use]
    pub fn with_profiles(&self, profiles: ProfileSet) -> Self {
        let fresh = |shard: &Arc<Shard>| {
            let entries =
                shard.iter().map(|(name, entry)| (name.clone(), Arc::new(Entry::new(entry.namespace.clone()))));
            Arc::new(entries.collect())
        };
        Self {
            profiles: Arc::new(profiles),
            guardrails: Arc::clone(&self.guardrails),
            shards: self.shards.iter().map(fresh).collect(),
        }
    }

    /// The same with one namespace added, changed, or (`None`) gone.
    #[must_use]
    pub fn with_namespace(&self, name: &str, namespace: Option<Namespace>) -> Self {
        let mut shards = self.shards.to_vec();
        if let Some(shard) = shards.get_mut(shard_of(name)) {
            let shard = Arc::make_mut(shard);
            match namespace {
                Some(namespace) => shard.insert(name.into(), Arc::new(Entry::new(Arc::new(namespace)))),
                None => shard.remove(name),
            };
        }
        Self { shards: shards.into(), ..self.clone() }
    }

    /// The same profiles with other namespaces: what a watch has after it listed them anew.
    #[must_use]
    pub fn with_namespaces(&self, namespaces: impl IntoIterator<Item = (Box<str>, Namespace)>) -> Self {
        let mut shards: Vec<Shard> = (0..SHARDS).map(|_| Shard::new()).collect();
        for (name, namespace) in namespaces {
            if let Some(shard) = shards.get_mut(shard_of(&name)) {
                shard.insert(name, Arc::new(Entry::new(Arc::new(namespace))));
            }
        }
        Self { shards: shards.into_iter().map(Arc::new).collect(), ..self.clone() }
    }

    /// What is known of a namespace.
    #[must_use]
    pub fn namespace(&self, name: &str) -> Option<Arc<Namespace>> {
        self.entry(name).map(|entry| Arc::clone(&entry.namespace))
    }

    /// How many namespaces are known.
    #[must_use]
    pub fn namespace_count(&self) -> usize {
        self.shards.iter().map(|shard| shard.len()).sum()
    }

    /// The profiles that may act in a namespace. They are found once for each namespace that is in the index, and each
    /// time for one that is not.
    pub(crate) fn candidates(&self, name: &str, namespace: &Arc<Namespace>) -> Arc<Candidates> {
        let find = || Arc::new(Candidates::find(&self.profiles, name, namespace));
        match self.entry(name) {
            Some(entry) if Arc::ptr_eq(&entry.namespace, namespace) => Arc::clone(entry.candidates.get_or_init(find)),
            _ => find(),
        }
    }

    fn entry(&self, name: &str) -> Option<&Entry> {
        self.shards.get(shard_of(name))?.get(name).map(|entry| &**entry)
    }
}

impl Entry {
    const fn new(namespace: Arc<Namespace>) -> Self {
        Self { namespace, candidates: OnceLock::new() }
    }
}

/// The shard of a name. The hash is not keyed: names of namespaces are made by people who may make namespaces, and the
/// worst that a bad distribution does is a slower *change*, as look-ups in a shard are by a keyed hash.
fn shard_of(name: &str) -> usize {
    let mut hasher = DefaultHasher::new();
    name.hash(&mut hasher);
    usize::try_from(hasher.finish() % SHARDS as u64).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_snapshot_does_not_change_when_the_next_one_is_made() {
        let first = Snapshot::default().with_namespace("a", Some(Namespace::opted_in(InjectionLevel::Enabled)));
        let second = first.with_namespace("a", Some(Namespace::opted_in(InjectionLevel::Required)));
        let third = second.with_namespace("a", None);
        assert_eq!(first.namespace("a").and_then(|n| n.level()), Some(InjectionLevel::Enabled));
        assert_eq!(second.namespace("a").and_then(|n| n.level()), Some(InjectionLevel::Required));
        assert_eq!(third.namespace("a"), None);
        assert_eq!((first.namespace_count(), third.namespace_count()), (1, 0));
    }

    #[test]
    fn a_relist_replaces_all_namespaces() {
        let before = Snapshot::default().with_namespace("gone", Some(Namespace::default()));
        let after = before.with_namespaces((0..1_000).map(|i| (format!("ns-{i}").into(), Namespace::default())));
        assert_eq!(after.namespace_count(), 1_000);
        assert_eq!(after.namespace("gone"), None);
        assert!(after.namespace("ns-999").is_some());
    }

    #[test]
    fn labels_are_found_whatever_their_order() {
        let namespace = Namespace::new([("b", "2"), ("a", "1"), ("c", "3")], [("x", "y")]);
        assert_eq!(namespace.label("a"), Some("1"));
        assert_eq!(namespace.label("c"), Some("3"));
        assert_eq!(namespace.label("d"), None);
        assert_eq!(namespace.annotation("x"), Some("y"));
    }
}
