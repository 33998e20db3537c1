//! Checks whether a certificate and its key can be served. A replica checks each new pair before it loads it, and the
//! leader checks the pair in the Secret.
//!
//! A pair is invalid if the API server would reject it, or if this machine cannot serve it. A replica then continues to
//! serve the last valid pair. The verifier of the TLS library checks trust as a client does.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use rustls::client::danger::ServerCertVerifier;
use rustls::client::{WebPkiServerVerifier, verify_server_name};
use rustls::crypto::aws_lc_rs;
use rustls::server::ParsedCertificate;
use rustls::sign::CertifiedKey;
use rustls::{CertificateError, Error, InconsistentKeys, RootCertStore};
use rustls_pki_types::pem::{self, PemObject};
use rustls_pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use x509_parser::prelude::{FromDer, X509Certificate};

use super::validity;

/// How far in the future a certificate's validity may begin, because clocks may differ.
const MAX_CLOCK_DIFFERENCE: Duration = Duration::from_mins(5);

/// The requirements on a certificate.
#[derive(Clone, Copy, Debug)]
pub struct Expected<'e> {
    /// The names that the certificate must have, at least one.
    pub names: &'e [String],
    /// The current time.
    pub now: Timestamp,
    /// The trusted CAs: one of them must have signed the certificate or an intermediate of its chain. With `None`, the
    /// signature is not checked.
    pub trusted: Option<&'e [CertificateDer<'static>]>,
}

/// A certificate that can be served.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ValidCertificate {
    /// The serving certificate itself.
    pub certificate: CertificateDer<'static>,
    /// Start of the certificate's validity.
    pub not_before: Timestamp,
    /// End of the certificate's validity.
    pub not_after: Timestamp,
}

pillion_api::labelled! {
    /// Why a certificate cannot be served.
    #[derive(Hash)]
    pub enum Reason {
        /// The certificate is missing or not PEM.
        NoCertificate => "no_certificate",
        /// The certificate is not X.509.
        BadCertificate => "bad_certificate",
        /// The key is missing or not PEM.
        NoKey => "no_key",
        /// The key cannot sign a TLS handshake.
        BadKey => "bad_key",
        /// The key does not match the certificate.
        Mismatch => "mismatch",
        /// The certificate lacks a required name. Also used if no name is required, or if a required name is not a DNS
        /// name.
        Name => "name",
        /// The certificate is not valid yet.
        NotYet => "not_yet",
        /// The certificate has expired.
        Expired => "expired",
        /// The certificate is not a server certificate.
        Purpose => "purpose",
        /// The certificate has no valid chain to a trusted CA: for example, no trusted CA signed it, or the CA has
        /// expired or may not sign for the name.
        Untrusted => "untrusted",
    }
}

/// The error for a certificate that cannot be served.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{explanation}")]
pub struct InvalidPair {
    /// The machine-readable reason.
    pub reason: Reason,
    explanation: String,
}

impl InvalidPair {
    pub(crate) fn new(reason: Reason, explanation: impl fmt::Display) -> Self {
        Self { reason, explanation: explanation.to_string() }
    }
}

/// Checks a certificate chain (PEM, the serving certificate first) and its key (PEM).
///
/// # Errors
/// The pair cannot be served, or clients would not trust it.
pub fn judge(chain_pem: &[u8], key: &[u8], expected: Expected<'_>) -> Result<ValidCertificate, InvalidPair> {
    let chain = chain(chain_pem)?;
    let certificate = chain.first().ok_or_else(no_certificate)?.clone();
    let parsed = parsed(&certificate)?;
    check_key(&chain, key)?;
    let name = names(&certificate, expected.names)?;
    let (not_before, not_after) = validity(&certificate).ok_or_else(|| unreadable("its validity is out of range"))?;
    if not_before > expected.now.saturating_add(MAX_CLOCK_DIFFERENCE).unwrap_or(Timestamp::MAX) {
        let text = format!("it is not valid before {not_before}, and the time is {}: check the clock", expected.now);
        return Err(InvalidPair::new(Reason::NotYet, text));
    }
    if not_after <= expected.now {
        let text = format!("it expired at {not_after}, and the time is {}", expected.now);
        return Err(InvalidPair::new(Reason::Expired, text));
    }
    let purposes = parsed.extended_key_usage().map_err(unreadable)?;
    if purposes.is_some_and(|purposes| !purposes.value.server_auth && !purposes.value.any) {
        return Err(InvalidPair::new(
            Reason::Purpose,
            "it is not a server certificate: expected the extended key usage serverAuth",
        ));
    }
    if let Some(trusted) = expected.trusted {
        // The check above accepts a certificate whose validity begins slightly after `now`. The verifier must accept it
        // too.
        check_signature(&chain, trusted, name, expected.now.max(not_before))?;
    }
    drop(parsed);
    Ok(ValidCertificate { certificate, not_before, not_after })
}

/// Whether this CA signed the certificate, is valid now, and may sign for a server of this name.
#[must_use]
pub(crate) fn is_signed_by(fit: &ValidCertificate, ca: &CertificateDer<'static>, name: &str, now: Timestamp) -> bool {
    let (chain, trusted) = (std::slice::from_ref(&fit.certificate), std::slice::from_ref(ca));
    check_signature(chain, trusted, name, now.max(fit.not_before)).is_ok()
}

fn check_signature(
    chain: &[CertificateDer<'_>],
    trusted: &[CertificateDer<'static>],
    name: &str,
    now: Timestamp,
) -> Result<(), InvalidPair> {
    // The API server also requires a valid CA.
    let valid: Vec<_> = trusted.iter().filter(|ca| is_valid_at(ca, now)).collect();
    if valid.is_empty() {
        return Err(InvalidPair::new(Reason::Untrusted, "none of the known CAs is valid now"));
    }
    verify(chain, valid, &server_name(name)?, now).map_err(|error| {
        InvalidPair::new(
            Reason::Untrusted,
            match error {
                CertificateError::UnknownIssuer => "no known CA has signed it".to_owned(),
                error => format!("its CA cannot be verified: {error}"),
            },
        )
    })
}

/// Verifies a chain as a client that trusts these CAs, without checking the validity of the CAs. The serving
/// certificate is first in the chain.
pub(crate) fn verify<'c>(
    chain: &[CertificateDer<'_>],
    cas: impl IntoIterator<Item = &'c CertificateDer<'static>>,
    name: &ServerName<'_>,
    time: Timestamp,
) -> Result<(), CertificateError> {
    let mut roots = RootCertStore::empty();
    for ca in cas {
        // A certificate that cannot be added is not a readable CA, so it cannot have signed the chain.
        let _ = roots.add(ca.clone());
    }
    let provider = Arc::new(aws_lc_rs::default_provider());
    // Without any CA, building the verifier fails.
    let verifier = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider).build();
    let (Ok(verifier), Some((certificate, intermediates))) = (verifier, chain.split_first()) else {
        return Err(CertificateError::UnknownIssuer);
    };
    let seconds = u64::try_from(time.as_second()).unwrap_or_default();
    let time = UnixTime::since_unix_epoch(Duration::from_secs(seconds));
    match verifier.verify_server_cert(certificate, intermediates, name, &[], time) {
        Ok(_) => Ok(()),
        Err(Error::InvalidCertificate(error)) => Err(error),
        Err(_) => Err(CertificateError::BadEncoding),
    }
}

/// Whether the certificate is valid at this time.
pub(crate) fn is_valid_at(certificate: &CertificateDer<'_>, time: Timestamp) -> bool {
    validity(certificate).is_some_and(|(from, until)| from <= time && time <= until)
}

fn chain(text: &[u8]) -> Result<Vec<CertificateDer<'static>>, InvalidPair> {
    let chain: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(text).collect();
    let chain = chain.map_err(|error| InvalidPair::new(Reason::NoCertificate, format!("it is not PEM: {error}")))?;
    if chain.is_empty() { Err(no_certificate()) } else { Ok(chain) }
}

fn no_certificate() -> InvalidPair {
    InvalidPair::new(Reason::NoCertificate, "the certificate is missing: expected a PEM section BEGIN CERTIFICATE")
}

fn unreadable(error: impl fmt::Display) -> InvalidPair {
    InvalidPair::new(Reason::BadCertificate, format!("it is not X.509: {error}"))
}

fn parsed<'l>(certificate: &'l CertificateDer<'_>) -> Result<X509Certificate<'l>, InvalidPair> {
    match X509Certificate::from_der(certificate) {
        Ok(([], parsed)) => Ok(parsed),
        Ok(_) => Err(unreadable("there is extra data after its end")),
        Err(error) => Err(unreadable(error)),
    }
}

fn check_key(chain: &[CertificateDer<'static>], key: &[u8]) -> Result<(), InvalidPair> {
    let key = PrivateKeyDer::from_pem_slice(key).map_err(|error| match error {
        pem::Error::NoItemsFound => InvalidPair::new(
            Reason::NoKey,
            "the private key is missing: expected a PEM section such as BEGIN PRIVATE KEY",
        ),
        // The parser's message may contain the key.
        _ => InvalidPair::new(Reason::NoKey, "the private key is not PEM"),
    })?;
    let key = aws_lc_rs::default_provider()
        .key_provider
        .load_private_key(key)
        .map_err(|error| InvalidPair::new(Reason::BadKey, format!("the private key cannot be used: {error}")))?;
    match CertifiedKey::new(chain.to_vec(), key).keys_match() {
        // rustls cannot derive the public key from this kind of private key, so the two cannot be compared. If the key
        // is wrong, the TLS handshake fails.
        Ok(()) | Err(Error::InconsistentKeys(InconsistentKeys::Unknown)) => Ok(()),
        Err(Error::InconsistentKeys(_)) => {
            let text =
                "the private key does not belong to the certificate: one of the two was replaced without the other";
            Err(InvalidPair::new(Reason::Mismatch, text))
        }
        Err(error) => Err(unreadable(error)),
    }
}

/// Checks that the certificate has all names, and returns the first name.
fn names<'n>(certificate: &CertificateDer<'_>, names: &'n [String]) -> Result<&'n str, InvalidPair> {
    let parsed = ParsedCertificate::try_from(certificate).map_err(unreadable)?;
    for name in names {
        verify_server_name(&parsed, &server_name(name)?).map_err(|_| {
            let text = format!("it lacks the name {name}, which clients require");
            InvalidPair::new(Reason::Name, text)
        })?;
    }
    let nameless = || InvalidPair::new(Reason::Name, "no required name is known");
    names.first().map(String::as_str).ok_or_else(nameless)
}

fn server_name(name: &str) -> Result<ServerName<'static>, InvalidPair> {
    let wrong = |_| InvalidPair::new(Reason::Name, format!("the required name {name:?} is not a DNS name"));
    ServerName::try_from(name.to_owned()).map_err(wrong)
}
