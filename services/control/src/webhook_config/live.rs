//! The observed state: both configurations and the switch in the `ConfigMap`, as they were read, and what the rotation
//! needs of them.

use std::collections::BTreeSet;

use jiff::Timestamp;
use k8s_openapi::api::admissionregistration::v1::{
    MutatingWebhook, MutatingWebhookConfiguration, ValidatingWebhook, ValidatingWebhookConfiguration,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use pillion_api::webhook_configuration::is_rehearsal;

use super::bundle::Bundle;
use super::{EPOCH_ANNOTATION, RELEASE_ANNOTATION, WRITTEN_ANNOTATION, managers};
use crate::certificates::rotation::{self, Configuration, Generation};
use crate::release::Release;

/// Which configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ConfigurationKind {
    /// The `MutatingWebhookConfiguration`.
    Mutating,
    /// The `ValidatingWebhookConfiguration`.
    Validating,
}

impl ConfigurationKind {
    /// Both.
    pub const ALL: [Self; 2] = [Self::Mutating, Self::Validating];

    /// The configuration in metrics and logs.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Mutating => "mutating",
            Self::Validating => "validating",
        }
    }
}

/// The observed state.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Live {
    /// The mutating configuration.
    pub mutating: Option<MutatingWebhookConfiguration>,
    /// The validating one.
    pub validating: Option<ValidatingWebhookConfiguration>,
    /// Whether an operator disabled the webhooks.
    pub disarmed: bool,
}

/// The UID of each configuration, and how many times its entries were changed.
pub type Versions = Vec<(Option<String>, Option<i64>)>;

/// A configuration of either kind.
#[derive(Clone, Debug)]
pub(super) struct View<'l> {
    pub(super) which: ConfigurationKind,
    pub(super) metadata: &'l ObjectMeta,
    pub(super) entries: Vec<MutatingWebhook>,
}

impl Live {
    /// The observed state for the rotation. `know` returns the CA of a certificate (DER).
    ///
    /// Both configurations count as one: a CA is trusted if all entries of both trust it. Without the mutating
    /// configuration, both count as missing: it is claimed first, and the claim empties both.
    #[must_use]
    pub fn configuration(&self, know: &dyn Fn(&[u8]) -> Option<Generation>) -> Configuration {
        if self.disarmed {
            return Configuration::Disarmed;
        }
        let Some(mutating) = &self.mutating else { return Configuration::Absent };
        let epoch = self.epoch().unwrap_or_default();
        if mutating.webhooks.iter().flatten().next().is_none() {
            return Configuration::Empty { epoch };
        }
        let mut seen: Option<BTreeSet<Generation>> = None;
        let mut first: Option<BTreeSet<Vec<u8>>> = None;
        let (mut uniform, mut unknown) = (true, false);
        for bundle in self.bundles() {
            let generations: Vec<_> = bundle.certificates.iter().map(|der| know(der)).collect();
            unknown |= generations.iter().any(Option::is_none);
            let known: BTreeSet<_> = generations.into_iter().flatten().collect();
            seen = Some(seen.map_or_else(|| known.clone(), |seen| seen.intersection(&known).copied().collect()));
            let certificates: BTreeSet<_> = bundle.certificates.into_iter().collect();
            uniform &= bundle.clean && first.as_ref().is_none_or(|first| *first == certificates);
            first.get_or_insert(certificates);
        }
        let written = self.views().filter_map(|view| written(view.metadata)).max();
        Configuration::Present(rotation::Bundle {
            authorities: seen.unwrap_or_default(),
            uniform,
            unknown,
            epoch,
            written: written.unwrap_or(Timestamp::MAX),
        })
    }

    /// Unknown certificates of the entries, DER, each once, for a rotation that has to keep them.
    #[must_use]
    pub fn unknown(&self, know: &dyn Fn(&[u8]) -> Option<Generation>) -> BTreeSet<Vec<u8>> {
        self.bundles().flat_map(|bundle| bundle.certificates).filter(|der| know(der).is_none()).collect()
    }

    /// The highest epoch of the configurations.
    #[must_use]
    pub fn epoch(&self) -> Option<u64> {
        self.views().map(|view| epoch(view.metadata)).max()
    }

    /// The versions of their entries: the API server counts changes of the entries only.
    #[must_use]
    pub fn versions(&self) -> Versions {
        self.views().map(|view| (view.metadata.uid.clone(), view.metadata.generation)).collect()
    }

    /// Removes epochs above `highest` as forged. Returns the last writer of one, if known.
    pub fn disbelieve(&mut self, highest: u64) -> Option<String> {
        let mutating = self.mutating.as_mut().map(|mutating| &mut mutating.metadata);
        let validating = self.validating.as_mut().map(|validating| &mut validating.metadata);
        let mut writer = None;
        for metadata in mutating.into_iter().chain(validating).filter(|metadata| epoch(metadata) > highest) {
            let field = format!("f:{EPOCH_ANNOTATION}");
            writer = writer.or_else(|| managers::of_field(metadata, &["f:metadata", "f:annotations", &field]));
            metadata.annotations.get_or_insert_default().remove(EPOCH_ANNOTATION);
        }
        writer
    }

    /// Whether it is filled for a connectivity check.
    #[must_use]
    pub fn rehearses(&self, release: &Release) -> bool {
        self.mutating.as_ref().is_some_and(|mutating| is_rehearsal(mutating, release.service()))
    }

    /// The other release that owns a configuration with this release's name.
    pub(super) fn stranger(&self, owner: &str) -> Option<String> {
        let mut owners = self.views().filter_map(|view| view.metadata.annotations.as_ref()?.get(RELEASE_ANNOTATION));
        owners.find(|other| *other != owner).cloned()
    }

    pub(super) fn views(&self) -> impl Iterator<Item = View<'_>> {
        let mutating = self.mutating.as_ref().map(View::mutating);
        mutating.into_iter().chain(self.validating.as_ref().map(View::validating))
    }

    fn bundles(&self) -> impl Iterator<Item = Bundle> {
        let entries = self.views().flat_map(|view| view.entries);
        entries.map(|entry| Bundle::read(&entry.client_config.ca_bundle.unwrap_or_default().0))
    }
}

impl<'l> View<'l> {
    pub(super) fn mutating(configuration: &'l MutatingWebhookConfiguration) -> Self {
        let entries = configuration.webhooks.clone().unwrap_or_default();
        Self { which: ConfigurationKind::Mutating, metadata: &configuration.metadata, entries }
    }

    pub(super) fn validating(configuration: &'l ValidatingWebhookConfiguration) -> Self {
        let entries = configuration.webhooks.iter().flatten().map(as_mutating).collect();
        Self { which: ConfigurationKind::Validating, metadata: &configuration.metadata, entries }
    }
}

/// Converts the entry, so that the same code compares both kinds.
fn as_mutating(entry: &ValidatingWebhook) -> MutatingWebhook {
    let entry = entry.clone();
    MutatingWebhook {
        admission_review_versions: entry.admission_review_versions,
        client_config: entry.client_config,
        failure_policy: entry.failure_policy,
        match_conditions: entry.match_conditions,
        match_policy: entry.match_policy,
        name: entry.name,
        namespace_selector: entry.namespace_selector,
        object_selector: entry.object_selector,
        reinvocation_policy: None,
        rules: entry.rules,
        side_effects: entry.side_effects,
        timeout_seconds: entry.timeout_seconds,
    }
}

/// The epoch of a configuration; 0, before all others, without the annotation.
pub(super) fn epoch(metadata: &ObjectMeta) -> u64 {
    annotation(metadata, EPOCH_ANNOTATION).and_then(crate::certificates::authority::epoch).unwrap_or_default()
}

/// The time of the last write, if annotated.
pub(super) fn written(metadata: &ObjectMeta) -> Option<Timestamp> {
    annotation(metadata, WRITTEN_ANNOTATION).and_then(|text| text.parse().ok())
}

pub(super) fn annotation<'m>(metadata: &'m ObjectMeta, key: &str) -> Option<&'m str> {
    metadata.annotations.as_ref()?.get(key).map(String::as_str)
}
