//! The validating paths: what is answered there, and how it is counted.

#![expect(clippy::unwrap_used, clippy::indexing_slicing, reason = "helpers of tests fail by panicking, as tests do")]

use std::sync::Arc;

use arc_swap::ArcSwap;
use axum::Router;
use axum::body::Body;
use http::Request;
use http_body_util::BodyExt;
use pillion_api::names::InjectionLevel;
use pillion_engine::profile::{ProfileName, ProfileSet, compile};
use pillion_engine::snapshot::{Namespace, Snapshot};
use pillion_webhook::metrics::Metrics;
use pillion_webhook::router::{Admission, RequestSettings, router};
use pillion_webhook::switch::Switch;
use prometheus_client::registry::Registry;
use serde_json::{Value, json};
use tower::ServiceExt;

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
