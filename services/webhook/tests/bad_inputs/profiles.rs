//! Profiles that should not be, as far as no test of the engine's shows it already: B49, B56, B58.

use std::sync::Arc;
use std::time::{Duration, Instant};

use pillion_api::names::InjectionLevel;
use pillion_engine::decision::Outcome;
use pillion_engine::profile::{CompiledProfile, ProfileName, compile};
use pillion_engine::review::{Endpoint, Facts, Review};
use pillion_engine::snapshot::{Namespace, ProfileSet, Snapshot};
use serde_json::{Value as Json, json};

use crate::bad_inputs::table::{ALONE, Expected, Injected, Row, good, run};
use crate::support::{KNOWN, anonymous_memory, review, sidecar};

fn compiled(name: &ProfileName, spec: &Json) -> Arc<CompiledProfile> {
    Arc::new(compile(name, &serde_json::from_value(spec.clone()).unwrap()).unwrap())
}

fn outcome(snapshot: &Snapshot, namespace: &str, change: impl FnOnce(&mut Json)) -> (Outcome, Option<String>) {
    let mut review = review(namespace);
    change(&mut review);
    let text = review.to_string();
    let review = Review::parse(text.as_bytes()).unwrap();
    let facts = Facts { namespace: snapshot.namespace(namespace), ..Facts::default() };
    let decided = review.decide(Endpoint::Any, snapshot, &facts).unwrap();
    (decided.decision.outcome, decided.patch.map(|patch| String::from_utf8(patch).unwrap()))
}

fn opted_in() -> Namespace {
    Namespace::opted_in(InjectionLevel::Enabled)
}

fn literal_is_there(injected: &Injected) {
    assert_eq!(injected.object["spec"]["containers"][1]["env"][0]["value"], "not-so-secret");
}

fn rows() -> Vec<Row> {
    vec![
        // Not refused: what a variable is called does not tell what is in it (`*_TOKEN` is the path of a file as often), and
        // who may write a profile may write the same into a pod. That a patch stands in audit logs is told in the
        // documentation of profiles, which has a form for references to Secrets.
        good(49, "a variable that looks like a secret")
            .profile(|profile| {
                profile["template"]["spec"]["containers"][0]["env"] =
                    json!([{"name": "AWS_SECRET_ACCESS_KEY", "value": "not-so-secret"}]);
            })
            .is(Expected::Injected(literal_is_there)),
    ]
}

#[tokio::test]
async fn profiles() {
    run(rows()).await;
}

/// B56: a profile of one namespace, whatever it selects and whoever asks for it, does nothing to a pod of another.
#[test]
fn a_profile_of_a_namespace_acts_on_no_pod_of_another() {
    let name = ProfileName::namespaced("team-b", "profile");
    // A namespaceSelector, by which it could mean others, does not even compile.
    let mut reaching = sidecar();
    reaching["namespaceSelector"] = json!({});
    compile(&name, &serde_json::from_value(reaching).unwrap()).unwrap_err();

    let snapshot = Snapshot::new(ProfileSet::new([compiled(&name, &sidecar())]))
        .with_namespace(KNOWN, Some(opted_in()))
        .with_namespace("team-b", Some(opted_in()));
    let asks = |name: &'static str| {
        move |review: &mut Json| {
            review["request"]["object"]["metadata"]["annotations"] = json!({"pillion.dev/profiles": name});
        }
    };
    assert_eq!(outcome(&snapshot, "team-b", |_| {}).0, Outcome::Injected);
    for name in ["profile", "team-b/profile", "../team-b/profile"] {
        let (outcome, patch) = outcome(&snapshot, KNOWN, asks(name));
        assert_eq!((outcome, patch), (Outcome::Skipped, None), "{name}");
    }
    // The namespace that counts is the request's, not the one that the object names.
    let lying = |review: &mut Json| review["request"]["object"]["metadata"]["namespace"] = json!("team-b");
    assert_eq!(outcome(&snapshot, KNOWN, lying).0, Outcome::Skipped);
}

/// B58: 10,000 profiles in one namespace. How many a namespace may have is a quota of the cluster's (`count/…` of a
/// `ResourceQuota`); whoever has none set is served all the same, in memory and time that grow with nothing but their texts.
#[test]
fn ten_thousand_profiles_in_a_namespace_are_served() {
    const COUNT: usize = 10_000;
    let _alone = ALONE.blocking_lock();
    let before = anonymous_memory();
    let profiles = (0..COUNT).map(|number| {
        let mut spec = sidecar();
        spec["activation"] = json!("Requested");
        spec["request"] = json!({"annotation": format!("profile-{number}.example/inject")});
        compiled(&ProfileName::namespaced(KNOWN, format!("profile-{number}")), &spec)
    });
    let snapshot = Snapshot::new(ProfileSet::new(profiles)).with_namespace(KNOWN, Some(opted_in()));
    let asks = |review: &mut Json| {
        review["request"]["object"]["metadata"]["annotations"] = json!({"profile-7777.example/inject": "true"});
    };
    assert_eq!(outcome(&snapshot, KNOWN, asks).0, Outcome::Injected);
    let memory = anonymous_memory().saturating_sub(before);
    let best = (0..20).map(|_| {
        let began = Instant::now();
        outcome(&snapshot, KNOWN, asks);
        began.elapsed()
    });
    let best = best.min().unwrap();
    println!("{} bytes for each of {COUNT} profiles; {best:?} for a review", memory / COUNT);
    assert!(memory < COUNT * 16 * 1024, "{memory} bytes");
    assert!(best < Duration::from_millis(10), "{best:?}");
}
