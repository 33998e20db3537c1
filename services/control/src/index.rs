//! What is known of the cluster: changes in, snapshots out.
//!
//! Nothing is published before all three first lists are complete: half a list would answer "no such profile" for one
//! that is there. Afterwards each watch stands by itself; one that is cut off leaves what it last knew.

use std::collections::BTreeSet;
use std::sync::Arc;

use pillion_engine::profile::{MAX_CHAIN, ProfileSet};
use pillion_engine::snapshot::Snapshot;

use crate::cache_metrics::Kind;
use crate::namespaces::{NamespaceChange, NamespaceIndex};
use crate::profiles::{Broken, ProfileChange, ProfileIndex, Updated};

/// What one of the three watches says.
#[derive(Clone, Debug)]
pub enum Update {
    /// About cluster profiles.
    Cluster(ProfileChange),
    /// About tenants' profiles.
    Namespaced(ProfileChange),
    /// About namespaces.
    Namespace(NamespaceChange),
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

/// Follows the three watches.
#[derive(Debug, Default)]
pub struct Index {
    cluster: ProfileIndex,
    namespaced: ProfileIndex,
    namespaces: NamespaceIndex,
    snapshot: Snapshot,
    profiles_changed: bool,
    namespaces_changed: bool,
}

impl Index {
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
        };
        self.profiles_changed |= updated.changed;
        let mut broken = updated.broken;
        broken.extend(self.compile_due(updated.touched));
        broken
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
            let profiles = self.cluster.at_work().chain(self.namespaced.at_work()).cloned();
            let profiles = ProfileSet::after(self.snapshot.profiles(), profiles);
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
            broken_profiles: self.cluster.broken() + self.namespaced.broken(),
            namespaces: self.snapshot.namespace_count(),
        }
    }

    /// Whether all objects of a kind were listed, and how many there are.
    #[must_use]
    pub fn known(&self, kind: Kind) -> (bool, usize) {
        match kind {
            Kind::ClusterProfiles => (self.cluster.synced(), self.cluster.len()),
            Kind::Profiles => (self.namespaced.synced(), self.namespaced.len()),
            Kind::Namespaces => (self.namespaces.synced(), self.snapshot.namespace_count()),
        }
    }

    const fn synced(&self) -> bool {
        self.cluster.synced() && self.namespaced.synced() && self.namespaces.synced()
    }
}

#[cfg(test)]
mod tests {
    mod extending;

    use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
    use pillion_api::names::InjectionLevel;
    use pillion_engine::snapshot::Namespace;
    use serde_json::{Value, json};

    use super::*;
    use crate::change::Change;
    use crate::profiles::StoredProfile;

    fn profile(name: &str, generation: i64, spec: Value) -> StoredProfile {
        let metadata = ObjectMeta {
            name: Some(name.to_owned()),
            uid: Some(format!("uid-of-{name}")),
            generation: Some(generation),
            ..ObjectMeta::default()
        };
        StoredProfile::new(metadata, spec)
    }

    fn sidecar(image: &str) -> Value {
        json!({"template": {"spec": {"containers": [{"name": "sidecar", "image": image}]}}})
    }

    fn enabled(name: &str) -> (Box<str>, Namespace) {
        (name.into(), Namespace::opted_in(InjectionLevel::Enabled))
    }

    fn list<K, T>(objects: impl IntoIterator<Item = T>) -> Vec<Change<K, T>> {
        let listed = objects.into_iter().map(Change::Listed);
        std::iter::once(Change::Restarted).chain(listed).chain([Change::ListComplete]).collect()
    }

    /// Takes all of them; returns what was newly broken.
    fn feed(index: &mut Index, updates: impl IntoIterator<Item = Update>) -> Vec<Broken> {
        updates.into_iter().flat_map(|update| index.update(update)).collect()
    }

    fn synced(profiles: impl IntoIterator<Item = StoredProfile>) -> Index {
        let mut index = Index::default();
        feed(&mut index, list(profiles).into_iter().map(Update::Cluster));
        feed(&mut index, list([]).into_iter().map(Update::Namespaced));
        feed(&mut index, list([enabled("shop")]).into_iter().map(Update::Namespace));
        index
    }

    fn revisions(snapshot: &Snapshot) -> Vec<(String, String)> {
        let profiles = snapshot.profiles().iter();
        profiles.map(|profile| (profile.name().to_string(), profile.revision().to_owned())).collect()
    }

    fn names(snapshot: &Snapshot) -> Vec<String> {
        revisions(snapshot).into_iter().map(|(name, _)| name).collect()
    }

    #[test]
    fn nothing_is_published_before_all_three_lists_are_complete() {
        let mut index = Index::default();
        feed(&mut index, list([enabled("shop")]).into_iter().map(Update::Namespace));
        assert!(index.publish().is_none());
        feed(&mut index, list([]).into_iter().map(Update::Namespaced));
        assert!(index.publish().is_none());
        feed(&mut index, [Update::Cluster(Change::Restarted)]);
        feed(&mut index, [Update::Cluster(Change::Listed(profile("proxy", 1, sidecar("proxy:1"))))]);
        assert!(index.publish().is_none());
        assert!(!index.status().synced);

        feed(&mut index, [Update::Cluster(Change::ListComplete)]);
        let snapshot = index.publish().unwrap();
        assert_eq!(names(&snapshot), ["proxy"]);
        assert!(snapshot.namespace("shop").is_some());
        assert_eq!(index.status(), Status { synced: true, profiles: 1, broken_profiles: 0, namespaces: 1 });
        assert!(index.publish().is_none(), "there is nothing new");
    }

    #[test]
    fn an_empty_cluster_is_published_too() {
        let mut index = synced([]);
        assert!(index.publish().is_some());
    }

    #[test]
    fn profiles_and_namespaces_come_change_and_go() {
        let mut index = synced([profile("proxy", 1, sidecar("proxy:1"))]);
        let first = index.publish().unwrap();

        feed(
            &mut index,
            [
                Update::Cluster(Change::Applied(profile("proxy", 2, sidecar("proxy:2")))),
                Update::Cluster(Change::Applied(profile("logger", 1, sidecar("logger:1")))),
                Update::Namespace(Change::Applied(enabled("till"))),
            ],
        );
        let second = index.publish().unwrap();
        assert_eq!(names(&second), ["logger", "proxy"]);
        assert_ne!(revisions(&first).first(), revisions(&second).get(1));
        assert_eq!(second.namespace_count(), 2);
        assert_eq!(first.namespace_count(), 1, "what is published does not change");

        feed(
            &mut index,
            [
                Update::Cluster(Change::Deleted(profile("proxy", 2, Value::Null).name)),
                Update::Namespace(Change::Deleted("shop".into())),
            ],
        );
        let third = index.publish().unwrap();
        assert_eq!(names(&third), ["logger"]);
        assert!(third.namespace("shop").is_none());
    }

    #[test]
    fn a_tenants_profile_stands_beside_a_cluster_profile_of_the_same_name() {
        let mut index = synced([profile("proxy", 1, sidecar("proxy:1"))]);
        let mut tenants = profile("proxy", 1, sidecar("tenant:1"));
        tenants.name.namespace = Some("shop".into());
        feed(&mut index, [Update::Namespaced(Change::Applied(tenants))]);
        let mut names = names(&index.publish().unwrap());
        names.sort();
        assert_eq!(names, ["proxy", "shop/proxy"]);

        feed(&mut index, list([]).into_iter().map(Update::Cluster));
        assert_eq!(self::names(&index.publish().unwrap()), ["shop/proxy"], "the lists of the two kinds are apart");
    }

    #[test]
    fn the_last_good_profile_stays_until_the_broken_one_is_repaired() {
        let mut index = synced([profile("proxy", 1, sidecar("proxy:1"))]);
        let good = revisions(&index.publish().unwrap());

        let broken = feed(&mut index, [Update::Cluster(Change::Applied(profile("proxy", 2, json!({"tmplate": {}}))))]);
        let [broken] = broken.as_slice() else { panic!("not reported once: {broken:?}") };
        assert_eq!((broken.name.to_string().as_str(), broken.generation), ("proxy", Some(2)));
        assert_eq!(broken.serving.as_deref(), good.first().map(|(_, revision)| revision.as_str()));
        assert!(index.publish().is_none(), "what is at work is what was at work");
        assert_eq!((index.status().profiles, index.status().broken_profiles), (1, 1));

        feed(&mut index, [Update::Cluster(Change::Applied(profile("proxy", 3, sidecar("proxy:3"))))]);
        let repaired = revisions(&index.publish().unwrap());
        assert_ne!(repaired, good);
        assert_eq!(index.status().broken_profiles, 0);
    }

    #[test]
    fn a_broken_profile_is_reported_once_for_each_generation() {
        let mut index = synced([profile("proxy", 1, sidecar("proxy:1"))]);
        let apply =
            |generation| Update::Cluster(Change::Applied(profile("proxy", generation, json!({"order": "first"}))));
        assert_eq!(feed(&mut index, [apply(2), apply(2)]).len(), 1);
        assert_eq!(feed(&mut index, [apply(3)]).len(), 1);
        let again = list([profile("proxy", 3, json!({"order": "first"}))]).into_iter().map(Update::Cluster);
        assert_eq!(feed(&mut index, again).len(), 0, "a list after a lost watch brings nothing new");
        assert_eq!(index.status().broken_profiles, 1);
    }

    #[test]
    fn what_cannot_be_read_says_which_field() {
        let cases = [
            (json!({"order": "first"}), "spec.order"),
            (
                json!({"parameters": [{"name": "a", "type": "string"}, {"name": "b", "type": "strin"}]}),
                "spec.parameters[1].type",
            ),
            (Value::Null, "spec"),
        ];
        for (spec, path) in cases {
            let mut index = Index::default();
            let broken = feed(&mut index, [Update::Cluster(Change::Applied(profile("proxy", 1, spec)))]);
            let diagnostics = &broken.first().unwrap().diagnostics;
            assert_eq!(diagnostics.iter().map(|d| d.path.as_str()).collect::<Vec<_>>(), [path]);
            assert!(diagnostics.first().unwrap().help.is_some());
        }
    }

    #[test]
    fn a_broken_profile_does_not_stop_the_first_publication() {
        let broken = profile("broken", 1, json!({"unknown": 1}));
        let mut index = synced([broken, profile("proxy", 1, sidecar("proxy:1"))]);
        assert_eq!(names(&index.publish().unwrap()), ["proxy"]);
        assert_eq!(index.status().broken_profiles, 1);
    }

    #[test]
    fn a_new_list_replaces_all_and_keeps_the_last_good_ones() {
        let mut index = synced([profile("proxy", 1, sidecar("proxy:1")), profile("gone", 1, sidecar("gone:1"))]);
        let before = revisions(&index.publish().unwrap());

        let relist = list([profile("proxy", 2, json!({"unknown": 1})), profile("new", 1, sidecar("new:1"))]);
        let broken = feed(&mut index, relist.into_iter().map(Update::Cluster));
        assert_eq!(broken.len(), 1);
        let after = revisions(&index.publish().unwrap());
        assert_eq!(after.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>(), ["new", "proxy"]);
        assert_eq!(after.last(), before.last(), "the last good proxy is at work");
    }

    #[test]
    fn a_list_that_is_cut_off_changes_nothing() {
        let mut index = synced([profile("proxy", 1, sidecar("proxy:1"))]);
        index.publish();
        let half = [Change::Restarted, Change::Listed(profile("new", 1, sidecar("new:1"))), Change::Restarted];
        feed(&mut index, half.into_iter().map(Update::Cluster));
        feed(&mut index, [Update::Namespace(Change::Restarted), Update::Namespace(Change::Listed(enabled("till")))]);
        assert!(index.publish().is_none());

        feed(&mut index, [Update::Cluster(Change::Listed(profile("other", 1, sidecar("other:1"))))]);
        feed(&mut index, [Update::Cluster(Change::ListComplete)]);
        assert_eq!(names(&index.publish().unwrap()), ["other"]);
    }

    #[test]
    fn a_list_that_brings_nothing_new_is_not_published() {
        let mut index = synced([profile("proxy", 1, sidecar("proxy:1"))]);
        index.publish();
        let same = list([profile("proxy", 1, sidecar("proxy:1"))]);
        feed(&mut index, same.into_iter().map(Update::Cluster));
        assert!(index.publish().is_none());
    }

    #[test]
    fn what_was_made_anew_does_not_inherit_the_last_good_one() {
        let mut index = synced([profile("proxy", 1, sidecar("proxy:1"))]);
        index.publish();
        let mut anew = profile("proxy", 1, json!({"unknown": 1}));
        anew.uid = "another".into();
        feed(&mut index, list([anew]).into_iter().map(Update::Cluster));
        assert!(names(&index.publish().unwrap()).is_empty());
    }
}
