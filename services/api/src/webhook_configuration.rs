//! Builds the webhook configurations with pure functions: the `MutatingWebhookConfiguration`, and the
//! `ValidatingWebhookConfiguration` if it has entries.
//!
//! A configuration has one entry for each [`FailureMode`] and each opt-in label that can set it. The failure mode
//! determines the path, failure policy and timeout of the entry. The namespace selectors do not overlap, so the API
//! server calls only one entry for each pod. All entries of a configuration are in one object, so that their CA bundles
//! change together.
//!
//! The validating configuration may have more entries for each failure mode. One is for deletions. Its failure policy
//! is `Ignore`, so unavailable replicas never block a deletion. There is also one for each resource and operation that
//! only namespaced profiles validate. It is limited to their namespaces, so a tenant cannot change which requests of
//! other namespaces are validated.
//!
//! Two entries are for Pillion itself. The API server calls `trust-probe.pillion.dev` for objects that prove which CA
//! the API server trusts, and `profiles.pillion.dev` for profiles, so that Pillion can warn authors of errors.

mod read;
mod rules;
#[cfg(test)]
mod tests;

use k8s_openapi::ByteString;
use k8s_openapi::api::admissionregistration::v1::{
    MutatingWebhook, MutatingWebhookConfiguration, RuleWithOperations, ServiceReference, ValidatingWebhook,
    ValidatingWebhookConfiguration, WebhookClientConfig,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, ObjectMeta};

use crate::held::{not_excluded, requirement};
use crate::names::{FailureMode, GROUP, INJECT_LABEL, NAMESPACE_NAME_LABEL, VALIDATE_PROFILES_PATH, VERSION};
use crate::opt_in::{OptIn, OptInLabel};
use crate::trust_probe;
use rules::Scope;

pub use read::{opt_in_of, validated_of};
pub use rules::{OwnCalls, Validated, mutating_rules, rules_of, validating_rules};

/// The name of the entry for profiles.
const PROFILES_ENTRY: &str = "profiles.pillion.dev";
/// The timeout of the entry for trust probes, in seconds.
const TRUST_PROBE_TIMEOUT: i32 = 5;

/// The settings of the webhook configurations.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// The name of the configuration. The API server calls the webhooks of configurations in the order of their names,
    /// so the name must not change.
    pub name: String,
    /// The namespace of the release. It is excluded by name, because replicas must be able to start while no other
    /// replica is ready.
    pub release_namespace: String,
    /// The name of the Service for the replicas.
    pub service_name: String,
    /// The port of the Service.
    pub service_port: u16,
    /// The PEM bundle of the CA certificates that the API server must trust. It must not be empty, because with an
    /// empty bundle the API server would trust the system's root certificates.
    pub ca_bundle: Vec<u8>,
    /// Further excluded namespaces, in addition to the system namespaces and that of the release.
    pub excluded_namespaces: Vec<String>,
    /// The failure modes that have entries.
    pub failure_modes: Vec<FailureMode>,
    /// The labels with which namespaces opt in.
    pub opt_in: OptIn,
    /// The timeouts of the API server's calls.
    pub timeouts: Timeouts,
    /// Whether there is an entry for trust probes.
    pub trust_probe: bool,
    /// The epoch in the path of the entry for trust probes.
    pub trust_probe_epoch: u64,
    /// Whether there is an entry for profiles.
    pub validates_profiles: bool,
    /// Whether the connectivity check is pending. It is needed because endpoints may be ready before every node has a
    /// route to them. Until it succeeds, failed calls do not reject requests, and the entry for trust probes calls the
    /// replicas, which respond with [`REACHED`](trust_probe::REACHED).
    pub checks_connectivity: bool,
}

/// The timeouts of the API server's calls, from 1 to 30 seconds. All webhooks of a request share the time limit of the
/// request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timeouts {
    /// The timeout in `enabled` namespaces. If it expires, the pod is created without injection.
    pub enabled: i32,
    /// The timeout in `required` namespaces. If it expires, the pod is rejected.
    pub required: i32,
    /// The timeout in `held` namespaces. If it expires, the pod waits.
    pub held: i32,
}

impl Default for Timeouts {
    /// Returns three seconds for each failure mode.
    fn default() -> Self {
        Self { enabled: 3, required: 3, held: 3 }
    }
}

impl Timeouts {
    /// Returns the timeout for a failure mode in seconds, clamped to the API server's range.
    #[must_use]
    pub fn of(self, failure_mode: FailureMode) -> i32 {
        let seconds = match failure_mode {
            FailureMode::Enabled => self.enabled,
            FailureMode::Required => self.required,
            FailureMode::Held => self.held,
        };
        seconds.clamp(1, 30)
    }
}

impl Settings {
    /// Creates the settings for a release with defaults: entries for `enabled` and `required`, and timeouts of three
    /// seconds.
    #[must_use]
    pub fn new(release_namespace: impl Into<String>, ca_bundle: impl Into<Vec<u8>>) -> Self {
        Self {
            name: "pillion".to_owned(),
            release_namespace: release_namespace.into(),
            service_name: "pillion".to_owned(),
            service_port: 443,
            ca_bundle: ca_bundle.into(),
            excluded_namespaces: Vec::new(),
            failure_modes: vec![FailureMode::Enabled, FailureMode::Required],
            opt_in: OptIn::default(),
            timeouts: Timeouts::default(),
            trust_probe: false,
            trust_probe_epoch: 0,
            validates_profiles: false,
            checks_connectivity: false,
        }
    }

    /// Returns the failure mode, the index of the label, and the label for each entry. A failure mode has one entry for
    /// each label that has values for it.
    fn entries(&self) -> impl Iterator<Item = (FailureMode, usize, &OptInLabel)> {
        let labels = || self.opt_in.labels().iter().enumerate();
        let entries = self
            .failure_modes
            .iter()
            .flat_map(move |failure_mode| labels().map(|(index, label)| (*failure_mode, index, label)));
        entries.filter(|(failure_mode, _, label)| label.values_of(*failure_mode).next().is_some())
    }
}

/// Builds the mutating configuration whose entries for failure modes match only the creation of pods.
#[must_use]
pub fn mutating(settings: &Settings) -> MutatingWebhookConfiguration {
    mutating_with(settings, &mutating_rules([]))
}

/// Builds the mutating configuration with the `rules` from [`mutating_rules`].
#[must_use]
pub fn mutating_with(settings: &Settings, rules: &[RuleWithOperations]) -> MutatingWebhookConfiguration {
    let entry = |(failure_mode, index, label)| mutating_entry(settings, failure_mode, index, label, rules);
    let entries = settings.entries().map(entry).chain(settings.trust_probe.then(|| trust_probe_entry(settings)));
    MutatingWebhookConfiguration {
        metadata: ObjectMeta { name: Some(settings.name.clone()), ..ObjectMeta::default() },
        webhooks: Some(entries.collect()),
    }
}

/// Whether a configuration is that of the [connectivity check](Settings::checks_connectivity): its entry for trust
/// probes calls the given Service.
#[must_use]
pub fn is_connectivity_check(configuration: &MutatingWebhookConfiguration, service_name: &str) -> bool {
    let called = |entry: &MutatingWebhook| entry.client_config.service.as_ref().map(|service| service.name.clone());
    let mut trust_probes = configuration.webhooks.iter().flatten().filter(|entry| entry.name == trust_probe::WEBHOOK);
    trust_probes.any(|entry| called(entry).as_deref() == Some(service_name))
}

fn mutating_entry(
    settings: &Settings,
    failure_mode: FailureMode,
    index: usize,
    label: &OptInLabel,
    rules: &[RuleWithOperations],
) -> MutatingWebhook {
    MutatingWebhook {
        name: format!("{}.{}", failure_mode.label_value(), label.webhook_suffix()),
        admission_review_versions: review_versions(),
        client_config: client_config(settings, &settings.service_name, failure_mode.path()),
        failure_policy: Some(failure_policy(settings, failure_mode).to_owned()),
        match_conditions: None,
        match_policy: Some("Equivalent".to_owned()),
        namespace_selector: Some(namespace_selector(settings, failure_mode, index, label)),
        object_selector: Some(object_selector(failure_mode)),
        reinvocation_policy: Some("IfNeeded".to_owned()),
        rules: Some(rules.to_vec()),
        side_effects: "None".to_owned(),
        timeout_seconds: Some(settings.timeouts.of(failure_mode)),
    }
}

/// Builds the entry for trust probes. Its failure policy is `Fail`, so that the dry run fails if the API server does
/// not trust the CA.
fn trust_probe_entry(settings: &Settings) -> MutatingWebhook {
    let path = trust_probe::path(trust_probe::PATH, settings.trust_probe_epoch);
    let trust_probe_service = format!("{}-trust-probe", settings.service_name);
    let service = if settings.checks_connectivity { &settings.service_name } else { &trust_probe_service };
    MutatingWebhook {
        name: trust_probe::WEBHOOK.to_owned(),
        admission_review_versions: review_versions(),
        client_config: client_config(settings, service, &path),
        failure_policy: Some("Fail".to_owned()),
        match_conditions: None,
        match_policy: Some("Equivalent".to_owned()),
        namespace_selector: Some(LabelSelector::default()),
        object_selector: Some(LabelSelector::default()),
        reinvocation_policy: Some("Never".to_owned()),
        rules: Some(vec![rules::rule(GROUP, VERSION, &[trust_probe::PLURAL], &["CREATE"], "Cluster")]),
        side_effects: "None".to_owned(),
        timeout_seconds: Some(TRUST_PROBE_TIMEOUT),
    }
}

/// Builds the entry for trust probes in the validating configuration. An API server may receive the two configurations
/// at different times, so each of them has such an entry.
fn validating_trust_probe_entry(settings: &Settings) -> ValidatingWebhook {
    let mutating = trust_probe_entry(settings);
    let trust_probe_service = format!("{}-trust-probe", settings.service_name);
    let path = trust_probe::path(trust_probe::VALIDATE_PATH, settings.trust_probe_epoch);
    ValidatingWebhook {
        name: mutating.name,
        admission_review_versions: mutating.admission_review_versions,
        client_config: client_config(settings, &trust_probe_service, &path),
        failure_policy: mutating.failure_policy,
        match_conditions: mutating.match_conditions,
        match_policy: mutating.match_policy,
        namespace_selector: mutating.namespace_selector,
        object_selector: mutating.object_selector,
        rules: mutating.rules,
        side_effects: mutating.side_effects,
        timeout_seconds: mutating.timeout_seconds,
    }
}

/// Builds the validating configuration. `None` if it would have no entries.
#[must_use]
pub fn validating(settings: &Settings, validated: &Validated) -> Option<ValidatingWebhookConfiguration> {
    let scopes = rules::scopes(validated);
    let entries_of = |entry| scopes.iter().map(move |scope| validating_entry(settings, entry, scope));
    let mut entries: Vec<_> = settings.entries().flat_map(entries_of).collect();
    entries.extend(settings.validates_profiles.then(|| profiles_entry(settings)));
    entries.extend(settings.trust_probe.then(|| validating_trust_probe_entry(settings)));
    (!entries.is_empty()).then(|| ValidatingWebhookConfiguration {
        metadata: ObjectMeta { name: Some(settings.name.clone()), ..ObjectMeta::default() },
        webhooks: Some(entries),
    })
}

/// Builds the validating entry for a scope, a failure mode and an opt-in label. It does not exclude objects by their
/// labels, because each profile determines whether authors can opt out.
fn validating_entry(
    settings: &Settings,
    (failure_mode, index, label): (FailureMode, usize, &OptInLabel),
    scope: &Scope<'_>,
) -> ValidatingWebhook {
    let mut selector = namespace_selector(settings, failure_mode, index, label);
    if let Some(namespaces) = scope.namespaces {
        let named = requirement(NAMESPACE_NAME_LABEL, "In", namespaces.iter().map(String::as_str));
        selector.match_expressions.get_or_insert_default().push(named);
    }
    let failure_policy = if scope.deletes { "Ignore" } else { failure_policy(settings, failure_mode) };
    ValidatingWebhook {
        name: format!("validate-{}{}.{}", failure_mode.label_value(), scope.suffix, label.webhook_suffix()),
        admission_review_versions: review_versions(),
        client_config: client_config(settings, &settings.service_name, failure_mode.validate_path()),
        failure_policy: Some(failure_policy.to_owned()),
        match_conditions: None,
        match_policy: Some("Equivalent".to_owned()),
        namespace_selector: Some(selector),
        object_selector: Some(LabelSelector::default()),
        rules: Some(scope.rules.clone()),
        side_effects: "None".to_owned(),
        timeout_seconds: Some(settings.timeouts.of(failure_mode)),
    }
}

/// Builds the entry for profiles. It only returns warnings, because users must be able to store profiles while no
/// replica is ready.
fn profiles_entry(settings: &Settings) -> ValidatingWebhook {
    let kinds = ["clusterinjectionprofiles", "injectionprofiles"];
    ValidatingWebhook {
        name: PROFILES_ENTRY.to_owned(),
        admission_review_versions: review_versions(),
        client_config: client_config(settings, &settings.service_name, VALIDATE_PROFILES_PATH),
        failure_policy: Some("Ignore".to_owned()),
        match_conditions: None,
        match_policy: Some("Equivalent".to_owned()),
        namespace_selector: Some(LabelSelector::default()),
        object_selector: Some(LabelSelector::default()),
        rules: Some(vec![rules::rule(GROUP, VERSION, &kinds, &["CREATE", "UPDATE"], "*")]),
        side_effects: "None".to_owned(),
        timeout_seconds: Some(settings.timeouts.of(FailureMode::Enabled)),
    }
}

fn review_versions() -> Vec<String> {
    vec!["v1".to_owned(), "v1beta1".to_owned()]
}

fn client_config(settings: &Settings, service: &str, path: &str) -> WebhookClientConfig {
    WebhookClientConfig {
        ca_bundle: Some(ByteString(settings.ca_bundle.clone())),
        service: Some(ServiceReference {
            name: service.to_owned(),
            namespace: settings.release_namespace.clone(),
            path: Some(path.to_owned()),
            port: Some(i32::from(settings.service_port)),
        }),
        url: None,
    }
}

/// Returns the failure policy for a failure mode. In `held` namespaces, failed calls are ignored, because the
/// scheduling gate makes the pod wait. During the connectivity check, failed calls are ignored in all namespaces.
const fn failure_policy(settings: &Settings, failure_mode: FailureMode) -> &'static str {
    match failure_mode {
        _ if settings.checks_connectivity => "Ignore",
        FailureMode::Enabled | FailureMode::Held => "Ignore",
        FailureMode::Required => "Fail",
    }
}

/// Selects namespaces with a value of the label that sets this failure mode, and without labels of higher precedence.
/// Excluded namespaces are not selected.
fn namespace_selector(
    settings: &Settings,
    failure_mode: FailureMode,
    index: usize,
    label: &OptInLabel,
) -> LabelSelector {
    let opted_in = requirement(&label.key, "In", label.values_of(failure_mode));
    let earlier = settings.opt_in.labels().iter().take(index);
    let earlier = earlier.map(|label| requirement(&label.key, "DoesNotExist", []));
    let excluded = not_excluded(&settings.release_namespace, &settings.excluded_namespaces);
    LabelSelector {
        match_labels: None,
        match_expressions: Some([opted_in].into_iter().chain(earlier).chain([excluded]).collect()),
    }
}

/// Returns the object selector. In `enabled` namespaces, pods can always opt out, so the API server does not call
/// Pillion for pods that do. In other namespaces, the profile determines whether pods can opt out.
fn object_selector(failure_mode: FailureMode) -> LabelSelector {
    let opt_out = requirement(INJECT_LABEL, "NotIn", ["false"]);
    LabelSelector {
        match_labels: None,
        match_expressions: (failure_mode == FailureMode::Enabled).then(|| vec![opt_out]),
    }
}
