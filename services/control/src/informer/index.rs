//! The state of the cluster: takes changes and returns snapshots.
//!
//! It publishes nothing before all three first lists are complete: half a list would report an existing profile as
//! missing. Later each watch is independent; a watch that is cut off keeps its last state.

use std::collections::BTreeSet;
use std::sync::Arc;

use pillion_engine::profile::{FlattenedProfile, MAX_CHAIN, ProfileName};
use pillion_engine::snapshot::{Namespace, ProfileSet, Snapshot};

use crate::informer::cache_metrics::Kind;
use crate::informer::namespaces::{NamespaceChange, NamespaceIndex};
use crate::informer::profiles::{Broken, ProfileChange, ProfileIndex, State, Updated};
use crate::informer::served::{Fetched, PointerChange, RevisionKey, ServedIndex};
use crate::informer::share;

/// A change from one of the watches, or a fetched revision.
#[derive(Clone, Debug)]
pub enum Update {
    /// A change of cluster profiles.
    Cluster(ProfileChange),
    /// A change of namespaced profiles.
    Namespaced(ProfileChange),
    /// A change of namespaces.
    Namespace(NamespaceChange),
    /// A change of the published revisions of cluster profiles.
    PublishedCluster(PointerChange),
    /// A change of the published revisions of namespaced profiles.
    PublishedNamespaced(PointerChange),
    /// A published revision was fetched.
    Fetched(RevisionKey, Fetched),
}

/// The state of the index, for readiness and gauges.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Status {
    /// All first lists are complete, and a snapshot is published.
    pub synced: bool,
    /// Active profiles.
    pub profiles: usize,
    /// Profiles whose stored version is not active: an older one is, or none.
    pub broken_profiles: usize,
    /// Namespaces.
    pub namespaces: usize,
}

/// Builds snapshots from the changes of the watches.
#[derive(Debug, Default)]
pub struct Index {
    cluster: ProfileIndex,
    namespaced: ProfileIndex,
    /// The published revisions, if they are served instead of the stored profiles.
    published: Option<Published>,
    namespaces: NamespaceIndex,
    snapshot: Snapshot,
    profiles_changed: bool,
    namespaces_changed: bool,
}

/// The published revisions of both kinds of profiles.
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
    /// Serves published revisions instead of the stored profiles.
    #[must_use]
    pub fn of_revisions(self) -> Self {
        Self { published: Some(Published::default()), ..self }
    }

    /// Keeps the texts of all accepted profiles, for the controller that creates revisions of them.
    #[must_use]
    pub fn keeping_texts(self) -> Self {
        Self { cluster: self.cluster.keeping_texts(), namespaced: self.namespaced.keeping_texts(), ..self }
    }

    /// Bounds the memory for namespaced profiles.
    #[must_use]
    pub fn bounded_by(self, limits: share::Limits) -> Self {
        Self { namespaced: self.namespaced.bounded_by(limits), ..self }
    }

    /// Returns up to `count` profiles that lacked memory and now fit: read them again. Each is returned once.
    pub fn take_readable(&mut self, count: usize) -> Vec<ProfileName> {
        self.namespaced.take_readable(count)
    }

    /// Reports that a profile could not be read again; it will be returned again.
    pub fn not_read(&mut self, name: ProfileName) {
        self.namespaced.not_read(name);
    }

    /// Returns the revisions to fetch. Each is returned once.
    pub fn due(&mut self) -> Vec<RevisionKey> {
        let Some(published) = &mut self.published else { return Vec::new() };
        let mut due = published.cluster.due();
        due.extend(published.namespaced.due());
        due
    }

    /// Whether a revision that could not be fetched is still needed.
    pub fn still_wants(&mut self, key: &RevisionKey) -> bool {
        self.published.as_mut().is_some_and(|published| published.of(&key.profile).still_wants(key))
    }

    /// The state of a profile's text; `None` if there is no such profile.
    #[must_use]
    pub fn state(&self, name: &ProfileName) -> Option<State<'_>> {
        self.of(name).state(name)
    }

    /// The flattened text of the active profile, and its author's own text.
    #[must_use]
    pub fn whole(&self, name: &ProfileName) -> Option<(FlattenedProfile, Arc<str>)> {
        self.of(name).whole(name, &self.cluster)
    }

    /// Adds a text that an earlier leader had accepted for a profile.
    pub fn seed(&mut self, name: ProfileName, uid: Box<str>, text: &str) {
        if name.namespace.is_some() { &mut self.namespaced } else { &mut self.cluster }.seed(name, uid, text);
    }

    /// The known namespaces.
    pub fn namespaces(&self) -> impl Iterator<Item = (&str, &Namespace)> {
        self.snapshot.namespaces().map(|(name, namespace)| (name, &**namespace))
    }

    /// Whether all first lists are complete.
    #[must_use]
    pub const fn is_complete(&self) -> bool {
        self.synced()
    }

    const fn of(&self, name: &ProfileName) -> &ProfileIndex {
        if name.namespace.is_some() { &self.namespaced } else { &self.cluster }
    }

    /// Builds all later snapshots from this one.
    #[must_use]
    pub fn from_snapshot(snapshot: Snapshot) -> Self {
        Self { snapshot, ..Self::default() }
    }

    /// Applies an update. Returns profiles that are newly broken.
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

    /// Compiles the profiles that extend changed profiles, and those that waited for them. Until all cluster profiles
    /// are known, a missing parent may still arrive.
    fn compile_due(&mut self, touched: BTreeSet<Box<str>>) -> Vec<Broken> {
        let mut broken = Vec::new();
        if !self.cluster.synced() {
            return broken;
        }
        let mut all = touched.clone();
        let mut latest = touched;
        // A chain has few links, and a profile that waited for its parent may have children waiting.
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

    /// The next snapshot, if anything changed.
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

    /// The current state.
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

    /// Whether all objects of a kind were listed, and their number.
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
