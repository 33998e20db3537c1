//! Tests the server during certificate changes, at its connection limit and during the drain. Also tests clients that
//! do not read.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::support::{
    Answer, App, ClientTls, GET_FAST, GET_SLOW, PATIENCE, Running, ask, cert_text, fast_and_large, fast_and_slow,
    fast_drain, key_text, post, read_to_end, review_text, until,
};
use axum::Router;
use axum::routing::get;
use futures::future::join_all;
use http::Request;
use http_body_util::{BodyExt, Empty};
use hyper_util::rt::{TokioExecutor, TokioIo};
use pillion_webhook::serve::Drained;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};
use tokio::sync::Notify;
use tokio::time::{Instant, sleep, timeout};
use tokio_rustls::client::TlsStream;

const SHORT: Duration = Duration::from_millis(300);

/// Connects to the server from another loopback address.
async fn from_elsewhere(server: &Running) -> TcpStream {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind(([127, 0, 0, 2], 0).into()).unwrap();
    socket.connect(server.address).await.unwrap()
}

#[tokio::test]
async fn greedy_address_loses_connections_without_requests() {
    let mut settings = fast_drain();
    settings.max_connections = 6;
    let (asked, answer) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let server = Running::start(fast_and_slow(&asked, &answer), settings).await;
    let mut busy = server.http1().await;
    busy.write_all(GET_SLOW).await.unwrap();
    busy.flush().await.unwrap();
    asked.notified().await;
    let mut idle = Vec::new();
    for _ in 0..5 {
        idle.push(server.http1().await);
    }

    let mut others = Vec::new();
    for _ in 0..3 {
        others.push(ClientTls::new(&server.root).connect(from_elsewhere(&server).await).await.unwrap());
    }
    assert_eq!(
        read_to_end(&mut from_elsewhere(&server).await).await,
        "",
        "an address with as many connections as the other got one more"
    );
    let (closed, kept) = idle.split_at_mut(3);
    for stream in closed {
        assert_eq!(read_to_end(stream).await, "");
    }
    for stream in others.iter_mut().chain(kept) {
        assert_eq!(ask(stream, GET_FAST).await.body, "fast");
    }
    answer.notify_one();
    let done = Answer::read(&mut busy).await;
    assert!(done.body == "done" && !done.closes(), "{done:?}");
    assert!((server.metric("pillion_webhook_closed_connections_total{reason=\"evicted\"}") - 3.0).abs() < 0.5);
    assert!((server.handshakes("refused") - 1.0).abs() < 0.5);
}

#[tokio::test]
async fn serves_tls_1_2_and_1_3_only() {
    let server = Running::start(fast_and_large(), fast_drain()).await;
    for (version, expected) in [
        (&rustls::version::TLS12, rustls::ProtocolVersion::TLSv1_2),
        (&rustls::version::TLS13, rustls::ProtocolVersion::TLSv1_3),
    ] {
        let client = ClientTls { versions: &[version], ..ClientTls::new(&server.root) };
        let mut stream = client.connect(server.tcp().await).await.unwrap();
        assert_eq!(stream.get_ref().1.protocol_version(), Some(expected));
        assert_eq!(ask(&mut stream, GET_FAST).await.body, "fast");
    }
    // Sessions are not resumed: a client that reconnects makes a full handshake.
    let tls = ClientTls::new(&server.root);
    for _ in 0..2 {
        let stream = tls.connect(server.tcp().await).await.unwrap();
        assert_eq!(stream.get_ref().1.handshake_kind(), Some(rustls::HandshakeKind::Full));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn certificate_changes_fail_no_handshake() {
    const SWAPS: usize = 60;
    let server = Running::start(fast_and_large(), fast_drain()).await;
    let certificates = [server.ca.server(), server.ca.server()];
    let ended = AtomicBool::new(false);
    let seen = Mutex::new(BTreeSet::new());
    let handshakes = AtomicUsize::new(0);
    let client = async |number: usize| {
        let tls = ClientTls {
            protocols: if number.is_multiple_of(2) { &["h2"] } else { &["http/1.1"] },
            ..ClientTls::new(&server.root)
        };
        while !ended.load(Ordering::Relaxed) {
            let mut stream = tls.connect(server.tcp().await).await.unwrap();
            let certificate = stream.get_ref().1.peer_certificates().unwrap()[0].to_vec();
            seen.lock().unwrap().insert(certificate);
            handshakes.fetch_add(1, Ordering::Relaxed);
            if number % 2 == 1 {
                assert_eq!(ask(&mut stream, GET_FAST).await.body, "fast");
            }
        }
    };
    let swapping = async {
        let (began, mut swaps) = (Instant::now(), 0);
        // On a slow machine, the loop continues until there were enough handshakes.
        while swaps < SWAPS || (handshakes.load(Ordering::Relaxed) < SWAPS / 2 && began.elapsed() < PATIENCE) {
            let (certificate, key) = &certificates[swaps % 2];
            server.certificate.swap(cert_text(certificate), key_text(key)).unwrap();
            swaps += 1;
            sleep(Duration::from_millis(10)).await;
        }
        ended.store(true, Ordering::Relaxed);
    };
    futures::join!(join_all((0..4).map(client)), swapping);
    let handshakes = handshakes.load(Ordering::Relaxed);
    println!("{handshakes} handshakes during {SWAPS} swaps or more");
    assert!(handshakes >= SWAPS / 2, "{handshakes}");
    assert!(seen.lock().unwrap().len() >= 2, "the certificate was never seen to change");
    until("all are counted", || server.handshakes("ok") >= f64::from(u32::try_from(handshakes).unwrap()) - 0.5).await;
    assert!(server.handshakes("failed") < 0.5 && server.handshakes("timed_out") < 0.5);
}

/// Pipelines requests for large responses without reading them, until the server accepts no more. Returns the
/// connection, and the number of requests.
async fn request_without_reading(server: &Running) -> (TlsStream<TcpStream>, usize) {
    let mut stream = server.http1().await;
    let mut asked = 0;
    while let Ok(written) = timeout(SHORT / 3, stream.write(b"GET /large HTTP/1.1\r\nHost: x\r\n\r\n")).await {
        match written {
            Ok(_) if timeout(SHORT / 3, stream.flush()).await.is_ok() => asked += 1,
            _ => break,
        }
        assert!(asked < 100_000, "the server accepts any number of requests");
    }
    (stream, asked)
}

#[tokio::test]
async fn client_that_does_not_read_is_cut() {
    let mut settings = fast_drain();
    settings.response_timeout = 2 * SHORT;
    let server = Running::start(fast_and_large(), settings).await;
    // One small unread response fits into the kernel's buffer, so this connection remains usable.
    let mut patient = server.http1().await;
    patient.write_all(GET_FAST).await.unwrap();

    let began = Instant::now();
    let (silent, asked) = request_without_reading(&server).await;
    until("the connection is timed out", || server.closed("slow_reader") > 0.5).await;
    println!("given up after {:?} and {asked} requests", began.elapsed());
    assert!(began.elapsed() >= 2 * SHORT, "{:?}", began.elapsed());
    until("the connection's permit is free", || server.connections() < 1.5).await;
    drop(silent);

    sleep(3 * SHORT).await;
    assert_eq!(Answer::read(&mut patient).await.body, "fast");
    assert_eq!(ask(&mut patient, GET_FAST).await.body, "fast");
    assert!((server.closed("slow_reader") - 1.0).abs() < 0.5);
}

#[tokio::test]
async fn slow_reader_gets_whole_response() {
    const HUGE: usize = 6 * 1024 * 1024;
    let mut settings = fast_drain();
    settings.response_timeout = 8 * SHORT;
    let huge = Router::new().route("/huge", get(async || "x".repeat(HUGE)));
    let server = Running::start(huge, settings).await;
    // The receive buffer is small, so that unread bytes soon block the server.
    let socket = TcpSocket::new_v4().unwrap();
    socket.set_recv_buffer_size(64 * 1024).unwrap();
    let tcp = socket.connect(server.address).await.unwrap();
    let (mut reading, mut writing) = tokio::io::split(ClientTls::new(&server.root).connect(tcp).await.unwrap());
    writing.write_all(b"GET /huge HTTP/1.1\r\nHost: x\r\n\r\n").await.unwrap();
    writing.flush().await.unwrap();
    let began = Instant::now();
    let mut read = 0;
    let mut buffer = vec![0; 16 * 1024];
    while read < HUGE {
        let bytes = timeout(PATIENCE, reading.read(&mut buffer)).await.unwrap().unwrap_or(0);
        assert!(bytes > 0, "cut after {read} bytes and {:?}", began.elapsed());
        read += bytes;
        // The client first reads about 500 KiB per second, for much longer than the response timeout.
        if began.elapsed() < 20 * SHORT {
            sleep(Duration::from_millis(30)).await;
        }
    }
    println!("{read} bytes in {:?}", began.elapsed());
    assert!(server.closed("slow_reader") < 0.5);
}

#[tokio::test]
async fn timed_out_connections_are_counted_by_event() {
    let mut settings = fast_drain();
    settings.header_timeout = SHORT / 3;
    settings.request_timeout = SHORT / 3;
    // The idle timeout is so long that the other timeouts end first, even on a slow machine.
    settings.idle_timeout = 10 * SHORT;
    let never = Router::new().route("/never", get(async || std::future::pending::<()>().await));
    let server = Running::start(never, settings).await;
    for (text, waiting) in
        [("GET /never HTT", "slow_head"), ("GET /never HTTP/1.1\r\nHost: x\r\n\r\n", "slow_request"), ("", "idle")]
    {
        let mut stream = server.http1().await;
        stream.write_all(text.as_bytes()).await.unwrap();
        stream.flush().await.unwrap();
        assert_eq!(read_to_end(&mut stream).await, "", "{waiting}");
        until(waiting, || (server.closed(waiting) - 1.0).abs() < 0.5).await;
    }
}

/// Runs an HTTP/1.1 client that, like Go's, keeps its connection until a response announces the end. Returns the
/// numbers of responses and of connections.
async fn run_http1_client(servers: &Mutex<Arc<Running>>, ended: &AtomicBool) -> (usize, usize) {
    let (mut answers, mut connections) = (0_usize, 0_usize);
    while !ended.load(Ordering::Relaxed) {
        let server = Arc::clone(&servers.lock().unwrap());
        let mut stream = server.http1().await;
        connections += 1;
        loop {
            let answer = ask(&mut stream, GET_FAST).await;
            assert_eq!((answer.status, &*answer.body), (200, "fast"));
            answers += 1;
            if answer.closes() || ended.load(Ordering::Relaxed) {
                break;
            }
            if answers.is_multiple_of(16) {
                sleep(Duration::from_millis(1)).await;
            }
        }
    }
    (answers, connections)
}

/// Runs an HTTP/2 client that reconnects when its connection accepts no more requests. A request may fail only if the
/// server did not process it. Returns the numbers of responses and of connections.
async fn run_http2_client(servers: &Mutex<Arc<Running>>, ended: &AtomicBool) -> (usize, usize) {
    let (mut answers, mut connections) = (0, 0);
    while !ended.load(Ordering::Relaxed) {
        let server = Arc::clone(&servers.lock().unwrap());
        let stream = server.tls(&["h2"]).await;
        let (mut sender, connection) =
            hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await.unwrap();
        let connection = tokio::spawn(connection);
        connections += 1;
        while !ended.load(Ordering::Relaxed) && sender.ready().await.is_ok() {
            let request = Request::get("https://x/fast").body(Empty::<bytes::Bytes>::new()).unwrap();
            match sender.try_send_request(request).await {
                Ok(response) => {
                    assert_eq!(response.into_body().collect().await.unwrap().to_bytes(), "fast");
                    answers += 1;
                }
                Err(mut error) => {
                    // If the request was never sent, the error contains it. GOAWAY names the last stream that the
                    // server has processed. Only an unprocessed stream ends with one of the errors below.
                    let is_unsent = error.take_message().is_some();
                    let error = format!("{:?}", error.into_error());
                    let unprocessed = ["REFUSED_STREAM", "GoAway(b\"\", NO_ERROR, Remote)"];
                    let is_unprocessed = unprocessed.iter().any(|text| error.contains(text));
                    assert!(is_unsent || is_unprocessed, "a request was lost: {error}");
                    break;
                }
            }
        }
        drop(sender);
        let _ = timeout(PATIENCE, connection).await.expect("the connection stays open");
    }
    (answers, connections)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn keep_alive_clients_lose_nothing_over_drains() {
    const DRAINS: usize = 25;
    let mut settings = fast_drain();
    // The minimum is long enough that a connection made before the drain is accepted in time, even on a busy machine.
    settings.drain_minimum = SHORT / 3;
    let start = async || Arc::new(Running::start(fast_and_large(), settings.clone()).await);
    let servers = Mutex::new(start().await);
    let ended = AtomicBool::new(false);
    let drains = async {
        for _ in 0..DRAINS {
            sleep(Duration::from_millis(50)).await;
            // The next server starts before the previous one drains, as in a rolling restart.
            let next = start().await;
            let last = std::mem::replace(&mut *servers.lock().unwrap(), next);
            last.drain.cancel();
            until("the server has drained", || last.task.is_finished()).await;
            let last = Arc::into_inner(last).map(|last| last.task);
            if let Some(task) = last {
                assert_eq!(task.await.unwrap(), Drained { cut: 0 });
            }
        }
        ended.store(true, Ordering::Relaxed);
    };
    let old = join_all((0..6).map(|_| run_http1_client(&servers, &ended)));
    let new = join_all((0..3).map(|_| run_http2_client(&servers, &ended)));
    let (old, new, ()) = futures::join!(old, new, drains);
    for (name, clients) in [("HTTP/1.1", old), ("HTTP/2", new)] {
        let (answers, connections) = clients.iter().fold((0, 0), |sum, client| (sum.0 + client.0, sum.1 + client.1));
        println!("{name}: {answers} answers by {connections} connections over {DRAINS} drains");
        assert!(answers > DRAINS && connections > DRAINS, "{name}: {answers} answers by {connections} connections");
    }
}

/// The kernel establishes a connection before the server accepts it. Such a connection must not be lost at the end of
/// the drain.
#[tokio::test]
async fn connection_at_end_of_drain_is_answered() {
    for _ in 0..30 {
        let (asked, answer) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
        let server = Running::start(fast_and_slow(&asked, &answer), fast_drain()).await;
        let mut last = server.http1().await;
        last.write_all(GET_SLOW).await.unwrap();
        last.flush().await.unwrap();
        asked.notified().await;
        server.drain.cancel();
        until("the server is draining", || server.metric("pillion_webhook_draining") > 0.5).await;
        // No task of the server runs between the notification and the connection.
        answer.notify_one();
        let late = std::net::TcpStream::connect(server.address).unwrap();
        late.set_nonblocking(true).unwrap();
        let late = TcpStream::from_std(late).unwrap();
        let mut late = ClientTls::new(&server.root).connect(late).await.expect("the late connection was not accepted");
        assert!(Answer::read(&mut last).await.closes());
        // The late client sends nothing yet, but does not block the next client.
        let mut latest = server.http1().await;
        assert!(ask(&mut latest, GET_FAST).await.closes());
        let answer = ask(&mut late, GET_FAST).await;
        assert!(answer.closes() && answer.body == "fast", "{answer:?}");
        assert_eq!(timeout(PATIENCE, server.task).await.unwrap().unwrap(), Drained { cut: 0 });
    }
}

#[tokio::test]
async fn end_of_drain_closes_idle_and_answers_last() {
    let mut settings = fast_drain();
    // The server closes idle connections one second before the deadline, or a tenth of the drain's duration before it
    // if that is shorter. With a drain of ten seconds, both are one second.
    settings.drain_deadline = Duration::from_secs(10);
    let (asked, answer) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let server = Running::start(fast_and_slow(&asked, &answer), settings).await;
    let (mut idle, mut busy) = (server.http1().await, server.http1().await);
    assert!(!ask(&mut idle, GET_FAST).await.closes());
    busy.write_all(GET_SLOW).await.unwrap();
    asked.notified().await;
    let began = Instant::now();
    server.drain.cancel();
    // The idle connection stays open for nearly the whole drain, because its client may be sending a request.
    assert_eq!(read_to_end(&mut idle).await, "");
    let closed = began.elapsed();
    assert!(closed >= Duration::from_secs(8) && closed < Duration::from_secs(10), "{closed:?}");
    answer.notify_one();
    let done = Answer::read(&mut busy).await;
    assert!(done.closes() && done.body == "done", "{done:?}");
    assert_eq!(timeout(PATIENCE, server.task).await.unwrap().unwrap(), Drained { cut: 0 });
}

#[tokio::test]
async fn disconnected_client_leaves_nothing_behind() {
    let app = App::new();
    let server = Running::start(app.router.clone(), fast_drain()).await;
    let review = post("/mutate", &review_text());
    for cut in (0..review.len()).step_by(31) {
        let mut stream = server.http1().await;
        stream.write_all(&review.as_bytes()[..cut]).await.unwrap();
        let _ = stream.flush().await;
        drop(stream);
    }
    until("the connections are gone", || server.connections() < 0.5).await;
    assert_eq!(app.metric("pillion_webhook_inflight_requests"), Some(0.0));
    assert_eq!(app.metric("pillion_webhook_body_memory_bytes"), Some(0.0));
    assert_eq!(app.metric("pillion_webhook_panics_total"), Some(0.0));
}
