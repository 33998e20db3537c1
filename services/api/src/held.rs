//! The admission policies that make pods in `held` namespaces wait. A `MutatingAdmissionPolicy` adds a scheduling gate
//! to each new pod except mirror pods, and a `ValidatingAdmissionPolicy` allows only Pillion to remove the gate. This
//! module builds both with pure functions.
//!
//! The API server runs mutating policies before mutating webhooks, so the webhook finds the gate on each of these pods,
//! and its patch removes the gate. The policy runs only once (`reinvocationPolicy: Never`), so the gate is not added
//! again when the API server calls the webhook a second time. A missing gate therefore proves that the webhook has
//! processed the pod or the controller has released it, whatever the pod's author wrote.
//!
//! The API server rejects a pod that has both a gate and a node name, so a pod with a node name cannot wait. The policy
//! adds the gate to such a pod, too. If the webhook runs, it removes the gate before the API server checks the pod. If
//! the webhook does not run, the pod is rejected.
//!
//! Fields with defaults are set explicitly, so that a stored policy can be compared with the desired one.

use k8s_openapi::api::admissionregistration::v1::{
    JSONPatch, MatchCondition, MatchResources, MutatingAdmissionPolicy, MutatingAdmissionPolicyBinding,
    MutatingAdmissionPolicyBindingSpec, MutatingAdmissionPolicySpec, Mutation, NamedRuleWithOperations,
    ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding, ValidatingAdmissionPolicyBindingSpec,
    ValidatingAdmissionPolicySpec, Validation,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, LabelSelectorRequirement, ObjectMeta};

use crate::names::{
    FailureMode, INJECTION_GATE, INJECTION_LABEL, MIRROR_ANNOTATION, NAMESPACE_NAME_LABEL, SYSTEM_NAMESPACES,
};

/// The settings for the policies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// The name of all four objects.
    pub name: String,
    /// The namespace of the release. It is excluded by name.
    pub release_namespace: String,
    /// Further excluded namespaces. The webhook configuration must exclude the same ones.
    pub excluded_namespaces: Vec<String>,
    /// The user who may remove gates: the user name of the controller's service account.
    pub controller_user: String,
}

impl Settings {
    /// Creates the settings for a release. The names of its objects begin with `release`: the policies are named
    /// `{release}-held`, and the controller's service account `{release}-controller`.
    #[must_use]
    pub fn new(release: &str, namespace: impl Into<String>) -> Self {
        let namespace = namespace.into();
        Self {
            name: format!("{release}-held"),
            controller_user: format!("system:serviceaccount:{namespace}:{release}-controller"),
            release_namespace: namespace,
            excluded_namespaces: Vec::new(),
        }
    }
}

/// Builds the policy that adds the gate to new pods.
#[must_use]
pub fn gating(settings: &Settings) -> MutatingAdmissionPolicy {
    // Use a plain map, because the API server (1.36.3) panics on a list of typed objects in a patch, and then rejects
    // every creation of a pod.
    let gate = format!("{{'name': '{INJECTION_GATE}'}}");
    // Use a JSON patch instead of an apply configuration, to preserve pod fields that are unknown to the API server.
    let expression = format!(
        "has(object.spec.schedulingGates) && size(object.spec.schedulingGates) > 0 \
         ? [JSONPatch{{op: 'add', path: '/spec/schedulingGates/-', value: {gate}}}] \
         : [JSONPatch{{op: 'add', path: '/spec/schedulingGates', value: [{gate}]}}]"
    );
    MutatingAdmissionPolicy {
        metadata: metadata(settings),
        spec: Some(MutatingAdmissionPolicySpec {
            // None of the expressions can fail. If one did, it would be better to reject the pod, with the reason, than
            // to run it without its sidecar.
            failure_policy: Some("Fail".to_owned()),
            match_conditions: Some(vec![
                // The kubelet creates a mirror pod for a static pod that is already running. A policy cannot change the
                // static pod.
                condition("not-a-mirror-pod", not_a_mirror_pod()),
                condition("not-gated-yet", format!("!({})", has_gate("object"))),
            ]),
            match_constraints: Some(pods(settings, "CREATE")),
            mutations: Some(vec![Mutation {
                patch_type: "JSONPatch".to_owned(),
                json_patch: Some(JSONPatch { expression: Some(expression) }),
                ..Mutation::default()
            }]),
            reinvocation_policy: Some("Never".to_owned()),
            ..MutatingAdmissionPolicySpec::default()
        }),
    }
}

/// Builds the binding that enables the policy of [`gating`].
#[must_use]
pub fn gating_binding(settings: &Settings) -> MutatingAdmissionPolicyBinding {
    MutatingAdmissionPolicyBinding {
        metadata: metadata(settings),
        spec: Some(MutatingAdmissionPolicyBindingSpec {
            policy_name: Some(settings.name.clone()),
            ..MutatingAdmissionPolicyBindingSpec::default()
        }),
    }
}

/// Builds the policy that allows only the controller to remove the gate from a pod.
#[must_use]
pub fn guarding(settings: &Settings) -> ValidatingAdmissionPolicy {
    let user = &settings.controller_user;
    let message = format!(
        "only Pillion removes the scheduling gate {INJECTION_GATE}, when it injects the pod's sidecar; delete the pod so \
         that its owner creates a new one, or remove the label {INJECTION_LABEL} from the namespace so that its pods run \
         without sidecars"
    );
    ValidatingAdmissionPolicy {
        metadata: metadata(settings),
        spec: Some(ValidatingAdmissionPolicySpec {
            failure_policy: Some("Fail".to_owned()),
            match_conditions: Some(vec![condition("was-gated", has_gate("oldObject"))]),
            match_constraints: Some(pods(settings, "UPDATE")),
            validations: Some(vec![Validation {
                expression: format!("({}) || request.userInfo.username == '{user}'", has_gate("object")),
                message: Some(message),
                reason: Some("Forbidden".to_owned()),
                ..Validation::default()
            }]),
            ..ValidatingAdmissionPolicySpec::default()
        }),
        ..ValidatingAdmissionPolicy::default()
    }
}

/// Builds the binding that enables the policy of [`guarding`].
#[must_use]
pub fn guarding_binding(settings: &Settings) -> ValidatingAdmissionPolicyBinding {
    ValidatingAdmissionPolicyBinding {
        metadata: metadata(settings),
        spec: ValidatingAdmissionPolicyBindingSpec {
            policy_name: settings.name.clone(),
            validation_actions: vec!["Deny".to_owned()],
            ..ValidatingAdmissionPolicyBindingSpec::default()
        },
    }
}

fn metadata(settings: &Settings) -> ObjectMeta {
    ObjectMeta { name: Some(settings.name.clone()), ..ObjectMeta::default() }
}

/// Returns a CEL expression that tests whether the pod in the variable `pod` has the gate.
fn has_gate(pod: &str) -> String {
    format!(
        "has({pod}.spec.schedulingGates) && {pod}.spec.schedulingGates.exists(gate, gate.name == '{INJECTION_GATE}')"
    )
}

/// Returns a CEL expression that is false if a kubelet creates a mirror pod.
pub(crate) fn not_a_mirror_pod() -> String {
    format!(
        "!(request.userInfo.username.startsWith('system:node:') && has(object.metadata.annotations) && \
         '{MIRROR_ANNOTATION}' in object.metadata.annotations)"
    )
}

pub(crate) fn condition(name: &str, expression: String) -> MatchCondition {
    MatchCondition { name: name.to_owned(), expression }
}

/// Returns the match rules for an operation on pods, in the namespaces that the webhook's entry `held` matches. They
/// leave out subresources, which cannot change gates.
fn pods(settings: &Settings, operation: &str) -> MatchResources {
    let namespaces = vec![
        requirement(INJECTION_LABEL, "In", [FailureMode::Held.label_value()]),
        not_excluded(&settings.release_namespace, &settings.excluded_namespaces),
    ];
    match_pods(operation, namespaces, LabelSelector::default())
}

/// Returns the match rules for an operation on pods that match `pods`, in namespaces that meet these requirements.
pub(crate) fn match_pods(
    operation: &str,
    namespaces: Vec<LabelSelectorRequirement>,
    pods: LabelSelector,
) -> MatchResources {
    MatchResources {
        exclude_resource_rules: None,
        match_policy: Some("Equivalent".to_owned()),
        namespace_selector: Some(LabelSelector { match_labels: None, match_expressions: Some(namespaces) }),
        object_selector: Some(pods),
        resource_rules: Some(vec![NamedRuleWithOperations {
            api_groups: Some(vec![String::new()]),
            api_versions: Some(vec!["v1".to_owned()]),
            operations: Some(vec![operation.to_owned()]),
            resource_names: None,
            resources: Some(vec!["pods".to_owned()]),
            scope: Some("Namespaced".to_owned()),
        }]),
    }
}

/// Returns a requirement that matches all namespaces except the system namespaces, the release namespace and
/// `excluded`. The webhook configurations use it, too.
pub(crate) fn not_excluded(release_namespace: &str, excluded: &[String]) -> LabelSelectorRequirement {
    let excluded = excluded.iter().map(String::as_str);
    requirement(NAMESPACE_NAME_LABEL, "NotIn", SYSTEM_NAMESPACES.into_iter().chain([release_namespace]).chain(excluded))
}

/// Builds a requirement for a label. If there are no values, the field `values` is not set.
pub(crate) fn requirement<'v>(
    key: &str,
    operator: &str,
    values: impl IntoIterator<Item = &'v str>,
) -> LabelSelectorRequirement {
    let values: Vec<_> = values.into_iter().map(str::to_owned).collect();
    LabelSelectorRequirement {
        key: key.to_owned(),
        operator: operator.to_owned(),
        values: (!values.is_empty()).then_some(values),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::webhook_configuration;

    fn settings() -> Settings {
        let excluded_namespaces = vec!["left-alone".to_owned()];
        Settings { excluded_namespaces, ..Settings::new("pillion", "pillion-system") }
    }

    #[test]
    fn policies_match_pods_of_webhook() {
        let excluded_namespaces = settings().excluded_namespaces;
        let failure_modes = vec![FailureMode::Held];
        let webhook = webhook_configuration::Settings {
            excluded_namespaces,
            failure_modes,
            ..webhook_configuration::Settings::new("pillion-system", b"-----BEGIN".as_slice())
        };
        let [entry] = webhook_configuration::mutating(&webhook).webhooks.unwrap().try_into().unwrap();
        let gating = gating(&settings()).spec.unwrap().match_constraints.unwrap();
        assert_eq!(gating.namespace_selector, entry.namespace_selector);
        assert_eq!(gating.match_policy, entry.match_policy);
        let [called] = entry.rules.unwrap().try_into().unwrap();
        let [gated] = gating.resource_rules.unwrap().try_into().unwrap();
        assert_eq!(
            (gated.resources, gated.operations, gated.scope),
            (called.resources, called.operations, called.scope)
        );

        let guarding = guarding(&settings()).spec.unwrap().match_constraints.unwrap();
        assert_eq!(guarding.namespace_selector, entry.namespace_selector);
        let [guarded] = guarding.resource_rules.unwrap().try_into().unwrap();
        assert_eq!(
            (guarded.resources.unwrap(), guarded.operations.unwrap()),
            (vec!["pods".into()], vec!["UPDATE".into()])
        );
    }

    #[test]
    fn removed_gate_is_not_added_again() {
        let spec = gating(&settings()).spec.unwrap();
        assert_eq!(spec.reinvocation_policy.as_deref(), Some("Never"));
        assert_eq!(spec.failure_policy.as_deref(), Some("Fail"));
        let names: Vec<_> = spec.match_conditions.unwrap().into_iter().map(|condition| condition.name).collect();
        assert_eq!(names, ["not-a-mirror-pod", "not-gated-yet"]);
    }

    #[test]
    fn only_controller_removes_gates() {
        let [validation] = guarding(&settings()).spec.unwrap().validations.unwrap().try_into().unwrap();
        let user = "request.userInfo.username == 'system:serviceaccount:pillion-system:pillion-controller'";
        assert!(validation.expression.ends_with(user), "{}", validation.expression);
        assert_eq!(guarding_binding(&settings()).spec.validation_actions, ["Deny"]);
    }

    #[test]
    fn bindings_name_their_policies() {
        let settings = settings();
        assert_eq!(gating_binding(&settings).spec.unwrap().policy_name, gating(&settings).metadata.name);
        assert_eq!(Some(guarding_binding(&settings).spec.policy_name), guarding(&settings).metadata.name);
    }
}
