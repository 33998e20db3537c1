//! Runs clusters with kind in a container engine, for manual use; no test uses them. Each version of kind contains the
//! digest of its node image, so pinning kind also pins the image.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use super::{run, run_within};

/// The time limit for creating a cluster, which may have to pull the node image first.
const CREATE_LIMIT: Duration = Duration::from_mins(20);

fn full(name: &str) -> String {
    format!("pillion-{name}")
}

/// Creates the cluster unless it exists, and writes its kubeconfig.
pub(super) fn start(program: &Path, name: &str, kubeconfig: &Path) -> anyhow::Result<()> {
    let name = full(name);
    let known = run(Command::new(program).args(["get", "clusters"]))?;
    if known.lines().any(|line| line == name) {
        run(Command::new(program).args(["export", "kubeconfig", "--name", &name]).arg("--kubeconfig").arg(kubeconfig))?;
    } else {
        let mut create = Command::new(program);
        create.args(["create", "cluster", "--name", &name]).arg("--kubeconfig").arg(kubeconfig);
        run_within(CREATE_LIMIT, &create)?;
    }
    Ok(())
}

/// Deletes the cluster.
pub(super) fn delete(program: &Path, name: &str) -> anyhow::Result<()> {
    // With this argument, kind does not edit the user's kubeconfig.
    run(Command::new(program).args(["delete", "cluster", "--name", &full(name), "--kubeconfig", "/dev/null"])).map(drop)
}

/// Imports an image archive.
pub(super) fn load(program: &Path, name: &str, archive: &Path) -> anyhow::Result<()> {
    run(Command::new(program).args(["load", "image-archive"]).arg(archive).args(["--name", &full(name)])).map(drop)
}

/// Kills the node's container and starts it again.
pub(super) fn restart(container_engine: &str, name: &str) -> anyhow::Result<()> {
    let node = format!("{}-control-plane", full(name));
    run(Command::new(container_engine).args(["kill", &node]))?;
    run(Command::new(container_engine).args(["start", &node])).map(drop)
}
