//! Checks whether a certificate and its key can be served. A replica checks each new pair before it loads it, and the
//! leader checks the Secret.
//!
//! A pair is invalid if the API server would reject it or this machine cannot serve it. The last valid pair is then the
//! better one. The verifier of the TLS library checks trust, as a client's would.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use rustls::client::danger::ServerCertVerifier;
use rustls::client::{WebPkiServerVerifier, verify_server_name};
use rustls::crypto::{CryptoProvider, aws_lc_rs};
use rustls::server::ParsedCertificate;
use rustls::sign::CertifiedKey;
use rustls::{CertificateError, InconsistentKeys, RootCertStore};
use rustls_pki_types::pem::{self, PemObject};
use rustls_pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use x509_parser::prelude::{FromDer, X509Certificate};

/// How far in the future a certificate's validity may begin: clocks differ.
const AHEAD: Duration = Duration::from_mins(5);

/// The requirements on a certificate.
#[derive(Clone, Copy, Debug)]
pub struct Expected<'e> {
    /// The names that it must have; at least one.
    pub names: &'e [String],
    /// The current time.
    pub now: Timestamp,
    /// The CAs of which one must have signed it; `None` if they are not known.
    pub trusted: Option<&'e [CertificateDer<'static>]>,
}

/// A certificate that can be served.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fit {
    /// The serving certificate itself.
    pub leaf: CertificateDer<'static>,
    /// Start of its validity.
    pub not_before: Timestamp,
    /// End of its validity.
    pub not_after: Timestamp,
}

/// Why a certificate cannot be served.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Reason {
    /// The certificate is missing or not PEM.
    NoCertificate,
    /// It is not an X.509 certificate.
    BadCertificate,
    /// The key is missing or not PEM.
    NoKey,
    /// The key cannot sign a TLS handshake.
    BadKey,
    /// The key does not match the certificate.
    Mismatch,
    /// A required name is missing.
    Name,
    /// It is not valid yet.
    NotYet,
    /// It has expired.
    Expired,
    /// It is not a server certificate.
    Purpose,
    /// No known CA signed it, or that CA is invalid or may not sign it.
    Untrusted,
}

impl Reason {
    /// All reasons.
    pub const ALL: [Self; 10] = [
        Self::NoCertificate,
        Self::BadCertificate,
        Self::NoKey,
        Self::BadKey,
        Self::Mismatch,
        Self::Name,
        Self::NotYet,
        Self::Expired,
        Self::Purpose,
        Self::Untrusted,
    ];

    /// The reason in metrics and logs.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::NoCertificate => "no_certificate",
            Self::BadCertificate => "bad_certificate",
            Self::NoKey => "no_key",
            Self::BadKey => "bad_key",
            Self::Mismatch => "mismatch",
            Self::Name => "name",
            Self::NotYet => "not_yet",
            Self::Expired => "expired",
            Self::Purpose => "purpose",
            Self::Untrusted => "untrusted",
        }
    }
}

/// The error for a certificate that cannot be served.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{explanation}")]
pub struct Unfit {
    /// The reason, for programs.
    pub reason: Reason,
    explanation: String,
}

impl Unfit {
    pub(super) fn new(reason: Reason, explanation: impl fmt::Display) -> Self {
        Self { reason, explanation: explanation.to_string() }
    }
}

/// Checks a certificate chain (PEM, the serving certificate first) and its key (PEM).
///
/// # Errors
/// The pair cannot be served, or clients would not trust it.
pub fn judge(certificate: &[u8], key: &[u8], expected: Expected<'_>) -> Result<Fit, Unfit> {
    let chain = chain(certificate)?;
    let leaf = chain.first().ok_or_else(no_certificate)?.clone();
    let parsed = parsed(&leaf)?;
    let provider = Arc::new(aws_lc_rs::default_provider());
    belongs(&chain, key, &provider)?;
    let name = names(&leaf, expected.names)?;
    let (not_before, not_after) = validity(&parsed)?;
    if not_before > expected.now.saturating_add(AHEAD).unwrap_or(Timestamp::MAX) {
        let text = format!("it is valid from {not_before} only, and it is {}: is the clock right?", expected.now);
        return Err(Unfit::new(Reason::NotYet, text));
    }
    if not_after <= expected.now {
        let text = format!("it has expired at {not_after}, and it is {}", expected.now);
        return Err(Unfit::new(Reason::Expired, text));
    }
    let purposes = parsed.extended_key_usage().map_err(unreadable)?;
    if purposes.is_some_and(|purposes| !purposes.value.server_auth && !purposes.value.any) {
        return Err(Unfit::new(Reason::Purpose, "it is not for servers: expected the extended key usage serverAuth"));
    }
    if let Some(trusted) = expected.trusted {
        // The check above allows a certificate slightly ahead of the clock; the verifier does not.
        is_signed(&chain, trusted, name, expected.now.max(not_before), provider)?;
    }
    drop(parsed);
    Ok(Fit { leaf, not_before, not_after })
}

/// Whether this CA signed the certificate and may do so, for a server of this name.
#[must_use]
pub fn is_signed_by(fit: &Fit, authority: &CertificateDer<'static>, name: &str, now: Timestamp) -> bool {
    let (chain, trusted) = (std::slice::from_ref(&fit.leaf), std::slice::from_ref(authority));
    is_signed(chain, trusted, name, now.max(fit.not_before), Arc::new(aws_lc_rs::default_provider())).is_ok()
}

fn is_signed(
    chain: &[CertificateDer<'_>],
    trusted: &[CertificateDer<'static>],
    name: &str,
    now: Timestamp,
    provider: Arc<CryptoProvider>,
) -> Result<(), Unfit> {
    let untrusted = |text: String| Unfit::new(Reason::Untrusted, text);
    let mut roots = RootCertStore::empty();
    // The API server also requires valid CAs.
    for authority in trusted.iter().filter(|authority| is_valid(authority, now)) {
        // A certificate that is not a CA cannot have signed it.
        let _ = roots.add(authority.clone());
    }
    let nobody = || untrusted("none of the authorities that are known is valid now".to_owned());
    let verifier = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider).build();
    let verifier = verifier.map_err(|_| nobody())?;
    let (leaf, intermediates) = chain.split_first().ok_or_else(no_certificate)?;
    let name = server_name(name)?;
    let seconds = u64::try_from(now.as_second()).unwrap_or_default();
    let now = UnixTime::since_unix_epoch(Duration::from_secs(seconds));
    verifier.verify_server_cert(leaf, intermediates, &name, &[], now).map(drop).map_err(|error| match error {
        rustls::Error::InvalidCertificate(CertificateError::UnknownIssuer) => {
            untrusted("no authority that is known has signed it".to_owned())
        }
        error => untrusted(format!("its authority cannot vouch for it: {error}")),
    })
}

fn is_valid(certificate: &CertificateDer<'_>, now: Timestamp) -> bool {
    let parsed = X509Certificate::from_der(certificate).ok();
    let validity = parsed.and_then(|(_, certificate)| validity(&certificate).ok());
    validity.is_some_and(|(from, until)| from <= now && now < until)
}

fn chain(text: &[u8]) -> Result<Vec<CertificateDer<'static>>, Unfit> {
    let chain: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(text).collect();
    let chain = chain.map_err(|error| Unfit::new(Reason::NoCertificate, format!("it is not PEM text: {error}")))?;
    if chain.is_empty() { Err(no_certificate()) } else { Ok(chain) }
}

fn no_certificate() -> Unfit {
    Unfit::new(Reason::NoCertificate, "there is no certificate: expected the leaf, as BEGIN CERTIFICATE")
}

fn unreadable(error: impl fmt::Display) -> Unfit {
    Unfit::new(Reason::BadCertificate, format!("it is not X.509: {error}"))
}

fn parsed<'l>(leaf: &'l CertificateDer<'_>) -> Result<X509Certificate<'l>, Unfit> {
    match X509Certificate::from_der(leaf) {
        Ok(([], parsed)) => Ok(parsed),
        Ok(_) => Err(unreadable("there is something behind its end")),
        Err(error) => Err(unreadable(error)),
    }
}

fn validity(certificate: &X509Certificate<'_>) -> Result<(Timestamp, Timestamp), Unfit> {
    let validity = certificate.validity();
    let time = |time: x509_parser::time::ASN1Time| Timestamp::from_second(time.timestamp()).map_err(unreadable);
    Ok((time(validity.not_before)?, time(validity.not_after)?))
}

fn belongs(chain: &[CertificateDer<'static>], key: &[u8], provider: &CryptoProvider) -> Result<(), Unfit> {
    let key = PrivateKeyDer::from_pem_slice(key).map_err(|error| match error {
        pem::Error::NoItemsFound => {
            Unfit::new(Reason::NoKey, "there is no private key: expected one, as BEGIN PRIVATE KEY")
        }
        // The parser's message may repeat the key.
        _ => Unfit::new(Reason::NoKey, "the private key is not PEM text"),
    })?;
    let key = provider
        .key_provider
        .load_private_key(key)
        .map_err(|error| Unfit::new(Reason::BadKey, format!("the private key cannot be used: {error}")))?;
    match CertifiedKey::new(chain.to_vec(), key).keys_match() {
        // Unknown: this kind of key does not expose its public half. The handshake will show a mismatch.
        Ok(()) | Err(rustls::Error::InconsistentKeys(InconsistentKeys::Unknown)) => Ok(()),
        Err(rustls::Error::InconsistentKeys(_)) => {
            let text =
                "the private key does not belong to the certificate: one of the two was replaced without the other";
            Err(Unfit::new(Reason::Mismatch, text))
        }
        Err(error) => Err(unreadable(error)),
    }
}

/// Checks that the certificate has all names, and returns the first.
fn names<'n>(leaf: &CertificateDer<'_>, names: &'n [String]) -> Result<&'n str, Unfit> {
    let parsed = ParsedCertificate::try_from(leaf).map_err(unreadable)?;
    for name in names {
        verify_server_name(&parsed, &server_name(name)?).map_err(|_| {
            let text = format!("it is not for the name {name}, by which it is looked for");
            Unfit::new(Reason::Name, text)
        })?;
    }
    let nameless = || Unfit::new(Reason::Name, "it is not known by which name it is looked for");
    names.first().map(String::as_str).ok_or_else(nameless)
}

fn server_name(name: &str) -> Result<ServerName<'static>, Unfit> {
    let wrong = |_| Unfit::new(Reason::Name, format!("{name:?}, by which it is looked for, is no name"));
    ServerName::try_from(name.to_owned()).map_err(wrong)
}
