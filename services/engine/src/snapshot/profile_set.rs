//! The set of all compiled profiles, sorted by namespace, `order` and name.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::sync::Arc;

use pillion_api::selector::LabelSelector;

use crate::profile::CompiledProfile;
use crate::profile::target::Action;
use crate::select::candidates::{Entry, Index, Staging};

/// A profile with its active revisions.
#[derive(Clone, Debug)]
pub struct Served {
    /// The published revision.
    pub profile: Arc<CompiledProfile>,
    /// The rollout. `None` if all workloads get the published revision.
    pub stage: Option<Stage>,
    /// The stored revisions, which can be pinned with `name@hash`.
    pub kept: Arc<[Box<str>]>,
}

/// An incomplete rollout.
#[derive(Clone, Debug)]
pub struct Stage {
    /// The revision for workloads outside of the rollout. If it is `None`, they do not get the profile.
    pub promoted: Option<Arc<CompiledProfile>>,
    /// The share of the workloads in the rollout, in percent.
    pub percent: u8,
    /// Selects the namespaces that take part in the rollout. `None` selects all.
    pub namespaces: Option<LabelSelector>,
}

impl Served {
    /// Returns the entries for the active revisions: first the published one, then the promoted one.
    fn entries(self) -> impl Iterator<Item = Entry> {
        let Self { profile, stage, kept } = self;
        let staging = stage.as_ref().map(|stage| {
            let (percent, namespaces) = (stage.percent, stage.namespaces.clone());
            Arc::new(Staging { profile: profile.display_name().into(), percent, namespaces })
        });
        let promoted = stage.and_then(|stage| stage.promoted).map(|promoted| Entry {
            profile: promoted,
            staging: staging.clone(),
            is_promoted: true,
            kept: Arc::clone(&kept),
        });
        std::iter::once(Entry { profile, staging, is_promoted: false, kept }).chain(promoted)
    }
}

impl From<Arc<CompiledProfile>> for Served {
    /// Creates an entry without a rollout and without other revisions, so that all workloads get the profile.
    fn from(profile: Arc<CompiledProfile>) -> Self {
        Self { profile, stage: None, kept: Arc::default() }
    }
}

/// All compiled profiles of a cluster: cluster profiles first, then those of each namespace. The cluster profiles, and
/// those of each namespace, are sorted by `order`, then by name.
#[derive(Clone, Debug, Default)]
pub struct ProfileSet {
    all: Vec<Entry>,
    /// The number of entries for promoted revisions. [`Self::len`] does not include them.
    promoted: usize,
    cluster: Arc<Index>,
    namespaced: HashMap<Box<str>, Arc<Index>>,
}

impl ProfileSet {
    /// Creates a set. If a name is repeated, its last profile is used.
    #[must_use]
    pub fn new(profiles: impl IntoIterator<Item = Arc<CompiledProfile>>) -> Self {
        Self::after(&Self::default(), profiles)
    }

    /// Creates a set of these profiles. Reuses the indexes of `before` whose profiles have not changed.
    #[must_use]
    pub fn after(before: &Self, profiles: impl IntoIterator<Item = Arc<CompiledProfile>>) -> Self {
        Self::serving(before, profiles.into_iter().map(Served::from))
    }

    /// Like [`Self::after`], but for profiles that may have two active revisions.
    #[must_use]
    pub fn serving(before: &Self, profiles: impl IntoIterator<Item = Served>) -> Self {
        let mut sorted: Vec<_> = profiles.into_iter().enumerate().collect();
        let name = |served: &Served| served.profile.name().clone();
        sorted.sort_by_cached_key(|(place, served)| (name(served), Reverse(*place)));
        sorted.dedup_by(|(_, later), (_, kept)| later.profile.name() == kept.profile.name());
        let mut all: Vec<_> = sorted.into_iter().flat_map(|(_, served)| served.entries()).collect();
        // Sort by namespace (cluster profiles first), then by order, then by name.
        all.sort_by(|a, b| {
            let (a, b, a_promoted, b_promoted) = (&a.profile, &b.profile, a.is_promoted, b.is_promoted);
            (&a.name().namespace, a.order, a.name(), a_promoted).cmp(&(
                &b.name().namespace,
                b.order,
                b.name(),
                b_promoted,
            ))
        });
        let promoted = all.iter().filter(|entry| entry.is_promoted).count();
        let mut set = Self { promoted, ..Self::default() };
        for group in all.chunk_by(|a, b| a.profile.name().namespace == b.profile.name().namespace) {
            let index = before.index_of(group).unwrap_or_else(|| Arc::new(Index::new(group)));
            match group.first().and_then(|entry| entry.profile.name().namespace.clone()) {
                Some(namespace) => {
                    set.namespaced.insert(namespace, index);
                }
                None => set.cluster = index,
            }
        }
        set.all = all;
        set
    }

    /// Returns the existing index for the namespace of the group, or for the cluster profiles. `None` if the index does
    /// not contain exactly this group.
    fn index_of(&self, group: &[Entry]) -> Option<Arc<Index>> {
        let namespace = group.first()?.profile.name().namespace.as_deref();
        let begin = self.all.partition_point(|entry| entry.profile.name().namespace.as_deref() < namespace);
        let own = self.all.get(begin..)?;
        let own = own.get(..own.partition_point(|entry| entry.profile.name().namespace.as_deref() == namespace))?;
        let same = own.len() == group.len() && own.iter().zip(group).all(|(left, right)| left.is_same_entry(right));
        let index = match namespace {
            Some(namespace) => self.namespaced.get(namespace)?,
            None => &self.cluster,
        };
        same.then(|| Arc::clone(index))
    }

    /// Returns the number of profiles.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.all.len() - self.promoted
    }

    /// Whether the set is empty.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// Returns all profiles: cluster profiles, then those of each namespace, both sorted by `order`, then by name. For
    /// a profile in a rollout, returns the newest revision.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<CompiledProfile>> {
        self.all.iter().filter(|entry| !entry.is_promoted).map(|entry| &entry.profile)
    }

    /// Returns all active revisions: those of [`Self::iter`], and the promoted revisions of profiles in a rollout.
    pub fn active(&self) -> impl Iterator<Item = &Arc<CompiledProfile>> {
        self.all.iter().map(|entry| &entry.profile)
    }

    /// Whether any cluster profile or any profile of the namespace may apply to the resource of a request.
    pub(crate) fn has_resource(&self, namespace: &str, action: Action<'_>) -> bool {
        self.cluster.has_resource(action) || self.of_namespace(namespace).is_some_and(|own| own.has_resource(action))
    }

    /// Returns the index of the cluster profiles. If the namespace has its own profiles, also returns their index.
    pub(crate) fn indexes(&self, namespace: &str) -> (&Arc<Index>, Option<&Arc<Index>>) {
        (&self.cluster, self.of_namespace(namespace))
    }

    fn of_namespace(&self, namespace: &str) -> Option<&Arc<Index>> {
        self.namespaced.get(namespace)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::profile::{ProfileName, compile};

    fn profile(name: &ProfileName, order: i32, label: &str) -> Arc<CompiledProfile> {
        let spec = json!({"order": order, "template": {"metadata": {"labels": {"x": label}}}});
        Arc::new(compile(name, &serde_json::from_value(spec).unwrap()).unwrap())
    }

    #[test]
    fn orders_by_owner_then_order_then_name() {
        let cluster = |name: &str, order| profile(&ProfileName::cluster(name), order, "x");
        let own = profile(&ProfileName::namespaced("team-a", "own"), -5, "x");
        let set = ProfileSet::new([own, cluster("b", 100), cluster("a", 100), cluster("late", 101), cluster("z", 1)]);
        let names: Vec<_> = set.iter().map(|profile| profile.display_name()).collect();
        assert_eq!(names, ["z", "a", "b", "late", "team-a/own"]);
        assert_eq!((set.len(), set.is_empty()), (5, false));
    }

    #[test]
    fn unchanged_indexes_are_shared() {
        let cluster = |label| profile(&ProfileName::cluster("a"), 1, label);
        let of = |namespace: &str, label| profile(&ProfileName::namespaced(namespace, "own"), 1, label);
        let (platforms, one, two) = (cluster("x"), of("team-a", "x"), of("team-b", "x"));
        let before = ProfileSet::new([platforms.clone(), one.clone(), two.clone()]);
        let own = |set: &ProfileSet, namespace: &str| set.of_namespace(namespace).cloned().unwrap();

        let after = ProfileSet::after(&before, [platforms.clone(), one, of("team-b", "y")]);
        assert!(Arc::ptr_eq(&before.cluster, &after.cluster));
        assert!(Arc::ptr_eq(&own(&before, "team-a"), &own(&after, "team-a")));
        assert!(!Arc::ptr_eq(&own(&before, "team-b"), &own(&after, "team-b")));

        let after = ProfileSet::after(&before, [cluster("y"), two]);
        assert!(!Arc::ptr_eq(&before.cluster, &after.cluster));
        assert!(Arc::ptr_eq(&own(&before, "team-b"), &own(&after, "team-b")));
        assert!(after.of_namespace("team-a").is_none());
        assert_eq!(ProfileSet::after(&before, []).len(), 0);
    }

    #[test]
    fn last_profile_of_a_name_counts() {
        let first = profile(&ProfileName::cluster("a"), 5, "first");
        let last = profile(&ProfileName::cluster("a"), 900, "last");
        let set = ProfileSet::new([first, Arc::clone(&last)]);
        assert_eq!(set.iter().map(|profile| profile.revision()).collect::<Vec<_>>(), [last.revision()]);
    }
}
