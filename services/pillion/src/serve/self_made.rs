//! Creates a certificate for a developer's machine: a CA whose key is dropped at once, and one serving certificate.
//!
//! There are two certificates instead of a self-signed one, because some clients reject a CA certificate as a server's.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use anyhow::Context;
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa, KeyPair,
    KeyUsagePurpose, SanType,
};

/// A serving certificate, its key, and its CA; all PEM.
pub(crate) struct SelfMade {
    pub(crate) authority: String,
    pub(crate) certificate: String,
    pub(crate) key: String,
}

/// Creates a certificate for `localhost`, the loopback addresses, and the listening address.
///
/// # Errors
/// The cryptography library fails.
pub(crate) fn certificate(listen: IpAddr) -> anyhow::Result<SelfMade> {
    let mut params = named("Pillion dev authority")?;
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
    let authority = CertifiedIssuer::self_signed(params, key()?).context("cannot sign the authority")?;

    let mut params = named("Pillion dev")?;
    params.subject_alt_names = vec![SanType::DnsName("localhost".try_into().context("cannot name the certificate")?)];
    let loopback: [IpAddr; 2] = [Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into()];
    params.subject_alt_names.extend(loopback.map(SanType::IpAddress));
    if !listen.is_loopback() && !listen.is_unspecified() {
        params.subject_alt_names.push(SanType::IpAddress(listen));
    }
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    params.use_authority_key_identifier_extension = true;
    let key = key()?;
    let leaf = params.signed_by(&key, &authority).context("cannot sign the certificate")?;
    Ok(SelfMade { authority: authority.pem(), certificate: leaf.pem(), key: key.serialize_pem() })
}

/// Generates an ECDSA P-256 key.
fn key() -> anyhow::Result<KeyPair> {
    KeyPair::generate().context("cannot make a key")
}

fn named(name: &str) -> anyhow::Result<CertificateParams> {
    let mut params = CertificateParams::new(Vec::new()).context("cannot describe a certificate")?;
    params.distinguished_name.push(DnType::CommonName, name);
    Ok(params)
}
