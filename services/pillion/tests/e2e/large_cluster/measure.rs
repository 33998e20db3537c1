//! Memory, processor time and network traffic of processes, and the API server's counters.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use anyhow::{Context, Result, anyhow, ensure};
use axum::http::Request;
use pillion_testkit::ControlPlane;

use crate::direct::{memory, processor_time};

/// How often the traffic of open connections is read. The traffic of a connection that closes in between is lost.
const READ_EVERY: Duration = Duration::from_secs(1);

/// The memory and the processor time of a process.
#[derive(Clone, Copy, Debug)]
pub(super) struct Usage {
    /// The resident memory, in KiB.
    pub(super) resident: u64,
    /// The anonymous resident memory (`RssAnon`), in KiB. It excludes file-backed pages, such as those of the
    /// executable, because their number depends on the build.
    pub(super) anonymous: u64,
    pub(super) processor: Duration,
}

impl Usage {
    pub(super) fn of(pid: u32) -> Result<Self> {
        Ok(Self {
            resident: memory(pid, "VmRSS")?,
            anonymous: memory(pid, "RssAnon")?,
            processor: processor_time(pid)?,
        })
    }
}

/// The API server's metrics at one time.
pub(super) struct ApiServerMetrics(String);

impl ApiServerMetrics {
    pub(super) async fn read(control_plane: &ControlPlane) -> Result<Self> {
        let request = Request::get("/metrics").body(Vec::new())?;
        Ok(Self(control_plane.client().request_text(request).await?))
    }

    /// Returns the number of requests with the verb LIST for each resource. Each page of a list is a request.
    fn lists(&self) -> BTreeMap<&str, f64> {
        let mut lists = BTreeMap::new();
        let lines = self.0.lines().filter(|line| line.starts_with("apiserver_request_total{"));
        for line in lines.filter(|line| label(line, "verb") == Some("LIST")) {
            *lists.entry(label(line, "resource").unwrap_or_default()).or_default() += value(line);
        }
        lists
    }

    /// Returns how many requests with the verb LIST were added for each resource since `before`.
    pub(super) fn lists_since(&self, before: &Self) -> BTreeMap<String, f64> {
        let before = before.lists();
        let added = self.lists().into_iter().map(|(resource, count)| {
            let earlier = before.get(resource).copied().unwrap_or_default();
            (resource.to_owned(), count - earlier)
        });
        added.filter(|(_, count)| *count > 0.0).collect()
    }
}

/// Returns the value of a label in a line of the metrics.
fn label<'l>(line: &'l str, name: &str) -> Option<&'l str> {
    let (_, rest) = line.split_once(&format!("{name}=\""))?;
    rest.split_once('"').map(|(value, _)| value)
}

fn value(line: &str) -> f64 {
    line.rsplit(' ').next().and_then(|value| value.parse().ok()).unwrap_or_default()
}

/// Counts the bytes that each process receives from the API server, on the connections that it has opened.
#[derive(Clone, Debug)]
pub(super) struct Traffic {
    api_server: String,
    received: Arc<Mutex<Received>>,
}

#[derive(Debug, Default)]
struct Received {
    /// The last number of received bytes of each connection, by process and local address.
    connections: HashMap<(u32, String), u64>,
    processes: HashMap<u32, u64>,
}

impl Traffic {
    /// Reads the traffic until the test ends.
    pub(super) fn follow(control_plane: &ControlPlane) -> Result<Self> {
        let url = control_plane.url();
        let api_server = url.strip_prefix("https://").context("the URL of the API server")?.to_owned();
        let traffic = Self { api_server, received: Arc::default() };
        let following = traffic.clone();
        tokio::spawn(async move {
            // `received` reports the error too.
            while following.read().await.is_ok() {
                tokio::time::sleep(READ_EVERY).await;
            }
        });
        Ok(traffic)
    }

    /// Returns the number of bytes that a process has received since the beginning.
    pub(super) async fn received(&self, pid: u32) -> Result<u64> {
        self.read().await?;
        Ok(self.lock()?.processes.get(&pid).copied().unwrap_or_default())
    }

    async fn read(&self) -> Result<()> {
        // The options mean: no header, one line for each connection, TCP only, with TCP's counters, numeric, and with
        // the processes.
        let arguments = ["-H", "-O", "-t", "-i", "-n", "-p", "state", "established", "dst", &self.api_server];
        let output = tokio::process::Command::new("ss").args(arguments).output().await;
        let output = output.context("cannot run `ss`, which counts the bytes of watches; install iproute2")?;
        ensure!(output.status.success(), "ss: {}", String::from_utf8_lossy(&output.stderr));
        let mut received = self.lock()?;
        for line in String::from_utf8(output.stdout)?.lines() {
            let after = |text: &str| {
                let digits = line.split_once(text)?.1.split(|one: char| !one.is_ascii_digit()).next()?;
                digits.parse::<u64>().ok()
            };
            // A connection that has received nothing has no counter.
            let (Some(pid), Some(bytes)) = (after(",pid="), after(" bytes_received:")) else { continue };
            let local = line.split_whitespace().nth(2).context("a local address")?.to_owned();
            received.add(u32::try_from(pid)?, local, bytes);
        }
        Ok(())
    }

    fn lock(&self) -> Result<std::sync::MutexGuard<'_, Received>> {
        self.received.lock().map_err(|error| anyhow!("{error}"))
    }
}

impl Received {
    fn add(&mut self, pid: u32, local: String, bytes: u64) {
        let before = self.connections.insert((pid, local), bytes).unwrap_or_default();
        // A new connection may have the local address of a closed one.
        *self.processes.entry(pid).or_default() += if bytes < before { bytes } else { bytes - before };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_list_requests_by_resource() {
        let line = |code: u32, resource: &str, verb: &str, count: u32| {
            format!("apiserver_request_total{{code=\"{code}\",resource=\"{resource}\",verb=\"{verb}\"}} {count}\n")
        };
        let before = ApiServerMetrics(line(200, "pods", "LIST", 3) + &line(200, "namespaces", "LIST", 1));
        let after = [(200, "pods", "LIST", 5), (410, "pods", "LIST", 1), (200, "namespaces", "LIST", 1)];
        let after = after.map(|(code, resource, verb, count)| line(code, resource, verb, count)).concat();
        let after = ApiServerMetrics(after + &line(200, "pods", "WATCH", 9));
        assert_eq!(after.lists_since(&before), BTreeMap::from([("pods".to_owned(), 3.0)]));
    }

    #[test]
    fn adds_bytes_of_reused_local_address() {
        let mut received = Received::default();
        for bytes in [100, 150, 20, 30] {
            received.add(7, "10.111.0.1:40000".to_owned(), bytes);
        }
        assert_eq!(received.processes[&7], 180);
    }
}
