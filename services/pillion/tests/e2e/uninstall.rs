//! Deletes a release after each kind of loss. Afterwards, pods can be created again in a namespace that requires
//! injection, and a new release of the same name can be installed. The test uses the real helm, the real programs with
//! their service accounts, and the real namespace and garbage collection controllers.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use pillion_testkit::registration::NAMESPACE;
use pillion_testkit::{ControlPlane, ControllerManager, Isolation, Replica, eventually};
use serde_json::json;

use crate::chart::{helm, helm_ok, helm_with_job, run, values};
use crate::rig::{PATIENCE, Rig, SOON, bare_pod, is_untouched};
use crate::safety_net::POLICY;

/// The Kubernetes controllers that delete a namespace with its objects, and the dependents of deleted objects.
const CONTROLLERS: &str = "namespace-controller,garbage-collector-controller";
/// The page that documents how to delete a release if no job can run.
const PAGE: &str = include_str!("../../../../charts/pillion/README.md");

/// The component that is lost before the release is deleted, if any.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Loss {
    Nothing,
    Replicas,
    Controllers,
    Definitions,
    Rights,
    Nodes,
    Namespace,
}

const LOSSES: [Loss; 7] =
    [Loss::Nothing, Loss::Replicas, Loss::Controllers, Loss::Definitions, Loss::Rights, Loss::Nodes, Loss::Namespace];

fn kill(processes: &mut [Replica]) -> Result<()> {
    processes.iter_mut().try_for_each(|process| process.kill().map(drop))
}

/// Returns the cluster-scoped objects with the release's name, except CRDs and objects that Helm keeps.
async fn left(control_plane: &ControlPlane) -> Result<Vec<String>> {
    let kinds = "mutatingwebhookconfigurations,validatingwebhookconfigurations,clusterroles,clusterrolebindings,\
                 mutatingadmissionpolicies,mutatingadmissionpolicybindings,validatingadmissionpolicies,validatingadmissionpolicybindings";
    let all = control_plane.kubectl_ok(&["get", kinds, "--output=name"]).await?;
    Ok(all.lines().filter(|name| name.contains("/pillion")).map(str::to_owned).collect())
}

/// Causes the loss, and deletes the release.
async fn lose_and_delete(rig: Rig, mut controllers: Vec<Replica>, loss: Loss) -> Result<ControlPlane> {
    let Rig { control_plane, mut replicas, .. } = rig;
    let uninstall = ["uninstall", "pillion", "--ignore-not-found"];
    match loss {
        Loss::Nothing => {}
        Loss::Replicas => kill(&mut replicas)?,
        Loss::Controllers => kill(&mut controllers)?,
        Loss::Definitions => {
            let delete = ["delete", "--wait=false", "crds", "--all"];
            control_plane.kubectl_ok(&delete).await?;
        }
        Loss::Rights => {
            let all = ["delete", "clusterrolebindings", "-l", "app.kubernetes.io/instance=pillion"];
            control_plane.kubectl_ok(&all).await?;
        }
        Loss::Nodes => {
            kill(&mut replicas)?;
            kill(&mut controllers)?;
            let by_hand: Vec<_> = PAGE.lines().filter_map(|line| line.trim().strip_prefix("kubectl delete ")).collect();
            ensure!(by_hand.len() == 3, "{by_hand:?}");
            for command in by_hand {
                let arguments: Vec<_> = ["delete"].into_iter().chain(command.split(' ')).collect();
                control_plane.kubectl_ok(&arguments).await?;
            }
            helm_ok(&control_plane, &["uninstall", "pillion", "--no-hooks"], None).await?;
        }
        Loss::Namespace => {
            control_plane.kubectl_ok(&["delete", "namespace", NAMESPACE, "--wait=false"]).await?;
            kill(&mut replicas)?;
            kill(&mut controllers)?;
            let gone = async || {
                let found = control_plane.kubectl_ok(&["get", "namespace", NAMESPACE, "--ignore-not-found"]).await?;
                ensure!(found.is_empty(), "{found}");
                Ok(())
            };
            eventually(2 * PATIENCE, "the namespace is deleted", gone).await?;
            helm_ok(&control_plane, &uninstall, None).await?;
        }
    }
    if !matches!(loss, Loss::Nodes | Loss::Namespace) {
        helm_with_job(&control_plane, "pillion-uninstall", &["uninstall", "pillion"], None).await?;
    }
    drop((replicas, controllers));
    Ok(control_plane)
}

async fn can_create_pods(control_plane: &ControlPlane, loss: Loss) -> Result<()> {
    let pods = kube::Api::<k8s_openapi::api::core::v1::Pod>::namespaced(control_plane.client(), "team-a");
    let dry_run = kube::api::PostParams { dry_run: true, ..kube::api::PostParams::default() };
    eventually(PATIENCE, "pods are created", async || {
        let pod = pods.create(&dry_run, &serde_json::from_value(bare_pod("after"))?).await?;
        let pod = serde_json::to_value(pod)?;
        ensure!(is_untouched(&pod), "after the loss of {loss:?} a webhook still injects: {pod}");
        Ok(())
    })
    .await
}

/// Creates a profile that the safety net covers, and waits until the controller has created the policy.
async fn create_safety_net(control_plane: &ControlPlane) -> Result<()> {
    let profile = json!({
        "apiVersion": "pillion.dev/v1alpha1", "kind": "ClusterInjectionProfile", "metadata": {"name": "covered"},
        "spec": {"activation": "Always", "safetyNet": true, "template": {"metadata": {"annotations": {"covered": "yes"}}}},
    });
    control_plane.apply_yaml(&profile.to_string()).await?;
    eventually(PATIENCE, "the safety net's policy exists", async || {
        let left = left(control_plane).await?;
        ensure!(left.iter().filter(|name| name.ends_with(POLICY)).count() == 2, "{left:?}");
        Ok(())
    })
    .await
}

#[test]
#[allow(clippy::print_stdout, reason = "the test prints its measurements")]
fn damaged_uninstall_leaves_cluster_usable() {
    // The test runs eight installations in turn.
    Isolation::new().time_limit(Duration::from_mins(20)).run(|| async {
        let mut control_plane = ControlPlane::start().await?;
        let _controllers = ControllerManager::with(&control_plane, CONTROLLERS).await?;
        control_plane.create_namespace("team-a", &[("pillion.dev/injection", "required")]).await?;
        for loss in LOSSES {
            let mut values = values(&json!(["nginx"]));
            values["safetyNet"] = json!({"enabled": true});
            let install = ["install", "pillion", "--create-namespace"];
            helm_ok(&control_plane, &install, Some(&values)).await.with_context(|| format!("before {loss:?}"))?;
            let (rig, controllers) = run(control_plane).await?;
            rig.wait_until_called("team-a").await?;
            create_safety_net(&rig.control_plane).await?;
            let begun = Instant::now();
            control_plane = lose_and_delete(rig, controllers, loss).await.with_context(|| format!("{loss:?}"))?;
            can_create_pods(&control_plane, loss).await?;
            let took = begun.elapsed();
            let left = eventually(SOON, "webhook configurations and policies are deleted", async || {
                let left = left(&control_plane).await?;
                let acts = |name: &&String| {
                    name.contains("webhookconfiguration") || name.ends_with("/pillion-held") || name.ends_with(POLICY)
                };
                ensure!(!left.iter().any(|name| acts(&name)), "{left:#?}");
                Ok(left)
            })
            .await?;
            // Helm's record of the release was in the deleted namespace, so Helm cannot delete the cluster-scoped
            // objects.
            if loss != Loss::Namespace {
                ensure!(left.is_empty(), "after the loss of {loss:?}: {left:?}");
            }
            if loss == Loss::Definitions {
                let gone = async || {
                    let found = control_plane.kubectl_ok(&["get", "crds", "--output=name"]).await?;
                    ensure!(!found.contains("pillion.dev"), "{found}");
                    Ok(())
                };
                eventually(2 * PATIENCE, "the CRDs are deleted", gone).await?;
            }
            println!("uninstall: without {loss:?} pods are created {took:.1?} after; {} objects left", left.len());
        }
        // A new installation works as on a fresh cluster.
        helm_ok(&control_plane, &["install", "pillion", "--create-namespace"], Some(&values(&json!(["nginx"]))))
            .await?;
        let listed = helm(&control_plane, &["list", "--short"], None).await?;
        ensure!(String::from_utf8_lossy(&listed.stdout).trim() == "pillion");
        let (rig, _controllers) = run(control_plane).await?;
        rig.wait_until_called("team-a").await
    });
}
