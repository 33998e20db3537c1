//! Creates CAs and serving certificates (ECDSA P-256), and defines their lifetimes.
//!
//! A CA may sign only for the release's own names, so a stolen key can impersonate only the webhook and the trust
//! probe. The restriction is not marked critical, since some clients reject a certificate with an unknown critical
//! extension. Clients that know the extension enforce it anyway.

use std::time::Duration;

use jiff::Timestamp;
use rcgen::{
    BasicConstraints, CertificateParams, CustomExtension, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, SanType,
};
use rustls_pki_types::CertificateDer;
use sha2::{Digest, Sha256};
use yasna::Tag;

use super::judge::{self, Expected};
use super::{CaMaterial, InvalidPair, PrivateKey, SERVING_NAME, ca_name, distinguished_name, pem};
use crate::certificates::rotation::{self, Generation};
use crate::random;
use crate::release::Release;

const HOUR: Duration = Duration::from_hours(1);
const DAY: Duration = Duration::from_hours(24);

/// Lifetimes of certificates. Times in certificates have a resolution of one second, so tests use lifetimes of a few
/// seconds.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Lifetimes {
    /// Validity of a CA from its creation.
    pub ca: Duration,
    /// Validity of a serving certificate from its creation.
    pub certificate: Duration,
    /// How long before its CA a serving certificate should expire.
    pub margin: Duration,
    /// The share of its lifetime after which a serving certificate is renewed, in percent.
    pub renew_percent: u8,
    /// Shortens the time until the renewal by up to this many percent. The amount differs between certificates, so that
    /// not all releases renew at the same time.
    pub jitter_percent: u8,
    /// How long before its creation a certificate's validity begins, for clients whose clocks are behind.
    pub backdating: Duration,
}

impl Default for Lifetimes {
    /// A CA is valid for a year, a serving certificate for a week.
    fn default() -> Self {
        Self {
            ca: 365 * DAY,
            certificate: 7 * DAY,
            margin: 30 * DAY,
            renew_percent: 50,
            jitter_percent: 10,
            backdating: 2 * HOUR,
        }
    }
}

impl Lifetimes {
    /// Returns the default lifetimes with these validities. The margin keeps its default share of the CA's validity,
    /// and backdating is at most `certificate`. A validity below one second is too short for a serving certificate.
    #[must_use]
    pub fn of(ca: Duration, certificate: Duration) -> Self {
        let default = Self::default();
        Self {
            ca,
            certificate,
            margin: ca.mul_f64(default.margin.div_duration_f64(default.ca)),
            backdating: default.backdating.min(certificate),
            ..default
        }
    }

    /// Returns when to renew this certificate. The time depends on the certificate and these settings alone, so every
    /// leader computes the same time.
    #[must_use]
    pub fn renew_at(&self, certificate: &CertificateDer<'_>, not_before: Timestamp, not_after: Timestamp) -> Timestamp {
        let issued = not_before.saturating_add(self.backdating).unwrap_or(not_before);
        // A certificate whose lifetime is shorter than the backdating was created by another tool, without backdating.
        let issued = if issued < not_after { issued } else { not_before };
        let life = Duration::try_from(not_after.duration_since(issued)).unwrap_or_default().as_nanos();
        let share = life * u128::from(self.renew_percent.min(100)) / 100;
        let chance = Sha256::digest(certificate).iter().take(2).fold(0, |number, byte| number << 8 | u128::from(*byte));
        let jitter = share * u128::from(self.jitter_percent.min(100)) / 100 * chance / (1 << 16);
        let after = u64::try_from(share - jitter).map_or(Duration::MAX, Duration::from_nanos);
        issued.saturating_add(after).map_or(not_after, |at| at.min(not_after))
    }
}

/// Truncates to whole seconds, the resolution of times in certificates.
fn whole_seconds(time: Timestamp) -> Timestamp {
    Timestamp::from_second(time.as_second()).unwrap_or(time)
}

/// OID of id-ce-nameConstraints.
const NAME_CONSTRAINTS: [u64; 4] = [2, 5, 29, 30];
/// Tag of `dNSName` in a `GeneralName`.
const DNS_NAME: u64 = 2;

/// Why a certificate could not be created.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum IssueError {
    /// The CA does not exist.
    #[error("CA {} does not exist: expected the record's active or next CA", .0.0)]
    NoCa(Generation),
    /// The CA has no key.
    #[error("CA {} cannot sign: its key was deleted when its successor took over", .0.0)]
    NoKey(Generation),
    /// The CA has expired, or its remaining validity is too short for signing.
    #[error(
        "CA {} expires at {not_after}, too soon to sign a serving certificate at {now}: it must be replaced",
        .generation.0
    )]
    Ended {
        /// The CA.
        generation: Generation,
        /// End of the CA's validity.
        not_after: Timestamp,
        /// The local time when the certificate was requested.
        now: Timestamp,
    },
    /// The name is invalid in a certificate.
    #[error("the name {0:?} is not allowed in a certificate: expected a DNS name")]
    NotAName(String),
    /// The library returned an error.
    #[error("the certificate cannot be created: {0}")]
    Library(String),
    /// Clients would not trust the new certificate: for example, the CA may not sign for the requested name.
    #[error("the new certificate would not be trusted: {0}; check the clock, and that the CA may sign for these names")]
    Untrusted(#[source] InvalidPair),
}

impl IssueError {
    /// Whether the CA prevents signing, so that a retry cannot succeed: it has expired or expires too soon, or clients
    /// would not trust its certificates for these names.
    #[must_use]
    pub(crate) const fn is_final(&self) -> bool {
        matches!(self, Self::Ended { .. } | Self::Untrusted(_))
    }
}

impl From<rcgen::Error> for IssueError {
    fn from(error: rcgen::Error) -> Self {
        Self::Library(error.to_string())
    }
}

/// The inputs for creating certificates.
#[derive(Clone, Copy, Debug)]
pub struct Issuing<'i> {
    /// The release that the certificates belong to.
    pub release: &'i Release,
    /// The lifetimes of the certificates.
    pub lifetimes: &'i Lifetimes,
    /// The current time.
    pub now: Timestamp,
}

/// A serving certificate with its key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServingMaterial {
    /// The CA that signed the serving certificate.
    pub signer: Generation,
    /// End of the serving certificate's validity.
    pub not_after: Timestamp,
    /// When to renew the serving certificate.
    pub renew_at: Timestamp,
    certificate: CertificateDer<'static>,
    key: PrivateKey,
    ca: CertificateDer<'static>,
}

impl ServingMaterial {
    /// The serving certificate.
    #[must_use]
    pub const fn certificate(&self) -> &CertificateDer<'static> {
        &self.certificate
    }

    /// The serving certificate as PEM.
    #[must_use]
    pub fn pem(&self) -> String {
        pem(&self.certificate)
    }

    /// The private key.
    #[must_use]
    pub const fn key(&self) -> &PrivateKey {
        &self.key
    }

    /// The certificate of the CA that signed the serving certificate, as PEM.
    #[must_use]
    pub fn ca_pem(&self) -> String {
        pem(&self.ca)
    }
}

impl Issuing<'_> {
    /// Creates a CA that may sign for the names of the release's webhook and trust probe.
    ///
    /// # Errors
    /// The library could not create the key or the certificate.
    pub fn ca(self, generation: Generation) -> Result<CaMaterial, IssueError> {
        let not_after = self.end_after(self.lifetimes.ca);
        let mut params = self.params(not_after);
        let tag = random::token();
        params.distinguished_name = ca_name(self.release, generation, tag.get(..8).unwrap_or(&tag));
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
        let names = [self.release.server_names(), self.release.trust_probe_names()].concat();
        params.custom_extensions = vec![name_constraints(&names)];
        let key = KeyPair::generate()?;
        let certificate = params.self_signed(&key)?.into();
        let facts = rotation::Ca { generation, created: whole_seconds(self.now), not_after, has_key: true };
        Ok(CaMaterial { facts, certificate, key: Some(PrivateKey(key.serialize_pem())) })
    }

    /// Creates a serving certificate for `names`. API servers verify the first name.
    ///
    /// # Errors
    /// The CA has no key or expires too soon, a name is invalid, the library fails, or clients would not trust the
    /// certificate.
    pub fn serving_certificate(self, signer: &CaMaterial, names: &[String]) -> Result<ServingMaterial, IssueError> {
        let rotation::Ca { generation, not_after: end, .. } = signer.facts;
        let key = signer.key.as_ref().ok_or(IssueError::NoKey(generation))?;
        let not_after = self.certificate_end(signer.facts);
        if not_after <= self.now {
            return Err(IssueError::Ended { generation, not_after: end, now: self.now });
        }
        let mut params = self.params(not_after);
        params.distinguished_name = distinguished_name(self.release, SERVING_NAME.to_owned());
        // With an explicit "not a CA", the library also adds the subject key identifier.
        params.is_ca = IsCa::ExplicitNoCa;
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        for name in names {
            let name = name.as_str().try_into().map_err(|_| IssueError::NotAName(name.clone()))?;
            params.subject_alt_names.push(SanType::DnsName(name));
        }
        let issuer = Issuer::from_ca_cert_der(&signer.certificate, KeyPair::from_pem(key.pem())?)?;
        let key = KeyPair::generate()?;
        let certificate: CertificateDer<'static> = params.signed_by(&key, &issuer)?.into();
        let (ca, key) = (signer.certificate.clone(), PrivateKey(key.serialize_pem()));
        let trusted = Some(std::slice::from_ref(&ca));
        let valid = judge::judge(
            pem(&certificate).as_bytes(),
            key.pem().as_bytes(),
            Expected { names, now: self.now, trusted },
        );
        let valid = valid.map_err(IssueError::Untrusted)?;
        let renew_at = self.lifetimes.renew_at(&certificate, valid.not_before, valid.not_after);
        Ok(ServingMaterial { signer: generation, not_after, renew_at, certificate, key, ca })
    }

    /// Returns the end of a serving certificate's validity. The certificate is valid for its full lifetime, but it
    /// expires at least [`Lifetimes::margin`] before its CA. If that would leave less than half of the lifetime, the
    /// certificate is valid for half of the lifetime, but not longer than the CA.
    fn certificate_end(self, signer: rotation::Ca) -> Timestamp {
        let wanted = self.end_after(self.lifetimes.certificate);
        let latest = signer.not_after.checked_sub(self.lifetimes.margin).unwrap_or(Timestamp::MIN);
        let half = self.end_after(self.lifetimes.certificate / 2);
        if latest >= half { wanted.min(whole_seconds(latest)) } else { half.min(signer.not_after) }
    }

    fn end_after(self, life: Duration) -> Timestamp {
        whole_seconds(self.now.checked_add(life).unwrap_or(Timestamp::MAX))
    }

    /// Returns the parameters that CAs and serving certificates share.
    fn params(self, not_after: Timestamp) -> CertificateParams {
        // The library derives the serial number from the random key.
        let mut params = CertificateParams::default();
        params.use_authority_key_identifier_extension = true;
        let not_before = self.now.checked_sub(self.lifetimes.backdating).unwrap_or(self.now);
        for (field, time) in [(&mut params.not_before, not_before), (&mut params.not_after, not_after)] {
            let seconds = u64::try_from(time.as_second()).unwrap_or_default();
            *field = rcgen::date_time_ymd(1970, 1, 1) + Duration::from_secs(seconds);
        }
        params
    }
}

/// Builds the extension that restricts a CA to `names` and their subdomains. The function that rcgen offers for this
/// would mark the extension as critical.
fn name_constraints(names: &[String]) -> CustomExtension {
    let content = yasna::construct_der(|writer| {
        writer.write_sequence(|writer| {
            writer.next().write_tagged_implicit(Tag::context(0), |writer| {
                writer.write_sequence(|writer| {
                    for name in names {
                        writer.next().write_sequence(|writer| {
                            let write = |writer: yasna::DERWriter<'_>| writer.write_ia5_string(name);
                            writer.next().write_tagged_implicit(Tag::context(DNS_NAME), write);
                        });
                    }
                });
            });
        });
    });
    CustomExtension::from_oid_content(&NAME_CONSTRAINTS, content)
}
