//! Creates CAs and serving certificates: ECDSA P-256.
//!
//! A CA may sign only for the release's own names: a stolen key can impersonate the webhook, and nothing else. The
//! restriction is not marked critical, since some clients reject a certificate with an unknown critical extension;
//! clients that know it enforce it anyway.

use jiff::Timestamp;
use rcgen::{
    BasicConstraints, CertificateParams, CustomExtension, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, SanType, SerialNumber,
};
use rustls::crypto::aws_lc_rs;
use rustls_pki_types::CertificateDer;
use yasna::Tag;

use super::judge::{self, Expected};
use super::lifetimes::{Lifetimes, whole_seconds};
use super::{AuthorityMaterial, PrivateKey, Unfit, identity, pem};
use crate::certificates::rotation::{self, Generation};
use crate::release::Release;

/// OID of id-ce-nameConstraints.
const NAME_CONSTRAINTS: [u64; 4] = [2, 5, 29, 30];
/// Tag of `dNSName` in a `GeneralName`.
const DNS_NAME: u64 = 2;

/// The source of serial numbers. Keys always use the operating system's randomness.
pub trait Randomness: Send {
    /// Fills the buffer with random bytes.
    ///
    /// # Errors
    /// No randomness is available.
    fn fill(&mut self, bytes: &mut [u8]) -> Result<(), MakeError>;
}

/// The operating system's randomness.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemRandomness;

impl Randomness for SystemRandomness {
    fn fill(&mut self, bytes: &mut [u8]) -> Result<(), MakeError> {
        aws_lc_rs::default_provider().secure_random.fill(bytes).map_err(|_| MakeError::NoRandomness)
    }
}

/// Why a certificate could not be created.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum MakeError {
    /// The CA does not exist.
    #[error("there is no authority {0:?} that could sign: expected the record's active or next one")]
    NoAuthority(Generation),
    /// The CA has no key.
    #[error("authority {0:?} cannot sign any more: its key was deleted when its successor took over")]
    NoKey(Generation),
    /// The CA has expired, or its remaining validity is too short for signing.
    #[error("authority {generation:?} ends at {not_after}: too soon to sign a leaf at {now}; it has to be replaced")]
    Ended {
        /// The CA.
        generation: Generation,
        /// End of its validity.
        not_after: Timestamp,
        /// The local time at that moment.
        now: Timestamp,
    },
    /// The name is invalid in a certificate.
    #[error("the name {0:?} cannot stand in a certificate: expected a DNS name")]
    NotAName(String),
    /// No randomness is available.
    #[error("the operating system gives no random bytes")]
    NoRandomness,
    /// The library returned an error.
    #[error("the certificate cannot be made: {0}")]
    Library(String),
    /// The new certificate is invalid: for example, the CA may not sign for such a name.
    #[error("the new leaf would not be trusted: {0}; is the clock right, and was the authority made for these names?")]
    Unfit(#[source] Unfit),
}

impl MakeError {
    /// Whether a retry cannot succeed: the CA has expired, or may not sign for these names.
    #[must_use]
    pub const fn is_final(&self) -> bool {
        matches!(self, Self::Ended { .. } | Self::Unfit(_))
    }
}

impl From<rcgen::Error> for MakeError {
    fn from(error: rcgen::Error) -> Self {
        Self::Library(error.to_string())
    }
}

/// The inputs for creating certificates.
pub struct Making<'m> {
    /// The release that owns them.
    pub release: &'m Release,
    /// Their lifetimes.
    pub lifetimes: &'m Lifetimes,
    /// The current time.
    pub now: Timestamp,
    /// The source of serial numbers.
    pub random: &'m mut dyn Randomness,
}

/// A serving certificate with its key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeafMaterial {
    /// The CA that signed it.
    pub signer: Generation,
    /// End of its validity.
    pub not_after: Timestamp,
    /// When to renew it.
    pub renew_at: Timestamp,
    certificate: CertificateDer<'static>,
    key: PrivateKey,
    authority: CertificateDer<'static>,
}

impl LeafMaterial {
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

    /// Its key.
    #[must_use]
    pub const fn key(&self) -> &PrivateKey {
        &self.key
    }

    /// The certificate of the CA that signed it, PEM.
    #[must_use]
    pub fn authority_pem(&self) -> String {
        pem(&self.authority)
    }
}

impl Making<'_> {
    /// Creates a CA that may sign for the names of the release's webhook and trust probe, and for those in `besides`.
    ///
    /// # Errors
    /// See [`MakeError`].
    pub fn authority(&mut self, generation: Generation, besides: &[String]) -> Result<AuthorityMaterial, MakeError> {
        let not_after = self.end_after(self.lifetimes.authority);
        let mut tag = [0; 4];
        self.random.fill(&mut tag)?;
        let mut params = self.params(not_after)?;
        params.distinguished_name = identity::of_authority(self.release, generation, u32::from_be_bytes(tag));
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
        let mut names = [self.release.server_names(), self.release.canary_names()].concat();
        names.extend_from_slice(besides);
        params.custom_extensions = vec![name_constraints(&names)?];
        let key = KeyPair::generate()?;
        let certificate = params.self_signed(&key)?.into();
        let facts = rotation::Authority { generation, created: whole_seconds(self.now), not_after, has_key: true };
        Ok(AuthorityMaterial { facts, certificate, key: Some(PrivateKey(key.serialize_pem())) })
    }

    /// Creates a serving certificate for these names; the API server calls the first one.
    ///
    /// # Errors
    /// See [`MakeError`].
    pub fn leaf(&mut self, signer: &AuthorityMaterial, names: &[String]) -> Result<LeafMaterial, MakeError> {
        let rotation::Authority { generation, not_after: end, .. } = signer.facts;
        let key = signer.key.as_ref().ok_or(MakeError::NoKey(generation))?;
        let not_after = self.leaf_end(signer.facts);
        if not_after <= self.now {
            return Err(MakeError::Ended { generation, not_after: end, now: self.now });
        }
        let mut params = self.params(not_after)?;
        params.distinguished_name = identity::of_leaf(self.release);
        // An explicit "not a CA": the library then adds the identifier of its key.
        params.is_ca = IsCa::ExplicitNoCa;
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        for name in names {
            let name = name.as_str().try_into().map_err(|_| MakeError::NotAName(name.clone()))?;
            params.subject_alt_names.push(SanType::DnsName(name));
        }
        let issuer = Issuer::from_ca_cert_der(&signer.certificate, KeyPair::from_pem(key.pem())?)?;
        let key = KeyPair::generate()?;
        let certificate: CertificateDer<'static> = params.signed_by(&key, &issuer)?.into();
        let (authority, key) = (signer.certificate.clone(), PrivateKey(key.serialize_pem()));
        let trusted = Some(std::slice::from_ref(&authority));
        let fit = judge::judge(
            pem(&certificate).as_bytes(),
            key.pem().as_bytes(),
            Expected { names, now: self.now, trusted },
        );
        let fit = fit.map_err(MakeError::Unfit)?;
        let renew_at = self.lifetimes.renew_at(&certificate, fit.not_before, fit.not_after);
        Ok(LeafMaterial { signer: generation, not_after, renew_at, certificate, key, authority })
    }

    /// End of a serving certificate: well before its CA's end. In the last days of a CA that cannot be replaced, the
    /// certificate may last until the CA's end.
    fn leaf_end(&self, signer: rotation::Authority) -> Timestamp {
        let wanted = self.end_after(self.lifetimes.leaf);
        let latest = signer.not_after.checked_sub(self.lifetimes.margin).unwrap_or(Timestamp::MIN);
        let half = self.end_after(self.lifetimes.leaf / 2);
        if latest >= half { wanted.min(whole_seconds(latest)) } else { half.min(signer.not_after) }
    }

    fn end_after(&self, life: std::time::Duration) -> Timestamp {
        whole_seconds(self.now.checked_add(life).unwrap_or(Timestamp::MAX))
    }

    /// The parameters that CAs and serving certificates share.
    fn params(&mut self, not_after: Timestamp) -> Result<CertificateParams, MakeError> {
        let mut serial = [0; 16];
        self.random.fill(&mut serial)?;
        let mut params = CertificateParams::default();
        params.serial_number = Some(SerialNumber::from_slice(&serial));
        params.use_authority_key_identifier_extension = true;
        let not_before = self.now.checked_sub(self.lifetimes.backdating).unwrap_or(self.now);
        for (field, time) in [(&mut params.not_before, not_before), (&mut params.not_after, not_after)] {
            let seconds = u64::try_from(time.as_second()).unwrap_or_default();
            *field = rcgen::date_time_ymd(1970, 1, 1) + std::time::Duration::from_secs(seconds);
        }
        Ok(params)
    }
}

/// The extension that restricts a CA to these names and their subdomains. The library would mark it critical.
fn name_constraints(names: &[String]) -> Result<CustomExtension, MakeError> {
    if let Some(name) = names.iter().find(|name| !pillion_api::names::is_dns_name(name)) {
        return Err(MakeError::NotAName(name.clone()));
    }
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
    Ok(CustomExtension::from_oid_content(&NAME_CONSTRAINTS, content))
}
