//! Runs the project's own cluster: prepares the folder for the scripts `cluster/node.sh` and `cluster/init.sh`, and
//! runs them.
//!
//! ```text
//! HOME/node.env    settings for the scripts           HOME/state   data that survives a restart
//! HOME/etc         keys, kubeconfigs, configurations  HOME/log     one log of each program
//! HOME/images      archives imported at every start   HOME/run     files that exist while the node runs
//! ```

use std::io::Read;
use std::net::Ipv4Addr;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, SystemTime};

use anyhow::{Context, ensure};
use k8s_openapi::api::rbac::v1::ClusterRoleBinding;
use kube::api::{Api, Patch, PatchParams};
use serde_json::json;

use super::parts::{Own, SCRIPTS};
use super::{PAUSE_IMAGE, addresses, run};
use crate::certificates::TestCa;
use crate::control_plane::objects::MANAGER;
use crate::daemon::tail;
use crate::image::Image;
use crate::kubeconfig::{self, Identity};

/// Addresses of pods and Services. They are only visible inside the node, so all clusters use the same ones.
const PODS: &str = "10.245.0.0/24";
const SERVICES: &str = "10.97.0.0/16";
const FIRST_SERVICE: &str = "10.97.0.1";
/// The name with which the API server authenticates to kubelets, for logs, `exec` and `port-forward`.
const KUBELET_CLIENT: &str = "kube-apiserver-kubelet-client";
/// The users that authenticate with a token: the name of the kubeconfig, the user, and the group, if any.
const USERS: [(&str, &str, &str); 5] = [
    ("admin", "admin", "system:masters"),
    ("controller-manager", "system:kube-controller-manager", ""),
    ("scheduler", "system:kube-scheduler", ""),
    ("kubelet", "system:node:node", "system:nodes"),
    ("kube-proxy", "system:kube-proxy", ""),
];
const CONFIGURATIONS: [(&str, &str); 4] = [
    ("containerd.toml", include_str!("../../cluster/etc/containerd.toml")),
    ("kubelet.yaml", include_str!("../../cluster/etc/kubelet.yaml")),
    ("kube-proxy.yaml", include_str!("../../cluster/etc/kube-proxy.yaml")),
    ("cni/pods.conflist", include_str!("../../cluster/etc/cni.conflist")),
];

/// Writes the files that the scripts need. Existing keys are kept.
pub(super) fn prepare(home: &Path, name: &str, own: &Own) -> anyhow::Result<()> {
    for path in [home, &own.programs, &own.packages] {
        for below in ["/var/lib", "/var/log", "/run", "/sys", "/proc"] {
            ensure!(!path.starts_with(below), "{} cannot be below {below}: the node mounts its own", path.display());
        }
    }
    let text = home.to_str().filter(|text| !text.contains([' ', '\'', '"', '$', '\\', '\n', '@', '#']));
    let text =
        text.with_context(|| format!("{} contains characters that are not allowed in configurations", home.display()))?;
    for folder in ["etc/cni", "images", "log", "state"] {
        std::fs::create_dir_all(home.join(folder))
            .with_context(|| format!("cannot create {}/{folder}", home.display()))?;
    }
    let (host, node) = addresses::of(home)?;
    let env = format!(
        "ADDRESS={node}\nHOST_ADDRESS={host}\nLINK=pillion{name}\nCGROUP=pillion-{name}\nSERVICES={SERVICES}\nBIN='{}'\n\
         PACKAGES='{}'\n",
        own.programs.display(),
        own.packages.display(),
    );
    std::fs::write(home.join("node.env"), env)?;
    let packages = own.packages.to_str().context("a path")?.trim_end_matches('/');
    for (file, template) in CONFIGURATIONS {
        let filled = template.replace("@HOME@", text).replace("@PACKAGES@", packages).replace("@PODS@", PODS);
        std::fs::write(home.join("etc").join(file), filled)?;
    }
    if !home.join("kubeconfig").exists() {
        credentials(home, node)?;
    }
    let archive = home.join("images/pause.tar");
    if !archive.exists() {
        pause(&home.join("pause"))?;
        Image::new(PAUSE_IMAGE, "/pause")?.file("/pause", &home.join("pause"))?.write(&archive)?;
    }
    Ok(())
}

fn credentials(home: &Path, node: Ipv4Addr) -> anyhow::Result<()> {
    let etc = home.join("etc");
    let ca = TestCa::new()?;
    std::fs::write(etc.join("ca.crt"), ca.bundle_pem())?;
    let address = node.to_string();
    let names = [&address, FIRST_SERVICE, "127.0.0.1", "kubernetes", "kubernetes.default", "kubernetes.default.svc"];
    ca.serving_files(&etc, "apiserver", &names)?;
    ca.serving_files(&etc, "kubelet", &[&address, "node"])?;
    ca.client_files(&etc, "kubelet-client", KUBELET_CLIENT)?;
    TestCa::new()?.serving_files(&etc, "service-accounts", &["service-accounts"])?;

    let server = format!("https://{address}:6443");
    let mut tokens = Vec::new();
    for (file, user, group) in USERS {
        let token = token()?;
        let group = if group.is_empty() { String::new() } else { format!(",{group}") };
        tokens.push(format!("{token},{user},{user}{group}\n"));
        let text = kubeconfig::render(&server, &ca.bundle_pem(), &Identity::Token(&token));
        secret(&etc.join(format!("{file}.kubeconfig")), &text)?;
        if file == "admin" {
            secret(&home.join("kubeconfig"), &text)?;
        }
    }
    secret(&etc.join("tokens.csv"), &tokens.concat())
}

fn token() -> anyhow::Result<String> {
    let mut bytes = [0; 16];
    std::fs::File::open("/dev/urandom").and_then(|mut file| file.read_exact(&mut bytes)).context("no random bytes")?;
    Ok(bytes.iter().fold(String::new(), |text, byte| text + &format!("{byte:02x}")))
}

fn secret(path: &Path, text: &str) -> anyhow::Result<()> {
    use std::io::Write;
    let file = std::fs::OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(path);
    file.and_then(|mut file| file.write_all(text.as_bytes()))
        .with_context(|| format!("cannot write {}", path.display()))
}

/// Builds the program of [`PAUSE_IMAGE`] with the C compiler that the environment variable `CC` names. The default is
/// `cc`, with which Rust links.
pub(super) fn pause(program: &Path) -> anyhow::Result<()> {
    let compiler = std::env::var_os("CC").unwrap_or_else(|| "cc".into());
    let source = Path::new(SCRIPTS).join("pause.c");
    run(Command::new(compiler).args(["-static", "-Os", "-s", "-Wall", "-Werror", "-o"]).arg(program).arg(source))
        .map(drop)
}

/// Starts the node. If `owned`, the node ends when `stdin` closes.
pub(super) fn start(home: &Path, stdin: Stdio, owned: bool) -> anyhow::Result<()> {
    let log = home.join("log/node.log");
    std::fs::create_dir_all(home.join("log"))?;
    let said = std::fs::File::create(&log).with_context(|| format!("cannot write {}", log.display()))?;
    // A pipe would stay open as long as the script's background processes run, so the output goes to a file.
    let mut script = script("start", home);
    script.stdin(stdin).stdout(said.try_clone()?).stderr(said).env("OWNED", if owned { "yes" } else { "" });
    let status = script.status().context("cannot run node.sh")?;
    ensure!(status.success(), "the node does not start: {}", tail(&log, 10));
    Ok(())
}

/// Stops the node if it runs, and keeps its data.
pub(super) fn stop(home: &Path) -> anyhow::Result<()> {
    if home.join("node.env").exists() {
        run(&script("stop", home))?;
    }
    Ok(())
}

fn script(action: &str, home: &Path) -> Command {
    let mut command = Command::new("bash");
    command.arg(Path::new(SCRIPTS).join("node.sh")).arg(action).arg(home);
    command
}

/// Returns the process id of the node's process 1. Another process may have reused the id, so the function also checks
/// the command line.
fn process(home: &Path) -> anyhow::Result<String> {
    let text = std::fs::read_to_string(home.join("run/init.pid")).context("the node does not run")?;
    let process = text.trim().to_owned();
    let said = std::fs::read(Path::new("/proc").join(&process).join("cmdline")).unwrap_or_default();
    let mut arguments = said.split(|byte| *byte == 0);
    let mut next = || arguments.next().unwrap_or_default();
    // `node.sh` makes the same check.
    let is_ours = next() == b"bash" && next().ends_with(b"/init.sh") && next() == home.as_os_str().as_bytes();
    ensure!(is_ours, "the node does not run any more");
    Ok(process)
}

/// Checks that the node's process 1 runs.
pub(super) fn runs(home: &Path) -> anyhow::Result<()> {
    process(home).map(drop)
}

/// Checks that this RFC 3339 time is after the node's start. Allows for a difference of up to a second, because the
/// time has no fractions.
pub(super) fn has_started_since(home: &Path, time: &str) -> anyhow::Result<()> {
    let started = std::fs::metadata(home.join("run/init.pid"))?.modified()?;
    let time: SystemTime = time.parse::<k8s_openapi::jiff::Timestamp>()?.into();
    ensure!(time + Duration::from_secs(1) > started, "the heartbeat is from before the node's start");
    Ok(())
}

/// Imports an image archive.
pub(super) fn load(home: &Path, own: &Own, archive: &Path) -> anyhow::Result<()> {
    let socket = format!("/proc/{}/root/run/containerd/containerd.sock", process(home)?);
    let mut command = Command::new(own.programs.join("ctr"));
    command.args(["--address", &socket, "--namespace", "k8s.io", "images", "import"]).arg(archive);
    run(&command).map(drop)
}

/// Allows the API server to call kubelets as [`KUBELET_CLIENT`].
pub(super) async fn allow_kubelet_calls(client: &kube::Client) -> anyhow::Result<()> {
    let name = "testkit:kubelet-calls";
    let binding: ClusterRoleBinding = serde_json::from_value(json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding", "metadata": {"name": name},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "system:kubelet-api-admin"},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": KUBELET_CLIENT}],
    }))?;
    let bindings: Api<ClusterRoleBinding> = Api::all(client.clone());
    bindings.patch(name, &PatchParams::apply(MANAGER).force(), &Patch::Apply(&binding)).await?;
    Ok(())
}

/// Prints the last lines of each log, for a failing test.
pub(super) fn print_logs(home: &Path) {
    let Ok(entries) = std::fs::read_dir(home.join("log")) else { return };
    for path in entries.filter_map(Result::ok).map(|entry| entry.path()) {
        #[expect(clippy::print_stdout, reason = "the logs are part of the test's output")]
        {
            println!("--- the end of {}:\n{}", path.display(), tail(&path, 15));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::process::Child;
    use std::time::Instant;

    use super::*;

    /// Returns a cluster's folder and an idle process, which looks like the node's process 1.
    fn home() -> (tempfile::TempDir, Child) {
        let home = tempfile::tempdir().unwrap();
        let path = home.path();
        std::fs::create_dir(path.join("run")).unwrap();
        std::fs::write(path.join("node.env"), "LINK=pillion-none\nCGROUP=pillion-none\n").unwrap();
        std::fs::write(path.join("init.sh"), "read -r _").unwrap();
        let init = Command::new("bash").arg(path.join("init.sh")).arg(path).stdin(Stdio::piped()).spawn().unwrap();
        std::fs::write(path.join("run/init.pid"), format!("{}\n", init.id())).unwrap();
        // The command line of a new process is empty for a moment.
        let begun = Instant::now();
        while runs(path).is_err() && begun.elapsed() < Duration::from_secs(30) {
            std::thread::sleep(Duration::from_millis(5));
        }
        (home, init)
    }

    #[test]
    fn reused_process_id_is_not_the_node() {
        let (home, mut init) = home();
        runs(home.path()).unwrap();
        // This process exists, but is not a node.
        std::fs::write(home.path().join("run/init.pid"), std::process::id().to_string()).unwrap();
        assert!(runs(home.path()).unwrap_err().to_string().contains("does not run any more"));
        let own = Own { programs: "/".into(), packages: "/".into() };
        let error = load(home.path(), &own, Path::new("image.tar")).unwrap_err().to_string();
        assert!(error.contains("does not run any more"), "{error}");
        init.kill().unwrap();
        init.wait().unwrap();
    }

    #[test]
    fn node_paths_avoid_mounted_folders() {
        let home = tempfile::tempdir().unwrap();
        let own = |programs: &str, packages: &str| Own { programs: programs.into(), packages: packages.into() };
        for own in [own("/var/lib/tools", "/"), own("/opt/tools", "/run/packages")] {
            let error = prepare(home.path(), "any", &own).unwrap_err().to_string();
            assert!(error.contains("the node mounts its own"), "{error}");
        }
    }

    #[test]
    fn node_that_does_not_stop_is_kept() {
        let (home, mut init) = home();
        // The script kills the process, but it exists until this test reaps it.
        let stop = || script("stop", home.path()).env("STOP_TENTHS", "3").output().unwrap();
        let stopped = stop();
        let said = String::from_utf8_lossy(&stopped.stderr).into_owned();
        assert!(!stopped.status.success() && said.contains("does not end"), "{said}");
        assert!(home.path().join("run/init.pid").exists());
        init.wait().unwrap();
        assert!(stop().status.success());
        assert!(!home.path().join("run").exists());
    }

    #[test]
    fn cluster_of_other_folder_is_left_alone() {
        if super::super::parts::allowed().is_err() {
            // Without the privileges that a node needs, this test is skipped, like all tests that start a node.
            return;
        }
        let folder = tempfile::tempdir().unwrap();
        std::fs::copy(Path::new(SCRIPTS).join("node.sh"), folder.path().join("node.sh")).unwrap();
        std::fs::write(folder.path().join("init.sh"), "sleep 120").unwrap();
        let link = format!("p-try{}", std::process::id());
        let home = |name: &str| {
            let home = folder.path().join(name);
            std::fs::create_dir(&home).unwrap();
            let (host, _) = addresses::of(&home).unwrap();
            std::fs::write(home.join("node.env"), format!("LINK={link}\nCGROUP={link}\nHOST_ADDRESS={host}\n"))
                .unwrap();
            home
        };
        let node = |action: &str, home: &Path| {
            let mut command = Command::new("bash");
            let output = command.arg(folder.path().join("node.sh")).arg(action).arg(home).stdin(Stdio::null()).output();
            let output = output.unwrap();
            (output.status.success(), String::from_utf8_lossy(&output.stderr).into_owned())
        };
        let (one, other) = (home("one"), home("other"));
        let started = node("start", &one);
        let refused = node("start", &other);
        let ended = node("stop", &other);
        let is_there = Path::new("/sys/class/net").join(&link).exists();
        let stopped = node("stop", &one);
        assert!(started.0, "{}", started.1);
        assert!(!refused.0 && refused.1.contains("with this name already runs"), "{}", refused.1);
        assert!(ended.0 && is_there && stopped.0, "{ended:?} {is_there} {stopped:?}");
        assert!(!Path::new("/sys/class/net").join(&link).exists());
    }
}
