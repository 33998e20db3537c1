//! What a namespaced profile may change of the cluster profile that it extends.

use std::sync::Arc;

use base64::Engine;
use pillion_api::names::InjectionLevel;
use pillion_api::profile::{Activation, OptOut};

use super::*;
use crate::review::{Endpoint, Facts, Review};
use crate::snapshot::{Namespace, ProfileSet, Snapshot};

fn own() -> ProfileName {
    ProfileName::namespaced("team-a", "own")
}

/// Returns a cluster profile that exceeds the limits for tenants.
fn platform() -> Json {
    json!({
        "request": {"annotation": "example.com/agent"},
        "optOut": "Forbidden",
        "namespaceSelector": {"matchLabels": {"env": "prod"}},
        "objectSelector": {"matchLabels": {"tier": "web"}, "matchExpressions": [{"key": "team", "operator": "Exists"}]},
        "parameters": [
            {"name": "level", "type": "integer", "minimum": 1, "maximum": 5, "default": 1, "annotation": "a/l", "sources": ["Namespace"]},
            {"name": "mode", "type": "string", "enum": ["a", "b"], "default": "a", "annotation": "a/m", "sources": ["Pod", "Namespace"]},
            {"name": "host", "type": "string", "pattern": "^[a-z]+$", "default": "x", "annotation": "a/h", "sources": ["Namespace"]},
            {"name": "port", "type": "integer", "pattern": "^[1-9][0-9]{3}$", "default": 8080, "annotation": "a/port", "sources": ["Namespace"]},
            {"name": "locked", "type": "string", "default": "x"},
            {"name": "by-pod", "type": "string", "default": "x", "annotation": "a/p", "sources": ["Pod"]},
        ],
        "matchConditions": [{"name": "level", "expression": "params.level > 2"}],
        "template": {"spec": {"hostNetwork": true, "containers": [
            {"name": "agent", "image": "agent:1", "securityContext": {"privileged": true}},
        ]}},
    })
}

fn child(more: Json) -> Json {
    let mut child = extends("agent");
    child.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    child
}

fn library() -> Library {
    Library::new([("agent", platform())])
}

#[test]
fn one_that_only_extends_is_bounded_by_its_parent() {
    let text = child(json!({
        "description": "ours", "activation": "Requested", "request": {"annotation": "team-a/agent"}, "order": 3,
        "objectSelector": {"matchLabels": {"tier": "db", "x": "y"}},
        "parameters": [{"name": "level", "default": 3}, {"name": "mode", "type": "string", "default": "b"}],
    }));
    let profile = compile_with(&own(), &spec(text), &library()).unwrap();
    assert_eq!((profile.limits(), profile.is_limited()), (Limits::Parent, false));
    assert_eq!((profile.activation, profile.opt_out, profile.order), (Activation::Requested, OptOut::Forbidden, 3));
    let selects = |labels: &[(&str, &str)]| {
        let selector = profile.object_selector.as_ref().unwrap();
        selector.matches(|key| labels.iter().find(|(name, _)| *name == key).map(|(_, value)| *value))
    };
    assert!(!selects(&[("tier", "web"), ("team", "a")]) && !selects(&[("tier", "db"), ("x", "y"), ("team", "a")]));
    assert_eq!(profile.namespace_selector, spec(platform()).namespace_selector);
    let bare = compile_with(&own(), &spec(child(json!({}))), &library()).unwrap();
    assert_eq!(bare.activation, Activation::Always);
    assert_eq!(bare.request_keys().collect::<Vec<_>>(), ["example.com/agent"]);
}

#[test]
fn selectors_are_narrowed() {
    let narrowed = child(json!({"objectSelector": {"matchExpressions": [{"key": "x", "operator": "Exists"}]}}));
    let profile = compile_with(&own(), &spec(narrowed), &library()).unwrap();
    for (labels, selected) in [
        (&[("tier", "web"), ("team", "a"), ("x", "")][..], true),
        (&[("tier", "web"), ("team", "a")], false),
        (&[("tier", "web"), ("x", "")], false),
        (&[("team", "a"), ("x", "")], false),
    ] {
        let selector = profile.object_selector.as_ref().unwrap();
        let label = |key: &str| labels.iter().find(|(name, _)| *name == key).map(|(_, value)| *value);
        assert_eq!(selector.matches(label), selected, "{labels:?}");
    }
    let wrong = child(json!({"objectSelector": {"matchExpressions": [{"key": "x", "operator": "In"}]}}));
    let wrong = diagnostics(&own(), wrong, &library());
    assert!(wrong[0].starts_with("spec.objectSelector.matchExpressions[0].values: "), "{wrong:?}");
}

#[test]
fn a_namespace_sets_what_it_may_within_its_bounds() {
    let set = |parameter: Json| diagnostics(&own(), child(json!({"parameters": [parameter]})), &library());
    for good in [
        json!({"name": "level", "default": 5}),
        json!({"name": "mode", "default": "b"}),
        json!({"name": "host", "type": "string", "default": "abc"}),
        json!({"name": "port", "default": 9090}),
    ] {
        assert_eq!(set(good.clone()), Vec::<String>::new(), "{good}");
    }
    for (parameter, told) in [
        (json!({"name": "level", "default": 6}), "spec.parameters[0].default: 6 is more than 5"),
        (json!({"name": "level", "default": "5"}), "spec.parameters[0].default: expected a whole number"),
        (json!({"name": "mode", "default": "c"}), "spec.parameters[0].default: \"c\" is not one of"),
        (json!({"name": "host", "default": "A"}), "spec.parameters[0].default: \"A\" does not match"),
        (json!({"name": "port", "default": 1}), "spec.parameters[0].default: \"1\" does not match"),
        (json!({"name": "host", "default": "${x}"}), "spec.parameters[0].default: a namespace sets a value"),
        (json!({"name": "locked", "default": "y"}), "spec.parameters[0].default: the cluster profile does not let"),
        (json!({"name": "by-pod", "default": "y"}), "spec.parameters[0].default: the cluster profile does not let"),
        (
            json!({"name": "lvel", "default": 1}),
            "spec.parameters[0].name: the cluster profile has no parameter \"lvel\" (help: did you mean \"level\"?)",
        ),
        (json!({"name": "other", "default": 1}), "a namespace can set level, mode, host"),
        (json!({"name": "level"}), "spec.parameters[0]: no value is set"),
        (json!({"name": "level", "default": 3, "sources": []}), "spec.parameters[0].sources: "),
        (json!({"name": "level", "default": 3, "sources": ["Pod"]}), "spec.parameters[0].sources: "),
        (json!({"name": "level", "default": 3, "maximum": 9}), "spec.parameters[0].maximum: "),
        (json!({"name": "level", "default": 3, "annotation": "a/x"}), "spec.parameters[0].annotation: "),
        (json!({"name": "level", "default": "x", "type": "string"}), "spec.parameters[0].type: "),
    ] {
        let diagnostics = set(parameter.clone());
        assert!(diagnostics.iter().any(|diagnostic| diagnostic.contains(told)), "{parameter}: {diagnostics:#?}");
    }
}

#[test]
fn a_namespace_does_not_widen_what_it_inherits() {
    for (more, told) in [
        (json!({"optOut": "Allowed"}), "spec.optOut: the cluster profile cannot be dropped"),
        (json!({"optOut": "Forbidden"}), "spec.optOut: optOut Forbidden is for cluster profiles"),
        (json!({"namespaceSelector": {}}), "spec.namespaceSelector: "),
        (
            json!({"matchConditions": [{"name": "level", "expression": "true"}]}),
            "spec.matchConditions[0].name: the condition \"level\" is the cluster profile's",
        ),
    ] {
        let diagnostics = diagnostics(&own(), child(more.clone()), &library());
        assert!(diagnostics.iter().any(|diagnostic| diagnostic.starts_with(told)), "{more}: {diagnostics:#?}");
    }
}

#[test]
fn one_that_says_more_is_bounded_as_the_namespaces_own() {
    let harmless = json!({"parameters": platform()["parameters"], "template": {"metadata": {"labels": {"x": "y"}}}});
    let library = Library::new([("agent", platform()), ("harmless", harmless)]);
    for more in [
        json!({"template": {"metadata": {"labels": {"a": "b"}}}}),
        json!({"variables": [{"name": "v", "expression": "1"}]}),
        json!({"matchConditions": [{"name": "more", "expression": "true"}]}),
        json!({"exclusiveGroup": "g"}),
        json!({"onError": "Skip"}),
    ] {
        let mut text = child(more.clone());
        let privileged = diagnostics(&own(), text.clone(), &library);
        let told = |text: &str| privileged.iter().any(|diagnostic| diagnostic.contains(text));
        assert!(
            told("agent, which it extends: a namespaced profile cannot set hostNetwork"),
            "{more}: {privileged:#?}"
        );
        assert!(told("cannot add a privileged container"), "{more}: {privileged:#?}");
        text["extends"]["name"] = json!("harmless");
        let limited = compile_with(&own(), &spec(text), &library).unwrap();
        assert_eq!((limited.limits(), limited.is_limited()), (Limits::Tenant, true), "{more}");
    }
    // Expressions of a namespaced profile must not use the platform's lookups or target.
    let parent = json!({
        "lookups": [{"name": "l", "version": "v1", "resource": "configmaps"}],
        "target": {"group": "example.com", "version": "v1", "resources": ["things"]},
        "template": {"metadata": {"labels": {"x": "y"}}},
    });
    let text = child(json!({"variables": [{"name": "v", "expression": "1"}]}));
    let lent = diagnostics(&own(), text, &Library::new([("agent", parent)]));
    assert_eq!(lent.iter().filter(|diagnostic| diagnostic.contains("says more than values")).count(), 2, "{lent:#?}");
}

#[test]
fn a_child_injects_its_parents_sidecar_by_its_own_value() {
    let inject = |text: Json, env: &'static str| {
        let own = compile_with(&own(), &spec(text), &library()).unwrap();
        let platforms = compile_with(&ProfileName::cluster("agent"), &spec(platform()), &NoParents).unwrap();
        let profiles = ProfileSet::new([Arc::new(platforms), Arc::new(own)]);
        let namespace = Namespace::new([("env", env), ("pillion.dev/injection", "enabled")], []);
        let snapshot = Snapshot::new(profiles).with_namespace("team-a", Some(namespace));
        injected(&snapshot)
    };
    // The condition requires a level above two, and the platform's default is one.
    assert_eq!(inject(child(json!({})), "prod"), None);
    let raised = child(json!({"parameters": [{"name": "level", "default": 3}]}));
    assert_eq!(inject(raised.clone(), "prod").as_deref(), Some("agent:1"));
    assert_eq!(inject(raised, "test"), None, "the platform's profile is not for this namespace");
}

#[test]
fn a_value_of_the_namespaces_is_united_with_those_of_its_pods() {
    let parent = |merge: &str| {
        json!({
            "parameters": [{"name": "tags", "type": "map", "annotationPrefix": "tags/", "sources": ["Pod", "Namespace"],
                            "merge": merge, "default": {"by": "platform"}}],
            "template": {"metadata": {"labels": {"x": "y"}}},
            "matchConditions": [{"name": "c", "expression": "params.tags == {'own': '1', 'team': '2'}"}],
        })
    };
    let own = child(json!({"parameters": [{"name": "tags", "default": {"team": "2", "own": "0"}}]}));
    let matches = |merge: &str| {
        let library = Library::new([("agent", parent(merge))]);
        let own = compile_with(&self::own(), &spec(own.clone()), &library).unwrap();
        let namespace = Namespace::new([("pillion.dev/injection", "enabled")], []);
        let snapshot = Snapshot::new(ProfileSet::new([Arc::new(own)])).with_namespace("team-a", Some(namespace));
        patched(&snapshot)["metadata"]["labels"]["x"] == "y"
    };
    assert!(matches("Merge"));
    assert!(!matches("Replace"), "the pod's value hides the namespace's");
}

/// Returns the image of the sidecar in a pod of `team-a`.
fn injected(snapshot: &Snapshot) -> Option<String> {
    patched(snapshot)["spec"]["containers"][1]["image"].as_str().map(str::to_owned)
}

/// Returns a patched pod of `team-a`.
fn patched(snapshot: &Snapshot) -> Json {
    let review = json!({
        "apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview",
        "request": {
            "uid": "u", "operation": "CREATE", "namespace": "team-a", "name": "p",
            "kind": {"group": "", "version": "v1", "kind": "Pod"},
            "resource": {"group": "", "version": "v1", "resource": "pods"},
            "object": {
                "apiVersion": "v1", "kind": "Pod",
                "metadata": {"name": "p", "labels": {"tier": "web", "team": "a"}, "annotations": {"tags/own": "1"}},
                "spec": {"containers": [{"name": "app", "image": "app:1"}]},
            },
        },
    });
    let bytes = review.to_string();
    let review_read = Review::parse(bytes.as_bytes()).unwrap();
    let level = Endpoint::Level(InjectionLevel::Enabled);
    let facts = Facts { namespace: snapshot.namespace("team-a"), ..Facts::default() };
    let decided = review_read.decide(level, snapshot, &facts).unwrap();
    let answer: Json = serde_json::from_slice(&review_read.respond(&decided)).unwrap();
    let mut pod = review["request"]["object"].clone();
    if let Some(patch) = answer["response"]["patch"].as_str() {
        let patch = base64::engine::general_purpose::STANDARD.decode(patch).unwrap();
        json_patch::patch(&mut pod, &serde_json::from_slice::<json_patch::Patch>(&patch).unwrap()).unwrap();
    }
    pod
}
