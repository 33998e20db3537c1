//! Tests clients that begin requests and never finish them: over HTTP/1.1 and HTTP/2, stalled or slow, from one address
//! or many. Other clients are always answered at the first attempt.

use std::net::SocketAddr;
use std::time::Duration;

use pillion_webhook::admission::RequestSettings;
use pillion_webhook::serve::ServerSettings;
use tokio::io::AsyncWriteExt;
use tokio::net::{TcpSocket, TcpStream};
use tokio::time::Instant;
use tokio_rustls::client::TlsStream;

use crate::http2::{DATA, END_HEADERS, HEADERS, Raw, frame, header};
use crate::support::{Answer, App, PATIENCE, Running, ask, connect, post, read_to_end, review_text, until};

const UNFINISHED: &str = "pillion_webhook_incomplete_bodies";
const SHED: &str = "pillion_webhook_shed_requests_total{reason=\"incomplete_body\"}";

type Stream = TlsStream<TcpStream>;

/// Returns settings in which a body may take a minute, so that a body ends only because of the limits on unfinished
/// bodies.
fn long_timeouts(total: usize, per_address: usize) -> RequestSettings {
    let mut settings = RequestSettings::default();
    settings.body_timeout = PATIENCE;
    settings.overload.max_unfinished = total;
    settings.overload.max_unfinished_per_address = per_address;
    settings
}

async fn serve(settings: RequestSettings) -> (App, Running) {
    let app = App::with(settings, None);
    let server = Running::start(app.router.clone(), ServerSettings::default()).await;
    (app, server)
}

async fn tcp_from(server: &Running, host: [u8; 4]) -> TcpStream {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind(SocketAddr::from((host, 0))).unwrap();
    socket.connect(server.address).await.unwrap()
}

async fn tls_from(server: &Running, host: [u8; 4], protocol: &str) -> Stream {
    connect(tcp_from(server, host).await, &server.root, &[protocol]).await.unwrap()
}

/// Sends a request from this address without the last byte of its body.
async fn stalled(server: &Running, host: [u8; 4]) -> Stream {
    let mut stream = tls_from(server, host, "http/1.1").await;
    send_all_but_the_last_byte(&mut stream, &review_text()).await;
    stream
}

async fn send_all_but_the_last_byte(stream: &mut Stream, body: &str) {
    let text = post("/mutate?timeout=30s", body);
    stream.write_all(&text.as_bytes()[..text.len() - 1]).await.unwrap();
    stream.flush().await.unwrap();
}

/// Asserts that reviews from this address are answered at the first attempt. Each uses a new connection.
async fn assert_others_are_answered(server: &Running, host: [u8; 4], times: usize) {
    for _ in 0..times {
        let mut stream = tls_from(server, host, "http/1.1").await;
        let answer = ask(&mut stream, post("/mutate?timeout=3s", &review_text())).await;
        assert_eq!(answer.status, 200, "{answer:?}");
    }
}

/// Sends a review in pieces, as a large one arrives. Returns `false` if it was shed.
async fn answered_in_pieces(server: &Running, host: [u8; 4]) -> bool {
    let mut stream = tls_from(server, host, "http/1.1").await;
    let text = post("/mutate?timeout=3s", &review_text());
    for piece in text.as_bytes().chunks(100) {
        if stream.write_all(piece).await.is_err() || stream.flush().await.is_err() {
            break;
        }
    }
    Answer::read(&mut stream).await.status == 200
}

#[tokio::test]
async fn address_over_its_bound_loses_its_oldest_body() {
    let (app, server) = serve(long_timeouts(100, 4)).await;
    let mut streams = Vec::new();
    for number in 1..=4 {
        streams.push(stalled(&server, [127, 0, 0, 2]).await);
        until("the body is registered", || app.metric(UNFINISHED) == Some(f64::from(number))).await;
    }
    let _fifth = stalled(&server, [127, 0, 0, 2]).await;
    let answer = Answer::read(&mut streams[0]).await;
    assert_eq!(answer.status, 503, "{answer:?}");
    assert!(answer.closes() && answer.head.contains("retry-after: 1\r\n"), "{answer:?}");
    assert!(answer.body.starts_with("too many requests are still sending their bodies"), "{answer:?}");
    assert_eq!((app.metric(SHED), app.metric(UNFINISHED)), (Some(1.0), Some(4.0)));
    // The second-oldest body was not shed.
    assert_eq!(ask(&mut streams[1], b"}").await.status, 200);
    assert_others_are_answered(&server, [127, 0, 0, 1], 3).await;
}

/// Opens more stalled bodies than the maximum number of requests in flight.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stalled_http1_bodies_cost_others_nothing() {
    let mut settings = long_timeouts(2048, 256);
    settings.overload.max_in_flight = 8;
    let (app, server) = serve(settings).await;
    let mut streams = Vec::new();
    for _ in 0..300 {
        streams.push(stalled(&server, [127, 0, 0, 2]).await);
    }
    until("the bound is reached", || app.metric(UNFINISHED) == Some(256.0)).await;
    assert_eq!(
        app.metric("pillion_webhook_inflight_requests"),
        Some(0.0),
        "an unfinished body takes no request permit"
    );
    assert_others_are_answered(&server, [127, 0, 0, 1], 12).await;
    // Other clients at the same address are answered too, because all clients may be behind one load balancer.
    assert_others_are_answered(&server, [127, 0, 0, 2], 12).await;
    drop(streams);
    until("nothing is left", || app.metric(UNFINISHED) == Some(0.0)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stalled_http2_streams_cost_others_nothing() {
    let (app, server) = serve(long_timeouts(2048, 256)).await;
    let block = [
        header(":method", "POST"),
        header(":scheme", "https"),
        header(":authority", "x"),
        header(":path", "/mutate?timeout=30s"),
        header("content-type", "application/json"),
    ]
    .concat();
    let mut connections = Vec::new();
    for _ in 0..9 {
        let mut raw = Raw::over(tls_from(&server, [127, 0, 0, 2], "h2").await, &[]).await;
        for number in 0..128 {
            let stream = 2 * number + 1;
            let begun = [frame(HEADERS, END_HEADERS, stream, &block), frame(DATA, 0, stream, b"{")].concat();
            assert!(raw.send(&begun).await);
        }
        connections.push(raw);
    }
    until("all but the newest were shed", || app.metric(SHED) == Some(9.0 * 128.0 - 256.0)).await;
    assert_eq!((app.metric(UNFINISHED), app.metric("pillion_webhook_inflight_requests")), (Some(256.0), Some(0.0)));
    assert_others_are_answered(&server, [127, 0, 0, 1], 12).await;
    // The request on the oldest stream was answered, and its connection stays open.
    assert!(connections[0].answered(1).await);
}

#[tokio::test]
async fn stalled_bodies_from_many_addresses_cost_others_nothing() {
    let (app, server) = serve(long_timeouts(32, 4)).await;
    let mut streams = Vec::new();
    for host in 1..=60 {
        streams.push(stalled(&server, [127, 0, 1, host]).await);
    }
    until("the bound is reached", || app.metric(SHED) == Some(28.0)).await;
    assert_eq!(app.metric(UNFINISHED), Some(32.0));
    for _ in 0..12 {
        assert!(answered_in_pieces(&server, [127, 0, 0, 1]).await);
    }
}

/// Each connection has an address of its own, so no address exceeds its limit.
#[tokio::test]
async fn unfinished_requests_block_no_client() {
    let app = App::with(long_timeouts(100, 4), None);
    let mut settings = ServerSettings::default();
    settings.max_connections = 16;
    let server = Running::start(app.router.clone(), settings).await;
    let mut streams = Vec::new();
    for host in 1..=16 {
        streams.push(stalled(&server, [127, 0, 1, host]).await);
    }
    until("all bodies are registered", || app.metric(UNFINISHED) == Some(16.0)).await;
    assert_others_are_answered(&server, [127, 0, 0, 1], 12).await;
    assert!(server.metric("pillion_webhook_closed_connections_total{reason=\"evicted\"}") > 0.5);
}

#[tokio::test]
async fn dripping_body_ends_at_its_deadline() {
    let mut settings = long_timeouts(100, 4);
    settings.body_timeout = Duration::from_millis(400);
    let (app, server) = serve(settings).await;
    let mut stream = tls_from(&server, [127, 0, 0, 2], "http/1.1").await;
    send_all_but_the_last_byte(&mut stream, "          ").await;
    let began = Instant::now();
    let (reading, mut writing) = tokio::io::split(stream);
    let dripping = async {
        while writing.write_all(b" ").await.is_ok() && writing.flush().await.is_ok() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    let text = {
        let mut reading = reading;
        let reading = read_to_end(&mut reading);
        tokio::pin!(reading, dripping);
        tokio::select! {
            text = &mut reading => text,
            () = &mut dripping => reading.await,
        }
    };
    assert!(text.starts_with("HTTP/1.1 4"), "{text}");
    assert!(began.elapsed() < PATIENCE / 2);
    assert_eq!(app.metric(UNFINISHED), Some(0.0));
}

/// Stalled bodies hold the whole memory budget. A complete body must still be answered.
#[tokio::test]
async fn complete_bodies_take_memory_of_stalled_ones() {
    const MEMORY: usize = 1024 * 1024;
    let mut settings = long_timeouts(100, 50);
    settings.body_budget = MEMORY;
    let (app, server) = serve(settings).await;
    let body = " ".repeat(100 * 1024);
    let mut streams = Vec::new();
    for number in 0..30 {
        let mut stream = tls_from(&server, [127, 0, 0, 2], "http/1.1").await;
        send_all_but_the_last_byte(&mut stream, &body).await;
        streams.push(stream);
        until("the body was read, or one was shed", || {
            let shed = app.metric("pillion_webhook_shed_requests_total{reason=\"no_memory\"}").unwrap();
            app.metric(UNFINISHED).unwrap() + shed > f64::from(number) + 0.5
        })
        .await;
    }
    until("the memory is in use", || app.metric("pillion_webhook_body_memory_bytes") > Some(0.8 * 1024.0 * 1024.0))
        .await;
    assert_others_are_answered(&server, [127, 0, 0, 1], 12).await;
    assert!(app.metric("pillion_webhook_body_memory_bytes") <= Some(1024.0 * 1024.0));
    // A larger body evicts several stalled bodies.
    let mut stream = tls_from(&server, [127, 0, 0, 1], "http/1.1").await;
    let large = format!("{}{}", review_text(), " ".repeat(120 * 1024));
    assert_eq!(ask(&mut stream, post("/mutate?timeout=3s", &large)).await.status, 200);
}
