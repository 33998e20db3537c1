//! The leader's loop for rollouts to running pods. Each round reads the pods with a running upgrade, and continues,
//! completes or takes back these upgrades. Then it decides the state of each profile's rollout, writes it, and changes
//! further pods.
//!
//! A changed state is written before any pod is changed because of it. The write fails if another leader has written
//! the state meanwhile, and then no pod is changed.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use futures::{FutureExt, StreamExt, stream};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::client::Body;
use kube::runtime::events::EventType;
use kube::{Api, Client};
use pillion_api::kinds::{UpgradePhase, UpgradeStatus};
use pillion_api::profile::RolloutStrategy;
use pillion_engine::lookup::LookedUp;
use pillion_engine::profile::ProfileName;
use pillion_engine::select::is_in_share;
use pillion_json::OwnedTape;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use tokio::sync::{Mutex, mpsc, oneshot};
use tokio::time::{Instant, Interval, MissedTickBehavior};
use tracing::{info, warn};

use super::budgets::Disruption;
use super::change::pods as api_of;
use super::evictions::{PhaseKey, Replacement};
use super::judge::{self, Group, Verdict};
use super::known::Known;
use super::marked::{self, MarkedPod, pod_timeout};
use super::metrics::UpgradeResult;
use super::pods::{Change, Restart};
use super::progress::{is_ready, restarts};
use super::pull::{self, FRESH_FOR, PULL_LIMIT, PullLimits, PullSite, Puller};
use super::render::Planner;
use super::state::{RolloutChannels, Task};
use super::steps::{self, PodStates, Situation};
use super::turns::Turns;
use super::{MANAGER, RolloutSettings};
use crate::audit::{AuditQuestion, ProfilePod};
use crate::client::chain;
use crate::leader::LeaderContext;
use crate::revisions::{Followed, FollowedProfiles, profile_event, profile_status};
use crate::webhook_config::switch::{self, Position};

/// Minimum time between two writes of a status in which only counts and reasons have changed. The API server sends each
/// write to all replicas.
const COUNTS_INTERVAL: Duration = Duration::from_secs(10);
/// Maximum number of pods of each group that are compared.
const SAMPLE: usize = 50;
/// The number of pods that are read at the same time for a comparison.
const CONCURRENT_READS: usize = 4;
/// Like [`COUNTS_INTERVAL`], for a rollout that has ended.
const ENDED_INTERVAL: Duration = Duration::from_mins(10);
/// The time after the start of a leader's term at which all profiles are assumed to be compiled.
const SETTLED_AFTER: Duration = Duration::from_mins(1);
/// Time between two deletions of pods that pulled images.
const CLEAN_INTERVAL: Duration = Duration::from_mins(1);
/// How long a new pod may take to become ready before it counts as bad.
const STARTING: Duration = Duration::from_mins(5);
/// How long a round may handle namespaced profiles, so that they do not delay the rollouts of cluster profiles.
const TENANTS_LIMIT: Duration = Duration::from_secs(5);
/// The limits of pulls for namespaced profiles. With one concurrent pull per namespace, a slow registry of one
/// namespace does not block the pulls for other namespaces.
const TENANT_PULLS: PullLimits = PullLimits { total: 16, per_namespace: 1 };
/// Maximum number of reasons in a message.
const MAX_REASONS: usize = 3;

/// Upgrades running pods while this controller leads.
pub async fn run(leading: LeaderContext, channels: RolloutChannels, settings: RolloutSettings) {
    let LeaderContext { client, release, stop } = leading;
    let client = paced(client, settings.requests_per_second);
    let metrics = channels.metrics.clone();
    let secrets: Value = settings.pull_secrets.iter().map(|name| json!({"name": name})).collect();
    // The chart creates this service account, without `imagePullSecrets`.
    let service_account = Some(format!("{}-image-pull", release.name()));
    let site = |secrets| {
        let (namespace, service_account) = (release.namespace().to_owned(), service_account.clone());
        PullSite { namespace, secrets, service_account }
    };
    let task = Task {
        planner: Planner::new(
            client.clone(),
            channels.lookups.clone(),
            settings.cluster.clone().or_else(LookedUp::unknown_cluster),
        ),
        tenant_pulls: (site(json!([])), Puller::new(TENANT_PULLS)),
        platform_pulls: (site(secrets), Puller::default()),
        client,
        settings,
        channels,
        known: HashMap::new(),
        turns: Turns::default(),
        reserved: HashSet::new(),
        until: None,
        release,
        active: Default::default(),
        began: Instant::now(),
        cleaned: Instant::now(),
        has_marked: true,
        rounds: 0,
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

/// A profile in one round, and its pods.
#[derive(Clone, Copy)]
struct Round<'r> {
    profile: &'r Followed,
    /// The profile's display name.
    name: &'r str,
    /// All pods of the profile, in the order of their upgrades.
    pods: &'r [ProfilePod],
    /// The UIDs of these pods.
    listed: &'r HashSet<u128>,
    /// The pods that are being changed in place.
    busy: &'r HashSet<u128>,
    /// With the strategy `Restart`, the share of the workloads in percent, and their pods that lack the revision.
    share: Option<(u8, &'r HashSet<u128>)>,
    phase: &'r PhaseKey,
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
        let FollowedProfiles { active: followed, ended } = self.channels.followed.borrow().clone().unwrap_or_default();
        self.known.retain(|name, known| {
            if followed.iter().any(|profile| profile.name.to_string() == *name) {
                return true;
            }
            // Evictions of a profile that is no longer rolled out still count for other profiles.
            known.evictions.open.retain(|eviction| !eviction.is_late());
            !known.evictions.open.is_empty()
        });
        // Remove the status of one ended rollout in each round. So even if the write fails each time for one profile,
        // the others have their turns.
        self.rounds = self.rounds.wrapping_add(1);
        if let Some((name, version)) = self.rounds.checked_rem(ended.len()).and_then(|next| ended.get(next))
            && let Err(error) = self.remove_status(name, version.as_deref()).await
        {
            warn!(profile = %name, error = chain(&error), "the status of an earlier rollout is not removed");
        }
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
        let has_failed =
            |profile: &&Followed| profile.upgrade.as_ref().is_some_and(|upgrade| upgrade.phase.has_failed());
        let failed: Vec<_> = followed.iter().filter(has_failed).map(|profile| profile.name.clone()).collect();
        let mut ongoing: Vec<_> = marked.iter().filter_map(MarkedPod::disruption).collect();
        let (of_platform, of_tenants): (Vec<_>, Vec<_>) =
            followed.into_iter().partition(|profile| profile.name.namespace.is_none());
        (self.reserved, self.until) = (HashSet::new(), None);
        for profile in of_platform {
            self.try_roll_out(&profile, &marked, &mut ongoing).await;
        }
        let until = Instant::now() + TENANTS_LIMIT;
        self.until = Some(until);
        for profile in self.turns.order(of_tenants) {
            if Instant::now() >= until {
                break;
            }
            self.turns.take(&profile.name);
            self.try_roll_out(&profile, &marked, &mut ongoing).await;
        }
        if self.cleaned.elapsed() > CLEAN_INTERVAL {
            pull::delete_pods(&self.client, &self.platform_pulls.0.namespace, PULL_LIMIT + FRESH_FOR).await?;
            self.cleaned = Instant::now();
        }
        let evicted: usize = self.known.values().map(|known| known.evictions.open.len()).sum();
        let running = evicted + marked.iter().filter(|pod| pod.upgraded.running.is_some()).count();
        self.channels.metrics.show(running, &failed);
        Ok(())
    }

    /// Removes the state of an earlier rollout from a profile that no longer has a strategy for running pods.
    async fn remove_status(&self, name: &ProfileName, version: Option<&str>) -> kube::Result<()> {
        match profile_status::remove_field(&self.client, name, version, "upgrade").await {
            // The profile has changed, so the next round decides again.
            Err(kube::Error::Api(answer)) if matches!(answer.code, 404 | 409) => Ok(()),
            written => written,
        }
    }

    /// Continues the rollout of a profile. An error is logged.
    async fn try_roll_out(
        &mut self,
        profile: &Followed,
        marked: &[MarkedPod],
        ongoing: &mut Vec<(String, Disruption)>,
    ) {
        let name = profile.name.to_string();
        if let Err(error) = self.roll_out(profile, &name, marked, ongoing).await {
            warn!(profile = name, error = chain(&error), "the rollout could not continue; trying again");
        }
    }

    /// Continues the rollout of a profile: decides its state and writes it. Changes pods only if the state was written
    /// before.
    async fn roll_out(
        &mut self,
        profile: &Followed,
        name: &str,
        marked: &[MarkedPod],
        ongoing: &mut Vec<(String, Disruption)>,
    ) -> kube::Result<()> {
        let before = profile.upgrade.as_ref().filter(|before| before.revision == profile.revision);
        let known = self.known.entry(name.to_owned()).or_default();
        if known.replaced.is_some() && known.replaced == profile.resource_version {
            return Ok(());
        }
        let Some(mut pods) = pods_with(&self.channels.questions, name).await else { return Ok(()) };
        // The order depends only on the revision and the pods. So each revision begins with different pods, and all
        // leaders use the same order.
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
        let begun = steps::start(&situation);
        let (phase, percent) = ((revision.to_owned(), begun.since.0.as_second()), steps::percent(&situation, &begun));
        let in_share = if restarts { in_share(percent, name, revision, &pods) } else { HashSet::new() };
        let evictions = &mut self.known.entry(name.to_owned()).or_default().evictions;
        evictions.restore(profile.upgrade.as_ref(), &phase);
        // The plan of a round that failed may not fit the state of this one.
        evictions.planned.clear();
        self.follow_evictions(name, &phase, &pods).await?;
        let known = self.known.entry(name.to_owned()).or_default();
        let has_obstacle = |pod: &ProfilePod, to: &str| known.obstacle(pod.uid, to).is_some();
        let count =
            |is: &dyn Fn(&ProfilePod) -> bool| pods.iter().filter(|pod| !running.contains(&pod.uid) && is(pod)).count();
        let is_away = |pod: &ProfilePod| previous.is_some_and(|to| *pod.revision != *to);
        let counts = PodStates {
            all: pods.len(),
            upgraded: count(&|pod| *pod.revision == *revision),
            running: running.len() + known.evictions.open.len(),
            not_in_place: count(&|pod| *pod.revision != *revision && has_obstacle(pod, revision)),
            away: count(&is_away),
            stuck: count(&|pod| is_away(pod) && previous.is_some_and(|to| has_obstacle(pod, to))),
            left_in_share: count(&|pod| {
                *pod.revision != *revision && in_share.contains(&pod.uid) && !has_obstacle(pod, revision)
            }),
        };
        let eviction_failure = known.evictions.failure(&phase, profile.rollout.max_unavailable.unwrap_or(1));
        let failure = failure(name, revision, &marked)
            .or_else(|| known.pull_failure(pod_timeout(profile)))
            .or_else(|| eviction_failure.clone());
        let is_closed = begun.phase == UpgradePhase::Upgrading && !steps::is_window_open(&situation);
        let waits = waits(known, is_closed);
        situation.pods = counts;
        situation.failure = failure.as_deref();
        situation.waits = waits.as_deref();
        let verdict = self.verdict(name, &situation, &pods, &busy).await?;
        situation.verdict = verdict.as_ref();
        let mut status = steps::next(&situation);
        let limit = steps::capacity(&profile.rollout, counts);
        let work = match (status.phase, previous) {
            (UpgradePhase::Upgrading | UpgradePhase::Complete, _) if !is_closed => {
                Some((revision, false, limit.min(steps::left(&situation, &status))))
            }
            (UpgradePhase::SteppingBack | UpgradePhase::SteppedBack, Some(previous)) => Some((previous, true, limit)),
            _ => None,
        };
        let is_new_state = before.is_none_or(|before| state(before) != state(&status));
        let share = restarts.then_some((percent, &in_share));
        let round = Round { profile, name, pods: &pods, listed: &listed, busy: &busy, share, phase: &phase };
        let changed = match work.filter(|_| !is_new_state) {
            Some(work) => self.change(round, work, eviction_failure, ongoing).await,
            None => Ok(()),
        };
        let evictions = &self.known.entry(name.to_owned()).or_default().evictions;
        status.evictions = evictions.stored();
        let must_write = is_new_state || !evictions.planned.is_empty();
        let is_stored = self.record(profile, name, &status, must_write).await?;
        changed?;
        if is_stored {
            self.evict_planned(name, revision, pod_timeout(profile)).await?;
        }
        Ok(())
    }

    /// Changes further pods to the revision `to` in place, at most `limit`, or plans their evictions. `failure` is why
    /// earlier evictions of this phase have failed.
    async fn change(
        &mut self,
        Round { profile, name, pods, listed, busy, share, phase }: Round<'_>,
        (to, is_step_back, limit): (&str, bool, usize),
        failure: Option<String>,
        ongoing: &mut Vec<(String, Disruption)>,
    ) -> kube::Result<()> {
        let revision = &*profile.revision;
        let known = self.known.entry(name.to_owned()).or_default();
        known.forget(listed);
        let published = profile.published_percent.unwrap_or(100);
        let is_used = known.evictions.publish(revision, published, listed, self.settings.publish_settle);
        let is_selected = |pod: &&ProfilePod| {
            *pod.revision != *to && (is_step_back || share.is_none_or(|(_, workloads)| workloads.contains(&pod.uid)))
        };
        let mut candidates = pods.iter().filter(is_selected).collect();
        self.reserve(profile, to, &mut candidates);
        candidates.retain(|pod| !busy.contains(&pod.uid));
        // Otherwise, the kill switch would be read in each round of a rollout that has ended.
        if candidates.is_empty() || limit == 0 {
            return Ok(());
        }
        let restart = match share {
            Some((percent, _)) => Some(self.restart(profile, phase, failure, is_used && published == percent).await?),
            None => None,
        };
        let change = Change { name, revision, to, is_step_back, restart: restart.as_ref(), all: pods };
        self.change_pods(change, candidates, limit, ongoing).await
    }

    /// For a cluster profile, reserves the pods that it still has to change. For a namespaced profile, removes reserved
    /// pods from `candidates`.
    fn reserve(&mut self, profile: &Followed, to: &str, candidates: &mut Vec<&ProfilePod>) {
        let known = self.known.entry(profile.name.to_string()).or_default();
        if profile.name.namespace.is_none() {
            let needed = candidates.iter().filter(|pod| known.obstacle(pod.uid, to).is_none());
            self.reserved.extend(needed.map(|pod| pod.uid));
            return;
        }
        let count = candidates.len();
        candidates.retain(|pod| !self.reserved.contains(&pod.uid));
        if candidates.len() < count {
            known.waits.insert("rollouts of cluster profiles change some of the pods first".to_owned());
        }
    }

    /// Compares upgraded pods with others. `None` if the phase is not `Baking`, or if the next comparison is not due.
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
        // With the strategy `Restart`, most upgraded pods are new and may still be starting. With other strategies, all
        // pods count.
        let starting = match situation.rollout.strategy {
            Some(RolloutStrategy::Restart) => Timestamp::now() - STARTING,
            _ => Timestamp::MAX,
        };
        let times = (before.since.0.as_second(), starting);
        let (upgraded, others) = self.observe(pods, busy, situation.revision, times).await?;
        Ok(Some(judge::compare(&upgraded, &others, looks)))
    }

    /// Returns the conditions for evictions of a profile's pods. `failure` is why earlier evictions have failed.
    /// `is_share_used` says whether all replicas use the share of the workloads.
    async fn restart(
        &self,
        profile: &Followed,
        phase: &PhaseKey,
        failure: Option<String>,
        is_share_used: bool,
    ) -> kube::Result<Restart> {
        let waits = match failure {
            // If new pods already get the revision, a failure does not end the rollout. It only prevents further
            // evictions.
            Some(failure) => Some(failure),
            None if !is_share_used => Some("the replicas may not use the new share of the workloads yet".to_owned()),
            None if self.is_switched_off().await? => {
                Some("the kill switch disables injection, so new pods would have no sidecar".to_owned())
            }
            None => None,
        };
        Ok(Restart { waits, phase: phase.clone(), limit: pod_timeout(profile) })
    }

    /// Whether an administrator has disabled injection or the webhooks.
    async fn is_switched_off(&self) -> kube::Result<bool> {
        let api = Api::<ConfigMap>::namespaced(self.client.clone(), self.release.namespace());
        let switch = api.get_opt(self.release.name()).await?;
        Ok([switch::injection(switch.as_ref()), switch::webhooks(switch.as_ref())].contains(&Position::Off))
    }

    /// Follows the evictions of a profile's pods: counts those that were replaced by ready ones, and those that were
    /// not replaced in time.
    async fn follow_evictions(&mut self, name: &str, phase: &PhaseKey, pods: &[ProfilePod]) -> kube::Result<()> {
        let known = self.known.entry(name.to_owned()).or_default();
        let mut result = Ok(());
        for mut eviction in std::mem::take(&mut known.evictions.open) {
            let outcome = match eviction.follow(&self.client, pods, self.settings.settle).await {
                Ok(Replacement::Ready) => UpgradeResult::Completed,
                Ok(Replacement::Overdue) => UpgradeResult::Failed,
                Ok(Replacement::NotEvicted) => continue,
                Ok(Replacement::Pending) => {
                    known.evictions.open.push(eviction);
                    continue;
                }
                Err(error) => {
                    known.evictions.open.push(eviction);
                    result = Err(error);
                    continue;
                }
            };
            self.channels.metrics.count(name, &eviction.stored.revision, outcome);
            known.evictions.count(&eviction, phase, outcome == UpgradeResult::Completed);
        }
        result
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
    /// is the start of the observation, in seconds since 1970. Pods that were created after `starting_since` count only
    /// if they are ready, or if a container was restarted. `busy` has the pods that are being changed.
    async fn observe(
        &self,
        pods: &[ProfilePod],
        busy: &HashSet<u128>,
        revision: &str,
        (since, starting_since): (i64, Timestamp),
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
                let Some(pod) = read?.filter(|pod| pod.metadata.deletion_timestamp.is_none()) else { continue };
                let is_new = pod.metadata.creation_timestamp.as_ref().is_some_and(|time| time.0 >= starting_since);
                let Ok(pod) = serde_json::to_value(&pod) else { continue };
                // A pod that is just starting is not ready, whatever its revision is.
                if !is_new || is_ready(&pod) || restarts(&pod) > 0 {
                    group.add(&pod, since);
                }
            }
        }
        Ok((upgraded, others))
    }

    /// Writes the state of a rollout if it has changed. If only counts and reasons have changed, writes it at
    /// intervals, unless `must_write`. Returns whether the stored state equals this one, except for counts and reasons.
    async fn record(
        &mut self,
        profile: &Followed,
        name: &str,
        status: &UpgradeStatus,
        must_write: bool,
    ) -> kube::Result<bool> {
        let known = self.known.entry(name.to_owned()).or_default();
        let interval = if status.phase.has_ended() { ENDED_INTERVAL } else { COUNTS_INTERVAL };
        let before = profile.upgrade.as_ref();
        if before == Some(status) || (!must_write && known.written.elapsed() < interval) {
            return Ok(true);
        }
        let guard = ("resourceVersion", profile.resource_version.as_deref());
        match profile_status::apply(&self.client, &profile.name, MANAGER, guard, json!({"upgrade": status})).await {
            Ok(written) => {
                let is_other = written.metadata.resource_version != profile.resource_version;
                known.replaced = profile.resource_version.clone().filter(|_| is_other);
                known.written = Instant::now();
                if before.is_none_or(|before| state(before) != state(status)) {
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

    /// Records an Event if a rollout is complete, has failed, or waits for a user.
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
}

/// Returns the parts of a status that must be written before pods are changed.
fn state(status: &UpgradeStatus) -> (&str, UpgradePhase, u32, Option<&str>) {
    (&status.revision, status.phase, status.step, status.handled_request.as_deref())
}

/// Returns why pods of a profile are not changed now.
fn waits(known: &Known, is_closed: bool) -> Option<String> {
    let closed = is_closed.then_some("no window of the rollout is open");
    let reasons = closed.into_iter().chain(known.waits.iter().map(String::as_str));
    let reasons: Vec<_> = reasons.take(MAX_REASONS).collect();
    (!reasons.is_empty()).then(|| reasons.join("; "))
}

/// Returns the first failure of an upgrade to a revision.
fn failure(profile: &str, revision: &str, marked: &[&MarkedPod]) -> Option<String> {
    marked.iter().find_map(|pod| {
        let failed = pod.upgraded.failed.get(profile).filter(|failed| failed.revision == revision)?;
        Some(format!("pod {}: {}", pod.name(), failed.why))
    })
}

/// Asks the audit for the pods of a profile. `None` if it has not listed all pods yet.
async fn pods_with(questions: &mpsc::Sender<AuditQuestion>, profile: &str) -> Option<Vec<ProfilePod>> {
    let (answer, pods) = oneshot::channel();
    questions.send(AuditQuestion::PodsWith { profile: profile.into(), answer }).await.ok()?;
    pods.await.ok()
}

/// Returns the UIDs of the pods that do not have the revision, and whose workload is in the share. The share is
/// `percent` of all workloads, selected in the same way as in the webhook.
fn in_share(percent: u8, profile: &str, revision: &str, pods: &[ProfilePod]) -> HashSet<u128> {
    // Many pods share their metadata.
    let mut known: HashMap<(&str, *const Box<str>), bool> = HashMap::new();
    let mut selected = HashSet::new();
    for pod in pods.iter().filter(|pod| *pod.revision != *revision) {
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
