//! Tests which snapshots the index publishes after changes.

mod extending;
mod revisions;
mod sharing;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use pillion_api::names::FailureMode;
use pillion_engine::snapshot::Namespace;
use serde_json::{Value, json};

use super::*;
use crate::guard::faults;
use crate::informer::objects::Change;
use crate::informer::objects::StoredProfile;

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
    (name.into(), Namespace::opted_in(FailureMode::Enabled))
}

fn list<K, T>(objects: impl IntoIterator<Item = T>) -> Vec<Change<K, T>> {
    let listed = objects.into_iter().map(Change::Listed);
    std::iter::once(Change::Restarted).chain(listed).chain([Change::ListComplete]).collect()
}

/// Applies the updates. Returns the newly broken profiles.
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
fn publishes_nothing_before_all_lists_are_complete() {
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
    assert!(index.publish().is_none(), "nothing has changed");
}

#[test]
fn publishes_an_empty_cluster() {
    let mut index = synced([]);
    assert!(index.publish().is_some());
}

#[test]
fn publishes_created_changed_and_deleted_objects() {
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
    assert_eq!(first.namespace_count(), 1, "published snapshots are immutable");

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
fn namespaced_and_cluster_profile_may_share_a_name() {
    let mut index = synced([profile("proxy", 1, sidecar("proxy:1"))]);
    let mut namespaced = profile("proxy", 1, sidecar("tenant:1"));
    namespaced.name.namespace = Some("shop".into());
    feed(&mut index, [Update::Namespaced(Change::Applied(namespaced))]);
    let mut names = names(&index.publish().unwrap());
    names.sort();
    assert_eq!(names, ["proxy", "shop/proxy"]);

    feed(&mut index, list([]).into_iter().map(Update::Cluster));
    assert_eq!(self::names(&index.publish().unwrap()), ["shop/proxy"], "the two kinds have separate lists");
}

#[test]
fn last_valid_version_stays_while_profile_is_broken() {
    let mut index = synced([profile("proxy", 1, sidecar("proxy:1"))]);
    let good = revisions(&index.publish().unwrap());

    let broken = feed(&mut index, [Update::Cluster(Change::Applied(profile("proxy", 2, json!({"tmplate": {}}))))]);
    let [broken] = broken.as_slice() else { panic!("not reported once: {broken:?}") };
    assert_eq!((broken.name.to_string().as_str(), broken.generation), ("proxy", Some(2)));
    assert_eq!(broken.serving.as_deref(), good.first().map(|(_, revision)| revision.as_str()));
    assert!(index.publish().is_none(), "the active version has not changed");
    assert_eq!((index.status().profiles, index.status().broken_profiles), (1, 1));

    feed(&mut index, [Update::Cluster(Change::Applied(profile("proxy", 3, sidecar("proxy:3"))))]);
    let repaired = revisions(&index.publish().unwrap());
    assert_ne!(repaired, good);
    assert_eq!(index.status().broken_profiles, 0);
}

#[test]
fn reports_broken_profile_once_per_generation() {
    let mut index = synced([profile("proxy", 1, sidecar("proxy:1"))]);
    let apply = |generation| Update::Cluster(Change::Applied(profile("proxy", generation, json!({"order": "first"}))));
    assert_eq!(feed(&mut index, [apply(2), apply(2)]).len(), 1);
    assert_eq!(feed(&mut index, [apply(3)]).len(), 1);
    let again = list([profile("proxy", 3, json!({"order": "first"}))]).into_iter().map(Update::Cluster);
    assert_eq!(feed(&mut index, again).len(), 0, "a new list does not report the same errors again");
    assert_eq!(index.status().broken_profiles, 1);
}

#[test]
fn unreadable_profile_error_names_the_field() {
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
fn broken_profile_does_not_stop_first_publication() {
    let broken = profile("broken", 1, json!({"unknown": 1}));
    let mut index = synced([broken, profile("proxy", 1, sidecar("proxy:1"))]);
    assert_eq!(names(&index.publish().unwrap()), ["proxy"]);
    assert_eq!(index.status().broken_profiles, 1);
}

#[test]
fn new_list_keeps_last_valid_versions() {
    let mut index = synced([profile("proxy", 1, sidecar("proxy:1")), profile("gone", 1, sidecar("gone:1"))]);
    let before = revisions(&index.publish().unwrap());

    let relist = list([profile("proxy", 2, json!({"unknown": 1})), profile("new", 1, sidecar("new:1"))]);
    let broken = feed(&mut index, relist.into_iter().map(Update::Cluster));
    assert_eq!(broken.len(), 1);
    let after = revisions(&index.publish().unwrap());
    assert_eq!(after.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>(), ["new", "proxy"]);
    assert_eq!(after.last(), before.last(), "the last valid version of proxy is active");
}

#[test]
fn unfinished_list_removes_no_profile() {
    let mut index = synced([profile("proxy", 1, sidecar("proxy:1"))]);
    index.publish();
    let half = [Change::Restarted, Change::Listed(profile("new", 1, sidecar("new:1"))), Change::Restarted];
    feed(&mut index, half.into_iter().map(Update::Cluster));
    feed(&mut index, [Update::Namespace(Change::Restarted), Update::Namespace(Change::Listed(enabled("till")))]);
    assert_eq!(names(&index.publish().unwrap()), ["new", "proxy"], "listed profiles are active at once");

    feed(&mut index, [Update::Cluster(Change::Listed(profile("other", 1, sidecar("other:1"))))]);
    feed(&mut index, [Update::Cluster(Change::ListComplete)]);
    assert_eq!(names(&index.publish().unwrap()), ["other"]);
}

#[test]
fn unchanged_list_publishes_nothing() {
    let mut index = synced([profile("proxy", 1, sidecar("proxy:1"))]);
    index.publish();
    let same = list([profile("proxy", 1, sidecar("proxy:1"))]);
    feed(&mut index, same.into_iter().map(Update::Cluster));
    assert!(index.publish().is_none());
}

#[test]
fn recreated_profile_has_no_last_valid_version() {
    let mut index = synced([profile("proxy", 1, sidecar("proxy:1"))]);
    index.publish();
    let mut recreated = profile("proxy", 1, json!({"unknown": 1}));
    recreated.uid = "another".into();
    feed(&mut index, list([recreated]).into_iter().map(Update::Cluster));
    assert!(names(&index.publish().unwrap()).is_empty());
}

#[test]
fn seed_is_last_valid_text_of_broken_profile() {
    let parent = |label: &str| {
        json!({"activation": "Never", "parameters": [{"name": "a", "type": "string", "default": label}],
               "template": {"metadata": {"labels": {"a": "${params.a}"}}}})
    };
    let child = json!({"extends": {"name": "parent"}, "parameters": [{"name": "a", "default": "child"}]});
    // An earlier leader accepted all three profiles.
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
    let reported = feed(&mut index, list(now).into_iter().map(Update::Cluster));
    assert_eq!(reported.len(), 3, "{reported:?}");
    feed(&mut index, list([]).into_iter().map(Update::Namespaced));
    feed(&mut index, list([enabled("shop")]).into_iter().map(Update::Namespace));
    assert_eq!(revisions(&index.publish().unwrap()), accepted);
    for (name, revision) in &accepted {
        let name = ProfileName::cluster(name.as_str());
        let state = index.state(&name).unwrap();
        assert!(state.broken && !state.due);
        assert_eq!(state.good.map(|good| good.revision()), Some(revision.as_str()));
        let (whole, _) = index.accepted_text(&name).unwrap();
        assert_eq!(whole.revision().as_deref(), Some(revision.as_str()), "the accepted text is kept");
    }
    // A list that is interrupted after its first page starts again. The index still has the specs that were accepted
    // earlier.
    let mut index = Index::default().keeping_texts();
    index.seed(ProfileName::cluster("proxy"), "uid-of-proxy".into(), &sidecar("proxy:1").to_string());
    let page = [Change::Restarted, Change::Listed(profile("proxy", 2, broken.clone()))];
    feed(&mut index, page.map(Update::Cluster));
    feed(&mut index, list([profile("proxy", 2, broken.clone())]).into_iter().map(Update::Cluster));
    assert!(index.state(&ProfileName::cluster("proxy")).unwrap().good.is_some());
    // Once the list is complete, a profile that appears is new.
    feed(&mut index, [Update::Cluster(Change::Deleted(ProfileName::cluster("proxy")))]);
    feed(&mut index, [Update::Cluster(Change::Applied(profile("proxy", 3, broken.clone())))]);
    assert!(index.state(&ProfileName::cluster("proxy")).unwrap().good.is_none());

    // A recreated profile does not use the accepted spec of the deleted one.
    let mut index = Index::default().keeping_texts();
    index.seed(ProfileName::cluster("proxy"), "another".into(), &sidecar("proxy:1").to_string());
    feed(&mut index, list([profile("proxy", 2, broken)]).into_iter().map(Update::Cluster));
    assert!(index.state(&ProfileName::cluster("proxy")).unwrap().good.is_none());
}

#[test]
fn panic_breaks_only_its_own_profile() {
    let mut index = synced([profile("proxy", 1, sidecar("proxy:1"))]);
    let before = revisions(&index.publish().unwrap());
    let fault = faults::at("proxy");
    let updates = [profile("proxy", 2, sidecar("proxy:2")), profile("other", 1, sidecar("other:1"))];
    let broken = feed(&mut index, updates.map(|stored| Update::Cluster(Change::Applied(stored))));
    drop(fault);
    let [broken] = broken.as_slice() else { panic!("{broken:?}") };
    assert_eq!((&*broken.name.name, broken.generation), ("proxy", Some(2)));
    assert_eq!(broken.serving.as_deref(), Some(&*before[0].1));
    assert!(broken.diagnostics[0].message.contains("a bug in Pillion"), "{broken:?}");
    let snapshot = index.publish().unwrap();
    assert_eq!(names(&snapshot), ["other", "proxy"]);
    assert!(revisions(&snapshot).contains(&before[0]));
    assert_eq!(index.status().broken_profiles, 1);

    // A later version of the profile compiles.
    feed(&mut index, [Update::Cluster(Change::Applied(profile("proxy", 3, sidecar("proxy:3"))))]);
    assert_eq!(index.status().broken_profiles, 0);
    assert!(!revisions(&index.publish().unwrap()).contains(&before[0]));
}
