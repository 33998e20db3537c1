//! Tests `pillion uninject` as a process: it removes the parts that `pillion inject` added to manifests.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, clippy::panic, reason = "tests fail by panicking")]

use std::fs;
use std::path::PathBuf;
use std::process::Output;

use serde_json::{Value as Json, json};

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

fn pillion(arguments: &[&str], input: &str) -> Output {
    let mut command = assert_cmd::Command::new(env!("CARGO_BIN_EXE_pillion"));
    command.args(arguments).current_dir(root()).write_stdin(input).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

fn documents(text: &str) -> Vec<Json> {
    serde_saphyr::from_multiple(text).unwrap_or_else(|error| panic!("{error} in\n{text}"))
}

const ASK: &str = "sidecar-injector-webhook.morven.me/inject";

/// Returns a pod template that requests the sidecar, and that already contains the lists that injection extends.
fn template() -> Json {
    json!({
        "metadata": {"labels": {"app": "web"}, "annotations": {ASK: "yes"}},
        "spec": {"containers": [{"name": "web", "image": "web:1"}], "volumes": [{"name": "data", "emptyDir": {}}]},
    })
}

/// Returns a workload of each kind that creates pods, and a pod, with their required fields.
fn workloads() -> Vec<Json> {
    let of = |version: &str, kind: &str, spec: Json| json!({"apiVersion": version, "kind": kind, "metadata": {"name": "web"}, "spec": spec});
    let mut pod = template();
    pod["apiVersion"] = json!("v1");
    pod["kind"] = json!("Pod");
    pod["metadata"]["name"] = json!("web");
    let mut all: Vec<_> = ["Deployment", "StatefulSet", "DaemonSet", "ReplicaSet"]
        .map(|kind| of("apps/v1", kind, json!({"selector": {"matchLabels": {"app": "web"}}, "template": template()})))
        .into();
    all.push(of("batch/v1", "Job", json!({"template": template()})));
    all.push(of(
        "batch/v1",
        "CronJob",
        json!({"schedule": "@daily", "jobTemplate": {"spec": {"template": template()}}}),
    ));
    all.push(of("v1", "ReplicationController", json!({"template": template()})));
    all.push(pod);
    all
}

fn as_yaml(documents: &[Json]) -> String {
    documents.iter().flat_map(|document| ["---\n".to_owned(), document.to_string(), "\n".to_owned()]).collect()
}

#[test]
fn uninject_reverts_every_workload_kind() {
    let all = workloads();
    let list = json!({"apiVersion": "v1", "kind": "List", "items": workloads()});
    for input in [as_yaml(&all), as_yaml(&[list])] {
        let injected = pillion(&["inject", "-q", "-f", "-", "-p", "profiles/nginx"], &input);
        assert!(injected.status.success(), "{}", text(&injected.stderr));
        let injected = text(&injected.stdout);
        assert_eq!(injected.matches("name: sidecar-nginx").count(), all.len(), "{injected}");
        let back = pillion(&["uninject", "-f", "-"], &injected);
        assert!(back.status.success(), "{}", text(&back.stderr));
        assert_eq!(documents(&text(&back.stdout)), documents(&input));
        let message = text(&back.stderr);
        assert_eq!(message.matches(": uninjected\n  nginx at ").count(), all.len(), "{message}");
    }
}

#[test]
fn diff_shows_both_directions_without_colours() {
    let input = as_yaml(&workloads()[..1]);
    let diff = pillion(&["inject", "-q", "-f", "-", "-p", "profiles/nginx", "-o", "diff"], &input);
    let shown = text(&diff.stdout);
    assert!(shown.starts_with("--- Deployment default/web\n+++ Deployment default/web, injected\n@@ "), "{shown}");
    assert!(shown.contains("\n+      - name: sidecar-nginx\n") && !shown.contains('\u{1b}'), "{shown}");
    assert!(!shown.lines().any(|line| line.starts_with('-') && !line.starts_with("---")), "{shown}");

    let injected = text(&pillion(&["inject", "-q", "-f", "-", "-p", "profiles/nginx"], &input).stdout);
    let diff = text(&pillion(&["uninject", "-q", "-f", "-", "-o", "diff"], &injected).stdout);
    assert!(diff.contains("\n-      - name: sidecar-nginx\n"), "{diff}");
    let patch = text(&pillion(&["uninject", "-q", "-f", "-", "-o", "patch"], &injected).stdout);
    let mut object = documents(&injected).remove(0);
    json_patch::patch(&mut object, &serde_json::from_str::<json_patch::Patch>(&patch).unwrap()).unwrap();
    assert_eq!(object, workloads()[0]);
}

#[test]
fn terminal_output_has_colours_unless_disabled() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("web.yaml");
    fs::write(&file, as_yaml(&workloads()[..1])).unwrap();
    let command =
        format!("{} inject -q -f {} -p profiles/nginx -o diff", env!("CARGO_BIN_EXE_pillion"), file.display());
    let run = |no_color: Option<&str>| {
        // `script` runs the command in a terminal, and prints the output of that terminal.
        let mut script = std::process::Command::new("script");
        script.args(["-qec", &command, "/dev/null"]).current_dir(root()).env("TERM", "xterm-256color");
        script.env_remove("NO_COLOR").env_remove("CI");
        if let Some(value) = no_color {
            script.env("NO_COLOR", value);
        }
        text(&script.stdin(std::process::Stdio::null()).output().unwrap().stdout)
    };
    let coloured = run(None);
    assert!(coloured.contains("\u{1b}[32m+      - name: sidecar-nginx"), "{coloured:?}");
    let plain = run(Some("1"));
    assert!(plain.contains("+      - name: sidecar-nginx") && !plain.contains("\u{1b}[32m"), "{plain:?}");
}

#[test]
fn irreversible_changes_are_reported() {
    let input = as_yaml(&workloads()[..1]);
    let injected = text(&pillion(&["inject", "-q", "-f", "-", "-p", "profiles/nginx"], &input).stdout);
    let mut object = documents(&injected).remove(0);
    object["spec"]["template"]["spec"]["containers"].as_array_mut().unwrap().retain(|one| one["name"] == "web");
    let run = pillion(&["uninject", "-q", "-f", "-"], &object.to_string());
    assert_eq!(run.status.code(), Some(1), "{}", text(&run.stderr));
    assert!(
        text(&run.stderr).contains("/spec/containers/sidecar-nginx is missing: it was removed after the injection"),
        "{}",
        text(&run.stderr)
    );
    assert_eq!(documents(&text(&run.stdout)), workloads()[..1]);

    let run = pillion(&["uninject", "-f", "-"], &input);
    assert_eq!((run.status.code(), documents(&text(&run.stdout))), (Some(0), documents(&input)));
    assert_eq!(text(&run.stderr), "Deployment default/web: nothing was injected, according to its record\n");

    object["spec"]["template"]["metadata"]["annotations"]["pillion.dev/injected"] = json!("{\"version\":7}");
    let run = pillion(&["uninject", "-f", "-"], &object.to_string());
    assert_eq!((run.status.code(), text(&run.stdout).as_str()), (Some(2), ""));
    assert!(text(&run.stderr).contains("is unknown to this version of pillion"), "{}", text(&run.stderr));
}
