//! Generates load with `h2load` over TLS and HTTP/1.1, the protocol that the API server uses for a webhook behind a
//! Service.

use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, bail};
use tokio::process::Command;

use crate::machine::Machine;

/// The time limit of one run of `h2load`: more than a hundred times the usual duration.
const LIMIT: Duration = Duration::from_mins(5);

/// The load to generate.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Load<'l> {
    pub(crate) url: &'l str,
    /// The file to post.
    pub(crate) body: &'l Path,
    pub(crate) requests: u32,
    pub(crate) connections: u16,
    /// Requests per second over all connections. `None`: no limit.
    pub(crate) rate: Option<f64>,
    /// The log file, which must not exist yet.
    pub(crate) log: &'l Path,
}

/// The latencies and the rate that the clients measured.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct ClientMeasurements {
    pub(crate) requests_per_second: f64,
    /// The median time in microseconds from the first byte of a request to the last byte of its response. Excludes the
    /// time to wait for a connection.
    pub(crate) p50_us: u32,
    pub(crate) p99_us: u32,
}

impl Load<'_> {
    /// Generates the load, and waits until all requests are answered.
    ///
    /// # Errors
    /// `h2load` fails or times out, a request has no response, or a response has a status other than 200.
    pub(crate) async fn run(self, machine: &Machine) -> anyhow::Result<ClientMeasurements> {
        let mut command = machine.load_command("h2load");
        command.args(["--h1", "--threads=1", "--header=content-type: application/json"]);
        command.arg(format!("--requests={}", self.requests)).arg(format!("--clients={}", self.connections));
        if let Some(rate) = self.rate {
            // The rate is per client.
            command.arg(format!("--rps={:.2}", rate / f64::from(self.connections)));
        }
        command.arg("--data").arg(self.body).arg("--log-file").arg(self.log).arg(self.url);
        let mut command = Command::from(command);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
        let ended = tokio::time::timeout(LIMIT, command.output()).await;
        let output = ended.with_context(|| format!("h2load did not end within {LIMIT:?}"))?.context("h2load")?;
        let all_output =
            || String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
        if !output.status.success() {
            bail!("h2load failed ({}): {}", output.status, all_output());
        }
        let log = std::fs::read_to_string(self.log).context("the log of h2load")?;
        seen(&log, self.requests).with_context(all_output)
    }
}

/// Parses `h2load`'s log. Each line has the start in microseconds, the status, and the duration in microseconds,
/// separated by tabs.
fn seen(log: &str, requests: u32) -> anyhow::Result<ClientMeasurements> {
    let mut durations = Vec::new();
    let (mut first, mut last) = (u64::MAX, 0);
    for line in log.lines() {
        let fields: Vec<_> = line.split('\t').collect();
        let [start, status, duration, ..] = fields.as_slice() else { bail!("{line:?} in h2load's log") };
        if *status != "200" {
            bail!("the response to a request has the status {status}, expected 200");
        }
        let (start, duration): (u64, u32) = (start.parse()?, duration.parse()?);
        first = first.min(start);
        last = last.max(start + u64::from(duration));
        durations.push(duration);
    }
    if u32::try_from(durations.len()).ok() != Some(requests) {
        bail!("{} of {requests} requests were answered", durations.len());
    }
    durations.sort_unstable();
    let percentile = |percent: usize| durations.get((durations.len() * percent / 100).min(durations.len() - 1));
    let took = Duration::from_micros(last.saturating_sub(first).max(1));
    Ok(ClientMeasurements {
        requests_per_second: f64::from(requests) / took.as_secs_f64(),
        p50_us: percentile(50).copied().context("no request")?,
        p99_us: percentile(99).copied().context("no request")?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_client_results_from_log() {
        let lines: Vec<_> = (0..100).map(|n| format!("{}\t200\t{}", 1_000_000 + n * 10, 100 - n)).collect();
        let seen = seen(&lines.join("\n"), 100).unwrap();
        assert_eq!((seen.p50_us, seen.p99_us), (51, 100));
        // The first request starts at 1,000,000 microseconds, and the last one ends at 1,000,991.
        assert!((seen.requests_per_second - 100.0 / 991e-6).abs() < 1.0, "{seen:?}");
    }

    #[test]
    fn failed_or_missing_request_is_error() {
        for (log, expected) in [
            ("1\t200\t5\n2\t500\t5\n", "status 500"),
            ("1\t200\t5\n2\t-1\t5\n", "status -1"),
            ("1\t200\t5\n", "1 of 2"),
            ("1 200 5\n", "in h2load's log"),
        ] {
            let error = seen(log, 2).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        }
    }
}
