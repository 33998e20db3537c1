//! Tests causes in the past: the label, the profile or the kill switch changed after the pod was created, or no replica
//! responded when the pod was created.

use anyhow::{Result, ensure};
use jiff::Timestamp;
use pillion_testkit::namespace::replica_address;
use pillion_testkit::registration::NAMESPACE;
use pillion_testkit::{Replica, eventually, isolated_with_crds};
use serde_json::json;

use crate::explain::{PROFILES, expect_finding, expect_finding_among, pillion, requesting_pod};
use crate::rig::{Rig, SOON, bare_pod, is_untouched};

/// Waits until new timestamps are certain to be later than `time`. Timestamps of objects are whole seconds, so the
/// order of events within two seconds is unknown.
async fn wait_until_past(time: Timestamp) -> Result<()> {
    eventually(SOON, "two seconds have passed", async || {
        ensure!(Timestamp::now().duration_since(time).as_secs() > 2, "not yet");
        Ok(())
    })
    .await
}

#[test]
fn explain_names_changes_since_creation() {
    isolated_with_crds(|| async {
        let mut rig = Rig::start(1).await?;
        rig.namespace("late", None).await?;
        rig.create("late", &bare_pod("early")).await?;
        wait_until_past(Timestamp::now()).await?;
        // The pod was created before the namespace got its label.
        rig.label_namespace("late", "pillion.dev/injection", "enabled").await?;
        let result = expect_finding(&rig, "late", "early", "created_before_opt_in").await?;
        ensure!(result.codes() == ["created_before_opt_in"], "{:?}", result.codes());
        // The pod was created before the profile.
        rig.create("team-a", &requesting_pod("eager", "single")).await?;
        wait_until_past(Timestamp::now()).await?;
        rig.control_plane.apply_yaml(PROFILES).await?;
        expect_finding(&rig, "team-a", "eager", "created_before_profile").await?;

        // The kill switch disables injection.
        let map = |word: &str| {
            json!({"apiVersion": "v1", "kind": "ConfigMap", "data": {"injection": word},
                "metadata": {"name": "pillion", "namespace": NAMESPACE}})
            .to_string()
        };
        rig.control_plane.apply_yaml(&map("disabled")).await?;
        // `explain` also reports the pod `eager`, whose cause has not changed.
        let others = ["created_before_profile"];
        let result = expect_finding_among(&rig, "team-a", "namespace/team-a", "switched_off", &others).await?;
        ensure!(
            result.names("switched_off")?["remedy"].as_str().unwrap().contains("kubectl -n pillion-system"),
            "{:#}",
            result.json
        );
        pillion(&rig.control_plane, &["doctor"]).await?.names("switched_off")?;
        rig.control_plane.apply_yaml(&map("enabled")).await?;

        // The pod was created while no replica responded. Starting a new replica does not change the pod.
        wait_until_past(Timestamp::now()).await?;
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
        let result = expect_finding_among(&rig, "team-a", "lost", "webhook_unavailable", &["no_ready_replica"]).await?;
        result.says("webhook_unavailable", "no replica is ready")?;
        // The finding with the remedy that restores the replicas comes first.
        ensure!(result.codes()[0] == "no_ready_replica", "{:?}", result.codes());
        let status = pillion(&rig.control_plane, &["status"]).await?;
        ensure!(
            status.code == Some(1) && status.json["problems"][0]["code"] == "no_ready_replica",
            "{:#}",
            status.json
        );
        pillion(&rig.control_plane, &["doctor"]).await?.names("no_ready_replica")?;
        wait_until_past(Timestamp::now()).await?;
        let replica = Replica::start(&rig.spec, replica_address(2)).await?;
        rig.service.set_ready(replica.address(), true).await?;
        rig.replicas = vec![replica];
        rig.wait_until_called("team-a").await?;
        let result = expect_finding(&rig, "team-a", "lost", "unexplained").await?;
        ensure!(result.codes() == ["unexplained"], "{:#}", result.json);
        result.says("unexplained", "endpoints have changed")?;
        ensure!(result.json["profiles"][0]["outcome"] == "applied", "{:#}", result.json);
        Ok(())
    });
}
