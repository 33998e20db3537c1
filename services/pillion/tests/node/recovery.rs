//! Tests an outage: no replica responds while every namespace requires the sidecar. The cluster recovers without an
//! operator.

use std::fmt::{self, Display};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::apps::v1::Deployment;
use kube::api::{Api, ListParams};
use pillion_testkit::eventually;

use crate::platform::{NAMESPACE, Platform, SOON, is_injected, on_a_node};
use crate::processes;

/// The documented limit for an unattended recovery.
const PROMISE: Duration = Duration::from_secs(30);
/// The minimum duration of a measurement.
const AT_LEAST: Duration = Duration::from_secs(5);

/// The outcomes of creations after a loss.
struct Outage {
    refused: usize,
    /// The time from the loss to the last pod that was rejected, or would have had no sidecar.
    lasted: Duration,
    /// The time until all replicas were ready again.
    complete: Duration,
}

impl Display for Outage {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { refused, lasted, complete } = self;
        write!(
            formatter,
            "{refused} creations refused, the last one after {lasted:.1?}; all replicas were back after {complete:.1?}"
        )
    }
}

/// Creates pods until the cluster has recovered from the loss.
async fn outage(platform: &Platform) -> Result<Outage> {
    let begun = Instant::now();
    let mut outage = Outage { refused: 0, lasted: Duration::ZERO, complete: Duration::ZERO };
    eventually(SOON, "all replicas are back", async || {
        match platform.dry_run("team-a").await {
            Ok(pod) if is_injected(&pod) => {}
            _ => (outage.refused, outage.lasted) = (outage.refused + 1, begun.elapsed()),
        }
        let deployments: Api<Deployment> = Api::namespaced(platform.client.clone(), NAMESPACE);
        let status = deployments.get("pillion-webhook").await?.status.context("a status")?;
        // Kubernetes may not have noticed the loss yet, and a new replica may not receive all requests yet.
        ensure!(begun.elapsed() > AT_LEAST, "too early to tell");
        ensure!(status.available_replicas == Some(3), "{status:?}");
        ensure!(begun.elapsed() > outage.lasted + AT_LEAST, "pods are rejected");
        Ok(())
    })
    .await?;
    outage.complete = begun.elapsed();
    Ok(outage)
}

async fn everything_is_required(platform: &Platform) -> Result<()> {
    platform.namespace("team-a", "required").await?;
    platform.install("team-a").await?;
    // Includes Pillion's own namespace and those of Kubernetes.
    platform.kubectl(&["label", "namespaces", "--all", "--overwrite", "pillion.dev/injection=required"]).await?;
    Ok(())
}

#[test]
#[ignore = "needs a real node: just node"]
fn without_any_replica_the_cluster_recovers_by_itself() {
    on_a_node(async |platform| {
        everything_is_required(platform).await?;
        let webhooks = ["--selector=app.kubernetes.io/component=webhook", "--wait=false"];
        let delete = [&["delete", "pods", "--namespace", NAMESPACE][..], &webhooks].concat();
        let kill = ["--grace-period=0", "--force"];

        platform.kubectl(&delete).await?;
        let asked = outage(platform).await?;
        println!("all replicas deleted: {asked}");
        platform.kubectl(&[&delete[..], &kill].concat()).await?;
        let forced = outage(platform).await?;
        println!("all replicas deleted by force: {forced}");
        let everything = ["delete", "pods", "--namespace", NAMESPACE, "--all", "--wait=false"];
        platform.kubectl(&[&everything[..], &kill].concat()).await?;
        let all = outage(platform).await?;
        println!("all replicas and controllers deleted by force: {all}");
        let killed = processes::kill(platform.cluster.name(), &["/pillion", "webhook"])?;
        let at_once = outage(platform).await?;
        println!("{killed} processes killed: {at_once}");

        ensure!(at_once.refused > 0, "no pod was missed, so nothing was tested");
        for outage in [asked, forced, all, at_once] {
            ensure!(outage.lasted < PROMISE, "{outage}");
        }
        Ok(())
    });
}

#[test]
#[ignore = "needs a real node: just node"]
fn cluster_recovers_after_node_restart() {
    on_a_node(async |platform| {
        everything_is_required(platform).await?;
        let begun = Instant::now();
        platform.cluster.restart().await?;
        let ready = begun.elapsed();
        platform.client = platform.cluster.client().await?;
        let outage = outage(platform).await?;
        println!("the node was ready again after {ready:.1?}; from there on: {outage}");
        ensure!(outage.lasted < PROMISE, "{outage}");
        platform
            .kubectl(&[
                "rollout",
                "status",
                "--namespace",
                NAMESPACE,
                "deployment/pillion-controller",
                "--timeout=120s",
            ])
            .await?;
        let pods: Api<k8s_openapi::api::core::v1::Pod> = platform.pods(NAMESPACE);
        let restarted = pods.list(&ListParams::default()).await?.items.iter().any(|pod| {
            let statuses = pod.status.iter().filter_map(|status| status.container_statuses.as_ref());
            statuses.flatten().any(|each| each.restart_count > 0)
        });
        ensure!(restarted, "no container was restarted: the node was not");
        platform.cluster.client().await.context("a client")?;
        Ok(())
    });
}
