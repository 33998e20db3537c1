//! Tests how each part of a child merges into its parent, and the errors for invalid chains.

#![expect(clippy::needless_pass_by_value, reason = "calls can contain `json!` without a reference")]

use std::collections::BTreeMap;
use std::sync::Arc;

use base64::Engine;
use pillion_api::names::FailureMode;
use pillion_api::profile::{Activation, OptOut};
use serde_json::json;

use super::*;
use crate::profile::{CompiledProfile, ProfileSource};
use crate::review::{Endpoint, Facts, Review};
use crate::snapshot::{Namespace, ProfileSet, Snapshot};

/// Cluster profiles by name. `None` marks an invalid profile.
pub(crate) struct Library(BTreeMap<String, Option<ProfileSpec>>);

impl Library {
    pub(crate) fn new<'n>(texts: impl IntoIterator<Item = (&'n str, Json)>) -> Self {
        let read = |text: Json| (!text.is_null()).then(|| spec(text));
        Self(texts.into_iter().map(|(name, text)| (name.to_owned(), read(text))).collect())
    }
}

impl Parents for Library {
    fn parent(&self, name: &str) -> Parent<'_> {
        match self.0.get(name) {
            Some(Some(spec)) => Parent::Accepted(Cow::Borrowed(spec)),
            Some(None) => Parent::Broken(None),
            None => Parent::Unknown,
        }
    }

    fn names(&self) -> Vec<&str> {
        self.0.keys().map(String::as_str).collect()
    }
}

pub(super) fn spec(text: Json) -> ProfileSpec {
    serde_json::from_value(text).unwrap()
}

/// Merges a cluster profile with its parent in the library (`parent` by default), and returns the merged spec.
fn merged_in(library: &Library, mut child: Json) -> Json {
    if child.get("extends").is_none() {
        child["extends"] = json!({"name": "parent"});
    }
    let flattened = flatten(&ProfileName::cluster("child"), &spec(child), library).unwrap();
    serde_json::to_value(flattened.spec).unwrap()
}

fn merged(parent: Json, child: Json) -> Json {
    merged_in(&Library::new([("parent", parent)]), child)
}

/// Returns the merged template of a parent and a child.
fn template(parent: Json, child: Json) -> Json {
    merged(json!({"template": parent}), json!({"template": child}))["template"].take()
}

fn container(parent: Json, child: Json) -> Json {
    let pod = |container: Json| {
        let mut container = container;
        container["name"] = json!("a");
        json!({"spec": {"containers": [container]}})
    };
    let mut container = template(pod(parent), pod(child))["spec"]["containers"][0].take();
    container.as_object_mut().unwrap().remove("name");
    container
}

fn compiled(name: &ProfileName, text: Json, library: &Library) -> Result<CompiledProfile, Vec<Diagnostic>> {
    ProfileSource::Author(&spec(text), library).compile(name)
}

fn diagnostics(name: &ProfileName, child: Json, library: &Library) -> Vec<String> {
    let diagnostics = compiled(name, child, library).err().unwrap_or_default();
    diagnostics.iter().map(ToString::to_string).collect()
}

fn extends(parent: &str) -> Json {
    json!({"extends": {"name": parent}})
}

fn labels(value: &str) -> Json {
    json!({"template": {"metadata": {"labels": {"x": value}}}})
}

#[test]
fn child_replaces_scalars_and_inherits_the_rest() {
    let parent = json!({
        "description": "the parent's", "activation": "Never", "requestedBy": {"annotation": "a/parent", "label": "a/parent"},
        "optOut": "Forbidden", "exclusiveGroup": "g", "order": 7, "failurePolicy": "Ignore", "rollout": {"percent": 10},
        "namespaceSelector": {"matchLabels": {"a": "1"}}, "objectSelector": {"matchLabels": {"a": "1"}},
        "target": {"group": "", "version": "v1", "resources": ["pods"]},
    });
    let mut inherited = parent.clone();
    for own in ["description", "activation", "rollout"] {
        inherited.as_object_mut().unwrap().remove(own);
    }
    assert_eq!(merged(parent.clone(), json!({})), inherited);
    let child = json!({
        "description": "the child's", "activation": "Always", "requestedBy": {"annotation": "a/child"},
        "optOut": "Allowed", "exclusiveGroup": "h", "order": 8, "failurePolicy": "Fail", "rollout": {"percent": 20},
        "namespaceSelector": {"matchLabels": {"b": "1"}}, "objectSelector": {},
        "target": {"group": "", "version": "v1", "resources": ["pods/ephemeralcontainers"]},
    });
    assert_eq!(merged(parent, child.clone()), child);
}

#[test]
fn named_parts_merge_by_name() {
    let cases = [
        ("variables", json!({"expression": "1"}), json!({"expression": "2"})),
        ("matchConditions", json!({"expression": "true"}), json!({"expression": "false"})),
        ("preconditions", json!({"expression": "true", "message": "m"}), json!({"expression": "false"})),
        (
            "lookups",
            json!({"group": "", "version": "v1", "resource": "r"}),
            json!({"group": "g", "version": "v2", "resource": "s"}),
        ),
        ("validations", json!({"expression": "true", "code": 402}), json!({"expression": "false"})),
    ];
    for (field, old, new) in cases {
        let named = |name: &str, part: &Json| {
            let mut part = part.clone();
            part["name"] = json!(name);
            part
        };
        let parent = json!({field: [named("a", &old), named("b", &old), named("c", &old)]});
        let child = json!({field: [named("d", &new), named("b", &new)]});
        let expected = json!([named("a", &old), named("b", &new), named("c", &old), named("d", &new)]);
        assert_eq!(merged(parent, child)[field], expected, "{field}");
    }
    let nameless = merged(json!({"validations": [{"expression": "1"}]}), json!({"validations": [{"expression": "1"}]}));
    assert_eq!(nameless["validations"], json!([{"expression": "1"}, {"expression": "1"}]));
}

#[test]
fn parameter_without_keys_loses_key_fields() {
    let mut parent = labels("1");
    parent["parameters"] = json!([
        {"name": "port", "type": "integer", "default": 2, "annotation": "a/port", "empty": "Absent", "sources": ["Pod"]},
    ]);
    let locked = json!({"name": "port", "sources": []});
    let parameters = merged(parent.clone(), json!({"parameters": [locked]}))["parameters"].take();
    assert_eq!(parameters, json!([{"name": "port", "type": "integer", "default": 2, "sources": []}]));
    let mut child = extends("parent");
    child["parameters"] = json!([locked]);
    let library = Library::new([("parent", parent)]);
    assert_eq!(diagnostics(&ProfileName::cluster("child"), child, &library), Vec::<String>::new());
}

#[test]
fn parameter_keeps_fields_without_child_value() {
    let parent = json!({"parameters": [
        {"name": "first", "type": "boolean"},
        {"name": "port", "type": "integer", "minimum": 1, "maximum": 9, "default": 2, "annotation": "a/port", "sources": ["Pod"]},
    ]});
    for (child, expected) in [
        (
            json!({"default": 3}),
            json!({"type": "integer", "minimum": 1, "maximum": 9, "default": 3, "annotation": "a/port", "sources": ["Pod"]}),
        ),
        (
            json!({"type": "integer", "maximum": 5, "sources": ["Namespace"], "label": "l"}),
            json!({"type": "integer", "minimum": 1, "maximum": 5, "default": 2, "annotation": "a/port", "label": "l", "sources": ["Namespace"]}),
        ),
        (json!({"sources": []}), json!({"type": "integer", "minimum": 1, "maximum": 9, "default": 2, "sources": []})),
        (
            json!({"empty": "Counts"}),
            json!({"type": "integer", "minimum": 1, "maximum": 9, "default": 2, "annotation": "a/port", "empty": "Counts", "sources": ["Pod"]}),
        ),
        (json!({"type": "string", "default": "x"}), json!({"type": "string", "default": "x"})),
    ] {
        let (mut child, mut expected) = (child, expected);
        child["name"] = json!("port");
        expected["name"] = json!("port");
        let parameters = merged(parent.clone(), json!({"parameters": [child]}))["parameters"].take();
        assert_eq!(parameters, json!([{"name": "first", "type": "boolean"}, expected]));
    }
}

#[test]
fn container_patches_merge_conditions_and_templates() {
    let parent = json!({"containerPatches": [
        {"name": "r", "match": {"types": ["App"], "names": ["x"]}, "matchConditions": [{"name": "c", "expression": "1"}],
         "preconditions": [{"name": "c", "expression": "1", "action": "Deny"}],
         "template": {"env": [{"name": "A", "value": "1"}, {"name": "B", "value": "1"}]}},
        {"name": "s", "template": {"tty": true}},
    ]});
    let child = json!({"containerPatches": [
        {"name": "t", "template": {"stdin": true}},
        {"name": "r", "match": {"types": ["Init"]},
         "matchConditions": [{"name": "d", "expression": "2"}, {"name": "c", "expression": "3"}],
         "preconditions": [{"name": "c", "expression": "2"}],
         "template": {"env": [{"name": "C", "value": "2"}, {"name": "B", "value": "2"}]}},
    ]});
    let expected = json!([
        {"name": "r", "match": {"types": ["Init"]},
         "matchConditions": [{"name": "c", "expression": "3"}, {"name": "d", "expression": "2"}],
         "preconditions": [{"name": "c", "expression": "2"}],
         "template": {"env": [{"name": "A", "value": "1"}, {"name": "B", "value": "2"}, {"name": "C", "value": "2"}]}},
        {"name": "s", "template": {"tty": true}},
        {"name": "t", "template": {"stdin": true}},
    ]);
    assert_eq!(merged(parent, child)["containerPatches"], expected);
}

#[test]
fn pod_lists_merge_by_key() {
    for (list, parent, child, expected) in [
        (
            "ports",
            json!([{"containerPort": 80, "name": "web"}, {"containerPort": 53, "protocol": "UDP"}]),
            json!([{"containerPort": 53, "name": "tcp"}, {"containerPort": 80, "protocol": "TCP", "hostPort": 1}]),
            json!([{"containerPort": 80, "protocol": "TCP", "name": "web", "hostPort": 1},
                   {"containerPort": 53, "protocol": "UDP"}, {"containerPort": 53, "name": "tcp"}]),
        ),
        (
            "volumeMounts",
            json!([{"mountPath": "/a", "name": "v"}, {"mountPath": "/${params.b}", "name": "v"}]),
            json!([{"mountPath": "/${params.b}", "readOnly": true}, {"mountPath": "/c", "name": "w"}]),
            json!([{"mountPath": "/a", "name": "v"}, {"mountPath": "/${params.b}", "name": "v", "readOnly": true},
                   {"mountPath": "/c", "name": "w"}]),
        ),
        ("args", json!(["a", "b"]), json!(["c"]), json!(["c"])),
        ("envFrom", json!([{"prefix": "a"}]), json!([{"prefix": "b"}]), json!([{"prefix": "b"}])),
    ] {
        assert_eq!(container(json!({list: parent}), json!({list: child}))[list], expected, "{list}");
    }
}

#[test]
fn elements_without_key_are_appended() {
    let group = |expression: &str| json!({"$forEach": expression, "name": "${item}", "value": "x"});
    let spliced = json!({"$when": "params.x", "$value": [{"name": "A", "value": "1"}]});
    let parent = json!({"env": ["${params.env}", {"name": "A", "value": "1"}, group("params.a"), spliced]});
    let child = json!({"env": [group("params.b"), {"name": "A", "value": "2"}, "${params.env}"]});
    let expected = json!([
        "${params.env}", {"name": "A", "value": "2"}, group("params.a"), spliced, group("params.b"), "${params.env}",
    ]);
    assert_eq!(container(parent, child)["env"], expected);
}

#[test]
fn several_elements_with_one_key_replace_all() {
    let parent = json!({"env": [
        {"name": "A", "$when": "params.x", "value": "1"}, {"name": "B"}, {"name": "A", "$when": "!params.x", "value": "2"},
    ]});
    let one = container(parent.clone(), json!({"env": [{"name": "A", "value": "3"}]}));
    assert_eq!(
        one["env"],
        json!([
            {"name": "A", "$when": "params.x", "value": "3"}, {"name": "B"}, {"name": "A", "$when": "!params.x", "value": "3"},
        ])
    );
    let several =
        json!([{"name": "A", "$when": "params.y", "value": "4"}, {"name": "A", "$when": "!params.y", "value": "5"}]);
    let all = container(parent, json!({"env": several}));
    assert_eq!(all["env"], json!([several[0], several[1], {"name": "B"}]));
}

#[test]
fn child_directives_replace_those_of_parent() {
    for (parent, child, expected) in [
        (
            json!({"$conflict": "Keep", "a": 1}),
            json!({"$conflict": "Fail", "b": 2}),
            json!({"$conflict": "Fail", "a": 1, "b": 2}),
        ),
        (
            json!({"$position": {"before": "x"}, "a": 1}),
            json!({"$position": {"after": "y"}}),
            json!({"$position": {"after": "y"}, "a": 1}),
        ),
        (json!("x"), json!({"$conflict": "Replace"}), json!({"$value": "x", "$conflict": "Replace"})),
        (json!({"$value": "x", "$conflict": "Keep"}), json!("y"), json!({"$value": "y", "$conflict": "Keep"})),
        (json!(["x"]), json!({"$join": {}, "$value": ["y"]}), json!({"$value": ["y"], "$join": {}})),
        (json!({"$value": "${x}", "a": 1}), json!({"b": 2}), json!({"$value": "${x}", "a": 1, "b": 2})),
        (json!({"a": 1}), json!("x"), json!("x")),
        (json!("x"), json!({"a": 1}), json!({"a": 1})),
    ] {
        let merged = container(json!({"field": parent}), json!({"field": child}));
        assert_eq!(merged["field"], expected, "{parent} and {child}");
    }
    let env = container(
        json!({"env": {"$value": [{"name": "A", "value": "1"}], "$conflict": "Replace"}}),
        json!({"env": [{"name": "B", "value": "2"}]}),
    );
    assert_eq!(env["env"]["$value"], json!([{"name": "A", "value": "1"}, {"name": "B", "value": "2"}]));
}

#[test]
fn child_replaces_member_of_union() {
    let volumes = |volume: Json| json!({"spec": {"volumes": [volume]}});
    let volume = |parent, child| template(volumes(parent), volumes(child))["spec"]["volumes"].take();
    assert_eq!(
        volume(
            json!({"name": "v", "emptyDir": {"medium": "Memory"}}),
            json!({"name": "v", "configMap": {"name": "c"}})
        ),
        json!([{"name": "v", "configMap": {"name": "c"}}])
    );
    assert_eq!(
        volume(
            json!({"name": "v", "emptyDir": {"medium": "Memory"}}),
            json!({"name": "v", "emptyDir": {"sizeLimit": "1Mi"}})
        ),
        json!([{"name": "v", "emptyDir": {"medium": "Memory", "sizeLimit": "1Mi"}}])
    );
    assert_eq!(
        volume(json!({"name": "v", "$conflict": "Keep", "emptyDir": {}}), json!({"name": "v", "$position": "First"})),
        json!([{"name": "v", "$conflict": "Keep", "$position": "First", "emptyDir": {}}])
    );
    let env = |parent, child| container(json!({"env": [parent]}), json!({"env": [child]}))["env"].take();
    assert_eq!(
        env(json!({"name": "A", "value": "1"}), json!({"name": "A", "valueFrom": {"fieldRef": {"fieldPath": "x"}}})),
        json!([{"name": "A", "valueFrom": {"fieldRef": {"fieldPath": "x"}}}])
    );
    let probe = container(
        json!({"livenessProbe": {"httpGet": {"path": "/"}, "periodSeconds": 5}}),
        json!({"livenessProbe": {"exec": {"command": ["x"]}}}),
    );
    assert_eq!(probe["livenessProbe"], json!({"exec": {"command": ["x"]}, "periodSeconds": 5}));
}

#[test]
fn template_of_other_kind_merges_as_json() {
    let target = json!({"group": "example.com", "version": "v1", "resources": ["things"]});
    let text = |list: Json| json!({"template": {"spec": {"containers": list, "a": {"b": 1}}}, "target": target});
    let merged = merged(
        text(json!([{"name": "a", "x": 1}])),
        json!({"template": {"spec": {"containers": [{"name": "a"}], "a": {"c": 2}}}}),
    );
    assert_eq!(merged["template"]["spec"], json!({"containers": [{"name": "a"}], "a": {"b": 1, "c": 2}}));
}

#[test]
fn language_profile_extends_common_one() {
    let read = |text: &str| crate::yaml::parse(text).unwrap();
    let java = read(include_str!("tests/otel-java.yaml"));
    let library = Library::new([("otel-sdk", read(include_str!("tests/otel-sdk.yaml")))]);
    let merged = merged_in(&library, java);
    assert_eq!(merged, read(include_str!("tests/otel-merged.yaml")));
}

#[test]
fn chain_merges_from_root() {
    let text = |parent: Option<&str>, value: &str, own: &str| {
        let mut text = json!({"template": {"metadata": {"labels": {"x": value, own: value}}}});
        if let Some(parent) = parent {
            text["extends"] = json!({"name": parent});
        }
        text
    };
    let library =
        Library::new([("a", text(None, "1", "a")), ("b", text(Some("a"), "2", "b")), ("c", text(Some("b"), "3", "c"))]);
    let merged = merged_in(&library, text(Some("c"), "4", "d"));
    let expected = json!({"template": {"metadata": {"labels": {"a": "1", "b": "2", "c": "3", "d": "4", "x": "4"}}}});
    assert_eq!(merged, expected);
    let compiled = compiled(&ProfileName::cluster("d"), text(Some("c"), "4", "d"), &library).unwrap();
    assert_eq!(compiled.ancestors().collect::<Vec<_>>(), ["c", "b", "a"]);
    assert_eq!((compiled.limits(), compiled.activation()), (Limits::Platform, Activation::Always));
}

#[test]
fn reports_invalid_chain() {
    let link = |parent: &str| {
        let mut text = labels("x");
        text["extends"] = json!({"name": parent});
        text
    };
    let library = Library::new([
        ("sdk", labels("x")),
        ("one", link("sdk")),
        ("two", link("one")),
        ("three", link("two")),
        ("four", link("three")),
        ("to-child", link("child")),
        ("turn", link("round")),
        ("round", link("turn")),
        ("lost", link("sdkk")),
        ("broken", Json::Null),
        ("on-broken", link("broken")),
    ]);
    let name = ProfileName::cluster("child");
    for (parent, expected) in [
        ("three", ""),
        ("skd", "there is no cluster profile \"skd\" (help: did you mean \"sdk\"?)"),
        ("nothing-like-it", "can be extended"),
        ("lost", "there is no cluster profile \"sdkk\", which lost extends (help: did you mean \"sdk\"?)"),
        ("four", "a chain has at most 5 profiles: child -> four -> three -> two -> one -> sdk"),
        ("child", "a profile cannot extend itself: child -> child"),
        ("to-child", "a profile cannot extend itself: child -> to-child -> child"),
        ("turn", "a profile cannot extend itself: child -> turn -> round -> turn"),
        ("on-broken", "the cluster profile \"broken\" is invalid"),
    ] {
        let diagnostics = diagnostics(&name, link(parent), &library);
        match diagnostics.as_slice() {
            [] => assert_eq!(expected, "", "{parent}"),
            [diagnostic] => {
                let is_reported = diagnostic.starts_with("spec.extends.name: ")
                    && diagnostic.contains(expected)
                    && !expected.is_empty();
                assert!(is_reported, "{parent}: {diagnostic}");
            }
            diagnostics => panic!("{parent}: {diagnostics:?}"),
        }
    }
    assert!(compiled(&ProfileName::namespaced("team-a", "sdk"), extends("sdk"), &library).is_ok());
}

#[test]
fn revision_hashes_merged_spec() {
    let child = || {
        let mut child = extends("parent");
        child["order"] = json!(5);
        spec(child)
    };
    let name = ProfileName::cluster("child");
    let revision = |parent: Json| {
        ProfileSource::Author(&child(), &Library::new([("parent", parent)]))
            .compile(&name)
            .unwrap()
            .revision()
            .to_owned()
    };
    assert_ne!(revision(labels("1")), revision(labels("2")));
    let mut described = labels("1");
    described["description"] = json!("the parent's own");
    assert_eq!(revision(labels("1")), revision(described));
}

#[test]
fn reports_mistake_for_originating_profile() {
    let parent = json!({
        "variables": [{"name": "a", "expression": "1"}, {"name": "c", "expression": "variables.b"}, {"name": "b", "expression": "2"}],
        "template": {"spec": {"containers": [{"name": "a", "image": "i"}, {"name": "b", "image": "i"}]}},
    });
    let library = Library::new([("parent", parent)]);
    let mut child = extends("parent");
    child["variables"] = json!([{"name": "x", "expression": "nothing"}, {"name": "b", "expression": "variables.c"}]);
    child["template"] = json!({"spec": {"containers": [{"name": "c"}, {"name": "b", "command": "sh"}]}});
    let diagnostics = diagnostics(&ProfileName::cluster("child"), child, &library);
    for expected in [
        "spec.variables[0].expression: there is no `nothing` here",
        "spec.extends.name: spec.variables[1].expression of parent, which it extends: the variable \"c\" depends on its own value",
        "spec.template.spec.containers[0]: an added container needs an image",
        "spec.template.spec.containers[1].command: ",
    ] {
        assert!(
            diagnostics.iter().any(|diagnostic| diagnostic.starts_with(expected)),
            "{expected:?} is not among {diagnostics:#?}"
        );
    }
    assert_eq!(diagnostics.len(), 4, "{diagnostics:#?}");
}

#[test]
fn merged_profile_is_bounded() {
    let variables = |prefix: &str| -> Vec<Json> {
        (0..80).map(|index| json!({"name": format!("{prefix}{index}"), "expression": "1"})).collect()
    };
    let mut parent = labels("x");
    parent["variables"] = json!(variables("a"));
    let mut child = extends("parent");
    child["variables"] = json!(variables("a"));
    let library = Library::new([("parent", parent)]);
    let name = ProfileName::cluster("child");
    assert_eq!(diagnostics(&name, child.clone(), &library), Vec::<String>::new());
    child["variables"] = json!(variables("b"));
    assert!(
        diagnostics(&name, child, &library)[0]
            .contains("there are 160 variables, including inherited ones; 128 are allowed")
    );
}

fn own() -> ProfileName {
    ProfileName::namespaced("team-a", "own")
}

/// Returns a cluster profile that exceeds the limits for tenants.
fn platform() -> Json {
    json!({
        "requestedBy": {"annotation": "example.com/agent"},
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
        "preconditions": [{"name": "network", "expression": "!has(object.spec.hostNetwork)", "action": "Deny"}],
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
fn extending_only_keeps_limits_of_parent() {
    let text = child(json!({
        "description": "ours", "activation": "Requested", "requestedBy": {"annotation": "team-a/agent"}, "order": 3,
        "objectSelector": {"matchLabels": {"tier": "db", "x": "y"}},
        "parameters": [{"name": "level", "default": 3}, {"name": "mode", "type": "string", "default": "b"}],
    }));
    let profile = compiled(&own(), text, &library()).unwrap();
    assert_eq!((profile.limits(), profile.is_limited()), (Limits::Parent, false));
    assert_eq!((profile.activation, profile.opt_out, profile.order), (Activation::Requested, OptOut::Forbidden, 3));
    let selects = |labels: &[(&str, &str)]| {
        let selector = profile.object_selector.as_ref().unwrap();
        selector.matches(|key| labels.iter().find(|(name, _)| *name == key).map(|(_, value)| *value))
    };
    assert!(!selects(&[("tier", "web"), ("team", "a")]) && !selects(&[("tier", "db"), ("x", "y"), ("team", "a")]));
    assert_eq!(profile.namespace_selector, spec(platform()).namespace_selector);
    let bare = compiled(&own(), child(json!({})), &library()).unwrap();
    assert_eq!(bare.activation, Activation::Requested, "a child inherits requestedBy");
    assert_eq!(bare.request_keys().collect::<Vec<_>>(), ["example.com/agent"]);
}

#[test]
fn namespaced_child_narrows_selectors() {
    let narrowed = child(json!({"objectSelector": {"matchExpressions": [{"key": "x", "operator": "Exists"}]}}));
    let profile = compiled(&own(), narrowed, &library()).unwrap();
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
fn namespace_sets_permitted_parameters() {
    let set = |parameter: Json| diagnostics(&own(), child(json!({"parameters": [parameter]})), &library());
    for good in [
        json!({"name": "level", "default": 5}),
        json!({"name": "mode", "default": "b"}),
        json!({"name": "host", "type": "string", "default": "abc"}),
        json!({"name": "port", "default": 9090}),
    ] {
        assert_eq!(set(good.clone()), Vec::<String>::new(), "{good}");
    }
    for (parameter, expected) in [
        (json!({"name": "level", "default": 6}), "spec.parameters[0].default: 6 is more than 5"),
        (json!({"name": "level", "default": "5"}), "spec.parameters[0].default: expected a whole number"),
        (json!({"name": "mode", "default": "c"}), "spec.parameters[0].default: \"c\" is not one of"),
        (json!({"name": "host", "default": "A"}), "spec.parameters[0].default: \"A\" does not match"),
        (json!({"name": "port", "default": 1}), "spec.parameters[0].default: \"1\" does not match"),
        (json!({"name": "host", "default": "${x}"}), "spec.parameters[0].default: a namespace can only set a constant"),
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
        assert!(diagnostics.iter().any(|diagnostic| diagnostic.contains(expected)), "{parameter}: {diagnostics:#?}");
    }
}

#[test]
fn namespace_cannot_widen_inherited_fields() {
    for (more, expected) in [
        (json!({"optOut": "Allowed"}), "spec.optOut: the cluster profile forbids opting out"),
        (json!({"optOut": "Forbidden"}), "spec.optOut: optOut Forbidden is only for cluster profiles"),
        (json!({"namespaceSelector": {}}), "spec.namespaceSelector: "),
        (
            json!({"matchConditions": [{"name": "level", "expression": "true"}]}),
            "spec.matchConditions[0].name: the cluster profile already has a condition \"level\"",
        ),
        (
            json!({"preconditions": [{"name": "network", "expression": "true", "action": "Warn"}]}),
            "spec.preconditions[0].name: the cluster profile already has a condition \"network\"",
        ),
    ] {
        let diagnostics = diagnostics(&own(), child(more.clone()), &library());
        assert!(diagnostics.iter().any(|diagnostic| diagnostic.starts_with(expected)), "{more}: {diagnostics:#?}");
    }
}

#[test]
fn child_with_own_fields_has_tenant_limits() {
    let harmless = json!({"parameters": platform()["parameters"], "template": {"metadata": {"labels": {"x": "y"}}}});
    let library = Library::new([("agent", platform()), ("harmless", harmless)]);
    for more in [
        json!({"template": {"metadata": {"labels": {"a": "b"}}}}),
        json!({"variables": [{"name": "v", "expression": "1"}]}),
        json!({"matchConditions": [{"name": "more", "expression": "true"}]}),
        json!({"preconditions": [{"name": "more", "expression": "true"}]}),
        json!({"exclusiveGroup": "g"}),
        json!({"failurePolicy": "Ignore"}),
    ] {
        let mut text = child(more.clone());
        let privileged = diagnostics(&own(), text.clone(), &library);
        let reports = |text: &str| privileged.iter().any(|diagnostic| diagnostic.contains(text));
        assert!(
            reports("agent, which it extends: a namespaced profile cannot set hostNetwork"),
            "{more}: {privileged:#?}"
        );
        assert!(reports("cannot add a privileged container"), "{more}: {privileged:#?}");
        text["extends"]["name"] = json!("harmless");
        let limited = compiled(&own(), text, &library).unwrap();
        assert_eq!((limited.limits(), limited.is_limited()), (Limits::Tenant, true), "{more}");
    }
    // A namespaced profile that sets more than values must not inherit lookups or the target of a cluster profile.
    let parent = json!({
        "lookups": [{"name": "l", "version": "v1", "resource": "configmaps"}],
        "target": {"group": "example.com", "version": "v1", "resources": ["things"]},
        "template": {"metadata": {"labels": {"x": "y"}}},
    });
    let text = child(json!({"variables": [{"name": "v", "expression": "1"}]}));
    let lent = diagnostics(&own(), text, &Library::new([("agent", parent)]));
    assert_eq!(lent.iter().filter(|diagnostic| diagnostic.contains("sets more than values")).count(), 2, "{lent:#?}");
}

#[test]
fn child_injects_parents_sidecar_with_own_value() {
    let inject = |text: Json, env: &'static str| {
        let own = compiled(&own(), text, &library()).unwrap();
        let platforms = compiled(&ProfileName::cluster("agent"), platform(), &Library::new([])).unwrap();
        let profiles = ProfileSet::new([Arc::new(platforms), Arc::new(own)]);
        let namespace = Namespace::new([("env", env), ("pillion.dev/injection", "enabled")], []);
        let snapshot = Snapshot::new(profiles).with_namespace("team-a", Some(namespace));
        injected(&snapshot)
    };
    // The condition requires a level above two, but the platform's default is one.
    assert_eq!(inject(child(json!({"activation": "Always"})), "prod"), None);
    let raised = child(json!({"activation": "Always", "parameters": [{"name": "level", "default": 3}]}));
    assert_eq!(inject(raised.clone(), "prod").as_deref(), Some("agent:1"));
    assert_eq!(inject(raised, "test"), None, "the platform's profile does not select this namespace");
}

#[test]
fn namespace_value_merges_with_pod_values() {
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
        let own = compiled(&self::own(), own.clone(), &library).unwrap();
        let namespace = Namespace::new([("pillion.dev/injection", "enabled")], []);
        let snapshot = Snapshot::new(ProfileSet::new([Arc::new(own)])).with_namespace("team-a", Some(namespace));
        patched(&snapshot)["metadata"]["labels"]["x"] == "y"
    };
    assert!(matches("Merge"));
    assert!(!matches("Replace"), "the pod's value replaces the namespace's");
}

/// Returns the image of the sidecar in a pod of `team-a`.
fn injected(snapshot: &Snapshot) -> Option<String> {
    patched(snapshot)["spec"]["containers"][1]["image"].as_str().map(str::to_owned)
}

/// Returns a pod of `team-a` after injection.
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
    let level = Endpoint::FailureMode(FailureMode::Enabled);
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
