//! The order in which namespaced profiles are handled. If a round has no time for all profiles, namespaces get the same
//! number of turns, however many profiles they have.

use std::collections::HashMap;

use pillion_engine::profile::ProfileName;

use crate::revisions::Followed;

/// When each profile last had a turn.
#[derive(Debug, Default)]
pub(super) struct Turns {
    /// The number of turns so far.
    count: u64,
    /// The number of the last turn, by profile; 0 if the profile had none.
    last: HashMap<ProfileName, u64>,
}

impl Turns {
    /// Orders profiles: first one profile of each namespace, then a second one, and so on. Namespaces and profiles that
    /// have waited longer come first. Forgets all other profiles.
    pub(super) fn order(&mut self, mut profiles: Vec<Followed>) -> Vec<Followed> {
        let known = std::mem::take(&mut self.last);
        let mut of_namespace: HashMap<Option<Box<str>>, u64> = HashMap::new();
        for Followed { name, .. } in &profiles {
            let last = known.get(name).copied().unwrap_or_default();
            self.last.insert(name.clone(), last);
            let latest = of_namespace.entry(name.namespace.clone()).or_default();
            *latest = last.max(*latest);
        }
        let last = |name: &ProfileName| self.last.get(name).copied().unwrap_or_default();
        profiles.sort_by_cached_key(|profile| (last(&profile.name), profile.name.clone()));
        let mut counts: HashMap<Option<Box<str>>, usize> = HashMap::new();
        let position = |profile: Followed| {
            let namespace = &profile.name.namespace;
            let count = counts.entry(namespace.clone()).or_default();
            *count += 1;
            ((*count, of_namespace.get(namespace).copied().unwrap_or_default()), profile)
        };
        let mut positions: Vec<_> = profiles.into_iter().map(position).collect();
        positions.sort_by_key(|(position, _)| *position);
        positions.into_iter().map(|(_, profile)| profile).collect()
    }

    /// Records that a profile has its turn.
    pub(super) fn take(&mut self, name: &ProfileName) {
        self.count += 1;
        if let Some(last) = self.last.get_mut(name) {
            *last = self.count;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn followed(namespace: &str, name: &str) -> Followed {
        Followed {
            name: ProfileName::namespaced(namespace, name),
            resource_version: None,
            rollout: pillion_api::profile::Rollout::default(),
            revision: "r".to_owned(),
            promoted: None,
            published_percent: None,
            is_rollback: false,
            steering: None,
            upgrade: None,
        }
    }

    #[test]
    fn namespace_with_many_profiles_has_no_more_turns() {
        let mut profiles: Vec<_> = (0..50).map(|number| followed("many", &format!("p{number:02}"))).collect();
        profiles.extend([followed("one", "a"), followed("two", "a"), followed("two", "b")]);
        let (mut turns, mut counts) = (Turns::default(), HashMap::<String, usize>::new());
        // Each round has time for two profiles.
        for _ in 0..300 {
            for profile in turns.order(profiles.clone()).into_iter().take(2) {
                turns.take(&profile.name);
                *counts.entry(profile.name.to_string()).or_default() += 1;
            }
        }
        let of = |namespace: &str| -> usize {
            counts.iter().filter(|(name, _)| name.starts_with(namespace)).map(|(_, count)| count).sum()
        };
        assert_eq!((of("many/"), of("one/"), of("two/")), (200, 200, 200), "{counts:?}");
        assert_eq!(counts["two/a"], counts["two/b"]);
        let of_many: Vec<_> = counts.iter().filter(|(name, _)| name.starts_with("many/")).collect();
        assert!(of_many.len() == 50 && of_many.iter().all(|(_, count)| **count == 4), "{counts:?}");
    }
}
