//! Tests the policy file: `--check-config` checks it without opening a port or a connection, and a running program
//! reloads it.

use std::net::TcpListener;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::{Command, Output};

use crate::support::{Answer, DevEndpoint, Program, eventually, get, hanging_api_server, patch, write_kubeconfig};
use pillion_testkit::TestCa;

const HEADER: &str = "apiVersion: config.pillion.dev/v1alpha1\nkind: WebhookPolicy\n";

fn check(folder: &Path, arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_pillion"));
    command.args(["webhook", "--check-config"]).args(arguments).current_dir(folder).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

#[test]
fn check_prints_effective_policy_without_side_effects() {
    let folder = tempfile::tempdir().unwrap();
    TestCa::new().unwrap().serving_files(folder.path(), "tls", &["localhost"]).unwrap();
    // If the command tried to bind this address, it would fail. If it connected to this address, the listener would
    // receive a connection.
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    taken.set_nonblocking(true).unwrap();
    let address = taken.local_addr().unwrap();
    write_kubeconfig(folder.path(), &format!("http://{address}"));
    let policy = format!("{HEADER}requests: {{maxBody: 3145728}}\nconnections: {{idleTimeout: 150s}}\n");
    std::fs::write(folder.path().join("policy.yaml"), policy).unwrap();
    let (listen, endpoint) = (address.to_string(), format!("http://{address}"));
    let all =
        ["--tls-cert", "tls.crt", "--tls-key", "tls.key", "--config", "policy.yaml", "--kubeconfig", "kubeconfig"];
    let more = ["--listen", &listen, "--otlp-endpoint", &endpoint, "--drain-deadline", "30s", "--log-level", "warn"];
    let output = check(folder.path(), &[&all[..], &more].concat());
    assert!(output.status.success(), "{}", text(&output.stderr));
    let printed = text(&output.stdout);
    for line in ["  maxBody: 3Mi", "  idleTimeout: 2m30s", "  drainDeadline: 30s", "  level: warn", "  ratio: 0.01"] {
        assert!(printed.lines().any(|printed| printed == line), "{line} is not in\n{printed}");
    }
    assert_eq!(taken.accept().unwrap_err().kind(), std::io::ErrorKind::WouldBlock, "a client connected");

    // The printed policy is valid, and checking it prints the same text again.
    std::fs::write(folder.path().join("printed.yaml"), &printed).unwrap();
    let again = check(folder.path(), &["--config", "printed.yaml"]);
    assert_eq!(text(&again.stdout), printed, "{}", text(&again.stderr));
    assert!(check(folder.path(), &[]).status.success(), "the defaults are valid");
    let by_secret = check(folder.path(), &["--serving-secret", "pillion-serving", "--kubeconfig", "kubeconfig"]);
    assert!(by_secret.status.success(), "{}", text(&by_secret.stderr));
    assert_eq!(taken.accept().unwrap_err().kind(), std::io::ErrorKind::WouldBlock, "a client connected");
}

#[test]
fn check_reports_all_mistakes() {
    let folder = tempfile::tempdir().unwrap();
    TestCa::new().unwrap().serving_files(folder.path(), "tls", &["localhost"]).unwrap();
    std::fs::write(folder.path().join("none.pem"), "nothing").unwrap();
    std::fs::write(folder.path().join("wrong.yaml"), format!("{HEADER}request: {{maxBody: 3Mi}}\n")).unwrap();
    let many = ["--config", "wrong.yaml", "--tls-cert", "tls.crt", "--tls-key", "none.pem", "--kubeconfig", "nowhere"];
    let output = check(folder.path(), &many);
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(text(&output.stdout), "");
    let reload_count = text(&output.stderr);
    for part in
        ["wrong.yaml:3:1", "unknown field `request`", "did you mean `requests`?", "none.pem", "--kubeconfig nowhere"]
    {
        assert!(reload_count.contains(part), "{part} is not in\n{reload_count}");
    }
    for (arguments, expected) in [
        (&["--tls-cert", "tls.crt"][..], "expected --tls-key"),
        (&["--serving-secret", "a/certificate"], "expected --server-name"),
        (&["--drain-minimum", "101s"], "expected at most connections.drainDeadline (1m40s), found 1m41s"),
        (&["--otlp-endpoint", "https://c:4317", "--otlp-ca", "nowhere.pem"], "nowhere.pem"),
        (&["--otlp-endpoint", "https://c:4317", "--otlp-ca", "none.pem"], "none.pem"),
        (&["--log-level", "pillion=loud"], "pillion=loud"),
    ] {
        let output = check(folder.path(), arguments);
        assert_eq!(output.status.code(), Some(1), "{arguments:?}: {}", text(&output.stdout));
        assert!(text(&output.stderr).contains(expected), "{arguments:?}: {}", text(&output.stderr));
    }
}

/// A tenant's profile that adds a container, and an annotation with the cluster's region.
const PROFILE: &str = "\
apiVersion: pillion.dev/v1alpha1
kind: InjectionProfile
metadata: {name: side, namespace: default}
spec:
  activation: Always
  template:
    metadata:
      annotations: {example.com/region: \"${cluster.?region.orValue('nowhere')}\"}
    spec:
      containers:
      - {name: side, image: ghcr.io/team/side:1}
";

/// `pillion dev` with a policy that is mounted like a ConfigMap.
struct Dev {
    program: Program,
    folder: tempfile::TempDir,
    versions: u32,
    endpoint: DevEndpoint,
}

impl Dev {
    fn start(policy: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let mount = folder.path().join("mount");
        std::fs::create_dir(&mount).unwrap();
        std::fs::write(folder.path().join("profile.yaml"), PROFILE).unwrap();
        symlink("..data/policy.yaml", mount.join("policy.yaml")).unwrap();
        write_version(&mount, 1, policy);
        let arguments =
            ["dev", "--listen", "127.0.0.1:0", "--metrics-listen", "127.0.0.1:0", "--profile", "profile.yaml"];
        let program = Program::start(&[&arguments[..], &["--config", "mount/policy.yaml"]].concat(), folder.path());
        Self { endpoint: DevEndpoint::of(&program), versions: 1, program, folder }
    }

    /// Replaces the policy in the same way as the kubelet.
    fn write(&mut self, policy: &str) {
        self.versions += 1;
        write_version(&self.folder.path().join("mount"), self.versions, policy);
    }

    fn send(&self) -> Answer {
        self.endpoint.post("", &self.endpoint.review)
    }

    fn metrics(&self) -> String {
        // The program prints the line "Metrics http://127.0.0.1:1234/metrics".
        let address = self.program.word_after("http://");
        get(address.split('/').next().unwrap(), "/metrics").body
    }

    fn has_metric(&self, line: &str) {
        eventually(&format!("{line} in\n{}", self.metrics()), || {
            self.metrics().lines().any(|found| found == line).then_some(())
        });
    }
}

/// Writes the policy into a new folder, then replaces the symbolic link `..data` to it in one step.
fn write_version(mount: &Path, version: u32, policy: &str) {
    let fresh = format!("..version_{version}");
    std::fs::create_dir(mount.join(&fresh)).unwrap();
    std::fs::write(mount.join(&fresh).join("policy.yaml"), format!("{HEADER}{policy}")).unwrap();
    symlink(&fresh, mount.join("..data_tmp")).unwrap();
    std::fs::rename(mount.join("..data_tmp"), mount.join("..data")).unwrap();
}

#[test]
fn log_level_follows_file_unless_flag_is_set() {
    let folder = tempfile::tempdir().unwrap();
    TestCa::new().unwrap().serving_files(folder.path(), "tls", &["localhost"]).unwrap();
    let _api_server = hanging_api_server(folder.path());
    let write = |level: &str| {
        std::fs::write(folder.path().join("fresh.yaml"), format!("{HEADER}logs: {{level: {level}}}\n")).unwrap();
        std::fs::rename(folder.path().join("fresh.yaml"), folder.path().join("policy.yaml")).unwrap();
    };
    write("info");
    let ports = ["webhook", "--listen", "127.0.0.1:0", "--metrics-listen", "127.0.0.1:0", "--drain-minimum", "0"];
    let files =
        ["--tls-cert", "tls.crt", "--tls-key", "tls.key", "--kubeconfig", "kubeconfig", "--config", "policy.yaml"];
    let replica = Program::start(&[&ports[..], &files].concat(), folder.path());
    let deaf = Program::start(&[&ports[..], &files, &["--log-level", "info"]].concat(), folder.path());
    let address = replica.word_after("metrics_address=");
    let reload_count = |program: &Program| program.stderr().matches("the policy file was reloaded").count();
    deaf.word_after("metrics_address=");
    let read = |times: u64| {
        let line = format!("pillion_webhook_config_reloads_total{{result=\"ok\"}} {times}");
        eventually(&line, || get(&address, "/metrics").body.lines().any(|found| found == line).then_some(()));
    };
    // The new level already applies to the log line about the reload.
    write("error");
    read(1);
    assert_eq!(reload_count(&replica), 0, "{}", replica.stderr());
    write("\"info,hyper=debug\"");
    read(2);
    eventually("the reload is logged", || (reload_count(&replica) == 1).then_some(()));
    // With the flag set, the program ignores the file's level, so it logs the reloads.
    eventually("the flag overrides the file", || (reload_count(&deaf) >= 1).then_some(()));
}

#[test]
fn mounted_policy_reloads_and_invalid_one_is_ignored() {
    let mut dev = Dev::start("cluster: {region: eu-west-1}\n");
    assert!(patch(&dev.send()).unwrap().contains("eu-west-1"));
    dev.has_metric("pillion_webhook_config_last_reload_successful 1");
    dev.has_metric("pillion_webhook_config_reloads_total{result=\"ok\"} 0");

    dev.write("cluster: {region: us-east-2}\n");
    eventually("the new facts are loaded", || patch(&dev.send()).filter(|patch| patch.contains("us-east-2")));
    dev.program.wait_for_output("the policy file was reloaded");

    dev.write("cluster: {region: us-east-2}\nguardrails: {registries: [ghcr.io/others]}\n");
    eventually("the new guardrails are active", || patch(&dev.send()).is_none().then_some(()));
    dev.has_metric("pillion_webhook_config_reloads_total{result=\"ok\"} 2");

    dev.write("cluster: {region: us-east-2}\nguardrail: {}\n");
    dev.program.wait_for_output("the last valid one remains active");
    dev.program.wait_for_output("did you mean `guardrails`?");
    dev.has_metric("pillion_webhook_config_last_reload_successful 0");
    dev.has_metric("pillion_webhook_config_reloads_total{result=\"failed\"} 1");
    assert_eq!(patch(&dev.send()), None, "the earlier guardrails stay active");

    dev.write("requests: {maxBody: 1Mi}\n");
    eventually("the corrected file is loaded", || patch(&dev.send()).filter(|patch| patch.contains("nowhere")));
    dev.program.wait_for_output("take effect only after a restart");
    dev.program.wait_for_output("requests.maxBody");
    dev.has_metric("pillion_webhook_config_restart_required 1");
    dev.has_metric("pillion_webhook_config_last_reload_successful 1");
    dev.write("");
    dev.has_metric("pillion_webhook_config_restart_required 0");
}
