//! Runs a real Kubernetes cluster of one node, for tests that need kubelets, a scheduler and Services with real
//! addresses.
//!
//! The project's own engine runs the programs of a control plane and of a node in Linux namespaces (`cluster::node`).
//! The programs come from pinned Go modules and Debian packages. Tests use only this engine. For manual use, a cluster
//! runs in kind instead if Docker or Podman responds. Each cluster has a name and a folder. The programs are stored in
//! the tool cache (`cluster::parts`).

use std::io::PipeWriter;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use k8s_openapi::api::core::v1::Node;
use kube::api::ListParams;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Api, Client, Config};

use crate::certificates::install_crypto_provider;
use crate::eventually::eventually;

mod addresses;
mod kind;
mod lock;
mod node;
mod parts;

use lock::Lock;
pub use parts::MissingRequirement;
use parts::{Engine, Parts};

/// How long a cluster may take until its node is ready, on a busy machine.
const START_LIMIT: Duration = Duration::from_mins(4);
/// The time limit of a script or of an image import.
const COMMAND_LIMIT: Duration = Duration::from_mins(3);
/// The file in a cluster's folder that marks the cluster as owned: it ends with its owner process.
const OWNED: &str = "owned";
/// A small image whose program, `/pause [PORT]`, idles. With a port, the program answers HTTP probes on that port.
pub const PAUSE_IMAGE: &str = "local.test/pause:1";

/// A running cluster of one node. If this process owns the cluster, dropping this value ends it.
#[derive(Debug)]
pub struct Cluster {
    name: String,
    home: PathBuf,
    parts: Parts,
    /// The write end of the pipe that ends the cluster when it closes. `None`: the cluster has no owner.
    owner: Option<PipeWriter>,
    /// Prevents other processes from starting or ending the cluster, or importing images. This is the last field, so
    /// that the lock is dropped last.
    _lock: Lock,
}

/// Builds the program of [`PAUSE_IMAGE`] in a folder, so that a test can create other idle images. Returns the
/// program's path.
///
/// # Errors
/// There is no C compiler.
pub fn pause(folder: &Path) -> anyhow::Result<PathBuf> {
    let program = folder.join("pause");
    node::pause(&program)?;
    Ok(program)
}

/// Builds or fetches the programs of test clusters. The first call takes about 15 minutes on two cores; later calls
/// build nothing.
///
/// # Errors
/// This machine cannot run a cluster, or a build fails.
pub fn build() -> anyhow::Result<()> {
    parts::make_own().map(drop)
}

/// Returns the path of a static busybox, for images that need a shell and other small programs.
///
/// # Errors
/// busybox is missing, because [`build`] has not been called on this machine.
pub fn busybox() -> anyhow::Result<PathBuf> {
    Ok(parts::packages(&["--if-there"])?.join("bin/busybox"))
}

impl Cluster {
    /// Starts the cluster with this name, or resumes it with its data, unless it runs already. The cluster has no
    /// owner, so it outlives this process. Builds or fetches missing parts, which takes about 15 minutes the first
    /// time.
    ///
    /// # Errors
    /// This machine cannot run a cluster, another process uses the cluster, or the cluster does not become ready; in
    /// the last case the error names its logs.
    pub async fn up(name: &str) -> anyhow::Result<Self> {
        let (parts, home) = (parts::make()?, home_of(name)?);
        let lock = Lock::of(&home)?;
        let cluster = Self { home, name: name.to_owned(), parts, owner: None, _lock: lock };
        let runs = match &cluster.parts.engine {
            Engine::Kind { .. } => cluster.is_ready().await.is_ok(),
            Engine::Own(_) => node::runs(&cluster.home).is_ok(),
        };
        if runs {
            cluster.wait().await?;
        } else {
            cluster.start(Stdio::null()).await?;
        }
        Ok(cluster)
    }

    /// Starts a new cluster that ends when this value is dropped, or when the process exits or is killed. Always uses
    /// the project's own engine. The cluster is named after this process, so each process has at most one. Also removes
    /// clusters whose owner process has ended.
    ///
    /// # Errors
    /// As [`Cluster::up`], or a program is missing: this function does not build or fetch any.
    pub async fn owned() -> anyhow::Result<Self> {
        let parts = parts::find().map_err(anyhow::Error::new)?;
        let name = format!("t{}", std::process::id());
        let home = home_of(&name)?;
        let lock = Lock::of(&home)?;
        remove_left(&folder()?);
        let is_free = !home.exists() || home.join(OWNED).exists();
        ensure!(is_free, "a cluster {name} without an owner exists; end it with `just cluster down {name}`");
        let (reader, writer) = std::io::pipe().context("cannot create a pipe")?;
        let cluster = Self { home, name, parts, owner: Some(writer), _lock: lock };
        cluster.remove()?;
        cluster.start(reader.into()).await?;
        Ok(cluster)
    }

    /// Ends the cluster with this name and removes its data. Returns `false` if there is no such cluster.
    ///
    /// # Errors
    /// Another process uses the cluster, or its data cannot be removed.
    pub fn down(name: &str) -> anyhow::Result<bool> {
        let home = home_of(name)?;
        if !home.exists() {
            return Ok(false);
        }
        Self::end(home, name).map(|()| true)
    }

    fn end(home: PathBuf, name: &str) -> anyhow::Result<()> {
        let (parts, lock) = (parts::of(&home)?, Lock::of(&home)?);
        Self { home, name: name.to_owned(), parts, owner: None, _lock: lock }.remove()
    }

    /// Kills every process of the node at once, like a power cut, and starts them again with the same data.
    ///
    /// # Errors
    /// The node does not become ready again.
    pub async fn restart(&mut self) -> anyhow::Result<()> {
        let stdin = match &mut self.owner {
            None => Stdio::null(),
            Some(owner) => {
                let (reader, writer) = std::io::pipe().context("cannot create a pipe")?;
                *owner = writer;
                reader.into()
            }
        };
        match &self.parts.engine {
            Engine::Kind { container_engine, .. } => kind::restart(container_engine, &self.name)?,
            Engine::Own(_) => {
                node::stop(&self.home)?;
                node::start(&self.home, stdin, self.owner.is_some())?;
            }
        }
        self.wait().await
    }

    /// Imports an image archive. Pods that use it need `imagePullPolicy: IfNotPresent` or `Never`.
    ///
    /// # Errors
    /// The node does not run, or the file is not an image archive.
    pub fn load(&self, archive: &Path) -> anyhow::Result<()> {
        match &self.parts.engine {
            Engine::Kind { program, .. } => kind::load(program, &self.name, archive),
            Engine::Own(own) => node::load(&self.home, own, archive),
        }
    }

    /// Returns the cluster's name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the path of the administrator's kubeconfig.
    #[must_use]
    pub fn kubeconfig(&self) -> PathBuf {
        self.home.join("kubeconfig")
    }

    /// Returns the folder of the cluster's data. The project's own engine also writes logs there, to `log/`.
    #[must_use]
    pub fn home(&self) -> &Path {
        &self.home
    }

    /// Returns a client that authenticates as the administrator.
    ///
    /// # Errors
    /// The kubeconfig is missing.
    pub async fn client(&self) -> anyhow::Result<Client> {
        self.client_as("", &[]).await
    }

    /// Returns a client that impersonates `user` in `groups` (and in `system:authenticated`). If `user` is empty, the
    /// client is the administrator.
    ///
    /// # Errors
    /// As [`Cluster::client`].
    pub async fn client_as(&self, user: &str, groups: &[&str]) -> anyhow::Result<Client> {
        install_crypto_provider();
        let mut file = Kubeconfig::read_from(self.kubeconfig()).context("the cluster's kubeconfig")?;
        for each in file.auth_infos.iter_mut().filter_map(|each| each.auth_info.as_mut()).filter(|_| !user.is_empty()) {
            each.impersonate = Some(user.to_owned());
            each.impersonate_groups = Some(groups.iter().map(ToString::to_string).collect());
        }
        let config = Config::from_custom_kubeconfig(file, &KubeConfigOptions::default())
            .await
            .context("the cluster's kubeconfig")?;
        Client::try_from(config).context("cannot create a client for the cluster")
    }

    async fn start(&self, stdin: Stdio) -> anyhow::Result<()> {
        std::fs::create_dir_all(&self.home).with_context(|| format!("cannot create {}", self.home.display()))?;
        self.parts.note(&self.home)?;
        if self.owner.is_some() {
            std::fs::write(self.home.join(OWNED), "").context("cannot mark the cluster as owned")?;
        }
        match &self.parts.engine {
            Engine::Kind { program, .. } => kind::start(program, &self.name, &self.kubeconfig())?,
            Engine::Own(own) => {
                node::prepare(&self.home, &self.name, own)?;
                // Ends leftover processes of a run that was killed.
                node::stop(&self.home)?;
                node::start(&self.home, stdin, self.owner.is_some())?;
            }
        }
        self.wait().await
    }

    /// Waits until the node is ready. In a cluster of the project's own engine, also allows the API server to call the
    /// kubelet.
    async fn wait(&self) -> anyhow::Result<()> {
        let logs = self.home.join("log");
        eventually(START_LIMIT, "the cluster's node is ready", async || self.is_ready().await)
            .await
            .with_context(|| format!("the cluster {} does not start; its logs are in {}", self.name, logs.display()))?;
        if let Engine::Own(_) = &self.parts.engine {
            node::allow_kubelet_calls(&self.client().await?).await?;
        }
        Ok(())
    }

    async fn is_ready(&self) -> anyhow::Result<()> {
        if let Engine::Own(_) = &self.parts.engine {
            node::runs(&self.home)?;
        }
        let nodes: Api<Node> = Api::all(self.client().await?);
        let all = ListParams::default();
        let listed = tokio::time::timeout(Duration::from_secs(5), nodes.list(&all));
        let node = listed.await.context("no response")??.items.pop().context("no node")?;
        let status = node.status.context("no status")?;
        let conditions = status.conditions.unwrap_or_default();
        let ready = conditions.iter().find(|each| each.type_ == "Ready").context("no condition")?;
        ensure!(ready.status == "True", "{}", ready.message.as_deref().unwrap_or_default());
        if let Engine::Own(_) = &self.parts.engine {
            // Rejects a status that the kubelet wrote before the node was restarted.
            let beaten = ready.last_heartbeat_time.as_ref().context("no heartbeat")?;
            node::has_started_since(&self.home, &beaten.0.to_string())?;
        }
        Ok(())
    }

    fn remove(&self) -> anyhow::Result<()> {
        match &self.parts.engine {
            Engine::Kind { program, .. } => kind::delete(program, &self.name)?,
            Engine::Own(_) => node::stop(&self.home)?,
        }
        if self.home.exists() {
            std::fs::remove_dir_all(&self.home).with_context(|| format!("cannot remove {}", self.home.display()))?;
        }
        Ok(())
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        if self.owner.is_some() {
            // A failing test needs the logs for debugging.
            if std::thread::panicking() {
                node::print_logs(&self.home);
            }
            let _ = self.remove();
        }
    }
}

/// Removes the clusters of processes that have ended. A cluster whose owner still runs is locked, so it is not removed.
fn remove_left(folder: &Path) {
    let Ok(entries) = std::fs::read_dir(folder) else { return };
    for entry in entries.filter_map(Result::ok).filter(|entry| entry.path().join(OWNED).exists()) {
        // An error is ignored: a cluster that cannot be removed does not affect the next one.
        let _ = Cluster::end(entry.path(), &entry.file_name().to_string_lossy());
    }
}

/// Runs a command that must end within [`COMMAND_LIMIT`], and returns its standard output.
fn run(command: &Command) -> anyhow::Result<String> {
    run_within(COMMAND_LIMIT, command)
}

fn run_within(limit: Duration, command: &Command) -> anyhow::Result<String> {
    let line = format!("{command:?}");
    let mut limited = Command::new("timeout");
    limited.arg(limit.as_secs().to_string()).arg(command.get_program()).args(command.get_args());
    let Output { status, stdout, stderr } =
        limited.stdin(Stdio::null()).output().with_context(|| format!("cannot run {line}"))?;
    ensure!(
        status.success(),
        "{line} failed ({status}): {}{}",
        String::from_utf8_lossy(&stdout),
        String::from_utf8_lossy(&stderr)
    );
    String::from_utf8(stdout).context("the output is not UTF-8")
}

/// Returns the folder of all clusters: `PILLION_CLUSTERS` or, by default, a folder in the user's cache.
fn folder() -> anyhow::Result<PathBuf> {
    let set = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let folder = match (set("PILLION_CLUSTERS"), set("XDG_CACHE_HOME"), set("HOME")) {
        (Some(folder), _, _) => folder,
        (_, Some(cache), _) => cache.join("pillion/clusters"),
        (_, _, Some(home)) => home.join(".cache/pillion/clusters"),
        _ => bail!("no folder for clusters: set PILLION_CLUSTERS, XDG_CACHE_HOME or HOME"),
    };
    std::path::absolute(folder).context("the folder of the clusters")
}

fn home_of(name: &str) -> anyhow::Result<PathBuf> {
    // The name becomes part of the names of a network link, a cgroup and, with kind, a container.
    let fits =
        (1..=8).contains(&name.len()) && name.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit());
    ensure!(fits, "{name:?} is not a valid cluster name; expected up to 8 lower-case letters and digits");
    Ok(folder()?.join(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stale_leftovers_are_removed_others_stay() {
        let clusters = tempfile::tempdir().unwrap();
        for (name, owned) in [("t1", true), ("t2", true), ("t3", false)] {
            std::fs::create_dir(clusters.path().join(name)).unwrap();
            if owned {
                std::fs::write(clusters.path().join(name).join(OWNED), "").unwrap();
            }
        }
        let lives = Lock::of(&clusters.path().join("t2")).unwrap();
        remove_left(clusters.path());
        assert!(!clusters.path().join("t1").exists());
        assert!(clusters.path().join("t2").exists() && clusters.path().join("t3").exists());
        drop(lives);
        remove_left(clusters.path());
        assert!(!clusters.path().join("t2").exists());
    }

    #[test]
    fn rejects_invalid_link_name() {
        for name in ["", "a/b", "../x", "Upper", "ninechars"] {
            assert!(home_of(name).unwrap_err().to_string().contains("not a valid cluster name"), "{name}");
        }
        assert!(home_of("default1").unwrap().ends_with("default1"));
    }
}
