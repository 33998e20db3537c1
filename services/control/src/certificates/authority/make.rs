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

/// id-ce-nameConstraints
const NAME_CONSTRAINTS: [u64; 4] = [2, 5, 29, 30];
/// A DNS name among the kinds of names there are.
const DNS_NAME: u64 = 2;

/// Where serial numbers come from. Keys always come from the operating system's.
pub trait Randomness: Send {
    /// Fills this with random bytes.
    ///
    /// # Errors
    /// There are none to be had.
    fn fill(&mut self, bytes: &mut [u8]) -> Result<(), MakeError>;
}

/// The operating system's.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemRandomness;

impl Randomness for SystemRandomness {
    fn fill(&mut self, bytes: &mut [u8]) -> Result<(), MakeError> {
        aws_lc_rs::default_provider().secure_random.fill(bytes).map_err(|_| MakeError::NoRandomness)
    }
}

/// Why a certificate cannot be made.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum MakeError {
    /// There is no such authority.
    #[error("there is no authority {0:?} that could sign: expected the record's active or next one")]
    NoAuthority(Generation),
    /// The authority has no key.
    #[error("authority {0:?} cannot sign any more: its key was deleted when its successor took over")]
    NoKey(Generation),
    /// The authority has ended, or lives too short to sign anything.
    #[error("authority {generation:?} ends at {not_after}: too soon to sign a leaf at {now}; it has to be replaced")]
    Ended {
        /// Which.
        generation: Generation,
        /// When.
        not_after: Timestamp,
        /// By whose clock.
        now: Timestamp,
    },
    /// A name cannot stand in a certificate.
    #[error("the name {0:?} cannot stand in a certificate: expected a DNS name")]
    NotAName(String),
    /// There is no randomness.
    #[error("the operating system gives no random bytes")]
    NoRandomness,
    /// The library refuses.
    #[error("the certificate cannot be made: {0}")]
    Library(String),
    /// What came of it is not good: the authority may not sign for such a name, say.
    #[error("the new leaf would not be trusted: {0}; is the clock right, and was the authority made for these names?")]
    Unfit(#[source] Unfit),
}

impl MakeError {
    /// Whether trying again will not do: the authority has ended, or may not sign for these names.
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

/// What certificates are made with.
pub struct Making<'m> {
    /// Whose they are.
    pub release: &'m Release,
    /// How long they live.
    pub lifetimes: &'m Lifetimes,
    /// What time it is.
    pub now: Timestamp,
    /// Where serial numbers come from.
    pub random: &'m mut dyn Randomness,
}

/// A leaf with its key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeafMaterial {
    /// Who signed it.
    pub signer: Generation,
    /// When it ends.
    pub not_after: Timestamp,
    /// When it is to be renewed.
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

    /// The certificate of the authority that signed it, PEM.
    #[must_use]
    pub fn authority_pem(&self) -> String {
        pem(&self.authority)
    }
}

impl Making<'_> {
    /// A new authority, which may sign for the names of the release's webhook and canary, and for those `besides`.
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

    /// A new leaf for these names, the first of which is the API server's own.
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
        // No authority, and said so: with it comes the identifier of its key.
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

    /// When a leaf ends: well before its authority; but in the last days of an authority, which one that cannot be replaced
    /// may come to, with it, as that is better than none.
    fn leaf_end(&self, signer: rotation::Authority) -> Timestamp {
        let wanted = self.end_after(self.lifetimes.leaf);
        let latest = signer.not_after.checked_sub(self.lifetimes.margin).unwrap_or(Timestamp::MIN);
        let half = self.end_after(self.lifetimes.leaf / 2);
        if latest >= half { wanted.min(whole_seconds(latest)) } else { half.min(signer.not_after) }
    }

    fn end_after(&self, life: std::time::Duration) -> Timestamp {
        whole_seconds(self.now.checked_add(life).unwrap_or(Timestamp::MAX))
    }

    /// What authorities and leaves have in common.
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

/// The extension by which an authority may sign for these names (and names below them) only. The library would mark it critical.
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
