//! The target of a profile: resources and operations.
//!
//! A namespaced profile may target only pods. A cluster profile may also target other namespaced resources, except some
//! that the cluster needs to work or that change often. So a faulty profile cannot prevent node heartbeats, leader
//! elections, or repairs of Pillion itself.

use pillion_api::profile::{Operation, ProfileSpec, Target as Text};

use super::{Diagnostic, ProfileName};

/// The phase of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// Mutating: the templates of profiles create a patch.
    Mutate,
    /// Validating: the validations of profiles allow or deny the object.
    Validate,
}

/// The action of a request: phase, operation and resource.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Action<'a> {
    pub(crate) phase: Phase,
    pub(crate) group: &'a str,
    pub(crate) version: &'a str,
    /// The plural resource name. If there is a subresource, a slash and its name follow.
    pub(crate) resource: &'a str,
    pub(crate) operation: Operation,
}

impl Action<'_> {
    /// The creation of a pod on the mutating path, which is the action of most requests.
    pub(crate) const CREATE_POD: Self =
        Self { phase: Phase::Mutate, group: "", version: "v1", resource: PODS, operation: Operation::Create };

    pub(crate) fn creates_pod(self) -> bool {
        self.phase == Phase::Mutate && self.operation == Operation::Create && self.is_pod()
    }

    /// Whether the resource of the action is pods, without a subresource.
    pub(crate) fn is_pod(self) -> bool {
        self.resource == PODS && self.group.is_empty() && self.version == "v1"
    }

    /// Whether the resource of the action is a subresource.
    fn is_part(self) -> bool {
        self.resource.contains('/')
    }
}

/// A compiled target.
#[derive(Clone, Debug)]
pub(crate) struct Target {
    pub(crate) group: Box<str>,
    pub(crate) version: Box<str>,
    pub(crate) resources: Box<[Box<str>]>,
    pub(crate) operations: Box<[Operation]>,
}

const PODS: &str = "pods";

/// The subresources of pods that profiles can target. Requests for them contain the whole pod.
const POD_PARTS: [&str; 2] = ["ephemeralcontainers", "resize"];

/// API groups that profiles cannot target, with the reasons.
const FORBIDDEN_GROUPS: [(&str, &str); 6] = [
    ("pillion.dev", "a profile cannot target profiles"),
    ("authentication.k8s.io", "profiles cannot decide authentication"),
    ("authorization.k8s.io", "profiles cannot decide access reviews"),
    ("admissionregistration.k8s.io", "profiles cannot decide the configuration of admission"),
    ("apiregistration.k8s.io", "profiles cannot decide the registration of API servers"),
    ("events.k8s.io", "events are frequent, and report what has already happened"),
];

/// Resources that profiles cannot target: group, name without subresource, and the reason.
const REFUSED: [(&str, &str, &str); 4] = [
    ("coordination.k8s.io", "leases", "nodes and leader election depend on leases"),
    ("", "events", "events are frequent, and report what has already happened"),
    ("", "bindings", "profiles cannot decide the bindings of the scheduler"),
    ("", "nodes", "nodes are not in a namespace"),
];

/// The cluster-scoped resources of the core group that are not in [`REFUSED`].
const CLUSTER_SCOPED: [&str; 3] = ["namespaces", "persistentvolumes", "componentstatuses"];

impl Target {
    /// Returns the default target: the creation of pods.
    fn pods() -> Self {
        Self {
            group: Box::default(),
            version: "v1".into(),
            resources: Box::new([PODS.into()]),
            operations: Box::new([Operation::Create]),
        }
    }

    /// Returns the target in its API form.
    pub(crate) fn to_text(&self) -> Text {
        Text {
            group: self.group.to_string(),
            version: self.version.to_string(),
            resources: self.resources.iter().map(ToString::to_string).collect(),
            operations: self.operations.to_vec(),
        }
    }

    /// Whether the target's objects are pods.
    pub(crate) fn is_pods(&self) -> bool {
        is_pods(&self.group, self.resources.first().map_or("", |resource| resource))
    }

    /// Whether the target includes an action.
    pub(crate) fn holds(&self, action: Action<'_>) -> bool {
        *self.group == *action.group
            && *self.version == *action.version
            && self.operations.contains(&action.operation)
            && self.resources.iter().any(|resource| **resource == *action.resource)
    }

    /// Whether a template is applied for an action. Templates apply only to whole objects, and not to deletions. They
    /// apply to pods only on creation, because most fields of a pod are immutable.
    pub(crate) fn takes_template(&self, action: Action<'_>) -> bool {
        let lasts = match action.operation {
            Operation::Create => true,
            Operation::Update => !self.is_pods(),
            Operation::Delete => false,
        };
        lasts && !action.is_part() && self.holds(action)
    }
}

fn is_pods(group: &str, resource: &str) -> bool {
    let main = resource.split('/').next().unwrap_or_default();
    group.is_empty() && main == PODS
}

/// Compiles the target of a profile. Adds errors to `diagnostics`.
pub(super) fn compile(name: &ProfileName, spec: &ProfileSpec, diagnostics: &mut Vec<Diagnostic>) -> Target {
    let Some(text) = &spec.target else { return Target::pods() };
    let before = diagnostics.len();
    check_resources(name, text, diagnostics);
    let operations = if text.operations.is_empty() { vec![Operation::Create] } else { text.operations.clone() };
    let target = Target {
        group: text.group.as_str().into(),
        version: text.version.as_str().into(),
        resources: text.resources.iter().map(|resource| resource.as_str().into()).collect(),
        operations: operations.into(),
    };
    if diagnostics.len() == before
        && (spec.template.is_some() || !spec.container_patches.is_empty())
        && !can_take_template(&target)
    {
        let message = if target.is_pods() {
            "a template applies only to pods on CREATE, and this target does not include both"
        } else {
            "a template applies only to whole objects on CREATE or UPDATE, and this target includes none"
        };
        let help = "add them to resources and operations, or remove the template and keep the validations";
        diagnostics.push(Diagnostic::new("spec.target", message).with_help(help));
    }
    target
}

/// Whether this target includes an action for which a template is applied.
fn can_take_template(target: &Target) -> bool {
    target.resources.iter().any(|resource| {
        target.operations.iter().any(|operation| {
            let (group, version) = (&*target.group, &*target.version);
            target.takes_template(Action { phase: Phase::Mutate, group, version, resource, operation: *operation })
        })
    })
}

fn check_resources(name: &ProfileName, target: &Text, diagnostics: &mut Vec<Diagnostic>) {
    if target.resources.is_empty() {
        let diagnostic = Diagnostic::new("spec.target.resources", "a target needs at least one resource");
        diagnostics.push(diagnostic.with_help("use the plural, such as pods or deployments"));
    }
    for (field, value) in [("group", &target.group), ("version", &target.version)] {
        let may_be_empty = field == "group";
        if value.contains('*') {
            diagnostics.push(wildcard(format!("spec.target.{field}")));
        } else if !(is_word(value) || (may_be_empty && value.is_empty())) {
            let message = format!("{value:?} is not the {field} of an API");
            diagnostics.push(Diagnostic::new(format!("spec.target.{field}"), message));
        }
    }
    for (index, resource) in target.resources.iter().enumerate() {
        let path = format!("spec.target.resources[{index}]");
        if resource.contains('*') {
            diagnostics.push(wildcard(path));
        } else if let Some((message, help)) = refused(&target.group, resource) {
            let diagnostic = Diagnostic::new(path, message);
            diagnostics.push(if help.is_empty() { diagnostic } else { diagnostic.with_help(help) });
        } else if name.namespace.is_some() && !is_pods(&target.group, resource) {
            let diagnostic =
                Diagnostic::new(path, format!("a namespaced profile can only target pods, not {resource}"));
            diagnostics.push(diagnostic.with_help("a cluster profile can target other resources"));
        }
    }
    let pods = target.resources.iter().filter(|resource| is_pods(&target.group, resource)).count();
    if pods > 0 && pods < target.resources.len() {
        let diagnostic =
            Diagnostic::new("spec.target.resources", "pods and other resources cannot be targets of one profile");
        diagnostics
            .push(diagnostic.with_help("use two profiles, because different names are available to their expressions"));
    }
    if pods > 0 && target.version != "v1" && is_word(&target.version) {
        diagnostics.push(Diagnostic::new("spec.target.version", "the version of pods is v1").with_help("set v1"));
    }
}

fn wildcard(path: String) -> Diagnostic {
    Diagnostic::new(path, "a target cannot contain wildcards").with_help("name each resource and operation")
}

/// Returns the reason why profiles cannot target a resource, and a suggestion, which may be empty. `None` if cluster
/// profiles can target it.
fn refused(group: &str, resource: &str) -> Option<(String, &'static str)> {
    let (main, part) = resource.split_once('/').map_or((resource, None), |(main, part)| (main, Some(part)));
    if !is_word(main) || main != main.to_lowercase() || part.is_some_and(|part| !is_word(part)) {
        let message = format!("{resource:?} is not the name of a resource");
        return Some((message, "use lower-case plural names, such as pods or pods/ephemeralcontainers"));
    }
    let by_group = FORBIDDEN_GROUPS.iter().find(|(refused, _)| *refused == group).map(|(_, why)| *why);
    let by_name = REFUSED.iter().find(|(of, name, _)| *of == group && *name == main).map(|(_, _, why)| *why);
    if let Some(why) = by_group.or(by_name) {
        return Some((format!("{resource} cannot be a target: {why}"), ""));
    }
    if group.is_empty() && CLUSTER_SCOPED.contains(&main) {
        return Some((format!("{resource} cannot be a target: it is cluster-scoped"), ""));
    }
    match part {
        Some("token") => Some((format!("{resource} cannot be a target: profiles cannot decide tokens"), "")),
        Some("status") => {
            Some((format!("{resource} cannot be a target: controllers write the status, and do so often"), ""))
        }
        Some(part) if is_pods(group, main) && !POD_PARTS.contains(&part) => Some((
            format!("{resource} cannot be a target: its objects are not pods"),
            "pods/ephemeralcontainers can be a target",
        )),
        _ => None,
    }
}

/// Whether a string has the length and the characters of a group, a version or a resource.
fn is_word(text: &str) -> bool {
    let inner = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    (1..=253).contains(&text.len())
        && text.bytes().all(|byte| inner(byte) || byte == b'-' || byte == b'.')
        && text.bytes().next().is_some_and(inner)
        && text.bytes().next_back().is_some_and(inner)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value as Json, json};

    use super::*;

    fn compile_errors(name: &ProfileName, target: &Json, with_template: bool) -> Vec<String> {
        let mut spec: ProfileSpec = serde_json::from_value(json!({"target": target})).unwrap();
        spec.template = with_template.then(|| json!({"metadata": {"labels": {"a": "b"}}}));
        let mut diagnostics = Vec::new();
        compile(name, &spec, &mut diagnostics);
        diagnostics.iter().map(ToString::to_string).collect()
    }

    fn diagnostics(target: &Json) -> Vec<String> {
        compile_errors(&ProfileName::cluster("p"), target, false)
    }

    #[test]
    fn rejects_targets_that_clusters_depend_on() {
        for (group, resource) in [
            ("coordination.k8s.io", "leases"),
            ("", "events"),
            ("events.k8s.io", "events"),
            ("authentication.k8s.io", "tokenreviews"),
            ("authorization.k8s.io", "subjectaccessreviews"),
            ("", "serviceaccounts/token"),
            ("pillion.dev", "injectionprofiles"),
            ("admissionregistration.k8s.io", "validatingadmissionpolicies"),
            ("", "nodes"),
            ("", "nodes/status"),
            ("", "namespaces"),
            ("", "bindings"),
            ("", "pods/binding"),
            ("", "pods/exec"),
            ("", "pods/status"),
            ("apps", "deployments/status"),
            ("apps", "Deployments"),
            ("apps", "*"),
            ("*", "deployments"),
            ("", "pods/*"),
            ("", ""),
        ] {
            let diagnostics = diagnostics(&json!({"group": group, "version": "v1", "resources": [resource]}));
            assert_eq!(diagnostics.len(), 1, "{group}/{resource}: {diagnostics:?}");
            assert!(diagnostics[0].starts_with("spec.target."), "{diagnostics:?}");
        }
        for (group, resource) in [
            ("", "pods"),
            ("", "pods/ephemeralcontainers"),
            ("", "configmaps"),
            ("apps", "deployments"),
            ("apps", "deployments/scale"),
            ("agones.dev", "gameservers"),
        ] {
            let diagnostics = diagnostics(&json!({"group": group, "version": "v1", "resources": [resource]}));
            assert_eq!(diagnostics, Vec::<String>::new(), "{group}/{resource}");
        }
    }

    #[test]
    fn tenant_targets_pods_only() {
        let own = ProfileName::namespaced("team-a", "p");
        let deployments = json!({"group": "apps", "version": "v1", "resources": ["deployments"]});
        assert!(compile_errors(&own, &deployments, false)[0].contains("a namespaced profile can only target pods"));
        let pods = json!({"version": "v1", "resources": ["pods", "pods/ephemeralcontainers"]});
        assert_eq!(compile_errors(&own, &pods, false), Vec::<String>::new());
        let mixed = json!({"version": "v1", "resources": ["pods", "configmaps"]});
        assert!(diagnostics(&mixed)[0].contains("cannot be targets of one profile"));
        assert!(diagnostics(&json!({"version": "v2", "resources": ["pods"]}))[0].contains("v1"));
    }

    #[test]
    fn template_needs_applicable_target() {
        let cluster = ProfileName::cluster("p");
        let with = |target: Json| compile_errors(&cluster, &target, true);
        for target in [
            json!({"version": "v1", "resources": ["pods"], "operations": ["UPDATE"]}),
            json!({"version": "v1", "resources": ["pods/ephemeralcontainers"]}),
            json!({"group": "apps", "version": "v1", "resources": ["deployments"], "operations": ["DELETE"]}),
            json!({"group": "apps", "version": "v1", "resources": ["deployments/scale"], "operations": ["UPDATE"]}),
        ] {
            assert!(with(target.clone()).iter().any(|diagnostic| diagnostic.starts_with("spec.target: ")), "{target}");
        }
        for target in [
            json!({"version": "v1", "resources": ["pods", "pods/ephemeralcontainers"], "operations": ["CREATE", "UPDATE"]}),
            json!({"group": "apps", "version": "v1", "resources": ["deployments"], "operations": ["UPDATE"]}),
        ] {
            assert_eq!(with(target), Vec::<String>::new());
        }
    }
}
