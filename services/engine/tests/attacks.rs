//! Tests profiles that once crashed or blocked a replica. Each one is now rejected by the compiler or stays within
//! limits of time, memory and stack. None uses up the budget of cluster profiles.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "test helpers fail by panicking"
)]

use std::sync::Arc;
use std::time::{Duration, Instant};

use pillion_api::names::FailureMode;
use pillion_engine::decision::ProfileDecision;
use pillion_engine::profile::{CompiledProfile, ProfileName, compile};
use pillion_engine::review::{Decided, Endpoint, Facts, Review};
use pillion_engine::snapshot::{Namespace, ProfileSet, Snapshot};
use serde_json::{Value as Json, json};

use crate::common::{patched, respond, review};

/// The maximum time for all profiles of a request, in an unoptimized build on a busy machine.
const LIMIT: Duration = Duration::from_secs(4);

/// The maximum additional memory for a decision or for compiling a profile, in bytes. Compiling a profile that is
/// rejected may need twice as much.
const MEMORY: u64 = 32 << 20;

fn pod() -> Json {
    json!({"metadata": {}, "spec": {"containers": [{"name": "web", "image": "web:1"}]}})
}

fn tenant(name: &str, spec: Json) -> Result<Arc<CompiledProfile>, String> {
    let spec = serde_json::from_value(spec).unwrap();
    compile(&ProfileName::namespaced("team-a", name), &spec).map(Arc::new).map_err(|problems| format!("{problems:?}"))
}

fn platform(name: &str, spec: Json) -> Arc<CompiledProfile> {
    Arc::new(compile(&ProfileName::cluster(name), &serde_json::from_value(spec).unwrap()).unwrap())
}

/// Makes the decision for the creation of [`pod`], on a stack as small as those of the threads that serve requests.
/// Returns the decision and the patched pod. Panics if the decision exceeds [`LIMIT`] or [`MEMORY`].
fn decide(profiles: Vec<Arc<CompiledProfile>>) -> (Decided, Json) {
    decide_about(pod(), profiles)
}

/// Like [`decide`], but for the creation of the given pod.
fn decide_about(pod: Json, profiles: Vec<Arc<CompiledProfile>>) -> (Decided, Json) {
    let run = move || {
        let snapshot = Snapshot::new(ProfileSet::new(profiles))
            .with_namespace("team-a", Some(Namespace::opted_in(FailureMode::Enabled)));
        let body = review(&pod);
        let began = Instant::now();
        let mut decided = None;
        let info = allocation_counter::measure(|| decided = Some(respond(&body, &snapshot).0));
        assert!(began.elapsed() < LIMIT, "{:?}", began.elapsed());
        assert!(info.bytes_max < MEMORY, "{} bytes", info.bytes_max);
        let decided = decided.unwrap();
        let object = patched(&body, &decided);
        (decided, object)
    };
    std::thread::Builder::new().stack_size(2 << 20).spawn(run).unwrap().join().expect("the stack is large enough")
}

fn annotated(variables: &[(String, String)], value: &str) -> Json {
    let variables: Vec<_> =
        variables.iter().map(|(name, expression)| json!({"name": name, "expression": expression})).collect();
    json!({"activation": "Always", "variables": variables,
        "template": {"metadata": {"annotations": {"x.example.com/y": value}}}})
}

fn many_patterns(pattern: impl Fn(usize) -> String) -> Json {
    let variables: Vec<_> = (0..128)
        .map(|variable| {
            let matches: Vec<_> =
                (0..15).map(|place| format!(r"'a'.matches('{}')", pattern(15 * variable + place))).collect();
            (format!("v{variable}"), matches.join(" || "))
        })
        .collect();
    annotated(&variables, "z")
}

#[test]
fn equal_patterns_are_compiled_once() {
    let mut compiled = None;
    let info = allocation_counter::measure(|| compiled = Some(tenant("same", many_patterns(|_| r"\\w{4}".to_owned()))));
    compiled.unwrap().unwrap();
    assert!(info.bytes_max < MEMORY, "{} bytes", info.bytes_max);
}

#[test]
fn many_large_patterns_are_rejected() {
    for pattern in
        [|number: usize| format!(r"\\pL{{4}}{number}"), |number: usize| format!(r"(a|b)*a(a|b){{12}}{number}")]
    {
        let mut compiled = None;
        let info = allocation_counter::measure(|| compiled = Some(tenant("many", many_patterns(pattern))));
        let problem = compiled.unwrap().unwrap_err();
        assert!(problem.contains("take more than 4 MiB of memory together"), "{problem}");
        assert!(info.bytes_max < 2 * MEMORY, "{} bytes", info.bytes_max);
    }
}

/// Returns a profile with 128 parameters that the annotation `a` sets.
fn with_parameters(parameter: impl Fn(usize) -> Json) -> Json {
    let parameters: Vec<_> = (0..128)
        .map(|number| {
            let mut parameter = parameter(number);
            parameter["name"] = json!(format!("p{number}"));
            parameter["annotation"] = json!("a");
            parameter["sources"] = json!(["Pod"]);
            parameter
        })
        .collect();
    json!({"activation": "Always", "parameters": parameters,
        "template": {"metadata": {"annotations": {"x.example.com/y": "z"}}}})
}

#[test]
fn many_large_parameter_patterns_are_rejected() {
    for is_item in [false, true] {
        let spec = with_parameters(|number| {
            let pattern = format!(r"\pL{{4}}{number}");
            if is_item {
                json!({"type": "list", "items": {"type": "string", "pattern": pattern}})
            } else {
                json!({"type": "string", "pattern": pattern})
            }
        });
        let mut compiled = None;
        let info = allocation_counter::measure(|| compiled = Some(tenant("many", spec)));
        let problem = compiled.unwrap().unwrap_err();
        assert!(problem.contains("take more than 4 MiB of memory together"), "{problem}");
        assert!(info.bytes_max < 2 * MEMORY, "{} bytes", info.bytes_max);
    }
}

#[test]
fn values_of_parameters_are_charged() {
    const BYTES: usize = 200 << 10;
    let text = |part: &str| part.repeat(BYTES / part.len());
    let allowed: Vec<_> = (0..64).map(|number| format!("{}{number}", "v".repeat(60))).collect();
    for (name, value, parameter) in [
        ("pattern", text("ab"), json!({"type": "string", "pattern": "(a|b)*a(a|b){500}"})),
        ("items", text("ab,"), json!({"type": "list", "items": {"type": "string", "pattern": "(a|b)*a(a|b){200}"}})),
        (
            "enum",
            text(&format!("{},", "v".repeat(61))),
            json!({"type": "list", "items": {"type": "string", "enum": allowed}}),
        ),
        ("list", text("a,"), json!({"type": "list"})),
        ("pairs", text("a=b,"), json!({"type": "map"})),
        ("JSON", format!("[{}0]", text("0,")), json!({"type": "list", "format": "JSON"})),
        ("YAML", text("- a\n"), json!({"type": "list", "format": "YAML"})),
        ("nested YAML", format!("a: [{}0]", text("[],")), json!({"type": "object", "format": "YAML"})),
    ] {
        let spec = with_parameters(|_| parameter.clone());
        let profiles = (0..20).map(|number| tenant(&format!("p{number}"), spec.clone()).unwrap()).collect();
        let mut pod = pod();
        pod["metadata"]["annotations"] = json!({"a": value});
        let began = Instant::now();
        let (decided, _) = decide_about(pod, profiles);
        println!("{name}: {:?}", began.elapsed());
        let reasons: Vec<_> = decided.decision.profiles.iter().map(|decision| decision.reason.as_str()).collect();
        assert!(reasons.iter().all(|reason| *reason == "expression_failed"), "{name}: {reasons:?}");
    }
}

#[test]
fn searches_for_parameters_are_charged() {
    // Many short annotations, which each parameter searches for its keys.
    let annotations: serde_json::Map<_, _> = (0..40_000).map(|number| (format!("{number:x}"), json!(""))).collect();
    let mut pod = pod();
    pod["metadata"]["annotations"] = Json::Object(annotations);
    let keys: Vec<_> = (0..64).map(|number| format!("key-{number}")).collect();
    let mut spec = with_parameters(|_| json!({"type": "string"}));
    for parameter in spec["parameters"].as_array_mut().unwrap() {
        parameter["annotation"] = json!(keys);
    }
    let prefix = with_parameters(|_| json!({"type": "map"}));
    let mut prefixes = prefix.clone();
    for parameter in prefixes["parameters"].as_array_mut().unwrap() {
        parameter.as_object_mut().unwrap().remove("annotation");
        parameter["annotationPrefix"] = json!("x");
    }
    for spec in [spec, prefixes] {
        let profiles = (0..20).map(|number| tenant(&format!("p{number}"), spec.clone()).unwrap()).collect();
        let began = Instant::now();
        decide_about(pod.clone(), profiles);
        println!("{:?}", began.elapsed());
    }
}

#[test]
fn many_parts_are_rejected() {
    let sum = |terms: usize| format!("1{}", "+1".repeat(terms));
    let variables: Vec<_> = (0..128).map(|number| (format!("v{number}"), sum(30))).collect();
    let mut spec = annotated(&variables, "z");
    tenant("some", spec.clone()).unwrap();
    let validations: Vec<_> = (0..850).map(|_| json!(format!("${{{}}}", sum(30)))).collect();
    spec["template"]["spec"] = json!({"containers": [{"name": "c", "image": "i", "args": validations}]});
    let problem = tenant("many", spec).unwrap_err();
    assert!(problem.contains("parts in total"), "{problem}");
}

#[test]
fn nesting_of_values_is_bounded() {
    for (opening, closing) in [("[", "]"), ("{'a':", "}"), ("optional.of(", ")"), ("[[{'a':optional.of(", ")}]]")] {
        let times = 24 / opening.matches(['[', '{', '(']).count();
        let mut variables = vec![("v0".to_owned(), "[1]".to_owned())];
        variables.extend((1..127).map(|number| {
            let (open, close) = (opening.repeat(times), closing.repeat(times));
            (format!("v{number}"), format!("{open}variables.v{}{close}", number - 1))
        }));
        for value in ["${toJson(variables.v126)}", "${string(variables.v126 == variables.v126)}", "${variables.v126}"] {
            // The conditions evaluate the variables in order, which avoids deep recursion.
            let mut spec = annotated(&variables, value);
            spec["matchConditions"] = (1..127)
                .map(|number| json!({"name": format!("c{number}"), "expression": format!("type(variables.v{number}) != string")}))
                .collect();
            let (decided, object) = decide(vec![tenant("deep", spec).unwrap()]);
            let decision = &decided.decision.profiles[0];
            assert_eq!(decision.reason.as_str(), "expression_failed", "{opening}: {decision:?}");
            assert_eq!(object, pod());
        }
    }
}

/// Returns variables named `name` followed by a number. Number 0 is the string `first`, and each later variable is
/// twice the previous string.
fn doubled(name: &str, first: &str, times: usize) -> Vec<(String, String)> {
    let mut variables = vec![(format!("{name}0"), format!("'{first}'"))];
    variables.extend((1..=times).map(|number| {
        let before = number - 1;
        (format!("{name}{number}"), format!("variables.{name}{before} + variables.{name}{before}"))
    }));
    variables
}

#[test]
fn replacements_of_replacements_are_not_expanded() {
    for replacement in ["$0", "${0}", "$1", "x"] {
        let mut variables = doubled("m", &"a".repeat(500), 8);
        variables.extend(doubled("r", &replacement.repeat(500 / replacement.len()), 7));
        for pattern in ["a+", "(a+)", "a", ""] {
            let value = format!("${{string(regex.replace(variables.m8, '{pattern}', variables.r7).size())}}");
            let (decided, _) = decide(vec![tenant("long", annotated(&variables, &value)).unwrap()]);
            let reason = decided.decision.profiles[0].reason.as_str();
            // A single match needs little work. A reference to a group that the pattern does not have is replaced with
            // nothing.
            let expected = match (replacement, pattern) {
                ("$1", "a+") | ("x", "a+" | "(a+)") => "injected",
                _ => "expression_failed",
            };
            assert_eq!(reason, expected, "{replacement} {pattern}");
        }
    }
}

/// Returns a profile that calls the macro `call` on a long list. For each item, the macro ignores an error that was
/// expensive to compute.
fn failing(call: &str) -> Json {
    let variables = [
        ("a".to_owned(), "lists.range(250)".to_owned()),
        ("b".to_owned(), "lists.range(250).map(i, variables.a)".to_owned()),
        ("c".to_owned(), "[variables.b, variables.b]".to_owned()),
    ];
    annotated(&variables, &format!("${{string(lists.range(50000).{call})}}"))
}

#[test]
fn failing_work_is_charged() {
    for call in [
        "exists(i, toJson(variables.c) == '')",
        "all(i, toJson(variables.c) == '')",
        "exists(i, jsonPatch(variables.c, [{'op': 'remove', 'path': '/x'}]) == [])",
        "exists(i, parseJson(variables.b.map(x, '[').join('')) == [])",
        "exists(i, variables.c.sort() == [])",
        "exists(i, variables.b.distinct().sum() == 0)",
        "exists(i, {}.missing == 1) || true",
    ] {
        let profiles = (0..6).map(|number| tenant(&format!("slow{number}"), failing(call)).unwrap()).collect();
        let (decided, _) = decide(profiles);
        // The first profile uses up the namespace's budget, so the others do not start.
        let reasons: Vec<_> = decided.decision.profiles.iter().map(|decision| decision.reason.as_str()).collect();
        assert_eq!(reasons[0], "expression_failed", "{call}: {:?}", decided.decision.profiles[0]);
        let is_left_out = |reason: &&str| matches!(*reason, "expression_failed" | "limit_exceeded");
        assert!(reasons.iter().all(is_left_out), "{call}: {reasons:?}");
    }
}

#[test]
fn tenant_uses_no_platform_budget() {
    let guard = json!({"activation": "Always", "variables": [{"name": "v", "expression": "lists.range(5000).map(i, i + 1).sum()"}],
        "template": {"metadata": {"annotations": {"guard.example.com/v": "${string(variables.v)}"}}}});
    // All conditions are evaluated before the first template is.
    let mut slow = failing("exists(i, toJson(variables.c) == '')");
    slow["matchConditions"] =
        json!([{"name": "slow", "expression": "!lists.range(50000).exists(i, toJson(variables.c) == '')"}]);
    let mut profiles: Vec<_> = (0..20).map(|number| tenant(&format!("slow{number}"), slow.clone()).unwrap()).collect();
    profiles.push(platform("guard", guard));
    let (_, object) = decide(profiles);
    assert_eq!(object["metadata"]["annotations"]["guard.example.com/v"], "12502500");
}

/// Each namespaced profile's result is checked on the whole pod. The budget limits these checks, but it is large enough
/// for all profiles on a pod of usual size.
#[test]
fn checks_of_many_profiles_are_charged() {
    let profiles = || -> Vec<_> {
        let profile = |number: usize| {
            let key = format!("x.example.com/{number}");
            json!({"activation": "Always", "template": {"metadata": {"annotations": {key: "y"}}}})
        };
        (0..64).map(|number| tenant(&format!("p{number}"), profile(number)).unwrap()).collect()
    };
    let with_env = |count: usize| {
        let mut pod = pod();
        pod["spec"]["containers"][0]["env"] =
            (0..count).map(|number| json!({"name": format!("E{number}"), "value": "v"})).collect();
        pod
    };
    for (count, expected) in [(100, "injected"), (35_000, "limit_exceeded")] {
        let (decided, _) = decide_about(with_env(count), profiles());
        let last = decided.decision.profiles.last().unwrap();
        assert_eq!(last.reason.as_str(), expected, "{last:?}");
        assert_eq!(decided.decision.profiles[0].reason.as_str(), "injected");
    }
}

/// Returns the decision for a profile at the creation of [`pod`], with this deadline.
fn decide_until(profile: &Arc<CompiledProfile>, deadline: Option<Instant>) -> ProfileDecision {
    let namespace = Namespace::opted_in(FailureMode::Enabled);
    let profiles = ProfileSet::new([Arc::clone(profile)]);
    let snapshot = Snapshot::new(profiles).with_namespace("team-a", Some(namespace.clone()));
    let facts = Facts { namespace: Some(Arc::new(namespace)), deadline, ..Facts::default() };
    let body = review(&pod());
    let review = Review::parse(&body).unwrap();
    let decided = review.decide(Endpoint::FailureMode(FailureMode::Enabled), &snapshot, &facts).unwrap();
    decided.decision.profiles[0].clone()
}

/// Whether the deadline ended an evaluation of the profile.
fn has_ended_at_deadline(decision: &ProfileDecision) -> bool {
    decision.detail.as_deref().is_some_and(|detail| detail.contains("the deadline of the request"))
}

#[test]
fn expressions_end_at_request_deadline() {
    let profile = tenant("long", annotated(&[], "${string(lists.range(10000).all(i, i >= 0))}")).unwrap();
    for (deadline, expected) in [(None, "injected"), (Some(Instant::now()), "expression_failed")] {
        let decision = decide_until(&profile, deadline);
        assert_eq!(decision.reason.as_str(), expected, "{decision:?}");
        assert_eq!(has_ended_at_deadline(&decision), deadline.is_some(), "{decision:?}");
    }
}

#[test]
fn deadline_ends_running_expression() {
    let profile = tenant("long", annotated(&[], "${string(lists.range(20000).all(i, i >= 0))}")).unwrap();
    let began = Instant::now();
    let complete = decide_until(&profile, None);
    let took = began.elapsed();
    assert_eq!(complete.reason.as_str(), "injected", "{complete:?}");
    // On a busy machine, a decision may pause before the evaluation or end before the deadline.
    let ends_midway = (0..100).any(|_| has_ended_at_deadline(&decide_until(&profile, Some(Instant::now() + took / 2))));
    assert!(ends_midway, "no decision of {took:?} ended at half of its time");
}

/// Returns the smallest profile, and profiles that are each large in one respect, with descriptions.
fn large_profiles() -> Vec<(&'static str, Json)> {
    let with = |template: Json| json!({"template": template});
    let annotations = |count: usize, value: &dyn Fn(usize) -> String| {
        let all = (0..count).map(|number| (format!("a/{number}"), json!(value(number))));
        with(json!({"metadata": {"annotations": all.collect::<serde_json::Map<_, _>>()}}))
    };
    let variables = |count: usize, expression: &dyn Fn(usize) -> String| {
        let all = (0..count).map(|number| json!({"name": format!("v{number}"), "expression": expression(number)}));
        json!({"variables": all.collect::<Vec<_>>(), "template": {"metadata": {"annotations": {"a/b": "c"}}}})
    };
    let containers = |count: usize, beside: &Json| {
        let all = (0..count).map(|number| {
            let mut container = beside.clone();
            (container["name"], container["image"]) = (json!(format!("c{number}")), json!("i:1"));
            container
        });
        with(json!({"spec": {"containers": all.collect::<Vec<_>>()}}))
    };
    vec![
        ("smallest", annotations(1, &|_| "b".to_owned())),
        ("one text", annotations(1, &|_| "b".repeat(60_000))),
        ("many texts", annotations(3_000, &|_| "b".to_owned())),
        ("many escapes", annotations(1, &|_| "\n".repeat(30_000))),
        ("many expressions", annotations(1_500, &|_| "${1 + 2}".to_owned())),
        ("small expressions", annotations(1_500, &|_| "${1}".to_owned())),
        ("mixed texts", annotations(20, &|_| "${'a'}b".repeat(250))),
        ("variables", variables(128, &|_| "[1, 2, 3, 4, 5, 6, 7, 8].map(x, x + 1)".to_owned())),
        ("long lists", variables(100, &|_| format!("[{}]", "1,".repeat(150) + "1"))),
        ("literals", variables(100, &|_| format!("'{}'", "a".repeat(1_000)))),
        ("patterns", variables(20, &|number| format!("'a'.matches('[a-z]{{1,{}}}x')", number + 10))),
        ("containers", containers(1_200, &json!({}))),
        ("directives", containers(700, &json!({"$when": "1 == 1"}))),
        (
            "many directives",
            containers(
                250,
                &json!({"$when": "true", "$conflict": "Keep", "$position": "First",
            "args": {"$value": ["a"], "$join": {"separator": ","}}}),
            ),
        ),
        ("loops", containers(300, &json!({"$forEach": "[1]"}))),
        (
            "parameters",
            json!({"parameters": (0..128).map(|number| json!({
                "name": format!("p{number}"), "type": "string", "default": "d", "annotation": format!("a/p{number}"), "sources": ["Pod"]})).collect::<Vec<_>>(),
            "template": {"metadata": {"annotations": {"a/b": "${params.p1}"}}}}),
        ),
        (
            "container patches",
            json!({"containerPatches": (0..64).map(|number| json!({
                "name": format!("r{number}"), "matchConditions": [{"name": "c", "expression": "container.name == 'a'"}],
                "template": {"env": [{"name": "A", "value": "${container.name}"}]}})).collect::<Vec<_>>()}),
        ),
    ]
}

#[test]
fn compiled_profiles_stay_within_reported_memory() {
    let mut seen = std::collections::BTreeSet::new();
    for (what, spec) in large_profiles() {
        for is_namespaced in [false, true] {
            let spec = serde_json::from_value(spec.clone()).unwrap();
            let name = if is_namespaced { ProfileName::namespaced("team-a", "p") } else { ProfileName::cluster("p") };
            let mut compiled = None;
            let info = allocation_counter::measure(|| compiled = compile(&name, &spec).ok());
            let Some(compiled) = compiled else { continue };
            let (taken, said) = (info.bytes_current, i64::try_from(compiled.memory()).unwrap());
            println!("{what}: takes {taken} bytes, reports {said}");
            assert!(taken <= said, "{what}: takes {taken} bytes, but reports {said}");
            seen.insert(what);
        }
    }
    assert_eq!(seen.len(), large_profiles().len(), "some profiles do not compile");
}
