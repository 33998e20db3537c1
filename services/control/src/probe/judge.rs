//! The verdict on an endpoint's certificate: its CA, and whether it is acceptable.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::ServerCertVerifier;
use rustls::{CertificateError, Error, RootCertStore};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, ServerName, UnixTime};

use super::dial::Unreachable;
use crate::certificates::rotation::Generation;
use crate::release::Release;

/// A CA of the record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Known {
    /// Its number.
    pub generation: Generation,
    /// Its certificate.
    pub certificate: CertificateDer<'static>,
}

/// The requirements on endpoints.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Expected {
    /// The name that an API server requires in the certificate.
    pub server_name: ServerName<'static>,
    /// The CAs of the record, trusted or not.
    pub known: Vec<Known>,
    /// The newest of them, which should sign all served certificates. `None` with another issuer.
    pub newest: Option<Generation>,
    /// The certificates that API servers trust. While it is empty, no API server calls the webhook, and `known` is used
    /// instead.
    pub bundle: Vec<CertificateDer<'static>>,
    /// The epoch of the record at which the serving certificate last had to change.
    pub leaf_epoch: u64,
}

/// The verdict on an endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// A valid certificate of the newest CA.
    Newest,
    /// A certificate of another known CA.
    Older(Generation),
    /// A certificate of another issuer that the bundle trusts.
    Trusted,
    /// An untrusted certificate.
    Stranger,
    /// An invalid certificate of the right CA.
    Unfit(Unfit),
    /// The endpoint could not be probed.
    Unreachable(Unreachable),
}

/// Why a certificate of the right CA is invalid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Unfit {
    /// It expires soon.
    Expiring,
    /// It has expired.
    Expired,
    /// It is not valid yet.
    NotYetValid,
    /// It has other names.
    WrongName,
    /// Its CA has expired or is not valid yet, which the API server checks too.
    Authority,
    /// It is no server certificate, or is broken.
    Unusable,
}

/// Checks certificates at one moment.
#[derive(Debug)]
pub struct Judge<'e> {
    expected: &'e Expected,
    now: Timestamp,
    least_left: Duration,
    known: Vec<(Generation, Roots)>,
    bundle: Roots,
}

/// CAs that are trusted together.
#[derive(Debug)]
struct Roots {
    /// The CAs that are valid now; `None` if there are none.
    now: Option<Arc<WebPkiServerVerifier>>,
    /// The CAs that are also valid at the end of the required validity.
    later: Option<Arc<WebPkiServerVerifier>>,
    /// All of them, whatever their validity.
    any: Option<Arc<WebPkiServerVerifier>>,
}

/// The verdict on an endpoint's certificates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Judgement {
    /// What kind of certificate it serves.
    pub verdict: Verdict,
    /// Whether API servers with the bundle would trust it now.
    pub trusted: bool,
    /// End of the certificate's validity, if readable.
    pub not_after: Option<Timestamp>,
}

impl Verdict {
    /// The labels of all verdicts.
    pub const LABELS: [&str; 7] = ["newest", "older", "trusted", "stranger", "expiring", "unfit", "unreachable"];

    /// The verdict as a metric label.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Newest => "newest",
            Self::Older(_) => "older",
            Self::Trusted => "trusted",
            Self::Stranger => "stranger",
            Self::Unfit(Unfit::Expiring) => "expiring",
            Self::Unfit(_) => "unfit",
            Self::Unreachable(_) => "unreachable",
        }
    }
}

impl Expected {
    /// The requirements on a release's endpoints.
    ///
    /// `None` if the release's name is not a DNS name, which [`Release`] does not allow.
    #[must_use]
    pub fn of(
        release: &Release,
        known: Vec<Known>,
        newest: Option<Generation>,
        bundle: Vec<CertificateDer<'static>>,
        leaf_epoch: u64,
    ) -> Option<Self> {
        let [name, _] = release.server_names();
        let server_name = ServerName::try_from(name).ok()?;
        Some(Self { server_name, known, newest, bundle, leaf_epoch })
    }

    /// The same for certificates of another issuer: only the bundle is known.
    #[must_use]
    pub fn of_strangers(release: &Release, bundle: Vec<CertificateDer<'static>>) -> Option<Self> {
        Self::of(release, Vec::new(), None, bundle, 0)
    }
}

/// All certificates in a PEM text, such as a `caBundle`; anything else is skipped.
#[must_use]
pub fn certificates(pem: &[u8]) -> Vec<CertificateDer<'static>> {
    CertificateDer::pem_slice_iter(pem).filter_map(Result::ok).collect()
}

/// Start and end of a certificate's validity.
fn validity(certificate: &CertificateDer<'_>) -> Option<(Timestamp, Timestamp)> {
    let (_, parsed) = x509_parser::parse_x509_certificate(certificate).ok()?;
    let time = |time: x509_parser::time::ASN1Time| Timestamp::from_second(time.timestamp()).ok();
    Some((time(parsed.validity().not_before)?, time(parsed.validity().not_after)?))
}

fn unix(time: Timestamp) -> UnixTime {
    UnixTime::since_unix_epoch(Duration::from_secs(u64::try_from(time.as_second()).unwrap_or(0)))
}

impl Roots {
    fn new<'c>(
        certificates: impl IntoIterator<Item = &'c CertificateDer<'static>>,
        now: Timestamp,
        later: Timestamp,
    ) -> Self {
        let all: Vec<_> = certificates.into_iter().collect();
        let at = |times: &[Timestamp]| {
            let valid = |certificate: &&CertificateDer<'static>| {
                validity(certificate)
                    .is_some_and(|(from, until)| times.iter().all(|time| from <= *time && *time <= until))
            };
            let mut roots = RootCertStore::empty();
            for certificate in all.iter().copied().filter(valid) {
                // A certificate that is not a CA is never trusted.
                let _ = roots.add(certificate.clone());
            }
            let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
            // An error means that there are no CAs.
            WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider).build().ok()
        };
        Self { now: at(&[now]), later: at(&[now, later]), any: at(&[]) }
    }
}

/// Verifies the chain against these CAs, at this time.
fn verify(
    roots: Option<&Arc<WebPkiServerVerifier>>,
    chain: &[CertificateDer<'_>],
    name: &ServerName<'_>,
    time: UnixTime,
) -> Result<(), CertificateError> {
    let (Some(roots), Some((leaf, others))) = (roots, chain.split_first()) else {
        return Err(CertificateError::UnknownIssuer);
    };
    match roots.verify_server_cert(leaf, others, name, &[], time) {
        Ok(_) => Ok(()),
        Err(Error::InvalidCertificate(error)) => Err(error),
        Err(_) => Err(CertificateError::BadEncoding),
    }
}

const fn unfit(error: &CertificateError) -> Unfit {
    match error {
        CertificateError::Expired | CertificateError::ExpiredContext { .. } => Unfit::Expired,
        CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => Unfit::NotYetValid,
        CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => Unfit::WrongName,
        _ => Unfit::Unusable,
    }
}

impl<'e> Judge<'e> {
    /// Checks certificates at `now`; they must stay valid for `least_left`.
    #[must_use]
    pub fn new(expected: &'e Expected, now: Timestamp, least_left: Duration) -> Self {
        let later = now.checked_add(least_left).unwrap_or(Timestamp::MAX);
        let known = expected
            .known
            .iter()
            .map(|known| (known.generation, Roots::new([&known.certificate], now, later)))
            .collect();
        let bundle = if expected.bundle.is_empty() {
            Roots::new(expected.known.iter().map(|known| &known.certificate), now, later)
        } else {
            Roots::new(&expected.bundle, now, later)
        };
        Self { expected, now, least_left, known, bundle }
    }

    /// The verdict on an endpoint's certificate chain.
    #[must_use]
    pub fn judge(&self, chain: &[CertificateDer<'_>]) -> Judgement {
        let validity = chain.first().and_then(validity);
        let trusted = self.verify(self.bundle.now.as_ref(), chain, self.now).is_ok();
        let verdict = match (self.expected.newest, validity) {
            (_, None) => Verdict::Stranger,
            (Some(newest), Some((from, _))) => match self.signer(chain, from) {
                Some((generation, roots)) if generation == newest => {
                    self.fitness(roots, chain).map_or_else(Verdict::Unfit, |()| Verdict::Newest)
                }
                Some((generation, _)) => Verdict::Older(generation),
                None => Verdict::Stranger,
            },
            (None, Some((from, _))) => {
                if self.signed(&self.bundle, chain, from) {
                    self.fitness(&self.bundle, chain).map_or_else(Verdict::Unfit, |()| Verdict::Trusted)
                } else {
                    Verdict::Stranger
                }
            }
        };
        Judgement { verdict, trusted, not_after: validity.map(|(_, until)| until) }
    }

    /// The CA that signed the certificate, whatever its validity and names.
    fn signer(&self, chain: &[CertificateDer<'_>], from: Timestamp) -> Option<(Generation, &Roots)> {
        let mut signers = self.known.iter().filter(|(_, roots)| self.signed(roots, chain, from));
        signers.next().map(|(generation, roots)| (*generation, roots))
    }

    fn signed(&self, roots: &Roots, chain: &[CertificateDer<'_>], from: Timestamp) -> bool {
        match self.verify(roots.any.as_ref(), chain, from) {
            Ok(()) => true,
            // Names are checked after the signature, so a wrong name means a valid signature.
            Err(error) => matches!(unfit(&error), Unfit::WrongName),
        }
    }

    /// Whether API servers that trust only these CAs would accept the certificate, now and for long enough.
    fn fitness(&self, roots: &Roots, chain: &[CertificateDer<'_>]) -> Result<(), Unfit> {
        if roots.now.is_none() {
            return Err(Unfit::Authority);
        }
        self.verify(roots.now.as_ref(), chain, self.now).map_err(|error| match error {
            // Of several valid CAs, none signed it.
            CertificateError::UnknownIssuer => Unfit::Authority,
            error => unfit(&error),
        })?;
        let later = self.now.checked_add(self.least_left).unwrap_or(Timestamp::MAX);
        self.verify(roots.later.as_ref(), chain, later).map_err(|_| Unfit::Expiring)
    }

    fn verify(
        &self,
        roots: Option<&Arc<WebPkiServerVerifier>>,
        chain: &[CertificateDer<'_>],
        time: Timestamp,
    ) -> Result<(), CertificateError> {
        verify(roots, chain, &self.expected.server_name, unix(time))
    }
}

#[cfg(test)]
mod tests;
