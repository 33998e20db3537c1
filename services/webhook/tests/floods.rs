//! Much of the same, as in B65 (without client certificates), B67 and B69 of the bad inputs: apart from the others, as the
//! memory of a process is looked at.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::print_stdout,
    reason = "a test says what is wrong by panicking, also in its helpers"
)]

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use axum::body::Body;
use futures::FutureExt;
use http::Request;
use pillion_engine::lookup::Answer::Missing;
use pillion_webhook::admission::{LiveNamespace, RequestSettings};
use pillion_webhook::serve::ServerSettings;
use serde_json::json;
use tokio::io::AsyncWriteExt;
use tower::ServiceExt;

use crate::support::{Answer, App, KNOWN, Lines, Running, anonymous_memory, post, review, sidecar};

const MIB: usize = 1024 * 1024;

/// One at a time: they share a process, whose memory they look at.
static ALONE: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());

/// B65: 10,000 namespaces that nobody has heard of. What they cost the API server is bounded where it is asked, which is
/// shown there (`services/control/src/informer/live/tests.rs`); here, that they leave nothing behind: no series, no memory.
#[tokio::test]
async fn ten_thousand_namespaces_leave_nothing_behind() {
    let _alone = ALONE.lock().await;
    let asked = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&asked);
    let nobody: LiveNamespace = Arc::new(move |_| {
        counter.fetch_add(1, Ordering::Relaxed);
        std::future::ready(Missing).boxed()
    });
    let app = App::with(RequestSettings::default(), Some(nobody));
    let server = Running::start(app.router.clone(), ServerSettings::default()).await;
    let mut stream = server.http1().await;
    let mut send = async |number: usize| {
        let text = post("/mutate", &review(&format!("nowhere-{number}")).to_string());
        stream.write_all(text.as_bytes()).await.unwrap();
        assert_eq!(Answer::read(&mut stream).await.status, 200);
    };
    for number in 0..1000 {
        send(number).await;
    }
    let (series, memory) = (app.series(), anonymous_memory());
    for number in 1000..10_000 {
        send(number).await;
    }
    assert_eq!(app.series(), series, "namespaces that a client makes up have series");
    let grown = anonymous_memory().saturating_sub(memory);
    println!("{series} series; {grown} bytes more after 9,000 more namespaces");
    assert!(grown < 8 * MIB, "{grown} bytes more");
    assert_eq!(asked.load(Ordering::Relaxed), 10_000);
}

/// B67: the same review again and again is the same answer: nothing is remembered of it.
#[tokio::test]
async fn the_same_review_is_the_same_answer_every_time() {
    const TIMES: usize = 20_000;
    let _alone = ALONE.lock().await;
    let app = App::with_profile(&sidecar(), None);
    let server = Running::start(app.router.clone(), ServerSettings::default()).await;
    let mut stream = server.http1().await;
    let text = post("/mutate", &review(KNOWN).to_string());
    let (mut first, mut memory) = (None, 0);
    for time in 0..TIMES {
        stream.write_all(text.as_bytes()).await.unwrap();
        let answer = Answer::read(&mut stream).await.body;
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

/// B69: who asks is not for the log, however much of it there is.
#[tokio::test]
async fn ten_thousand_groups_are_not_logged() {
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
    // Short, so that it is decided on this thread, whose log is looked at: a body above 128 KiB is not.
    let groups: Vec<_> = (0..10_000).map(|number| format!("grp{number}")).collect();
    review["request"]["userInfo"] = json!({"username": "jemand", "groups": groups});
    let request = Request::post("/mutate").header("content-type", "application/json");
    let app = App::with_profile(&sidecar(), None);
    app.router.oneshot(request.body(Body::from(review.to_string())).unwrap()).await.unwrap();
    let logged = lines.text();
    assert!(logged.contains("decided") && logged.len() < 4096, "{logged}");
    assert!(!logged.contains("grp") && !logged.contains("jemand"), "{logged}");
}
