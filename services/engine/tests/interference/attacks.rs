//! Tests namespaced profiles that once reverted the changes of cluster profiles.
//!
//! In this module, a child is a namespaced profile that only sets values of its parent, a cluster profile. If the
//! parent is also requested, the child is applied instead of it. A guard is a cluster profile whose changes must
//! remain.

use std::sync::Arc;

use pillion_api::names::FailureMode;
use pillion_engine::decision::{Outcome, ProfileOutcome, Reason};
use pillion_engine::profile::CompiledProfile;
use pillion_engine::review::{Endpoint, Facts, Review};
use pillion_engine::snapshot::{ProfileSet, Snapshot};
use serde_json::{Value as Json, json};

use super::{NAMESPACE, compiled, pass};

fn guard() -> Json {
    json!({
        "activation": "Always", "optOut": "Forbidden",
        "template": {
            "metadata": {"labels": {"guard.example.com/on": "true"}},
            "spec": {"containers": [{
                "name": "guard", "image": "registry.example.com/guard:1.0", "env": [{"name": "MODE", "value": "enforce"}],
            }]},
        },
        "containerPatches": [{"name": "proxy", "match": {"types": ["App"]}, "template": {
            "env": [{"name": "HTTPS_PROXY", "value": "http://egress-guard:3128", "$conflict": "Replace"}],
        }}],
    })
}

fn pod() -> Json {
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": "web", "labels": {"go": "y"}, "managedFields": [{"manager": "k", "operation": "Update", "fieldsV1": {}}]},
        "spec": {"containers": [{"name": "web", "image": "registry.example.com/shop/web:1.0"}]},
    })
}

fn named<const N: usize>(profiles: [(&str, Json); N]) -> Vec<(String, Json)> {
    profiles.into_iter().map(|(name, spec)| (name.to_owned(), spec)).collect()
}

/// Returns the pod after two passes, and the outcomes of the namespaced profiles in the first pass.
fn injected<const P: usize, const N: usize>(
    object: &Json,
    platform: [(&str, Json); P],
    own: [(&str, Json); N],
) -> (Json, Vec<(ProfileOutcome, Reason)>) {
    let (platform, namespaced) = compiled(&named(platform), &named(own));
    assert_eq!((platform.len(), namespaced.len()), (P, N), "some profiles do not compile");
    let all: Vec<_> = platform.into_iter().chain(namespaced).collect();
    let (decided, first) = pass(object, &all, &[]);
    let first = first.unwrap();
    let (_, second) = pass(&first, &all, &[]);
    assert_eq!(second.as_ref(), Some(&first), "another pass changes the pod");
    let own = decided.decision.profiles.iter().filter(|decision| decision.profile.name().namespace.is_some());
    (first, own.map(|decision| (decision.outcome, decision.reason)).collect())
}

/// Asserts that the pod has the values that [`guard`] sets.
fn assert_guarded(pod: &Json) {
    let containers = pod["spec"]["containers"].as_array().unwrap();
    let guards: Vec<_> = containers.iter().filter(|container| container["name"] == "guard").collect();
    assert_eq!(guards, [&guard()["template"]["spec"]["containers"][0]], "{pod}");
    let web = containers.iter().find(|container| container["name"] == "web").unwrap();
    let env = web["env"].as_array().unwrap();
    let proxies: Vec<_> = env.iter().filter(|entry| entry["name"] == "HTTPS_PROXY").collect();
    assert_eq!(proxies, [&json!({"name": "HTTPS_PROXY", "value": "http://egress-guard:3128"})], "{pod}");
    assert_eq!(pod["metadata"]["labels"]["guard.example.com/on"], "true", "{pod}");
}

fn replacing() -> Json {
    json!({
        "order": 200,
        "template": {
            "metadata": {"labels": {"guard.example.com/on": {"$value": "false", "$conflict": "Replace"}}},
            "spec": {"containers": [{
                "name": "guard", "$conflict": "Replace", "image": "registry.example.com/evil:1.0", "command": ["sleep", "inf"],
                "env": [{"name": "MODE", "value": "off"}],
            }]},
        },
        "containerPatches": [{"name": "x", "match": {"types": ["App"]}, "template": {"env": [{"$prune": "item.name == 'HTTPS_PROXY'"}]}}],
    })
}

const LEFT_OUT: (ProfileOutcome, Reason) = (ProfileOutcome::Skipped, Reason::LimitExceeded);
const APPLIED: (ProfileOutcome, Reason) = (ProfileOutcome::Applied, Reason::Injected);

#[test]
fn child_keeps_protection_of_parent() {
    let child = json!({"extends": {"name": "guard"}});
    let (pod, own) = injected(&pod(), [("guard", guard())], [("a", child), ("own", replacing())]);
    assert_guarded(&pod);
    assert_eq!(own, [APPLIED, LEFT_OUT]);
}

/// A child is applied in the order of its parent, regardless of its own `order`.
#[test]
fn child_is_applied_in_order_of_parent() {
    let second = json!({"activation": "Always", "order": 200, "containerPatches": [{
        "name": "traced", "match": {"types": ["Injected"]}, "template": {"env": [{"name": "TRACE", "value": "on"}]},
    }]});
    let child = json!({"extends": {"name": "guard"}, "order": 900});
    let (pod, own) = injected(&pod(), [("guard", guard()), ("second", second)], [("a", child)]);
    let traced = json!([{"name": "MODE", "value": "enforce"}, {"name": "TRACE", "value": "on"}]);
    assert_eq!(pod["spec"]["containers"][1]["env"], traced, "{pod}");
    assert_eq!(own, [APPLIED]);
}

/// A parameter that a namespace may set can make the child fail. In this case, the parent is applied.
#[test]
fn skipped_child_lets_parent_apply() {
    let mut named = guard();
    named["failurePolicy"] = json!("Ignore");
    named["parameters"] = json!([{"name": "name", "type": "string", "default": "guard", "annotation": "x/name", "sources": ["Namespace"]}]);
    named["template"]["spec"]["containers"][0]["name"] = json!("${params.name}");
    let child = json!({"extends": {"name": "guard"}, "parameters": [{"name": "name", "default": "web"}]});
    let (pod, own) = injected(&pod(), [("guard", named)], [("a", child)]);
    assert_guarded(&pod);
    assert_eq!(own, [(ProfileOutcome::Skipped, Reason::NameTaken)]);
}

/// The child of a profile that is not requested is applied after all cluster profiles, and must not change their
/// values.
#[test]
fn child_of_unrequested_profile_changes_nothing_of_others() {
    let idle = json!({"activation": "Never", "order": 1, "template": {
        "metadata": {"labels": {"guard.example.com/on": {"$value": "idle", "$conflict": "Replace"}}},
    }});
    let child = json!({"extends": {"name": "idle"}});
    let (pod, own) = injected(&pod(), [("guard", guard()), ("idle", idle)], [("a", child)]);
    assert_guarded(&pod);
    assert_eq!(own, [LEFT_OUT]);
}

#[test]
fn join_adds_no_second_variable_of_a_name() {
    let value = json!({"name": "HTTPS_PROXY", "value": "http://evil:1"});
    let rule = |template: Json| json!({"containerPatches": [{"name": "o", "match": {"types": ["App"]}, "template": template}]});
    let mut with_variable = pod();
    with_variable["spec"]["containers"][0]["env"] = json!([{"name": "OWN", "value": "http://evil:1"}]);
    for (object, template, expected) in [
        (pod(), json!({"env": {"$value": [value], "$join": {}}}), (ProfileOutcome::Unchanged, Reason::AlreadyInjected)),
        (pod(), json!({"env": {"$value": [value, {"name": "NEW", "value": "1"}], "$join": {}}}), APPLIED),
        (
            with_variable,
            json!({"env": [{"$forEach": "existing", "$when": "item.name == 'OWN'", "$conflict": "Replace", "name": "HTTPS_PROXY"}]}),
            LEFT_OUT,
        ),
    ] {
        let (pod, own) = injected(&object, [("guard", guard())], [("own", rule(template.clone()))]);
        assert_guarded(&pod);
        assert_eq!(own, [expected], "{template}");
    }
}

#[test]
fn platform_elements_stay_first() {
    let lock = |position: Json| {
        let mut lock = json!({"name": "egress-lock", "image": "registry.example.com/lock:1"});
        if !position.is_null() {
            lock["$position"] = position;
        }
        json!({"activation": "Always", "optOut": "Forbidden", "template": {"spec": {"initContainers": [lock]}}})
    };
    let early = |position: Json| {
        let container = json!({"name": "early", "$position": position, "image": "registry.example.com/x:1"});
        json!({"template": {"spec": {"initContainers": [container]}}})
    };
    let mut with_init = pod();
    with_init["spec"]["initContainers"] = json!([{"name": "setup", "image": "registry.example.com/setup:1"}]);
    for object in [pod(), with_init] {
        for locked in [json!("First"), Json::Null, json!({"before": "setup"})] {
            if locked.is_null() && object != pod() {
                continue;
            }
            for (position, expected) in [
                (json!("First"), APPLIED),
                (json!({"after": "egress-lock"}), APPLIED),
                (json!({"before": "egress-lock"}), LEFT_OUT),
            ] {
                let (pod, own) =
                    injected(&object, [("lock", lock(locked.clone()))], [("own", early(position.clone()))]);
                assert_eq!(pod["spec"]["initContainers"][0]["name"], "egress-lock", "{locked} {position}: {pod}");
                assert_eq!(own, [expected], "{locked} {position}");
            }
        }
    }
    let moving = json!({"template": {"spec": {"initContainers": [
        {"name": "after", "image": "registry.example.com/x:1"},
        {"name": "egress-lock", "image": "registry.example.com/lock:1", "$conflict": "Merge", "$position": "Last"},
    ]}}});
    let (pod, _) = injected(&pod(), [("lock", lock(Json::Null))], [("own", moving)]);
    assert_eq!(pod["spec"]["initContainers"][0]["name"], "egress-lock", "{pod}");
}

#[test]
fn large_namespaced_profiles_displace_no_platform_profiles() {
    let mut guard = guard();
    guard["failurePolicy"] = json!("Ignore");
    let fat = |number: usize| {
        let container =
            json!({"name": format!("c{number}"), "image": "registry.example.com/x:1", "args": ["a".repeat(60_000)]});
        json!({"template": {"spec": {"containers": [container]}}})
    };
    let own = ["f0", "f1", "f2", "f3", "f4", "f5"].into_iter().enumerate();
    let own: Vec<_> = own.map(|(number, name)| (name.to_owned(), fat(number))).collect();
    let (platform, namespaced) = compiled(&named([("guard", guard)]), &own);
    let all: Vec<_> = platform.into_iter().chain(namespaced).collect();
    let (decided, first) = pass(&pod(), &all, &[]);
    let became: Vec<_> = decided.decision.profiles.iter().map(|decision| (decision.outcome, decision.reason)).collect();
    assert_eq!(became, [APPLIED, APPLIED, APPLIED, APPLIED, APPLIED, LEFT_OUT, LEFT_OUT]);
    assert_guarded(first.as_ref().unwrap());
    // In a second pass, the patch does not contain the existing containers, so it is far below the size limit. The
    // guard's changes must stay.
    assert_guarded(&pass(&first.unwrap(), &all, &[]).1.unwrap());
}

/// A parameter that a namespace may set can make the result too large. In this case, the child is skipped, and the
/// parent is applied with the platform's value.
#[test]
fn child_with_large_value_is_skipped() {
    let mut sized = guard();
    sized["failurePolicy"] = json!("Ignore");
    sized["parameters"] =
        json!([{"name": "text", "type": "string", "default": "", "annotation": "x/text", "sources": ["Namespace"]}]);
    sized["variables"] =
        json!([{"name": "long", "expression": "params.text + params.text + params.text + params.text"}]);
    sized["template"]["metadata"]["annotations"] =
        json!({"x.example.com/text": "${variables.long}", "x.example.com/more": "${variables.long}"});
    let child = json!({"extends": {"name": "guard"}, "parameters": [{"name": "text", "default": "x".repeat(40_000)}]});
    let (pod, own) = injected(&pod(), [("guard", sized)], [("a", child)]);
    assert_guarded(&pod);
    assert_eq!(own, [LEFT_OUT]);
}

/// Returns a profile for an agent with two parameters that a namespace may set: the name of its container, and the CPU
/// limit of the author's containers.
fn agent() -> Json {
    let parameter = |name: &str, default: &str| json!({"name": name, "type": "string", "default": default, "annotation": format!("agent/{name}"), "sources": ["Namespace"]});
    json!({
        "activation": "Always", "order": 1, "parameters": [parameter("name", "agent"), parameter("cpu", "4")],
        "template": {"spec": {"containers": [{"name": "${params.name}", "image": "registry.example.com/agent:1"}]}},
        "containerPatches": [{"name": "limits", "match": {"types": ["App"]}, "template": {
            "resources": {"limits": {"cpu": "${params.cpu}"}},
        }}],
    })
}

/// A parameter that a namespace sets for one cluster profile must not prevent another cluster profile from being
/// applied. If it would do so, the platform's value of the parameter is used instead.
#[test]
fn child_displaces_no_later_cluster_profile() {
    let requests = json!([{"name": "requests", "match": {"types": ["App"]}, "template": {"resources": {"requests": {"cpu": "2"}}}}]);
    for (policy, name, value) in
        [("Ignore", "name", "guard"), ("Fail", "name", "guard"), ("Ignore", "cpu", "1"), ("Fail", "cpu", "1")]
    {
        let mut guard = guard();
        guard["order"] = json!(200);
        guard["failurePolicy"] = json!(policy);
        let more = requests.as_array().unwrap().clone();
        guard["containerPatches"].as_array_mut().unwrap().extend(more);
        let child = json!({"extends": {"name": "agent"}, "parameters": [{"name": name, "default": value}]});
        let (pod, own) = injected(&pod(), [("agent", agent()), ("guard", guard)], [("a", child)]);
        assert_guarded(&pod);
        assert_eq!(own, [LEFT_OUT], "{policy} {name}");
        assert_eq!(pod["spec"]["containers"][1]["name"], "agent", "{policy} {name}: {pod}");
        let resources = json!({"limits": {"cpu": "4"}, "requests": {"cpu": "2"}});
        assert_eq!(pod["spec"]["containers"][0]["resources"], resources, "{policy} {name}");
    }
}

/// If the author's values equal those of a cluster profile, they are also protected from namespaced profiles.
#[test]
fn confirmed_values_are_protected() {
    let mut copied = pod();
    copied["metadata"]["labels"]["guard.example.com/on"] = json!("true");
    copied["spec"]["containers"][0]["env"] = json!([{"name": "HTTPS_PROXY", "value": "http://egress-guard:3128"}]);
    let mut containers = copied["spec"]["containers"].as_array().unwrap().clone();
    containers.push(guard()["template"]["spec"]["containers"][0].clone());
    copied["spec"]["containers"] = json!(containers);
    let label = json!({"template": {"metadata": {"labels": {"guard.example.com/on": {"$value": "false", "$conflict": "Replace"}}}}});
    let variable = json!({"containerPatches": [{"name": "o", "match": {"types": ["App"]}, "template": {
        "env": [{"name": "HTTPS_PROXY", "value": "http://evil:1", "$conflict": "Replace"}],
    }}]});
    let container = json!({"template": {"spec": {"containers": [{"name": "guard", "$conflict": "Replace", "image": "registry.example.com/evil:1"}]}}});
    for own in [label, variable, container, replacing()] {
        let (pod, became) = injected(&copied, [("guard", guard())], [("own", own.clone())]);
        assert_guarded(&pod);
        assert_eq!(became, [LEFT_OUT], "{own}");
    }
}

/// If another webhook changes the pod between two passes, a cluster profile may add a container that a namespaced
/// profile added in the first pass.
#[test]
fn platform_takes_precedence_in_second_pass() {
    let late = json!({"activation": "Always", "template": {"spec": {"containers": [{
        "name": "guard", "image": "registry.example.com/guard:1.0",
        "$when": "object.spec.containers.exists(c, c.name == 'mesh')",
    }]}}});
    let own =
        json!({"template": {"spec": {"containers": [{"name": "guard", "image": "registry.example.com/evil:1.0"}]}}});
    let (platform, namespaced) = compiled(&named([("late", late)]), &named([("own", own)]));
    let all: Vec<_> = platform.into_iter().chain(namespaced).collect();
    let mut between = pass(&pod(), &all, &[]).1.unwrap();
    assert_eq!(between["spec"]["containers"][1]["image"], "registry.example.com/evil:1.0");
    between["spec"]["containers"]
        .as_array_mut()
        .unwrap()
        .push(json!({"name": "mesh", "image": "registry.example.com/mesh:1"}));
    let (decided, after) = pass(&between, &all, &[]);
    let after = after.unwrap();
    let guards: Vec<_> = after["spec"]["containers"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|container| container["name"] == "guard")
        .collect();
    assert_eq!(guards, [&json!({"name": "guard", "image": "registry.example.com/guard:1.0"})], "{after}");
    let own = decided.decision.profiles.last().unwrap();
    assert_eq!((own.outcome, own.reason), LEFT_OUT);
    assert!(own.detail.as_deref().unwrap().contains("cluster profile"), "{:?}", own.detail);
    let (again, settled) = pass(&after, &all, &[]);
    assert_eq!((again.patch, settled), (None, Some(after)));
}

/// Whether the validations of `profiles` accept an object.
fn is_valid(object: &Json, operation: &str, profiles: &[Arc<CompiledProfile>]) -> bool {
    let review = json!({
        "apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview",
        "request": {
            "uid": "u", "namespace": NAMESPACE, "operation": operation, "object": object, "oldObject": object,
            "resource": {"group": "", "version": "v1", "resource": "pods"},
        },
    });
    let body = review.to_string();
    let snapshot = Snapshot::new(ProfileSet::new(profiles.iter().map(Arc::clone)));
    let endpoint = Endpoint::ValidateFailureMode(FailureMode::Enabled);
    let decided = Review::parse(body.as_bytes()).unwrap().decide(endpoint, &snapshot, &Facts::default()).unwrap();
    match decided.decision.outcome {
        Outcome::Validated => true,
        Outcome::Denied => false,
        other => panic!("{other:?}"),
    }
}

/// In expressions, `ours` is true for containers of cluster profiles and of children, even if the parent is not
/// requested. It is false for containers of other namespaced profiles.
#[test]
fn only_platform_containers_are_ours() {
    let judge = json!({
        "activation": "Always",
        "target": {"version": "v1", "resources": ["pods"], "operations": ["CREATE", "UPDATE"]},
        "validations": [{"expression": "containers.all(c, c.ours || !has(c.env))"}],
    });
    let container = json!({"name": "guard", "image": "registry.example.com/guard:1.0", "env": [{"name": "MODE", "value": "enforce"}]});
    let template = json!({"template": {"spec": {"containers": [container]}}});
    let mut always = template.clone();
    always["activation"] = json!("Always");
    let mut idle = template.clone();
    idle["activation"] = json!("Never");
    let child = json!({"extends": {"name": "adds"}});
    for (platform, own, expected) in [
        (vec![("adds", always.clone())], vec![], true),
        (vec![("adds", always)], vec![("own", child.clone())], true),
        (vec![("adds", idle)], vec![("own", child)], true),
        (vec![], vec![("own", template)], false),
    ] {
        let mut platform: Vec<_> = platform.into_iter().map(|(name, spec)| (name.to_owned(), spec)).collect();
        platform.push(("judge".to_owned(), judge.clone()));
        let own: Vec<_> = own.into_iter().map(|(name, spec)| (name.to_owned(), spec)).collect();
        let (cluster, namespaced) = compiled(&platform, &own);
        assert_eq!((cluster.len(), namespaced.len()), (platform.len(), own.len()), "some profiles do not compile");
        let all: Vec<_> = cluster.into_iter().chain(namespaced).collect();
        let stored = pass(&pod(), &all, &[]).1.unwrap();
        assert_eq!(stored["spec"]["containers"][1]["name"], "guard");
        for operation in ["CREATE", "UPDATE"] {
            assert_eq!(is_valid(&stored, operation, &all), expected, "{operation} {own:?}");
        }
    }
}

/// A namespaced profile must not remove an element and add it again. Even if the element stayed equal, the injection
/// record would attribute it to that profile.
#[test]
fn elements_are_not_removed_and_added_again() {
    let mut again = guard()["template"]["spec"]["containers"][0].clone();
    again["$position"] = json!("First");
    let own = json!({"template": {"spec": {"containers": [{"$prune": "item.name == 'guard'"}, again]}}});
    let (pod, became) = injected(&pod(), [("guard", guard())], [("own", own)]);
    assert_guarded(&pod);
    assert_eq!(became, [LEFT_OUT]);
}

#[test]
fn platform_mounts_are_not_hidden() {
    let mount = |folder: &str| {
        json!({
            "activation": "Always",
            "template": {"spec": {"volumes": [{"name": "certs", "configMap": {"name": "certs"}}]}},
            "containerPatches": [{"name": "m", "match": {"types": ["App"]}, "template": {
                "volumeMounts": [{"name": "certs", "mountPath": folder}],
            }}],
        })
    };
    for (folder, expected) in
        [("/etc/certs/", LEFT_OUT), ("/etc/./certs", LEFT_OUT), ("/etc/certs/ca.crt", LEFT_OUT), ("/etc/own", APPLIED)]
    {
        let mut own = mount(folder);
        own["template"]["spec"]["volumes"][0]["name"] = json!("own");
        own["containerPatches"][0]["template"]["volumeMounts"][0]["name"] = json!("own");
        let (_, became) = injected(&pod(), [("certs", mount("/etc/certs"))], [("own", own)]);
        assert_eq!(became, [expected], "{folder}");
    }
}

/// A label or annotation value that names a cluster profile and a namespaced profile requests both.
#[test]
fn profiles_of_same_name_are_both_requested() {
    let asked = |image: &str| {
        let container = json!({"name": "logger", "image": image});
        json!({"template": {"spec": {"containers": [container]}}, "requestedBy": {"label": "log", "truthy": ["yes"]}})
    };
    let platform = asked("registry.example.com/logger:1");
    for word in ["yes", "logger"] {
        let mut object = pod();
        object["metadata"]["labels"]["log"] = json!(word);
        let own = asked("registry.example.com/evil:1");
        let (pod, became) = injected(&object, [("logger", platform.clone())], [("logger", own)]);
        assert_eq!(pod["spec"]["containers"][1]["image"], "registry.example.com/logger:1", "{pod}");
        assert_eq!(became, [(ProfileOutcome::Skipped, Reason::NameTaken)], "{word}");
    }
    let mut object = pod();
    object["metadata"]["annotations"] = json!({"pillion.dev/profiles": "logger"});
    let own = json!({"template": {"metadata": {"labels": {"x.example.com/own": "1"}}}});
    let (pod, became) = injected(&object, [("logger", platform)], [("logger", own)]);
    assert_eq!(pod["spec"]["containers"][1]["image"], "registry.example.com/logger:1", "{pod}");
    assert_eq!(became, [APPLIED]);
}

/// If the spec of a child changes between two passes, or if the child is deleted, the pod keeps the changes of the
/// child's first pass.
#[test]
fn parent_keeps_changes_of_former_child() {
    let mut platform = guard();
    platform["parameters"] = json!([{"name": "mode", "type": "string", "default": "enforce", "annotation": "x/mode", "sources": ["Namespace"]}]);
    platform["template"]["spec"]["containers"][0]["env"][0]["value"] = json!("${params.mode}");
    let child = json!({"extends": {"name": "guard"}, "parameters": [{"name": "mode", "default": "audit"}]});
    let mut more = replacing();
    more["extends"] = json!({"name": "guard"});
    more["parameters"] = child["parameters"].clone();
    more["failurePolicy"] = json!("Ignore");
    let unmatched = json!({"extends": {"name": "guard"}, "objectSelector": {"matchLabels": {"go": "n"}}});
    let profiles = |own: Option<&Json>| -> Vec<Arc<CompiledProfile>> {
        let own: Vec<_> = own.map(|own| ("a".to_owned(), own.clone())).into_iter().collect();
        let (cluster, namespaced) = compiled(&[("guard".to_owned(), platform.clone())], &own);
        cluster.into_iter().chain(namespaced).collect()
    };
    let first = pass(&pod(), &profiles(Some(&child)), &[]).1.unwrap();
    assert_eq!(first["spec"]["containers"][1]["env"][0]["value"], "audit");
    for own in [Some(&more), Some(&unmatched), None] {
        let (decided, second) = pass(&first, &profiles(own), &[]);
        let mut second = second.unwrap();
        assert_eq!(
            decided.decision.profiles[0].reason,
            Reason::AlreadyInjected,
            "the parent keeps the changes of its child"
        );
        second["metadata"]["annotations"] = first["metadata"]["annotations"].clone();
        assert_eq!(second, first);
    }
}
