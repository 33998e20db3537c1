//! A cluster with a held namespace, and observers of its pods.

use std::collections::BTreeSet;
use std::fmt::{self, Display};
use std::pin::pin;
use std::process::Command;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use futures::StreamExt;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, DeleteParams, ListParams, Preconditions};
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::{self, watcher};
use pillion_api::names::INJECTION_GATE;
use pillion_testkit::{ControlPlane, Replica, eventually, tools};
use serde_json::{Value as Json, json};
use tokio::task::JoinHandle;
use tokio::time::MissedTickBehavior;
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::managed::{Managed, QUICK};
use crate::rbac::refusals;
use crate::rig::{PATIENCE, Rig, bare_pod, names};

/// The name of the held namespace.
pub(super) const HELD_NAMESPACE: &str = "till";

/// The documentation page whose commands the tests run.
const PAGE: &str = include_str!("../../../../../docs/held.md");

/// A cluster with the namespace [`HELD_NAMESPACE`] and an installation of Pillion.
pub(super) struct Cluster {
    pub(super) managed: Managed,
}

impl Cluster {
    /// Starts this many replicas and controllers. Waits until replicas inject pods, and until new pods wait while no
    /// replica responds.
    pub(super) async fn start(replicas: u8, controllers: u8) -> Result<Self> {
        let managed = Managed::start_without_namespace(ControlPlane::builder(), QUICK, replicas, controllers).await?;
        let mut cluster = Self { managed };
        cluster.rig().namespace(HELD_NAMESPACE, Some("held")).await?;
        cluster.rig().wait_until_called(HELD_NAMESPACE).await?;
        // The gate is visible only while no replica runs, since replicas remove it.
        cluster.kill_replicas().await?;
        cluster.start_replicas_again().await?;
        cluster.rig().wait_until_called(HELD_NAMESPACE).await?;
        Ok(cluster)
    }

    pub(super) const fn rig(&self) -> &Rig {
        &self.managed.rig
    }

    /// Waits until the API server adds the gate to pods that no replica has reviewed.
    pub(super) async fn wait_until_pods_gated(&self) -> Result<()> {
        eventually(PATIENCE, "the API server gates pods", async || {
            let pod = self.rig().dry_run(HELD_NAMESPACE, &bare_pod("probe")).await?;
            ensure!(is_gated(&pod), "not gated: {pod}");
            Ok(())
        })
        .await
    }

    /// Kills every replica, and waits until the API server gates new pods. Then marks the replicas as not ready.
    pub(super) async fn kill_replicas(&mut self) -> Result<()> {
        for replica in &mut self.managed.rig.replicas {
            replica.kill()?;
        }
        self.wait_until_pods_gated().await?;
        for replica in &self.rig().replicas {
            self.rig().service.set_ready(replica.address(), false).await?;
        }
        Ok(())
    }

    pub(super) async fn start_replicas_again(&mut self) -> Result<()> {
        let count = u8::try_from(self.rig().replicas.len())?;
        self.managed.rig.replicas = Replica::start_many(&self.rig().spec, count).await?;
        for replica in &self.rig().replicas {
            self.rig().service.set_ready(replica.address(), true).await?;
        }
        Ok(())
    }

    /// Kills the leader. Fails if RBAC rejected one of its requests.
    pub(super) async fn kill_leader(&mut self) -> Result<()> {
        let leader = self.managed.leader().await?;
        let place = self.managed.controllers.iter().position(|running| running.address() == leader);
        let mut killed =
            self.managed.controllers.remove(place.with_context(|| format!("{leader} is not one of the controllers"))?);
        killed.kill()?;
        let log = killed.log_text()?;
        ensure!(refusals(&log).is_empty(), "{leader}: {:#?}", refusals(&log));
        Ok(())
    }

    pub(super) async fn pods(&self) -> Result<Vec<Json>> {
        let pods = self.rig().pods(HELD_NAMESPACE).list(&ListParams::default()).await?;
        pods.items.into_iter().map(|pod| Ok(serde_json::to_value(pod)?)).collect()
    }

    /// Deletes terminating pods without a node, like the pod garbage collector. The API server deletes a pod in two
    /// writes. If the leader dies between the two, its request is cancelled, and no other client causes the second
    /// write.
    pub(super) async fn delete_terminating_pods(&self, pods: &[Json]) -> Result<()> {
        let is_going = |pod: &&Json| pod["metadata"].get("deletionTimestamp").is_some();
        for pod in pods.iter().filter(is_going).filter(|pod| pod["spec"].get("nodeName").is_none()) {
            let name = pod["metadata"]["name"].as_str().context("a name")?;
            let uid = pod["metadata"]["uid"].as_str().map(str::to_owned);
            let preconditions = Some(Preconditions { uid, resource_version: None });
            let result = DeleteParams { preconditions, ..DeleteParams::default().grace_period(0) };
            match self.rig().pods(HELD_NAMESPACE).delete(name, &result).await {
                // In the meantime, the pod was deleted, or recreated under the same name.
                Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => {}
                deleted => drop(deleted.with_context(|| format!("deleting {name}"))?),
            }
        }
        Ok(())
    }

    /// Returns the value of a series in the leader's metrics.
    pub(super) async fn metric(&self, line: &str) -> Result<u64> {
        let leader = self.managed.leader().await?;
        let leader = self.managed.controllers.iter().find(|running| running.address() == leader);
        let text = leader.context("the leader is not one of the test's controllers")?.metrics_text().await?;
        let found =
            text.lines().find_map(|each| each.strip_prefix(line)).with_context(|| format!("{line} in {text}"))?;
        Ok(found.trim().parse()?)
    }

    /// Fails if RBAC rejected a request of a controller or replica.
    pub(super) fn expect_no_forbidden_requests(&self) -> Result<()> {
        for running in self.managed.controllers.iter().chain(&self.rig().replicas) {
            let log = running.log_text()?;
            ensure!(refusals(&log).is_empty(), "{}: {:#?}", running.address(), refusals(&log));
        }
        Ok(())
    }

    /// Runs a block of `docs/held.md` in a shell: the first block that starts with this comment. Returns the output.
    pub(super) async fn page(&self, comment: &str) -> Result<String> {
        let mut blocks = PAGE.split("```").skip(1).step_by(2);
        let block = blocks.find_map(|block| block.strip_prefix("sh\n").filter(|block| block.starts_with(comment)));
        let block = block.with_context(|| format!("a block that begins with {comment:?} in docs/held.md"))?;
        let kubectl = tools::program("kubectl")?;
        let path = format!("{}:{}", kubectl.parent().context("a folder")?.display(), std::env::var("PATH")?);
        let kubeconfig = self.rig().control_plane.kubeconfig();
        let output = tokio::task::spawn_blocking(move || {
            let mut command = Command::new("bash");
            command.args(["-euo", "pipefail", "-c", block]).env("PATH", path).env("KUBECONFIG", kubeconfig);
            command.env("KUBERC", "off").output()
        })
        .await??;
        ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        Ok(String::from_utf8(output.stdout)?)
    }
}

pub(super) fn gates(pod: &Json) -> Vec<&str> {
    let gates = pod["spec"]["schedulingGates"].as_array();
    gates.into_iter().flatten().map(|gate| gate["name"].as_str().unwrap()).collect()
}

/// Returns whether the pod waits. The scheduler skips a pod with the gate, and the API server rejects its bindings.
pub(super) fn is_gated(pod: &Json) -> bool {
    gates(pod).contains(&INJECTION_GATE) && pod["spec"].get("nodeName").is_none()
}

pub(super) fn is_injected(pod: &Json) -> bool {
    names(pod).contains(&"sidecar-nginx".to_owned()) && gates(pod).is_empty()
}

/// Binds a pod to a node, like the scheduler.
pub(super) async fn bind(client: &kube::Client, pod: &str, node: &str) -> kube::Result<String> {
    let binding = json!({"apiVersion": "v1", "kind": "Binding", "metadata": {"name": pod},
                         "target": {"apiVersion": "v1", "kind": "Node", "name": node}});
    let path = format!("/api/v1/namespaces/{HELD_NAMESPACE}/pods/{pod}/binding");
    let request = http::Request::post(path).body(binding.to_string().into_bytes()).map_err(kube::Error::HttpError)?;
    client.request_text(request).await
}

/// The pods that were observed or created, by state.
#[derive(Debug, Default)]
pub(super) struct PodResults {
    /// Names of pods with their sidecar and without the gate.
    pub(super) injected: BTreeSet<String>,
    /// Names of pods with the gate and without a node.
    pub(super) waited: BTreeSet<String>,
    /// Pods that have neither the sidecar nor the gate, so they could run without their sidecar.
    pub(super) without: Vec<Json>,
    /// Messages of rejected creations.
    pub(super) refused: Vec<String>,
}

impl PodResults {
    fn take(&mut self, name: &str, pod: Json) {
        if is_gated(&pod) {
            self.waited.insert(name.to_owned());
        } else if is_injected(&pod) {
            self.injected.insert(name.to_owned());
        } else {
            self.without.push(pod);
        }
    }

    /// Fails if a pod was rejected, or could run without its sidecar.
    pub(super) fn expect_no_loss(&self) -> Result<()> {
        ensure!(self.refused.is_empty(), "refused: {:?}", self.refused);
        ensure!(self.without.is_empty(), "could run without their sidecar: {:?}", self.without);
        Ok(())
    }
}

impl Display for PodResults {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { injected, waited, without, refused } = self;
        let (injected, waited) = (injected.len(), waited.len());
        let (without, refused) = (without.len(), refused.len());
        write!(formatter, "{injected} injected, {waited} waited, {without} with neither, {refused} rejected")
    }
}

/// Observes every state of the namespace's pods. Binds pods without a gate and completes the deletions of bound pods,
/// like the scheduler and the kubelet.
pub(super) struct Scheduler {
    seen: Arc<Mutex<PodResults>>,
    stop: DropGuard,
    running: JoinHandle<Result<()>>,
}

impl Scheduler {
    pub(super) fn start(rig: &Rig) -> Self {
        let (seen, stop) = (Arc::<Mutex<PodResults>>::default(), CancellationToken::new());
        let (client, until) = (rig.control_plane.client(), stop.clone());
        let shared = Arc::clone(&seen);
        let working = async move { until.run_until_cancelled(Self::work(client, shared)).await.unwrap_or(Ok(())) };
        Self { seen, stop: stop.drop_guard(), running: tokio::spawn(working) }
    }

    async fn work(client: kube::Client, seen: Arc<Mutex<PodResults>>) -> Result<()> {
        let api: Api<Pod> = Api::namespaced(client.clone(), HELD_NAMESPACE);
        let mut events = pin!(watcher(api.clone(), watcher::Config::default()).default_backoff());
        while let Some(event) = events.next().await {
            let (watcher::Event::Apply(pod) | watcher::Event::InitApply(pod)) = event? else { continue };
            let pod = serde_json::to_value(pod)?;
            let name = pod["metadata"]["name"].as_str().context("a name")?.to_owned();
            let is_bound = pod["spec"].get("nodeName").is_some();
            let is_going = pod["metadata"].get("deletionTimestamp").is_some();
            let is_to_run = gates(&pod).is_empty() && !is_bound && !is_going;
            let (node, uid) = (node_of(&pod), pod["metadata"]["uid"].as_str().map(str::to_owned));
            seen.lock().unwrap_or_else(PoisonError::into_inner).take(&name, pod);
            if is_to_run {
                match bind(&client, &name, &node).await {
                    // In the meantime, the pod was deleted, or bound to a node.
                    Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => {}
                    bound => drop(bound.with_context(|| format!("binding {name} to {node}"))?),
                }
            }
            // The pod is bound to a node and is being deleted. Its deletion completes when the node reports that the
            // containers have terminated.
            if is_bound && is_going {
                let preconditions = Some(Preconditions { uid, resource_version: None });
                let result = DeleteParams { preconditions, ..DeleteParams::default().grace_period(0) };
                match api.delete(&name, &result).await {
                    Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => {}
                    deleted => drop(deleted.with_context(|| format!("deleting {name}"))?),
                }
            }
        }
        Ok(())
    }

    /// Stops the observer. Returns all observations.
    pub(super) async fn stop(self) -> Result<PodResults> {
        self.stop.disarm().cancel();
        self.running.await??;
        Ok(std::mem::take(&mut *self.seen.lock().unwrap_or_else(PoisonError::into_inner)))
    }
}

/// Returns the node that a pod of a `DaemonSet` requires, or `one` for other pods.
fn node_of(pod: &Json) -> String {
    let required = &pod["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"];
    let wanted = &required["nodeSelectorTerms"][0]["matchFields"][0]["values"][0];
    wanted.as_str().unwrap_or("one").to_owned()
}

/// Continuously creates pods without an owner. Each creation is a dry run, so no pod remains.
pub(super) struct Creations {
    stop: CancellationToken,
    running: JoinHandle<Result<PodResults>>,
}

impl Creations {
    /// The interval between two creations.
    const PACE: Duration = Duration::from_millis(40);

    pub(super) fn start(rig: &Rig) -> Self {
        let (stop, pods) = (CancellationToken::new(), rig.pods(HELD_NAMESPACE));
        let until = stop.clone();
        let running = tokio::spawn(async move {
            let mut outcomes = PodResults::default();
            let mut ticks = tokio::time::interval(Self::PACE);
            ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
            while until.run_until_cancelled(ticks.tick()).await.is_some() {
                let name = format!("dry-{}", outcomes.injected.len() + outcomes.waited.len());
                let parameters = kube::api::PostParams { dry_run: true, ..kube::api::PostParams::default() };
                match pods.create(&parameters, &serde_json::from_value(bare_pod(&name))?).await {
                    Ok(pod) => outcomes.take(&name, serde_json::to_value(pod)?),
                    Err(error) => outcomes.refused.push(error.to_string()),
                }
            }
            Ok(outcomes)
        });
        Self { stop, running }
    }

    pub(super) async fn stop(self) -> Result<PodResults> {
        self.stop.cancel();
        self.running.await?
    }
}
