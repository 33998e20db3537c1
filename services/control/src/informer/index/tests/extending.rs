//! Tests profiles that extend others when parents and children are created, changed and deleted.

use super::*;

fn namespaced(name: &str, generation: i64, spec: Value) -> StoredProfile {
    let mut stored = profile(name, generation, spec);
    stored.name.namespace = Some("shop".into());
    stored
}

fn child(parent: &str) -> Value {
    json!({"extends": {"name": parent}, "order": 7})
}

fn apply(index: &mut Index, stored: StoredProfile) -> Vec<Broken> {
    let update = if stored.name.namespace.is_some() { Update::Namespaced } else { Update::Cluster };
    feed(index, [update(Change::Applied(stored))])
}

fn revision(snapshot: &Snapshot, name: &str) -> String {
    let mut all = revisions(snapshot).into_iter();
    all.find(|(other, _)| other == name).map(|(_, revision)| revision).unwrap()
}

#[test]
fn children_compile_in_any_order_of_arrival() {
    let mut index = Index::default();
    let early = list([namespaced("own", 1, child("middle"))]).into_iter().map(Update::Namespaced);
    assert_eq!(feed(&mut index, early).len(), 0);
    let all = [
        profile("a-child", 1, child("middle")),
        profile("middle", 1, child("proxy")),
        profile("proxy", 1, sidecar("proxy:1")),
    ];
    assert_eq!(feed(&mut index, list(all).into_iter().map(Update::Cluster)).len(), 0);
    feed(&mut index, list([]).into_iter().map(Update::Namespace));
    assert_eq!(names(&index.publish().unwrap()), ["a-child", "middle", "proxy", "shop/own"]);
    assert_eq!(index.status().broken_profiles, 0);
}

#[test]
fn change_of_parent_reaches_all_its_children() {
    let mut index = synced([
        profile("proxy", 1, sidecar("proxy:1")),
        profile("other", 1, sidecar("other:1")),
        profile("middle", 1, child("proxy")),
        profile("last", 1, child("middle")),
    ]);
    apply(&mut index, namespaced("own", 1, child("last")));
    apply(&mut index, namespaced("apart", 1, child("other")));
    let before = index.publish().unwrap();

    assert_eq!(apply(&mut index, profile("proxy", 2, sidecar("proxy:2"))).len(), 0);
    let after = index.publish().unwrap();
    for name in ["proxy", "middle", "last", "shop/own"] {
        assert_ne!(revision(&before, name), revision(&after, name), "{name}");
    }
    for name in ["other", "shop/apart"] {
        assert_eq!(revision(&before, name), revision(&after, name), "{name}");
    }

    // If a change of the parent does not affect the children, only the parent has a new revision.
    let described = json!({"description": "new", "template": sidecar("proxy:2")["template"]});
    apply(&mut index, profile("proxy", 3, described));
    let described = index.publish().unwrap();
    assert_ne!(revision(&described, "proxy"), revision(&after, "proxy"));
    assert_eq!(revision(&described, "shop/own"), revision(&after, "shop/own"));
    assert!(index.publish().is_none());
}

#[test]
fn children_stay_active_without_valid_parent() {
    let mut index = synced([profile("proxy", 1, sidecar("proxy:1")), profile("middle", 1, child("proxy"))]);
    apply(&mut index, namespaced("own", 1, child("middle")));
    let before = revisions(&index.publish().unwrap());

    assert_eq!(apply(&mut index, profile("proxy", 2, json!({"unknown": 1}))).len(), 1, "only the parent is broken");
    assert!(index.publish().is_none());
    // A changed child is compiled with the last accepted spec of its parent.
    let changed = json!({"extends": {"name": "middle"}, "failurePolicy": "Ignore"});
    assert_eq!(apply(&mut index, namespaced("own", 2, changed)).len(), 0);
    assert_eq!(revisions(&index.publish().unwrap()).len(), 3);

    let gone = Update::Cluster(Change::Deleted(profile("proxy", 2, Value::Null).name));
    let broken = feed(&mut index, [gone]);
    let reported: Vec<_> = broken.iter().map(|broken| (broken.name.to_string(), broken.serving.is_some())).collect();
    assert_eq!(reported, [("middle".to_owned(), true), ("shop/own".to_owned(), true)]);
    assert_eq!(names(&index.publish().unwrap()), ["middle", "shop/own"]);
    assert_eq!(index.status().broken_profiles, 2);

    assert_eq!(apply(&mut index, profile("proxy", 1, sidecar("proxy:1"))).len(), 0);
    let repaired = index.publish().unwrap();
    assert_eq!(revision(&repaired, "middle"), before[0].1);
    assert_eq!(index.status().broken_profiles, 0);
}

#[test]
fn child_without_parent_is_reported_once() {
    let mut index = synced([]);
    index.publish();
    let broken = apply(&mut index, profile("last", 1, child("middle")));
    assert!(broken[0].diagnostics[0].message.contains("there is no cluster profile \"middle\""), "{broken:?}");
    assert_eq!(
        apply(&mut index, profile("middle", 1, child("proxy"))).len(),
        1,
        "the profile last was already reported"
    );
    assert!(index.publish().is_none());
    assert_eq!(apply(&mut index, profile("proxy", 1, sidecar("proxy:1"))).len(), 0);
    assert_eq!(names(&index.publish().unwrap()), ["last", "middle", "proxy"]);

    // A correction of the parent also corrects the profile that extends it.
    assert_eq!(
        apply(
            &mut index,
            profile(
                "fresh",
                1,
                json!({"extends": {"name": "proxy"}, "order": 1, "matchConditions": [{"name": "c", "expression": "("}]})
            )
        )
        .len(),
        1
    );
    assert_eq!(apply(&mut index, profile("on-fresh", 1, child("fresh"))).len(), 1);
    assert_eq!(apply(&mut index, profile("fresh", 2, child("proxy"))).len(), 0);
    assert_eq!(names(&index.publish().unwrap()).len(), 5);
}

#[test]
fn profiles_extending_one_another_are_broken() {
    let mut index = Index::default();
    let all = [profile("one", 1, child("two")), profile("two", 1, child("one"))];
    let broken = feed(&mut index, list(all).into_iter().map(Update::Cluster));
    assert_eq!(broken.len(), 2);
    for broken in broken {
        let message = &broken.diagnostics[0].message;
        assert!(message.contains("cannot extend itself"), "{message}");
    }
}

#[test]
fn unchanged_list_does_not_recompile_children() {
    let all = || [profile("proxy", 1, sidecar("proxy:1")), profile("middle", 1, child("proxy"))];
    let mut index = synced(all());
    index.publish();
    feed(&mut index, list(all()).into_iter().map(Update::Cluster));
    assert!(index.publish().is_none());
    // An interrupted watch may continue without a new list.
    feed(&mut index, [Update::Cluster(Change::Restarted)]);
    apply(&mut index, profile("other", 1, child("proxy")));
    assert_eq!(names(&index.publish().unwrap()), ["middle", "other", "proxy"]);
    let changed = [profile("proxy", 2, sidecar("proxy:2")), profile("middle", 1, child("proxy"))];
    feed(&mut index, list(changed).into_iter().map(Update::Cluster));
    assert_eq!(names(&index.publish().unwrap()), ["middle", "proxy"]);
    assert_eq!(index.status().broken_profiles, 0);
}

#[test]
fn profile_bounded_by_parent_loses_withdrawn_permission() {
    let parameter = |sources: Value| {
        let mut text = sidecar("proxy:2");
        text["parameters"] =
            json!([{"name": "a", "type": "integer", "maximum": 5, "annotation": "x/a", "sources": sources}]);
        text
    };
    let set = |value: i32| json!({"extends": {"name": "proxy"}, "parameters": [{"name": "a", "default": value}]});
    let active = |index: &mut Index| names(&index.publish().unwrap());

    let mut index = synced([profile("proxy", 1, parameter(json!(["Namespace"])))]);
    apply(&mut index, namespaced("own", 1, set(3)));
    let first = revision(&index.publish().unwrap(), "shop/own");

    // After an error in the profile itself, its last valid spec remains active. A change of the parent still applies to
    // it.
    assert_eq!(apply(&mut index, namespaced("own", 2, set(9))).len(), 1);
    assert!(index.publish().is_none());
    let mut described = parameter(json!(["Namespace"]));
    described["order"] = json!(3);
    apply(&mut index, profile("proxy", 2, described.clone()));
    let second = revision(&index.publish().unwrap(), "shop/own");
    assert_ne!(first, second);
    assert_eq!(apply(&mut index, namespaced("own", 3, json!({"unknown": 1}))).len(), 1);
    described["order"] = json!(4);
    apply(&mut index, profile("proxy", 3, described));
    assert_ne!(revision(&index.publish().unwrap(), "shop/own"), second);
    assert_eq!(index.status().broken_profiles, 1);

    // A profile that its parent no longer permits becomes inactive, until the parent permits it again.
    apply(&mut index, profile("proxy", 4, parameter(json!(["Pod"]))));
    assert_eq!(active(&mut index), ["proxy"]);
    apply(&mut index, profile("proxy", 5, parameter(json!(["Namespace"]))));
    assert_eq!(active(&mut index), ["proxy", "shop/own"]);
    feed(&mut index, [Update::Cluster(Change::Deleted(profile("proxy", 5, Value::Null).name))]);
    assert!(active(&mut index).is_empty());
}

#[test]
fn panic_over_a_child_affects_no_other_profile() {
    let mut index = synced([
        profile("proxy", 1, sidecar("proxy:1")),
        profile("bad", 1, child("proxy")),
        profile("good", 1, child("proxy")),
    ]);
    let before = index.publish().unwrap();
    let fault = faults::at("bad");
    let broken = apply(&mut index, profile("proxy", 2, sidecar("proxy:2")));
    drop(fault);
    let [broken] = broken.as_slice() else { panic!("{broken:?}") };
    assert_eq!(&*broken.name.name, "bad");
    assert!(broken.diagnostics[0].message.contains("a bug in Pillion"), "{broken:?}");
    let after = index.publish().unwrap();
    assert_eq!(revision(&before, "bad"), revision(&after, "bad"), "the last valid version remains active");
    for name in ["proxy", "good"] {
        assert_ne!(revision(&before, name), revision(&after, name), "{name}");
    }
}
