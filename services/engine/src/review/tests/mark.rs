//! The empty record of pods of `required` namespaces in which nothing is injected.

use super::*;
use crate::limits::Guardrails;

const REQUIRED: Endpoint = Endpoint::Level(InjectionLevel::Required);
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
fn whatever_is_decided_a_pod_of_a_required_namespace_has_a_record() {
    let bare = as_stored(pod());
    let mut opted_out = bare.clone();
    opted_out["metadata"]["labels"] = json!({"pillion.dev/inject": "false"});
    let mut large = bare.clone();
    large["metadata"]["annotations"] = json!({"large": "x".repeat(1_400 * 1024)});
    for (object, profiles) in [
        (bare.clone(), vec![]),
        (bare.clone(), vec![("nginx", optional())]),
        // What would be injected is too large to send.
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
        // The API server calls again: nothing more is done.
        let again = decided(REQUIRED, &result.object, &profiles);
        assert_eq!(again.decided.patch, None, "{:?}", again.decided);
    }
    let injected = decided(REQUIRED, &bare, &[("nginx", sidecar())]);
    let record = injected.object["metadata"]["annotations"]["pillion.dev/injected"].as_str().unwrap();
    assert!(record.contains("nginx"), "{record}");
}

#[test]
fn nobody_else_has_an_empty_record() {
    let bare = as_stored(pod());
    for level in [InjectionLevel::Enabled, InjectionLevel::Held] {
        let result = decided(Endpoint::Level(level), &bare, &[("nginx", optional())]);
        assert_eq!(result.decided.patch, None, "{level:?}");
    }
    let result = answer(&review_of(&bare), REQUIRED, &snapshot(&[("nginx", optional())]), &Facts::default());
    assert_eq!(result.decided.patch, None, "not asked for");
    let mut refusing = sidecar();
    refusing["onError"] = json!("Deny");
    refusing["template"]["spec"]["containers"][0]["$conflict"] = json!("Fail");
    let mut conflicting = bare;
    conflicting["spec"]["containers"][0] = json!({"name": "sidecar", "image": "mine:1"});
    let result = decided(REQUIRED, &conflicting, &[("nginx", refusing)]);
    assert_eq!((result.decided.decision.outcome, result.decided.patch), (Outcome::Denied, None));
}

#[test]
fn a_record_of_somebody_else_is_replaced_even_if_nothing_can_be_injected() {
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
fn a_record_stays_though_nothing_of_it_is_selected_any_more() {
    let first = decided(REQUIRED, &as_stored(pod()), &[("nginx", sidecar())]);
    for profiles in [vec![], vec![("nginx", optional())], vec![("other", optional())]] {
        let again = decided(REQUIRED, &first.object, &profiles);
        assert_eq!(again.object, first.object, "{:?}", again.decided.decision);
        assert_eq!(again.decided.patch, None);
    }
}
