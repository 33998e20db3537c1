//! Finds strings in a profile that look like expressions but are not marked with `${…}`.
//!
//! Such a string is valid, so it only causes a warning. A warning is added only if the string compiles as an
//! expression. The string must also begin with a name that the profile defines, or with a part of the object that every
//! pod has.

use pillion_api::profile::ProfileSpec;
use serde_json::Value as Json;

use super::Diagnostic;
use crate::context::{self, EXISTING, LOCALS};
use crate::expression::{Expression, Scope};

/// The prefixes of strings to compile.
const BEGINNINGS: [&str; 5] = ["params.", "variables.", "lookups.", "object.metadata.", "object.spec."];

/// Directives whose strings are expressions without `${…}`.
const BARE_DIRECTIVES: [&str; 3] = ["$when", "$forEach", "$prune"];

/// Adds a warning for each string in a parameter default or a template that looks like an expression without `${…}`.
pub(super) fn warn_of_unmarked_expressions(spec: &ProfileSpec, warnings: &mut Vec<Diagnostic>) {
    let mut walk = Walk { spec, scope: None, warnings };
    for (index, parameter) in spec.parameters.iter().enumerate() {
        if let Some(default) = &parameter.default {
            walk.value(&format!("spec.parameters[{index}].default"), default);
        }
    }
    if let Some(template) = &spec.template {
        walk.value("spec.template", template);
    }
    for (index, patch) in spec.container_patches.iter().enumerate() {
        walk.value(&format!("spec.containerPatches[{index}].template"), &patch.template);
    }
}

struct Walk<'s, 'a> {
    spec: &'s ProfileSpec,
    /// The names that the profile's expressions may use. Set when the first string is compiled.
    scope: Option<Scope>,
    warnings: &'a mut Vec<Diagnostic>,
}

impl Walk<'_, '_> {
    /// Checks the strings in a value. The profile compiles, so the depth of the value is limited.
    fn value(&mut self, path: &str, value: &Json) {
        match value {
            Json::String(text) => self.text(path, text),
            Json::Array(items) => {
                for (index, item) in items.iter().enumerate() {
                    self.value(&format!("{path}[{index}]"), item);
                }
            }
            Json::Object(fields) => {
                for (name, value) in fields.iter().filter(|(name, _)| !BARE_DIRECTIVES.contains(&name.as_str())) {
                    self.value(&format!("{path}.{name}"), value);
                }
            }
            Json::Null | Json::Bool(_) | Json::Number(_) => {}
        }
    }

    fn text(&mut self, path: &str, text: &str) {
        if text.contains("${") || !BEGINNINGS.iter().any(|beginning| text.starts_with(beginning)) {
            return;
        }
        let scope = self.scope.get_or_insert_with(|| scope(self.spec));
        if Expression::compile(text, scope).is_ok() {
            let diagnostic = Diagnostic::new(path, format!("the string {text:?} is not evaluated"));
            self.warnings.push(diagnostic.with_help(format!("if it is an expression, write \"${{{text}}}\"")));
        }
    }
}

/// Returns all names that are available anywhere in the profile.
fn scope(spec: &ProfileSpec) -> Scope {
    let parameters = spec.parameters.iter().map(|parameter| parameter.name.as_str());
    let variables = spec.variables.iter().map(|variable| variable.name.as_str());
    let lookups = spec.lookups.iter().map(|lookup| lookup.name.as_str());
    let scope = context::scope(parameters, variables).with_members("lookups", lookups);
    LOCALS.into_iter().chain([EXISTING]).fold(scope, Scope::with)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value as Json, json};

    use crate::profile;

    fn warnings(value: &Json) -> Vec<String> {
        let spec = json!({
            "parameters": [{"name": "level", "type": "string", "default": value}],
            "variables": [{"name": "app", "expression": "'a'"}],
            "template": {"metadata": {"labels": {"a": value}}, "spec": {"dnsPolicy": {"$value": value, "$when": "params.level == 'x'"}}},
            "containerPatches": [{"name": "r", "template": {"args": [value], "env": [{"$forEach": "variables.app", "name": "A"}]}}],
        });
        profile::warnings(&serde_json::from_value(spec).unwrap()).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn warns_of_expression_without_marks() {
        for text in
            ["params.level", "variables.app + '/x'", "object.metadata.name", "object.spec.?hostNetwork.orValue(false)"]
        {
            let help =
                format!("the string {text:?} is not evaluated (help: if it is an expression, write \"${{{text}}}\")");
            let places = [
                "spec.parameters[0].default",
                "spec.template.metadata.labels.a",
                "spec.template.spec.dnsPolicy.$value",
                "spec.containerPatches[0].template.args[0]",
            ];
            assert_eq!(warnings(&json!(text)), places.map(|place| format!("{place}: {help}")), "{text}");
        }
    }

    #[test]
    fn no_warning_for_plain_text() {
        for text in [
            "params.json",
            "variables.env",
            "object.yaml",
            "params.level is set",
            "${params.level}",
            "$${params.level}",
            "see params.level",
        ] {
            assert_eq!(warnings(&json!(text)), Vec::<String>::new(), "{text}");
        }
    }
}
