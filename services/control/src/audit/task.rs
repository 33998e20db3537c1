//! Runs the audit as a task. The task has one watch, sends few requests at a time, and by default makes at most one
//! report per second.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use futures::StreamExt;
use futures::stream::FuturesUnordered;
use jiff::Timestamp;
use kube::Client;
use pillion_api::opt_in::OptIn;
use pillion_engine::lookup::LookedUp;
use pillion_engine::profile::ProfileName;
use pillion_engine::snapshot::Snapshot;
use pillion_json::OwnedTape;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::{Instant, MissedTickBehavior, timeout};
use tracing::{debug, info, warn};

use super::auditor::{Auditor, PodFetch, ProfilePod};
use super::facts::ClusterFacts;
use super::metrics::AuditMetrics;
use super::report::{ProfileAudit, Report};
use super::requests::{AgeRequests, Page, WebhookState, fetch, read_webhook_state, request_ages, watch_pods};
use crate::client::chain;
use crate::informer::index::Status;
use crate::informer::lookups::Lookups;
use crate::leader::LeaderContext;
use crate::release::Release;

/// Maximum number of pod changes handled at once.
const CHANGE_BATCH: usize = 256;
/// Number of judged pods after which the task continues with other work. All pods of a namespace are judged without a
/// break.
pub(super) const JUDGE_BATCH: usize = 2_000;
/// Maximum number of namespaces whose age the audit requests for one report. The same limit applies to profiles.
const MAX_AGE_REQUESTS: usize = 16;

/// Maximum pause between two retries of failed lookups.
const MAX_RETRY_PAUSE: Duration = Duration::from_mins(1);

/// Settings of the audit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AuditSettings {
    /// Minimum time between two reports. Without changes, there is no new report.
    pub report_every: Duration,
    /// Time between two checks of whether the webhook is unavailable or disabled.
    pub webhook_check_interval: Duration,
    /// Maximum number of concurrent requests for whole pods. Each reads at most twenty pods, and a page may take sixty
    /// million bytes of memory.
    pub requests: usize,
    /// Minimum time between the starts of two requests.
    pub pause: Duration,
    /// Minimum time before the next request after a failed one.
    pub pause_after_failure: Duration,
    /// Pause before failed lookups of a pod are retried. It doubles, up to a minute, as long as lookups fail.
    pub lookup_retry_pause: Duration,
    /// Timeout of a request for pods, and of reading the state of the webhook.
    pub request_limit: Duration,
    /// Maximum number of findings with details. All findings are counted.
    pub max_findings: usize,
    /// The labels that opt a namespace in.
    pub opt_in: OptIn,
}

impl Default for AuditSettings {
    /// Reports at most every second, reads the webhook's state every 5 s, and retries failed lookups after 10 s. Sends
    /// at most 2 requests at once, with pauses of 5 ms, or of 3 s after a failure, and with a timeout of 10 s. Reports
    /// details of 1000 findings.
    fn default() -> Self {
        Self {
            report_every: Duration::from_secs(1),
            webhook_check_interval: Duration::from_secs(5),
            requests: 2,
            pause: Duration::from_millis(5),
            pause_after_failure: Duration::from_secs(3),
            lookup_retry_pause: Duration::from_secs(10),
            request_limit: Duration::from_secs(10),
            max_findings: 1_000,
            opt_in: OptIn::default(),
        }
    }
}

/// The results of the audit, for the tasks that write conditions and reports.
#[derive(Clone, Debug, Default)]
pub struct Audited {
    /// The last report. Its `profiles` have display names: `nginx`, `team-a/logger`.
    pub report: Arc<Report>,
}

impl Audited {
    /// Returns the pod counts of a profile; `None` if the report does not have the profile.
    #[must_use]
    pub fn profile(&self, name: &ProfileName) -> Option<ProfileAudit> {
        self.report.profiles.get(name.to_string().as_str()).copied()
    }

    /// Returns the pod counts of each profile, by display name.
    #[must_use]
    pub fn profiles(&self) -> &BTreeMap<Box<str>, ProfileAudit> {
        &self.report.profiles
    }
}

/// The state of the audit's task.
struct Task {
    client: Client,
    release: Arc<Release>,
    settings: AuditSettings,
    metrics: AuditMetrics,
    reads: Reads,
    facts: ClusterFacts,
    auditor: Auditor,
    /// The pause after the next retry of failed lookups. The current pause ends at `retry_at`.
    retry_pause: Duration,
    retry_at: Instant,
    /// Whether anything has changed since the last report.
    is_stale: bool,
}

/// Sources that profiles may read besides the pod and its namespace. If a source is missing, profiles that read it are
/// undecided.
#[derive(Clone, Debug, Default)]
pub struct Reads {
    /// Looks up service accounts, owners and declared objects.
    pub lookups: Option<Lookups>,
    /// The platform's facts about the cluster; `None` leaves profiles that read them undecided.
    pub cluster: Option<Arc<OwnedTape>>,
}

/// The inputs and outputs of the audit's task.
#[derive(Debug)]
pub struct AuditChannels {
    /// Profiles and namespaces, as a [`crate::Publisher`] publishes them.
    pub published: Arc<ArcSwap<Snapshot>>,
    /// The publisher's status. Nothing is audited before its first snapshot.
    pub status: watch::Receiver<Status>,
    /// Sources that profiles may read besides the pod and its namespace.
    pub reads: Reads,
    /// The metrics of the last report.
    pub metrics: AuditMetrics,
    /// The channel to the tasks that write conditions and reports. Only changed results are sent.
    pub audited: watch::Sender<Audited>,
    /// Questions of other tasks.
    pub questions: mpsc::Receiver<AuditQuestion>,
}

/// A question of another task to the audit.
#[derive(Debug)]
pub enum AuditQuestion {
    /// Requests the audited pods whose record lists a profile. Completed and terminating pods are not audited. Until
    /// all pods are listed, `answer` is dropped without a value.
    PodsWith {
        /// The profile's display name.
        profile: Box<str>,
        /// Receives the pods.
        answer: oneshot::Sender<Vec<ProfilePod>>,
    },
    /// Requests the report about the pods of one namespace.
    Namespace {
        /// The name of the namespace.
        name: Box<str>,
        /// Maximum number of findings with details.
        most: usize,
        /// Receives the report.
        answer: oneshot::Sender<Report>,
    },
}

/// Audits while this controller leads. Writes nothing to the cluster.
pub async fn run(leading: LeaderContext, parts: AuditChannels, settings: AuditSettings) {
    let LeaderContext { client, release, stop } = leading;
    let AuditChannels { published, mut status, reads, metrics, audited, questions } = parts;
    let synced = async { status.wait_for(|status| status.synced).await.is_ok() };
    let is_synced = stop.run_until_cancelled(synced).await;
    if is_synced == Some(true) {
        let mut auditor = Auditor::new(published.load_full(), now());
        auditor.set_excluded(BTreeSet::from([release.namespace().into()]), now());
        let facts = ClusterFacts::default();
        let shown = metrics.clone();
        let (retry_pause, retry_at) = (settings.lookup_retry_pause, Instant::now() + settings.lookup_retry_pause);
        let task =
            Task { client, release, settings, metrics, reads, facts, auditor, retry_pause, retry_at, is_stale: true };
        Box::pin(stop.run_until_cancelled(task.follow(&published, &audited, questions))).await;
        // Clear the metrics, since the next leader reports them from now on.
        shown.publish(Arc::default());
    }
}

impl Task {
    async fn follow(
        mut self,
        published: &ArcSwap<Snapshot>,
        audited: &watch::Sender<Audited>,
        mut questions: mpsc::Receiver<AuditQuestion>,
    ) {
        let mut pods = watch_pods(&self.client).boxed().ready_chunks(CHANGE_BATCH);
        let mut reports = tokio::time::interval(self.settings.report_every);
        let mut state_reads = tokio::time::interval(self.settings.webhook_check_interval);
        for ticks in [&mut reports, &mut state_reads] {
            ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        }
        let mut next_fetch = Instant::now();
        let mut pod_fetch = None;
        let mut in_flight = FuturesUnordered::new();
        // The excluded namespaces must be known before the first pod is judged.
        let mut more_to_judge = self.read_webhook_state().await;
        loop {
            if pod_fetch.is_none() && in_flight.len() < self.settings.requests {
                pod_fetch = self.auditor.next_fetch();
            }
            tokio::select! {
                // Cancelling a branch loses nothing: changes that are not in a batch yet remain in the stream, and a
                // fetch that waits has not started.
                batch = pods.next() => {
                    let Some(batch) = batch else { return };
                    for change in batch {
                        self.auditor.update(change);
                        tokio::task::coop::consume_budget().await;
                    }
                    self.is_stale = true;
                }
                _ = reports.tick() => {
                    let snapshot = published.load_full();
                    if !Arc::ptr_eq(self.auditor.snapshot(), &snapshot) {
                        more_to_judge |= self.auditor.set_snapshot(snapshot, now());
                        self.is_stale = true;
                    }
                    if self.is_stale && !more_to_judge {
                        self.report(audited).await;
                    }
                }
                _ = state_reads.tick() => {
                    more_to_judge |= self.read_webhook_state().await;
                    self.retry_failed_lookups();
                }
                () = tokio::time::sleep_until(next_fetch), if pod_fetch.is_some() => {
                    next_fetch = Instant::now() + self.settings.pause;
                    if let Some(pod_fetch) = pod_fetch.take() {
                        in_flight.push(execute(self.client.clone(), pod_fetch, self.settings.request_limit));
                    }
                }
                Some((pod_fetch, fetched)) = in_flight.next() => {
                    if !self.apply_fetched(pod_fetch, fetched).await {
                        next_fetch = Instant::now() + self.settings.pause_after_failure;
                    }
                }
                Some(question) = questions.recv() => self.answer(question),
                () = tokio::task::yield_now(), if more_to_judge => {
                    more_to_judge = self.auditor.judge(JUDGE_BATCH);
                }
            }
        }
    }

    /// Answers a question. The task that asked may have ended.
    fn answer(&self, question: AuditQuestion) {
        match question {
            AuditQuestion::PodsWith { profile, answer } => {
                if let Some(pods) = self.auditor.pods_with(&profile) {
                    let _ = answer.send(pods);
                }
            }
            AuditQuestion::Namespace { name, most, answer } => {
                let _ = answer.send(self.auditor.namespace_report(&name, &self.facts, most));
            }
        }
    }

    /// Applies the result of a fetch. Returns whether it succeeded.
    async fn apply_fetched(&mut self, pod_fetch: PodFetch, fetched: kube::Result<Page>) -> bool {
        self.is_stale = true;
        self.metrics.requested(fetched.is_ok());
        match fetched {
            Ok((pods, next)) => {
                for pod in &pods {
                    judge_whole(&mut self.auditor, &self.reads, pod).await;
                    tokio::task::coop::consume_budget().await;
                }
                self.auditor.done(&pod_fetch, next, !pods.is_empty());
                true
            }
            Err(error) => {
                warn!(
                    error = chain(&error),
                    namespace = pod_fetch.namespace(),
                    "pods could not be read for the audit; trying again"
                );
                self.auditor.failed(pod_fetch);
                false
            }
        }
    }

    async fn report(&mut self, audited: &watch::Sender<Audited>) {
        let mut report = self.auditor.report(&self.facts, self.settings.max_findings);
        let requests = AgeRequests { client: &self.client, opt_in: &self.settings.opt_in, most: MAX_AGE_REQUESTS };
        if request_ages(requests, &self.auditor, &mut self.facts, &report).await {
            report = self.auditor.report(&self.facts, self.settings.max_findings);
        }
        let asks = !report.asked_namespaces.is_empty() || !report.asked_profiles.is_empty();
        self.is_stale = asks && report.total() > 0;
        let report = Arc::new(report);
        self.metrics.publish(Arc::clone(&report));
        let before = Arc::clone(&audited.borrow().report);
        if before == report {
            return;
        }
        audited.send_replace(Audited { report: Arc::clone(&report) });
        if before.is_complete != report.is_complete || before.counts != report.counts {
            info!(
                complete = report.is_complete,
                findings = report.total(),
                missing = report.pods.missing,
                outdated = report.pods.outdated,
                orphaned = report.pods.orphaned,
                injected = report.pods.injected,
                "pods were audited"
            );
        }
    }

    /// Schedules another read of pods with failed lookups, unless the pause between two retries has not passed yet.
    fn retry_failed_lookups(&mut self) {
        if Instant::now() < self.retry_at {
            return;
        }
        let any = self.auditor.retry_failed_lookups() > 0;
        let pause = if any { self.retry_pause } else { self.settings.lookup_retry_pause };
        self.retry_at = Instant::now() + pause;
        self.retry_pause = (pause * if any { 2 } else { 1 }).min(MAX_RETRY_PAUSE);
    }

    /// Reads the webhook's availability, the kill switch and the excluded namespaces. A failed request changes nothing.
    /// Returns whether pods must be judged again.
    async fn read_webhook_state(&mut self) -> bool {
        let state = timeout(self.settings.request_limit, read_webhook_state(&self.client, &self.release)).await;
        let mut more_to_judge = false;
        match state {
            Ok(Ok(WebhookState { registered, has_endpoint, is_off, excluded, opt_in: _ })) => {
                let now = now();
                if let Some(excluded) = excluded {
                    self.is_stale |= self.auditor.excluded() != &excluded;
                    more_to_judge = self.auditor.set_excluded(excluded, now);
                }
                self.facts.unavailable.add_sample(now, registered.is_none() || !has_endpoint);
                self.facts.disabled.add_sample(now, is_off);
                if self.facts.registered != registered && registered.is_some() {
                    self.facts.registered = registered;
                    self.is_stale = true;
                }
            }
            Ok(Err(error)) => debug!(error = chain(&error), "the state of the webhook could not be read"),
            Err(_) => debug!("the state of the webhook could not be read in time"),
        }
        more_to_judge
    }
}

/// Executes a fetch, with `limit` as timeout.
async fn execute(client: Client, pod_fetch: PodFetch, limit: Duration) -> (PodFetch, kube::Result<Page>) {
    let fetched = timeout(limit, fetch(&client, &pod_fetch)).await;
    let late = |_| Err(kube::Error::Service(format!("no response within {limit:?}").into()));
    (pod_fetch, fetched.unwrap_or_else(late))
}

/// Judges a whole pod, with the lookups that it needs.
pub(super) async fn judge_whole(auditor: &mut Auditor, reads: &Reads, pod: &OwnedTape) {
    let pod = pod.root();
    let text = |key| pod.at(&["metadata", key]).and_then(pillion_json::Value::as_str).unwrap_or_default();
    let mut looked_up = LookedUp::default();
    if let Some(lookups) = reads.lookups.as_ref().filter(|_| auditor.waits(&text("namespace"), &text("name"))) {
        let wanted = auditor.needs(pod);
        if wanted.service_account.is_some() || wanted.owners.is_some() || !wanted.objects.is_empty() {
            looked_up = lookups.get(wanted).await;
        }
    }
    looked_up.cluster = reads.cluster.clone().or_else(LookedUp::unknown_cluster);
    auditor.whole(pod, &looked_up);
}

/// Returns the seconds since 1970 by the local clock, for comparison with the API server's times.
pub(super) fn now() -> i64 {
    Timestamp::now().as_second()
}

#[cfg(test)]
mod tests;
