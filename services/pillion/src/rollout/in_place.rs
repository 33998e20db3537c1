//! Upgrades the stale pods of workloads in place, as [`pillion_control::rollout`] describes: pulls the new image,
//! changes the pod, and waits until its containers run. If they do not become ready, the change is taken back.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail};
use futures::{StreamExt, TryStreamExt, stream};
use jiff::Timestamp;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use kube::api::{DynamicObject, ListParams};
use kube::{Api, Client};
use pillion_control::rollout::budgets::{self, Disruption};
use pillion_control::rollout::change::{apply, pods};
use pillion_control::rollout::{
    ImageState, Planner, PodUpgrade, Progress, PullSite, Puller, Target, Upgrade, baseline, delete_pods, is_ready,
    progress,
};
use pillion_control::{Lookups, Release, audit};
use pillion_engine::audit::Injected;
use pillion_engine::in_place::{ContainerChange, RunningUpgrade};
use pillion_engine::lookup::LookedUp;
use pillion_engine::snapshot::Snapshot;
use pillion_json::OwnedTape;
use serde_json::{Value, json};
use tokio::sync::Mutex;

use super::plan::Stale;
use crate::config::WebhookPolicy;
use crate::installation::{self, Unread};

/// The field manager of changes to pods.
const MANAGER: &str = "pillion-rollout";
/// How often to check the progress.
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// How often to check the progress of a pull.
const LOOK_AT_PULL_EVERY: Duration = Duration::from_millis(250);
/// How long the old image may take to run again after a change was taken back.
const STEP_BACK_LIMIT: Duration = Duration::from_mins(3);
/// The maximum number of attempts to change a pod. An attempt fails if another client changes the pod at the same time.
const ATTEMPTS: usize = 5;
/// The maximum number of reasons that are printed for a workload.
const MAX_REASONS: usize = 3;
/// The maximum number of pods whose upgrades are planned at the same time.
pub(super) const CONCURRENT_PLANS: usize = 8;

/// Plans and executes upgrades in place.
pub(super) struct Upgrader {
    client: Client,
    /// The active profiles with the guardrails of the policy, and the namespaces.
    active: Snapshot,
    /// Why the policy could not be read; `None` if it was read, or if there is none.
    unknown_policy: Option<String>,
    planner: Planner,
    /// The images that are pulled, by namespace of the pods that pull them.
    pullers: Mutex<HashMap<String, Puller>>,
}

/// Whether all stale pods of a workload can be upgraded in place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Possibility {
    /// All pods can be upgraded in place.
    All,
    /// At least one pod cannot be upgraded in place, or the webhook's policy could not be read. Contains up to
    /// [`MAX_REASONS`] reasons.
    No(Vec<String>),
}

impl Upgrader {
    /// Reads the active profiles, and the policy of the webhook with its guardrails.
    ///
    /// # Errors
    /// Profiles or namespaces cannot be listed, or the policy's cluster facts are invalid.
    pub(super) async fn new(client: Client, release: &Release, lookups: Lookups) -> anyhow::Result<Self> {
        let served = audit::served(&client, release).await?;
        let mut unread = Unread::new();
        let policy = installation::policy(&client, release, &mut unread).await;
        // Without its guardrails, an upgrade could bring an image into a pod that the webhook would reject.
        let unknown_policy = unread.first().map(|(part, why)| format!("{part} cannot be read: {why}"));
        let guardrails = policy.as_ref().map(|policy| policy.guardrails.clone()).unwrap_or_default();
        let cluster = policy.as_ref().map(WebhookPolicy::cluster_facts).transpose()?.flatten();
        let planner = Planner::new(client.clone(), lookups, cluster.or_else(LookedUp::unknown_cluster));
        let active = Arc::unwrap_or_clone(served.snapshot).with_guardrails(guardrails);
        Ok(Self { client, active, unknown_policy, planner, pullers: Mutex::default() })
    }

    /// Returns why the policy could not be read; `None` if it was read, or if there is none.
    pub(super) fn unknown_policy(&self) -> Option<&str> {
        self.unknown_policy.as_deref()
    }

    /// Returns the namespaces that are opted in, in alphabetical order.
    pub(super) fn namespaces(&self) -> impl Iterator<Item = String> {
        let opted_in = self.active.namespaces().filter(|(_, namespace)| namespace.failure_mode().is_some());
        opted_in.map(|(name, _)| name.to_owned()).collect::<BTreeSet<_>>().into_iter()
    }

    /// Plans the upgrade of a pod to the newest revisions of the profiles that it has. `None` if it has no injection
    /// record that this version can read.
    ///
    /// # Errors
    /// A revision cannot be read, or the webhook's decision for the pod cannot be computed.
    pub(super) async fn to_newest(&self, pod: &DynamicObject) -> anyhow::Result<Option<PodUpgrade>> {
        let about = || format!("pod {}", pod.metadata.name.as_deref().unwrap_or_default());
        let tape = OwnedTape::parse(serde_json::to_string(pod)?).with_context(about)?;
        let Injected::Profiles(injected) = pillion_engine::audit::read(tape.root()).injected else { return Ok(None) };
        let newest = |name: &str| self.active.profiles().iter().find(|profile| profile.display_name() == name);
        let targets =
            injected.iter().filter_map(|(name, _)| Some((name.to_string(), newest(name)?.revision().to_owned())));
        let targets = targets.collect();
        self.planner.plan(&self.active, pod, Target::Revisions(&targets)).await.with_context(about).map(Some)
    }

    /// Decides whether all stale pods of a workload can be upgraded in place.
    ///
    /// # Errors
    /// A pod or a revision cannot be read, or the webhook's decision for a pod cannot be computed.
    pub(super) async fn possibility(&self, stale: &Stale) -> anyhow::Result<Possibility> {
        if let Some(why) = &self.unknown_policy {
            return Ok(Possibility::No(vec![why.clone()]));
        }
        let plans = stale.pods.iter().map(async |name| self.plan(&stale.workload.namespace, name).await);
        let plans: Vec<_> = stream::iter(plans).buffer_unordered(CONCURRENT_PLANS).try_collect().await?;
        let reasons = plans.into_iter().flatten().filter_map(|(_, plan)| match plan {
            PodUpgrade::Recreate(why) | PodUpgrade::Impossible(why) => Some(why),
            PodUpgrade::Current | PodUpgrade::Possible(_) => None,
        });
        let reasons: BTreeSet<_> = reasons.flatten().collect();
        let reasons: Vec<_> = reasons.into_iter().take(MAX_REASONS).collect();
        Ok(if reasons.is_empty() { Possibility::All } else { Possibility::No(reasons) })
    }

    /// Upgrades the stale pods of a workload, one after the other. While it waits, it calls `show` with the reason.
    ///
    /// # Errors
    /// A pod cannot be upgraded, its disruption budgets do not allow it within `limit`, or its containers do not become
    /// ready within `limit`. In the last case, the change of that pod is taken back if possible. The remaining pods are
    /// not changed.
    pub(super) async fn run(&self, stale: &Stale, limit: Duration, show: &dyn Fn(&str)) -> anyhow::Result<()> {
        let all = stale.pods.len();
        for (index, name) in stale.pods.iter().enumerate() {
            let show = |what: &str| show(&format!("pod {name}, {} of {all}: {what}", index + 1));
            let done = self.upgrade(&stale.workload.namespace, name, limit, &show).await;
            if done.is_err() || index + 1 == all {
                // Deletes the pods that pulled the images. If the deletion fails, these pods remain.
                let _ = delete_pods(&self.client, &stale.workload.namespace, Duration::ZERO).await;
            }
            done.with_context(|| format!("pod {name}"))?;
        }
        Ok(())
    }

    async fn upgrade(&self, namespace: &str, name: &str, limit: Duration, show: &dyn Fn(&str)) -> anyhow::Result<()> {
        // Another attempt follows if another client changes the pod at the same time.
        for _ in 0..ATTEMPTS {
            let Some((pod, plan)) = self.plan(namespace, name).await? else { return Ok(()) };
            let upgrade = match plan {
                PodUpgrade::Current => return Ok(()),
                PodUpgrade::Recreate(why) | PodUpgrade::Impossible(why) => {
                    bail!("it cannot be upgraded in place: {}", why.join("; "))
                }
                PodUpgrade::Possible(upgrade) => upgrade,
            };
            let Upgrade { changes, previous, upgraded } = *upgrade;
            self.pull(&pod, &changes, show).await?;
            let allowed = tokio::time::timeout(limit, self.wait_for_budgets(&pod, show)).await;
            allowed.with_context(|| format!("no disruption is allowed within {} seconds", limit.as_secs()))??;
            let running = baseline(&value(&pod)?, &changes, previous, Timestamp::now().as_second());
            let why = match apply(&self.client, MANAGER, &pod, &changes, &upgraded, false).await {
                Ok(()) => match tokio::time::timeout(limit, self.wait(&pod, &running, show)).await {
                    Ok(Ok(())) => return Ok(()),
                    Ok(Err(error)) => format!("{error:#}"),
                    Err(_) => format!("its containers are not ready after {} seconds", limit.as_secs()),
                },
                Err(kube::Error::Api(status)) if status.code == 409 => continue,
                Err(error) => bail!("the API server rejects the change: {error}"),
            };
            show("taking the change back");
            match self.take_back(&pod, running).await {
                Ok(()) => bail!("{why}; the change was taken back"),
                Err(error) => bail!("{why}; the change could not be taken back: {error:#}"),
            }
        }
        bail!("other clients keep changing it")
    }

    /// Reads a pod and plans its upgrade. `None` if the pod does not exist any more, or is being deleted.
    async fn plan(&self, namespace: &str, name: &str) -> anyhow::Result<Option<(DynamicObject, PodUpgrade)>> {
        let pod = pods(&self.client, namespace).get_opt(name).await.context("it cannot be read")?;
        let Some(pod) = pod.filter(|pod| pod.metadata.deletion_timestamp.is_none()) else { return Ok(None) };
        let plan = self.planner.plan(&self.active, &pod, Target::Active).await?;
        Ok(Some((pod, plan)))
    }

    /// Pulls the new images to the pod's node, with the pod's credentials.
    async fn pull(&self, pod: &DynamicObject, changes: &[ContainerChange], show: &dyn Fn(&str)) -> anyhow::Result<()> {
        let namespace = pod.metadata.namespace.clone().unwrap_or_default();
        let secrets = pod.data.pointer("/spec/imagePullSecrets").cloned().unwrap_or_else(|| json!([]));
        let site = PullSite { namespace: namespace.clone(), secrets, service_account: None };
        loop {
            let mut pullers = self.pullers.lock().await;
            let puller = pullers.entry(namespace.clone()).or_default();
            let (state, text) =
                puller.images(&self.client, pod, changes, &site).await.context("the image cannot be pulled")?;
            drop(pullers);
            match state {
                ImageState::Present => return Ok(()),
                ImageState::Waiting => show(&text),
                ImageState::Failed(_) => bail!("{text}"),
            }
            tokio::time::sleep(LOOK_AT_PULL_EVERY).await;
        }
    }

    /// Waits until the disruption budgets of a pod allow one more disruption. While a changed container is not ready,
    /// its pod is not ready either.
    async fn wait_for_budgets(&self, pod: &DynamicObject, show: &dyn Fn(&str)) -> anyhow::Result<()> {
        let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
        let budgets = Api::<PodDisruptionBudget>::namespaced(self.client.clone(), namespace);
        let disruption = Disruption { labels: serde_json::to_value(&pod.metadata.labels).ok(), pods: 1 };
        // A pod that is not ready is disrupted already.
        let is_disrupted = !is_ready(&value(pod)?);
        loop {
            let all = budgets.list(&ListParams::default()).await.context("the disruption budgets cannot be listed")?;
            let refusal = budgets::refusal(&disruption, &all.items, &[]).filter(|_| !is_disrupted);
            let Some(refusal) = refusal else { return Ok(()) };
            show(&refusal);
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }

    /// Waits until the changed containers run and the pod is as ready as before. Also succeeds if the pod is deleted.
    async fn wait(&self, pod: &DynamicObject, running: &RunningUpgrade, show: &dyn Fn(&str)) -> anyhow::Result<()> {
        loop {
            let Some(now) = self.current(pod).await? else { return Ok(()) };
            match progress(&value(&now)?, running, Timestamp::now().as_second()) {
                Progress::Done => return Ok(()),
                Progress::Waiting(what) => show(&what),
                Progress::Failed(why) => bail!("{why}"),
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }

    /// Returns a pod to the revisions before its upgrade, and waits until the old images run.
    async fn take_back(&self, pod: &DynamicObject, failed: RunningUpgrade) -> anyhow::Result<()> {
        for _ in 0..ATTEMPTS {
            let Some(now) = self.current(pod).await? else { return Ok(()) };
            let back = match self.planner.plan(&self.active, &now, Target::Revisions(&failed.previous)).await? {
                PodUpgrade::Current => return Ok(()),
                PodUpgrade::Recreate(why) | PodUpgrade::Impossible(why) => bail!("{}", why.join("; ")),
                PodUpgrade::Possible(back) => back,
            };
            let before = baseline(&value(&now)?, &back.changes, BTreeMap::new(), Timestamp::now().as_second());
            let running = RunningUpgrade { is_step_back: true, was_ready: failed.was_ready, ..before };
            match apply(&self.client, MANAGER, &now, &back.changes, &back.upgraded, false).await {
                Ok(()) => {
                    let waited = tokio::time::timeout(STEP_BACK_LIMIT, self.wait(&now, &running, &|_| {})).await;
                    return waited.context("the old image does not become ready")?;
                }
                Err(kube::Error::Api(status)) if status.code == 409 => {}
                Err(error) => return Err(error.into()),
            }
        }
        bail!("other clients keep changing it")
    }

    /// Returns the current state of a pod. `None` if it no longer exists, even if a `StatefulSet` has created another
    /// pod with the same name.
    async fn current(&self, pod: &DynamicObject) -> anyhow::Result<Option<DynamicObject>> {
        let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
        let name = pod.metadata.name.as_deref().unwrap_or_default();
        let now = pods(&self.client, namespace).get_opt(name).await.context("it cannot be read")?;
        Ok(now.filter(|now| now.metadata.uid == pod.metadata.uid))
    }
}

fn value(pod: &DynamicObject) -> anyhow::Result<Value> {
    serde_json::to_value(pod).context("it cannot be serialized as JSON")
}
