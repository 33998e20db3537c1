//! Keys and certificates of the CA: creation, storage, reading and checks.
//!
//! [`crate::certificates::rotation`] decides when keys and certificates change. This module does no I/O, and callers
//! pass in the time.
//!
//! - this file: keys, PEM, and the name in a CA certificate;
//! - [`judge`]: whether a certificate and its key can be served;
//! - [`issue`]: creates CAs and serving certificates, and computes when serving certificates are renewed;
//! - [`stored`]: the Secret with the CAs and the record of the rotation, and the `caBundle` with these CAs.
//!
//! No input from the cluster makes this module panic, and no private key appears in `Debug` output.

pub mod issue;
pub mod judge;
pub mod stored;
#[cfg(test)]
mod tests;

use std::fmt;

use jiff::Timestamp;
use pem::{EncodeConfig, LineEnding, Pem};
use rcgen::{DistinguishedName, DnType};
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject;
use x509_parser::prelude::{FromDer, X509Certificate};
use x509_parser::x509::{AttributeTypeAndValue, X509Name};

use crate::certificates::rotation::{self, Generation};
use crate::release::Release;

pub use issue::{IssueError, Issuing, Lifetimes, ServingMaterial};
pub use judge::{Expected, InvalidPair, Reason, ValidCertificate};
pub use stored::{BundleContents, CaSecret, KnownCas, MissingCa};

/// The highest valid epoch. The record is never written that often, and all JSON parsers read integers up to this one
/// exactly.
pub(crate) const MAX_EPOCH: u64 = 1 << 53;

/// The annotation with the epoch of the record for which the object was written.
pub(crate) const EPOCH_ANNOTATION: &str = "pillion.dev/epoch";

/// Parses the epoch in an annotation; `None` if it is invalid.
#[must_use]
pub fn epoch(text: &str) -> Option<u64> {
    text.parse().ok().filter(|epoch| *epoch <= MAX_EPOCH)
}

/// A private key as PKCS #8 PEM.
#[derive(Clone, PartialEq, Eq)]
pub struct PrivateKey(String);

impl PrivateKey {
    /// The PEM string, which must not be logged.
    #[must_use]
    pub fn pem(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for PrivateKey {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("PrivateKey(..)")
    }
}

/// The certificate of a CA, and its key as long as the CA may sign.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CaMaterial {
    /// The CA's entry in the record.
    pub facts: rotation::Ca,
    certificate: CertificateDer<'static>,
    key: Option<PrivateKey>,
}

impl CaMaterial {
    /// The CA's certificate.
    #[must_use]
    pub const fn certificate(&self) -> &CertificateDer<'static> {
        &self.certificate
    }

    /// The CA's certificate as PEM.
    #[must_use]
    pub fn pem(&self) -> String {
        pem(&self.certificate)
    }
}

/// Encodes a certificate as PEM.
pub(crate) fn pem(certificate: &CertificateDer<'_>) -> String {
    let config = EncodeConfig::new().set_line_ending(LineEnding::LF);
    pem::encode_config(&Pem::new("CERTIFICATE", certificate.as_ref()), config)
}

const BEGIN: &[u8] = b"-----BEGIN CERTIFICATE-----";

/// Returns all certificates in PEM data, such as a `caBundle`. Other sections and unreadable certificates are skipped.
#[must_use]
pub fn certificates(text: &[u8]) -> Vec<CertificateDer<'static>> {
    let mut found = Vec::new();
    let mut rest = text;
    while let Some(at) = rest.windows(BEGIN.len()).position(|bytes| bytes == BEGIN) {
        let (_, section) = rest.split_at(at);
        let certificate = CertificateDer::from_pem_slice(section).ok();
        let is_read = |certificate: &CertificateDer<'_>| X509Certificate::from_der(certificate).is_ok();
        found.extend(certificate.filter(is_read));
        rest = section.get(BEGIN.len()..).unwrap_or_default();
    }
    found
}

/// Returns the start and end of a certificate's validity, or `None` if the certificate is unreadable.
pub(crate) fn validity(certificate: &CertificateDer<'_>) -> Option<(Timestamp, Timestamp)> {
    let (_, parsed) = X509Certificate::from_der(certificate).ok()?;
    let time = |time: x509_parser::time::ASN1Time| Timestamp::from_second(time.timestamp()).ok();
    Some((time(parsed.validity().not_before)?, time(parsed.validity().not_after)?))
}

/// The prefix of a CA's common name. The CA's number and a random tag follow. A verifier looks up the issuer by its
/// name. So two CAs must never share a name, even if all data about a CA is lost and its number reused.
const CA_NAME: &str = "Pillion CA ";
/// The common name of serving certificates.
const SERVING_NAME: &str = "Pillion";

/// The highest valid number of a CA. Without the limit, a foreign certificate in a bundle could exhaust the numbers.
const MAX_GENERATION: u32 = i32::MAX.unsigned_abs();

/// Returns the distinguished name of a CA. `tag` is random.
fn ca_name(release: &Release, generation: Generation, tag: &str) -> DistinguishedName {
    distinguished_name(release, format!("{CA_NAME}{} {tag}", generation.0))
}

fn distinguished_name(release: &Release, common_name: String) -> DistinguishedName {
    let mut name = DistinguishedName::new();
    // The namespace and the name are separate attributes, because an attribute is limited to 64 characters.
    name.push(DnType::OrganizationName, release.namespace());
    name.push(DnType::OrganizationalUnitName, release.name());
    name.push(DnType::CommonName, common_name);
    name
}

/// The name of a CA in a certificate. Anyone can put this name into a certificate. Only the signature, or a comparison
/// with the stored certificate, proves that the certificate belongs to this CA.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CaName {
    /// The namespace of the release.
    pub namespace: Box<str>,
    /// The name of the release.
    pub release: Box<str>,
    /// The CA's number.
    pub generation: Generation,
}

impl CaName {
    /// Returns the CA that a certificate names as its issuer; `None` if the issuer is not a CA of Pillion.
    #[must_use]
    pub(crate) fn of_issuer(certificate: &CertificateDer<'_>) -> Option<Self> {
        Self::parse(X509Certificate::from_der(certificate).ok()?.1.issuer())
    }

    /// Returns the CA that a certificate names as its subject; `None` if the subject is not a CA of Pillion.
    #[must_use]
    pub(crate) fn of_subject(certificate: &CertificateDer<'_>) -> Option<Self> {
        Self::parse(X509Certificate::from_der(certificate).ok()?.1.subject())
    }

    /// Returns the CA's number; `None` if the CA belongs to another release.
    #[must_use]
    pub(crate) fn generation_in(&self, release: &Release) -> Option<Generation> {
        let is_of_release = (&*self.namespace, &*self.release) == (release.namespace(), release.name());
        is_of_release.then_some(self.generation)
    }

    fn parse(name: &X509Name<'_>) -> Option<Self> {
        let namespace = only(name.iter_organization())?.into();
        let release = only(name.iter_organizational_unit())?.into();
        let (number, _) = only(name.iter_common_name())?.strip_prefix(CA_NAME)?.split_once(' ')?;
        Some(Self { namespace, release, generation: parse_generation(number)? })
    }
}

/// Returns the number of this release's CA that a certificate names as its subject. `None` if the subject is not a CA
/// of this release.
#[must_use]
pub(crate) fn claimed_generation(release: &Release, certificate: &CertificateDer<'_>) -> Option<Generation> {
    CaName::of_subject(certificate)?.generation_in(release)
}

fn parse_generation(text: &str) -> Option<Generation> {
    let is_number = text.bytes().all(|byte| byte.is_ascii_digit());
    text.parse().ok().filter(|number| is_number && *number <= MAX_GENERATION).map(Generation)
}

fn only<'n>(mut attributes: impl Iterator<Item = &'n AttributeTypeAndValue<'n>>) -> Option<&'n str> {
    let first = attributes.next()?.as_str().ok()?;
    attributes.next().is_none().then_some(first)
}
