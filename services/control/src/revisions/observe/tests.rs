//! Tests the store of profiles and revisions after watch events.

use serde_json::json;

use super::*;
use crate::guard::faults;
use crate::revisions::execute::decide;
use crate::revisions::plan::{ACCEPTED, Plan, PlanSettings};

fn planning() -> PlanSettings {
    PlanSettings { keep: 10, limits: RolloutLimits::default() }
}

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

fn store() -> RevisionStore {
    RevisionStore::new(Publisher::new(Arc::default()).0, share::Limits::default())
}

#[test]
fn revisions_belong_to_name_namespace_and_uid() {
    let mut store = store();
    for (namespace, name, owner) in [
        (None, "proxy-aa11", "1"),
        (None, "proxy-bb22", "another"),
        (None, "proxy-two-cc33", "2"),
        (None, "proxy-", "1"),
        (None, "proxy-two", "1"),
        (Some("shop"), "proxy-dd44", "1"),
    ] {
        store.update_revisions(Change::Applied(object(namespace, name, owner)), namespace.is_none());
    }
    let revisions = |store: &RevisionStore, name: &ProfileName, uid: &str| -> Vec<String> {
        store.existing(name, uid).created.keys().map(ToString::to_string).collect()
    };
    let name = ProfileName::cluster("proxy");
    assert_eq!(revisions(&store, &name, "1"), ["aa11"]);
    assert_eq!(revisions(&store, &ProfileName::cluster("proxy-two"), "2"), ["cc33"]);
    assert_eq!(revisions(&store, &ProfileName::namespaced("shop", "proxy"), "1"), ["dd44"]);

    // A new list of the revisions of cluster profiles does not change those of namespaced profiles.
    store.update_revisions(Change::Restarted, true);
    store.update_revisions(Change::Listed(object(None, "proxy-ee55", "1")), true);
    store.update_revisions(Change::ListComplete, true);
    assert_eq!(revisions(&store, &name, "1"), ["ee55"]);
    assert_eq!(revisions(&store, &ProfileName::namespaced("shop", "proxy"), "1"), ["dd44"]);
    store.remove_revision(&name, "ee55");
    assert!(revisions(&store, &name, "1").is_empty());
}

#[test]
fn label_marks_revision_bounded_by_parent() {
    let mut store = store();
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
    store.update_revisions(Change::Applied(object(None, "proxy-bb22", "1")), true);
    store.update_revisions(Change::Applied(bounded), true);
    let existing = store.existing(&ProfileName::cluster("proxy"), "1");
    assert_eq!(existing.created.len(), 2);
    assert_eq!(existing.bounded_by_parent, ["aa11".into()].into());
}

fn seen(uid: &str, generation: i64, label: &str) -> StoredProfile {
    let metadata = json!({"name": "proxy", "uid": uid, "generation": generation});
    let metadata: ObjectMeta = serde_json::from_value(metadata).unwrap();
    let spec = json!({"template": {"metadata": {"labels": {"a": label}}}});
    StoredProfile::new(metadata, spec)
}

/// Returns the status and the message of the planned condition `Accepted`.
fn accepted_condition(plan: &Plan) -> (&str, &str) {
    let conditions = &plan.status.as_ref().expect("a status").conditions;
    let found = conditions.iter().find(|condition| condition.type_ == ACCEPTED).expect("the condition");
    (found.status.as_str(), found.message.as_str())
}

#[test]
fn text_that_panics_is_rejected_with_reason() {
    let name = ProfileName::cluster("proxy");
    let mut store = store();
    for change in [Change::Restarted, Change::ListComplete] {
        store.update(Update::Cluster(change));
    }
    // The first generation panics while it is compiled, and the second one while its revision is built.
    for (generation, (before, meanwhile)) in (1..).zip([("proxy", ""), ("", "the revision of proxy")]) {
        let fault = faults::at(before);
        store.update(Update::Cluster(Change::Applied(seen("1", generation, "a"))));
        drop(fault);
        let profile = store.index().stored_profile(&name).unwrap().clone();
        let fault = faults::at(meanwhile);
        let (plan, revision) = decide(&mut store, &profile, planning()).expect("a plan for the broken spec");
        drop(fault);
        let (state, message) = accepted_condition(&plan);
        assert!(state == "False" && message.contains("a bug in Pillion"), "{generation}: {state} {message}");
        assert!(revision.is_none());
    }
    // A panic in the search for conflicts does not end the task either.
    let fault = faults::at("the conflicts of profiles");
    store.remove_stale();
    drop(fault);

    store.update(Update::Cluster(Change::Applied(seen("1", 3, "b"))));
    let profile = store.index().stored_profile(&name).unwrap().clone();
    let (plan, revision) = decide(&mut store, &profile, planning()).expect("a plan for the corrected spec");
    assert!(plan.create && revision.is_some());
}

#[test]
fn missing_revision_of_other_build_gets_own_hash() {
    let name = ProfileName::cluster("proxy");
    let (mut store, again) = (store(), seen("1", 1, "a"));
    // The other build wrote a field that this build omits.
    let text = json!({"parameters": [], "template": {"metadata": {"labels": {"a": "a"}}}}).to_string();
    let stored = json!({"profile": "proxy", "revision": "0000", "generation": 1, "bounds": "Platform", "text": text});
    let mut stored: RevisionSpec = serde_json::from_value(stored).unwrap();
    let diagnostics = ProfileSource::Revision(&stored).flatten(&name).unwrap_err();
    let hash = diagnostics[0].message.rsplit(' ').next().unwrap();
    stored.revision = hash.to_owned();
    store.accept(name.clone(), "1".into(), &stored);
    for change in [Change::Restarted, Change::Listed(again), Change::ListComplete] {
        store.update(Update::Cluster(change));
    }
    let accepted = |store: &RevisionStore| {
        let profile = store.index().stored_profile(&name)?;
        store.observe(profile, &store.existing(&name, "1"), 0)?.accepted.map(|accepted| accepted.revision)
    };
    assert_eq!(accepted(&store).as_deref(), Some(hash), "an existing revision keeps its name");
    let profile = store.index().stored_profile(&name).unwrap().clone();
    let (_, created) = decide(&mut store, &profile, planning()).expect("a plan for the missing revision");
    let created = created.expect("a revision to create");
    assert_ne!(created.revision, hash);
    assert!(ProfileSource::Revision(&created).flatten(&name).is_ok(), "replicas would reject it: {created:?}");
}

#[test]
fn written_status_does_not_replace_a_later_one() {
    let (mut store, name) = (store(), ProfileName::cluster("proxy"));
    store.update(Update::Cluster(Change::Applied(seen("1", 1, "a"))));
    let planned = store.index().stored_profile(&name).unwrap().clone();
    let version = |store: &RevisionStore| store.index().stored_profile(&name).unwrap().resource_version.clone();
    store.index_mut().set_status(&planned, Some("2".to_owned()), planned.status.clone());
    assert_eq!(version(&store).as_deref(), Some("2"));
    store.index_mut().set_status(&planned, Some("3".to_owned()), planned.status.clone());
    assert_eq!(version(&store).as_deref(), Some("2"), "an outdated status is ignored");

    // A revision that is deleted before its creation is reported does not count as existing.
    let created = ObjectMeta { name: Some("proxy-aa11".to_owned()), ..ObjectMeta::default() };
    let exists = |store: &RevisionStore| !store.existing(&name, "").created.is_empty();
    store.start_writes();
    store.update_revisions(Change::Deleted(RevisionObject::new(created.clone())), true);
    store.add_created(created.clone());
    assert!(!exists(&store));
    store.start_writes();
    store.add_created(created);
    assert!(exists(&store));
}

#[test]
fn counts_namespaces_that_selector_matches() {
    let mut store = store();
    let namespaces = [
        ("shop", "red", "enabled"),
        ("bank", "red", "required"),
        ("news", "blue", "enabled"),
        ("lab", "red", "unknown"),
        ("kube-system", "red", "enabled"),
    ];
    let listed = namespaces.map(|(name, team, mode)| {
        let labels =
            [("team", team), ("pillion.dev/injection", mode), ("tier", if name == "bank" { "1" } else { "2" })];
        Change::Listed((name.into(), Namespace::new(labels, [])))
    });
    for change in [Change::Restarted].into_iter().chain(listed).chain([Change::ListComplete]) {
        store.update(Update::Namespace(change));
    }
    let exists = json!([{"key": "team", "operator": "Exists"}]);
    let not_first = json!([{"key": "tier", "operator": "NotIn", "values": ["1"]}]);
    for (index, (selector, expected)) in [
        (json!(null), 3),
        (json!({"matchLabels": {"team": "red"}}), 2),
        (json!({"matchLabels": {"team": "red", "tier": "1"}}), 1),
        (json!({"matchLabels": {"team": "red"}, "matchExpressions": not_first}), 1),
        (json!({"matchLabels": {"team": "green"}}), 0),
        (json!({"matchLabels": {"other": "red"}}), 0),
        (json!({"matchExpressions": exists}), 3),
    ]
    .into_iter()
    .enumerate()
    {
        let metadata = json!({"name": format!("proxy-{index}"), "uid": "1", "generation": 1});
        let spec = json!({"namespaceSelector": selector, "template": {"metadata": {"labels": {"a": "b"}}}});
        let profile = StoredProfile::new(serde_json::from_value(metadata).unwrap(), spec);
        let name = profile.name.clone();
        store.update(Update::Cluster(Change::Applied(profile)));
        assert_eq!(store.count(&name), expected, "{selector}");
    }
    for (namespace, expected) in [("shop", 1), ("lab", 0), ("unknown", 0)] {
        let metadata = json!({"namespace": namespace, "name": "own", "uid": "1", "generation": 1});
        let spec = json!({"template": {"metadata": {"labels": {"a": "b"}}}});
        let profile = StoredProfile::new(serde_json::from_value(metadata).unwrap(), spec);
        let name = profile.name.clone();
        store.update(Update::Namespaced(Change::Applied(profile)));
        assert_eq!(store.count(&name), expected, "{namespace}");
    }
}
