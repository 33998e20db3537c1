//! Brings a revision to pods: plans the change of each, pulls images first, and respects disruption budgets and the
//! limit of pods that change at the same time.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use kube::Api;
use kube::api::{DynamicObject, ListParams};
use pillion_api::kinds::PodEviction;
use pillion_api::names::UPGRADING_LABEL;
use pillion_engine::in_place::{ContainerChange, ContainerList, RunningUpgrade};
use serde_json::Value;
use tokio::time::Instant;

use super::budgets::{self, Disruption};
use super::change::pods as api_of;
use super::evictions::{self, Evicted, Eviction, PhaseKey};
use super::known::Known;
use super::marked::{self, Written};
use super::metrics::UpgradeResult;
use super::progress::{baseline, is_ready, name as container_name, statuses};
use super::pull::ImageState;
use super::render::{PlanError, PodUpgrade, Target, Upgrade, read_annotation};
use super::state::Task;
use crate::audit::{ProfilePod, uid_number};
use crate::client::{chain, lists};

/// Maximum number of pods that are planned in one round for one profile, so that it does not delay the others.
const PLANS: usize = 32;

/// A change that pods of a profile need.
#[derive(Clone, Copy)]
pub(super) struct Change<'c> {
    /// The profile's display name.
    pub(super) name: &'c str,
    /// The revision of the rollout.
    pub(super) revision: &'c str,
    /// The revision that the pods get.
    pub(super) to: &'c str,
    pub(super) is_step_back: bool,
    /// `None` if pods are not evicted.
    pub(super) restart: Option<&'c Restart>,
    /// All pods of the profile.
    pub(super) all: &'c [ProfilePod],
}

/// When pods may be evicted.
pub(super) struct Restart {
    /// Why no pod may be evicted now.
    pub(super) waits: Option<String>,
    /// The current phase.
    pub(super) phase: PhaseKey,
    /// How long the upgrade of one pod may take.
    pub(super) limit: Duration,
}

impl Change<'_> {
    /// Decides whether to evict a pod that cannot be changed in place for `reasons`. `is_due` says whether the pod is
    /// ready, or was delayed before.
    fn eviction(
        &self,
        (pod, object): (&ProfilePod, &DynamicObject),
        is_due: bool,
        mut reasons: Vec<String>,
        known: &Known,
    ) -> Planned {
        let Some(restart) = self.restart else { return Planned::Impossible(reasons) };
        let controller = match evictions::controller(object) {
            Ok(_) if self.is_step_back && *pod.revision != *self.revision => {
                Err("it does not have the revision of the failed rollout".to_owned())
            }
            Ok(_) if !known.evictions.is_old(pod.uid) => {
                Err("it was created with another revision after the step began".to_owned())
            }
            controller => controller,
        };
        match (controller, &restart.waits) {
            (Err(why), _) => {
                reasons.push(why);
                Planned::Impossible(reasons)
            }
            (Ok(_), Some(why)) => Planned::Later(why.clone()),
            (Ok(controller), None) if is_due || self.is_step_back => Planned::Action(Action::Evict(controller)),
            // The pods that replace ready ones show whether the revision works, so they come first.
            (Ok(_), None) => Planned::Later("pods that are not ready are restarted after the others".to_owned()),
        }
    }
}

/// How a pod gets a revision.
enum Action {
    Upgrade(Box<Upgrade>),
    /// The pod is evicted, and its controller, such as `ReplicaSet/web-5d8`, replaces it.
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

impl Task {
    /// Changes at most `limit` candidates in place, or plans their evictions. Keeps their order, except that pods whose
    /// change was delayed come last.
    pub(super) async fn change_pods(
        &mut self,
        change: Change<'_>,
        candidates: Vec<&ProfilePod>,
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
        mut candidates: Vec<&ProfilePod>,
        mut limit: usize,
        ongoing: &mut Vec<(String, Disruption)>,
        known: &mut Known,
    ) -> kube::Result<()> {
        let mut plans = PLANS;
        let mut budgets: HashMap<&str, Vec<PodDisruptionBudget>> = HashMap::new();
        candidates.retain(|pod| known.obstacle(pod.uid, change.to).is_none());
        // Pods that were delayed come last, and among them, those that were delayed longest ago come first. So they do
        // not prevent the upgrade of others.
        candidates.sort_by_key(|pod| known.last_try(pod.uid));
        for pod in candidates {
            if limit == 0 || plans == 0 || self.until.is_some_and(|until| Instant::now() >= until) {
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
            // The controller writes the label and the annotation together. If only the annotation shows a running
            // upgrade, another client has changed one of them.
            let is_marked = object.metadata.labels.as_ref().is_some_and(|labels| labels.contains_key(UPGRADING_LABEL));
            if is_marked && read_annotation(&value).is_some_and(|upgraded| upgraded.running.is_some()) {
                // Another rollout, or another leader, has begun to change the pod since the marked pods were listed.
                limit -= 1;
                continue;
            }
            let action = match self.plan((pod, &object, &value), change, known).await {
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
                known.refuse(pod.uid, change.to, change.restart.map(|restart| restart.limit), refusal);
                continue;
            }
            let has_begun = match action {
                Action::Upgrade(upgrade) => self.begin((pod, &object, &value), *upgrade, change, known).await,
                Action::Evict(controller) => self.plan_eviction((pod, &object), controller, change, known),
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

    /// Plans the eviction of a pod. Returns whether it will be evicted.
    fn plan_eviction(
        &self,
        (pod, object): (&ProfilePod, &DynamicObject),
        controller: String,
        change: Change<'_>,
        known: &mut Known,
    ) -> bool {
        let Some(Restart { phase, limit, .. }) = change.restart else { return false };
        // Two pods of one workload are never replaced at the same time, even by the rollouts of two profiles.
        let is_busy = |known: &Known| known.evictions.has_open(&pod.namespace, &controller);
        if is_busy(known) || self.known.values().any(is_busy) {
            known.delay(
                pod.uid,
                format!("another pod of {controller} in namespace {} is being replaced", pod.namespace),
            );
            return false;
        }
        known.evictions.planned.push(Eviction::new((pod, object), controller, (change.to, phase), change.all, *limit));
        true
    }

    /// Evicts the pods of a profile whose planned evictions are in its status now. `limit` is how long the upgrade of
    /// one pod may take.
    pub(super) async fn evict_planned(&mut self, name: &str, revision: &str, limit: Duration) -> kube::Result<()> {
        let Self { client, known, channels, .. } = self;
        let known = known.entry(name.to_owned()).or_default();
        for mut eviction in std::mem::take(&mut known.evictions.planned) {
            let result = match eviction.request(client).await {
                Ok(Evicted::Done) => {
                    known.evictions.open.push(eviction);
                    UpgradeResult::Begun
                }
                Ok(Evicted::Gone) => continue,
                Ok(Evicted::Refused(why)) => {
                    let PodEviction { uid, revision: to, .. } = &eviction.stored;
                    known.refuse(uid_number(uid), to, Some(limit), why);
                    UpgradeResult::Rejected
                }
                Err(error) => {
                    // The pod may have been evicted.
                    known.evictions.open.push(eviction);
                    return Err(error);
                }
            };
            channels.metrics.count(name, revision, result);
        }
        Ok(())
    }

    /// Plans the change of a pod.
    async fn plan(
        &self,
        (pod, object, value): (&ProfilePod, &DynamicObject, &Value),
        change: Change<'_>,
        known: &Known,
    ) -> Planned {
        let targets = BTreeMap::from([(change.name.to_owned(), change.to.to_owned())]);
        match self.planner.plan(&self.active.1, object, Target::Revisions(&targets)).await {
            Ok(PodUpgrade::Current) => Planned::Current,
            Ok(PodUpgrade::Recreate(reasons)) => {
                let is_due = is_ready(value) || known.last_try(pod.uid).is_some();
                change.eviction((pod, object), is_due, reasons, known)
            }
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

impl Known {
    /// Handles a refusal to disrupt a pod. With the strategy `Restart`, the step no longer waits for a pod whose
    /// disruption has been refused for longer than `limit`.
    fn refuse(&mut self, uid: u128, to: &str, limit: Option<Duration>, why: String) {
        match limit {
            Some(limit) if self.evictions.refuse(uid, limit) => self.add_obstacle(uid, to, vec![why]),
            _ => self.delay(uid, why),
        }
    }
}

/// Returns the name of a changed container of `spec.containers` that has terminated, unless the pod's `restartPolicy`
/// is `Always`.
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
