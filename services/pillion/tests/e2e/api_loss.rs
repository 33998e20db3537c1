//! Tests replicas while the API server hangs, is killed, and restarts. Their responses must not change in the meantime.
//! Changes made after the restart must be applied soon.

#![allow(clippy::print_stdout, reason = "the test prints its measurements")]

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use pillion_testkit::{eventually, isolated_with_crds};
use serde_json::{Value as Json, json};

use crate::direct::{Direct, metric, review};
use crate::rig::{Rig, SOON};

const PROFILES: &str = "
apiVersion: pillion.dev/v1alpha1
kind: ClusterInjectionProfile
metadata: {name: identity}
spec:
  activation: Always
  matchConditions:
  - {name: role, expression: \"params.role != ''\"}
  parameters:
  - {name: role, type: string, default: '', annotation: eks.amazonaws.com/role-arn, sources: [ServiceAccount]}
  template: {metadata: {annotations: {example.com/role: '${params.role}'}}}
---
apiVersion: pillion.dev/v1alpha1
kind: ClusterInjectionProfile
metadata: {name: settings}
spec:
  activation: Always
  lookups: [{name: settings, version: v1, resource: configmaps, objectName: settings}]
  template: {metadata: {annotations: {example.com/settings: '${lookups.settings.data.mode}'}}}
---
apiVersion: v1
kind: ServiceAccount
metadata: {name: builder, namespace: team-a, annotations: {eks.amazonaws.com/role-arn: 'arn:aws:iam::1:role/x'}}
---
apiVersion: v1
kind: ServiceAccount
metadata: {name: plain, namespace: team-a}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: settings, namespace: team-a}
data: {mode: fast}
";

/// A time after which each cached lookup is stale.
const STALE_AFTER: Duration = Duration::from_secs(32);
const KINDS: [&str; 3] = ["clusterinjectionprofiles", "injectionprofiles", "namespaces"];

/// Returns reviews of pods. The pods use three service accounts, of which two exist.
fn reviews() -> Vec<Json> {
    let pod = |number: usize| {
        let account = ["builder", "plain", "nobody"][number % 3];
        json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": {"name": format!("p-{number}")},
            "spec": {"serviceAccountName": account, "containers": [{"name": "app", "image": "app:1"}]},
        })
    };
    (0..100).map(|number| review(&format!("u-{number}"), "team-a", &pod(number))).collect()
}

/// Waits until the replica has looked up each service account. A lookup fails after 250 ms, and a failed lookup changes
/// the response.
async fn wait_until_cached(rig: &Rig, direct: &Direct) -> Result<()> {
    eventually(SOON, "every service account was looked up", async || {
        responses(direct).await?;
        for (result, least) in [("found", 2.0), ("missing", 1.0)] {
            let series = format!("pillion_lookups_total{{kind=\"service_account\",result=\"{result}\"}}");
            let count = metric(&rig.replicas[0], &series).await?;
            ensure!(count >= least, "{count} are {result}");
        }
        Ok(())
    })
    .await
}

/// Returns the responses to all reviews, and the duration of the slowest one.
async fn responses(direct: &Direct) -> Result<(Vec<String>, Duration)> {
    let (mut all, mut longest) = (Vec::new(), Duration::ZERO);
    for review in reviews() {
        let began = Instant::now();
        all.push(direct.answer("/mutate/enabled", &review).await?);
        longest = longest.max(began.elapsed());
    }
    Ok((all, longest))
}

async fn lists(rig: &Rig) -> Result<Vec<f64>> {
    let mut counts = Vec::new();
    for kind in KINDS {
        counts.push(metric(&rig.replicas[0], &format!("pillion_webhook_cache_lists_total{{kind=\"{kind}\"}}")).await?);
    }
    Ok(counts)
}

async fn staleness(rig: &Rig) -> Result<Vec<f64>> {
    let mut ages = Vec::new();
    for kind in KINDS {
        ages.push(
            metric(&rig.replicas[0], &format!("pillion_webhook_cache_staleness_seconds{{kind=\"{kind}\"}}")).await?,
        );
    }
    Ok(ages)
}

#[test]
fn responses_survive_api_server_loss() {
    isolated_with_crds(|| async {
        let mut rig = Rig::start(1).await?;
        rig.control_plane.apply_yaml(PROFILES).await?;
        let direct = Direct::to(&rig.replicas[0])?;
        let known = eventually(SOON, "both profiles are active", async || {
            let answer = direct.answer("/mutate/enabled", &reviews()[0]).await?;
            let patch = patch_of(&answer)?;
            ensure!(patch.contains("role/x") && patch.contains("fast"), "{patch}");
            Ok(())
        });
        known.await?;
        wait_until_cached(&rig, &direct).await?;
        let (before, quick) = responses(&direct).await?;
        let (lists_before, fresh) = (lists(&rig).await?, staleness(&rig).await?);
        println!("with the API server: the longest of 100 responses {quick:?}, staleness {fresh:?}");
        ensure!(fresh.iter().all(|age| *age < 60.0), "{fresh:?}");

        rig.control_plane.pause_api_server()?;
        tokio::time::sleep(STALE_AFTER).await;
        let (hanging, slow) = responses(&direct).await?;
        let old = staleness(&rig).await?;
        println!("hanging: the longest response {slow:?}, staleness {old:?}");
        ensure!(hanging == before, "a response has changed while the API server hung");
        ensure!(old.iter().all(|age| *age >= 30.0), "{old:?}");

        rig.control_plane.stop_api_server()?;
        let (dead, slow) = responses(&direct).await?;
        println!("stopped: the longest response {slow:?}, staleness {:?}", staleness(&rig).await?);
        ensure!(dead == before, "a response has changed while the API server was stopped");
        let stale =
            metric(&rig.replicas[0], "pillion_lookups_total{kind=\"service_account\",result=\"stale\"}").await?;
        ensure!(stale >= 100.0, "{stale} stale lookups were used");
        ensure!(rig.replicas[0].get("/readyz").await?.0 == 200, "the replica is not ready, although it responds");

        let started = Instant::now();
        rig.control_plane.start_api_server().await?;
        let back = Instant::now();
        rig.control_plane.apply_yaml(&PROFILES.replace("example.com/settings:", "example.com/set:")).await?;
        rig.namespace("team-new", Some("enabled")).await?;
        let namespaces = rig.control_plane.kubectl_ok(&["get", "namespaces", "-o", "name"]).await?.lines().count();
        let known = eventually(SOON, "the changes are applied", async || {
            let patch = patch_of(&direct.answer("/mutate/enabled", &reviews()[0]).await?)?;
            ensure!(patch.contains("example.com~1set\"") || patch.contains("example.com/set\""), "{patch}");
            let known = metric(&rig.replicas[0], "pillion_webhook_cache_objects{kind=\"namespaces\"}").await?;
            ensure!(format!("{known}") == namespaces.to_string(), "{known} namespaces of {namespaces}");
            Ok(())
        });
        known.await?;
        let took = back.elapsed();
        // A watch whose objects do not change receives one event when the API server starts to listen, and then no
        // event for 45 seconds.
        let ages = eventually(SOON, "all watches have received an event", async || {
            let ages = staleness(&rig).await?;
            let since = started.elapsed().as_secs_f64();
            ensure!(ages.iter().all(|age| *age < since), "{ages:?}, started {since} s ago");
            Ok(ages)
        });
        let (ages, lists_after) = (ages.await?, lists(&rig).await?);
        println!("restarted: a profile and a namespace after {took:?}, all three watches after {:?}", back.elapsed());
        println!("lists {lists_before:?} -> {lists_after:?}, staleness {ages:?}");
        for (before, after) in lists_before.iter().zip(&lists_after) {
            ensure!(after - before <= 1.0, "more than one list of a kind: {lists_before:?} -> {lists_after:?}");
        }
        Ok(())
    });
}

fn patch_of(answer: &str) -> Result<String> {
    use base64::Engine as _;
    let answer: Json = serde_json::from_str(answer)?;
    let patch = answer["response"]["patch"].as_str().unwrap_or_default();
    Ok(String::from_utf8(base64::engine::general_purpose::STANDARD.decode(patch)?)?)
}
