//! Creates certificates from a test CA, and TLS clients.

use std::io;
use std::sync::Arc;

use pillion_webhook::tls::PemText;
use rustls::crypto::aws_lc_rs;
use rustls::{ClientConfig, RootCertStore, SupportedProtocolVersion};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use super::NAME;

/// The TLS settings of a test client.
#[derive(Clone, Debug)]
pub struct ClientTls<'c> {
    /// The CA that the client trusts.
    pub root: &'c str,
    /// The protocols that the client offers by ALPN.
    pub protocols: &'c [&'c str],
    pub versions: &'c [&'static SupportedProtocolVersion],
    /// The client's certificate and key, if any.
    pub identity: Option<&'c (String, String)>,
    /// The server name that the client sends. `None`: the client connects to an IP address, so it sends no name.
    pub name: Option<&'c str>,
}

/// A CA for server and client certificates.
pub struct TestCa {
    issuer: rcgen::CertifiedIssuer<'static, rcgen::KeyPair>,
}

/// The purpose of a certificate.
#[derive(Clone, Copy, Debug)]
pub enum Purpose {
    Server,
    Client,
    /// An expired client certificate.
    ExpiredClient,
}

impl<'c> ClientTls<'c> {
    /// Returns a client without a certificate. It offers HTTP/1.1, TLS 1.2 and TLS 1.3.
    pub fn new(root: &'c str) -> Self {
        Self { root, protocols: &["http/1.1"], versions: rustls::ALL_VERSIONS, identity: None, name: Some(NAME) }
    }

    fn config(&self) -> Arc<ClientConfig> {
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_slice(self.root.as_bytes()).unwrap()).unwrap();
        let builder = ClientConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
            .with_protocol_versions(self.versions)
            .unwrap()
            .with_root_certificates(roots);
        let mut config = match self.identity {
            None => builder.with_no_client_auth(),
            Some((certificate, key)) => builder
                .with_client_auth_cert(
                    CertificateDer::pem_slice_iter(certificate.as_bytes()).map(Result::unwrap).collect(),
                    PrivateKeyDer::from_pem_slice(key.as_bytes()).unwrap(),
                )
                .unwrap(),
        };
        config.alpn_protocols = self.protocols.iter().map(|protocol| protocol.as_bytes().to_vec()).collect();
        Arc::new(config)
    }

    pub async fn connect(&self, stream: TcpStream) -> io::Result<TlsStream<TcpStream>> {
        let name = match self.name {
            Some(name) => ServerName::try_from(name.to_owned()).unwrap(),
            None => ServerName::from(std::net::IpAddr::from([127, 0, 0, 1])),
        };
        TlsConnector::from(self.config()).connect(name, stream).await
    }
}

impl TestCa {
    pub fn new(name: &str) -> Self {
        let mut params = rcgen::CertificateParams::default();
        params.distinguished_name.push(rcgen::DnType::CommonName, name);
        params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        let issuer = rcgen::CertifiedIssuer::self_signed(params, rcgen::KeyPair::generate().unwrap()).unwrap();
        Self { issuer }
    }

    pub fn pem(&self) -> String {
        self.issuer.pem()
    }

    /// Creates a certificate with this common name and these alternative names. Returns it with its key.
    pub fn certificate(&self, purpose: Purpose, common: &str, alternative: Vec<rcgen::SanType>) -> (String, String) {
        let mut params = rcgen::CertificateParams::default();
        params.distinguished_name.push(rcgen::DnType::CommonName, common);
        params.subject_alt_names = alternative;
        params.extended_key_usages = vec![match purpose {
            Purpose::Server => rcgen::ExtendedKeyUsagePurpose::ServerAuth,
            Purpose::Client | Purpose::ExpiredClient => rcgen::ExtendedKeyUsagePurpose::ClientAuth,
        }];
        if matches!(purpose, Purpose::ExpiredClient) {
            params.not_after = rcgen::date_time_ymd(2020, 1, 1);
        }
        let key = rcgen::KeyPair::generate().unwrap();
        (params.signed_by(&key, &self.issuer).unwrap().pem(), key.serialize_pem())
    }

    /// Returns a server certificate for [`NAME`] and the loopback address, and its key.
    pub fn server(&self) -> (String, String) {
        let names =
            vec![rcgen::SanType::DnsName(NAME.try_into().unwrap()), rcgen::SanType::IpAddress([127, 0, 0, 1].into())];
        self.certificate(Purpose::Server, NAME, names)
    }

    pub fn client(&self, common: &str) -> (String, String) {
        self.certificate(Purpose::Client, common, Vec::new())
    }
}

pub async fn connect(stream: TcpStream, root: &str, protocols: &[&str]) -> io::Result<TlsStream<TcpStream>> {
    ClientTls { protocols, ..ClientTls::new(root) }.connect(stream).await
}

/// Returns the `ClientHello` of a client that trusts this CA.
pub fn client_hello(root: &str) -> Vec<u8> {
    let name = ServerName::try_from(NAME).unwrap();
    let mut client = rustls::ClientConnection::new(ClientTls::new(root).config(), name).unwrap();
    let mut hello = Vec::new();
    client.write_tls(&mut hello).unwrap();
    hello
}

/// Returns a self-signed certificate and its key.
pub fn certificate() -> (String, String) {
    let generated = rcgen::generate_simple_self_signed(vec![NAME.to_owned()]).unwrap();
    (generated.cert.pem(), generated.signing_key.serialize_pem())
}

pub fn cert_text(text: &str) -> PemText<'_> {
    PemText { source: "tls.crt", text: text.as_bytes() }
}

pub fn key_text(text: &str) -> PemText<'_> {
    PemText { source: "tls.key", text: text.as_bytes() }
}
