//! Tests `pillion cost` on the pods of two profiles in two namespaces, and the warnings of `pillion doctor` about
//! missing requests.

use std::fs;

use anyhow::{Result, ensure};
use pillion_testkit::{ControlPlane, eventually, isolated_with_crds};
use serde_json::{Value as Json, json};

use crate::explain::pillion;
use crate::rig::{PATIENCE, Rig, bare_pod, deployment_pod};

/// A profile whose container has requests. The container of the profile `nginx` has none.
const SHIPPER: &str = "
apiVersion: pillion.dev/v1alpha1
kind: ClusterInjectionProfile
metadata: {name: shipper}
spec:
  activation: Always
  template:
    spec:
      containers:
      - {name: shipper, image: 'shipper:1', resources: {requests: {cpu: 20m, memory: 32Mi}, limits: {memory: 64Mi}}}
";

/// Returns a pod that requests no profile.
fn plain_pod(name: &str) -> Json {
    let mut pod = bare_pod(name);
    pod["metadata"]["annotations"] = json!({});
    pod["metadata"]["labels"] = json!({"app": name});
    pod["spec"]["containers"][0]["resources"] = json!({"requests": {"cpu": "1", "memory": "1Gi"}});
    pod
}

/// Starts a cluster with a pod of both profiles in `team-a`, two pods of one profile in `team-b`, and a pod without
/// injection.
async fn start() -> Result<Rig> {
    let rig = Rig::start(1).await?;
    rig.control_plane.apply_yaml(SHIPPER).await?;
    rig.wait_until_served(2).await?;
    rig.namespace("team-b", Some("enabled")).await?;
    rig.wait_until_called("team-b").await?;
    rig.namespace("other", None).await?;
    rig.create("team-a", &deployment_pod()).await?;
    for (namespace, name) in [("team-b", "one"), ("team-b", "two"), ("other", "three")] {
        rig.create(namespace, &plain_pod(name)).await?;
    }
    Ok(rig)
}

async fn cost(control_plane: &ControlPlane, arguments: &[&str]) -> Result<Json> {
    let result = pillion(control_plane, &[&["cost"], arguments].concat()).await?;
    ensure!(result.code == Some(0), "{:#}", result.json);
    Ok(result.json)
}

/// Returns each row as its names, pods, containers without requests, cores and bytes.
fn rows(report: &Json) -> Vec<Json> {
    let row = |row: &Json| {
        let requests = &row["requests"];
        json!([
            row["namespace"],
            row["profile"],
            row["container"],
            row["pods"],
            row["containersWithoutRequests"],
            requests["cpuCores"],
            requests["memoryBytes"]
        ])
    };
    report["rows"].as_array().unwrap().iter().map(row).collect()
}

#[test]
fn cost_sums_requests_of_injected_containers() {
    isolated_with_crds(|| async {
        let rig = start().await?;
        let control_plane = &rig.control_plane;
        let all = cost(control_plane, &["-A"]).await?;
        let mebibytes = |count: u64| count << 20;
        let expected =
            [json!([null, "shipper", null, 3, 0, 0.06, mebibytes(96)]), json!([null, "nginx", null, 1, 1, 0, 0])];
        ensure!(rows(&all) == expected, "{all:#}");
        ensure!(all["total"]["pods"] == 3 && all["total"]["containers"] == 4, "{all:#}");
        ensure!(all["total"]["limits"] == json!({"cpuCores": 0, "memoryBytes": mebibytes(192)}), "{all:#}");

        let each = cost(control_plane, &["-A", "--by", "namespace,container"]).await?;
        let expected = [
            json!(["team-b", null, "shipper", 2, 0, 0.04, mebibytes(64)]),
            json!(["team-a", null, "shipper", 1, 0, 0.02, mebibytes(32)]),
            json!(["team-a", null, "sidecar-nginx", 1, 1, 0, 0]),
        ];
        ensure!(rows(&each) == expected, "{each:#}");

        let table = control_plane.directory().join("prices.yaml");
        fs::write(&table, "{currency: EUR, cpuCoreHour: 1, memoryGiBHour: 0}")?;
        let priced =
            cost(control_plane, &["-n", "team-b", "-l", "app=one", "--prices", table.to_str().unwrap()]).await?;
        ensure!(priced["total"]["pods"] == 1 && priced["rows"][0]["monthlyCost"] == 14.6, "{priced:#}");

        let forbidden = tokio::process::Command::new(env!("CARGO_BIN_EXE_pillion"))
            .args(["cost", "-A", "--as", "jane", "--kubeconfig"])
            .arg(control_plane.kubeconfig())
            .output()
            .await?;
        let stderr = String::from_utf8_lossy(&forbidden.stderr);
        ensure!(forbidden.status.code() == Some(2) && stderr.contains("-n selects one namespace"), "{stderr}");
        Ok(())
    });
}

/// A quota, and an autoscaler of the Deployment to which the pod from `deployment_pod` belongs.
const NEEDS: &str = "
apiVersion: v1
kind: ResourceQuota
metadata: {name: compute, namespace: team-b}
spec: {hard: {limits.cpu: '4', requests.cpu: '4'}}
---
apiVersion: autoscaling/v2
kind: HorizontalPodAutoscaler
metadata: {name: web, namespace: team-a}
spec:
  maxReplicas: 3
  scaleTargetRef: {apiVersion: apps/v1, kind: Deployment, name: web}
  metrics:
  - {type: Resource, resource: {name: cpu, target: {type: Utilization, averageUtilization: 80}}}
";

#[test]
fn cost_of_missing_requests_is_reported_by_doctor() {
    isolated_with_crds(|| async {
        let rig = start().await?;
        let control_plane = &rig.control_plane;
        let found = async || {
            let result = pillion(control_plane, &["doctor"]).await?;
            let findings = result.json["findings"].as_array().unwrap().iter();
            let found = findings.filter(|finding| finding["code"] == "requests_missing").map(|finding| {
                let object = &finding["object"];
                let message = finding["message"].as_str().unwrap();
                format!("{} {}: {message}", object["kind"].as_str().unwrap(), object["namespace"].as_str().unwrap())
            });
            anyhow::Ok(found.collect::<Vec<_>>())
        };
        ensure!(found().await?.is_empty(), "{:?}", found().await?);
        control_plane.apply_yaml(NEEDS).await?;
        eventually(PATIENCE, "both are reported", async || {
            let found = found().await?;
            let expected = [
                "HorizontalPodAutoscaler team-a: container sidecar-nginx, which profile nginx adds, has no requests.cpu, \
                 so the autoscaler cannot compute the utilization of its pods",
                "ResourceQuota team-b: container shipper, which profile shipper adds, has no limits.cpu, so the quota \
                 rejects new pods with it",
            ];
            ensure!(found == expected, "{found:#?}");
            Ok(())
        })
        .await?;
        // New pods get the missing limit from a LimitRange, but the existing ones lack it.
        let range = "{apiVersion: v1, kind: LimitRange, metadata: {name: defaults, namespace: team-b}, \
                     spec: {limits: [{type: Container, default: {cpu: 1}}]}}";
        control_plane.apply_yaml(range).await?;
        ensure!(found().await?.len() == 2, "{:?}", found().await?);
        control_plane.kubectl_ok(&["delete", "pods", "--all", "-n", "team-b", "--force", "--grace-period=0"]).await?;
        eventually(PATIENCE, "only the autoscaler is left", async || {
            let found = found().await?;
            ensure!(found.len() == 1 && found[0].starts_with("Horizontal"), "{found:#?}");
            Ok(())
        })
        .await
    });
}
