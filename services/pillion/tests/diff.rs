//! Tests `pillion diff` with manifests, as a process: shows the effect of changed profiles without a cluster.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "tests fail by panicking")]

use std::fs;
use std::path::Path;

use serde_json::{Value as Json, json};

const PROFILE: &str = "\
apiVersion: pillion.dev/v1alpha1
kind: ClusterInjectionProfile
metadata: {name: logger}
spec:
  requestedBy: {annotation: logs.example.com/ship}
  template: {spec: {containers: [{name: logger, image: \"logger:1\"}]}}
";

const CHILD: &str = "\
apiVersion: pillion.dev/v1alpha1
kind: ClusterInjectionProfile
metadata: {name: child}
spec:
  extends: {name: logger}
  requestedBy: {annotation: logs.example.com/child}
";

const MANIFESTS: &str = "\
apiVersion: apps/v1
kind: Deployment
metadata: {name: asks, namespace: shop}
spec:
  template:
    metadata: {annotations: {logs.example.com/ship: \"yes\"}}
    spec: {containers: [{name: web, image: \"web:1\"}]}
---
apiVersion: batch/v1
kind: CronJob
metadata: {name: does-not}
spec: {jobTemplate: {spec: {template: {spec: {containers: [{name: job, image: \"job:1\"}]}}}}}
---
apiVersion: v1
kind: Pod
metadata: {name: by-child, annotations: {logs.example.com/child: \"yes\"}}
spec: {containers: [{name: web, image: \"web:1\"}]}
";

fn diff(folder: &Path, more: &[&str]) -> (Option<i32>, String, String) {
    let arguments = ["diff", "-f", "pods.yaml", "--against", "before", "-p", "after"];
    let mut command = assert_cmd::Command::new(env!("CARGO_BIN_EXE_pillion"));
    let output = command.args(arguments).args(more).current_dir(folder).output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (output.status.code(), text(output.stdout), text(output.stderr))
}

fn folder(after: &str) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    for (name, text) in [("before", PROFILE), ("after", after)] {
        fs::create_dir(folder.path().join(name)).unwrap();
        fs::write(folder.path().join(name).join("profile.yaml"), text).unwrap();
        fs::write(folder.path().join(name).join("child.yaml"), CHILD).unwrap();
    }
    fs::write(folder.path().join("pods.yaml"), MANIFESTS).unwrap();
    folder
}

#[test]
fn diff_shows_changes_including_child_profiles() {
    let folder = folder(&PROFILE.replace("logger:1", "logger:2"));
    let (code, stdout, stderr) = diff(folder.path(), &[]);
    assert_eq!((code, stderr.as_str()), (Some(1), "2 of 3 workloads would be different\n"), "{stdout}");
    let changes: Vec<_> = stdout.lines().filter(|line| line.starts_with(['+', '-'])).collect();
    assert_eq!(
        changes,
        [
            "--- Deployment shop/asks",
            "+++ Deployment shop/asks, changed",
            "-    image: logger:1",
            "+    image: logger:2",
            "--- Pod default/by-child",
            "+++ Pod default/by-child, changed",
            "-    image: logger:1",
            "+    image: logger:2",
        ],
        "{stdout}"
    );

    let (code, stdout, _) = diff(folder.path(), &["-o", "json"]);
    let result: Json = serde_json::from_str(&stdout).unwrap();
    assert_eq!((code, &result["differing"], &result["same"]), (Some(1), &json!(2), &json!(1)));
    let patch = json!([{"op": "replace", "path": "/spec/containers/1/image", "value": "logger:2"}]);
    assert_eq!(result["workloads"][0]["patch"], patch);
    let (_, yaml, _) = diff(folder.path(), &["-o", "yaml"]);
    assert_eq!(serde_saphyr::from_str::<Json>(&yaml).unwrap(), result);
}

#[test]
fn equal_result_succeeds_and_rejection_is_reported() {
    let (code, stdout, stderr) = diff(folder(PROFILE).path(), &[]);
    assert_eq!((code, stdout.as_str(), stderr.as_str()), (Some(0), "", "0 of 3 workloads would be different\n"));

    let conditions = "preconditions: [{name: c, expression: 'false', action: Deny, message: not here}]";
    let refusing = PROFILE.replace("  template:", &format!("  failurePolicy: Fail\n  {conditions}\n  template:"));
    let (code, stdout, _) = diff(folder(&refusing).path(), &[]);
    assert_eq!(code, Some(1));
    assert!(stdout.contains("Deployment shop/asks (1 pod)\n  logger: denied"), "{stdout}");
    assert!(stdout.contains("its pods would be rejected"), "{stdout}");
}

#[test]
fn mistakes_have_their_own_exit_code() {
    let broken = folder(&PROFILE.replace("template:", "tempalte:"));
    let (code, stdout, stderr) = diff(broken.path(), &[]);
    assert_eq!((code, stdout.as_str()), (Some(2), ""));
    assert!(stderr.contains("did you mean `template`?"), "{stderr}");
    let (code, _, stderr) = diff(folder(PROFILE).path(), &["-f", "nowhere.yaml"]);
    assert_eq!(code, Some(2));
    assert!(stderr.contains("nowhere.yaml"), "{stderr}");
}
