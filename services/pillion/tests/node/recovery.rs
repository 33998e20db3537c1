//! Tests a full outage: no replica responds, and every namespace rejects pods without their sidecar. The cluster must
//! recover without an administrator.

use std::fmt::{self, Display};
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::apps::v1::Deployment;
use kube::api::{Api, ListParams};
use pillion_testkit::eventually;
use rustix::io::Errno;
use rustix::process::{Pid, Signal, kill_process};

use crate::platform::{NAMESPACE, Platform, SOON, is_injected, on_a_node};

/// Time limit for the cluster to recover by itself, as the docs promise.
const PROMISE: Duration = Duration::from_secs(30);
/// The minimum time of observation, and the minimum time at its end without a failed creation.
const AT_LEAST: Duration = Duration::from_secs(5);

/// The results of the creations after all replicas were lost.
struct Outage {
    refused: usize,
    /// The time from the loss to the last creation that was rejected or had no sidecar.
    lasted: Duration,
    /// The time from the loss until all replicas were available and no creation had failed for [`AT_LEAST`].
    complete: Duration,
}

impl Display for Outage {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { refused, lasted, complete } = self;
        write!(
            formatter,
            "{refused} creations rejected, the last one after {lasted:.1?}; all replicas were back after {complete:.1?}"
        )
    }
}

/// Creates pods as dry runs until the cluster has recovered.
async fn outage(platform: &Platform) -> Result<Outage> {
    let begun = Instant::now();
    let mut outage = Outage { refused: 0, lasted: Duration::ZERO, complete: Duration::ZERO };
    eventually(SOON, "all replicas are available", async || {
        match platform.dry_run("team-a").await {
            Ok(pod) if is_injected(&pod) => {}
            _ => (outage.refused, outage.lasted) = (outage.refused + 1, begun.elapsed()),
        }
        let deployments: Api<Deployment> = Api::namespaced(platform.client.clone(), NAMESPACE);
        let status = deployments.get("pillion-webhook").await?.status.context("a status")?;
        // The loss may not be visible yet, and a replica that has just started may not be reachable for every client.
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
    // Labels all namespaces, including Pillion's own and those of Kubernetes.
    platform.kubectl(&["label", "namespaces", "--all", "--overwrite", "pillion.dev/injection=required"]).await?;
    Ok(())
}

/// Kills the processes on this node whose command lines start with `arguments`. Returns the number of killed processes,
/// and fails if there are none.
pub(crate) fn kill_processes(node: &str, arguments: &[&str]) -> Result<usize> {
    let beginning = arguments.join("\0");
    let group = format!("/pillion-{node}/");
    let mut killed = 0;
    for entry in std::fs::read_dir("/proc").context("/proc")?.filter_map(Result::ok) {
        let Ok(id) = entry.file_name().to_string_lossy().parse::<i32>() else { continue };
        if read(&entry.path(), "cmdline").starts_with(&beginning) && read(&entry.path(), "cgroup").contains(&group) {
            match kill_process(Pid::from_raw(id).context("a process")?, Signal::KILL) {
                Ok(()) => killed += 1,
                // The process has already ended.
                Err(Errno::SRCH) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
    ensure!(killed > 0, "no process of {node} has the arguments {arguments:?}");
    Ok(killed)
}

fn read(process: &Path, file: &str) -> String {
    // If the process has already ended, its file is treated as empty.
    std::fs::read_to_string(process.join(file)).unwrap_or_default()
}

#[test]
#[ignore = "needs a real node: just node"]
fn cluster_recovers_without_any_replica() {
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
        let killed = kill_processes(platform.cluster.name(), &["/pillion", "webhook"])?;
        let without_pauses = outage(platform).await?;
        println!("{killed} processes killed: {without_pauses}");

        ensure!(without_pauses.refused > 0, "no pod was affected, so nothing was tested");
        for outage in [asked, forced, all, without_pauses] {
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
        ensure!(restarted, "no container was restarted, so the node was not");
        platform.cluster.client().await.context("a client")?;
        Ok(())
    });
}
