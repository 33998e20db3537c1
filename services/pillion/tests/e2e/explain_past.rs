//! Tests explanations that depend on the past: the label, the profile, the kill switch or the replicas were different when the pod
//! was created.

use anyhow::{Result, ensure};
use jiff::Timestamp;
use pillion_testkit::namespace::replica_address;
use pillion_testkit::registration::NAMESPACE;
use pillion_testkit::{Replica, eventually, isolated};
use serde_json::json;

use crate::explain::{PROFILES, asking, finds, finds_beside, pillion};
use crate::rig::{Rig, SOON, bare_pod, is_untouched};

/// Waits until new objects are certainly later than this time. Timestamps are whole seconds, and the order within two
/// of them is unknown.
async fn is_past(time: Timestamp) -> Result<()> {
    eventually(SOON, "a time is past when compared in seconds", async || {
        ensure!(Timestamp::now().duration_since(time).as_secs() > 2, "it is not yet");
        Ok(())
    })
    .await
}

#[test]
fn explain_names_changes_since_creation() {
    isolated(|| async {
        let mut rig = Rig::start(1).await?;
        rig.namespace("late", None).await?;
        rig.create("late", &bare_pod("early")).await?;
        is_past(Timestamp::now()).await?;
        // 11: created before the label.
        rig.label_namespace("late", "pillion.dev/injection", "enabled").await?;
        let answer = finds(&rig, "late", "early", "created_before_opt_in").await?;
        ensure!(answer.codes() == ["created_before_opt_in"], "{:?}", answer.codes());
        // ... and before the profile.
        rig.create("team-a", &asking("eager", "single")).await?;
        is_past(Timestamp::now()).await?;
        rig.control_plane.apply_yaml(PROFILES).await?;
        finds(&rig, "team-a", "eager", "created_before_profile").await?;

        // 17: the switch is off.
        let map = |word: &str| {
            json!({"apiVersion": "v1", "kind": "ConfigMap", "data": {"injection": word},
                "metadata": {"name": "pillion", "namespace": NAMESPACE}})
            .to_string()
        };
        rig.control_plane.apply_yaml(&map("disabled")).await?;
        // The namespace's pod is unchanged, and its reason is reported as well.
        let others = ["created_before_profile"];
        let answer = finds_beside(&rig, "team-a", "namespace/team-a", "switched_off", &others).await?;
        ensure!(
            answer.names("switched_off")?["remedy"].as_str().unwrap().contains("kubectl -n pillion-system"),
            "{:#}",
            answer.json
        );
        pillion(&rig.control_plane, &["doctor"]).await?.names("switched_off")?;
        rig.control_plane.apply_yaml(&map("enabled")).await?;

        // 10: created while no replica responded. After a new replica has started, the pod stays as it was.
        is_past(Timestamp::now()).await?;
        rig.replicas[0].kill()?;
        rig.service.set_ready(replica_address(1), false).await?;
        eventually(SOON, "a pod is created without the sidecar", async || {
            let pod = rig.dry_run("team-a", &bare_pod("lost")).await?;
            ensure!(is_untouched(&pod), "{pod}");
            Ok(())
        })
        .await?;
        let lost = rig.create("team-a", &bare_pod("lost")).await?;
        ensure!(is_untouched(&lost), "{lost}");
        let answer = finds(&rig, "team-a", "lost", "webhook_away").await?;
        answer.says("webhook_away", "no replica is ready")?;
        pillion(&rig.control_plane, &["doctor"]).await?.names("no_ready_replica")?;
        is_past(Timestamp::now()).await?;
        let replica = Replica::start(&rig.spec, replica_address(2)).await?;
        rig.service.set_ready(replica.address(), true).await?;
        rig.replicas = vec![replica];
        rig.is_called("team-a").await?;
        let answer = finds(&rig, "team-a", "lost", "unexplained").await?;
        ensure!(answer.codes() == ["unexplained"], "{:#}", answer.json);
        answer.says("unexplained", "endpoints have changed")?;
        ensure!(answer.json["profiles"][0]["outcome"] == "applied", "{:#}", answer.json);
        Ok(())
    });
}
