//! The admission policy of the safety net. A `MutatingAdmissionPolicy` adds parts of profiles to new pods of `enabled`
//! namespaces, so that pods get them while no replica answers. This module builds the policy with pure functions, from
//! the mutations into which the engine converts profiles.
//!
//! The policy runs only once (`reinvocationPolicy: Never`), before the API server calls the webhook. It must not change
//! a pod again after the webhook has undone its changes.
//!
//! Fields with defaults are set explicitly, so that a stored policy can be compared with the desired one.

use k8s_openapi::api::admissionregistration::v1::{
    JSONPatch, MatchResources, MutatingAdmissionPolicy, MutatingAdmissionPolicyBinding,
    MutatingAdmissionPolicyBindingSpec, MutatingAdmissionPolicySpec, Mutation, Variable,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, ObjectMeta};

use crate::held::{condition, match_pods, not_a_mirror_pod, not_excluded, requirement};
use crate::names::{FailureMode, INJECT_LABEL, INJECTED_ANNOTATION};
use crate::opt_in::OptIn;

/// The settings for the policy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// The name of the policy and of its binding.
    pub name: String,
    /// The namespace of the release. It is excluded by name.
    pub release_namespace: String,
    /// Further excluded namespaces. The webhook configuration must exclude the same ones.
    pub excluded_namespaces: Vec<String>,
    /// The labels with which namespaces opt in. If there are several, the mutations check them.
    pub opt_in: OptIn,
}

impl Settings {
    /// Creates the settings for a release. The names of its objects begin with `release`.
    #[must_use]
    pub fn new(release: &str, namespace: impl Into<String>) -> Self {
        Self {
            name: format!("{release}-safety-net"),
            release_namespace: namespace.into(),
            excluded_namespaces: Vec::new(),
            opt_in: OptIn::default(),
        }
    }
}

/// Builds the policy from the names and expressions of its variables, and from the expressions of its mutations.
#[must_use]
pub fn policy(
    settings: &Settings,
    variables: impl IntoIterator<Item = (String, String)>,
    mutations: impl IntoIterator<Item = String>,
) -> MutatingAdmissionPolicy {
    let mutation = |expression| Mutation {
        patch_type: "JSONPatch".to_owned(),
        json_patch: Some(JSONPatch { expression: Some(expression) }),
        ..Mutation::default()
    };
    let variables: Vec<_> = variables.into_iter().map(|(name, expression)| Variable { name, expression }).collect();
    MutatingAdmissionPolicy {
        metadata: metadata(settings),
        spec: Some(MutatingAdmissionPolicySpec {
            // The engine skips a profile whose expressions fail. Similarly, the API server ignores each failed
            // mutation.
            failure_policy: Some("Ignore".to_owned()),
            match_conditions: Some(vec![
                condition("not-a-mirror-pod", not_a_mirror_pod()),
                condition("not-being-deleted", "!has(object.metadata.deletionTimestamp)".to_owned()),
                // An injection record from the pod's author is not genuine, so the policy must not add its entries to
                // it.
                condition(
                    "no-record-by-author",
                    format!(
                        "!(has(object.metadata.annotations) && '{INJECTED_ANNOTATION}' in object.metadata.annotations)"
                    ),
                ),
                // Only the pod's managed fields show that the policy wrote the record.
                condition(
                    "has-managed-fields",
                    "has(object.metadata.managedFields) && size(object.metadata.managedFields) > 0".to_owned(),
                ),
            ]),
            match_constraints: Some(pods(settings)),
            mutations: Some(mutations.into_iter().map(mutation).collect()),
            reinvocation_policy: Some("Never".to_owned()),
            variables: (!variables.is_empty()).then_some(variables),
            ..MutatingAdmissionPolicySpec::default()
        }),
    }
}

/// Builds the binding that enables the policy.
#[must_use]
pub fn binding(settings: &Settings) -> MutatingAdmissionPolicyBinding {
    MutatingAdmissionPolicyBinding {
        metadata: metadata(settings),
        spec: Some(MutatingAdmissionPolicyBindingSpec {
            policy_name: Some(settings.name.clone()),
            ..MutatingAdmissionPolicyBindingSpec::default()
        }),
    }
}

fn metadata(settings: &Settings) -> ObjectMeta {
    ObjectMeta { name: Some(settings.name.clone()), ..ObjectMeta::default() }
}

/// Returns the match rules for new pods in the namespaces that the webhook's entry `enabled` matches. If there are
/// several opt-in labels, the rules match all namespaces that are not excluded, because the mutations check the labels.
fn pods(settings: &Settings) -> MatchResources {
    let excluded = not_excluded(&settings.release_namespace, &settings.excluded_namespaces);
    let opted_in = match settings.opt_in.labels() {
        [only] => Some(requirement(&only.key, "In", only.values_of(FailureMode::Enabled))),
        _ => None,
    };
    let pods = LabelSelector {
        match_labels: None,
        match_expressions: Some(vec![requirement(INJECT_LABEL, "NotIn", ["false"])]),
    };
    match_pods("CREATE", opted_in.into_iter().chain([excluded]).collect(), pods)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::webhook_configuration;

    #[test]
    fn policy_matches_pods_of_webhook() {
        let settings = Settings {
            excluded_namespaces: vec!["left-alone".to_owned()],
            ..Settings::new("pillion", "pillion-system")
        };
        let webhook = webhook_configuration::Settings {
            excluded_namespaces: settings.excluded_namespaces.clone(),
            failure_modes: vec![FailureMode::Enabled],
            ..webhook_configuration::Settings::new("pillion-system", b"-----BEGIN".as_slice())
        };
        let [entry] = webhook_configuration::mutating(&webhook).webhooks.unwrap().try_into().unwrap();
        let policy = policy(&settings, [], ["[]".to_owned()]);
        assert_eq!(binding(&settings).spec.unwrap().policy_name, policy.metadata.name);
        let spec = policy.spec.unwrap();
        assert_eq!(spec.reinvocation_policy.as_deref(), Some("Never"));
        assert_eq!(spec.failure_policy.as_deref(), Some("Ignore"));
        let matched = spec.match_constraints.unwrap();
        assert_eq!(matched.namespace_selector, entry.namespace_selector);
        assert_eq!(matched.object_selector, entry.object_selector);
        assert_eq!(matched.match_policy, entry.match_policy);
        let [called] = entry.rules.unwrap().try_into().unwrap();
        let [rule] = matched.resource_rules.unwrap().try_into().unwrap();
        assert_eq!((rule.resources, rule.operations, rule.scope), (called.resources, called.operations, called.scope));
    }

    #[test]
    fn mutations_check_several_labels() {
        let opt_in = OptIn::with(["mesh=on"]).unwrap();
        let settings = Settings { opt_in, ..Settings::new("pillion", "pillion-system") };
        let selector = pods(&settings).namespace_selector.unwrap().match_expressions.unwrap();
        assert_eq!(selector.len(), 1, "{selector:?}");
    }
}
