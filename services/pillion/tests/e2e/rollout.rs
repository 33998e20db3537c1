//! Tests `pillion diff` and `pillion rollout` on a real API server, with the controllers of Kubernetes that create
//! pods. The test writes the pod status that a kubelet would write.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::{Api, DeleteParams, ListParams, Patch, PatchParams, PostParams};
use pillion_testkit::{ControlPlane, ControllerManager, Isolation, eventually};
use serde_json::{Value as Json, json};
use tokio_util::sync::CancellationToken;

use crate::rig::{Rig, SOON, bare_pod};

/// Time limit for new pods to become available.
const AVAILABLE_WITHIN: Duration = Duration::from_mins(2);

/// The name of the evicted pod, which the simulated nodes ignore.
const EVICTED: &str = "evicted";

/// The name of a sidecar whose image the simulated nodes cannot pull.
const STUCK: &str = "stuck";

/// A profile for every pod, and a profile that extends it. The test changes the annotation `example.com/marked` in the
/// first one.
const MARKED: &str = "
apiVersion: pillion.dev/v1alpha1
kind: ClusterInjectionProfile
metadata: {name: marked}
spec:
  activation: Always
  template: {metadata: {annotations: {example.com/marked: '1'}}}
---
apiVersion: pillion.dev/v1alpha1
kind: ClusterInjectionProfile
metadata: {name: derived}
spec:
  extends: {name: marked}
  activation: Requested
  requestedBy: {annotation: example.com/derived}
  template: {metadata: {annotations: {example.com/derived-too: 'x'}}}
";

fn marked(value: u8) -> String {
    MARKED.replace("example.com/marked: '1'", &format!("example.com/marked: '{value}'"))
}

/// Returns the profile `marked` with this value, without the profile `derived`.
fn only_marked(value: u8) -> String {
    marked(value).split("---").next().unwrap().to_owned()
}

fn workload(kind: &str, name: &str, replicas: u8) -> Json {
    let labels = json!({"app": name});
    json!({
        "apiVersion": "apps/v1", "kind": kind, "metadata": {"name": name, "namespace": "shop"},
        "spec": {
            "replicas": replicas, "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": {"containers": [{"name": "app", "image": "app:1"}]}},
        },
    })
}

/// Binds and runs pods, and completes deletions, like the scheduler and the kubelet. Ignores the pod [`EVICTED`].
async fn nodes(pods: Api<Pod>, client: kube::Client, stop: CancellationToken) -> Result<()> {
    let mut ticks = tokio::time::interval(Duration::from_millis(150));
    while stop.run_until_cancelled(ticks.tick()).await.is_some() {
        for pod in pods.list(&ListParams::default()).await?.items {
            let name = pod.metadata.name.as_deref().context("a name")?;
            if name == EVICTED {
                continue;
            }
            let has_status = pod.status.as_ref().is_some_and(|status| status.container_statuses.is_some());
            let is_stuck = pod.spec.as_ref().is_some_and(|spec| spec.containers.iter().any(|one| one.name == STUCK));
            if is_stuck && has_status {
                continue;
            }
            let is_running = pod.status.as_ref().and_then(|status| status.phase.as_deref()) == Some("Running");
            let node = pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref());
            let done: kube::Result<()> = if pod.metadata.deletion_timestamp.is_some() {
                pods.delete(name, &DeleteParams::default().grace_period(0)).await.map(drop)
            } else if node.is_none() {
                let binding = json!({"apiVersion": "v1", "kind": "Binding", "metadata": {"name": name},
                                     "target": {"apiVersion": "v1", "kind": "Node", "name": "one"}});
                let path = format!("/api/v1/namespaces/shop/pods/{name}/binding");
                let request = http::Request::post(path).body(binding.to_string().into_bytes())?;
                client.request_text(request).await.map(drop)
            } else if is_stuck {
                let waiting = json!({"reason": "ImagePullBackOff", "message": "Back-off pulling image \"broken:1\""});
                let container = json!({"name": STUCK, "image": "broken:1", "imageID": "", "ready": false,
                    "restartCount": 0, "state": {"waiting": waiting}});
                let status = json!({"status": {"phase": "Pending", "containerStatuses": [container]}});
                pods.patch_status(name, &PatchParams::default(), &Patch::Merge(&status)).await.map(drop)
            } else if !is_running {
                let now = jiff::Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
                let ready = json!({"type": "Ready", "status": "True", "lastTransitionTime": now});
                let status = json!({"status": {"phase": "Running", "conditions": [ready]}});
                pods.patch_status(name, &PatchParams::default(), &Patch::Merge(&status)).await.map(drop)
            } else {
                Ok(())
            };
            match done {
                // In the meantime, the pod was deleted or recreated.
                Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => {}
                done => done?,
            }
        }
    }
    Ok(())
}

/// The exit code and the output of a command.
struct Run {
    code: Option<i32>,
    stdout: String,
    stderr: String,
}

struct Cluster {
    rig: Rig,
}

impl Cluster {
    async fn pillion(&self, arguments: &[&str]) -> Result<Run> {
        let output = tokio::process::Command::new(env!("CARGO_BIN_EXE_pillion"))
            .args(arguments)
            .arg("--kubeconfig")
            .arg(self.rig.control_plane.kubeconfig())
            .output()
            .await?;
        let text = |bytes| String::from_utf8(bytes).context("text");
        Ok(Run { code: output.status.code(), stdout: text(output.stdout)?, stderr: text(output.stderr)? })
    }

    async fn get(&self, what: &str) -> Result<Json> {
        let text = self.rig.control_plane.kubectl_ok(&["get", what, "-n", "shop", "-o", "json"]).await?;
        Ok(serde_json::from_str(&text)?)
    }

    /// Waits until the replicas add this value of the annotation `example.com/marked` to pods.
    async fn wait_until_served(&self, value: u8) -> Result<()> {
        let mark = value.to_string();
        eventually(SOON, "the changed profile is served", async || {
            let pod = self.rig.dry_run("shop", &bare_pod("probe")).await?;
            ensure!(pod["metadata"]["annotations"]["example.com/marked"] == *mark, "{pod}");
            Ok(())
        })
        .await
    }

    /// Returns the annotation `example.com/marked` of each pod of an app that is neither terminating nor failed.
    async fn marks(&self, app: &str) -> Result<Vec<String>> {
        let pods = self.rig.pods("shop").list(&ListParams::default().labels(&format!("app={app}"))).await?;
        let is_there = |pod: &Pod| {
            let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
            pod.metadata.deletion_timestamp.is_none() && phase != Some("Failed")
        };
        let pods = pods.items.into_iter().filter(is_there);
        let mark = |pod: Pod| pod.metadata.annotations.unwrap_or_default().remove("example.com/marked");
        Ok(pods.map(|pod| mark(pod).unwrap_or_default()).collect())
    }

    /// Adds a pod in the state after an eviction by the kubelet: it has failed, but its controller does not delete it.
    async fn add_evicted_pod(&self, app: &str) -> Result<()> {
        let pods = self.rig.pods("shop");
        let all = pods.list(&ListParams::default().labels(&format!("app={app}"))).await?;
        let mut pod = all.items.into_iter().find(|pod| pod.metadata.deletion_timestamp.is_none()).context("a pod")?;
        let (labels, owners) = (pod.metadata.labels.take(), pod.metadata.owner_references.take());
        pod.metadata = ObjectMeta { name: Some(EVICTED.to_owned()), ..ObjectMeta::default() };
        pods.create(&PostParams::default(), &pod).await?;
        let status = json!({"status": {"phase": "Failed", "reason": "Evicted"}});
        pods.patch_status(EVICTED, &PatchParams::default(), &Patch::Merge(&status)).await?;
        // The owner is added only now, because the ReplicaSet would delete one of its pods if this one had not failed.
        self.rig.patch("shop", EVICTED, &json!({"metadata": {"labels": labels, "ownerReferences": owners}})).await?;
        Ok(())
    }

    async fn is_available(&self, what: &str, replicas: u8) -> Result<()> {
        eventually(AVAILABLE_WITHIN, what, async || {
            let status = &self.get(what).await?["status"];
            ensure!(status["availableReplicas"] == replicas, "{status}");
            Ok(())
        })
        .await
    }

    /// Waits until a pod runs. After that, its status changes only through the tested commands.
    async fn wait_until_running(&self, pod: &str) -> Result<()> {
        eventually(AVAILABLE_WITHIN, pod, async || {
            let status = self.rig.pods("shop").get(pod).await?.status.unwrap_or_default();
            ensure!(status.phase.as_deref() == Some("Running"), "{:?}", status.phase);
            Ok(())
        })
        .await
    }

    async fn budget_allows(&self, disruptions: u8) -> Result<()> {
        let status = json!({"status": {"disruptionsAllowed": disruptions, "observedGeneration": 1, "currentHealthy": 1,
                                       "desiredHealthy": 1, "expectedPods": 1}});
        let patch = ["patch", "pdb", "db", "-n", "shop", "--subresource=status", "--type=merge", "-p"];
        self.rig.control_plane.kubectl_ok(&[&patch[..], &[&status.to_string()]].concat()).await?;
        Ok(())
    }
}

#[test]
fn stale_workloads_restart_within_budgets() {
    Isolation::new().with_crds().time_limit(Duration::from_mins(12)).run(|| async {
        let rig = Rig::start_with(ControlPlane::builder(), &[], 1).await?;
        rig.control_plane.apply_yaml(MARKED).await?;
        rig.namespace("shop", Some("enabled")).await?;
        let mut cluster = Cluster { rig };
        cluster.wait_until_served(1).await?;
        let control_plane = &cluster.rig.control_plane;
        let _owners = ControllerManager::start(control_plane).await?;
        let stop = CancellationToken::new();
        let _stops = stop.clone().drop_guard();
        let nodes = tokio::spawn(nodes(cluster.rig.pods("shop"), control_plane.client(), stop.clone()));
        let mut paused = workload("Deployment", "paused", 1);
        let budget = json!({"apiVersion": "policy/v1", "kind": "PodDisruptionBudget",
            "metadata": {"name": "db", "namespace": "shop"},
            "spec": {"minAvailable": 1, "selector": {"matchLabels": {"app": "db"}}}});
        for object in [&workload("Deployment", "web", 2), &workload("StatefulSet", "db", 1), &paused, &budget] {
            control_plane.apply_yaml(&object.to_string()).await?;
        }
        cluster.rig.create("shop", &bare_pod("alone")).await?;
        for (what, replicas) in [("deployment/web", 2), ("deployment/paused", 1), ("statefulset/db", 1)] {
            cluster.is_available(what, replicas).await?;
        }
        cluster.wait_until_running("alone").await?;
        // `rollout` ignores the evicted pod, since it has failed.
        cluster.add_evicted_pod("web").await?;
        paused["spec"]["paused"] = json!(true);
        control_plane.apply_yaml(&paused.to_string()).await?;
        let run = cluster.pillion(&["rollout", "-A"]).await?;
        ensure!(run.code == Some(0) && run.stdout.is_empty(), "{} {}", run.stdout, run.stderr);

        expect_diff_of_change(&cluster).await?;

        control_plane.apply_yaml(&marked(2)).await?;
        cluster.wait_until_served(2).await?;
        let before = cluster.get("deployment/web").await?;
        let run = cluster.pillion(&["rollout", "-n", "shop"]).await?;
        ensure!(run.code == Some(1), "{} {}", run.stdout, run.stderr);
        let line = |start: &str| run.stdout.lines().find(|line| line.contains(start)).unwrap_or_default().to_owned();
        for (workload, message) in [
            ("Deployment/web ", "would be restarted"),
            ("Deployment/paused ", "skipped: it is paused"),
            ("Pod/alone ", "skipped: it has no controller"),
            (
                "StatefulSet/db ",
                "would wait: the restart removes 1 of its pods at once, and PodDisruptionBudget db allows 0",
            ),
        ] {
            ensure!(line(workload).contains(message) && line(workload).contains("marked outdated"), "{}", run.stdout);
        }
        ensure!(
            run.stderr.contains("4 workloads are stale: 2 would be restarted by --apply, 2 skipped"),
            "{}",
            run.stderr
        );
        ensure!(cluster.get("deployment/web").await?["spec"] == before["spec"], "a dry run has changed something");

        // A workload that waits for its disruption budget does not delay the restarts of earlier workloads.
        let run = cluster.pillion(&["rollout", "-A", "--apply", "--timeout", "40s", "-o", "json"]).await?;
        ensure!(run.code == Some(1), "{} {}", run.stdout, run.stderr);
        let result: Json = serde_json::from_str(&run.stdout)?;
        let outcomes: Vec<_> = result["workloads"].as_array().unwrap().iter().map(|one| &one["outcome"]).collect();
        ensure!(outcomes == [&Json::Null, &json!("restarted"), &Json::Null, &json!("failed")], "{result:#}");
        let error = result["workloads"][3]["error"].as_str().unwrap();
        ensure!(error.contains("not finished within 40 seconds: the restart removes 1 of its pods"), "{error}");
        ensure!(cluster.marks("web").await? == ["2", "2"] && cluster.marks("db").await? == ["1"]);
        let annotations = &cluster.get("deployment/web").await?["spec"]["template"]["metadata"]["annotations"];
        ensure!(annotations.get("kubectl.kubernetes.io/restartedAt").is_some(), "{annotations}");

        cluster.budget_allows(1).await?;
        let run = cluster.pillion(&["rollout", "-A", "--apply", "--timeout", "2m"]).await?;
        ensure!(
            run.stderr.contains("1 restarted, 0 failed, 0 not started, 2 skipped"),
            "{} {}",
            run.stdout,
            run.stderr
        );
        ensure!(cluster.marks("db").await? == ["2"]);

        expect_stuck_sidecar(&cluster).await?;

        // While the webhook is down, new pods would lack the profile. The dry run for the first workload shows that, so
        // no restart begins.
        control_plane.apply_yaml(&marked(3)).await?;
        cluster.wait_until_served(3).await?;
        let before = cluster.get("deployment/web").await?["spec"].clone();
        for replica in &mut cluster.rig.replicas {
            replica.kill()?;
        }
        let run = cluster.pillion(&["rollout", "-n", "shop", "--apply", "--timeout", "1m"]).await?;
        ensure!(run.code == Some(1), "{} {}", run.stdout, run.stderr);
        ensure!(
            run.stderr.contains("0 restarted, 1 failed, 1 not started, 2 skipped"),
            "{} {}",
            run.stdout,
            run.stderr
        );
        ensure!(
            run.stderr.contains("a dry-run pod was created without profile marked, so nothing was restarted"),
            "{}",
            run.stderr
        );
        ensure!(cluster.get("deployment/web").await?["spec"] == before, "the Deployment was restarted");
        ensure!(cluster.marks("web").await? == ["2", "2"] && cluster.marks("db").await? == ["2"]);
        stop.cancel();
        nodes.await?
    });
}

/// Checks that a restart ends at once if the image of a sidecar cannot be pulled, and that `status` and `explain`
/// report the sidecar.
async fn expect_stuck_sidecar(cluster: &Cluster) -> Result<()> {
    let control_plane = &cluster.rig.control_plane;
    let container = format!("spec: {{containers: [{{name: {STUCK}, image: 'broken:1'}}]}}");
    let broken = marked(9).replacen(
        "{annotations: {example.com/marked: '9'}}}",
        &format!("{{annotations: {{example.com/marked: '9'}}}}, {container}}}"),
        1,
    );
    control_plane.apply_yaml(&broken).await?;
    cluster.wait_until_served(9).await?;
    // The restart must end long before its timeout.
    let run = cluster.pillion(&["rollout", "-A", "--apply", "--timeout", "10m"]).await?;
    let why = "container stuck, which profile marked added, does not run: ImagePullBackOff: Back-off pulling";
    ensure!(run.code == Some(1) && run.stderr.contains(why), "{} {}", run.stdout, run.stderr);
    ensure!(cluster.marks("web").await?.iter().filter(|mark| *mark == "2").count() == 2, "old pods are gone");
    for arguments in [&["status", "--pods"][..], &["explain", "deployment/web", "-n", "shop"]] {
        let run = cluster.pillion(arguments).await?;
        ensure!(run.code == Some(1) && run.stdout.contains(why), "{arguments:?}: {} {}", run.stdout, run.stderr);
    }
    control_plane.apply_yaml(&marked(2)).await?;
    cluster.wait_until_served(2).await?;
    control_plane.kubectl_ok(&["rollout", "undo", "deployment/web", "-n", "shop"]).await?;
    eventually(AVAILABLE_WITHIN, "the failed restart is undone", async || {
        let marks = cluster.marks("web").await?;
        ensure!(marks == ["2", "2"], "{marks:?}");
        Ok(())
    })
    .await
}

/// Checks that `diff` shows the effect of a changed profile on running pods, and changes nothing.
async fn expect_diff_of_change(cluster: &Cluster) -> Result<()> {
    let file = cluster.rig.control_plane.directory().join("changed.yaml");
    let changed = file.to_str().context("a path")?.to_owned();
    let versions = async || {
        let pods = cluster.rig.pods("shop").list(&ListParams::default()).await?;
        anyhow::Ok(pods.items.into_iter().map(|pod| pod.metadata.resource_version).collect::<Vec<_>>())
    };
    let before = versions().await?;
    std::fs::write(&file, only_marked(2))?;
    let run = cluster.pillion(&["diff", "-p", &changed, "-A"]).await?;
    ensure!(run.code == Some(1), "{} {}", run.stdout, run.stderr);
    for part in [
        "Deployment shop/web (2 pods)\n--- Deployment shop/web\n+++ Deployment shop/web, changed\n",
        "StatefulSet shop/db (1 pod)\n",
        "Pod shop/alone (1 pod)\n",
        "-    example.com/marked: \"1\"\n+    example.com/marked: \"2\"\n",
    ] {
        ensure!(run.stdout.contains(part), "{part:?} is not in\n{}", run.stdout);
    }
    // Parts that the API server or other webhooks added are on both sides, so they are not shown as differences.
    let is_change = |line: &&str| line.starts_with(['+', '-']) && !line.starts_with("+++") && !line.starts_with("---");
    ensure!(run.stdout.lines().filter(is_change).all(|line| line.contains("example.com/marked")), "{}", run.stdout);
    ensure!(run.stderr.trim() == "4 of 4 workloads would be different", "{}", run.stderr);
    let run = cluster.pillion(&["diff", "-p", &changed, "-n", "shop", "-o", "json"]).await?;
    let result: Json = serde_json::from_str(&run.stdout)?;
    ensure!((&result["differing"], &result["same"]) == (&json!(4), &json!(0)), "{result:#}");
    let patch = json!([{"op": "replace", "path": "/metadata/annotations/example.com~1marked", "value": "2"}]);
    ensure!(result["workloads"][1]["patch"] == patch, "{result:#}");

    // `diff` reports a changed profile that does not compile.
    std::fs::write(&file, only_marked(2).replace("activation: Always", "activation: Always\n  template2: 1"))?;
    let run = cluster.pillion(&["diff", "-p", &changed, "-A"]).await?;
    ensure!(run.code == Some(2) && run.stderr.contains("template2"), "{} {}", run.stdout, run.stderr);

    std::fs::write(&file, only_marked(1))?;
    let run = cluster.pillion(&["diff", "-p", &changed, "-A"]).await?;
    ensure!(run.code == Some(0) && run.stdout.is_empty(), "{} {}", run.stdout, run.stderr);
    let run = cluster.pillion(&["diff", "-p", &changed, "-n", "nowhere"]).await?;
    ensure!(run.code == Some(2) && run.stderr.contains("nowhere is not opted in"), "{} {}", run.stdout, run.stderr);
    ensure!(versions().await? == before, "a pod was changed");
    Ok(())
}
