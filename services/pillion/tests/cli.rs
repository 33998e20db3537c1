//! Tests the manual pages, completions, versions and CRDs that the process prints. Also tests commands while their
//! output is closed, or while the cluster is unavailable.

use std::fs;
use std::process::{Command, Output, Stdio};

use serde_json::Value;

fn printed(arguments: &[&str]) -> String {
    let output = assert_cmd::Command::new(env!("CARGO_BIN_EXE_pillion")).args(arguments).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn manual_pages_have_exit_codes() {
    let folder = tempfile::tempdir().unwrap();
    let pages = folder.path().join("man/man1");
    assert_eq!(printed(&["man", pages.to_str().unwrap()]), "");
    for page in ["pillion.1", "pillion-diff.1", "pillion-convert-opentelemetry.1", "pillion-certs-rotate.1"] {
        let text = fs::read_to_string(pages.join(page)).unwrap();
        assert!(text.contains(".TH "), "{page}: {text}");
    }
    let diff = fs::read_to_string(pages.join("pillion-diff.1")).unwrap();
    assert!(diff.contains("Exit codes") && diff.contains("a pod would be different"), "{diff}");
    assert!(printed(&["man"]).contains("pillion \\- One sidecar injector"), "{}", printed(&["man"]));
}

#[test]
fn completion_has_all_commands() {
    for shell in ["bash", "zsh", "fish", "powershell", "elvish"] {
        let completions = printed(&["completion", shell]);
        for word in ["rollout", "uninject", "opentelemetry"] {
            assert!(completions.contains(word), "no {word} in the completions for {shell}");
        }
    }
    let script = format!("{}\ncomplete -p pillion", printed(&["completion", "bash"]));
    let output = Command::new("bash").args(["-c", &script]).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

fn crds(arguments: &[&str]) -> String {
    let output = assert_cmd::Command::new(env!("CARGO_BIN_EXE_pillion")).arg("crds").args(arguments).output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(output.stderr.is_empty());
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn crds_are_printed_as_documents() {
    let text = crds(&[]);
    let documents: Vec<Value> = serde_saphyr::from_multiple(&text).unwrap();
    let expected: Vec<Value> =
        pillion_api::crd::definitions().unwrap().iter().map(|crd| serde_json::to_value(crd).unwrap()).collect();
    assert_eq!(documents, expected);
    assert_eq!(text.matches("\n---\n").count(), 4);
    for line in text.lines() {
        assert!(
            !line.ends_with(": null") && !line.trim_end().ends_with(" {}") || line.ends_with("status: {}"),
            "{line}"
        );
    }
}

#[test]
fn crds_are_printed_as_json_list() {
    let list: Value = serde_json::from_str(&crds(&["-o", "json"])).unwrap();
    let documents: Vec<Value> = serde_saphyr::from_multiple(&crds(&[])).unwrap();
    assert_eq!(list["kind"], "List");
    assert_eq!(list["items"], Value::Array(documents));
}

/// Returns a command for the program, without the environment variables that name a cluster or request a backtrace.
fn pillion(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_pillion"));
    command.args(arguments).env_remove("KUBECONFIG").env_remove("KUBERNETES_SERVICE_HOST").env_remove("RUST_BACKTRACE");
    command
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// Returns the write end of a pipe whose read end is closed.
fn unread() -> Stdio {
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    writer.into()
}

#[test]
fn closed_output_is_no_error() {
    for arguments in [&["completion", "bash"][..], &["crds"], &["man"]] {
        let Output { status, stderr, .. } = pillion(arguments).stdout(unread()).output().unwrap();
        assert_eq!((status.code(), text(&stderr)), (Some(0), String::new()), "{arguments:?}");
    }
}

#[test]
fn exit_code_survives_closed_standard_error() {
    for arguments in [&["lint", "nowhere.yaml"][..], &["man", "/dev/null/x"], &["status", "--kubeconfig", "nowhere"]] {
        let status = pillion(arguments).stdout(Stdio::null()).stderr(unread()).status().unwrap();
        assert_eq!(status.code(), Some(2), "{arguments:?}");
    }
}

/// Returns a kubeconfig for an API server.
fn kubeconfig(server: &str) -> String {
    format!(
        "apiVersion: v1\nkind: Config\ncurrent-context: a\nusers: [{{name: a, user: {{}}}}]\n\
         clusters: [{{name: a, cluster: {{server: \"{server}\"}}}}]\n\
         contexts: [{{name: a, context: {{cluster: a, user: a}}}}]\n"
    )
}

/// Commands that connect to an API server, with the arguments that they need.
fn cluster_commands() -> [&'static [&'static str]; 14] {
    const PROFILE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../profiles/nginx");
    [
        &["explain", "pod/web"],
        &["doctor"],
        &["diff", "-p", PROFILE],
        &["status"],
        &["cost"],
        &["rollout"],
        &["rollout", "status"],
        &["rollout", "undo", "nginx"],
        &["certs", "rotate"],
        &["profiles", "history", "nginx"],
        &["profiles", "list"],
        &["profiles", "rollback", "nginx"],
        &["crds", "--apply"],
        &["uninstall", "--release", "pillion-system/pillion"],
    ]
}

#[test]
fn unavailable_api_server_is_reported_once() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("kubeconfig");
    // No process listens on this port.
    fs::write(&file, kubeconfig("https://127.0.0.1:1")).unwrap();
    for arguments in cluster_commands() {
        let Output { status, stdout, stderr } = pillion(arguments).env("KUBECONFIG", &file).output().unwrap();
        let stderr_text = text(&stderr);
        assert_eq!((status.code(), text(&stdout)), (Some(2), String::new()), "{arguments:?}: {stderr_text}");
        assert!(stderr_text.starts_with("error: "), "{arguments:?}: {stderr_text}");
        assert_eq!(stderr_text.lines().count(), 1, "{arguments:?}: {stderr_text}");
    }
    let Output { status, stdout, stderr } = pillion(&["version"]).env("KUBECONFIG", &file).output().unwrap();
    let (stdout, stderr) = (text(&stdout), text(&stderr));
    assert_eq!(status.code(), Some(0), "{stderr}");
    assert!(stdout.contains(env!("CARGO_PKG_VERSION")), "{stdout}");
    assert!(stderr.contains("the version of the installation is unknown"), "{stderr}");
}

#[test]
fn silent_api_server_times_out() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("kubeconfig");
    // The kernel accepts connections to this listener, but no process reads their requests.
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    fs::write(&file, kubeconfig(&format!("http://{}", silent.local_addr().unwrap()))).unwrap();
    let mut command = assert_cmd::Command::new(env!("CARGO_BIN_EXE_pillion"));
    command.args(["doctor", "--request-timeout", "200ms", "--kubeconfig"]).arg(&file);
    let output = command.timeout(std::time::Duration::from_secs(30)).output().unwrap();
    let stderr = text(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{stderr}");
    assert!(stderr.starts_with("error: cannot reach the API server"), "{stderr}");
}

#[test]
fn context_selects_cluster() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("kubeconfig");
    let more = "- {name: b, context: {cluster: missing, user: a}}\n";
    let text_of =
        kubeconfig("https://127.0.0.1:1").replace("contexts: [{name: a, context: {cluster: a, user: a}}]\n", "");
    fs::write(&file, format!("{text_of}contexts:\n- {{name: a, context: {{cluster: a, user: a}}}}\n{more}")).unwrap();
    for (context, expected) in [("a", "cannot reach the API server"), ("b", "missing"), ("c", "c")] {
        let output = pillion(&["status", "--context", context]).env("KUBECONFIG", &file).output().unwrap();
        let stderr = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{stderr}");
        assert!(stderr.contains(expected), "{context}: {stderr}");
    }
}

#[test]
fn version_of_client_needs_no_cluster() {
    let versions: Value = serde_json::from_str(&printed(&["version", "--client", "-o", "json"])).unwrap();
    assert_eq!(versions["client"]["version"], env!("CARGO_PKG_VERSION"));
    assert_eq!(versions["server"], Value::Null);
    assert!(printed(&["version", "--client", "-o", "yaml"]).starts_with("client:\n  version: "));
}

#[test]
fn missing_kubeconfig_is_explained() {
    let Output { status, stderr, .. } = pillion(&["status"]).env("HOME", "/nowhere").output().unwrap();
    let stderr_text = text(&stderr);
    assert_eq!(status.code(), Some(2), "{stderr_text}");
    assert!(
        stderr_text.starts_with(
            "error: there is no kubeconfig, and this process does not run in a pod; pass one with --kubeconfig"
        ),
        "{stderr_text}"
    );
}

#[test]
fn diff_rejects_manifests_without_pods() {
    let folder = tempfile::tempdir().unwrap();
    let profile = concat!(env!("CARGO_MANIFEST_DIR"), "/../../profiles/nginx");
    for manifest in ["", "apiVersion: v1\nkind: Service\nmetadata: {name: web}\n"] {
        let file = folder.path().join("manifest.yaml");
        fs::write(&file, manifest).unwrap();
        let arguments = ["diff", "-p", profile, "--against", profile, "-f"];
        let Output { status, stdout, stderr } = pillion(&arguments).arg(&file).output().unwrap();
        let stderr_text = text(&stderr);
        assert_eq!((status.code(), text(&stdout)), (Some(2), String::new()), "{stderr_text}");
        assert!(stderr_text.contains("contains no pod and no workload: nothing can be compared"), "{stderr_text}");
    }
}
