//! What is logged of a decision: who and why, on one line, and never the object.

#![expect(clippy::unwrap_used, reason = "a test says what is wrong by panicking, also in its helpers")]

use crate::support::{App, KNOWN, Lines, review};
use axum::body::Body;
use http::Request;
use tower::ServiceExt;
use tracing::Level;

/// One at a time: what listeners want is known to the whole process.
static ALONE: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());

/// What is logged from this level on while a body is answered.
async fn logged(level: Level, body: String) -> String {
    let _alone = ALONE.lock().await;
    let lines = Lines::default();
    let writer = lines.clone();
    let subscriber =
        tracing_subscriber::fmt().with_max_level(level).with_ansi(false).with_writer(move || writer.clone()).finish();
    let _guard = tracing::subscriber::set_default(subscriber);
    let request =
        Request::post("/mutate/held").header("content-type", "application/json").body(Body::from(body)).unwrap();
    App::new().router.oneshot(request).await.unwrap();
    lines.text()
}

#[tokio::test]
async fn a_decision_is_one_line_without_the_object() {
    let mut review = review(KNOWN);
    review["request"]["object"]["metadata"]["name"] = format!("web\n{}", "x".repeat(10_000)).into();
    review["request"]["object"]["spec"]["containers"][0]["env"] =
        serde_json::json!([{"name": "TOKEN", "value": "s3cret"}]);
    let text = logged(Level::DEBUG, review.to_string()).await;
    assert_eq!(text.lines().count(), 1, "{text}");
    for part in [
        "endpoint=\"held\"",
        "namespace=team-a",
        "name=web\\nxxx",
        "uid=0df28fbd-5f5f-11e8-bc74-36e6bb280816",
        "outcome=\"skipped\"",
        "reason=\"no_profile\"",
    ] {
        assert!(text.contains(part), "{part} is not in {text}");
    }
    assert!(!text.contains("s3cret") && !text.contains("TOKEN") && text.len() < 1000, "{text}");
    assert_eq!(logged(Level::INFO, review.to_string()).await, "", "a decision is no news");
}

#[tokio::test]
async fn a_clients_fault_is_one_short_line() {
    let body = format!("{{\"apiVersion\":\"a\\u000a{}\"}}", "x".repeat(10_000));
    let text = logged(Level::DEBUG, body.clone()).await;
    assert_eq!(text.lines().count(), 1, "{text}");
    assert!(text.contains("status=400") && text.contains("apiVersion") && text.len() < 600, "{text}");
    assert_eq!(logged(Level::INFO, body).await, "", "others' faults do not fill our log");
}
