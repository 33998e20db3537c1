use pillion_api::ProfileSpec;
use pillion_api::names::FailureMode;
use serde_json::{Value as Json, json};

use super::*;
use crate::decision::Outcome;
use crate::json::OwnedTape;
use crate::lookup::LookedUp;
use crate::profile::{FlattenedProfile, NoParents, Parent, Parents, ProfileSource};
use crate::review::{Endpoint, Facts, RecordTrust, Review};
use crate::snapshot::{ProfileSet, Served, Snapshot, Stage};

/// Test parents: returns the same spec for every name.
struct SingleParent(ProfileSpec);

impl Parents for SingleParent {
    fn parent(&self, _: &str) -> Parent<'_> {
        Parent::Accepted(Cow::Borrowed(&self.0))
    }

    fn names(&self) -> Vec<&str> {
        Vec::new()
    }
}

fn whole(name: &ProfileName, more: &Json) -> FlattenedProfile {
    let mut spec = json!({"activation": "Always"});
    spec.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    ProfileSource::Author(&serde_json::from_value(spec).unwrap(), &NoParents).flatten(name).unwrap()
}

fn labelled(label: &str) -> Json {
    json!({"template": {"metadata": {"labels": {"text": label}}}})
}

fn profile(name: &ProfileName, more: &Json) -> Arc<CompiledProfile> {
    Arc::new(whole(name, more).compile(name).unwrap())
}

/// Returns a profile with a rollout of the revision `new` to a share of the workloads, and its three stored revisions.
fn staged(name: &ProfileName, percent: u8, more: &Json) -> (Served, [Arc<CompiledProfile>; 3]) {
    let with = |label: &str| {
        let mut spec = labelled(label);
        spec.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        profile(name, &spec)
    };
    let [new, promoted, old] = ["new", "promoted", "old"].map(with);
    let kept = [&new, &promoted, &old].iter().map(|profile| profile.revision().into()).collect();
    let stage = Stage { promoted: Some(Arc::clone(&promoted)), percent, namespaces: None };
    (Served { profile: Arc::clone(&new), stage: Some(stage), kept }, [new, promoted, old])
}

fn snapshot(served: impl IntoIterator<Item = Served>) -> Snapshot {
    Snapshot::new(ProfileSet::serving(&ProfileSet::default(), served))
}

fn pod(name: &str, annotations: &Json) -> Json {
    json!({
        "metadata": {"name": name, "annotations": annotations, "managedFields": [{"fieldsV1": {}}]},
        "spec": {"containers": [{"name": "app", "image": "app:1"}]},
    })
}

/// The result of a request: the injected label, the patched pod, the warnings, the lookups that the decision needs, and
/// the outcome.
struct Got {
    label: Option<String>,
    object: Json,
    warnings: Vec<String>,
    wanted: Vec<Query>,
    outcome: Outcome,
}

fn inject(snapshot: &Snapshot, object: &Json, failure_mode: FailureMode, looked_up: LookedUp) -> Got {
    let body = json!({
        "apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview",
        "request": {
            "uid": "1", "kind": {"group": "", "version": "v1", "kind": "Pod"},
            "resource": {"group": "", "version": "v1", "resource": "pods"},
            "namespace": "shop", "operation": "CREATE", "object": object,
        },
    })
    .to_string();
    let review = Review::parse(body.as_bytes()).unwrap();
    let facts = Facts { looked_up, record_trust: RecordTrust::ManagedFields, ..Facts::default() };
    let wanted = review.needs(Endpoint::FailureMode(failure_mode), snapshot, &facts).objects;
    let decided = review.decide(Endpoint::FailureMode(failure_mode), snapshot, &facts).unwrap();
    let mut object = object.clone();
    if let Some(patch) = &decided.patch {
        let patch: json_patch::Patch = serde_json::from_slice(patch).unwrap();
        json_patch::patch(&mut object, &patch).unwrap();
    }
    Got {
        label: object["metadata"]["labels"]["text"].as_str().map(str::to_owned),
        warnings: decided.decision.notices.iter().map(ToString::to_string).collect(),
        outcome: decided.decision.outcome,
        object,
        wanted,
    }
}

fn label(snapshot: &Snapshot, object: &Json) -> Option<String> {
    inject(snapshot, object, FailureMode::Enabled, LookedUp::default()).label
}

fn of_replica_set(workload: &str, hash: &str) -> Json {
    let mut object = pod("", &json!({}));
    object["metadata"]["generateName"] = json!(format!("{workload}-{hash}-"));
    object["metadata"]["labels"] = json!({"pod-template-hash": hash});
    object["metadata"]["ownerReferences"] = json!([{
        "apiVersion": "apps/v1", "kind": "ReplicaSet", "name": format!("{workload}-{hash}"), "controller": true, "uid": "u",
    }]);
    object
}

#[test]
fn larger_share_keeps_all_workloads() {
    let workloads: Vec<_> = (0..10_000).map(|number| format!("workload-{number}")).collect();
    let among = |percent, profile: &str| -> Vec<&String> {
        workloads.iter().filter(|name| is_among(percent, profile, "shop", name)).collect()
    };
    let mut before: Vec<&String> = Vec::new();
    for percent in [0, 1, 10, 25, 50, 90, 99, 100] {
        let now = among(percent, "proxy");
        let found = f64::from(u32::try_from(now.len()).unwrap()) / 100.0;
        assert!((found - f64::from(percent)).abs() <= 2.0, "{found} % instead of {percent} %");
        assert!(before.iter().all(|name| now.contains(name)), "{percent}");
        before = now;
    }
    assert_eq!((among(0, "proxy").len(), among(100, "proxy").len()), (0, 10_000));
    // The rollouts of different profiles select workloads independently: two shares of 10 % have about 1 % in common.
    let (proxy, logger) = (among(10, "proxy"), among(10, "logger"));
    let both = proxy.iter().filter(|name| logger.contains(name)).count();
    assert!((50..200).contains(&both), "{both}");
    let elsewhere = workloads.iter().filter(|name| is_among(10, "proxy", "till", name));
    let both = elsewhere.filter(|name| proxy.contains(name)).count();
    assert!((50..200).contains(&both), "{both}");
}

#[test]
fn pods_of_one_workload_get_one_revision() {
    let name = ProfileName::cluster("proxy");
    let (served, _) = staged(&name, 50, &json!({}));
    let snapshot = snapshot([served]);
    let mut seen = std::collections::BTreeMap::<String, usize>::new();
    for number in 0..100 {
        let workload = format!("w{number}");
        let first = label(&snapshot, &of_replica_set(&workload, "7c9d6f5b8")).unwrap();
        let next = label(&snapshot, &of_replica_set(&workload, "5d4f8c7b9")).unwrap();
        assert_eq!(first, next, "a new ReplicaSet is the same workload");
        *seen.entry(first).or_default() += 1;
    }
    assert_eq!(seen.keys().map(String::as_str).collect::<Vec<_>>(), ["new", "promoted"]);
    assert!(seen["new"] > 30 && seen["promoted"] > 30, "{seen:?}");
}

#[test]
fn unpromoted_profile_is_known_outside_its_share() {
    let name = ProfileName::cluster("proxy");
    let (mut served, _) = staged(&name, 0, &json!({"activation": "Requested"}));
    served.stage.as_mut().unwrap().promoted = None;
    let snapshot = snapshot([served]);
    let asking = pod("web", &json!({"pillion.dev/profiles": "proxy"}));
    let got = inject(&snapshot, &asking, FailureMode::Required, LookedUp::default());
    assert_eq!((got.label, got.outcome, got.warnings), (None, Outcome::Skipped, Vec::new()));
}

#[test]
fn each_revision_has_its_own_request_keys() {
    // The newest revision has a different request key. Workloads with the promoted revision still use the old key.
    let name = ProfileName::cluster("proxy");
    let text = |key: &str, label: &str| {
        let mut spec = labelled(label);
        spec["activation"] = json!("Requested");
        spec["requestedBy"] = json!({"annotation": key});
        profile(&name, &spec)
    };
    let served = |percent| {
        let stage = Stage { promoted: Some(text("old/key", "promoted")), percent, namespaces: None };
        snapshot([Served { profile: text("new/key", "new"), stage: Some(stage), kept: Arc::default() }])
    };
    for (percent, key, expected) in
        [(0, "old/key", Some("promoted")), (0, "new/key", None), (100, "new/key", Some("new")), (100, "old/key", None)]
    {
        let got = label(&served(percent), &pod("web", &json!({key: "true"})));
        assert_eq!(got.as_deref(), expected, "{percent} {key}");
    }
}

#[test]
fn rollout_may_select_namespaces() {
    let name = ProfileName::cluster("proxy");
    let (mut served, _) = staged(&name, 100, &json!({}));
    let selector = serde_json::from_value(json!({"matchLabels": {"canary": "yes"}})).unwrap();
    served.stage.as_mut().unwrap().namespaces = Some(selector);
    let snapshot = snapshot([served]);
    assert_eq!(label(&snapshot, &pod("web", &json!({}))).as_deref(), Some("promoted"));
}

#[test]
fn pin_matches_prefix_of_revision() {
    let name = ProfileName::cluster("proxy");
    let (served, [new, promoted, old]) = staged(&name, 0, &json!({"activation": "Requested"}));
    let snapshot = snapshot([served]);
    let asked = |word: &str, failure_mode| {
        let object = pod("web", &json!({"pillion.dev/profiles": word}));
        let first = inject(&snapshot, &object, failure_mode, LookedUp::default());
        let found = first.wanted.iter().map(|query| {
            let mut kept = labelled("old");
            kept["activation"] = json!("Requested");
            let kept = whole(&name, &kept).to_revision(&name, None, None).unwrap();
            let object = json!({"spec": kept});
            (query.clone(), Answer::Found(Arc::new(OwnedTape::parse(object.to_string()).unwrap())))
        });
        let looked_up = LookedUp { objects: found.collect(), ..LookedUp::default() };
        (first.wanted, inject(&snapshot, &object, failure_mode, looked_up))
    };
    let digits = |profile: &CompiledProfile| profile.revision()[..6].to_owned();
    // Active revisions need no lookup.
    for (pinned, expected) in [(&new, "new"), (&promoted, "promoted")] {
        let (wanted, got) = asked(&format!("proxy@{}", digits(pinned)), FailureMode::Enabled);
        assert_eq!((wanted.len(), got.label.as_deref(), got.warnings.len()), (0, Some(expected), 0));
    }
    let (wanted, got) = asked(&format!("proxy@{}", digits(&old)), FailureMode::Enabled);
    let [query] = wanted.as_slice() else { panic!("{wanted:?}") };
    assert_eq!(query.which, ObjectSelection::Named(format!("proxy-{}", old.revision()).into()));
    assert_eq!(got.label.as_deref(), Some("old"));
    assert!(got.object["metadata"]["annotations"]["pillion.dev/injected"].as_str().unwrap().contains(old.revision()));

    let (wanted, got) = asked("proxy@xyz", FailureMode::Enabled);
    assert_eq!((wanted.len(), got.label), (0, None));
    assert!(got.warnings[0].contains("proxy@xyz"), "{:?}", got.warnings);
    assert_eq!(asked("proxy@xyz", FailureMode::Required).1.outcome, Outcome::Denied);
    assert_eq!(asked("proxy@", FailureMode::Required).1.outcome, Outcome::Denied);
    let (_, got) = asked(&format!("-proxy@{}", digits(&old)), FailureMode::Required);
    assert_eq!((got.label, got.outcome), (None, Outcome::Skipped), "the profile is dropped despite the pin");
}

#[test]
fn only_last_pin_of_profile_is_fetched() {
    let name = ProfileName::cluster("proxy");
    let (mut served, _) = staged(&name, 0, &json!({}));
    let kept: Vec<String> = (0..8).map(|number| format!("f{number}0000000")).collect();
    served.kept = kept.iter().map(|revision| Box::from(revision.as_str())).collect();
    let words: Vec<_> = kept.iter().map(|revision| format!("proxy@{revision}")).collect();
    let object = pod("web", &json!({"pillion.dev/profiles": words.join(",")}));
    let got = inject(&snapshot([served]), &object, FailureMode::Enabled, LookedUp::default());
    let wanted: Vec<_> = got.wanted.iter().map(|query| query.which.clone()).collect();
    assert_eq!(wanted, [ObjectSelection::Named(format!("proxy-{}", kept[7]).into())]);
}

#[test]
fn forbidden_opt_out_cannot_be_pinned() {
    let name = ProfileName::cluster("proxy");
    let (served, [_, _, old]) = staged(&name, 0, &json!({"optOut": "Forbidden"}));
    let snapshot = snapshot([served]);
    let object = pod("web", &json!({"pillion.dev/profiles": format!("proxy@{}", old.revision())}));
    let got = inject(&snapshot, &object, FailureMode::Enabled, LookedUp::default());
    assert_eq!((got.label.as_deref(), got.wanted.len()), (Some("promoted"), 0));
    assert!(got.warnings[0].contains("cannot be pinned"), "{:?}", got.warnings);
}

#[test]
fn parameter_child_cannot_be_pinned() {
    let parent = json!({
        "activation": "Always", "template": labelled("parent")["template"],
        "parameters": [{"name": "a", "type": "string", "default": "x", "annotation": "a/a", "sources": ["Namespace"]}],
    });
    let parents = SingleParent(serde_json::from_value(parent).unwrap());
    let name = ProfileName::namespaced("shop", "own");
    let text = |more: &Json| {
        let mut spec = json!({"extends": {"name": "proxy"}});
        spec.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        ProfileSource::Author(&serde_json::from_value(spec).unwrap(), &parents).flatten(&name).unwrap()
    };
    let compiled = |whole: &FlattenedProfile| Arc::new(whole.compile(&name).unwrap());
    let value = |value: &str| text(&json!({"parameters": [{"name": "a", "default": value}]}));
    let (old, bounded, own) = (value("old"), value("new"), text(&labelled("own")));
    let old_revision = compiled(&old).revision().to_owned();
    assert_eq!(compiled(&old).limits(), Limits::Parent);
    let served = |whole: &FlattenedProfile| {
        snapshot([Served { kept: [Box::from(&*old_revision)].into(), ..Served::from(compiled(whole)) }])
    };
    let object = pod("web", &json!({"pillion.dev/profiles": format!("own@{old_revision}")}));

    let got = inject(&served(&bounded), &object, FailureMode::Enabled, LookedUp::default());
    assert_eq!((got.label.as_deref(), got.wanted.len()), (Some("parent"), 0));
    assert!(got.warnings[0].contains("cannot be pinned"), "{:?}", got.warnings);

    // A profile that now has its own template cannot be pinned to a revision that only set values of the parent.
    assert_eq!(compiled(&own).limits(), Limits::Tenant);
    let own = served(&own);
    let asking = inject(&own, &object, FailureMode::Enabled, LookedUp::default());
    let [query] = asking.wanted.as_slice() else { panic!("{:?}", asking.wanted) };
    let kept = json!({"spec": old.to_revision(&name, None, None).unwrap()});
    let kept = Answer::Found(Arc::new(OwnedTape::parse(kept.to_string()).unwrap()));
    let looked_up = LookedUp { objects: vec![(query.clone(), kept)], ..LookedUp::default() };
    let got = inject(&own, &object, FailureMode::Enabled, looked_up);
    assert_eq!(got.label.as_deref(), Some("own"));
    assert!(got.warnings.iter().any(|warning| warning.contains("own@")), "{:?}", got.warnings);
}

#[test]
fn second_pass_keeps_recorded_revision() {
    let name = ProfileName::cluster("proxy");
    let served = |label: &str, kept: &[&str]| Served {
        kept: kept.iter().map(|kept| Box::from(*kept)).collect(),
        ..Served::from(profile(&name, &labelled(label)))
    };
    let old = profile(&name, &labelled("old"));
    let before = snapshot([served("old", &[])]);
    let first = inject(&before, &pod("web", &json!({})), FailureMode::Enabled, LookedUp::default());
    assert_eq!(first.label.as_deref(), Some("old"));

    // A newer revision was published in the meantime, and the old one is still stored.
    let after = snapshot([served("new", &[old.revision()])]);
    let asking = inject(&after, &first.object, FailureMode::Enabled, LookedUp::default());
    let [query] = asking.wanted.as_slice() else { panic!("{:?}", asking.wanted) };
    let kept = whole(&name, &labelled("old")).to_revision(&name, None, None).unwrap();
    let object = Arc::new(OwnedTape::parse(json!({"spec": kept}).to_string()).unwrap());
    let looked_up = LookedUp { objects: vec![(query.clone(), Answer::Found(object))], ..LookedUp::default() };
    let second = inject(&after, &first.object, FailureMode::Enabled, looked_up);
    assert_eq!(second.object, first.object, "a second pass changes nothing");
    assert!(inject(&after, &first.object, FailureMode::Enabled, LookedUp::default()).wanted.is_empty());

    // During a rollout, the promoted revision is active, so no lookup is needed.
    let stage = Stage { promoted: Some(old), percent: 100, namespaces: None };
    let rolling = snapshot([Served { stage: Some(stage), ..served("new", &[]) }]);
    let second = inject(&rolling, &first.object, FailureMode::Enabled, LookedUp::default());
    assert_eq!((second.object, second.wanted.len()), (first.object.clone(), 0));
    assert_eq!(label(&rolling, &pod("web", &json!({}))).as_deref(), Some("new"));
}

#[test]
fn owner_identifies_workload() {
    let owned = |kind: &str, name: &str| {
        let mut object = pod("x", &json!({}));
        object["metadata"]["ownerReferences"] =
            json!([{"apiVersion": "batch/v1", "kind": kind, "name": name, "controller": true, "uid": "u"}]);
        object
    };
    for (object, expected) in [
        (of_replica_set("web", "7c9d6f5b8"), "web"),
        (owned("Job", "backup-28374650"), "backup"),
        (owned("Job", "backup-2"), "backup-2"),
        (owned("StatefulSet", "db-28374650"), "db-28374650"),
        (pod("alone", &json!({})), "alone"),
    ] {
        let tape = OwnedTape::parse(object.to_string()).unwrap();
        assert_eq!(workload(tape.root()), expected);
    }
}

#[test]
fn share_of_nothing_keeps_promoted_revision() {
    let (served, _) = staged(&ProfileName::cluster("proxy"), 0, &json!({"activation": "Always"}));
    let snapshot = snapshot([served]);
    assert_eq!(label(&snapshot, &pod("web", &json!({}))).as_deref(), Some("promoted"));
    let mut bound = pod("web", &json!({}));
    bound["spec"]["nodeName"] = json!("one");
    assert_eq!(label(&snapshot, &bound).as_deref(), Some("promoted"));
}
