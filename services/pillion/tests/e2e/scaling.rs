//! Only one source sets the number of replicas: the chart values, an administrator with `kubectl scale`, or a
//! `HorizontalPodAutoscaler`. Upgrades use the real helm with server-side apply, and must preserve the number.

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::autoscaling::v2::HorizontalPodAutoscaler;
use kube::api::{Api, Patch, PatchParams};
use pillion_testkit::registration::NAMESPACE;
use pillion_testkit::{ControlPlane, isolated};
use serde_json::{Value as Json, json};

use crate::chart::helm_ok;

struct Release {
    control_plane: ControlPlane,
    /// Whether the test has renamed Helm's field manager, as if another installer had written the objects.
    is_renamed: bool,
}

impl Release {
    /// Installs or upgrades the release with these webhook values and a new label. Returns the number of replicas, and
    /// whether the release sets it.
    async fn with(&self, label: &str, webhook: &Json) -> Result<(i32, bool)> {
        let mut webhook = webhook.clone();
        webhook["podLabels"] = json!({"round": label});
        let values = json!({"crds": {"upgrade": false}, "webhook": webhook});
        // An installer with a different field manager must force the change of the fields.
        let arguments = ["upgrade", "--install", "--force-conflicts", "pillion"];
        let arguments = if self.is_renamed { &arguments[..] } else { &["upgrade", "--install", "pillion"] };
        helm_ok(&self.control_plane, arguments, Some(&values)).await.context(label.to_owned())?;
        let manifest = helm_ok(&self.control_plane, &["get", "manifest", "pillion"], None).await?;
        let objects: Vec<Json> = serde_saphyr::from_multiple(&manifest)?;
        let rendered = objects
            .iter()
            .find(|object| object["metadata"]["name"] == "pillion-webhook" && object["kind"] == "Deployment");
        let deployment = self.deployments().get("pillion-webhook").await?.spec;
        let labels = deployment.template.metadata.and_then(|metadata| metadata.labels).context("labels")?;
        ensure!(labels["round"] == label, "the upgrade did nothing");
        let replicas = deployment.replicas.context("replicas")?;
        Ok((replicas, rendered.context("the Deployment")?["spec"].get("replicas").is_some()))
    }

    fn deployments(&self) -> Api<Deployment> {
        Api::namespaced(self.control_plane.client(), NAMESPACE)
    }

    /// Changes the number of replicas, like the autoscaler's controller.
    async fn autoscale(&self, replicas: i32) -> Result<()> {
        let parameters =
            PatchParams { field_manager: Some("kube-controller-manager".to_owned()), ..PatchParams::default() };
        let patch = Patch::Merge(json!({"spec": {"replicas": replicas}}));
        self.deployments().patch_scale("pillion-webhook", &parameters, &patch).await?;
        Ok(())
    }

    async fn has_autoscaler(&self) -> Result<bool> {
        let autoscalers: Api<HorizontalPodAutoscaler> = Api::namespaced(self.control_plane.client(), NAMESPACE);
        Ok(autoscalers.get_opt("pillion-webhook").await?.is_some())
    }
}

#[test]
#[allow(clippy::print_stdout, reason = "the test prints its measurements")]
fn upgrade_preserves_manual_scaling() {
    isolated(|| async {
        let release = Release { control_plane: ControlPlane::start().await?, is_renamed: false };
        release.control_plane.create_namespace(NAMESPACE, &[]).await?;
        let (plain, auto) = (json!({}), json!({"autoscaling": {"enabled": true}}));

        ensure!(release.with("installed", &plain).await? == (3, true));
        ensure!(release.with("more", &json!({"replicaCount": 4})).await? == (4, true));

        // When autoscaling is enabled, the number of replicas is preserved, and is not reset to 1.
        let (replicas, _) = release.with("switched-on", &auto).await?;
        ensure!(replicas == 4 && release.has_autoscaler().await?, "{replicas}");
        let (replicas, _) = release.with("not-scaled-yet", &auto).await?;
        ensure!(replicas == 4, "{replicas}");
        release.autoscale(7).await?;
        let scaled = release.with("scaled", &auto).await?;
        ensure!(scaled == (7, false), "manual scaling is preserved, and the release sets no replicas: {scaled:?}");
        release.autoscale(9).await?;
        let again = release.with("scaled-again", &auto).await?;
        ensure!(again == (9, false), "{again:?}");

        // When autoscaling is disabled, the number of replicas is also preserved, and an administrator can change it
        // afterwards.
        let (replicas, _) = release.with("switched-off", &plain).await?;
        ensure!(replicas == 9 && !release.has_autoscaler().await?, "{replicas}");
        let scale = ["--namespace", NAMESPACE, "scale", "deployment/pillion-webhook", "--replicas=5"];
        release.control_plane.kubectl_ok(&scale).await?;
        let (replicas, _) = release.with("by-hand", &plain).await?;
        ensure!(replicas == 5, "{replicas}");

        // Now autoscaling is enabled from the first installation on.
        helm_ok(&release.control_plane, &["uninstall", "pillion", "--no-hooks"], None).await?;
        let first = release.with("autoscaled-from-the-beginning", &auto).await?;
        ensure!(first == (3, true), "the autoscaler's minimum, until it scales: {first:?}");
        release.autoscale(6).await?;
        let scaled = release.with("autoscaled-since", &auto).await?;
        ensure!(scaled == (6, false), "{scaled:?}");
        println!(
            "scaling: replicas over eight upgrades: 3, 4, 4, 4, 7, 9, 9, 5; none rendered once an autoscaler has scaled"
        );
        Ok(())
    });
}

/// Simulates an installer with its own field manager, such as Flux's helm-controller or a Terraform provider. The real
/// installers cause no conflicts, since they own the fields that they change.
#[test]
fn other_installer_does_not_count_as_scaling() {
    isolated(|| async {
        let mut release = Release { control_plane: ControlPlane::start().await?, is_renamed: false };
        release.control_plane.create_namespace(NAMESPACE, &[]).await?;
        ensure!(release.with("installed", &json!({})).await? == (3, true));
        let rename =
            json!([{"op": "replace", "path": "/metadata/managedFields/0/manager", "value": "helm-controller"}]);
        let rename: json_patch::Patch = serde_json::from_value(rename)?;
        let rename = Patch::<()>::Json(rename);
        let renamed = release.deployments().patch("pillion-webhook", &PatchParams::default(), &rename).await?;
        let managers = renamed.metadata.managed_fields.context("managers")?;
        ensure!(managers.iter().all(|entry| entry.manager.as_deref() == Some("helm-controller")), "{managers:?}");
        release.is_renamed = true;
        let more = release.with("more", &json!({"replicaCount": 5})).await?;
        ensure!(more == (5, true), "without scaling, the values set the replicas: {more:?}");
        Ok(())
    });
}
