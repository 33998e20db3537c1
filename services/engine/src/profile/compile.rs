//! Compiles a flattened profile into a [`CompiledProfile`], or returns diagnostics.
//!
//! The diagnostics contain all errors that were found, not only the first. A field that this version does not support
//! is an error, because a profile must never take effect only in part.

use pillion_api::profile::{Activation, FailurePolicy, OptOut, ProfileSpec};
use pillion_api::selector::LabelSelector;
use serde_json::{Map, Value as Json};

use super::check::{check_object, check_template, is_small};
use super::flattened::FlattenedProfile;
use super::parts;
use super::pod_schema::Kind;
use super::request;
use super::target::{self, Target};
use super::template::{Compiler, Node, without_directives};
use super::tenant;
use super::{CompiledProfile, Diagnostic, Limits, ProfileName};
use crate::context;
use crate::expression::{Expression, Scope};
use crate::lookup::{self, Declared, Needs};

/// The memory of the smallest possible compiled profile, in bytes.
const PROFILE_BYTES: usize = 4 << 10;

/// An upper bound for the number of copies of a string in a compiled profile.
const TEXT_COPIES: usize = 2;

/// An upper bound for the memory of a value in a compiled profile, in bytes, excluding strings.
const VALUE_BYTES: usize = 256;

/// The default of `order`.
const DEFAULT_ORDER: i32 = 100;

impl FlattenedProfile {
    /// Compiles the profile.
    ///
    /// # Errors
    /// Returns all diagnostics, each with its path in the profile that contains the invalid part.
    pub fn compile(&self, name: &ProfileName) -> Result<CompiledProfile, Vec<Diagnostic>> {
        let relocate = |diagnostics: Vec<_>| diagnostics.into_iter().map(|diagnostic| self.relocate(diagnostic));
        compile(name, self).map_err(|diagnostics| relocate(diagnostics).collect())
    }
}

/// Compiles a flattened profile. The paths in diagnostics refer to the flattened spec.
fn compile(name: &ProfileName, flattened: &FlattenedProfile) -> Result<CompiledProfile, Vec<Diagnostic>> {
    let FlattenedProfile { spec, limits, ancestors, set_by_namespace, .. } = flattened;
    let mut diagnostics = Vec::new();
    check_rollout(spec, &mut diagnostics);
    for (path, selector) in
        [("spec.namespaceSelector", &spec.namespace_selector), ("spec.objectSelector", &spec.object_selector)]
    {
        check_selector(path, selector.as_ref(), &mut diagnostics);
    }
    let request = spec.requested_by.as_ref().map(|request| request::compile(request, &mut diagnostics));
    let target = target::compile(name, spec, &mut diagnostics);
    let lookups = compile_lookups(*limits, spec, &mut diagnostics);

    let scope = scope(spec, &target);
    let mut parameters = parts::compile_parameters(spec, &scope, &mut diagnostics);
    for parameter in &mut parameters {
        parameter.set_by_namespace = set_by_namespace.iter().any(|name| **name == *parameter.name);
    }
    let mut compiler = Compiler::new(scope.clone(), &mut diagnostics);
    let variables = parts::compile_variables(spec, &mut compiler);
    let match_conditions = parts::compile_match_conditions("spec", &spec.match_conditions, &mut compiler);
    let preconditions = parts::compile_preconditions("spec", &spec.preconditions, &mut compiler);
    let validations = parts::compile_validations(spec, &mut compiler);
    check_has_effect(spec, compiler.diagnostics);
    let template = compile_template(spec, *limits, &target, &mut compiler);
    check_patches_target(spec, &target, compiler.diagnostics);
    let container_patches = parts::compile_container_patches(spec, &mut compiler);
    if !diagnostics.is_empty() {
        return Err(diagnostics);
    }

    let plain = spec.template.as_ref().filter(|_| target.is_pods()).map(without_directives).unwrap_or_default();
    let opt_out = spec.opt_out.unwrap_or(OptOut::Allowed);
    let mut profile = CompiledProfile {
        name: name.clone(),
        display_name: name.to_string().into(),
        revision: flattened.compiled_revision(),
        memory: memory(spec) + scope.memory(),
        limits: *limits,
        ancestors: ancestors.as_slice().into(),
        activation: spec.activation.unwrap_or(match request {
            Some(_) => Activation::Requested,
            None => Activation::Always,
        }),
        request,
        opt_out,
        namespace_selector: spec.namespace_selector.clone(),
        rollout: spec.rollout.clone(),
        safety_net: spec.safety_net.unwrap_or_default(),
        object_selector: spec.object_selector.clone(),
        exclusive_group: spec.exclusive_group.as_deref().map(Box::from),
        order: spec.order.unwrap_or(DEFAULT_ORDER),
        failure_policy: spec.failure_policy.unwrap_or(match opt_out {
            OptOut::Allowed => FailurePolicy::Ignore,
            OptOut::Forbidden => FailurePolicy::Fail,
        }),
        adds_linux_containers: adds_linux_containers(&plain),
        foreign_volumes: foreign_volumes(&plain),
        own_containers: own_containers(&plain),
        has_template: spec.template.is_some() || !spec.container_patches.is_empty(),
        container_patches,
        validations,
        target,
        parameters,
        variables,
        match_conditions,
        preconditions,
        lookups,
        needs: Needs::default(),
        template,
    };
    profile.needs = needs(&profile);
    Ok(profile)
}

/// Returns the names that the expressions of a profile may use.
fn scope(spec: &ProfileSpec, target: &Target) -> Scope {
    let parameters = spec.parameters.iter().map(|parameter| parameter.name.as_str());
    let variables = spec.variables.iter().map(|variable| variable.name.as_str());
    let lookups = spec.lookups.iter().map(|lookup| lookup.name.as_str());
    let scope = context::scope(parameters, variables).with_members("lookups", lookups);
    if target.is_pods() { scope } else { context::without_pod(scope) }
}

/// Returns the lookups that the expressions of a profile may need.
fn needs(profile: &CompiledProfile) -> Needs {
    let mut needs = Needs::default();
    for parameter in &profile.parameters {
        parameter.add_needs(&mut needs);
    }
    let mut add = |expression: &Expression| needs.add(expression);
    profile.variables.iter().for_each(|variable| add(&variable.expression));
    profile.match_conditions.iter().for_each(|condition| add(&condition.expression));
    profile.preconditions.iter().for_each(|precondition| precondition.each_expression(&mut add));
    profile.template.iter().for_each(|template| template.each_expression(&mut add));
    profile.container_patches.iter().for_each(|patch| patch.each_expression(&mut add));
    profile.validations.iter().for_each(|validation| validation.each_expression(&mut add));
    needs
}

/// Returns an upper bound for the memory of a compiled profile without its expressions, in bytes.
fn memory(spec: &ProfileSpec) -> usize {
    let json = serde_json::to_value(spec).unwrap_or_default();
    PROFILE_BYTES + json.to_string().len() * TEXT_COPIES + count_values(&json) * VALUE_BYTES
}

/// Counts the values in a document, including nested ones.
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
    let running_pods = [
        ("maxUnavailable", rollout.max_unavailable.is_some()),
        ("steps", !rollout.steps.is_empty()),
        ("podTimeoutSeconds", rollout.pod_timeout_seconds.is_some()),
        ("autoRollback", rollout.auto_rollback.is_some()),
        ("windows", !rollout.windows.is_empty()),
    ];
    let on_create =
        [("percent", rollout.percent.is_some()), ("namespaceSelector", rollout.namespace_selector.is_some())];
    let (unused, strategies, help) = if rollout.strategy.unwrap_or_default().has_running_pods() {
        (&on_create[..], "strategy OnCreate", "remove it, or use steps to upgrade running pods in shares")
    } else {
        let help = "add strategy: InPlace to upgrade running pods, or strategy: Restart to also restart them";
        (&running_pods[..], "strategies InPlace and Restart", help)
    };
    for (field, _) in unused.iter().filter(|(_, is_set)| *is_set) {
        let sentence = format!("{field} is only for the {strategies}");
        diagnostics.push(Diagnostic::new(format!("spec.rollout.{field}"), sentence).with_help(help));
    }
    if !rollout.steps.is_sorted_by(|one, next| one.percent < next.percent) {
        diagnostics.push(Diagnostic::new("spec.rollout.steps", "the percentages must increase from step to step"));
    }
    for (index, step) in rollout.steps.iter().enumerate().filter(|(_, step)| !(1..=100).contains(&step.percent)) {
        let path = format!("spec.rollout.steps[{index}].percent");
        diagnostics.push(Diagnostic::new(path, format!("{} is not between 1 and 100", step.percent)));
    }
    for (index, window) in rollout.windows.iter().enumerate() {
        if window.start_seconds().is_none() {
            let sentence = format!("{:?} is not a time of day: write HH:MM in UTC, such as 22:30", window.start);
            diagnostics.push(Diagnostic::new(format!("spec.rollout.windows[{index}].start"), sentence));
        }
        if !(1..=24).contains(&window.hours) {
            let sentence = format!("{} is not between 1 and 24", window.hours);
            diagnostics.push(Diagnostic::new(format!("spec.rollout.windows[{index}].hours"), sentence));
        }
    }
}

fn check_selector(path: &str, selector: Option<&LabelSelector>, diagnostics: &mut Vec<Diagnostic>) {
    if let Some((field, sentence)) = selector.and_then(LabelSelector::fault) {
        diagnostics.push(Diagnostic::new(format!("{path}.{field}"), sentence));
    }
}

/// Compiles the declared lookups. A profile with the limits for tenants must not declare any.
fn compile_lookups(limits: Limits, spec: &ProfileSpec, diagnostics: &mut Vec<Diagnostic>) -> Box<[Declared]> {
    if limits == Limits::Tenant && !spec.lookups.is_empty() {
        let diagnostic = Diagnostic::new("spec.lookups", "only cluster profiles can declare lookups");
        diagnostics.push(diagnostic.with_help("lookups use Pillion's permissions, not those of the namespace"));
        return Box::default();
    }
    lookup::compile(&spec.lookups, diagnostics)
}

/// Checks that a profile with container patches targets pods.
fn check_patches_target(spec: &ProfileSpec, target: &Target, diagnostics: &mut Vec<Diagnostic>) {
    if !target.is_pods() && !spec.container_patches.is_empty() {
        let message = "container patches apply only to pods, and the target is not pods";
        diagnostics.push(
            Diagnostic::new("spec.containerPatches", message)
                .with_help("remove containerPatches, or remove the target"),
        );
    }
}

/// Checks that a profile changes or validates objects, or exists only to be extended. Also checks that its template is
/// not empty.
fn check_has_effect(spec: &ProfileSpec, diagnostics: &mut Vec<Diagnostic>) {
    let is_empty = |template: &Json| template.as_object().is_some_and(Map::is_empty);
    let says_nothing = spec.template.is_none() && spec.container_patches.is_empty() && spec.validations.is_empty();
    let does_nothing = says_nothing && spec.activation != Some(Activation::Never);
    if does_nothing || spec.template.as_ref().is_some_and(is_empty) {
        let diagnostic = Diagnostic::new("spec.template", "the template is empty: the profile does nothing");
        diagnostics.push(diagnostic.with_help("add fields, such as spec.containers"));
    }
}

fn compile_template(spec: &ProfileSpec, limits: Limits, target: &Target, compiler: &mut Compiler<'_>) -> Option<Node> {
    let path = "spec.template";
    let template = spec.template.as_ref().filter(|template| is_small(path, template, compiler.diagnostics))?;
    let is_bounded = if target.is_pods() {
        check_template(template, &spec.parameters, compiler.diagnostics)
    } else {
        check_object(template, compiler.diagnostics)
    };
    if !is_bounded || template.as_object().is_some_and(Map::is_empty) {
        return None;
    }
    if limits == Limits::Tenant {
        tenant::check_template(&without_directives(template), compiler.diagnostics);
    }
    let kind = if target.is_pods() { Kind::Object("Pod") } else { Kind::Any };
    compiler.template(path, template, kind)
}

/// Returns the names of the containers that a template adds, except computed names.
fn own_containers(template: &Json) -> Box<[Box<str>]> {
    let containers = items(template, "initContainers").chain(items(template, "containers"));
    containers.filter_map(|container| literal(container.get("name")?)).map(Box::from).collect()
}

/// Whether a template adds containers that are not for Windows: its `spec.os.name` is neither `windows` nor computed.
fn adds_linux_containers(template: &Json) -> bool {
    let adds = |list: &str| items(template, list).next().is_some();
    let os = template.pointer("/spec/os/name").and_then(Json::as_str);
    (adds("containers") || adds("initContainers")) && !os.is_some_and(|os| os == "windows" || os.contains("${"))
}

/// Returns the volumes that the template's containers mount but the template does not add. The pod must have them.
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

/// Returns the elements of a list in a pod's spec.
fn items<'t>(template: &'t Json, list: &str) -> impl Iterator<Item = &'t Json> + use<'t> {
    let list = template.get("spec").and_then(|spec| spec.get(list)).and_then(Json::as_array);
    list.into_iter().flatten()
}

/// Returns the string, if `value` is a string without expressions.
fn literal(value: &Json) -> Option<&str> {
    value.as_str().filter(|text| !text.contains("${"))
}
