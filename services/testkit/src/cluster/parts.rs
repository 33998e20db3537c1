//! Finds or builds the programs of a cluster, and checks whether this machine can run one.

use std::fmt::{self, Display};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, bail};

use crate::tools;

/// The programs of the project's own cluster that are built from Go modules. The first three also suffice for a control
/// plane without nodes.
const PROGRAMS: [&str; 10] = [
    "etcd",
    "kube-apiserver",
    "kubectl",
    "kube-controller-manager",
    "kube-scheduler",
    "kubelet",
    "kube-proxy",
    "containerd",
    "containerd-shim-runc-v2",
    "ctr",
];

/// The folder with the scripts of the project's own engine.
pub(super) const SCRIPTS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/cluster");

/// Why this machine cannot run a cluster, and what to do about it.
#[derive(Debug, Clone)]
pub struct MissingRequirement {
    what: String,
    remedy: String,
}

/// The programs that a cluster needs.
#[derive(Debug, Clone)]
pub(super) struct Parts {
    pub(super) engine: Engine,
}

/// The engine that runs clusters.
#[derive(Debug, Clone)]
pub(super) enum Engine {
    /// The tool kind, which runs nodes as containers.
    Kind {
        /// The path of `kind`.
        program: PathBuf,
        /// `docker` or `podman`.
        container_engine: String,
    },
    /// The scripts in [`SCRIPTS`], which run a node in Linux namespaces.
    Own(Own),
}

/// The folders with the programs of the project's own clusters.
#[derive(Debug, Clone)]
pub(super) struct Own {
    /// The folder of the programs that are built from Go modules.
    pub(super) programs: PathBuf,
    /// The root folder of the programs from Debian packages: `/` if the packages are installed.
    pub(super) packages: PathBuf,
}

impl MissingRequirement {
    fn new(what: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { what: what.into(), remedy: remedy.into() }
    }
}

impl Display for MissingRequirement {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "this machine cannot run a cluster: {} (help: {})", self.what, self.remedy)
    }
}

impl std::error::Error for MissingRequirement {}

impl Parts {
    /// Records the engine in a cluster's folder.
    pub(super) fn note(&self, home: &Path) -> anyhow::Result<()> {
        let text = match &self.engine {
            Engine::Kind { container_engine, .. } => format!("kind {container_engine}"),
            Engine::Own(_) => "own".to_owned(),
        };
        std::fs::write(home.join("engine"), text).context("cannot record the cluster's engine")
    }
}

/// Returns the parts of the project's own engine for a test, without building or fetching any. Tests cannot use kind:
/// they kill processes in the node's cgroup, and need clusters that end with the test process.
pub(super) fn find() -> Result<Parts, MissingRequirement> {
    const BUILD: &str = "run `just cluster build`, which builds or fetches the parts of a cluster";
    let missing = |error: anyhow::Error| MissingRequirement::new(format!("{error:#}").trim().to_owned(), BUILD);
    allowed()?;
    let programs = tools::built_before(&PROGRAMS).map_err(missing)?;
    let packages = packages(&["--if-there"]).map_err(missing)?;
    Ok(Parts { engine: Engine::Own(Own { programs, packages }) })
}

/// Returns the parts of the project's own engine. Builds or fetches missing parts.
pub(super) fn make_own() -> anyhow::Result<Parts> {
    allowed()?;
    let packages = packages(&[])?;
    Ok(Parts { engine: Engine::Own(Own { programs: tools::built(&PROGRAMS)?, packages }) })
}

/// Returns the parts of a cluster that is used manually: kind if a container engine responds, otherwise the project's
/// own engine.
pub(super) fn make() -> anyhow::Result<Parts> {
    let Some(container_engine) = container_engine() else { return make_own() };
    Ok(Parts { engine: Engine::Kind { program: tools::program("kind")?, container_engine } })
}

/// Returns the parts that are needed to end the cluster in this folder.
pub(super) fn of(home: &Path) -> anyhow::Result<Parts> {
    let noted = std::fs::read_to_string(home.join("engine")).unwrap_or_default();
    let engine = match noted.split_once(' ') {
        Some(("kind", container_engine)) => {
            Engine::Kind { program: tools::program("kind")?, container_engine: container_engine.to_owned() }
        }
        _ => Engine::Own(Own { programs: PathBuf::new(), packages: PathBuf::new() }),
    };
    Ok(Parts { engine })
}

/// Returns the container engine that responds: `docker` or `podman`. `None`: neither responds.
fn container_engine() -> Option<String> {
    let answers = |program: &&str| {
        let mut command = Command::new("timeout");
        command.args(["10", program, "info"]).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        command.status().is_ok_and(|status| status.success())
    };
    ["docker", "podman"].iter().find(|program| answers(program)).map(ToString::to_string)
}

/// Checks that this process has the privileges that the scripts need. Otherwise returns the reason and what to do about
/// it.
pub(super) fn allowed() -> Result<(), MissingRequirement> {
    const HELP: &str = "run as root on Linux; or install a container engine, for a cluster by kind (`just cluster up`)";
    if !cfg!(target_os = "linux") || !rustix::process::geteuid().is_root() {
        return Err(MissingRequirement::new("only root on Linux can create a node's namespaces", HELP));
    }
    // Tries to create a mount and a network link in temporary namespaces. Most containers lack the privileges for that.
    let tried = "mount -t tmpfs tmpfs /run && ip link add pillion-try type veth peer name pillion-tried";
    let output = Command::new("unshare")
        .args([
            "--mount",
            "--propagation",
            "private",
            "--net",
            "--pid",
            "--ipc",
            "--uts",
            "--cgroup",
            "--fork",
            "--mount-proc",
        ])
        .args(["sh", "-c", tried])
        .stdin(Stdio::null())
        .output();
    match output {
        Ok(output) if output.status.success() => Ok(()),
        Ok(output) => {
            let output = String::from_utf8_lossy(&output.stderr).trim().to_owned();
            Err(MissingRequirement::new(format!("cannot create namespaces: {output}"), HELP))
        }
        Err(error) => {
            Err(MissingRequirement::new(format!("`unshare` cannot be run: {error}"), "install util-linux and iproute2"))
        }
    }
}

/// Returns the root folder of the programs from Debian packages. With the argument `--if-there`, fetches nothing.
pub(super) fn packages(arguments: &[&str]) -> anyhow::Result<PathBuf> {
    let output = Command::new("bash")
        .arg(Path::new(SCRIPTS).join("packages.sh"))
        .args(arguments)
        .stdin(Stdio::null())
        .output()
        .context("cannot run packages.sh")?;
    if !output.status.success() {
        bail!("{}", String::from_utf8_lossy(&output.stderr).trim());
    }
    let printed = String::from_utf8(output.stdout).context("a path that is not UTF-8")?;
    Ok(PathBuf::from(printed.lines().last().context("packages.sh printed no folder")?))
}
