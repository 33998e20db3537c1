//! Measures the processor time of a request. Every server is measured once in each round, so that other load on the
//! machine affects all of them alike.

use std::path::Path;

use anyhow::Context;

use crate::Folder;
use crate::client::expect_containers;
use crate::load::{ClientMeasurements, Load};
use crate::machine::Machine;
use crate::profiles::{self, NAMESPACE, ProfileText};
use crate::server::{Dev, Server};

/// Worker threads of each server. One is enough, because the servers are pinned to one core.
const THREADS: u32 = 1;

/// Each server's latency is also measured at this fraction of its capacity, at which requests do not queue.
const QUARTER: f64 = 0.25;

/// All servers are also compared at the same rate, which is this fraction of the slowest server's capacity. At this
/// rate all servers sleep between requests, and wake their clients equally often.
const HALF: f64 = 0.5;

/// The amount of work: rounds, requests to each server in each round at full load, and connections.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Effort {
    pub(crate) rounds: u16,
    pub(crate) requests: u32,
    pub(crate) connections: u16,
}

/// The measurement of one server in one round.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sample {
    /// Microseconds of processor time per request.
    pub(crate) us: f64,
    pub(crate) seen: ClientMeasurements,
}

/// The measurements of one server, by round.
#[derive(Debug, Default)]
pub(crate) struct ServerMeasurements {
    /// At full load.
    pub(crate) full: Vec<Sample>,
    /// At [`QUARTER`] of its own full load.
    pub(crate) quarter: Vec<Sample>,
    /// At [`HALF`] of the slowest server's full load, the same rate for all.
    pub(crate) even: Vec<Sample>,
}

/// The measurements of all servers.
#[derive(Debug, Default)]
pub(crate) struct Measurements {
    pub(crate) floor: ServerMeasurements,
    pub(crate) one: ServerMeasurements,
    pub(crate) three: ServerMeasurements,
}

impl ServerMeasurements {
    /// Returns the median of requests per second at full load.
    pub(crate) fn capacity(&self) -> Option<f64> {
        median(self.full.iter().map(|sample| sample.seen.requests_per_second))
    }
}

impl Effort {
    /// Describes the amount of work on one line.
    pub(crate) fn describe(self) -> String {
        let Self { rounds, requests, connections } = self;
        let bytes = crate::REVIEW.len();
        format!(
            "load: {rounds} rounds of {requests} requests of {bytes} bytes, TLS, HTTP/1.1, {connections} connections; \
             then a quarter as many at a quarter of each server's capacity, and as many again at one rate for all"
        )
    }
}

/// Starts the servers, checks a response of each webhook, and measures all servers.
///
/// # Errors
/// A server does not start, responds wrongly, or fails under load.
pub(crate) async fn measure(machine: &Machine, folder: &Folder, effort: Effort) -> anyhow::Result<Measurements> {
    let body = folder.write("review.json", crate::REVIEW)?;
    let floor = Server::floor(machine, folder, THREADS).await?;
    let one = webhook(machine, folder, "one", profiles::ONE).await?;
    let three = webhook(machine, folder, "three", profiles::THREE).await?;

    let mut measurements = Measurements::default();
    let mut servers = [
        (&floor, "floor", &mut measurements.floor),
        (&one, "one", &mut measurements.one),
        (&three, "three", &mut measurements.three),
    ];
    for (server, name, _) in &servers {
        let warm_up = Effort { requests: (effort.requests / 5).max(100), ..effort };
        sample(machine, server, &body, warm_up, None, &folder.path(&format!("load-{name}-warm-up"))).await?;
    }
    for round in 0..effort.rounds {
        for (server, name, work) in &mut servers {
            let log = folder.path(&format!("load-{name}-{round}"));
            work.full.push(sample(machine, server, &body, effort, None, &log).await?);
        }
    }
    let effort = Effort { requests: (effort.requests / 4).max(100), ..effort };
    for round in 0..effort.rounds {
        for (server, name, work) in &mut servers {
            let rate = QUARTER * work.capacity().context("no round")?;
            let log = folder.path(&format!("load-{name}-quarter-{round}"));
            work.quarter.push(sample(machine, server, &body, effort, Some(rate), &log).await?);
        }
    }
    let slowest = servers.iter().filter_map(|(_, _, work)| work.capacity()).reduce(f64::min).context("no round")?;
    for round in 0..effort.rounds {
        for (server, name, work) in &mut servers {
            let log = folder.path(&format!("load-{name}-even-{round}"));
            work.even.push(sample(machine, server, &body, effort, Some(HALF * slowest), &log).await?);
        }
    }
    Ok(measurements)
}

async fn webhook(machine: &Machine, folder: &Folder, name: &str, profiles: &[ProfileText]) -> anyhow::Result<Server> {
    let arguments = [format!("--namespace={NAMESPACE}=enabled")];
    let server = Server::dev(machine, folder, Dev { name, profiles, arguments: &arguments, threads: THREADS }).await?;
    let sidecars: Vec<_> = profiles.iter().map(|(profile, _)| *profile).collect();
    expect_containers(&server, &serde_json::from_str(crate::REVIEW)?, &sidecars).await?;
    Ok(server)
}

async fn sample(
    machine: &Machine,
    server: &Server,
    body: &Path,
    effort: Effort,
    rate: Option<f64>,
    log: &Path,
) -> anyhow::Result<Sample> {
    let Effort { requests, connections, .. } = effort;
    let before = server.processor_time()?;
    let seen = Load { url: &server.url(), body, requests, connections, rate, log }.run(machine).await?;
    let used = server.processor_time()?.saturating_sub(before);
    Ok(Sample { us: used.as_secs_f64() * 1e6 / f64::from(requests), seen })
}

/// Returns the median: the middle value, or the mean of the two in the middle. `None`: there are no values.
pub(crate) fn median(values: impl Iterator<Item = f64>) -> Option<f64> {
    let mut sorted: Vec<_> = values.collect();
    sorted.sort_unstable_by(f64::total_cmp);
    let upper = *sorted.get(sorted.len() / 2)?;
    if sorted.len() % 2 == 1 {
        return Some(upper);
    }
    sorted.get(sorted.len() / 2 - 1).map(|lower| f64::midpoint(*lower, upper))
}
