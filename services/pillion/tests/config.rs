//! Tests the policy file: `config check` starts nothing, and a running program follows changes.

use std::net::{SocketAddr, TcpListener};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use crate::support::{Answer, Program, eventually, get, patch, post};
use pillion_testkit::TestCa;

const HEADER: &str = "apiVersion: config.pillion.dev/v1alpha1\nkind: WebhookPolicy\n";

fn check(folder: &Path, arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_pillion"));
    command.args(["webhook", "--check-config"]).args(arguments).current_dir(folder).output().unwrap()
}

fn write_kubeconfig(folder: &Path, api_server: SocketAddr) {
    let text = format!(
        "apiVersion: v1\nkind: Config\nclusters: [{{name: c, cluster: {{server: \"http://{api_server}\"}}}}]\n\
         users: [{{name: u, user: {{token: t}}}}]\ncontexts: [{{name: x, context: {{cluster: c, user: u}}}}]\n\
         current-context: x\n"
    );
    std::fs::write(folder.join("kubeconfig"), text).unwrap();
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

#[test]
fn a_check_prints_all_that_a_replica_would_run_with_and_touches_nothing() {
    let folder = tempfile::tempdir().unwrap();
    TestCa::new().unwrap().serving_files(folder.path(), "tls", &["localhost"]).unwrap();
    // A command that binds this address fails, and a connection to it is noticed.
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    taken.set_nonblocking(true).unwrap();
    let address = taken.local_addr().unwrap();
    write_kubeconfig(folder.path(), address);
    let policy = format!("{HEADER}requests: {{maxBody: 3145728}}\nconnections: {{idleTimeout: 150s}}\n");
    std::fs::write(folder.path().join("policy.yaml"), policy).unwrap();
    let (listen, endpoint) = (address.to_string(), format!("http://{address}"));
    let all =
        ["--tls-cert", "tls.crt", "--tls-key", "tls.key", "--config", "policy.yaml", "--kubeconfig", "kubeconfig"];
    let more = ["--listen", &listen, "--otlp-endpoint", &endpoint, "--drain-deadline", "30", "--log-level", "warn"];
    let output = check(folder.path(), &[&all[..], &more].concat());
    assert!(output.status.success(), "{}", text(&output.stderr));
    let printed = text(&output.stdout);
    for line in ["  maxBody: 3Mi", "  idleTimeout: 2m30s", "  drainDeadline: 30s", "  level: warn", "  ratio: 0.01"] {
        assert!(printed.lines().any(|printed| printed == line), "{line} is not in\n{printed}");
    }
    assert_eq!(taken.accept().unwrap_err().kind(), std::io::ErrorKind::WouldBlock, "the webhook was called");

    // The printed text is a policy with the same content.
    std::fs::write(folder.path().join("printed.yaml"), &printed).unwrap();
    let again = check(folder.path(), &["--config", "printed.yaml"]);
    assert_eq!(text(&again.stdout), printed, "{}", text(&again.stderr));
    assert!(check(folder.path(), &[]).status.success(), "the defaults are right");
    let by_secret = check(folder.path(), &["--serving-secret", "pillion-serving", "--kubeconfig", "kubeconfig"]);
    assert!(by_secret.status.success(), "{}", text(&by_secret.stderr));
    assert_eq!(taken.accept().unwrap_err().kind(), std::io::ErrorKind::WouldBlock, "the webhook was called");
}

#[test]
fn a_check_tells_all_that_is_wrong() {
    let folder = tempfile::tempdir().unwrap();
    TestCa::new().unwrap().serving_files(folder.path(), "tls", &["localhost"]).unwrap();
    std::fs::write(folder.path().join("none.pem"), "nothing").unwrap();
    std::fs::write(folder.path().join("wrong.yaml"), format!("{HEADER}request: {{maxBody: 3Mi}}\n")).unwrap();
    let many = ["--config", "wrong.yaml", "--tls-cert", "tls.crt", "--tls-key", "none.pem", "--kubeconfig", "nowhere"];
    let output = check(folder.path(), &many);
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(text(&output.stdout), "");
    let told = text(&output.stderr);
    for part in
        ["wrong.yaml:3:1", "unknown field `request`", "did you mean `requests`?", "none.pem", "--kubeconfig nowhere"]
    {
        assert!(told.contains(part), "{part} is not in\n{told}");
    }
    for (arguments, expected) in [
        (&["--tls-cert", "tls.crt"][..], "expected --tls-key"),
        (&["--serving-secret", "a/certificate"], "expected --server-name"),
        (&["--drain-minimum", "101"], "expected at most connections.drainDeadline (1m40s), found 1m41s"),
        (&["--otlp-endpoint", "https://c:4317", "--otlp-ca", "nowhere.pem"], "nowhere.pem"),
        (&["--otlp-endpoint", "https://c:4317", "--otlp-ca", "none.pem"], "none.pem"),
        (&["--log-level", "pillion=loud"], "pillion=loud"),
    ] {
        let output = check(folder.path(), arguments);
        assert_eq!(output.status.code(), Some(1), "{arguments:?}: {}", text(&output.stdout));
        assert!(text(&output.stderr).contains(expected), "{arguments:?}: {}", text(&output.stderr));
    }
}

/// A tenant's profile that adds an image of the cluster's region.
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
    url: String,
    authority: PathBuf,
    review: String,
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
            ["dev", "--listen", "127.0.0.1:0", "--metrics-listen", "127.0.0.1:0", "--profiles", "profile.yaml"];
        let program = Program::start(&[&arguments[..], &["--config", "mount/policy.yaml"]].concat(), folder.path());
        Self {
            authority: program.word_behind("--cacert ").into(),
            review: std::fs::read_to_string(program.word_behind("--data @")).unwrap(),
            url: format!("https://{}", program.word_behind("https://")),
            versions: 1,
            program,
            folder,
        }
    }

    /// Writes another policy as the kubelet does.
    fn write(&mut self, policy: &str) {
        self.versions += 1;
        write_version(&self.folder.path().join("mount"), self.versions, policy);
    }

    fn send(&self) -> Answer {
        post(&self.url, &self.authority, &self.review)
    }

    fn metrics(&self) -> String {
        // "metrics  http://127.0.0.1:1234/metrics"
        let address = self.program.word_behind("http://");
        get(address.split('/').next().unwrap(), "/metrics").body
    }

    fn has_metric(&self, line: &str) {
        eventually(&format!("{line} in\n{}", self.metrics()), || {
            self.metrics().lines().any(|found| found == line).then_some(())
        });
    }
}

/// Writes a new folder, and then replaces the link to it atomically.
fn write_version(mount: &Path, version: u32, policy: &str) {
    let fresh = format!("..version_{version}");
    std::fs::create_dir(mount.join(&fresh)).unwrap();
    std::fs::write(mount.join(&fresh).join("policy.yaml"), format!("{HEADER}{policy}")).unwrap();
    symlink(&fresh, mount.join("..data_tmp")).unwrap();
    std::fs::rename(mount.join("..data_tmp"), mount.join("..data")).unwrap();
}

#[test]
fn a_replica_takes_over_another_log_level_unless_a_flag_says_which() {
    let folder = tempfile::tempdir().unwrap();
    TestCa::new().unwrap().serving_files(folder.path(), "tls", &["localhost"]).unwrap();
    // Bound, but never accepts a connection: an API server that does not respond.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    write_kubeconfig(folder.path(), silent.local_addr().unwrap());
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
    let address = replica.word_behind("metrics_address=");
    let told = |program: &Program| program.stderr().matches("the policy file was read again").count();
    deaf.word_behind("metrics_address=");
    let read = |times: u64| {
        let line = format!("pillion_config_reloads_total{{result=\"ok\"}} {times}");
        eventually(&line, || get(&address, "/metrics").body.lines().any(|found| found == line).then_some(()));
    };
    // The new level already applies to the report of the change.
    write("error");
    read(1);
    assert_eq!(told(&replica), 0, "{}", replica.stderr());
    write("\"info,hyper=debug\"");
    read(2);
    eventually("it is reported again", || (told(&replica) == 1).then_some(()));
    // If the file was not read before its first change, that change is not reported. With the flag, the level stays the
    // same.
    eventually("the flag wins", || (told(&deaf) >= 1).then_some(()));
}

#[test]
fn a_mounted_policy_is_followed_and_a_broken_one_leaves_the_last_good_one() {
    let mut dev = Dev::start("cluster: {region: eu-west-1}\n");
    assert!(patch(&dev.send()).unwrap().contains("eu-west-1"));
    dev.has_metric("pillion_config_last_reload_successful 1");
    dev.has_metric("pillion_config_reloads_total{result=\"ok\"} 0");

    dev.write("cluster: {region: us-east-2}\n");
    eventually("the new facts are read", || patch(&dev.send()).filter(|patch| patch.contains("us-east-2")));
    dev.program.tells("the policy file was read again");

    dev.write("cluster: {region: us-east-2}\nguardrails: {registries: [ghcr.io/others]}\n");
    eventually("the new guardrails hold", || patch(&dev.send()).is_none().then_some(()));
    dev.has_metric("pillion_config_reloads_total{result=\"ok\"} 2");

    dev.write("cluster: {region: us-east-2}\nguardrail: {}\n");
    dev.program.tells("the last valid one stays active");
    dev.program.tells("did you mean `guardrails`?");
    dev.has_metric("pillion_config_last_reload_successful 0");
    dev.has_metric("pillion_config_reloads_total{result=\"failed\"} 1");
    assert_eq!(patch(&dev.send()), None, "the previous guardrails stay active");

    dev.write("requests: {maxBody: 1Mi}\n");
    eventually("the mended file is read", || patch(&dev.send()).filter(|patch| patch.contains("nowhere")));
    dev.program.tells("takes effect at the next start only");
    dev.program.tells("requests.maxBody");
    dev.has_metric("pillion_config_restart_needed 1");
    dev.has_metric("pillion_config_last_reload_successful 1");
    dev.write("");
    dev.has_metric("pillion_config_restart_needed 0");
}
