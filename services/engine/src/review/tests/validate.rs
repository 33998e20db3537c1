//! Tests reviews on the validating path, from the request body to the response body.

use std::sync::Arc;

use pillion_api::names::FailureMode;
use serde_json::{Value as Json, json};

use crate::decision::{Outcome, ProfileOutcome, Reason, ValidationOutcome};
use crate::profile::{ProfileName, compile};
use crate::review::{Decided, Endpoint, Facts, RecordTrust, Review};
use crate::snapshot::{Namespace, ProfileSet, Snapshot};

const VALIDATE: Endpoint = Endpoint::ValidateFailureMode(FailureMode::Enabled);
const MUTATE: Endpoint = Endpoint::FailureMode(FailureMode::Enabled);

fn snapshot(profiles: &[(&str, Json)]) -> Snapshot {
    let compiled = profiles.iter().map(|(name, spec)| {
        let spec = serde_json::from_value(spec.clone()).unwrap();
        let name = match name.split_once('/') {
            Some((namespace, name)) => ProfileName::namespaced(namespace, name),
            None => ProfileName::cluster(*name),
        };
        Arc::new(compile(&name, &spec).unwrap())
    });
    Snapshot::new(ProfileSet::new(compiled))
}

fn pod() -> Json {
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": "web", "labels": {"app": "web"}},
        "spec": {"containers": [{"name": "app", "image": "app:1"}]},
    })
}

/// Returns a review of an object. A resource outside the core group is written as `group//resource`.
fn review_of(resource: &str, operation: &str, object: &Json, old: &Json) -> Json {
    let (group, rest) = resource.split_once("//").unwrap_or(("", resource));
    let (name, part) = rest.split_once('/').unwrap_or((rest, ""));
    json!({
        "apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview",
        "request": {
            "uid": "the-uid",
            "resource": {"group": group, "version": "v1", "resource": name}, "subResource": part,
            "namespace": "team-a", "operation": operation, "object": object, "oldObject": old,
            "userInfo": {"username": "somebody"},
        },
    })
}

fn decide(review: &Json, endpoint: Endpoint, snapshot: &Snapshot, facts: &Facts) -> (Decided, Json) {
    let body = review.to_string();
    let parsed = Review::parse(body.as_bytes()).unwrap();
    let decided = parsed.decide(endpoint, snapshot, facts).unwrap();
    let answer: Json = serde_json::from_slice(&parsed.respond(&decided)).unwrap();
    (decided, answer["response"].clone())
}

/// Returns the decision and the response for the creation of a pod.
fn validate(object: &Json, profiles: &[(&str, Json)]) -> (Decided, Json) {
    decide(&review_of("pods", "CREATE", object, &Json::Null), VALIDATE, &snapshot(profiles), &Facts::default())
}

/// Returns the profile from the language specification that forbids environment variables.
fn deny_env() -> Json {
    json!({
        "target": {"version": "v1", "resources": ["pods", "pods/ephemeralcontainers"], "operations": ["CREATE", "UPDATE"]},
        "activation": "Always",
        "optOut": "Forbidden",
        "validations": [{
            "expression": "containers.all(c, c.ours || (!has(c.env) && !has(c.envFrom)))",
            "message": "containers may not set env or envFrom", "code": 402,
        }],
    })
}

fn sidecar() -> Json {
    json!({
        "activation": "Always",
        "template": {"spec": {"containers": [
            {"name": "sidecar", "image": "sidecar:1", "env": [{"name": "A", "value": "b"}]},
        ]}},
    })
}

fn profile_with(validation: &Json) -> Json {
    json!({"activation": "Always", "validations": [validation]})
}

#[test]
fn passed_validation_allows_object() {
    let (decided, response) = validate(&pod(), &[("deny-env", deny_env())]);
    assert_eq!((decided.decision.outcome, decided.decision.reason), (Outcome::Validated, Reason::Valid));
    assert_eq!(decided.decision.profiles[0].outcome, ProfileOutcome::Validated);
    assert_eq!(response, json!({"uid": "the-uid", "allowed": true}));
}

#[test]
fn failed_validation_denies_with_status_and_field() {
    let mut object = pod();
    object["spec"]["containers"][0]["env"] = json!([{"name": "A", "value": "b"}]);
    let (decided, response) = validate(&object, &[("deny-env", deny_env())]);
    assert_eq!((decided.decision.outcome, decided.decision.reason), (Outcome::Denied, Reason::ValidationFailed));
    assert_eq!(response["allowed"], false);
    assert_eq!(response["status"]["code"], 402);
    assert_eq!(
        response["status"]["message"],
        "the object does not pass a validation: profile deny-env: containers may not set env or envFrom"
    );
    let ports = profile_with(
        &json!({"expression": "false", "message": "no", "reason": "Forbidden", "fieldPath": ".spec.ports"}),
    );
    let (_, response) = validate(&object, &[("ports", ports)]);
    assert_eq!((&response["status"]["code"], &response["status"]["reason"]), (&json!(403), &json!("Forbidden")));
    let cause = json!({"reason": "FieldValueInvalid", "message": "no", "field": "spec.ports"});
    assert_eq!(response["status"]["details"]["causes"], json!([cause]));
    let (_, response) =
        validate(&object, &[("p", profile_with(&json!({"expression": "object.spec.x == 1 || false"})))]);
    assert!(response["allowed"] == true, "an expression that fails is skipped by default: {response}");
    let (_, response) = validate(&object, &[("p", profile_with(&json!({"expression": "has(object.spec.x)"})))]);
    assert_eq!(response["status"]["code"], 422);
    assert!(response["status"]["message"].as_str().unwrap().ends_with("failed expression: has(object.spec.x)"));
}

#[test]
fn reports_all_failed_conditions() {
    let spec = json!({"activation": "Always", "validations": [
        {"expression": "false", "message": "first"}, {"expression": "true", "message": "good"},
        {"expression": "false", "message": "second", "code": 403},
    ]});
    let (decided, response) =
        validate(&pod(), &[("a", spec), ("b", profile_with(&json!({"expression": "false", "message": "third"})))]);
    let message = response["status"]["message"].as_str().unwrap();
    assert!(message.ends_with("profile a: first; second; profile b: third"), "{message}");
    assert_eq!(response["status"]["code"], 422, "the code of the first denial");
    assert_eq!(response["status"]["details"]["causes"].as_array().unwrap().len(), 3);
    assert_eq!(decided.decision.validations.iter().map(|failed| failed.index).collect::<Vec<_>>(), [0, 2, 0]);
}

#[test]
fn failed_validation_may_warn_or_audit() {
    let spec = json!({"activation": "Always", "validations": [
        {"expression": "false", "message": "think of ${object.metadata.name}", "action": "Warn"},
        {"expression": "false", "message": "noted", "action": "Audit", "fieldPath": ".spec"},
    ]});
    let (decided, response) = validate(&pod(), &[("a", spec)]);
    assert_eq!((decided.decision.outcome, decided.decision.reason), (Outcome::Validated, Reason::ValidationFailed));
    assert_eq!(response["allowed"], true);
    assert_eq!(response["warnings"], json!(["pillion: profile a: think of web"]));
    let audit: Json = serde_json::from_str(response["auditAnnotations"]["validations"].as_str().unwrap()).unwrap();
    let entry =
        json!({"profile": "a", "validation": 1, "reason": "validation_failed", "field": "spec", "message": "noted"});
    assert_eq!(audit, json!([entry]));
}

#[test]
fn failing_message_does_not_allow_object() {
    for (message, expected) in [
        ("plain", "plain"),
        ("${object.metadata.name}", "web"),
        ("${containers.size()} in ${object.metadata.name}", "1 in web"),
        ("a literal $${x}", "a literal ${x}"),
        ("${object.metadata.nothing}", "failed expression: false"),
        ("${object.metadata}", "failed expression: false"),
    ] {
        let (decided, _) =
            validate(&pod(), &[("p", profile_with(&json!({"expression": "false", "message": message})))]);
        assert_eq!(&*decided.decision.validations[0].message, expected, "{message}");
        assert_eq!(decided.decision.outcome, Outcome::Denied);
    }
}

#[test]
fn failing_expression_follows_failure_policy() {
    let failing = |policy: &str, action: &str| {
        let validation = json!({"expression": "object.spec.nothing.here == 1", "action": action});
        let mut spec = profile_with(&validation);
        spec["failurePolicy"] = json!(policy);
        let (decided, response) = validate(&pod(), &[("p", spec)]);
        assert_eq!(decided.decision.validations[0].reason, Reason::ExpressionFailed);
        (decided.decision.validations[0].outcome, response["allowed"] == true)
    };
    assert_eq!(failing("Fail", "Deny"), (ValidationOutcome::Denied, false));
    assert_eq!(failing("Ignore", "Deny"), (ValidationOutcome::Warned, true));
    assert_eq!(failing("Fail", "Warn"), (ValidationOutcome::Warned, true));
    assert_eq!(failing("Ignore", "Audit"), (ValidationOutcome::Audited, true));
    let mut costly =
        profile_with(&json!({"expression": "[1,2,3].all(a, object.list.all(b, object.list.exists(c, c > a + b)))"}));
    costly["validations"][0]["expression"] = json!("object.list.all(b, object.list.all(c, c + b < 1000000))");
    costly["failurePolicy"] = json!("Fail");
    let mut object = pod();
    object["list"] = json!((0..2_000).collect::<Vec<_>>());
    let (decided, _) = validate(&object, &[("p", costly)]);
    assert!(decided.decision.validations[0].message.contains("too many steps"));
}

#[test]
fn old_object_is_null_on_create() {
    let profile = || {
        let expression = "oldObject == null || object.metadata.labels.app == oldObject.metadata.labels.app";
        let mut spec = profile_with(&json!({"expression": expression}));
        spec["target"] = json!({"version": "v1", "resources": ["pods"], "operations": ["CREATE", "UPDATE"]});
        snapshot(&[("p", spec)])
    };
    let answer = |operation: &str, old: &Json| {
        decide(&review_of("pods", operation, &pod(), old), VALIDATE, &profile(), &Facts::default()).1["allowed"] == true
    };
    let mut other = pod();
    other["metadata"]["labels"]["app"] = json!("db");
    assert!(answer("CREATE", &Json::Null) && answer("UPDATE", &pod()) && !answer("UPDATE", &other));
}

#[test]
fn deletion_validates_old_object() {
    let mut spec = profile_with(&json!({"expression": "object == null && oldObject.metadata.name != 'web'"}));
    spec["target"] = json!({"version": "v1", "resources": ["pods"], "operations": ["DELETE"]});
    spec["objectSelector"] = json!({"matchLabels": {"app": "web"}});
    let snapshot = snapshot(&[("p", spec)]);
    let deleted = |name: &str, app: &str| {
        let old = json!({"metadata": {"name": name, "labels": {"app": app}}});
        let review = review_of("pods", "DELETE", &Json::Null, &old);
        decide(&review, VALIDATE, &snapshot, &Facts::default()).1["allowed"] == true
    };
    assert!(!deleted("web", "web") && deleted("other", "web") && deleted("web", "other"));
}

#[test]
fn only_genuine_record_marks_injected_containers() {
    let profiles = [("deny-env", deny_env()), ("sidecar", sidecar())];
    let mut object = pod();
    object["metadata"]["managedFields"] = json!([{"manager": "kubectl", "fieldsV1": {"f:spec": {}}}]);
    let snapshot = snapshot(&profiles);
    let review = review_of("pods", "CREATE", &object, &Json::Null);
    let (decided, _) = decide(&review, MUTATE, &snapshot, &Facts::default());
    assert_eq!(decided.decision.profiles.len(), 1, "a profile with only validations injects nothing");
    let patch: json_patch::Patch = serde_json::from_slice(&decided.patch.unwrap()).unwrap();
    json_patch::patch(&mut object, &patch).unwrap();
    let allowed = |object: &Json| {
        decide(&review_of("pods", "CREATE", object, &Json::Null), VALIDATE, &snapshot, &Facts::default()).1["allowed"]
            == true
    };
    assert!(allowed(&object), "{object}");
    let mut forged = object.clone();
    let named = json!({"f:metadata": {"f:annotations": {"f:pillion.dev/injected": {}}}});
    forged["metadata"]["managedFields"][0]["fieldsV1"] = named;
    assert!(!allowed(&forged));
    // On the command line, objects have no managedFields, and every record is trusted.
    forged["metadata"].as_object_mut().unwrap().remove("managedFields");
    let review = review_of("pods", "CREATE", &forged, &Json::Null);
    let facts = Facts { record_trust: RecordTrust::AsFound, ..Facts::default() };
    assert_eq!(decide(&review, VALIDATE, &snapshot, &facts).1["allowed"], true);

    // Changing the record in an update of a stored pod does not mark containers as injected.
    let update = |object: &Json, old: &Json| {
        decide(&review_of("pods", "UPDATE", object, old), VALIDATE, &snapshot, &Facts::default()).1["allowed"] == true
    };
    assert!(update(&object, &object));
    let mut changed = object.clone();
    changed["spec"]["containers"][0]["env"] = json!([{"name": "A", "value": "b"}]);
    let record = object["metadata"]["annotations"]["pillion.dev/injected"].as_str().unwrap();
    changed["metadata"]["annotations"]["pillion.dev/injected"] =
        json!(record.replace("[\"", "[\"/spec/containers/app\",\""));
    assert!(record.contains("[\"/spec/containers/sidecar\"]"), "{record}");
    assert!(!update(&changed, &object));
}

#[test]
fn ephemeral_containers_are_visible_and_never_injected() {
    let snapshot = snapshot(&[("deny-env", deny_env())]);
    let answer = |name: &str, env: bool| {
        let mut object = pod();
        object["spec"]["ephemeralContainers"] = json!([{"name": name, "image": "debug:1"}]);
        if env {
            object["spec"]["ephemeralContainers"][0]["env"] = json!([{"name": "A", "value": "b"}]);
        }
        let record =
            json!({"version": 1, "profiles": [{"profile": "x", "revision": "1", "added": ["/spec/containers/debug"]}]});
        object["metadata"]["annotations"] = json!({"pillion.dev/injected": record.to_string()});
        object["metadata"]["managedFields"] = json!([{"manager": "kubectl", "fieldsV1": {"f:spec": {}}}]);
        let review = review_of("pods/ephemeralcontainers", "UPDATE", &object, &object);
        decide(&review, VALIDATE, &snapshot, &Facts::default()).1["allowed"] == true
    };
    assert!(answer("debug", false) && !answer("debug", true) && !answer("other", true));
}

#[test]
fn validation_requests_and_opt_outs_match_mutation() {
    let spec = |more: Json| {
        let mut spec = json!({"validations": [{"expression": "false"}]});
        spec.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        spec
    };
    let refused = |spec: &Json, annotations: Json, labels: Json| {
        let mut object = pod();
        object["metadata"]["annotations"] = annotations;
        object["metadata"]["labels"] = labels;
        validate(&object, &[("p", spec.clone())]).1["allowed"] == false
    };
    let none = || json!({});
    let requested = spec(json!({"requestedBy": {"annotation": "example.com/p"}}));
    assert!(!refused(&requested, none(), none()));
    assert!(refused(&requested, json!({"example.com/p": "true"}), none()));
    assert!(refused(&requested, json!({"pillion.dev/profiles": "p"}), none()));
    let always = spec(json!({"activation": "Always"}));
    assert!(refused(&always, none(), none()));
    assert!(!refused(&always, none(), json!({"pillion.dev/inject": "false"})));
    let forced = spec(json!({"activation": "Always", "optOut": "Forbidden"}));
    assert!(refused(&forced, json!({"pillion.dev/profiles": "-p"}), json!({"pillion.dev/inject": "false"})));
    let conditional = spec(
        json!({"activation": "Always", "matchConditions": [{"name": "c", "expression": "has(object.metadata.labels.x)"}]}),
    );
    assert!(!refused(&conditional, none(), none()) && refused(&conditional, none(), json!({"x": "y"})));
    let parameter = spec(json!({
        "activation": "Always", "validations": [{"expression": "params.most > 3"}],
        "parameters": [{"name": "most", "type": "integer", "default": 5, "annotation": "example.com/most", "sources": ["Pod"]}],
    }));
    assert!(!refused(&parameter, none(), none()) && refused(&parameter, json!({"example.com/most": "2"}), none()));
}

#[test]
fn ignores_namespaces_without_opt_in() {
    let snapshot = snapshot(&[("p", profile_with(&json!({"expression": "false"})))]);
    let review = review_of("pods", "CREATE", &pod(), &Json::Null);
    let reason = |namespace: Namespace| {
        let facts = Facts { namespace: Some(Arc::new(namespace)), ..Facts::default() };
        decide(&review, Endpoint::Validate, &snapshot, &facts).0.decision.reason
    };
    assert_eq!(reason(Namespace::default()), Reason::NotOptedIn);
    assert_eq!(reason(Namespace::opted_in(FailureMode::Enabled)), Reason::ValidationFailed);
    let mut system = review.clone();
    system["request"]["namespace"] = json!("kube-system");
    assert_eq!(decide(&system, VALIDATE, &snapshot, &Facts::default()).0.decision.reason, Reason::SystemNamespace);
    let update = review_of("pods", "UPDATE", &pod(), &pod());
    assert_eq!(decide(&update, VALIDATE, &snapshot, &Facts::default()).1["allowed"], true, "the target is CREATE");
    let connect = review_of("pods/exec", "CONNECT", &pod(), &Json::Null);
    assert_eq!(decide(&connect, VALIDATE, &snapshot, &Facts::default()).0.decision.reason, Reason::OtherOperation);
}

#[test]
fn name_of_mutating_profile_is_known() {
    let asks = json!({"pillion.dev/profiles": "check,add", "example.com/p": "check"});
    let by_key = |mut spec: Json| {
        spec["requestedBy"] = json!({"annotation": "example.com/p"});
        spec["activation"] = json!("Requested");
        spec
    };
    let profiles = [("check", by_key(profile_with(&json!({"expression": "true"})))), ("add", by_key(sidecar()))];
    let mut object = pod();
    object["metadata"]["annotations"] = asks;
    for (endpoint, name) in [(MUTATE, "add"), (VALIDATE, "check")] {
        let review = review_of("pods", "CREATE", &object, &Json::Null);
        let (decided, response) = decide(&review, endpoint, &snapshot(&profiles), &Facts::default());
        let names: Vec<_> = decided.decision.profiles.iter().map(|decision| decision.profile.display_name()).collect();
        assert_eq!(names, [name]);
        assert_eq!(response["warnings"], Json::Null, "{response}");
    }
    // A tenant's profile with validations does not replace a cluster profile with a template and the same request key.
    let [(_, check), add] = profiles.clone();
    let own = [("team-a/check", check), add];
    let review = review_of("pods", "CREATE", &object, &Json::Null);
    object["metadata"]["annotations"] = json!({"example.com/p": "true"});
    let by_word = review_of("pods", "CREATE", &object, &Json::Null);
    for (review, endpoint, name) in [(&review, VALIDATE, "team-a/check"), (&by_word, MUTATE, "add")] {
        let (decided, _) = decide(review, endpoint, &snapshot(&own), &Facts::default());
        let names: Vec<_> = decided.decision.profiles.iter().map(|decision| decision.profile.display_name()).collect();
        assert_eq!(names, [name]);
    }
    // A truthy value may request both a profile with a template and one with validations. This is not ambiguous.
    object["metadata"]["annotations"] = json!({"example.com/p": "true"});
    for endpoint in [MUTATE, VALIDATE] {
        let review = review_of("pods", "CREATE", &object, &Json::Null);
        let (decided, _) = decide(&review, endpoint, &snapshot(&profiles), &Facts::default());
        assert_eq!((decided.decision.profiles.len(), decided.decision.notices.len()), (1, 0));
    }
}

/// Returns a profile that sets defaults on a custom resource and validates the result.
fn game_server() -> Json {
    json!({
        "target": {"group": "agones.dev", "version": "v1", "resources": ["gameservers"], "operations": ["CREATE", "UPDATE"]},
        "activation": "Always",
        "template": {
            "metadata": {
                "finalizers": {"$value": ["agones.dev/controller"], "$join": {}},
                "labels": {"example.com/checked": "yes"},
            },
            "spec": {"health": {"periodSeconds": 5, "failureThreshold": 3}, "scheduling": "Packed"},
        },
        "validations": [{
            "expression": "object.spec.?ports.orValue([]).all(p, p.portPolicy != 'Static' || p.?hostPort.orValue(0) > 0)",
            "message": "a Static port needs hostPort", "fieldPath": ".spec.ports",
        }],
    })
}

#[test]
fn other_resource_is_injected_and_validated() {
    let snapshot = snapshot(&[("agones", game_server()), ("sidecar", sidecar()), ("deny-env", deny_env())]);
    let mut object = json!({
        "apiVersion": "agones.dev/v1", "kind": "GameServer",
        "metadata": {"name": "g", "finalizers": ["example.com/other"]},
        "spec": {"health": {"periodSeconds": 9}, "ports": [{"name": "default", "portPolicy": "Static", "hostPort": 7777}]},
    });
    let review = review_of("agones.dev//gameservers", "CREATE", &object, &Json::Null);
    let (decided, _) = decide(&review, MUTATE, &snapshot, &Facts::default());
    assert_eq!((decided.decision.outcome, decided.decision.profiles.len()), (Outcome::Injected, 1));
    let patch: json_patch::Patch = serde_json::from_slice(&decided.patch.unwrap()).unwrap();
    json_patch::patch(&mut object, &patch).unwrap();
    assert_eq!(object["spec"]["health"], json!({"periodSeconds": 9, "failureThreshold": 3}));
    assert_eq!(object["spec"]["scheduling"], "Packed");
    assert_eq!(object["metadata"]["finalizers"], json!(["example.com/other", "agones.dev/controller"]));
    assert!(object["metadata"]["annotations"]["pillion.dev/injected"].is_string());

    let validated = |object: &Json| {
        let review = review_of("agones.dev//gameservers", "CREATE", object, &Json::Null);
        decide(&review, VALIDATE, &snapshot, &Facts::default()).1
    };
    assert_eq!(validated(&object)["allowed"], true);
    object["spec"]["ports"][0]["hostPort"] = json!(0);
    assert_eq!(
        validated(&object)["status"]["message"].as_str().unwrap().split(": ").last(),
        Some("a Static port needs hostPort")
    );

    object["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
    let update = review_of("agones.dev//gameservers", "UPDATE", &object, &object);
    assert_eq!(decide(&update, MUTATE, &snapshot, &Facts::default()).0.decision.reason, Reason::BeingDeleted);
    let foreign = review_of("other.dev//gameservers", "CREATE", &object, &Json::Null);
    assert_eq!(decide(&foreign, VALIDATE, &snapshot, &Facts::default()).0.decision.outcome, Outcome::Skipped);
    let unknown = review_of("agones.dev//fleets", "CREATE", &object, &Json::Null);
    for endpoint in [MUTATE, VALIDATE] {
        assert_eq!(decide(&unknown, endpoint, &snapshot, &Facts::default()).0.decision.reason, Reason::OtherResource);
    }
}

#[test]
fn profile_for_other_resource_ignores_pods() {
    let others: Vec<_> = (0..50).map(|number| (format!("p{number}"), game_server())).collect();
    let mut profiles: Vec<_> = others.iter().map(|(name, spec)| (name.as_str(), spec.clone())).collect();
    profiles.push(("sidecar", sidecar()));
    let review = review_of("pods", "CREATE", &pod(), &Json::Null);
    let (decided, _) = decide(&review, MUTATE, &snapshot(&profiles), &Facts::default());
    assert_eq!((decided.decision.outcome, decided.decision.profiles.len()), (Outcome::Injected, 1));
    let (decided, _) = decide(&review, VALIDATE, &snapshot(&profiles), &Facts::default());
    assert_eq!(decided.decision.reason, Reason::OtherResource);
}
