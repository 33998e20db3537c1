//! The benchmark: measures the webhook's cost of a request and, in the same run, the lowest cost of a comparable
//! server.
//!
//! ```text
//! cargo build --release -p pillion -p pillion-testkit && cargo build --release -p pillion-engine --example instructions
//! target/release/bench [--quick]
//! ```
//!
//! It prints a table, and one JSON object as the last line. docs/benchmarks.md explains each figure. All traffic stays
//! on the machine's loopback.

mod machine;
mod load;
mod profiles;
mod instructions;
mod server;
mod client;
mod memory;
mod rounds;
mod report;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, bail};
use clap::Parser;
use tokio::signal::unix::{SignalKind, signal};

use crate::machine::Machine;
use crate::report::Report;
use crate::rounds::Effort;

/// The captured review that all measurements use.
const REVIEW: &str = include_str!("../../../../engine/tests/reviews/create-deployment-pod.json");

/// The exit code if the machine lacks something that the benchmark needs.
const CANNOT_MEASURE: u8 = 2;

/// Measures the webhook's cost of a request, and the lowest cost of a comparable server.
#[derive(Debug, Parser)]
struct Arguments {
    /// Number of rounds; each round measures every server once.
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u16).range(1..=100))]
    rounds: u16,
    /// Number of requests to each server in each round at full load.
    #[arg(long, value_name = "N", default_value_t = 20_000, value_parser = clap::value_parser!(u32).range(100..=1_000_000))]
    requests: u32,
    /// Number of connections to each server.
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u16).range(1..=64))]
    connections: u16,
    /// Run three rounds of 4,000 requests: enough to detect an exceeded limit, but not to compare two builds.
    #[arg(long, conflicts_with_all = ["rounds", "requests"])]
    quick: bool,
    /// Exit with code 1 if the processor time for one or three profiles, or the memory, exceeds its limit.
    #[arg(long)]
    gate: bool,
}

impl Arguments {
    fn effort(&self) -> Effort {
        let (rounds, requests) = if self.quick { (3, 4_000) } else { (self.rounds, self.requests) };
        Effort { rounds, requests, connections: self.connections }
    }
}

/// The temporary folder of this run.
#[derive(Debug)]
struct Folder(tempfile::TempDir);

impl Folder {
    fn new() -> anyhow::Result<Self> {
        let folder = tempfile::Builder::new().prefix("pillion-bench-").tempdir().context("cannot create a folder")?;
        Ok(Self(folder))
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// Writes a file, and creates its folders if necessary.
    fn write(&self, name: &str, text: impl AsRef<[u8]>) -> anyhow::Result<PathBuf> {
        let path = self.path(name);
        std::fs::create_dir_all(path.parent().unwrap_or_else(|| Path::new(".")))
            .and_then(|()| std::fs::write(&path, text))
            .with_context(|| format!("cannot write {}", path.display()))?;
        Ok(path)
    }
}

#[expect(clippy::print_stderr, reason = "errors go to standard error")]
fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let machine = match Machine::find() {
        Ok(machine) => machine,
        Err(error) => {
            eprintln!("error: {error:#}");
            return ExitCode::from(CANNOT_MEASURE);
        }
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let ended = runtime.context("cannot build a Tokio runtime").and_then(|runtime| {
        runtime.block_on(async {
            // Whichever future ends first, the child processes are dropped, which kills them.
            tokio::select! {
                measured = measure(&machine, &arguments) => measured,
                asked = asked_to_end() => asked,
            }
        })
    });
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

async fn asked_to_end() -> anyhow::Result<()> {
    let mut terminate = signal(SignalKind::terminate()).context("cannot wait for SIGTERM")?;
    tokio::select! {
        _ = terminate.recv() => bail!("ended by SIGTERM"),
        interrupted = tokio::signal::ctrl_c() => {
            interrupted.context("cannot wait for SIGINT")?;
            bail!("interrupted")
        }
    }
}

#[expect(clippy::print_stdout, reason = "the benchmark prints its figures")]
async fn measure(machine: &Machine, arguments: &Arguments) -> anyhow::Result<()> {
    let effort = arguments.effort();
    let folder = Folder::new()?;
    println!("{}", machine.describe());
    println!("{}", effort.describe());
    let measurements = rounds::measure(machine, &folder, effort).await.context("measuring time")?;
    let counts = instructions::measure(machine, &folder).await.context("counting instructions")?;
    let memory = memory::measure(machine, &folder).await.context("measuring memory")?;
    let report = Report::new(&measurements, &counts, &memory)?;
    println!("\n{}", report.table(&measurements, &counts, &memory));
    println!("{}", report.line()?);
    match report.broken() {
        Some(broken) if arguments.gate => bail!("{broken}"),
        _ => Ok(()),
    }
}
