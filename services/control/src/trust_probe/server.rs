//! The endpoint that API servers call for a trust probe. It allows every valid review. If the review has the name of an
//! expected call, it records the call with the certificate of the connection.

use std::collections::HashMap;
use std::convert::Infallible;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use arc_swap::ArcSwapOption;
use bytes::Bytes;
use http::{Method, Request, Response, StatusCode, header};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use pillion_api::trust_probe::{MAX_REVIEW_BYTES, PATH, VALIDATE_PATH, epoch_of};
use rustls::ServerConfig;
use rustls::server::NoServerSessionStorage;
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use serde::Deserialize;
use serde_json::json;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;
use tracing::{debug, warn};

use super::answer::ReceivedCall;
use super::{Settings, TrustProbeMetrics};
use crate::certificates::rotation::Generation;

/// Pause after a connection could not be accepted, usually because too many files are open.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// A serving certificate, with the generation of its CA and the TLS configuration that serves it.
#[derive(Clone)]
pub struct Identity {
    generation: Generation,
    config: Arc<ServerConfig>,
}

/// Why a certificate and its key cannot be served.
#[derive(Debug, thiserror::Error)]
pub enum IdentityError {
    /// The certificate or the key is not PEM.
    #[error("the trust probe's {0} is not PEM")]
    Pem(&'static str),
    /// There is no certificate, or the certificate and the key do not match or are of an unsupported kind.
    #[error("the trust probe's certificate and key do not match")]
    Unusable(#[from] rustls::Error),
}

/// The endpoint of the trust probe. Clones share its state.
#[derive(Clone)]
pub struct TrustProbe(Arc<TrustProbeState>);

struct TrustProbeState {
    identity: ArcSwapOption<Identity>,
    /// The recorded calls for each expected name.
    expected: Mutex<HashMap<String, Calls>>,
    metrics: TrustProbeMetrics,
}

/// The latest calls for the dry run of one object name, each with its certificate and epoch. The trust probe has an
/// entry in both webhook configurations. An API server may have the current version of one and an earlier version of
/// the other.
#[derive(Clone, Copy, Debug, Default)]
struct Calls {
    mutating: Option<ReceivedCall>,
    validating: Option<ReceivedCall>,
}

/// Until this value is dropped, the trust probe records the calls for the object with this name.
#[derive(Debug)]
pub(super) struct Expectation {
    trust_probe: TrustProbe,
    name: String,
}

#[derive(Deserialize)]
struct Review {
    request: ReviewRequest,
}

#[derive(Deserialize)]
struct ReviewRequest {
    uid: String,
    #[serde(default)]
    name: String,
}

impl fmt::Debug for Identity {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Identity").field("generation", &self.generation).finish_non_exhaustive()
    }
}

impl fmt::Debug for TrustProbe {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("TrustProbe").field("shows", &self.shows()).finish_non_exhaustive()
    }
}

impl Identity {
    /// Loads a certificate of the CA `generation` with its key, both PEM. The certificate must have the names of the
    /// trust probe's Service.
    ///
    /// # Errors
    /// The certificate or the key is not PEM, or they cannot be served together.
    pub fn new(generation: Generation, certificates: &[u8], key: &[u8]) -> Result<Self, IdentityError> {
        let chain = CertificateDer::pem_slice_iter(certificates)
            .collect::<Result<Vec<_>, _>>()
            .map_err(|_| IdentityError::Pem("certificate"))?;
        let key = PrivateKeyDer::from_pem_slice(key).map_err(|_| IdentityError::Pem("key"))?;
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let mut config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()?
            .with_no_client_auth()
            .with_single_cert(chain, key)?;
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        // A client that resumes a session would not verify the certificate again.
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.send_tls13_tickets = 0;
        Ok(Self { generation, config: Arc::new(config) })
    }

    /// The CA that signed the certificate.
    #[must_use]
    pub const fn generation(&self) -> Generation {
        self.generation
    }
}

impl TrustProbe {
    /// Creates an endpoint without a certificate. It closes all connections until [`TrustProbe::show`] sets one.
    #[must_use]
    pub fn new(metrics: TrustProbeMetrics) -> Self {
        let (identity, expected) = (ArcSwapOption::empty(), Mutex::default());
        Self(Arc::new(TrustProbeState { identity, expected, metrics }))
    }

    /// Serves this certificate on new connections. With `None`, connections are closed.
    pub fn show(&self, identity: Option<Identity>) {
        self.0.identity.store(identity.map(Arc::new));
    }

    /// The CA of the served certificate; `None` if no certificate is served.
    #[must_use]
    pub fn shows(&self) -> Option<Generation> {
        self.0.identity.load().as_ref().map(|identity| identity.generation)
    }

    /// Serves until `stop`. The number of connections, their duration and the bytes read are limited.
    pub async fn serve(&self, listener: TcpListener, settings: &Settings, stop: CancellationToken) {
        let permits = Arc::new(Semaphore::new(settings.connections.max(1)));
        let mut connections = JoinSet::new();
        let accept = async {
            loop {
                while connections.try_join_next().is_some() {}
                // The semaphore is never closed.
                let Ok(permit) = Arc::clone(&permits).acquire_owned().await else { return };
                let stream = match listener.accept().await {
                    Ok((stream, _)) => stream,
                    Err(error) => {
                        warn!(%error, "the trust probe cannot accept a connection");
                        sleep(ACCEPT_PAUSE).await;
                        continue;
                    }
                };
                let (trust_probe, limit) = (self.clone(), settings.call_limit);
                connections.spawn(async move {
                    if timeout(limit, trust_probe.connection(stream)).await.is_err() {
                        debug!("a connection to the trust probe took too long");
                    }
                    drop(permit);
                });
            }
        };
        tokio::select! {
            () = stop.cancelled() => {}
            () = accept => {}
        }
    }

    /// Serves one connection, with one handshake and one call.
    async fn connection(&self, stream: TcpStream) {
        let Some(identity) = self.0.identity.load_full() else { return };
        let stream = match TlsAcceptor::from(Arc::clone(&identity.config)).accept(stream).await {
            Ok(stream) => stream,
            Err(error) => {
                // The handshake also fails if the API server does not trust the certificate. The API server then
                // reports the error in its response to the dry run.
                debug!(%error, "a handshake with the trust probe failed");
                return;
            }
        };
        let service = service_fn(|request| self.answer(request, identity.generation));
        if let Err(error) =
            http1::Builder::new().keep_alive(false).serve_connection(TokioIo::new(stream), service).await
        {
            debug!(%error, "a connection to the trust probe failed");
        }
    }

    async fn answer(&self, request: Request<Incoming>, shown: Generation) -> Result<Response<Full<Bytes>>, Infallible> {
        let status = |status| {
            let mut response = Response::new(Full::default());
            *response.status_mut() = status;
            response
        };
        let path = request.uri().path();
        let validating = epoch_of(path, VALIDATE_PATH);
        let entry = validating.or_else(|| epoch_of(path, PATH)).filter(|_| request.method() == Method::POST);
        let Some(epoch) = entry else { return Ok(status(StatusCode::NOT_FOUND)) };
        let body = Limited::new(request.into_body(), MAX_REVIEW_BYTES)
            .collect()
            .await
            .map(http_body_util::Collected::to_bytes);
        let Some(review) = body.ok().and_then(|body| serde_json::from_slice::<Review>(&body).ok()) else {
            return Ok(status(StatusCode::BAD_REQUEST));
        };
        let ReviewRequest { uid, name } = review.request;
        self.record_call(&name, validating.is_some(), ReceivedCall { certificate: shown, epoch });
        let answer = json!({
            "apiVersion": "admission.k8s.io/v1",
            "kind": "AdmissionReview",
            "response": {"uid": uid, "allowed": true},
        });
        let mut response = Response::new(Full::from(answer.to_string()));
        response.headers_mut().insert(header::CONTENT_TYPE, header::HeaderValue::from_static("application/json"));
        Ok(response)
    }

    fn record_call(&self, name: &str, validates: bool, shown: ReceivedCall) {
        self.0.metrics.count_call();
        if let Some(calls) = self.lock().get_mut(name) {
            let call = if validates { &mut calls.validating } else { &mut calls.mutating };
            *call = Some(shown);
        }
    }

    /// Records calls with this name until the returned value is dropped. The name must not be guessable.
    pub(super) fn expect(&self, name: String) -> Expectation {
        self.lock().insert(name.clone(), Calls::default());
        Expectation { trust_probe: self.clone(), name }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<String, Calls>> {
        self.0.expected.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Expectation {
    /// Returns the recorded call, if an API server called through both configurations with this name, and both calls
    /// had the same epoch and certificate.
    pub(super) fn shown(&self) -> Option<ReceivedCall> {
        let Calls { mutating, validating } = self.trust_probe.lock().get(&self.name).copied()?;
        mutating.filter(|_| mutating == validating)
    }
}

impl Drop for Expectation {
    fn drop(&mut self) {
        self.trust_probe.lock().remove(&self.name);
    }
}

#[cfg(test)]
mod tests {
    use pillion_testkit::TestCa;
    use rustls::{ClientConfig, RootCertStore};
    use rustls_pki_types::ServerName;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio_rustls::TlsConnector;

    use super::*;

    const NAME: &str = "pillion-trust-probe.pillion-system.svc";

    fn identity(generation: u32, ca: &TestCa) -> Identity {
        let (cert, key) = ca.serving(&[NAME]).unwrap();
        Identity::new(Generation(generation), cert.as_bytes(), key.as_bytes()).unwrap()
    }

    async fn start(settings: Settings) -> (TrustProbe, std::net::SocketAddr, CancellationToken) {
        let trust_probe = TrustProbe::new(TrustProbeMetrics::default());
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (address, stop) = (listener.local_addr().unwrap(), CancellationToken::new());
        let (serving, until) = (trust_probe.clone(), stop.clone());
        tokio::spawn(async move { serving.serve(listener, &settings, until).await });
        (trust_probe, address, stop)
    }

    async fn connect(
        address: std::net::SocketAddr,
        ca: &TestCa,
    ) -> std::io::Result<tokio_rustls::client::TlsStream<TcpStream>> {
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_slice(ca.bundle_pem().as_bytes()).unwrap()).unwrap();
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth();
        let stream = TcpStream::connect(address).await?;
        TlsConnector::from(Arc::new(config)).connect(ServerName::try_from(NAME).unwrap(), stream).await
    }

    /// Returns the endpoint's complete response to one request.
    async fn call(address: std::net::SocketAddr, ca: &TestCa, path: &str, body: &str) -> std::io::Result<String> {
        let mut stream = connect(address, ca).await?;
        let request = format!("POST {path} HTTP/1.1\r\nhost: x\r\ncontent-length: {}\r\n\r\n{body}", body.len());
        stream.write_all(request.as_bytes()).await?;
        let mut answer = Vec::new();
        timeout(Duration::from_secs(30), stream.read_to_end(&mut answer)).await.unwrap()?;
        Ok(String::from_utf8(answer).unwrap())
    }

    fn review(name: &str) -> String {
        json!({"apiVersion": "admission.k8s.io/v1", "request": {"uid": "u-1", "name": name, "dryRun": true}})
            .to_string()
    }

    fn serving_certificate(expectation: &Expectation) -> Option<Generation> {
        expectation.shown().map(|shown| shown.certificate)
    }

    #[tokio::test]
    async fn records_epoch_of_the_calling_entry() {
        let (trust_probe, address, _stop) = start(Settings::default()).await;
        let ca = TestCa::new().unwrap();
        trust_probe.show(Some(identity(1, &ca)));
        let one = trust_probe.expect("one".to_owned());
        call(address, &ca, "/trust-probe/7", &review("one")).await.unwrap();
        call(address, &ca, "/trust-probe/validate/6", &review("one")).await.unwrap();
        assert_eq!(one.shown(), None, "the configurations have different epochs");
        call(address, &ca, "/trust-probe/validate/7", &review("one")).await.unwrap();
        assert_eq!(one.shown(), Some(ReceivedCall { certificate: Generation(1), epoch: 7 }));
        for path in ["/trust-probe/x", "/trust-probe/7/8", "/trust-probes", "/trust-probe/-1"] {
            assert!(call(address, &ca, path, &review("one")).await.unwrap().contains("404 Not Found"), "{path}");
        }
    }

    #[tokio::test]
    async fn allows_calls_and_records_shown_certificate() {
        let (trust_probe, address, _stop) = start(Settings::default()).await;
        let (first, second) = (TestCa::new().unwrap(), TestCa::new().unwrap());
        assert!(call(address, &first, "/trust-probe", "{}").await.is_err(), "the endpoint has no certificate yet");

        trust_probe.show(Some(identity(1, &first)));
        let (one, two) = (trust_probe.expect("one".to_owned()), trust_probe.expect("two".to_owned()));
        let answer = call(address, &first, "/trust-probe", &review("one")).await.unwrap();
        assert!(answer.contains("200 OK") && answer.contains(r#""uid":"u-1""#), "{answer}");
        assert!(answer.contains(r#""allowed":true"#) && answer.contains("connection: close"), "{answer}");
        assert_eq!((one.shown(), two.shown()), (None, None), "the other configuration did not call");
        call(address, &first, "/trust-probe/validate", &review("one")).await.unwrap();
        assert_eq!((serving_certificate(&one), serving_certificate(&two)), (Some(Generation(1)), None));

        trust_probe.show(Some(identity(2, &second)));
        assert!(
            call(address, &first, "/trust-probe", &review("two")).await.is_err(),
            "the endpoint serves a certificate of another CA"
        );
        assert_eq!(two.shown(), None);
        call(address, &second, "/trust-probe", &review("two")).await.unwrap();
        call(address, &second, "/trust-probe/validate", &review("two")).await.unwrap();
        assert_eq!((serving_certificate(&one), serving_certificate(&two)), (Some(Generation(1)), Some(Generation(2))));
        assert_eq!(trust_probe.0.metrics.calls(), 4);
        // Only one of the two webhooks is called.
        trust_probe.show(Some(identity(1, &first)));
        call(address, &first, "/trust-probe", &review("two")).await.unwrap();
        assert_eq!(two.shown(), None);

        drop((one, two));
        call(address, &first, "/trust-probe", &review("nobody expects this")).await.unwrap();
        assert!(trust_probe.lock().is_empty(), "unexpected calls are not recorded");
    }

    #[tokio::test]
    async fn earlier_connection_counts_for_its_certificate() {
        let (trust_probe, address, _stop) = start(Settings::default()).await;
        let ca = TestCa::new().unwrap();
        trust_probe.show(Some(identity(1, &ca)));
        let expectation = trust_probe.expect("one".to_owned());
        let mut stream = connect(address, &ca).await.unwrap();
        trust_probe.show(Some(identity(2, &ca)));
        let body = review("one");
        let request = format!("POST /trust-probe HTTP/1.1\r\nhost: x\r\ncontent-length: {}\r\n\r\n{body}", body.len());
        stream.write_all(request.as_bytes()).await.unwrap();
        stream.read_to_end(&mut Vec::new()).await.unwrap();
        trust_probe.show(Some(identity(1, &ca)));
        call(address, &ca, "/trust-probe/validate", &body).await.unwrap();
        assert_eq!(
            serving_certificate(&expectation),
            Some(Generation(1)),
            "the call is recorded with the certificate of its connection"
        );
    }

    #[tokio::test]
    async fn rejects_requests_without_review() {
        let (trust_probe, address, _stop) = start(Settings::default()).await;
        let ca = TestCa::new().unwrap();
        trust_probe.show(Some(identity(1, &ca)));
        assert!(call(address, &ca, "/trust-probe", "junk").await.unwrap().contains("400 Bad Request"));
        assert!(call(address, &ca, "/mutate", &review("x")).await.unwrap().contains("404 Not Found"));
        // The endpoint rejects the request before it reads all of it, so the response may be truncated.
        let large = call(address, &ca, "/trust-probe", &review(&"x".repeat(MAX_REVIEW_BYTES))).await;
        assert!(!large.as_deref().unwrap_or_default().contains("200 OK"), "{large:?}");
        assert_eq!(trust_probe.0.metrics.calls(), 0);
    }

    #[tokio::test]
    async fn silent_connections_time_out() {
        // The limit is long enough for a call on a busy machine.
        let (connections, call_limit) = (2, Duration::from_secs(1));
        let (trust_probe, address, stop) = start(Settings { call_limit, connections, ..Settings::default() }).await;
        let ca = TestCa::new().unwrap();
        trust_probe.show(Some(identity(1, &ca)));
        let mut silent = Vec::new();
        for _ in 0..6 {
            silent.push(TcpStream::connect(address).await.unwrap());
        }
        // The earlier connections time out, two at a time.
        let answer = timeout(Duration::from_secs(30), call(address, &ca, "/trust-probe", &review("x"))).await.unwrap();
        assert!(answer.unwrap().contains("200 OK"));
        stop.cancel();
    }

    #[test]
    fn rejects_unusable_identity() {
        let (ca, other) = (TestCa::new().unwrap(), TestCa::new().unwrap());
        let ((cert, key), (_, other_key)) = (ca.serving(&[NAME]).unwrap(), other.serving(&[NAME]).unwrap());
        let new = |cert: &str, key: &str| Identity::new(Generation(1), cert.as_bytes(), key.as_bytes());
        assert!(new(&cert, &key).is_ok());
        assert!(matches!(new(&cert, &other_key), Err(IdentityError::Unusable(_))));
        assert!(matches!(new(&cert, "junk"), Err(IdentityError::Pem("key"))));
        assert!(matches!(new("", &key), Err(IdentityError::Unusable(_))));
    }
}
