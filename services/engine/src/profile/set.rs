//! All compiled profiles, in the order in which they apply.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::sync::Arc;

use super::CompiledProfile;
use super::target::Action;
use crate::select::index::Index;

/// All compiled profiles of a cluster. All of the platform's stand before all of the tenants'; among them the lower
/// `order` comes first, then the name.
#[derive(Clone, Debug, Default)]
pub struct ProfileSet {
    all: Vec<Arc<CompiledProfile>>,
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
        let mut sorted: Vec<_> = profiles.into_iter().enumerate().collect();
        sorted.sort_by(|(a_place, a), (b_place, b)| (a.name(), Reverse(*a_place)).cmp(&(b.name(), Reverse(*b_place))));
        sorted.dedup_by(|(_, later), (_, kept)| later.name() == kept.name());
        let mut all: Vec<_> = sorted.into_iter().map(|(_, profile)| profile).collect();
        // By namespace, of which none is the first, then by order, then by name.
        all.sort_by(|a, b| (&a.name().namespace, a.order, a.name()).cmp(&(&b.name().namespace, b.order, b.name())));
        let mut set = Self::default();
        for group in all.chunk_by(|a, b| a.name().namespace == b.name().namespace) {
            let index = before.index_of(group).unwrap_or_else(|| Arc::new(Index::new(group)));
            match group.first().and_then(|profile| profile.name().namespace.clone()) {
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
    fn index_of(&self, group: &[Arc<CompiledProfile>]) -> Option<Arc<Index>> {
        let namespace = group.first()?.name().namespace.as_deref();
        let begin = self.all.partition_point(|known| known.name().namespace.as_deref() < namespace);
        let known = self.all.get(begin..)?;
        let known = known.get(..known.partition_point(|known| known.name().namespace.as_deref() == namespace))?;
        let same = known.len() == group.len() && known.iter().zip(group).all(|(one, other)| Arc::ptr_eq(one, other));
        let index = match namespace {
            Some(namespace) => self.namespaced.get(namespace)?,
            None => &self.cluster,
        };
        same.then(|| Arc::clone(index))
    }

    /// How many profiles there are.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.all.len()
    }

    /// Whether there are none.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// All profiles: the platform's, then each namespace's, each in the order in which they apply.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<CompiledProfile>> {
        self.all.iter()
    }

    /// Whether any profile may act, in a namespace, on objects of the resource that a request is about.
    pub(crate) fn has_resource(&self, namespace: &str, action: Action<'_>) -> bool {
        self.cluster.has_resource(action) || self.of_namespace(namespace).is_some_and(|own| own.has_resource(action))
    }

    /// The platform's profiles.
    pub(crate) const fn cluster(&self) -> &Arc<Index> {
        &self.cluster
    }

    /// A namespace's own profiles, if it has any.
    pub(crate) fn of_namespace(&self, namespace: &str) -> Option<&Arc<Index>> {
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
        assert!(Arc::ptr_eq(before.cluster(), after.cluster()));
        assert!(Arc::ptr_eq(&own(&before, "team-a"), &own(&after, "team-a")));
        assert!(!Arc::ptr_eq(&own(&before, "team-b"), &own(&after, "team-b")));

        let after = ProfileSet::after(&before, [cluster("y"), two]);
        assert!(!Arc::ptr_eq(before.cluster(), after.cluster()));
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
