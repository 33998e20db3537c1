//! Counts the engine's instructions and allocations. Unlike times, these counts do not depend on the machine's load.

use std::path::PathBuf;
use std::process::{Output, Stdio};
use std::time::Duration;

use anyhow::{Context, bail};
use tokio::process::Command;

use crate::Folder;
use crate::machine::Machine;
use crate::profiles::{self, ProfileText};

/// The timeout of one run of a program: about fifty times the usual duration of a run under the profiler.
const LIMIT: Duration = Duration::from_mins(3);

/// The two numbers of repetitions. The difference between their instruction counts excludes the cost of starting the
/// program.
const FEW: u32 = 100;
const MANY: u32 = 500;

/// The costs of one repetition.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Counts {
    /// Instructions to parse the review with `serde_json` and discard the values (`scan`). Other instruction counts are
    /// also reported as multiples of this one.
    pub(crate) scan: f64,
    pub(crate) one: Cost,
    pub(crate) three: Cost,
}

/// The costs of one decision.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cost {
    pub(crate) instructions: f64,
    pub(crate) allocations: u64,
}

/// Counts the instructions of the scan, and the costs of both workloads.
///
/// # Errors
/// A program fails, does not end in time, or does not print a number.
pub(crate) async fn measure(machine: &Machine, folder: &Folder) -> anyhow::Result<Counts> {
    let review = folder.write("review.json", crate::REVIEW)?;
    let example = Example { machine, folder, review };
    Ok(Counts {
        scan: example.instructions("scan", &[]).await?,
        one: example.cost(profiles::ONE).await?,
        three: example.cost(profiles::THREE).await?,
    })
}

struct Example<'m> {
    machine: &'m Machine,
    folder: &'m Folder,
    review: PathBuf,
}

impl Example<'_> {
    async fn cost(&self, profiles: &[ProfileText]) -> anyhow::Result<Cost> {
        let write = |(name, text): &ProfileText| self.folder.write(&format!("instructions/{name}.json"), text);
        let files = profiles.iter().map(write).collect::<anyhow::Result<Vec<_>>>()?;
        let mut command = Command::new(&self.machine.instructions);
        command.arg("allocations").arg(&self.review).args(&files);
        let output = String::from_utf8(output(command).await?.stdout)?;
        let allocations =
            output.trim().parse().with_context(|| format!("{output:?} is not a number of allocations"))?;
        Ok(Cost { instructions: self.instructions("answer", &files).await?, allocations })
    }

    async fn instructions(&self, work: &str, profiles: &[PathBuf]) -> anyhow::Result<f64> {
        let few = self.counted(work, FEW, profiles).await?;
        let many = self.counted(work, MANY, profiles).await?;
        Ok((many - few) / f64::from(MANY - FEW))
    }

    async fn counted(&self, work: &str, count: u32, profiles: &[PathBuf]) -> anyhow::Result<f64> {
        let mut command = Command::new("valgrind");
        command.args(["--tool=callgrind", "--callgrind-out-file=/dev/null"]).arg(&self.machine.instructions);
        command.arg(work).arg(count.to_string()).arg(&self.review).args(profiles);
        let output = output(command).await?;
        let output = String::from_utf8_lossy(&output.stderr);
        collected(&output).with_context(|| format!("valgrind printed no count: {output}"))
    }
}

async fn output(mut command: Command) -> anyhow::Result<Output> {
    let name = command.as_std().get_program().display().to_string();
    command.stdin(Stdio::null()).kill_on_drop(true);
    let ended = tokio::time::timeout(LIMIT, command.output()).await;
    let output = ended.with_context(|| format!("{name} did not end within {LIMIT:?}"))?.context(name.clone())?;
    if !output.status.success() {
        bail!("{name} failed ({}): {}", output.status, String::from_utf8_lossy(&output.stderr));
    }
    Ok(output)
}

/// Parses the count in callgrind's summary: `==42== Collected : 1234567`.
fn collected(output: &str) -> Option<f64> {
    let (_, count) = output.lines().find(|line| line.contains("Collected"))?.rsplit_once(':')?;
    count.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_count_from_summary() {
        let output = "==42== Events    : Ir\n==42== Collected : 1234567\n==42== \n";
        assert_eq!(collected(output), Some(1_234_567.0));
        assert_eq!(collected("==42== Events    : Ir\n"), None);
    }
}
