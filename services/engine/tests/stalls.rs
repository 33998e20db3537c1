//! Profiles and pods that are made to keep a replica busy. Each ends in bounded time, with a reason.
//!
//! Neither the author of a profile nor the author of a pod may stall a replica: the cost of a pod's long lists and strings
//! is charged to the same budget as the expressions.

#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "helpers of tests fail by panicking, as tests do"
)]
#![allow(clippy::needless_pass_by_value, reason = "profiles and pods read better without signs in front of them")]

mod bombs;

use std::time::{Duration, Instant};

use crate::common::{answer, patched, snapshot};
use bombs::{pod_bombs, profile_bombs};
use pillion_engine::decision::Outcome;
use serde_json::{Value as Json, json};

/// A build without optimisation needs some tenths of it for the longest; what is not bounded needs a minute.
const LIMIT: Duration = Duration::from_secs(4);

/// A profile, a pod for it, and what may become of it: the reasons of the profile, as they stand in metrics.
struct Bomb {
    name: &'static str,
    profile: Json,
    pod: Json,
    reasons: &'static [&'static str],
}

const DONE: &[&str] = &["injected"];
/// More than a profile may do on one object.
const TOO_MUCH: &[&str] = &["expression_failed"];
/// More than the record may hold.
const TOO_LARGE: &[&str] = &["record_too_large"];
const EITHER: &[&str] = &["injected", "expression_failed", "record_too_large"];

fn pod(spec: Json) -> Json {
    json!({"metadata": {"annotations": {}}, "spec": spec})
}

fn small() -> Json {
    pod(json!({"containers": [{"name": "app", "image": "i"}]}))
}

/// A pod whose container has variables: `value` by its number.
fn variables(count: usize, value: impl Fn(usize) -> String) -> Json {
    let env: Vec<_> = (0..count).map(|number| json!({"name": format!("V{number}"), "value": value(number)})).collect();
    pod(json!({"containers": [{"name": "app", "image": "i", "env": env}]}))
}

/// A pod of containers.
fn many(count: usize) -> Json {
    let containers: Vec<_> =
        (0..count).map(|number| json!({"name": format!("c{number}"), "image": "i", "env": [{"name": "A"}]})).collect();
    pod(json!({"containers": containers}))
}

/// A pod with one annotation.
fn annotated(value: impl Into<String>) -> Json {
    let mut pod = small();
    pod["metadata"]["annotations"]["example.com/x"] = json!(value.into());
    pod
}

fn template(template: Json) -> Json {
    json!({"activation": "Always", "template": template})
}

/// A profile with an environment for all containers.
fn env(env: Json) -> Json {
    rule(json!({"types": ["App"]}), json!({"env": env}))
}

/// A profile that adds a container with an environment. The record has it as one.
fn added(env: Json) -> Json {
    template(json!({"spec": {"containers": [{"name": "proxy", "image": "p", "env": env}]}}))
}

fn rule(matching: Json, template: Json) -> Json {
    json!({"activation": "Always", "containers": [{"name": "r", "match": matching, "template": template}]})
}

fn with_variables(mut profile: Json, variables: &[(&str, &str)]) -> Json {
    profile["variables"] =
        variables.iter().map(|(name, expression)| json!({"name": name, "expression": expression})).collect();
    profile
}

fn with_list(mut profile: Json) -> Json {
    profile["parameters"] = json!([
        {"name": "list", "type": "list", "default": [], "annotation": "example.com/x", "sources": ["Pod"]},
        {"name": "text", "type": "string", "default": "", "annotation": "example.com/x", "sources": ["Pod"]},
    ]);
    profile
}

/// A comma-separated list of numbers.
fn numbers(count: usize) -> String {
    (0..count).map(|number| number.to_string()).collect::<Vec<_>>().join(",")
}

fn review(pod: &Json) -> Vec<u8> {
    let review = json!({
        "apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview",
        "request": {
            "uid": "u", "namespace": "team-a", "operation": "CREATE", "object": pod,
            "resource": {"group": "", "version": "v1", "resource": "pods"},
        },
    });
    review.to_string().into_bytes()
}

fn each_ends(bombs: Vec<Bomb>) {
    let mut slow = Vec::new();
    for Bomb { name, profile, pod, reasons } in bombs {
        let snapshot = snapshot(&[("bomb", profile)]);
        let body = review(&pod);
        let start = Instant::now();
        let (decided, _) = answer(&body, &snapshot);
        let taken = start.elapsed();
        let decision = &decided.decision;
        let of_profile = &decision.profiles[0];
        let shown = format!("{name}: {taken:?}, {} {:?}", of_profile.reason, of_profile.detail);
        assert!(reasons.contains(&of_profile.reason.as_str()), "{shown}");
        assert!(decided.decision.outcome != Outcome::Denied, "{shown}");
        let _ = patched(&body, decided.patch.as_deref());
        if taken > LIMIT {
            slow.push(shown);
        }
    }
    assert!(slow.is_empty(), "{slow:#?}");
}

#[test]
fn profile_bombs_end() {
    each_ends(profile_bombs());
}

#[test]
fn pod_bombs_end() {
    each_ends(pod_bombs());
}

#[test]
fn work_within_budget_is_done() {
    let profile = env(json!([{"name": "B", "value": "${containers.map(c, c.name).join(',')}"}]));
    each_ends(vec![Bomb { name: "100 containers", profile, pod: many(100), reasons: DONE }]);
}

#[test]
fn long_argument_lists_are_within_budget() {
    let texts = |from: usize, count: usize| -> Vec<String> {
        let text = |number| format!("{:x<60}", format!("--argument-{number:06}="));
        (from..from + count).map(text).collect()
    };
    let prunes: Vec<_> =
        (0..3).map(|n| json!({"$prune": format!("item.startsWith('--argument-00000{n}=')")})).collect();
    let prunes = rule(json!({"types": ["App"]}), json!({"args": prunes}));
    let joins = rule(json!({"types": ["App"]}), json!({"args": {"$value": texts(1_000, 400), "$join": {}}}));
    for (name, profile, count) in [("three that prune", prunes, 200), ("a join", joins, 240)] {
        let snapshot = snapshot(&[("bomb", profile)]);
        let mut pod = small();
        pod["spec"]["containers"][0]["args"] = json!(texts(0, count));
        pod["metadata"]["managedFields"] = json!([{"manager": "m"}]);
        let body = review(&pod);
        let (first, _) = answer(&body, &snapshot);
        let of_profile = &first.decision.profiles[0];
        assert_eq!(of_profile.reason.as_str(), "injected", "{name}: {:?}", of_profile.detail);
        let (second, _) = answer(&review(&patched(&body, first.patch.as_deref())), &snapshot);
        let of_profile = &second.decision.profiles[0];
        assert_ne!(of_profile.reason.as_str(), "expression_failed", "{name}: {:?}", of_profile.detail);
        assert_eq!(second.patch, None, "{name}: the second pass");
    }
}
