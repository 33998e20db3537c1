//! What profiles want looked up is looked up before a decision, and nothing is where nobody wants it.

#![expect(clippy::unwrap_used, reason = "a test says what is wrong by panicking, also in its helpers")]

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use crate::support::{self, Answer as Response, App, Authority, ClientTls, Running, review_text};
use axum::Router;
use axum::body::Body;
use base64::Engine;
use futures::FutureExt;
use http::{Request, StatusCode};
use http_body_util::BodyExt;
use pillion_engine::json::OwnedTape;
use pillion_engine::lookup::Answer;
use pillion_webhook::admission::LookUps;
use pillion_webhook::clients::ClientCertificates;
use pillion_webhook::serve::ServerSettings;
use pillion_webhook::tls::PemText;
use serde_json::{Value, json};
use tokio::io::AsyncWriteExt;
use tokio::time::Instant;
use tower::ServiceExt;

const INJECTED: &str = "pillion_decisions_total{outcome=\"applied\",reason=\"injected\"}";
const FAILED: &str = "pillion_decisions_total{outcome=\"skipped\",reason=\"lookup_failed\"}";
const DENIED: &str = "pillion_decisions_total{outcome=\"denied\",reason=\"lookup_failed\"}";

fn profile(expression: &str) -> Value {
    json!({"activation": "Always", "template": {"metadata": {"labels": {"x": "y"}}},
        "matchConditions": [{"name": "c", "expression": expression}]})
}

/// SECURITY.md says what any client learns, and docs/mtls.md how to keep it from that.
#[tokio::test]
async fn client_learns_look_ups_unless_a_certificate_is_asked_for() {
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
        let answer = Response::read(&mut stream).await;
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
async fn post(router: &Router) -> Value {
    let request =
        Request::post("/mutate").header("content-type", "application/json").body(Body::from(review_text())).unwrap();
    let response = router.clone().oneshot(request).await.unwrap();
    assert_eq!(response.status(), StatusCode::OK);
    serde_json::from_slice(&response.into_body().collect().await.unwrap().to_bytes()).unwrap()
}

/// Look-ups that find a service account with an annotation, and how often they were asked.
fn accounts() -> (LookUps, Arc<AtomicUsize>) {
    let asked = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&asked);
    let look_ups: LookUps = Arc::new(move |wanted, _| {
        counter.fetch_add(1, Ordering::SeqCst);
        assert_eq!((&*wanted.namespace, wanted.service_account.as_deref()), (support::KNOWN, Some("default")));
        let object = OwnedTape::parse(r#"{"metadata":{"annotations":{"role":"reader"}}}"#).unwrap();
        async move { wanted.answered(&Answer::Found(Arc::new(object))) }.boxed()
    });
    (look_ups, asked)
}

#[tokio::test]
async fn what_a_profile_reads_is_looked_up_and_nothing_else() {
    let (look_ups, asked) = accounts();
    let app = App::with_profile(&profile("serviceAccount.annotations.role.orValue('') == 'reader'"), Some(look_ups));
    post(&app.router).await;
    assert_eq!((app.metric(INJECTED), asked.load(Ordering::SeqCst)), (Some(1.0), 1));

    let (look_ups, asked) = accounts();
    let app = App::with_profile(&profile("cluster.region == 'eu-west-1' && !owner.hasValue()"), Some(look_ups));
    post(&app.router).await;
    assert_eq!((app.metric(INJECTED), asked.load(Ordering::SeqCst)), (Some(1.0), 0));

    let app = App::with_profile(&profile("!serviceAccount.hasValue()"), None);
    post(&app.router).await;
    assert_eq!(app.metric(INJECTED), Some(1.0), "where nobody can look, nothing is there");
}

#[tokio::test(start_paused = true)]
async fn a_look_up_that_hangs_is_a_fault_of_the_profile_after_300_ms() {
    let hangs = || -> LookUps { Arc::new(|_, _| std::future::pending().boxed()) };
    let mut spec = profile("serviceAccount.hasValue()");
    let app = App::with_profile(&spec, Some(hangs()));
    let began = Instant::now();
    let answer = post(&app.router).await;
    assert_eq!(began.elapsed(), Duration::from_millis(300));
    assert_eq!(app.metric(FAILED), Some(1.0));
    let warning = answer["response"]["warnings"][0].as_str().unwrap();
    assert!(warning.contains("could not be looked up") && warning.contains("no answer in time"), "{warning}");
    assert_eq!(answer["response"]["allowed"], true);

    spec["onError"] = json!("Deny");
    let app = App::with_profile(&spec, Some(hangs()));
    assert_eq!(post(&app.router).await["response"]["allowed"], false);
    assert_eq!(app.metric(DENIED), Some(1.0));
}
