//! Tests the server over real sockets: its limits, its certificate, and its drain.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use crate::support::{
    Answer, App, GET_FAST, GET_SLOW, PATIENCE, Running, ask, exchange, fast_and_large, fast_and_slow, fast_drain, post,
    read_to_end, review_text, until,
};
use http::{Request, StatusCode, Version};
use http_body_util::{BodyExt, Full};
use hyper_util::rt::{TokioExecutor, TokioIo};
use pillion_webhook::admission::RequestSettings;
use pillion_webhook::serve::{Drained, Server, ServerSettings};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;

const SHORT: Duration = Duration::from_millis(200);

#[tokio::test]
async fn serves_http1_and_http2() {
    let server = Running::start(App::new().router, fast_drain()).await;
    let request = |uri: &str| {
        Request::post(uri)
            .header("content-type", "application/json")
            .body(Full::<bytes::Bytes>::from(review_text()))
            .unwrap()
    };

    let stream = server.tls(&["h2", "http/1.1"]).await;
    assert_eq!(stream.get_ref().1.alpn_protocol(), Some(&b"h2"[..]));
    let (mut sender, connection) =
        hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await.unwrap();
    tokio::spawn(connection);
    for path in ["/mutate/enabled", "/mutate/held"] {
        let response = sender.send_request(request(&format!("https://x{path}"))).await.unwrap();
        assert_eq!((response.status(), response.version()), (StatusCode::OK, Version::HTTP_2));
        let body = response.into_body().collect().await.unwrap().to_bytes();
        assert!(String::from_utf8_lossy(&body).contains("\"allowed\":true"));
    }
    drop(sender);

    for protocols in [&["http/1.1"][..], &[]] {
        let stream = server.tls(protocols).await;
        let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.unwrap();
        tokio::spawn(connection);
        for path in ["/mutate", "/mutate/required"] {
            let response = sender.send_request(request(path)).await.unwrap();
            assert_eq!((response.status(), response.version()), (StatusCode::OK, Version::HTTP_11));
            assert_eq!(response.headers()["content-type"], "application/json");
            response.into_body().collect().await.unwrap();
            sender.ready().await.unwrap();
        }
    }
    assert!((server.handshakes("ok") - 3.0).abs() < 0.5);
    until("the connections are gone", || server.connections() < 0.5).await;
}

#[tokio::test]
async fn slow_head_is_cut_and_idle_connection_kept() {
    let mut settings = fast_drain();
    settings.header_timeout = SHORT;
    let server = Running::start(fast_and_large(), settings).await;
    let mut idle = server.http1().await;
    assert_eq!(ask(&mut idle, GET_FAST).await.body, "fast");
    let fresh = server.http1().await;

    // The client sends a head that never ends, on a new connection and after a request.
    for requests_before in [0, 1] {
        // The server's timer starts later than this, with the first byte of the head.
        let began = Instant::now();
        let mut slow = server.http1().await;
        for _ in 0..requests_before {
            assert_eq!(ask(&mut slow, GET_FAST).await.status, 200);
        }
        let (mut reading, mut writing) = tokio::io::split(slow);
        let drip = tokio::spawn(async move {
            writing.write_all(b"GET /fast HTTP/1.1\r\nHost: x\r\n").await?;
            // The client sends headers for twice the timeout.
            for _ in 0..(2 * SHORT.as_millis() / 20) {
                sleep(Duration::from_millis(20)).await;
                writing.write_all(b"X-Drip: y\r\n").await?;
            }
            std::io::Result::Ok(writing)
        });
        assert_eq!(read_to_end(&mut reading).await, "");
        assert!(began.elapsed() >= SHORT, "{:?}", began.elapsed());
        drip.abort();
    }

    // The idle connections have been open for longer than the header timeout.
    for mut stream in [idle, fresh] {
        assert_eq!(ask(&mut stream, GET_FAST).await.body, "fast");
    }
}

#[tokio::test]
async fn idle_connection_is_closed_at_timeout() {
    let mut settings = fast_drain();
    // The timeout is longer than a busy machine needs between two steps of this test.
    settings.idle_timeout = 5 * SHORT;
    let server = Running::start(fast_and_large(), settings).await;
    let mut stream = server.http1().await;
    assert_eq!(ask(&mut stream, GET_FAST).await.status, 200);
    let began = Instant::now();
    assert_eq!(read_to_end(&mut stream).await, "");
    assert!(began.elapsed() >= SHORT / 2, "{:?}", began.elapsed());
}

#[tokio::test]
async fn slow_handshake_is_cut() {
    let mut settings = fast_drain();
    // The timeout is long enough for the valid handshakes on a busy machine.
    settings.handshake_timeout = 5 * SHORT;
    settings.max_handshakes = 1;
    let server = Running::start(fast_and_large(), settings).await;

    let began = Instant::now();
    let mut silent = server.tcp().await;
    // A silent client does not hold the only handshake permit.
    let mut stream = server.http1().await;
    assert_eq!(ask(&mut stream, GET_FAST).await.status, 200);
    assert_eq!(read_to_end(&mut silent).await, "");
    assert!(began.elapsed() >= 5 * SHORT, "{:?}", began.elapsed());
    until("the timeout is counted", || server.handshakes("timed_out") > 0.5).await;
}

#[tokio::test]
async fn concurrent_handshakes_are_bounded() {
    let mut settings = fast_drain();
    settings.handshake_timeout = 10 * SHORT;
    settings.max_handshakes = 1;
    let server = Running::start(fast_and_large(), settings).await;
    let mut stalled = server.tcp().await;
    stalled.write_all(&crate::support::client_hello(&server.root)).await.unwrap();
    // Once the server has responded, this handshake holds the only permit. The client sends nothing more.
    stalled.read_u8().await.unwrap();
    // The test sleeps for half of the stalled handshake's timeout. The next client waits for the other half. After
    // that, half of its own timeout remains for its handshake.
    sleep(5 * SHORT).await;
    let mut next = pin!(server.http1());
    assert!(timeout(SHORT / 2, &mut next).await.is_err(), "two handshakes ran at once");
    let mut next = next.await;
    assert_eq!(ask(&mut next, GET_FAST).await.status, 200);
    assert!((server.handshakes("timed_out") - 1.0).abs() < 0.5);
}

#[tokio::test]
async fn handshake_with_untrusting_client_is_counted() {
    let server = Running::start(fast_and_large(), fast_drain()).await;
    let (other, _) = crate::support::certificate();
    crate::support::connect(server.tcp().await, &other, &[]).await.unwrap_err();
    until("the failure is counted", || server.handshakes("failed") > 0.5).await;
}

#[tokio::test]
async fn stalled_body_is_408() {
    let mut requests = RequestSettings::default();
    requests.body_timeout = SHORT;
    let app = App::with(requests, None);
    let server = Running::start(app.router.clone(), fast_drain()).await;
    let mut stream = server.http1().await;
    let began = Instant::now();
    let text = "POST /mutate HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n{";
    let answer = exchange(&mut stream, text).await;
    assert!(answer.starts_with("HTTP/1.1 408 ") && answer.contains("200 ms"), "{answer}");
    assert!(began.elapsed() >= SHORT, "{:?}", began.elapsed());
    let series = "pillion_webhook_requests_total{endpoint=\"any\",outcome=\"bad_request\"}";
    assert_eq!(app.metric(series), Some(1.0));
}

#[tokio::test]
async fn body_above_7_mib_is_413_and_closes() {
    const LIMIT: usize = 7 * 1024 * 1024;
    let server = Running::start(App::new().router, fast_drain()).await;
    let head = "POST /mutate/enabled HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n";
    let announced = format!("{head}Content-Length: {}\r\n\r\n{}", LIMIT + 1, " ".repeat(LIMIT + 1));
    let chunk = format!("{:x}\r\n{}\r\n", 1024 * 1024, " ".repeat(1024 * 1024));
    let chunked = format!("{head}Transfer-Encoding: chunked\r\n\r\n{}1\r\n \r\n0\r\n\r\n", chunk.repeat(7));
    // If a client waits for `100 Continue`, its request is rejected before it sends the body.
    let asks = format!("{head}Expect: 100-continue\r\nContent-Length: {}\r\n\r\n", LIMIT + 1);
    for (name, text) in [("announced", announced), ("chunked", chunked), ("asks first", asks)] {
        let mut stream = server.http1().await;
        let answer = exchange(&mut stream, text).await;
        assert!(answer.starts_with("HTTP/1.1 413 "), "{name}: {answer}");
        assert!(answer.contains("connection: close\r\n") && answer.contains("7340032"), "{name}: {answer}");
    }
}

#[tokio::test]
async fn pipelined_http1_is_served_in_order() {
    let server = Running::start(App::new().router, fast_drain()).await;
    let review = review_text();

    let old = post("/mutate", &review).replace("HTTP/1.1", "HTTP/1.0");
    let answer = exchange(&mut server.http1().await, old).await;
    assert!(answer.starts_with("HTTP/1.0 200 "), "{answer}");

    let (first, second) = review.split_at(100);
    let chunked = format!(
        "POST /mutate HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\
         Connection: close\r\nTrailer: X-Sum\r\n\r\n{:x}\r\n{first}\r\n{:x}\r\n{second}\r\n0\r\nX-Sum: 1\r\n\r\n",
        first.len(),
        second.len()
    );
    let answer = exchange(&mut server.http1().await, chunked).await;
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");

    let mut stream = server.http1().await;
    let pipelined = format!("{}{}{}", post("/mutate", &review), post("/mutate", "{}"), post("/mutate/held", &review));
    stream.write_all(pipelined.as_bytes()).await.unwrap();
    for expected in [200, 400, 200] {
        assert_eq!(Answer::read(&mut stream).await.status, expected);
    }
}

#[tokio::test]
async fn connection_above_limit_is_refused() {
    let mut settings = fast_drain();
    settings.max_connections = 2;
    let server = Running::start(fast_and_large(), settings).await;
    let mut open = [server.http1().await, server.http1().await];
    assert_eq!(read_to_end(&mut server.tcp().await).await, "");
    assert!((server.handshakes("refused") - 1.0).abs() < 0.5);
    for stream in &mut open {
        assert_eq!(ask(stream, GET_FAST).await.status, 200);
    }
    let [first, _second] = open;
    drop(first);
    until("a connection permit is free", || server.connections() < 1.5).await;
    let mut next = server.http1().await;
    assert_eq!(ask(&mut next, GET_FAST).await.status, 200);
}

#[tokio::test]
async fn new_certificate_is_served_without_breaking_connections() {
    let server = Running::start(fast_and_large(), fast_drain()).await;
    let mut old = server.http1().await;
    let (root, key) = crate::support::certificate();
    assert!(server.certificate.swap(crate::support::cert_text(&root), crate::support::key_text(&key)).unwrap());

    let new = crate::support::connect(server.tcp().await, &root, &[]).await.unwrap();
    assert_eq!(new.get_ref().1.peer_certificates().unwrap().len(), 1);
    crate::support::connect(server.tcp().await, &server.root, &[]).await.unwrap_err();
    assert_eq!(ask(&mut old, GET_FAST).await.body, "fast");
}

#[tokio::test]
async fn old_connection_is_closed_with_a_response() {
    let mut settings = fast_drain();
    // The actual maximum age may be up to a fifth longer or shorter.
    settings.max_age = Some(5 * SHORT);
    let server = Running::start(fast_and_large(), settings).await;

    let mut stream = server.http1().await;
    assert!(!ask(&mut stream, GET_FAST).await.closes(), "the connection closed before its maximum age");
    // An idle connection stays open, because only a response can announce the end.
    assert!(timeout(8 * SHORT, stream.read_u8()).await.is_err());
    let answer = ask(&mut stream, GET_FAST).await;
    assert!(answer.closes() && answer.body == "fast", "{answer:?}");
    assert_eq!(read_to_end(&mut stream).await, "");

    // On HTTP/2 the server sends GOAWAY, and the client then closes the connection.
    let stream = server.tls(&["h2"]).await;
    let (sender, connection) =
        hyper::client::conn::http2::handshake::<_, _, Full<bytes::Bytes>>(TokioExecutor::new(), TokioIo::new(stream))
            .await
            .unwrap();
    timeout(PATIENCE, connection).await.expect("the server sends no GOAWAY").unwrap();
    assert!(sender.is_closed());
}

#[tokio::test]
async fn drain_loses_no_request() {
    let (asked, answer) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let server = Running::start(fast_and_slow(&asked, &answer), fast_drain()).await;
    let mut busy = server.http1().await;
    let mut idle = server.http1().await;
    assert!(!ask(&mut idle, GET_FAST).await.closes());
    busy.write_all(GET_SLOW).await.unwrap();
    asked.notified().await;

    server.drain.cancel();
    // The idle connection stays open until a response can announce the end.
    assert!(timeout(SHORT, idle.read_u8()).await.is_err(), "an idle connection was closed");
    let last = ask(&mut idle, GET_FAST).await;
    assert!(last.closes() && last.body == "fast", "{last:?}");
    assert_eq!(read_to_end(&mut idle).await, "");

    // A client that connects during the drain is served, and asked to reconnect.
    let mut late = server.http1().await;
    assert!(ask(&mut late, GET_FAST).await.closes());

    assert!(!server.task.is_finished());
    answer.notify_one();
    let done = Answer::read(&mut busy).await;
    assert!(done.closes() && done.body == "done", "{done:?}");
    assert_eq!(timeout(PATIENCE, server.task).await.unwrap().unwrap(), Drained { cut: 0 });
    // The port is closed now, unless another test with another CA already listens on it.
    let (address, root) = (server.address, server.root);
    let again = async { crate::support::connect(TcpStream::connect(address).await?, &root, &[]).await };
    assert!(!matches!(timeout(PATIENCE, again).await, Ok(Ok(_))), "the server still listens");
}

#[tokio::test]
async fn drain_ends_http2_with_goaway() {
    let (asked, answer) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let server = Running::start(fast_and_slow(&asked, &answer), fast_drain()).await;
    let stream = server.tls(&["h2"]).await;
    let (mut sender, connection) =
        hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await.unwrap();
    let connection = tokio::spawn(connection);
    let request = Request::get("https://x/slow").body(Full::<bytes::Bytes>::default()).unwrap();
    let response = tokio::spawn(sender.send_request(request));
    asked.notified().await;
    server.drain.cancel();
    // GOAWAY arrives before the response. The client must not treat it as the end of its request.
    sleep(SHORT).await;
    answer.notify_one();
    let response = response.await.unwrap().unwrap();
    assert_eq!(response.into_body().collect().await.unwrap().to_bytes(), "done");
    assert_eq!(timeout(PATIENCE, server.task).await.unwrap().unwrap(), Drained { cut: 0 });
    connection.await.unwrap().unwrap();
    drop(sender);
}

#[tokio::test]
async fn drain_keeps_port_and_cuts_rest_at_deadline() {
    let (asked, answer) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let mut settings = fast_drain();
    settings.drain_minimum = 5 * SHORT;
    settings.drain_deadline = 10 * SHORT;
    let server = Running::start(fast_and_slow(&asked, &answer), settings).await;
    let began = Instant::now();
    server.drain.cancel();
    // Although no connection is left, the server still accepts the next one.
    sleep(SHORT / 4).await;
    let mut stuck = server.http1().await;
    stuck.write_all(GET_SLOW).await.unwrap();
    assert_eq!(timeout(PATIENCE, server.task).await.unwrap().unwrap(), Drained { cut: 1 });
    assert!(began.elapsed() >= 10 * SHORT, "{:?}", began.elapsed());
    assert_eq!(read_to_end(&mut stuck).await, "");
}

#[tokio::test]
async fn operations_port_serves_plain_http() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let server = Server::plain(listener, fast_and_large(), ServerSettings::ops());
    let address = server.local_addr().unwrap();
    let drain = CancellationToken::new();
    let task = tokio::spawn(server.run(drain.clone()));
    let mut stream = TcpStream::connect(address).await.unwrap();
    for _ in 0..2 {
        assert_eq!(ask(&mut stream, GET_FAST).await.body, "fast");
    }
    drop(stream);
    drain.cancel();
    assert_eq!(timeout(PATIENCE, task).await.unwrap().unwrap(), Drained { cut: 0 });
}

#[tokio::test]
async fn request_without_response_is_cut() {
    let (asked, answer) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let mut settings = fast_drain();
    settings.request_timeout = SHORT;
    let server = Running::start(fast_and_slow(&asked, &answer), settings).await;
    let mut stream = server.http1().await;
    let began = Instant::now();
    assert_eq!(exchange(&mut stream, GET_SLOW).await, "");
    assert!(began.elapsed() >= SHORT, "{:?}", began.elapsed());
}

#[tokio::test]
async fn body_in_pieces_keeps_connection() {
    // The short header timeout must not apply to the bytes of a body.
    let mut settings = fast_drain();
    settings.header_timeout = Duration::from_millis(50);
    let server = Running::start(App::new().router, settings).await;
    let review = review_text();
    let mut stream = server.http1().await;
    for _ in 0..2 {
        let text = post("/mutate", &review);
        let (first, second) = text.split_at(text.len() - 10);
        stream.write_all(first.as_bytes()).await.unwrap();
        stream.flush().await.unwrap();
        sleep(Duration::from_millis(150)).await;
        assert_eq!(ask(&mut stream, second).await.status, 200);
        sleep(Duration::from_millis(150)).await;
    }
}
