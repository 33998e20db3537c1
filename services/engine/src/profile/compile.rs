//! Compiles the text of a profile into a [`CompiledProfile`], or into diagnostics.
//!
//! All mistakes are reported, not only the first. A field that this build does not support is a mistake too: a profile
//! must never take effect in part.

use pillion_api::profile::{Activation, OnError, OptOut, ProfileSpec};
use pillion_api::selector::LabelSelector;
use serde_json::{Map, Value as Json};

use super::check::{check_template, is_small};
use super::expressions::{self, Computed};
use super::object::check_object;
use super::pod_schema::Kind;
use super::request;
use super::revision::hash;
use super::rules;
use super::target::{self, Target};
use super::template::{Compiler, LocalNames, Node, without_directives};
use super::tenant::check_tenant;
use super::{CompiledProfile, Diagnostic, Limits, ProfileName};
use crate::expression::Scope;
use crate::lookup::{self, Declared, Needs};

/// The memory of the smallest profile, in bytes.
const PROFILE_BYTES: usize = 4 << 10;

/// An upper bound of the number of copies of a string in a compiled profile.
const TEXT_COPIES: usize = 2;

/// An upper bound of the memory of a value in a compiled profile, in bytes, without its string.
const VALUE_BYTES: usize = 256;

/// The default of `order`.
const DEFAULT_ORDER: i32 = 100;

/// Compiles a profile that extends nothing, or a flattened one.
pub(super) fn compile_text(
    name: &ProfileName,
    spec: &ProfileSpec,
    limits: Limits,
) -> Result<CompiledProfile, Vec<Diagnostic>> {
    let mut diagnostics = Vec::new();
    check_rollout(spec, &mut diagnostics);
    for (path, selector) in
        [("spec.namespaceSelector", &spec.namespace_selector), ("spec.objectSelector", &spec.object_selector)]
    {
        check_selector(path, selector.as_ref(), &mut diagnostics);
    }
    let request = spec.request.as_ref().map(|request| request::compile(request, &mut diagnostics));
    let target = target::compile(name, spec, &mut diagnostics);
    let lookups = compile_lookups(limits, spec, &mut diagnostics);
    let computed = expressions::compile(spec, target.is_pods(), &mut diagnostics);
    let Computed { parameters, variables, conditions, validations, scope, locals } = computed;
    check_does_something(spec, &mut diagnostics);
    let template = compile_template(limits, spec, (&scope, &locals), &target, &mut diagnostics);
    if !target.is_pods() && !spec.containers.is_empty() {
        let diagnostic =
            Diagnostic::new("spec.containers", "rules for containers are for pods, and the target is not pods");
        diagnostics.push(diagnostic.with_help("leave them out, or the target"));
    }
    let rules = rules::compile(&spec.containers, &spec.parameters, (&scope, &locals), &mut diagnostics);
    let plain = spec.template.as_ref().map(without_directives).unwrap_or_default();
    let mut needs = Needs::default();
    for parameter in &parameters {
        parameter.add_needs(&mut needs);
    }
    let named = variables.iter().map(|variable| &variable.expression);
    named.for_each(|expression| needs.add(expression));
    for condition in &conditions {
        condition.each_expression(&mut |expression| needs.add(expression));
    }
    for node in template.iter().chain(rules.iter().map(|rule| &rule.template)) {
        node.each_expression(&mut |expression| needs.add(expression));
    }
    for rule in &rules {
        for condition in &rule.conditions {
            condition.each_expression(&mut |expression| needs.add(expression));
        }
        rule.condition.iter().for_each(|expression| needs.add(expression));
    }
    for validation in &validations {
        validation.each_expression(&mut |expression| needs.add(expression));
    }
    let text = serde_json::to_string(spec).ok();
    let revision = text.as_deref().and_then(|text| hash(text, limits, &[], &[]));
    match revision {
        Some(revision) if diagnostics.is_empty() => {
            let size = text.map_or(0, |text| text.len());
            let values = serde_json::to_value(spec).map_or(0, |spec| count_values(&spec));
            let opt_out = spec.opt_out.unwrap_or(OptOut::Allowed);
            Ok(CompiledProfile {
                name: name.clone(),
                display_name: name.to_string().into(),
                revision,
                memory: PROFILE_BYTES + size * TEXT_COPIES + values * VALUE_BYTES + scope.memory(),
                limits,
                ancestors: Box::default(),
                activation: spec.activation.unwrap_or(match name.namespace {
                    Some(_) => Activation::Always,
                    None => Activation::Requested,
                }),
                request,
                opt_out,
                namespace_selector: spec.namespace_selector.clone(),
                rollout: spec.rollout.clone(),
                object_selector: spec.object_selector.clone(),
                exclusive_group: spec.exclusive_group.as_deref().map(Box::from),
                order: spec.order.unwrap_or(DEFAULT_ORDER),
                on_error: spec.on_error.unwrap_or(match opt_out {
                    OptOut::Allowed => OnError::Skip,
                    OptOut::Forbidden => OnError::Deny,
                }),
                adds_linux_containers: target.is_pods() && adds_linux_containers(&plain),
                foreign_volumes: if target.is_pods() { foreign_volumes(&plain) } else { Box::default() },
                own_containers: if target.is_pods() { own_containers(&plain) } else { Box::default() },
                has_template: spec.template.is_some() || !spec.containers.is_empty(),
                rules,
                validations,
                target,
                parameters,
                variables,
                conditions,
                lookups,
                needs,
                template,
            })
        }
        _ => Err(diagnostics),
    }
}

/// Counts the values in a document, nested ones included.
fn count_values(json: &Json) -> usize {
    1 + match json {
        Json::Array(items) => items.iter().map(count_values).sum(),
        Json::Object(members) => members.values().map(count_values).sum(),
        _ => 0,
    }
}

fn check_rollout(spec: &ProfileSpec, diagnostics: &mut Vec<Diagnostic>) {
    let Some(rollout) = &spec.rollout else { return };
    if let Some(percent) = rollout.percent.filter(|percent| *percent > 100) {
        diagnostics.push(Diagnostic::new("spec.rollout.percent", format!("{percent} is more than 100")));
    }
    check_selector("spec.rollout.namespaceSelector", rollout.namespace_selector.as_ref(), diagnostics);
}

pub(super) fn refuse_cluster_only(name: &ProfileName, spec: &ProfileSpec, diagnostics: &mut Vec<Diagnostic>) {
    if name.namespace.is_none() {
        return;
    }
    let sentence = "is for cluster profiles: a namespaced profile acts in its own namespace only";
    if spec.namespace_selector.is_some() {
        diagnostics.push(Diagnostic::new("spec.namespaceSelector", format!("namespaceSelector {sentence}")));
    }
    if spec.rollout.as_ref().is_some_and(|rollout| rollout.namespace_selector.is_some()) {
        diagnostics.push(Diagnostic::new("spec.rollout.namespaceSelector", format!("namespaceSelector {sentence}")));
    }
    if spec.opt_out == Some(OptOut::Forbidden) {
        diagnostics
            .push(Diagnostic::new("spec.optOut", "optOut Forbidden is for cluster profiles").with_help("use Allowed"));
    }
}

fn check_selector(path: &str, selector: Option<&LabelSelector>, diagnostics: &mut Vec<Diagnostic>) {
    if let Some((field, sentence)) = selector.and_then(LabelSelector::fault) {
        diagnostics.push(Diagnostic::new(format!("{path}.{field}"), sentence));
    }
}

/// Compiles the declared lookups. A tenant's profile may declare none.
fn compile_lookups(limits: Limits, spec: &ProfileSpec, diagnostics: &mut Vec<Diagnostic>) -> Box<[Declared]> {
    if limits == Limits::Tenant && !spec.lookups.is_empty() {
        let diagnostic = Diagnostic::new("spec.lookups", "lookups are for cluster profiles");
        diagnostics.push(diagnostic.with_help("they are read with Pillion's rights, not with those of the namespace"));
        return Box::default();
    }
    lookup::compile(&spec.lookups, diagnostics)
}

/// Checks that a profile does something, or exists to be extended.
fn check_does_something(spec: &ProfileSpec, diagnostics: &mut Vec<Diagnostic>) {
    let is_empty = |template: &Json| template.as_object().is_some_and(Map::is_empty);
    let says_nothing = spec.template.is_none() && spec.containers.is_empty() && spec.validations.is_empty();
    let does_nothing = says_nothing && spec.activation != Some(Activation::Never);
    if does_nothing || spec.template.as_ref().is_some_and(is_empty) {
        let diagnostic = Diagnostic::new("spec.template", "the template is empty: the profile does nothing");
        diagnostics.push(diagnostic.with_help("say what is added, for instance spec.containers"));
    }
}

fn compile_template(
    limits: Limits,
    spec: &ProfileSpec,
    (scope, needs): (&Scope, &LocalNames),
    target: &Target,
    diagnostics: &mut Vec<Diagnostic>,
) -> Option<Node> {
    let template = spec.template.as_ref().filter(|template| is_small("spec.template", template, diagnostics))?;
    let is_bounded = if target.is_pods() {
        check_template(template, &spec.parameters, diagnostics)
    } else {
        check_object(template, diagnostics)
    };
    if !is_bounded || template.as_object().is_some_and(Map::is_empty) {
        return None;
    }
    if limits == Limits::Tenant {
        check_tenant(&without_directives(template), diagnostics);
    }
    let kind = if target.is_pods() { Kind::Object("Pod") } else { Kind::Any };
    Compiler::new(scope, &[], needs, diagnostics).template("spec.template", template, kind)
}

/// Returns the literal names of the containers that a template adds.
fn own_containers(template: &Json) -> Box<[Box<str>]> {
    let containers = items(template, "initContainers").chain(items(template, "containers"));
    containers.filter_map(|container| literal(container.get("name")?)).map(Box::from).collect()
}

/// Whether a template adds containers, and its `spec.os.name` is neither `windows` nor an expression.
fn adds_linux_containers(template: &Json) -> bool {
    let adds = |list: &str| items(template, list).next().is_some();
    let os = template.pointer("/spec/os/name").and_then(Json::as_str);
    (adds("containers") || adds("initContainers")) && !os.is_some_and(|os| os == "windows" || os.contains("${"))
}

/// Returns the volumes that a template's containers mount but the template does not add. The pod must have them.
fn foreign_volumes(template: &Json) -> Box<[Box<str>]> {
    let own: Vec<_> = items(template, "volumes").filter_map(|volume| volume.get("name")?.as_str()).collect();
    let containers = items(template, "containers").chain(items(template, "initContainers"));
    let mounts = containers.filter_map(|container| container.get("volumeMounts")?.as_array()).flatten();
    let mut foreign: Vec<Box<str>> = mounts
        .filter_map(|mount| literal(mount.get("name")?))
        .filter(|name| !own.contains(name))
        .map(Box::from)
        .collect();
    foreign.sort();
    foreign.dedup();
    foreign.into()
}

/// The elements of a list in a pod's spec.
fn items<'t>(template: &'t Json, list: &str) -> impl Iterator<Item = &'t Json> + use<'t> {
    let list = template.get("spec").and_then(|spec| spec.get(list)).and_then(Json::as_array);
    list.into_iter().flatten()
}

/// Returns a string that contains no expression.
fn literal(value: &Json) -> Option<&str> {
    value.as_str().filter(|text| !text.contains("${"))
}
