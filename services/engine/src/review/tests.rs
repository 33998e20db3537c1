//! Reviews, from their bytes to the bytes of the answer.

use std::sync::Arc;

use base64::Engine;
use pillion_api::names::InjectionLevel;
use serde_json::{Value as Json, json};

use super::*;
use crate::decision::{Notice, Outcome, ProfileOutcome, Reason};
use crate::profile::{ProfileName, compile};
use crate::snapshot::ProfileSet;

mod again;
mod held;
mod mark;
mod templates;

const ENABLED: Endpoint = Endpoint::Level(InjectionLevel::Enabled);

fn snapshot(profiles: &[(&str, Json)]) -> Snapshot {
    let compiled = profiles.iter().map(|(name, spec)| {
        let spec = serde_json::from_value(spec.clone()).unwrap();
        Arc::new(compile(&ProfileName::cluster(*name), &spec).unwrap())
    });
    Snapshot::new(ProfileSet::new(compiled))
}

fn sidecar() -> Json {
    json!({
        "activation": "Always",
        "template": {
            "metadata": {"annotations": {"example.com/status": "injected"}},
            "spec": {
                "containers": [{"name": "sidecar", "image": "sidecar:1"}],
                "volumes": [{"name": "config", "configMap": {"name": "sidecar"}}],
            },
        },
    })
}

fn pod() -> Json {
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": "web"},
        "spec": {"containers": [{"name": "app", "image": "app:1"}]},
    })
}

fn review_of(object: &Json) -> Json {
    json!({
        "apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview",
        "request": {
            "uid": "the-uid",
            "kind": {"group": "", "version": "v1", "kind": "Pod"},
            "resource": {"group": "", "version": "v1", "resource": "pods"},
            "namespace": "team-a", "operation": "CREATE", "object": object,
            "userInfo": {"username": "somebody"},
        },
    })
}

/// What is decided about a review, the answer, and the patched object.
struct Result {
    decided: Decided,
    answer: Json,
    object: Json,
}

fn answer(review: &Json, endpoint: Endpoint, snapshot: &Snapshot, facts: &Facts) -> Result {
    let body = review.to_string();
    let parsed = Review::parse(body.as_bytes()).unwrap();
    let decided = parsed.decide(endpoint, snapshot, facts).unwrap();
    let answer: Json = serde_json::from_slice(&parsed.respond(&decided)).unwrap();
    let mut object = review["request"]["object"].clone();
    if let Some(patch) = answer["response"]["patch"].as_str() {
        let patch = base64::engine::general_purpose::STANDARD.decode(patch).unwrap();
        json_patch::patch(&mut object, &serde_json::from_slice::<json_patch::Patch>(&patch).unwrap()).unwrap();
    }
    Result { decided, answer, object }
}

fn inject(object: &Json, profiles: &[(&str, Json)]) -> Result {
    answer(&review_of(object), ENABLED, &snapshot(profiles), &Facts::default())
}

/// The object as the API server hands it out again: managedFields name what the author wrote.
fn as_stored(mut object: Json) -> Json {
    object["metadata"]["managedFields"] = json!([{"manager": "kubectl", "fieldsV1": {"f:spec": {}}}]);
    object
}

#[test]
fn a_pod_gets_container_volume_annotation_and_record() {
    let result = inject(&pod(), &[("nginx", sidecar())]);
    assert_eq!(result.decided.decision.outcome, Outcome::Injected);
    assert_eq!(result.object["spec"]["containers"][1], json!({"name": "sidecar", "image": "sidecar:1"}));
    assert_eq!(result.object["spec"]["volumes"], json!([{"name": "config", "configMap": {"name": "sidecar"}}]));
    let annotations = &result.object["metadata"]["annotations"];
    assert_eq!(annotations["example.com/status"], "injected");
    let record: Json = serde_json::from_str(annotations["pillion.dev/injected"].as_str().unwrap()).unwrap();
    assert_eq!(record["profiles"][0]["profile"], "nginx");
    let added = ["/metadata/annotations/example.com~1status", "/spec/containers/sidecar", "/spec/volumes/config"];
    assert_eq!(record["profiles"][0]["added"], json!(added));
    assert_eq!(result.answer["response"]["uid"], "the-uid");
    assert_eq!(result.answer["response"]["allowed"], true);
    assert_eq!(result.answer["response"]["patchType"], "JSONPatch");
}

#[test]
fn v1beta1_is_answered_in_kind() {
    let mut review = review_of(&pod());
    review["apiVersion"] = json!("admission.k8s.io/v1beta1");
    let result = answer(&review, ENABLED, &snapshot(&[("nginx", sidecar())]), &Facts::default());
    assert_eq!(result.answer["apiVersion"], "admission.k8s.io/v1beta1");
    assert_eq!(result.answer["kind"], "AdmissionReview");
    assert!(result.answer["response"]["patch"].is_string());
}

#[test]
fn a_refusal_by_a_condition_says_why() {
    let mut profile = sidecar();
    profile["matchConditions"] =
        json!([{"name": "c", "expression": "false", "otherwise": "Deny", "message": "ask the platform team"}]);
    let refused = inject(&pod(), &[("p", profile)]);
    assert_eq!(refused.answer["response"]["allowed"], false);
    assert!(refused.answer["response"]["status"]["message"].as_str().unwrap().contains("ask the platform team"));
}

#[test]
fn what_is_not_to_be_injected_says_why() {
    let snapshot = snapshot(&[("nginx", sidecar())]);
    let reason = |change: &dyn Fn(&mut Json), endpoint| {
        let mut review = review_of(&pod());
        change(&mut review["request"]);
        let result = answer(&review, endpoint, &snapshot, &Facts::default());
        assert_eq!(result.decided.patch, None);
        assert_eq!(result.answer["response"]["allowed"], true);
        result.decided.decision.reason
    };
    let set = |field: &'static str, value: Json| move |request: &mut Json| request[field] = value.clone();
    assert_eq!(reason(&set("operation", json!("UPDATE")), ENABLED), Reason::OtherOperation);
    assert_eq!(reason(&set("operation", json!("CONNECT")), ENABLED), Reason::OtherOperation);
    assert_eq!(reason(&set("subResource", json!("ephemeralcontainers")), ENABLED), Reason::OtherResource);
    assert_eq!(reason(&|request| request["resource"]["group"] = json!("foo"), ENABLED), Reason::OtherResource);
    assert_eq!(reason(&|request| request["resource"]["resource"] = json!("secrets"), ENABLED), Reason::OtherResource);
    for namespace in ["kube-system", "kube-public", "kube-node-lease"] {
        assert_eq!(reason(&set("namespace", json!(namespace)), ENABLED), Reason::SystemNamespace);
    }
    assert_eq!(reason(&|_| {}, Endpoint::Any), Reason::NotOptedIn);
    assert_eq!(reason(&|request| request["object"]["spec"]["containers"] = json!([]), ENABLED), Reason::NoContainers);
    let mirror = |user: &'static str| {
        move |request: &mut Json| {
            request["object"]["metadata"]["annotations"] = json!({"kubernetes.io/config.mirror": "x"});
            request["userInfo"]["username"] = json!(user);
        }
    };
    assert_eq!(reason(&mirror("system:node:n1"), ENABLED), Reason::MirrorPod);
}

#[test]
fn a_mirror_annotation_of_somebody_else_hides_nothing() {
    let mut object = pod();
    object["metadata"]["annotations"] = json!({"kubernetes.io/config.mirror": "x"});
    assert_eq!(inject(&object, &[("nginx", sidecar())]).decided.decision.outcome, Outcome::Injected);
}

#[test]
fn any_endpoint_goes_by_the_namespaces_label() {
    let snapshot = snapshot(&[("nginx", sidecar())]);
    for level in InjectionLevel::ALL {
        let facts = Facts { namespace: Some(Arc::new(Namespace::opted_in(level))), ..Facts::default() };
        let result = answer(&review_of(&pod()), Endpoint::Any, &snapshot, &facts);
        assert_eq!(result.decided.decision.outcome, Outcome::Injected, "{level:?}");
    }
}

#[test]
fn an_object_that_would_grow_too_large_is_left_alone_or_refused() {
    let mut object = pod();
    object["metadata"]["annotations"] = json!({"large": "x".repeat(1_400 * 1024)});
    let skipped = inject(&object, &[("nginx", sidecar())]);
    assert_eq!(skipped.object, object);
    assert_eq!(skipped.decided.decision.reason, Reason::LimitExceeded);
    assert_eq!(skipped.answer["response"]["allowed"], true);
    let mut strict = sidecar();
    strict["optOut"] = json!("Forbidden");
    assert_eq!(inject(&object, &[("nginx", strict)]).answer["response"]["allowed"], false);
}

#[test]
fn bodies_that_are_no_reviews_are_refused_with_the_reason() {
    let good = review_of(&pod()).to_string();
    let with = |from: &str, to: &str| good.replacen(from, to, 1);
    for (body, told) in [
        (String::new(), "empty"),
        ("null".into(), "the body is null"),
        ("[]".into(), "the body is []"),
        ("\"x\"".into(), "the body is \"x\""),
        ("{}".into(), "apiVersion is absent"),
        (good[..good.len() - 3].into(), "not JSON"),
        (format!("\u{feff}{good}"), "not JSON"),
        (with("admission.k8s.io/v1", "admission.k8s.io/v2"), "admission.k8s.io/v2"),
        (with("\"AdmissionReview\"", "\"Pod\""), "kind is \"Pod\""),
        (with("\"the-uid\"", "\"\""), "request.uid"),
        (with("\"the-uid\"", &format!("{:?}", "u".repeat(10_240))), "request.uid"),
        (with("\"uid\":\"the-uid\",", ""), "request.uid is absent"),
        (with("\"uid\":", "\"uid\":\"other\",\"uid\":"), "\"uid\" stands twice"),
        (with("\"request\":", "\"request\":{},\"request\":"), "\"request\" stands twice"),
        (
            json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": null}).to_string(),
            "request is null",
        ),
        (with("\"object\":", "\"object\":null,\"x\":"), "request.object is null"),
        (with("\"object\":", "\"object\":[],\"x\":"), "request.object is []"),
        (with("\"spec\":", &format!("\"x\":{}{},\"spec\":", "[".repeat(200), "]".repeat(200))), "too deeply"),
        (with("\"web\"", "\"\\ud800\""), "surrogate"),
    ] {
        let error = Review::parse(body.as_bytes()).unwrap_err().to_string();
        assert!(error.contains(told), "{error:?} does not say {told:?}");
        assert!(error.len() < 300, "{error}");
    }
    assert!(matches!(Review::parse(b"\"\xff\""), Err(ReviewError::Encoding(1))));
}

#[test]
fn a_key_that_stands_twice_in_the_object_is_refused_not_guessed() {
    let body = review_of(&pod()).to_string().replacen("\"spec\":", "\"spec\":{\"containers\":[{}]},\"spec\":", 1);
    let review = Review::parse(body.as_bytes()).unwrap();
    let decided = review.decide(ENABLED, &snapshot(&[("nginx", sidecar())]), &Facts::default()).unwrap();
    assert_eq!(decided.decision.outcome, Outcome::Denied);
}

#[test]
fn a_pod_without_metadata_gets_its_record_all_the_same() {
    let containers =
        json!({"activation": "Always", "template": {"spec": {"containers": [{"name": "s", "image": "s:1"}]}}});
    for metadata in [None, Some(Json::Null)] {
        let mut object = pod();
        object.as_object_mut().unwrap().remove("metadata");
        if let Some(metadata) = metadata {
            object["metadata"] = metadata;
        }
        let result = inject(&object, &[("nginx", containers.clone())]);
        assert!(result.object["metadata"]["annotations"]["pillion.dev/injected"].is_string(), "{}", result.object);
    }
}

#[test]
fn warnings_are_short_and_few() {
    let profiles: Vec<_> = ["a", "b", "c"].map(|name| (name, sidecar())).into();
    let mut object = pod();
    object["spec"]["containers"][0]["name"] = json!("sidecar");
    let result = inject(&object, &profiles);
    let warnings = result.answer["response"]["warnings"].as_array().unwrap();
    assert_eq!(warnings.len(), 2);
    assert!(warnings.iter().all(|warning| warning.as_str().unwrap().chars().count() <= 200));
}

#[test]
fn a_fault_says_where_the_check_failed() {
    let stages = [
        (CheckFault::Operation(1), "read"),
        (CheckFault::Path { index: 0, path: "/a".into() }, "apply"),
        (CheckFault::Result, "compare"),
    ];
    for (place, (fault, stage)) in stages.into_iter().enumerate() {
        let found = InternalError(fault).stage();
        assert_eq!((found.as_str(), found as usize, CheckStage::ALL[place]), (stage, place, found));
    }
}
