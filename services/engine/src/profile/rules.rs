//! Compiles the rules of `spec.containers`: which existing containers a rule matches, and the template that it merges
//! into them.

use std::collections::HashMap;

use pillion_api::parameter::Parameter;
use pillion_api::profile::{ContainerRule as Text, ContainerType};

use super::Diagnostic;
use super::check::{check_container_template, is_small};
use super::expressions::{self, Condition};
use super::pod_schema::Kind;
use super::template::{Compiler, LocalNames, Node};
use crate::expression::{Expression, Scope};

/// A compiled rule for existing containers.
#[derive(Debug)]
pub(crate) struct ContainerRule {
    pub(crate) name: Box<str>,
    pub(crate) types: Box<[ContainerType]>,
    pub(crate) names: Box<[Box<str>]>,
    /// Image patterns, in which `*` matches any string.
    pub(crate) images: Box<[Box<str>]>,
    pub(crate) condition: Option<Expression>,
    pub(crate) conditions: Box<[Condition]>,
    pub(crate) template: Node,
}

/// The name under which the expressions of a rule read the container.
const CONTAINER: &str = "container";

/// Compiles the rules. Mistakes go to `diagnostics`.
pub(super) fn compile(
    rules: &[Text],
    parameters: &[Parameter],
    (scope, needs): (&Scope, &LocalNames),
    diagnostics: &mut Vec<Diagnostic>,
) -> Box<[ContainerRule]> {
    let mut names = HashMap::new();
    let mut compiled = Vec::with_capacity(rules.len());
    for (index, rule) in rules.iter().enumerate() {
        let path = format!("spec.containers[{index}]");
        expressions::check_name(&path, &rule.name, &mut names, diagnostics);
        compiled.extend(compile_rule(&path, rule, parameters, (scope, needs), diagnostics));
    }
    compiled.into()
}

fn compile_rule(
    path: &str,
    rule: &Text,
    parameters: &[Parameter],
    known: (&Scope, &LocalNames),
    diagnostics: &mut Vec<Diagnostic>,
) -> Option<ContainerRule> {
    let before = diagnostics.len();
    let matched = rule.match_.clone().unwrap_or_default();
    let types = if matched.types.is_empty() { vec![ContainerType::App] } else { matched.types };
    let conditions = format!("{path}.matchConditions");
    let conditions = expressions::conditions(&conditions, &rule.match_conditions, &[CONTAINER], known, diagnostics);
    let template_path = format!("{path}.template");
    let is_usable = is_small(&template_path, &rule.template, diagnostics)
        && check_container_template(&template_path, &rule.template, parameters, diagnostics);
    let mut compiler = Compiler::new(known.0, &[CONTAINER], known.1, diagnostics);
    let condition =
        matched.where_.as_deref().and_then(|source| compiler.condition(&format!("{path}.match.where"), source));
    let template =
        if is_usable { compiler.template(&template_path, &rule.template, Kind::Object("Container")) } else { None };
    let boxed = |texts: &[String]| texts.iter().map(|text| Box::from(text.as_str())).collect();
    let template = template?;
    (diagnostics.len() == before).then(|| ContainerRule {
        name: rule.name.as_str().into(),
        types: types.into(),
        names: boxed(&matched.names),
        images: boxed(&matched.images),
        condition,
        conditions,
        template,
    })
}

impl ContainerRule {
    /// Whether the rule matches the name and the image of a container.
    pub(crate) fn names_match(&self, name: &str, image: &str) -> bool {
        (self.names.is_empty() || self.names.iter().any(|wanted| glob(wanted, name)))
            && (self.images.is_empty() || self.images.iter().any(|wanted| glob(wanted, image)))
    }
}

/// Whether a string matches a pattern in which `*` matches any string.
fn glob(pattern: &str, text: &str) -> bool {
    let mut parts = pattern.split('*');
    let Some(mut rest) = parts.next().and_then(|first| text.strip_prefix(first)) else { return false };
    let Some(last) = pattern.contains('*').then(|| parts.next_back().unwrap_or_default()) else {
        return rest.is_empty();
    };
    // The earliest match of each part leaves the longest rest, so no backtracking is needed.
    for part in parts {
        match rest.split_once(part) {
            Some((_, behind)) => rest = behind,
            None => return false,
        }
    }
    rest.ends_with(last)
}

#[cfg(test)]
mod tests {
    use super::glob;

    #[test]
    fn a_star_stands_for_any_part() {
        for (pattern, text, like) in [
            ("nginx", "nginx", true),
            ("nginx", "nginx:1", false),
            ("*", "", true),
            ("nginx:*", "nginx:1.27", true),
            ("*/nginx:*", "registry.example.com/nginx:1", true),
            ("*/nginx:*", "nginx:1", false),
            ("a*b*c", "a-b-b-c", true),
            ("a*b*c", "a-c-b", false),
            ("ab*ba", "aba", false),
            ("*.example.com/*", "x.example.com/app", true),
        ] {
            assert_eq!(glob(pattern, text), like, "{pattern} {text}");
        }
    }
}
