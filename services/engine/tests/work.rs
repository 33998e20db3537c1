//! Tests large objects and request bodies, and profiles that multiply their input. The time must be linear in the size
//! of the input, so that a replica can serve other requests. The limit is a hundred times the typical time. Work that
//! is quadratic in the size would take a hundred times the limit.

#![allow(clippy::indexing_slicing, clippy::unwrap_used, reason = "test helpers fail by panicking")]

use std::fmt::Write;
use std::time::{Duration, Instant};

use crate::common::{captured_by_name, patched, respond, sidecar, snapshot};
use pillion_engine::decision::Outcome;
use pillion_engine::review::Review;
use serde_json::{Value as Json, json};

const LIMIT: Duration = Duration::from_secs(2);

fn review(change: impl FnOnce(&mut Json)) -> Vec<u8> {
    let mut review: Json = serde_json::from_slice(&captured_by_name("create-bare-pod.json")).unwrap();
    change(&mut review["request"]["object"]);
    serde_json::to_vec(&review).unwrap()
}

/// Returns a review of a pod whose annotation `example.com/list` contains the given number of items.
fn listed(items: usize) -> Vec<u8> {
    let list = (0..items).map(|number| number.to_string()).collect::<Vec<_>>().join(",");
    review(|object| object["metadata"]["annotations"] = json!({"example.com/list": list}))
}

fn looping(element: &Json) -> Json {
    json!({
        "activation": "Always",
        "parameters": [{
            "name": "list", "type": "list", "default": [], "annotation": "example.com/list", "sources": ["Pod"],
        }],
        "template": {"spec": {"containers": [{"name": "helper", "image": "i", "env": [element]}]}},
    })
}

fn within_limit<T>(what: &str, work: impl FnOnce() -> T) -> T {
    let start = Instant::now();
    let result = work();
    let taken = start.elapsed();
    assert!(taken < LIMIT, "{what} took {taken:?}");
    result
}

#[test]
fn loop_over_large_element_is_bounded() {
    let element = json!({"$forEach": "params.list", "name": "A_${item}", "value": "x".repeat(60_000)});
    let snapshot = snapshot(&[("p", looping(&element))]);
    let body = listed(2_000);
    let (decided, _) = within_limit("2,000 elements of 60 kB", || respond(&body, &snapshot));
    let reasons: Vec<_> = decided.decision.profiles.iter().map(|profile| profile.reason.as_str()).collect();
    assert_eq!(reasons, ["expression_failed"], "{:?}", decided.decision.profiles[0].detail);
}

#[test]
fn loop_with_references_is_not_quadratic() {
    let element = json!({"$forEach": "params.list", "name": "A_${item}", "value": "$(A_${item}_x)"});
    let snapshot = snapshot(&[("p", looping(&element))]);
    let body = listed(20_000);
    within_limit("20,000 elements", || respond(&body, &snapshot));
}

#[test]
fn patch_of_ten_thousand_containers_is_quick() {
    let body = review(|object| {
        let container = json!({"name": "c", "image": "i"});
        let containers = (0..10_000).map(|number| {
            let mut container = container.clone();
            container["name"] = json!(format!("c-{number}"));
            container
        });
        object["spec"]["containers"] = containers.collect();
    });
    let env: Vec<_> = (0..5).map(|number| json!({"name": format!("V{number}"), "value": "x"})).collect();
    let profile = json!({"activation": "Always", "containerPatches": [{"name": "r", "template": {"env": env}}]});
    let snapshot = snapshot(&[("p", profile)]);
    within_limit("a container patch on 10,000 containers", || respond(&body, &snapshot));
}

#[test]
fn hundred_thousand_annotations_are_quick() {
    let body = review(|object| {
        let annotations = (0..100_000).map(|number| (format!("key-{number}"), json!("")));
        object["metadata"]["annotations"] = Json::Object(annotations.collect());
        object["metadata"]["labels"] = object["metadata"]["annotations"].clone();
    });
    let mut profile = sidecar("logger");
    profile["requestedBy"] = json!({"annotation": "key-99999", "label": "key-1"});
    let snapshot = snapshot(&[("logger", profile)]);
    within_limit("a pod with 200,000 labels and annotations", || respond(&body, &snapshot));
}

#[test]
fn ten_thousand_containers_and_variables_are_quick() {
    let body = review(|object| {
        let container = object["spec"]["containers"][0].clone();
        let containers = (0..10_000).map(|number| {
            let mut container = container.clone();
            container["name"] = json!(format!("c-{number}"));
            container
        });
        object["spec"]["containers"] = containers.collect();
        let env = (0..10_000).map(|number| json!({"name": format!("V{number}"), "value": "x"}));
        object["spec"]["containers"][0]["env"] = env.collect();
    });
    let snapshot = snapshot(&[("logger", sidecar("logger")), ("tracer", sidecar("tracer"))]);
    let (decided, _) = within_limit("a pod with 10,000 containers", || respond(&body, &snapshot));
    assert_eq!(decided.decision.outcome, Outcome::Skipped, "the result is too large");
}

#[test]
fn rejects_envelope_with_half_million_keys() {
    let mut body = String::from("{\"apiVersion\":\"admission.k8s.io/v1\",\"kind\":\"AdmissionReview\"");
    for number in 0..500_000 {
        write!(body, ",\"k{number}\":1").unwrap();
    }
    body.push('}');
    let error = within_limit("500,000 keys", || Review::parse(body.as_bytes()).unwrap_err());
    assert!(error.to_string().contains("more than 64 keys"), "{error}");
}

#[test]
fn strings_of_escapes_are_quick() {
    let body = review(|object| object["metadata"]["annotations"] = json!({"a": "\n\"\\".repeat(500_000)}));
    let snapshot = snapshot(&[("logger", sidecar("logger"))]);
    within_limit("three megabytes of escapes", || respond(&body, &snapshot));
}

#[test]
fn variable_moves_among_six_hundred() {
    let body = review(|object| {
        let many = (0..600).map(|number| json!({"name": format!("SOME_LONG_VARIABLE_NAME_{number:04}"), "value": "v"}));
        let first = std::iter::once(json!({"name": "OPTS", "value": "x"}));
        object["spec"]["containers"][0]["env"] =
            first.chain(many).chain([json!({"name": "POD_IP", "value": "z"})]).collect();
    });
    let env = json!([
        {"name": "OPTS", "value": " -Dip=$(POD_IP)", "$join": {"separator": ""}},
        {"name": "OTHER", "value": "x"},
    ]);
    let profile = json!({"activation": "Always", "containerPatches": [{"name": "all", "template": {"env": env}}]});
    let snapshot = snapshot(&[("joiner", profile)]);
    let (decided, _) = within_limit("a joined variable", || respond(&body, &snapshot));
    assert_eq!(decided.decision.outcome, Outcome::Injected, "{:?}", decided.decision);
    let result = patched(&body, &decided);
    let env_of = |object: &Json| object["spec"]["containers"][0]["env"].clone();
    assert_eq!(env_of(&result)[601], json!({"name": "OPTS", "value": "x -Dip=$(POD_IP)"}));
    let record = result["metadata"]["annotations"]["pillion.dev/injected"].as_str().unwrap();
    assert!(record.len() < 1024, "the record contains more than the moved variable: {record}");
    let undone = pillion_engine::inject::undo(&result.to_string()).unwrap();
    let undone: Json = serde_json::from_str(undone.object.root().raw()).unwrap();
    let review: Json = serde_json::from_slice(&body).unwrap();
    assert_eq!(env_of(&undone), env_of(&review["request"]["object"]));
}
