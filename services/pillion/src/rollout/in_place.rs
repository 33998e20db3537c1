//! Upgrades running pods in place: changes the images and the resources of injected containers, and waits until the
//! containers run. The application's containers are not restarted.
//!
//! The kubelet stops a container before it pulls the new image. So the image is pulled to the node first, by a pod of its
//! own ([`pull`]), and a pod is only changed if that succeeds. If a changed container does not become ready, the change
//! is taken back.
//!
//! * [`Upgrader`]: plans and executes upgrades.
//! * [`progress`]: decides from a pod's status whether an upgrade is complete or has failed. It does no I/O.

mod pull;
mod progress;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail};
use futures::{StreamExt, TryStreamExt, stream};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use kube::api::{ApiResource, DynamicObject, ListParams, Patch, PatchParams};
use kube::{Api, Client};
use pillion_api::names::{INJECTED_ANNOTATION, UPGRADED_ANNOTATION};
use pillion_control::informer::fetch;
use pillion_control::informer::published::{Fetched, RevisionKey};
use pillion_control::{Lookups, Release, audit};
use pillion_engine::audit::Injected;
use pillion_engine::in_place::{ContainerChange, ContainerList, PodPlan, plan};
use pillion_engine::lookup::LookedUp;
use pillion_engine::profile::CompiledProfile;
use pillion_engine::snapshot::{ProfileSet, Snapshot};
use pillion_json::OwnedTape;
use serde_json::{Map, Value, json};
use tokio::sync::Mutex;

use self::progress::{Baseline, Progress};
use super::plan::{Stale, refusing_budget};
use crate::config::WebhookPolicy;
use crate::diff::cluster::{as_written, created};
use crate::installation::{self, Unread};

/// The field manager of changes to pods.
const MANAGER: &str = "pillion-rollout";
/// How often to check the progress.
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// How long the old image may take to run again after a change was taken back.
const STEP_BACK_LIMIT: Duration = Duration::from_mins(3);
/// How often a change is tried again if another client changes the pod at the same time.
const ATTEMPTS: usize = 5;
/// The maximum number of reasons that are printed for a workload.
const MAX_REASONS: usize = 3;
/// The number of pods that are planned at the same time.
const CONCURRENT_PLANS: usize = 8;

/// Plans and executes upgrades in place.
pub(super) struct Upgrader {
    client: Client,
    /// The active profiles, and the namespaces.
    active: Arc<Snapshot>,
    /// The policy's facts about the cluster.
    cluster: Option<Arc<OwnedTape>>,
    /// Why the policy could not be read; `None` if it was read, or if there is none.
    unknown_policy: Option<String>,
    lookups: Lookups,
    /// Revisions that are no longer active; `None` if a revision is no longer stored.
    revisions: Mutex<HashMap<RevisionKey, Option<Arc<CompiledProfile>>>>,
    pulled: pull::Pulled,
}

/// What to do with a running pod.
#[derive(Debug)]
enum PodUpgrade {
    /// The pod no longer exists, or has the active revisions.
    Done,
    /// The pod can be upgraded in place.
    Possible(Box<Upgrade>),
    /// The pod has to be recreated, for these reasons.
    Impossible(Vec<String>),
}

/// An upgrade of a running pod.
#[derive(Debug)]
struct Upgrade {
    pod: DynamicObject,
    changes: Vec<ContainerChange>,
    /// The value of [`UPGRADED_ANNOTATION`] after the upgrade.
    annotation: String,
}

/// Whether all stale pods of a workload can be upgraded in place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Possibility {
    /// All pods can be upgraded in place.
    All,
    /// At least one pod cannot be upgraded in place, for these reasons.
    No(Vec<String>),
}

impl Upgrader {
    /// Reads the active profiles, and the policy of the webhook with its guardrails.
    ///
    /// # Errors
    /// Profiles or namespaces cannot be listed.
    pub(super) async fn new(client: Client, release: &Release, lookups: Lookups) -> anyhow::Result<Self> {
        let served = audit::served(&client, release).await?;
        let mut unread = Unread::new();
        let policy = installation::policy(&client, release, &mut unread).await;
        // Without its guardrails, an upgrade could bring an image into a pod that the webhook would reject.
        let unknown_policy = unread.first().map(|(part, why)| format!("{part} cannot be read: {why}"));
        let guardrails = policy.as_ref().map(|policy| policy.guardrails.clone()).unwrap_or_default();
        let cluster = policy.as_ref().map(WebhookPolicy::cluster_facts).transpose()?.flatten();
        Ok(Self {
            client,
            active: Arc::new(served.snapshot.as_ref().clone().with_guardrails(guardrails)),
            cluster: cluster.or_else(LookedUp::unknown_cluster),
            unknown_policy,
            lookups,
            revisions: Mutex::default(),
            pulled: pull::Pulled::default(),
        })
    }

    /// Decides whether all stale pods of a workload can be upgraded in place.
    ///
    /// # Errors
    /// A pod or a revision cannot be read.
    pub(super) async fn possibility(&self, stale: &Stale) -> anyhow::Result<Possibility> {
        if let Some(why) = &self.unknown_policy {
            return Ok(Possibility::No(vec![why.clone()]));
        }
        let plans = stale.pods.iter().map(async |name| self.plan(&stale.workload.namespace, name).await);
        let plans: Vec<_> = stream::iter(plans).buffer_unordered(CONCURRENT_PLANS).try_collect().await?;
        let reasons = plans.into_iter().filter_map(|plan| match plan {
            PodUpgrade::Impossible(why) => Some(why),
            PodUpgrade::Done | PodUpgrade::Possible(_) => None,
        });
        let reasons: BTreeSet<_> = reasons.flatten().take(MAX_REASONS).collect();
        Ok(if reasons.is_empty() { Possibility::All } else { Possibility::No(reasons.into_iter().collect()) })
    }

    /// Upgrades the stale pods of a workload, one after the other. Calls `show` with what it waits for.
    ///
    /// # Errors
    /// A pod cannot be upgraded, or its containers do not become ready within `limit`. The change of that pod was taken
    /// back, and the remaining pods were not changed.
    pub(super) async fn run(&self, stale: &Stale, limit: Duration, show: &dyn Fn(&str)) -> anyhow::Result<()> {
        let all = stale.pods.len();
        for (index, name) in stale.pods.iter().enumerate() {
            let show = |what: &str| show(&format!("pod {name}, {} of {all}: {what}", index + 1));
            self.upgrade(&stale.workload.namespace, name, limit, &show).await.with_context(|| format!("pod {name}"))?;
        }
        Ok(())
    }

    async fn upgrade(&self, namespace: &str, name: &str, limit: Duration, show: &dyn Fn(&str)) -> anyhow::Result<()> {
        // Another attempt follows if another client changes the pod at the same time.
        for _ in 0..ATTEMPTS {
            let upgrade = match self.plan(namespace, name).await? {
                PodUpgrade::Done => return Ok(()),
                PodUpgrade::Impossible(why) => bail!("it cannot be upgraded in place: {}", why.join("; ")),
                PodUpgrade::Possible(upgrade) => upgrade,
            };
            let Upgrade { pod, changes, annotation: upgraded } = &*upgrade;
            self.pulled.pull(&self.client, pod, changes, show).await?;
            let allowed = tokio::time::timeout(limit, self.wait_for_budgets(pod, show)).await;
            allowed.with_context(|| format!("no disruption is allowed within {} seconds", limit.as_secs()))??;
            let before = Baseline::of(&value(pod)?, changes);
            let why = match self.patch(pod, changes, Some(upgraded)).await {
                Ok(()) => match tokio::time::timeout(limit, self.wait(pod, &before, show)).await {
                    Ok(Ok(())) => return Ok(()),
                    Ok(Err(error)) => format!("{error:#}"),
                    Err(_) => format!("its containers are not ready after {} seconds", limit.as_secs()),
                },
                Err(kube::Error::Api(status)) if status.code == 409 => continue,
                Err(error) => format!("the API server rejects the change: {error}"),
            };
            show("taking the change back");
            match self.step_back(pod, changes, &before).await {
                Ok(()) => bail!("{why}; the change was taken back"),
                Err(error) => bail!("{why}; the change could not be taken back: {error:#}"),
            }
        }
        bail!("other clients keep changing it")
    }

    /// Decides what to do with a pod.
    async fn plan(&self, namespace: &str, name: &str) -> anyhow::Result<PodUpgrade> {
        let impossible = |why: String| Ok(PodUpgrade::Impossible(vec![why]));
        let Some(mut pod) = self.pods(namespace).get_opt(name).await.context("it cannot be read")? else {
            return Ok(PodUpgrade::Done);
        };
        if pod.metadata.deletion_timestamp.is_some() {
            return Ok(PodUpgrade::Done);
        }
        if pod.data.pointer("/spec/nodeName").is_none() {
            return impossible("it is not scheduled yet".to_owned());
        }
        pod.types = Some(kube::api::TypeMeta { api_version: "v1".to_owned(), kind: "Pod".to_owned() });
        let running = value(&pod)?;
        let tape = OwnedTape::parse(running.to_string()).context("it cannot be parsed")?;
        let Injected::Profiles(injected) = pillion_engine::audit::read(tape.root()).injected else {
            return impossible("it has no injection record".to_owned());
        };
        let known = self.active.namespace(namespace).context("its namespace is not opted in")?;
        let original = as_written(&pod)?;
        let create = async |snapshot: &Snapshot| {
            created(&original, (namespace, &known), snapshot, &self.lookups, self.cluster.as_ref()).await
        };
        let (_, after) = create(&self.active).await?;
        let (recorded, wanted) = (revisions(&running), revisions(&after));
        if !recorded.keys().eq(wanted.keys()) {
            return impossible("other profiles apply to it now".to_owned());
        }
        if injected.iter().all(|(profile, has)| wanted.get(&**profile).is_some_and(|to| **to == **has)) {
            return Ok(PodUpgrade::Done);
        }
        let before = match self.with_revisions(&injected).await? {
            Ok(before) => create(&before).await?.1,
            Err(why) => return impossible(why),
        };
        let changes = match plan(&running, &before, &after, &pillion_engine::audit::added(tape.root())) {
            PodPlan::Same => Vec::new(),
            PodPlan::InPlace(changes) => changes,
            PodPlan::Recreate(obstacles) => {
                return Ok(PodUpgrade::Impossible(obstacles.iter().map(ToString::to_string).collect()));
            }
        };
        let upgraded: Map<String, Value> = recorded
            .iter()
            .zip(wanted.values())
            .filter(|((_, from), to)| from != to)
            .map(|((profile, from), to)| (profile.clone(), json!({"from": from, "to": to})))
            .collect();
        let annotation = json!({"uid": pod.metadata.uid, "profiles": upgraded}).to_string();
        Ok(PodUpgrade::Possible(Box::new(Upgrade { pod, changes, annotation })))
    }

    /// Returns the active profiles, in which these revisions replace the active ones. The inner error is the reason why
    /// that is impossible.
    async fn with_revisions(&self, injected: &[(Box<str>, Box<str>)]) -> anyhow::Result<Result<Snapshot, String>> {
        let mut profiles: Vec<Arc<CompiledProfile>> = self.active.profiles().iter().map(Arc::clone).collect();
        for (name, revision) in injected {
            let is_it = |profile: &Arc<CompiledProfile>| profile.display_name() == &**name;
            let Some(active) = profiles.iter().find(|profile| is_it(profile)) else {
                return Ok(Err(format!("profile {name} is no longer active")));
            };
            let key = RevisionKey { profile: active.name().clone(), revision: revision.clone() };
            let found = profiles.iter().find(|profile| is_it(profile) && profile.revision() == &**revision);
            let wanted = match found {
                Some(found) => Arc::clone(found),
                None => match self.revision(key).await? {
                    Some(compiled) => compiled,
                    None => return Ok(Err(format!("revision {revision} of profile {name} is no longer stored"))),
                },
            };
            profiles.retain(|profile| !is_it(profile));
            profiles.push(wanted);
        }
        Ok(Ok(self.active.with_profiles(ProfileSet::new(profiles))))
    }

    /// Returns a revision that is no longer active; `None` if it is no longer stored.
    async fn revision(&self, key: RevisionKey) -> anyhow::Result<Option<Arc<CompiledProfile>>> {
        let mut known = self.revisions.lock().await;
        if let Some(found) = known.get(&key) {
            return Ok(found.clone());
        }
        let fetched = fetch::get(self.client.clone(), &key).await.context("a revision cannot be read")?;
        let found = match fetched {
            Fetched::Compiled(compiled) => Some(compiled),
            Fetched::Missing(_) | Fetched::Unusable(_) => None,
        };
        known.insert(key, found.clone());
        Ok(found)
    }

    /// Waits until the disruption budgets of a pod allow one more disruption. While a changed container is not ready,
    /// its pod is not ready either.
    async fn wait_for_budgets(&self, pod: &DynamicObject, show: &dyn Fn(&str)) -> anyhow::Result<()> {
        let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
        let budgets = Api::<PodDisruptionBudget>::namespaced(self.client.clone(), namespace);
        let labels = serde_json::to_value(&pod.metadata.labels).unwrap_or_default();
        loop {
            let all = budgets.list(&ListParams::default()).await.context("the disruption budgets cannot be listed")?;
            let Some(refusal) = refusing_budget(1, Some(&labels), &all.items, &[]) else { return Ok(()) };
            show(&refusal);
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }

    /// Changes the resources of a pod's containers, and then the images together with the annotation. So the annotation is
    /// written last, and an interrupted upgrade is continued by the next one. Fails with the code 409 if the pod has
    /// changed since it was read.
    async fn patch(
        &self,
        pod: &DynamicObject,
        changes: &[ContainerChange],
        upgraded: Option<&str>,
    ) -> kube::Result<()> {
        let mut version = pod.metadata.resource_version.clone();
        let resources = spec(changes, |change| Some(json!({"resources": change.resources.as_ref()?.1})));
        let precondition = |version: &Option<String>| json!({"uid": pod.metadata.uid, "resourceVersion": version});
        if !resources.is_empty() {
            version = self.send(pod, &precondition(&version), resources, true).await?;
        }
        let mut metadata = precondition(&version);
        if let Some(fields) = metadata.as_object_mut() {
            fields.insert("annotations".to_owned(), json!({UPGRADED_ANNOTATION: upgraded}));
        }
        let images = spec(changes, |change| Some(json!({"image": change.image.as_ref()?.1})));
        self.send(pod, &metadata, images, false).await?;
        Ok(())
    }

    /// Sends a patch. Returns the new `resourceVersion`.
    async fn send(
        &self,
        pod: &DynamicObject,
        metadata: &Value,
        spec: Map<String, Value>,
        is_resize: bool,
    ) -> kube::Result<Option<String>> {
        let (api, name) = (self.pods_of(pod), pod.metadata.name.as_deref().unwrap_or_default());
        let parameters = PatchParams { field_manager: Some(MANAGER.to_owned()), ..PatchParams::default() };
        // A strategic merge finds containers by their names.
        let patch = Patch::Strategic(json!({"metadata": metadata, "spec": spec}));
        let changed = if is_resize {
            api.patch_subresource("resize", name, &parameters, &patch).await?
        } else {
            api.patch(name, &parameters, &patch).await?
        };
        Ok(changed.metadata.resource_version)
    }

    /// Waits until the changed containers run and the pod is as ready as before.
    async fn wait(&self, pod: &DynamicObject, baseline: &Baseline, show: &dyn Fn(&str)) -> anyhow::Result<()> {
        loop {
            let Some(now) = self.current(pod).await? else { return Ok(()) };
            match baseline.progress(&value(&now)?, Timestamp::now().as_second()) {
                Progress::Done => return Ok(()),
                Progress::Waiting(what) => show(&what),
                Progress::Failed(why) => bail!("{why}"),
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }

    /// Takes a change back, and waits until the old images run.
    async fn step_back(
        &self,
        pod: &DynamicObject,
        changes: &[ContainerChange],
        before: &Baseline,
    ) -> anyhow::Result<()> {
        let back: Vec<_> = changes.iter().map(ContainerChange::reversed).collect();
        let upgraded = annotation(pod, UPGRADED_ANNOTATION);
        for _ in 0..ATTEMPTS {
            let Some(now) = self.current(pod).await? else { return Ok(()) };
            let baseline = Baseline::of(&value(&now)?, &back).back_to(before);
            match self.patch(&now, &back, upgraded).await {
                Ok(()) => {
                    let waited = tokio::time::timeout(STEP_BACK_LIMIT, self.wait(&now, &baseline, &|_| {})).await;
                    return waited.context("the old image does not become ready")?;
                }
                Err(kube::Error::Api(status)) if status.code == 409 => {}
                Err(error) => return Err(error.into()),
            }
        }
        bail!("other clients keep changing it")
    }

    /// Returns the current state of a pod. `None` if it no longer exists, even if a `StatefulSet` has created another pod
    /// with the same name.
    async fn current(&self, pod: &DynamicObject) -> anyhow::Result<Option<DynamicObject>> {
        let name = pod.metadata.name.as_deref().unwrap_or_default();
        let now = self.pods_of(pod).get_opt(name).await.context("it cannot be read")?;
        Ok(now.filter(|now| now.metadata.uid == pod.metadata.uid))
    }

    fn pods(&self, namespace: &str) -> Api<DynamicObject> {
        Api::namespaced_with(self.client.clone(), namespace, &ApiResource::erase::<Pod>(&()))
    }

    fn pods_of(&self, pod: &DynamicObject) -> Api<DynamicObject> {
        self.pods(pod.metadata.namespace.as_deref().unwrap_or_default())
    }
}

/// Returns the part of a patch's `spec` with the given fields of each changed container.
fn spec(changes: &[ContainerChange], fields: impl Fn(&ContainerChange) -> Option<Value>) -> Map<String, Value> {
    let mut spec = Map::new();
    for list in ContainerList::ALL {
        let of_list = changes.iter().filter(|change| change.list == list);
        let containers: Vec<_> = of_list
            .filter_map(|change| {
                let mut container = fields(change)?;
                container.as_object_mut()?.insert("name".to_owned(), change.name.clone().into());
                Some(container)
            })
            .collect();
        if !containers.is_empty() {
            spec.insert(list.field().to_owned(), containers.into());
        }
    }
    spec
}

/// Returns the revisions in the injection record of a pod, by profile. Empty without a record.
fn revisions(pod: &Value) -> BTreeMap<String, String> {
    let record = pod.pointer("/metadata/annotations").and_then(|all| all.get(INJECTED_ANNOTATION)?.as_str());
    let record: Value = record.and_then(|text| serde_json::from_str(text).ok()).unwrap_or_default();
    let entries = record.get("profiles").and_then(Value::as_array).into_iter().flatten();
    let text = |entry: &Value, field: &str| Some(entry.get(field)?.as_str()?.to_owned());
    entries.filter_map(|entry| Some((text(entry, "profile")?, text(entry, "revision")?))).collect()
}

fn annotation<'p>(pod: &'p DynamicObject, key: &str) -> Option<&'p str> {
    pod.metadata.annotations.as_ref()?.get(key).map(String::as_str)
}

fn value(pod: &DynamicObject) -> anyhow::Result<Value> {
    serde_json::to_value(pod).context("it cannot be serialized as JSON")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patch_names_each_changed_container() {
        let change = |list, name: &str, image: Option<&str>| ContainerChange {
            list,
            name: name.to_owned(),
            image: image.map(|to| ("old".to_owned(), to.to_owned())),
            resources: Some((json!({}), json!({"requests": {"cpu": "1"}}))),
        };
        let changes = [
            change(ContainerList::InitContainers, "shipper", Some("shipper:2")),
            change(ContainerList::Containers, "proxy", None),
        ];
        let images = spec(&changes, |change| Some(json!({"image": change.image.as_ref()?.1})));
        assert_eq!(Value::Object(images), json!({"initContainers": [{"image": "shipper:2", "name": "shipper"}]}));
        let resources = spec(&changes, |change| Some(json!({"resources": change.resources.as_ref()?.1})));
        assert_eq!(resources.keys().collect::<Vec<_>>(), ["containers", "initContainers"]);
    }
}
