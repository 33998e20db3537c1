//! Tests a migrated cluster that keeps its label: namespaces opt in with `istio-injection=enabled`. The API server, a
//! replica that is called without a failure mode, the audit, the profiles' status and `pillion status` must agree on
//! the opted-in namespaces.

use std::time::Duration;

use anyhow::{Result, ensure};
use pillion_testkit::{eventually, isolated_with_crds};

use crate::direct::{Direct, review};
use crate::managed::Managed;
use crate::rig::{SOON, bare_pod, is_untouched, names};

/// The label with which namespaces of the migrated cluster opt in.
const LABEL: (&str, &str) = ("istio-injection", "enabled");

/// Time limit for the controller to count the namespaces, which it does once a minute.
const COUNTED: Duration = Duration::from_mins(2);
/// Time limit for the audit to report a finding.
const FOUND_WITHIN: Duration = Duration::from_secs(30);

/// Starts a cluster with namespaces that opt in with either label, and one that opts out.
async fn cluster() -> Result<Managed> {
    let managed = Managed::start_with_opt_in_label(&format!("{}={}", LABEL.0, LABEL.1)).await?;
    managed.rig.control_plane.create_namespace("mesh", &[LABEL]).await?;
    managed.rig.control_plane.create_namespace("out", &[LABEL, ("pillion.dev/injection", "disabled")]).await?;
    managed.rig.namespace("team-a", Some("enabled")).await?;
    for namespace in ["mesh", "team-a"] {
        managed.rig.wait_until_called(namespace).await?;
    }
    Ok(managed)
}

#[test]
fn foreign_label_opts_namespace_in() {
    isolated_with_crds(|| async {
        let mut managed = cluster().await?;
        let created = managed.rig.create("mesh", &bare_pod("early")).await?;
        ensure!(names(&created).len() == 2, "{created}");
        ensure!(is_untouched(&managed.rig.create("out", &bare_pod("out")).await?), "Pillion's own label decides first");

        // The path of these reviews contains no failure mode.
        let direct = Direct::to(&managed.rig.replicas[0])?;
        for (namespace, is_injected) in [("mesh", true), ("team-a", true), ("out", false), ("default", false)] {
            // The replica receives namespaces through its watch.
            eventually(SOON, "the namespace is known", async || {
                let answer = direct.answer("/mutate", &review("u", namespace, &bare_pod("asked"))).await?;
                ensure!(answer.contains("\"patch\"") == is_injected, "{namespace}: {answer}");
                Ok(())
            })
            .await?;
        }

        // The profile's status counts both namespaces.
        let control_plane = &managed.rig.control_plane;
        eventually(COUNTED, "both namespaces are counted", async || {
            let path = "jsonpath={.status.namespacesMatched}";
            let count = control_plane.kubectl_ok(&["get", "ciprof", "nginx", "-o", path]).await?;
            ensure!(count == "2", "{count}");
            Ok(())
        })
        .await?;

        // The controller and `pillion status` find a pod that was created without a webhook.
        managed.rig.replicas[0].kill()?;
        eventually(SOON, "a pod is not injected", async || {
            let name =
                format!("lost-{}", managed.rig.pods("mesh").list(&kube::api::ListParams::default()).await?.items.len());
            ensure!(is_untouched(&managed.rig.create("mesh", &bare_pod(&name)).await?), "still injected");
            Ok(())
        })
        .await?;
        eventually(FOUND_WITHIN, "the audit finds the pod", async || {
            let metrics = managed.controllers[0].metrics_text().await?;
            let line = metrics
                .lines()
                .find(|line| line.starts_with("pillion_controller_audit_pods{") && line.contains("missing"));
            ensure!(line.is_some_and(|line| line.ends_with(" 1")), "{line:?} of {metrics}");
            Ok(())
        })
        .await?;
        let output = std::process::Command::new(env!("CARGO_BIN_EXE_pillion"))
            .args(["status", "-n", "mesh", "--kubeconfig"])
            .arg(managed.rig.control_plane.kubeconfig())
            .output()?;
        let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        ensure!(output.status.code() == Some(1) && out.contains("lost-") && !out.contains("early"), "{out}{err}");
        Ok(())
    });
}
