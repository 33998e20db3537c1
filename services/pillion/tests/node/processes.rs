//! Kills processes of containers directly on the machine, without the kubelet.

use std::path::Path;

use anyhow::{Context, Result, ensure};
use rustix::io::Errno;
use rustix::process::{Pid, Signal, kill_process};

/// Kills the processes of this node whose arguments start with these, and returns their number.
pub(crate) fn kill(node: &str, arguments: &[&str]) -> Result<usize> {
    let beginning = arguments.join("\0");
    let group = format!("/pillion-{node}/");
    let mut killed = 0;
    for entry in std::fs::read_dir("/proc").context("/proc")?.filter_map(Result::ok) {
        let Ok(id) = entry.file_name().to_string_lossy().parse::<i32>() else { continue };
        if read(&entry.path(), "cmdline").starts_with(&beginning) && read(&entry.path(), "cgroup").contains(&group) {
            match kill_process(Pid::from_raw(id).context("a process")?, Signal::KILL) {
                Ok(()) => killed += 1,
                // The process has ended in the meantime.
                Err(Errno::SRCH) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
    ensure!(killed > 0, "no process of {node} begins with {arguments:?}");
    Ok(killed)
}

fn read(process: &Path, file: &str) -> String {
    // A process that has ended in the meantime has no content.
    std::fs::read_to_string(process.join(file)).unwrap_or_default()
}
