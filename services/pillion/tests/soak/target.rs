//! The replica as its clients see it, and what they send.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::time::Duration;

use base64::Engine;
use rustls::pki_types::ServerName;
use serde_json::{Value as Json, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use crate::soak::{KIB, NAMESPACE};
use crate::support::trusting;

/// How long anything may take that is not broken. The machine may be busy with other tests.
const PATIENCE: Duration = Duration::from_secs(20);
/// A review of so many bytes and some.
pub(crate) fn review(number: usize, operation: &str, bytes: usize) -> Json {
    let object = json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": format!("pod-{number}"), "namespace": NAMESPACE, "annotations": {"filler": "x".repeat(bytes)}},
        "spec": {"containers": [{"name": "app", "image": "registry.example/app:1"}]},
    });
    json!({
        "apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview",
        "request": {
            "uid": format!("uid-{number}"),
            "kind": {"group": "", "version": "v1", "kind": "Pod"},
            "resource": {"group": "", "version": "v1", "resource": "pods"},
            "namespace": NAMESPACE, "operation": operation, "object": object,
            "oldObject": if operation == "UPDATE" { object.clone() } else { Json::Null },
            "userInfo": {"username": "system:serviceaccount:kube-system:replicaset-controller"},
        },
    })
}

/// The replica as its clients see it.
pub(crate) struct Target {
    pub(crate) address: String,
    tls: TlsConnector,
    /// The latest generation of the profile that was asked for.
    pub(crate) generation: Cell<u32>,
    pub(crate) until: Instant,
    pub(crate) counts: RefCell<BTreeMap<&'static str, usize>>,
}

pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) closes: bool,
    pub(crate) body: Vec<u8>,
}

pub(crate) type Connection = TlsStream<TcpStream>;

impl Target {
    pub(crate) fn new(address: String, authority: &str, seconds: u64) -> Self {
        Self {
            address,
            tls: TlsConnector::from(trusting(authority.as_bytes())),
            generation: Cell::new(1),
            until: Instant::now() + Duration::from_secs(seconds),
            counts: RefCell::default(),
        }
    }

    pub(crate) fn goes_on(&self) -> bool {
        Instant::now() < self.until
    }

    pub(crate) fn count(&self, what: &'static str) {
        *self.counts.borrow_mut().entry(what).or_default() += 1;
    }

    pub(crate) async fn connect(&self) -> Connection {
        let connect = async {
            let tcp = TcpStream::connect(&self.address).await.unwrap();
            tcp.set_nodelay(true).unwrap();
            self.tls.connect(ServerName::try_from("localhost").unwrap(), tcp).await.unwrap()
        };
        timeout(PATIENCE, connect).await.expect("no handshake")
    }

    pub(crate) async fn ask(&self, connection: &mut Connection, path: &str, kind: &str, body: &[u8]) -> Answer {
        let head = format!(
            "POST {path} HTTP/1.1\r\nHost: x\r\nContent-Type: {kind}\r\nContent-Length: {}\r\n\r\n",
            body.len()
        );
        let ask = async {
            // A connection may end at an answer that says so, and never otherwise.
            connection.write_all(&[head.as_bytes(), body].concat()).await.unwrap();
            connection.flush().await.unwrap();
            read(connection).await
        };
        timeout(PATIENCE, ask).await.expect("no answer")
    }
}

async fn read(connection: &mut Connection) -> Answer {
    let mut bytes = Vec::new();
    let mut buffer = [0; 8 * KIB];
    let end = loop {
        if let Some(end) = bytes.windows(4).position(|four| four == b"\r\n\r\n") {
            break end;
        }
        let read = connection.read(&mut buffer).await.unwrap();
        assert!(read > 0, "the connection ends before the answer");
        bytes.extend_from_slice(&buffer[..read]);
    };
    let head = String::from_utf8_lossy(&bytes[..end]).to_lowercase();
    let length = head.split("content-length: ").nth(1).unwrap().split("\r\n").next().unwrap().parse::<usize>().unwrap();
    let mut body = bytes[end + 4..].to_vec();
    while body.len() < length {
        let read = connection.read(&mut buffer).await.unwrap();
        assert!(read > 0, "the connection ends within the answer");
        body.extend_from_slice(&buffer[..read]);
    }
    Answer { status: head[9..12].parse().unwrap(), closes: head.contains("connection: close"), body }
}

/// Whether the answer to the creation of a pod is the right one.
pub(crate) fn check_injected(target: &Target, number: usize, answer: &Answer) {
    let text = String::from_utf8_lossy(&answer.body);
    assert_eq!(answer.status, 200, "{text}");
    let answer: Json = serde_json::from_slice(&answer.body).unwrap();
    assert_eq!(answer["response"]["uid"], format!("uid-{number}"));
    assert_eq!(answer["response"]["allowed"], true, "{text}");
    let patch = answer["response"]["patch"].as_str().unwrap_or_else(|| panic!("not injected: {text}"));
    let patch = base64::engine::general_purpose::STANDARD.decode(patch).unwrap();
    let patch = String::from_utf8(patch).unwrap();
    let image = patch.split("registry.example/sidecar:").nth(1).unwrap_or_else(|| panic!("no sidecar: {patch}"));
    let generation: u32 = image.split('"').next().unwrap().parse().unwrap();
    assert!((1..=target.generation.get()).contains(&generation), "{generation}: {patch}");
    assert!(patch.contains(&format!("pod-{number}/{NAMESPACE}")), "{patch}");
}
