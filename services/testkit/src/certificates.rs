//! A CA for tests: ECDSA P-256, as in production, with certificates that do not expire during a test.

use std::path::{Path, PathBuf};

use anyhow::Context;
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa, KeyPair,
    KeyUsagePurpose,
};

/// A CA. Its key exists only in the memory of this process.
#[derive(Debug)]
pub struct TestCa {
    issuer: CertifiedIssuer<'static, KeyPair>,
}

/// A certificate and its key as files in PEM form.
#[derive(Debug, Clone)]
pub struct TlsFiles {
    /// The certificate.
    pub cert: PathBuf,
    /// The private key (PKCS #8).
    pub key: PathBuf,
}

impl TestCa {
    /// Creates a CA with its own key. So a client that trusts only this CA rejects the certificates of other test CAs.
    ///
    /// # Errors
    /// The cryptography library fails.
    pub fn new() -> anyhow::Result<Self> {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, "pillion test CA");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let key = KeyPair::generate().context("generating the test CA's key")?;
        let issuer = CertifiedIssuer::self_signed(params, key).context("signing the test CA")?;
        Ok(Self { issuer })
    }

    /// Creates a serving certificate for these names and IP addresses. Returns the certificate and its key in PEM form.
    ///
    /// # Errors
    /// A name is not valid in a certificate.
    pub fn serving(&self, names: &[&str]) -> anyhow::Result<(String, String)> {
        let names: Vec<String> = names.iter().map(ToString::to_string).collect();
        let mut params = CertificateParams::new(names.clone())
            .with_context(|| format!("{names:?} are not all valid in a certificate"))?;
        params.distinguished_name.push(DnType::CommonName, "pillion test certificate");
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        // The test CAs have the same subject. Without this extension, clients cannot tell which of them issued a
        // certificate.
        params.use_authority_key_identifier_extension = true;
        let key = KeyPair::generate().context("generating a certificate's key")?;
        let certificate = params.signed_by(&key, &self.issuer).context("signing a serving certificate")?;
        Ok((certificate.pem(), key.serialize_pem()))
    }

    /// Creates a certificate with [`TestCa::serving`]. Writes it to `NAME.crt` and its key to `NAME.key` in `dir`.
    ///
    /// # Errors
    /// As [`TestCa::serving`], or the files cannot be written.
    pub fn serving_files(&self, dir: &Path, name: &str, names: &[&str]) -> anyhow::Result<TlsFiles> {
        let (cert_pem, key_pem) = self.serving(names)?;
        let files = TlsFiles { cert: dir.join(format!("{name}.crt")), key: dir.join(format!("{name}.key")) };
        for (path, text) in [(&files.cert, cert_pem), (&files.key, key_pem)] {
            std::fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))?;
        }
        Ok(files)
    }

    /// Creates a client certificate with this common name. Writes it to `NAME.crt` and its key to `NAME.key` in `dir`.
    ///
    /// # Errors
    /// The cryptography library fails, or the files cannot be written.
    pub fn client_files(&self, dir: &Path, name: &str, common_name: &str) -> anyhow::Result<TlsFiles> {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, common_name);
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        params.use_authority_key_identifier_extension = true;
        let key = KeyPair::generate().context("generating a client's key")?;
        let certificate = params.signed_by(&key, &self.issuer).context("signing a client's certificate")?;
        let files = TlsFiles { cert: dir.join(format!("{name}.crt")), key: dir.join(format!("{name}.key")) };
        for (path, text) in [(&files.cert, certificate.pem()), (&files.key, key.serialize_pem())] {
            std::fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))?;
        }
        Ok(files)
    }

    /// Returns the CA certificate in PEM form, for instance for a `caBundle`.
    #[must_use]
    pub fn bundle_pem(&self) -> String {
        self.issuer.pem()
    }
}

/// Installs aws-lc-rs as the process's cryptography provider. Further calls have no effect.
pub fn install_crypto_provider() {
    // An error means that a provider is already installed.
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
}
