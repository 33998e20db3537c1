//! The material of the CA: keys and certificates, created, stored, read and checked.
//!
//! [`crate::certificates::rotation`] decides what happens to it. This module does no I/O; callers pass in the clock and
//! randomness.
//!
//! * [`lifetimes`]: how long certificates live, and when a serving certificate is renewed.
//! * [`identity`]: the name in a CA certificate: its release and its number.
//! * [`make`]: creates CAs and serving certificates.
//! * [`stored`]: the Secret with the CAs and the record of the rotation.
//! * [`serving`]: the Secret with the certificate that replicas serve.
//! * [`bundle`]: the `caBundle` with the CAs that API servers trust.
//! * [`judge`]: whether a certificate and its key can be served.
//!
//! No input from the cluster makes this module panic, and no private key appears in `Debug` output.

pub mod bundle;
pub mod identity;
pub mod judge;
pub mod lifetimes;
pub mod make;
pub mod serving;
pub mod stored;
#[cfg(test)]
mod tests;

use std::fmt;

use pem::{EncodeConfig, LineEnding, Pem};
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject;
use x509_parser::prelude::{FromDer, X509Certificate};

use crate::certificates::rotation;

pub use bundle::Contents;
pub use identity::Issuer;
pub use judge::{Expected, Fit, Reason, Unfit};
pub use lifetimes::Lifetimes;
pub use make::{LeafMaterial, MakeError, Making, Randomness, SystemRandomness};
pub use serving::ServingSecret;
pub use stored::{AuthoritySecret, Known, MissingAuthority};

/// Higher epochs count as damage: no record is written so often, and the next epoch must still be a number in JSON.
pub const MAX_EPOCH: u64 = 1 << 53;

/// The annotation of an object with the epoch of the record for which it was written.
pub const EPOCH_ANNOTATION: &str = "pillion.dev/epoch";

/// Parses the epoch in an annotation; `None` if it is invalid.
#[must_use]
pub fn epoch(text: &str) -> Option<u64> {
    text.parse().ok().filter(|epoch| *epoch <= MAX_EPOCH)
}

/// A private key: PKCS #8, PEM.
#[derive(Clone, PartialEq, Eq)]
pub struct PrivateKey(String);

impl PrivateKey {
    /// The PEM text, which must not be logged.
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

/// A CA with its certificate, and its key for as long as it may sign.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AuthorityMaterial {
    /// Its entry in the record.
    pub facts: rotation::Authority,
    certificate: CertificateDer<'static>,
    key: Option<PrivateKey>,
}

impl AuthorityMaterial {
    /// Its certificate.
    #[must_use]
    pub const fn certificate(&self) -> &CertificateDer<'static> {
        &self.certificate
    }

    /// Its certificate, PEM.
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

/// Returns all certificates in a PEM text, even after sections that are not certificates.
fn certificates(text: &[u8]) -> Vec<CertificateDer<'static>> {
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
