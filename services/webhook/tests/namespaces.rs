//! Namespaces that the snapshot does not know, and what happens when something panics.

#![expect(clippy::unwrap_used, reason = "a test says what is wrong by panicking, also in its helpers")]

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use crate::support::{App, KNOWN, review};
use axum::Router;
use axum::body::Body;
use futures::FutureExt;
use http::{Request, StatusCode};
use pillion_api::names::InjectionLevel;
use pillion_engine::lookup::Answer;
use pillion_engine::snapshot::{Namespace, Snapshot};
use pillion_webhook::admission::{LiveNamespace, NamespaceLookup, RequestSettings};
use tokio::time::Instant;
use tower::ServiceExt;

const NO_PROFILE: &str = "pillion_decisions_total{outcome=\"skipped\",reason=\"no_profile\"}";
const NOT_OPTED_IN: &str = "pillion_decisions_total{outcome=\"skipped\",reason=\"not_opted_in\"}";

async fn post(router: &Router, namespace: &str) -> StatusCode {
    post_to(router, "/mutate", namespace).await
}

async fn post_to(router: &Router, path: &str, namespace: &str) -> StatusCode {
    let request = Request::post(path)
        .header("content-type", "application/json")
        .body(Body::from(review(namespace).to_string()))
        .unwrap();
    router.clone().oneshot(request).await.unwrap().status()
}

#[tokio::test]
async fn only_an_unknown_namespace_is_looked_up_and_what_is_found_counts() {
    let calls = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&calls);
    let live: LiveNamespace = Arc::new(move |NamespaceLookup { name, .. }| {
        counter.fetch_add(1, Ordering::Relaxed);
        let new = Arc::new(Namespace::opted_in(InjectionLevel::Enabled));
        let found = if name == "new" { Answer::Found(new) } else { Answer::Missing };
        async move { found }.boxed()
    });
    let app = App::with(RequestSettings::default(), Some(live));
    // Opted in, by what the snapshot knows or the look-up finds; nobody has a profile for it.
    for (namespace, looked_up, no_profile, not_opted_in) in
        [(KNOWN, 0, Some(1.0), None), ("new", 1, Some(2.0), None), ("gone", 2, Some(2.0), Some(1.0))]
    {
        assert_eq!(post(&app.router, namespace).await, StatusCode::OK);
        assert_eq!(calls.load(Ordering::Relaxed), looked_up, "{namespace}");
        assert_eq!((app.metric(NO_PROFILE), app.metric(NOT_OPTED_IN)), (no_profile, not_opted_in), "{namespace}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_look_up_that_hangs_holds_a_request_for_300_ms() {
    let live: LiveNamespace = Arc::new(|_| std::future::pending().boxed());
    let app = App::with(RequestSettings::default(), Some(live));
    let began = Instant::now();
    assert_eq!(post(&app.router, "new").await, StatusCode::OK);
    assert_eq!(began.elapsed(), Duration::from_millis(300));
    assert_eq!(app.metric(NOT_OPTED_IN), Some(1.0));
}

#[tokio::test]
async fn where_a_pod_must_not_be_without_its_sidecar_nothing_is_decided_without_its_namespace() {
    let live: LiveNamespace = Arc::new(|NamespaceLookup { name, .. }| {
        let answer = if name == "gone" { Answer::Missing } else { Answer::Failed("asked too often".into()) };
        async { answer }.boxed()
    });
    let app = App::with(RequestSettings::default(), Some(live));
    for (path, namespace, status) in [
        ("/mutate/required", "new", 503),
        ("/mutate/held", "new", 503),
        ("/validate/required", "new", 503),
        ("/mutate/enabled", "new", 200),
        ("/mutate/required", "gone", 200),
    ] {
        let request = Request::post(path).header("content-type", "application/json");
        let request = request.body(Body::from(review(namespace).to_string())).unwrap();
        let answer = app.router.clone().oneshot(request).await.unwrap();
        assert_eq!(answer.status(), status, "{path} {namespace}");
        assert_eq!(answer.headers().contains_key("retry-after"), status == 503, "{path} {namespace}");
    }
    assert_eq!(app.metric("pillion_shed_total{reason=\"namespace\"}"), Some(3.0));
}

/// The watch has not delivered a change of labels that the API server has seen, or the other way round.
#[tokio::test]
async fn namespace_that_contradicts_the_path_is_looked_up() {
    let calls = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&calls);
    let live: LiveNamespace = Arc::new(move |NamespaceLookup { name, after, .. }| {
        counter.fetch_add(1, Ordering::Relaxed);
        assert!(after.is_some_and(|after| after.elapsed() < Duration::from_secs(30)), "what is remembered will not do");
        let answer = match name {
            "changed" => Answer::Found(Arc::new(Namespace::opted_in(InjectionLevel::Required))),
            "unlabelled" => Answer::Found(Arc::new(Namespace::default())),
            _ => Answer::Failed("no route".into()),
        };
        async { answer }.boxed()
    });
    let snapshot = ["changed", "unlabelled", "away"]
        .into_iter()
        .fold(Snapshot::default(), |snapshot, name| snapshot.with_namespace(name, Some(Namespace::default())));
    let snapshot = snapshot.with_namespace("agreed", Some(Namespace::opted_in(InjectionLevel::Required)));
    let app = App::of(snapshot, RequestSettings::default(), Some(live), None);
    for (path, namespace, status, looked_up, no_profile) in [
        ("/mutate/required", "agreed", 200, 0, Some(1.0)),
        ("/mutate/required", "changed", 200, 1, Some(2.0)),
        // The path says the level, also where the API server is late: the namespace is only what profiles select by.
        ("/mutate/required", "unlabelled", 200, 2, Some(3.0)),
        ("/mutate/required", "away", 503, 3, Some(3.0)),
        ("/validate/held", "away", 503, 4, Some(3.0)),
        ("/mutate", "away", 200, 4, Some(3.0)),
    ] {
        assert_eq!(post_to(&app.router, path, namespace).await, status, "{path} {namespace}");
        assert_eq!(calls.load(Ordering::Relaxed), looked_up, "{path} {namespace}");
        assert_eq!(app.metric(NO_PROFILE), no_profile, "{path} {namespace}");
    }
    assert_eq!(app.metric("pillion_shed_total{reason=\"namespace\"}"), Some(2.0));
}

#[tokio::test]
async fn a_panic_is_one_requests_end_and_not_the_processs() {
    let live: LiveNamespace = Arc::new(|lookup| match lookup.name {
        "now" => panic!("for a test"),
        _ => async { panic!("for a test, later") }.boxed(),
    });
    let app = App::with(RequestSettings::default(), Some(live));
    for (panics, namespace) in [(1.0, "now"), (2.0, "later")] {
        assert_eq!(post(&app.router, namespace).await, StatusCode::INTERNAL_SERVER_ERROR);
        assert_eq!(app.metric("pillion_panics_total"), Some(panics));
        assert_eq!(app.metric("pillion_inflight"), Some(0.0));
        assert_eq!(post(&app.router, KNOWN).await, StatusCode::OK);
    }
    let errors = "pillion_admission_requests_total{endpoint=\"any\",outcome=\"error\"}";
    assert_eq!(app.metric(errors), Some(2.0));
}
