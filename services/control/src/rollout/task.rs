//! The loop of the leader. Each round reads the pods with a running upgrade, and completes these upgrades or takes them
//! back. Then it decides the state of each profile's rollout, writes it, and changes further pods.
//!
//! A changed state is written before any pod is changed because of it. The write fails if another leader has written
//! meanwhile, and then nothing is changed.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use futures::{FutureExt, StreamExt, stream};
use jiff::Timestamp;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use kube::api::{DynamicObject, ListParams};
use kube::client::Body;
use kube::runtime::events::EventType;
use kube::{Api, Client};
use pillion_api::kinds::{UpgradePhase, UpgradeStatus};
use pillion_api::names::UPGRADING_LABEL;
use pillion_api::profile::RolloutStrategy;
use pillion_engine::in_place::{ContainerChange, ContainerList, RunningUpgrade};
use pillion_engine::lookup::LookedUp;
use pillion_engine::select::is_in_share;
use pillion_engine::snapshot::Snapshot;
use pillion_json::OwnedTape;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use tokio::sync::{Mutex, mpsc, oneshot, watch};
use tokio::time::{Instant, Interval, MissedTickBehavior};
use tracing::{info, warn};

use super::budgets::{self, Disruption};
use super::change::pods as api_of;
use super::evictions::{self, Evicted, Eviction};
use super::judge::{self, Group, Verdict};
use super::known::Known;
use super::marked::{self, MarkedPod, Written, pod_timeout};
use super::metrics::{RolloutMetrics, UpgradeResult};
use super::progress::{baseline, is_ready, name as container_name, statuses};
use super::pull::{self, FRESH_FOR, ImageState, PULL_LIMIT, PullSite, Puller};
use super::render::{PlanError, Planner, PodUpgrade, Target, Upgrade, read_annotation};
use super::steps::{self, PodStates, Situation};
use super::{MANAGER, RolloutSettings};
use crate::audit::{PodsQuestion, ProfilePod, uid_number};
use crate::client::{chain, lists};
use crate::informer::index::Status;
use crate::informer::lookups::Lookups;
use crate::leader::LeaderContext;
use crate::revisions::{Followed, profile_event, profile_status};

/// Minimum time between two writes of a status in which only counts have changed. Each write is sent to all replicas.
const COUNTS_INTERVAL: Duration = Duration::from_secs(10);
/// Maximum number of pods of each group that are compared.
const SAMPLE: usize = 50;
/// The number of pods that are read at the same time for a comparison.
const CONCURRENT_READS: usize = 4;
/// Maximum number of upgrades that are planned in one round for one profile, so that other profiles are not delayed.
const PLANS: usize = 32;
/// Minimum time between two writes of the status of a rollout that has ended.
const ENDED_INTERVAL: Duration = Duration::from_mins(10);
/// Maximum time from the start of a leader's term until all profiles are compiled.
const SETTLED_AFTER: Duration = Duration::from_mins(1);
/// Time between two deletions of pods that pulled images.
const CLEAN_INTERVAL: Duration = Duration::from_mins(1);
/// How long the status must have published a share of the workloads before pods are evicted. All replicas use the share
/// by then.
const PUBLISHED_AFTER: Duration = Duration::from_secs(10);
/// Maximum number of reasons in a message.
const MAX_REASONS: usize = 3;

/// The inputs and outputs of the task.
#[derive(Debug)]
pub struct RolloutChannels {
    /// Profiles and namespaces, as a [`crate::Publisher`] publishes them.
    pub published: Arc<ArcSwap<Snapshot>>,
    /// The profiles whose running pods are upgraded.
    pub followed: watch::Receiver<Option<Vec<Followed>>>,
    /// The publisher's status. No pod is changed before its first snapshot.
    pub status: watch::Receiver<Status>,
    /// Sends questions about the pods of a profile to the audit.
    pub questions: mpsc::Sender<PodsQuestion>,
    /// Looks up the objects that profiles read.
    pub lookups: Lookups,
    /// The metrics.
    pub metrics: RolloutMetrics,
}

struct Task {
    client: Client,
    settings: RolloutSettings,
    channels: RolloutChannels,
    planner: Planner,
    /// Pulls the images of namespaced profiles. It has no credentials, because a tenant must not get an image with the
    /// platform's credentials.
    tenant_pulls: (PullSite, Puller),
    /// Pulls the images of cluster profiles.
    platform_pulls: (PullSite, Puller),
    /// The state of rollouts in memory, by display name of the profile.
    known: HashMap<String, Known>,
    /// The profiles and namespaces of the last round, with guardrails.
    active: (Arc<Snapshot>, Arc<Snapshot>),
    /// When the term began.
    began: Instant,
    /// When pods that pull images were last deleted.
    cleaned: Instant,
    /// Whether marked pods must be read even if no profile is followed.
    has_marked: bool,
}

/// Upgrades running pods while this controller leads.
pub async fn run(leading: LeaderContext, channels: RolloutChannels, settings: RolloutSettings) {
    let LeaderContext { client, release, stop } = leading;
    let client = paced(client, settings.requests_per_second);
    let metrics = channels.metrics.clone();
    let secrets: Value = settings.pull_secrets.iter().map(|name| json!({"name": name})).collect();
    let site = |secrets| PullSite { namespace: release.namespace().to_owned(), secrets };
    let task = Task {
        planner: Planner::new(
            client.clone(),
            channels.lookups.clone(),
            settings.cluster.clone().or_else(LookedUp::unknown_cluster),
        ),
        tenant_pulls: (site(json!([])), Puller::default()),
        platform_pulls: (site(secrets), Puller::default()),
        client,
        settings,
        channels,
        known: HashMap::new(),
        active: Default::default(),
        began: Instant::now(),
        cleaned: Instant::now(),
        has_marked: true,
    };
    // A round that is interrupted between two writes is continued by the next leader.
    tokio::select! {
        () = stop.cancelled_owned() => {}
        () = task.follow().boxed() => {}
    }
    metrics.reset();
}

/// Returns a client that sends at most this many requests per second.
fn paced(client: Client, per_second: u32) -> Client {
    let mut ticks = tokio::time::interval(Duration::from_secs(1) / per_second.max(1));
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let ticks: Arc<Mutex<Interval>> = Arc::new(Mutex::new(ticks));
    let namespace = client.default_namespace().to_owned();
    let service = tower::service_fn(move |request: http::Request<Body>| {
        let (client, ticks) = (client.clone(), Arc::clone(&ticks));
        async move {
            ticks.lock().await.tick().await;
            client.send(request).await
        }
    });
    Client::new(service, namespace)
}

impl Task {
    async fn follow(mut self) {
        // Wait until the profiles and namespaces are known. No upgrade can be planned without them.
        let synced = self.channels.status.wait_for(|status| status.synced).await.is_ok();
        if !synced || self.channels.followed.wait_for(Option::is_some).await.is_err() {
            return std::future::pending().await;
        }
        let mut ticks = tokio::time::interval(self.settings.interval);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            if let Err(error) = self.round().await {
                warn!(error = chain(&error), "running pods could not be upgraded; trying again");
            }
        }
    }

    async fn round(&mut self) -> kube::Result<()> {
        let followed = self.channels.followed.borrow().clone().unwrap_or_default();
        self.known.retain(|name, _| followed.iter().any(|profile| profile.name.to_string() == *name));
        if followed.is_empty() && !self.has_marked {
            return Ok(());
        }
        let published = self.channels.published.load_full();
        if !Arc::ptr_eq(&self.active.0, &published) {
            let active = published.as_ref().clone().with_guardrails(self.settings.guardrails.clone());
            self.active = (published, Arc::new(active));
        }
        let context = marked::Context {
            client: &self.client,
            planner: &self.planner,
            active: &self.active.1,
            followed: &followed,
            is_settled: self.began.elapsed() > SETTLED_AFTER,
            metrics: &self.channels.metrics,
        };
        let marked = context.continue_all().await?;
        self.has_marked = !marked.is_empty();
        let mut failed = 0;
        let mut ongoing: Vec<_> = marked.iter().filter_map(MarkedPod::disruption).collect();
        // A tenant's rollout must not delay those of the platform.
        let (of_platform, of_tenants): (Vec<_>, Vec<_>) =
            followed.into_iter().partition(|profile| profile.name.namespace.is_none());
        for profile in of_platform.into_iter().chain(of_tenants) {
            let name = profile.name.to_string();
            match self.roll_out(&profile, &name, &marked, &mut ongoing).await {
                Ok(has_failed) => failed += usize::from(has_failed),
                Err(error) => {
                    warn!(profile = name, error = chain(&error), "the rollout could not continue; trying again");
                }
            }
        }
        if self.cleaned.elapsed() > CLEAN_INTERVAL {
            pull::delete_pods(&self.client, &self.platform_pulls.0.namespace, PULL_LIMIT + FRESH_FOR).await?;
            self.cleaned = Instant::now();
        }
        let running = marked.iter().filter(|pod| pod.upgraded.running.is_some()).count();
        self.channels.metrics.show(running, failed);
        Ok(())
    }

    /// Continues the rollout of a profile. Returns whether it has failed.
    async fn roll_out(
        &mut self,
        profile: &Followed,
        name: &str,
        marked: &[MarkedPod],
        ongoing: &mut Vec<(String, Disruption)>,
    ) -> kube::Result<bool> {
        let has_failed = |status: &UpgradeStatus| status.phase.has_failed();
        let before = profile.upgrade.as_ref().filter(|before| before.revision == profile.revision);
        let known = self.known.entry(name.to_owned()).or_default();
        if known.replaced.is_some() && known.replaced == profile.resource_version {
            return Ok(before.is_some_and(has_failed));
        }
        let Some(mut pods) = pods_with(&self.channels.questions, name).await else {
            return Ok(before.is_some_and(has_failed));
        };
        // The order depends only on the revision and the pods. So each revision begins with other pods, and all leaders
        // use the same order.
        pods.sort_by_cached_key(|pod| rank(&profile.revision, pod.uid));
        // A marked pod without the profile is ignored, since any user who may change the pod can set the label and the
        // annotation.
        let listed: HashSet<u128> = pods.iter().map(|pod| pod.uid).collect();
        let marked: Vec<_> = marked.iter().filter(|pod| listed.contains(&pod.uid)).collect();
        let running: HashSet<u128> = marked.iter().filter(|pod| pod.changes(name)).map(|pod| pod.uid).collect();
        let busy: HashSet<u128> =
            marked.iter().filter(|pod| pod.upgraded.running.is_some()).map(|pod| pod.uid).collect();
        let (revision, previous) = (&*profile.revision, before.and_then(|before| before.previous_revision.as_deref()));
        let mut situation = Situation {
            rollout: &profile.rollout,
            before,
            revision,
            promoted: profile.promoted.as_deref(),
            is_rollback: profile.is_rollback,
            request: profile.steering.as_deref(),
            pods: PodStates::default(),
            failure: None,
            verdict: None,
            waits: None,
            now: Timestamp::now().as_second(),
        };
        let restarts = profile.rollout.strategy == Some(RolloutStrategy::Restart);
        let percent = steps::percent(&situation, &steps::start(&situation));
        let in_share = if restarts { in_share(percent, name, &pods) } else { HashSet::new() };
        self.follow_evictions(profile, name, &pods).await?;
        let known = self.known.entry(name.to_owned()).or_default();
        let has_obstacle = |pod: &ProfilePod, to: &str| known.obstacle(pod.uid, to).is_some();
        let count =
            |is: &dyn Fn(&ProfilePod) -> bool| pods.iter().filter(|pod| !running.contains(&pod.uid) && is(pod)).count();
        let is_away = |pod: &ProfilePod| previous.is_some_and(|to| *pod.revision != *to);
        let counts = PodStates {
            all: pods.len(),
            upgraded: count(&|pod| *pod.revision == *revision),
            running: running.len() + known.evictions.len(),
            not_in_place: count(&|pod| *pod.revision != *revision && has_obstacle(pod, revision)),
            away: count(&is_away),
            stuck: count(&|pod| is_away(pod) && previous.is_some_and(|to| has_obstacle(pod, to))),
            left_in_share: count(&|pod| {
                *pod.revision != *revision && in_share.contains(&pod.uid) && !has_obstacle(pod, revision)
            }),
        };
        let failure = failure(name, revision, &marked)
            .or_else(|| known.pull_failure(pod_timeout(profile)))
            .or_else(|| known.eviction_failure());
        let is_closed = !steps::is_window_open(&profile.rollout, situation.now);
        let closed = is_closed.then_some("no window of the rollout is open");
        let waits: Vec<_> =
            closed.into_iter().chain(known.waits.iter().map(String::as_str)).take(MAX_REASONS).collect();
        let waits = (!waits.is_empty()).then(|| waits.join("; "));
        let published_for = known.published_for(profile.published_percent);
        situation.pods = counts;
        situation.failure = failure.as_deref();
        situation.waits = waits.as_deref();
        let verdict = self.verdict(name, &situation, &pods, &busy).await?;
        situation.verdict = verdict.as_ref();
        let status = steps::next(&situation);
        let is_new_state = before.is_none_or(|before| state(before) != state(&status));
        let is_stored = self.record(profile, name, &status, is_new_state).await?;
        if is_new_state || !is_stored {
            return Ok(has_failed(&status));
        }
        let limit = steps::capacity(&profile.rollout, counts);
        let work = match (status.phase, previous) {
            (UpgradePhase::Upgrading | UpgradePhase::Complete, _) if !is_closed => {
                Some((revision, false, limit.min(steps::left(&situation, &status))))
            }
            (UpgradePhase::SteppingBack | UpgradePhase::SteppedBack, Some(previous)) => Some((previous, true, limit)),
            _ => None,
        };
        if let Some((to, is_step_back, limit)) = work {
            self.known.entry(name.to_owned()).or_default().forget(&listed);
            let is_candidate = |pod: &&ProfilePod| {
                let is_selected = is_step_back || !restarts || in_share.contains(&pod.uid);
                *pod.revision != *to && !busy.contains(&pod.uid) && is_selected
            };
            let candidates = pods.iter().filter(is_candidate);
            let restart = restarts.then(|| self.restart(profile, percent, published_for, situation.now));
            let change = Change { name, revision, to, is_step_back, restart };
            self.change_pods(change, candidates, limit, ongoing).await?;
        }
        Ok(has_failed(&status))
    }

    /// Compares upgraded pods with others. `None` if this is not the phase or the time for it.
    async fn verdict(
        &mut self,
        name: &str,
        situation: &Situation<'_>,
        pods: &[ProfilePod],
        busy: &HashSet<u128>,
    ) -> kube::Result<Option<Verdict>> {
        let Some(before) = situation.before.filter(|before| before.phase == UpgradePhase::Baking) else {
            return Ok(None);
        };
        if !self.must_judge(name, situation, before) {
            return Ok(None);
        }
        let looks = steps::bake_seconds(situation, before.step) / seconds(self.settings.judge_interval) + 1;
        let looks = u32::try_from(looks).unwrap_or(u32::MAX);
        let (upgraded, others) = self.observe(pods, busy, situation.revision, before.since.0.as_second()).await?;
        Ok(Some(judge::compare(&upgraded, &others, looks)))
    }

    /// Returns when pods may be evicted. The new pods get their revision from replicas, which must use the share first.
    fn restart(&self, profile: &Followed, percent: u8, published_for: Duration, now: i64) -> Restart {
        let waits = if self.began.elapsed() < pod_timeout(profile) {
            Some("the evictions of the previous leader may not have ended")
        } else if profile.published_percent.unwrap_or(100) != percent || published_for < PUBLISHED_AFTER {
            Some("the replicas may not use the new share of the workloads yet")
        } else {
            None
        };
        Restart { waits, created_before: now - seconds(published_for) + seconds(PUBLISHED_AFTER) }
    }

    /// Counts the evicted pods of a profile that were replaced by ready ones, and those that were not replaced in time.
    async fn follow_evictions(&mut self, profile: &Followed, name: &str, pods: &[ProfilePod]) -> kube::Result<()> {
        let known = self.known.entry(name.to_owned()).or_default();
        let (limit, metrics) = (pod_timeout(profile), &self.channels.metrics);
        for eviction in std::mem::take(&mut known.evictions) {
            let mut is_replaced = false;
            let mut has_new = false;
            for pod in pods.iter().filter(|pod| eviction.may_be_replaced_by(pod)) {
                if known.replaced_by.contains(&pod.uid) {
                    continue;
                }
                has_new = true;
                let found = api_of(&self.client, &pod.namespace).get_opt(&pod.name).await?;
                if found.and_then(|found| serde_json::to_value(&found).ok()).is_some_and(|found| is_ready(&found)) {
                    known.replaced_by.insert(pod.uid);
                    is_replaced = true;
                    break;
                }
            }
            match () {
                () if is_replaced => metrics.count(name, &profile.revision, UpgradeResult::Completed),
                () if eviction.at.elapsed() < limit => known.evictions.push(eviction),
                // Without a new pod, the workload was probably scaled down or deleted.
                () if has_new => {
                    metrics.count(name, &profile.revision, UpgradeResult::Failed);
                    known.overdue += 1;
                }
                () => {}
            }
        }
        Ok(())
    }

    /// Whether upgraded pods must be compared with others now.
    fn must_judge(&mut self, name: &str, situation: &Situation<'_>, before: &UpgradeStatus) -> bool {
        let known = self.known.entry(name.to_owned()).or_default();
        let until = before.since.0.as_second().saturating_add(steps::bake_seconds(situation, before.step));
        let is_due = known.judged.is_none_or(|at| at.elapsed() >= self.settings.judge_interval);
        let must = is_due || situation.now >= until;
        if must {
            known.judged = Some(Instant::now());
        }
        must
    }

    /// Reads pods with the revision and others, at most [`SAMPLE`] of each group, and returns how many are bad. `since`
    /// is the start of the observation, in seconds since 1970. `busy` has the pods that are being changed.
    async fn observe(
        &self,
        pods: &[ProfilePod],
        busy: &HashSet<u128>,
        revision: &str,
        since: i64,
    ) -> kube::Result<(Group, Group)> {
        let (mut upgraded, mut others) = (Group::default(), Group::default());
        for (group, is_upgraded) in [(&mut upgraded, true), (&mut others, false)] {
            let members =
                pods.iter().filter(|pod| (*pod.revision == *revision) == is_upgraded && !busy.contains(&pod.uid));
            let reads = members.take(SAMPLE).map(|pod| {
                let (api, name) = (api_of(&self.client, &pod.namespace), pod.name.clone());
                async move { api.get_opt(&name).await }
            });
            let mut reads = stream::iter(reads.collect::<Vec<_>>()).buffered(CONCURRENT_READS);
            while let Some(read) = reads.next().await {
                let alive = read?.filter(|pod| pod.metadata.deletion_timestamp.is_none());
                if let Some(pod) = alive.and_then(|pod| serde_json::to_value(&pod).ok()) {
                    group.add(&pod, since);
                }
            }
        }
        Ok((upgraded, others))
    }

    /// Writes the state of a rollout if it has changed. If only counts and reasons have changed, writes it at
    /// intervals. Returns whether the stored state equals this one, except for counts and reasons.
    async fn record(
        &mut self,
        profile: &Followed,
        name: &str,
        status: &UpgradeStatus,
        is_new_state: bool,
    ) -> kube::Result<bool> {
        let known = self.known.entry(name.to_owned()).or_default();
        let interval = if status.phase.has_ended() { ENDED_INTERVAL } else { COUNTS_INTERVAL };
        if profile.upgrade.as_ref() == Some(status) || (!is_new_state && known.written.elapsed() < interval) {
            return Ok(true);
        }
        let guard = ("resourceVersion", profile.resource_version.as_deref());
        match profile_status::apply(&self.client, &profile.name, MANAGER, guard, json!({"upgrade": status})).await {
            Ok(written) => {
                let is_other = written.metadata.resource_version != profile.resource_version;
                known.replaced = profile.resource_version.clone().filter(|_| is_other);
                known.written = Instant::now();
                if is_new_state {
                    let before = profile.upgrade.as_ref();
                    let is_same_rollout = before.is_some_and(|before| before.revision == status.revision);
                    known.begin_phase(is_same_rollout);
                    let (phase, step, message) = (status.phase.as_str(), status.step, status.message.as_deref());
                    info!(profile = name, phase, step, message, "a rollout continues");
                    self.announce(profile, written.metadata.uid, status).await;
                }
                Ok(true)
            }
            // The profile has changed, so the next round decides again.
            Err(kube::Error::Api(answer)) if matches!(answer.code, 404 | 409) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Records an Event about the end of a rollout or its failure.
    async fn announce(&self, profile: &Followed, uid: Option<String>, status: &UpgradeStatus) {
        let (type_, reason) = match status.phase {
            UpgradePhase::Halted => (EventType::Warning, "RolloutHalted"),
            UpgradePhase::SteppingBack => (EventType::Warning, "RolloutFailed"),
            UpgradePhase::SteppedBack => (EventType::Warning, "RolloutSteppedBack"),
            UpgradePhase::Complete => (EventType::Normal, "RolloutComplete"),
            UpgradePhase::AwaitingResume => (EventType::Normal, "RolloutAwaitsResume"),
            UpgradePhase::Upgrading | UpgradePhase::Baking | UpgradePhase::Paused => return,
        };
        let UpgradeStatus { revision, pods, upgraded, message, .. } = status;
        let why = message.as_deref().map(|why| format!(": {why}")).unwrap_or_default();
        let note = format!("revision {revision}, {upgraded} of {pods} pods upgraded{why}");
        let recorded = profile_event::record(&self.client, &profile.name, uid, (type_, reason, "Upgrade", &note)).await;
        if let Err(error) = recorded {
            warn!(profile = %profile.name, error = chain(&error), "an event could not be recorded");
        }
    }

    /// Changes at most `limit` pods, in this order.
    async fn change_pods(
        &mut self,
        change: Change<'_>,
        candidates: impl Iterator<Item = &ProfilePod>,
        limit: usize,
        ongoing: &mut Vec<(String, Disruption)>,
    ) -> kube::Result<()> {
        let mut known = self.known.remove(change.name).unwrap_or_default();
        let done = self.change_with(change, candidates, limit, ongoing, &mut known).await;
        self.known.insert(change.name.to_owned(), known);
        done
    }

    async fn change_with(
        &mut self,
        change: Change<'_>,
        candidates: impl Iterator<Item = &ProfilePod>,
        mut limit: usize,
        ongoing: &mut Vec<(String, Disruption)>,
        known: &mut Known,
    ) -> kube::Result<()> {
        let mut plans = PLANS;
        let mut budgets: HashMap<&str, Vec<PodDisruptionBudget>> = HashMap::new();
        let mut candidates: Vec<_> = candidates.filter(|pod| known.obstacle(pod.uid, change.to).is_none()).collect();
        // Pods that were delayed come last, the longest delayed first. So they do not prevent the upgrade of others.
        candidates.sort_by_key(|pod| known.last_try(pod.uid));
        for pod in candidates {
            if limit == 0 || plans == 0 {
                break;
            }
            if known.is_delayed(pod.uid) {
                continue;
            }
            plans -= 1;
            let found = api_of(&self.client, &pod.namespace).get_opt(&pod.name).await?;
            let exists = |found: &DynamicObject| {
                found.metadata.deletion_timestamp.is_none()
                    && uid_number(found.metadata.uid.as_deref().unwrap_or_default()) == pod.uid
            };
            let Some(object) = found.filter(exists) else { continue };
            let Ok(value) = serde_json::to_value(&object) else { continue };
            // The controller writes label and annotation together. Without the label, another client has changed one of
            // them.
            let is_marked = object.metadata.labels.as_ref().is_some_and(|labels| labels.contains_key(UPGRADING_LABEL));
            if is_marked && read_annotation(&value).is_some_and(|upgraded| upgraded.running.is_some()) {
                // Another rollout, or another leader, has begun to change the pod since the marked pods were listed.
                limit -= 1;
                continue;
            }
            let action = match self.plan((pod, &object, &value), change, known.last_try(pod.uid).is_some()).await {
                Planned::Current => {
                    // The audit has not reported the pod's revision yet.
                    limit -= 1;
                    continue;
                }
                Planned::Action(action) => action,
                Planned::Impossible(reasons) => {
                    known.add_obstacle(pod.uid, change.to, reasons);
                    continue;
                }
                Planned::Later(why) => {
                    known.delay(pod.uid, why);
                    continue;
                }
            };
            if let Action::Upgrade(upgrade) = &action
                && !self.has_images(pod, &object, upgrade, change, known).await?
            {
                continue;
            }
            if !budgets.contains_key(&*pod.namespace) {
                let api = Api::<PodDisruptionBudget>::namespaced(self.client.clone(), &pod.namespace);
                budgets.insert(&pod.namespace, lists::all(&api, &ListParams::default()).await?);
            }
            let of_namespace = budgets.get(&*pod.namespace).map(Vec::as_slice).unwrap_or_default();
            let disruption = Disruption { labels: serde_json::to_value(&object.metadata.labels).ok(), pods: 1 };
            let beside: Vec<_> =
                ongoing.iter().filter(|(namespace, _)| **namespace == *pod.namespace).map(|(_, taken)| taken).collect();
            // A pod that is not ready is disrupted already.
            let is_ready = is_ready(&value);
            if let Some(refusal) = budgets::refusal(&disruption, of_namespace, &beside).filter(|_| is_ready) {
                known.delay(pod.uid, refusal);
                continue;
            }
            let has_begun = match action {
                Action::Upgrade(upgrade) => self.begin((pod, &object, &value), *upgrade, change, known).await,
                Action::Evict(controller) => self.evict(pod, &object, controller, change, known).await?,
            };
            if has_begun {
                limit -= 1;
                if is_ready {
                    ongoing.push((pod.namespace.to_string(), disruption));
                }
            }
        }
        Ok(())
    }

    /// Whether the images of an upgrade are on the pod's node. Otherwise begins to pull them.
    async fn has_images(
        &mut self,
        pod: &ProfilePod,
        object: &DynamicObject,
        upgrade: &Upgrade,
        change: Change<'_>,
        known: &mut Known,
    ) -> kube::Result<bool> {
        let node = object.data.pointer("/spec/nodeName").and_then(Value::as_str).unwrap_or_default();
        let is_tenants = change.name.contains('/');
        let (site, puller) = if is_tenants { &mut self.tenant_pulls } else { &mut self.platform_pulls };
        let (state, text) = puller.images(&self.client, object, &upgrade.changes, site).await?;
        match state {
            ImageState::Present => {
                if upgrade.changes.iter().any(|change| change.image.is_some()) {
                    known.add_pulled(node);
                }
                return Ok(true);
            }
            ImageState::Waiting => _ = known.waits.insert(text),
            ImageState::Failed(_) if known.add_unpullable(node, &text) => {
                known.add_obstacle(pod.uid, change.to, vec![text]);
            }
            ImageState::Failed(_) => known.delay(pod.uid, text),
        }
        Ok(false)
    }

    /// Evicts a pod. Returns whether that has begun.
    async fn evict(
        &self,
        pod: &ProfilePod,
        object: &DynamicObject,
        controller: String,
        change: Change<'_>,
        known: &mut Known,
    ) -> kube::Result<bool> {
        let eviction = Eviction {
            namespace: pod.namespace.clone(),
            controller,
            at: Instant::now(),
            since: Timestamp::now().as_second(),
        };
        match evictions::evict(&self.client, pod, object.metadata.uid.as_deref().unwrap_or_default()).await? {
            Evicted::Done => {
                self.channels.metrics.count(change.name, change.revision, UpgradeResult::Begun);
                known.evictions.push(eviction);
                return Ok(true);
            }
            Evicted::Gone => {}
            Evicted::Refused(why) => known.delay(pod.uid, why),
        }
        Ok(false)
    }

    /// Plans the change of a pod. `was_tried` says whether the pod was delayed before.
    async fn plan(
        &self,
        (pod, object, value): (&ProfilePod, &DynamicObject, &Value),
        change: Change<'_>,
        was_tried: bool,
    ) -> Planned {
        let targets = BTreeMap::from([(change.name.to_owned(), change.to.to_owned())]);
        match self.planner.plan(&self.active.1, object, Target::Revisions(&targets)).await {
            Ok(PodUpgrade::Current) => Planned::Current,
            Ok(PodUpgrade::Recreate(reasons)) => change.eviction(pod, object, is_ready(value) || was_tried, reasons),
            Ok(PodUpgrade::Impossible(reasons)) => Planned::Impossible(reasons),
            Ok(PodUpgrade::Possible(upgrade)) => {
                let failed = upgrade.upgraded.failed.get(change.name);
                if !change.is_step_back && failed.is_some_and(|failed| failed.revision == change.to) {
                    return Planned::Impossible(vec!["an earlier upgrade to this revision failed".to_owned()]);
                }
                if let Some(ended) = ended_container(value, &upgrade.changes) {
                    return Planned::Impossible(vec![format!("container {ended} has ended")]);
                }
                Planned::Action(Action::Upgrade(upgrade))
            }
            Err(PlanError::Revision(error)) => Planned::Later(format!("a revision cannot be read: {}", chain(&error))),
            // Another attempt would fail, too.
            Err(error) => Planned::Impossible(vec![chain(&error)]),
        }
    }

    /// Begins the upgrade of a pod in place. Returns whether it may have begun.
    async fn begin(
        &mut self,
        (pod, object, value): (&ProfilePod, &DynamicObject, &Value),
        upgrade: Upgrade,
        change: Change<'_>,
        known: &mut Known,
    ) -> bool {
        let Upgrade { changes, previous, upgraded } = upgrade;
        let running = baseline(value, &changes, previous, Timestamp::now().as_second());
        let upgraded = upgraded.with_running(RunningUpgrade {
            to: change.to.to_owned(),
            is_step_back: change.is_step_back,
            ..running
        });
        let metrics = &self.channels.metrics;
        match marked::write(&self.client, object, &changes, &upgraded, true).await {
            Written::Done => metrics.count(change.name, change.revision, UpgradeResult::Begun),
            // The pod may have changed, because the response may be lost. So it counts towards the limit until the next
            // round, which reads all marked pods.
            Written::NotNow => {}
            Written::Rejected(why) => {
                metrics.count(change.name, change.revision, UpgradeResult::Rejected);
                known.add_obstacle(pod.uid, change.to, vec![why]);
                return false;
            }
            Written::Forbidden(why) => {
                metrics.count(change.name, change.revision, UpgradeResult::Rejected);
                known.delay(pod.uid, why);
                return false;
            }
        }
        self.has_marked = true;
        true
    }
}

/// A change that pods of a profile need.
#[derive(Clone, Copy)]
struct Change<'c> {
    /// The profile's display name.
    name: &'c str,
    /// The revision of the rollout.
    revision: &'c str,
    /// The revision that the pods get.
    to: &'c str,
    is_step_back: bool,
    /// `None` if pods are not evicted.
    restart: Option<Restart>,
}

/// When pods may be evicted.
#[derive(Clone, Copy)]
struct Restart {
    /// Why no pod may be evicted now.
    waits: Option<&'static str>,
    /// Pods that were created later got their revision from replicas that used the new share of the workloads. Evicting
    /// them would change nothing. In seconds since 1970.
    created_before: i64,
}

impl Change<'_> {
    /// Decides whether a pod is evicted that cannot be changed in place for these reasons. `is_due` says whether the pod
    /// is ready, or was delayed before.
    fn eviction(&self, pod: &ProfilePod, object: &DynamicObject, is_due: bool, mut reasons: Vec<String>) -> Planned {
        let Some(restart) = self.restart else { return Planned::Impossible(reasons) };
        let controller = match evictions::controller(object) {
            Ok(_) if pod.created >= restart.created_before => {
                Err("it was created with another revision meanwhile".into())
            }
            controller => controller,
        };
        match (controller, restart.waits) {
            (Err(why), _) => {
                reasons.push(why);
                Planned::Impossible(reasons)
            }
            (Ok(_), Some(why)) => Planned::Later(why.to_owned()),
            (Ok(controller), None) if is_due || self.is_step_back => Planned::Action(Action::Evict(controller)),
            // The pods that replace ready ones show whether the revision works, so they come first.
            (Ok(_), None) => Planned::Later("pods that are not ready are restarted after the others".to_owned()),
        }
    }
}

/// How a pod gets a revision.
enum Action {
    Upgrade(Box<Upgrade>),
    /// Its controller, such as `ReplicaSet/web-5d8`, replaces it.
    Evict(String),
}

/// What to do with a pod.
enum Planned {
    /// The pod has the revision already.
    Current,
    Action(Action),
    /// The pod cannot get the revision, for these reasons.
    Impossible(Vec<String>),
    /// The pod cannot be changed now, for this reason.
    Later(String),
}

/// Returns the parts of a status that must be written before pods are changed.
fn state(status: &UpgradeStatus) -> (&str, UpgradePhase, u32, Option<&str>) {
    (&status.revision, status.phase, status.step, status.handled_request.as_deref())
}

/// Returns a changed container that has ended, and that the kubelet does not restart.
fn ended_container<'c>(pod: &Value, changes: &'c [ContainerChange]) -> Option<&'c str> {
    let restarts = pod.pointer("/spec/restartPolicy").is_none_or(|policy| policy == "Always");
    let has_ended = |change: &&ContainerChange| {
        let mut of_container = statuses(pod).filter(|status| container_name(status) == Some(&change.name));
        change.list == ContainerList::Containers
            && of_container.any(|status| status.pointer("/state/terminated").is_some())
    };
    let ended = changes.iter().filter(|_| !restarts).find(has_ended)?;
    Some(&ended.name)
}

/// Returns the first failure of an upgrade to a revision.
fn failure(profile: &str, revision: &str, marked: &[&MarkedPod]) -> Option<String> {
    marked.iter().find_map(|pod| {
        let failed = pod.upgraded.failed.get(profile).filter(|failed| failed.revision == revision)?;
        Some(format!("pod {}: {}", pod.name(), failed.why))
    })
}

/// Asks the audit for the pods of a profile. `None` if it has not listed all pods yet.
async fn pods_with(questions: &mpsc::Sender<PodsQuestion>, profile: &str) -> Option<Vec<ProfilePod>> {
    let (answer, pods) = oneshot::channel();
    questions.send(PodsQuestion { profile: profile.into(), answer }).await.ok()?;
    pods.await.ok()
}

/// Returns the pods whose workload is in the share of `percent` of all workloads, as the webhook decides it, by UID.
fn in_share(percent: u8, profile: &str, pods: &[ProfilePod]) -> HashSet<u128> {
    // Many pods share their metadata.
    let mut known: HashMap<(&str, *const Box<str>), bool> = HashMap::new();
    let mut selected = HashSet::new();
    for pod in pods {
        let is_in = || {
            let tape = OwnedTape::parse((**pod.metadata).to_owned());
            tape.is_ok_and(|tape| is_in_share(percent, profile, &pod.namespace, tape.root()))
        };
        if *known.entry((&pod.namespace, Arc::as_ptr(&pod.metadata))).or_insert_with(is_in) {
            selected.insert(pod.uid);
        }
    }
    selected
}

/// Returns the sort key of a pod for the order of a revision's upgrades.
fn rank(revision: &str, uid: u128) -> [u8; 32] {
    Sha256::digest([revision.as_bytes(), &uid.to_be_bytes()].concat()).into()
}

fn seconds(duration: Duration) -> i64 {
    i64::try_from(duration.as_secs()).unwrap_or(i64::MAX).max(1)
}
