//! What is known of the cluster: changes in, snapshots out.
//!
//! Nothing is published before all three first lists are complete: half a list would answer "no such profile" for one
//! that is there. Afterwards each watch stands by itself; one that is cut off leaves what it last knew.

use std::collections::BTreeSet;
use std::sync::Arc;

use pillion_engine::profile::{MAX_CHAIN, ProfileName, ProfileSet, Whole};
use pillion_engine::snapshot::{Namespace, Snapshot};

use crate::cache_metrics::Kind;
use crate::namespaces::{NamespaceChange, NamespaceIndex};
use crate::profiles::{Broken, ProfileChange, ProfileIndex, State, Updated};
use crate::served::{Fetched, PointerChange, RevisionKey, ServedIndex};

/// What one of the watches says, or came of fetching something.
#[derive(Clone, Debug)]
pub enum Update {
    /// About cluster profiles.
    Cluster(ProfileChange),
    /// About tenants' profiles.
    Namespaced(ProfileChange),
    /// About namespaces.
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

    #[test]
    fn what_was_accepted_before_is_the_last_good_text_of_what_is_broken_now() {
        let parent = |label: &str| {
            json!({"activation": "Never", "parameters": [{"name": "a", "type": "string", "default": label}],
                   "template": {"metadata": {"labels": {"a": "${params.a}"}}}})
        };
        let child = json!({"extends": {"name": "parent"}, "parameters": [{"name": "a", "default": "child"}]});
        // Whoever led before accepted all three.
        let mut before = synced([profile("parent", 1, parent("x")), profile("child", 1, child.clone())]);
        feed(&mut before, [Update::Cluster(Change::Applied(profile("proxy", 1, sidecar("proxy:1"))))]);
        let accepted = revisions(&before.publish().unwrap());

        let mut index = Index::default().keeping_texts();
        let texts = [("parent", parent("x")), ("child", child), ("proxy", sidecar("proxy:1"))];
        for (name, text) in texts {
            index.seed(ProfileName::cluster(name), format!("uid-of-{name}").into(), &text.to_string());
        }
        let broken = json!({"tmplate": {}});
        let now = ["parent", "child", "proxy"].map(|name| profile(name, 2, broken.clone()));
        let told = feed(&mut index, list(now).into_iter().map(Update::Cluster));
        assert_eq!(told.len(), 3, "{told:?}");
        feed(&mut index, list([]).into_iter().map(Update::Namespaced));
        feed(&mut index, list([enabled("shop")]).into_iter().map(Update::Namespace));
        assert_eq!(revisions(&index.publish().unwrap()), accepted);
        for (name, revision) in &accepted {
            let name = ProfileName::cluster(name.as_str());
            let state = index.state(&name).unwrap();
            assert!(state.broken && !state.due);
            assert_eq!(state.good.map(|good| good.revision()), Some(revision.as_str()));
            let (whole, _) = index.whole(&name).unwrap();
            assert_eq!(whole.revision().as_deref(), Some(revision.as_str()), "the text can be kept again");
        }
        // A list that is cut off after its first page begins anew, and what was accepted is still known.
        let mut index = Index::default().keeping_texts();
        index.seed(ProfileName::cluster("proxy"), "uid-of-proxy".into(), &sidecar("proxy:1").to_string());
        let page = [Change::Restarted, Change::Listed(profile("proxy", 2, broken.clone()))];
        feed(&mut index, page.map(Update::Cluster));
        feed(&mut index, list([profile("proxy", 2, broken.clone())]).into_iter().map(Update::Cluster));
        assert!(index.state(&ProfileName::cluster("proxy")).unwrap().good.is_some());
        // Once it is complete, it is known what is there: one that comes later is new.
        feed(&mut index, [Update::Cluster(Change::Deleted(ProfileName::cluster("proxy")))]);
        feed(&mut index, [Update::Cluster(Change::Applied(profile("proxy", 3, broken.clone())))]);
        assert!(index.state(&ProfileName::cluster("proxy")).unwrap().good.is_none());

        // One that was made anew has nothing in common with what was accepted.
        let mut index = Index::default().keeping_texts();
        index.seed(ProfileName::cluster("proxy"), "another".into(), &sidecar("proxy:1").to_string());
        feed(&mut index, list([profile("proxy", 2, broken)]).into_iter().map(Update::Cluster));
        assert!(index.state(&ProfileName::cluster("proxy")).unwrap().good.is_none());
    }
}
