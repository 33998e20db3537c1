//! Rejects files that the API server would not store, because lists or strings exceed the CRDs' limits.
//!
//! The limits are read from the CRDs, so a file that passes here can be applied.

use std::sync::{Arc, LazyLock};

use pillion_api::crd;
use serde_json::Value;

use super::problem::{Problem, Source};
use super::yaml::{Content, Node};

/// The schemas of `spec`, by kind. A CRD that cannot be generated has no limits; a test of the API crate ensures that
/// all can.
static SCHEMAS: LazyLock<Vec<(String, Value)>> = LazyLock::new(|| {
    let definitions = crd::definitions().into_iter().flatten();
    let schemas = definitions.filter_map(|definition| {
        let kind = definition.spec.names.kind.clone();
        let schema = definition.spec.versions.into_iter().next()?.schema?.open_api_v3_schema?;
        let spec = schema.properties?.remove("spec")?;
        Some((kind, serde_json::to_value(spec).ok()?))
    });
    schemas.collect()
});

/// Returns a problem for each field of a profile's spec that exceeds its limit.
pub(super) fn exceeded(source: &Arc<Source>, kind: &str, spec: &Node) -> Vec<Problem> {
    let mut problems = Vec::new();
    if let Some((_, schema)) = SCHEMAS.iter().find(|(known, _)| known == kind) {
        walk(source, schema, spec, "spec", &mut problems);
    }
    problems
}

fn walk(source: &Arc<Source>, schema: &Value, node: &Node, path: &str, problems: &mut Vec<Problem>) {
    let mut limit = |name: &str, found: usize, what: &str| {
        let allowed = schema.get(name).and_then(Value::as_u64).and_then(|allowed| usize::try_from(allowed).ok());
        if let Some(allowed) = allowed.filter(|allowed| found > *allowed) {
            let message = format!("{path}: there are {found} {what}, and at most {allowed} can be stored");
            problems.push(Problem::at(source, node.span.clone(), message).of_field(path));
        }
    };
    match &node.content {
        Content::Scalar(value) => {
            if let Some(text) = value.as_str() {
                limit("maxLength", text.chars().count(), "characters");
            }
        }
        Content::Sequence(items) => {
            limit("maxItems", items.len(), "items");
            let Some(schema) = schema.get("items") else { return };
            for (index, item) in items.iter().enumerate() {
                walk(source, schema, item, &format!("{path}[{index}]"), problems);
            }
        }
        Content::Mapping(entries) => {
            limit("maxProperties", entries.len(), "entries");
            for entry in entries {
                let known = schema.get("properties").and_then(|properties| properties.get(&entry.key));
                let Some(schema) = known.or_else(|| schema.get("additionalProperties")) else { continue };
                walk(source, schema, &entry.value, &format!("{path}.{}", entry.key), problems);
            }
        }
    }
}
