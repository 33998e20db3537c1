//! Tests malformed HTTP and TLS. Test cases that depend on time are in `tls_server.rs` and `transport.rs`.

use pillion_webhook::serve::ServerSettings;
use tokio::io::AsyncWriteExt;

use crate::support::{App, ClientTls, Running, ask, exchange, post, read_to_end, review_text, sidecar, until};

async fn start() -> (App, Running) {
    let app = App::with_profile(&sidecar(), None);
    let server = Running::start(app.router.clone(), ServerSettings::default()).await;
    (app, server)
}

/// The path does not fit into the buffer for a request's head.
#[tokio::test]
async fn path_of_100_kib_is_refused() {
    let (app, server) = start().await;
    let request = format!("POST /{} HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n", "x".repeat(100 * 1024));
    let answer = exchange(&mut server.http1().await, request).await;
    assert!(answer.starts_with("HTTP/1.1 414 ") || answer.starts_with("HTTP/1.1 431 "), "{answer}");
    assert!(app.sum("pillion_webhook_requests_total{") < 0.5);
}

/// Chunks with an extension are read, and chunks with an invalid size are rejected.
#[tokio::test]
async fn chunked_bodies_are_read_or_refused() {
    let (_app, server) = start().await;
    let head =
        "POST /mutate HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n";
    let text = review_text();
    let good = format!("{head}{:X};name=value\r\n{text}\r\n0\r\n\r\n", text.len());
    let answer = exchange(&mut server.http1().await, good).await;
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    for size in ["zz", "-1", "ffffffffffffffffff", "0x10", ""] {
        let bad = format!("{head}{size}\r\n{text}\r\n0\r\n\r\n");
        let answer = exchange(&mut server.http1().await, bad).await;
        assert!(answer.starts_with("HTTP/1.1 400 "), "{size:?}: {answer}");
    }
}

/// A request whose body length is ambiguous cannot smuggle in a second request.
///
/// The server ignores a `Content-Length` in addition to chunks, as RFC 9112 allows. It must then close the connection
/// after the response, so that nothing after the chunks is read as a request.
#[tokio::test]
async fn nothing_is_smuggled_behind_body() {
    let (app, server) = start().await;
    let text = review_text();
    let smuggled = post("/mutate/required", &text);
    let head = "POST /mutate HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n";
    let chunks = format!("{:x}\r\n{text}\r\n0\r\n\r\n", text.len());
    for lengths in [
        "Content-Length: 4\r\nTransfer-Encoding: chunked\r\n",
        "Transfer-Encoding: chunked\r\nContent-Length: 4\r\n",
        "Transfer-Encoding: chunked\r\n",
    ] {
        let answer = exchange(&mut server.http1().await, format!("{head}{lengths}\r\n{chunks}{smuggled}")).await;
        assert!(answer.starts_with("HTTP/1.1 200 ") && answer.contains("connection: close\r\n"), "{lengths}: {answer}");
        assert_eq!(answer.matches("HTTP/1.1 ").count(), 1, "{lengths}: {answer}");
    }
    let length = text.len();
    for lengths in [
        format!("Content-Length: {length}\r\nContent-Length: 4\r\n"),
        format!("Content-Length: {length}, 4\r\n"),
        "Content-Length: -1\r\n".to_owned(),
        format!("Content-Length: +{length}\r\n"),
        "Transfer-Encoding: chunked, identity\r\n".to_owned(),
        "Transfer-Encoding: xchunked\r\n".to_owned(),
        "Transfer-Encoding : chunked\r\n".to_owned(),
    ] {
        let answer = exchange(&mut server.http1().await, format!("{head}{lengths}\r\n{text}{smuggled}")).await;
        assert!(answer.starts_with("HTTP/1.1 400 "), "{lengths}: {answer}");
        assert_eq!(answer.matches("HTTP/1.1 ").count(), 1, "{lengths}: {answer}");
    }
    let required = app.sum_with("pillion_webhook_requests_total{", "endpoint=\"required\"");
    assert!(required < 0.5, "a request was smuggled in");
    assert_eq!(app.metric("pillion_webhook_panics_total"), Some(0.0));
}

/// The server answers a malformed request head with 400, or closes the connection.
#[tokio::test]
async fn invalid_head_is_refused_and_ends_connection() {
    let (app, server) = start().await;
    for head in [
        "POST\r\n\r\n",
        "POST /mutate HTTP/9.9\r\nHost: x\r\n\r\n",
        "POST /mutate HTTP/1.1\r\nHost x\r\n\r\n",
        "POST /mutate HTTP/1.1\r\nX\u{1}: y\r\n\r\n",
        "P\u{0}ST /mutate HTTP/1.1\r\n\r\n",
        "\u{16}\u{3}\u{1}\r\n\r\n",
    ] {
        let answer = exchange(&mut server.http1().await, head).await;
        assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 400 "), "{head:?}: {answer}");
    }
    let many = (0..200).map(|number| format!("X-{number}: y\r\n")).collect::<Vec<_>>().concat();
    let answer = exchange(&mut server.http1().await, format!("POST /mutate HTTP/1.1\r\n{many}\r\n")).await;
    assert!(answer.starts_with("HTTP/1.1 431 "), "{answer}");
    assert_eq!(app.metric("pillion_webhook_panics_total"), Some(0.0));
}

/// Checks the default limit. Other tests reach the limit with a smaller value.
#[test]
fn connection_limit_matches_table() {
    assert_eq!(ServerSettings::default().max_connections, 4096);
}

/// Returns the `ClientHello` of a client that supports TLS 1.1 at most.
fn hello_of_tls_1_1() -> Vec<u8> {
    let mut body = vec![3, 2];
    body.extend_from_slice(&[7; 32]);
    // No session id, two cipher suites (AES-128 and AES-256 with SHA-1), and no compression.
    body.extend_from_slice(&[0, 0, 4, 0, 0x2f, 0, 0x35, 1, 0]);
    let length = u8::try_from(body.len()).unwrap();
    let mut record = vec![0x16, 3, 1, 0, length + 4, 1, 0, 0, length];
    record.append(&mut body);
    record
}

/// A client with an old TLS version gets an alert. The server presents its certificate for any server name, or for
/// none: clients verify the name, and a replica does not know all names that clients use for it.
#[tokio::test]
async fn tls_names_and_versions_are_checked() {
    let (_app, server) = start().await;
    let mut old = server.tcp().await;
    old.write_all(&hello_of_tls_1_1()).await.unwrap();
    let mut alert = Vec::new();
    tokio::io::AsyncReadExt::read_to_end(&mut old, &mut alert).await.unwrap();
    // The alert is fatal. It is `protocol_version`, or `handshake_failure` if the server checks the cipher suites
    // first.
    assert!(alert.len() == 7 && alert[0] == 0x15 && alert[5] == 2 && matches!(alert[6], 70 | 40), "{alert:?}");
    until("the failed handshake is counted", || server.handshakes("failed") > 0.5).await;

    let nameless = ClientTls { name: None, ..ClientTls::new(&server.root) };
    let mut stream = nameless.connect(server.tcp().await).await.unwrap();
    assert_eq!(ask(&mut stream, post("/mutate", &review_text())).await.status, 200);

    let misled = ClientTls { name: Some("other.test"), ..ClientTls::new(&server.root) };
    let error = misled.connect(server.tcp().await).await.unwrap_err().to_string();
    assert!(error.contains("not valid for name"), "{error}");
    until("the rejected certificate is counted", || server.handshakes("failed") > 1.5).await;
}

/// Bytes that are not TLS end the handshake and do not reach any route.
#[tokio::test]
async fn plain_text_on_tls_port_is_closed() {
    let (app, server) = start().await;
    for garbage in
        [post("/mutate", &review_text()).into_bytes(), vec![0xff; 600], vec![0; 600], b"SSH-2.0-x\r\n".to_vec()]
    {
        let mut stream = server.tcp().await;
        stream.write_all(&garbage).await.unwrap();
        stream.shutdown().await.unwrap();
        let answer = read_to_end(&mut stream).await;
        assert!(!answer.contains("HTTP"), "{answer:?}");
    }
    until("the failed handshakes are counted", || server.handshakes("failed") > 3.5).await;
    assert!(app.sum("pillion_webhook_requests_total{") < 0.5);
}
