//! Tests the store of profiles and revisions after watch events.

use serde_json::json;

use super::*;
use crate::guard::faults;
use crate::revisions::execute::decide;
use crate::revisions::plan::{ACCEPTED, Plan};

fn object(namespace: Option<&str>, name: &str, owner: &str) -> RevisionObject {
    let metadata = json!({
        "namespace": namespace, "name": name, "creationTimestamp": "2026-01-01T00:00:00Z",
        "ownerReferences": [
            {"apiVersion": "argoproj.io/v1alpha1", "kind": "Application", "name": "n", "uid": "somebody"},
            {"apiVersion": "pillion.dev/v1alpha1", "kind": "ClusterInjectionProfile", "name": "n", "uid": owner},
        ],
    });
    RevisionObject::new(serde_json::from_value(metadata).unwrap())
}

#[test]
fn a_profiles_revisions_are_those_of_its_name_its_namespace_and_its_uid() {
    let mut store = RevisionStore::new(share::Limits::default());
    for (namespace, name, owner) in [
        (None, "proxy-aa11", "1"),
        (None, "proxy-bb22", "another"),
        (None, "proxy-two-cc33", "2"),
        (None, "proxy-", "1"),
        (None, "proxy-two", "1"),
        (Some("shop"), "proxy-dd44", "1"),
    ] {
        store.take(Seen::Revision(Change::Applied(object(namespace, name, owner)), namespace.is_none()));
    }
    let revisions = |store: &RevisionStore, name: &ProfileName, uid: &str| -> Vec<String> {
        store.existing(name, uid).made.keys().map(ToString::to_string).collect()
    };
    let name = ProfileName::cluster("proxy");
    assert_eq!(revisions(&store, &name, "1"), ["aa11"]);
    assert_eq!(revisions(&store, &ProfileName::cluster("proxy-two"), "2"), ["cc33"]);
    assert_eq!(revisions(&store, &ProfileName::namespaced("shop", "proxy"), "1"), ["dd44"]);

    // A new list of one scope does not change the other.
    store.take(Seen::Revision(Change::Restarted, true));
    store.take(Seen::Revision(Change::Listed(object(None, "proxy-ee55", "1")), true));
    store.take(Seen::Revision(Change::ListComplete, true));
    assert_eq!(revisions(&store, &name, "1"), ["ee55"]);
    assert_eq!(revisions(&store, &ProfileName::namespaced("shop", "proxy"), "1"), ["dd44"]);
    store.unmade(&name, "ee55");
    assert!(revisions(&store, &name, "1").is_empty());
}

#[test]
fn a_revision_that_a_parent_bounds_is_known_by_its_label() {
    let mut store = RevisionStore::new(share::Limits::default());
    let mut bounded = object(None, "proxy-aa11", "1");
    for bounds in [None, Some("Tenant"), Some(BOUNDED_BY_PARENT)] {
        let metadata = json!({
            "name": "proxy-aa11", "labels": bounds.map(|bounds| json!({BOUNDS_LABEL: bounds})),
            "ownerReferences": [
                {"apiVersion": "pillion.dev/v1alpha1", "kind": "InjectionProfile", "name": "n", "uid": "1"},
            ],
        });
        bounded = RevisionObject::new(serde_json::from_value(metadata).unwrap());
        assert_eq!(bounded.bounded_by_parent, bounds == Some(BOUNDED_BY_PARENT), "{bounds:?}");
    }
    store.take(Seen::Revision(Change::Applied(object(None, "proxy-bb22", "1")), true));
    store.take(Seen::Revision(Change::Applied(bounded), true));
    let existing = store.existing(&ProfileName::cluster("proxy"), "1");
    assert_eq!(existing.made.len(), 2);
    assert_eq!(existing.bounded_by_parent, ["aa11".into()].into());
}

fn seen(uid: &str, generation: i64, label: &str) -> Box<(Profile, StoredProfile)> {
    let metadata = json!({"name": "proxy", "uid": uid, "generation": generation});
    let metadata: ObjectMeta = serde_json::from_value(metadata).unwrap();
    let profile = Profile::new(&metadata, ProfileStatus::default());
    let spec = json!({"template": {"metadata": {"labels": {"a": label}}}});
    Box::new((profile, StoredProfile::new(metadata, spec)))
}

#[test]
fn between_the_pages_of_a_list_nothing_is_said_of_what_was_seen_anew() {
    let name = ProfileName::cluster("proxy");
    let take = |store: &mut RevisionStore, change| store.take(Seen::Profile(change, true));
    let accepted = |store: &RevisionStore| {
        let (profile, existing) = (&store.profiles[&name], Existing::default());
        store.observe(&name, profile, &existing, 0).map(|observed| observed.accepted.unwrap().revision)
    };
    for (uid, generation) in [("1", 2), ("2", 1)] {
        let mut store = RevisionStore::new(share::Limits::default());
        take(&mut store, Change::Restarted);
        take(&mut store, Change::Listed(seen("1", 1, "old")));
        take(&mut store, Change::ListComplete);
        let before = accepted(&store).expect("it is known");
        take(&mut store, Change::Restarted);
        take(&mut store, Change::Listed(seen(uid, generation, "new")));
        assert_eq!(accepted(&store), None, "the new one is not compiled: {uid} {generation}");
        take(&mut store, Change::ListComplete);
        assert!(accepted(&store).is_some_and(|after| after != before));
    }
}

/// Whether the planned status accepts the text: status and reason.
fn told(plan: &Plan) -> (&str, &str) {
    let conditions = &plan.status.as_ref().expect("a status").conditions;
    let found = conditions.iter().find(|condition| condition.type_ == ACCEPTED).expect("the condition");
    (found.status.as_str(), found.message.as_str())
}

#[test]
fn a_text_over_which_the_engine_panics_is_not_accepted_and_says_whose_fault_it_is() {
    let name = ProfileName::cluster("proxy");
    let mut store = RevisionStore::new(share::Limits::default());
    for change in [Change::Restarted, Change::ListComplete] {
        store.take(Seen::Profile(change, true));
    }
    // Panics while it is compiled, and while its revision is built.
    for (generation, (before, meanwhile)) in (1..).zip([("proxy", ""), ("", "the revision of proxy")]) {
        let fault = faults::at(before);
        store.take(Seen::Profile(Change::Applied(seen("1", generation, "a")), true));
        drop(fault);
        let profile = store.profiles[&name].clone();
        let fault = faults::at(meanwhile);
        let (plan, revision) = decide(&mut store, &name, &profile, 10).expect("there is something to be told");
        drop(fault);
        let (state, message) = told(&plan);
        assert!(state == "False" && message.contains("a fault of Pillion's"), "{generation}: {state} {message}");
        assert!(revision.is_none());
    }
    // A panic in the search for conflicts does not end the task either.
    let fault = faults::at("the conflicts of profiles");
    store.tidy();
    drop(fault);

    store.take(Seen::Profile(Change::Applied(seen("1", 3, "b")), true));
    let profile = store.profiles[&name].clone();
    let (plan, revision) = decide(&mut store, &name, &profile, 10).expect("a revision is to be made");
    assert!(plan.create && revision.is_some());
}

#[test]
fn revision_that_another_build_wrote_is_made_again_under_the_hash_of_this_build() {
    let name = ProfileName::cluster("proxy");
    let (mut store, again) = (RevisionStore::new(share::Limits::default()), seen("1", 1, "a"));
    // The other build wrote a field that this one omits.
    let text = json!({"parameters": [], "template": {"metadata": {"labels": {"a": "a"}}}}).to_string();
    let stored = json!({"profile": "proxy", "revision": "0000", "generation": 1, "bounds": "Platform", "text": text});
    let mut stored: RevisionSpec = serde_json::from_value(stored).unwrap();
    let fault = FlattenedProfile::from_revision(&name, &stored).unwrap_err();
    let hash = fault.message.rsplit(' ').next().unwrap();
    stored.revision = hash.to_owned();
    store.accept(name.clone(), "1".into(), &stored);
    for change in [Change::Restarted, Change::Listed(again), Change::ListComplete] {
        store.take(Seen::Profile(change, true));
    }
    let accepted = |store: &RevisionStore| {
        let profile = &store.profiles[&name];
        store.observe(&name, profile, &store.existing(&name, "1"), 0)?.accepted.map(|accepted| accepted.revision)
    };
    assert_eq!(accepted(&store).as_deref(), Some(hash), "while it is there it keeps its name");
    let profile = store.profiles[&name].clone();
    let (_, made) = decide(&mut store, &name, &profile, 10).expect("it is gone");
    let made = made.expect("a revision is to be made");
    assert_ne!(made.revision, hash);
    assert!(FlattenedProfile::from_revision(&name, &made).is_ok(), "replicas would refuse it: {made:?}");
}
