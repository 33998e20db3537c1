//! Tests replicas that are ready before API servers can reach them, as may happen right after an installation. No pod
//! is rejected until the connectivity check succeeds or times out.

#![allow(clippy::print_stdout, reason = "the test prints its measurements")]

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::ConfigMap;
use k8s_openapi::api::events::v1::Event;
use kube::api::{Api, DeleteParams, ListParams};
use pillion_testkit::registration::NAMESPACE;
use pillion_testkit::{ControlPlane, Replica, eventually, isolated_with_crds};

use crate::managed::{Managed, QUICK, RELEASE};
use crate::rig::{PATIENCE, SOON, bare_pod, names};

/// The controller's time limit for the connectivity check.
const LIMIT: Duration = Duration::from_secs(30);

/// Starts a cluster with a replica that responds at its own address, but that no API server can reach.
async fn start_without_route() -> Result<Managed> {
    let mut managed = Managed::start_without_namespace(ControlPlane::builder(), QUICK, 0, 1).await?;
    managed.rig.namespace("team-a", Some("enabled")).await?;
    managed.rig.namespace("pay", Some("required")).await?;
    managed.rig.replicas = Replica::start_many(&managed.rig.spec, 1).await?;
    managed.rig.service.set_ready(managed.rig.replicas[0].address(), false).await?;
    eventually(PATIENCE, "the webhook configuration exists", async || {
        ensure!(required_failure_policy(&managed).await? == "Ignore", "its failurePolicy is Fail");
        Ok(())
    })
    .await?;
    Ok(managed)
}

/// Returns the failure policy of the webhook entry for `required` namespaces.
async fn required_failure_policy(managed: &Managed) -> Result<String> {
    let entries = managed.configurations().get(RELEASE).await?.webhooks.unwrap_or_default();
    let entry = entries.into_iter().find(|entry| entry.name == "required.pillion.dev").context("no entry yet")?;
    entry.failure_policy.context("a policy")
}

async fn wait_until_rejecting(managed: &Managed, limit: Duration) -> Result<()> {
    eventually(limit, "pods are rejected without a response", async || {
        let policy = required_failure_policy(managed).await?;
        ensure!(policy == "Fail", "{policy}");
        Ok(())
    })
    .await
}

async fn has_switch(managed: &Managed) -> Result<bool> {
    let maps: Api<ConfigMap> = Api::namespaced(managed.rig.control_plane.client(), NAMESPACE);
    Ok(maps.get_opt(RELEASE).await?.is_some())
}

#[test]
fn webhooks_wait_for_connectivity_check() {
    isolated_with_crds(|| async {
        let managed = start_without_route().await?;
        let until = Instant::now() + Duration::from_secs(2);
        while Instant::now() < until {
            let pod = managed.rig.dry_run("pay", &bare_pod("web")).await.context("a pod is rejected")?;
            ensure!(!names(&pod).contains(&"sidecar-nginx".to_owned()), "a replica is reachable: {pod}");
        }
        ensure!(required_failure_policy(&managed).await? == "Ignore", "no connectivity check has succeeded");
        ensure!(!has_switch(&managed).await?, "a guardrail would reject pods without a decision");

        let replica = managed.rig.replicas[0].address();
        let begun = Instant::now();
        managed.rig.service.set_ready(replica, true).await?;
        wait_until_rejecting(&managed, SOON).await?;
        println!("pods are rejected without a response {:.1?} after the replica became reachable", begun.elapsed());
        managed.rig.wait_until_called("pay").await?;
        eventually(PATIENCE, "the kill switch exists", async || {
            ensure!(has_switch(&managed).await?, "there is no kill switch yet");
            Ok(())
        })
        .await?;

        // The check has succeeded before, so a deleted configuration is recreated unchanged, although the replica is
        // unreachable again.
        managed.rig.service.set_ready(replica, false).await?;
        managed.configurations().delete(RELEASE, &DeleteParams::default()).await?;
        wait_until_rejecting(&managed, SOON).await
    });
}

#[test]
fn failed_connectivity_check_delays_enforcement_briefly() {
    isolated_with_crds(|| async {
        let managed = start_without_route().await?;
        let begun = Instant::now();
        wait_until_rejecting(&managed, LIMIT + PATIENCE).await?;
        let took = begun.elapsed();
        ensure!(took > LIMIT / 2, "{took:?}");
        println!("pods are rejected without a response after {took:.1?}, although no API server has reached a replica");
        let events: Api<Event> = Api::namespaced(managed.rig.control_plane.client(), NAMESPACE);
        eventually(SOON, "an Event reports the failed check", async || {
            let about = ListParams::default().fields("reason=ReplicasUnreached");
            ensure!(events.list(&about).await?.items.len() == 1, "there is no such Event");
            Ok(())
        })
        .await
    });
}
