//! Code that the tests of this crate share: a review, a server on a loopback port, and clients that can misbehave.

#![allow(unreachable_pub, reason = "the modules of the test program share these items")]

mod tls;

use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use arc_swap::ArcSwap;
use axum::Router;
use axum::body::Body;
use axum::response::Response;
use axum::routing::get;
use http::Request;
use http_body_util::BodyExt;
use pillion_api::names::FailureMode;
use pillion_engine::profile::{ProfileName, compile};
use pillion_engine::snapshot::{Namespace, ProfileSet, Snapshot};
use pillion_json::OwnedTape;
use pillion_webhook::admission::{Admission, LiveNamespace, RequestSettings, ReviewLookups};
use pillion_webhook::clients::ClientCertificates;
use pillion_webhook::metrics::Metrics;
use pillion_webhook::policy::Policy;
use pillion_webhook::router::router;
use pillion_webhook::serve::{Drained, Server, ServerSettings, Tls};
use pillion_webhook::switch::Switch;
use pillion_webhook::tls::ServingCertificate;
use prometheus_client::registry::Registry;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;
use tokio::task::JoinHandle;
use tokio_rustls::client::TlsStream;
use tokio_util::sync::CancellationToken;
use tower::ServiceExt;

pub use self::tls::{ClientTls, Purpose, TestCa, cert_text, certificate, client_hello, connect, key_text};

/// A timeout that only a hanging operation exceeds.
pub const PATIENCE: Duration = Duration::from_mins(1);
/// The server name in the test certificates.
pub const NAME: &str = "pillion.test";
/// A namespace that is opted in and is in the tests' snapshot.
pub const KNOWN: &str = "team-a";

/// A request for the fast route of [`fast_and_large`] or [`fast_and_slow`].
pub const GET_FAST: &[u8] = b"GET /fast HTTP/1.1\r\nHost: x\r\n\r\n";
pub const GET_SLOW: &[u8] = b"GET /slow HTTP/1.1\r\nHost: x\r\n\r\n";
/// The size of the large response in bytes.
pub const LARGE: usize = 256 * 1024;

/// Returns routes with a small and a large response.
pub fn fast_and_large() -> Router {
    Router::new().route("/fast", get(async || "fast")).route("/large", get(async || "x".repeat(LARGE)))
}

/// Returns the routes of [`fast_and_large`], and a slow one. The slow route notifies `asked` of each request, and
/// responds once `answer` is notified.
pub fn fast_and_slow(asked: &Arc<Notify>, answer: &Arc<Notify>) -> Router {
    let (asked, answer) = (Arc::clone(asked), Arc::clone(answer));
    let slow = get(async move || {
        asked.notify_one();
        answer.notified().await;
        "done"
    });
    fast_and_large().route("/slow", slow)
}

/// Returns settings without a minimum drain time.
pub fn fast_drain() -> ServerSettings {
    let mut settings = ServerSettings::default();
    settings.drain_minimum = Duration::ZERO;
    settings
}

/// Captured log lines. Clones write to the same buffer.
#[derive(Clone, Default)]
pub struct Lines(Arc<Mutex<Vec<u8>>>);

impl Lines {
    /// Returns everything that was logged so far.
    pub fn text(&self) -> String {
        String::from_utf8(self.0.lock().unwrap().clone()).unwrap()
    }
}

impl io::Write for Lines {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Returns a review of the creation of a small pod.
pub fn review(namespace: &str) -> serde_json::Value {
    serde_json::json!({
        "apiVersion": "admission.k8s.io/v1",
        "kind": "AdmissionReview",
        "request": {
            "uid": "0df28fbd-5f5f-11e8-bc74-36e6bb280816",
            "kind": {"group": "", "version": "v1", "kind": "Pod"},
            "resource": {"group": "", "version": "v1", "resource": "pods"},
            "requestKind": {"group": "", "version": "v1", "kind": "Pod"},
            "requestResource": {"group": "", "version": "v1", "resource": "pods"},
            "name": "web-0",
            "namespace": namespace,
            "operation": "CREATE",
            "userInfo": {"username": "system:serviceaccount:kube-system:replicaset-controller"},
            "object": {
                "apiVersion": "v1",
                "kind": "Pod",
                "metadata": {"name": "web-0", "namespace": namespace},
                "spec": {"containers": [{"name": "web", "image": "registry.example/web:1"}]}
            },
            "oldObject": null,
            "dryRun": false,
            "options": {"kind": "CreateOptions", "apiVersion": "meta.k8s.io/v1"}
        }
    })
}

/// Returns [`review`] for the namespace [`KNOWN`], as a JSON string.
pub fn review_text() -> String {
    review(KNOWN).to_string()
}

/// Returns the profile that most tests use. It adds a container, a volume and an annotation.
pub fn sidecar() -> serde_json::Value {
    serde_json::json!({
        "activation": "Always",
        "template": {
            "metadata": {"annotations": {"example.com/status": "injected"}},
            "spec": {
                "containers": [{"name": "sidecar", "image": "registry.example/sidecar:1"}],
                "volumes": [{"name": "config", "configMap": {"name": "sidecar"}}],
            },
        },
    })
}

/// Returns the anonymous memory of this process, in bytes.
pub fn anonymous_memory() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).unwrap();
    line.trim().trim_end_matches("kB").trim().parse::<usize>().unwrap() * 1024
}

/// The router, and the registry of its metrics.
pub struct App {
    pub router: Router,
    registry: Registry,
}

impl App {
    pub fn new() -> Self {
        Self::with(RequestSettings::default(), None)
    }

    /// Creates an app without profiles.
    pub fn with(settings: RequestSettings, live_namespace: Option<LiveNamespace>) -> Self {
        Self::of(opted_in_snapshot(None), |admission| {
            admission.settings = settings;
            admission.live_namespace = live_namespace;
        })
    }

    /// Creates an app with one cluster profile. `lookups` looks up the objects that the profile reads.
    pub fn with_profile(spec: &serde_json::Value, lookups: Option<ReviewLookups>) -> Self {
        Self::of(opted_in_snapshot(Some(spec)), |admission| {
            let cluster = Some(Arc::new(OwnedTape::parse(r#"{"region":"eu-west-1"}"#).unwrap()));
            admission.policy = Arc::new(ArcSwap::from_pointee(Policy { cluster, ..Policy::default() }));
            admission.lookups = lookups;
        })
    }

    /// Creates an app with this snapshot. `change` can change the default settings and lookup functions.
    pub fn of(snapshot: Snapshot, change: impl FnOnce(&mut Admission)) -> Self {
        let mut registry = Registry::default();
        let mut admission = Admission {
            snapshot: Arc::new(ArcSwap::from_pointee(snapshot)),
            live_namespace: None,
            lookups: None,
            policy: Arc::default(),
            switch: Switch::default(),
            metrics: Arc::new(Metrics::register(&mut registry)),
            settings: RequestSettings::default(),
        };
        change(&mut admission);
        Self { router: router(admission), registry }
    }

    /// Returns the value of a series. `series` is its name and labels as in a scrape. `None`: there is no such series.
    pub fn metric(&self, series: &str) -> Option<f64> {
        value(&self.registry, series)
    }

    /// Returns the number of series.
    pub fn series(&self) -> usize {
        scrape(&self.registry).lines().filter(|line| !line.starts_with('#')).count()
    }

    /// Returns the sum of all series whose lines begin with this prefix.
    pub fn sum(&self, prefix: &str) -> f64 {
        self.sum_with(prefix, "")
    }

    /// Returns the sum of all series whose lines begin with this prefix and contain this label.
    pub fn sum_with(&self, prefix: &str, label: &str) -> f64 {
        let text = scrape(&self.registry);
        let series = text.lines().filter(|line| line.starts_with(prefix) && line.contains(label));
        series.map(|line| line.rsplit(' ').next().unwrap().parse::<f64>().unwrap()).sum()
    }
}

/// Returns a snapshot with the namespace [`KNOWN`] and, if `profile` is set, one cluster profile.
pub fn opted_in_snapshot(profile: Option<&serde_json::Value>) -> Snapshot {
    let compiled = profile.map(|spec| {
        let spec = serde_json::from_value(spec.clone()).unwrap();
        Arc::new(compile(&ProfileName::cluster("profile"), &spec).unwrap())
    });
    Snapshot::new(ProfileSet::new(compiled)).with_namespace(KNOWN, Some(Namespace::opted_in(FailureMode::Enabled)))
}

/// Sends a POST with a JSON body to a router, without a server.
pub async fn send(router: &Router, path: &str, body: impl Into<Body>) -> Response {
    let request = Request::post(path).header("content-type", "application/json").body(body.into()).unwrap();
    router.clone().oneshot(request).await.unwrap()
}

/// Returns the `response` of the review in an HTTP response.
pub async fn review_response(response: Response) -> serde_json::Value {
    let body = response.into_body().collect().await.unwrap().to_bytes();
    serde_json::from_slice::<serde_json::Value>(&body).unwrap()["response"].take()
}

fn scrape(registry: &Registry) -> String {
    let mut text = String::new();
    prometheus_client::encoding::text::encode(&mut text, registry).unwrap();
    text
}

fn value(registry: &Registry, series: &str) -> Option<f64> {
    scrape(registry).lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' ')?.parse().ok())
}

/// A running server, which serves a router over TLS on a loopback port.
pub struct Running {
    pub address: SocketAddr,
    pub certificate: Arc<ServingCertificate>,
    pub root: String,
    pub ca: TestCa,
    pub drain: CancellationToken,
    pub task: JoinHandle<Drained>,
    registry: Registry,
}

impl Running {
    pub async fn start(app: Router, settings: ServerSettings) -> Self {
        Self::start_for(app, settings, None).await
    }

    /// Starts a server that authenticates its clients if `clients` is set.
    pub async fn start_for(app: Router, settings: ServerSettings, clients: Option<Arc<ClientCertificates>>) -> Self {
        let ca = TestCa::new("test CA");
        let (serving, key) = ca.server();
        let certificate = ServingCertificate::new(cert_text(&serving), key_text(&key)).unwrap();
        let mut registry = Registry::default();
        let metrics = Metrics::register(&mut registry).connections;
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let tls = Tls::new(Arc::clone(&certificate), clients).unwrap();
        let server = Server::tls(listener, tls, app, settings, metrics);
        let address = server.local_addr().unwrap();
        let drain = CancellationToken::new();
        let task = tokio::spawn(server.run(drain.clone()));
        Self { address, certificate, root: ca.pem(), ca, drain, task, registry }
    }

    /// Returns the value of one of the server's series.
    pub fn metric(&self, series: &str) -> f64 {
        value(&self.registry, series).unwrap_or_else(|| panic!("no series {series}"))
    }

    /// Returns the number of connections that the server closed for this reason.
    pub fn closed(&self, reason: &str) -> f64 {
        self.metric(&format!("pillion_webhook_closed_connections_total{{reason=\"{reason}\"}}"))
    }

    pub fn handshakes(&self, result: &str) -> f64 {
        value(&self.registry, &format!("pillion_webhook_tls_handshakes_total{{result=\"{result}\"}}")).unwrap()
    }

    pub fn connections(&self) -> f64 {
        value(&self.registry, "pillion_webhook_connections").unwrap()
    }

    pub async fn tcp(&self) -> TcpStream {
        TcpStream::connect(self.address).await.unwrap()
    }

    /// Opens a TLS connection and offers these protocols by ALPN.
    pub async fn tls(&self, protocols: &[&str]) -> TlsStream<TcpStream> {
        connect(self.tcp().await, &self.root, protocols).await.unwrap()
    }

    /// Opens an HTTP/1.1 connection.
    pub async fn http1(&self) -> TlsStream<TcpStream> {
        self.tls(&["http/1.1"]).await
    }
}

/// Returns an HTTP/1.1 POST request with a JSON body as a string.
pub fn post(path: &str, body: &str) -> String {
    let length = body.len();
    format!(
        "POST {path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\r\n{body}"
    )
}

/// Reads until the connection ends, whether or not the server closes it cleanly.
pub async fn read_to_end(stream: &mut (impl AsyncRead + Unpin)) -> String {
    let mut bytes = Vec::new();
    // The read fails if the server closes without close_notify or resets the connection. Both also count as the end.
    let _ = tokio::time::timeout(PATIENCE, stream.read_to_end(&mut bytes)).await.expect("the server does not close");
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Writes a request, and reads until the connection ends.
pub async fn exchange(stream: &mut TlsStream<TcpStream>, text: impl AsRef<[u8]>) -> String {
    // The server may respond and close the connection before it has read the whole request.
    let _ = stream.write_all(text.as_ref()).await;
    let _ = stream.flush().await;
    read_to_end(stream).await
}

/// An HTTP/1.1 response with a `Content-Length`.
#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    pub head: String,
    pub body: String,
}

/// Sends a request, and reads its response.
pub async fn ask(stream: &mut (impl AsyncRead + AsyncWrite + Unpin), request: impl AsRef<[u8]>) -> Answer {
    stream.write_all(request.as_ref()).await.unwrap();
    Answer::read(stream).await
}

impl Answer {
    /// Flushes the stream, and reads one response, without waiting for the connection to end.
    pub async fn read(stream: &mut (impl AsyncRead + AsyncWrite + Unpin)) -> Self {
        let read = async {
            // The TLS session may still hold data that the socket did not accept at once. Flushing fails if the server
            // has responded and closed the connection.
            let _ = stream.flush().await;
            let head = read_head(stream).await;
            let length = header(&head, "content-length").unwrap_or("0");
            let mut body = vec![0; length.parse().unwrap()];
            stream.read_exact(&mut body).await.unwrap();
            Self { status: head[9..12].parse().unwrap(), head, body: String::from_utf8(body).unwrap() }
        };
        tokio::time::timeout(PATIENCE, read).await.expect("the server sent no response")
    }

    /// Returns the value of a header as a number.
    pub fn number(&self, header: &str) -> u64 {
        self.header(header).and_then(|number| number.parse().ok()).expect("the response has no such number")
    }

    /// Reads the head of a response that has no body, whatever `Content-Length` it declares.
    pub async fn read_head(stream: &mut (impl AsyncRead + Unpin)) -> Self {
        let head = read_head(stream).await;
        Self { status: head[9..12].parse().unwrap(), head, body: String::new() }
    }

    pub fn header(&self, name: &str) -> Option<&str> {
        header(&self.head, name)
    }

    /// Returns whether the response announces that the server closes the connection.
    pub fn closes(&self) -> bool {
        self.head.contains("connection: close\r\n")
    }
}

/// Returns the head of a response in lower case.
async fn read_head(stream: &mut (impl AsyncRead + Unpin)) -> String {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await.expect("the connection ended before the response"));
    }
    String::from_utf8(head).unwrap().to_lowercase()
}

fn header<'h>(head: &'h str, name: &str) -> Option<&'h str> {
    head.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "))
}

/// Waits until the condition is true. `what` describes it in the failure message.
pub async fn until(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = tokio::time::Instant::now() + PATIENCE;
    while !condition() {
        assert!(tokio::time::Instant::now() < deadline, "never: {what}");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}
