//! The validating paths: what is answered there, and how it is counted.

#![expect(clippy::unwrap_used, clippy::indexing_slicing, reason = "helpers of tests fail by panicking, as tests do")]

use std::sync::Arc;

use arc_swap::ArcSwap;
use axum::Router;
use axum::body::Body;
use http::Request;
use http_body_util::BodyExt;
use pillion_api::names::InjectionLevel;
use pillion_engine::profile::{ProfileName, compile};
use pillion_engine::snapshot::{Namespace, ProfileSet, Snapshot};
use pillion_webhook::admission::{Admission, RequestSettings};
use pillion_webhook::metrics::Metrics;
use pillion_webhook::router::router;
use pillion_webhook::switch::Switch;
use prometheus_client::registry::Registry;
use serde_json::{Value, json};
use tower::ServiceExt;

use crate::support::App;

/// The routes, with a profile that checks images.
fn app(registry: &mut Registry) -> Router {
    let spec = json!({"activation": "Always", "validations": [{
        "expression": "containers.all(c, c.image.startsWith('registry.example/'))", "message": "whose image?", "code": 403,
    }]});
    let profile = compile(&ProfileName::cluster("images"), &serde_json::from_value(spec).unwrap()).unwrap();
    let snapshot = Snapshot::new(ProfileSet::new([Arc::new(profile)]))
        .with_namespace(crate::support::KNOWN, Some(Namespace::opted_in(InjectionLevel::Enabled)));
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

async fn post(app: &Router, path: &str, review: &Value) -> Value {
    let request = Request::post(path).header("content-type", "application/json").body(Body::from(review.to_string()));
    let response = app.clone().oneshot(request.unwrap()).await.unwrap();
    serde_json::from_slice::<Value>(&response.into_body().collect().await.unwrap().to_bytes()).unwrap()["response"]
        .clone()
}

#[tokio::test]
async fn each_validating_path_refuses_and_lets_pass_and_is_counted_under_its_own_name() {
    let mut registry = Registry::default();
    let app = app(&mut registry);
    let good = crate::support::review(crate::support::KNOWN);
    let mut bad = good.clone();
    bad["request"]["object"]["spec"]["containers"][0]["image"] = json!("elsewhere/web:1");
    let paths = [
        ("/validate", "validate_any"),
        ("/validate/enabled", "validate_enabled"),
        ("/validate/required", "validate_required"),
        ("/validate/held", "validate_held"),
    ];
    for (path, endpoint) in paths {
        assert_eq!(post(&app, path, &good).await["allowed"], true, "{path}");
        let refused = post(&app, path, &bad).await;
        assert_eq!((&refused["allowed"], &refused["status"]["code"]), (&json!(false), &json!(403)), "{path}");
        assert!(refused["status"]["message"].as_str().unwrap().ends_with("whose image?"), "{refused}");
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
        for outcome in ["validated", "denied"] {
            let line = format!("pillion_admission_requests_total{{endpoint=\"{endpoint}\",outcome=\"{outcome}\"}} 1\n");
            assert!(text.contains(&line), "{line} is not in\n{text}");
        }
    }
    // What is refused there is not looked at on the mutating path.
    assert_eq!(post(&app, "/mutate", &bad).await["allowed"], true);
}

#[tokio::test]
async fn what_is_no_review_of_a_profile_or_a_canary_is_refused_in_few_words() {
    let app = app(&mut Registry::default());
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

/// A review of a profile that is stored.
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
async fn profile_reviews_wait_in_a_short_queue_of_their_own() {
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
    // A quarter of the queue is one client's.
    assert!(good.len() >= 2 && shed.len() >= 30, "{} answered, {} shed", good.len(), shed.len());
    let counted = app.metric("pillion_shed_total{reason=\"queue_full\"}").unwrap();
    assert!((counted - f64::from(u32::try_from(shed.len()).unwrap())).abs() < 0.5);
    assert_eq!(post(&app.router, "/validate-profiles", &profile_review()).await["allowed"], true);
}
