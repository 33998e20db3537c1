//! What Pillion changed in a pod, by its injection record, and which of these changes are no longer there.

use pillion_api::names::INJECTED_ANNOTATION;
use pillion_engine::audit::Injected;
use pillion_json::OwnedTape;
use serde::Serialize;
use serde_json::Value;

/// A change that a profile made.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Change {
    /// The profile or field manager that made the change.
    pub(crate) by: String,
    /// The revision, if a profile made the change.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) revision: Option<String>,
    pub(crate) what: What,
    /// The path, with list elements by name.
    pub(crate) path: String,
    /// Whether an added field is still present.
    pub(crate) present: bool,
}

/// A field manager of an object, and the time of its last write.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Manager {
    pub(crate) manager: String,
    pub(crate) time: String,
}

/// The kind of change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum What {
    Added,
    Replaced,
    Removed,
}

/// Returns the changes in the record of a pod, if Pillion wrote the record for this pod.
pub(crate) fn of_own_record(pod: &Value) -> Vec<Change> {
    let tape = OwnedTape::parse(pod.to_string()).ok();
    match tape.map(|tape| pillion_engine::audit::read(tape.root()).injected) {
        Some(Injected::Profiles(_)) => of_record(pod),
        Some(Injected::Foreign | Injected::Nothing) | None => Vec::new(),
    }
}

/// Returns the changes in the record of a pod.
pub(crate) fn of_record(pod: &Value) -> Vec<Change> {
    let annotation = pod.pointer("/metadata/annotations").and_then(|all| all.get(INJECTED_ANNOTATION));
    let record: Option<Value> = annotation.and_then(Value::as_str).and_then(|text| serde_json::from_str(text).ok());
    let mut changes = Vec::new();
    for entry in record.iter().filter_map(|record| record.get("profiles")?.as_array()).flatten() {
        let text = |field: &str| entry.get(field).and_then(Value::as_str).unwrap_or_default().to_owned();
        let list = |field: &str| entry.get(field).and_then(Value::as_array).into_iter().flatten();
        let mut add = |what, path: &str| {
            let present = what == What::Removed || is_there(pod, path);
            let (by, path) = (text("profile"), path.to_owned());
            changes.push(Change { by, revision: Some(text("revision")), what, path, present });
        };
        for path in list("added").filter_map(Value::as_str) {
            add(What::Added, path);
        }
        for replaced in list("replaced").filter_map(Value::as_array) {
            let what = if replaced.len() > 2 { What::Removed } else { What::Replaced };
            if let Some(path) = replaced.first().and_then(Value::as_str) {
                add(what, path);
            }
        }
    }
    changes
}

/// Returns the field managers in `managedFields` with their times, except those of subresources.
pub(crate) fn managers(object: &Value) -> Vec<Manager> {
    let entries = object.pointer("/metadata/managedFields").and_then(Value::as_array).into_iter().flatten();
    let mut managers = Vec::new();
    for entry in entries.filter(|entry| entry.get("subresource").is_none_or(|sub| sub.as_str() == Some(""))) {
        let text = |field: &str| entry.get(field).and_then(Value::as_str).unwrap_or_default().to_owned();
        managers.push(Manager { manager: text("manager"), time: text("time") });
    }
    managers
}

/// Whether a path exists in the object; list elements are named by their keys. Undecidable paths count as existing, to
/// avoid false alarms.
fn is_there(object: &Value, path: &str) -> bool {
    let mut at = object;
    for token in path.split('/').skip(1).map(|token| token.replace("~1", "/").replace("~0", "~")) {
        at = match at {
            Value::Object(map) => match map.get(&token) {
                Some(value) => value,
                None => return false,
            },
            Value::Array(items) => match items.iter().find(|item| is_named(item, &token)) {
                Some(item) => item,
                None => return items.iter().any(|item| !can_be_named(item)),
            },
            _ => return true,
        };
    }
    true
}

/// The fields that identify elements of a pod's lists.
const KEYS: [&str; 10] = [
    "name",
    "mountPath",
    "devicePath",
    "containerPort",
    "protocol",
    "ip",
    "topologyKey",
    "whenUnsatisfiable",
    "conditionType",
    "resourceName",
];

/// Whether an element has this name: all parts of the name are values of its keys.
fn is_named(item: &Value, name: &str) -> bool {
    let is_value = |value: &Value, part: &str| match value {
        Value::String(text) => text == part,
        Value::Number(number) => number.to_string() == part,
        _ => false,
    };
    if !item.is_object() {
        return is_value(item, name);
    }
    let value = |part: &str| KEYS.iter().any(|key| item.get(key).is_some_and(|value| is_value(value, part)));
    // The default protocol is TCP.
    let is_default =
        |part: &str| part == "TCP" && item.get("containerPort").is_some() && item.get("protocol").is_none();
    value(name) || name.split(',').all(|part| value(part) || is_default(part))
}

fn can_be_named(item: &Value) -> bool {
    !item.is_object() || KEYS.iter().any(|key| item.get(key).is_some())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn pod() -> Value {
        let record = json!({"version": 1, "profiles": [{
            "profile": "nginx", "revision": "ab", "added": [
                "/metadata/annotations/example.com~1a", "/spec/containers/proxy", "/spec/containers/gone",
                "/spec/containers/proxy/ports/80,TCP", "/spec/tolerations/odd", "/spec/volumes/conf",
            ],
            "replaced": [["/spec/containers/app/image", "old:1"], ["/spec/containers/app/env/A", {"name": "A"}, ""]],
        }]});
        json!({
            "metadata": {"annotations": {"example.com/a": "1", "pillion.dev/injected": record.to_string()}},
            "spec": {
                "containers": [{"name": "app"}, {"name": "proxy", "ports": [{"containerPort": 80}]}],
                "tolerations": [{"operator": "Exists"}],
            },
        })
    }

    #[test]
    fn what_a_record_lists_is_there_or_not() {
        let told: Vec<_> =
            of_record(&pod()).into_iter().map(|change| (change.what, change.path, change.present)).collect();
        let expected = [
            (What::Added, "/metadata/annotations/example.com~1a", true),
            (What::Added, "/spec/containers/proxy", true),
            (What::Added, "/spec/containers/gone", false),
            (What::Added, "/spec/containers/proxy/ports/80,TCP", true),
            (What::Added, "/spec/tolerations/odd", true),
            (What::Added, "/spec/volumes/conf", false),
            (What::Replaced, "/spec/containers/app/image", false),
            (What::Removed, "/spec/containers/app/env/A", true),
        ];
        let expected: Vec<_> = expected.into_iter().map(|(what, path, is)| (what, path.to_owned(), is)).collect();
        assert_eq!(told, expected);
        assert!(of_record(&json!({})).is_empty());
    }

    #[test]
    fn managers_are_those_of_the_object_itself() {
        let object = json!({"metadata": {"managedFields": [
            {"manager": "kubectl", "time": "2026-01-01T00:00:00Z"},
            {"manager": "kubelet", "time": "2026-01-01T00:00:01Z", "subresource": "status"},
        ]}});
        let told: Vec<_> = managers(&object).into_iter().map(|one| (one.manager, one.time)).collect();
        assert_eq!(told, [("kubectl".to_owned(), "2026-01-01T00:00:00Z".to_owned())]);
    }
}
