//! Watches unscheduled pods, stores those with the scheduling gate of `held` namespaces, and executes the plans.
//!
//! The preconditions of every change of a pod are its UID and the last `resourceVersion` that this controller knows. So
//! the change fails if another client has changed the pod after the plan: for example, if the pod was scheduled or
//! recreated.
//!
//! A Job's pod is deleted in two steps, as the Job controller does when a Job is suspended. First, the finalizer of Job
//! tracking is removed. Then the pod is deleted. So the pod does not count as failed, and a Job with `backoffLimit: 0`
//! continues. If the controller stops between the two steps, the pod still waits, and the next leader deletes it.

use std::collections::{BTreeMap, HashMap};
use std::future::pending;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures::stream::{self, StreamExt};
use k8s_openapi::api::core::v1::{Namespace, ObjectReference, Pod};
use kube::api::{DeleteParams, Patch, PatchParams, Preconditions};
use kube::runtime::events::{Event, EventType, Recorder, Reporter};
use kube::runtime::watcher::watcher;
use kube::{Api, Client};
use pillion_api::names::{INJECTION_GATE, SYSTEM_NAMESPACES};
use pillion_api::opt_in::OptIn;
use serde_json::json;
use tokio::sync::watch;
use tokio::time::Instant;
use tracing::{debug, info, warn};

use super::metrics::{HeldMetrics, Released};
use super::plan::{Injection, NamespaceState, Planner, ReleaseSettings, Step, Waiting};
use super::pod::{HeldPod, JOB_TRACKING, Key, StoredPod};
use crate::client::{chain, config, with_pauses};
use crate::informer::objects::Change;
use crate::leader::{FIELD_MANAGER, LeaderContext};
use crate::release::Release;

/// Pods per page of a list. Few pods are unscheduled.
const PODS_PER_PAGE: u32 = 250;

/// Maximum number of changes that are applied at once.
const BATCH: usize = 1024;

/// Maximum number of concurrent steps.
const CONCURRENT_STEPS: usize = 8;

/// How long further changes are collected before a plan.
const BATCH_DELAY: Duration = Duration::from_millis(100);

/// Field selector of pods that can wait: those without a node.
const UNSCHEDULED: &str = "spec.nodeName=";

type Changes = Change<Key, (Key, Option<HeldPod>)>;

/// Releases pods while this controller leads. `injection` reports whether newly created pods are injected.
pub async fn run(
    leading: LeaderContext,
    settings: ReleaseSettings,
    mut injection: watch::Receiver<Injection>,
    metrics: HeldMetrics,
) {
    let LeaderContext { client, release, stop } = leading;
    let config = config(PODS_PER_PAGE).fields(UNSCHEDULED);
    let events = with_pauses(watcher(Api::<StoredPod>::all(client.clone()), config), || {});
    let events = events.map(|event| match event {
        Ok(event) => Change::from_event(event, read, |pod| pod.key()),
        Err(error) => {
            warn!(error = chain(&error), "the watch of waiting pods failed; trying again");
            Change::Restarted
        }
    });
    let mut batches = pin!(events.ready_chunks(BATCH));
    let mut store = Store::default();
    let mut planner = Planner::new(settings.clone());
    let executor = Executor::new(client, &release, metrics.clone());
    let mut namespace_states = NamespaceStates::new(&release, &settings);
    let mut again = None;
    let mut may_change = true;
    loop {
        tokio::select! {
            biased;
            () = stop.cancelled() => return,
            changed = injection.changed(), if may_change => may_change = changed.is_ok(),
            batch = batches.next() => match batch {
                Some(batch) => {
                    for change in batch {
                        store.take(change, Instant::now());
                    }
                    // Plan after `BATCH_DELAY` at the latest.
                    let batch_end = Instant::now() + BATCH_DELAY;
                    again = Some(again.map_or(batch_end, |again: Instant| again.min(batch_end)));
                    metrics.waiting(store.pods.values().map(|waiting| waiting.pod.owner_kind));
                    continue;
                }
                None => return,
            },
            () = at(again) => {}
        }
        let state = *injection.borrow_and_update();
        if !store.is_complete {
            again = None;
            continue;
        }
        namespace_states.refresh(&executor.client, store.pods.keys()).await;
        let plan = planner.plan(Instant::now(), state, &store.pods, |namespace| namespace_states.of(namespace));
        again = plan.again;
        executor.execute(&plan.steps, &store.pods).await;
    }
}

async fn at(time: Option<Instant>) {
    match time {
        Some(time) => tokio::time::sleep_until(time).await,
        None => pending().await,
    }
}

fn read(pod: StoredPod) -> (Key, Option<HeldPod>) {
    (pod.key(), HeldPod::read(pod))
}

/// The waiting pods from the watch.
#[derive(Debug, Default)]
struct Store {
    pods: BTreeMap<Key, Waiting>,
    /// The pods of an unfinished list.
    listed: BTreeMap<Key, Waiting>,
    is_complete: bool,
}

impl Store {
    fn take(&mut self, change: Changes, now: Instant) {
        match change {
            Change::Restarted => self.listed.clear(),
            Change::Listed((_, None)) => {}
            Change::Listed((key, Some(pod))) => {
                let waiting = self.known(&key, pod, now);
                self.listed.insert(key, waiting);
            }
            Change::ListComplete => {
                self.pods = std::mem::take(&mut self.listed);
                self.is_complete = true;
            }
            Change::Applied((key, Some(pod))) => {
                let waiting = self.known(&key, pod, now);
                self.pods.insert(key, waiting);
            }
            Change::Applied((key, None)) | Change::Deleted(key) => {
                self.pods.remove(&key);
            }
        }
    }

    /// Returns the pod with the time when this process first saw it: `now` for a new pod.
    fn known(&self, key: &Key, pod: HeldPod, now: Instant) -> Waiting {
        let before = self.pods.get(key).filter(|before| before.pod.uid == pod.uid);
        Waiting { since: before.map_or(now, |before| before.since), pod }
    }
}

/// The states of the namespaces of waiting pods. Namespaces are read at intervals and not watched, since few have
/// waiting pods.
#[derive(Debug)]
struct NamespaceStates {
    excluded: Vec<String>,
    fresh_for: Duration,
    opt_in: OptIn,
    known: HashMap<Arc<str>, (Instant, NamespaceState)>,
}

impl NamespaceStates {
    fn new(release: &Release, settings: &ReleaseSettings) -> Self {
        let (fresh_for, opt_in) = (settings.recheck, settings.opt_in.clone());
        let excluded = SYSTEM_NAMESPACES.into_iter().chain([release.namespace()]).map(str::to_owned);
        let excluded = excluded.chain(settings.excluded_namespaces.iter().cloned()).collect();
        Self { excluded, fresh_for, opt_in, known: HashMap::new() }
    }

    fn of(&self, namespace: &str) -> NamespaceState {
        self.known.get(namespace).map_or(NamespaceState::Unknown, |(_, namespace_state)| *namespace_state)
    }

    async fn refresh(&mut self, client: &Client, keys: impl Iterator<Item = &Key>) {
        let now = Instant::now();
        let mut wanted: Vec<&Arc<str>> = keys.map(|key| &key.namespace).collect();
        wanted.dedup();
        self.known.retain(|name, _| wanted.contains(&name));
        let stale = wanted.into_iter().filter(|name| {
            let known = self.known.get(*name);
            known.is_none_or(|(read, _)| now.duration_since(*read) >= self.fresh_for)
        });
        let api: &Api<Namespace> = &Api::all(client.clone());
        let (excluded, opt_in) = (&self.excluded, &self.opt_in);
        let read: Vec<_> = stream::iter(stale.cloned().collect::<Vec<_>>())
            .map(async |name| {
                let namespace_state = match api.get_metadata_opt(&name).await {
                    Ok(found) => {
                        let labels = found.map(|found| found.metadata.labels.unwrap_or_default());
                        namespace_state(&name, excluded, opt_in, labels)
                    }
                    Err(error) => {
                        debug!(namespace = &*name, error = chain(&error), "the namespace could not be read");
                        NamespaceState::Unknown
                    }
                };
                (name, (now, namespace_state))
            })
            .buffer_unordered(CONCURRENT_STEPS)
            .collect()
            .await;
        self.known.extend(read);
    }
}

/// Returns the state of a namespace with these labels. `None` means that the namespace was deleted, and Kubernetes
/// deletes its pods too.
fn namespace_state(
    name: &str,
    excluded: &[String],
    opt_in: &OptIn,
    labels: Option<BTreeMap<String, String>>,
) -> NamespaceState {
    let Some(labels) = labels else { return NamespaceState::Unknown };
    if excluded.iter().any(|excluded| excluded == name) {
        return NamespaceState::NotOptedIn;
    }
    let failure_mode = opt_in.failure_mode(|key| labels.get(key).map(String::as_str));
    failure_mode.map_or(NamespaceState::NotOptedIn, NamespaceState::OptedIn)
}

struct Executor {
    client: Client,
    recorder: Recorder,
    metrics: HeldMetrics,
}

impl Executor {
    fn new(client: Client, release: &Release, metrics: HeldMetrics) -> Self {
        let reporter = Reporter { controller: format!("{}-controller", release.name()), instance: None };
        Self { recorder: Recorder::new(client.clone(), reporter), client, metrics }
    }

    async fn execute(&self, steps: &[Step], pods: &BTreeMap<Key, Waiting>) {
        stream::iter(steps)
            .for_each_concurrent(CONCURRENT_STEPS, |step| async move {
                let (Step::Recreate(key) | Step::RemoveGate(key) | Step::Report(key)) = step;
                let Some(pod) = pods.get(key).map(|waiting| &waiting.pod) else { return };
                let api: Api<Pod> = Api::namespaced(self.client.clone(), &key.namespace);
                let done = match step {
                    Step::Recreate(_) => recreate(&api, key, pod).await.map(|()| Released::Recreated),
                    Step::RemoveGate(_) => remove_gate(&api, key, pod).await.map(|()| Released::GateRemoved),
                    Step::Report(_) => self.report(key, pod).await.map(|()| Released::Reported),
                };
                let (namespace, name) = (&*key.namespace, &*key.name);
                let result = match done {
                    Ok(done) => {
                        let (owner, result) = (pod.owner_kind.as_str(), done.as_str());
                        info!(namespace, name, owner, result, "a pod no longer waits for injection");
                        done
                    }
                    Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => Released::Changed,
                    Err(error) => {
                        let error = chain(&error);
                        warn!(namespace, name, error, "a waiting pod could not be released");
                        Released::Failed
                    }
                };
                self.metrics.released(result);
            })
            .await;
    }

    async fn report(&self, key: &Key, pod: &HeldPod) -> kube::Result<()> {
        let note = format!(
            "The pod was created while Pillion was unavailable, so it has no sidecar, and the scheduling gate \
             {INJECTION_GATE} keeps it waiting. No owner is known to recreate it: delete the pod and create it again."
        );
        let event = Event {
            type_: EventType::Warning,
            reason: "InjectionHeld".to_owned(),
            note: Some(note),
            action: "Inject".to_owned(),
            secondary: None,
        };
        let pod = ObjectReference {
            api_version: Some("v1".to_owned()),
            kind: Some("Pod".to_owned()),
            namespace: Some(key.namespace.to_string()),
            name: Some(key.name.to_string()),
            uid: Some(pod.uid.to_string()),
            ..ObjectReference::default()
        };
        self.recorder.publish(&event, &pod).await
    }
}

async fn recreate(api: &Api<Pod>, key: &Key, pod: &HeldPod) -> kube::Result<()> {
    let mut version = pod.resource_version.to_string();
    if pod.is_tracked() {
        let others: Vec<_> = pod.finalizers.iter().filter(|finalizer| *finalizer != JOB_TRACKING).collect();
        let patch = json!({"metadata": {"uid": *pod.uid, "resourceVersion": version, "finalizers": others}});
        let patched = api.patch_metadata(&key.name, &parameters(), &Patch::Merge(patch)).await?;
        version = patched.metadata.resource_version.unwrap_or(version);
    }
    let preconditions = Preconditions { uid: Some(pod.uid.to_string()), resource_version: Some(version) };
    api.delete(&key.name, &DeleteParams { preconditions: Some(preconditions), ..DeleteParams::background() }).await?;
    Ok(())
}

async fn remove_gate(api: &Api<Pod>, key: &Key, pod: &HeldPod) -> kube::Result<()> {
    let gates: Vec<_> = pod.other_gates.iter().map(|name| json!({"name": name})).collect();
    let patch = json!({
        "metadata": {"uid": *pod.uid, "resourceVersion": *pod.resource_version},
        "spec": {"schedulingGates": gates},
    });
    api.patch(&key.name, &parameters(), &Patch::Merge(patch)).await?;
    Ok(())
}

fn parameters() -> PatchParams {
    PatchParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PatchParams::default() }
}

#[cfg(test)]
mod tests {
    use pillion_api::names::{FailureMode, INJECTION_LABEL};

    use super::*;
    use crate::release::DEFAULT_CLUSTER_DOMAIN;

    fn pod(uid: &str) -> HeldPod {
        let stored = json!({"metadata": {"name": "p", "namespace": "n", "uid": uid, "resourceVersion": "1"},
                            "spec": {"schedulingGates": [{"name": INJECTION_GATE}]}});
        HeldPod::read(serde_json::from_value(stored).unwrap()).unwrap()
    }

    fn key() -> Key {
        Key { namespace: "n".into(), name: "p".into() }
    }

    #[test]
    fn recreated_pod_gets_a_new_waiting_time() {
        let start = Instant::now();
        let later = start + Duration::from_secs(9);
        let mut store = Store::default();
        store.take(Change::Listed((key(), Some(pod("a")))), start);
        assert!(store.pods.is_empty() && !store.is_complete, "an unfinished list adds no pods");
        store.take(Change::ListComplete, start);
        store.take(Change::Applied((key(), Some(pod("a")))), later);
        assert_eq!(store.pods.get(&key()).unwrap().since, start);
        store.take(Change::Restarted, later);
        store.take(Change::Listed((key(), Some(pod("a")))), later);
        store.take(Change::ListComplete, later);
        assert_eq!(store.pods.get(&key()).unwrap().since, start);
        store.take(Change::Applied((key(), Some(pod("b")))), later);
        assert_eq!(store.pods.get(&key()).unwrap().since, later);
        store.take(Change::Applied((key(), None)), later);
        assert!(store.pods.is_empty(), "a pod without the gate does not wait");
    }

    #[test]
    fn label_decides_namespace_state() {
        let release = Release::new("pillion", "pillion-system", DEFAULT_CLUSTER_DOMAIN).unwrap();
        let with = |key: &str, value: &str| Some(BTreeMap::from([(key.to_owned(), value.to_owned())]));
        let labelled = |value: &str| with(INJECTION_LABEL, value);
        let settings = ReleaseSettings {
            opt_in: OptIn::with(["istio-injection=enabled"]).unwrap(),
            excluded_namespaces: vec!["left-alone".to_owned()],
            ..ReleaseSettings::default()
        };
        let NamespaceStates { excluded, opt_in, .. } = NamespaceStates::new(&release, &settings);
        for (name, labels, expected) in [
            ("shop", labelled("held"), NamespaceState::OptedIn(FailureMode::Held)),
            ("shop", labelled("enabled"), NamespaceState::OptedIn(FailureMode::Enabled)),
            ("shop", with("istio-injection", "enabled"), NamespaceState::OptedIn(FailureMode::Enabled)),
            ("shop", labelled("nonsense"), NamespaceState::NotOptedIn),
            ("shop", Some(BTreeMap::new()), NamespaceState::NotOptedIn),
            ("shop", None, NamespaceState::Unknown),
            ("kube-system", labelled("held"), NamespaceState::NotOptedIn),
            ("pillion-system", labelled("held"), NamespaceState::NotOptedIn),
            ("left-alone", labelled("held"), NamespaceState::NotOptedIn),
        ] {
            assert_eq!(namespace_state(name, &excluded, &opt_in, labels), expected);
        }
    }
}
