//! `pillion export` as a process: what is written, what is left out and why, and the exit code that says whether anything
//! was. That the API server takes what is written, and decides by it as the engine does, is shown in `e2e/export.rs`.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test fails by panicking")]

use std::fs;
use std::process::Output;

use serde_json::Value as Json;

/// Exports one profile, given by its spec. The policies, what was told, and the exit code.
fn export(spec: &str) -> (Vec<Json>, String, Option<i32>) {
    export_file(&format!(
        "apiVersion: pillion.dev/v1alpha1\nkind: ClusterInjectionProfile\nmetadata: {{name: p}}\nspec: {spec}\n"
    ))
}

fn export_file(text: &str) -> (Vec<Json>, String, Option<i32>) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("profile.yaml");
    fs::write(&path, text).unwrap();
    let Output { status, stdout, stderr } = assert_cmd::Command::new(env!("CARGO_BIN_EXE_pillion"))
        .args(["export", "-o", "json"])
        .arg(&path)
        .output()
        .unwrap();
    let printed: Json = if stdout.is_empty() { Json::Null } else { serde_json::from_slice(&stdout).unwrap() };
    let objects = printed["items"].as_array().cloned().unwrap_or_default();
    (objects, String::from_utf8(stderr).unwrap(), status.code())
}

#[test]
fn a_validation_becomes_a_policy_with_its_binding() {
    let (objects, told, code) = export(
        "{activation: Always, optOut: Forbidden, namespaceSelector: {matchLabels: {env: prod}}, objectSelector: {matchLabels: {app: web}}, \
          variables: [{name: b, expression: variables.a + 1}, {name: a, expression: object.spec.containers.size()}, {name: c, expression: 'pairs({})'}], \
          matchConditions: [{name: not-mine, expression: \"object.metadata.name != 'mine'\"}], \
          validations: [{expression: variables.b < 5, message: 'too many: ${variables.b}', reason: Forbidden, fieldPath: .spec.containers}]}",
    );
    assert_eq!((told.as_str(), code), ("", Some(0)));
    let [policy, binding] = objects.as_slice() else { panic!("{objects:?}") };
    assert_eq!(policy["kind"], "ValidatingAdmissionPolicy");
    assert_eq!(binding["spec"]["policyName"], policy["metadata"]["name"]);
    assert_eq!(binding["spec"]["validationActions"][0], "Deny");
    let spec = &policy["spec"];
    assert_eq!(spec["failurePolicy"], "Fail", "a profile that cannot be dropped denies on errors");
    let names: Vec<_> = spec["variables"].as_array().unwrap().iter().map(|v| v["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["a", "b"], "in the order in which they need one another, and no others");
    let validation = &spec["validations"][0];
    assert_eq!(validation["messageExpression"], "'too many: ' + string(variables.b) + ' (.spec.containers)'");
    assert_eq!(validation["reason"], "Forbidden");
    assert_eq!(spec["matchConditions"].as_array().unwrap().len(), 1, "nobody opts out of it");
    let selector = &spec["matchConstraints"]["namespaceSelector"];
    assert_eq!(selector["matchLabels"]["env"], "prod");
    assert_eq!(selector["matchExpressions"][0]["key"], "pillion.dev/injection");
    assert_eq!(spec["matchConstraints"]["objectSelector"]["matchLabels"]["app"], "web");
}

#[test]
fn a_condition_that_hangs_on_variables_or_the_namespace_becomes_a_variable() {
    let (objects, told, code) = export(
        "{request: {annotation: example.com/a}, variables: [{name: title, expression: object.metadata.name}], \
          matchConditions: [{name: by.variable, expression: \"variables.title != 'x'\"}, {name: plain, expression: 'true'}], \
          validations: [{expression: 'false'}]}",
    );
    assert_eq!((told.as_str(), code), ("", Some(0)));
    let spec = &objects[0]["spec"];
    let names = |list: &str| -> Vec<_> {
        spec[list].as_array().unwrap().iter().map(|each| each["name"].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!(names("matchConditions"), ["pillion-opt-out", "pillion-not-taken-away", "plain"]);
    assert_eq!(names("variables"), ["title", "pillion_0_asked_for", "pillion_1_by_variable"]);
    let expected = "!(variables.pillion_0_asked_for && variables.pillion_1_by_variable) || (false)";
    assert_eq!(spec["validations"][0]["expression"], expected);
    let asked = spec["variables"][1]["expression"].as_str().unwrap();
    assert!(asked.contains("lowerAscii() in ['p', 'true', 'yes'") && asked.contains("in ['p']"), "{asked}");
}

#[test]
fn what_is_not_native_is_left_out_and_told() {
    let validation = |text: &str| format!("{{activation: Always, validations: [{text}, {{expression: 'true'}}]}}");
    for (spec, place, why) in [
        (validation("{expression: 'containers.size() < 3'}"), "spec.validations[0]", "do not have containers"),
        (validation("{expression: \"pairs(object.metadata.labels) != ''\"}"), "spec.validations[0]", "pairs()"),
        (validation("{expression: \"['a', object.kind].size() == 2\"}"), "spec.validations[0]", "different types"),
        (validation("{expression: \"request.uid != ''\"}"), "spec.validations[0]", "request uid"),
        (validation("{expression: 'false', code: 402}"), "spec.validations[0]", "code 402"),
        (validation("{expression: 'false', reason: Other}"), "spec.validations[0]", "reason Other"),
        (validation("{expression: 'false', message: \"${image('a').name}\"}"), "spec.validations[0]", "image()"),
        (
            "{activation: Always, template: {spec: {containers: [{name: a, image: i}]}}, validations: [{expression: 'true'}]}".to_owned(),
            "spec.template.spec",
            "wins over what the author wrote",
        ),
        (
            "{activation: Always, variables: [{name: v, expression: sha256('a')}], validations: [{expression: \"variables.v == 'a'\"}, {expression: 'true'}]}".to_owned(),
            "spec.validations[0]",
            "its variable v",
        ),
    ] {
        let (objects, told, code) = export(&spec);
        assert_eq!(code, Some(3), "{spec}: {told}");
        assert!(told.starts_with(&format!("p: {place} is left out: ")) && told.contains(why), "{spec}: {told}");
        assert_eq!(objects.len(), 2, "the rest is there: {spec}");
        assert_eq!(objects[0]["spec"]["validations"].as_array().unwrap().len(), 1, "{spec}");
    }
}

#[test]
fn a_profile_that_hangs_on_more_is_left_out_whole() {
    let with = |more: &str| format!("{{activation: Always, {more}, validations: [{{expression: 'true'}}]}}");
    for (spec, why) in [
        (with("exclusiveGroup: g"), "spec.exclusiveGroup"),
        (with("matchConditions: [{name: a, expression: 'true', otherwise: Deny}]"), "otherwise: Deny"),
        (with("matchConditions: [{name: a, expression: 'true', otherwise: Skip}]"), "otherwise: Skip"),
        (with("matchConditions: [{name: a, expression: 'containers.size() == 1'}]"), "spec.matchConditions[0]"),
        (
            with("parameters: [{name: a, type: string, default: x, annotation: example.com/a, sources: [Pod]}]"),
            "spec.parameters[0]",
        ),
        ("{activation: Never, validations: [{expression: 'true'}]}".to_owned(), "spec.activation"),
        (
            "{request: {annotation: example.com/a, onUnknown: Deny}, validations: [{expression: 'true'}]}".to_owned(),
            "spec.request.onUnknown",
        ),
    ] {
        let (objects, told, code) = export(&spec);
        assert_eq!((objects.len(), code), (0, Some(3)), "{spec}: {told}");
        assert!(told.contains(why), "{spec}: {told}");
    }
    let profile = |name: &str| {
        format!(
            "apiVersion: pillion.dev/v1alpha1\nkind: ClusterInjectionProfile\nmetadata: {{name: {name}}}\n\
             spec: {{request: {{annotation: example.com/a}}, validations: [{{expression: 'true'}}]}}\n---\n"
        )
    };
    let (_, told, code) = export_file(&(profile("a") + &profile("b")));
    assert_eq!(code, Some(3));
    assert!(told.contains("a: ") && told.contains("b has the same key"), "{told}");
}

#[test]
fn each_action_has_a_policy_of_its_own() {
    let (objects, _, code) = export(
        "{activation: Always, validations: [{expression: 'true', action: Audit}, {expression: 'true', action: Warn}, {expression: 'false'}]}",
    );
    assert_eq!(code, Some(0));
    let bindings: Vec<_> =
        objects.iter().filter(|object| object["kind"] == "ValidatingAdmissionPolicyBinding").collect();
    let actions: Vec<_> = bindings.iter().map(|binding| &binding["spec"]["validationActions"][0]).collect();
    assert_eq!(actions, ["Deny", "Warn", "Audit"]);
    let names: Vec<_> = bindings.iter().map(|binding| &binding["metadata"]["name"]).collect();
    assert_eq!(names, ["pillion-p", "pillion-p-warn", "pillion-p-audit"]);
}

#[test]
fn a_profile_that_is_wrong_is_an_error() {
    let (objects, told, code) = export("{validations: [{expression: objct.x}]}");
    assert_eq!((objects.len(), code), (0, Some(1)));
    assert!(told.contains("objct"), "{told}");
}
