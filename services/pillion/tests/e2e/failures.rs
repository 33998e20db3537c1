//! Without replicas, the namespace's label decides.

use anyhow::ensure;
use pillion_testkit::{Isolation, eventually, isolated};

use crate::rig::{Rig, SOON, bare_pod, is_untouched, names};

#[test]
fn failure_modes_hold_without_replicas() {
    isolated(|| async {
        let mut rig = Rig::start(1).await?;
        rig.namespace("strict", Some("required")).await?;
        rig.is_called("strict").await?;
        let injected = rig.create("strict", &bare_pod("before")).await?;
        ensure!(names(&injected).contains(&"sidecar-nginx".to_owned()));

        rig.replicas[0].kill()?;
        let created = rig.create("team-a", &bare_pod("without")).await?;
        ensure!(is_untouched(&created), "{created}");
        let refused = rig.create("strict", &bare_pod("refused")).await.unwrap_err().to_string();
        ensure!(refused.contains("required.pillion.dev"), "{refused}");
        // The namespace's owner is not locked out: removing the label stops the calls, even with every replica dead.
        rig.label_namespace("strict", "pillion.dev/injection", "off").await?;
        eventually(SOON, "the label was taken away", async || rig.create("strict", &bare_pod("after")).await.map(drop))
            .await
    });
}

#[test]
fn losing_the_api_server_changes_no_answer() {
    Isolation::new().own_network("restarts the API server").run(|| async {
        let mut rig = Rig::start(1).await?;
        rig.control_plane.restart_api_server().await?;
        eventually(SOON, "pods are injected again", async || {
            let names = names(&rig.dry_run("team-a", &bare_pod("probe")).await?);
            ensure!(names.contains(&"sidecar-nginx".to_owned()), "{names:?}");
            Ok(())
        })
        .await?;
        ensure!(rig.replicas[0].get("/readyz").await?.0.is_success());
        Ok(())
    });
}
