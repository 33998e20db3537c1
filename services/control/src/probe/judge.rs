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

/// An authority of the record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Known {
    /// Its number.
    pub generation: Generation,
    /// Its certificate.
    pub certificate: CertificateDer<'static>,
}

/// What endpoints are judged by.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Expected {
    /// The name that an API server expects in a leaf.
    pub server_name: ServerName<'static>,
    /// The authorities of the record, whether they are trusted at present or not.
    pub known: Vec<Known>,
    /// The newest of them, whose leaves endpoints ought to serve. `None` where certificates are of somebody else's making.
    pub newest: Option<Generation>,
    /// The certificates that API servers trust. While there are none, no API server calls anybody, and those who are known
    /// stand for them.
    pub bundle: Vec<CertificateDer<'static>>,
    /// The record's epoch at which leaves last had to become others.
    pub leaf_epoch: u64,
}

/// What an endpoint serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// A leaf that the newest authority alone verifies, and for long enough.
    Newest,
    /// A leaf of another known authority.
    Older(Generation),
    /// A leaf that the bundle verifies, where no authority is ours.
    Trusted,
    /// A leaf of nobody who is known.
    Stranger,
    /// A leaf of the right authority that will not do.
    Unfit(Unfit),
    /// Nobody knows.
    Unreachable(Unreachable),
}

/// Why a leaf of the right authority will not do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Unfit {
    /// It will do for a short time only.
    Expiring,
    /// Its time is over.
    Expired,
    /// Its time has not come.
    NotYetValid,
    /// It is for other names.
    WrongName,
    /// Its authority's time is over, or has not come: the API server looks at that too.
    Authority,
    /// It is not for servers, or is broken.
    Unusable,
}

/// Judges leaves, at one time.
#[derive(Debug)]
pub struct Judge<'e> {
    expected: &'e Expected,
    now: Timestamp,
    least_left: Duration,
    known: Vec<(Generation, Roots)>,
    bundle: Roots,
}

/// Some authorities that are trusted together.
#[derive(Debug)]
struct Roots {
    /// Those whose time it is, now; `None` if there are none.
    now: Option<Arc<WebPkiServerVerifier>>,
    /// Those whose time it is still going to be when the least time that a leaf has to be good for is over.
    later: Option<Arc<WebPkiServerVerifier>>,
    /// Whatever their times.
    any: Option<Arc<WebPkiServerVerifier>>,
}

/// The verdict on one endpoint's certificates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Judgement {
    /// What it serves.
    pub verdict: Verdict,
    /// Whether API servers with the bundle would call it, now.
    pub trusted: bool,
    /// When the leaf ends, if it can be read.
    pub not_after: Option<Timestamp>,
}

impl Verdict {
    /// The labels of all verdicts.
    pub const LABELS: [&str; 7] = ["newest", "older", "trusted", "stranger", "expiring", "unfit", "unreachable"];

    /// The verdict as it stands in metrics.
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
    /// What endpoints of a release are judged by.
    ///
    /// `None` if the release's name is no DNS name, which [`Release`] does not let through.
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

    /// The same where certificates are of somebody else's making: nobody is known but the bundle.
    #[must_use]
    pub fn of_strangers(release: &Release, bundle: Vec<CertificateDer<'static>>) -> Option<Self> {
        Self::of(release, Vec::new(), None, bundle, 0)
    }
}

/// All certificates of a text in PEM form, as a `caBundle` is; what is none is passed over.
#[must_use]
pub fn certificates(pem: &[u8]) -> Vec<CertificateDer<'static>> {
    CertificateDer::pem_slice_iter(pem).filter_map(Result::ok).collect()
}

/// From when until when a certificate is valid.
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
                // What is no authority cannot be trusted, and nobody does.
                let _ = roots.add(certificate.clone());
            }
            let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
            // Err says that there is none.
            WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider).build().ok()
        };
        Self { now: at(&[now]), later: at(&[now, later]), any: at(&[]) }
    }
}

/// Whether some root verifies the chain, at that time.
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
    /// Judges at `now`; a leaf has to be good for `least_left` more.
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

    /// The verdict on what an endpoint shows: its leaf, and what else it sends.
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

    /// Who signed a leaf, whatever its time and its names.
    fn signer(&self, chain: &[CertificateDer<'_>], from: Timestamp) -> Option<(Generation, &Roots)> {
        let mut signers = self.known.iter().filter(|(_, roots)| self.signed(roots, chain, from));
        signers.next().map(|(generation, roots)| (*generation, roots))
    }

    fn signed(&self, roots: &Roots, chain: &[CertificateDer<'_>], from: Timestamp) -> bool {
        match self.verify(roots.any.as_ref(), chain, from) {
            Ok(()) => true,
            // Names, and what a leaf is for, are looked at when its signature is known to be good.
            Err(error) => matches!(unfit(&error), Unfit::WrongName),
        }
    }

    /// Whether API servers that trust these alone will call the endpoint, now and for long enough.
    fn fitness(&self, roots: &Roots, chain: &[CertificateDer<'_>]) -> Result<(), Unfit> {
        if roots.now.is_none() {
            return Err(Unfit::Authority);
        }
        self.verify(roots.now.as_ref(), chain, self.now).map_err(|error| match error {
            // Of several, the one that signed it.
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
