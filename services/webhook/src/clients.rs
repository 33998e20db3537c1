//! Authenticates clients by certificate, if a CA for clients is configured. Without one, every client is accepted.
//!
//! An invalid certificate (expired, issued by another CA, or not valid for client authentication) fails the TLS
//! handshake. A client without a certificate gets a 401 after its request's head, so that the API server's log names
//! the missing certificate. A client whose certificate has none of the required names gets a 403. The body of such a
//! request is discarded without parsing.
//!
//! Each handshake uses the current CA, which can be replaced at any time. An accepted connection is not checked again,
//! and may stay open until it reaches its maximum age.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr};
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use axum::body::Body;
use http::header::{CONNECTION, CONTENT_TYPE};
use http::{Extensions, HeaderValue, Request, Response, StatusCode, Version};
use http_body_util::BodyExt;
use hyper::body::{Body as _, Incoming};
use rustls::client::danger::HandshakeSignatureValid;
use rustls::pki_types::UnixTime;
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{DigitallySignedStruct, DistinguishedName, RootCertStore, SignatureScheme};
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::{self, PemObject};
use x509_parser::extensions::GeneralName;
use x509_parser::prelude::{FromDer, X509Certificate};

use crate::client_text::{Bounded, LOGGED_BYTES};
use crate::metrics::{ConnectionMetrics, Unauthorized};
use crate::tls::{PemText, provider};

/// How long the body of a rejected request is read and discarded, so that its client can read the response.
const LINGER: Duration = Duration::from_secs(1);
/// The maximum size, in bytes, of a rejected body after which an HTTP/1 connection stays open. If the body is or may be
/// larger, the connection is closed with the response.
const SMALL_BODY: u64 = 64 * 1024;

/// The client's address, which the server stores in the extensions of each request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ClientAddress(pub(crate) IpAddr);

/// Returns the address of the client that sent a request. Returns the unspecified address if the request did not arrive
/// over a connection.
pub(crate) fn client_address(extensions: &Extensions) -> IpAddr {
    extensions.get::<ClientAddress>().map_or(IpAddr::V4(Ipv4Addr::UNSPECIFIED), |address| address.0)
}

/// Why a CA for clients cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ClientCaError {
    /// A PEM section in the input is malformed or truncated.
    #[error("{origin} is not PEM text: {error}; expected one or more BEGIN CERTIFICATE sections")]
    NotPem {
        /// The source of the input.
        origin: String,
        /// The error of the PEM parser.
        error: pem::Error,
    },
    /// The input has no certificate.
    #[error("{origin} has no certificate: expected one or more BEGIN CERTIFICATE sections with CAs for clients")]
    NoCertificate {
        /// The source of the input.
        origin: String,
    },
    /// A certificate in the input cannot be parsed, or is not a CA certificate.
    #[error("certificate {number} in {origin} cannot be used as a CA: {reason}")]
    NotCa {
        /// The source of the input.
        origin: String,
        /// Position of the certificate in the input, from 1.
        number: usize,
        /// Why the certificate is not accepted as a CA certificate.
        reason: String,
    },
    /// The TLS library cannot verify clients with the certificates.
    #[error("the certificates in {origin} cannot be used: {reason}")]
    Unusable {
        /// The source of the input.
        origin: String,
        /// The error of the TLS library.
        reason: String,
    },
}

/// The CAs against which client certificates are verified, and the allowed names.
pub struct ClientCertificates {
    current: ArcSwap<ClientCas>,
    /// A certificate must have at least one of these names. If the list is empty, any name is accepted.
    names: Box<[Box<str>]>,
}

struct ClientCas {
    certificates: Vec<CertificateDer<'static>>,
    verifier: Arc<dyn ClientCertVerifier>,
}

/// The result of authenticating a connection's client.
#[derive(Clone, Debug)]
pub(crate) struct Caller {
    rejection: Option<Arc<Rejection>>,
    /// Whether the client presented an accepted certificate.
    has_certificate: bool,
}

/// Why all requests of a connection are rejected.
#[derive(Debug)]
struct Rejection {
    reason: Unauthorized,
    text: String,
    metrics: ConnectionMetrics,
}

impl fmt::Debug for ClientCertificates {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let certificates = self.current.load().certificates.len();
        formatter
            .debug_struct("ClientCertificates")
            .field("certificates", &certificates)
            .field("names", &self.names)
            .finish()
    }
}

impl ClientCertificates {
    /// Accepts client certificates that the CAs in this input have issued. If `names` is not empty, a certificate must
    /// have one of them: as the common name of its subject, or as a DNS name, URI or e-mail address among its
    /// alternative names.
    ///
    /// # Errors
    /// The input is malformed, has no certificate, or has one that cannot be used as a CA certificate.
    pub fn new(cas: PemText<'_>, names: impl IntoIterator<Item = String>) -> Result<Arc<Self>, ClientCaError> {
        let names = names.into_iter().map(String::into_boxed_str).collect();
        Ok(Arc::new(Self { current: ArcSwap::from_pointee(ClientCas::read(cas)?), names }))
    }

    /// Replaces the CAs. The next handshake uses the new ones. Returns whether they changed. On an error, the previous
    /// CAs remain active.
    ///
    /// # Errors
    /// The same as for [`ClientCertificates::new`].
    pub fn swap(&self, cas: PemText<'_>) -> Result<bool, ClientCaError> {
        let fresh = ClientCas::read(cas)?;
        let changed = fresh.certificates != self.current.load().certificates;
        self.current.store(Arc::new(fresh));
        Ok(changed)
    }

    /// Authorizes a client by its certificates, which the TLS handshake has verified.
    pub(crate) fn caller(&self, certificates: Option<&[CertificateDer<'_>]>, metrics: &ConnectionMetrics) -> Caller {
        let rejected = |reason, text| Caller {
            rejection: Some(Arc::new(Rejection { reason, text, metrics: metrics.clone() })),
            has_certificate: false,
        };
        let Some(certificate) = certificates.and_then(<[_]>::first) else {
            return rejected(
                Unauthorized::NoCertificate,
                "Pillion requires a client certificate, and this client sent none: configure one for this webhook in \
                 the API server's --admission-control-config-file\n"
                    .to_owned(),
            );
        };
        if self.names.is_empty() {
            return Caller::authenticated();
        }
        let found = names_of(certificate);
        if found.iter().any(|found| self.names.contains(found)) {
            return Caller::authenticated();
        }
        let found = Bounded(&found.join(", "), LOGGED_BYTES).to_string();
        rejected(
            Unauthorized::Name,
            format!("none of the names in the client certificate ({found}) may call Pillion\n"),
        )
    }
}

impl ClientCas {
    fn read(text: PemText<'_>) -> Result<Self, ClientCaError> {
        let origin = || text.source.to_owned();
        let certificates = CertificateDer::pem_slice_iter(text.text)
            .collect::<Result<Vec<_>, _>>()
            .map_err(|error| ClientCaError::NotPem { origin: origin(), error })?;
        if certificates.is_empty() {
            return Err(ClientCaError::NoCertificate { origin: origin() });
        }
        let mut roots = RootCertStore::empty();
        for (index, certificate) in certificates.iter().enumerate() {
            let not_ca = |reason| ClientCaError::NotCa { origin: origin(), number: index + 1, reason };
            roots.add(certificate.clone()).map_err(|error| not_ca(error.to_string()))?;
            // Without this check, a certificate that is not a CA would be accepted as a root. But it could not verify
            // any client, so its clients would be rejected.
            if !is_ca_certificate(certificate) {
                return Err(not_ca("it is not a CA (basic constraints)".to_owned()));
            }
        }
        let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider())
            .build()
            .map_err(|error| ClientCaError::Unusable { origin: origin(), reason: error.to_string() })?;
        Ok(Self { certificates, verifier })
    }
}

fn is_ca_certificate(certificate: &CertificateDer<'_>) -> bool {
    let Ok((_, certificate)) = X509Certificate::from_der(certificate) else { return false };
    certificate.is_ca()
}

/// Returns the common name of the certificate's subject, and its DNS names, URIs and e-mail addresses. Returns no names
/// if the certificate cannot be parsed.
fn names_of(certificate: &CertificateDer<'_>) -> Vec<Box<str>> {
    let Ok((_, certificate)) = X509Certificate::from_der(certificate) else { return Vec::new() };
    let common = certificate.subject().iter_common_name().filter_map(|name| name.as_str().ok());
    let alternative = certificate.subject_alternative_name().ok().flatten();
    let alternative = alternative.iter().flat_map(|names| &names.value.general_names).filter_map(|name| match name {
        GeneralName::DNSName(name) | GeneralName::URI(name) | GeneralName::RFC822Name(name) => Some(*name),
        _ => None,
    });
    common.chain(alternative).map(Box::from).collect()
}

impl ClientCertVerifier for ClientCertificates {
    fn offer_client_auth(&self) -> bool {
        true
    }

    /// Not mandatory, so that a client without a certificate gets a 401 with an explanation instead of a TLS error.
    fn client_auth_mandatory(&self) -> bool {
        false
    }

    /// Sends no CA names as hints. With hints, a client whose certificate is from another CA would send none. Without
    /// them, it sends this certificate and gets an error that names the mistake.
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, rustls::Error> {
        self.current.load().verifier.verify_client_cert(end_entity, intermediates, now)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.current.load().verifier.verify_tls12_signature(message, certificate, signature)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.current.load().verifier.verify_tls13_signature(message, certificate, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.current.load().verifier.supported_verify_schemes()
    }
}

impl Caller {
    /// Returns the caller on a server that does not authenticate clients.
    pub(crate) const fn unauthenticated() -> Self {
        Self { rejection: None, has_certificate: false }
    }

    /// Returns a caller with an accepted certificate.
    const fn authenticated() -> Self {
        Self { rejection: None, has_certificate: true }
    }

    pub(crate) const fn has_certificate(&self) -> bool {
        self.has_certificate
    }

    pub(crate) const fn is_rejected(&self) -> bool {
        self.rejection.is_some()
    }

    /// Returns the request if it is admitted, and otherwise the response that rejects it.
    pub(crate) fn admit(&self, request: Request<Incoming>) -> ControlFlow<Response<Body>, Request<Incoming>> {
        let Some(rejection) = &self.rejection else { return ControlFlow::Continue(request) };
        rejection.metrics.unauthorized(rejection.reason);
        let status = match rejection.reason {
            Unauthorized::NoCertificate => StatusCode::UNAUTHORIZED,
            Unauthorized::Name => StatusCode::FORBIDDEN,
        };
        tracing::debug!(status = status.as_u16(), reason = rejection.text.trim_end(), "a request was rejected");
        let mut response = Response::new(Body::from(rejection.text.clone()));
        *response.status_mut() = status;
        response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
        let http1 = request.version() < Version::HTTP_2;
        let body = request.into_body();
        if http1 && !body.is_end_stream() {
            if body.size_hint().upper().is_none_or(|bytes| bytes > SMALL_BODY) {
                response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
            }
            // The body is discarded in a separate task, so that the response does not wait for it. If the body were not
            // read, a client that is still writing might see a connection reset instead of the response.
            tokio::spawn(tokio::time::timeout(LINGER, discard(body)));
        }
        ControlFlow::Break(response)
    }
}

async fn discard(mut body: Incoming) {
    while let Some(Ok(_)) = body.frame().await {}
}
