//! Tests `pillion export` as a process: the policies that it writes, the parts that it leaves out with the reasons, and
//! its exit code. `e2e/export.rs` shows that the API server accepts the policies, and that they have the same effect as
//! the profiles in the engine.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "tests fail by panicking")]

use std::fs;
use std::path::Path;
use std::process::Output;

use serde_json::{Value as Json, json};

/// Exports one profile with this spec. Returns the policies, the messages and the exit code.
fn export(spec: &str) -> (Vec<Json>, String, Option<i32>) {
    export_file(&format!(
        "apiVersion: pillion.dev/v1alpha1\nkind: ClusterInjectionProfile\nmetadata: {{name: p}}\nspec: {spec}\n"
    ))
}

fn export_file(text: &str) -> (Vec<Json>, String, Option<i32>) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("profile.yaml");
    fs::write(&path, text).unwrap();
    export_path(&path, &[])
}

fn export_path(path: &Path, options: &[&str]) -> (Vec<Json>, String, Option<i32>) {
    let Output { status, stdout, stderr } = assert_cmd::Command::new(env!("CARGO_BIN_EXE_pillion"))
        .args(["export", "-o", "json"])
        .args(options)
        .arg(path)
        .output()
        .unwrap();
    let printed: Json = if stdout.is_empty() { Json::Null } else { serde_json::from_slice(&stdout).unwrap() };
    let objects = printed["items"].as_array().cloned().unwrap_or_default();
    (objects, String::from_utf8(stderr).unwrap(), status.code())
}

#[test]
fn validation_becomes_policy_with_binding() {
    let (objects, stderr, code) = export(
        "{activation: Always, optOut: Forbidden, namespaceSelector: {matchLabels: {env: prod}}, objectSelector: {matchLabels: {app: web}}, \
          variables: [{name: b, expression: variables.a + 1}, {name: a, expression: object.spec.containers.size()}, {name: c, expression: 'pairs({})'}], \
          matchConditions: [{name: not-mine, expression: \"object.metadata.name != 'mine'\"}], \
          validations: [{expression: variables.b < 5, message: 'too many: ${variables.b}', reason: Forbidden, fieldPath: .spec.containers}]}",
    );
    assert_eq!((stderr.as_str(), code), ("", Some(0)));
    let [policy, binding] = objects.as_slice() else { panic!("{objects:?}") };
    assert_eq!(policy["kind"], "ValidatingAdmissionPolicy");
    assert_eq!(binding["spec"]["policyName"], policy["metadata"]["name"]);
    assert_eq!(binding["spec"]["validationActions"][0], "Deny");
    let spec = &policy["spec"];
    assert_eq!(spec["failurePolicy"], "Fail", "with optOut Forbidden, errors reject the object");
    let names: Vec<_> = spec["variables"].as_array().unwrap().iter().map(|v| v["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["a", "b"], "only the needed variables, in the order of their references");
    let validation = &spec["validations"][0];
    assert_eq!(validation["messageExpression"], "'too many: ' + string(variables.b) + ' (.spec.containers)'");
    assert_eq!(validation["reason"], "Forbidden");
    assert_eq!(spec["matchConditions"].as_array().unwrap().len(), 1, "no opt-out");
    let selector = &spec["matchConstraints"]["namespaceSelector"];
    assert_eq!(selector["matchLabels"]["env"], "prod");
    assert_eq!(selector["matchExpressions"][0]["key"], "pillion.dev/injection");
    assert_eq!(spec["matchConstraints"]["objectSelector"]["matchLabels"]["app"], "web");
}

#[test]
fn code_determines_reason() {
    for (code, reason) in [(401, "Unauthorized"), (403, "Forbidden"), (413, "RequestEntityTooLarge"), (422, "Invalid")]
    {
        let (objects, stderr, exit) =
            export(&format!("{{activation: Always, validations: [{{expression: 'false', code: {code}}}]}}"));
        assert_eq!((stderr.as_str(), exit), ("", Some(0)), "{code}");
        assert_eq!(objects[0]["spec"]["validations"][0]["reason"], reason, "{code}");
    }
}

#[test]
fn condition_on_variables_or_namespace_becomes_variable() {
    let (objects, stderr, code) = export(
        "{requestedBy: {annotation: example.com/a}, variables: [{name: title, expression: object.metadata.name}], \
          matchConditions: [{name: by.variable, expression: \"variables.title != 'x'\"}, {name: plain, expression: 'true'}], \
          validations: [{expression: 'false'}]}",
    );
    assert_eq!((stderr.as_str(), code), ("", Some(0)));
    let spec = &objects[0]["spec"];
    let names = |list: &str| -> Vec<_> {
        spec[list].as_array().unwrap().iter().map(|each| each["name"].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!(names("matchConditions"), ["pillion-opt-out", "pillion-not-opted-out", "pillion-not-declined", "plain"]);
    assert_eq!(names("variables"), ["title", "pillion_0_asked_for", "pillion_1_by_variable"]);
    let expected = "!(variables.pillion_0_asked_for && variables.pillion_1_by_variable) || (false)";
    assert_eq!(spec["validations"][0]["expression"], expected);
    let asked = spec["variables"][1]["expression"].as_str().unwrap();
    assert!(asked.contains("lowerAscii() in ['p', 'true', 'yes'") && asked.contains("in ['p']"), "{asked}");
}

#[test]
fn non_native_parts_are_dropped_with_warning() {
    let validation = |text: &str| format!("{{activation: Always, validations: [{text}, {{expression: 'true'}}]}}");
    for (spec, place, why) in [
        (validation("{expression: 'containers.size() < 3'}"), "spec.validations[0]", "do not have the variable `containers`"),
        (validation("{expression: \"pairs(object.metadata.labels) != ''\"}"), "spec.validations[0]", "pairs()"),
        (validation("{expression: \"['a', object.kind].size() == 2\"}"), "spec.validations[0]", "different types"),
        (
            validation("{expression: \"quantity(1).isLessThan(quantity(object.data.x))\"}"),
            "spec.validations[0]",
            "quantity() of a number",
        ),
        (validation("{expression: \"request.uid != ''\"}"), "spec.validations[0]", "request uid"),
        (validation("{expression: 'false', code: 402}"), "spec.validations[0]", "code 402"),
        (validation("{expression: 'false', reason: Other}"), "spec.validations[0]", "reason Other"),
        (validation("{expression: 'false', message: \"${image('a').name}\"}"), "spec.validations[0]", "image()"),
        (
            "{activation: Always, template: {spec: {containers: [{name: a, image: i}]}}, validations: [{expression: 'true'}]}".to_owned(),
            "spec.template.spec",
            "override the author's fields",
        ),
        (
            "{activation: Always, variables: [{name: v, expression: sha256('a')}], validations: [{expression: \"variables.v == 'a'\"}, {expression: 'true'}]}".to_owned(),
            "spec.validations[0]",
            "its variable v",
        ),
    ] {
        let (objects, stderr, code) = export(&spec);
        assert_eq!(code, Some(1), "{spec}: {stderr}");
        assert!(stderr.starts_with(&format!("p: {place} is left out: ")) && stderr.contains(why), "{spec}: {stderr}");
        assert_eq!(objects.len(), 2, "the other fields are exported: {spec}");
        assert_eq!(objects[0]["spec"]["validations"].as_array().unwrap().len(), 1, "{spec}");
    }
}

#[test]
fn profile_with_unsupported_dependency_is_dropped() {
    let with = |more: &str| format!("{{activation: Always, {more}, validations: [{{expression: 'true'}}]}}");
    for (spec, why) in [
        (with("exclusiveGroup: g"), "spec.exclusiveGroup"),
        (with("preconditions: [{name: a, expression: 'true', action: Deny}]"), "spec.preconditions[0]"),
        (with("preconditions: [{name: a, expression: 'true'}]"), "it warns"),
        (with("matchConditions: [{name: a, expression: 'containers.size() == 1'}]"), "spec.matchConditions[0]"),
        (
            with("parameters: [{name: a, type: string, default: x, annotation: example.com/a, sources: [Pod]}]"),
            "spec.parameters[0]",
        ),
        ("{activation: Never, validations: [{expression: 'true'}]}".to_owned(), "spec.activation"),
        (
            "{requestedBy: {annotation: example.com/a, onUnknown: Deny}, validations: [{expression: 'true'}]}"
                .to_owned(),
            "spec.requestedBy.onUnknown",
        ),
    ] {
        let (objects, stderr, code) = export(&spec);
        assert_eq!((objects.len(), code), (0, Some(1)), "{spec}: {stderr}");
        assert!(stderr.contains(why), "{spec}: {stderr}");
    }
    let profile = |name: &str| {
        format!(
            "apiVersion: pillion.dev/v1alpha1\nkind: ClusterInjectionProfile\nmetadata: {{name: {name}}}\n\
             spec: {{requestedBy: {{annotation: example.com/a}}, validations: [{{expression: 'true'}}]}}\n---\n"
        )
    };
    let (_, stderr, code) = export_file(&(profile("a") + &profile("b")));
    assert_eq!(code, Some(1));
    assert!(stderr.contains("a: ") && stderr.contains("b has the same key"), "{stderr}");
}

#[test]
fn each_action_has_its_own_policy() {
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
fn invalid_profile_is_an_error() {
    let (objects, stderr, code) = export("{validations: [{expression: objct.x}]}");
    assert_eq!((objects.len(), code), (0, Some(2)));
    assert!(stderr.contains("objct"), "{stderr}");
}

#[test]
fn everywhere_covers_all_selected_kinds_and_namespaces() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("profile.yaml");
    let text = "apiVersion: pillion.dev/v1alpha1\nkind: ClusterInjectionProfile\nmetadata: {name: p}\nspec:\n  \
        activation: Always\n  optOut: Forbidden\n  namespaceSelector: {matchLabels: {reserved: 'true'}}\n  \
        target: {version: v1, resources: [configmaps], operations: [CREATE]}\n  \
        template: {metadata: {labels: {a: b}}}\n  validations: [{expression: 'false'}]\n";
    fs::write(&path, text).unwrap();
    let (objects, stderr, code) = export_path(&path, &["--everywhere"]);
    assert_eq!((objects.len(), code), (2, Some(1)), "{stderr}");
    assert!(stderr.contains("spec.template is left out: with --everywhere, only validations are exported"), "{stderr}");
    let constraints = &objects[0]["spec"]["matchConstraints"];
    assert_eq!(constraints["namespaceSelector"], json!({"matchLabels": {"reserved": "true"}, "matchExpressions": []}));
    assert_eq!(constraints["resourceRules"][0]["resources"], json!(["*"]));
    assert_eq!(constraints["resourceRules"][0]["operations"], json!(["CREATE"]), "the operations of the profile");
    let exempt: Vec<_> =
        constraints["excludeResourceRules"].as_array().unwrap().iter().map(|rule| &rule["resources"][0]).collect();
    assert!(exempt.contains(&&json!("leases")) && exempt.contains(&&json!("events")), "{exempt:?}");
}

#[test]
fn first_label_of_namespace_opts_in() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("profile.yaml");
    let text = "apiVersion: pillion.dev/v1alpha1\nkind: ClusterInjectionProfile\nmetadata: {name: p}\nspec:\n  \
        activation: Always\n  optOut: Forbidden\n  validations: [{expression: 'false'}]\n";
    fs::write(&path, text).unwrap();
    let options = ["--opt-in", "mesh=on", "--opt-in", "mesh=strict:required", "--opt-in", "b=c"];
    let (objects, stderr, code) = export_path(&path, &options);
    assert_eq!((stderr.as_str(), code), ("", Some(0)));
    let spec = &objects[0]["spec"];
    let keys: Vec<_> = spec["matchConstraints"]["namespaceSelector"]["matchExpressions"]
        .as_array()
        .unwrap()
        .iter()
        .map(|requirement| &requirement["key"])
        .collect();
    assert_eq!(keys, ["kubernetes.io/metadata.name"], "a selector cannot express 'or'");
    assert_eq!(spec["validations"][0]["expression"], "!(variables.pillion_0_opted_in) || (false)");
    let has = |key: &str| format!("namespaceObject.metadata.?labels[?'{key}']");
    let (own, mesh, last) = (has("pillion.dev/injection"), has("mesh"), has("b"));
    assert_eq!(
        spec["variables"],
        json!([{"name": "pillion_0_opted_in", "expression": format!(
            "({own}.hasValue() ? {own}.value() in ['enabled', 'required', 'held'] : \
             ({mesh}.hasValue() ? {mesh}.value() in ['on', 'strict'] : \
             ({last}.hasValue() ? {last}.value() in ['c'] : false)))"
        )}])
    );
    let (objects, stderr, code) = export_path(&path, &["--opt-in", "mesh"]);
    assert_eq!((objects.len(), code), (0, Some(2)));
    assert!(stderr.contains("--opt-in") && stderr.contains("expected KEY=VALUE"), "{stderr}");
}

/// The shipped policy must equal the export of its profile.
#[test]
fn shipped_policy_matches_its_profile() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../profiles/reserved-namespaces");
    let (objects, stderr, code) = export_path(&folder, &["--everywhere"]);
    assert_eq!((stderr.as_str(), code), ("", Some(0)));
    let policy = fs::read_to_string(folder.join("policy.yaml")).unwrap();
    let shipped: Vec<Json> = serde_saphyr::from_multiple(&policy).unwrap();
    assert_eq!(shipped, objects, "update it: pillion export --everywhere profiles/reserved-namespaces");
}
