//! What the API server has to be told to call the webhook: a `MutatingWebhookConfiguration`, and a
//! `ValidatingWebhookConfiguration` where profiles validate, each built by a pure function.
//!
//! A configuration has one entry for each [`InjectionLevel`], each with a path, a failure policy and a timeout of its
//! own. Their namespace selectors are disjoint, so that no pod is called for twice, and they stand in one object, so
//! that the trusted certificates of all entries change at once.

use k8s_openapi::ByteString;
use k8s_openapi::api::admissionregistration::v1::{
    MutatingWebhook, MutatingWebhookConfiguration, RuleWithOperations, ServiceReference, ValidatingWebhook,
    ValidatingWebhookConfiguration, WebhookClientConfig,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, LabelSelectorRequirement, ObjectMeta};

use crate::names::{GROUP, INJECT_LABEL, INJECTION_LABEL, InjectionLevel, NAMESPACE_NAME_LABEL, SYSTEM_NAMESPACES};
use crate::profile::{Operation, ProfileSpec, Target};

/// What the configuration depends on.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Name of the configuration. The API server calls webhooks in the order of these names, so it is a contract.
    pub name: String,
    /// Namespace of the release. It is excluded by name: the webhook must be able to start while nobody answers for it.
    pub release_namespace: String,
    /// Name of the Service in front of the replicas.
    pub service_name: String,
    /// Port of the Service.
    pub service_port: u16,
    /// PEM bundle of the certificates that the API server shall trust. Never empty: an empty bundle means the
    /// system's roots to the API server.
    pub ca_bundle: Vec<u8>,
    /// Further namespaces to leave alone, beside the system's and the release's.
    pub excluded_namespaces: Vec<String>,
    /// The levels to have an entry for.
    pub levels: Vec<InjectionLevel>,
    /// How long the API server waits for an answer, in seconds, 1 to 30.
    pub timeout_seconds: i32,
}

impl Settings {
    /// The settings of a release with everything else at its default: entries `enabled` and `required`, three seconds.
    #[must_use]
    pub fn new(release_namespace: impl Into<String>, ca_bundle: impl Into<Vec<u8>>) -> Self {
        Self {
            name: "pillion".to_owned(),
            release_namespace: release_namespace.into(),
            service_name: "pillion".to_owned(),
            service_port: 443,
            ca_bundle: ca_bundle.into(),
            excluded_namespaces: Vec::new(),
            levels: vec![InjectionLevel::Enabled, InjectionLevel::Required],
            timeout_seconds: 3,
        }
    }
}

/// Builds the configuration.
#[must_use]
pub fn mutating(settings: &Settings) -> MutatingWebhookConfiguration {
    MutatingWebhookConfiguration {
        metadata: ObjectMeta { name: Some(settings.name.clone()), ..ObjectMeta::default() },
        webhooks: Some(settings.levels.iter().map(|level| entry(settings, *level)).collect()),
    }
}

fn entry(settings: &Settings, level: InjectionLevel) -> MutatingWebhook {
    MutatingWebhook {
        name: format!("{}.{GROUP}", level.label_value()),
        admission_review_versions: vec!["v1".to_owned(), "v1beta1".to_owned()],
        client_config: client_config(settings, level.path()),
        failure_policy: Some(failure_policy(level).to_owned()),
        match_conditions: None,
        match_policy: Some("Equivalent".to_owned()),
        namespace_selector: Some(namespace_selector(settings, level)),
        object_selector: Some(object_selector(level)),
        reinvocation_policy: Some("IfNeeded".to_owned()),
        rules: Some(vec![RuleWithOperations {
            api_groups: Some(vec![String::new()]),
            api_versions: Some(vec!["v1".to_owned()]),
            operations: Some(vec!["CREATE".to_owned()]),
            resources: Some(vec!["pods".to_owned()]),
            scope: Some("Namespaced".to_owned()),
        }]),
        side_effects: "None".to_owned(),
        timeout_seconds: Some(settings.timeout_seconds),
    }
}

/// Builds the configuration of the validating paths; `None` if there is nothing to validate. `rules` are those of
/// [`validating_rules`].
#[must_use]
pub fn validating(settings: &Settings, rules: &[RuleWithOperations]) -> Option<ValidatingWebhookConfiguration> {
    let entry = |level: &InjectionLevel| validating_entry(settings, *level, rules);
    (!rules.is_empty()).then(|| ValidatingWebhookConfiguration {
        metadata: ObjectMeta { name: Some(settings.name.clone()), ..ObjectMeta::default() },
        webhooks: Some(settings.levels.iter().map(entry).collect()),
    })
}

/// Who opts out is for the profile to say, since it may not let anybody: so there is no selector of objects.
fn validating_entry(settings: &Settings, level: InjectionLevel, rules: &[RuleWithOperations]) -> ValidatingWebhook {
    ValidatingWebhook {
        name: format!("validate-{}.{GROUP}", level.label_value()),
        admission_review_versions: vec!["v1".to_owned(), "v1beta1".to_owned()],
        client_config: client_config(settings, level.validate_path()),
        failure_policy: Some(failure_policy(level).to_owned()),
        match_conditions: None,
        match_policy: Some("Equivalent".to_owned()),
        namespace_selector: Some(namespace_selector(settings, level)),
        object_selector: None,
        rules: Some(rules.to_vec()),
        side_effects: "None".to_owned(),
        timeout_seconds: Some(settings.timeout_seconds),
    }
}

/// The rules for all that these profiles validate: one for each resource and version, with the operations of all profiles
/// together, in an order that does not depend on that of the profiles.
#[must_use]
pub fn validating_rules<'s>(profiles: impl IntoIterator<Item = &'s ProfileSpec>) -> Vec<RuleWithOperations> {
    let validating = profiles.into_iter().filter(|profile| !profile.validations.is_empty());
    let mut targets: Vec<(String, String, String, Vec<&'static str>)> = Vec::new();
    for target in validating.map(|profile| profile.target.clone().unwrap_or_else(Target::pods)) {
        let create = [Operation::Create];
        let named = if target.operations.is_empty() { &create } else { target.operations.as_slice() };
        for resource in &target.resources {
            let key = (&target.group, &target.version, resource);
            let known = targets.iter().position(|(group, version, resource, _)| (group, version, resource) == key);
            let known = known.unwrap_or_else(|| {
                targets.push((target.group.clone(), target.version.clone(), resource.clone(), Vec::new()));
                targets.len() - 1
            });
            if let Some((.., operations)) = targets.get_mut(known) {
                operations.extend(named.iter().map(|operation| operation.as_str()));
                operations.sort_unstable();
                operations.dedup();
            }
        }
    }
    targets.sort();
    let rules = targets.into_iter().map(|(group, version, resource, operations)| RuleWithOperations {
        api_groups: Some(vec![group]),
        api_versions: Some(vec![version]),
        operations: Some(operations.into_iter().map(str::to_owned).collect()),
        resources: Some(vec![resource]),
        scope: Some("Namespaced".to_owned()),
    });
    rules.collect()
}

fn client_config(settings: &Settings, path: &str) -> WebhookClientConfig {
    WebhookClientConfig {
        ca_bundle: Some(ByteString(settings.ca_bundle.clone())),
        service: Some(ServiceReference {
            name: settings.service_name.clone(),
            namespace: settings.release_namespace.clone(),
            path: Some(path.to_owned()),
            port: Some(i32::from(settings.service_port)),
        }),
        url: None,
    }
}

/// `held` namespaces have their failures caught by a scheduling gate, not by a refusal.
const fn failure_policy(level: InjectionLevel) -> &'static str {
    match level {
        InjectionLevel::Enabled | InjectionLevel::Held => "Ignore",
        InjectionLevel::Required => "Fail",
    }
}

fn namespace_selector(settings: &Settings, level: InjectionLevel) -> LabelSelector {
    let excluded = SYSTEM_NAMESPACES
        .into_iter()
        .chain([settings.release_namespace.as_str()])
        .chain(settings.excluded_namespaces.iter().map(String::as_str));
    LabelSelector {
        match_labels: None,
        match_expressions: Some(vec![
            requirement(INJECTION_LABEL, "In", [level.label_value()]),
            requirement(NAMESPACE_NAME_LABEL, "NotIn", excluded),
        ]),
    }
}

/// Where a pod may opt out on its own, the API server does not even call. Elsewhere the profile decides.
fn object_selector(level: InjectionLevel) -> LabelSelector {
    let opt_out = requirement(INJECT_LABEL, "NotIn", ["false"]);
    LabelSelector { match_labels: None, match_expressions: (level == InjectionLevel::Enabled).then(|| vec![opt_out]) }
}

fn requirement<'v>(key: &str, operator: &str, values: impl IntoIterator<Item = &'v str>) -> LabelSelectorRequirement {
    LabelSelectorRequirement {
        key: key.to_owned(),
        operator: operator.to_owned(),
        values: Some(values.into_iter().map(str::to_owned).collect()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn webhooks(levels: &[InjectionLevel]) -> Vec<MutatingWebhook> {
        let settings =
            Settings { levels: levels.to_vec(), ..Settings::new("pillion-system", b"-----BEGIN".as_slice()) };
        mutating(&settings).webhooks.unwrap()
    }

    #[test]
    fn each_level_has_its_path_and_failure_policy() {
        let told: Vec<_> = webhooks(&InjectionLevel::ALL)
            .into_iter()
            .map(|entry| {
                (entry.name, entry.failure_policy.unwrap(), entry.client_config.service.unwrap().path.unwrap())
            })
            .collect();
        let expected = [
            ("enabled.pillion.dev", "Ignore", "/mutate/enabled"),
            ("required.pillion.dev", "Fail", "/mutate/required"),
            ("held.pillion.dev", "Ignore", "/mutate/held"),
        ];
        assert_eq!(told, expected.map(|(n, f, p)| (n.to_owned(), f.to_owned(), p.to_owned())));
    }

    #[test]
    fn system_namespaces_and_the_releases_own_are_excluded_by_name() {
        for entry in webhooks(&InjectionLevel::ALL) {
            let expressions = entry.namespace_selector.unwrap().match_expressions.unwrap();
            let excluded = expressions.iter().find(|e| e.key == NAMESPACE_NAME_LABEL).unwrap();
            assert_eq!(excluded.operator, "NotIn");
            let expected = ["kube-system", "kube-public", "kube-node-lease", "pillion-system"];
            assert_eq!(excluded.values.as_deref().unwrap(), expected);
        }
    }

    #[test]
    fn only_enabled_namespaces_opt_out_before_the_call() {
        for (entry, level) in webhooks(&InjectionLevel::ALL).into_iter().zip(InjectionLevel::ALL) {
            let opts_out = entry.object_selector.unwrap().match_expressions.is_some();
            assert_eq!(opts_out, level == InjectionLevel::Enabled, "{level:?}");
        }
    }

    fn spec(target: serde_json::Value, validates: bool) -> ProfileSpec {
        let mut spec = serde_json::json!({"template": {"metadata": {}}});
        if !target.is_null() {
            spec["target"] = target;
        }
        if validates {
            spec["validations"] = serde_json::json!([{"expression": "true"}]);
        }
        serde_json::from_value(spec).unwrap()
    }

    #[test]
    fn validations_are_called_for_by_their_targets_and_nothing_else() {
        use serde_json::{Value, json};
        let settings = Settings {
            levels: InjectionLevel::ALL.to_vec(),
            ..Settings::new("pillion-system", b"-----BEGIN".as_slice())
        };
        assert_eq!(validating(&settings, &validating_rules([&spec(Value::Null, false)])), None);
        let both =
            json!({"version": "v1", "resources": ["pods", "pods/ephemeralcontainers"], "operations": ["UPDATE"]});
        let games = json!({"group": "agones.dev", "version": "v1", "resources": ["gameservers"]});
        let profiles = [spec(games, true), spec(both, true), spec(Value::Null, true)];
        let rules = validating_rules(&profiles);
        let told: Vec<_> = rules
            .iter()
            .map(|rule| (rule.resources.clone().unwrap().join(","), rule.operations.clone().unwrap().join(",")))
            .collect();
        let expected = [("pods", "CREATE,UPDATE"), ("pods/ephemeralcontainers", "UPDATE"), ("gameservers", "CREATE")];
        assert_eq!(told, expected.map(|(resource, operations)| (resource.to_owned(), operations.to_owned())));
        assert_eq!(rules, validating_rules(profiles.iter().rev()));
        for (entry, level) in
            validating(&settings, &rules).unwrap().webhooks.unwrap().into_iter().zip(InjectionLevel::ALL)
        {
            assert_eq!(entry.client_config.service.unwrap().path.as_deref(), Some(level.validate_path()));
            assert_eq!(entry.failure_policy.as_deref(), Some(failure_policy(level)));
            assert_eq!(entry.object_selector, None, "an opt-out is for the profile to allow");
        }
    }

    #[test]
    fn the_rule_is_pod_creation_and_nothing_else() {
        for entry in webhooks(&InjectionLevel::ALL) {
            let [rule] = entry.rules.unwrap().try_into().unwrap();
            assert_eq!(rule.resources.unwrap(), ["pods"]);
            assert_eq!(rule.operations.unwrap(), ["CREATE"]);
            assert_eq!(entry.side_effects, "None");
            assert_eq!(entry.reinvocation_policy.as_deref(), Some("IfNeeded"));
        }
    }
}
