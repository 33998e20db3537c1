//! The elements of a template's lists, if known without evaluating expressions. Nested lists are flattened, and a
//! `$value` without other fields replaces its map. Each element indicates whether it is always present, and whether the
//! template defines all of it.

use serde_json::{Map, Value as Json};

use crate::context::EXISTING;
use crate::expression::Text;

/// An element of a list of objects.
#[derive(Debug)]
pub(super) struct Element<'t> {
    /// The element's path in the profile.
    pub(super) path: String,
    /// The element's fields, including directives.
    pub(super) fields: &'t Map<String, Json>,
    /// Whether the element may be absent or repeated because of `$when` or `$forEach`.
    pub(super) is_conditional: bool,
    /// Whether the template defines the whole element. False if it is merged into an existing element or into a copy of
    /// one.
    pub(super) is_whole: bool,
}

/// Returns the elements of a field that is a list of objects. Ignores other types, which the type check reports.
pub(super) fn elements<'t>(path: &str, fields: &'t Map<String, Json>, list: &str) -> Vec<Element<'t>> {
    let mut found = Vec::new();
    if let Some(field) = fields.get(list) {
        let (path, value) = placed(format!("{path}.{list}"), field);
        collect(&path, value, is_conditional(field), &mut found);
    }
    found
}

/// Returns the fields of a map, without directives.
pub(super) fn entries(fields: &Map<String, Json>) -> impl Iterator<Item = (&String, &Json)> {
    fields.iter().filter(|(name, _)| !name.starts_with('$'))
}

/// Returns a value, or the value of its `$value` if no other fields change it.
pub(super) fn value_of(value: &Json) -> &Json {
    // The caller has checked the depth of the template, so the recursion is bounded.
    match value {
        Json::Object(fields) if entries(fields).next().is_none() => fields.get("$value").map_or(value, value_of),
        value => value,
    }
}

/// Returns the string with escapes resolved, if `value` is a string without expressions.
pub(super) fn literal(value: &Json) -> Option<String> {
    match Text::parse(value.as_str()?) {
        Ok(Text::Literal(text)) => Some(text),
        _ => None,
    }
}

/// Whether a value is a string with an expression. Also true for a string that cannot be parsed.
pub(super) fn is_computed(value: &Json) -> bool {
    value_of(value).as_str().is_some_and(|text| !matches!(Text::parse(text), Ok(Text::Literal(_))))
}

fn collect<'t>(path: &str, value: &'t Json, is_conditional: bool, found: &mut Vec<Element<'t>>) {
    match value {
        Json::Array(items) => {
            for (index, item) in items.iter().enumerate() {
                let (path, inner) = placed(format!("{path}[{index}]"), item);
                collect(&path, inner, is_conditional || self::is_conditional(item), found);
            }
        }
        Json::Object(fields) => {
            let is_whole = !["$value", "$prune"].iter().any(|directive| fields.contains_key(*directive));
            let is_whole = is_whole && !changes_existing(value);
            found.push(Element { path: path.to_owned(), fields, is_conditional, is_whole });
        }
        _ => {}
    }
}

fn placed(path: String, value: &Json) -> (String, &Json) {
    let inner = value_of(value);
    if std::ptr::eq(inner, value) { (path, value) } else { (format!("{path}.$value"), inner) }
}

fn is_conditional(value: &Json) -> bool {
    value.get("$when").is_some() || (value.get("$forEach").is_some() && !changes_existing(value))
}

/// Whether a list element only changes existing elements, and adds none.
fn changes_existing(value: &Json) -> bool {
    value.get("$forEach").is_some_and(|list| list == EXISTING)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn finds_elements_in_nested_lists_and_values() {
        let spec = json!({"env": [
            {"name": "A"},
            {"$when": "x", "name": "B"},
            {"$when": "x", "$value": [{"name": "C"}, {"name": "D"}]},
            [{"name": "E"}],
            "${list}",
            {"$value": "${entry}", "name": "F"},
            {"$forEach": "existing", "value": "1"},
            {"$conflict": "Keep", "$value": {"name": "G"}},
        ]});
        let elements = elements("c", spec.as_object().unwrap(), "env");
        let found: Vec<_> = elements
            .iter()
            .map(|element| {
                let name = element.fields.get("name").and_then(Json::as_str).unwrap_or("-");
                (element.path.as_str(), name, element.is_conditional, element.is_whole)
            })
            .collect();
        assert_eq!(
            found,
            [
                ("c.env[0]", "A", false, true),
                ("c.env[1]", "B", true, true),
                ("c.env[2].$value[0]", "C", true, true),
                ("c.env[2].$value[1]", "D", true, true),
                ("c.env[3][0]", "E", false, true),
                ("c.env[5]", "F", false, false),
                ("c.env[6]", "-", false, false),
                ("c.env[7].$value", "G", false, true),
            ]
        );
    }

    #[test]
    fn computed_values_are_not_literal() {
        for (value, text, computed) in [
            (json!("a"), Some("a"), false),
            (json!("$${a}"), Some("${a}"), false),
            (json!("${a}"), None, true),
            (json!("a-${b}"), None, true),
            (json!("a-${"), None, true),
            (json!(1), None, false),
            (json!({"$value": "${a}"}), None, true),
        ] {
            assert_eq!((literal(&value).as_deref(), is_computed(&value)), (text, computed), "{value}");
        }
    }
}
