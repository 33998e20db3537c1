//! The environment of the measurement: tools, programs and processor cores.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, bail};

/// Third-party tools: name, and Debian package.
const TOOLS: [(&str, &str); 3] = [("h2load", "nghttp2-client"), ("valgrind", "valgrind"), ("taskset", "util-linux")];

/// The command that builds the programs.
const BUILD: &str = "cargo build --release -p pillion -p pillion-testkit && \
                     cargo build --release -p pillion-engine --example instructions";

/// How the server and the load are assigned to processor cores.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pinning {
    /// The server and the load each have a core of their own.
    Separate { server: u32, load: u32 },
    /// Nothing is pinned: this process may use only one core, or its cores are unknown.
    None,
}

/// All programs, and the machine's description.
#[derive(Debug)]
pub(crate) struct Machine {
    pub(crate) pinning: Pinning,
    /// The production binary.
    pub(crate) pillion: PathBuf,
    /// The baseline server.
    pub(crate) floor: PathBuf,
    /// The engine's example program that runs under the instruction profiler.
    pub(crate) instructions: PathBuf,
    cores: usize,
    processor: String,
}

impl Machine {
    /// Finds all programs, and describes the machine.
    ///
    /// # Errors
    /// A program is missing; the error names the command that installs or builds it. Or `/proc` cannot be read.
    pub(crate) fn find() -> anyhow::Result<Self> {
        let path = std::env::var_os("PATH").unwrap_or_default();
        let missing: Vec<_> = TOOLS.into_iter().filter(|(tool, _)| !is_on(&path, tool)).collect();
        if !missing.is_empty() {
            let (tools, packages): (Vec<_>, Vec<_>) = missing.into_iter().unzip();
            bail!("{} not found; on Debian: apt-get install {}", tools.join(", "), packages.join(" "));
        }
        let own = std::env::current_exe().context("cannot find the path of this program")?;
        let folder = own.parent().context("this program is in no folder")?;
        let program = |name: &str| {
            let program = folder.join(name);
            if program.is_file() { Ok(program) } else { bail!("{} is missing; build it: {BUILD}", program.display()) }
        };
        let status = std::fs::read_to_string("/proc/self/status").context("cannot read /proc: this needs Linux")?;
        let cores = allowed_cores(&status);
        Ok(Self {
            pinning: match *cores {
                [server, load, ..] => Pinning::Separate { server, load },
                _ => Pinning::None,
            },
            pillion: program("pillion")?,
            floor: program("floor")?,
            instructions: program("examples/instructions")?,
            cores: cores.len(),
            processor: processor(),
        })
    }

    /// Describes the machine on one line.
    pub(crate) fn describe(&self) -> String {
        let pinning = match self.pinning {
            Pinning::Separate { server, load } => format!("server on core {server}, load on core {load}"),
            Pinning::None => "server and load share one core, so the times are unreliable".to_owned(),
        };
        format!("machine: {} x {}; {pinning}", self.cores, self.processor)
    }

    /// Returns a command that runs on the server's core, if the server is pinned.
    pub(crate) fn server_command(&self, program: &Path) -> Command {
        match self.pinning {
            Pinning::Separate { server, .. } => pinned(server, program.as_os_str()),
            Pinning::None => Command::new(program),
        }
    }

    /// Returns a command that runs on the load's core, if the load is pinned.
    pub(crate) fn load_command(&self, program: &str) -> Command {
        match self.pinning {
            Pinning::Separate { load, .. } => pinned(load, program.as_ref()),
            Pinning::None => Command::new(program),
        }
    }
}

/// Pins a command to a core. `taskset` executes the program in its own process, so the child's id is the program's.
fn pinned(core: u32, program: &OsStr) -> Command {
    let mut command = Command::new("taskset");
    command.arg("--cpu-list").arg(core.to_string()).arg(program);
    command
}

fn is_on(path: &OsStr, tool: &str) -> bool {
    std::env::split_paths(path).any(|folder| folder.join(tool).is_file())
}

/// Parses the cores that this process may use, from `/proc/self/status`.
fn allowed_cores(status: &str) -> Vec<u32> {
    let ranges = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:")).unwrap_or_default();
    let range = |part: &str| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        Some(first.trim().parse::<u32>().ok()?..=last.trim().parse::<u32>().ok()?)
    };
    ranges.split(',').filter_map(range).flatten().collect()
}

fn processor() -> String {
    let text = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = text.lines().find(|line| line.starts_with("model name")).and_then(|line| line.split_once(": "));
    model.map_or_else(|| "unknown processor".to_owned(), |(_, model)| model.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_allowed_cores() {
        assert_eq!(allowed_cores("Name:\tx\nCpus_allowed_list:\t0-1\n"), [0, 1]);
        assert_eq!(allowed_cores("Cpus_allowed_list:\t3,6-8\n"), [3, 6, 7, 8]);
        assert_eq!(allowed_cores("Cpus_allowed_list:\t2\n"), [2]);
        assert_eq!(allowed_cores(""), [0_u32; 0]);
    }

    #[test]
    fn searches_tools_in_every_folder() {
        let (empty, full) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        std::fs::write(full.path().join("h2load"), "").unwrap();
        let path = std::env::join_paths([empty.path(), full.path()]).unwrap();
        assert!(is_on(&path, "h2load"));
        assert!(!is_on(&path, "valgrind"));
    }
}
