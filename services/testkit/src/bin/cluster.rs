//! Manages a real Kubernetes cluster of one node, for manual use. `cluster up [NAME]` starts or resumes it and prints
//! the path of its kubeconfig; `cluster down [NAME]` ends it and removes its data.

use std::path::PathBuf;

use anyhow::Context;
use clap::{Parser, Subcommand};
use pillion_testkit::Cluster;

/// Starts or ends a real Kubernetes cluster of one node. Uses kind if a container engine is installed.
#[derive(Debug, Parser)]
struct Arguments {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Start or resume the cluster; the last line of the output is KUBECONFIG=PATH.
    Up(Named),
    /// Kill all processes of the node at once, and start the node again with its data.
    Restart(Named),
    /// Import image archives into a running cluster.
    Load {
        /// The cluster's name.
        name: String,
        /// The image archives.
        #[arg(required = true)]
        archives: Vec<PathBuf>,
    },
    /// End the cluster and remove its data.
    Down(Named),
    /// Build or fetch the parts of clusters, without starting one.
    Build,
}

#[derive(Debug, clap::Args)]
struct Named {
    /// The cluster's name: up to 8 lower-case letters and digits.
    #[arg(default_value = "default")]
    name: String,
}

#[expect(clippy::print_stdout, reason = "the program prints its result")]
fn main() -> anyhow::Result<()> {
    let runtime = tokio::runtime::Runtime::new().context("cannot build a Tokio runtime")?;
    let cluster = match Arguments::parse().action {
        Action::Up(Named { name }) => runtime.block_on(Cluster::up(&name))?,
        Action::Restart(Named { name }) => {
            let mut cluster = runtime.block_on(Cluster::up(&name))?;
            runtime.block_on(cluster.restart())?;
            cluster
        }
        Action::Load { name, archives } => {
            let cluster = runtime.block_on(Cluster::up(&name))?;
            for archive in archives {
                cluster.load(&archive)?;
            }
            cluster
        }
        Action::Down(Named { name }) => {
            println!("{}", if Cluster::down(&name)? { "ended" } else { "no such cluster" });
            return Ok(());
        }
        Action::Build => return pillion_testkit::cluster::build(),
    };
    println!("logs: {}", cluster.home().join("log").display());
    println!("KUBECONFIG={}", cluster.kubeconfig().display());
    Ok(())
}
