//! Computes the desired configurations from settings, rules, bundle and epoch. Also compares them with the observed
//! configurations, for logs and metrics, and to decide whether to write.

use std::collections::BTreeSet;
use std::fmt;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::admissionregistration::v1::{
    MutatingWebhook, MutatingWebhookConfiguration, RuleWithOperations, ValidatingWebhookConfiguration,
    WebhookClientConfig,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, ObjectMeta};
use pillion_api::names::FailureMode;
use pillion_api::profile::Operation;
use pillion_api::webhook_configuration::{self, OwnCalls, Validated, mutating_rules, rules_of, validated_of};
use pillion_engine::snapshot::ProfileSet;

use super::live::{
    Bundle, ConfigurationKind, ConfigurationView, Live, annotation, entry_manager, epoch, field_manager, written,
};
use super::{EPOCH_ANNOTATION, MANAGED_BY, RELEASE_ANNOTATION, WRITTEN_ANNOTATION};
use crate::release::Release;

/// Maximum number of calls for the validations of namespaced profiles. One operation on one resource in one namespace
/// counts as a call. The configuration lists the namespaces once for each failure mode and opt-in label, and etcd
/// limits an object to 1.5 MB.
pub const MAXIMUM_OWN_CALLS: usize = 1_000;

/// The requests for which the API server calls the webhooks.
#[derive(Clone, Debug, PartialEq)]
pub struct Rules {
    /// Rules of the mutating webhooks. Those from [`Rules::of`] always include the creation of pods.
    pub mutating: Vec<RuleWithOperations>,
    /// Rules of the validating webhooks.
    pub validated: Validated,
    /// Namespaces with calls beyond [`MAXIMUM_OWN_CALLS`]. The API server does not make these calls, so the namespaces'
    /// own profiles do not validate them.
    pub omitted_namespaces: BTreeSet<String>,
}

impl Default for Rules {
    fn default() -> Self {
        Self::of(&ProfileSet::default())
    }
}

impl Rules {
    /// Collects the targets of these profiles, in all their active revisions. During a rollout, the promoted revision
    /// is active too. The profiles are compiled, so their targets are valid.
    ///
    /// Namespaced profiles mutate only pods, and the creation of pods always calls the mutating webhooks. Their
    /// validations may need calls that no cluster profile needs. The API server makes these calls only for the
    /// profiles' own namespaces. The rules contain up to [`MAXIMUM_OWN_CALLS`] of them, in the order of the namespaces'
    /// names.
    #[must_use]
    pub fn of(profiles: &ProfileSet) -> Self {
        let (cluster, own): (Vec<_>, Vec<_>) = profiles.active().partition(|one| one.name().namespace.is_none());
        let injecting = cluster.iter().filter(|profile| profile.injects());
        let validating = cluster.iter().filter(|profile| profile.validates());
        let everywhere = rules_of(validating.map(|profile| profile.target()));
        let mut asked = BTreeSet::new();
        for profile in own.into_iter().filter(|profile| profile.validates()) {
            let target = profile.target();
            for resource in &target.resources {
                for operation in target.operations.iter().filter(|one| !has_pods_call(&everywhere, resource, **one)) {
                    let namespace = profile.name().namespace.as_deref().unwrap_or_default();
                    asked.insert((namespace, resource.clone(), *operation));
                }
            }
        }
        let (mut own, mut omitted_namespaces) = (OwnCalls::new(), BTreeSet::new());
        for (number, (namespace, resource, operation)) in asked.into_iter().enumerate() {
            let namespaces = if number < MAXIMUM_OWN_CALLS {
                own.entry((resource, operation)).or_default()
            } else {
                &mut omitted_namespaces
            };
            namespaces.insert(namespace.to_owned());
        }
        let mutating = mutating_rules(injecting.map(|profile| profile.target()));
        Self { mutating, validated: Validated { everywhere, own }, omitted_namespaces }
    }

    /// Returns the rules of the observed configurations. A controller that has not read the profiles yet must not
    /// change them.
    #[must_use]
    pub(crate) fn of_live(live: &Live) -> Self {
        let mutating = live.mutating.iter().flat_map(|mutating| mutating.webhooks.iter().flatten());
        let mut mutating = mutating.filter(|entry| calls_failure_mode_path(&entry.client_config));
        Self {
            mutating: mutating.find_map(|entry| entry.rules.clone()).unwrap_or_else(|| Self::default().mutating),
            validated: live.validating.as_ref().map(validated_of).unwrap_or_default(),
            omitted_namespaces: BTreeSet::new(),
        }
    }
}

/// Whether `rules` include this operation on `resource`, which is `pods` or a subresource of pods.
fn has_pods_call(rules: &[RuleWithOperations], resource: &str, operation: Operation) -> bool {
    let has = |list: &Option<Vec<String>>, value: &str| list.iter().flatten().any(|one| one == value);
    rules.iter().any(|rule| {
        has(&rule.api_groups, "") && has(&rule.resources, resource) && has(&rule.operations, operation.as_str())
    })
}

/// Whether the entry calls the URL path of a failure mode.
fn calls_failure_mode_path(config: &WebhookClientConfig) -> bool {
    let called = config.service.as_ref().and_then(|service| service.path.as_deref());
    FailureMode::ALL.into_iter().any(|failure_mode| called == Some(failure_mode.path()))
}

/// Everything that determines the configurations.
#[derive(Clone, Debug, PartialEq)]
pub struct Target {
    /// The settings, with the CA bundle.
    pub settings: webhook_configuration::Settings,
    /// The requests for which the API server calls the webhooks.
    pub rules: Rules,
    /// The epoch of the rotation's record.
    pub epoch: u64,
}

/// Both configurations in their desired state. `validating` is `None` if it would have no entries.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Desired {
    pub(super) mutating: MutatingWebhookConfiguration,
    pub(super) validating: Option<ValidatingWebhookConfiguration>,
}

/// Returns the default settings of a release, without a CA bundle.
#[must_use]
pub fn settings_of(release: &Release) -> webhook_configuration::Settings {
    webhook_configuration::Settings {
        name: release.configuration().to_owned(),
        service_name: release.service().to_owned(),
        ..webhook_configuration::Settings::new(release.namespace(), Vec::new())
    }
}

impl Target {
    /// Creates a target from the settings and rules, with this CA bundle and epoch.
    #[must_use]
    pub fn new(settings: webhook_configuration::Settings, rules: Rules, ca_bundle: Vec<u8>, epoch: u64) -> Self {
        Self {
            settings: webhook_configuration::Settings { ca_bundle, trust_probe_epoch: epoch, ..settings },
            rules,
            epoch,
        }
    }

    /// Whether the bundle has certificates and nothing else. With an empty bundle, the API server would trust the
    /// system's CAs.
    #[must_use]
    pub(crate) fn has_cas(&self) -> bool {
        Bundle::read(&self.settings.ca_bundle).clean
    }

    pub(super) fn desired(&self, release: &Release, written: Timestamp) -> Desired {
        let mut mutating = webhook_configuration::mutating_with(&self.settings, &self.rules.mutating);
        mark(&mut mutating.metadata, release, self.epoch, Some(written));
        let validating = webhook_configuration::validating(&self.settings, &self.rules.validated);
        let validating = validating.map(|mut validating| {
            mark(&mut validating.metadata, release, self.epoch, Some(written));
            validating
        });
        Desired { mutating, validating }
    }
}

/// Sets Pillion's label and its annotations for the release, the epoch and, if given, the time of the write. Labels and
/// annotations of other clients are kept.
pub(super) fn mark(metadata: &mut ObjectMeta, release: &Release, epoch: u64, written: Option<Timestamp>) {
    let annotations = metadata.annotations.get_or_insert_default();
    annotations.insert(EPOCH_ANNOTATION.to_owned(), epoch.to_string());
    annotations.insert(RELEASE_ANNOTATION.to_owned(), owner(release));
    annotations.extend(written.map(|written| (WRITTEN_ANNOTATION.to_owned(), written.to_string())));
    metadata.labels.get_or_insert_default().insert(MANAGED_BY.0.to_owned(), MANAGED_BY.1.to_owned());
}

/// Returns the value of [`RELEASE_ANNOTATION`] for a release.
pub(super) fn owner(release: &Release) -> String {
    format!("{}/{}", release.namespace(), release.name())
}

/// How far the annotated time of the last write may be ahead of the controller's clock.
const MAX_CLOCK_DIFFERENCE: Duration = Duration::from_mins(1);

pillion_api::labelled! {
    /// A kind of difference.
    #[derive(PartialOrd, Ord, Hash)]
    pub enum DriftKind {
        /// The whole configuration is missing.
        Missing => "missing",
        /// The configuration exists, although it should have no entries.
        Unwanted => "unexpected",
        /// An entry is missing.
        EntryMissing => "entry_missing",
        /// There is an unknown entry.
        EntryExtra => "entry_extra",
        /// The entries are in a different order, or one is duplicated.
        EntryOrder => "entry_order",
        /// An entry has no bundle, so the API server would trust the system's CAs.
        CaBundleEmpty => "ca_bundle_empty",
        /// An entry's bundle has something besides certificates.
        CaBundleJunk => "ca_bundle_invalid",
        /// An entry's bundle lacks a CA.
        CaBundleLacking => "ca_bundle_incomplete",
        /// An entry's bundle has a CA that must not be trusted.
        CaBundleForeign => "ca_bundle_foreign",
        /// An entry's bundle has the right CAs in a different order or encoding.
        CaBundleOrder => "ca_bundle_order",
        /// The service, its path or the URL differs.
        Service => "service",
        /// The namespace selector or the object selector differs.
        Selector => "selector",
        /// The failure policy or another setting of the call differs.
        Policy => "policy",
        /// The timeout differs.
        Timeout => "timeout",
        /// The rules differ.
        Rules => "rules",
        /// Pillion's own labels or annotations differ.
        Marks => "metadata",
    }
}

/// A difference between the observed and the desired configurations.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Drift {
    /// The configuration that differs.
    pub configuration: ConfigurationKind,
    /// The name of the entry, if the difference is in an entry.
    pub entry: Option<String>,
    /// The kind of the difference.
    pub kind: DriftKind,
    /// The field manager that wrote the differing value, if known. The name is for messages only, since a client
    /// chooses its own name.
    pub manager: Option<String>,
}

impl fmt::Display for Drift {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.kind.as_str())?;
        self.entry.iter().try_for_each(|entry| write!(formatter, "({entry})"))
    }
}

/// Returns the differences between the observed and the desired state, at most one of each kind for an entry. If there
/// are none, nothing has to be written.
#[must_use]
pub(super) fn differences(live: &Live, desired: &Desired, now: Timestamp) -> Vec<Drift> {
    let mutating = live.mutating.as_ref().map(ConfigurationView::mutating);
    let validating = live.validating.as_ref().map(ConfigurationView::validating);
    let wanted = desired.validating.as_ref().map(ConfigurationView::validating);
    let mut drifts = between(mutating, Some(ConfigurationView::mutating(&desired.mutating)), now);
    drifts.extend(between(validating, wanted, now));
    drifts
}

fn between(live: Option<ConfigurationView<'_>>, desired: Option<ConfigurationView<'_>>, now: Timestamp) -> Vec<Drift> {
    let whole = |configuration, kind, manager| vec![Drift { configuration, entry: None, kind, manager }];
    let (live, desired) = match (live, desired) {
        (None, None) => return Vec::new(),
        (None, Some(desired)) => return whole(desired.kind, DriftKind::Missing, None),
        (Some(live), None) => {
            return whole(live.kind, DriftKind::Unwanted, field_manager(live.metadata, &["f:webhooks"]));
        }
        (Some(live), Some(desired)) => (live, desired),
    };
    let configuration = live.kind;
    let mut drifts = Vec::new();
    if has_other_metadata(live.metadata, desired.metadata, now) {
        let manager = field_manager(live.metadata, &["f:metadata", "f:annotations"]);
        drifts.push(Drift { configuration, entry: None, kind: DriftKind::Marks, manager });
    }
    let mut report = |name: &str, kind, path: &[&str]| {
        let manager = entry_manager(live.metadata, name, path);
        drifts.push(Drift { configuration, entry: Some(name.to_owned()), kind, manager });
    };
    let find = |entries: &[MutatingWebhook], name: &str| entries.iter().position(|entry| entry.name == name);
    for wanted in &desired.entries {
        match live.entries.iter().find(|entry| entry.name == wanted.name) {
            None => report(&wanted.name, DriftKind::EntryMissing, &[]),
            Some(entry) => compare(entry, wanted, &mut |kind, path| report(&wanted.name, kind, path)),
        }
    }
    for extra in live.entries.iter().filter(|entry| find(&desired.entries, &entry.name).is_none()) {
        report(&extra.name, DriftKind::EntryExtra, &[]);
    }
    let names = |view: &ConfigurationView<'_>| view.entries.iter().map(|entry| entry.name.clone()).collect::<Vec<_>>();
    let is_known = |name: &String| find(&desired.entries, name).is_some();
    let there: Vec<_> = names(&live).into_iter().filter(is_known).collect();
    let wanted: Vec<_> = names(&desired).into_iter().filter(|name| there.contains(name)).collect();
    if there != wanted {
        let manager = field_manager(live.metadata, &["f:webhooks"]);
        drifts.push(Drift { configuration, entry: None, kind: DriftKind::EntryOrder, manager });
    }
    drifts
}

/// Whether Pillion's own labels or annotations differ. The time of the last write is a difference only if it is
/// missing, or ahead of the clock by more than [`MAX_CLOCK_DIFFERENCE`].
fn has_other_metadata(live: &ObjectMeta, desired: &ObjectMeta, now: Timestamp) -> bool {
    let differs = |key| annotation(live, key) != annotation(desired, key);
    let is_ahead =
        |written: Timestamp| written.duration_since(now).unsigned_abs() > MAX_CLOCK_DIFFERENCE && written > now;
    let labels = desired.labels.iter().flatten();
    epoch(live) != epoch(desired)
        || differs(RELEASE_ANNOTATION)
        || written(live).is_none_or(is_ahead)
        || labels.into_iter().any(|(key, value)| live.labels.as_ref().and_then(|labels| labels.get(key)) != Some(value))
}

fn compare(live: &MutatingWebhook, desired: &MutatingWebhook, report: &mut impl FnMut(DriftKind, &[&str])) {
    compare_bundles(live, desired, report);
    let service = |entry: &MutatingWebhook| (entry.client_config.service.clone(), entry.client_config.url.clone());
    if service(live) != service(desired) {
        report(DriftKind::Service, &["f:clientConfig", "f:service"]);
    }
    if selector(live.namespace_selector.as_ref()) != selector(desired.namespace_selector.as_ref()) {
        report(DriftKind::Selector, &["f:namespaceSelector"]);
    } else if selector(live.object_selector.as_ref()) != selector(desired.object_selector.as_ref()) {
        report(DriftKind::Selector, &["f:objectSelector"]);
    }
    if live.timeout_seconds != desired.timeout_seconds {
        report(DriftKind::Timeout, &["f:timeoutSeconds"]);
    }
    if live.rules != desired.rules {
        report(DriftKind::Rules, &["f:rules"]);
    }
    let conditions = live.match_conditions.as_ref().is_some_and(|conditions| !conditions.is_empty());
    let other_policy = [
        (live.failure_policy != desired.failure_policy, "f:failurePolicy"),
        (conditions, "f:matchConditions"),
        (live.match_policy != desired.match_policy, "f:matchPolicy"),
        (live.reinvocation_policy != desired.reinvocation_policy, "f:reinvocationPolicy"),
        (live.side_effects != desired.side_effects, "f:sideEffects"),
        (live.admission_review_versions != desired.admission_review_versions, "f:admissionReviewVersions"),
    ];
    if let Some((_, field)) = other_policy.into_iter().find(|(differs, _)| *differs) {
        report(DriftKind::Policy, &[field]);
    }
}

fn compare_bundles(live: &MutatingWebhook, desired: &MutatingWebhook, report: &mut impl FnMut(DriftKind, &[&str])) {
    let bytes = |entry: &MutatingWebhook| entry.client_config.ca_bundle.clone().unwrap_or_default().0;
    let (there, wanted) = (bytes(live), bytes(desired));
    if there == wanted {
        return;
    }
    let mut bundle = |kind| report(kind, &["f:clientConfig", "f:caBundle"]);
    if there.trim_ascii().is_empty() {
        return bundle(DriftKind::CaBundleEmpty);
    }
    let (there, wanted) = (Bundle::read(&there), Bundle::read(&wanted));
    let (lacks, has_more) = (!there.set().is_superset(&wanted.set()), !wanted.set().is_superset(&there.set()));
    let differences = [
        (!there.clean, DriftKind::CaBundleJunk),
        (lacks, DriftKind::CaBundleLacking),
        (has_more, DriftKind::CaBundleForeign),
        (there.clean && !lacks && !has_more, DriftKind::CaBundleOrder),
    ];
    differences.into_iter().filter(|(differs, _)| *differs).for_each(|(_, kind)| bundle(kind));
}

/// Normalizes a selector: an empty selector and a missing one have the same meaning.
fn selector(selector: Option<&LabelSelector>) -> LabelSelector {
    let mut selector = selector.cloned().unwrap_or_default();
    selector.match_labels = selector.match_labels.filter(|labels| !labels.is_empty());
    selector.match_expressions = selector.match_expressions.filter(|expressions| !expressions.is_empty());
    for requirement in selector.match_expressions.iter_mut().flatten() {
        requirement.values = requirement.values.take().filter(|values| !values.is_empty());
    }
    selector
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use pillion_engine::profile::{ProfileName, compile};
    use pillion_engine::snapshot::{Served, Stage};
    use serde_json::json;

    use super::*;

    #[test]
    fn rules_include_targets_of_promoted_revision() {
        let profile = |spec: serde_json::Value| {
            Arc::new(compile(&ProfileName::cluster("a"), &serde_json::from_value(spec).unwrap()).unwrap())
        };
        let template = json!({"metadata": {"labels": {"a": "b"}}});
        let jobs = json!({"group": "batch", "version": "v1", "resources": ["jobs"]});
        let promoted = profile(json!({
            "target": jobs, "template": template, "validations": [{"expression": "true"}],
        }));
        let newest = profile(json!({"template": template}));
        let stage = Stage { promoted: Some(promoted), percent: 10, namespaces: None };
        let served = Served { stage: Some(stage), ..Served::from(newest) };
        let rules = Rules::of(&ProfileSet::serving(&ProfileSet::default(), [served]));
        let resources = |rules: &[RuleWithOperations]| -> Vec<String> {
            rules.iter().flat_map(|rule| rule.resources.clone().unwrap()).collect()
        };
        assert_eq!(resources(&rules.mutating), ["pods", "jobs"]);
        assert_eq!(resources(&rules.validated.everywhere), ["jobs"]);
    }
}
