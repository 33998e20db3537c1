//! Tests the authentication of clients by certificate: accepted clients, rejected clients, and failed handshakes.

use std::sync::Arc;
use std::time::Duration;

use crate::support::{Answer, App, ClientTls, Purpose, Running, TestCa, ask, post, read_to_end, review_text, until};
use http::{Request, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper_util::rt::{TokioExecutor, TokioIo};
use pillion_webhook::clients::ClientCertificates;
use pillion_webhook::serve::ServerSettings;
use pillion_webhook::tls::PemText;
use rcgen::SanType;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::client::TlsStream;

const SOON: Duration = Duration::from_millis(900);
const NO_CERTIFICATE: &str = "pillion_webhook_unauthorized_requests_total{reason=\"no_certificate\"}";
const NAME: &str = "pillion_webhook_unauthorized_requests_total{reason=\"name\"}";

fn ca_text(text: &str) -> PemText<'_> {
    PemText { source: "clients.crt", text: text.as_bytes() }
}

/// A server that accepts only clients of one CA, together with that CA.
struct Guarded {
    app: App,
    server: Running,
    ca: TestCa,
    clients: Arc<ClientCertificates>,
}

impl Guarded {
    async fn start(names: &[&str]) -> Self {
        Self::start_with(names, ServerSettings::default()).await
    }

    async fn start_with(names: &[&str], settings: ServerSettings) -> Self {
        let app = App::new();
        let ca = TestCa::new("CA of the API servers");
        let names = names.iter().map(ToString::to_string);
        let clients = ClientCertificates::new(ca_text(&ca.pem()), names).unwrap();
        let server = Running::start_for(app.router.clone(), settings, Some(Arc::clone(&clients))).await;
        Self { app, server, ca, clients }
    }

    async fn connect(
        &self,
        identity: Option<&(String, String)>,
        version: &'static rustls::SupportedProtocolVersion,
    ) -> std::io::Result<TlsStream<TcpStream>> {
        let tls = ClientTls { identity, versions: &[version], ..ClientTls::new(&self.server.root) };
        tls.connect(self.server.tcp().await).await
    }

    /// Returns the response to a review from this client.
    async fn review(&self, identity: Option<&(String, String)>) -> Answer {
        let mut stream = self.connect(identity, &rustls::version::TLS13).await.unwrap();
        ask(&mut stream, post("/mutate", &review_text())).await
    }
}

const VERSIONS: [&rustls::SupportedProtocolVersion; 2] = [&rustls::version::TLS12, &rustls::version::TLS13];

#[tokio::test]
async fn accepted_client_is_answered_over_both_versions() {
    let guarded = Guarded::start(&[]).await;
    let identity = guarded.ca.client("kube-apiserver");
    for version in VERSIONS {
        let mut stream = guarded.connect(Some(&identity), version).await.unwrap();
        for _ in 0..2 {
            assert_eq!(ask(&mut stream, post("/mutate", &review_text())).await.status, 200);
        }
    }
    assert!((guarded.server.handshakes("ok") - 2.0).abs() < 0.5);
    assert!(guarded.server.metric(NO_CERTIFICATE) < 0.5);
}

#[tokio::test]
async fn missing_certificate_is_401_before_body_is_read() {
    let guarded = Guarded::start(&[]).await;
    for version in VERSIONS {
        let mut stream = guarded.connect(None, version).await.unwrap();
        // The response arrives although the client sends none of the body.
        let head =
            "POST /mutate HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 1000000\r\n\r\n";
        stream.write_all(head.as_bytes()).await.unwrap();
        let answer = timeout(SOON, Answer::read(&mut stream)).await.expect("the server waits for the body");
        assert_eq!(answer.status, 401);
        assert!(answer.body.contains("--admission-control-config-file") && answer.closes(), "{answer:?}");
        // The server discards data for a short time from a client that keeps writing, and then closes the connection.
        let _ = stream.write_all(&[b' '; 1000]).await;
        assert_eq!(read_to_end(&mut stream).await, "");
    }

    // After a small body the connection stays open, so the next request is answered.
    let mut stream = guarded.connect(None, &rustls::version::TLS13).await.unwrap();
    for _ in 0..3 {
        let token = "Content-Type: application/json\r\nAuthorization: Bearer x";
        let text = post("/mutate", &review_text()).replace("Content-Type: application/json", token);
        let answer = ask(&mut stream, text).await;
        assert!(answer.status == 401 && !answer.closes(), "{answer:?}");
    }
    assert!((guarded.server.metric(NO_CERTIFICATE) - 5.0).abs() < 0.5);
    // No body was passed to the application, and no request was decided.
    assert_eq!(guarded.app.metric("pillion_webhook_request_size_bytes_count"), Some(0.0));
    assert_eq!(guarded.app.metric("pillion_webhook_inflight_requests"), Some(0.0));
}

#[tokio::test]
async fn large_body_does_not_hide_401() {
    let guarded = Guarded::start(&[]).await;
    let body = " ".repeat(6 * 1024 * 1024);
    let text = post("/mutate", &body);
    let mut answered = None;
    // The client writes the whole body before it reads the response, as simple clients do. The server discards data for
    // a second. A busy machine may not finish writing by then, so one success in five attempts is enough.
    for _ in 0..5 {
        let mut stream = guarded.connect(None, &rustls::version::TLS13).await.unwrap();
        if stream.write_all(text.as_bytes()).await.is_ok() {
            answered = Some(Answer::read(&mut stream).await.status);
            break;
        }
    }
    assert_eq!(answered, Some(401));

    let stream = guarded.server.tls(&["h2"]).await;
    let (mut sender, connection) =
        hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await.unwrap();
    tokio::spawn(connection);
    for _ in 0..2 {
        let request = Request::post("https://x/mutate")
            .header("content-type", "application/json")
            .body(Full::<bytes::Bytes>::from(body.clone()))
            .unwrap();
        let response = sender.send_request(request).await.unwrap();
        assert_eq!(response.status(), StatusCode::UNAUTHORIZED);
        response.into_body().collect().await.unwrap();
    }
}

/// Returns whether a handshake with this identity succeeds. In TLS 1.3, a client notices a rejection only when it
/// reads.
async fn is_accepted(
    guarded: &Guarded,
    identity: &(String, String),
    version: &'static rustls::SupportedProtocolVersion,
) -> bool {
    let Ok(mut stream) = guarded.connect(Some(identity), version).await else { return false };
    let _ = stream.write_all(post("/mutate", &review_text()).as_bytes()).await;
    stream.read_u8().await.is_ok()
}

#[tokio::test]
async fn invalid_certificate_ends_handshake_and_is_counted() {
    let guarded = Guarded::start(&[]).await;
    let other = TestCa::new("another CA");
    let bad = [
        ("expired", guarded.ca.certificate(Purpose::ExpiredClient, "kube-apiserver", Vec::new())),
        ("of another CA", other.client("kube-apiserver")),
        ("for servers", guarded.ca.certificate(Purpose::Server, "kube-apiserver", Vec::new())),
        ("self-signed", crate::support::certificate()),
    ];
    let mut failed = 0.0;
    for version in VERSIONS {
        for (name, identity) in &bad {
            assert!(!is_accepted(&guarded, identity, version).await, "{name}");
            failed += 1.0;
            until(name, || (guarded.server.handshakes("client_certificate") - failed).abs() < 0.5).await;
        }
    }
    assert!(guarded.server.handshakes("failed") < 0.5 && guarded.server.handshakes("ok") < 0.5);
    assert_eq!(guarded.app.metric("pillion_webhook_request_size_bytes_count"), Some(0.0));
}

#[tokio::test]
async fn only_named_clients_may_call() {
    let guarded = Guarded::start(&["kube-apiserver", "apiserver.example", "spiffe://example/apiserver"]).await;
    let client = |common: &str, names: Vec<SanType>| guarded.ca.certificate(Purpose::Client, common, names);
    let dns = |name: &str| SanType::DnsName(name.try_into().unwrap());
    for (identity, status) in [
        (client("kube-apiserver", Vec::new()), 200),
        (client("other", vec![dns("first.example"), dns("apiserver.example")]), 200),
        (client("other", vec![SanType::URI("spiffe://example/apiserver".try_into().unwrap())]), 200),
        (client("other", vec![dns("other.example")]), 403),
        (client("kube-apiserver.evil", Vec::new()), 403),
        (client("", Vec::new()), 403),
        (client("a\nname: \"forged\"", Vec::new()), 403),
    ] {
        let answer = guarded.review(Some(&identity)).await;
        assert_eq!(answer.status, status, "{answer:?}");
        assert_eq!(answer.body.lines().count(), 1, "{answer:?}");
    }
    let answer = guarded.review(Some(&client("kubelet", Vec::new()))).await;
    assert!(answer.body.contains("(kubelet)") && answer.body.contains("may call"), "{answer:?}");
    assert!((guarded.server.metric(NAME) - 5.0).abs() < 0.5);
    assert_eq!(guarded.review(None).await.status, 401);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn new_ca_is_used_from_next_handshake() {
    let guarded = Guarded::start(&[]).await;
    let old = guarded.ca.client("kube-apiserver");
    let mut open = guarded.connect(Some(&old), &rustls::version::TLS13).await.unwrap();
    let next = TestCa::new("the next CA");
    let new = next.client("kube-apiserver");
    assert!(!is_accepted(&guarded, &new, &rustls::version::TLS13).await);

    let not_ca = guarded.ca.client("kube-apiserver").0;
    let broken = "-----BEGIN CERTIFICATE-----\nMIIB\n";
    let nonsense = "-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----\n";
    for (text, expected) in [
        ("", "clients.crt has no certificate"),
        (broken, "clients.crt is not PEM text"),
        (nonsense, "certificate 1 in clients.crt cannot be used as a CA"),
        (&*not_ca, "certificate 1 in clients.crt cannot be used as a CA: it is not a CA"),
        (&*format!("{}{not_ca}", next.pem()), "certificate 2 in clients.crt"),
    ] {
        let error = guarded.clients.swap(ca_text(text)).unwrap_err().to_string();
        assert!(error.starts_with(expected), "{error}");
    }
    assert!(is_accepted(&guarded, &old, &rustls::version::TLS13).await, "the last valid CA remains active");

    // During a rotation, both CAs are accepted for a while. Setting the same CAs again does not count as a change.
    let both = format!("{}{}", guarded.ca.pem(), next.pem());
    assert!(guarded.clients.swap(ca_text(&both)).unwrap());
    assert!(!guarded.clients.swap(ca_text(&both)).unwrap());
    for identity in [&old, &new] {
        assert!(is_accepted(&guarded, identity, &rustls::version::TLS12).await);
    }
    assert!(guarded.clients.swap(ca_text(&next.pem())).unwrap());
    assert!(!is_accepted(&guarded, &old, &rustls::version::TLS13).await);
    assert!(is_accepted(&guarded, &new, &rustls::version::TLS13).await);
    // A connection that was accepted before stays open until it reaches its maximum age.
    assert_eq!(ask(&mut open, post("/mutate", &review_text())).await.status, 200);
}

#[tokio::test]
async fn rejected_client_keeps_no_connection() {
    let mut settings = ServerSettings::default();
    settings.handshake_timeout = Duration::from_secs(2);
    let guarded = Guarded::start_with(&[], settings).await;
    let identity = guarded.ca.client("kube-apiserver");
    let mut accepted = guarded.connect(Some(&identity), &rustls::version::TLS13).await.unwrap();
    let mut anonymous = guarded.connect(None, &rustls::version::TLS13).await.unwrap();
    assert_eq!(read_to_end(&mut anonymous).await, "");
    until("the timeout is counted", || (guarded.server.closed("idle") - 1.0).abs() < 0.5).await;
    assert_eq!(ask(&mut accepted, post("/mutate", &review_text())).await.status, 200);
}
