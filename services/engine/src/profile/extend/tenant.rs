//! Checks what a namespaced profile changes of the cluster profile that it extends.
//!
//! The platform decides which parameters a namespace may set, which pods get the profile, and whether it can be
//! dropped. The namespaced profile may set parameters whose `sources` include `Namespace`, within their range, and
//! narrow which pods get the profile.

use pillion_api::parameter::{Parameter, Source};
use pillion_api::profile::{OptOut, ProfileSpec};
use pillion_api::selector::{LabelSelector, Operator, Requirement};
use serde_json::Value as Json;

use super::Diagnostic;
use super::merge::Part;
use crate::expression::closest;

/// Whether a namespaced profile only extends another one and sets permitted values. Such a profile is bounded by its
/// parent. Any other field makes it subject to the limits for tenants.
pub(super) const fn only_extends(spec: &ProfileSpec) -> bool {
    // All fields are listed, so that adding a field to the spec fails to compile here.
    let ProfileSpec {
        description: _,
        extends: _,
        activation: _,
        request: _,
        object_selector: _,
        order: _,
        parameters: _,
        rollout: _,
        target: None,
        opt_out: None,
        namespace_selector: None,
        match_conditions,
        exclusive_group: None,
        lookups,
        variables,
        template: None,
        containers,
        validations,
        on_error: None,
    } = spec
    else {
        return false;
    };
    match_conditions.is_empty()
        && lookups.is_empty()
        && variables.is_empty()
        && containers.is_empty()
        && validations.is_empty()
}

/// Checks a namespaced profile against its inherited spec.
pub(super) fn check(own: &ProfileSpec, inherited: &ProfileSpec, diagnostics: &mut Vec<Diagnostic>) {
    let only_extends = only_extends(own);
    for (index, parameter) in own.parameters.iter().enumerate() {
        let path = format!("spec.parameters[{index}]");
        match inherited.parameters.iter().find(|other| other.name == parameter.name) {
            Some(other) => check_parameter(&path, parameter, other, diagnostics),
            // New parameters are useful only with a template of its own.
            None if only_extends => diagnostics.push(unknown_parameter(&path, &parameter.name, inherited)),
            None => {}
        }
    }
    for (index, condition) in own.match_conditions.iter().enumerate() {
        if inherited.match_conditions.iter().any(|other| other.name == condition.name) {
            let message = format!("the condition {:?} is the cluster profile's", condition.name);
            let diagnostic = Diagnostic::new(format!("spec.matchConditions[{index}].name"), message);
            diagnostics.push(diagnostic.with_help("a namespaced profile adds conditions; give it another name"));
        }
    }
    if own.opt_out == Some(OptOut::Allowed) && inherited.opt_out == Some(OptOut::Forbidden) {
        let message = "the cluster profile cannot be dropped, and one that extends it neither";
        diagnostics.push(Diagnostic::new("spec.optOut", message).with_help("leave optOut out"));
    }
    if !only_extends {
        let said = |what: &str| {
            let message =
                format!("a namespaced profile that says more than values cannot have the cluster profile's {what}");
            let help = "leave out what is not extends, parameters, request, activation, objectSelector or order";
            Diagnostic::new("spec.extends.name", message).with_help(help)
        };
        if !inherited.lookups.is_empty() {
            diagnostics.push(said("look-ups"));
        }
        if inherited.target.is_some() && own.target.is_none() {
            diagnostics.push(said("target"));
        }
    }
}

/// Checks that a namespaced profile sets only the value of an inherited parameter, and only if the platform permits it.
fn check_parameter(path: &str, own: &Parameter, inherited: &Parameter, diagnostics: &mut Vec<Diagnostic>) {
    let Parameter { name, type_, default, sources, .. } = own;
    let said = serde_json::to_value(own).unwrap_or_default();
    for field in said.as_object().into_iter().flat_map(|fields| fields.keys()) {
        let is_theirs = match field.as_str() {
            "name" | "default" => false,
            "type" => *type_ != inherited.type_,
            _ => true,
        };
        if is_theirs {
            let message = format!("{field} of the parameter {name:?} is the cluster profile's to say");
            let diagnostic = Diagnostic::new(format!("{path}.{field}"), message);
            diagnostics.push(diagnostic.with_help(format!("say {{name: {name}, default: ...}}")));
        }
    }
    let Some(value) = default else {
        if sources.is_none() {
            let diagnostic = Diagnostic::new(path, format!("no value is set for the parameter {name:?}"));
            diagnostics.push(diagnostic.with_help(format!("say {{name: {name}, default: ...}}")));
        }
        return;
    };
    if !inherited.sources.as_deref().unwrap_or_default().contains(&Source::Namespace) {
        let message = format!("the cluster profile does not let a namespace set {name:?}");
        let diagnostic = Diagnostic::new(format!("{path}.default"), message);
        diagnostics.push(diagnostic.with_help("its sources would need Namespace"));
    }
    if has_expression(value) {
        let message = "a namespace sets a value and not an expression: it has to be within its bounds";
        diagnostics.push(Diagnostic::new(format!("{path}.default"), message).with_help("write the value itself"));
    }
}

fn unknown_parameter(path: &str, name: &str, inherited: &ProfileSpec) -> Diagnostic {
    let diagnostic = Diagnostic::new(format!("{path}.name"), format!("the cluster profile has no parameter {name:?}"));
    let settable = |parameter: &&Parameter| {
        parameter.sources.as_deref().is_some_and(|sources| sources.contains(&Source::Namespace))
    };
    let names: Vec<_> = inherited.parameters.iter().filter(settable).map(|parameter| &*parameter.name).collect();
    match closest(name, names.iter().copied()) {
        Some(meant) => diagnostic.with_help(format!("did you mean {meant:?}?")),
        None if names.is_empty() => diagnostic.with_help("it lets namespaces set none"),
        None => diagnostic.with_help(format!("a namespace can set {}", names.join(", "))),
    }
}

/// Whether a value contains an expression.
fn has_expression(value: &Json) -> bool {
    match value {
        Json::String(text) => text.contains("${"),
        Json::Array(items) => items.iter().any(has_expression),
        Json::Object(fields) => fields.values().any(has_expression),
        Json::Null | Json::Bool(_) | Json::Number(_) => false,
    }
}

/// Restricts a namespaced profile to objects that its own selectors and its parent's both match.
pub(super) fn narrow(merged: &mut Part, inherited: &ProfileSpec, own: &ProfileSpec) {
    let Some(fields) = merged.json.as_object_mut() else { return };
    let selectors = [
        ("objectSelector", &inherited.object_selector, &own.object_selector),
        ("namespaceSelector", &inherited.namespace_selector, &own.namespace_selector),
    ];
    for (field, inherited, own) in selectors {
        let (Some(inherited), Some(own)) = (inherited, own) else { continue };
        if let Ok(both) = serde_json::to_value(both(inherited, own)) {
            fields.insert(field.to_owned(), both);
        }
    }
}

/// Returns a selector that matches what both match. The namespace's requirements come first, as written.
fn both(inherited: &LabelSelector, own: &LabelSelector) -> LabelSelector {
    let LabelSelector { match_labels, mut match_expressions } = own.clone();
    // Expressions are used because two values for one label, which match nothing, do not fit into a map.
    match_expressions.extend(match_labels.into_iter().map(|(key, value)| Requirement {
        key,
        operator: Operator::In,
        values: vec![value],
    }));
    match_expressions.extend(inherited.match_expressions.iter().cloned());
    LabelSelector { match_labels: inherited.match_labels.clone(), match_expressions }
}
