//! How each part of a child merges into its parent, and the errors of invalid chains.

#![expect(clippy::needless_pass_by_value, reason = "the cases are written where they are used")]

mod tenants;

use std::collections::BTreeMap;

use serde_json::json;

use super::*;
use crate::profile::compile_with;

/// Cluster profiles by name. Null marks an invalid profile.
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

/// Returns a cluster profile that extends `parent` of the library, merged with it.
fn merged_in(library: &Library, mut child: Json) -> Json {
    if child.get("extends").is_none() {
        child["extends"] = json!({"name": "parent"});
    }
    let effective = resolve(&ProfileName::cluster("child"), &spec(child), library).unwrap();
    serde_json::to_value(effective.spec).unwrap()
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

fn diagnostics(name: &ProfileName, child: Json, library: &Library) -> Vec<String> {
    match compile_with(name, &spec(child), library) {
        Ok(_) => Vec::new(),
        Err(diagnostics) => diagnostics.iter().map(ToString::to_string).collect(),
    }
}

fn extends(parent: &str) -> Json {
    json!({"extends": {"name": parent}})
}

fn labels(value: &str) -> Json {
    json!({"template": {"metadata": {"labels": {"x": value}}}})
}

#[test]
fn scalars_and_requests_are_replaced_and_what_the_child_does_not_say_is_inherited() {
    let parent = json!({
        "description": "the parent's", "activation": "Never", "request": {"annotation": "a/parent", "label": "a/parent"},
        "optOut": "Forbidden", "exclusiveGroup": "g", "order": 7, "onError": "Skip", "rollout": {"percent": 10},
        "namespaceSelector": {"matchLabels": {"a": "1"}}, "objectSelector": {"matchLabels": {"a": "1"}},
        "target": {"group": "", "version": "v1", "resources": ["pods"]},
    });
    let mut inherited = parent.clone();
    for own in ["description", "activation", "rollout"] {
        inherited.as_object_mut().unwrap().remove(own);
    }
    assert_eq!(merged(parent.clone(), json!({})), inherited);
    let child = json!({
        "description": "the child's", "activation": "Always", "request": {"annotation": "a/child"},
        "optOut": "Allowed", "exclusiveGroup": "h", "order": 8, "onError": "Deny", "rollout": {"percent": 20},
        "namespaceSelector": {"matchLabels": {"b": "1"}}, "objectSelector": {},
        "target": {"group": "", "version": "v1", "resources": ["pods/ephemeralcontainers"]},
    });
    assert_eq!(merged(parent, child.clone()), child);
}

#[test]
fn named_parts_merge_by_name_in_the_parents_place() {
    let cases = [
        ("variables", json!({"expression": "1"}), json!({"expression": "2"})),
        ("matchConditions", json!({"expression": "true", "message": "m"}), json!({"expression": "false"})),
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
fn a_parameter_that_loses_its_keys_loses_what_is_said_of_their_values() {
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
fn a_parameter_keeps_what_the_child_does_not_say() {
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
fn rules_for_containers_merge_their_conditions_and_templates() {
    let parent = json!({"containers": [
        {"name": "r", "match": {"types": ["App"], "names": ["x"]}, "matchConditions": [{"name": "c", "expression": "1"}],
         "template": {"env": [{"name": "A", "value": "1"}, {"name": "B", "value": "1"}]}},
        {"name": "s", "template": {"tty": true}},
    ]});
    let child = json!({"containers": [
        {"name": "t", "template": {"stdin": true}},
        {"name": "r", "match": {"types": ["Init"]},
         "matchConditions": [{"name": "d", "expression": "2"}, {"name": "c", "expression": "3"}],
         "template": {"env": [{"name": "C", "value": "2"}, {"name": "B", "value": "2"}]}},
    ]});
    let expected = json!([
        {"name": "r", "match": {"types": ["Init"]},
         "matchConditions": [{"name": "c", "expression": "3"}, {"name": "d", "expression": "2"}],
         "template": {"env": [{"name": "A", "value": "1"}, {"name": "B", "value": "2"}, {"name": "C", "value": "2"}]}},
        {"name": "s", "template": {"tty": true}},
        {"name": "t", "template": {"stdin": true}},
    ]);
    assert_eq!(merged(parent, child)["containers"], expected);
}

#[test]
fn the_lists_of_a_pod_merge_by_their_keys() {
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
fn elements_without_a_key_are_appended_the_parents_first() {
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
fn of_elements_with_one_key_the_child_means_each_or_replaces_all() {
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
fn directives_are_the_childs_or_stay() {
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
fn of_a_choice_the_childs_is_the_one() {
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
fn the_template_of_another_kind_merges_as_json() {
    let target = json!({"group": "example.com", "version": "v1", "resources": ["things"]});
    let text = |list: Json| json!({"template": {"spec": {"containers": list, "a": {"b": 1}}}, "target": target});
    let merged = merged(
        text(json!([{"name": "a", "x": 1}])),
        json!({"template": {"spec": {"containers": [{"name": "a"}], "a": {"c": 2}}}}),
    );
    assert_eq!(merged["template"]["spec"], json!({"containers": [{"name": "a"}], "a": {"b": 1, "c": 2}}));
}

#[test]
fn an_instrumentation_for_one_language_extends_the_one_for_all() {
    let read = |text: &str| crate::yaml::parse(text).unwrap();
    let java = read(include_str!("tests/otel-java.yaml"));
    let library = Library::new([("otel-sdk", read(include_str!("tests/otel-sdk.yaml")))]);
    let merged = merged_in(&library, java);
    assert_eq!(merged, read(include_str!("tests/otel-merged.yaml")));
}

#[test]
fn a_chain_is_merged_from_its_far_end() {
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
    let compiled = compile_with(&ProfileName::cluster("d"), &spec(text(Some("c"), "4", "d")), &library).unwrap();
    assert_eq!(compiled.ancestors().collect::<Vec<_>>(), ["c", "b", "a"]);
    assert_eq!(
        (compiled.limits(), compiled.activation()),
        (Limits::Platform, pillion_api::profile::Activation::Requested)
    );
}

#[test]
fn a_chain_that_cannot_be_followed_is_told() {
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
    for (parent, told) in [
        ("three", ""),
        ("skd", "there is no cluster profile \"skd\" (help: did you mean \"sdk\"?)"),
        ("nothing-like-it", "a profile of a namespace cannot be extended"),
        ("lost", "there is no cluster profile \"sdkk\", which lost extends (help: did you mean \"sdk\"?)"),
        ("four", "a chain has at most 5 profiles: child -> four -> three -> two -> one -> sdk"),
        ("child", "a profile cannot extend itself: child -> child"),
        ("to-child", "a profile cannot extend itself: child -> to-child -> child"),
        ("turn", "a profile cannot extend itself: child -> turn -> round -> turn"),
        ("on-broken", "the cluster profile \"broken\" is broken itself"),
    ] {
        let diagnostics = diagnostics(&name, link(parent), &library);
        match diagnostics.as_slice() {
            [] => assert_eq!(told, "", "{parent}"),
            [diagnostic] => {
                let expected =
                    diagnostic.starts_with("spec.extends.name: ") && diagnostic.contains(told) && !told.is_empty();
                assert!(expected, "{parent}: {diagnostic}");
            }
            diagnostics => panic!("{parent}: {diagnostics:?}"),
        }
    }
    assert!(compile_with(&ProfileName::namespaced("team-a", "sdk"), &spec(extends("sdk")), &library).is_ok());
}

#[test]
fn a_revision_is_of_the_merged_text() {
    let child = || {
        let mut child = extends("parent");
        child["order"] = json!(5);
        spec(child)
    };
    let name = ProfileName::cluster("child");
    let revision = |parent: Json| {
        compile_with(&name, &child(), &Library::new([("parent", parent)])).unwrap().revision().to_owned()
    };
    assert_ne!(revision(labels("1")), revision(labels("2")));
    let mut described = labels("1");
    described["description"] = json!("the parent's own");
    assert_eq!(revision(labels("1")), revision(described));
}

#[test]
fn what_is_wrong_is_told_of_the_text_in_which_it_was_written() {
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
        "spec.extends.name: spec.variables[1].expression of parent, which it extends: the variable \"c\" is needed",
        "spec.template.spec.containers[0]: a container that is added needs an image",
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
fn all_texts_together_are_bounded() {
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
    assert!(diagnostics(&name, child, &library)[0].contains("there are 160 variables; 128 are allowed"));
}
