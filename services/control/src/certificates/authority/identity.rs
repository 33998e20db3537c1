//! The name in a CA certificate: its release and its number.
//!
//! Two CAs never share a name, even if everything about one was lost and its number is used again: a verifier looks for
//! the issuer by name first and could confuse them. So the name contains randomness.

use rcgen::{DistinguishedName, DnType};
use rustls_pki_types::CertificateDer;
use x509_parser::prelude::{FromDer, X509Certificate};
use x509_parser::x509::{AttributeTypeAndValue, X509Name};

use crate::certificates::rotation::Generation;
use crate::release::Release;

const AUTHORITY: &str = "Pillion authority ";
const LEAF: &str = "Pillion";

/// Higher numbers are ignored: a foreign certificate in a bundle could otherwise use up the numbers.
pub(super) const MAX_GENERATION: u32 = i32::MAX.unsigned_abs();

/// The name of a CA.
pub(super) fn of_authority(release: &Release, generation: Generation, tag: u32) -> DistinguishedName {
    named(release, format!("{AUTHORITY}{} {tag:08x}", generation.0))
}

/// The name of a serving certificate.
pub(super) fn of_leaf(release: &Release) -> DistinguishedName {
    named(release, LEAF.to_owned())
}

fn named(release: &Release, common_name: String) -> DistinguishedName {
    let mut name = DistinguishedName::new();
    // Two attributes, because one is limited to 64 characters.
    name.push(DnType::OrganizationName, release.namespace());
    name.push(DnType::OrganizationalUnitName, release.name());
    name.push(DnType::CommonName, common_name);
    name
}

/// The number of the CA that a certificate claims to be; `None` if it is none of this release. Only a comparison with
/// the stored certificate proves the claim.
#[must_use]
pub fn claimed(release: &Release, certificate: &CertificateDer<'_>) -> Option<Generation> {
    let (_, certificate) = X509Certificate::from_der(certificate).ok()?;
    generation(release, certificate.subject())
}

/// The number of the release's CA that a serving certificate claims as its issuer.
#[must_use]
pub fn claimed_issuer(release: &Release, leaf: &CertificateDer<'_>) -> Option<Generation> {
    let (_, leaf) = X509Certificate::from_der(leaf).ok()?;
    generation(release, leaf.issuer())
}

/// The CA that a certificate names as its issuer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Issuer {
    /// The namespace of the release.
    pub namespace: Box<str>,
    /// The name of the release.
    pub release: Box<str>,
    /// The CA's number.
    pub generation: Generation,
}

impl Issuer {
    /// The issuer of a serving certificate; `None` if Pillion did not create it. It is only a claim.
    #[must_use]
    pub fn of(leaf: &CertificateDer<'_>) -> Option<Self> {
        let (_, leaf) = X509Certificate::from_der(leaf).ok()?;
        Self::named(leaf.issuer())
    }

    fn named(name: &X509Name<'_>) -> Option<Self> {
        let namespace = only(name.iter_organization())?.into();
        let release = only(name.iter_organizational_unit())?.into();
        let (number, _) = only(name.iter_common_name())?.strip_prefix(AUTHORITY)?.split_once(' ')?;
        Some(Self { namespace, release, generation: number_of(number)? })
    }
}

pub(super) fn generation(release: &Release, name: &X509Name<'_>) -> Option<Generation> {
    let Issuer { namespace, release: of, generation } = Issuer::named(name)?;
    ((&*namespace, &*of) == (release.namespace(), release.name())).then_some(generation)
}

/// Parses a number in a name.
pub(super) fn number_of(text: &str) -> Option<Generation> {
    let is_number = text.bytes().all(|byte| byte.is_ascii_digit());
    text.parse().ok().filter(|number| is_number && *number <= MAX_GENERATION).map(Generation)
}

fn only<'n>(mut attributes: impl Iterator<Item = &'n AttributeTypeAndValue<'n>>) -> Option<&'n str> {
    let first = attributes.next()?.as_str().ok()?;
    attributes.next().is_none().then_some(first)
}

#[cfg(test)]
mod tests {
    use crate::release::DEFAULT_CLUSTER_DOMAIN;

    use super::*;

    fn certificate(name: DistinguishedName) -> CertificateDer<'static> {
        let mut params = rcgen::CertificateParams::default();
        params.distinguished_name = name;
        params.self_signed(&rcgen::KeyPair::generate().unwrap()).unwrap().into()
    }

    #[test]
    fn a_name_says_the_release_and_the_number() {
        let release = Release::new("pillion", "pillion-system", DEFAULT_CLUSTER_DOMAIN).unwrap();
        for number in [1, 7, MAX_GENERATION] {
            let made = certificate(of_authority(&release, Generation(number), 0xab));
            assert_eq!(claimed(&release, &made), Some(Generation(number)));
            assert_eq!(claimed_issuer(&release, &made), Some(Generation(number)));
        }
        for other in [("pillion-2", "pillion-system"), ("pillion", "other")] {
            let other = Release::new(other.0, other.1, DEFAULT_CLUSTER_DOMAIN).unwrap();
            let made = certificate(of_authority(&other, Generation(3), 0));
            assert_eq!(claimed(&release, &made), None, "another release's");
        }
        assert_eq!(claimed(&release, &certificate(of_leaf(&release))), None, "a leaf");
        for text in ["Pillion authority 3", "Pillion authority +3 x", "Pillion authority 2147483648 x", "authority 3 x"]
        {
            assert_eq!(claimed(&release, &certificate(named(&release, text.to_owned()))), None, "{text}");
        }
        let mut twice = named(&release, format!("{AUTHORITY}3 x"));
        twice.push(DnType::CustomDnType(vec![2, 5, 4, 10]), "pillion-system");
        let _ = claimed(&release, &certificate(twice));
        assert_eq!(claimed(&release, &CertificateDer::from(vec![0x30, 0x82])), None, "no certificate");
    }

    #[test]
    fn two_authorities_of_one_number_have_two_names() {
        let release = Release::new("pillion", "pillion-system", DEFAULT_CLUSTER_DOMAIN).unwrap();
        let name = |tag| of_authority(&release, Generation(1), tag);
        assert_ne!(name(1), name(2));
    }
}
