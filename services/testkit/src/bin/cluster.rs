//! A real Kubernetes cluster of one node for manual use: `cluster up [NAME]` starts or resumes it and prints its
//! kubeconfig; `cluster down [NAME]` ends it and removes its data.

use std::path::PathBuf;

use anyhow::Context;
use clap::{Parser, Subcommand};
use pillion_testkit::Cluster;

/// Starts or ends a real Kubernetes cluster of one node, by kind where there is a container engine.
#[derive(Debug, Parser)]
struct Arguments {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Start it, or go on with it; the last line printed is KUBECONFIG=PATH.
    Up(Named),
    /// End every process of its node at once, and start it again with what it held.
    Restart(Named),
    /// Import archives of images into it, which `up` has started.
    Load {
        /// Its name.
        name: String,
        /// The archives.
        #[arg(required = true)]
        archives: Vec<PathBuf>,
    },
    /// End it and remove what it held.
    Down(Named),
    /// Build or fetch what clusters are made of, and start none.
    Build,
}

#[derive(Debug, clap::Args)]
struct Named {
    /// Its name: up to 8 lower-case letters and digits.
    #[arg(default_value = "default")]
    name: String,
}

#[expect(clippy::print_stdout, reason = "its output is what it is for")]
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
            println!("{}", if Cluster::down(&name)? { "ended" } else { "there was none" });
            return Ok(());
        }
        Action::Build => return pillion_testkit::cluster::build(),
    };
    println!("logs: {}", cluster.home().join("log").display());
    println!("KUBECONFIG={}", cluster.kubeconfig().display());
    Ok(())
}
