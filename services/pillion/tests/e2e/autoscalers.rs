//! Tests injected pods with the real autoscalers of Kubernetes.
//!
//! Real are the API server, `kube-controller-manager` with the controllers of Deployments, `ReplicaSets` and
//! `HorizontalPodAutoscalers`, the admission controller and the updater of the Vertical Pod Autoscaler, and
//! metrics-server. All programs that are not part of Kubernetes have only the permissions in their projects' manifests.
//! kwok simulates the node: it sets the status of pods, deletes evicted pods, and reports the usage that an annotation
//! of the pod defines. The tests write the recommendations that a recommender would compute from measurements.
//!
//! The API server's audit log contains the evictions, and which webhooks each creation called in which order.

mod cluster;

use std::time::Duration;

use anyhow::{Context, ensure};
use k8s_openapi::api::admissionregistration::v1::MutatingAdmissionPolicy;
use kube::Api;
use pillion_testkit::vpa::CONFIGURATION;
use pillion_testkit::{Isolation, eventually};
use serde_json::json;

use self::cluster::{
    Cluster, LOOPS, Modules, REPLICAS, SHIPPER, VpaCluster, control_plane, deployment, profiles_own,
    recommended_application, recommended_sidecar, requests, resources_of,
};
use crate::load::print_figures;
use crate::managed::{Managed, QUICK};
use crate::rig::{PATIENCE, annotation};
use crate::safety_net;

/// The time limit of each test.
const LIMIT: Duration = Duration::from_mins(15);

/// The configuration of the Vertical Pod Autoscaler is the one that it creates itself. Its name is behind Pillion's, so
/// the API server calls Pillion, then the autoscaler, and then Pillion again.
#[test]
#[ignore = "takes minutes and needs the autoscalers' programs: just nightly autoscalers"]
fn autoscaler_after_pillion_keeps_its_values() {
    let modules = Modules::find();
    Isolation::new().own_network("reads the audit log, and adds an API").time_limit(LIMIT).run(|| async {
        let vpa = VpaCluster::start(&modules?, SHIPPER).await?;
        let cluster = &vpa.cluster;
        vpa.create_workloads().await?;
        vpa.recommend().await?;
        let expected = resources_of(&recommended_application(), &recommended_sidecar());
        vpa.expect_quiet(&expected).await?;
        vpa.expect_evicted_once()?;
        for namespace in vpa.namespaces {
            let calls = cluster.last_calls(namespace)?;
            let own = format!("0 {CONFIGURATION} changed");
            ensure!(calls == ["0 pillion changed", &*own, "1 pillion unchanged"], "{namespace}: {calls:?}");
            let pods = cluster.pods(namespace).await?;
            ensure!(annotation(&pods[0], "vpaObservedContainers") == Some("web, shipper"), "{}", pods[0]);
        }
        // 200m of 300m.
        cluster.autoscale("shop").await?;
        cluster.expect_scale("shop", 66, &expected).await?;
        let evictions = cluster.evictions("shop")?;
        ensure!(evictions.len() == REPLICAS, "{evictions:?}");
        print_figures(&format!(
            "autoscalers: webhook of the autoscaler after Pillion: {} pods in two namespaces, {} evictions, none in {LOOPS} \
             further loops; scaled from {REPLICAS} to {} pods",
            2 * REPLICAS,
            2 * evictions.len(),
            REPLICAS + 1,
        ));
        Ok(())
    });
}

/// The configuration of the Vertical Pod Autoscaler has a name before Pillion's. With `reinvocationPolicy: Never`, the
/// autoscaler does not see the sidecar, which keeps the profile's requests. With `IfNeeded`, it sets both.
#[test]
#[ignore = "takes minutes and needs the autoscalers' programs: just nightly autoscalers"]
fn autoscaler_before_pillion_causes_no_eviction_loop() {
    let modules = Modules::find();
    Isolation::new().own_network("reads the audit log, and adds an API").time_limit(LIMIT).run(|| async {
        let vpa = VpaCluster::start(&modules?, SHIPPER).await?;
        let cluster = &vpa.cluster;
        vpa.rename_webhook("a-vpa", "Never").await?;
        vpa.create_workloads().await?;
        vpa.recommend().await?;
        let unseen = resources_of(&recommended_application(), &profiles_own());
        vpa.expect_quiet(&unseen).await?;
        vpa.expect_evicted_once()?;
        for namespace in vpa.namespaces {
            let calls = cluster.last_calls(namespace)?;
            ensure!(calls == ["0 a-vpa changed", "0 pillion changed"], "{namespace}: {calls:?}");
            let pods = cluster.pods(namespace).await?;
            ensure!(annotation(&pods[0], "vpaObservedContainers") == Some("web"), "{}", pods[0]);
        }
        // 200m of 270m.
        cluster.autoscale("shop").await?;
        cluster.expect_scale("shop", 74, &unseen).await?;
        cluster.rig.control_plane.kubectl_ok(&["delete", "hpa", "web", "-n", "shop"]).await?;
        cluster.rig.control_plane.kubectl_ok(&["scale", "deployment/web", "-n", "shop", "--replicas=2"]).await?;

        vpa.rename_webhook("a-vpa", "IfNeeded").await?;
        let expected = resources_of(&recommended_application(), &recommended_sidecar());
        for namespace in vpa.namespaces {
            cluster.recreate(namespace, &expected).await?;
            let pods = cluster.pods(namespace).await?;
            ensure!(annotation(&pods[0], "vpaObservedContainers") == Some("web, shipper"), "{}", pods[0]);
            let calls = cluster.last_calls(namespace)?;
            let expected = ["0 a-vpa changed", "0 pillion changed", "1 a-vpa changed", "1 pillion unchanged"];
            ensure!(calls == expected, "{namespace}: {calls:?}");
        }
        vpa.expect_quiet(&expected).await?;
        vpa.expect_evicted_once()?;
        print_figures(&format!(
            "autoscalers: webhook of the autoscaler before Pillion: no eviction in {LOOPS} loops, without and with \
             reinvocation"
        ));
        Ok(())
    });
}

/// A profile that sets its requests again with `$conflict: Replace`, which docs/autoscalers.md warns about. Also shows
/// that the other tests can fail.
#[test]
#[ignore = "takes minutes and needs the autoscalers' programs: just nightly autoscalers"]
fn replace_directive_causes_eviction_loop() {
    let modules = Modules::find();
    Isolation::new().own_network("reads the audit log, and adds an API").time_limit(LIMIT).run(|| async {
        let replaces = SHIPPER.replace("resources: {", "resources: {$conflict: Replace, ");
        let vpa = VpaCluster::start(&modules?, &replaces).await?;
        vpa.create_workloads().await?;
        vpa.recommend().await?;
        let evicted = vpa.wait_for_eviction_loop().await?;
        let calls = vpa.cluster.last_calls("shop")?;
        ensure!(calls.last().is_some_and(|call| call == "1 pillion changed"), "{calls:?}");

        // The remedy.
        vpa.cluster.rig.control_plane.apply_yaml(SHIPPER).await?;
        vpa.expect_quiet(&resources_of(&recommended_application(), &recommended_sidecar())).await?;
        print_figures(&format!(
            "autoscalers: with $conflict: Replace {evicted} evictions of {REPLICAS} pods, without it none in {LOOPS} loops"
        ));
        Ok(())
    });
}

/// The API server evaluates the policy of the safety net before it calls webhooks. So an autoscaler whose webhook is
/// before Pillion's sees the sidecar. Pillion then undoes the policy's additions, and the changes to them.
#[test]
#[ignore = "takes minutes and needs the autoscalers' programs: just nightly autoscalers"]
fn autoscaler_before_safety_net_needs_reinvocation() {
    let modules = Modules::find();
    Isolation::new().own_network("reads the audit log, and adds an API").time_limit(LIMIT).run(|| async {
        let modules = modules?;
        let policy = format!("{QUICK}safetyNet: {{enabled: true}}\n");
        let managed = Managed::start_without_namespace(control_plane()?, &policy, 1, 1).await?;
        let Managed { rig, controllers: _controllers, .. } = managed;
        rig.control_plane.apply_yaml(&safety_net::role().to_string()).await?;
        rig.control_plane.apply_yaml(&SHIPPER.replace("activation", "safetyNet: true\n  activation")).await?;
        rig.namespace("shop", Some("enabled")).await?;
        rig.wait_until_called("shop").await?;
        let policies: Api<MutatingAdmissionPolicy> = Api::all(rig.control_plane.client());
        eventually(PATIENCE, "the policy injects the profile", async || {
            policies.get(safety_net::POLICY).await?;
            Ok(())
        })
        .await?;
        let cluster = Cluster::with(rig, &modules).await?;
        let vpa = VpaCluster::with(cluster, &modules, &["shop"]).await?;
        vpa.rename_webhook("a-vpa", "Never").await?;
        vpa.create_workloads().await?;
        vpa.recommend().await?;
        let evicted = vpa.wait_for_eviction_loop().await?;

        // The remedy.
        vpa.rename_webhook("a-vpa", "IfNeeded").await?;
        vpa.expect_quiet(&resources_of(&recommended_application(), &recommended_sidecar())).await?;
        print_figures(&format!(
            "autoscalers: safety net, and the autoscaler's webhook before Pillion: {evicted} evictions of {REPLICAS} pods \
             without reinvocation, none in {LOOPS} loops with it"
        ));
        Ok(())
    });
}

#[test]
#[ignore = "takes minutes and needs the autoscalers' programs: just nightly autoscalers"]
fn horizontal_autoscaler_needs_requests_of_sidecar() {
    let modules = Modules::find();
    Isolation::new().own_network("adds an API to the API server").time_limit(LIMIT).run(|| async {
        let cluster = Cluster::start(&modules?).await?;
        let control_plane = &cluster.rig.control_plane;
        let bare = SHIPPER.replace(", resources: {requests: {cpu: 20m, memory: 32Mi}, limits: {memory: 64Mi}}", "");
        ensure!(bare != SHIPPER);
        control_plane.apply_yaml(&bare).await?;
        control_plane.apply_yaml(&deployment("shop", "shipper").to_string()).await?;
        let expected = resources_of(&requests("100m", "128Mi"), &json!({}));
        cluster.recreate("shop", &expected).await?;
        cluster.autoscale("shop").await?;
        cluster
            .wait_for_scaling("shop", |active, _| {
                ensure!(active["status"] == "False" && active["reason"] == "FailedGetResourceMetric", "{active}");
                let message = active["message"].as_str().context("a message")?;
                ensure!(message.contains("missing request for cpu in container shipper"), "{message}");
                Ok(())
            })
            .await?;
        let found = cluster.missing_requests().await?;
        let warning = "container shipper, which profile shipper adds, has no requests.cpu, so the autoscaler cannot \
                       compute the utilization of its pods";
        ensure!(found == [warning], "{found:?}");

        // The remedy that the finding names.
        control_plane.apply_yaml(SHIPPER).await?;
        let expected = resources_of(&requests("100m", "128Mi"), &profiles_own());
        cluster.recreate("shop", &expected).await?;
        // 200m of 120m.
        cluster.expect_scale("shop", 166, &expected).await?;
        let found = cluster.missing_requests().await?;
        ensure!(found.is_empty(), "{found:?}");
        print_figures("autoscalers: without the sidecar's request ScalingActive=False, with it True");
        Ok(())
    });
}
