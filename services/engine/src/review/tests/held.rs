//! The scheduling gate of `held` namespaces.

use pillion_api::names::INJECTION_GATE;

use super::*;

const HELD: Endpoint = Endpoint::Level(InjectionLevel::Held);

fn gates(names: &[&str]) -> Json {
    names.iter().map(|name| json!({"name": name})).collect()
}

/// The pod as the API server sends it: gated, and with other gates before and behind.
fn gated(names: &[&str]) -> Json {
    let mut pod = pod();
    pod["spec"]["schedulingGates"] = gates(names);
    as_stored(pod)
}

fn held(object: &Json, profiles: &[(&str, Json)]) -> Result {
    answer(&review_of(object), HELD, &snapshot(profiles), &Facts::default())
}

fn refusing(on_error: &str) -> Json {
    let mut spec = sidecar();
    spec["onError"] = json!(on_error);
    spec["template"]["spec"]["containers"][0]["$conflict"] = json!("Fail");
    spec
}

/// A pod that has a container of the sidecar's name already.
fn conflicting() -> Json {
    let mut pod = gated(&[INJECTION_GATE]);
    pod["spec"]["containers"][0] = json!({"name": "sidecar", "image": "mine:1"});
    pod["metadata"]["managedFields"] = json!([{"manager": "kubectl", "fieldsV1": {"f:spec": {"f:containers": {
        "k:{\"name\":\"sidecar\"}": {".": {}, "f:name": {}, "f:image": {}}}}}}]);
    pod
}

#[test]
fn injection_takes_the_gate_away_in_the_same_patch_and_leaves_others() {
    for (before, after) in [
        (&[INJECTION_GATE][..], None),
        (&[INJECTION_GATE, "a"], Some(gates(&["a"]))),
        (&["a", INJECTION_GATE], Some(gates(&["a"]))),
        (&["a", INJECTION_GATE, "b"], Some(gates(&["a", "b"]))),
        // The API server does not take a gate twice; should it come so, both go.
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
fn that_nothing_is_injected_is_a_decision_too() {
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
fn a_profile_that_is_left_out_decides_as_well_and_one_that_refuses_changes_nothing() {
    let left_out = held(&conflicting(), &[("nginx", refusing("Skip"))]);
    assert_eq!(left_out.decided.decision.outcome, Outcome::Skipped);
    assert_eq!(left_out.object["spec"].get("schedulingGates"), None);
    assert!(left_out.answer["response"]["warnings"][0].as_str().unwrap().contains("was not applied"));

    let refused = held(&conflicting(), &[("nginx", refusing("Deny"))]);
    assert_eq!(refused.answer["response"]["allowed"], false);
    assert_eq!(refused.answer["response"].get("patch"), None);
}

#[test]
fn a_patch_that_is_too_large_to_send_leaves_the_gate_s() {
    let mut large = gated(&["a", INJECTION_GATE]);
    large["metadata"]["annotations"] = json!({"large": "x".repeat(1_400 * 1024)});
    let result = held(&large, &[("nginx", sidecar())]);
    assert_eq!(result.decided.decision.reason, Reason::LimitExceeded);
    assert_eq!(result.object["spec"]["schedulingGates"], gates(&["a"]));
    assert_eq!(result.object["spec"]["containers"].as_array().unwrap().len(), 1);
}

#[test]
fn a_second_call_after_others_have_meddled_takes_nothing_else() {
    let first = held(&gated(&[INJECTION_GATE]), &[("nginx", sidecar())]);
    let mut meddled = first.object;
    meddled["spec"]["schedulingGates"] = gates(&["other"]);
    meddled["spec"].as_object_mut().unwrap().remove("volumes");
    let second = held(&meddled, &[("nginx", sidecar())]);
    assert_eq!(second.object["spec"]["volumes"].as_array().unwrap().len(), 1);
    assert_eq!(second.object["spec"]["schedulingGates"], gates(&["other"]));
}

#[test]
fn a_profile_may_add_a_gate_of_its_own() {
    let mut gating = sidecar();
    gating["template"]["spec"]["schedulingGates"] = gates(&["example.com/wait"]);
    let result = held(&gated(&[INJECTION_GATE]), &[("nginx", gating.clone())]);
    assert_eq!(result.object["spec"]["schedulingGates"], gates(&["example.com/wait"]));
    assert_eq!(held(&result.object, &[("nginx", gating)]).decided.patch, None);
}

#[test]
fn in_other_namespaces_the_gate_is_a_gate_like_any() {
    let result = inject(&gated(&[INJECTION_GATE]), &[("nginx", sidecar())]);
    assert_eq!(result.object["spec"]["schedulingGates"], gates(&[INJECTION_GATE]));
}

#[test]
fn a_decision_from_elsewhere_is_completed() {
    let review = review_of(&gated(&[INJECTION_GATE])).to_string();
    let review = Review::parse(review.as_bytes()).unwrap();
    let nothing = || Decided { decision: Decision::skipped(Reason::NotOptedIn), patch: None };
    let patch = |endpoint| review.without_gate(endpoint, &Facts::default(), nothing()).unwrap().patch;
    assert_eq!(patch(HELD).as_deref(), Some(br#"[{"op":"remove","path":"/spec/schedulingGates"}]"#.as_slice()));
    assert_eq!(patch(ENABLED), None);
    assert_eq!(patch(Endpoint::ValidateLevel(InjectionLevel::Held)), None);
}
