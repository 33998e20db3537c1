//! Tests decisions in process: the validating paths, profile reviews, connectivity checks, the kill switch, and the
//! log.

use std::sync::Arc;

use futures::FutureExt;
use http::StatusCode;
use http_body_util::BodyExt;
use pillion_api::names::FailureMode;
use pillion_engine::lookup::Answer;
use pillion_engine::snapshot::Namespace;
use pillion_webhook::admission::RequestSettings;
use pillion_webhook::switch::Switch;
use serde_json::{Value, json};
use tracing::Level;

use crate::support::{App, KNOWN, Lines, opted_in_snapshot, review, review_response, send};

/// Returns an app with a profile that validates images.
fn with_validation() -> App {
    let spec = json!({"activation": "Always", "validations": [{
        "expression": "containers.all(c, c.image.startsWith('registry.example/'))", "message": "whose image?", "code": 403,
    }]});
    App::with_profile(&spec, None)
}

async fn response(app: &App, path: &str, review: &Value) -> Value {
    review_response(send(&app.router, path, review.to_string()).await).await
}

#[tokio::test]
async fn validating_paths_deny_and_are_counted() {
    let app = with_validation();
    let good = review(KNOWN);
    let bad = denied_image(KNOWN);
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
        for outcome in ["validated", "denied"] {
            let series = format!("pillion_webhook_requests_total{{endpoint=\"{endpoint}\",outcome=\"{outcome}\"}}");
            assert_eq!(app.metric(&series), Some(1.0), "{series}");
        }
    }
    // The mutating path does not run validations.
    assert_eq!(response(&app, "/mutate", &bad).await["allowed"], true);
}

#[tokio::test]
async fn invalid_profile_reviews_and_checks_are_rejected() {
    let app = with_validation();
    let (strange, large, id) = ("\u{7f}".repeat(60_000), "\u{7f}".repeat(6 * 1024 * 1024), "u".repeat(257));
    for (path, review, status) in [
        ("/trust-probe/1", json!({"request": strange}), 400),
        ("/trust-probe/1", json!({"request": {"uid": id}}), 400),
        ("/trust-probe/1", json!({"request": large}), 413),
        ("/validate-profiles", json!({"apiVersion": "admission.k8s.io/v1", "request": large}), 400),
        ("/validate-profiles", json!({"apiVersion": large, "request": {"uid": "u"}}), 400),
        ("/validate-profiles", json!({"apiVersion": "admission.k8s.io/v1", "request": {"uid": id}}), 400),
    ] {
        let response = send(&app.router, path, review.to_string()).await;
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
    let ask = |_| send(&app.router, "/validate-profiles?timeout=10s", profile_review().to_string());
    let answers = futures::future::join_all((0..40).map(ask)).await;
    let (good, shed): (Vec<_>, Vec<_>) = answers.into_iter().partition(|answer| answer.status() == 200);
    assert!(shed.iter().all(|answer| answer.status() == 503 && answer.headers()["retry-after"] == "1"));
    // One client address may use only a quarter of the queue.
    assert!(good.len() >= 2 && shed.len() >= 30, "{} answered, {} shed", good.len(), shed.len());
    let counted = app.metric("pillion_webhook_shed_requests_total{reason=\"queue_full\"}").unwrap();
    assert!((counted - f64::from(u32::try_from(shed.len()).unwrap())).abs() < 0.5);
    assert_eq!(response(&app, "/validate-profiles", &profile_review()).await["allowed"], true);
}

/// Returns a review of a pod with an image that [`with_validation`] denies.
fn denied_image(namespace: &str) -> Value {
    let mut review = review(namespace);
    review["request"]["uid"] = json!("u-1");
    review["request"]["object"]["spec"]["containers"][0]["image"] = json!("elsewhere/web:1");
    review
}

#[tokio::test]
async fn kill_switch_allows_everything_unchanged() {
    let spec = json!({
        "activation": "Always",
        "template": {"metadata": {"labels": {"injected": "yes"}}},
        "validations": [{"expression": "containers.all(c, c.image.startsWith('registry.example/'))"}],
    });
    let snapshot = opted_in_snapshot(Some(&spec));
    let snapshot = snapshot.with_namespace(KNOWN, Some(Namespace::opted_in(FailureMode::Required)));
    let switch = Switch::default();
    let off = switch.clone();
    let app = App::of(snapshot, |admission| {
        admission.switch = switch.clone();
        // The snapshot has the failure mode `required`, so requests to the path for `held` look up the namespace.
        admission.live_namespace = Some(Arc::new(move |lookup| {
            assert!(!off.is_off(), "{lookup:?}");
            let found = Answer::Found(Arc::new(Namespace::opted_in(FailureMode::Required)));
            async { found }.boxed()
        }));
    });
    let paths = ["/mutate", "/mutate/required", "/mutate/held", "/validate", "/validate/required"];
    for off in [false, true, false] {
        switch.set_off(off);
        for path in paths {
            let answer = response(&app, path, &denied_image(KNOWN)).await;
            let untouched = answer == json!({"uid": "u-1", "allowed": true});
            assert_eq!(untouched, off, "{path}: {answer}");
        }
    }
    switch.set_off(true);
    assert_eq!(response(&app, "/mutate/required", &denied_image("not-known-yet")).await["allowed"], true);
    assert_eq!(send(&app.router, "/mutate/required", "no review").await.status(), StatusCode::BAD_REQUEST);
    assert_eq!(
        app.metric("pillion_webhook_decisions_total{profile=\"_none\",outcome=\"skipped\",reason=\"switched_off\"}"),
        Some(6.0)
    );
}

#[tokio::test]
async fn connectivity_check_is_answered() {
    let switch = Switch::default();
    let app = App::of(opted_in_snapshot(None), |admission| admission.switch = switch.clone());
    // The kill switch does not affect the connectivity check.
    for off in [false, true] {
        switch.set_off(off);
        let answer = response(&app, "/trust-probe/7", &denied_image(KNOWN)).await;
        assert_eq!((&answer["uid"], &answer["allowed"]), (&json!("u-1"), &json!(false)));
        assert_eq!(answer["status"]["message"], pillion_api::trust_probe::REACHED);
    }
    assert_eq!(send(&app.router, "/trust-probe/7", "{}").await.status(), StatusCode::BAD_REQUEST);
}

/// Each test that captures log lines holds this lock, because the process has only one global maximum log level.
static ALONE: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());

/// Answers a request with this body, and returns the log lines of this level and above.
async fn logged(level: Level, body: String) -> String {
    let _alone = ALONE.lock().await;
    let lines = Lines::default();
    let writer = lines.clone();
    let subscriber =
        tracing_subscriber::fmt().with_max_level(level).with_ansi(false).with_writer(move || writer.clone()).finish();
    let _guard = tracing::subscriber::set_default(subscriber);
    send(&App::new().router, "/mutate/held", body).await;
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
