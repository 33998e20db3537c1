//! Handles the pods that the label `pillion.dev/upgrading` marks. Their upgrade is running, or its failure is not in
//! the profile's status yet.

use std::hash::{BuildHasher, RandomState};
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{ApiResource, DynamicObject, ListParams};
use kube::{Api, Client};
use pillion_api::kinds::{UpgradePhase, UpgradeStatus};
use pillion_api::names::UPGRADING_LABEL;
use pillion_engine::in_place::{ContainerChange, FailedUpgrade, RunningUpgrade, Upgraded};
use pillion_engine::snapshot::Snapshot;
use serde_json::Value;
use tokio::time::Instant;
use tracing::{debug, warn};

use super::MANAGER;
use super::budgets::Disruption;
use super::change;
use super::metrics::{RolloutMetrics, UpgradeResult};
use super::progress::{Progress, baseline, progress};
use super::render::{Planner, PodUpgrade, Target, Upgrade, read_annotation};
use crate::audit::{NOT_ENDED, uid_number};
use crate::client::{chain, lists};
use crate::revisions::{DEFAULT_POD_TIMEOUT_SECONDS, Followed};

/// How long the upgrade of a pod may take, unless the profile says otherwise.
const DEFAULT_POD_TIMEOUT: Duration = Duration::from_secs(DEFAULT_POD_TIMEOUT_SECONDS as u64);
/// How long a round may continue upgrades of pods that no cluster profile changes.
const OTHERS_LIMIT: Duration = Duration::from_secs(5);
/// Maximum difference of the clocks of two leaders, in seconds.
const MAX_CLOCK_DIFFERENCE: i64 = 60;
/// The maximum length of a failure in a pod's annotation, in bytes.
const FAILURE_BYTES: usize = 512;

/// A marked pod.
#[derive(Debug)]
pub(super) struct MarkedPod {
    object: DynamicObject,
    value: Value,
    pub(super) uid: u128,
    pub(super) upgraded: Upgraded,
}

/// What to do with a marked pod.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Step {
    /// Wait: the upgrade runs, or its failure is not in the profile's status yet.
    Wait,
    /// Complete the upgrade: the changed containers are ready. Also used after the time limit, if before the upgrade
    /// the pod was not ready and a changed container had not started.
    Complete,
    /// Return the pod to the previous revision, because the upgrade has failed for this reason.
    TakeBack(String),
    /// Return the pod to the previous revision, because the rollout returns to it.
    Return,
    /// End the return to the previous revision, whose containers do not become ready for this reason.
    GiveUp(String),
    /// Remove the label: the profile's status has the failure, or no longer needs it.
    Unmark,
}

/// The inputs for continuing upgrades.
pub(super) struct Context<'c> {
    pub(super) client: &'c Client,
    pub(super) planner: &'c Planner,
    /// The active profiles, and the namespaces.
    pub(super) active: &'c Snapshot,
    pub(super) followed: &'c [Followed],
    /// Whether this leader's term began so long ago that all profiles are compiled. Until then, `followed` may lack
    /// profiles, and the pods of profiles that it lacks are not changed.
    pub(super) is_settled: bool,
    pub(super) metrics: &'c RolloutMetrics,
}

impl MarkedPod {
    /// Reads a pod. `None` if the pod is being deleted, or if it has no annotation about its own upgrades: for example,
    /// because the label and the annotation were copied from another pod.
    fn read(object: DynamicObject) -> Option<Self> {
        if object.metadata.deletion_timestamp.is_some() {
            return None;
        }
        let value = serde_json::to_value(&object).ok()?;
        let upgraded = read_annotation(&value)?;
        let uid = uid_number(object.metadata.uid.as_deref()?);
        Some(Self { object, value, uid, upgraded })
    }

    /// Whether a running upgrade changes the revision of this profile.
    pub(super) fn changes(&self, profile: &str) -> bool {
        self.upgraded.running.as_ref().is_some_and(|running| running.previous.contains_key(profile))
    }

    /// Returns the namespace and the name, such as `shop/web`.
    pub(super) fn name(&self) -> String {
        let metadata = &self.object.metadata;
        format!(
            "{}/{}",
            metadata.namespace.as_deref().unwrap_or_default(),
            metadata.name.as_deref().unwrap_or_default()
        )
    }

    /// Returns the namespace and the disruption of a running upgrade.
    pub(super) fn disruption(&self) -> Option<(String, Disruption)> {
        // The budgets already count a pod that was not ready before.
        self.upgraded.running.as_ref().filter(|running| running.was_ready)?;
        let labels = serde_json::to_value(&self.object.metadata.labels).ok();
        Some((self.object.metadata.namespace.clone()?, Disruption { labels, pods: 1 }))
    }

    /// Decides what to do with the pod. `followed` is the profile that the running upgrade changes. `all_known` says
    /// that no failure in the annotation is still needed ([`Context::is_known`]). `now` is in seconds since 1970.
    fn step(&self, followed: Option<&Followed>, all_known: bool, now: i64) -> Step {
        let Some(running) = &self.upgraded.running else {
            return if all_known { Step::Unmark } else { Step::Wait };
        };
        let timeout = followed.map_or(DEFAULT_POD_TIMEOUT, pod_timeout).as_secs();
        // A user who may change the pod can write any time into its annotation, even a future one.
        let age = now.saturating_sub(running.since);
        let is_late = age < -MAX_CLOCK_DIFFERENCE || age > i64::try_from(timeout).unwrap_or(i64::MAX);
        let has_not_started = running.changes.iter().any(|change| !running.restarts.contains_key(&change.name));
        let status = followed.and_then(|followed| followed.upgrade.as_ref());
        let returns = status.is_some_and(|status| status.phase == UpgradePhase::SteppingBack);
        match progress(&self.value, running, now) {
            Progress::Done => Step::Complete,
            Progress::Waiting(why) if running.is_step_back && is_late => Step::GiveUp(why),
            Progress::Waiting(_) if returns && !running.is_step_back => Step::Return,
            // The pod was not ready before, and a changed container had not started. So the pod is as ready as before.
            Progress::Waiting(_) if is_late && !running.was_ready && has_not_started => Step::Complete,
            Progress::Waiting(why) if is_late => Step::TakeBack(format!("not complete after {timeout} seconds: {why}")),
            Progress::Waiting(_) => Step::Wait,
            Progress::Failed(why) => Step::TakeBack(why),
        }
    }
}

impl Context<'_> {
    /// Completes upgrades whose containers are ready, and takes failed ones back. Returns the pods that remain marked.
    pub(super) async fn continue_all(&self) -> kube::Result<Vec<MarkedPod>> {
        let api = Api::<DynamicObject>::all_with(self.client.clone(), &ApiResource::erase::<Pod>(&()));
        let parameters = ListParams::default().labels(UPGRADING_LABEL).fields(NOT_ENDED);
        let listed = lists::all(&api, &parameters).await?;
        let is_opted_in = |pod: &MarkedPod| {
            let namespace = pod.object.metadata.namespace.as_deref().unwrap_or_default();
            self.active.namespace(namespace).is_some_and(|namespace| namespace.failure_mode().is_some())
        };
        let pods = listed.into_iter().filter_map(MarkedPod::read).filter(is_opted_in);
        // Any user who may change a pod can mark it. So pods that a cluster profile changes come first. The others have
        // limited time, in random order.
        let is_of_platform = |pod: &MarkedPod| {
            let mut profiles = pod.upgraded.running.iter().flat_map(|running| running.previous.keys());
            profiles.any(|profile| !profile.contains('/') && self.followed(profile).is_some())
        };
        let (of_platform, mut others): (Vec<_>, Vec<_>) = pods.partition(is_of_platform);
        let order = RandomState::new();
        others.sort_by_cached_key(|pod| order.hash_one(pod.uid));
        let mut marked = Vec::new();
        for pod in of_platform {
            marked.extend(self.continue_one(pod).await);
        }
        let begun = Instant::now();
        for pod in others {
            if begun.elapsed() < OTHERS_LIMIT {
                marked.extend(self.continue_one(pod).await);
            } else {
                marked.push(pod);
            }
        }
        Ok(marked)
    }

    /// Continues the upgrade of a pod. Returns the pod if it remains marked.
    async fn continue_one(&self, mut pod: MarkedPod) -> Option<MarkedPod> {
        let profile = pod.upgraded.running.iter().flat_map(|running| running.previous.keys()).next().cloned();
        let followed = profile.as_deref().and_then(|profile| self.followed(profile));
        if profile.is_some() && followed.is_none() && !self.is_settled {
            return Some(pod);
        }
        let all_known = pod.upgraded.failed.iter().all(|failed| self.is_known(failed));
        let step = pod.step(followed, all_known, Timestamp::now().as_second());
        match &step {
            Step::Wait => return Some(pod),
            Step::TakeBack(why) => {
                let why = why.get(..why.floor_char_boundary(FAILURE_BYTES)).unwrap_or_default();
                self.take_back(&mut pod, profile.as_deref(), Some(why)).await;
                return Some(pod);
            }
            Step::Return => {
                self.take_back(&mut pod, None, None).await;
                return Some(pod);
            }
            Step::GiveUp(why) => warn!(pod = pod.name(), why, "the previous revision does not become ready"),
            Step::Complete | Step::Unmark => {}
        }
        let forward = pod.upgraded.running.as_ref().filter(|running| !running.is_step_back);
        let to = forward.map(|running| running.to.clone());
        let upgraded = pod.upgraded.completed();
        if write(self.client, &pod.object, &[], &upgraded, !all_known).await != Written::Done {
            return Some(pod);
        }
        if let (Step::Complete, Some(profile), Some(to)) = (&step, &profile, to) {
            self.metrics.count(profile, &to, UpgradeResult::Completed);
        }
        pod.upgraded = upgraded;
        (!all_known).then_some(pod)
    }

    /// Returns a pod to the revisions before its running upgrade. If the upgrade of the profile has failed, records the
    /// reason in the pod's annotation.
    async fn take_back(&self, pod: &mut MarkedPod, profile: Option<&str>, why: Option<&str>) {
        let Some(running) = pod.upgraded.running.clone() else { return };
        let mut failed = pod.upgraded.failed.clone();
        if let (Some(profile), Some(why)) = (profile, why) {
            warn!(pod = pod.name(), why, "the upgrade of a pod failed; it returns to the previous revision");
            let failure = FailedUpgrade { revision: running.to.clone(), why: why.to_owned() };
            failed.insert(profile.to_owned(), failure);
        }
        // The annotation if no container can be changed back: the pod keeps the revision.
        let given_up = Upgraded { failed: failed.clone(), ..pod.upgraded.completed() };
        let planned = self.planner.plan(self.active, &pod.object, Target::Revisions(&running.previous)).await;
        let (changes, upgraded) = match planned {
            Ok(PodUpgrade::Possible(upgrade)) => {
                let Upgrade { changes, previous, upgraded } = *upgrade;
                let baseline = baseline(&pod.value, &changes, previous, Timestamp::now().as_second());
                let running = RunningUpgrade { is_step_back: true, was_ready: running.was_ready, ..baseline };
                (changes, Upgraded { failed, ..upgraded }.with_running(running))
            }
            Ok(PodUpgrade::Current) => (Vec::new(), given_up.clone()),
            Ok(PodUpgrade::Recreate(reasons) | PodUpgrade::Impossible(reasons)) => {
                warn!(pod = pod.name(), why = reasons.join("; "), "a pod cannot return to the previous revision");
                (Vec::new(), given_up.clone())
            }
            Err(error) => {
                warn!(pod = pod.name(), error = chain(&error), "a pod could not be planned; trying again");
                return;
            }
        };
        let (written, upgraded) = match write(self.client, &pod.object, &changes, &upgraded, true).await {
            Written::Rejected(_) | Written::Forbidden(_) => {
                (write(self.client, &pod.object, &[], &given_up, true).await, given_up)
            }
            written => (written, upgraded),
        };
        if written == Written::Done {
            if let (Some(profile), Some(_)) = (profile, why) {
                self.metrics.count(profile, &running.to, UpgradeResult::Failed);
            }
            pod.upgraded = upgraded;
        }
    }

    fn followed(&self, profile: &str) -> Option<&Followed> {
        self.followed.iter().find(|followed| followed.name.to_string() == profile)
    }

    fn status(&self, profile: &str) -> Option<&UpgradeStatus> {
        self.followed(profile)?.upgrade.as_ref()
    }

    /// Whether a failure in a pod's annotation is no longer needed: the profile's status says that the rollout has
    /// failed or is complete, or it is about a different revision. Without a status, returns whether the term is
    /// settled.
    fn is_known(&self, (profile, failed): (&String, &FailedUpgrade)) -> bool {
        self.status(profile).map_or(self.is_settled, |status| {
            let runs = !status.phase.has_failed() && status.phase != UpgradePhase::Complete;
            status.revision != failed.revision || !runs
        })
    }
}

/// Returns how long the upgrade of a pod may take.
pub(super) fn pod_timeout(followed: &Followed) -> Duration {
    let seconds = followed.rollout.pod_timeout_seconds;
    seconds.map_or(DEFAULT_POD_TIMEOUT, |seconds| Duration::from_secs(seconds.into()))
}

/// The result of a write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Written {
    Done,
    /// The pod has changed or was deleted, or the API server is unavailable. The next round handles the pod again.
    NotNow,
    /// The API server rejects the change, for this reason.
    Rejected(String),
    /// The controller lacks a permission, or a quota is used up. A later attempt may succeed.
    Forbidden(String),
}

/// Writes a pod, and logs a failure.
pub(super) async fn write(
    client: &Client,
    object: &DynamicObject,
    changes: &[ContainerChange],
    upgraded: &Upgraded,
    is_marked: bool,
) -> Written {
    let (namespace, name) = (object.metadata.namespace.as_deref(), object.metadata.name.as_deref());
    match change::apply(client, MANAGER, object, changes, upgraded, is_marked).await {
        Ok(()) => {
            debug!(namespace, name, is_marked, changes = changes.len(), "a pod was written");
            Written::Done
        }
        Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => {
            debug!(namespace, name, "a pod has changed or was deleted; the next round handles it again");
            Written::NotNow
        }
        Err(kube::Error::Api(status)) if matches!(status.code, 400 | 403 | 422) => {
            warn!(namespace, name, error = status.message, "the API server rejects the change of a pod");
            let why = format!("the API server rejects the change: {}", status.message);
            if status.code == 403 { Written::Forbidden(why) } else { Written::Rejected(why) }
        }
        Err(error) => {
            warn!(namespace, name, error = chain(&error), "a pod could not be changed; trying again");
            Written::NotNow
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
    use pillion_api::names::UPGRADED_ANNOTATION;
    use pillion_api::profile::Rollout;
    use pillion_engine::in_place::ContainerList;
    use pillion_engine::profile::ProfileName;
    use serde_json::json;

    use super::*;

    /// When the pod was changed, in seconds since 1970.
    const SINCE: i64 = 1_795_305_600;

    fn followed(phase: UpgradePhase) -> Followed {
        Followed {
            name: ProfileName::cluster("log"),
            resource_version: None,
            rollout: Rollout { pod_timeout_seconds: Some(30), ..Rollout::default() },
            revision: "r2".to_owned(),
            promoted: Some("r1".to_owned()),
            published_percent: Some(0),
            is_rollback: false,
            steering: None,
            upgrade: Some(UpgradeStatus::new("r2", Some("r1"), phase, Time(Timestamp::UNIX_EPOCH))),
        }
    }

    /// Returns a pod whose sidecar gets a new image. Since the change, the sidecar was restarted `restarts` times.
    fn pod(restarts: i64, state: &Value, is_step_back: bool, uid: &str) -> DynamicObject {
        let change = ContainerChange {
            list: ContainerList::InitContainers,
            name: "log".to_owned(),
            image: Some(("log:1".to_owned(), "log:2".to_owned())),
            resources: None,
        };
        let running = RunningUpgrade {
            since: SINCE,
            previous: BTreeMap::from([("log".to_owned(), "r1".to_owned())]),
            to: "r2".to_owned(),
            is_step_back,
            changes: vec![change],
            restarts: BTreeMap::from([("log".to_owned(), 0)]),
            was_ready: true,
        };
        let upgraded = Upgraded { uid: "aa-bb".to_owned(), running: Some(running), ..Upgraded::default() };
        let annotation = serde_json::to_string(&upgraded).unwrap();
        serde_json::from_value(json!({
            "metadata": {"namespace": "shop", "name": "web", "uid": uid, "annotations": {UPGRADED_ANNOTATION: annotation}},
            "status": {
                "conditions": [{"type": "Ready", "status": "True"}],
                "initContainerStatuses": [{"name": "log", "restartCount": restarts, "ready": true, "state": state}],
            },
        }))
        .unwrap()
    }

    #[test]
    fn marked_pod_is_completed_or_taken_back() {
        let running = || json!({"running": {"startedAt": "2026-11-22T00:00:00Z"}});
        let step = |pod: DynamicObject, phase, after| {
            MarkedPod::read(pod).unwrap().step(Some(&followed(phase)), true, SINCE + after)
        };
        let of = |restarts, is_step_back| pod(restarts, &running(), is_step_back, "aa-bb");
        assert_eq!(step(of(1, false), UpgradePhase::Upgrading, 20), Step::Complete);
        assert_eq!(step(of(0, false), UpgradePhase::Upgrading, 30), Step::Wait);
        // Running upgrades continue while the rollout is halted, and are taken back while it steps back.
        assert_eq!(step(of(0, false), UpgradePhase::Halted, 30), Step::Wait);
        assert_eq!(step(of(0, false), UpgradePhase::SteppingBack, 1), Step::Return);
        // The annotation has a time in the future.
        assert!(matches!(step(of(0, false), UpgradePhase::Upgrading, -61), Step::TakeBack(_)));
        let late = step(of(0, false), UpgradePhase::Upgrading, 31);
        assert!(matches!(&late, Step::TakeBack(why) if why.starts_with("not complete after 30 seconds")), "{late:?}");
        let crashing = || json!({"waiting": {"reason": "CrashLoopBackOff", "message": "back-off"}});
        let failed = step(pod(1, &crashing(), false, "aa-bb"), UpgradePhase::Upgrading, 1);
        assert!(matches!(&failed, Step::TakeBack(why) if why.contains("CrashLoopBackOff")), "{failed:?}");
        // While the image is taken back, its failure is still visible.
        assert_eq!(step(pod(1, &crashing(), true, "aa-bb"), UpgradePhase::SteppingBack, 1), Step::Wait);
        assert!(matches!(step(pod(1, &crashing(), true, "aa-bb"), UpgradePhase::SteppingBack, 31), Step::GiveUp(_)));
        assert!(MarkedPod::read(of(1, false)).unwrap().changes("log"));
        assert!(!MarkedPod::read(of(1, false)).unwrap().changes("other"));
        // The annotation was copied from another pod.
        assert!(MarkedPod::read(pod(1, &running(), false, "cc")).is_none());
    }

    #[test]
    fn failure_is_kept_until_status_has_it() {
        let mut object = pod(0, &json!({}), false, "aa-bb");
        let failed = FailedUpgrade { revision: "r2".to_owned(), why: "crashed".to_owned() };
        let upgraded = Upgraded {
            uid: "aa-bb".to_owned(),
            failed: BTreeMap::from([("log".to_owned(), failed.clone())]),
            ..Upgraded::default()
        };
        let annotation = serde_json::to_string(&upgraded).unwrap();
        object.metadata.annotations.as_mut().unwrap().insert(UPGRADED_ANNOTATION.to_owned(), annotation);
        let pod = MarkedPod::read(object).unwrap();
        assert_eq!(pod.step(None, false, SINCE), Step::Wait);
        assert_eq!(pod.step(None, true, SINCE), Step::Unmark);
    }
}
