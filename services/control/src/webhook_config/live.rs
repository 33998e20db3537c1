//! The observed state: both configurations, and whether the switch in the `ConfigMap` disables the webhooks. Also reads
//! the certificates in a `caBundle`, and finds the client that wrote a field.

use std::collections::BTreeSet;

use jiff::Timestamp;
use k8s_openapi::api::admissionregistration::v1::{
    MutatingWebhook, MutatingWebhookConfiguration, ValidatingWebhook, ValidatingWebhookConfiguration,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ManagedFieldsEntry, ObjectMeta};
use pillion_api::webhook_configuration::is_connectivity_check;
use rustls_pki_types::pem::{PemObject, SectionKind};
use serde_json::Value;

use super::{EPOCH_ANNOTATION, RELEASE_ANNOTATION, WRITTEN_ANNOTATION};
use crate::certificates::rotation::{self, Configuration, Generation};
use crate::leader::FIELD_MANAGER;
use crate::release::Release;

pillion_api::labelled! {
    /// The kind of a webhook configuration.
    #[derive(PartialOrd, Ord, Hash)]
    pub enum ConfigurationKind {
        /// The `MutatingWebhookConfiguration`.
        Mutating => "mutating",
        /// The `ValidatingWebhookConfiguration`.
        Validating => "validating",
    }
}

/// The observed state of the webhook configurations.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Live {
    /// The mutating configuration; `None` if it does not exist.
    pub mutating: Option<MutatingWebhookConfiguration>,
    /// The validating configuration; `None` if it does not exist.
    pub validating: Option<ValidatingWebhookConfiguration>,
    /// Whether an administrator disabled the webhooks.
    pub disabled: bool,
}

/// The UID of each configuration, and its generation, which counts changes of the entries.
pub type Versions = Vec<(Option<String>, Option<i64>)>;

/// A configuration of either kind. Entries of the validating one are converted to mutating entries.
#[derive(Clone, Debug)]
pub(super) struct ConfigurationView<'l> {
    pub(super) kind: ConfigurationKind,
    pub(super) metadata: &'l ObjectMeta,
    pub(super) entries: Vec<MutatingWebhook>,
}

impl Live {
    /// Returns the observed state as the rotation uses it. `generation_of` returns the CA of a certificate (DER), or
    /// `None` if the CA is unknown.
    ///
    /// Both configurations are treated as one: a CA is trusted if all entries of both trust it. Without the mutating
    /// configuration, both are treated as missing: the next claim creates it and deletes the validating one.
    #[must_use]
    pub fn configuration(&self, generation_of: &dyn Fn(&[u8]) -> Option<Generation>) -> Configuration {
        if self.disabled {
            return Configuration::WebhooksDisabled;
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
            let generations: Vec<_> = bundle.certificates.iter().map(|der| generation_of(der)).collect();
            unknown |= generations.iter().any(Option::is_none);
            let known: BTreeSet<_> = generations.into_iter().flatten().collect();
            seen = Some(seen.map_or_else(|| known.clone(), |seen| seen.intersection(&known).copied().collect()));
            let certificates: BTreeSet<_> = bundle.certificates.into_iter().collect();
            uniform &= bundle.clean && first.as_ref().is_none_or(|first| *first == certificates);
            first.get_or_insert(certificates);
        }
        let written = self.views().filter_map(|view| written(view.metadata)).max();
        Configuration::Present(rotation::Bundle {
            cas: seen.unwrap_or_default(),
            uniform,
            unknown,
            epoch,
            written: written.unwrap_or(Timestamp::MAX),
        })
    }

    /// Returns the certificates of the entries that `generation_of` does not know, as DER, each once. Some rotations
    /// have to keep them.
    #[must_use]
    pub fn unknown(&self, generation_of: &dyn Fn(&[u8]) -> Option<Generation>) -> BTreeSet<Vec<u8>> {
        self.bundles().flat_map(|bundle| bundle.certificates).filter(|der| generation_of(der).is_none()).collect()
    }

    /// Returns the highest epoch of the configurations; `None` if neither configuration exists.
    #[must_use]
    pub fn epoch(&self) -> Option<u64> {
        self.views().map(|view| epoch(view.metadata)).max()
    }

    /// Returns the UID and the generation of each existing configuration.
    #[must_use]
    pub fn versions(&self) -> Versions {
        self.views().map(|view| (view.metadata.uid.clone(), view.metadata.generation)).collect()
    }

    /// Removes epochs above `highest`, which are forged. Returns the client that last wrote such an epoch, if known.
    pub(crate) fn remove_forged_epochs(&mut self, highest: u64) -> Option<String> {
        let mutating = self.mutating.as_mut().map(|mutating| &mut mutating.metadata);
        let validating = self.validating.as_mut().map(|validating| &mut validating.metadata);
        let mut writer = None;
        for metadata in mutating.into_iter().chain(validating).filter(|metadata| epoch(metadata) > highest) {
            let field = format!("f:{EPOCH_ANNOTATION}");
            writer = writer.or_else(|| field_manager(metadata, &["f:metadata", "f:annotations", &field]));
            metadata.annotations.get_or_insert_default().remove(EPOCH_ANNOTATION);
        }
        writer
    }

    /// Whether the mutating configuration was written for a connectivity check.
    #[must_use]
    pub(crate) fn is_connectivity_check(&self, release: &Release) -> bool {
        self.mutating.as_ref().is_some_and(|mutating| is_connectivity_check(mutating, release.service()))
    }

    /// If a configuration belongs to a release other than `owner`, returns that release.
    pub(super) fn other_owner(&self, owner: &str) -> Option<String> {
        let mut owners = self.views().filter_map(|view| view.metadata.annotations.as_ref()?.get(RELEASE_ANNOTATION));
        owners.find(|other| *other != owner).cloned()
    }

    pub(super) fn views(&self) -> impl Iterator<Item = ConfigurationView<'_>> {
        let mutating = self.mutating.as_ref().map(ConfigurationView::mutating);
        mutating.into_iter().chain(self.validating.as_ref().map(ConfigurationView::validating))
    }

    fn bundles(&self) -> impl Iterator<Item = Bundle> {
        let entries = self.views().flat_map(|view| view.entries);
        entries.map(|entry| Bundle::read(&entry.client_config.ca_bundle.unwrap_or_default().0))
    }
}

impl<'l> ConfigurationView<'l> {
    pub(super) fn mutating(configuration: &'l MutatingWebhookConfiguration) -> Self {
        let entries = configuration.webhooks.clone().unwrap_or_default();
        Self { kind: ConfigurationKind::Mutating, metadata: &configuration.metadata, entries }
    }

    pub(super) fn validating(configuration: &'l ValidatingWebhookConfiguration) -> Self {
        let entries = configuration.webhooks.iter().flatten().map(as_mutating).collect();
        Self { kind: ConfigurationKind::Validating, metadata: &configuration.metadata, entries }
    }
}

/// Converts a validating entry to a mutating one, so that the same code compares both kinds.
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

/// Returns the epoch of a configuration; 0 if the annotation is missing or invalid.
pub(super) fn epoch(metadata: &ObjectMeta) -> u64 {
    annotation(metadata, EPOCH_ANNOTATION).and_then(crate::certificates::ca::epoch).unwrap_or_default()
}

/// Returns the time of the last write; `None` if the annotation is missing or invalid.
pub(super) fn written(metadata: &ObjectMeta) -> Option<Timestamp> {
    annotation(metadata, WRITTEN_ANNOTATION).and_then(|text| text.parse().ok())
}

pub(super) fn annotation<'m>(metadata: &'m ObjectMeta, key: &str) -> Option<&'m str> {
    metadata.annotations.as_ref()?.get(key).map(String::as_str)
}

/// A parsed bundle.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Bundle {
    /// The certificates as DER, in the order of the bundle.
    pub certificates: Vec<Vec<u8>>,
    /// Whether the bundle has at least one certificate, and nothing else.
    pub clean: bool,
}

impl Bundle {
    /// Reads PEM. Sections that are not certificates are skipped, and then the bundle is not clean.
    #[must_use]
    pub fn read(pem: &[u8]) -> Self {
        let (mut certificates, mut clean) = (Vec::new(), has_nothing_outside(pem));
        for section in <(SectionKind, Vec<u8>)>::pem_slice_iter(pem) {
            match section {
                Ok((SectionKind::Certificate, der)) => {
                    clean &= is_one_sequence(&der);
                    certificates.push(der);
                }
                Ok(_) => clean = false,
                // An unreadable section cannot be separated from the sections after it.
                Err(_) => {
                    clean = false;
                    break;
                }
            }
        }
        clean &= !certificates.is_empty();
        Self { certificates, clean }
    }

    /// Returns the set of certificates, without their order.
    #[must_use]
    pub fn set(&self) -> BTreeSet<&[u8]> {
        self.certificates.iter().map(Vec::as_slice).collect()
    }
}

/// Whether the input consists of complete PEM sections and empty lines.
fn has_nothing_outside(pem: &[u8]) -> bool {
    let mut inside = false;
    for line in pem.split(|byte| *byte == b'\n').map(<[u8]>::trim_ascii) {
        if line.starts_with(b"-----BEGIN ") {
            inside = true;
        } else if line.starts_with(b"-----END ") {
            inside = false;
        } else if !inside && !line.is_empty() {
            return false;
        }
    }
    !inside
}

/// Whether the bytes have the outer form of a certificate: one sequence over all bytes.
fn is_one_sequence(der: &[u8]) -> bool {
    let Some(([0x30, first], rest)) = der.split_first_chunk::<2>() else { return false };
    let octets = usize::from(first & 0x7f);
    if first & 0x80 == 0 {
        return rest.len() == octets;
    }
    rest.split_at_checked(octets).is_some_and(|(length, content)| {
        octets <= 4 && length.iter().fold(0, |sum: usize, byte| sum << 8 | usize::from(*byte)) == content.len()
    })
}

/// Maximum bytes of a field manager's name in messages.
const NAME_BYTES: usize = 128;

/// Returns the client other than the controller that last wrote the field at this path (such as `f:data`,
/// `f:injection`), from `managedFields`. If no such client owns the field, returns the last writer of the object, or
/// `None` if that is the controller or unknown. The name is for messages only, since a client chooses its own name.
#[must_use]
pub fn field_manager(metadata: &ObjectMeta, path: &[&str]) -> Option<String> {
    let others = || managed_fields(metadata).filter(|entry| entry.manager.as_deref() != Some(FIELD_MANAGER));
    let owns = |entry: &&ManagedFieldsEntry| {
        let fields = entry.fields_v1.as_ref().map(|fields| &fields.0);
        path.iter().try_fold(fields?, |fields, step| fields.get(*step)).map(|_| ())
    };
    let newest = others().filter(|entry| owns(entry).is_some()).max_by_key(|entry| managed_at(entry));
    newest.and_then(manager_name).or_else(|| last_manager(metadata))
}

/// Like [`field_manager`], for a field of an entry of a webhook configuration.
#[must_use]
pub fn entry_manager(metadata: &ObjectMeta, entry: &str, path: &[&str]) -> Option<String> {
    let key = format!("k:{}", Value::from_iter([("name", entry)]));
    let whole: Vec<_> = ["f:webhooks", &key].into_iter().chain(path.iter().copied()).collect();
    field_manager(metadata, &whole)
}

/// Returns the last writer of the object; `None` if that is the controller or unknown.
fn last_manager(metadata: &ObjectMeta) -> Option<String> {
    let newest = managed_fields(metadata)
        .max_by_key(|entry| (managed_at(entry), entry.manager.as_deref() != Some(FIELD_MANAGER)));
    newest.filter(|entry| entry.manager.as_deref() != Some(FIELD_MANAGER)).and_then(manager_name)
}

fn managed_fields(metadata: &ObjectMeta) -> impl Iterator<Item = &ManagedFieldsEntry> {
    metadata.managed_fields.iter().flatten()
}

fn managed_at(entry: &ManagedFieldsEntry) -> Option<Timestamp> {
    entry.time.as_ref().map(|time| time.0)
}

fn manager_name(entry: &ManagedFieldsEntry) -> Option<String> {
    let name = entry.manager.as_deref().filter(|name| !name.is_empty())?;
    let end = name.floor_char_boundary(NAME_BYTES);
    Some(name.get(..end)?.to_owned())
}

#[cfg(test)]
pub(super) mod tests {
    use rustls_pki_types::CertificateDer;

    use super::*;
    use crate::certificates::ca;

    /// Returns a PEM bundle with a certificate-like section for each number.
    pub(crate) fn pem(numbers: &[u8]) -> Vec<u8> {
        let certificates = numbers.iter().map(|number| ca::pem(&CertificateDer::from(der(*number))));
        certificates.collect::<String>().into_bytes()
    }

    pub(crate) fn der(number: u8) -> Vec<u8> {
        [&[0x30, 0x81, 200][..], &[number; 200]].concat()
    }

    #[test]
    fn reads_certificates_in_order() {
        let bundle = Bundle::read(&pem(&[3, 1]));
        assert_eq!(bundle, Bundle { certificates: vec![der(3), der(1)], clean: true });
        assert_eq!(bundle.set().len(), 2);
    }

    #[test]
    fn bundle_with_other_content_is_not_clean() {
        let good = String::from_utf8(pem(&[1])).unwrap();
        let key = good.replace("CERTIFICATE", "PRIVATE KEY");
        let cut = good.replace("-----END CERTIFICATE-----\n", "");
        let not_der = "-----BEGIN CERTIFICATE-----\nanVuaw==\n-----END CERTIFICATE-----\n";
        for (text, certificates) in [
            (String::new(), 0),
            ("junk".to_owned(), 0),
            (format!("junk\n{good}"), 1),
            (format!("{good}{key}"), 1),
            (format!("{good}{cut}"), 1),
            (format!("{good}{not_der}"), 2),
        ] {
            let bundle = Bundle::read(text.as_bytes());
            assert_eq!((bundle.certificates.len(), bundle.clean), (certificates, false), "{text}");
        }
        assert!(Bundle::read(format!("\n{good}\n\n{good}").as_bytes()).clean);
    }

    fn metadata(entries: &[(&str, &str, Value)]) -> ObjectMeta {
        let entries: Vec<_> = entries
            .iter()
            .map(|(manager, time, fields)| serde_json::json!({"manager": manager, "time": time, "fieldsV1": fields}))
            .collect();
        serde_json::from_value(serde_json::json!({ "managedFields": entries })).unwrap()
    }

    #[test]
    fn names_field_manager_or_last_writer() {
        let bundle = |entry: &str| serde_json::json!({"f:webhooks": {format!("k:{{\"name\":\"{entry}\"}}"): {"f:clientConfig": {"f:caBundle": {}}}}});
        let (early, late) = ("2026-11-21T10:00:00Z", "2026-11-21T11:00:00Z");
        let path = &["f:clientConfig", "f:caBundle"];
        let known = metadata(&[
            ("vandal", early, bundle("a")),
            ("kubectl", late, bundle("b")),
            (FIELD_MANAGER, late, bundle("a")),
        ]);
        assert_eq!(entry_manager(&known, "a", path).as_deref(), Some("vandal"));
        assert_eq!(entry_manager(&known, "b", path).as_deref(), Some("kubectl"));
        assert_eq!(entry_manager(&known, "c", path).as_deref(), Some("kubectl"), "the last writer of the object");
        let ours = metadata(&[("vandal", early, bundle("a")), (FIELD_MANAGER, late, bundle("b"))]);
        assert_eq!(entry_manager(&ours, "b", path), None, "the controller wrote last");
        assert_eq!(field_manager(&ObjectMeta::default(), &["f:data"]), None);
        let long = metadata(&[(&"é".repeat(100), late, Value::Null)]);
        assert_eq!(field_manager(&long, &[]).unwrap().len(), NAME_BYTES);
    }
}
