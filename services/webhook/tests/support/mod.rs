//! What the tests of this crate share: a review, a server on a loopback port, and clients that can misbehave.

#![allow(dead_code, unreachable_pub, reason = "each test binary compiles this module, and uses a part of it")]

use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use arc_swap::ArcSwap;
use axum::Router;
use pillion_api::names::InjectionLevel;
use pillion_engine::json::OwnedTape;
use pillion_engine::profile::{ProfileName, ProfileSet, compile};
use pillion_engine::snapshot::{Namespace, Snapshot};
use pillion_webhook::clients::ClientCertificates;
use pillion_webhook::metrics::Metrics;
use pillion_webhook::policy::Policy;
use pillion_webhook::router::{Admission, LiveNamespace, LookUps, RequestSettings, router};
use pillion_webhook::serve::{Drained, Server, ServerSettings};
use pillion_webhook::switch::Switch;
use pillion_webhook::tls::{PemText, ServingCertificate, Tls};
use prometheus_client::registry::Registry;
use rustls::crypto::aws_lc_rs;
use rustls::{ClientConfig, RootCertStore, SupportedProtocolVersion};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_util::sync::CancellationToken;

/// Longer than anything takes that does not hang.
pub const PATIENCE: Duration = Duration::from_secs(20);
/// The name in the test certificates.
pub const NAME: &str = "pillion.test";
/// Opted in, and known to the snapshot of the tests.
pub const KNOWN: &str = "team-a";

/// What is logged; clones write to the same text.
#[derive(Clone, Default)]
pub struct Lines(Arc<Mutex<Vec<u8>>>);

impl Lines {
    /// All of it so far.
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

/// A review of the creation of a small pod.
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

/// [`review`] of a pod in the namespace that is known, as text.
pub fn review_text() -> String {
    review(KNOWN).to_string()
}

/// The profile of most rows: a container, a volume and an annotation.
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

/// Bytes of memory that belong to this process alone.
pub fn anonymous_memory() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).unwrap();
    line.trim().trim_end_matches("kB").trim().parse::<usize>().unwrap() * 1024
}

/// The router with its metrics; without profiles.
pub struct App {
    pub router: Router,
    registry: Registry,
}

impl App {
    pub fn new() -> Self {
        Self::with(RequestSettings::default(), None)
    }

    pub fn with(settings: RequestSettings, live_namespace: Option<LiveNamespace>) -> Self {
        let mut registry = Registry::default();
        let metrics = Arc::new(Metrics::register(&mut registry));
        let snapshot = Snapshot::default().with_namespace(KNOWN, Some(Namespace::opted_in(InjectionLevel::Enabled)));
        let snapshot = Arc::new(ArcSwap::from_pointee(snapshot));
        let router = router(Admission {
            snapshot,
            live_namespace,
            look_ups: None,
            policy: Arc::default(),
            switch: Switch::default(),
            metrics,
            settings,
        });
        Self { router, registry }
    }

    /// With one cluster profile, and what looks up what it reads.
    pub fn with_profile(spec: &serde_json::Value, look_ups: Option<LookUps>) -> Self {
        let mut registry = Registry::default();
        let metrics = Arc::new(Metrics::register(&mut registry));
        let spec = serde_json::from_value(spec.clone()).unwrap();
        let profile = compile(&ProfileName::cluster("profile"), &spec).unwrap();
        let snapshot = Snapshot::new(ProfileSet::new([Arc::new(profile)]))
            .with_namespace(KNOWN, Some(Namespace::opted_in(InjectionLevel::Enabled)));
        let snapshot = Arc::new(ArcSwap::from_pointee(snapshot));
        let cluster = Some(Arc::new(OwnedTape::parse(r#"{"region":"eu-west-1"}"#).unwrap()));
        let policy = Arc::new(ArcSwap::from_pointee(Policy { cluster, ..Policy::default() }));
        let settings = RequestSettings::default();
        let router = router(Admission {
            snapshot,
            live_namespace: None,
            look_ups,
            policy,
            switch: Switch::default(),
            metrics,
            settings,
        });
        Self { router, registry }
    }

    /// With this snapshot, and these look-ups.
    pub fn of(
        snapshot: Snapshot,
        settings: RequestSettings,
        live_namespace: Option<LiveNamespace>,
        look_ups: Option<LookUps>,
    ) -> Self {
        let mut registry = Registry::default();
        let metrics = Arc::new(Metrics::register(&mut registry));
        let snapshot = Arc::new(ArcSwap::from_pointee(snapshot));
        let router = router(Admission {
            snapshot,
            live_namespace,
            look_ups,
            policy: Arc::default(),
            switch: Switch::default(),
            metrics,
            settings,
        });
        Self { router, registry }
    }

    /// The value of a series, as its text stands in a scrape; `None` if there is no such series.
    pub fn metric(&self, series: &str) -> Option<f64> {
        value(&self.registry, series)
    }

    /// How many series there are.
    pub fn series(&self) -> usize {
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &self.registry).unwrap();
        text.lines().filter(|line| !line.starts_with('#')).count()
    }

    /// The sum of all series that begin so.
    pub fn sum(&self, prefix: &str) -> f64 {
        self.sum_with(prefix, "")
    }

    /// The sum of all series that begin so and have this label.
    pub fn sum_with(&self, prefix: &str, label: &str) -> f64 {
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &self.registry).unwrap();
        let series = text.lines().filter(|line| line.starts_with(prefix) && line.contains(label));
        series.map(|line| line.rsplit(' ').next().unwrap().parse::<f64>().unwrap()).sum()
    }
}

fn value(registry: &Registry, series: &str) -> Option<f64> {
    let mut text = String::new();
    prometheus_client::encoding::text::encode(&mut text, registry).unwrap();
    text.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' ')?.parse().ok())
}

/// A certificate that is its own authority, and its key.
pub fn certificate() -> (String, String) {
    let made = rcgen::generate_simple_self_signed(vec![NAME.to_owned()]).unwrap();
    (made.cert.pem(), made.signing_key.serialize_pem())
}

/// A server of `app` over TLS on a loopback port.
pub struct Running {
    pub address: SocketAddr,
    pub certificate: Arc<ServingCertificate>,
    pub root: String,
    pub authority: Authority,
    pub drain: CancellationToken,
    pub task: JoinHandle<Drained>,
    registry: Registry,
}

impl Running {
    pub async fn start(app: Router, settings: ServerSettings) -> Self {
        Self::start_for(app, settings, None).await
    }

    /// For these clients alone.
    pub async fn start_for(app: Router, settings: ServerSettings, clients: Option<Arc<ClientCertificates>>) -> Self {
        let authority = Authority::new("authority of a test");
        let (leaf, key) = authority.server();
        let certificate = ServingCertificate::new(cert_text(&leaf), key_text(&key)).unwrap();
        let mut registry = Registry::default();
        let metrics = Metrics::register(&mut registry).connections;
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let tls = Tls::new(Arc::clone(&certificate), clients).unwrap();
        let server = Server::tls(listener, tls, app, settings, metrics);
        let address = server.local_addr().unwrap();
        let drain = CancellationToken::new();
        let task = tokio::spawn(server.run(drain.clone()));
        Self { address, certificate, root: authority.pem(), authority, drain, task, registry }
    }

    /// The value of one of the server's series.
    pub fn metric(&self, series: &str) -> f64 {
        value(&self.registry, series).unwrap_or_else(|| panic!("no series {series}"))
    }

    /// Connections that were closed while this was waited for.
    pub fn timed_out(&self, waiting: &str) -> f64 {
        self.metric(&format!("pillion_connections_timed_out_total{{waiting=\"{waiting}\"}}"))
    }

    pub fn handshakes(&self, result: &str) -> f64 {
        value(&self.registry, &format!("pillion_tls_handshakes_total{{result=\"{result}\"}}")).unwrap()
    }

    pub fn connections(&self) -> f64 {
        value(&self.registry, "pillion_tls_connections").unwrap()
    }

    pub async fn tcp(&self) -> TcpStream {
        TcpStream::connect(self.address).await.unwrap()
    }

    /// A TLS connection that offers these protocols.
    pub async fn tls(&self, protocols: &[&str]) -> TlsStream<TcpStream> {
        connect(self.tcp().await, &self.root, protocols).await.unwrap()
    }

    /// One connection of HTTP/1.1.
    pub async fn http1(&self) -> TlsStream<TcpStream> {
        self.tls(&["http/1.1"]).await
    }
}

pub fn cert_text(text: &str) -> PemText<'_> {
    PemText { source: "tls.crt", text: text.as_bytes() }
}

pub fn key_text(text: &str) -> PemText<'_> {
    PemText { source: "tls.key", text: text.as_bytes() }
}

/// How a client of a test speaks TLS.
#[derive(Clone, Debug)]
pub struct ClientTls<'c> {
    /// Whom it trusts.
    pub root: &'c str,
    /// What it offers by ALPN.
    pub protocols: &'c [&'c str],
    pub versions: &'c [&'static SupportedProtocolVersion],
    /// Its certificate and key, if it has one.
    pub identity: Option<&'c (String, String)>,
    /// The server's name as it says it; `None` for an IP address, which is not said.
    pub name: Option<&'c str>,
}

impl<'c> ClientTls<'c> {
    /// HTTP/1.1, both versions of TLS, no certificate.
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

/// An authority for certificates of servers and clients.
pub struct Authority {
    issuer: rcgen::CertifiedIssuer<'static, rcgen::KeyPair>,
}

/// What a certificate is for.
#[derive(Clone, Copy, Debug)]
pub enum Purpose {
    Server,
    Client,
    /// A client's, which has run out.
    ExpiredClient,
}

impl Authority {
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

    /// A certificate and its key: of this common name, and these alternative names.
    pub fn leaf(&self, purpose: Purpose, common: &str, alternative: Vec<rcgen::SanType>) -> (String, String) {
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

    /// A server's, for [`NAME`] and the loopback.
    pub fn server(&self) -> (String, String) {
        let names =
            vec![rcgen::SanType::DnsName(NAME.try_into().unwrap()), rcgen::SanType::IpAddress([127, 0, 0, 1].into())];
        self.leaf(Purpose::Server, NAME, names)
    }

    pub fn client(&self, common: &str) -> (String, String) {
        self.leaf(Purpose::Client, common, Vec::new())
    }
}

pub async fn connect(stream: TcpStream, root: &str, protocols: &[&str]) -> io::Result<TlsStream<TcpStream>> {
    ClientTls { protocols, ..ClientTls::new(root) }.connect(stream).await
}

/// The first words of a TLS client.
pub fn client_hello(root: &str) -> Vec<u8> {
    let name = ServerName::try_from(NAME).unwrap();
    let mut client = rustls::ClientConnection::new(ClientTls::new(root).config(), name).unwrap();
    let mut hello = Vec::new();
    client.write_tls(&mut hello).unwrap();
    hello
}

/// The text of a POST over HTTP/1.1.
pub fn post(path: &str, body: &str) -> String {
    let length = body.len();
    format!(
        "POST {path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\r\n{body}"
    )
}

/// All that comes until the server closes the connection, cleanly or not.
pub async fn read_to_end(stream: &mut (impl AsyncRead + Unpin)) -> String {
    let mut bytes = Vec::new();
    // A close without close_notify, or a reset, is an end as well.
    let _ = tokio::time::timeout(PATIENCE, stream.read_to_end(&mut bytes)).await.expect("the server does not close");
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Writes, and reads to the end.
pub async fn exchange(stream: &mut TlsStream<TcpStream>, text: impl AsRef<[u8]>) -> String {
    // The server may have answered and closed before it has read all of it.
    let _ = stream.write_all(text.as_ref()).await;
    let _ = stream.flush().await;
    read_to_end(stream).await
}

/// One answer of HTTP/1.1 with a `Content-Length`.
#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    pub head: String,
    pub body: String,
}

impl Answer {
    /// Reads one answer and leaves the connection as it is.
    pub async fn read(stream: &mut (impl AsyncRead + Unpin)) -> Self {
        let read = async {
            let mut head = Vec::new();
            while !head.ends_with(b"\r\n\r\n") {
                head.push(stream.read_u8().await.expect("the connection ends before the answer"));
            }
            let head = String::from_utf8(head).unwrap().to_lowercase();
            let length =
                head.split("content-length: ").nth(1).and_then(|rest| rest.split("\r\n").next()).unwrap_or("0");
            let mut body = vec![0; length.parse().unwrap()];
            stream.read_exact(&mut body).await.unwrap();
            Self { status: head[9..12].parse().unwrap(), head, body: String::from_utf8(body).unwrap() }
        };
        tokio::time::timeout(PATIENCE, read).await.expect("no answer")
    }

    /// The number in its header `x-number`.
    pub fn number(&self) -> u64 {
        let number = self.head.split("x-number: ").nth(1).and_then(|rest| rest.split("\r\n").next());
        number.and_then(|number| number.parse().ok()).expect("an answer without a number")
    }

    /// Reads the head of an answer that has no body, whatever it says of its length.
    pub async fn read_head(stream: &mut (impl AsyncRead + Unpin)) -> Self {
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            head.push(stream.read_u8().await.expect("the connection ends before the answer"));
        }
        let head = String::from_utf8(head).unwrap().to_lowercase();
        Self { status: head[9..12].parse().unwrap(), head, body: String::new() }
    }

    /// Whether it says that the connection is used no more.
    pub fn closes(&self) -> bool {
        self.head.contains("connection: close\r\n")
    }
}

/// Waits until something is so.
pub async fn until(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = tokio::time::Instant::now() + PATIENCE;
    while !condition() {
        assert!(tokio::time::Instant::now() < deadline, "never: {what}");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}
