//! From the text of a profile to a [`CompiledProfile`], or to everything that is wrong with it.
//!
//! All mistakes are reported, not only the first. What this build cannot do is a mistake too: a profile must never take
//! effect half.

use pillion_api::profile::{Activation, OnError, OnUnknown, OptOut, ProfileSpec, RequestKey};
use pillion_api::selector::LabelSelector;
use serde_json::{Map, Value as Json};
use sha2::{Digest, Sha256};

use super::check::{check_key, check_template};
use super::expressions::{self, Computed};
use super::object::check_object;
use super::target;
use super::template::{self, Node};
use super::tenant::check_tenant;
use super::{CompiledProfile, Diagnostic, ProfileName, Request};
use crate::json::Value;

/// How large a template may be, as JSON, in bytes. A mesh's proxy, the largest in use, takes a tenth of it.
pub const MAX_TEMPLATE_BYTES: usize = 64 * 1024;

/// How many hexadecimal digits a revision has: forty bits tell the few texts of one profile apart.
const REVISION_LENGTH: usize = 10;

/// The order of a profile that says none.
const DEFAULT_ORDER: i32 = 100;

/// Words that ask for the default profile of a key, unless the profile says others.
const TRUTHY: [&str; 6] = ["true", "yes", "y", "on", "enabled", "1"];

/// Words that ask for none, unless the profile says others.
const FALSY: [&str; 6] = ["false", "no", "n", "off", "disabled", "0"];

/// Compiles a profile.
///
/// # Errors
/// Everything that is wrong with it.
pub fn compile(name: &ProfileName, spec: &ProfileSpec) -> Result<CompiledProfile, Vec<Diagnostic>> {
    let mut faults = Vec::new();
    refuse_unsupported(spec, &mut faults);
    refuse_cluster_only(name, spec, &mut faults);
    for (path, selector) in
        [("spec.namespaceSelector", &spec.namespace_selector), ("spec.objectSelector", &spec.object_selector)]
    {
        check_selector(path, selector.as_ref(), &mut faults);
    }
    let request = spec.request.as_ref().map(|request| compile_request(request, &mut faults));
    let target = target::compile(name, spec, &mut faults);
    let template = compile_template(name, spec, target.is_pods(), &mut faults);
    let computed = expressions::compile(spec, target.is_pods(), &mut faults);
    let Computed { parameters, variables, conditions, validations } = computed;
    let revision = revision(spec);
    match (template, revision) {
        (Some(template), Some(revision)) if faults.is_empty() => {
            let opt_out = spec.opt_out.unwrap_or(OptOut::Allowed);
            Ok(CompiledProfile {
                name: name.clone(),
                display_name: name.to_string().into(),
                revision,
                activation: spec.activation.unwrap_or(match name.namespace {
                    Some(_) => Activation::Always,
                    None => Activation::Requested,
                }),
                request,
                opt_out,
                namespace_selector: spec.namespace_selector.clone(),
                object_selector: spec.object_selector.clone(),
                exclusive_group: spec.exclusive_group.as_deref().map(Box::from),
                order: spec.order.unwrap_or(DEFAULT_ORDER),
                on_error: spec.on_error.unwrap_or(match opt_out {
                    OptOut::Allowed => OnError::Skip,
                    OptOut::Forbidden => OnError::Deny,
                }),
                adds_linux_containers: target.is_pods() && adds_linux_containers(&template),
                foreign_volumes: if target.is_pods() { foreign_volumes(&template) } else { Box::default() },
                parameters,
                variables,
                conditions,
                validations,
                target,
                has_template: spec.template.is_some(),
                template,
            })
        }
        _ => Err(faults),
    }
}

/// Parts of the language that this build does not run. Leaving one out silently would inject something else than the
/// author said.
fn refuse_unsupported(spec: &ProfileSpec, faults: &mut Vec<Diagnostic>) {
    let parts = [
        ("extends", spec.extends.is_some()),
        ("lookups", !spec.lookups.is_empty()),
        ("containers", !spec.containers.is_empty()),
        ("rollout", spec.rollout.is_some()),
    ];
    for (field, _) in parts.into_iter().filter(|(_, used)| *used) {
        faults.push(
            Diagnostic::new(format!("spec.{field}"), format!("{field} is not supported by this build"))
                .with_help("use a build that supports it, or leave it out"),
        );
    }
}

fn refuse_cluster_only(name: &ProfileName, spec: &ProfileSpec, faults: &mut Vec<Diagnostic>) {
    if name.namespace.is_none() {
        return;
    }
    let sentence = "is for cluster profiles: a namespaced profile acts in its own namespace only";
    if spec.namespace_selector.is_some() {
        faults.push(Diagnostic::new("spec.namespaceSelector", format!("namespaceSelector {sentence}")));
    }
    if spec.opt_out == Some(OptOut::Forbidden) {
        faults
            .push(Diagnostic::new("spec.optOut", "optOut Forbidden is for cluster profiles").with_help("use Allowed"));
    }
}

fn check_selector(path: &str, selector: Option<&LabelSelector>, faults: &mut Vec<Diagnostic>) {
    if let Some((field, sentence)) = selector.and_then(LabelSelector::fault) {
        faults.push(Diagnostic::new(format!("{path}.{field}"), sentence));
    }
}

fn compile_request(request: &RequestKey, faults: &mut Vec<Diagnostic>) -> Request {
    if request.annotation.is_none() && request.label.is_none() {
        faults.push(Diagnostic::new("spec.request", "request needs an annotation or a label"));
    }
    for (field, key) in [("annotation", &request.annotation), ("label", &request.label)] {
        if let Some(sentence) = key.as_deref().and_then(check_key) {
            faults.push(Diagnostic::new(format!("spec.request.{field}"), sentence));
        }
    }
    let lower = |words: &[String]| words.iter().map(|word| word.trim().to_lowercase().into()).collect();
    let or = |words: &Option<Vec<String>>, default: &[&str]| match words {
        Some(words) => lower(words),
        None => default.iter().map(|word| Box::from(*word)).collect(),
    };
    let compiled = Request {
        label: request.label.as_deref().map(Box::from),
        annotation: request.annotation.as_deref().map(Box::from),
        values: lower(&request.values),
        truthy: or(&request.truthy, &TRUTHY),
        falsy: or(&request.falsy, &FALSY),
        on_unknown: request.on_unknown.unwrap_or(OnUnknown::Ignore),
    };
    for (field, words) in [("values", &compiled.values), ("truthy", &compiled.truthy), ("falsy", &compiled.falsy)] {
        for (index, _) in words.iter().enumerate().filter(|(_, word)| word.is_empty() || word.contains(',')) {
            faults.push(
                Diagnostic::new(format!("spec.request.{field}[{index}]"), "a word is not empty and has no comma")
                    .with_help("a comma separates the words of a request"),
            );
        }
    }
    if let Some(word) = compiled.truthy.iter().find(|word| compiled.falsy.contains(word)) {
        faults.push(Diagnostic::new("spec.request", format!("the word {word:?} is both truthy and falsy")));
    }
    compiled
}

fn compile_template(
    name: &ProfileName,
    spec: &ProfileSpec,
    is_for_pods: bool,
    faults: &mut Vec<Diagnostic>,
) -> Option<Node> {
    let empty = Json::Object(Map::new());
    if spec.template.is_none() && !spec.validations.is_empty() {
        return template::compile("spec.template", &empty, faults);
    }
    let template = spec.template.as_ref().unwrap_or(&empty);
    if template.as_object().is_none_or(Map::is_empty) {
        let fault = Diagnostic::new("spec.template", "the template is empty: the profile does nothing");
        faults.push(fault.with_help("say what is added, for instance spec.containers"));
        return None;
    }
    let size = template.to_string().len();
    if size > MAX_TEMPLATE_BYTES {
        let message = format!("the template is {size} bytes as JSON; {MAX_TEMPLATE_BYTES} are allowed");
        faults.push(Diagnostic::new("spec.template", message));
        return None;
    }
    let is_bounded = if is_for_pods { check_template(template, faults) } else { check_object(template, faults) };
    if !is_bounded {
        return None;
    }
    if name.namespace.is_some() {
        check_tenant(&template::without_directives(template), faults);
    }
    template::compile("spec.template", template, faults)
}

/// Whether a template adds containers, and does not say that they are for Windows.
fn adds_linux_containers(template: &Node) -> bool {
    let Some(spec) = template.whole.root().get("spec") else { return false };
    let adds = |list: &str| spec.get(list).is_some_and(|list| list.items().next().is_some());
    let os = spec.get("os").and_then(|os| os.get("name"));
    (adds("containers") || adds("initContainers")) && !os.is_some_and(|os| os.is("windows"))
}

/// The volumes that a template's containers mount and that it does not add itself: the pod has to have them.
fn foreign_volumes(template: &Node) -> Box<[Box<str>]> {
    let Some(spec) = template.whole.root().get("spec") else { return Box::default() };
    let items = |list: &str| spec.get(list).into_iter().flat_map(Value::items);
    let own: Vec<_> = items("volumes").filter_map(|volume| volume.get("name")?.as_str()).collect();
    let containers = items("containers").chain(items("initContainers"));
    let mounts = containers.flat_map(|container| container.get("volumeMounts").into_iter().flat_map(Value::items));
    let mut foreign: Vec<Box<str>> = mounts
        .filter_map(|mount| mount.get("name")?.as_str())
        .filter(|name| !own.contains(name))
        .map(|name| name.as_ref().into())
        .collect();
    foreign.sort();
    foreign.dedup();
    foreign.into()
}

/// A hash of what the author wrote, with the keys of all objects in order.
fn revision(spec: &ProfileSpec) -> Option<Box<str>> {
    let mut json = serde_json::to_value(spec).ok()?;
    json.sort_all_objects();
    let hash = Sha256::digest(json.to_string());
    let mut hex = format!("{hash:x}");
    hex.truncate(REVISION_LENGTH);
    Some(hex.into())
}
