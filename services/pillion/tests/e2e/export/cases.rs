//! Test cases that compare exported policies with the engine: profiles, namespaces of all kinds, and operations on
//! `ConfigMaps`.

use serde_json::{Value as Json, json};

/// An operation on an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Operation {
    Create,
    Update,
    Delete,
}

pub(super) struct Case {
    pub(super) profile: &'static str,
    pub(super) namespace: &'static str,
    pub(super) operation: Operation,
    pub(super) object: Json,
    pub(super) old: Json,
}

/// Returns the names and specs of the profiles. Each profile selects `ConfigMaps` by its own label, so that all
/// profiles can exist at the same time. A profile without a target selects pods.
#[expect(clippy::too_many_lines, reason = "a table")]
pub(super) fn profiles() -> Vec<(&'static str, Json)> {
    let all = json!({"version": "v1", "resources": ["configmaps"], "operations": ["CREATE", "UPDATE", "DELETE"]});
    let with = |name: &str, more: Json| {
        let mut spec =
            json!({"target": all, "objectSelector": {"matchLabels": {"case": name}}, "activation": "Always"});
        spec.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        spec
    };
    let no_data = json!([{"expression": "object == null || !has(object.data)", "message": "no data"}]);
    let validations = |list: Json| json!({"validations": list});
    vec![
        (
            "plain",
            with(
                "plain",
                validations(
                    json!([{"expression": "object == null || object.?data.?size.orValue('') != 'XL'", "message": "too large"}]),
                ),
            ),
        ),
        (
            "old",
            with(
                "old",
                validations(json!([{
                    "expression": "oldObject == null || object == null || oldObject.?data == object.?data",
                    "message": "${request.operation} of ${object.metadata.name}", "reason": "Forbidden",
                }])),
            ),
        ),
        (
            "deleted",
            with(
                "deleted",
                validations(json!([{
                    "expression": "request.operation != 'DELETE' || has(oldObject.data.free)", "code": 413, "message": "kept",
                }])),
            ),
        ),
        (
            "faulty",
            with("faulty", validations(json!([{"expression": "object == null || object.data.a.startsWith('a')"}]))),
        ),
        (
            "strict",
            with(
                "strict",
                json!({"failurePolicy": "Fail", "validations": [{"expression": "object == null || object.data.a.startsWith('a')"}]}),
            ),
        ),
        (
            "computed",
            with(
                "computed",
                json!({
                    "variables": [
                        {"name": "last", "expression": "variables.words.map(w, w.lowerAscii()).filter(w, !(w in ['x', 'y']))"},
                        {"name": "words", "expression": "object == null ? [] : object.?data[?'words'].orValue('').split(',')"},
                    ],
                    "matchConditions": [
                        {"name": "has-words", "expression": "variables.words.size() > 1"},
                        {"name": "not 1", "expression": "request.userInfo.username != 'nobody'"},
                    ],
                    "validations": [{"expression": "variables.last.exists(w, w == 'ok') && object.metadata.name.matches('^[a-z]+$')",
                                     "message": "${variables.last.size()} words, ${toString}".replace("${toString}", "none ok")}],
                }),
            ),
        ),
        (
            "asked",
            with(
                "asked",
                json!({
                    "activation": "Requested", "requestedBy": {"annotation": "example.com/check", "label": "example.com/check", "values": ["Deep"]},
                    "validations": no_data,
                }),
            ),
        ),
        (
            "declined",
            with(
                "declined",
                json!({"failurePolicy": "Fail", "requestedBy": {"annotation": "example.com/decline"}, "validations": no_data}),
            ),
        ),
        (
            "lenient",
            with(
                "lenient",
                json!({"failurePolicy": "Fail", "requestedBy": {"annotation": "example.com/lenient", "empty": "Absent"}, "validations": no_data}),
            ),
        ),
        (
            "forced",
            with(
                "forced",
                json!({
                    "activation": "Requested", "optOut": "Forbidden", "requestedBy": {"annotation": "example.com/forced"}, "validations": no_data,
                }),
            ),
        ),
        (
            "elsewhere",
            with("elsewhere", json!({"namespaceSelector": {"matchLabels": {"tier": "gold"}}, "validations": no_data})),
        ),
        (
            "spaces",
            with(
                "spaces",
                validations(json!([{
                    "expression": "namespaceObject.metadata.name != 'team-b' && namespaceObject.metadata.?labels[?'tier'].orValue('') != 'tin'",
                }])),
            ),
        ),
        ("warned", with("warned", validations(json!([{"expression": "false", "action": "Warn"}])))),
        (
            "pods",
            json!({"activation": "Always", "validations": [
                {"expression": "object.spec.containers.all(c, !has(c.env) && !has(c.envFrom))", "message": "no env"},
            ]}),
        ),
    ]
}

/// Returns the namespaces, each with its labels and annotations.
pub(super) fn namespaces() -> [(&'static str, Json, Json); 4] {
    [
        ("team-a", json!({"pillion.dev/injection": "enabled", "tier": "gold"}), json!({})),
        (
            "team-b",
            json!({"pillion.dev/injection": "required"}),
            json!({"example.com/check": "true", "example.com/forced": "on"}),
        ),
        (
            "team-c",
            json!({"pillion.dev/injection": "held", "tier": "tin"}),
            json!({"pillion.dev/profiles": "asked,forced", "example.com/decline": "no", "example.com/lenient": "no"}),
        ),
        ("nobodys", json!({}), json!({})),
    ]
}

/// Returns test cases for every namespace, with `ConfigMaps` whose data, labels and annotations are relevant to at
/// least one profile.
pub(super) fn cases() -> Vec<Case> {
    let data = [
        Json::Null,
        json!({"size": "XL"}),
        json!({"a": "abc", "free": "yes"}),
        json!({"a": "bcd", "words": "x,OK"}),
        json!({"words": "a,b"}),
    ];
    let keys = [
        (json!({}), json!({})),
        (json!({"pillion.dev/inject": "false"}), json!({})),
        (json!({"example.com/check": "no"}), json!({"example.com/check": "yes", "example.com/forced": "false"})),
        (
            json!({}),
            json!({"example.com/check": "deep, other", "example.com/decline": " ", "example.com/lenient": " "}),
        ),
        (
            json!({}),
            json!({"example.com/check": "ASKED", "example.com/decline": "declined", "example.com/lenient": "Off"}),
        ),
        (json!({}), json!({"pillion.dev/profiles": "asked, -declined,-forced,-plain"})),
        (json!({}), json!({"pillion.dev/profiles": "-asked,forced", "example.com/decline": "OFF,0"})),
    ];
    let mut cases = Vec::new();
    for (namespace, ..) in namespaces() {
        for (case, _) in profiles() {
            for (index, (labels, annotations)) in keys.iter().enumerate() {
                for (place, data) in data.iter().enumerate() {
                    let make = |name: &str, data: &Json| {
                        let mut labels = labels.clone();
                        labels["case"] = json!(case);
                        let metadata =
                            json!({"name": name, "namespace": namespace, "labels": labels, "annotations": annotations});
                        let mut object = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata});
                        if !data.is_null() {
                            object["data"] = data.clone();
                        }
                        object
                    };
                    // In every namespace, each value of `data` and of `keys` is used. All combinations would take
                    // thousands of additional requests, so only `team-a` gets them.
                    if (index + place) % 2 == 0 || namespace == "team-a" {
                        cases.push(Case {
                            profile: case,
                            namespace,
                            operation: Operation::Create,
                            object: make("fresh", data),
                            old: Json::Null,
                        });
                    }
                    if namespace == "team-a" && index < 2 {
                        let old = make(&format!("{case}-{index}-old"), &json!({"free": "yes"}));
                        let name = old["metadata"]["name"].as_str().unwrap().to_owned();
                        cases.push(Case {
                            profile: case,
                            namespace,
                            operation: Operation::Update,
                            object: make(&name, data),
                            old,
                        });
                        let old = make(&format!("{case}-{index}-{place}-gone"), data);
                        cases.push(Case {
                            profile: case,
                            namespace,
                            operation: Operation::Delete,
                            object: Json::Null,
                            old,
                        });
                    }
                }
            }
        }
    }
    cases
}
