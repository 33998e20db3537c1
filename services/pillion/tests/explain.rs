//! Tests `pillion explain` as a process, with files: its output formats and exit codes, and the objects that it reads
//! from each file.

#![expect(clippy::unwrap_used, reason = "tests fail by panicking")]

use std::fs;
use std::path::Path;
use std::process::Output;

use serde_json::Value;
use tempfile::TempDir;

const PROFILES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../profiles");
const ASK: &str = "sidecar-injector-webhook.morven.me/inject";

/// Returns a folder with a pod that requests a sidecar, a Deployment with the annotation outside its pod template, and
/// a namespace.
fn folder() -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, text: String| fs::write(folder.path().join(name), text).unwrap();
    let pod = "spec: {containers: [{name: web, image: \"web:1\"}]}";
    write(
        "pod.yaml",
        format!(
            "apiVersion: v1\nkind: Pod\nmetadata: {{name: web, namespace: shop, annotations: {{{ASK}: \"yes\"}}}}\n{pod}\n"
        ),
    );
    write(
        "deployment.yaml",
        format!(
            "apiVersion: apps/v1\nkind: Deployment\nmetadata: {{name: web, namespace: shop, annotations: {{{ASK}: \"yes\"}}}}\n\
             spec: {{template: {{metadata: {{labels: {{app: web}}}}, {pod}}}}}\n"
        ),
    );
    write("shop.yaml", "apiVersion: v1\nkind: Namespace\nmetadata: {name: shop, labels: {team: a}}\n".to_owned());
    folder
}

fn explain(folder: &Path, arguments: &[&str]) -> Output {
    let mut command = assert_cmd::Command::new(env!("CARGO_BIN_EXE_pillion"));
    std::os::unix::fs::symlink(PROFILES, folder.join("profiles")).ok();
    command.arg("explain").args(arguments).current_dir(folder).output().unwrap()
}

fn json(output: &Output) -> Value {
    serde_json::from_slice(&output.stdout).unwrap()
}

fn codes(json: &Value) -> Vec<&str> {
    json["findings"].as_array().unwrap().iter().map(|finding| finding["code"].as_str().unwrap()).collect()
}

#[test]
fn manifest_is_explained_in_each_format() {
    let folder = folder();
    let fine = explain(folder.path(), &["-f", "pod.yaml", "-p", "profiles/nginx", "-o", "json"]);
    assert_eq!((fine.status.code(), &json(&fine)["verdict"]), (Some(0), &Value::from("wouldBeInjected")));
    assert_eq!(json(&fine)["profiles"][0]["outcome"], "applied");
    let text = explain(folder.path(), &["-f", "pod.yaml", "-p", "profiles/nginx"]);
    let text = String::from_utf8(text.stdout).unwrap();
    assert!(text.starts_with("Pod shop/web: would be injected\n") && !text.contains('\u{1b}'), "{text}");

    let wrong = explain(folder.path(), &["-f", "deployment.yaml", "-p", "profiles/nginx", "-o", "json"]);
    assert_eq!((wrong.status.code(), codes(&json(&wrong))), (Some(1), vec!["annotation_on_workload"]));
    let yaml = explain(folder.path(), &["-f", "deployment.yaml", "-p", "profiles/nginx", "-o", "yaml"]);
    let yaml = String::from_utf8(yaml.stdout).unwrap();
    assert!(yaml.contains("code: annotation_on_workload"), "{yaml}");

    let arguments = ["-f", "deployment.yaml", "-p", "profiles", "--namespace-file", "shop.yaml", "-o", "json"];
    let unlabelled = json(&explain(folder.path(), &arguments));
    assert!(codes(&unlabelled).contains(&"not_opted_in"), "{unlabelled:#}");
}

#[test]
fn saved_review_is_decided_unchanged() {
    let folder = folder();
    let pod = serde_json::json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "web", "annotations": {ASK: "yes"}},
        "spec": {"containers": [{"name": "web", "image": "web:1"}]}});
    let kind = serde_json::json!({"group": "", "version": "v1", "kind": "Pod"});
    let review = serde_json::json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": {
        "uid": "u", "kind": kind, "resource": {"group": "", "version": "v1", "resource": "pods"}, "namespace": "shop",
        "operation": "CREATE", "userInfo": {"username": "system:node:a"}, "object": pod, "dryRun": true}});
    fs::write(folder.path().join("review.json"), review.to_string()).unwrap();
    let answer = json(&explain(folder.path(), &["--review", "review.json", "-p", "profiles/nginx", "-o", "json"]));
    assert_eq!((codes(&answer), &answer["verdict"]), (vec!["dry_run"], &Value::from("wouldBeInjected")), "{answer:#}");
    assert_eq!(answer["object"]["namespace"], "shop");
}

#[test]
fn unreadable_input_has_own_exit_code() {
    let folder = folder();
    for (arguments, message) in [
        (&["-f", "none.yaml", "-p", "profiles/nginx"][..], "none.yaml cannot be read"),
        (&["-f", "shop.yaml", "-p", "profiles/nginx"], "no pod and no workload"),
        (&["--review", "pod.yaml", "-p", "profiles/nginx"], "is not an AdmissionReview"),
        (&["-f", "pod.yaml", "-p", "pod.yaml"], "ClusterInjectionProfile"),
        (&["-f", "pod.yaml", "-p", "profiles/nginx", "--namespace-file", "pod.yaml"], "no Namespace shop"),
        (&["service/web"], "is not a supported kind"),
        (&[], "required"),
    ] {
        let output = explain(folder.path(), arguments);
        let error = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{arguments:?} {error}");
        assert!(error.contains(message), "{arguments:?}: {error}");
    }
}
