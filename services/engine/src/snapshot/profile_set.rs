//! The set of all compiled profiles, in the order in which they apply.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::sync::Arc;

use pillion_api::selector::LabelSelector;

use crate::profile::CompiledProfile;
use crate::profile::target::Action;
use crate::select::index::{Entry, Index, Staging};

/// A profile with what is served of it.
#[derive(Clone, Debug)]
pub struct Served {
    /// The revision that is published.
    pub profile: Arc<CompiledProfile>,
    /// Who gets it, if not everybody.
    pub stage: Option<Stage>,
    /// The revisions that are kept, which can be asked for by `name@hash`.
    pub kept: Arc<[Box<str>]>,
}

/// A rollout that is not complete.
#[derive(Clone, Debug)]
pub struct Stage {
    /// The revision of all others; without it they get none.
    pub promoted: Option<Arc<CompiledProfile>>,
    /// Share of the workloads, in percent.
    pub percent: u8,
    /// Only workloads in these namespaces.
    pub namespaces: Option<LabelSelector>,
}

impl Served {
    /// Its revisions as the index has them: the newest, then the promoted.
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
    /// Everybody gets it, and no other one is kept.
    fn from(profile: Arc<CompiledProfile>) -> Self {
        Self { profile, stage: None, kept: Arc::default() }
    }
}

/// All compiled profiles of a cluster. All of the platform's stand before all of the tenants'; among them the lower
/// `order` comes first, then the name.
#[derive(Clone, Debug, Default)]
pub struct ProfileSet {
    all: Vec<Entry>,
    /// How many of them are promoted revisions beside newer ones.
    promoted: usize,
    cluster: Arc<Index>,
    namespaced: HashMap<Box<str>, Arc<Index>>,
}

impl ProfileSet {
    /// A set of profiles. Of two with the same name, the last one counts.
    #[must_use]
    pub fn new(profiles: impl IntoIterator<Item = Arc<CompiledProfile>>) -> Self {
        Self::after(&Self::default(), profiles)
    }

    /// A set of profiles of which most are those of another set: what is as it was there is not arranged anew.
    #[must_use]
    pub fn after(before: &Self, profiles: impl IntoIterator<Item = Arc<CompiledProfile>>) -> Self {
        Self::serving(before, profiles.into_iter().map(Served::from))
    }

    /// The same of profiles that may have two revisions at work.
    #[must_use]
    pub fn serving(before: &Self, profiles: impl IntoIterator<Item = Served>) -> Self {
        let mut sorted: Vec<_> = profiles.into_iter().enumerate().collect();
        let name = |served: &Served| served.profile.name().clone();
        sorted.sort_by_cached_key(|(place, served)| (name(served), Reverse(*place)));
        sorted.dedup_by(|(_, later), (_, kept)| later.profile.name() == kept.profile.name());
        let mut all: Vec<_> = sorted.into_iter().flat_map(|(_, served)| served.entries()).collect();
        // By namespace, of which none is the first, then by order, then by name.
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

    /// The index of the platform's profiles or a namespace's, if those are just these.
    fn index_of(&self, group: &[Entry]) -> Option<Arc<Index>> {
        let namespace = group.first()?.profile.name().namespace.as_deref();
        let begin = self.all.partition_point(|known| known.profile.name().namespace.as_deref() < namespace);
        let known = self.all.get(begin..)?;
        let known =
            known.get(..known.partition_point(|known| known.profile.name().namespace.as_deref() == namespace))?;
        let same = known.len() == group.len() && known.iter().zip(group).all(|(one, other)| one.is_as(other));
        let index = match namespace {
            Some(namespace) => self.namespaced.get(namespace)?,
            None => &self.cluster,
        };
        same.then(|| Arc::clone(index))
    }

    /// How many profiles there are.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.all.len() - self.promoted
    }

    /// Whether there are none.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// All profiles: the platform's, then each namespace's, each in the order in which they apply. Of those that are rolled
    /// out the newest revision.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<CompiledProfile>> {
        self.all.iter().filter(|entry| !entry.is_promoted).map(|entry| &entry.profile)
    }

    /// All revisions that are at work: those of [`Self::iter`], and of profiles that are rolled out the promoted ones.
    pub fn at_work(&self) -> impl Iterator<Item = &Arc<CompiledProfile>> {
        self.all.iter().map(|entry| &entry.profile)
    }

    /// Whether any profile may act, in a namespace, on objects of the resource that a request is about.
    pub(crate) fn has_resource(&self, namespace: &str, action: Action<'_>) -> bool {
        self.cluster.has_resource(action) || self.of_namespace(namespace).is_some_and(|own| own.has_resource(action))
    }

    /// The index of the cluster profiles, and that of the namespace's own profiles, if it has any.
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
    fn the_platforms_come_first_then_by_order_then_by_name() {
        let cluster = |name: &str, order| profile(&ProfileName::cluster(name), order, "x");
        let own = profile(&ProfileName::namespaced("team-a", "own"), -5, "x");
        let set = ProfileSet::new([own, cluster("b", 100), cluster("a", 100), cluster("late", 101), cluster("z", 1)]);
        let names: Vec<_> = set.iter().map(|profile| profile.display_name()).collect();
        assert_eq!(names, ["z", "a", "b", "late", "team-a/own"]);
        assert_eq!((set.len(), set.is_empty()), (5, false));
    }

    #[test]
    fn what_did_not_change_is_not_arranged_anew() {
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
    fn of_two_with_one_name_the_last_counts() {
        let first = profile(&ProfileName::cluster("a"), 5, "first");
        let last = profile(&ProfileName::cluster("a"), 900, "last");
        let set = ProfileSet::new([first, Arc::clone(&last)]);
        assert_eq!(set.iter().map(|profile| profile.revision()).collect::<Vec<_>>(), [last.revision()]);
    }
}
