//! All compiled profiles, in the order in which they apply.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::sync::Arc;

use super::CompiledProfile;

/// All compiled profiles of a cluster. All of the platform's stand before all of the tenants'; among them the lower
/// `order` comes first, then the name.
#[derive(Clone, Debug, Default)]
pub struct ProfileSet {
    cluster: Vec<Arc<CompiledProfile>>,
    namespaced: HashMap<Box<str>, Vec<Arc<CompiledProfile>>>,
}

impl ProfileSet {
    /// A set of profiles. Of two with the same name, the last one counts.
    #[must_use]
    pub fn new(profiles: impl IntoIterator<Item = Arc<CompiledProfile>>) -> Self {
        let mut all: Vec<_> = profiles.into_iter().enumerate().collect();
        all.sort_by(|(a_place, a), (b_place, b)| {
            (a.order, a.name(), Reverse(*a_place)).cmp(&(b.order, b.name(), Reverse(*b_place)))
        });
        all.dedup_by(|(_, later), (_, kept)| later.name() == kept.name());
        let mut set = Self::default();
        for (_, profile) in all {
            match &profile.name().namespace {
                Some(namespace) => set.namespaced.entry(namespace.clone()).or_default().push(profile),
                None => set.cluster.push(profile),
            }
        }
        set
    }

    /// How many profiles there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.cluster.len() + self.namespaced.values().map(Vec::len).sum::<usize>()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.cluster.is_empty() && self.namespaced.is_empty()
    }

    /// All profiles; those of one namespace in their order.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<CompiledProfile>> {
        self.cluster.iter().chain(self.namespaced.values().flatten())
    }

    /// The profiles that a namespace could have, in the order in which they apply.
    pub(crate) fn of_namespace(&self, namespace: &str) -> impl Iterator<Item = &Arc<CompiledProfile>> {
        self.cluster.iter().chain(self.namespaced.get(namespace).into_iter().flatten())
    }
}
