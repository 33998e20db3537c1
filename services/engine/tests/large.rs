//! Objects and bodies that somebody made large on purpose. Work grows with their size and not with its square: a replica
//! answers others meanwhile. Times here are a hundred times what is needed, and a hundredth of what a square would take.

#![allow(clippy::indexing_slicing, clippy::unwrap_used, reason = "helpers of tests fail by panicking, as tests do")]

use std::fmt::Write;
use std::time::{Duration, Instant};

use crate::common::{answer, captured_by_name, patched, sidecar, snapshot};
use pillion_engine::decision::Outcome;
use pillion_engine::review::Review;
use serde_json::{Value as Json, json};

const LIMIT: Duration = Duration::from_secs(2);

fn within_limit<T>(what: &str, work: impl FnOnce() -> T) -> T {
    let start = Instant::now();
    let result = work();
    let taken = start.elapsed();
    assert!(taken < LIMIT, "{what} took {taken:?}");
    result
}

fn review(change: impl FnOnce(&mut Json)) -> Vec<u8> {
    let mut review: Json = serde_json::from_slice(&captured_by_name("create-bare-pod.json")).unwrap();
    change(&mut review["request"]["object"]);
    serde_json::to_vec(&review).unwrap()
}

#[test]
fn a_hundred_thousand_annotations() {
    let body = review(|object| {
        let annotations = (0..100_000).map(|number| (format!("key-{number}"), json!("")));
        object["metadata"]["annotations"] = Json::Object(annotations.collect());
        object["metadata"]["labels"] = object["metadata"]["annotations"].clone();
    });
    let mut profile = sidecar("logger");
    profile["request"] = json!({"annotation": "key-99999", "label": "key-1"});
    let snapshot = snapshot(&[("logger", profile)]);
    within_limit("a pod with 200,000 labels and annotations", || answer(&body, &snapshot));
}

#[test]
fn ten_thousand_containers_and_variables() {
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
    let (decided, _) = within_limit("a pod with 10,000 containers", || answer(&body, &snapshot));
    assert_eq!(decided.decision.outcome, Outcome::Skipped, "the result would be too large");
}

#[test]
fn an_envelope_with_half_a_million_keys() {
    let mut body = String::from("{\"apiVersion\":\"admission.k8s.io/v1\",\"kind\":\"AdmissionReview\"");
    for number in 0..500_000 {
        write!(body, ",\"k{number}\":1").unwrap();
    }
    body.push('}');
    let error = within_limit("500,000 keys", || Review::parse(body.as_bytes()).unwrap_err());
    assert!(error.to_string().contains("more than 64 keys"), "{error}");
}

#[test]
fn strings_of_nothing_but_escapes() {
    let body = review(|object| object["metadata"]["annotations"] = json!({"a": "\n\"\\".repeat(500_000)}));
    let snapshot = snapshot(&[("logger", sidecar("logger"))]);
    within_limit("three megabytes of escapes", || answer(&body, &snapshot));
}

#[test]
fn a_variable_that_moves_among_six_hundred() {
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
    let profile = json!({"activation": "Always", "containers": [{"name": "all", "template": {"env": env}}]});
    let snapshot = snapshot(&[("joiner", profile)]);
    let (decided, _) = within_limit("a joined variable", || answer(&body, &snapshot));
    assert_eq!(decided.decision.outcome, Outcome::Injected, "{:?}", decided.decision);
    let result = patched(&body, decided.patch.as_deref());
    let env_of = |object: &Json| object["spec"]["containers"][0]["env"].clone();
    assert_eq!(env_of(&result)[601], json!({"name": "OPTS", "value": "x -Dip=$(POD_IP)"}));
    let record = result["metadata"]["annotations"]["pillion.dev/injected"].as_str().unwrap();
    assert!(record.len() < 1024, "only what moved is noted: {record}");
    let undone = pillion_engine::inject::undo(&result.to_string()).unwrap();
    let undone: Json = serde_json::from_str(undone.object.root().raw()).unwrap();
    assert_eq!(env_of(&undone), env_of(&patched(&body, None)));
}
