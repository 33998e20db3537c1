//! The program as it is met by who does something else than was meant: who stops reading, or asks a cluster that is not there.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

use std::fs;
use std::process::{Command, Output, Stdio};

/// The program, with nothing of the environment by which a cluster is found.
fn pillion(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_pillion"));
    command.args(arguments).env_remove("KUBECONFIG").env_remove("KUBERNETES_SERVICE_HOST").env_remove("RUST_BACKTRACE");
    command
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// The end of a pipe that nobody reads.
fn unread() -> Stdio {
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    writer.into()
}

#[test]
fn who_stops_reading_a_result_has_had_what_they_wanted() {
    for arguments in [&["completions", "bash"][..], &["crds"], &["man"]] {
        let Output { status, stderr, .. } = pillion(arguments).stdout(unread()).output().unwrap();
        assert_eq!((status.code(), text(&stderr)), (Some(0), String::new()), "{arguments:?}");
    }
}

#[test]
fn an_exit_code_says_the_same_where_nobody_reads_what_is_wrong() {
    for arguments in
        [&["lint", "nowhere.yaml"][..], &["man", "/dev/null/x"], &["certs", "status", "--kubeconfig", "nowhere"]]
    {
        let status = pillion(arguments).stdout(Stdio::null()).stderr(unread()).status().unwrap();
        assert_eq!(status.code(), Some(1), "{arguments:?}");
    }
}

#[test]
fn an_api_server_that_is_not_there_is_told_once_and_at_once() {
    let folder = tempfile::tempdir().unwrap();
    // Nobody listens there, and no test beside this one is given that port.
    let kubeconfig = "apiVersion: v1\nkind: Config\ncurrent-context: a\nusers: [{name: a, user: {}}]\n\
                      clusters: [{name: a, cluster: {server: \"https://127.0.0.1:1\"}}]\n\
                      contexts: [{name: a, context: {cluster: a, user: a}}]\n";
    let file = folder.path().join("kubeconfig");
    fs::write(&file, kubeconfig).unwrap();
    let profile = concat!(env!("CARGO_MANIFEST_DIR"), "/../../profiles/nginx");
    for (arguments, code) in [
        (&["explain", "pod/web"][..], 2),
        (&["doctor"], 2),
        (&["diff", "-p", profile], 2),
        (&["status"], 1),
        (&["rollout"], 1),
        (&["certs", "status"], 1),
        (&["profiles", "history", "nginx"], 1),
    ] {
        let Output { status, stdout, stderr } = pillion(arguments).env("KUBECONFIG", &file).output().unwrap();
        let told = text(&stderr);
        assert_eq!((status.code(), text(&stdout)), (Some(code), String::new()), "{arguments:?}: {told}");
        assert!(told.starts_with("error: the API server cannot be asked"), "{arguments:?}: {told}");
        assert_eq!(told.lines().count(), 1, "{arguments:?}: {told}");
    }
}

#[test]
fn what_names_no_cluster_says_where_one_is_looked_for() {
    let Output { status, stderr, .. } = pillion(&["status"]).env("HOME", "/nowhere").output().unwrap();
    let told = text(&stderr);
    assert_eq!(status.code(), Some(1), "{told}");
    assert!(told.starts_with("error: there is no kubeconfig, and this is no pod; name one by --kubeconfig"), "{told}");
}

#[test]
fn manifests_without_a_pod_are_nothing_to_compare() {
    let folder = tempfile::tempdir().unwrap();
    let profile = concat!(env!("CARGO_MANIFEST_DIR"), "/../../profiles/nginx");
    for manifest in ["", "apiVersion: v1\nkind: Service\nmetadata: {name: web}\n"] {
        let file = folder.path().join("manifest.yaml");
        fs::write(&file, manifest).unwrap();
        let arguments = ["diff", "-p", profile, "--against", profile, "-f"];
        let Output { status, stdout, stderr } = pillion(&arguments).arg(&file).output().unwrap();
        let told = text(&stderr);
        assert_eq!((status.code(), text(&stdout)), (Some(2), String::new()), "{told}");
        assert!(told.contains("there is no pod and no workload in "), "{told}");
    }
}
