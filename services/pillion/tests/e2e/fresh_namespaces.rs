//! Tests pods that are created milliseconds after their namespace, or while it is being deleted.

use std::time::Instant;

use anyhow::{Result, ensure};
use pillion_testkit::{Replica, eventually, isolated_with_crds};

use crate::direct::{Direct, metric, review};
use crate::rig::{Rig, SOON, bare_pod, names};

/// Returns the number of failed lookups. These include lookups without a response within 250 ms, and lookups beyond the
/// limit of ten per second.
async fn failed_lookups(replica: &Replica) -> Result<f64> {
    let mut count = 0.0;
    for result in ["timed_out", "failed", "refused"] {
        count += metric(replica, &format!("pillion_webhook_namespace_lookups_total{{result=\"{result}\"}}")).await?;
    }
    Ok(count)
}

#[test]
fn namespace_is_known_until_deleted() {
    isolated_with_crds(|| async {
        let mut rig = Rig::start(1).await?;
        // The API server looks up the namespace itself, and calls the path for the namespace's failure mode.
        for number in 0..20 {
            let name = format!("fresh-{number}");
            rig.namespace(&name, Some("enabled")).await?;
            let pod = rig.dry_run(&name, &bare_pod("first")).await?;
            ensure!(names(&pod).contains(&"sidecar-nginx".to_owned()), "{name}: {pod}");
        }
        // If the path contains no failure mode, the replica reads the namespace, either from the watch or with a
        // lookup.
        let direct = Direct::to(&rig.replicas[0])?;
        let injects = async |direct: &Direct, name: &str| -> Result<bool> {
            let answer = direct.answer("/mutate", &review("u", name, &bare_pod("first"))).await?;
            Ok(answer.contains("\"patch\""))
        };
        // A lookup may fail by chance. In that case, the test tries another namespace.
        let (began, mut tried, mut known) = (Instant::now(), 0, 0);
        while known < 20 {
            ensure!(began.elapsed() < SOON, "{known} of {tried} were known");
            let (name, before) = (format!("unseen-{tried}"), failed_lookups(&rig.replicas[0]).await?);
            rig.namespace(&name, Some("enabled")).await?;
            if injects(&direct, &name).await? {
                known += 1;
            } else {
                ensure!(failed_lookups(&rig.replicas[0]).await? > before, "{name}");
            }
            tried += 1;
        }
        let is_injected = eventually(SOON, "the namespace was looked up", async || {
            let is_injected = injects(&direct, "nowhere").await?;
            let missing =
                metric(&rig.replicas[0], "pillion_webhook_namespace_lookups_total{result=\"missing\"}").await?;
            ensure!(is_injected || missing >= 1.0, "the namespace was not looked up");
            Ok(is_injected)
        })
        .await?;
        ensure!(!is_injected, "a pod in a missing namespace is injected");

        rig.namespace("labelled-later", None).await?;
        ensure!(!injects(&direct, "labelled-later").await?);
        rig.label_namespace("labelled-later", "pillion.dev/injection", "enabled").await?;
        let known = eventually(SOON, "the label is observed", async || {
            ensure!(injects(&direct, "labelled-later").await?, "not yet");
            let pod = rig.dry_run("labelled-later", &bare_pod("first")).await?;
            ensure!(names(&pod).contains(&"sidecar-nginx".to_owned()), "{pod}");
            Ok(())
        });
        known.await?;

        // No namespace controller runs here, so the namespace remains in the phase `Terminating`.
        rig.control_plane.kubectl_ok(&["delete", "namespace", "fresh-0", "--wait=false"]).await?;
        let phase = ["get", "namespace", "fresh-0", "-o", "jsonpath={.status.phase}"];
        ensure!(rig.control_plane.kubectl_ok(&phase).await? == "Terminating");
        ensure!(injects(&direct, "fresh-0").await?, "a terminating namespace is still known");
        rig.replicas[0].process().terminate()?;
        Ok(())
    });
}
