//! Checks templates for objects other than pods. The engine does not know their fields, and the API server checks the
//! result against its schema. All objects share the same metadata, and some of its fields cannot be set.

use serde_json::{Map, Value as Json};

use super::Diagnostic;
use super::check::{check_key, check_values};
use super::template::without_directives;
use super::typed::called;

/// Fields that a template cannot set.
const NOT_OURS: [(&str, &str); 3] = [
    ("apiVersion", "the target says of which objects it is a part"),
    ("kind", "the target says of which objects it is a part"),
    ("status", "a status is what was observed"),
];

/// Fields of the metadata that a template can set.
const METADATA: [&str; 4] = ["labels", "annotations", "finalizers", "ownerReferences"];

/// Checks a template for an object other than a pod. Returns false if it is nested too deeply for further checks.
pub(super) fn check_object(template: &Json, diagnostics: &mut Vec<Diagnostic>) -> bool {
    if !check_values("spec.template", template, 0, diagnostics) {
        return false;
    }
    let template = &without_directives(template);
    let Some(fields) = object("spec.template", template, diagnostics) else { return true };
    for (field, why) in NOT_OURS.iter().filter(|(field, _)| fields.contains_key(*field)) {
        let diagnostic = Diagnostic::new(format!("spec.template.{field}"), format!("a template cannot set {field}"));
        diagnostics.push(diagnostic.with_help(*why));
    }
    if let Some(metadata) = fields.get("metadata") {
        check_metadata(metadata, diagnostics);
    }
    true
}

fn check_metadata(metadata: &Json, diagnostics: &mut Vec<Diagnostic>) {
    let path = "spec.template.metadata";
    let Some(fields) = object(path, metadata, diagnostics) else { return };
    for field in fields.keys().filter(|field| !METADATA.contains(&field.as_str())) {
        let diagnostic = Diagnostic::new(format!("{path}.{field}"), format!("a template cannot set metadata.{field}"));
        diagnostics.push(diagnostic.with_help(format!("it can set {}", METADATA.join(", "))));
    }
    for map in ["labels", "annotations"] {
        let path = format!("{path}.{map}");
        let entries = fields.get(map).and_then(|entries| object(&path, entries, diagnostics));
        for (key, value) in entries.into_iter().flat_map(Map::iter) {
            let path = format!("{path}[{key:?}]");
            if let Some(sentence) = check_key(key) {
                diagnostics.push(Diagnostic::new(&path, sentence));
            }
            if key.starts_with("pillion.dev/") {
                diagnostics.push(Diagnostic::new(&path, "keys below pillion.dev/ are Pillion's own"));
            }
            if !value.is_string() {
                let message = format!("expected a string, found {}", called(value));
                diagnostics.push(Diagnostic::new(&path, message).with_help("quote it"));
            }
        }
    }
    for list in ["finalizers", "ownerReferences"] {
        if let Some(other) = fields.get(list).filter(|value| !value.is_array() && !value.is_string()) {
            let message = format!("expected a list, found {}", called(other));
            diagnostics.push(Diagnostic::new(format!("{path}.{list}"), message));
        }
    }
}

fn object<'t>(path: &str, value: &'t Json, diagnostics: &mut Vec<Diagnostic>) -> Option<&'t Map<String, Json>> {
    let object = value.as_object();
    // The type of an expression's result is not known here.
    if object.is_none() && !value.is_string() {
        diagnostics.push(Diagnostic::new(path, format!("expected an object, found {}", called(value))));
    }
    object
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn diagnostics(template: &Json) -> Vec<String> {
        let mut diagnostics = Vec::new();
        check_object(template, &mut diagnostics);
        diagnostics.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn what_is_nobodys_to_set_is_refused() {
        for (template, path) in [
            (json!({"kind": "Pod"}), "spec.template.kind"),
            (json!({"status": {"ready": true}}), "spec.template.status"),
            (json!({"metadata": {"name": "x"}}), "spec.template.metadata.name"),
            (json!({"metadata": {"managedFields": []}}), "spec.template.metadata.managedFields"),
            (json!({"metadata": {"finalizers": 1}}), "spec.template.metadata.finalizers"),
            (json!({"metadata": {"labels": {"bad key": "x"}}}), "spec.template.metadata.labels[\"bad key\"]"),
            (json!({"metadata": {"labels": {"n": 1}}}), "spec.template.metadata.labels[\"n\"]"),
            (json!({"metadata": {"annotations": {"pillion.dev/injected": ""}}}), "spec.template.metadata.annotations"),
            (json!([]), "spec.template"),
            (json!({"spec": null}), "spec.template.spec"),
        ] {
            let diagnostics = diagnostics(&template);
            let found = diagnostics.iter().any(|diagnostic| diagnostic.starts_with(path));
            assert_eq!(found, !path.is_empty(), "{template}: {diagnostics:?}");
        }
    }

    #[test]
    fn what_no_pod_has_is_right() {
        let template = json!({
            "metadata": {"finalizers": {"$value": ["example.com/a"], "$join": {}}, "labels": {"a": "b"}},
            "spec": {"contaners": "anything", "containers": [{"name": "no-image"}], "health": {"periodSeconds": 5}},
            "data": {"a": "b"},
        });
        assert_eq!(diagnostics(&template), Vec::<String>::new());
    }
}
