//! Profiles that make much of little, and pods that profiles have much to do with: the work is bounded, and so is what it
//! makes.

#![allow(clippy::indexing_slicing, clippy::unwrap_used, reason = "helpers of tests fail by panicking, as tests do")]

use std::time::{Duration, Instant};

use crate::common::{answer, captured_by_name, snapshot};
use serde_json::{Value as Json, json};

const LIMIT: Duration = Duration::from_secs(2);

fn review(change: impl FnOnce(&mut Json)) -> Vec<u8> {
    let mut review: Json = serde_json::from_slice(&captured_by_name("create-bare-pod.json")).unwrap();
    change(&mut review["request"]["object"]);
    serde_json::to_vec(&review).unwrap()
}

/// A pod with a list of so many items in an annotation.
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
fn a_loop_does_not_write_a_large_element_without_end() {
    let element = json!({"$forEach": "params.list", "name": "A_${item}", "value": "x".repeat(60_000)});
    let snapshot = snapshot(&[("p", looping(&element))]);
    let body = listed(2_000);
    let (decided, _) = within_limit("2,000 elements of 60 kB", || answer(&body, &snapshot));
    let reasons: Vec<_> = decided.decision.profiles.iter().map(|profile| profile.reason.as_str()).collect();
    assert_eq!(reasons, ["expression_failed"], "{:?}", decided.decision.profiles[0].detail);
}

#[test]
fn a_loop_does_not_compare_every_element_with_every_other_without_end() {
    let element = json!({"$forEach": "params.list", "name": "A_${item}", "value": "$(A_${item}_x)"});
    let snapshot = snapshot(&[("p", looping(&element))]);
    let body = listed(20_000);
    within_limit("20,000 elements", || answer(&body, &snapshot));
}

#[test]
fn rules_on_ten_thousand_containers() {
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
    let profile = json!({"activation": "Always", "containers": [{"name": "r", "template": {"env": env}}]});
    let snapshot = snapshot(&[("p", profile)]);
    within_limit("a rule on 10,000 containers", || answer(&body, &snapshot));
}
