//! Tests the first steps of a user: `helm install`, and the first pod with a sidecar.

use std::time::{Duration, Instant};

use anyhow::ensure;
use kube::api::PostParams;
use pillion_testkit::eventually;

use crate::creations::Creations;
use crate::platform::{Platform, SOON, is_injected, is_ready, on_a_node, pod};

/// Time limit for the installation and the start of the first pod on an idle machine, as the docs promise.
const PROMISE: Duration = Duration::from_mins(1);

#[test]
#[ignore = "needs a real node: just node"]
fn installs_and_injects_first_pod() {
    on_a_node(async |platform| {
        platform.namespace("team-a", "enabled").await?;
        platform.namespace("pay", "required").await?;
        // The installation must not prevent the creation of pods.
        let creations = Creations::start(platform, &["team-a", "pay"]).await?;

        let begun = Instant::now();
        platform.helm("install", Some(&Platform::values("one")), &["--create-namespace"]).await?;
        let installed = begun.elapsed();
        platform.injects("team-a").await?;
        let first = platform.pods("team-a").create(&PostParams::default(), &pod("first", true)).await?;
        ensure!(is_injected(&first), "without the sidecar: {first:?}");
        let injected = begun.elapsed();
        eventually(SOON, "the pod is ready", async || is_ready(&platform.pods("team-a").get("first").await?)).await?;
        let running = begun.elapsed();
        let before = creations.results_so_far();
        println!(
            "helm install {installed:.1?}, first pod with the sidecar {injected:.1?}, it runs {running:.1?}; meanwhile: {before}"
        );
        ensure!(running < PROMISE, "{running:?}");

        // From here on, every pod must get the sidecar, even while the last replicas start.
        platform.kubectl(&["rollout", "status", "--namespace=pillion-system", "deployment/pillion-webhook"]).await?;
        let results = creations.stop().await?;
        println!("in the end: {results}");
        ensure!(results.refused.is_empty(), "refused: {:?}", results.refused);
        ensure!(results.without == before.without, "a pod after the first injected one has no sidecar");
        Ok(())
    });
}
