//! The state of the cluster: takes changes and returns snapshots.
//!
//! It publishes nothing before all three first lists are complete: half a list would report an existing profile as
//! missing. Later each watch is independent; a watch that is cut off keeps its last state.

use std::collections::BTreeSet;
use std::sync::Arc;

use pillion_engine::profile::{MAX_CHAIN, ProfileName, ProfileSet, Whole};
use pillion_engine::snapshot::{Namespace, Snapshot};

use crate::informer::cache_metrics::Kind;
use crate::informer::namespaces::{NamespaceChange, NamespaceIndex};
use crate::informer::profiles::{Broken, ProfileChange, ProfileIndex, State, Updated};
use crate::informer::served::{Fetched, PointerChange, RevisionKey, ServedIndex};
use crate::informer::share;

/// What one of the watches says, or came of fetching something.
#[derive(Clone, Debug)]
pub enum Update {
    /// A change of cluster profiles.
    Cluster(ProfileChange),
    /// A change of namespaced profiles.
    Namespaced(ProfileChange),
    /// A change of namespaces.
    Namespace(NamespaceChange),
    /// What is published of cluster profiles.
    PublishedCluster(PointerChange),
    /// What is published of tenants' profiles.
    PublishedNamespaced(PointerChange),
    /// A published revision was fetched.
    Fetched(RevisionKey, Fetched),
}

/// What the index is in, for readiness and gauges.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Status {
    /// All first lists were complete, and a snapshot is published.
    pub synced: bool,
    /// Profiles at work.
    pub profiles: usize,
    /// Profiles that are not at work as they are stored: an older text is, or none.
    pub broken_profiles: usize,
    /// Namespaces.
    pub namespaces: usize,
}

/// Follows the watches.
#[derive(Debug, Default)]
pub struct Index {
    cluster: ProfileIndex,
    namespaced: ProfileIndex,
    /// What is published, where that is served and not the texts as they stand.
    published: Option<Published>,
    namespaces: NamespaceIndex,
    snapshot: Snapshot,
    profiles_changed: bool,
    namespaces_changed: bool,
}

/// What is published of both kinds of profiles.
#[derive(Debug, Default)]
struct Published {
    cluster: ServedIndex,
    namespaced: ServedIndex,
}

impl Published {
    const fn of(&mut self, name: &ProfileName) -> &mut ServedIndex {
        if name.namespace.is_some() { &mut self.namespaced } else { &mut self.cluster }
    }
}

impl Index {
    /// Serves what is published of profiles, and not their texts as they stand.
    #[must_use]
    pub fn of_revisions(self) -> Self {
        Self { published: Some(Published::default()), ..self }
    }

    /// Keeps the texts of all profiles that were accepted, for who makes revisions of them.
    #[must_use]
    pub fn keeping_texts(self) -> Self {
        Self { cluster: self.cluster.keeping_texts(), namespaced: self.namespaced.keeping_texts(), ..self }
    }

    /// Bounds the memory that the profiles of namespaces may take.
    #[must_use]
    pub fn bounded_by(self, limits: share::Limits) -> Self {
        Self { namespaced: self.namespaced.bounded_by(limits), ..self }
    }

    /// Up to `count` profiles for which there was no memory, and is now: they have to be read again. Each is given once.
    pub fn take_readable(&mut self, count: usize) -> Vec<ProfileName> {
        self.namespaced.take_readable(count)
    }

    /// Says that a profile could not be read again: it has to be tried once more.
    pub fn not_read(&mut self, name: ProfileName) {
        self.namespaced.not_read(name);
    }

    /// The revisions that have to be fetched. Each is given once.
    pub fn due(&mut self) -> Vec<RevisionKey> {
        let Some(published) = &mut self.published else { return Vec::new() };
        let mut due = published.cluster.due();
        due.extend(published.namespaced.due());
        due
    }

    /// Whether a revision that could not be fetched is still wanted.
    pub fn still_wants(&mut self, key: &RevisionKey) -> bool {
        self.published.as_mut().is_some_and(|published| published.of(&key.profile).still_wants(key))
    }

    /// What became of the text of a profile; `None` if there is no such profile.
    #[must_use]
    pub fn state(&self, name: &ProfileName) -> Option<State<'_>> {
        self.of(name).state(name)
    }

    /// The whole text of the profile that is at work, and its author's own.
    #[must_use]
    pub fn whole(&self, name: &ProfileName) -> Option<(Whole, Arc<str>)> {
        self.of(name).whole(name, &self.cluster)
    }

    /// What was accepted of a profile by whoever led before.
    pub fn seed(&mut self, name: ProfileName, uid: Box<str>, text: &str) {
        if name.namespace.is_some() { &mut self.namespaced } else { &mut self.cluster }.seed(name, uid, text);
    }

    /// The namespaces that are known.
    pub fn namespaces(&self) -> impl Iterator<Item = (&str, &Namespace)> {
        self.snapshot.namespaces().map(|(name, namespace)| (name, &**namespace))
    }

    /// Whether all first lists were complete.
    #[must_use]
    pub const fn is_complete(&self) -> bool {
        self.synced()
    }

    const fn of(&self, name: &ProfileName) -> &ProfileIndex {
        if name.namespace.is_some() { &self.namespaced } else { &self.cluster }
    }

    /// Makes all snapshots from this one.
    #[must_use]
    pub fn from_snapshot(snapshot: Snapshot) -> Self {
        Self { snapshot, ..Self::default() }
    }

    /// Takes what a watch says. Returns profiles that are broken, and were not known to be.
    pub fn update(&mut self, update: Update) -> Vec<Broken> {
        let updated = match update {
            Update::Cluster(change) => self.cluster.update(change),
            Update::Namespaced(change) => Updated { touched: BTreeSet::new(), ..self.namespaced.update(change) },
            Update::Namespace(change) => {
                self.namespaces_changed |= self.namespaces.update(change, &mut self.snapshot);
                return Vec::new();
            }
            Update::PublishedCluster(change) => {
                return self.take_published(|published| published.cluster.update(change));
            }
            Update::PublishedNamespaced(change) => {
                return self.take_published(|published| published.namespaced.update(change));
            }
            Update::Fetched(key, fetched) => {
                return self.take_published(|published| published.of(&key.profile).fetched(&key, fetched));
            }
        };
        self.profiles_changed |= updated.changed;
        let mut broken = updated.broken;
        broken.extend(self.compile_due(updated.touched));
        broken
    }

    fn take_published(&mut self, update: impl FnOnce(&mut Published) -> Updated) -> Vec<Broken> {
        let updated = update(self.published.get_or_insert_default());
        self.profiles_changed |= updated.changed;
        updated.broken
    }

    /// Compiles what extends profiles that have changed, and what was waiting for them. Before all cluster profiles are
    /// known, one that is extended may be still to come.
    fn compile_due(&mut self, touched: BTreeSet<Box<str>>) -> Vec<Broken> {
        let mut broken = Vec::new();
        if !self.cluster.synced() {
            return broken;
        }
        let mut all = touched.clone();
        let mut latest = touched;
        // A chain has few links, and a profile that was waiting for its parent has others waiting for itself.
        for _ in 0..2 * MAX_CHAIN {
            for _ in 1..MAX_CHAIN {
                all.extend(latest.iter().cloned());
                latest = self.cluster.touch(&latest);
            }
            all.extend(latest);
            let updated = self.cluster.compile_due(None);
            self.profiles_changed |= updated.changed;
            broken.extend(updated.broken);
            latest = updated.touched;
            if latest.is_empty() {
                break;
            }
        }
        self.namespaced.touch(&all);
        let namespaced = self.namespaced.compile_due(Some(&self.cluster));
        self.profiles_changed |= namespaced.changed;
        broken.extend(namespaced.broken);
        broken
    }

    /// The snapshot to publish, if there is something new to publish.
    pub fn publish(&mut self) -> Option<Arc<Snapshot>> {
        let due = self.synced() && (self.profiles_changed || self.namespaces_changed);
        if !due {
            return None;
        }
        if self.profiles_changed {
            let before = self.snapshot.profiles();
            let profiles = match &self.published {
                Some(Published { cluster, namespaced }) => {
                    ProfileSet::serving(before, cluster.at_work().chain(namespaced.at_work()).cloned())
                }
                None => ProfileSet::after(before, self.cluster.at_work().chain(self.namespaced.at_work()).cloned()),
            };
            self.snapshot = self.snapshot.with_profiles(profiles);
        }
        (self.profiles_changed, self.namespaces_changed) = (false, false);
        Some(Arc::new(self.snapshot.clone()))
    }

    /// What it is in.
    #[must_use]
    pub fn status(&self) -> Status {
        Status {
            synced: self.synced(),
            profiles: self.snapshot.profiles().len(),
            broken_profiles: match &self.published {
                Some(Published { cluster, namespaced }) => cluster.broken() + namespaced.broken(),
                None => self.cluster.broken() + self.namespaced.broken(),
            },
            namespaces: self.snapshot.namespace_count(),
        }
    }

    /// Whether all objects of a kind were listed, and how many there are.
    #[must_use]
    pub fn known(&self, kind: Kind) -> (bool, usize) {
        match (kind, &self.published) {
            (Kind::ClusterProfiles, Some(published)) => (published.cluster.synced(), published.cluster.len()),
            (Kind::Profiles, Some(published)) => (published.namespaced.synced(), published.namespaced.len()),
            (Kind::ClusterProfiles, None) => (self.cluster.synced(), self.cluster.len()),
            (Kind::Profiles, None) => (self.namespaced.synced(), self.namespaced.len()),
            (Kind::Namespaces, _) => (self.namespaces.synced(), self.snapshot.namespace_count()),
        }
    }

    const fn synced(&self) -> bool {
        let profiles = match &self.published {
            Some(published) => published.cluster.synced() && published.namespaced.synced(),
            None => self.cluster.synced() && self.namespaced.synced(),
        };
        profiles && self.namespaces.synced()
    }
}

#[cfg(test)]
mod tests;
