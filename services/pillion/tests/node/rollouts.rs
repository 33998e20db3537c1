//! Tests rollouts by the controller while users edit pods and the profile, drain the node and delete a namespace. Also
//! tests rollouts that evict pods, and rollouts during which all controllers are killed.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::Api;
use kube::api::ListParams;
use pillion_api::kinds::{UpgradePhase, UpgradeStatus};
use pillion_testkit::eventually;
use serde_json::{Value as Json, json};
use tokio_util::sync::CancellationToken;

use crate::in_place::{Identity, Shop, container, deployment, sidecar_tag};
use crate::platform::{Platform, SOON, is_ready, on_a_node};
use crate::recovery::kill_processes;

/// How long a rollout may take.
const LIMIT: Duration = Duration::from_mins(6);

/// Imports an idle image for each tag, creates the namespace `shop`, and installs Pillion with rollouts to running
/// pods.
async fn install(platform: &Platform, tags: &[&str]) -> Result<()> {
    for tag in tags {
        platform.import_idle(&format!("local.test/shipper:{tag}"))?;
    }
    platform.namespace("shop", "enabled").await?;
    let mut values = Platform::values("one");
    if let Some(values) = values.as_object_mut() {
        values.insert("rollout".to_owned(), json!({"inPlace": true, "restart": true}));
    }
    platform.helm("install", Some(&values), &["--create-namespace", "--wait", "--timeout=3m"]).await?;
    platform.injects("shop").await
}

/// Returns a profile whose sidecar listens on this port. The application is ready if the sidecar responds on port 8080.
fn profile(tag: &str, port: &str, version: &str, rollout: &Json) -> String {
    json!({
        "apiVersion": "pillion.dev/v1alpha1", "kind": "ClusterInjectionProfile", "metadata": {"name": "shipper"},
        "spec": {
            "activation": "Always",
            "rollout": rollout,
            "template": {"spec": {"initContainers": [{
                "name": "shipper", "image": format!("local.test/shipper:{tag}"), "imagePullPolicy": "IfNotPresent",
                "restartPolicy": "Always", "args": [port], "env": [{"name": "VERSION", "value": version}],
                "resources": {"requests": {"cpu": "2m", "memory": "8Mi"}},
            }]}},
        },
    })
    .to_string()
}

fn name(pod: &Pod) -> Result<&str> {
    pod.metadata.name.as_deref().context("no name")
}

/// Waits until `holds` returns true for the state of the rollout. Returns this state.
async fn reaches(shop: &Shop<'_>, what: &str, mut holds: impl FnMut(&UpgradeStatus) -> bool) -> Result<UpgradeStatus> {
    let mut found = None;
    eventually(LIMIT, what, async || {
        let status = shop.status().await?;
        ensure!(holds(&status), "{status:?}");
        found = Some(status);
        Ok(())
    })
    .await?;
    found.context("the state was reached")
}

/// Begins a rollout, and waits until a pod is upgraded and another is not. Returns the previous revision.
async fn begin(shop: &Shop<'_>, tag: &str, rollout: &Json) -> Result<String> {
    let before = shop.status().await?.revision;
    shop.0.kubectl_with_input(&["apply", "-f", "-"], &profile(tag, "8080", "1", rollout)).await?;
    let is_half_done =
        |status: &UpgradeStatus| status.revision != before && status.upgraded > 0 && status.upgraded < status.pods;
    reaches(shop, "some pods are upgraded", is_half_done).await?;
    Ok(before)
}

/// Waits until the rollout of a revision other than `before` is complete.
async fn completes(shop: &Shop<'_>, before: &str) -> Result<UpgradeStatus> {
    let is_complete = |status: &UpgradeStatus| {
        status.revision != before && status.phase == UpgradePhase::Complete && status.upgrading == 0
    };
    reaches(shop, "the rollout is complete", is_complete).await
}

/// Fails unless `before` and `after` have the same pods with the same identities.
fn expect_same(before: &BTreeMap<String, Identity>, after: &BTreeMap<String, Identity>) -> Result<()> {
    ensure!(before == after, "an application was restarted or a pod was recreated: {before:?} {after:?}");
    Ok(())
}

#[test]
#[ignore = "needs a real node: just node"]
fn rollout_continues_after_edits_drain_and_deletion() {
    on_a_node(async |platform| {
        install(platform, &["1", "2", "3", "4", "5", "custom"]).await?;
        platform.namespace("team", "enabled").await?;
        let shop = Shop(platform);
        let rollout = json!({
            "strategy": "InPlace", "maxUnavailable": 2, "podTimeoutSeconds": 180,
            "steps": [{"percent": 20, "bakeSeconds": 3}],
        });
        platform.kubectl_with_input(&["apply", "-f", "-"], &profile("1", "8080", "1", &rollout)).await?;
        shop.serves("1", "2m").await?;
        let workloads = json!({
            "apiVersion": "v1", "kind": "List", "items": [deployment("shop", "web", 8), deployment("team", "web", 4)],
        });
        platform.kubectl_with_input(&["apply", "-f", "-"], &workloads.to_string()).await?;
        let are_ready = async |namespace: &str, replicas: usize| {
            eventually(SOON * 2, "all pods are ready", async || {
                let pods = platform.pods(namespace).list(&ListParams::default().labels("app=web")).await?.items;
                ensure!(pods.len() == replicas, "{} pods", pods.len());
                pods.iter().try_for_each(is_ready)
            })
            .await
        };
        are_ready("shop", 8).await?;
        are_ready("team", 4).await?;
        completes(&shop, "").await?;
        let identities = shop.identities().await?;

        // A user changes a pod that is not upgraded yet, and the platform team changes the profile.
        begin(&shop, "2", &rollout).await?;
        let steer = async |value: &str| {
            let arguments = ["annotate", "--overwrite", "clusterinjectionprofile", "shipper", value];
            platform.kubectl(&arguments).await
        };
        // Pauses the rollout. Otherwise, the controller could begin to change the pod before the user does.
        steer("pillion.dev/rollout=pause").await?;
        reaches(&shop, "the rollout is paused", |status| {
            status.phase == UpgradePhase::Paused && status.upgrading == 0 && status.upgraded < status.pods
        })
        .await?;
        let pods = shop.pods().await?;
        let edited = pods.iter().find(|pod| sidecar_tag(pod) == Some("1")).context("a pod that is not upgraded")?;
        let edited = name(edited)?.to_owned();
        let patch = r#"{"spec": {"initContainers": [{"name": "shipper", "image": "local.test/shipper:custom"}]}}"#;
        platform.kubectl(&["patch", "pod", &edited, "--namespace=shop", "--patch", patch]).await?;
        let second = shop.status().await?.revision;
        platform.kubectl_with_input(&["apply", "-f", "-"], &profile("3", "8080", "1", &rollout)).await?;
        steer("pillion.dev/rollout-").await?;
        let status = completes(&shop, &second).await?;
        ensure!(status.upgraded == 11 && status.not_in_place == 1, "{status:?}");
        for pod in shop.pods().await? {
            let expected = if name(&pod)? == edited { "custom" } else { "3" };
            ensure!(sidecar_tag(&pod) == Some(expected), "{}: {:?}", name(&pod)?, sidecar_tag(&pod));
        }
        expect_same(&identities, &shop.identities().await?)?;
        println!("an edited pod keeps its image, and 11 of 12 pods get the newest of two changes");

        // An administrator drains the node. The new pods wait for a node.
        let before = begin(&shop, "4", &rollout).await?;
        let nodes: Vec<Node> = Api::<Node>::all(platform.client.clone()).list(&ListParams::default()).await?.items;
        let node = nodes.first().and_then(|node| node.metadata.name.as_deref()).context("a node")?;
        let begun = Instant::now();
        platform.kubectl(&["drain", node, "--pod-selector=app=web", "--ignore-daemonsets", "--timeout=120s"]).await?;
        eventually(SOON, "all new pods wait for a node", async || {
            let pods = shop.pods().await?;
            let waits = |pod: &Pod| pod.spec.as_ref().is_some_and(|spec| spec.node_name.is_none());
            ensure!(pods.len() == 8 && pods.iter().all(waits), "{} pods", pods.len());
            Ok(())
        })
        .await?;
        let during = reaches(&shop, "the rollout has seen the drained node", |status| status.upgrading == 0).await?;
        ensure!(!during.phase.has_failed(), "{during:?}");
        platform.kubectl(&["uncordon", node]).await?;
        let status = completes(&shop, &before).await?;
        ensure!(status.upgraded == 12 && status.not_in_place == 0, "{status:?}");
        are_ready("shop", 8).await?;
        ensure!(shop.pods().await?.iter().all(|pod| sidecar_tag(pod) == Some("4")), "a pod has an older image");
        println!("after a drain, all pods are upgraded {:.0?} after it began", begun.elapsed());

        // A namespace is deleted.
        let identities = shop.identities().await?;
        let before = begin(&shop, "5", &rollout).await?;
        let begun = Instant::now();
        platform.kubectl(&["delete", "namespace", "team", "--timeout=120s"]).await?;
        let deleted = begun.elapsed();
        let status = completes(&shop, &before).await?;
        ensure!(status.pods == 8 && status.upgraded == 8, "{status:?}");
        ensure!(shop.pods().await?.iter().all(|pod| sidecar_tag(pod) == Some("5")), "a pod has an older image");
        expect_same(&identities, &shop.identities().await?)?;
        println!("the namespace was deleted in {deleted:.0?}, and the rollout completed for the other pods");
        Ok(())
    });
}

/// The observations of a task that watches the workloads during a rollout.
#[derive(Debug, Default)]
struct Seen {
    /// The UIDs of all pods, by workload.
    uids: BTreeMap<String, BTreeSet<String>>,
    /// The smallest number of ready pods, by workload.
    least_ready: BTreeMap<String, i32>,
    /// The smallest total number of ready pods in all workloads.
    least_of_all: Option<usize>,
}

/// Reads the workloads several times per second.
async fn watch(platform: &Platform, seen: Arc<Mutex<Seen>>, ended: CancellationToken) -> Result<()> {
    let deployments: Api<Deployment> = Api::namespaced(platform.client.clone(), "shop");
    let mut ticks = tokio::time::interval(Duration::from_millis(300));
    while ended.run_until_cancelled(ticks.tick()).await.is_some() {
        let pods = Shop(platform).pods().await?;
        let found = deployments.list(&ListParams::default()).await?.items;
        let mut seen = seen.lock().unwrap_or_else(PoisonError::into_inner);
        let ready =
            pods.iter().filter(|pod| pod.metadata.deletion_timestamp.is_none() && is_ready(pod).is_ok()).count();
        seen.least_of_all = Some(seen.least_of_all.map_or(ready, |least| least.min(ready)));
        for pod in pods {
            let part = pod.metadata.labels.as_ref().and_then(|labels| labels.get("part")).context("no part")?;
            seen.uids.entry(part.clone()).or_default().insert(pod.metadata.uid.clone().context("no uid")?);
        }
        for one in found {
            let ready = one.status.and_then(|status| status.ready_replicas).unwrap_or_default();
            let least = seen.least_ready.entry(one.metadata.name.context("no name")?).or_insert(ready);
            *least = ready.min(*least);
        }
    }
    Ok(())
}

/// Applies a profile, and returns the state at the end of its rollout, with the observations made during the rollout.
/// During the rollout, kills all controllers `kills` times.
async fn roll_out(shop: &Shop<'_>, profile: &str, kills: u32) -> Result<(UpgradeStatus, Seen)> {
    let before = shop.status().await?.revision;
    let (seen, ended) = (Arc::new(Mutex::new(Seen::default())), CancellationToken::new());
    let run = async {
        let _ends = ended.clone().drop_guard();
        shop.0.kubectl_with_input(&["apply", "-f", "-"], profile).await?;
        for kill in 0..kills {
            let is_due = |status: &UpgradeStatus| {
                status.revision != before && status.upgraded > kill * status.pods / (kills + 1) && status.upgrading > 0
            };
            reaches(shop, "the next share of the pods is upgraded", is_due).await?;
            // After the previous kill, the kubelet may not have started the controllers again yet.
            let kill = async || kill_processes(shop.0.cluster.name(), &["/pillion", "controller"]).map(drop);
            eventually(LIMIT, "a controller runs", kill).await?;
        }
        let has_ended =
            |status: &UpgradeStatus| status.revision != before && status.phase.has_ended() && status.upgrading == 0;
        reaches(shop, "the rollout has ended", has_ended).await
    };
    let (status, watched) = tokio::join!(run, watch(shop.0, Arc::clone(&seen), ended.clone()));
    watched?;
    let seen = std::mem::take(&mut *seen.lock().unwrap_or_else(PoisonError::into_inner));
    Ok((status?, seen))
}

#[test]
#[ignore = "needs a real node: just node"]
fn rollouts_continue_after_leaders_are_killed() {
    const WORKLOADS: usize = 5;
    const PODS: usize = 4;
    const KILLS: u32 = 3;
    on_a_node(async |platform| {
        install(platform, &["1", "2"]).await?;
        let shop = Shop(platform);
        let rollout = |strategy: &str| {
            json!({
                "strategy": strategy, "maxUnavailable": 2, "podTimeoutSeconds": 180,
                "steps": [{"percent": 50, "bakeSeconds": 3}],
            })
        };
        platform.kubectl_with_input(&["apply", "-f", "-"], &profile("1", "8080", "1", &rollout("InPlace"))).await?;
        shop.serves("1", "2m").await?;
        let workloads: Vec<_> =
            (0..WORKLOADS).map(|number| deployment("shop", &format!("web-{number}"), PODS)).collect();
        let list = json!({"apiVersion": "v1", "kind": "List", "items": workloads});
        platform.kubectl_with_input(&["apply", "-f", "-"], &list.to_string()).await?;
        let all = WORKLOADS * PODS;
        eventually(SOON * 2, "all pods are ready", async || {
            let pods = shop.pods().await?;
            ensure!(pods.len() == all, "{} pods", pods.len());
            pods.iter().try_for_each(is_ready)
        })
        .await?;
        let identities = shop.identities().await?;

        for (strategy, tag, version) in [("InPlace", "2", "1"), ("Restart", "2", "2")] {
            let begun = Instant::now();
            let (status, seen) = roll_out(&shop, &profile(tag, "8080", version, &rollout(strategy)), KILLS).await?;
            let took = begun.elapsed();
            ensure!(status.phase == UpgradePhase::Complete && status.evictions.is_empty(), "{status:?}");
            ensure!(usize::try_from(status.upgraded)? == all, "{status:?}");
            let least = seen.least_of_all.context("pods were seen")?;
            ensure!(least + 2 >= all, "at most two pods may be unavailable: {least} of {all} were ready");
            if strategy == "InPlace" {
                expect_same(&identities, &shop.identities().await?)?;
                for pod in shop.pods().await? {
                    let restarts = container(&pod, "shipper")?.restart_count;
                    ensure!(restarts == 1, "{} was changed {restarts} times", name(&pod)?);
                }
            } else {
                let is_once = |uids: &BTreeSet<String>| uids.len() == 2 * PODS;
                ensure!(seen.uids.values().all(is_once), "a pod was replaced twice, or not at all: {seen:?}");
            }
            println!(
                "{strategy}: all controllers were killed {KILLS} times; {all} pods were changed once each in {took:.1?}; \
                 at least {least} were ready"
            );
        }
        Ok(())
    });
}

#[test]
#[ignore = "needs a real node: just node"]
fn controller_replaces_running_pods() {
    const WORKLOADS: usize = 5;
    const PODS: usize = 4;
    on_a_node(async |platform| {
        install(platform, &["1"]).await?;
        let shop = Shop(platform);
        let rollout = json!({
            "strategy": "Restart", "maxUnavailable": 2, "podTimeoutSeconds": 30,
            "steps": [{"percent": 50, "bakeSeconds": 3}],
        });
        platform.kubectl_with_input(&["apply", "-f", "-"], &profile("1", "8080", "1", &rollout)).await?;
        shop.serves("1", "2m").await?;
        let names: Vec<_> = (0..WORKLOADS).map(|number| format!("web-{number}")).collect();
        let budget = |name: &String| {
            json!({
                "apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": {"name": name, "namespace": "shop"},
                "spec": {
                    "minAvailable": PODS - 1, "unhealthyPodEvictionPolicy": "AlwaysAllow",
                    "selector": {"matchLabels": {"part": name}},
                },
            })
        };
        let objects: Vec<_> = names.iter().flat_map(|name| [deployment("shop", name, PODS), budget(name)]).collect();
        let list = json!({"apiVersion": "v1", "kind": "List", "items": objects});
        platform.kubectl_with_input(&["apply", "-f", "-"], &list.to_string()).await?;
        let are_ready = async || {
            eventually(SOON * 2, "all pods are ready", async || {
                let pods = shop.pods().await?;
                ensure!(pods.len() == WORKLOADS * PODS, "{} pods", pods.len());
                pods.iter().try_for_each(is_ready)
            })
            .await
        };
        are_ready().await?;

        // A change that works replaces each pod once, and keeps the budgets.
        let begun = Instant::now();
        let (status, seen) = roll_out(&shop, &profile("1", "8080", "2", &rollout), 0).await?;
        let took = begun.elapsed();
        ensure!(status.phase == UpgradePhase::Complete && status.upgraded == 20, "{status:?}");
        ensure!(
            seen.uids.values().all(|uids| uids.len() == 2 * PODS),
            "a pod was replaced twice, or not at all: {seen:?}"
        );
        ensure!(seen.least_ready.values().all(|least| *least >= 3), "a budget was exceeded: {seen:?}");
        are_ready().await?;
        println!(
            "20 pods of 5 workloads were replaced once in {took:.1?}; at least 3 of 4 pods of each workload were ready"
        );

        // With this change, no pod becomes ready. At most the workloads of the first step are touched.
        let begun = Instant::now();
        let (status, seen) = roll_out(&shop, &profile("1", "9999", "3", &rollout), 0).await?;
        let took = begun.elapsed();
        ensure!(status.phase == UpgradePhase::SteppedBack, "{status:?}");
        are_ready().await?;
        let touched: Vec<_> = seen.uids.values().map(|uids| uids.len() - PODS).filter(|new| *new > 0).collect();
        ensure!(!touched.is_empty() && touched.len() < WORKLOADS, "{seen:?}");
        // Each touched workload has one pod with the failed revision, which is replaced again.
        ensure!(touched.iter().all(|new| *new <= 2), "{seen:?}");
        ensure!(seen.least_ready.values().all(|least| *least >= 3), "a budget was exceeded: {seen:?}");
        println!(
            "a change that fails touched one pod in each of {} of 5 workloads, back after {took:.1?}",
            touched.len()
        );
        Ok(())
    });
}
