//! The controller upgrades the running pods of a large cluster, whose kubelets kwok simulates. `PILLION_PODS` sets the
//! number of pods.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use futures::stream::{self, StreamExt, TryStreamExt};
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::api::{ListParams, PostParams};
use pillion_api::ClusterInjectionProfile;
use pillion_api::kinds::{UpgradePhase, UpgradeStatus};
use pillion_testkit::{ControlPlane, Isolation, Kwok, eventually};
use serde_json::{Value as Json, json};

use crate::direct::memory;
use crate::load::print_figures;
use crate::managed::{Managed, QUICK};

/// The number of nodes.
const NODES: usize = 100;
/// The number of namespaces.
const NAMESPACES: usize = 50;
/// The controller's maximum number of requests per second.
const REQUESTS_PER_SECOND: u32 = 200;
/// Time limit for creating the pods, and for one rollout.
const LIMIT: Duration = Duration::from_mins(30);

fn profile(tag: &str) -> String {
    json!({
        "apiVersion": "pillion.dev/v1alpha1", "kind": "ClusterInjectionProfile", "metadata": {"name": "shipper"},
        "spec": {
            "activation": "Always",
            "rollout": {"strategy": "InPlace", "maxUnavailable": 200,
                        "steps": [{"percent": 1, "bakeSeconds": 5}, {"percent": 25, "bakeSeconds": 5}]},
            "template": {"spec": {"initContainers": [{
                "name": "shipper", "image": format!("local.test/shipper:{tag}"), "restartPolicy": "Always",
                "readinessProbe": {"tcpSocket": {"port": 1}},
            }]}},
        },
    })
    .to_string()
}

async fn create_pods(control_plane: &ControlPlane, pods: usize) -> Result<()> {
    let client = control_plane.client();
    let create = async |number: usize| {
        let api: Api<Pod> = Api::namespaced(client.clone(), &format!("team-{}", number % NAMESPACES));
        let pod = json!({
            "metadata": {"name": format!("web-{number}"), "labels": {"app": "web"}},
            "spec": {"nodeName": format!("node-{}", number % NODES), "containers": [{"name": "app", "image": "app:1"}]},
        });
        api.create(&PostParams::default(), &serde_json::from_value(pod)?).await?;
        anyhow::Ok(())
    };
    stream::iter(0..pods).map(create).buffer_unordered(32).try_collect().await
}

/// Returns the API server's number of finished requests for pods and their subresource `resize`. Requests for the
/// subresource `status`, which the simulated kubelets update, are not counted.
async fn requests(control_plane: &ControlPlane) -> Result<usize> {
    let request = http::Request::get("/metrics").body(Vec::new())?;
    let text = control_plane.client().request_text(request).await?;
    let is_counted = |line: &&str| {
        line.starts_with("apiserver_request_total{")
            && line.contains("resource=\"pods\"")
            && ["subresource=\"\"", "subresource=\"resize\""].iter().any(|part| line.contains(part))
            && ["GET", "LIST", "PATCH", "POST", "DELETE"].iter().any(|verb| line.contains(&format!("verb=\"{verb}\"")))
    };
    let count = |line: &str| line.rsplit(' ').next().and_then(|value| value.parse::<f64>().ok());
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a counter is a whole number")]
    Ok(text.lines().filter(is_counted).filter_map(count).sum::<f64>() as usize)
}

async fn upgrade(control_plane: &ControlPlane) -> Result<UpgradeStatus> {
    let profiles: Api<ClusterInjectionProfile> = Api::all(control_plane.client());
    profiles.get("shipper").await?.status.and_then(|status| status.upgrade).context("no rollout")
}

/// Applies the profile, and waits until its rollout has ended. Returns its state.
async fn roll_out(control_plane: &ControlPlane, tag: &str) -> Result<UpgradeStatus> {
    let before = upgrade(control_plane).await.map_or_else(|_| String::new(), |before| before.revision);
    control_plane.apply_yaml(&profile(tag)).await?;
    let mut ended = None;
    eventually(LIMIT, "the rollout ends", async || {
        let status = upgrade(control_plane).await?;
        ensure!(status.revision != before && status.phase.has_ended(), "{status:?}");
        ended = Some(status);
        Ok(())
    })
    .await?;
    ended.context("it has ended")
}

#[test]
#[ignore = "takes ten minutes and needs kwok: just nightly rollout"]
fn rollout_reaches_all_pods_of_large_cluster() {
    let pods: usize = std::env::var("PILLION_PODS").ok().and_then(|pods| pods.parse().ok()).unwrap_or(10_000);
    Isolation::new().with_crds().time_limit(LIMIT * 3).run(move || async move {
        let policy = format!("{QUICK}rollouts: {{inPlace: true, requestsPerSecond: {REQUESTS_PER_SECOND}}}\n");
        let mut managed = Managed::start_without_namespace(ControlPlane::builder(), &policy, 1, 1).await?;
        let leader = managed.controllers.first_mut().context("a controller")?.process().pid();
        let rig = &managed.rig;
        let control_plane = &rig.control_plane;
        // The controller gets all permissions. Other tests check the permissions that the chart adds for
        // `rollout.inPlace`.
        let role = json!({
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding", "metadata": {"name": "rollouts"},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"},
            "subjects": [{"kind": "Group", "apiGroup": "rbac.authorization.k8s.io", "name": "system:serviceaccounts"}],
        });
        control_plane.apply_yaml(&role.to_string()).await?;
        let _kwok = Kwok::start(control_plane, NODES).await?;
        for number in 0..NAMESPACES {
            rig.namespace(&format!("team-{number}"), Some("enabled")).await?;
        }
        rig.wait_until_called("team-0").await?;
        roll_out(control_plane, "1").await?;
        let resident = |what: &str| memory(leader, what).map(|kibibytes| kibibytes / 1024);
        let empty = resident("VmRSS")?;
        let begun = Instant::now();
        create_pods(control_plane, pods).await?;
        let total = u32::try_from(pods)?;
        eventually(LIMIT, "all pods are audited", async || {
            let status = upgrade(control_plane).await?;
            let api: Api<Pod> = Api::namespaced(control_plane.client(), &format!("team-{}", (pods - 1) % NAMESPACES));
            let last = api.get(&format!("web-{}", pods - 1)).await?;
            let is_running = last.status.is_some_and(|status| status.phase.as_deref() == Some("Running"));
            ensure!(is_running, "{status:?}");
            Ok(())
        })
        .await?;
        let (created, before) = (begun.elapsed(), requests(control_plane).await?);
        let begun = Instant::now();
        let status = roll_out(control_plane, "2").await?;
        let (took, sent) = (begun.elapsed(), requests(control_plane).await? - before);
        ensure!(status.phase == UpgradePhase::Complete, "{status:?}");
        ensure!((status.pods, status.upgraded, status.not_in_place) == (total, total, 0), "{status:?}");
        let mut restarted = 0;
        for number in 0..NAMESPACES {
            let api: Api<Pod> = Api::namespaced(control_plane.client(), &format!("team-{number}"));
            for pod in api.list(&ListParams::default()).await? {
                let pod: Json = serde_json::to_value(&pod)?;
                let is_new = pod["spec"]["initContainers"][0]["image"] == "local.test/shipper:2";
                let restarts = &pod["status"]["initContainerStatuses"][0]["restartCount"];
                ensure!(is_new && *restarts == 1, "{pod}");
                ensure!(pod["status"]["containerStatuses"][0]["restartCount"] == 0, "{pod}");
                restarted += 1;
            }
        }
        ensure!(restarted == pods, "{restarted} of {pods} pods");
        #[expect(clippy::cast_precision_loss, reason = "the ratio is only printed")]
        let per_pod = sent as f64 / pods as f64;
        print_figures(&format!(
            "{pods} pods on {NODES} nodes were created in {created:.0?} and upgraded in {took:.0?}, with {sent} requests \
             for pods ({per_pod:.2} per pod) at a limit of {REQUESTS_PER_SECOND} per second; memory of the leader: {empty} MiB \
             without pods, at most {} MiB",
            resident("VmHWM")?,
        ));
        ensure!(sent <= 3 * pods + 2_000, "{sent} requests for {pods} pods");
        Ok(())
    });
}
