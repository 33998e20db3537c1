//! Tests profiles and pods that try to block a replica. Each decision ends within the time limit, and has a reason.
//!
//! Neither the author of a profile nor the author of a pod may block a replica. Processing a pod's long lists and
//! strings uses the same budget as expressions.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, clippy::panic, reason = "test helpers fail by panicking")]
#![allow(clippy::needless_pass_by_value, reason = "literal profiles and pods are easier to read without references")]

mod bombs;

use std::time::{Duration, Instant};

use crate::common::{patched, respond, review, snapshot};
use bombs::{pod_bombs, profile_bombs};
use pillion_engine::decision::Outcome;
use serde_json::{Value as Json, json};

/// The time limit for a decision. In an unoptimized build, the longest decision takes a few tenths of it. Without the
/// budget, it would take a minute.
const LIMIT: Duration = Duration::from_secs(4);

/// A profile, a matching pod, and the allowed reasons of the decision for the profile, as metric labels.
struct Bomb {
    name: &'static str,
    profile: Json,
    pod: Json,
    reasons: &'static [&'static str],
}

const DONE: &[&str] = &["injected"];
/// The reason if the profile exceeds its budget.
const TOO_MUCH: &[&str] = &["expression_failed"];
/// The reason if the injection record is too large.
const TOO_LARGE: &[&str] = &["record_too_large"];
const EITHER: &[&str] = &["injected", "expression_failed", "record_too_large"];

fn pod(spec: Json) -> Json {
    json!({"metadata": {"annotations": {}}, "spec": spec})
}

fn small() -> Json {
    pod(json!({"containers": [{"name": "app", "image": "i"}]}))
}

/// Returns a pod with `count` environment variables. `value` returns the value for the index of a variable.
fn variables(count: usize, value: impl Fn(usize) -> String) -> Json {
    let env: Vec<_> = (0..count).map(|number| json!({"name": format!("V{number}"), "value": value(number)})).collect();
    pod(json!({"containers": [{"name": "app", "image": "i", "env": env}]}))
}

/// Returns a pod with the given number of containers.
fn many(count: usize) -> Json {
    let containers: Vec<_> =
        (0..count).map(|number| json!({"name": format!("c{number}"), "image": "i", "env": [{"name": "A"}]})).collect();
    pod(json!({"containers": containers}))
}

/// Returns a small pod with the given value of the annotation `example.com/x`.
fn annotated(value: impl Into<String>) -> Json {
    let mut pod = small();
    pod["metadata"]["annotations"]["example.com/x"] = json!(value.into());
    pod
}

fn template(template: Json) -> Json {
    json!({"activation": "Always", "template": template})
}

/// Returns a profile that sets environment variables in all app containers.
fn env(env: Json) -> Json {
    container_patch(json!({"types": ["App"]}), json!({"env": env}))
}

/// Returns a profile that adds a container with environment variables. The injection record lists the container as a
/// single addition.
fn added(env: Json) -> Json {
    template(json!({"spec": {"containers": [{"name": "proxy", "image": "p", "env": env}]}}))
}

fn container_patch(matching: Json, template: Json) -> Json {
    json!({"activation": "Always", "containerPatches": [{"name": "r", "match": matching, "template": template}]})
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

/// Returns the numbers from 0 to `count` - 1, separated by commas.
fn numbers(count: usize) -> String {
    (0..count).map(|number| number.to_string()).collect::<Vec<_>>().join(",")
}

fn each_ends(bombs: Vec<Bomb>) {
    let mut slow = Vec::new();
    for Bomb { name, profile, pod, reasons } in bombs {
        let snapshot = snapshot(&[("bomb", profile)]);
        let body = review(&pod);
        let start = Instant::now();
        let (decided, _) = respond(&body, &snapshot);
        let taken = start.elapsed();
        let decision = &decided.decision;
        let of_profile = &decision.profiles[0];
        let shown = format!("{name}: {taken:?}, {} {:?}", of_profile.reason, of_profile.detail);
        assert!(reasons.contains(&of_profile.reason.as_str()), "{shown}");
        assert!(decided.decision.outcome != Outcome::Denied, "{shown}");
        let _ = patched(&body, &decided);
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
    let prunes = container_patch(json!({"types": ["App"]}), json!({"args": prunes}));
    let joins = container_patch(json!({"types": ["App"]}), json!({"args": {"$value": texts(1_000, 400), "$join": {}}}));
    for (name, profile, count) in [("three that prune", prunes, 200), ("a join", joins, 240)] {
        let snapshot = snapshot(&[("bomb", profile)]);
        let mut pod = small();
        pod["spec"]["containers"][0]["args"] = json!(texts(0, count));
        pod["metadata"]["managedFields"] = json!([{"manager": "m"}]);
        let body = review(&pod);
        let (first, _) = respond(&body, &snapshot);
        let of_profile = &first.decision.profiles[0];
        assert_eq!(of_profile.reason.as_str(), "injected", "{name}: {:?}", of_profile.detail);
        let (second, _) = respond(&review(&patched(&body, &first)), &snapshot);
        let of_profile = &second.decision.profiles[0];
        assert_ne!(of_profile.reason.as_str(), "expression_failed", "{name}: {:?}", of_profile.detail);
        assert_eq!(second.patch, None, "{name}: the second pass");
    }
}
