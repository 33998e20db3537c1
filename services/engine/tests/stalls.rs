//! Profiles and pods that are made to keep a replica busy. Each ends in bounded time, with a reason.
//!
//! Whoever may write a profile may not stall a replica, and neither may whoever writes a pod for a profile that is there:
//! what an author's long list or text costs is counted by the same budget as the expressions.

#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "helpers of tests fail by panicking, as tests do"
)]
#![allow(clippy::needless_pass_by_value, reason = "profiles and pods read better without signs in front of them")]

mod common;

use std::time::{Duration, Instant};

use common::{answer, patched, snapshot};
use pillion_engine::report::Outcome;
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

#[expect(clippy::too_many_lines, reason = "a table")]
fn profiles_own_work() -> Vec<Bomb> {
    let bomb = |name, profile, pod, reasons| Bomb { name, profile, pod, reasons };
    let thousand = &[
        ("ten", "[0, 1, 2, 3, 4, 5, 6, 7, 8, 9]"),
        (
            "thousand",
            "variables.ten.map(a, variables.ten.map(b, a * 10 + b)).flatten().map(a, variables.ten.map(b, a * 10 + b)).flatten()",
        ),
    ];
    let each = |more: Json| {
        let mut element = json!({"$forEach": "params.list", "name": "E${item}", "value": "x"});
        more.as_object().unwrap().iter().for_each(|(key, value)| element[key] = value.clone());
        json!([element])
    };
    vec![
        bomb(
            "64 KB of a template",
            env((0..1_900).map(|number| json!({"name": format!("E{number}"), "value": "x"})).collect()),
            small(),
            TOO_LARGE,
        ),
        bomb(
            "64 KB of a template for a container that is added",
            added((0..1_900).map(|number| json!({"name": format!("E{number}"), "value": "$(E3)"})).collect()),
            small(),
            EITHER,
        ),
        bomb(
            "64 KB of annotations in a template",
            template(json!({"metadata": {"annotations": (0..5_000)
                .map(|number| (format!("a{number}"), json!("")))
                .collect::<serde_json::Map<_, _>>()}})),
            small(),
            TOO_LARGE,
        ),
        bomb("10,000 elements of one $forEach", with_list(env(each(json!({})))), annotated(numbers(10_000)), TOO_LARGE),
        bomb(
            "10,000 elements of one $forEach in a container that is added",
            with_list(added(each(json!({})))),
            annotated(numbers(10_000)),
            TOO_MUCH,
        ),
        bomb(
            "10,000 elements that each go first",
            with_list(added(each(json!({"$position": "First"})))),
            annotated(numbers(10_000)),
            TOO_MUCH,
        ),
        bomb(
            "10,000 elements at places of their own",
            with_list(env(each(json!({"$position": {"after": "V${item}"}})))),
            {
                let mut pod = variables(10_000, |_| String::new());
                pod["metadata"]["annotations"]["example.com/x"] = json!(numbers(10_000));
                pod
            },
            EITHER,
        ),
        bomb(
            "10,000 elements, each of which refers to the next one",
            with_list(added(each(json!({"value": "$(E${index + 1})"})))),
            annotated(numbers(10_000)),
            TOO_MUCH,
        ),
        bomb(
            "1,000 elements, each of which refers to the next one",
            with_list(added(each(json!({"value": "$(E${index + 1})"})))),
            annotated(numbers(1_000)),
            DONE,
        ),
        bomb(
            "a million elements of a $forEach in a $forEach",
            with_variables(
                added(json!([{
                    "$forEach": "variables.thousand", "$as": "outer",
                    "$value": [{"$forEach": "variables.thousand", "name": "E${outer}_${item}", "value": "x"}],
                }])),
                thousand,
            ),
            small(),
            TOO_MUCH,
        ),
        bomb(
            "a million items of a list that is one value",
            with_variables(
                template(json!({"spec": {"containers": [{"name": "proxy", "image": "p", "args": [{
                    "$forEach": "variables.thousand", "$as": "outer",
                    "$value": [{"$forEach": "variables.thousand", "$value": "${outer}.${item}"}],
                }]}]}})),
                thousand,
            ),
            small(),
            TOO_MUCH,
        ),
        bomb(
            "many lists that are spliced",
            with_variables(
                added(
                    (0..40)
                        .map(|number| {
                            json!(format!(
                                "${{variables.thousand.map(n, {{'name': 'E{number}_' + string(n), 'value': ''}})}}"
                            ))
                        })
                        .collect(),
                ),
                thousand,
            ),
            small(),
            TOO_MUCH,
        ),
        bomb(
            "JSON of the pod in each of 100 containers",
            rule(json!({"types": ["App"]}), json!({"env": [{"name": "POD", "value": "${toJson(object)}"}]})),
            many(100),
            EITHER,
        ),
        bomb(
            "regular expressions over long texts",
            rule(
                json!({"types": ["App"], "where": "object.metadata.annotations['example.com/x'].matches('(x+x+)+y')"}),
                json!({"tty": true}),
            ),
            {
                let mut pod = many(100);
                pod["metadata"]["annotations"]["example.com/x"] = json!("x".repeat(1_000_000));
                pod
            },
            TOO_MUCH,
        ),
        bomb(
            "a thousand regular expressions that are computed",
            rule(
                json!({"types": ["App"], "where": "container.name.matches('(' + container.name + '{1,50}){1,50}')"}),
                json!({"tty": true}),
            ),
            many(1_000),
            TOO_MUCH,
        ),
    ]
}

#[expect(clippy::too_many_lines, reason = "a table")]
fn what_authors_send() -> Vec<Bomb> {
    let bomb = |name, profile, pod, reasons| Bomb { name, profile, pod, reasons };
    let joined = |separator: &str| env(json!([{"name": "V0", "value": "b", "$join": {"separator": separator}}]));
    let joins_annotation =
        |name: &str, join: Json| with_list(env(json!([{"name": name, "value": "${params.text}", "$join": join}])));
    let annotated = |mut pod: Json, text: String| {
        pod["metadata"]["annotations"]["example.com/x"] = json!(text);
        pod
    };
    let letters = "a,".repeat(500_000);
    vec![
        bomb("a join with a megabyte", joined(","), variables(1, |_| letters.clone()), EITHER),
        bomb(
            "a join of two long lists",
            joins_annotation("V0", json!({"separator": ","})),
            annotated(
                variables(1, |_| numbers(100_000)),
                (0..40_000).map(|n| format!("x{n}")).collect::<Vec<_>>().join(","),
            ),
            EITHER,
        ),
        bomb(
            "a join of two long lists by their keys",
            joins_annotation("V0", json!({"separator": ",", "key": "="})),
            annotated(
                variables(1, |_| (0..100_000).map(|n| format!("a{n}=")).collect::<Vec<_>>().join(",")),
                (0..40_000).map(|n| format!("x{n}=")).collect::<Vec<_>>().join(","),
            ),
            EITHER,
        ),
        bomb(
            "a join of two long lists as JSON",
            joins_annotation("V0", json!({"format": "JSON"})),
            annotated(
                variables(1, |_| format!("[{}]", numbers(100_000))),
                format!("[{}]", (0..40_000).map(|n| (n + 200_000).to_string()).collect::<Vec<_>>().join(",")),
            ),
            EITHER,
        ),
        bomb(
            "a join of two long lists of arguments",
            with_list(rule(json!({"types": ["App"]}), json!({"args": {"$value": "${params.list}", "$join": {}}}))),
            annotated(
                pod(
                    json!({"containers": [{"name": "app", "args": (0..100_000).map(|n| n.to_string()).collect::<Vec<_>>()}]}),
                ),
                (0..20_000).map(|n| format!("x{n}")).collect::<Vec<_>>().join(","),
            ),
            EITHER,
        ),
        bomb(
            "a megabyte of references that are not closed",
            joined(""),
            variables(1, |_| "$(".repeat(500_000)),
            EITHER,
        ),
        bomb(
            "a megabyte of references",
            joined(""),
            variables(5_000, |number| if number == 0 { "$(A)".repeat(250_000) } else { "x".to_owned() }),
            EITHER,
        ),
        bomb(
            "5,000 variables that refer to one another, and some that are joined",
            env((0..50).map(|n| json!({"name": format!("V{n}"), "value": "b", "$join": {"separator": ","}})).collect()),
            variables(5_000, |number| format!("$(V{})", number + 1)),
            EITHER,
        ),
        bomb(
            "5,000 containers and a rule that looks at all of them",
            rule(json!({"types": ["App"], "where": "containers.size() > 0"}), json!({"tty": true})),
            many(5_000),
            EITHER,
        ),
        bomb(
            "10,000 containers and a rule",
            rule(json!({"types": ["App"]}), json!({"env": [{"name": "B", "value": "x"}]})),
            many(10_000),
            EITHER,
        ),
        bomb(
            "10,000 containers and a rule that asks for the primary one, the overlays and the namespace",
            with_variables(
                rule(
                    json!({"types": ["App"], "where": "primary.name != '' && overlays.size() == 0 && variables.local"}),
                    json!({"tty": true}),
                ),
                &[("local", "namespaceObject.metadata.name != container.name")],
            ),
            many(10_000),
            EITHER,
        ),
        bomb(
            "20,000 variables, each changed",
            env(json!([{"$each": "true", "value": "y", "$conflict": "Replace"}])),
            variables(20_000, |_| "x".to_owned()),
            EITHER,
        ),
        bomb(
            "20,000 variables, each removed",
            env(json!([{"$prune": "true"}])),
            variables(20_000, |_| "x".to_owned()),
            EITHER,
        ),
        bomb(
            "64 KB of variables for a container that has 20,000",
            env((0..1_500).map(|n| json!({"name": format!("E{n}"), "value": "x"})).collect()),
            variables(20_000, |_| "x".to_owned()),
            EITHER,
        ),
        bomb(
            "64 KB of annotations for a pod that has 100,000",
            template(json!({"metadata": {"annotations": (0..5_000)
                .map(|number| (format!("a{number}"), json!("")))
                .collect::<serde_json::Map<_, _>>()}})),
            json!({
                "metadata": {"annotations": (0..100_000).map(|n| (format!("b{n}"), json!(""))).collect::<serde_json::Map<_, _>>()},
                "spec": {"containers": [{"name": "app"}]},
            }),
            EITHER,
        ),
        bomb(
            "an overlay with 5,000 variables, all of them in managedFields",
            template(json!({"spec": {"containers": [{
                "name": "proxy", "image": "p", "$conflict": "Merge",
                "env": (0..1_000).map(|n| json!({"name": format!("V{n}"), "value": "y"})).collect::<Vec<_>>(),
            }]}})),
            {
                let mut pod = variables(5_000, |_| "x".to_owned());
                pod["spec"]["containers"][0]["name"] = json!("proxy");
                let keys = (0..5_000).map(|n| (format!("k:{{\"name\":\"V{n}\"}}"), json!({".": {}, "f:name": {}})));
                let keys: serde_json::Map<_, _> = keys.collect();
                pod["metadata"]["managedFields"] = json!([{"fieldsV1": {"f:spec": {"f:containers": {
                    "k:{\"name\":\"proxy\"}": {".": {}, "f:env": keys},
                }}}}]);
                pod
            },
            EITHER,
        ),
        bomb(
            "a record of 16 KB on a pod with 20,000 annotations",
            template(json!({"metadata": {"labels": {"a": "b"}}})),
            {
                let mut annotations: serde_json::Map<_, _> =
                    (0..20_000).map(|n| (format!("b{n}"), json!(""))).collect();
                let places: Vec<_> = (0..500).map(|n| format!("/metadata/annotations/b{}", 19_999 - n)).collect();
                let record = json!({"version": 1, "profiles": [{"profile": "bomb", "revision": "1", "added": places}]});
                annotations.insert("pillion.dev/injected".into(), json!(record.to_string()));
                json!({
                    "metadata": {"annotations": annotations, "managedFields": [{"manager": "m"}]},
                    "spec": {"containers": [{"name": "app"}]},
                })
            },
            EITHER,
        ),
    ]
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
fn what_a_profile_does_ends() {
    each_ends(profiles_own_work());
}

#[test]
fn what_an_author_sends_ends() {
    each_ends(what_authors_send());
}

#[test]
fn what_is_done_within_the_budget_is_done() {
    let profile = env(json!([{"name": "B", "value": "${containers.map(c, c.name).join(',')}"}]));
    each_ends(vec![Bomb { name: "100 containers", profile, pod: many(100), reasons: DONE }]);
}
