//! Tests that the server responds in time to overload, passed deadlines and cancelled requests, and that it releases
//! all resources.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::support::{Answer, App, KNOWN, Running, ask, post, review, review_text, send, until};
use axum::body::Body;
use bytes::Bytes;
use futures::{FutureExt, StreamExt, stream};
use http::{Request, StatusCode, Version};
use http_body_util::BodyExt;
use pillion_engine::lookup::Answer::Missing;
use pillion_webhook::admission::{LiveNamespace, RequestSettings};
use pillion_webhook::serve::ServerSettings;
use tokio::io::AsyncWriteExt;
use tokio::task::{JoinSet, yield_now};
use tokio::time::Instant;
use tower::ServiceExt;

/// Returns a review with a little more than this many bytes.
fn large(namespace: &str, bytes: usize) -> String {
    let mut review = review(namespace);
    review["request"]["object"]["spec"]["containers"][0]["env"] =
        serde_json::json!([{"name": "E", "value": "x".repeat(bytes)}]);
    review.to_string()
}

/// Returns a body that begins with this text and never ends.
fn endless_body(text: &'static str) -> Body {
    let first = stream::iter([Ok::<_, std::convert::Infallible>(Bytes::from_static(text.as_bytes()))]);
    Body::from_stream(first.chain(stream::pending()))
}

fn shed(app: &App, reason: &str) -> Option<f64> {
    app.metric(&format!("pillion_webhook_shed_requests_total{{reason=\"{reason}\"}}"))
}

/// Returns the sum of all resources that requests hold while they are answered.
fn in_use(app: &App) -> Option<f64> {
    let series =
        ["pillion_webhook_inflight_requests", "pillion_webhook_incomplete_bodies", "pillion_webhook_body_memory_bytes"];
    let queued = ["pillion_webhook_queued_requests{size=\"small\"}", "pillion_webhook_queued_requests{size=\"large\"}"];
    series.into_iter().chain(queued).map(|series| app.metric(series).map(f64::abs)).sum()
}

/// Returns an app whose namespace lookups hang. Their own time limit is too long to end them.
fn hanging() -> App {
    let mut settings = RequestSettings::default();
    settings.lookup_timeout = Duration::from_mins(10);
    App::with(settings, Some(Arc::new(|_| std::future::pending().boxed())))
}

#[tokio::test(start_paused = true)]
async fn timeout_of_caller_is_deadline() {
    for (query, milliseconds) in [
        ("", 9_800),
        ("?timeout=0s", 9_800),
        ("?timeout=-1s", 9_800),
        ("?timeout=abc", 9_800),
        ("?timeout=", 9_800),
        ("?timeout=1h", 29_800),
        ("?timeout=10s", 9_800),
        ("?timeout=1m30s", 29_800),
        ("?timeout=3s", 2_800),
        ("?timeout=500ms", 400),
        ("?a=b&timeout=2s", 1_800),
    ] {
        let app = hanging();
        let began = Instant::now();
        let answer = send(&app.router, &format!("/mutate{query}"), review("unknown").to_string()).await;
        assert_eq!(began.elapsed(), Duration::from_millis(milliseconds), "{query}");
        assert_eq!(answer.status(), StatusCode::SERVICE_UNAVAILABLE, "{query}");
        assert!(answer.headers().get("retry-after").is_none(), "the caller has given up by then");
        assert_eq!(answer.headers()["connection"], "close");
        let text = answer.into_body().collect().await.unwrap().to_bytes();
        assert!(text.starts_with(b"the caller's deadline"), "{text:?}");
        assert_eq!((shed(&app, "deadline"), in_use(&app)), (Some(1.0), Some(0.0)), "{query}");
    }
}

#[tokio::test(start_paused = true)]
async fn body_is_awaited_until_deadline_of_caller() {
    let app = App::new();
    for (query, milliseconds) in [("?timeout=1s", 800), ("?timeout=30s", 5_000)] {
        let began = Instant::now();
        let answer = send(&app.router, &format!("/mutate{query}"), endless_body("{")).await;
        assert_eq!(began.elapsed(), Duration::from_millis(milliseconds));
        assert_eq!(answer.status(), StatusCode::REQUEST_TIMEOUT);
    }
    assert_eq!(in_use(&app), Some(0.0));
}

#[tokio::test]
async fn passed_deadline_costs_no_work() {
    let app = App::new();
    let answer = send(&app.router, "/mutate?timeout=1ns", review_text()).await;
    assert_eq!(answer.status(), StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(shed(&app, "deadline"), Some(1.0));
    assert_eq!(app.metric("pillion_webhook_request_size_bytes_count"), Some(0.0), "the body was read");
    assert_eq!(
        app.metric("pillion_webhook_decisions_total{profile=\"_none\",outcome=\"skipped\",reason=\"no_profile\"}"),
        None
    );
}

#[tokio::test]
async fn request_above_limit_is_shed_with_retry_after() {
    let mut settings = RequestSettings::default();
    settings.overload.max_in_flight = 2;
    settings.lookup_timeout = Duration::from_mins(10);
    // A lookup of the namespace ends when the test adds a permit to this semaphore.
    let release = Arc::new(tokio::sync::Semaphore::new(0));
    let waiting = Arc::clone(&release);
    let look_up: LiveNamespace = Arc::new(move |_| {
        let waiting = Arc::clone(&waiting);
        async move {
            waiting.acquire_owned().await.unwrap().forget();
            Missing
        }
        .boxed()
    });
    let app = App::with(settings, Some(look_up));
    let server = Running::start(app.router.clone(), ServerSettings::default()).await;
    let slow_text = post("/mutate?timeout=30s", &review("unknown").to_string());
    let mut slow = [server.http1().await, server.http1().await];
    for stream in &mut slow {
        stream.write_all(slow_text.as_bytes()).await.unwrap();
        stream.flush().await.unwrap();
    }
    until("both requests are in flight", || app.metric("pillion_webhook_inflight_requests") == Some(2.0)).await;
    let text = post("/mutate?timeout=30s", &review_text());
    for times in 1..=3 {
        let mut stream = server.http1().await;
        let answer = ask(&mut stream, &text).await;
        assert_eq!(answer.status, 503, "{answer:?}");
        assert!(answer.closes() && answer.head.contains("retry-after: 1\r\n"), "{answer:?}");
        assert!(answer.body.starts_with("the limit of concurrent requests is reached"), "{answer:?}");
        assert_eq!(shed(&app, "in_flight"), Some(f64::from(times)));
    }
    let [mut first, second] = slow;
    drop(second);
    until("one request has ended", || app.metric("pillion_webhook_inflight_requests") == Some(1.0)).await;
    let mut stream = server.http1().await;
    assert_eq!(ask(&mut stream, &text).await.status, 200);
    release.add_permits(1);
    assert_eq!(Answer::read(&mut first).await.status, 200);
    until("all resources are returned", || in_use(&app) == Some(0.0)).await;
}

/// HTTP/2 has no `Connection` header, so shedding must not close the connection.
#[tokio::test]
async fn shedding_keeps_http2_connection() {
    let mut settings = RequestSettings::default();
    settings.overload.max_in_flight = 0;
    let app = App::with(settings, None);
    let request = Request::post("/mutate").version(Version::HTTP_2).header("content-type", "application/json");
    let request = request.body(Body::from(review_text())).unwrap();
    let answer = app.router.oneshot(request).await.unwrap();
    assert_eq!(
        (answer.status(), &answer.headers()["retry-after"]),
        (StatusCode::SERVICE_UNAVAILABLE, &"1".parse().unwrap())
    );
    assert!(answer.headers().get("connection").is_none());
}

/// The test runs on one thread, which answers small reviews while another thread decides a large one.
#[tokio::test]
async fn large_body_is_decided_on_own_thread() {
    const DECIDED: &str = "pillion_webhook_queue_wait_seconds_count{size=\"large\"}";
    let body = large(KNOWN, 6 * 1024 * 1024);
    // A busy machine may not run both threads at once, so one success is enough.
    for _ in 0..20 {
        let app = App::new();
        let mut answer = std::pin::pin!(send(&app.router, "/mutate", body.clone()));
        let mut meanwhile = 0;
        let answer = loop {
            tokio::select! {
                biased;
                answer = &mut answer => break answer,
                small = send(&app.router, "/mutate", review_text()) => {
                    assert_eq!(small.status(), StatusCode::OK);
                    meanwhile += u32::from(app.metric(DECIDED) == Some(1.0));
                    yield_now().await;
                }
            }
        };
        assert_eq!(answer.status(), StatusCode::OK);
        assert_eq!((app.metric(DECIDED), in_use(&app)), (Some(1.0), Some(0.0)));
        if meanwhile > 0 {
            return;
        }
    }
    panic!("small reviews waited for large ones");
}

#[tokio::test]
async fn small_and_large_requests_are_counted_for_tenant() {
    let annotation = serde_json::json!({"example.com/team": "${object.metadata.labels.no_such_label}"});
    let spec = serde_json::json!({"activation": "Always", "template": {"metadata": {"annotations": annotation}}});
    let app = App::with_profile(&spec, None);
    for (count, body) in [(1.0, review_text()), (2.0, large(KNOWN, 1024 * 1024))] {
        assert_eq!(send(&app.router, "/mutate", body).await.status(), StatusCode::OK);
        let tenant = format!("pillion_webhook_tenant_requests_total{{tenant=\"{KNOWN}\",outcome=\"incomplete\"}}");
        assert_eq!(app.metric(&tenant), Some(count));
        let profile =
            "pillion_webhook_decisions_total{profile=\"profile\",outcome=\"skipped\",reason=\"expression_failed\"}";
        assert_eq!(app.metric(profile), Some(count));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn large_bodies_wait_in_own_queue() {
    let mut settings = RequestSettings::default();
    settings.overload.max_queued_large = 2;
    settings.overload.max_queued_large_per_tenant = 1;
    let app = App::with(settings, None);
    let body = large(KNOWN, 1024 * 1024);
    let mut tasks = JoinSet::new();
    for _ in 0..16 {
        let (router, body) = (app.router.clone(), body.clone());
        tasks.spawn(async move { send(&router, "/mutate", body).await });
    }
    let answers = tasks.join_all().await;
    let count = |status: StatusCode| answers.iter().filter(|answer| answer.status() == status).count();
    let rejected = count(StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(count(StatusCode::OK) + rejected, 16);
    assert!(rejected > 0 && count(StatusCode::OK) > 0);
    assert_eq!(shed(&app, "tenant_queue_full"), Some(f64::from(u32::try_from(rejected).unwrap())));
    assert!(answers.iter().all(|answer| answer.status() == StatusCode::OK || answer.headers()["retry-after"] == "1"));
    assert_eq!(in_use(&app), Some(0.0));
    assert_eq!(send(&app.router, "/mutate", review_text()).await.status(), StatusCode::OK);
}

/// Returns a lookup function for namespaces that hangs, finds nothing at once or after a yield, or panics.
fn varied_lookups() -> LiveNamespace {
    Arc::new(|lookup| match lookup.name.len() % 4 {
        0 => std::future::pending().boxed(),
        1 => async { Missing }.boxed(),
        2 => async {
            yield_now().await;
            Missing
        }
        .boxed(),
        _ => async { panic!("for a test") }.boxed(),
    })
}

/// Cancels requests in every state.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cancelled_requests_leave_nothing_behind() {
    const TIMES: usize = 5000;
    let mut settings = RequestSettings::default();
    settings.overload.unqueued_per_worker = 1;
    settings.overload.max_queued = 8;
    settings.overload.max_queued_per_tenant = 4;
    let app = App::with(settings, Some(varied_lookups()));
    let seen = Arc::new(AtomicU64::new(0));
    let mut tasks = JoinSet::new();
    for number in 0..TIMES {
        let (router, seen) = (app.router.clone(), Arc::clone(&seen));
        tasks.spawn(async move {
            let namespace = "n".repeat(number % 7);
            let body = match number % 10 {
                0 => Body::from(large(&namespace, 200 * 1024)),
                1 => endless_body("{\"request\":"),
                2 => Body::from(large(&namespace, 100 * 1024)),
                _ => Body::from(review(&namespace).to_string()),
            };
            send(&router, "/mutate?timeout=20s", body).await;
            seen.fetch_add(1, Ordering::Relaxed);
        });
        if number % 25 == 0 {
            for _ in 0..number % 11 {
                yield_now().await;
            }
            tasks.shutdown().await;
        }
    }
    tasks.shutdown().await;
    assert!(seen.load(Ordering::Relaxed) < 4000, "hardly any request was cancelled");
    until("all resources are returned", || in_use(&app) == Some(0.0)).await;
    for body in [review_text(), large(KNOWN, 300 * 1024)] {
        assert_eq!(send(&app.router, "/mutate", body).await.status(), StatusCode::OK);
    }
    assert_eq!(in_use(&app), Some(0.0));
}

/// Sends requests over sockets, and closes the connections after different times.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn broken_connections_leave_nothing_behind() {
    let mut settings = RequestSettings::default();
    settings.overload.unqueued_per_worker = 0;
    let app = App::with(settings, Some(varied_lookups()));
    let server = Running::start(app.router.clone(), ServerSettings::default()).await;
    for number in 0..150_usize {
        let mut stream = server.http1().await;
        let body = if number % 5 == 0 { large("nn", 400 * 1024) } else { review(&"n".repeat(number % 7)).to_string() };
        let text = post("/mutate", &body);
        let sent = if number % 3 == 0 { text.len() / 2 } else { text.len() };
        stream.write_all(&text.as_bytes()[..sent]).await.unwrap();
        stream.flush().await.unwrap();
        for _ in 0..number % 13 {
            yield_now().await;
        }
    }
    until("all resources are returned", || in_use(&app) == Some(0.0)).await;
}

#[tokio::test]
async fn panic_returns_all_permits() {
    let app = App::with(RequestSettings::default(), Some(varied_lookups()));
    for (panics, body) in [(1.0, review("nnn").to_string()), (2.0, large("nnn", 300 * 1024))] {
        assert_eq!(send(&app.router, "/mutate", body).await.status(), StatusCode::INTERNAL_SERVER_ERROR);
        assert_eq!((app.metric("pillion_webhook_panics_total"), in_use(&app)), (Some(panics), Some(0.0)));
    }
}
