//! Pods that come within milliseconds of their namespace, or while it is being deleted.

use anyhow::{Result, ensure};
use pillion_testkit::{eventually, isolated};

use crate::direct::{Direct, metric, review};
use crate::rig::{Rig, SOON, bare_pod, names};

#[test]
fn a_namespace_is_known_at_once_and_until_it_is_gone() {
    isolated(|| async {
        let mut rig = Rig::start(1).await?;
        // As the API server does it: it looks itself, and names the level by the path.
        for number in 0..20 {
            let name = format!("fresh-{number}");
            rig.namespace(&name, Some("enabled")).await?;
            let pod = rig.dry_run(&name, &bare_pod("first")).await?;
            ensure!(names(&pod).contains(&"sidecar-nginx".to_owned()), "{name}: {pod}");
        }
        // Without a level in the path it is for the replica to find out. Whether the watch or a look-up was first, is luck.
        let direct = Direct::to(&rig.replicas[0])?;
        let injects = async |direct: &Direct, name: &str| -> Result<bool> {
            let answer = direct.answer("/mutate", &review("u", name, &bare_pod("first"))).await?;
            Ok(answer.contains("\"patch\""))
        };
        for number in 0..20 {
            let name = format!("unseen-{number}");
            rig.namespace(&name, Some("enabled")).await?;
            ensure!(injects(&direct, &name).await?, "{name}");
        }
        ensure!(!injects(&direct, "nowhere").await?, "there is no such namespace");
        let missing = metric(&rig.replicas[0], "pillion_live_lookups_total{result=\"missing\"}").await?;
        ensure!(missing >= 1.0, "it was not asked for");

        rig.namespace("labelled-later", None).await?;
        ensure!(!injects(&direct, "labelled-later").await?);
        rig.label_namespace("labelled-later", "pillion.dev/injection", "enabled").await?;
        let known = eventually(SOON, "the label is seen", async || {
            ensure!(injects(&direct, "labelled-later").await?, "not yet");
            let pod = rig.dry_run("labelled-later", &bare_pod("first")).await?;
            ensure!(names(&pod).contains(&"sidecar-nginx".to_owned()), "{pod}");
            Ok(())
        });
        known.await?;

        // Nobody runs controllers here, so it stays as it is: going.
        rig.control_plane.kubectl_ok(&["delete", "namespace", "fresh-0", "--wait=false"]).await?;
        let phase = ["get", "namespace", "fresh-0", "-o", "jsonpath={.status.phase}"];
        ensure!(rig.control_plane.kubectl_ok(&phase).await? == "Terminating");
        ensure!(injects(&direct, "fresh-0").await?, "one that is being deleted is still known");
        rig.replicas[0].process().terminate()?;
        Ok(())
    });
}
