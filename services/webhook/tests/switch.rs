//! While the kill switch is off, everything is allowed as it is, whatever was asked.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test says what is wrong by panicking")]

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

const KNOWN: &str = "known";

async fn post(app: &Router, path: &str, body: String) -> (StatusCode, Value) {
    let request = Request::post(path).header("content-type", "application/json").body(Body::from(body));
    let response = app.clone().oneshot(request.unwrap()).await.unwrap();
    let status = response.status();
    let body = response.into_body().collect().await.unwrap().to_bytes();
    (status, serde_json::from_slice::<Value>(&body).map_or(Value::Null, |mut answer| answer["response"].take()))
}

fn review(namespace: &str) -> String {
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
async fn nothing_is_patched_refused_or_looked_up_until_it_is_on_again() {
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
        // The held path contradicts what is known of the namespace.
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
            let (status, answer) = post(&app, path, review(KNOWN)).await;
            let untouched = answer == json!({"uid": "u-1", "allowed": true});
            assert_eq!((status, untouched), (StatusCode::OK, off), "{path}: {answer}");
        }
    }
    switch.set_off(true);
    let (_, answer) = post(&app, "/mutate/required", review("not-known-yet")).await;
    assert_eq!(answer["allowed"], true);
    assert_eq!(post(&app, "/mutate/required", "no review".to_owned()).await.0, StatusCode::BAD_REQUEST);

    let mut text = String::new();
    prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
    let counted = "pillion_decisions_total{outcome=\"skipped\",reason=\"switched_off\"} 6\n";
    assert!(text.contains(counted), "{text}");
}

#[tokio::test]
async fn whoever_calls_for_a_canary_is_told_that_a_replica_was_reached() {
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
    // Whether it decides anything is another question than whether it was reached.
    for off in [false, true] {
        switch.set_off(off);
        let (status, answer) = post(&app, "/canary/7", review(KNOWN)).await;
        assert_eq!((status, &answer["uid"], &answer["allowed"]), (StatusCode::OK, &json!("u-1"), &json!(false)));
        assert_eq!(answer["status"]["message"], pillion_api::canary::REACHED);
    }
    assert_eq!(post(&app, "/canary/7", "{}".to_owned()).await.0, StatusCode::BAD_REQUEST);
}
