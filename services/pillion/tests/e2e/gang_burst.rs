//! Creates many pods at once, as the controller of a gang-scheduled job does, and pods at a high rate. No pod may be
//! rejected or created without injection. `PILLION_PROGRAM` names the build to measure.

use std::collections::BTreeMap;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use axum::http::Request;
use pillion_testkit::{ControlPlane, Isolation, Replica};
use serde_json::{Value as Json, json};

use crate::direct::metric;
use crate::load::{FailureMode, print_figures};
use crate::rig::{Rig, deployment_pod};
use crate::writers::{Batch, Created, Writers};

const REPLICAS: u8 = 3;
/// The number of writers that create pods at the same time.
const WRITERS: usize = 64;
/// The number of pods of a gang.
const GANG: usize = 1_028;
/// The pods that are created at a high rate: their total number, and the number per second.
const STREAM: usize = 5_000;
const STREAM_RATE: u32 = 500;
/// The target for the 99th percentile of the webhook's request duration, in seconds. It depends on the machine, so the
/// test only reports whether it is reached.
const AIM: f64 = 0.001;
/// The histogram of the webhook's request durations.
const DURATIONS: &str = "pillion_webhook_request_duration_seconds";
const LIMIT: Duration = Duration::from_mins(3);

/// The webhook's request durations in a burst: for each bound in seconds, the number of requests that took at most this
/// long.
#[derive(Debug, Default)]
struct Durations(BTreeMap<String, f64>);

impl Durations {
    /// Reads the histograms of all replicas.
    async fn read(replicas: &[Replica]) -> Result<Self> {
        let mut counts = BTreeMap::new();
        for replica in replicas {
            let text = replica.metrics_text().await?;
            for line in text.lines().filter(|line| line.starts_with(&format!("{DURATIONS}_bucket{{"))) {
                let (_, bound) = line.split_once("le=\"").context("a bound")?;
                let (bound, _) = bound.split_once('"').context("a bound")?;
                // In a line of the metrics, an exemplar may follow the count.
                let count = line.split_once("} ").and_then(|(_, rest)| rest.split_whitespace().next());
                *counts.entry(bound.to_owned()).or_default() += count.context("a count")?.parse::<f64>()?;
            }
        }
        Ok(Self(counts))
    }

    fn since(self, before: &Self) -> Self {
        Self(self.0.into_iter().map(|(bound, count)| (bound.clone(), count - before.at(&bound))).collect())
    }

    fn at(&self, bound: &str) -> f64 {
        self.0.get(bound).copied().unwrap_or_default()
    }

    fn total(&self) -> f64 {
        self.at("+Inf")
    }

    /// Returns the percentage of requests within a bound.
    fn within(&self, bound: &str) -> f64 {
        100.0 * self.at(bound) / self.total()
    }

    /// Estimates a quantile by linear interpolation in its bucket, like `histogram_quantile` in `PromQL`.
    fn quantile(&self, quantile: f64) -> f64 {
        let parsed = |bound: &str| if bound == "+Inf" { f64::INFINITY } else { bound.parse().unwrap_or(f64::NAN) };
        let mut buckets: Vec<_> = self.0.iter().map(|(bound, count)| (parsed(bound), *count)).collect();
        buckets.sort_by(|(first, _), (second, _)| first.total_cmp(second));
        let rank = quantile * self.total();
        let (mut lower, mut below) = (0.0, 0.0);
        for (bound, count) in buckets {
            if count >= rank {
                let share = if count > below { (rank - below) / (count - below) } else { 1.0 };
                return if bound.is_finite() { lower + (bound - lower) * share } else { lower };
            }
            (lower, below) = (bound, count);
        }
        f64::NAN
    }
}

/// Returns the cores that this process may use.
fn cores() -> Result<Vec<u32>> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let list = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:")).context("the cores")?;
    let mut cores = Vec::new();
    for range in list.trim().split(',') {
        let (begin, end) = range.split_once('-').unwrap_or((range, range));
        cores.extend(begin.parse::<u32>()?..=end.parse()?);
    }
    Ok(cores)
}

/// Assigns the replicas to one core, and the test, the API server and etcd to the other cores. Returns a description,
/// or `None` if there is only one core.
fn pin(rig: &mut Rig) -> Result<Option<String>> {
    let cores = cores()?;
    let Some((replicas, others)) = cores.split_first().filter(|(_, others)| !others.is_empty()) else {
        return Ok(None);
    };
    let others = others.iter().map(u32::to_string).collect::<Vec<_>>().join(",");
    let api_server = rig.control_plane.api_server().context("the API server")?.pid();
    let etcd = rig.control_plane.etcd().context("etcd")?.pid();
    for pid in [std::process::id(), api_server, etcd] {
        taskset(&others, pid)?;
    }
    for replica in &mut rig.replicas {
        taskset(&replicas.to_string(), replica.process().pid())?;
    }
    Ok(Some("replicas on a core of their own".to_owned()))
}

fn taskset(cores: &str, pid: u32) -> Result<()> {
    let arguments = ["--all-tasks", "--cpu-list", "--pid", cores, &pid.to_string()];
    let output = Command::new("taskset").args(arguments).output().context("cannot run taskset")?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Ok(())
}

/// Creates pods, prints the figures, and deletes the pods. Returns the figures.
async fn burst(rig: &Rig, what: &str, cores: &str, pods: usize, rate: Option<u32>) -> Result<Json> {
    let before = Durations::read(&rig.replicas).await?;
    let batch = Batch {
        pod: deployment_pod(),
        // If the webhook does not respond in time, pods are not injected in one namespace, and rejected in the other.
        namespaces: FailureMode::ALL.map(|mode| mode.name().to_owned()).to_vec(),
        is_stored: true,
        pods,
        limit: LIMIT,
        rate,
        injected: Some("\"name\":\"sidecar-nginx\"".to_owned()),
    };
    // New connections: a controller that creates a gang was idle before.
    let created = Writers::new(&rig.control_plane, WRITERS)?.create(batch).await?;
    let durations = Durations::read(&rig.replicas).await?.since(&before);
    let shed = shed(rig).await?;
    let quantile = durations.quantile(0.99);
    let Created { lasted, not_injected, failed, .. } = &created;
    print_figures(&format!(
        "{what} ({cores}): {} pods from {WRITERS} writers in {lasted:.2?}, {} failed, {not_injected} not injected, {shed} shed; \
         p50 {:.1} ms and p99 {:.1} ms at the writers; webhook: {} requests, p50 {:.2} ms, p99 {:.2} ms, {:.1} % within \
         1 ms, {:.1} % within 2.5 ms{}",
        created.took.len(),
        created.failures(),
        created.percentile(50),
        created.percentile(99),
        durations.total(),
        durations.quantile(0.5) * 1e3,
        quantile * 1e3,
        durations.within("0.001"),
        durations.within("0.0025"),
        failed.iter().fold(String::new(), |text, (error, times)| format!("{text}\n  {times} x {error}")),
    ));
    for mode in FailureMode::ALL {
        let path = format!("/api/v1/namespaces/{}/pods", mode.name());
        rig.control_plane.client().request_text(Request::delete(path).body(Vec::new())?).await?;
    }
    Ok(json!({
        "burst": what, "cores": cores, "pods": created.took.len(), "failed": created.failures(),
        "not_injected": not_injected, "shed": shed, "seconds": rounded(lasted.as_secs_f64()),
        "p50_ms": rounded(created.percentile(50)), "p99_ms": rounded(created.percentile(99)),
        "webhook_requests": durations.total(), "webhook_p99_ms": rounded(quantile * 1e3),
        "webhook_p99_within_aim": quantile <= AIM, "within_1_ms_percent": rounded(durations.within("0.001")),
        "within_2_5_ms_percent": rounded(durations.within("0.0025")),
    }))
}

/// Returns the number of requests that replicas have shed since they started.
async fn shed(rig: &Rig) -> Result<f64> {
    let mut shed = 0.0;
    for replica in &rig.replicas {
        for mode in FailureMode::ALL {
            let series = format!("pillion_webhook_requests_total{{endpoint=\"{}\",outcome=\"shed\"}}", mode.name());
            // A series that does not exist has counted nothing.
            shed += metric(replica, &series).await.unwrap_or_default();
        }
    }
    Ok(shed)
}

fn rounded(value: f64) -> f64 {
    (value * 1e3).round() / 1e3
}

#[test]
#[ignore = "takes a minute of all processors: just nightly burst"]
fn gang_burst_loses_no_pod() {
    Isolation::new().own_network("measures times, and pins the API server").run(|| async {
        let builder = ControlPlane::builder().default_garbage_collection();
        let mut rig = Rig::start_as_in_production_with(builder, REPLICAS).await?;
        for mode in FailureMode::ALL {
            rig.namespace(mode.name(), Some(mode.name())).await?;
            rig.wait_until_called(mode.name()).await?;
        }
        rig.wait_until_served(1).await?;
        // Pinning reduces the number of processors that this process sees.
        let machine = crate::compare::machine();
        let mut bursts = Vec::new();
        for round in 1..=3 {
            bursts.push(burst(&rig, &format!("gang {round}"), "shared cores", GANG, None).await?);
        }
        bursts.push(burst(&rig, "stream", "shared cores", STREAM, Some(STREAM_RATE)).await?);
        if let Some(cores) = pin(&mut rig)? {
            for round in 1..=3 {
                bursts.push(burst(&rig, &format!("gang {round}"), &cores, GANG, None).await?);
            }
        }
        let total = |key: &str| bursts.iter().filter_map(|burst| burst[key].as_u64()).sum::<u64>();
        let (failed, not_injected) = (total("failed"), total("not_injected"));
        pillion_testkit::write_result(&json!({
            "machine": machine, "program": crate::compare::program(), "failed": failed, "not_injected": not_injected,
            "bursts": bursts,
        }))?;
        ensure!(failed == 0 && not_injected == 0, "{failed} failed, {not_injected} not injected");
        Ok(())
    });
}
