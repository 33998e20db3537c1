//! Reads and checks the serving certificate from PEM text, and replaces it while connections are open.
//!
//! [`crate::clients`] authenticates clients. [`crate::serve::Tls`] combines the serving certificate and the
//! authentication.
//!
//! The [`rustls::ServerConfig`] is never replaced. At each handshake, it reads the certificate from a
//! [`ServingCertificate`]. So replacing the certificate is one pointer store, and does not affect open connections.

use std::sync::Arc;

use arc_swap::ArcSwapOption;
use rustls::InconsistentKeys;
use rustls::crypto::CryptoProvider;
use rustls::crypto::aws_lc_rs;
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use rustls_pki_types::pem::{self, PemObject};
use rustls_pki_types::{CertificateDer, PrivateKeyDer};

/// PEM text, and its source, which error messages name.
#[derive(Clone, Copy)]
pub struct PemText<'t> {
    /// The path of a file, or for example "Secret pillion/serving-certificate, key tls.crt".
    pub source: &'t str,
    /// The PEM text itself.
    pub text: &'t [u8],
}

/// Why a certificate and its key cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CertificateError {
    /// A PEM section in the input is malformed or truncated.
    #[error("{origin} is not PEM text: {error}; expected {expected}")]
    NotPem {
        /// The source of the input.
        origin: String,
        /// The error of the PEM parser.
        error: pem::Error,
        /// The expected content.
        expected: &'static str,
    },
    /// The input has no certificate.
    #[error(
        "{origin} has no certificate: expected the serving certificate first, then its intermediates, each as BEGIN CERTIFICATE"
    )]
    NoCertificate {
        /// The source of the input.
        origin: String,
    },
    /// The input has no private key.
    #[error(
        "{origin} has no private key: expected one, as BEGIN PRIVATE KEY, BEGIN EC PRIVATE KEY or BEGIN RSA PRIVATE KEY"
    )]
    NoKey {
        /// The source of the input.
        origin: String,
    },
    /// The private key is malformed, or a key of its type cannot sign a handshake.
    #[error(
        "the private key in {origin} cannot be used: {error}; expected ECDSA P-256 or P-384, Ed25519, or RSA of 2048 bits or more"
    )]
    UnusableKey {
        /// The source of the input.
        origin: String,
        /// The error of the TLS library.
        error: rustls::Error,
    },
    /// The first certificate cannot be parsed.
    #[error("the first certificate in {origin} is not X.509: {error}")]
    UnreadableCertificate {
        /// The source of the input.
        origin: String,
        /// The error of the TLS library.
        error: rustls::Error,
    },
    /// The certificate and the key do not match.
    #[error(
        "the private key in {key} does not belong to the first certificate in {certificate}: one of the two was replaced \
         without the other, or the serving certificate is not the first one"
    )]
    Mismatch {
        /// The source of the certificate.
        certificate: String,
        /// The source of the key.
        key: String,
    },
}

/// The certificate for new handshakes. While there is none, handshakes fail with an alert.
#[derive(Debug)]
pub struct ServingCertificate {
    current: ArcSwapOption<CertifiedKey>,
}

impl std::fmt::Debug for PemText<'_> {
    /// Omits the PEM text, which may contain a private key.
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("PemText").field("source", &self.source).finish_non_exhaustive()
    }
}

impl ServingCertificate {
    /// Reads and validates a certificate and its key.
    pub fn new(certificate: PemText<'_>, key: PemText<'_>) -> Result<Arc<Self>, CertificateError> {
        let current = ArcSwapOption::from_pointee(load(certificate, key)?);
        Ok(Arc::new(Self { current }))
    }

    /// Creates a value without a certificate. Handshakes fail until [`ServingCertificate::swap`] sets one.
    #[must_use]
    pub fn awaited() -> Arc<Self> {
        Arc::new(Self { current: ArcSwapOption::empty() })
    }

    /// Reads and validates a certificate and its key. The next handshake uses them. Returns `false` if the certificate
    /// is already active. On an error, the previous certificate remains active.
    pub fn swap(&self, certificate: PemText<'_>, key: PemText<'_>) -> Result<bool, CertificateError> {
        let fresh = load(certificate, key)?;
        let changed = self.current.load().as_ref().is_none_or(|current| fresh.cert != current.cert);
        self.current.store(Some(Arc::new(fresh)));
        Ok(changed)
    }

    /// Returns the serving certificate without its intermediates. `None`: no certificate is set yet.
    #[must_use]
    pub fn der(&self) -> Option<CertificateDer<'static>> {
        self.current.load().as_ref()?.cert.first().cloned()
    }
}

impl ResolvesServerCert for ServingCertificate {
    /// Returns the same certificate for every server name. The API server verifies it against the name that it connects
    /// to.
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        self.current.load_full()
    }
}

/// Returns the cryptography provider. Callers pass it to rustls explicitly, because the process-wide default panics if
/// the build has two providers.
pub(crate) fn provider() -> Arc<CryptoProvider> {
    Arc::new(aws_lc_rs::default_provider())
}

fn load(certificate: PemText<'_>, key: PemText<'_>) -> Result<CertifiedKey, CertificateError> {
    let not_pem = |origin: &str, expected| {
        let origin = origin.to_owned();
        move |error| CertificateError::NotPem { origin, error, expected }
    };
    let chain = CertificateDer::pem_slice_iter(certificate.text)
        .collect::<Result<Vec<_>, _>>()
        .map_err(not_pem(certificate.source, "one or more BEGIN CERTIFICATE sections"))?;
    if chain.is_empty() {
        return Err(CertificateError::NoCertificate { origin: certificate.source.to_owned() });
    }
    let der = PrivateKeyDer::from_pem_slice(key.text).map_err(|error| match error {
        pem::Error::NoItemsFound => CertificateError::NoKey { origin: key.source.to_owned() },
        error => not_pem(key.source, "a BEGIN PRIVATE KEY section")(error),
    })?;
    let signing = provider()
        .key_provider
        .load_private_key(der)
        .map_err(|error| CertificateError::UnusableKey { origin: key.source.to_owned(), error })?;
    let loaded = CertifiedKey::new(chain, signing);
    match loaded.keys_match() {
        // `Unknown` means that the key does not expose its public key. In that case only a handshake can reveal a
        // mismatch.
        Ok(()) | Err(rustls::Error::InconsistentKeys(InconsistentKeys::Unknown)) => Ok(loaded),
        Err(rustls::Error::InconsistentKeys(_)) => {
            Err(CertificateError::Mismatch { certificate: certificate.source.to_owned(), key: key.source.to_owned() })
        }
        Err(error) => Err(CertificateError::UnreadableCertificate { origin: certificate.source.to_owned(), error }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pair() -> (String, String) {
        let generated = rcgen::generate_simple_self_signed(vec!["pillion.test".to_owned()]).unwrap();
        (generated.cert.pem(), generated.signing_key.serialize_pem())
    }

    fn cert(text: &str) -> PemText<'_> {
        PemText { source: "tls.crt", text: text.as_bytes() }
    }

    fn key(text: &str) -> PemText<'_> {
        PemText { source: "tls.key", text: text.as_bytes() }
    }

    #[test]
    fn errors_name_source_and_mistake() {
        let (first, first_key) = pair();
        let (_, other_key) = pair();
        let broken = "-----BEGIN CERTIFICATE-----\nMIIB\n";
        let nonsense = "-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----\n";
        let useless = "-----BEGIN PRIVATE KEY-----\nMIIB\n-----END PRIVATE KEY-----\n";
        for (certificate, private, expected) in [
            ("", &*first_key, "tls.crt has no certificate"),
            (&*first_key, &*first_key, "tls.crt has no certificate"),
            (broken, &*first_key, "tls.crt is not PEM text"),
            (nonsense, &*first_key, "the first certificate in tls.crt is not X.509"),
            (&*first, "", "tls.key has no private key"),
            (&*first, &*first, "tls.key has no private key"),
            (&*first, useless, "the private key in tls.key cannot be used"),
            (&*first, &*other_key, "the private key in tls.key does not belong to the first certificate in tls.crt"),
        ] {
            let error = ServingCertificate::new(cert(certificate), key(private)).unwrap_err().to_string();
            assert!(error.starts_with(expected), "{error:?} does not start with {expected:?}");
        }
    }

    #[test]
    fn invalid_swap_keeps_old_certificate() {
        let (first, first_key) = pair();
        let (second, second_key) = pair();
        let serving = ServingCertificate::new(cert(&first), key(&first_key)).unwrap();
        let before = serving.current.load_full().unwrap();

        serving.swap(cert(&second), key(&first_key)).unwrap_err();
        assert!(Arc::ptr_eq(&before, &serving.current.load_full().unwrap()));

        assert!(!serving.swap(cert(&first), key(&first_key)).unwrap(), "the same certificate was reported as a change");
        assert!(serving.swap(cert(&second), key(&second_key)).unwrap());
        assert_ne!(before.cert.first().cloned(), serving.der());
    }

    #[test]
    fn awaited_certificate_is_none_until_swap() {
        let (first, first_key) = pair();
        let awaited = ServingCertificate::awaited();
        assert_eq!(awaited.der(), None);
        awaited.swap(cert(&first), key("broken")).unwrap_err();
        assert_eq!(awaited.der(), None);
        assert!(awaited.swap(cert(&first), key(&first_key)).unwrap());
        assert!(awaited.der().is_some() && !awaited.swap(cert(&first), key(&first_key)).unwrap());
    }

    #[test]
    fn debug_output_omits_private_key() {
        let (_, text) = pair();
        let shown = format!("{:?}", key(&text));
        assert!(shown.contains("tls.key") && !shown.contains("PRIVATE KEY"), "{shown}");
    }
}
