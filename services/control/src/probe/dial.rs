//! Opens one TLS connection to one endpoint and returns its certificate. The handshake proves that the endpoint has the
//! key; [`super::judge`] checks the certificate.

use std::fmt;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature};
use rustls::{ClientConfig, DigitallySignedStruct, Error, SignatureScheme};
use rustls_pki_types::{CertificateDer, ServerName, UnixTime};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;

/// Why an endpoint could not be probed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Unreachable {
    /// It has no address, or no port with this name.
    NoAddress,
    /// The connection failed or was closed.
    Connection,
    /// It did not respond in time.
    Timeout,
    /// The TLS handshake failed: for example, the endpoint lacks the key of its certificate.
    Handshake,
}

impl Unreachable {
    /// All reasons.
    pub const ALL: [Self; 4] = [Self::NoAddress, Self::Connection, Self::Timeout, Self::Handshake];

    /// The reason in logs.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::NoAddress => "no_address",
            Self::Connection => "connection",
            Self::Timeout => "timeout",
            Self::Handshake => "handshake",
        }
    }
}

/// An endpoint's certificate chain, its serving certificate first; never empty.
pub type Chain = Vec<CertificateDer<'static>>;

/// Returns the certificate chain of an endpoint, within the limit.
///
/// # Errors
/// The endpoint could not be probed.
pub async fn dial(socket: SocketAddr, name: ServerName<'static>, limit: Duration) -> Result<Chain, Unreachable> {
    timeout(limit, connect(socket, name)).await.unwrap_or(Err(Unreachable::Timeout))
}

async fn connect(socket: SocketAddr, name: ServerName<'static>) -> Result<Chain, Unreachable> {
    let shown = Arc::new(Shown::new());
    let config = ClientConfig::builder_with_provider(Arc::clone(&shown.provider))
        .with_safe_default_protocol_versions()
        .map_err(|_| Unreachable::Handshake)?;
    let mut config =
        config.dangerous().with_custom_certificate_verifier(Arc::<Shown>::clone(&shown)).with_no_client_auth();
    // The protocol that the API server uses.
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    let stream = TcpStream::connect(socket).await.map_err(|_| Unreachable::Connection)?;
    match TlsConnector::from(Arc::new(config)).connect(name, stream).await {
        Ok(mut stream) => {
            // Close the connection without a request. The endpoint need not notice.
            let _ = stream.shutdown().await;
        }
        Err(error) => {
            let by_tls = error.get_ref().is_some_and(<dyn std::error::Error + Send + Sync>::is::<Error>);
            return Err(if by_tls { Unreachable::Handshake } else { Unreachable::Connection });
        }
    }
    shown.chain().filter(|chain| !chain.is_empty()).ok_or(Unreachable::Handshake)
}

/// Keeps the peer's certificates, whether valid or not. It verifies the handshake's signature, which proves that the
/// peer has the key.
struct Shown {
    provider: Arc<CryptoProvider>,
    chain: Mutex<Option<Chain>>,
}

impl fmt::Debug for Shown {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Shown").finish_non_exhaustive()
    }
}

impl Shown {
    fn new() -> Self {
        Self { provider: Arc::new(rustls::crypto::aws_lc_rs::default_provider()), chain: Mutex::default() }
    }

    fn chain(&self) -> Option<Chain> {
        self.chain.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

impl ServerCertVerifier for Shown {
    fn verify_server_cert(
        &self,
        leaf: &CertificateDer<'_>,
        others: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let chain = std::iter::once(leaf).chain(others).map(|each| each.clone().into_owned()).collect();
        *self.chain.lock().unwrap_or_else(PoisonError::into_inner) = Some(chain);
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        leaf: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls12_signature(message, leaf, signature, &self.provider.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        leaf: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, leaf, signature, &self.provider.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}
