//! Tests the leader's rollouts to running pods, on a real API server without a kubelet. The test writes the status that
//! a kubelet would write.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use arc_swap::ArcSwap;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use kube::Client;
use kube::api::{Api, ApiResource, DeleteParams, DynamicObject, ListParams, Patch, PatchParams};
use kube::client::Body;
use pillion_api::kinds::{ProfileStatus, UpgradePhase, UpgradeStatus};
use pillion_api::names::{ROLLBACK_TO_ANNOTATION, ROLLOUT_ANNOTATION, UPGRADED_ANNOTATION, UPGRADING_LABEL};
use pillion_api::profile::RolloutStrategy;
use pillion_api::{ClusterInjectionProfile, InjectionProfile};
use pillion_control::audit::{self, AuditChannels, AuditMetrics, AuditSettings, Audited, Reads};
use pillion_control::release::DEFAULT_CLUSTER_DOMAIN;
use pillion_control::revisions::RolloutLimits;
use pillion_control::rollout::{self, RolloutChannels, RolloutMetrics, RolloutSettings};
use pillion_control::{LeaderContext, Lookups, Publisher, Release, revisions};
use pillion_engine::snapshot::Snapshot;
use pillion_testkit::registration::NAMESPACE;
use pillion_testkit::{ControlPlane, ControllerManager, Isolation, eventually};
use prometheus_client::registry::Registry;
use serde_json::{Value as Json, json};
use tokio::sync::{mpsc, watch};
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::load::print_figures;
use crate::rig::{Rig, SOON};

/// The number of pods.
const PODS: usize = 6;
/// Time limit for a rollout.
const ROLLOUT_LIMIT: Duration = Duration::from_mins(2);

fn profile(tag: &str, rollout: &Json) -> String {
    profile_named("shipper", tag, rollout)
}

/// Returns a profile that adds a sidecar of the same name.
fn profile_named(name: &str, tag: &str, rollout: &Json) -> String {
    json!({
        "apiVersion": "pillion.dev/v1alpha1", "kind": "ClusterInjectionProfile", "metadata": {"name": name},
        "spec": {
            "activation": "Always", "rollout": rollout,
            "template": {"spec": {"initContainers": [{
                "name": name, "image": format!("local.test/{name}:{tag}"), "restartPolicy": "Always",
                "readinessProbe": {"tcpSocket": {"port": 1}},
            }]}},
        },
    })
    .to_string()
}

fn rollout_in_steps() -> Json {
    json!({"strategy": "InPlace", "maxUnavailable": 2, "podTimeoutSeconds": 4, "steps": [{"percent": 34, "bakeSeconds": 2}]})
}

/// Starts the leader's tasks. They end when the returned guard is dropped. The task that changes pods uses `writer`.
fn lead(client: &Client, writer: Client) -> Result<DropGuard> {
    let release = Arc::new(Release::new("pillion", NAMESPACE, DEFAULT_CLUSTER_DOMAIN)?);
    let stop = CancellationToken::new();
    let served = Arc::new(ArcSwap::from_pointee(Snapshot::default()));
    let (publisher, status) = Publisher::new(Arc::clone(&served));
    let mut registry = Registry::default();
    let lookups =
        Lookups::new(client.clone(), pillion_control::informer::lookups::Metrics::register(&mut Registry::default()));
    let (audited, _) = watch::channel(Audited::default());
    let (questions, asked) = mpsc::channel(1);
    let (followed_sender, followed) = watch::channel(None);
    let parts = AuditChannels {
        published: Arc::clone(&served),
        status: status.clone(),
        reads: Reads { lookups: Some(lookups.clone()), cluster: None },
        metrics: AuditMetrics::register(&mut registry, 10, 10),
        audited,
        questions: asked,
    };
    let channels = RolloutChannels {
        published: served,
        followed,
        status,
        questions,
        lookups,
        metrics: RolloutMetrics::register(&mut registry),
    };
    let settings = RolloutSettings {
        interval: Duration::from_millis(100),
        requests_per_second: 500,
        judge_interval: Duration::from_millis(500),
        publish_settle: Duration::from_secs(3),
        settle: Duration::from_millis(500),
        ..RolloutSettings::default()
    };
    let limits = RolloutLimits {
        platform: RolloutStrategy::Restart,
        namespaced: RolloutStrategy::InPlace,
        namespaced_unavailable: 2,
        namespaced_pod_timeout: 60,
    };
    let publishing = revisions::Settings { followed: Some(followed_sender), limits, ..revisions::Settings::default() };
    let leading = LeaderContext { client: client.clone(), release, stop: stop.clone() };
    tokio::spawn(revisions::run(leading.clone(), publishing, revisions::Metrics::default(), publisher));
    tokio::spawn(audit::run(leading.clone(), parts, AuditSettings::default()));
    tokio::spawn(rollout::run(LeaderContext { client: writer, ..leading }, channels, settings));
    Ok(stop.drop_guard())
}

/// Writes the status of all pods like a kubelet: a changed image restarts its container. The tag of the sidecar's image
/// determines the status. With `crashing`, the sidecar crashes. With `unready`, or with the value `bad` of the variable
/// `VERSION`, the pod is not ready. With `harmful`, the application restarts repeatedly. An image with `missing` cannot
/// be pulled.
async fn kubelet(pods: Api<DynamicObject>, stop: CancellationToken) -> Result<()> {
    let mut ticks = tokio::time::interval(Duration::from_millis(100));
    while stop.run_until_cancelled(ticks.tick()).await.is_some() {
        for pod in pods.list(&ListParams::default()).await?.items {
            let status = next_status(&serde_json::to_value(&pod)?);
            let (namespace, name) = (pod.metadata.namespace, pod.metadata.name.context("a name")?);
            let pods: Api<Pod> = Api::namespaced(pods.clone().into_client(), &namespace.context("a namespace")?);
            if pod.metadata.deletion_timestamp.is_some() {
                pods.delete(&name, &DeleteParams::default().grace_period(0)).await.ok();
                continue;
            }
            let Some(status) = status else { continue };
            let patch = Patch::Merge(json!({"status": status}));
            match pods.patch_status(&name, &PatchParams::default(), &patch).await {
                Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => {}
                done => drop(done?),
            }
        }
    }
    Ok(())
}

fn now() -> String {
    jiff::Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

/// Returns the next status of a pod; `None` if it does not change.
fn next_status(pod: &Json) -> Option<Json> {
    let has_sidecar = |tag: &str| image(pod, "shipper").is_some_and(|image| image.ends_with(tag));
    let is_harmed = has_sidecar(":harmful");
    let mut are_ready = !has_sidecar(":unready") && version(pod) != Some("bad");
    let mut of_list = |list: &str, statuses: &str| -> Json {
        let containers = pod["spec"][list].as_array().into_iter().flatten();
        let next = containers.map(|container| {
            let (name, image) = (&container["name"], container["image"].as_str().unwrap_or_default());
            let known = pod["status"][statuses].as_array().into_iter().flatten().find(|one| one["name"] == *name);
            // The field `imageID` holds the image with which the container was started.
            let is_new = known.is_none_or(|known| known["imageID"] != image);
            let is_restarted = is_new || (*name == "app" && is_harmed);
            let restarts =
                known.map_or(0, |known| known["restartCount"].as_i64().unwrap_or(0) + i64::from(is_restarted));
            let is_pull = container["command"][0] == "/";
            let is_ready = !image.ends_with(":crashing") && !is_pull;
            are_ready &= is_ready;
            let state = match () {
                () if is_pull && image.ends_with(":missing") => {
                    json!({"waiting": {"reason": "ErrImagePull", "message": "none"}})
                }
                () if is_pull => json!({"terminated": {"reason": "StartError", "exitCode": 128}}),
                () if is_ready => json!({"running": {"startedAt": now()}}),
                () => json!({"waiting": {"reason": "CrashLoopBackOff", "message": "back-off"}}),
            };
            let state = known.filter(|_| !is_restarted).map_or(state, |known| known["state"].clone());
            let ended = json!({"terminated": {"finishedAt": now(), "reason": "Error", "exitCode": 1}});
            let last = known.filter(|_| !is_restarted).map(|known| known["lastState"].clone());
            let last = last.unwrap_or(if restarts > 0 { ended } else { json!({}) });
            json!({"name": name, "image": image, "imageID": image,  "restartCount": restarts, "ready": is_ready,
                   "containerID": format!("test://{image}-{restarts}"),
                   "state": state, "lastState": last})
        });
        next.collect()
    };
    let containers = of_list("containers", "containerStatuses");
    let init = of_list("initContainers", "initContainerStatuses");
    let ready = if are_ready { "True" } else { "False" };
    let conditions = json!([{"type": "Ready", "status": ready}]);
    let is_same =
        |field: &str, next: &Json| next.as_array().is_some_and(Vec::is_empty) || pod["status"].get(field) == Some(next);
    if is_same("containerStatuses", &containers)
        && is_same("initContainerStatuses", &init)
        && pod["status"]["conditions"][0]["status"] == ready
    {
        return None;
    }
    Some(json!({"phase": "Running", "conditions": conditions, "containerStatuses": containers,
                "initContainerStatuses": init}))
}

/// A cluster with pods whose status the test writes.
struct Shop {
    rig: Rig,
    stop: CancellationToken,
}

impl Drop for Shop {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

impl Shop {
    /// Starts a cluster with this number of pods, which have the revision of the tag `1`. No leader runs afterwards.
    async fn start(
        control_plane: pillion_testkit::control_plane::Builder,
        pods: usize,
        rollout: &Json,
    ) -> Result<Self> {
        let shop = Self {
            rig: Rig::start_with(control_plane, &["--profiles-from", "revisions"], 1).await?,
            stop: CancellationToken::new(),
        };
        shop.rig.namespace("shop", Some("enabled")).await?;
        let client = shop.client();
        let all = Api::all_with(client.clone(), &ApiResource::erase::<Pod>(&()));
        tokio::spawn(kubelet(all, shop.stop.clone()));
        let _leader = lead(&client, client.clone())?;
        shop.apply("1", rollout).await?;
        shop.is_served("1").await?;
        for number in 0..pods {
            shop.rig.create("shop", &pod(&format!("web-{number}"))).await?;
        }
        shop.wait_for("the first revision is complete", async || {
            let status = shop.status().await?;
            let found = shop.pods().await?;
            let are_ready = found.iter().all(|pod| pod["status"]["conditions"][0]["status"] == "True");
            ensure!(status.phase == UpgradePhase::Complete && found.len() == pods && are_ready, "{status:?}");
            Ok(())
        })
        .await?;
        Ok(shop)
    }

    fn client(&self) -> Client {
        self.rig.control_plane.client()
    }

    async fn wait_for(&self, what: &str, holds: impl AsyncFnMut() -> Result<()>) -> Result<()> {
        eventually(ROLLOUT_LIMIT, what, holds).await
    }

    async fn apply(&self, tag: &str, rollout: &Json) -> Result<()> {
        self.rig.control_plane.apply_yaml(&profile(tag, rollout)).await
    }

    /// Waits until new pods get the sidecar with this tag.
    async fn is_served(&self, tag: &str) -> Result<()> {
        eventually(SOON, "the profile is served", async || {
            let found = self.rig.dry_run("shop", &pod("probe")).await?;
            let status = self.profile_status().await?;
            ensure!(tags([&found]) == [tag.to_owned()].into(), "{:?}, {status:?}", tags([&found]));
            Ok(())
        })
        .await
    }

    async fn pods(&self) -> Result<Vec<Json>> {
        let pods = self.rig.pods("shop").list(&ListParams::default()).await?;
        pods.items.iter().map(|pod| Ok(serde_json::to_value(pod)?)).collect()
    }

    /// Returns the tags of the sidecars' images.
    async fn tags(&self) -> Result<BTreeSet<String>> {
        Ok(tags(&self.pods().await?))
    }

    async fn profile_status(&self) -> Result<ProfileStatus> {
        let profiles: Api<ClusterInjectionProfile> = Api::all(self.client());
        profiles.get("shipper").await?.status.context("no status")
    }

    async fn status(&self) -> Result<UpgradeStatus> {
        self.profile_status().await?.upgrade.context("no rollout")
    }

    /// Applies a tag, waits until its rollout has ended in this phase, and returns its state.
    async fn roll_out(&self, tag: &str, rollout: &Json, phase: UpgradePhase) -> Result<UpgradeStatus> {
        let before = self.status().await?.revision;
        self.apply(tag, rollout).await?;
        self.ends(&before, phase).await
    }

    /// Waits until the rollout of a revision other than `before` has ended in this phase.
    async fn ends(&self, before: &str, phase: UpgradePhase) -> Result<UpgradeStatus> {
        let mut ended = None;
        self.wait_for("the rollout ends", async || {
            let status = self.status().await?;
            ensure!(status.revision != before && status.phase == phase && status.upgrading == 0, "{status:?}");
            ended = Some(status);
            Ok(())
        })
        .await?;
        ended.context("it has ended")
    }

    /// Starts leaders one after the other, each of which ends after a few writes, until the rollout of a revision other
    /// than `before` has ended in this phase. Returns the number of leaders.
    async fn lead_until_end(&self, before: &str, phase: UpgradePhase) -> Result<usize> {
        let client = self.client();
        let mut leaders = 0;
        loop {
            let (writer, dead) = dying_client(&client, 1 + leaders % 3);
            let _leader = lead(&client, writer)?;
            leaders += 1;
            let mut is_complete = false;
            eventually(ROLLOUT_LIMIT, "the leader writes, or the rollout is complete", async || {
                let status = self.status().await?;
                let pods = self.pods().await?;
                let is_marked = pods.iter().any(|pod| pod["metadata"]["labels"].get(UPGRADING_LABEL).is_some());
                is_complete = status.revision != before && status.phase == phase && !is_marked;
                ensure!(is_complete || dead.is_cancelled(), "{status:?}");
                Ok(())
            })
            .await?;
            if is_complete {
                break;
            }
            ensure!(leaders < 200, "the rollout does not end: {:?}", self.status().await?);
        }
        Ok(leaders)
    }

    /// Waits until a revision other than `before` is published, and returns it.
    async fn wait_for_revision(&self, before: &str) -> Result<String> {
        let mut found = None;
        self.wait_for("the revision is published", async || {
            let revision = self.profile_status().await?.revision.context("no revision")?;
            ensure!(revision != before, "{revision}");
            found = Some(revision);
            Ok(())
        })
        .await?;
        found.context("it is published")
    }

    /// Returns the number of restarts of each pod's sidecar.
    async fn restarts(&self) -> Result<BTreeMap<String, i64>> {
        let of = |pod: &Json| {
            let name = pod["metadata"]["name"].as_str().unwrap_or_default().to_owned();
            (name, pod["status"]["initContainerStatuses"][0]["restartCount"].as_i64().unwrap_or(-1))
        };
        Ok(self.pods().await?.iter().map(of).collect())
    }
}

/// Returns the image of a sidecar.
fn image<'p>(pod: &'p Json, name: &str) -> Option<&'p str> {
    let mut containers = pod["spec"]["initContainers"].as_array()?.iter();
    containers.find(|container| container["name"] == name)?["image"].as_str()
}

/// Returns the value of the sidecar's variable `VERSION`, which cannot be changed in place.
fn version(pod: &Json) -> Option<&str> {
    pod["spec"]["initContainers"][0]["env"][0]["value"].as_str()
}

/// Returns the tags of the images of the sidecar `shipper`.
fn tags<'p>(pods: impl IntoIterator<Item = &'p Json>) -> BTreeSet<String> {
    let tag = |pod: &Json| image(pod, "shipper")?.rsplit(':').next().map(str::to_owned);
    pods.into_iter().filter_map(tag).collect()
}

fn pod(name: &str) -> Json {
    json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": {"app": "web"}},
        "spec": {"nodeName": "one", "containers": [{"name": "app", "image": "app:1"}]},
    })
}

/// `PILLION_RUNS` sets how often each revision is rolled out.
#[test]
fn running_pods_are_upgraded_in_steps_or_step_back() {
    let runs: u32 = std::env::var("PILLION_RUNS").ok().and_then(|runs| runs.parse().ok()).unwrap_or(1);
    Isolation::new().with_crds().time_limit(Duration::from_mins(8) + runs * Duration::from_secs(45)).run(
        move || async move {
            let steps = rollout_in_steps();
            let shop = Shop::start(ControlPlane::builder(), PODS, &steps).await?;
            let client = shop.client();
            let leader = lead(&client, client.clone())?;
            let before = shop.restarts().await?;

            // A revision that works is rolled out to all running pods, and only then promoted.
            let revision = shop.status().await?.revision;
            shop.apply("2", &steps).await?;
            let mut at_once = 0;
            shop.wait_for("the rollout is complete", async || {
                let pods = shop.pods().await?;
                let marked = pods.iter().filter(|pod| pod["metadata"]["labels"].get(UPGRADING_LABEL).is_some()).count();
                at_once = at_once.max(marked);
                let status = shop.status().await?;
                let upgraded = pods.iter().filter(|pod| tags([*pod]).contains("2")).count();
                if status.revision != revision && status.step == 0 {
                    ensure!(upgraded <= 3, "{upgraded} pods in the first step");
                    let promoted = shop.profile_status().await?.promoted_revision;
                    ensure!(promoted.as_deref() == Some(&*revision), "{promoted:?} is promoted");
                }
                ensure!(status.revision != revision && status.phase == UpgradePhase::Complete, "{status:?}");
                Ok(())
            })
            .await?;
            ensure!((1..=2).contains(&at_once), "{at_once} pods at a time");
            ensure!(shop.tags().await? == ["2".to_owned()].into(), "{:?}", shop.tags().await?);
            shop.is_served("2").await?;
            for pod in shop.pods().await? {
                ensure!(pod["status"]["containerStatuses"][0]["restartCount"] == 0, "{pod}");
                ensure!(pod["status"]["initContainerStatuses"][0]["restartCount"] == 1, "{pod}");
            }
            ensure!(before.values().all(|restarts| *restarts == 0), "{before:?}");

            // Revisions that do not work are rolled out to at most the pods of the first step, and these pods return to
            // the previous revision. Between them, revisions that work are rolled out to all pods.
            let mut good = "2";
            for run in 0..runs {
                if run > 0 {
                    good = if run % 2 == 0 { "2" } else { "3" };
                    let status = shop.roll_out(good, &steps, UpgradePhase::Complete).await?;
                    ensure!(status.upgraded == 6 && status.not_in_place == 0, "{status:?}");
                }
                for (tag, why) in [
                    ("crashing", "CrashLoopBackOff"),
                    ("unready", "the pod is not ready"),
                    ("harmful", "container app"),
                    ("missing", "cannot be pulled on node one"),
                ] {
                    let before = shop.restarts().await?;
                    let status = shop.roll_out(tag, &steps, UpgradePhase::SteppedBack).await?;
                    ensure!(status.message.as_ref().is_some_and(|text| text.contains(why)), "{tag}: {status:?}");
                    let after = shop.restarts().await?;
                    let touched = after.iter().filter(|(name, restarts)| before[*name] != **restarts).count();
                    ensure!(touched <= 3 && (touched > 0) == (tag != "missing"), "{tag}: {touched} pods were changed");
                    ensure!(shop.tags().await? == [good.to_owned()].into(), "{tag}: {:?}", shop.tags().await?);
                    shop.is_served(good).await?;
                }
            }
            print_figures(&format!("{runs} runs of each revision, no wrong verdict"));

            // After a change of the leader, a rollout that has failed can be resumed by a user.
            drop(leader);
            let _leader = lead(&client, client.clone())?;
            let failed = shop.status().await?;
            shop.apply("crashing", &steps).await?;
            let failed = shop.ends(&failed.revision, UpgradePhase::SteppedBack).await?;
            let request = format!("{ROLLOUT_ANNOTATION}=resume {} now", failed.revision);
            let restarts = shop.restarts().await?;
            shop.rig.control_plane.kubectl_ok(&["annotate", "clusterinjectionprofile", "shipper", &request]).await?;
            shop.wait_for("the rollout fails again", async || {
                let status = shop.status().await?;
                ensure!(status.handled_request.is_some() && status.phase == UpgradePhase::SteppedBack, "{status:?}");
                ensure!(shop.restarts().await? != restarts, "no pod was changed");
                Ok(())
            })
            .await?;
            Ok(())
        },
    );
}

#[test]
fn rollout_is_paused_and_undone() {
    Isolation::new().with_crds().time_limit(Duration::from_mins(5)).run(|| async {
        let steps = json!({"strategy": "InPlace", "steps": [{"percent": 50, "bakeSeconds": 600}]});
        let shop = Shop::start(ControlPlane::builder(), 4, &steps).await?;
        let client = shop.client();
        let _leader = lead(&client, client.clone())?;
        let first = shop.status().await?.revision;
        let baking = shop.roll_out("2", &steps, UpgradePhase::Baking).await?;
        ensure!((baking.upgraded, baking.previous_revision.as_deref()) == (2, Some(&*first)), "{baking:?}");
        let annotate = async |value: &str| {
            let value = format!("{ROLLOUT_ANNOTATION}{value}");
            shop.rig
                .control_plane
                .kubectl_ok(&["annotate", "--overwrite", "clusterinjectionprofile", "shipper", &value])
                .await
        };
        // A drain evicts an upgraded pod. Its successor gets the previous revision, and the observation continues.
        let pods = shop.rig.pods("shop");
        let listed = shop.pods().await?;
        let upgraded = listed.iter().find(|pod| tags([*pod]).contains("2")).context("an upgraded pod")?;
        let upgraded = upgraded["metadata"]["name"].as_str().context("a name")?;
        pods.evict(upgraded, &kube::api::EvictParams::default()).await?;
        pods.delete(upgraded, &DeleteParams::default().grace_period(0)).await.ok();
        shop.rig.create("shop", &pod("web-4")).await?;
        shop.wait_for("the successor has the previous revision", async || {
            let found = shop.rig.pods("shop").get("web-4").await?;
            ensure!(tags([&serde_json::to_value(&found)?]) == ["1".to_owned()].into(), "{found:?}");
            Ok(())
        })
        .await?;
        let evicted = shop.ends(&first, UpgradePhase::Baking).await?;
        ensure!(evicted.pods == 4, "{evicted:?}");
        annotate("=pause").await?;
        let paused = shop.ends(&first, UpgradePhase::Paused).await?;
        ensure!(paused.upgraded == 1, "{paused:?}");
        annotate(&format!("=undo {} now", paused.revision)).await?;
        let back = shop.ends(&first, UpgradePhase::SteppedBack).await?;
        ensure!(back.message.as_deref() == Some("a user requested the previous revision"), "{back:?}");
        ensure!(shop.tags().await? == ["1".to_owned()].into(), "{:?}", shop.tags().await?);

        // The profile is edited during a rollout: the next rollout begins from the first step, and its previous
        // revision is the promoted one.
        shop.roll_out("5", &steps, UpgradePhase::Baking).await?;
        let other = shop.roll_out("6", &steps, UpgradePhase::Baking).await?;
        ensure!((other.step, other.previous_revision.as_deref()) == (0, Some(&*first)), "{other:?}");
        annotate(&format!("=undo {} now", other.revision)).await?;
        shop.ends(&back.revision, UpgradePhase::SteppedBack).await?;

        // A user edits a pod. The rollout does not change that pod, and upgrades the others.
        let edited = json!({"spec": {"initContainers": [{"name": "shipper", "image": "local.test/shipper:own"}]}});
        pods.patch("web-4", &PatchParams::default(), &Patch::Strategic(edited)).await?;
        let plain = json!({"strategy": "InPlace", "maxUnavailable": 4});
        let complete = shop.roll_out("3", &plain, UpgradePhase::Complete).await?;
        ensure!(complete.upgraded == 3, "{complete:?}");
        let tags = shop.tags().await?;
        ensure!(tags == ["3".to_owned(), "own".to_owned()].into(), "{tags:?}");
        // Without the strategy, the status shows no rollout.
        shop.apply("3", &json!({})).await?;
        shop.wait_for("the status shows no rollout", async || {
            let status = shop.profile_status().await?;
            ensure!(status.upgrade.is_none(), "{status:?}");
            Ok(())
        })
        .await?;
        // A namespace is deleted during a rollout, and the rollout ends.
        shop.apply("4", &plain).await?;
        shop.rig.control_plane.kubectl_ok(&["delete", "namespace", "shop", "--wait=false"]).await?;
        for pod in pods.list(&ListParams::default()).await?.items {
            let name = pod.metadata.name.context("a name")?;
            pods.delete(&name, &DeleteParams::default().grace_period(0)).await?;
        }
        let complete = shop.ends(&complete.revision, UpgradePhase::Complete).await?;
        ensure!(complete.pods == 0, "{complete:?}");
        Ok(())
    });
}

/// Returns a client that simulates the end of a leader: after this number of successful writes, no request gets a
/// response. Dry runs and Events are not counted. The last of these writes still reaches the API server. The returned
/// token is cancelled at this point.
fn dying_client(client: &Client, writes: usize) -> (Client, CancellationToken) {
    let left = Arc::new(AtomicUsize::new(writes));
    let dead = CancellationToken::new();
    let (inner, namespace, token) = (client.clone(), client.default_namespace().to_owned(), dead.clone());
    let service = tower::service_fn(move |request: http::Request<Body>| {
        let (inner, token, left) = (inner.clone(), token.clone(), Arc::clone(&left));
        async move {
            let is_write = request.method() != http::Method::GET;
            let is_dry_run = request.uri().query().is_some_and(|query| query.contains("dryRun"));
            let is_event = request.uri().path().ends_with("/events");
            if token.is_cancelled() {
                std::future::pending::<()>().await;
            }
            let what = format!("{} {}", request.method(), request.uri().path());
            let response = inner.send(request).await;
            if is_write
                && !is_dry_run
                && !is_event
                && response.as_ref().is_ok_and(|response| response.status().is_success())
            {
                if left.fetch_sub(1, Ordering::SeqCst) == 1 {
                    print_figures(&format!("the leader ends after {what}"));
                    token.cancel();
                }
                if token.is_cancelled() {
                    std::future::pending::<()>().await;
                }
            }
            response
        }
    });
    (Client::new(service, namespace), dead)
}

#[test]
fn leader_may_end_after_each_write() {
    Isolation::new().with_crds().time_limit(Duration::from_mins(8)).run(|| async {
        let rollout = json!({"strategy": "InPlace", "maxUnavailable": 2, "steps": [{"percent": 50, "bakeSeconds": 0}]});
        let shop = Shop::start(ControlPlane::builder(), PODS, &rollout).await?;
        let before = shop.status().await?.revision;
        shop.apply("2", &rollout).await?;
        let leaders = shop.lead_until_end(&before, UpgradePhase::Complete).await?;
        ensure!(shop.tags().await? == ["2".to_owned()].into(), "a pod was forgotten: {:?}", shop.tags().await?);

        // The API server's audit log shows that each pod was changed once, and never more than two at a time.
        let text = std::fs::read_to_string(shop.rig.control_plane.audit_log()?)?;
        let events = text.lines().map(serde_json::from_str::<Json>).collect::<Result<Vec<_>, _>>()?;
        let (mut begun, mut running, mut most) = (BTreeMap::<String, usize>::new(), BTreeSet::new(), 0);
        for event in &events {
            let is_success = event["responseStatus"]["code"] == 200 && event["objectRef"]["namespace"] == "shop";
            let is_dry_run = event["requestURI"].as_str().is_some_and(|uri| uri.contains("dryRun"));
            if !is_success || is_dry_run || event["objectRef"].get("subresource").is_some() {
                continue;
            }
            let name = event["objectRef"]["name"].as_str().context("a name")?.to_owned();
            if event["requestObject"]["spec"].get("initContainers").is_some() {
                *begun.entry(name.clone()).or_default() += 1;
            }
            let label = event["requestObject"]["metadata"]["labels"].get(UPGRADING_LABEL);
            if label.is_some_and(Json::is_null) {
                running.remove(&name)
            } else {
                running.insert(name)
            };
            most = most.max(running.len());
        }
        ensure!(begun.len() == PODS && begun.values().all(|times| *times == 1), "{begun:?}");
        ensure!((1..=2).contains(&most), "{most} pods at a time");
        print_figures(&format!("{leaders} leaders, {} pods changed once each, at most {most} at a time", begun.len()));

        // The failure of a pod remains known if the leader changes.
        let (before, restarts) = (shop.status().await?.revision, shop.restarts().await?);
        shop.apply("crashing", &rollout).await?;
        let leaders = shop.lead_until_end(&before, UpgradePhase::SteppedBack).await?;
        let after = shop.restarts().await?;
        let touched = after.iter().filter(|(name, now)| restarts[*name] != **now).count();
        ensure!((1..=PODS / 2).contains(&touched), "{touched} pods were changed");
        ensure!(shop.tags().await? == ["2".to_owned()].into(), "a pod was forgotten: {:?}", shop.tags().await?);
        print_figures(&format!("{leaders} leaders, {touched} pods returned from an image that crashes"));
        Ok(())
    });
}

/// Returns a profile whose sidecar has this value of the variable `VERSION`.
fn profile_with_version(version: &str, rollout: &Json) -> Result<String> {
    let mut profile: Json = serde_json::from_str(&profile("1", rollout))?;
    profile["spec"]["template"]["spec"]["initContainers"][0]["env"] = json!([{"name": "VERSION", "value": version}]);
    Ok(profile.to_string())
}

/// The number of Deployments in the test of restarts, and the pods of each.
const WORKLOADS: usize = 8;
const REPLICAS: usize = 2;
/// The numbers of writes after which the leaders end.
const LEADERS_END_AFTER: [usize; 5] = [4, 2, 3, 5, 6];

impl Shop {
    /// Creates Deployments, a pod without a controller, and a budget for the first Deployment.
    async fn create_workloads(&self) -> Result<()> {
        for number in 0..WORKLOADS {
            let labels = json!({"app": format!("web-{number}")});
            let template = json!({"metadata": {"labels": labels}, "spec": pod("")["spec"]});
            let deployment = json!({
                "apiVersion": "apps/v1", "kind": "Deployment",
                "metadata": {"name": format!("web-{number}"), "namespace": "shop"},
                "spec": {"replicas": REPLICAS, "selector": {"matchLabels": labels}, "template": template},
            });
            self.rig.control_plane.apply_yaml(&deployment.to_string()).await?;
        }
        // A bare pod is never evicted.
        self.rig.create("shop", &pod("bare")).await?;
        let budget = json!({
            "apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": {"name": "web", "namespace": "shop"},
            "spec": {"maxUnavailable": 1, "selector": {"matchLabels": {"app": "web-0"}}},
        });
        self.rig.control_plane.apply_yaml(&budget.to_string()).await?;
        Ok(())
    }
}

/// Starts a leader that ends after the next number of writes in `ends`. If no number is left, the leader does not end.
fn next_leader(client: &Client, ends: &mut impl Iterator<Item = usize>) -> Result<(DropGuard, CancellationToken)> {
    let (writer, dead) = match ends.next() {
        Some(writes) => dying_client(client, writes),
        None => (client.clone(), CancellationToken::new()),
    };
    Ok((lead(client, writer)?, dead))
}

#[test]
fn pods_are_evicted_in_shares_of_workloads() {
    Isolation::new().with_crds().time_limit(Duration::from_mins(8)).run(|| async {
        let rollout = json!({"strategy": "Restart", "maxUnavailable": 3, "podTimeoutSeconds": 4,
                             "steps": [{"percent": 40, "bakeSeconds": 1}]});
        let shop = Shop::start(ControlPlane::builder(), 0, &rollout).await?;
        let (client, control_plane) = (shop.client(), &shop.rig.control_plane);
        let controllers = "deployment-controller,replicaset-controller,disruption-controller";
        let _controllers = ControllerManager::with(control_plane, controllers).await?;
        let first_leader = lead(&client, client.clone())?;
        let before = shop.status().await?.revision;
        control_plane.apply_yaml(&profile_with_version("1", &rollout)?).await?;
        let first = shop.ends(&before, UpgradePhase::Complete).await?;
        shop.create_workloads().await?;
        let all = WORKLOADS * REPLICAS;
        let are_ready = async || -> Result<Vec<Json>> {
            let pods = shop.pods().await?;
            let ready = pods.iter().filter(|pod| pod["status"]["conditions"][0]["status"] == "True").count();
            ensure!((pods.len(), ready) == (all + 1, all + 1), "{ready} of {} pods are ready", pods.len());
            Ok(pods)
        };
        shop.wait_for("all pods are ready", async || are_ready().await.map(drop)).await?;
        let uids = |pods: &[Json]| -> BTreeSet<String> {
            pods.iter().filter_map(|pod| pod["metadata"]["uid"].as_str()).map(str::to_owned).collect()
        };
        let old = uids(&shop.pods().await?);

        // All workloads replace their pods, each pod once, and never more than three at a time. Several leaders end,
        // after writes of the status or after evictions.
        drop(first_leader);
        let mut ends = LEADERS_END_AFTER.into_iter();
        let (mut leader, mut dead) = next_leader(&client, &mut ends)?;
        control_plane.apply_yaml(&profile_with_version("2", &rollout)?).await?;
        let mut seen = old.clone();
        let (mut least_ready, mut in_first_step) = (usize::MAX, 0);
        shop.wait_for("the rollout is complete", async || {
            if dead.is_cancelled() {
                (leader, dead) = next_leader(&client, &mut ends)?;
            }
            let pods = shop.pods().await?;
            seen.extend(uids(&pods));
            let is_ready = |pod: &&Json| {
                pod["metadata"].get("deletionTimestamp").is_none() && pod["status"]["conditions"][0]["status"] == "True"
            };
            least_ready = least_ready.min(pods.iter().filter(is_ready).count());
            let of_web_0 = pods.iter().filter(is_ready).filter(|pod| pod["metadata"]["labels"]["app"] == "web-0");
            ensure!(of_web_0.count() > 0, "no pod of web-0 is ready");
            let status = shop.status().await?;
            if status.revision != first.revision && status.step == 0 {
                in_first_step = in_first_step.max(pods.iter().filter(|pod| version(pod) == Some("2")).count());
            }
            ensure!(status.revision != first.revision && status.phase == UpgradePhase::Complete, "{status:?}");
            Ok(())
        })
        .await?;
        ensure!(ends.next().is_none() && !dead.is_cancelled(), "a leader did not end");
        ensure!(shop.status().await?.evictions.is_empty(), "an eviction is still listed");
        let pods = are_ready().await?;
        let new = pods.iter().filter(|pod| version(pod) == Some("2")).count();
        ensure!(new == all && version(&pods[0]) == Some("1"), "{new} pods have the new version");
        ensure!(seen.len() == old.len() + all, "{} pods instead of {all} were created", seen.len() - old.len());
        ensure!(least_ready >= all + 1 - 3, "at most three pods may be unavailable: {least_ready} were ready");
        ensure!((1..all).contains(&in_first_step), "{in_first_step} pods were replaced in the first step");
        print_figures(&format!("{in_first_step} of {all} pods in the first step; at least {least_ready} were ready"));

        // A version that does not become ready reaches at most the first step, and its pods are replaced again.
        let complete = shop.status().await?;
        ensure!(complete.not_in_place == 1, "{complete:?}");
        let good = uids(&pods);
        control_plane.apply_yaml(&profile_with_version("bad", &rollout)?).await?;
        let mut touched = BTreeSet::new();
        shop.wait_for("the rollout steps back", async || {
            let pods = shop.pods().await?;
            touched.extend(uids(&pods.into_iter().filter(|pod| version(pod) == Some("bad")).collect::<Vec<_>>()));
            let status = shop.status().await?;
            ensure!(status.revision != complete.revision && status.phase == UpgradePhase::SteppedBack, "{status:?}");
            Ok(())
        })
        .await?;
        let message = shop.status().await?.message.unwrap_or_default();
        ensure!(message.contains("evicted pods were not replaced by ready ones in time"), "{message}");
        shop.wait_for("all pods are ready", async || are_ready().await.map(drop)).await?;
        let pods = shop.pods().await?;
        ensure!(pods.iter().all(|pod| version(pod) != Some("bad")), "a pod was forgotten");
        ensure!((1..=in_first_step).contains(&touched.len()), "{} pods were replaced", touched.len());
        let kept = uids(&pods).intersection(&good).count();
        ensure!(kept + touched.len() >= good.len(), "{kept} of {} pods were kept", good.len());
        print_figures(&format!("{} pods got the bad version and returned", touched.len()));

        // A rollback replaces the pods of all workloads once, without steps.
        let mut seen = uids(&pods);
        let request = format!("{ROLLBACK_TO_ANNOTATION}={}", first.revision);
        control_plane.kubectl_ok(&["annotate", "clusterinjectionprofile", "shipper", &request]).await?;
        shop.wait_for("all pods have the earlier version", async || {
            let pods = are_ready().await?;
            seen.extend(uids(&pods));
            ensure!(pods.iter().all(|pod| version(pod) == Some("1")), "a pod has a later version");
            Ok(())
        })
        .await?;
        ensure!(seen.len() == good.len() + all, "{} pods instead of {all} were created", seen.len() - good.len());
        drop(leader);
        Ok(())
    });
}

/// Returns a client that counts its requests.
fn counting_client(client: &Client) -> (Client, Arc<AtomicUsize>) {
    let count = Arc::new(AtomicUsize::new(0));
    let (inner, namespace, counted) = (client.clone(), client.default_namespace().to_owned(), Arc::clone(&count));
    let service = tower::service_fn(move |request: http::Request<Body>| {
        counted.fetch_add(1, Ordering::SeqCst);
        let inner = inner.clone();
        async move { inner.send(request).await }
    });
    (Client::new(service, namespace), count)
}

/// `PILLION_PODS` sets the number of pods.
#[test]
fn rollout_sends_few_requests() {
    Isolation::new().with_crds().time_limit(Duration::from_mins(14)).run(|| async {
        let pods = std::env::var("PILLION_PODS").ok().and_then(|pods| pods.parse().ok()).unwrap_or(40);
        let rollout =
            json!({"strategy": "InPlace", "maxUnavailable": 20, "steps": [{"percent": 10, "bakeSeconds": 1}]});
        let shop = Shop::start(ControlPlane::builder(), pods, &rollout).await?;
        let client = shop.client();
        let (writer, requests) = counting_client(&client);
        let _leader = lead(&client, writer)?;
        let begun = std::time::Instant::now();
        let status = shop.roll_out("2", &rollout, UpgradePhase::Complete).await?;
        ensure!(status.upgraded == u32::try_from(pods)?, "{status:?}");
        let (sent, took) = (requests.load(Ordering::SeqCst), begun.elapsed());
        // Each pod needs one read and two writes. Each round lists the marked pods, and each batch the budgets.
        print_figures(&format!("{pods} pods, {sent} requests in {took:.1?}"));
        // The number of rounds depends on the speed of the machine.
        let rounds = usize::try_from(took.as_millis() / 100)?;
        ensure!(sent <= 3 * pods + 6 * rounds + 50, "{sent} requests for {pods} pods");
        Ok(())
    });
}

#[test]
fn rollouts_share_pods_and_budgets() {
    Isolation::new().with_crds().time_limit(Duration::from_mins(8)).run(|| async {
        let rollout = json!({"strategy": "InPlace", "maxUnavailable": 3, "podTimeoutSeconds": 4});
        let shop = Shop::start(ControlPlane::builder(), 0, &rollout).await?;
        let client = shop.client();
        let _leader = lead(&client, client.clone())?;
        shop.rig.control_plane.apply_yaml(&profile_named("mesh", "1", &rollout)).await?;
        shop.wait_for("both profiles are served", async || {
            let found = shop.rig.dry_run("shop", &pod("probe")).await?;
            ensure!(image(&found, "mesh").is_some(), "{found}");
            Ok(())
        })
        .await?;
        for number in 0..4 {
            shop.rig.create("shop", &pod(&format!("web-{number}"))).await?;
        }
        let budget = json!({
            "apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": {"name": "web", "namespace": "shop"},
            "spec": {"maxUnavailable": 1, "selector": {"matchLabels": {"app": "web"}}},
        });
        shop.rig.control_plane.apply_yaml(&budget.to_string()).await?;
        let budgets: Api<PodDisruptionBudget> = Api::namespaced(client.clone(), "shop");
        // The controller that writes the status of budgets does not run, so the test writes it.
        let allow = async |pods: i32| -> Result<()> {
            let status = json!({"disruptionsAllowed": pods, "currentHealthy": 4, "desiredHealthy": 3, "expectedPods": 4,
                                "observedGeneration": 1});
            let patch = Patch::Merge(json!({"status": status}));
            budgets.patch_status("web", &PatchParams::default(), &patch).await?;
            Ok(())
        };
        allow(1).await?;
        let before = shop.status().await?.revision;
        shop.apply("2", &rollout).await?;
        shop.rig.control_plane.apply_yaml(&profile_named("mesh", "2", &rollout)).await?;
        let mut at_once = 0;
        shop.wait_for("both rollouts are complete", async || {
            let pods = shop.pods().await?;
            let marked = pods.iter().filter(|pod| pod["metadata"]["labels"].get(UPGRADING_LABEL).is_some()).count();
            at_once = at_once.max(marked);
            let are_new = |pod: &Json| {
                ["mesh", "shipper"].iter().all(|name| image(pod, name).is_some_and(|image| image.ends_with(":2")))
            };
            ensure!(pods.iter().all(are_new) && marked == 0, "{pods:?}");
            Ok(())
        })
        .await?;
        ensure!(at_once == 1, "the budget allows one pod, and {at_once} were changed");
        let status = shop.ends(&before, UpgradePhase::Complete).await?;
        ensure!(status.not_in_place == 0, "{status:?}");
        for pod in shop.pods().await? {
            let mut restarts = pod["status"]["initContainerStatuses"].as_array().context("statuses")?.iter();
            ensure!(restarts.all(|status| status["restartCount"] == 1), "{pod}");
        }

        // Failed pods return even if the budget allows no disruption.
        let before = shop.status().await?.revision;
        shop.apply("unready", &rollout).await?;
        shop.wait_for("a pod is changed", async || {
            ensure!(shop.tags().await?.contains("unready"), "no pod is changed");
            Ok(())
        })
        .await?;
        allow(0).await?;
        let back = shop.ends(&before, UpgradePhase::SteppedBack).await?;
        ensure!(shop.tags().await? == ["2".to_owned()].into(), "{back:?}");

        // A pod without the profile gets a forged annotation with a failure. The rollout ignores it.
        allow(1).await?;
        shop.rig.control_plane.create_namespace("other", &[]).await?;
        let forged = shop.rig.create("other", &pod("forged")).await?;
        shop.apply("3", &rollout).await?;
        let revision = shop.wait_for_revision(&back.revision).await?;
        let annotation = json!({"uid": forged["metadata"]["uid"],
                                "failed": {"shipper": {"revision": revision, "why": "forged"}}});
        let patch = json!({"metadata": {"labels": {UPGRADING_LABEL: "true"},
                                        "annotations": {UPGRADED_ANNOTATION: annotation.to_string()}}});
        shop.rig.pods("other").patch("forged", &PatchParams::default(), &Patch::Merge(patch)).await?;
        let complete = shop.ends(&back.revision, UpgradePhase::Complete).await?;
        ensure!(complete.upgraded == 4, "{complete:?}");
        Ok(())
    });
}

/// Returns a namespaced profile with the highest values that a tenant may write.
fn own_profile(tag: &str) -> String {
    json!({
        "apiVersion": "pillion.dev/v1alpha1", "kind": "InjectionProfile",
        "metadata": {"name": "own", "namespace": "shop"},
        "spec": {
            "activation": "Always",
            "rollout": {"strategy": "Restart", "maxUnavailable": 1000, "podTimeoutSeconds": 86_400},
            "template": {"spec": {"initContainers": [{
                "name": "own", "image": format!("local.test/own:{tag}"), "restartPolicy": "Always",
                "readinessProbe": {"tcpSocket": {"port": 1}},
            }]}},
        },
    })
    .to_string()
}

#[test]
fn namespaced_profiles_are_rolled_out_within_limits() {
    Isolation::new().with_crds().time_limit(Duration::from_mins(5)).run(|| async {
        let rollout = json!({"strategy": "InPlace", "maxUnavailable": 1});
        let shop = Shop::start(ControlPlane::builder(), 0, &rollout).await?;
        let client = shop.client();
        let _leader = lead(&client, client.clone())?;
        let profiles: Api<InjectionProfile> = Api::namespaced(client, "shop");
        let status = async || profiles.get("own").await?.status.context("no status");
        shop.rig.control_plane.apply_yaml(&own_profile("1")).await?;
        shop.wait_for("both profiles are served", async || {
            let found = shop.rig.dry_run("shop", &pod("probe")).await?;
            ensure!(image(&found, "own").is_some(), "{found}");
            Ok(())
        })
        .await?;
        for number in 0..PODS {
            shop.rig.create("shop", &pod(&format!("web-{number}"))).await?;
        }
        let has = |pod: &Json, name: &str, tag: &str| image(pod, name).is_some_and(|image| image.ends_with(tag));
        let before = shop.status().await?.revision;
        shop.apply("2", &rollout).await?;
        shop.wait_for_revision(&before).await?;
        shop.rig.control_plane.apply_yaml(&own_profile("2")).await?;
        let (mut at_once, mut early) = (0, false);
        shop.wait_for("both rollouts are complete", async || {
            let pods = shop.pods().await?;
            let is_changing = |pod: &&Json| {
                let annotation = pod["metadata"]["annotations"][UPGRADED_ANNOTATION].as_str().unwrap_or_default();
                let upgraded: Json = serde_json::from_str(annotation).unwrap_or_default();
                upgraded["running"]["previous"].get("shop/own").is_some()
            };
            at_once = at_once.max(pods.iter().filter(is_changing).count());
            early |= pods.iter().any(|pod| has(pod, "own", ":2") && !has(pod, "shipper", ":2"));
            ensure!(pods.len() == PODS && pods.iter().all(|pod| has(pod, "own", ":2")), "{pods:?}");
            let phase = status().await?.upgrade.context("no rollout")?.phase;
            ensure!(phase == UpgradePhase::Complete, "{phase:?}");
            Ok(())
        })
        .await?;
        ensure!(!early, "the tenant's rollout changed a pod before the platform's");
        // The test may miss short changes, so it does not always see two at once.
        ensure!((1..=2).contains(&at_once), "the limit is 2, and {at_once} pods were changed at once");
        let ready = status().await?.conditions.into_iter().find(|condition| condition.type_ == "Ready");
        let message = ready.context("no condition")?.message;
        let expected = "the strategy Restart acts as InPlace, because of the chart's value rollout.namespaced.strategy";
        ensure!(message.ends_with(expected), "{message}");
        Ok(())
    });
}
