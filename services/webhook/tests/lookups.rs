//! Tests the lookups that precede a decision: namespaces that the snapshot lacks, and objects that profiles read.

use std::net::IpAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use base64::Engine;
use futures::FutureExt;
use http::StatusCode;
use pillion_api::names::FailureMode;
use pillion_engine::lookup::Answer;
use pillion_engine::snapshot::{Namespace, Snapshot};
use pillion_json::OwnedTape;
use pillion_webhook::admission::{LiveNamespace, NamespaceLookup, RequestSettings, ReviewLookups};
use pillion_webhook::clients::ClientCertificates;
use pillion_webhook::serve::ServerSettings;
use pillion_webhook::tls::PemText;
use serde_json::{Value, json};
use tokio::net::TcpSocket;
use tokio::time::Instant;

use crate::support::{
    App, ClientTls, KNOWN, Running, TestCa, ask, connect, opted_in_snapshot, post, review, review_response,
    review_text, send,
};

const NO_PROFILE: &str = "pillion_webhook_decisions_total{profile=\"_none\",outcome=\"skipped\",reason=\"no_profile\"}";
const NOT_OPTED_IN: &str =
    "pillion_webhook_decisions_total{profile=\"_none\",outcome=\"skipped\",reason=\"not_opted_in\"}";

async fn status(app: &App, path: &str, namespace: &str) -> StatusCode {
    send(&app.router, path, review(namespace).to_string()).await.status()
}

#[tokio::test]
async fn only_unknown_namespaces_are_looked_up() {
    let calls = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&calls);
    let live: LiveNamespace = Arc::new(move |NamespaceLookup { name, .. }| {
        counter.fetch_add(1, Ordering::Relaxed);
        let new = Arc::new(Namespace::opted_in(FailureMode::Enabled));
        let found = if name == "new" { Answer::Found(new) } else { Answer::Missing };
        async move { found }.boxed()
    });
    let app = App::with(RequestSettings::default(), Some(live));
    // The first two namespaces are opted in, according to the snapshot or the lookup, but no profile matches.
    for (namespace, looked_up, no_profile, not_opted_in) in
        [(KNOWN, 0, Some(1.0), None), ("new", 1, Some(2.0), None), ("gone", 2, Some(2.0), Some(1.0))]
    {
        assert_eq!(status(&app, "/mutate", namespace).await, StatusCode::OK);
        assert_eq!(calls.load(Ordering::Relaxed), looked_up, "{namespace}");
        assert_eq!((app.metric(NO_PROFILE), app.metric(NOT_OPTED_IN)), (no_profile, not_opted_in), "{namespace}");
    }
}

#[tokio::test(start_paused = true)]
async fn hanging_namespace_lookup_delays_request_by_300_ms() {
    let live: LiveNamespace = Arc::new(|_| std::future::pending().boxed());
    let app = App::with(RequestSettings::default(), Some(live));
    let began = Instant::now();
    assert_eq!(status(&app, "/mutate", "new").await, StatusCode::OK);
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
        let answer = send(&app.router, path, review(namespace).to_string()).await;
        assert_eq!(answer.status(), status, "{path} {namespace}");
        assert_eq!(answer.headers().contains_key("retry-after"), status == 503, "{path} {namespace}");
    }
    assert_eq!(app.metric("pillion_webhook_shed_requests_total{reason=\"namespace_unknown\"}"), Some(3.0));
}

/// Either the snapshot or the API server has not observed a label change yet.
#[tokio::test]
async fn namespace_that_contradicts_path_is_looked_up() {
    let calls = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&calls);
    let live: LiveNamespace = Arc::new(move |NamespaceLookup { name, after, .. }| {
        counter.fetch_add(1, Ordering::Relaxed);
        assert!(
            after.is_some_and(|after| after.elapsed() < Duration::from_secs(30)),
            "a stale cache entry was accepted"
        );
        let answer = match name {
            "changed" => Answer::Found(Arc::new(Namespace::opted_in(FailureMode::Required))),
            "unlabelled" => Answer::Found(Arc::new(Namespace::default())),
            _ => Answer::Failed("no route".into()),
        };
        async { answer }.boxed()
    });
    let snapshot = ["changed", "unlabelled", "away"]
        .into_iter()
        .fold(Snapshot::default(), |snapshot, name| snapshot.with_namespace(name, Some(Namespace::default())));
    let snapshot = snapshot.with_namespace("agreed", Some(Namespace::opted_in(FailureMode::Required)));
    let app = App::of(snapshot, |admission| admission.live_namespace = Some(live));
    for (path, namespace, expected, looked_up, no_profile) in [
        ("/mutate/required", "agreed", 200, 0, Some(1.0)),
        ("/mutate/required", "changed", 200, 1, Some(2.0)),
        // The path determines the failure mode, even if the API server is stale. The namespace is only used to select
        // profiles.
        ("/mutate/required", "unlabelled", 200, 2, Some(3.0)),
        ("/mutate/required", "away", 503, 3, Some(3.0)),
        ("/validate/held", "away", 503, 4, Some(3.0)),
        ("/mutate", "away", 200, 4, Some(3.0)),
    ] {
        assert_eq!(status(&app, path, namespace).await, expected, "{path} {namespace}");
        assert_eq!(calls.load(Ordering::Relaxed), looked_up, "{path} {namespace}");
        assert_eq!(app.metric(NO_PROFILE), no_profile, "{path} {namespace}");
    }
    assert_eq!(app.metric("pillion_webhook_shed_requests_total{reason=\"namespace_unknown\"}"), Some(2.0));
}

#[tokio::test]
async fn panic_fails_one_request_only() {
    let live: LiveNamespace = Arc::new(|lookup| match lookup.name {
        "now" => panic!("for a test"),
        _ => async { panic!("for a test, later") }.boxed(),
    });
    let app = App::with(RequestSettings::default(), Some(live));
    for (panics, namespace) in [(1.0, "now"), (2.0, "later")] {
        assert_eq!(status(&app, "/mutate", namespace).await, StatusCode::INTERNAL_SERVER_ERROR);
        assert_eq!(app.metric("pillion_webhook_panics_total"), Some(panics));
        assert_eq!(app.metric("pillion_webhook_inflight_requests"), Some(0.0));
        assert_eq!(status(&app, "/mutate", KNOWN).await, StatusCode::OK);
    }
    let errors = "pillion_webhook_requests_total{endpoint=\"any\",outcome=\"error\"}";
    assert_eq!(app.metric(errors), Some(2.0));
}

const INJECTED: &str = "pillion_webhook_decisions_total{profile=\"profile\",outcome=\"applied\",reason=\"injected\"}";
const FAILED: &str =
    "pillion_webhook_decisions_total{profile=\"profile\",outcome=\"skipped\",reason=\"lookup_failed\"}";
const DENIED: &str = "pillion_webhook_decisions_total{profile=\"profile\",outcome=\"denied\",reason=\"lookup_failed\"}";

fn profile(expression: &str) -> Value {
    json!({"activation": "Always", "template": {"metadata": {"labels": {"x": "y"}}},
        "matchConditions": [{"name": "c", "expression": expression}]})
}

/// Without client authentication, any client can make the replica look up objects, and read their content in the patch.
/// With client authentication (docs/certificates.md), the same request gets a 401 and causes no lookup.
#[tokio::test]
async fn client_without_certificate_gets_no_lookups() {
    let expression = "serviceAccount.annotations.role.orValue('none')";
    let spec = json!({"activation": "Always", "template": {"metadata": {"annotations": {"role": format!("${{{expression}}}")}}}});
    for asks_for_certificate in [false, true] {
        let (lookups, asked) = accounts();
        let app = App::with_profile(&spec, Some(lookups));
        let ca = TestCa::new("CA of the API servers").pem();
        let clients = PemText { source: "clients.crt", text: ca.as_bytes() };
        let clients = ClientCertificates::new(clients, std::iter::empty()).unwrap();
        let clients = asks_for_certificate.then_some(clients);
        let server = Running::start_for(app.router.clone(), ServerSettings::default(), clients).await;
        let mut stream = ClientTls::new(&server.root).connect(server.tcp().await).await.unwrap();
        let answer = ask(&mut stream, post("/mutate", &review_text())).await;
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

/// Sends a review of a pod to `/mutate`, and returns the `response` of the review.
async fn review_pod(app: &App) -> Value {
    review_response(send(&app.router, "/mutate", review_text()).await).await
}

/// Returns a lookup function that finds a service account with an annotation, and a counter of its calls.
fn accounts() -> (ReviewLookups, Arc<AtomicUsize>) {
    let asked = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&asked);
    let lookups: ReviewLookups = Arc::new(move |wanted, _| {
        counter.fetch_add(1, Ordering::SeqCst);
        assert_eq!((&*wanted.namespace, wanted.service_account.as_deref()), (KNOWN, Some("default")));
        let object = OwnedTape::parse(r#"{"metadata":{"annotations":{"role":"reader"}}}"#).unwrap();
        async move { wanted.answered(&Answer::Found(Arc::new(object))) }.boxed()
    });
    (lookups, asked)
}

#[tokio::test]
async fn only_objects_that_profiles_read_are_looked_up() {
    let (lookups, asked) = accounts();
    let app = App::with_profile(&profile("serviceAccount.annotations.role.orValue('') == 'reader'"), Some(lookups));
    review_pod(&app).await;
    assert_eq!((app.metric(INJECTED), asked.load(Ordering::SeqCst)), (Some(1.0), 1));

    let (lookups, asked) = accounts();
    let app = App::with_profile(&profile("cluster.region == 'eu-west-1' && !owner.hasValue()"), Some(lookups));
    review_pod(&app).await;
    assert_eq!((app.metric(INJECTED), asked.load(Ordering::SeqCst)), (Some(1.0), 0));

    let app = App::with_profile(&profile("!serviceAccount.hasValue()"), None);
    review_pod(&app).await;
    assert_eq!(app.metric(INJECTED), Some(1.0), "without a lookup function the object is missing");
}

#[tokio::test(start_paused = true)]
async fn hanging_object_lookup_fails_profile_after_300_ms() {
    let hangs = || -> ReviewLookups { Arc::new(|_, _| std::future::pending().boxed()) };
    let mut spec = profile("serviceAccount.hasValue()");
    let app = App::with_profile(&spec, Some(hangs()));
    let began = Instant::now();
    let answer = review_pod(&app).await;
    assert_eq!(began.elapsed(), Duration::from_millis(300));
    assert_eq!(app.metric(FAILED), Some(1.0));
    let warning = answer["warnings"][0].as_str().unwrap();
    assert!(warning.contains("could not be looked up") && warning.contains("no response in time"), "{warning}");
    assert_eq!(answer["allowed"], true);

    spec["failurePolicy"] = json!("Fail");
    let app = App::with_profile(&spec, Some(hangs()));
    assert_eq!(review_pod(&app).await["allowed"], false);
    assert_eq!(app.metric(DENIED), Some(1.0));
}

/// Returns a review of a profile that extends a cluster profile.
fn profile_review() -> Value {
    json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": {
        "uid": "u1", "operation": "CREATE", "namespace": KNOWN,
        "kind": {"group": "pillion.dev", "version": "v1alpha1", "kind": "InjectionProfile"},
        "resource": {"group": "pillion.dev", "version": "v1alpha1", "resource": "injectionprofiles"},
        "userInfo": {"username": "a"},
        "object": {"apiVersion": "pillion.dev/v1alpha1", "kind": "InjectionProfile",
            "metadata": {"name": "child", "namespace": KNOWN}, "spec": {"extends": {"name": "parent"}}},
    }})
}

/// The lookup functions limit the number of lookups for each client, so they must get the address of the connection.
#[tokio::test]
async fn lookups_name_the_client() {
    const CLIENT: [u8; 4] = [127, 0, 0, 2];
    let asked = Arc::new(Mutex::new(Vec::new()));
    let (namespaces, objects) = (Arc::clone(&asked), Arc::clone(&asked));
    let live: LiveNamespace = Arc::new(move |NamespaceLookup { name, client, .. }| {
        namespaces.lock().unwrap().push((format!("namespace {name}"), client));
        async { Answer::Found(Arc::new(Namespace::opted_in(FailureMode::Enabled))) }.boxed()
    });
    let lookups: ReviewLookups = Arc::new(move |wanted, client| {
        let mut names: Vec<_> = wanted.service_account.iter().map(|name| format!("account {name}")).collect();
        names.extend(wanted.objects.iter().map(|query| format!("one of {}", query.resource)));
        objects.lock().unwrap().extend(names.into_iter().map(|name| (name, client)));
        async move { wanted.answered(&Answer::Missing) }.boxed()
    });
    let app = App::of(opted_in_snapshot(Some(&profile("serviceAccount.hasValue()"))), |admission| {
        admission.live_namespace = Some(live);
        admission.lookups = Some(lookups);
    });
    let server = Running::start(app.router.clone(), ServerSettings::default()).await;
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind((CLIENT, 0).into()).unwrap();
    let tcp = socket.connect(server.address).await.unwrap();
    let mut stream = connect(tcp, &server.root, &["http/1.1"]).await.unwrap();
    for (path, review, names) in [
        ("/mutate", review("new"), &["namespace new", "account default"][..]),
        ("/mutate", large(review("new")), &["namespace new", "account default"]),
        ("/validate-profiles", profile_review(), &["one of clusterinjectionprofiles"]),
    ] {
        let answer = ask(&mut stream, post(path, &review.to_string())).await;
        assert_eq!(answer.status, 200, "{path}: {answer:?}");
        let expected: Vec<_> = names.iter().map(|name| ((*name).to_owned(), IpAddr::from(CLIENT))).collect();
        assert_eq!(std::mem::take(&mut *asked.lock().unwrap()), expected, "{path}");
    }
}

/// Returns the review with a pod so large that a separate thread decides it.
fn large(mut review: Value) -> Value {
    review["request"]["object"]["metadata"]["annotations"] = json!({"example.com/text": "x".repeat(200 * 1024)});
    review
}
