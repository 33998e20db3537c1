//! The desired configurations: a pure function of settings, rules, bundle and epoch.

use std::collections::BTreeSet;

use jiff::Timestamp;
use k8s_openapi::api::admissionregistration::v1::{
    MutatingWebhookConfiguration, RuleWithOperations, ValidatingWebhookConfiguration, WebhookClientConfig,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use pillion_api::names::InjectionLevel;
use pillion_api::profile::Operation;
use pillion_api::webhook_configuration::{self, OwnCalls, Validated, mutating_rules, rules_of, validated_of};
use pillion_engine::snapshot::ProfileSet;

use super::bundle::Bundle;
use super::live::Live;
use super::{EPOCH_ANNOTATION, MANAGED_BY, RELEASE_ANNOTATION, WRITTEN_ANNOTATION};
use crate::release::Release;

/// Maximum number of calls that namespaced profiles may add: each resource and operation counts once in each namespace.
/// Every failure mode and label repeats the names of these namespaces, and etcd stores 1.5 MB in an object.
pub const MAXIMUM_OWN_CALLS: usize = 1_000;

/// The requests for which the API server calls the webhooks.
#[derive(Clone, Debug, PartialEq)]
pub struct Rules {
    /// Rules of the mutating webhooks. At least the creation of pods.
    pub mutating: Vec<RuleWithOperations>,
    /// Rules of the validating webhooks.
    pub validated: Validated,
    /// Namespaces beyond the limit, whose own profiles validate requests without a call.
    pub left_out: BTreeSet<String>,
}

impl Default for Rules {
    fn default() -> Self {
        Self::of(&ProfileSet::default())
    }
}

impl Rules {
    /// Collects the targets of these profiles, in all their active revisions: during a rollout, also those of the
    /// promoted one. The profiles are compiled, so their targets are valid.
    ///
    /// Namespaced profiles mutate only pods, whose creation always calls the mutating webhooks. What they validate
    /// beyond cluster profiles is called for in their own namespaces: the first ones by name, up to
    /// [`MAXIMUM_OWN_CALLS`].
    #[must_use]
    pub fn of(profiles: &ProfileSet) -> Self {
        let (cluster, own): (Vec<_>, Vec<_>) = profiles.at_work().partition(|one| one.name().namespace.is_none());
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
        let (mut own, mut left_out) = (OwnCalls::new(), BTreeSet::new());
        for (number, (namespace, resource, operation)) in asked.into_iter().enumerate() {
            let namespaces =
                if number < MAXIMUM_OWN_CALLS { own.entry((resource, operation)).or_default() } else { &mut left_out };
            namespaces.insert(namespace.to_owned());
        }
        let mutating = mutating_rules(injecting.map(|profile| profile.target()));
        Self { mutating, validated: Validated { everywhere, own }, left_out }
    }

    /// The current rules, for a controller that does not know the profiles yet and must not change them.
    #[must_use]
    pub fn of_live(live: &Live) -> Self {
        let mutating = live.mutating.iter().flat_map(|mutating| mutating.webhooks.iter().flatten());
        let mut mutating = mutating.filter(|entry| is_for_level(&entry.client_config));
        Self {
            mutating: mutating.find_map(|entry| entry.rules.clone()).unwrap_or_else(|| Self::default().mutating),
            validated: live.validating.as_ref().map(validated_of).unwrap_or_default(),
            left_out: BTreeSet::new(),
        }
    }
}

/// Whether rules match an operation on pods or on one of their subresources.
fn has_pods_call(rules: &[RuleWithOperations], resource: &str, operation: Operation) -> bool {
    let has = |list: &Option<Vec<String>>, value: &str| list.iter().flatten().any(|one| one == value);
    rules.iter().any(|rule| {
        has(&rule.api_groups, "") && has(&rule.resources, resource) && has(&rule.operations, operation.as_str())
    })
}

/// Whether an entry is for a failure mode, by its path.
fn is_for_level(config: &WebhookClientConfig) -> bool {
    let called = config.service.as_ref().and_then(|service| service.path.as_deref());
    InjectionLevel::ALL.into_iter().any(|level| called == Some(level.path()))
}

/// Everything that determines the configurations.
#[derive(Clone, Debug, PartialEq)]
pub struct Target {
    /// The settings, with the CA bundle.
    pub settings: webhook_configuration::Settings,
    /// What is called for.
    pub rules: Rules,
    /// The epoch of the rotation's record.
    pub epoch: u64,
}

/// Both configurations.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Desired {
    pub(super) mutating: MutatingWebhookConfiguration,
    pub(super) validating: Option<ValidatingWebhookConfiguration>,
}

/// The default settings of a release, without a bundle.
#[must_use]
pub fn settings_of(release: &Release) -> webhook_configuration::Settings {
    webhook_configuration::Settings {
        name: release.configuration().to_owned(),
        service_name: release.service().to_owned(),
        ..webhook_configuration::Settings::new(release.namespace(), Vec::new())
    }
}

impl Target {
    /// The settings with this bundle and epoch.
    #[must_use]
    pub fn new(settings: webhook_configuration::Settings, rules: Rules, ca_bundle: Vec<u8>, epoch: u64) -> Self {
        Self { settings: webhook_configuration::Settings { ca_bundle, canary_epoch: epoch, ..settings }, rules, epoch }
    }

    /// Whether the bundle may be written. With an empty one, the API server would trust the system's roots.
    #[must_use]
    pub fn has_authorities(&self) -> bool {
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

/// Marks a configuration as the release's. Other writers' labels and annotations stay.
pub(super) fn mark(metadata: &mut ObjectMeta, release: &Release, epoch: u64, written: Option<Timestamp>) {
    let annotations = metadata.annotations.get_or_insert_default();
    annotations.insert(EPOCH_ANNOTATION.to_owned(), epoch.to_string());
    annotations.insert(RELEASE_ANNOTATION.to_owned(), owner(release));
    annotations.extend(written.map(|written| (WRITTEN_ANNOTATION.to_owned(), written.to_string())));
    metadata.labels.get_or_insert_default().insert(MANAGED_BY.0.to_owned(), MANAGED_BY.1.to_owned());
}

/// The annotation value that identifies the release.
pub(super) fn owner(release: &Release) -> String {
    format!("{}/{}", release.namespace(), release.name())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use pillion_engine::profile::{ProfileName, compile};
    use pillion_engine::snapshot::{Served, Stage};
    use serde_json::json;

    use super::*;

    #[test]
    fn what_only_the_promoted_revision_is_for_is_called_for_while_it_is_at_work() {
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
