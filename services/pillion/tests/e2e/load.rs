//! Creates pods at a steady rate, even if the webhook does not respond, and checks every response.
//!
//! The creations are server-side dry runs: the API server does everything except the write. So the test does not
//! measure etcd, and a run of several minutes does not leave a hundred thousand pods behind.

use std::collections::BTreeMap;
use std::fmt::{self, Display};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use axum::http::Request;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use pillion_testkit::eventually;
use serde_json::{Value as Json, json};
use tokio::sync::{Notify, Semaphore};
use tokio::task::JoinHandle;
use tokio::time::MissedTickBehavior;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::rig::{Rig, annotation, deployment_pod, names};

/// Pods per second. `PILLION_RATE` overrides it.
const RATE: u64 = 30;
/// Number of pods that are created together, as by the ReplicaSet controller. So the API server opens more connections
/// than sequential creations would need, and most of them are idle.
const BATCH: u64 = 10;
/// The maximum number of concurrent creations. On a slow machine, fewer pods are created, instead of all of them being
/// delayed.
const IN_FLIGHT: usize = 30;
/// The time limit of one creation. It is longer than every timeout that applies to the request.
const LIMIT: Duration = Duration::from_secs(30);

/// The failure mode of a namespace: if the webhook does not respond, the API server creates pods unchanged, or rejects
/// them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum FailureMode {
    Enabled,
    Required,
}

impl FailureMode {
    pub(crate) const ALL: [Self; 2] = [Self::Enabled, Self::Required];

    /// Returns the value of the opt-in label. The namespace for the pods has the same name.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Enabled => "enabled",
            Self::Required => "required",
        }
    }
}

/// One creation of a pod: when it was sent, how long it took, and its result.
#[derive(Clone, Debug)]
pub(crate) struct Creation {
    pub(crate) failure_mode: FailureMode,
    pub(crate) sent: Instant,
    pub(crate) took: Duration,
    pub(crate) result: CreationResult,
}

/// The result of a creation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum CreationResult {
    /// The pod has its own containers and the sidecar, with this image.
    Injected(String),
    /// The pod was created without the sidecar.
    NotInjected,
    /// The pod was not created, or its content is wrong.
    Failed(String),
}

/// A running load, and the number of responses so far.
pub(crate) struct Load {
    answered: Arc<AtomicU64>,
    /// Notified when a batch has been sent.
    batches: Arc<Notify>,
    stop: CancellationToken,
    running: JoinHandle<Vec<Creation>>,
    began: Instant,
}

/// The results of all creations of a load.
pub(crate) struct LoadResults {
    pub(crate) all: Vec<Creation>,
    lasted: Duration,
}

impl Load {
    /// Creates a namespace for each failure mode, waits until the webhook is called for both, and starts. Pods
    /// alternate between the namespaces.
    pub(crate) async fn start(rig: &Rig) -> Result<Self> {
        Self::start_at(rig, RATE).await
    }

    /// Like [`start`](Self::start), at this rate in pods per second. `PILLION_RATE` overrides the rate.
    pub(crate) async fn start_at(rig: &Rig, rate: u64) -> Result<Self> {
        for failure_mode in FailureMode::ALL {
            rig.namespace(failure_mode.name(), Some(failure_mode.name())).await?;
            rig.wait_until_called(failure_mode.name()).await?;
        }
        let rate = count_from("PILLION_RATE", rate, 1..=2_000)?;
        let (answered, batches, stop) =
            (Arc::<AtomicU64>::default(), Arc::<Notify>::default(), CancellationToken::new());
        let sender = Sender {
            client: client(rig).await?,
            rate,
            answered: Arc::clone(&answered),
            batches: Arc::clone(&batches),
            stop: stop.clone(),
        };
        Ok(Self { answered, batches, stop, running: tokio::spawn(sender.send_all()), began: Instant::now() })
    }

    /// Waits for this many more responses.
    pub(crate) async fn wait_for_responses(&self, more: u64) -> Result<()> {
        let goal = self.answered.load(Ordering::Relaxed) + more;
        eventually(Duration::from_mins(3), "more pods have a response", async || {
            let answered = self.answered.load(Ordering::Relaxed);
            anyhow::ensure!(answered >= goal, "{answered} of {goal}");
            Ok(())
        })
        .await
    }

    /// Waits until the next batch has been sent, and then for the duration `by`.
    pub(crate) async fn wait_for_batch(&self, by: Duration) {
        self.batches.notified().await;
        tokio::time::sleep(by).await;
    }

    /// Stops the load, and waits for pending responses.
    pub(crate) async fn stop(self) -> Result<LoadResults> {
        let lasted = self.began.elapsed();
        self.stop.cancel();
        let all = tokio::time::timeout(2 * LIMIT, self.running).await.context("responses are missing")??;
        Ok(LoadResults { all, lasted })
    }
}

/// Returns a client without retries, since the test needs the API server's first response.
async fn client(rig: &Rig) -> Result<Client> {
    let file = Kubeconfig::read_from(rig.control_plane.kubeconfig())?;
    let mut config = Config::from_custom_kubeconfig(file, &KubeConfigOptions::default()).await?;
    config.default_retry = false;
    Ok(Client::try_from(config)?)
}

/// The task that creates the pods.
struct Sender {
    client: Client,
    rate: u64,
    answered: Arc<AtomicU64>,
    batches: Arc<Notify>,
    stop: CancellationToken,
}

impl Sender {
    async fn send_all(self) -> Vec<Creation> {
        let body = Arc::new(deployment_pod().to_string().into_bytes());
        let (results, mut all) = tokio::sync::mpsc::unbounded_channel();
        let (slots, tracker) = (Arc::new(Semaphore::new(IN_FLIGHT)), TaskTracker::new());
        let mut ticks = tokio::time::interval(Duration::from_micros(1_000_000 * BATCH / self.rate));
        // After a pause of this process, the load sends the missed batches, so that the average rate is preserved.
        ticks.set_missed_tick_behavior(MissedTickBehavior::Burst);
        while self.stop.run_until_cancelled(ticks.tick()).await.is_some() {
            for failure_mode in FailureMode::ALL.into_iter().cycle().zip(0..BATCH).map(|(failure_mode, _)| failure_mode)
            {
                let Ok(slot) = Arc::clone(&slots).acquire_owned().await else { break };
                let (client, body) = (self.client.clone(), Arc::clone(&body));
                let (results, answered) = (results.clone(), Arc::clone(&self.answered));
                tracker.spawn(async move {
                    let created = create(&client, failure_mode, &body).await;
                    answered.fetch_add(1, Ordering::Relaxed);
                    drop(slot);
                    let _ = results.send(created);
                });
            }
            self.batches.notify_waiters();
        }
        tracker.close();
        tracker.wait().await;
        drop(results);
        let mut created = Vec::with_capacity(all.len());
        while let Some(one) = all.recv().await {
            created.push(one);
        }
        created
    }
}

async fn create(client: &Client, failure_mode: FailureMode, body: &[u8]) -> Creation {
    let path = format!("/api/v1/namespaces/{}/pods?dryRun=All", failure_mode.name());
    let request = Request::post(path).header("content-type", "application/json").body(body.to_vec()).unwrap();
    let sent = Instant::now();
    let answer = tokio::time::timeout(LIMIT, client.request_text(request)).await;
    let took = sent.elapsed();
    let result = match answer {
        Err(_) => CreationResult::Failed(format!("no answer within {LIMIT:?}")),
        Ok(Err(kube::Error::Api(status))) => CreationResult::Failed(format!("{}: {}", status.code, status.message)),
        Ok(Err(error)) => CreationResult::Failed(error.to_string()),
        Ok(Ok(text)) => classify(&text),
    };
    Creation { failure_mode, sent, took, result }
}

fn classify(text: &str) -> CreationResult {
    let Ok(pod) = serde_json::from_str::<Json>(text) else {
        return CreationResult::Failed(format!("not a pod: {text}"));
    };
    let names = names(&pod);
    let record = annotation(&pod, "pillion.dev/injected");
    match names.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["web", "exporter"] if record.is_none() => CreationResult::NotInjected,
        ["web", "exporter", "sidecar-nginx"] if record.is_some() => {
            CreationResult::Injected(pod["spec"]["containers"][2]["image"].as_str().unwrap_or_default().to_owned())
        }
        _ => CreationResult::Failed(format!("neither unchanged nor injected: {text}")),
    }
}

impl LoadResults {
    /// Returns the creations that did not result in an injected pod, in the order of their requests.
    pub(crate) fn lost(&self) -> Vec<&Creation> {
        let mut lost: Vec<_> =
            self.all.iter().filter(|created| !matches!(created.result, CreationResult::Injected(_))).collect();
        lost.sort_by_key(|created| created.sent);
        lost
    }

    /// Writes the result of a long run to the file that `PILLION_RESULT` names. In the file, `what` is the key of
    /// `count`.
    pub(crate) fn write_result(&self, what: &str, count: u64) -> Result<()> {
        let failed = self.all.iter().filter(|created| matches!(created.result, CreationResult::Failed(_))).count();
        let not_injected = self.lost().len() - failed;
        pillion_testkit::write_result(&json!({
            what: count, "admissions": self.all.len(), "failed": failed, "not_injected": not_injected,
        }))
    }

    fn percentile(&self, percent: usize) -> Duration {
        let mut took: Vec<_> = self.all.iter().map(|created| created.took).collect();
        took.sort_unstable();
        took.get(took.len() * percent / 100).or_else(|| took.last()).copied().unwrap_or_default()
    }
}

impl Display for LoadResults {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let count =
            |wanted: fn(&CreationResult) -> bool| self.all.iter().filter(|created| wanted(&created.result)).count();
        #[expect(clippy::cast_precision_loss, reason = "the rate is only printed")]
        let rate = self.all.len() as f64 / self.lasted.as_secs_f64();
        write!(
            f,
            "{} pods in {:.0?}, {rate:.0} a second: {} failed, {} not injected; p50 {:.1?}, p99 {:.1?}, most {:.1?}",
            self.all.len(),
            self.lasted,
            count(|result| matches!(result, CreationResult::Failed(_))),
            count(|result| matches!(result, CreationResult::NotInjected)),
            self.percentile(50),
            self.percentile(99),
            self.percentile(100),
        )?;
        let mut reasons: BTreeMap<&str, usize> = BTreeMap::new();
        for created in &self.all {
            if let CreationResult::Failed(reason) = &created.result {
                *reasons.entry(reason).or_default() += 1;
            }
        }
        for (reason, times) in reasons.iter().take(10) {
            write!(f, "\n  {times} x {reason}")?;
        }
        Ok(())
    }
}

/// Returns the number in an environment variable, or `default` if the variable is not set. Fails unless the number is
/// `allowed`.
pub(crate) fn count_from(variable: &str, default: u64, allowed: std::ops::RangeInclusive<u64>) -> Result<u64> {
    let Ok(text) = std::env::var(variable) else { return Ok(default) };
    let count = text.parse().ok().filter(|count| allowed.contains(count));
    count.with_context(|| format!("{variable}={text}: expected a whole number from {allowed:?}"))
}

/// Prints the figures of a run.
#[expect(clippy::print_stdout, reason = "the figures are the result of a long test")]
pub(crate) fn print_figures(figures: &str) {
    println!("{figures}");
}
