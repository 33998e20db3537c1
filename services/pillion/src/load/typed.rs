//! Deserializes a YAML tree into a Rust type, and reports the position of the first mismatch. Also finds unknown fields
//! and exceeded limits.

use std::sync::{Arc, LazyLock};

use pillion_api::crd;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::problem::{Problem, Source};
use super::yaml::{Content, Node};

/// Deserializes the node `root`. `above` is the path of `root` in the document, for error messages.
pub(crate) fn read<T: DeserializeOwned>(source: &Arc<Source>, root: &Node, above: &str) -> Result<T, Problem> {
    serde_path_to_error::deserialize(root.to_value()).map_err(|error| {
        let path = error.path().to_string();
        let path = if path == "." { "" } else { path.as_str() };
        SerdeMismatch::of(&error.inner().to_string()).locate(source, root, path, above)
    })
}

/// Returns a problem for each unknown field of a mapping.
pub(crate) fn unknown_fields<'a>(
    source: &'a Arc<Source>,
    node: &'a Node,
    known: &'a [&'a str],
) -> impl Iterator<Item = Problem> + 'a {
    node.entries().iter().filter(|entry| !known.contains(&entry.key.as_str())).map(|entry| {
        let complaint = SerdeMismatch::Unknown {
            what: "field",
            name: entry.key.clone(),
            known: known.iter().map(|&name| name.to_owned()).collect(),
        };
        let problem = Problem::at(source, entry.key_span.clone(), complaint.message()).of_field(entry.key.as_str());
        problem.with_help(complaint.help())
    })
}

/// Returns the known name that the author probably meant; `None` if no known name is similar.
pub(crate) fn meant<'k>(name: &str, known: impl IntoIterator<Item = &'k str>) -> Option<&'k str> {
    // Limits the work, which grows with the length. No known name is this long.
    if name.len() > 100 {
        return None;
    }
    // Up to a third of the characters may be wrong, and always at least one: "tempalte" is similar to "template", but
    // "image" is not similar to "name".
    let limit = (name.chars().count() / 3).max(1);
    let lower = name.to_lowercase();
    known
        .into_iter()
        .map(|candidate| (strsim::damerau_levenshtein(&lower, &candidate.to_lowercase()), candidate))
        .filter(|(distance, _)| *distance <= limit)
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, candidate)| candidate)
}

/// An error of serde, parsed from its message, since serde returns no structured errors.
enum SerdeMismatch {
    /// An unknown field or variant.
    Unknown { what: &'static str, name: String, known: Vec<String> },
    /// A missing required field.
    Missing { name: String },
    /// Any other error, with serde's message.
    Other(String),
}

impl SerdeMismatch {
    fn of(text: &str) -> Self {
        for what in ["field", "variant"] {
            let Some((name, rest)) =
                text.strip_prefix(&format!("unknown {what} `")).and_then(|rest| rest.split_once("`, "))
            else {
                continue;
            };
            // The rest is "expected one of `a`, `b`", "expected `a` or `b`", "expected `a`", or "there are no fields".
            let known = rest.split('`').skip(1).step_by(2).map(str::to_owned).collect();
            return Self::Unknown { what, name: name.to_owned(), known };
        }
        match text.strip_prefix("missing field `").and_then(|rest| rest.strip_suffix('`')) {
            Some(name) => Self::Missing { name: name.to_owned() },
            None => Self::Other(text.to_owned()),
        }
    }

    fn locate(self, source: &Arc<Source>, root: &Node, path: &str, above: &str) -> Problem {
        let (span, path) = match &self {
            Self::Unknown { what: "field", name, .. } => {
                // serde's path may or may not end with the field itself.
                let above = path.strip_suffix(name.as_str()).filter(|rest| rest.is_empty() || rest.ends_with('.'));
                let whole = if above.is_some() { path.to_owned() } else { joined(path, name) };
                (root.place_of_key(path, name), whole)
            }
            _ => (None, path.to_owned()),
        };
        let span = span.unwrap_or_else(|| root.place(&path));
        let path = joined(above, &path);
        let help = misplaced(&path).or_else(|| self.help());
        Problem::at(source, span, self.message()).of_field(path).with_help(help)
    }

    fn message(&self) -> String {
        match self {
            Self::Unknown { what: "field", name, .. } => format!("unknown field `{name}`"),
            Self::Unknown { name, .. } => format!("`{name}` is not one of the allowed values"),
            Self::Missing { name } => format!("the field `{name}` is missing"),
            Self::Other(text) => {
                let parts = ["invalid type: ", "invalid value: "].iter().find_map(|begin| text.strip_prefix(begin));
                match parts.and_then(|parts| parts.rsplit_once(", expected ")) {
                    Some((found, expected)) => format!("expected {}, found {found}", plain(expected)),
                    None => text.clone(),
                }
            }
        }
    }

    fn help(&self) -> Option<String> {
        let (name, known) = match self {
            Self::Unknown { name, known, .. } => (name, known),
            Self::Missing { .. } => return None,
            Self::Other(text) => {
                let found = text.strip_suffix(", expected a string")?.strip_prefix("invalid type: ")?;
                let scalar = ["boolean", "integer", "floating point"].iter().any(|kind| found.starts_with(kind));
                return scalar.then(|| "put it in quotes, so that YAML parses it as a string".to_owned());
            }
        };
        let listed: Vec<_> = known.iter().map(|name| format!("`{name}`")).collect();
        let listed = (!listed.is_empty()).then(|| format!("expected one of {}", listed.join(", ")));
        match (meant(name, known.iter().map(String::as_str)), self) {
            (Some(meant), Self::Unknown { what: "variant", .. }) => {
                Some(format!("did you mean `{meant}`? {}", listed.unwrap_or_default()))
            }
            (Some(meant), _) => Some(format!("did you mean `{meant}`?")),
            (None, _) => listed,
        }
    }
}

/// Returns a hint for a field of a profile that is in the wrong place, or that has a different name in Pillion: the
/// place or the name that the author probably meant. `None` for any other field.
fn misplaced(path: &str) -> Option<String> {
    let (parent, name) = path.rsplit_once('.')?;
    let list = parent.strip_suffix(']').and_then(|parent| parent.rsplit_once('[')).map(|(list, _)| list);
    Some(match (list.unwrap_or(parent), name) {
        ("spec", "containers") => "did you mean `containerPatches` (changes existing containers) or \
                                   `template.spec.containers` (adds containers)?"
            .to_owned(),
        ("spec", "initContainers" | "volumes") => format!("did you mean `template.spec.{name}`?"),
        ("spec", "request") => "did you mean `requestedBy`?".to_owned(),
        ("spec", "onError") => "did you mean `failurePolicy`, `Ignore` or `Fail`?".to_owned(),
        (list, "otherwise" | "message" | "action") if list.ends_with(".matchConditions") => {
            "a match condition only selects: to warn, skip or deny, use `preconditions`".to_owned()
        }
        ("spec.containerPatches", "types" | "names" | "images" | "where") => format!("did you mean `match.{name}`?"),
        ("spec.containerPatches", name) if meant(name, PATCH_FIELDS).is_none() => {
            format!(
                "`{name}` belongs in `template` of the patch, or, to add a container, in spec.template.spec.containers"
            )
        }
        _ => return None,
    })
}

/// The fields of a container patch.
const PATCH_FIELDS: [&str; 5] = ["name", "match", "matchConditions", "preconditions", "template"];

/// Returns a user-friendly form of serde's description of an expected type.
fn plain(expected: &str) -> &str {
    match expected {
        "i32" | "i64" => "a whole number",
        "u8" | "u16" | "u32" | "u64" => "a whole number that is not negative",
        "a sequence" => "a list",
        "a map" => "a mapping",
        other if other.starts_with("struct ") => "a mapping",
        other => other,
    }
}

/// Joins two paths; either may be empty.
fn joined(above: &str, path: &str) -> String {
    match (above, path) {
        ("", path) => path.to_owned(),
        (above, "") => above.to_owned(),
        (above, path) => format!("{above}.{path}"),
    }
}

/// Returns the human-readable type of a node.
pub(crate) fn type_of(node: &Node) -> &'static str {
    match &node.content {
        Content::Scalar(value) if value.is_null() => "nothing",
        Content::Scalar(value) if value.is_string() => "a string",
        Content::Scalar(value) if value.is_boolean() => "a boolean",
        Content::Scalar(_) => "a number",
        Content::Sequence(_) => "a list",
        Content::Mapping(_) => "a mapping",
    }
}

/// The schemas of `spec`, by kind. If a CRD could not be generated, its limits would not be checked; a test of the API
/// crate ensures that all CRDs can be generated.
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

/// Returns a problem for each list, map and string of a profile's spec that exceeds its limit in the CRD. The API
/// server would not store such a profile.
pub(super) fn exceeded_limits(source: &Arc<Source>, kind: &str, spec: &Node) -> Vec<Problem> {
    let mut problems = Vec::new();
    if let Some((_, schema)) = SCHEMAS.iter().find(|(known, _)| known == kind) {
        check_limits(source, schema, spec, "spec", &mut problems);
    }
    problems
}

fn check_limits(source: &Arc<Source>, schema: &Value, node: &Node, path: &str, problems: &mut Vec<Problem>) {
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
                check_limits(source, schema, item, &format!("{path}[{index}]"), problems);
            }
        }
        Content::Mapping(entries) => {
            limit("maxProperties", entries.len(), "entries");
            for entry in entries {
                let known = schema.get("properties").and_then(|properties| properties.get(&entry.key));
                let Some(schema) = known.or_else(|| schema.get("additionalProperties")) else { continue };
                check_limits(source, schema, &entry.value, &format!("{path}.{}", entry.key), problems);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use pillion_api::ProfileSpec;

    use super::*;
    use crate::load::yaml;

    fn problem(text: &str) -> Problem {
        let source = Arc::new(Source::new("p.yaml", text.to_owned()));
        let documents = yaml::documents(text).unwrap();
        read::<ProfileSpec>(&source, &documents[0], "spec").unwrap_err()
    }

    #[test]
    fn misspelled_fields_get_suggestions() {
        for (text, line) in [
            ("order: 1\ntempalte: {}\n", "p.yaml:2:1: unknown field `tempalte` (did you mean `template`?)"),
            ("matchcondition: []\n", "p.yaml:1:1: unknown field `matchcondition` (did you mean `matchConditions`?)"),
            ("requestedBy:\n  anotation: x\n", "p.yaml:2:3: unknown field `anotation` (did you mean `annotation`?)"),
            ("ordr: 1\n", "p.yaml:1:1: unknown field `ordr` (did you mean `order`?)"),
            ("extends: {nam: x}\n", "p.yaml:1:11: unknown field `nam` (did you mean `name`?)"),
            (
                "containerPatches:\n- name: a\n  template: {}\n- name: b\n  tmplate: {}\n",
                "p.yaml:5:3: unknown field `tmplate` (did you mean `template`?)",
            ),
        ] {
            assert_eq!(problem(text).to_string(), line);
        }
    }

    #[test]
    fn misplaced_fields_get_their_place() {
        let template =
            "`env` belongs in `template` of the patch, or, to add a container, in spec.template.spec.containers";
        for (text, help) in [
            (
                "containers: []\n",
                "did you mean `containerPatches` (changes existing containers) or `template.spec.containers` (adds containers)?",
            ),
            ("volumes: []\n", "did you mean `template.spec.volumes`?"),
            ("containerPatches:\n- name: a\n  env: []\n", template),
            ("containerPatches:\n- name: a\n  names: [a]\n", "did you mean `match.names`?"),
            ("containerPatches:\n- name: a\n  mtach: {}\n", "did you mean `match`?"),
            ("request: {annotation: a}\n", "did you mean `requestedBy`?"),
            ("onError: Deny\n", "did you mean `failurePolicy`, `Ignore` or `Fail`?"),
            (
                "matchConditions:\n- {name: a, expression: 'true', otherwise: Deny}\n",
                "a match condition only selects: to warn, skip or deny, use `preconditions`",
            ),
        ] {
            let found = problem(text).to_string();
            assert!(found.contains("unknown field") && found.ends_with(&format!("({help})")), "{text}: {found}");
        }
    }

    #[test]
    fn unknown_field_lists_all_fields() {
        let text = problem("extends: {colour: blue}\n").to_string();
        assert_eq!(text, "p.yaml:1:11: unknown field `colour` (expected one of `name`)");
    }

    #[test]
    fn wrong_types_have_positions() {
        for (text, line) in [
            (
                "activation: always\n",
                "p.yaml:1:13: spec.activation: `always` is not one of the allowed values (did you mean `Always`? expected one of `Always`, `Requested`, `Never`)",
            ),
            ("order: soon\n", "p.yaml:1:8: spec.order: expected a whole number, found string \"soon\""),
            ("order: 5000000000\n", "p.yaml:1:8: spec.order: expected a whole number, found integer `5000000000`"),
            ("extends: {}\n", "p.yaml:1:1: spec.extends: the field `name` is missing"),
            (
                "requestedBy:\n  truthy: [yes, \"on\"]\n",
                "p.yaml:2:12: spec.requestedBy.truthy[0]: expected a string, found boolean `true` \
                 (put it in quotes, so that YAML parses it as a string)",
            ),
        ] {
            assert_eq!(problem(text).to_string(), line);
        }
    }

    #[test]
    fn suggestions_are_similar() {
        let known = ["image", "name", "namespaceSelector", "on"];
        assert_eq!(meant("imgae", known), Some("image"));
        assert_eq!(meant("namespaceselector", known), Some("namespaceSelector"));
        assert_eq!(meant("in", known), Some("on"));
        assert_eq!(meant("resources", known), None);
    }
}
