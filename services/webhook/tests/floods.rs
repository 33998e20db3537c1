//! Tests that many or large requests cannot increase response times, metric series or memory without limit.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use futures::FutureExt;
use futures::future::join_all;
use http::StatusCode;
use pillion_engine::lookup::Answer::Missing;
use pillion_webhook::admission::{LiveNamespace, RequestSettings};
use pillion_webhook::serve::ServerSettings;
use serde_json::{Map, Value, json};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio_rustls::client::TlsStream;

use crate::support::{
    Answer, App, KNOWN, Lines, Running, anonymous_memory, ask, post, review, review_text, send, sidecar, until,
};

const MIB: usize = 1024 * 1024;

/// The tests that measure the memory of the process or capture its log hold this lock, so that they run one at a time.
static ALONE: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());

/// Requests for 10,000 unknown namespaces leave no series and no memory behind. The tests in
/// `services/control/src/informer/live/tests.rs` check that the number of lookups at the API server is limited.
#[tokio::test]
async fn unknown_namespaces_leave_nothing_behind() {
    let _alone = ALONE.lock().await;
    let asked = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&asked);
    let find_none: LiveNamespace = Arc::new(move |_| {
        counter.fetch_add(1, Ordering::Relaxed);
        std::future::ready(Missing).boxed()
    });
    let app = App::with(RequestSettings::default(), Some(find_none));
    let server = Running::start(app.router.clone(), ServerSettings::default()).await;
    let mut stream = server.http1().await;
    let mut send = async |number: usize| {
        let text = post("/mutate", &review(&format!("nowhere-{number}")).to_string());
        assert_eq!(ask(&mut stream, text).await.status, 200);
    };
    for number in 0..1000 {
        send(number).await;
    }
    let (series, memory) = (app.series(), anonymous_memory());
    for number in 1000..10_000 {
        send(number).await;
    }
    assert_eq!(app.series(), series, "an unknown namespace got a series");
    let grown = anonymous_memory().saturating_sub(memory);
    println!("{series} series; {grown} bytes more after 9,000 more namespaces");
    assert!(grown < 8 * MIB, "{grown} bytes more");
    assert_eq!(asked.load(Ordering::Relaxed), 10_000);
}

/// The same review always gets the same response, and memory does not grow.
#[tokio::test]
async fn same_review_gets_same_response() {
    const TIMES: usize = 20_000;
    let _alone = ALONE.lock().await;
    let app = App::with_profile(&sidecar(), None);
    let server = Running::start(app.router.clone(), ServerSettings::default()).await;
    let mut stream = server.http1().await;
    let text = post("/mutate", &review(KNOWN).to_string());
    let (mut first, mut memory) = (None, 0);
    for time in 0..TIMES {
        let answer = ask(&mut stream, &text).await.body;
        assert_eq!(&answer, first.get_or_insert_with(|| answer.clone()));
        if time == TIMES / 10 {
            memory = anonymous_memory();
        }
    }
    let grown = anonymous_memory().saturating_sub(memory);
    println!("{grown} bytes more after {TIMES} times");
    assert!(first.unwrap().contains("\"patch\""));
    assert!(grown < 8 * MIB, "{grown} bytes more");
}

/// The requesting user is not logged, even with a long list of groups.
#[tokio::test]
async fn groups_of_user_are_not_logged() {
    let _alone = ALONE.lock().await;
    let lines = Lines::default();
    let writer = lines.clone();
    let subscriber = tracing_subscriber::fmt()
        .with_max_level(tracing::Level::TRACE)
        .with_ansi(false)
        .with_writer(move || writer.clone())
        .finish();
    let _guard = tracing::subscriber::set_default(subscriber);
    let mut review = review(KNOWN);
    // The body is below 128 KiB, so it is decided on this thread, whose log is captured.
    let groups: Vec<_> = (0..10_000).map(|number| format!("grp{number}")).collect();
    review["request"]["userInfo"] = json!({"username": "jemand", "groups": groups});
    send(&App::with_profile(&sidecar(), None).router, "/mutate", review.to_string()).await;
    let logged = lines.text();
    assert!(logged.contains("decided") && logged.len() < 4096, "{logged}");
    assert!(!logged.contains("grp") && !logged.contains("jemand"), "{logged}");
}

/// The time limit of a response: far more than it needs, and far less than a quadratic algorithm would take.
const LIMIT: Duration = Duration::from_secs(1);

fn keys(count: usize) -> Map<String, Value> {
    (0..count).map(|number| (format!("key-{number}"), Value::from("x"))).collect()
}

async fn answered(body: &Value) -> (StatusCode, Duration) {
    let app = App::new();
    let text = body.to_string();
    let began = Instant::now();
    let status = send(&app.router, "/mutate", text).await.status();
    (status, began.elapsed())
}

#[tokio::test]
async fn many_keys_are_answered_within_a_second() {
    let mut top = review(KNOWN);
    top.as_object_mut().unwrap().extend(keys(30_000));
    let mut request = review(KNOWN);
    request["request"].as_object_mut().unwrap().extend(keys(30_000));
    let mut annotated = review(KNOWN);
    annotated["request"]["object"]["metadata"]["annotations"] = keys(60_000).into();
    let mut labelled = review(KNOWN);
    labelled["request"]["object"]["metadata"]["labels"] = keys(60_000).into();
    let mut fields = review(KNOWN);
    fields["request"]["object"].as_object_mut().unwrap().extend(keys(60_000));
    for (name, body) in [
        ("30,000 keys at the top level", top),
        ("30,000 keys in the request", request),
        ("60,000 annotations", annotated),
        ("60,000 labels", labelled),
        ("60,000 fields of the object", fields),
    ] {
        let mut best = Duration::MAX;
        // Other programs may slow the machine, so one fast response is enough.
        for _ in 0..3 {
            let (status, took) = answered(&body).await;
            assert!(matches!(status, StatusCode::OK | StatusCode::BAD_REQUEST), "{name}: {status}");
            best = best.min(took);
            if best < LIMIT {
                break;
            }
        }
        assert!(best < LIMIT, "{name}: {best:?}");
    }
}

const BUDGET: usize = 8 * 1024 * 1024;
const LARGE: usize = 2 * 1024 * 1024;
const CLIENTS: usize = 24;
const SHED: &str = "pillion_webhook_requests_total{endpoint=\"any\",outcome=\"shed\"}";

fn app() -> App {
    let mut settings = RequestSettings::default();
    settings.body_budget = BUDGET;
    // Bodies must not time out on a slow machine.
    settings.body_timeout = Duration::from_mins(1);
    App::with(settings, None)
}

fn in_use(app: &App) -> f64 {
    app.metric("pillion_webhook_body_memory_bytes").unwrap()
}

#[expect(clippy::cast_precision_loss, reason = "an f64 holds small counts exactly")]
const fn number(count: usize) -> f64 {
    count as f64
}

/// Declares a body of this length, but sends only the first `sent` bytes.
async fn send_part(server: &Running, declared: usize, sent: usize) -> TlsStream<TcpStream> {
    let mut client = server.http1().await;
    let head = format!(
        "POST /mutate?timeout=30s HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n\
         Content-Length: {declared}\r\n\r\n"
    );
    client.write_all(head.as_bytes()).await.unwrap();
    // If the request was rejected, the connection may already be closed.
    let _ = client.write_all(&vec![b' '; sent]).await;
    let _ = client.flush().await;
    client
}

#[tokio::test]
async fn declared_length_takes_no_memory() {
    let app = app();
    let server = Running::start(app.router.clone(), ServerSettings::default()).await;
    let mut clients = join_all((0..CLIENTS).map(|_| send_part(&server, LARGE, 1000))).await;
    until("the first piece of each body was read", || in_use(&app) >= number(CLIENTS * 1000)).await;
    for client in &mut clients {
        client.write_all(&[b' '; 1000]).await.unwrap();
    }
    until("the second piece of each body was read", || in_use(&app) >= number(CLIENTS * 2000)).await;
    assert!(in_use(&app) <= number(CLIENTS * 16 * 1024), "{}", in_use(&app));
    drop(clients);
    until("all memory is returned", || in_use(&app) < 1.0).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn paused_clients_leave_memory_to_small_reviews() {
    let app = app();
    let server = Running::start(app.router.clone(), ServerSettings::default()).await;
    // The budget must never be exceeded, so the memory is checked after each client.
    let mut paused = Vec::new();
    for _ in 0..CLIENTS {
        paused.push(send_part(&server, LARGE, LARGE - 1).await);
        assert!(in_use(&app) <= number(BUDGET), "{}", in_use(&app));
    }
    until("some bodies are rejected", || app.metric(SHED) >= Some(number(CLIENTS - BUDGET / LARGE))).await;
    assert!(in_use(&app) <= number(BUDGET) && in_use(&app) >= number(BUDGET / 2), "{}", in_use(&app));

    for _ in 0..10 {
        let mut client = server.http1().await;
        assert_eq!(ask(&mut client, post("/mutate", &review_text())).await.status, 200);
    }

    // The rejected clients have received a response with `Retry-After`.
    let mut refused = 0;
    let mut waiting = Vec::new();
    for mut client in paused {
        match tokio::time::timeout(Duration::from_secs(1), Answer::read(&mut client)).await {
            Ok(answer) => {
                assert_eq!(answer.status, 503, "{answer:?}");
                assert!(answer.closes() && answer.head.contains("retry-after: 1\r\n"), "{answer:?}");
                refused += 1;
            }
            Err(_) => waiting.push(client),
        }
    }
    assert_eq!(app.metric(SHED), Some(number(refused)));
    assert!(waiting.len() >= 2 && waiting.len() <= BUDGET / LARGE, "{}", waiting.len());

    // The other bodies are answered after their last byte. After that, all memory is returned.
    for client in &mut waiting {
        assert_eq!(ask(client, b" ").await.status, 400, "the body is not a review");
    }
    until("all memory is returned", || in_use(&app) < 1.0).await;
    assert_eq!(app.metric(SHED), Some(number(refused)));
}
