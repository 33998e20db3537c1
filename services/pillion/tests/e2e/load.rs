//! Creates pods at a steady rate during faults of the webhook, and checks every response.
//!
//! The pods are server-side dry runs: the API server does everything except the write. So etcd is not measured, and a
//! run of minutes does not leave a hundred thousand pods behind.

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

/// The default number of pods per second, which `PILLION_RATE` overrides.
const RATE: u64 = 30;
/// The number of pods that are created at once, as by a ReplicaSet controller. The API server then opens more
/// connections than sequential creations need, and most of them are usually idle.
const BATCH: u64 = 10;
/// The limit of concurrent creations. Further ones wait, so a machine that is too slow creates fewer pods instead of
/// late ones.
const IN_FLIGHT: usize = 30;
/// The timeout of one creation: more than any timeout on its way.
const LIMIT: Duration = Duration::from_secs(30);

/// The failure mode of a namespace: inject if possible, or reject the pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Level {
    Enabled,
    Required,
}

impl Level {
    pub(crate) const ALL: [Self; 2] = [Self::Enabled, Self::Required];

    /// Returns the label's value, which is also the name of the pods' namespace.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Enabled => "enabled",
            Self::Required => "required",
        }
    }
}

/// The result of one creation.
#[derive(Clone, Debug)]
pub(crate) struct Created {
    pub(crate) level: Level,
    pub(crate) sent: Instant,
    pub(crate) took: Duration,
    pub(crate) ended: Ended,
}

/// The outcome of a creation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Ended {
    /// It has its own containers and the sidecar with this image.
    Injected(String),
    /// It was created without the sidecar.
    NotInjected,
    /// It was not created, or is wrong.
    Failed(String),
}

/// A running load.
pub(crate) struct Load {
    answered: Arc<AtomicU64>,
    /// Notified when a batch has been sent.
    batches: Arc<Notify>,
    stop: CancellationToken,
    running: JoinHandle<Vec<Created>>,
    began: Instant,
}

/// The outcomes of all pods of a load.
pub(crate) struct Outcomes {
    pub(crate) all: Vec<Created>,
    lasted: Duration,
}

impl Load {
    /// Creates both namespaces and waits until the webhook is called for them. Then creates pods in both in turn.
    pub(crate) async fn start(rig: &Rig) -> Result<Self> {
        Self::start_at(rig, RATE).await
    }

    /// Like [`Self::start`] with this many pods per second; `PILLION_RATE` overrides it.
    pub(crate) async fn start_at(rig: &Rig, rate: u64) -> Result<Self> {
        for level in Level::ALL {
            rig.namespace(level.name(), Some(level.name())).await?;
            rig.is_called(level.name()).await?;
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

    /// Waits until this many more pods have been answered.
    pub(crate) async fn answers(&self, more: u64) -> Result<()> {
        let goal = self.answered.load(Ordering::Relaxed) + more;
        eventually(Duration::from_mins(3), "more pods are answered", async || {
            let answered = self.answered.load(Ordering::Relaxed);
            anyhow::ensure!(answered >= goal, "{answered} of {goal}");
            Ok(())
        })
        .await
    }

    /// Waits until the next batch is sent, and then for this time.
    pub(crate) async fn amid_a_batch(&self, by: Duration) {
        self.batches.notified().await;
        tokio::time::sleep(by).await;
    }

    /// Stops the load, and waits for the outstanding responses.
    pub(crate) async fn stop(self) -> Result<Outcomes> {
        let lasted = self.began.elapsed();
        self.stop.cancel();
        let all = tokio::time::timeout(2 * LIMIT, self.running).await.context("answers are missing")??;
        Ok(Outcomes { all, lasted })
    }
}

/// Returns a client that does not retry, since the API server's first response counts.
async fn client(rig: &Rig) -> Result<Client> {
    let file = Kubeconfig::read_from(rig.control_plane.kubeconfig())?;
    let mut config = Config::from_custom_kubeconfig(file, &KubeConfigOptions::default()).await?;
    config.default_retry = false;
    Ok(Client::try_from(config)?)
}

/// Sends the creations.
struct Sender {
    client: Client,
    rate: u64,
    answered: Arc<AtomicU64>,
    batches: Arc<Notify>,
    stop: CancellationToken,
}

impl Sender {
    async fn send_all(self) -> Vec<Created> {
        let body = Arc::new(deployment_pod().to_string().into_bytes());
        let (results, mut all) = tokio::sync::mpsc::unbounded_channel();
        let (slots, tracker) = (Arc::new(Semaphore::new(IN_FLIGHT)), TaskTracker::new());
        let mut ticks = tokio::time::interval(Duration::from_micros(1_000_000 * BATCH / self.rate));
        // Catches up after a stall of this process, since the rate models the pods' authors.
        ticks.set_missed_tick_behavior(MissedTickBehavior::Burst);
        while self.stop.run_until_cancelled(ticks.tick()).await.is_some() {
            for level in Level::ALL.into_iter().cycle().zip(0..BATCH).map(|(level, _)| level) {
                let Ok(slot) = Arc::clone(&slots).acquire_owned().await else { break };
                let (client, body) = (self.client.clone(), Arc::clone(&body));
                let (results, answered) = (results.clone(), Arc::clone(&self.answered));
                tracker.spawn(async move {
                    let created = create(&client, level, &body).await;
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

async fn create(client: &Client, level: Level, body: &[u8]) -> Created {
    let path = format!("/api/v1/namespaces/{}/pods?dryRun=All", level.name());
    let request = Request::post(path).header("content-type", "application/json").body(body.to_vec()).unwrap();
    let sent = Instant::now();
    let answer = tokio::time::timeout(LIMIT, client.request_text(request)).await;
    let took = sent.elapsed();
    let ended = match answer {
        Err(_) => Ended::Failed(format!("no answer within {LIMIT:?}")),
        Ok(Err(kube::Error::Api(status))) => Ended::Failed(format!("{}: {}", status.code, status.message)),
        Ok(Err(error)) => Ended::Failed(error.to_string()),
        Ok(Ok(text)) => looked_at(&text),
    };
    Created { level, sent, took, ended }
}

fn looked_at(text: &str) -> Ended {
    let Ok(pod) = serde_json::from_str::<Json>(text) else { return Ended::Failed(format!("no pod: {text}")) };
    let names = names(&pod);
    let record = annotation(&pod, "pillion.dev/injected");
    match names.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["web", "exporter"] if record.is_none() => Ended::NotInjected,
        ["web", "exporter", "sidecar-nginx"] if record.is_some() => {
            Ended::Injected(pod["spec"]["containers"][2]["image"].as_str().unwrap_or_default().to_owned())
        }
        _ => Ended::Failed(format!("neither as it was nor injected: {text}")),
    }
}

impl Outcomes {
    /// Returns the pods without their sidecar, in the order of creation.
    pub(crate) fn lost(&self) -> Vec<&Created> {
        let mut lost: Vec<_> = self.all.iter().filter(|created| !matches!(created.ended, Ended::Injected(_))).collect();
        lost.sort_by_key(|created| created.sent);
        lost
    }

    /// Writes the result of a long run to the file in `PILLION_RESULT`, for its recipe. `what` is the name of `count`.
    pub(crate) fn write_result(&self, what: &str, count: u64) -> Result<()> {
        let failed = self.all.iter().filter(|created| matches!(created.ended, Ended::Failed(_))).count();
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

impl Display for Outcomes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let count = |wanted: fn(&Ended) -> bool| self.all.iter().filter(|created| wanted(&created.ended)).count();
        #[expect(clippy::cast_precision_loss, reason = "a rate for people")]
        let rate = self.all.len() as f64 / self.lasted.as_secs_f64();
        write!(
            f,
            "{} pods in {:.0?}, {rate:.0} a second: {} failed, {} not injected; p50 {:.1?}, p99 {:.1?}, most {:.1?}",
            self.all.len(),
            self.lasted,
            count(|ended| matches!(ended, Ended::Failed(_))),
            count(|ended| matches!(ended, Ended::NotInjected)),
            self.percentile(50),
            self.percentile(99),
            self.percentile(100),
        )?;
        let mut reasons: BTreeMap<&str, usize> = BTreeMap::new();
        for created in &self.all {
            if let Ended::Failed(reason) = &created.ended {
                *reasons.entry(reason).or_default() += 1;
            }
        }
        for (reason, times) in reasons.iter().take(10) {
            write!(f, "\n  {times} x {reason}")?;
        }
        Ok(())
    }
}

/// Returns a count that an environment variable may override.
pub(crate) fn count_from(variable: &str, default: u64, allowed: std::ops::RangeInclusive<u64>) -> Result<u64> {
    let Ok(text) = std::env::var(variable) else { return Ok(default) };
    let count = text.parse().ok().filter(|count| allowed.contains(count));
    count.with_context(|| format!("{variable}={text}: expected a whole number from {allowed:?}"))
}

/// Prints the figures of a run for people.
#[expect(clippy::print_stdout, reason = "a long run prints its figures")]
pub(crate) fn tell(figures: &str) {
    println!("{figures}");
}
