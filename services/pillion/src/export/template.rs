//! Writes a template as a patch for the API server's own mutations.
//!
//! Only added labels and annotations keep their meaning there: an existing key stays. For everything else, the policy
//! would override the author, could not detect a name conflict, and would leave no record for a later pass or an undo.

use pillion_api::ProfileSpec;
use pillion_api::profile::{Operation, Target};
use serde_json::{Map, Value, json};

use super::LeftOut;
use super::asking::quoted;

/// The added keys with their values, by map (labels or annotations).
pub(super) type Additions = Vec<(&'static str, Vec<(String, String)>)>;

const MAPS: [&str; 2] = ["labels", "annotations"];

/// Returns the additions of a template if a policy can express them. `None`: there is no template.
pub(super) fn additions(spec: &ProfileSpec) -> Result<Option<Additions>, LeftOut> {
    let Some(template) = spec.template.as_ref().and_then(Value::as_object) else { return Ok(None) };
    if let Some(field) = template.keys().find(|field| *field != "metadata") {
        let why = "what Kubernetes' own policies add wins over what the author wrote, and they keep no record of it";
        return Err(LeftOut::new(format!("spec.template.{field}"), why));
    }
    let metadata = template.get("metadata").and_then(Value::as_object);
    let mut additions = Vec::new();
    for (map, entries) in metadata.into_iter().flat_map(Map::iter) {
        let path = format!("spec.template.metadata.{map}");
        let Some(known) = MAPS.into_iter().find(|known| known == map) else {
            return Err(LeftOut::new(path, "only labels and annotations are exported"));
        };
        let mut pairs = Vec::new();
        for (key, value) in entries.as_object().into_iter().flat_map(Map::iter) {
            let plain = value.as_str().filter(|text| !key.starts_with('$') && !text.contains("${"));
            let Some(text) = plain else {
                return Err(LeftOut::new(format!("{path}[{key:?}]"), "directives and expressions are not exported"));
            };
            pairs.push((key.clone(), text.to_owned()));
        }
        additions.push((known, pairs));
    }
    Ok(Some(additions))
}

/// Returns the rule for the template's objects: created or updated ones; pods only on creation.
pub(super) fn rule(spec: &ProfileSpec) -> Value {
    let target = spec.target.clone().unwrap_or_else(Target::pods);
    let is_pods = target.group.is_empty() && target.resources.iter().any(|resource| resource == "pods");
    let lasting = |operation: &Operation| match operation {
        Operation::Create => true,
        Operation::Update => !is_pods,
        Operation::Delete => false,
    };
    let named = if target.operations.is_empty() { vec![Operation::Create] } else { target.operations };
    let operations: Vec<_> = named.into_iter().filter(lasting).map(Operation::as_str).collect();
    let resources: Vec<_> = target.resources.into_iter().filter(|resource| !resource.contains('/')).collect();
    json!({
        "apiGroups": [target.group], "apiVersions": [target.version], "resources": resources,
        "operations": operations, "scope": "Namespaced",
    })
}

/// Returns the expression of the patch: adds a missing map as a whole, or else each missing key.
pub(super) fn expression(additions: &Additions, guards: &[String]) -> String {
    let parts: Vec<_> = additions.iter().map(|(map, pairs)| of_map(map, pairs)).collect();
    let patch = parts.join(" +\n");
    if guards.is_empty() { patch } else { format!("!({}) ? [] :\n{patch}", guards.join(" && ")) }
}

fn of_map(map: &str, pairs: &[(String, String)]) -> String {
    let all: Vec<_> = pairs.iter().map(|(key, value)| format!("{}: {}", quoted(key), quoted(value))).collect();
    let whole = format!("[JSONPatch{{op: 'add', path: '/metadata/{map}', value: {{{}}}}}]", all.join(", "));
    let each: Vec<_> = pairs
        .iter()
        .map(|(key, value)| {
            let path = quoted(&format!("/metadata/{map}/{}", key.replace('~', "~0").replace('/', "~1")));
            let (key, value) = (quoted(key), quoted(value));
            format!("({key} in object.metadata.{map} ? [] : [JSONPatch{{op: 'add', path: {path}, value: {value}}}])")
        })
        .collect();
    format!("(!has(object.metadata.{map}) ? {whole} :\n  {})", each.join(" +\n  "))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(template: &Value) -> Result<Option<Additions>, LeftOut> {
        additions(&ProfileSpec { template: Some(template.clone()), ..ProfileSpec::default() })
    }

    #[test]
    fn only_plain_labels_and_annotations_are_said_the_same() {
        for template in [
            json!({"spec": {"containers": []}}),
            json!({"metadata": {"finalizers": ["a"]}}),
            json!({"metadata": {"labels": {"a": "${object.metadata.name}"}}}),
            json!({"metadata": {"labels": {"$conflict": "Replace", "a": "b"}}}),
            json!({"metadata": {"annotations": {"a": {"$value": "b", "$join": {}}}}}),
        ] {
            assert!(of(&template).is_err(), "{template}");
        }
        let template = json!({"metadata": {"annotations": {"example.com/a": "it's"}}});
        let additions = of(&template).unwrap().unwrap();
        let text = expression(&additions, &["variables.g".to_owned()]);
        assert!(text.starts_with("!(variables.g) ? [] :"), "{text}");
        assert!(text.contains("path: '/metadata/annotations/example.com~1a', value: 'it\\'s'"), "{text}");
    }

    #[test]
    fn a_pod_is_only_changed_when_it_is_created() {
        let rule_of = |target: Value| {
            let target = serde_json::from_value(target).unwrap();
            let rule = rule(&ProfileSpec { target: Some(target), ..ProfileSpec::default() });
            (rule["resources"].to_string(), rule["operations"].to_string())
        };
        let both = json!({"version": "v1", "resources": ["pods", "pods/ephemeralcontainers"], "operations": ["CREATE", "UPDATE"]});
        assert_eq!(rule_of(both), ("[\"pods\"]".to_owned(), "[\"CREATE\"]".to_owned()));
        let maps = json!({"version": "v1", "resources": ["configmaps"], "operations": ["UPDATE", "DELETE"]});
        assert_eq!(rule_of(maps), ("[\"configmaps\"]".to_owned(), "[\"UPDATE\"]".to_owned()));
    }
}
