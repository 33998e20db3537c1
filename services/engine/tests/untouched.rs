//! Tests that fields which no profile sets remain unchanged byte for byte, in any notation, even if values around them
//! are moved, joined or replaced. Also tests that the order of the given profiles does not affect the result.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, clippy::panic, reason = "test helpers fail by panicking")]

use crate::common::{respond, snapshot};
use proptest::prelude::*;
use serde_json::value::RawValue;
use serde_json::{Value as Json, json};
use std::collections::BTreeMap;

/// JSON in its original notation. The value of a key that begins with `x-` is stored as its JSON text.
#[derive(Debug)]
enum Raw {
    Map(Vec<(String, Self)>),
    List(Vec<Self>),
    Text(String),
}

impl Raw {
    fn read(text: &str) -> Self {
        match text.trim().as_bytes()[0] {
            b'{' => {
                let members: BTreeMap<String, Box<RawValue>> = serde_json::from_str(text).unwrap();
                let read = |key: &str, text: &str| {
                    if key.starts_with("x-") { Self::Text(text.into()) } else { Self::read(text) }
                };
                Self::Map(members.into_iter().map(|(key, value)| (key.clone(), read(&key, value.get()))).collect())
            }
            b'[' => {
                let items: Vec<Box<RawValue>> = serde_json::from_str(text).unwrap();
                Self::List(items.iter().map(|item| Self::read(item.get())).collect())
            }
            _ => Self::Text(text.into()),
        }
    }

    fn at(&mut self, token: &str) -> &mut Self {
        match self {
            Self::Map(members) => &mut members.iter_mut().find(|(key, _)| key == token).unwrap().1,
            Self::List(items) => &mut items[token.parse::<usize>().unwrap()],
            Self::Text(text) => unreachable!("{token} of {text}"),
        }
    }

    /// Applies one operation of a JSON Patch.
    fn patch(&mut self, operation: &BTreeMap<String, Box<RawValue>>) {
        let text = |key: &str| serde_json::from_str::<String>(operation[key].get()).unwrap();
        let path = text("path");
        let tokens: Vec<_> = path.split('/').skip(1).map(|token| token.replace("~1", "/").replace("~0", "~")).collect();
        let (last, around) = tokens.split_last().unwrap();
        let parent = around.iter().fold(self, |at, token| at.at(token));
        let value = operation.get("value").map(|value| Self::read(value.get()));
        match (&*text("op"), parent, value) {
            ("add", Self::List(items), Some(value)) => items.insert(last.parse().unwrap(), value),
            ("remove", Self::List(items), None) => drop(items.remove(last.parse().unwrap())),
            ("add", Self::Map(members), Some(value)) => {
                members.retain(|(key, _)| key != last);
                members.push((last.clone(), value));
            }
            ("remove", Self::Map(members), None) => members.retain(|(key, _)| key != last),
            ("replace", parent, Some(value)) => *parent.at(last) = value,
            other => unreachable!("{other:?}"),
        }
    }

    /// Returns the values of all keys that begin with `x-`, sorted.
    fn odd(&self) -> Vec<(&str, &str)> {
        let mut found = Vec::new();
        let mut waiting = vec![self];
        while let Some(next) = waiting.pop() {
            match next {
                Self::Map(members) => {
                    for (key, value) in members {
                        match value {
                            Self::Text(text) if key.starts_with("x-") => found.push((&**key, &**text)),
                            other => waiting.push(other),
                        }
                    }
                }
                Self::List(items) => waiting.extend(items),
                Self::Text(_) => {}
            }
        }
        found.sort_unstable();
        found
    }
}

fn space() -> impl Strategy<Value = &'static str> {
    prop_oneof![3 => Just(""), 1 => Just(" "), 1 => Just("\n  "), 1 => Just("\t"), 1 => Just("\r\n")]
}

/// Generates a JSON value, usually in a notation that the API server would not use.
fn odd() -> impl Strategy<Value = String> {
    let leaf = prop_oneof![
        Just("1.0"),
        Just("1e2"),
        Just("1E+05"),
        Just("-0"),
        Just("-0.00"),
        Just("123456789012345678901234567890"),
        Just("0.1000000000000000055511151231257827"),
        Just(r#""\u0041\/\"\\""#),
        Just(r#""\ud83d\ude00 \u00e9""#),
        Just("\"\u{e9}\u{1f600}\""),
        Just("null"),
        Just("true"),
        Just("{}"),
        Just("[ ]"),
    ];
    let leaf = leaf.prop_map(str::to_owned);
    leaf.prop_recursive(3, 12, 3, |inner| {
        let list = (prop::collection::vec((space(), inner.clone(), space()), 1..3)).prop_map(|items| {
            let items: Vec<_> = items.into_iter().map(|(a, item, b)| format!("{a}{item}{b}")).collect();
            format!("[{}]", items.join(","))
        });
        let map = (space(), inner, space(), space())
            .prop_map(|(a, value, b, c)| format!("{{{a}\"k\\u0061\"{b}:{c}{value}}}"));
        prop_oneof![list, map]
    })
}

/// Generates the JSON of a pod, with values from [`odd`] in many places and with white space between tokens.
fn pod() -> impl Strategy<Value = String> {
    let pod = json!({
        "metadata": {"annotations": {"example.com/native": "NATIVE"}, "labels": {"app": "a"}, "@": 0},
        "spec": {
            "@": 0,
            "initContainers": [{"name": "setup", "image": "s", "@": 0, "env": [{"name": "B", "value": "1", "@": 0}]}],
            "containers": [
                {
                    "name": "app", "image": "i", "@": 0, "resources": {"limits": {"@": 0}, "@": 0},
                    "env": [
                        {"name": "LATE", "value": "$(NEW),x", "@": 0},
                        {"name": "REF", "@": 0, "valueFrom": {"fieldRef": {"fieldPath": "metadata.name", "@": 0}, "@": 0}},
                        {"name": "B", "value": "b", "@": 0},
                    ],
                    "livenessProbe": {"@": 0, "periodSeconds": 3, "exec": {"command": ["x"], "@": 0}},
                    "ports": [{"containerPort": 80, "@": 0}],
                },
                {"name": "proxy", "@": 0, "securityContext": {"@": 0}, "env": [{"name": "A", "value": "x", "@": 0}]},
            ],
            "volumes": [{"name": "data", "@": 0, "emptyDir": {"@": 0}}],
            "tolerations": [{"key": "a", "@": 0}],
        },
        "status": {"@": 0},
    });
    let text = pod.to_string();
    let places = text.matches("\"@\":0").count();
    let tokens = text.len();
    (prop::collection::vec(odd(), places), prop::collection::vec(space(), tokens), any::<bool>()).prop_map(
        move |(values, spaces, native)| {
            let mut values = values.into_iter().enumerate();
            let mut out = String::new();
            let mut is_text = false;
            let mut rest = &*text;
            for space in spaces {
                if let Some(behind) = rest.strip_prefix("\"@\":0") {
                    let (number, value) = values.next().unwrap();
                    out.extend(["\"x-", &number.to_string(), "\"", space, ": ", &*value]);
                    rest = behind;
                    continue;
                }
                let Some(next) = rest.chars().next() else { break };
                is_text ^= next == '"';
                if !is_text && next != '"' && matches!(next, '{' | '}' | '[' | ']' | ',' | ':') {
                    out.push_str(space);
                }
                out.push(next);
                rest = &rest[next.len_utf8()..];
            }
            out.replace("NATIVE", if native { "true" } else { "false" })
        },
    )
}

/// Returns a profile that moves, joins, composes, replaces and orders values. `conflict` is the `$conflict` rule for
/// its liveness probe.
fn profile(conflict: &str) -> Json {
    json!({
        "activation": "Always",
        "parameters": [{"name": "native", "type": "boolean", "default": false, "annotation": "example.com/native", "sources": ["Pod"]}],
        "template": {
            "metadata": {"labels": {"example.com/l": "${string(containers.size())}"}},
            "spec": {
                "initContainers": [{
                    "name": "proxy", "image": "p", "restartPolicy": "${params.native ? 'Always' : null}", "$conflict": "Merge", "$position": "First",
                    "env": [{"name": "A", "value": "y", "$join": {"separator": ","}}, {"name": "Z", "value": "$(A)", "$position": "First"}],
                    "securityContext": {"runAsUser": 1},
                }],
                "volumes": [{"name": "ours", "emptyDir": {}, "$position": "First"}],
            },
        },
        "containerPatches": [{
            "name": "r", "match": {"types": ["App", "Init"]},
            "template": {
                "env": [
                    {"name": "LATE", "value": "z", "$join": {"separator": ","}},
                    {"name": "NEW", "value": "$(B)"},
                    {"name": "REF", "value": "q", "$join": {"separator": ",", "valueFrom": "Compose"}},
                ],
                "livenessProbe": {"$when": "existing.hasValue()", "$conflict": conflict, "timeoutSeconds": 2, "periodSeconds": 7},
                "resources": {"limits": {"cpu": "1"}},
            },
        }],
    })
}

fn review(object: &str) -> Vec<u8> {
    let review = json!({
        "apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview",
        "request": {
            "uid": "u", "namespace": "team-a", "operation": "CREATE", "object": "OBJECT",
            "resource": {"group": "", "version": "v1", "resource": "pods"},
        },
    });
    review.to_string().replace("\"OBJECT\"", object).into_bytes()
}

/// Returns profiles that add to the same lists and join the same variable.
fn dynamic() -> Vec<(&'static str, Json)> {
    let entry = |name: &str, position: Json| {
        json!({
            "activation": "Always",
            "template": {"spec": {"containers": [{
                "name": name, "image": "i", "$position": position,
                "env": [{"name": "N", "value": "${containers.map(c, c.name).join(',')}"}],
            }]}},
            "containerPatches": [{
                "name": "r", "match": {"types": ["App", "Injected"], "where": "container.name != 'none'"},
                "template": {"env": [
                    {"name": "SHARED", "value": name, "$join": {"separator": ","}, "$position": "First"},
                    {"name": format!("OF_{name}"), "value": "$(SHARED)", "$position": {"before": "SHARED"}},
                ]},
            }],
        })
    };
    let mut first = entry("four", json!("First"));
    first["order"] = json!(7);
    vec![
        ("c", entry("one", json!("First"))),
        ("a", entry("two", json!("First"))),
        ("b", entry("three", json!({"before": "${containers[0].name}"}))),
        ("d", first),
    ]
}

fn permutations<T: Clone>(items: &[T]) -> Vec<Vec<T>> {
    if items.is_empty() {
        return vec![Vec::new()];
    }
    let without = |index: usize| [&items[..index], &items[index + 1..]].concat();
    let all = (0..items.len()).flat_map(|index| {
        permutations(&without(index)).into_iter().map(move |rest| [&items[index..=index], &rest].concat())
    });
    all.collect()
}

#[test]
fn order_of_profiles_is_fixed() {
    let body =
        review(r#"{"metadata":{},"spec":{"containers":[{"name":"app","env":[{"name":"SHARED","value":"x"}]}]}}"#);
    let mut responses = Vec::new();
    for profiles in permutations(&dynamic()) {
        let (decided, response) = respond(&body, &snapshot(&profiles));
        let order: Vec<_> = decided.decision.profiles.iter().map(|one| one.profile.display_name().to_owned()).collect();
        assert_eq!(order, ["d", "a", "b", "c"]);
        responses.push(String::from_utf8(response).unwrap());
    }
    assert_eq!(responses.len(), 24);
    responses.dedup();
    assert_eq!(responses.len(), 1, "{responses:#?}");
}

proptest! {
    #![proptest_config(ProptestConfig::default())]

    #[test]
    fn unnamed_fields_stay_byte_for_byte(
        pod in pod(), conflict in prop_oneof![Just("Merge"), Just("Replace"), Just("Keep")],
    ) {
        let snapshot = snapshot(&[("p", profile(conflict))]);
        let (decided, _) = respond(&review(&pod), &snapshot);
        let patch = decided.patch.as_deref().map(|patch| std::str::from_utf8(patch).unwrap());
        let operations: Vec<BTreeMap<String, Box<RawValue>>> = serde_json::from_str(patch.expect("the profile changes something")).unwrap();
        prop_assert!(operations.len() > 6, "{:?}", decided.decision);
        let before = Raw::read(&pod);
        let mut after = Raw::read(&pod);
        for operation in &operations {
            after.patch(operation);
        }
        prop_assert!(before.odd().len() > 15);
        prop_assert_eq!(before.odd(), after.odd(), "{}\n-> {:?}", pod, patch);
    }
}
