//! Lookups before a decision: namespaces that the snapshot lacks, and objects that profiles read.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::print_stdout,
    reason = "a test reports failures by panicking, also in its helpers"
)]

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use base64::Engine;
use futures::FutureExt;
use http::{Request, StatusCode};
use http_body_util::BodyExt;
use pillion_api::names::InjectionLevel;
use pillion_engine::lookup::Answer;
use pillion_engine::snapshot::{Namespace, Snapshot};
use pillion_json::OwnedTape;
use pillion_webhook::admission::{LiveNamespace, LookUps, NamespaceLookup, RequestSettings};
use pillion_webhook::clients::ClientCertificates;
use pillion_webhook::serve::ServerSettings;
use pillion_webhook::tls::PemText;
use serde_json::{Value, json};
use tokio::io::AsyncWriteExt;
use tokio::time::Instant;
use tower::ServiceExt;

use crate::support;
use crate::support::{App, Authority, ClientTls, KNOWN, Running, review, review_text};

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
async fn only_unknown_namespaces_are_looked_up() {
    let calls = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&calls);
    let live: LiveNamespace = Arc::new(move |NamespaceLookup { name, .. }| {
        counter.fetch_add(1, Ordering::Relaxed);
        let new = Arc::new(Namespace::opted_in(InjectionLevel::Enabled));
        let found = if name == "new" { Answer::Found(new) } else { Answer::Missing };
        async move { found }.boxed()
    });
    let app = App::with(RequestSettings::default(), Some(live));
    // Opted in, by the snapshot or by the lookup; no profile matches.
    for (namespace, looked_up, no_profile, not_opted_in) in
        [(KNOWN, 0, Some(1.0), None), ("new", 1, Some(2.0), None), ("gone", 2, Some(2.0), Some(1.0))]
    {
        assert_eq!(post(&app.router, namespace).await, StatusCode::OK);
        assert_eq!(calls.load(Ordering::Relaxed), looked_up, "{namespace}");
        assert_eq!((app.metric(NO_PROFILE), app.metric(NOT_OPTED_IN)), (no_profile, not_opted_in), "{namespace}");
    }
}

#[tokio::test(start_paused = true)]
async fn hanging_namespace_lookup_delays_request_by_300_ms() {
    let live: LiveNamespace = Arc::new(|_| std::future::pending().boxed());
    let app = App::with(RequestSettings::default(), Some(live));
    let began = Instant::now();
    assert_eq!(post(&app.router, "new").await, StatusCode::OK);
    assert_eq!(began.elapsed(), Duration::from_millis(300));
    assert_eq!(app.metric(NOT_OPTED_IN), Some(1.0));
}

#[tokio::test]
async fn required_modes_are_shed_without_namespace() {
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
async fn namespace_that_contradicts_path_is_looked_up() {
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
async fn panic_fails_one_request_only() {
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

const INJECTED: &str = "pillion_decisions_total{outcome=\"applied\",reason=\"injected\"}";
const FAILED: &str = "pillion_decisions_total{outcome=\"skipped\",reason=\"lookup_failed\"}";
const DENIED: &str = "pillion_decisions_total{outcome=\"denied\",reason=\"lookup_failed\"}";

fn profile(expression: &str) -> Value {
    json!({"activation": "Always", "template": {"metadata": {"labels": {"x": "y"}}},
        "matchConditions": [{"name": "c", "expression": expression}]})
}

/// SECURITY.md says what any client learns, and docs/certificates.md how to keep it from that.
#[tokio::test]
async fn client_without_certificate_gets_no_lookups() {
    let expression = "serviceAccount.annotations.role.orValue('none')";
    let spec = json!({"activation": "Always", "template": {"metadata": {"annotations": {"role": format!("${{{expression}}}")}}}});
    for asks_for_certificate in [false, true] {
        let (look_ups, asked) = accounts();
        let app = App::with_profile(&spec, Some(look_ups));
        let authority = Authority::new("authority of the API servers").pem();
        let clients = PemText { source: "clients.crt", text: authority.as_bytes() };
        let clients = ClientCertificates::new(clients, std::iter::empty()).unwrap();
        let clients = asks_for_certificate.then_some(clients);
        let server = Running::start_for(app.router.clone(), ServerSettings::default(), clients).await;
        let mut stream = ClientTls::new(&server.root).connect(server.tcp().await).await.unwrap();
        stream.write_all(support::post("/mutate", &review_text()).as_bytes()).await.unwrap();
        let answer = support::Answer::read(&mut stream).await;
        let (status, looked_up) = if asks_for_certificate { (401, 0) } else { (200, 1) };
        assert_eq!((answer.status, asked.load(Ordering::SeqCst)), (status, looked_up), "{answer:?}");
        if !asks_for_certificate {
            let response: Value = serde_json::from_str(&answer.body).unwrap();
            let patch = response["response"]["patch"].as_str().unwrap();
            let patch = base64::prelude::BASE64_STANDARD.decode(patch).unwrap();
            assert!(String::from_utf8(patch).unwrap().contains("reader"), "{response}");
        }
    }
}

/// The answer to the review of a pod.
async fn review_pod(router: &Router) -> Value {
    let request =
        Request::post("/mutate").header("content-type", "application/json").body(Body::from(review_text())).unwrap();
    let response = router.clone().oneshot(request).await.unwrap();
    assert_eq!(response.status(), StatusCode::OK);
    serde_json::from_slice(&response.into_body().collect().await.unwrap().to_bytes()).unwrap()
}

/// Lookups that find a service account with an annotation, and the number of calls.
fn accounts() -> (LookUps, Arc<AtomicUsize>) {
    let asked = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&asked);
    let look_ups: LookUps = Arc::new(move |wanted, _| {
        counter.fetch_add(1, Ordering::SeqCst);
        assert_eq!((&*wanted.namespace, wanted.service_account.as_deref()), (KNOWN, Some("default")));
        let object = OwnedTape::parse(r#"{"metadata":{"annotations":{"role":"reader"}}}"#).unwrap();
        async move { wanted.answered(&Answer::Found(Arc::new(object))) }.boxed()
    });
    (look_ups, asked)
}

#[tokio::test]
async fn only_objects_that_profiles_read_are_looked_up() {
    let (look_ups, asked) = accounts();
    let app = App::with_profile(&profile("serviceAccount.annotations.role.orValue('') == 'reader'"), Some(look_ups));
    review_pod(&app.router).await;
    assert_eq!((app.metric(INJECTED), asked.load(Ordering::SeqCst)), (Some(1.0), 1));

    let (look_ups, asked) = accounts();
    let app = App::with_profile(&profile("cluster.region == 'eu-west-1' && !owner.hasValue()"), Some(look_ups));
    review_pod(&app.router).await;
    assert_eq!((app.metric(INJECTED), asked.load(Ordering::SeqCst)), (Some(1.0), 0));

    let app = App::with_profile(&profile("!serviceAccount.hasValue()"), None);
    review_pod(&app.router).await;
    assert_eq!(app.metric(INJECTED), Some(1.0), "where nobody can look, nothing is there");
}

#[tokio::test(start_paused = true)]
async fn hanging_object_lookup_fails_profile_after_300_ms() {
    let hangs = || -> LookUps { Arc::new(|_, _| std::future::pending().boxed()) };
    let mut spec = profile("serviceAccount.hasValue()");
    let app = App::with_profile(&spec, Some(hangs()));
    let began = Instant::now();
    let answer = review_pod(&app.router).await;
    assert_eq!(began.elapsed(), Duration::from_millis(300));
    assert_eq!(app.metric(FAILED), Some(1.0));
    let warning = answer["response"]["warnings"][0].as_str().unwrap();
    assert!(warning.contains("could not be looked up") && warning.contains("no answer in time"), "{warning}");
    assert_eq!(answer["response"]["allowed"], true);

    spec["onError"] = json!("Deny");
    let app = App::with_profile(&spec, Some(hangs()));
    assert_eq!(review_pod(&app.router).await["response"]["allowed"], false);
    assert_eq!(app.metric(DENIED), Some(1.0));
}
