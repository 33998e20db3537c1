//! Tests reviews from the request body to the response body.

use std::sync::Arc;

use base64::Engine;
use pillion_api::names::{FailureMode, INJECTION_GATE};
use serde_json::{Value as Json, json};

use super::*;
use crate::decision::{Notice, Outcome, ProfileOutcome, Reason};
use crate::profile::{ProfileName, compile};
use crate::snapshot::ProfileSet;

mod considered;
mod templates;
mod validate;

const ENABLED: Endpoint = Endpoint::FailureMode(FailureMode::Enabled);

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

/// The decision for a review, the response, and the patched object.
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

/// Returns the object as the API server stores it: `managedFields` list the fields that the author wrote.
fn as_stored(mut object: Json) -> Json {
    object["metadata"]["managedFields"] = json!([{"manager": "kubectl", "fieldsV1": {"f:spec": {}}}]);
    object
}

#[test]
fn injects_container_volume_annotation_and_record() {
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
fn v1beta1_review_gets_v1beta1_response() {
    let mut review = review_of(&pod());
    review["apiVersion"] = json!("admission.k8s.io/v1beta1");
    let result = answer(&review, ENABLED, &snapshot(&[("nginx", sidecar())]), &Facts::default());
    assert_eq!(result.answer["apiVersion"], "admission.k8s.io/v1beta1");
    assert_eq!(result.answer["kind"], "AdmissionReview");
    assert!(result.answer["response"]["patch"].is_string());
}

#[test]
fn denial_by_precondition_has_its_message() {
    let mut profile = sidecar();
    profile["preconditions"] =
        json!([{"name": "c", "expression": "false", "action": "Deny", "message": "ask the platform team"}]);
    let refused = inject(&pod(), &[("p", profile)]);
    assert_eq!(refused.answer["response"]["allowed"], false);
    assert!(refused.answer["response"]["status"]["message"].as_str().unwrap().contains("ask the platform team"));
}

#[test]
fn skipped_review_has_reason() {
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
fn mirror_annotation_counts_only_from_nodes() {
    let mut object = pod();
    object["metadata"]["annotations"] = json!({"kubernetes.io/config.mirror": "x"});
    assert_eq!(inject(&object, &[("nginx", sidecar())]).decided.decision.outcome, Outcome::Injected);
}

#[test]
fn any_endpoint_reads_namespace_label() {
    let snapshot = snapshot(&[("nginx", sidecar())]);
    for failure_mode in FailureMode::ALL {
        let facts = Facts { namespace: Some(Arc::new(Namespace::opted_in(failure_mode))), ..Facts::default() };
        let result = answer(&review_of(&pod()), Endpoint::Any, &snapshot, &facts);
        assert_eq!(result.decided.decision.outcome, Outcome::Injected, "{failure_mode:?}");
    }
}

#[test]
fn too_large_result_skips_or_denies() {
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
fn parse_rejects_invalid_bodies_with_reason() {
    let good = review_of(&pod()).to_string();
    let with = |from: &str, to: &str| good.replacen(from, to, 1);
    for (body, expected) in [
        (String::new(), "empty"),
        ("null".into(), "the body is null"),
        ("[]".into(), "the body is []"),
        ("\"x\"".into(), "the body is \"x\""),
        ("{}".into(), "apiVersion is absent"),
        (good[..good.len() - 3].into(), "not valid JSON"),
        (format!("\u{feff}{good}"), "not valid JSON"),
        (with("admission.k8s.io/v1", "admission.k8s.io/v2"), "admission.k8s.io/v2"),
        (with("\"AdmissionReview\"", "\"Pod\""), "kind is \"Pod\""),
        (with("\"the-uid\"", "\"\""), "request.uid"),
        (with("\"the-uid\"", &format!("{:?}", "u".repeat(10_240))), "request.uid"),
        (with("\"uid\":\"the-uid\",", ""), "request.uid is absent"),
        (with("\"uid\":", "\"uid\":\"other\",\"uid\":"), "\"uid\" occurs twice"),
        (with("\"request\":", "\"request\":{},\"request\":"), "\"request\" occurs twice"),
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
        assert!(error.contains(expected), "{error:?} does not contain {expected:?}");
        assert!(error.len() < 300, "{error}");
    }
    assert!(matches!(Review::parse(b"\"\xff\""), Err(ReviewError::Encoding(1))));
}

#[test]
fn duplicate_key_in_object_denies() {
    let body = review_of(&pod()).to_string().replacen("\"spec\":", "\"spec\":{\"containers\":[{}]},\"spec\":", 1);
    let review = Review::parse(body.as_bytes()).unwrap();
    let decided = review.decide(ENABLED, &snapshot(&[("nginx", sidecar())]), &Facts::default()).unwrap();
    assert_eq!(decided.decision.outcome, Outcome::Denied);
}

#[test]
fn pod_without_metadata_gets_record() {
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
fn warnings_are_bounded() {
    let profiles: Vec<_> = ["a", "b", "c"].map(|name| (name, sidecar())).into();
    let mut object = pod();
    object["spec"]["containers"][0]["name"] = json!("sidecar");
    let result = inject(&object, &profiles);
    let warnings = result.answer["response"]["warnings"].as_array().unwrap();
    assert_eq!(warnings.len(), 2);
    assert!(warnings.iter().all(|warning| warning.as_str().unwrap().chars().count() <= 200));
}

#[test]
fn internal_error_names_failed_stage() {
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

#[test]
fn second_pass_changes_nothing() {
    let first = inject(&as_stored(pod()), &[("nginx", sidecar())]);
    let second = inject(&first.object, &[("nginx", sidecar())]);
    assert_eq!(second.decided.patch, None);
    assert_eq!(second.decided.decision.outcome, Outcome::Unchanged);
    assert_eq!(second.decided.decision.reason, Reason::AlreadyInjected);
}

#[test]
fn second_pass_keeps_foreign_changes_and_adds_missing() {
    let mut object = inject(&as_stored(pod()), &[("nginx", sidecar())]).object;
    object["spec"]["containers"][1]["resources"] = json!({"limits": {"cpu": "1"}});
    object["spec"].as_object_mut().unwrap().remove("volumes");
    let record = object["metadata"]["annotations"]["pillion.dev/injected"].clone();
    let second = inject(&object, &[("nginx", sidecar())]);
    assert_eq!(second.object["spec"]["containers"], object["spec"]["containers"]);
    assert_eq!(second.object["spec"]["volumes"][0]["name"], "config");
    assert_eq!(second.object["metadata"]["annotations"]["pillion.dev/injected"], record);
}

#[test]
fn differently_escaped_record_is_equal() {
    let mut profile = sidecar();
    profile["template"]["metadata"]["annotations"] = json!({"example.com/a": {"$value": "b", "$conflict": "Replace"}});
    let mut object = as_stored(pod());
    object["metadata"]["annotations"] = json!({"example.com/a": "x&y<z"});
    let object = inject(&object, &[("nginx", profile.clone())]).object;
    assert!(object["metadata"]["annotations"]["pillion.dev/injected"].as_str().unwrap().contains("x&y"));
    // Go escapes `&` and `<` in JSON strings.
    let body = review_of(&object).to_string().replace('&', r"\u0026").replace('<', r"\u003c");
    assert!(body.contains(r"x\u0026y"), "{body}");
    let snapshot = snapshot(&[("nginx", profile)]);
    let decided = Review::parse(body.as_bytes()).unwrap().decide(ENABLED, &snapshot, &Facts::default()).unwrap();
    assert_eq!(decided.patch.map(|patch| String::from_utf8(patch).unwrap()), None);
}

#[test]
fn second_pass_selects_by_original_object() {
    let mut marking = sidecar();
    marking["template"]["metadata"]["labels"] = json!({"mesh": "on"});
    marking["objectSelector"] = json!({"matchExpressions": [{"key": "mesh", "operator": "DoesNotExist"}]});
    let first = inject(&as_stored(pod()), &[("nginx", marking.clone())]);
    assert_eq!(first.object["metadata"]["labels"]["mesh"], "on");
    let second = inject(&first.object, &[("nginx", marking)]);
    assert_eq!(second.decided.decision.reason, Reason::AlreadyInjected);
    assert_eq!(second.decided.patch, None);
}

#[test]
fn conditions_read_original_object() {
    let mut profile = sidecar();
    profile["template"]["metadata"]["labels"] = json!({"tier": {"$value": "gold", "$conflict": "Replace"}});
    profile["matchConditions"] = json!([
        {"name": "alone", "expression": "containers.size() == 1 && primary.name == 'app'"},
        {"name": "tier", "expression": "object.metadata.labels.tier == 'silver'"},
        {"name": "fresh", "expression": "!has(object.spec.volumes) && !has(object.metadata.annotations)"},
        {"name": "user", "expression": "request.userInfo.username == 'somebody' && request.operation == 'CREATE'"},
    ]);
    let mut object = as_stored(pod());
    object["metadata"]["labels"] = json!({"tier": "silver"});
    let first = inject(&object, &[("p", profile.clone())]);
    assert_eq!(first.decided.decision.outcome, Outcome::Injected, "{:?}", first.decided.decision.profiles[0].detail);
    let second = inject(&first.object, &[("p", profile)]);
    assert_eq!(second.decided.decision.reason, Reason::AlreadyInjected, "{:?}", second.decided.decision.profiles[0]);
    assert_eq!(second.decided.patch, None);
}

#[test]
fn unselected_profile_keeps_record_entry() {
    let first = inject(&as_stored(pod()), &[("nginx", sidecar())]);
    let other = json!({"activation": "Always", "template": {"metadata": {"labels": {"x": "y"}}}});
    let second = inject(&first.object, &[("other", other)]);
    let record = second.object["metadata"]["annotations"]["pillion.dev/injected"].as_str().unwrap().to_owned();
    let record: Json = serde_json::from_str(&record).unwrap();
    let names: Vec<_> = record["profiles"].as_array().unwrap().iter().map(|entry| entry["profile"].clone()).collect();
    assert_eq!(names, ["nginx", "other"]);
}

#[test]
fn drops_foreign_record() {
    let copied = inject(&pod(), &[("nginx", sidecar())]).object;
    let again = inject(&copied, &[("nginx", sidecar())]);
    assert_eq!(again.decided.decision.notices, [Notice::RecordDropped]);
    let profile = &again.decided.decision.profiles[0];
    // The container and the volume equal the template byte for byte. In a cluster, the API server would add defaults.
    assert_eq!(profile.outcome, ProfileOutcome::Unchanged);
    let mut other = copied;
    other["spec"]["containers"][1]["imagePullPolicy"] = json!("IfNotPresent");
    let refused = inject(&other, &[("nginx", sidecar())]);
    let profile = &refused.decided.decision.profiles[0];
    assert_eq!((profile.outcome, profile.reason), (ProfileOutcome::Skipped, Reason::NameTaken));
    assert_eq!(refused.object["metadata"]["annotations"].get("pillion.dev/injected"), None);
    assert_eq!(refused.answer["response"]["warnings"].as_array().unwrap().len(), 2);
}

#[test]
fn command_line_trusts_record_without_managed_fields() {
    let object = inject(&pod(), &[("nginx", sidecar())]).object;
    let facts = Facts { record_trust: RecordTrust::AsFound, ..Facts::default() };
    let again = answer(&review_of(&object), ENABLED, &snapshot(&[("nginx", sidecar())]), &facts);
    assert_eq!(again.decided.patch, None);
}

#[test]
fn changed_profile_keeps_recorded_revision() {
    let first = inject(&as_stored(pod()), &[("nginx", sidecar())]);
    let mut edited = sidecar();
    edited["template"]["spec"]["containers"][0]["image"] = json!("sidecar:2");
    let second = inject(&first.object, &[("nginx", edited)]);
    // The injected fields are those of the earlier revision, and the record still contains that revision.
    assert_eq!(second.decided.patch, None);
    assert_eq!(second.decided.decision.outcome, Outcome::Unchanged);
}

const HELD: Endpoint = Endpoint::FailureMode(FailureMode::Held);

fn gates(names: &[&str]) -> Json {
    names.iter().map(|name| json!({"name": name})).collect()
}

/// Returns a pod with these scheduling gates, as the API server sends it.
fn gated(names: &[&str]) -> Json {
    let mut pod = pod();
    pod["spec"]["schedulingGates"] = gates(names);
    as_stored(pod)
}

fn held(object: &Json, profiles: &[(&str, Json)]) -> Result {
    answer(&review_of(object), HELD, &snapshot(profiles), &Facts::default())
}

fn refusing(policy: &str) -> Json {
    let mut spec = sidecar();
    spec["failurePolicy"] = json!(policy);
    spec["template"]["spec"]["containers"][0]["$conflict"] = json!("Fail");
    spec
}

/// Returns a pod with an author's container that has the name of the sidecar.
fn conflicting() -> Json {
    let mut pod = gated(&[INJECTION_GATE]);
    pod["spec"]["containers"][0] = json!({"name": "sidecar", "image": "mine:1"});
    pod["metadata"]["managedFields"] = json!([{"manager": "kubectl", "fieldsV1": {"f:spec": {"f:containers": {
        "k:{\"name\":\"sidecar\"}": {".": {}, "f:name": {}, "f:image": {}}}}}}]);
    pod
}

#[test]
fn injection_removes_only_own_gate() {
    for (before, after) in [
        (&[INJECTION_GATE][..], None),
        (&[INJECTION_GATE, "a"], Some(gates(&["a"]))),
        (&["a", INJECTION_GATE], Some(gates(&["a"]))),
        (&["a", INJECTION_GATE, "b"], Some(gates(&["a", "b"]))),
        // The API server rejects duplicate gates. If a request contains them anyway, both are removed.
        (&[INJECTION_GATE, "a", INJECTION_GATE], Some(gates(&["a"]))),
        (&["a"], Some(gates(&["a"]))),
    ] {
        let result = held(&gated(before), &[("nginx", sidecar())]);
        assert_eq!(result.decided.decision.outcome, Outcome::Injected);
        assert_eq!(result.object["spec"]["containers"][1]["name"], "sidecar");
        assert_eq!(result.object["spec"].get("schedulingGates"), after.as_ref(), "{before:?}");
        let again = held(&result.object, &[("nginx", sidecar())]);
        assert_eq!(again.decided.patch, None, "{before:?}");
    }
}

#[test]
fn removes_gate_without_injection() {
    let optional = json!({"activation": "Requested", "template": sidecar()["template"]});
    let mut opted_out = gated(&[INJECTION_GATE]);
    opted_out["metadata"]["labels"] = json!({"pillion.dev/inject": "false"});
    for (object, profiles) in [
        (gated(&[INJECTION_GATE]), vec![]),
        (gated(&[INJECTION_GATE]), vec![("nginx", optional)]),
        (opted_out, vec![("nginx", sidecar())]),
    ] {
        let result = held(&object, &profiles);
        assert_eq!(result.decided.decision.outcome, Outcome::Skipped);
        assert_eq!(result.answer["response"]["allowed"], true);
        assert_eq!(result.object, {
            let mut without = object.clone();
            without["spec"].as_object_mut().unwrap().remove("schedulingGates");
            without
        });
    }
}

#[test]
fn skip_removes_gate_and_denial_keeps_it() {
    let left_out = held(&conflicting(), &[("nginx", refusing("Ignore"))]);
    assert_eq!(left_out.decided.decision.outcome, Outcome::Skipped);
    assert_eq!(left_out.object["spec"].get("schedulingGates"), None);
    assert!(left_out.answer["response"]["warnings"][0].as_str().unwrap().contains("was not applied"));

    let refused = held(&conflicting(), &[("nginx", refusing("Fail"))]);
    assert_eq!(refused.answer["response"]["allowed"], false);
    assert_eq!(refused.answer["response"].get("patch"), None);
}

#[test]
fn too_large_patch_still_removes_gate() {
    let mut large = gated(&["a", INJECTION_GATE]);
    large["metadata"]["annotations"] = json!({"large": "x".repeat(1_400 * 1024)});
    let result = held(&large, &[("nginx", sidecar())]);
    assert_eq!(result.decided.decision.reason, Reason::LimitExceeded);
    assert_eq!(result.object["spec"]["schedulingGates"], gates(&["a"]));
    assert_eq!(result.object["spec"]["containers"].as_array().unwrap().len(), 1);
}

#[test]
fn reinvocation_removes_only_own_gate() {
    let first = held(&gated(&[INJECTION_GATE]), &[("nginx", sidecar())]);
    let mut meddled = first.object;
    meddled["spec"]["schedulingGates"] = gates(&["other"]);
    meddled["spec"].as_object_mut().unwrap().remove("volumes");
    let second = held(&meddled, &[("nginx", sidecar())]);
    assert_eq!(second.object["spec"]["volumes"].as_array().unwrap().len(), 1);
    assert_eq!(second.object["spec"]["schedulingGates"], gates(&["other"]));
}

#[test]
fn profile_may_add_other_gate() {
    let mut gating = sidecar();
    gating["template"]["spec"]["schedulingGates"] = gates(&["example.com/wait"]);
    let result = held(&gated(&[INJECTION_GATE]), &[("nginx", gating.clone())]);
    assert_eq!(result.object["spec"]["schedulingGates"], gates(&["example.com/wait"]));
    assert_eq!(held(&result.object, &[("nginx", gating)]).decided.patch, None);
}

#[test]
fn keeps_gate_outside_held_namespaces() {
    let result = inject(&gated(&[INJECTION_GATE]), &[("nginx", sidecar())]);
    assert_eq!(result.object["spec"]["schedulingGates"], gates(&[INJECTION_GATE]));
}

#[test]
fn without_gate_completes_other_decisions() {
    let review = review_of(&gated(&[INJECTION_GATE])).to_string();
    let review = Review::parse(review.as_bytes()).unwrap();
    let nothing = || Decided { decision: Decision::skipped(Reason::NotOptedIn), patch: None };
    let patch = |endpoint| review.without_gate(endpoint, &Facts::default(), nothing()).unwrap().patch;
    assert_eq!(patch(HELD).as_deref(), Some(br#"[{"op":"remove","path":"/spec/schedulingGates"}]"#.as_slice()));
    assert_eq!(patch(ENABLED), None);
    assert_eq!(patch(Endpoint::ValidateFailureMode(FailureMode::Held)), None);
}

const REQUIRED: Endpoint = Endpoint::FailureMode(FailureMode::Required);
const EMPTY: &str = r#"{"version":1,"profiles":[]}"#;

fn decided(endpoint: Endpoint, object: &Json, profiles: &[(&str, Json)]) -> Result {
    let guardrails = Arc::new(Guardrails { record_decisions: true, ..Guardrails::default() });
    let facts = Facts { guardrails: Some(guardrails), ..Facts::default() };
    answer(&review_of(object), endpoint, &snapshot(profiles), &facts)
}

fn optional() -> Json {
    json!({"activation": "Requested", "template": sidecar()["template"]})
}

#[test]
fn every_decision_marks_pod_of_required_namespace() {
    let bare = as_stored(pod());
    let mut opted_out = bare.clone();
    opted_out["metadata"]["labels"] = json!({"pillion.dev/inject": "false"});
    let mut large = bare.clone();
    large["metadata"]["annotations"] = json!({"large": "x".repeat(1_400 * 1024)});
    for (object, profiles) in [
        (bare.clone(), vec![]),
        (bare.clone(), vec![("nginx", optional())]),
        // The patched object would be too large.
        (large, vec![("nginx", sidecar())]),
        (opted_out, vec![("nginx", sidecar())]),
    ] {
        let result = decided(REQUIRED, &object, &profiles);
        assert_eq!(result.decided.decision.outcome, Outcome::Skipped);
        assert_eq!(
            result.object["metadata"]["annotations"]["pillion.dev/injected"], EMPTY,
            "{:?}",
            result.decided.decision
        );
        let mut without = result.object.clone();
        without["metadata"]["annotations"].as_object_mut().unwrap().remove("pillion.dev/injected");
        if object["metadata"].get("annotations").is_none() {
            without["metadata"].as_object_mut().unwrap().remove("annotations");
        }
        assert_eq!(without, object);
        // Another call of the webhook for the same pod changes nothing.
        let again = decided(REQUIRED, &result.object, &profiles);
        assert_eq!(again.decided.patch, None, "{:?}", again.decided);
    }
    let injected = decided(REQUIRED, &bare, &[("nginx", sidecar())]);
    let record = injected.object["metadata"]["annotations"]["pillion.dev/injected"].as_str().unwrap();
    assert!(record.contains("nginx"), "{record}");
}

#[test]
fn only_required_namespaces_get_empty_record() {
    let bare = as_stored(pod());
    for failure_mode in [FailureMode::Enabled, FailureMode::Held] {
        let result = decided(Endpoint::FailureMode(failure_mode), &bare, &[("nginx", optional())]);
        assert_eq!(result.decided.patch, None, "{failure_mode:?}");
    }
    let result = answer(&review_of(&bare), REQUIRED, &snapshot(&[("nginx", optional())]), &Facts::default());
    assert_eq!(result.decided.patch, None, "guardrails do not request records");
    let mut refusing = sidecar();
    refusing["failurePolicy"] = json!("Fail");
    refusing["template"]["spec"]["containers"][0]["$conflict"] = json!("Fail");
    let mut conflicting = bare;
    conflicting["spec"]["containers"][0] = json!({"name": "sidecar", "image": "mine:1"});
    let result = decided(REQUIRED, &conflicting, &[("nginx", refusing)]);
    assert_eq!((result.decided.decision.outcome, result.decided.patch), (Outcome::Denied, None));
}

#[test]
fn mark_replaces_foreign_record() {
    let mut object = pod();
    let foreign = r#"{"version":1,"profiles":[{"profile":"nginx","revision":"1","added":[]}]}"#;
    object["metadata"]["annotations"] = json!({"large": "x".repeat(1_400 * 1024), "pillion.dev/injected": foreign});
    object["metadata"]["managedFields"] = json!([{"manager": "kubectl", "fieldsV1": {
        "f:metadata": {"f:annotations": {"f:large": {}, "f:pillion.dev/injected": {}}},
    }}]);
    let result = decided(REQUIRED, &object, &[("nginx", sidecar())]);
    assert_eq!(result.decided.decision.outcome, Outcome::Skipped, "{:?}", result.decided.decision);
    assert_eq!(result.object["metadata"]["annotations"]["pillion.dev/injected"], EMPTY);
    assert_eq!(result.object["spec"], object["spec"]);
}

#[test]
fn mark_keeps_genuine_record() {
    let first = decided(REQUIRED, &as_stored(pod()), &[("nginx", sidecar())]);
    for profiles in [vec![], vec![("nginx", optional())], vec![("other", optional())]] {
        let again = decided(REQUIRED, &first.object, &profiles);
        assert_eq!(again.object, first.object, "{:?}", again.decided.decision);
        assert_eq!(again.decided.patch, None);
    }
}

#[derive(Default)]
struct Steps(Vec<Step>);

impl Observer for Steps {
    fn begins(&mut self, step: Step) {
        self.0.push(step);
    }
}

/// Returns the steps and the reason of the decision for a pod in a namespace.
fn steps(endpoint: Endpoint, namespace: &str, profiles: &[(&str, Json)]) -> (Vec<Step>, Reason) {
    let mut review = review_of(&pod());
    review["request"]["namespace"] = json!(namespace);
    let body = review.to_string();
    let review = Review::parse(body.as_bytes()).unwrap();
    let mut steps = Steps::default();
    let decided = review.decide_observed(endpoint, &snapshot(profiles), &Facts::default(), &mut steps).unwrap();
    (steps.0, decided.decision.reason)
}

#[test]
fn observer_sees_only_steps_that_begin() {
    let injecting = [("nginx", sidecar())];
    let failing = json!({"activation": "Always", "validations": [{"expression": "false", "message": "no"}]});
    let validate = Endpoint::ValidateFailureMode(FailureMode::Enabled);
    for (endpoint, namespace, profiles, expected, reason) in [
        (ENABLED, "shop", &injecting[..], vec![Step::Match, Step::Merge, Step::SelfCheck], Reason::Injected),
        // A decision without a patch has no self-check.
        (ENABLED, "shop", &[], vec![Step::Match, Step::Merge], Reason::NoProfile),
        (ENABLED, "kube-system", &injecting, vec![], Reason::SystemNamespace),
        (validate, "shop", &[("v", failing)], vec![Step::Match, Step::Validate], Reason::ValidationFailed),
    ] {
        assert_eq!(steps(endpoint, namespace, profiles), (expected, reason));
    }
}

#[test]
fn guardrails_of_facts_replace_those_of_snapshot() {
    let profile = compile(&ProfileName::namespaced("team-a", "side"), &serde_json::from_value(sidecar()).unwrap());
    let snapshot = Snapshot::new(ProfileSet::new([Arc::new(profile.unwrap())]));
    let outcome = |guardrails| {
        let facts = Facts { guardrails, ..Facts::default() };
        answer(&review_of(&pod()), ENABLED, &snapshot, &facts).decided.decision.outcome
    };
    assert_eq!(outcome(None), Outcome::Injected);
    let none = Guardrails { max_containers: 0, ..Guardrails::default() };
    assert_eq!(outcome(Some(Arc::new(none))), Outcome::Skipped);
}
