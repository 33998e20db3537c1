//! Tests upgrades of running pods in place, by the command and by the controller. The kubelet must restart only the
//! sidecar. An image that does not work must not reach more pods than those of the first step. `PILLION_PODS` sets the
//! number of pods, and `PILLION_RUNS` how often the controller's rollouts are repeated.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::{ContainerStatus, Pod};
use kube::Api;
use kube::api::ListParams;
use pillion_api::ClusterInjectionProfile;
use pillion_api::kinds::{UpgradePhase, UpgradeStatus};
use pillion_testkit::image::Image;
use pillion_testkit::{cluster, eventually};
use serde_json::{Value as Json, json};

use crate::platform::{Platform, SOON, is_ready, on_a_node};

/// How long one rollout may take, by `pillion rollout` or by the controller.
const ROLLOUT_LIMIT: Duration = Duration::from_mins(12);

fn replicas() -> usize {
    std::env::var("PILLION_PODS").ok().and_then(|count| count.parse().ok()).unwrap_or(10)
}

fn runs() -> usize {
    std::env::var("PILLION_RUNS").ok().and_then(|count| count.parse().ok()).unwrap_or(1)
}

/// Returns the memory request of the sidecar with this CPU request. Both change together.
fn memory(cpu: &str) -> &'static str {
    if cpu == "2m" { "8Mi" } else { "12Mi" }
}

/// Returns a profile that the controller rolls out to running pods. Its sidecar has no probe. The application is ready
/// if the sidecar responds.
fn rolled_out(tag: &str, cpu: &str) -> String {
    // A busy kubelet reports the new resources of a pod only when it synchronizes the pod again, after up to 90
    // seconds.
    let timeout = if ["missing", "crashing", "silent"].contains(&tag) { 30 } else { 180 };
    json!({
        "apiVersion": "pillion.dev/v1alpha1", "kind": "ClusterInjectionProfile", "metadata": {"name": "shipper"},
        "spec": {
            "activation": "Always",
            "rollout": {
                "strategy": "InPlace", "maxUnavailable": 50, "podTimeoutSeconds": timeout,
                "steps": [{"percent": 5, "bakeSeconds": 5}],
            },
            "template": {"spec": {"initContainers": [{
                "name": "shipper", "image": format!("local.test/shipper:{tag}"), "imagePullPolicy": "IfNotPresent",
                "restartPolicy": "Always", "args": ["8080"],
                "resources": {"requests": {"cpu": cpu, "memory": memory(cpu)}},
            }]}},
        },
    })
    .to_string()
}

/// Returns the profile with this image tag and this CPU request.
fn profile(tag: &str, cpu: &str) -> String {
    json!({
        "apiVersion": "pillion.dev/v1alpha1", "kind": "ClusterInjectionProfile", "metadata": {"name": "shipper"},
        "spec": {"activation": "Always", "template": {"spec": {"initContainers": [{
            "name": "shipper", "image": format!("local.test/shipper:{tag}"), "imagePullPolicy": "IfNotPresent",
            "restartPolicy": "Always", "args": ["8080"],
            "ports": [{"name": "ready", "containerPort": 8080}],
            "readinessProbe": {"httpGet": {"path": "/", "port": "ready"}, "periodSeconds": 1},
            "resources": {"requests": {"cpu": cpu, "memory": "8Mi"}},
        }]}}},
    })
    .to_string()
}

/// Returns a Deployment whose application is ready if the sidecar responds on port 8080.
pub(crate) fn deployment(namespace: &str, name: &str, replicas: usize) -> Json {
    json!({
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": name, "namespace": namespace},
        "spec": {
            "replicas": replicas, "selector": {"matchLabels": {"app": "web", "part": name}},
            "template": {
                "metadata": {"labels": {"app": "web", "part": name}},
                "spec": {
                    "terminationGracePeriodSeconds": 1,
                    "containers": [{
                        "name": "app", "image": cluster::PAUSE_IMAGE, "imagePullPolicy": "IfNotPresent",
                        "resources": {"requests": {"cpu": "1m", "memory": "4Mi"}},
                        "readinessProbe": {"httpGet": {"path": "/", "port": 8080}, "periodSeconds": 1},
                    }],
                },
            },
        },
    })
}

/// The pods with the label `app=web` in the namespace `shop`.
pub(crate) struct Shop<'p>(pub(crate) &'p Platform);

/// The state of a pod that an upgrade in place must not change: its UID, and the container ID and the restart count of
/// the application.
pub(crate) type Identity = (String, String, i32);

impl Shop<'_> {
    pub(crate) async fn pods(&self) -> Result<Vec<Pod>> {
        Ok(self.0.pods("shop").list(&ListParams::default().labels("app=web")).await?.items)
    }

    /// Waits until all pods are ready.
    async fn is_ready(&self) -> Result<()> {
        eventually(SOON * 2, "all pods are ready", async || {
            let pods = self.pods().await?;
            ensure!(pods.len() == replicas(), "{} pods", pods.len());
            pods.iter().try_for_each(is_ready)
        })
        .await
    }

    pub(crate) async fn identities(&self) -> Result<BTreeMap<String, Identity>> {
        let identity = |pod: &Pod| {
            let app = container(pod, "app")?;
            let id = app.container_id.clone().context("no container id")?;
            let name = pod.metadata.name.clone().context("no name")?;
            Ok((name, (pod.metadata.uid.clone().context("no uid")?, id, app.restart_count)))
        };
        self.pods().await?.iter().map(identity).collect()
    }

    /// Applies the profile, and waits until a new pod gets it.
    async fn apply(&self, tag: &str, cpu: &str) -> Result<()> {
        self.0.kubectl_with_input(&["apply", "-f", "-"], &profile(tag, cpu)).await?;
        self.serves(tag, cpu).await
    }

    /// Waits until a new pod gets this image tag and this CPU request.
    pub(crate) async fn serves(&self, tag: &str, cpu: &str) -> Result<()> {
        let image = format!("local.test/shipper:{tag}");
        eventually(SOON, "new pods get the profile", async || {
            let pod = self.0.dry_run("shop").await?;
            let sidecars = pod.spec.iter().flat_map(|spec| spec.init_containers.iter().flatten());
            let sidecar = sidecars.into_iter().find(|one| one.name == "shipper").context("no sidecar")?;
            let requests = sidecar.resources.as_ref().and_then(|all| all.requests.as_ref()?.get("cpu"));
            ensure!(sidecar.image.as_deref() == Some(&*image), "{:?}", sidecar.image);
            ensure!(requests.is_some_and(|found| found.0 == cpu), "{requests:?}");
            Ok(())
        })
        .await
    }

    /// Runs `pillion rollout` for the namespace. Returns whether it succeeded, and its output.
    async fn rollout(&self, arguments: &[&str]) -> Result<(bool, String)> {
        let mut command = tokio::process::Command::new(env!("CARGO_BIN_EXE_pillion"));
        command.args(["rollout", "-n", "shop"]).args(arguments).env("KUBECONFIG", self.0.cluster.kubeconfig());
        let output = tokio::time::timeout(ROLLOUT_LIMIT, command.kill_on_drop(true).output()).await??;
        let text = [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned()).concat();
        Ok((output.status.success(), text))
    }

    /// Returns the number of pods whose sidecar has this image tag.
    async fn count(&self, wanted: &str) -> Result<usize> {
        Ok(self.pods().await?.iter().filter(|pod| sidecar_tag(pod) == Some(wanted)).count())
    }
}

/// Rollouts by the controller.
impl Shop<'_> {
    pub(crate) async fn status(&self) -> Result<UpgradeStatus> {
        let profiles: Api<ClusterInjectionProfile> = Api::all(self.0.client.clone());
        profiles.get("shipper").await?.status.and_then(|status| status.upgrade).context("no rollout")
    }

    /// Applies the profile, and waits until its rollout has ended. Fails unless it has ended in this phase. Returns the
    /// state and the duration of the rollout.
    async fn roll_out(&self, tag: &str, cpu: &str, phase: UpgradePhase) -> Result<(UpgradeStatus, Duration)> {
        let before = self.status().await.ok().map(|status| status.revision);
        let begun = Instant::now();
        self.0.kubectl_with_input(&["apply", "-f", "-"], &rolled_out(tag, cpu)).await?;
        let mut ended = None;
        eventually(ROLLOUT_LIMIT, "the rollout ends", async || {
            let status = self.status().await?;
            let is_over = status.phase.has_ended() && status.upgrading == 0;
            ensure!(Some(&status.revision) != before.as_ref() && is_over, "{status:?}");
            ended = Some(status);
            Ok(())
        })
        .await?;
        ensure!(ended.as_ref().is_some_and(|status| status.phase == phase), "{phase:?} was expected: {ended:?}");
        Ok((ended.context("it has ended")?, begun.elapsed()))
    }

    /// Returns the restarts of all sidecars, by pod.
    async fn restarts(&self) -> Result<BTreeMap<String, i32>> {
        let of =
            |pod: &Pod| Ok((pod.metadata.name.clone().context("no name")?, container(pod, "shipper")?.restart_count));
        self.pods().await?.iter().map(of).collect()
    }
}

pub(crate) fn container<'p>(pod: &'p Pod, name: &str) -> Result<&'p ContainerStatus> {
    let status = pod.status.as_ref().context("no status")?;
    let mut all = status.container_statuses.iter().flatten().chain(status.init_container_statuses.iter().flatten());
    all.find(|one| one.name == name).with_context(|| format!("no container {name}"))
}

/// Returns the tag of the sidecar's image.
pub(crate) fn sidecar_tag(pod: &Pod) -> Option<&str> {
    let mut sidecars = pod.spec.iter().flat_map(|spec| spec.init_containers.iter().flatten());
    sidecars.find(|one| one.name == "shipper")?.image.as_deref()?.strip_prefix("local.test/shipper:")
}

/// Returns how long the sidecar did not run during its last restart, in seconds.
fn downtime(pod: &Pod) -> Result<i64> {
    let sidecar = container(pod, "shipper")?;
    let ended = sidecar.last_state.as_ref().and_then(|last| last.terminated.as_ref()?.finished_at.as_ref());
    let began = sidecar.state.as_ref().and_then(|state| state.running.as_ref()?.started_at.as_ref());
    let (ended, began) = ended.zip(began).context("the sidecar was not restarted")?;
    Ok(began.0.as_second() - ended.0.as_second())
}

#[test]
#[ignore = "needs a real node: just node"]
fn sidecars_are_upgraded_in_running_pods() {
    on_a_node(async |platform| {
        for tag in ["1", "2"] {
            platform.import_idle(&format!("local.test/shipper:{tag}"))?;
        }
        // busybox has no program of the name `pause`, so the container exits at once.
        let crashing = Image::new("local.test/shipper:crashing", "/pause")?.file("/pause", &cluster::busybox()?)?;
        platform.import_image(crashing)?;
        platform.namespace("shop", "enabled").await?;
        platform.install("shop").await?;
        let shop = Shop(platform);
        shop.apply("1", "10m").await?;
        platform.kubectl_with_input(&["apply", "-f", "-"], &deployment("shop", "web", replicas()).to_string()).await?;
        shop.is_ready().await?;
        let before = shop.identities().await?;

        // An image that cannot be pulled: no pod is changed.
        shop.apply("missing", "10m").await?;
        let (succeeded, text) = shop.rollout(&["--apply", "--in-place"]).await?;
        ensure!(!succeeded && text.contains("local.test/shipper:missing cannot be pulled on node"), "{text}");
        ensure!(shop.count("1").await? == replicas() && shop.identities().await? == before, "{text}");

        // An image whose container exits at once: one pod is changed, and then the change is reverted.
        shop.apply("crashing", "10m").await?;
        let (succeeded, text) = shop.rollout(&["--apply", "--in-place"]).await?;
        ensure!(!succeeded && text.contains("container shipper does not run: CrashLoopBackOff"), "{text}");
        ensure!(text.contains("the change was taken back"), "{text}");
        shop.is_ready().await?;
        ensure!(shop.count("1").await? == replicas() && shop.identities().await? == before, "{text}");
        let restarted = |pod: &&Pod| container(pod, "shipper").is_ok_and(|one| one.restart_count > 0);
        ensure!(shop.pods().await?.iter().filter(restarted).count() == 1, "more than one pod was changed");

        // An image that works is rolled out to all pods.
        shop.apply("2", "10m").await?;
        let (_, text) = shop.rollout(&[]).await?;
        ensure!(text.contains("would be restarted; possible with --in-place"), "{text}");
        let begun = Instant::now();
        let (succeeded, text) = shop.rollout(&["--apply", "--in-place"]).await?;
        ensure!(succeeded && text.contains("1 upgraded in place"), "{text}");
        let took = begun.elapsed();
        ensure!(shop.count("2").await? == replicas() && shop.identities().await? == before, "{text}");
        let pods = shop.pods().await?;
        let downtimes: Vec<i64> = pods.iter().map(downtime).collect::<Result<_>>()?;
        println!(
            "{} pods in {took:.1?}; the sidecar was down for {:?} to {:?} s; application restarts: 0, recreated pods: 0",
            pods.len(),
            downtimes.iter().min(),
            downtimes.iter().max(),
        );

        // A larger CPU request: no container is restarted.
        let restarts = |pods: &[Pod]| -> Result<Vec<i32>> {
            pods.iter().map(|pod| Ok(container(pod, "shipper")?.restart_count)).collect()
        };
        let restarts_before = restarts(&pods)?;
        shop.apply("2", "20m").await?;
        let (succeeded, text) = shop.rollout(&["--apply", "--in-place"]).await?;
        ensure!(succeeded && text.contains("1 upgraded in place"), "{text}");
        let pods = shop.pods().await?;
        ensure!(restarts(&pods)? == restarts_before && shop.identities().await? == before, "{text}");
        for pod in &pods {
            let allocated =
                container(pod, "shipper")?.resources.as_ref().and_then(|all| all.requests.as_ref()?.get("cpu"));
            ensure!(allocated.is_some_and(|cpu| cpu.0 == "20m"), "{allocated:?}");
        }

        // Nothing is left to do.
        let (succeeded, text) = shop.rollout(&[]).await?;
        ensure!(succeeded && text.contains("no workload is stale"), "{text}");
        Ok(())
    });
}

#[test]
#[ignore = "needs a real node: just node"]
fn controller_upgrades_running_pods() {
    on_a_node(async |platform| {
        for tag in ["1", "2", "3"] {
            platform.import_idle(&format!("local.test/shipper:{tag}"))?;
        }
        // busybox has no program of the name `pause`. As `sleep`, it runs but does not respond.
        for (tag, program) in [("crashing", "/pause"), ("silent", "/sleep")] {
            let image = Image::new(format!("local.test/shipper:{tag}"), program)?;
            platform.import_image(image.file(program, &cluster::busybox()?)?)?;
        }
        platform.namespace("shop", "enabled").await?;
        let mut values = Platform::values("one");
        values["rollout"] = json!({"inPlace": true});
        platform.helm("install", Some(&values), &["--create-namespace", "--wait", "--timeout=3m"]).await?;
        platform.injects("shop").await?;
        let shop = Shop(platform);
        shop.roll_out("1", "2m", UpgradePhase::Complete).await?;
        shop.serves("1", "2m").await?;
        platform.kubectl_with_input(&["apply", "-f", "-"], &deployment("shop", "web", replicas()).to_string()).await?;
        shop.is_ready().await?;
        let before = shop.identities().await?;
        let first_step = replicas().div_ceil(20);

        for run in 0..runs() {
            // An image that works is rolled out to all pods.
            let (tag, cpu, more_cpu) = if run % 2 == 0 { ("2", "2m", "4m") } else { ("3", "4m", "2m") };
            let (status, took) = shop.roll_out(tag, cpu, UpgradePhase::Complete).await?;
            ensure!(status.upgraded == u32::try_from(replicas())?, "{status:?}");
            ensure!(shop.count(tag).await? == replicas() && shop.identities().await? == before, "{status:?}");
            let downtimes: Vec<i64> = shop.pods().await?.iter().map(downtime).collect::<Result<_>>()?;
            let (least, most) = (downtimes.iter().min(), downtimes.iter().max());
            println!(
                "{} pods in {took:.1?}; the sidecar was down for {least:?} to {most:?} s; application restarts: 0, \
                 recreated pods: 0",
                replicas(),
            );
            shop.is_ready().await?;

            // Different CPU and memory requests: no container is restarted.
            let restarts = shop.restarts().await?;
            let (_, took) = shop.roll_out(tag, more_cpu, UpgradePhase::Complete).await?;
            ensure!(
                shop.restarts().await? == restarts && shop.identities().await? == before,
                "a container was restarted"
            );
            for pod in &shop.pods().await? {
                let resources = container(pod, "shipper")?.resources.as_ref();
                let allocated = resources.and_then(|all| all.requests.clone()).unwrap_or_default();
                let has = |name: &str, value: &str| allocated.get(name).is_some_and(|found| found.0 == value);
                ensure!(has("cpu", more_cpu) && has("memory", memory(more_cpu)), "{allocated:?}");
            }
            println!("{} pods were resized in {took:.1?}", replicas());

            // Images that do not work are rolled out to at most the pods of the first step. These pods return to the
            // previous image.
            for (bad, why) in [
                ("missing", "cannot be pulled on node"),
                ("crashing", "container shipper"),
                ("silent", "the pod is not ready"),
            ] {
                let restarts = shop.restarts().await?;
                let (status, took) = shop.roll_out(bad, more_cpu, UpgradePhase::SteppedBack).await?;
                let message = status.message.unwrap_or_default();
                ensure!(message.contains(why), "{bad}: {message}");
                let after = shop.restarts().await?;
                let touched = after.iter().filter(|(name, now)| restarts[*name] != **now).count();
                ensure!(
                    touched <= first_step && (touched > 0) == (bad != "missing"),
                    "{bad}: {touched} pods were changed"
                );
                ensure!(shop.count(tag).await? == replicas() && shop.identities().await? == before, "{bad}: {message}");
                shop.is_ready().await?;
                println!("{bad}: {touched} of {} pods were changed, back after {took:.1?}", replicas());
            }
        }
        Ok(())
    });
}
