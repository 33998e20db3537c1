//! A process that tests start, watch and signal, with a log file. It ends when its [`Daemon`] is dropped, unless it was
//! detached.

use std::collections::VecDeque;
use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use anyhow::{Context, anyhow, bail};
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, waitid};

use crate::eventually::eventually;

/// The number of log lines in an error.
const TAIL: usize = 20;

/// A running process whose output goes to a log file. Dropping this value kills the process, unless [`Daemon::detach`]
/// was called.
#[derive(Debug)]
pub struct Daemon {
    name: String,
    child: Child,
    log: PathBuf,
    detached: bool,
}

impl Daemon {
    /// Starts `command` with an empty standard input. Appends its standard output and standard error to `log`.
    ///
    /// # Errors
    /// The log cannot be written, or the program cannot be started.
    pub fn spawn(name: impl Into<String>, command: &mut Command, log: &Path) -> anyhow::Result<Self> {
        let name = name.into();
        let open = || OpenOptions::new().create(true).append(true).open(log);
        let (stdout, stderr) =
            open().and_then(|file| Ok((file, open()?))).with_context(|| format!("cannot write {}", log.display()))?;
        let child = command
            .stdin(Stdio::null())
            .stdout(stdout)
            .stderr(stderr)
            .spawn()
            .with_context(|| format!("cannot start {name} ({})", command.get_program().display()))?;
        Ok(Self { name, child, log: log.to_owned(), detached: false })
    }

    /// Returns the process id in the PID namespace of the caller.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Returns the path of the log file.
    #[must_use]
    pub fn log(&self) -> &Path {
        &self.log
    }

    /// Returns the exit status, or `None` while the process runs.
    ///
    /// # Errors
    /// The operating system does not return the status.
    pub fn exited(&mut self) -> anyhow::Result<Option<ExitStatus>> {
        self.child.try_wait().with_context(|| format!("cannot read the status of {}", self.name))
    }

    /// Waits until `probe` returns `Ok`. Fails at once if the process ends.
    ///
    /// # Errors
    /// The process ended, or was not ready within `limit`; the error contains the last lines of its log.
    pub async fn ready(
        &mut self,
        limit: Duration,
        mut probe: impl AsyncFnMut() -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        let name = self.name.clone();
        let outcome = eventually(limit, &format!("{name} is ready"), async || {
            // Once the process has ended it cannot become ready, so the wait ends.
            if let Some(status) = self.exited()? {
                return Ok(Err(anyhow!("{name} ended ({status}) before it was ready")));
            }
            probe().await.map(Ok)
        })
        .await;
        match outcome {
            Ok(Ok(())) => Ok(()),
            Ok(Err(error)) | Err(error) => Err(self.with_log(&error)),
        }
    }

    /// Waits until the process ends, without sending it a signal.
    ///
    /// # Errors
    /// The process still runs after `limit`; the error contains the last lines of its log.
    pub async fn wait(&mut self, limit: Duration) -> anyhow::Result<ExitStatus> {
        let name = self.name.clone();
        let outcome = eventually(limit, &format!("{name} has ended"), async || {
            self.exited()?.with_context(|| format!("it still runs as process {}", self.pid()))
        })
        .await;
        outcome.map_err(|error| self.with_log(&error))
    }

    /// Sends SIGTERM to the process, without waiting for its end.
    ///
    /// # Errors
    /// The process has already ended.
    pub fn terminate(&mut self) -> anyhow::Result<()> {
        self.signal(Signal::TERM).map(drop)
    }

    /// Pauses the process with SIGSTOP, so that it hangs while its connections stay open. Returns once every thread has
    /// stopped.
    ///
    /// # Errors
    /// The process has already ended.
    pub fn pause(&mut self) -> anyhow::Result<()> {
        let pid = self.signal(Signal::STOP)?;
        // The process stops only when the thread that receives the signal is scheduled. Until then, its other threads
        // continue.
        let stopped_or_ended = WaitIdOptions::STOPPED | WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
        waitid(WaitId::Pid(pid), stopped_or_ended).with_context(|| format!("cannot wait for {} to stop", self.name))?;
        Ok(())
    }

    /// Resumes the process after [`Daemon::pause`].
    ///
    /// # Errors
    /// The process has already ended.
    pub fn resume(&mut self) -> anyhow::Result<()> {
        self.signal(Signal::CONT).map(drop)
    }

    /// Kills the process with SIGKILL, and waits until it has ended.
    ///
    /// # Errors
    /// The operating system fails.
    pub fn kill(&mut self) -> anyhow::Result<()> {
        // An error means that the process has already ended and was reaped.
        let _ = self.child.kill();
        self.child.wait().with_context(|| format!("cannot wait for the end of {}", self.name))?;
        Ok(())
    }

    /// Keeps the process running after this value is dropped, and returns its process id.
    #[must_use]
    pub fn detach(mut self) -> u32 {
        self.detached = true;
        self.pid()
    }

    fn signal(&mut self, signal: Signal) -> anyhow::Result<Pid> {
        // Another process may have reused the id of a reaped process, so the exit status is checked first.
        if let Some(status) = self.exited()? {
            bail!("{} cannot be signalled: it has ended ({status})", self.name);
        }
        let pid = i32::try_from(self.pid()).ok().and_then(Pid::from_raw).context("a process id out of range")?;
        kill_process(pid, signal).with_context(|| format!("cannot signal {}", self.name))?;
        Ok(pid)
    }

    fn with_log(&self, error: &anyhow::Error) -> anyhow::Error {
        let tail = tail(&self.log, TAIL);
        anyhow!("{error:#}\n--- the end of {}:\n{tail}", self.log.display())
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        if !self.detached {
            let _ = self.kill();
        }
    }
}

/// Returns the last lines of a file, or a message if the file cannot be read.
pub(crate) fn tail(path: &Path, lines: usize) -> String {
    let file = match File::open(path) {
        Ok(file) => file,
        Err(error) => return format!("(cannot be read: {error})\n"),
    };
    let mut last = VecDeque::with_capacity(lines + 1);
    for line in BufReader::new(file).split(b'\n').map_while(Result::ok) {
        last.push_back(line);
        if last.len() > lines {
            last.pop_front();
        }
    }
    last.iter().fold(String::new(), |text, line| text + &String::from_utf8_lossy(line) + "\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str, dir: &Path) -> Daemon {
        Daemon::spawn("a script", Command::new("sh").args(["-c", script]), &dir.join("log")).unwrap()
    }

    #[tokio::test]
    async fn early_exit_is_reported_with_log() {
        let dir = tempfile::tempdir().unwrap();
        let mut daemon = shell("echo no such flag >&2; exit 3", dir.path());
        let started = std::time::Instant::now();
        let error =
            daemon.ready(Duration::from_mins(1), || async { Err(anyhow!("not yet")) }).await.unwrap_err().to_string();
        assert!(error.contains("exit status: 3") && error.contains("no such flag"), "{error}");
        assert!(started.elapsed() < Duration::from_secs(30), "the wait continued until the time limit");
    }

    #[tokio::test]
    async fn terminate_returns_programs_exit_code() {
        let dir = tempfile::tempdir().unwrap();
        let mut daemon = shell("trap 'exit 7' TERM; echo up; while :; do sleep 0.05; done", dir.path());
        let log = daemon.log().to_owned();
        daemon
            .ready(Duration::from_mins(1), async || {
                if tail(&log, 1).starts_with("up") { Ok(()) } else { Err(anyhow!("silent")) }
            })
            .await
            .unwrap();
        daemon.terminate().unwrap();
        assert_eq!(daemon.wait(Duration::from_mins(1)).await.unwrap().code(), Some(7));
        assert!(daemon.terminate().unwrap_err().to_string().contains("has ended"));
    }

    #[test]
    fn drop_kills_process() {
        let dir = tempfile::tempdir().unwrap();
        let daemon = shell("exec sleep 60", dir.path());
        let pid = Pid::from_raw(i32::try_from(daemon.pid()).unwrap()).unwrap();
        assert!(rustix::process::test_kill_process(pid).is_ok());
        drop(daemon);
        // The process was killed and reaped, so it no longer exists.
        assert!(rustix::process::test_kill_process(pid).is_err());
    }

    #[test]
    fn tail_is_end_of_file() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("log"), "one\ntwo\nthree\n").unwrap();
        assert_eq!(tail(&dir.path().join("log"), 2), "two\nthree\n");
    }
}
