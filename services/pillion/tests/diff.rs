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

/// Runs `pillion diff` with the profile of `before`, on the manifests of two folders.
fn diff_manifests(folder: &Path, more: &[&str]) -> (Option<i32>, String, String) {
    let mut command = assert_cmd::Command::new(env!("CARGO_BIN_EXE_pillion"));
    let arguments = ["diff", "-p", "before", "-f", "new", "--against-filename", "old"];
    let output = command.args(arguments).args(more).current_dir(folder).output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (output.status.code(), text(output.stdout), text(output.stderr))
}

/// Returns a folder with two states of manifests: a Deployment is changed, the `CronJob` is removed, and a pod is moved
/// to a list in another file. A pod in another namespace is added.
fn two_states() -> tempfile::TempDir {
    let folder = folder(PROFILE);
    let write = |file: &str, text: &str| {
        let file = folder.path().join(file);
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(file, text).unwrap();
    };
    write("old/all.yaml", MANIFESTS);
    let documents: Vec<_> = MANIFESTS.split("---\n").collect();
    write("new/deeply/nested/web.yml", &format!("# The shop.\n{}", documents[0].replace("web:1", "web:2")));
    let pod: Json = serde_saphyr::from_str(documents[2]).unwrap();
    let mut other = pod.clone();
    other["metadata"]["namespace"] = json!("other");
    let list = json!({"apiVersion": "v1", "kind": "List", "items": [pod, other]});
    write("new/list.json", &serde_json::to_string_pretty(&list).unwrap());
    write("new/.hidden/broken.yaml", "{");
    folder
}

#[test]
fn manifests_are_matched_by_kind_namespace_and_name() {
    let folder = two_states();
    let (code, stdout, stderr) = diff_manifests(folder.path(), &[]);
    assert_eq!(
        (code, stderr.as_str()),
        (Some(1), "3 of 4 workloads would be different (1 added, 1 removed)\n"),
        "{stdout}"
    );
    let lines: Vec<_> = stdout.lines().filter(|line| !line.starts_with([' ', '@'])).collect();
    assert_eq!(
        lines,
        [
            "Deployment shop/asks (1 pod)",
            "--- Deployment shop/asks",
            "+++ Deployment shop/asks, changed",
            "-    image: web:1",
            "+    image: web:2",
            "Pod other/by-child (added)",
            "CronJob default/does-not (removed)",
        ],
        "{stdout}"
    );
    assert!(stdout.contains("(added)\n  child: applied"), "{stdout}");

    let (_, stdout, _) = diff_manifests(folder.path(), &["-o", "json"]);
    let result: Json = serde_json::from_str(&stdout).unwrap();
    let added = result["workloads"].as_array().unwrap().iter().find(|one| one["workload"] == "Pod other/by-child");
    assert_eq!((&added.unwrap()["before"], &added.unwrap()["patch"]), (&Json::Null, &Json::Null));
    // Workloads with the same name are matched in order.
    let (_, stdout, stderr) = diff_manifests(folder.path(), &["-f", "new", "--against-filename", "old"]);
    assert_eq!(stderr, "6 of 8 workloads would be different (2 added, 2 removed)\n", "{stdout}");
}

#[test]
fn sarif_has_one_result_with_line_per_workload() {
    let folder = two_states();
    let deny = "preconditions: [{name: c, expression: 'false', action: Deny, message: not here}]";
    let deny = PROFILE.replace("  template:", &format!("  failurePolicy: Fail\n  {deny}\n  template:"));
    fs::write(folder.path().join("after/profile.yaml"), deny).unwrap();
    let arguments = ["diff", "-p", "after", "--against", "before", "-f", "new", "--against-filename", "old"];
    let mut command = assert_cmd::Command::new(env!("CARGO_BIN_EXE_pillion"));
    let output = command.args(arguments).args(["-o", "sarif"]).current_dir(folder.path()).output().unwrap();
    let log: Json = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((output.status.code(), &log["version"]), (Some(1), &json!("2.1.0")));
    let run = &log["runs"][0];
    let results = run["results"].as_array().unwrap().iter().map(|result| {
        let location = &result["locations"][0];
        let rule = &run["tool"]["driver"]["rules"][usize::try_from(result["ruleIndex"].as_u64().unwrap()).unwrap()];
        assert_eq!([&rule["id"], &rule["defaultConfiguration"]["level"]], [&result["ruleId"], &result["level"]]);
        json!([
            location["logicalLocations"][0]["fullyQualifiedName"],
            result["ruleId"],
            result["level"],
            location["physicalLocation"]["artifactLocation"]["uri"],
            location["physicalLocation"]["region"]["startLine"],
        ])
    });
    let expected = json!([
        ["Deployment shop/asks", "pod-rejected", "warning", "new/deeply/nested/web.yml", 2],
        ["Pod default/by-child", "pod-rejected", "warning", "new/list.json", 6],
        ["Pod other/by-child", "pod-rejected", "warning", "new/list.json", 24],
        ["CronJob default/does-not", "workload-removed", "note", "new", null],
    ]);
    assert_eq!(Json::Array(results.collect()), expected);
}

#[test]
fn markdown_has_table_and_collapsed_diffs() {
    let (code, stdout, stderr) = diff_manifests(two_states().path(), &["-o", "markdown"]);
    assert_eq!((code, stderr.as_str()), (Some(1), ""));
    let head = "\
### Effects on pods

3 of 4 workloads would be different (1 added, 1 removed).

| workload | pods | effect |
|---|---|---|
| `Deployment shop/asks` | 1 | changed |
| `Pod other/by-child` | 1 | added |
| `CronJob default/does-not` | 1 | removed |

<details><summary>Deployment shop/asks</summary>

```diff
Deployment shop/asks (1 pod)
--- Deployment shop/asks
";
    assert!(stdout.starts_with(head), "{stdout}");
    assert_eq!(stdout.matches("</details>").count(), 3, "{stdout}");
}

#[test]
fn empty_folder_of_old_profiles_is_accepted() {
    let folder = folder(PROFILE);
    fs::create_dir(folder.path().join("none")).unwrap();
    let mut command = assert_cmd::Command::new(env!("CARGO_BIN_EXE_pillion"));
    let arguments = ["diff", "-p", "after", "--against", "none", "-f", "pods.yaml"];
    let output = command.args(arguments).current_dir(folder.path()).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stderr), "2 of 3 workloads would be different\n");
}

#[test]
fn mistakes_in_manifests_are_explained() {
    let folder = two_states();
    fs::create_dir(folder.path().join("overlay")).unwrap();
    fs::write(folder.path().join("overlay/kustomization.yaml"), "resources: [../new]").unwrap();
    for (more, expected) in [
        (&["-f", "overlay"][..], "kubectl kustomize overlay"),
        (&["-f", "-", "--against-filename", "-"], "standard input can be read only once"),
        (&["--against-filename", "missing"], "missing: cannot be read"),
    ] {
        let (code, stdout, stderr) = diff_manifests(folder.path(), more);
        assert_eq!((code, stdout.as_str()), (Some(2), ""), "{more:?}");
        let plain = stderr.replace('\n', " ");
        assert!(expected.split(": ").all(|part| plain.contains(part)), "{more:?}: {stderr}");
    }
    let mut command = assert_cmd::Command::new(env!("CARGO_BIN_EXE_pillion"));
    let output = command.args(["diff", "-p", "before", "-f", "new"]).current_dir(folder.path()).output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(stderr.contains("--against <PATH>|--against-filename <FILE>"), "{stderr}");
}
