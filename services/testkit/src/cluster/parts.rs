//! What a cluster is made of, and what a machine lacks that cannot run one.

use std::fmt::{self, Display};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, bail};

use crate::tools;

/// The programs of the project's own cluster. The first ones are also those of a control plane.
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

/// The folder with the scripts.
pub(super) const SCRIPTS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/cluster");

/// Why this machine cannot run a cluster, and what to do about it.
#[derive(Debug, Clone)]
pub struct Lacking {
    what: String,
    remedy: String,
}

/// What is used for a cluster.
#[derive(Debug, Clone)]
pub(super) struct Parts {
    pub(super) engine: Engine,
}

/// Who makes clusters.
#[derive(Debug, Clone)]
pub(super) enum Engine {
    /// kind, in containers.
    Kind {
        /// The program `kind`.
        program: PathBuf,
        /// `docker` or `podman`.
        container_engine: String,
    },
    /// The scripts beside this crate, in namespaces.
    Own(Own),
}

/// What the project's own clusters are made of.
#[derive(Debug, Clone)]
pub(super) struct Own {
    /// The folder of the programs from Go modules.
    pub(super) programs: PathBuf,
    /// The folder below which Debian's packages are: `/` where they are installed.
    pub(super) packages: PathBuf,
}

impl Lacking {
    fn new(what: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { what: what.into(), remedy: remedy.into() }
    }
}

impl Display for Lacking {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "no cluster can be had here: {} (help: {})", self.what, self.remedy)
    }
}

impl std::error::Error for Lacking {}

impl Parts {
    /// Notes in a cluster's folder who has made it.
    pub(super) fn note(&self, home: &Path) -> anyhow::Result<()> {
        let text = match &self.engine {
            Engine::Kind { container_engine, .. } => format!("kind {container_engine}"),
            Engine::Own(_) => "own".to_owned(),
        };
        std::fs::write(home.join("engine"), text).context("cannot note who makes the cluster")
    }
}

/// What is there already of the project's own, for a test. Tests kill what they find in the node's cgroup, and their clusters end
/// with them: kind promises neither.
pub(super) fn find() -> Result<Parts, Lacking> {
    const BUILD: &str = "run `just cluster build`, which builds or fetches what a cluster is made of";
    let missing = |error: anyhow::Error| Lacking::new(format!("{error:#}").trim().to_owned(), BUILD);
    allowed()?;
    let programs = tools::built_before(&PROGRAMS).map_err(missing)?;
    let packages = packages(&["--if-there"]).map_err(missing)?;
    Ok(Parts { engine: Engine::Own(Own { programs, packages }) })
}

/// The same, built and fetched where it is not there.
pub(super) fn make_own() -> anyhow::Result<Parts> {
    allowed()?;
    let packages = packages(&[])?;
    Ok(Parts { engine: Engine::Own(Own { programs: tools::built(&PROGRAMS)?, packages }) })
}

/// What a cluster to play with is made of: kind where there is a container engine, and else the project's own.
pub(super) fn make() -> anyhow::Result<Parts> {
    let Some(container_engine) = container_engine() else { return make_own() };
    Ok(Parts { engine: Engine::Kind { program: tools::program("kind")?, container_engine } })
}

/// What is needed to end the cluster of this folder.
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

/// The container engine that answers, if one does.
fn container_engine() -> Option<String> {
    let answers = |program: &&str| {
        let mut command = Command::new("timeout");
        command.args(["10", program, "info"]).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        command.status().is_ok_and(|status| status.success())
    };
    ["docker", "podman"].iter().find(|program| answers(program)).map(ToString::to_string)
}

/// Whether this process may do what the scripts do.
pub(super) fn allowed() -> Result<(), Lacking> {
    const HELP: &str = "be root on Linux; to play with, kind makes one by a container engine: `just cluster up`";
    if !cfg!(target_os = "linux") || !rustix::process::geteuid().is_root() {
        return Err(Lacking::new("the namespaces of a node are for root", HELP));
    }
    // Mounts of a kind that containers are mostly not allowed, in namespaces that go with the command.
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
            let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
            Err(Lacking::new(format!("there is no way to namespaces: {said}"), HELP))
        }
        Err(error) => Err(Lacking::new(format!("`unshare` cannot be run: {error}"), "install util-linux and iproute2")),
    }
}

fn packages(arguments: &[&str]) -> anyhow::Result<PathBuf> {
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
