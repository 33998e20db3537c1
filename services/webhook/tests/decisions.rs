//! Decisions in process: the validating paths, profile reviews, connectivity checks, the kill switch, and the log.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::print_stdout,
    reason = "a test reports failures by panicking, also in its helpers"
)]

use std::sync::Arc;

use arc_swap::ArcSwap;
use axum::Router;
use axum::body::Body;
use futures::FutureExt;
use http::{Request, StatusCode};
use http_body_util::BodyExt;
use pillion_api::names::InjectionLevel;
use pillion_engine::lookup::Answer;
use pillion_engine::profile::{ProfileName, compile};
use pillion_engine::snapshot::{Namespace, ProfileSet, Snapshot};
use pillion_webhook::admission::{Admission, RequestSettings};
use pillion_webhook::metrics::Metrics;
use pillion_webhook::router::router;
use pillion_webhook::switch::Switch;
use prometheus_client::registry::Registry;
use serde_json::{Value, json};
use tower::ServiceExt;
use tracing::Level;

use crate::support::{App, KNOWN, Lines, review};

/// Returns the routes, with a profile that validates images.
fn with_validation(registry: &mut Registry) -> Router {
    let spec = json!({"activation": "Always", "validations": [{
        "expression": "containers.all(c, c.image.startsWith('registry.example/'))", "message": "whose image?", "code": 403,
    }]});
    let profile = compile(&ProfileName::cluster("images"), &serde_json::from_value(spec).unwrap()).unwrap();
    let snapshot = Snapshot::new(ProfileSet::new([Arc::new(profile)]))
        .with_namespace(KNOWN, Some(Namespace::opted_in(InjectionLevel::Enabled)));
    router(Admission {
        snapshot: Arc::new(ArcSwap::from_pointee(snapshot)),
        live_namespace: None,
        metrics: Arc::new(Metrics::register(registry)),
        settings: RequestSettings::default(),
        look_ups: None,
        policy: Arc::default(),
        switch: Switch::default(),
    })
}

async fn response(app: &Router, path: &str, review: &Value) -> Value {
    let request = Request::post(path).header("content-type", "application/json").body(Body::from(review.to_string()));
    let response = app.clone().oneshot(request.unwrap()).await.unwrap();
    serde_json::from_slice::<Value>(&response.into_body().collect().await.unwrap().to_bytes()).unwrap()["response"]
        .clone()
}

#[tokio::test]
async fn validating_paths_deny_and_are_counted() {
    let mut registry = Registry::default();
    let app = with_validation(&mut registry);
    let good = review(KNOWN);
    let mut bad = good.clone();
    bad["request"]["object"]["spec"]["containers"][0]["image"] = json!("elsewhere/web:1");
    let paths = [
        ("/validate", "validate_any"),
        ("/validate/enabled", "validate_enabled"),
        ("/validate/required", "validate_required"),
        ("/validate/held", "validate_held"),
    ];
    for (path, endpoint) in paths {
        assert_eq!(response(&app, path, &good).await["allowed"], true, "{path}");
        let refused = response(&app, path, &bad).await;
        assert_eq!((&refused["allowed"], &refused["status"]["code"]), (&json!(false), &json!(403)), "{path}");
        assert!(refused["status"]["message"].as_str().unwrap().ends_with("whose image?"), "{refused}");
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
        for outcome in ["validated", "denied"] {
            let line = format!("pillion_admission_requests_total{{endpoint=\"{endpoint}\",outcome=\"{outcome}\"}} 1\n");
            assert!(text.contains(&line), "{line} is not in\n{text}");
        }
    }
    // The mutating path ignores the validation.
    assert_eq!(response(&app, "/mutate", &bad).await["allowed"], true);
}

#[tokio::test]
async fn invalid_profile_and_canary_reviews_are_refused() {
    let app = with_validation(&mut Registry::default());
    let (strange, large, id) = ("\u{7f}".repeat(60_000), "\u{7f}".repeat(6 * 1024 * 1024), "u".repeat(257));
    for (path, review, status) in [
        ("/canary/1", json!({"request": strange}), 400),
        ("/canary/1", json!({"request": {"uid": id}}), 400),
        ("/canary/1", json!({"request": large}), 413),
        ("/validate-profiles", json!({"apiVersion": "admission.k8s.io/v1", "request": large}), 400),
        ("/validate-profiles", json!({"apiVersion": large, "request": {"uid": "u"}}), 400),
        ("/validate-profiles", json!({"apiVersion": "admission.k8s.io/v1", "request": {"uid": id}}), 400),
    ] {
        let request = Request::post(path).header("content-type", "application/json");
        let response = app.clone().oneshot(request.body(Body::from(review.to_string())).unwrap()).await.unwrap();
        let answered = response.status().as_u16();
        let text = response.into_body().collect().await.unwrap().to_bytes();
        let text = String::from_utf8_lossy(&text);
        assert!(answered == status && text.len() < 2048, "{path}: {answered} {text:.200}");
    }
}

/// Returns a review of a profile.
fn profile_review() -> Value {
    json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": {
        "uid": "u1", "operation": "CREATE", "namespace": "shop",
        "kind": {"group": "pillion.dev", "version": "v1alpha1", "kind": "InjectionProfile"},
        "resource": {"group": "pillion.dev", "version": "v1alpha1", "resource": "injectionprofiles"},
        "userInfo": {"username": "a"},
        "object": {"apiVersion": "pillion.dev/v1alpha1", "kind": "InjectionProfile",
            "metadata": {"name": "p", "namespace": "shop"},
            "spec": {"activation": "Always", "template": {"metadata": {"labels": {"a": "b"}}}}},
    }})
}

#[tokio::test]
async fn profile_reviews_wait_in_own_queue() {
    let mut settings = RequestSettings::default();
    settings.overload.max_queued_profiles = 8;
    let app = App::with(settings, None);
    let ask = |_| {
        let request = Request::post("/validate-profiles?timeout=10s").header("content-type", "application/json");
        app.router.clone().oneshot(request.body(Body::from(profile_review().to_string())).unwrap())
    };
    let answers: Vec<_> = futures::future::join_all((0..40).map(ask)).await.into_iter().map(Result::unwrap).collect();
    let (good, shed): (Vec<_>, Vec<_>) = answers.into_iter().partition(|answer| answer.status() == 200);
    assert!(shed.iter().all(|answer| answer.status() == 503 && answer.headers()["retry-after"] == "1"));
    // One client may use a quarter of the queue.
    assert!(good.len() >= 2 && shed.len() >= 30, "{} answered, {} shed", good.len(), shed.len());
    let counted = app.metric("pillion_shed_total{reason=\"queue_full\"}").unwrap();
    assert!((counted - f64::from(u32::try_from(shed.len()).unwrap())).abs() < 0.5);
    assert_eq!(response(&app.router, "/validate-profiles", &profile_review()).await["allowed"], true);
}

async fn post(app: &Router, path: &str, body: String) -> (StatusCode, Value) {
    let request = Request::post(path).header("content-type", "application/json").body(Body::from(body));
    let response = app.clone().oneshot(request.unwrap()).await.unwrap();
    let status = response.status();
    let body = response.into_body().collect().await.unwrap().to_bytes();
    (status, serde_json::from_slice::<Value>(&body).map_or(Value::Null, |mut answer| answer["response"].take()))
}

fn unchecked_image(namespace: &str) -> String {
    let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "web"},
        "spec": {"containers": [{"name": "web", "image": "elsewhere/web:1"}]}});
    json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": {
        "uid": "u-1", "kind": {"group": "", "version": "v1", "kind": "Pod"},
        "resource": {"group": "", "version": "v1", "resource": "pods"},
        "namespace": namespace, "operation": "CREATE", "object": pod,
    }})
    .to_string()
}

#[tokio::test]
async fn kill_switch_allows_everything_unchanged() {
    let spec = json!({
        "activation": "Always",
        "template": {"metadata": {"labels": {"injected": "yes"}}},
        "validations": [{"expression": "containers.all(c, c.image.startsWith('registry.example/'))"}],
    });
    let profile = compile(&ProfileName::cluster("p"), &serde_json::from_value(spec).unwrap()).unwrap();
    let snapshot = Snapshot::new(ProfileSet::new([Arc::new(profile)]))
        .with_namespace(KNOWN, Some(Namespace::opted_in(InjectionLevel::Required)));
    let (mut registry, switch) = (Registry::default(), Switch::default());
    let off = switch.clone();
    let app = router(Admission {
        snapshot: Arc::new(ArcSwap::from_pointee(snapshot)),
        // The path of `held` contradicts the namespace in the snapshot.
        live_namespace: Some(Arc::new(move |lookup| {
            assert!(!off.is_off(), "{lookup:?}");
            let found = Answer::Found(Arc::new(Namespace::opted_in(InjectionLevel::Required)));
            async { found }.boxed()
        })),
        look_ups: None,
        policy: Arc::default(),
        switch: switch.clone(),
        metrics: Arc::new(Metrics::register(&mut registry)),
        settings: RequestSettings::default(),
    });
    let paths = ["/mutate", "/mutate/required", "/mutate/held", "/validate", "/validate/required"];
    for off in [false, true, false] {
        switch.set_off(off);
        for path in paths {
            let (status, answer) = post(&app, path, unchecked_image(KNOWN)).await;
            let untouched = answer == json!({"uid": "u-1", "allowed": true});
            assert_eq!((status, untouched), (StatusCode::OK, off), "{path}: {answer}");
        }
    }
    switch.set_off(true);
    let (_, answer) = post(&app, "/mutate/required", unchecked_image("not-known-yet")).await;
    assert_eq!(answer["allowed"], true);
    assert_eq!(post(&app, "/mutate/required", "no review".to_owned()).await.0, StatusCode::BAD_REQUEST);

    let mut text = String::new();
    prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
    let counted = "pillion_decisions_total{outcome=\"skipped\",reason=\"switched_off\"} 6\n";
    assert!(text.contains(counted), "{text}");
}

#[tokio::test]
async fn connectivity_check_is_answered() {
    let (mut registry, switch) = (Registry::default(), Switch::default());
    let app = router(Admission {
        snapshot: Arc::default(),
        live_namespace: None,
        look_ups: None,
        policy: Arc::default(),
        switch: switch.clone(),
        metrics: Arc::new(Metrics::register(&mut registry)),
        settings: RequestSettings::default(),
    });
    // The kill switch does not affect the connectivity check.
    for off in [false, true] {
        switch.set_off(off);
        let (status, answer) = post(&app, "/canary/7", unchecked_image(KNOWN)).await;
        assert_eq!((status, &answer["uid"], &answer["allowed"]), (StatusCode::OK, &json!("u-1"), &json!(false)));
        assert_eq!(answer["status"]["message"], pillion_api::canary::REACHED);
    }
    assert_eq!(post(&app, "/canary/7", "{}".to_owned()).await.0, StatusCode::BAD_REQUEST);
}

/// Only one test at a time: the process has one global maximum log level.
static ALONE: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());

/// Returns the log lines of this level and above while a body is answered.
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
async fn decision_is_logged_without_object() {
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
    assert_eq!(logged(Level::INFO, review.to_string()).await, "", "a decision is not logged at INFO");
}

#[tokio::test]
async fn bad_request_is_logged_as_short_line() {
    let body = format!("{{\"apiVersion\":\"a\\u000a{}\"}}", "x".repeat(10_000));
    let text = logged(Level::DEBUG, body.clone()).await;
    assert_eq!(text.lines().count(), 1, "{text}");
    assert!(text.contains("status=400") && text.contains("apiVersion") && text.len() < 600, "{text}");
    assert_eq!(logged(Level::INFO, body).await, "", "client errors are not logged at INFO");
}
