//! The measured servers. Each runs in a process of its own, which ends when its [`Server`] is dropped.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::Context;
use pillion_testkit::TestCa;
use pillion_testkit::daemon::Daemon;
use tokio::net::TcpStream;

use crate::Folder;
use crate::machine::Machine;
use crate::profiles::ProfileText;

/// How long a server may take to start. With a full cluster, the server compiles the profiles first.
const START_LIMIT: Duration = Duration::from_mins(1);

/// The path that the API server calls for namespaces with the failure mode `enabled`.
pub(crate) const PATH: &str = "/mutate/enabled";

/// A running server.
#[derive(Debug)]
pub(crate) struct Server {
    daemon: Daemon,
    pub(crate) address: SocketAddr,
    /// The file with the CA certificate of the server.
    pub(crate) ca: PathBuf,
}

/// The configuration of a `pillion dev` server.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Dev<'d> {
    /// The name of the server and of its folder.
    pub(crate) name: &'d str,
    /// The cluster profiles.
    pub(crate) profiles: &'d [ProfileText],
    /// Further arguments.
    pub(crate) arguments: &'d [String],
    /// Worker threads of its runtime.
    pub(crate) threads: u32,
}

impl Server {
    /// Starts the baseline server with this many worker threads.
    ///
    /// # Errors
    /// The server cannot be started, or does not listen in time.
    pub(crate) async fn floor(machine: &Machine, folder: &Folder, threads: u32) -> anyhow::Result<Self> {
        let ca = TestCa::new()?;
        let bundle = folder.write("floor/ca.crt", ca.bundle_pem())?;
        let tls = ca.serving_files(&folder.path("floor"), "serving", &["localhost", "127.0.0.1"])?;
        let address = free_address()?;
        let mut command = machine.server_command(&machine.floor);
        command.arg("--threads").arg(threads.to_string()).arg("--listen").arg(address.to_string());
        command.arg("--tls-cert").arg(tls.cert).arg("--tls-key").arg(tls.key);
        Self::start("floor", command, address, bundle, &folder.path("floor/log")).await
    }

    /// Starts the webhook with `pillion dev`, which needs no cluster. It has the same HTTP servers and log level as in
    /// production.
    ///
    /// # Errors
    /// The server cannot be started, or does not listen in time.
    pub(crate) async fn dev(machine: &Machine, folder: &Folder, dev: Dev<'_>) -> anyhow::Result<Self> {
        let Dev { name, profiles, arguments, threads } = dev;
        for (profile, text) in profiles {
            folder.write(&format!("{name}/profiles/{profile}.json"), text)?;
        }
        let address = free_address()?;
        let mut command = machine.server_command(&machine.pillion);
        command.args(["dev", "--log-level", "info", "--log-format", "json", "--metrics-listen", "127.0.0.1:0"]);
        command.arg("--listen").arg(address.to_string()).args(arguments);
        command.arg("--profile").arg(folder.path(&format!("{name}/profiles")));
        command.arg("--folder").arg(folder.path(&format!("{name}/served")));
        command.env("TOKIO_WORKER_THREADS", threads.to_string());
        // These environment variables of the caller must not affect the measurement.
        for variable in ["OTEL_EXPORTER_OTLP_ENDPOINT", "PILLION_LOG_LEVEL", "PILLION_LOG_FORMAT"] {
            command.env_remove(variable);
        }
        let ca = folder.path(&format!("{name}/served/ca.crt"));
        Self::start(name, command, address, ca, &folder.path(&format!("{name}/log"))).await
    }

    async fn start(
        name: &str,
        mut command: Command,
        address: SocketAddr,
        ca: PathBuf,
        log: &Path,
    ) -> anyhow::Result<Self> {
        let mut daemon = Daemon::spawn(name, &mut command, log)?;
        daemon.ready(START_LIMIT, async || Ok(TcpStream::connect(address).await.map(drop)?)).await?;
        Ok(Self { daemon, address, ca })
    }

    /// Returns the URL for reviews.
    pub(crate) fn url(&self) -> String {
        format!("https://{}{PATH}", self.address)
    }

    /// Returns the processor time that the server has used so far, in user and kernel mode.
    ///
    /// # Errors
    /// The process has ended, or `/proc` lacks the value.
    pub(crate) fn processor_time(&self) -> anyhow::Result<Duration> {
        let process = PathBuf::from(format!("/proc/{}", self.daemon.pid()));
        processor_time(&process).with_context(|| format!("the processor time in {}", process.display()))
    }

    /// Returns the server's anonymous memory (without mapped files) in MiB.
    ///
    /// # Errors
    /// The process has ended, or `/proc` lacks the value.
    pub(crate) fn anonymous_memory(&self) -> anyhow::Result<f64> {
        let file = format!("/proc/{}/status", self.daemon.pid());
        let status = std::fs::read_to_string(&file).with_context(|| format!("cannot read {file}"))?;
        anonymous_memory(&status).with_context(|| format!("{file} has no RssAnon"))
    }
}

/// Returns an unused address on the loopback.
fn free_address() -> anyhow::Result<SocketAddr> {
    let listener = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).context("no port is free")?;
    listener.local_addr().context("the address of a free port")
}

/// Returns the processor time of all threads of a process. `process` is the folder of the process in `/proc`. Reads
/// `schedstat`, in nanoseconds. If the kernel has no `schedstat`, reads `utime` and `stime` of `stat`, in hundredths of
/// a second. The sum never decreases, because the measured servers do not end threads while under load.
fn processor_time(process: &Path) -> anyhow::Result<Duration> {
    let mut nanoseconds = 0_u64;
    for thread in std::fs::read_dir(process.join("task"))? {
        let Ok(text) = std::fs::read_to_string(thread?.path().join("schedstat")) else {
            return hundredths(&std::fs::read_to_string(process.join("stat"))?).context("stat has an unknown format");
        };
        let on_processor = text.split_whitespace().next().context("schedstat is empty")?;
        nanoseconds += on_processor.parse::<u64>().context("schedstat does not begin with a number")?;
    }
    Ok(Duration::from_nanos(nanoseconds))
}

/// Returns the sum of `utime` and `stime`, fields 14 and 15 of `/proc/PID/stat`. The name in field 2 may contain spaces
/// and parentheses.
fn hundredths(stat: &str) -> Option<Duration> {
    let (_, fields) = stat.rsplit_once(')')?;
    let mut times = fields.split_whitespace().skip(11);
    let (user, system): (u64, u64) = (times.next()?.parse().ok()?, times.next()?.parse().ok()?);
    Some(Duration::from_millis((user + system) * 10))
}

fn anonymous_memory(status: &str) -> Option<f64> {
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:"))?;
    let kibibytes: u32 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(f64::from(kibibytes) / 1024.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_times_after_name_with_parentheses() {
        let stat = "42 (a (b) c) S 1 42 42 0 -1 4194304 100 0 0 0 150 25 0 0 20 0 3 0 100 0 0";
        assert_eq!(hundredths(stat), Some(Duration::from_millis(1750)));
        assert_eq!(hundredths("42 (a) S 1"), None);
    }

    #[test]
    fn memory_is_in_mebibytes() {
        assert_eq!(anonymous_memory("VmRSS:\t  9000 kB\nRssAnon:\t    1536 kB\n"), Some(1.5));
        assert_eq!(anonymous_memory("VmRSS:\t  9000 kB\n"), None);
    }

    #[test]
    fn own_processor_time_grows() {
        let own = Path::new("/proc/self");
        let before = processor_time(own).unwrap();
        let mut sum = 0_u64;
        while processor_time(own).unwrap() == before {
            sum = std::hint::black_box(sum + 1);
            assert!(sum < 1_000_000, "the processor time does not increase");
        }
        assert!(processor_time(own).unwrap() > before);
    }
}
