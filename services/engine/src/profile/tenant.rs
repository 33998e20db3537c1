//! Checks that the spec of a namespaced profile contains only what a tenant may set.
//!
//! The author of a namespaced profile may create pods in the namespace, but the profile also changes other authors'
//! pods there. Therefore its template may only add to a pod, and must not grant privileges that pods of the namespace
//! cannot already have.
//!
//! If a namespaced profile extends a cluster profile, the platform decides which parameters the namespace may set,
//! which pods get the profile, and whether pods can opt out. The namespaced profile may set parameters whose `sources`
//! include `Namespace`, within their constraints, and may select fewer pods.

use pillion_api::parameter::{Parameter, Source};
use pillion_api::profile::{OptOut, ProfileSpec};
use pillion_api::selector::{LabelSelector, Operator, Requirement};
use serde_json::{Map, Value as Json};

use super::Diagnostic;
use crate::expression::closest;

/// Fields of a pod's spec that a tenant's template may set.
const SPEC_FIELDS: [&str; 3] = ["containers", "initContainers", "volumes"];

/// Sources of volumes that a tenant's template may use.
const VOLUME_SOURCES: [&str; 6] =
    ["configMap", "secret", "emptyDir", "downwardAPI", "ephemeral", "persistentVolumeClaim"];

/// Domains of labels and annotations that Kubernetes uses.
const RESERVED_DOMAINS: [&str; 2] = ["kubernetes.io", "k8s.io"];

/// Checks the namespace selectors, `safetyNet` and `optOut` of a namespaced profile: it must not set what only cluster
/// profiles may set. Inherited fields are not checked.
pub(super) fn check_fields(spec: &ProfileSpec, diagnostics: &mut Vec<Diagnostic>) {
    let sentence = "is only for cluster profiles: a namespaced profile applies only to its own namespace";
    if spec.namespace_selector.is_some() {
        diagnostics.push(Diagnostic::new("spec.namespaceSelector", format!("namespaceSelector {sentence}")));
    }
    if spec.rollout.as_ref().is_some_and(|rollout| rollout.namespace_selector.is_some()) {
        diagnostics.push(Diagnostic::new("spec.rollout.namespaceSelector", format!("namespaceSelector {sentence}")));
    }
    if spec.safety_net == Some(true) {
        let message = "safetyNet is only for cluster profiles: the API server's policy applies before all replicas";
        diagnostics.push(Diagnostic::new("spec.safetyNet", message).with_help("remove it"));
    }
    if spec.opt_out == Some(OptOut::Forbidden) {
        diagnostics.push(
            Diagnostic::new("spec.optOut", "optOut Forbidden is only for cluster profiles").with_help("use Allowed"),
        );
    }
}

/// Checks the template of a tenant's profile. The caller has removed its directives.
pub(super) fn check_template(template: &Json, diagnostics: &mut Vec<Diagnostic>) {
    for (map, key) in ["labels", "annotations"].into_iter().flat_map(|map| {
        let entries = template.pointer(&format!("/metadata/{map}")).and_then(Json::as_object);
        entries.into_iter().flat_map(Map::keys).map(move |key| (map, key))
    }) {
        let domain = key.split_once('/').map_or("", |(domain, _)| domain);
        let reserved = RESERVED_DOMAINS
            .iter()
            .any(|reserved| domain.strip_suffix(reserved).is_some_and(|rest| rest.is_empty() || rest.ends_with('.')));
        if reserved || key == "app" {
            let path = format!("spec.template.metadata.{map}[{key:?}]");
            diagnostics.push(Diagnostic::new(path, "a namespaced profile cannot set a key that other components use"));
        }
    }
    let Some(spec) = template.get("spec").and_then(Json::as_object) else { return };
    for field in spec.keys().filter(|field| !SPEC_FIELDS.contains(&field.as_str())) {
        let path = format!("spec.template.spec.{field}");
        let diagnostic = Diagnostic::new(path, format!("a namespaced profile cannot set {field}"));
        diagnostics.push(
            diagnostic
                .with_help("it can add containers, initContainers and volumes; a cluster profile can set the rest"),
        );
    }
    for (path, volume) in elements(spec, "volumes") {
        for source in volume.keys().filter(|field| *field != "name" && !VOLUME_SOURCES.contains(&field.as_str())) {
            let diagnostic =
                Diagnostic::new(format!("{path}.{source}"), format!("a namespaced profile cannot use {source}"));
            diagnostics.push(diagnostic.with_help(format!("it can use {}", VOLUME_SOURCES.join(", "))));
        }
    }
    for list in ["containers", "initContainers"] {
        for (path, container) in elements(spec, list) {
            check_container(&path, container, diagnostics);
        }
    }
}

fn check_container(path: &str, container: &Map<String, Json>, diagnostics: &mut Vec<Diagnostic>) {
    let mut refuse = |field: &str, why: &str| {
        diagnostics.push(Diagnostic::new(format!("{path}.{field}"), format!("a namespaced profile cannot {why}")));
    };
    let at = |pointer: &str| container.get("securityContext").and_then(|context| context.pointer(pointer));
    let is = |pointer: &str, value: Json| at(pointer) == Some(&value);
    if is("/privileged", Json::Bool(true)) {
        refuse("securityContext.privileged", "add a privileged container");
    }
    if is("/allowPrivilegeEscalation", Json::Bool(true)) {
        refuse("securityContext.allowPrivilegeEscalation", "allow privilege escalation");
    }
    if is("/runAsUser", Json::from(0)) || is("/runAsNonRoot", Json::Bool(false)) {
        refuse("securityContext.runAsUser", "run as root");
    }
    if at("/capabilities/add").and_then(Json::as_array).is_some_and(|added| !added.is_empty()) {
        refuse("securityContext.capabilities.add", "add capabilities");
    }
    if at("/procMount").is_some_and(|mount| mount != "Default") {
        refuse("securityContext.procMount", "unmask /proc");
    }
    if is("/seccompProfile/type", Json::from("Unconfined")) || is("/appArmorProfile/type", Json::from("Unconfined")) {
        refuse("securityContext", "disable the confinement");
    }
    if at("/windowsOptions/hostProcess") == Some(&Json::Bool(true)) {
        refuse("securityContext.windowsOptions.hostProcess", "run on the host");
    }
    let ports = container.get("ports").and_then(Json::as_array);
    if ports.into_iter().flatten().any(|port| port.get("hostPort").is_some_and(|port| *port != 0)) {
        refuse("ports", "use a host port");
    }
    if container.get("volumeDevices").is_some() {
        refuse("volumeDevices", "use raw block devices");
    }
}

fn elements<'s>(spec: &'s Map<String, Json>, list: &str) -> Vec<(String, &'s Map<String, Json>)> {
    let items = spec.get(list).and_then(Json::as_array).into_iter().flatten().enumerate();
    items.filter_map(|(index, item)| Some((format!("spec.template.spec.{list}[{index}]"), item.as_object()?))).collect()
}

/// Whether a namespaced profile only extends another profile and sets permitted values. Such a profile has no limits
/// other than those of its parent. With any other field, the limits for tenants apply.
pub(super) const fn only_extends(spec: &ProfileSpec) -> bool {
    // All fields are listed here, so that adding a field to the spec causes a compile error.
    let ProfileSpec {
        description: _,
        extends: _,
        activation: _,
        requested_by: _,
        object_selector: _,
        order: _,
        parameters: _,
        rollout: _,
        safety_net: _,
        target: None,
        opt_out: None,
        namespace_selector: None,
        match_conditions,
        preconditions,
        exclusive_group: None,
        lookups,
        variables,
        template: None,
        container_patches,
        validations,
        failure_policy: None,
    } = spec
    else {
        return false;
    };
    match_conditions.is_empty()
        && preconditions.is_empty()
        && lookups.is_empty()
        && variables.is_empty()
        && container_patches.is_empty()
        && validations.is_empty()
}

/// Checks a namespaced profile against the spec that it inherits.
pub(super) fn check_extension(own: &ProfileSpec, inherited: &ProfileSpec, diagnostics: &mut Vec<Diagnostic>) {
    let only_extends = only_extends(own);
    for (index, parameter) in own.parameters.iter().enumerate() {
        let path = format!("spec.parameters[{index}]");
        match inherited.parameters.iter().find(|other| other.name == parameter.name) {
            Some(other) => check_parameter(&path, parameter, other, diagnostics),
            // A profile that only extends another one has no expressions that could read a new parameter.
            None if only_extends => diagnostics.push(unknown_parameter(&path, &parameter.name, inherited)),
            None => {}
        }
    }
    let conditions = |spec: &ProfileSpec| spec.match_conditions.iter().map(|one| one.name.clone()).collect::<Vec<_>>();
    check_added("matchConditions", conditions(own), &conditions(inherited), diagnostics);
    let preconditions = |spec: &ProfileSpec| spec.preconditions.iter().map(|one| one.name.clone()).collect::<Vec<_>>();
    check_added("preconditions", preconditions(own), &preconditions(inherited), diagnostics);
    if own.opt_out == Some(OptOut::Allowed) && inherited.opt_out == Some(OptOut::Forbidden) {
        let message = "the cluster profile forbids opting out of it and of profiles that extend it";
        diagnostics.push(Diagnostic::new("spec.optOut", message).with_help("remove optOut"));
    }
    if !only_extends {
        let not_inheritable = |what: &str| {
            let message =
                format!("a namespaced profile that sets more than values cannot inherit the cluster profile's {what}");
            let help = "set only extends, parameters, requestedBy, activation, objectSelector and order";
            Diagnostic::new("spec.extends.name", message).with_help(help)
        };
        if !inherited.lookups.is_empty() {
            diagnostics.push(not_inheritable("lookups"));
        }
        if inherited.target.is_some() && own.target.is_none() {
            diagnostics.push(not_inheritable("target"));
        }
    }
}

/// Checks that the conditions of a namespaced profile do not replace those of the cluster profile. `own` and
/// `inherited` contain the names of the conditions.
fn check_added(field: &str, own: Vec<String>, inherited: &[String], diagnostics: &mut Vec<Diagnostic>) {
    for (index, name) in own.into_iter().enumerate().filter(|(_, name)| inherited.contains(name)) {
        let message = format!("the cluster profile already has a condition {name:?}");
        let diagnostic = Diagnostic::new(format!("spec.{field}[{index}].name"), message);
        diagnostics.push(diagnostic.with_help("a namespaced profile can only add conditions; use another name"));
    }
}

/// Checks that a namespaced profile sets only the default of an inherited parameter, and only if the platform allows
/// it.
fn check_parameter(path: &str, own: &Parameter, inherited: &Parameter, diagnostics: &mut Vec<Diagnostic>) {
    let Parameter { name, type_, default, sources, .. } = own;
    let fields = serde_json::to_value(own).unwrap_or_default();
    for field in fields.as_object().into_iter().flat_map(|fields| fields.keys()) {
        let is_theirs = match field.as_str() {
            "name" | "default" => false,
            "type" => *type_ != inherited.type_,
            _ => true,
        };
        if is_theirs {
            let message = format!("only the cluster profile can set {field} of the parameter {name:?}");
            let diagnostic = Diagnostic::new(format!("{path}.{field}"), message);
            diagnostics.push(diagnostic.with_help(format!("set {{name: {name}, default: ...}}")));
        }
    }
    let Some(value) = default else {
        if sources.is_none() {
            let diagnostic = Diagnostic::new(path, format!("no value is set for the parameter {name:?}"));
            diagnostics.push(diagnostic.with_help(format!("set {{name: {name}, default: ...}}")));
        }
        return;
    };
    if !inherited.sources.as_deref().unwrap_or_default().contains(&Source::Namespace) {
        let message = format!("the cluster profile does not let a namespace set {name:?}");
        let diagnostic = Diagnostic::new(format!("{path}.default"), message);
        diagnostics.push(diagnostic.with_help("add Namespace to its sources in the cluster profile"));
    }
    if has_expression(value) {
        let message = "a namespace can only set a constant, so that the constraints can be checked";
        diagnostics.push(
            Diagnostic::new(format!("{path}.default"), message).with_help("replace the expression with a constant"),
        );
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
        None if names.is_empty() => diagnostic.with_help("it does not allow namespaces to set parameters"),
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

/// Restricts a namespaced profile to objects that match both its own selectors and those of its parent.
pub(super) fn narrow(merged: &mut Json, inherited: &ProfileSpec, own: &ProfileSpec) {
    let Some(fields) = merged.as_object_mut() else { return };
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

/// Returns a selector for objects that match both selectors. The namespace's own requirements come first.
fn both(inherited: &LabelSelector, own: &LabelSelector) -> LabelSelector {
    let LabelSelector { match_labels, mut match_expressions } = own.clone();
    // Two values for one label match nothing. A map cannot hold both, so use expressions.
    match_expressions.extend(match_labels.into_iter().map(|(key, value)| Requirement {
        key,
        operator: Operator::In,
        values: vec![value],
    }));
    match_expressions.extend(inherited.match_expressions.iter().cloned());
    LabelSelector { match_labels: inherited.match_labels.clone(), match_expressions }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn diagnostics(template: &Json) -> Vec<String> {
        let mut diagnostics = Vec::new();
        check_template(template, &mut diagnostics);
        diagnostics.into_iter().map(|diagnostic| diagnostic.path).collect()
    }

    #[test]
    fn rejects_fields_beyond_tenant_limits() {
        let container = |context: Json| json!({"spec": {"containers": [{"name": "a", "securityContext": context}]}});
        for template in [
            json!({"spec": {"hostNetwork": true}}),
            json!({"spec": {"hostPID": true}}),
            json!({"spec": {"serviceAccountName": "admin"}}),
            json!({"spec": {"nodeName": "n"}}),
            json!({"spec": {"tolerations": []}}),
            json!({"spec": {"volumes": [{"name": "v", "hostPath": {"path": "/"}}]}}),
            json!({"spec": {"volumes": [{"name": "v", "projected": {"sources": []}}]}}),
            container(json!({"privileged": true})),
            container(json!({"allowPrivilegeEscalation": true})),
            container(json!({"runAsUser": 0})),
            container(json!({"capabilities": {"add": ["NET_ADMIN"]}})),
            container(json!({"procMount": "Unmasked"})),
            container(json!({"seccompProfile": {"type": "Unconfined"}})),
            container(json!({"windowsOptions": {"hostProcess": true}})),
            json!({"spec": {"initContainers": [{"name": "a", "ports": [{"containerPort": 1, "hostPort": 1}]}]}}),
            json!({"metadata": {"labels": {"app": "payments"}}}),
            json!({"metadata": {"labels": {"app.kubernetes.io/name": "x"}}}),
            json!({"metadata": {"annotations": {"k8s.io/x": "y"}}}),
        ] {
            assert_eq!(diagnostics(&template).len(), 1, "{template}: {:?}", diagnostics(&template));
        }
    }

    #[test]
    fn accepts_own_containers_volumes_and_keys() {
        let template = json!({
            "metadata": {"labels": {"team.example.com/x": "y", "notkubernetes.io/x": "y"}},
            "spec": {
                "containers": [{"name": "a", "securityContext": {
                    "runAsUser": 1000, "capabilities": {"drop": ["ALL"]}, "seccompProfile": {"type": "RuntimeDefault"},
                }}],
                "volumes": [{"name": "v", "secret": {"secretName": "s"}}],
            },
        });
        assert_eq!(diagnostics(&template), Vec::<String>::new());
    }
}
