//! Tests the audit's reports with the real CRD of openreports.io, the real API server, and the permissions that the
//! chart grants.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use futures::stream::{self, StreamExt, TryStreamExt};
use kube::Client;
use kube::api::{Api, DeleteParams, DynamicObject, ListParams, PostParams};
use kube::core::{ApiResource, GroupVersionKind};
use pillion_control::audit::open_reports::{self, metrics::OpenReportMetrics};
use pillion_control::release::DEFAULT_CLUSTER_DOMAIN;
use pillion_control::{LeaderContext, Release};
use pillion_testkit::control_plane::client_of;
use pillion_testkit::registration::NAMESPACE;
use pillion_testkit::{ControlPlane, eventually, isolated_with_crds, tools};
use prometheus_client::registry::Registry;
use serde_json::{Value as Json, json};
use tokio_util::sync::CancellationToken;

use crate::audit::Audit;
use crate::chart::helm_ok;
use crate::rbac::{CONTROLLER, kubeconfig};
use crate::rig::{NGINX, PATIENCE, Rig, bare_pod, names};

/// Number of pods with findings, more than a report lists.
const MANY: usize = 1_005;

/// Returns the CRD of reports. Must be called before the test enters its own network.
fn crd() -> Result<String> {
    let module = tools::go_module("openreports", "github.com/openreports/reports-api")?;
    Ok(std::fs::read_to_string(module.join("config/crd/openreports.io_reports.yaml"))?)
}

/// Writes reports like the leader, until it is dropped.
struct Writer {
    registry: Registry,
    stop: CancellationToken,
}

impl Drop for Writer {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

impl Writer {
    fn start(client: Client, audit: &Audit) -> Result<Self> {
        let release = Arc::new(Release::new("pillion", NAMESPACE, DEFAULT_CLUSTER_DOMAIN)?);
        let (mut registry, stop) = (Registry::default(), CancellationToken::new());
        let metrics = OpenReportMetrics::register(&mut registry);
        let leading = LeaderContext { client, release, stop: stop.clone() };
        tokio::spawn(open_reports::run(leading, audit.audited.clone(), audit.questions.clone(), metrics));
        Ok(Self { registry, stop })
    }

    /// Returns the value of a metric.
    fn metric(&self, name: &str) -> Result<u64> {
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &self.registry)?;
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        Ok(line.with_context(|| format!("no {name} in {text}"))?.parse()?)
    }
}

fn reports(client: Client) -> Api<DynamicObject> {
    let kind = GroupVersionKind::gvk("openreports.io", "v1alpha1", "Report");
    Api::all_with(client, &ApiResource::from_gvk(&kind))
}

/// Waits until the reports have the expected values: the namespace, the summary's pass, fail, warn and skip, and the
/// number of listed results. Returns the reports.
async fn wait_for_reports(control_plane: &ControlPlane, what: &str, expected: &[Json]) -> Result<Vec<Json>> {
    eventually(PATIENCE, what, async || {
        let list = reports(control_plane.client()).list(&ListParams::default()).await?;
        let all = list.items.iter().map(serde_json::to_value).collect::<Result<Vec<_>, _>>()?;
        let row = |report: &Json| {
            let summary = &report["summary"];
            let results = report["results"].as_array().map_or(0, Vec::len);
            let counts = ["pass", "fail", "warn", "skip"].map(|count| &summary[count]);
            json!([report["metadata"]["namespace"], counts[0], counts[1], counts[2], counts[3], results])
        };
        let found: Vec<_> = all.iter().map(row).collect();
        ensure!(found == expected, "{what}: {}", json!(found));
        Ok(all)
    })
    .await
}

/// Applies the controller's roles, and the chart's roles for reports.
async fn grant(control_plane: &ControlPlane) -> Result<()> {
    control_plane.apply_yaml(CONTROLLER).await?;
    let arguments = ["template", "pillion", "--show-only", "templates/rbac-controller.yaml"];
    let roles = helm_ok(control_plane, &arguments, Some(&json!({"audit": {"openReports": true}}))).await?;
    let granted = roles.split("\n---\n").filter(|role| role.contains("name: pillion-controller-reports"));
    let granted: Vec<_> = granted.collect();
    ensure!(granted.len() == 2, "{roles}");
    control_plane.apply_yaml(&granted.join("\n---\n")).await?;
    Ok(())
}

/// Deletes a namespace in place of the namespace controller, which does not run here. The objects in the namespace
/// remain, including its report.
async fn delete_namespace(control_plane: &ControlPlane, name: &str) -> Result<()> {
    control_plane.kubectl_ok(&["delete", "namespace", name, "--wait=false"]).await?;
    let finalize = format!("/api/v1/namespaces/{name}/finalize");
    let body = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}, "spec": {"finalizers": []}});
    let put = control_plane.kubectl_with_input(&["replace", "--raw", &finalize, "-f", "-"], &body.to_string()).await?;
    ensure!(put.status.success(), "{}", String::from_utf8_lossy(&put.stderr));
    Ok(())
}

#[test]
fn reports_follow_findings() {
    let crd = crd();
    isolated_with_crds(|| async {
        let rig = Rig::start_with(ControlPlane::builder(), &["--profiles-from", "revisions"], 1).await?;
        let control_plane = &rig.control_plane;
        rig.namespace("team-a", Some("enabled")).await?;
        rig.namespace("team-b", None).await?;
        grant(control_plane).await?;
        let client = client_of(&kubeconfig(control_plane, "controller").await?).await?;
        let audit = Audit::start(client.clone())?;

        // Without the CRD, the state is a metric, and no request is sent for any namespace.
        rig.wait_until_called("team-a").await?;
        let web = rig.create("team-a", &bare_pod("web")).await?;
        ensure!(names(&web).contains(&"sidecar-nginx".to_owned()), "{web}");
        let writer = Writer::start(client.clone(), &audit)?;
        eventually(PATIENCE, "the missing CRD is reported", async || {
            ensure!(writer.metric("pillion_controller_open_reports{state=\"not_installed\"}")? == 1);
            Ok(())
        })
        .await?;
        ensure!(writer.metric("pillion_controller_open_report_writes_total{result=\"failed\"}")? == 0);
        drop(writer);

        control_plane.apply_yaml(&crd?).await?;
        control_plane.wait_for_crds(&["reports.openreports.io"]).await?;
        let writer = Writer::start(client.clone(), &audit)?;
        let all = wait_for_reports(control_plane, "an injected pod", &[json!(["team-a", 1, 0, 0, 0, 0])]).await?;
        ensure!(all[0]["metadata"]["labels"]["app.kubernetes.io/managed-by"] == "pillion", "{all:#?}");
        ensure!(all[0]["source"] == "pillion" && all[0]["metadata"]["name"] == "pillion", "{all:#?}");

        // The profile is edited, so the pod has an older revision.
        control_plane.apply_yaml(&NGINX.replace("nginx:1.29", "nginx:1.30")).await?;
        let all = wait_for_reports(control_plane, "an outdated pod", &[json!(["team-a", 0, 0, 1, 0, 1])]).await?;
        let result = &all[0]["results"][0];
        ensure!(result["policy"] == "nginx" && result["rule"] == "outdated" && result["result"] == "warn", "{result}");
        ensure!(result["resources"][0]["name"] == "web" && result["resources"][0]["kind"] == "Pod", "{result}");
        let properties = &result["properties"];
        ensure!(properties["reason"] == "profile_changed", "{result}");
        let revisions = [&properties["revision"], &properties["expectedRevision"]];
        ensure!(revisions.iter().all(|revision| revision.is_string()) && revisions[0] != revisions[1], "{result}");

        // The next leader writes the same report, which the API server does not store again.
        let version = all[0]["metadata"]["resourceVersion"].clone();
        drop(writer);
        let writer = Writer::start(client, &audit)?;
        eventually(PATIENCE, "the next leader has written the report", async || {
            ensure!(writer.metric("pillion_controller_open_report_writes_total{result=\"written\"}")? >= 1);
            Ok(())
        })
        .await?;
        let all = wait_for_reports(control_plane, "the same report", &[json!(["team-a", 0, 0, 1, 0, 1])]).await?;
        ensure!(all[0]["metadata"]["resourceVersion"] == version, "{:#}", all[0]);

        // Pods from before the opt-in, more than a report lists.
        let (pods, parameters) = (rig.pods("team-b"), PostParams::default());
        let create = async |number| {
            let pod = serde_json::from_value(bare_pod(&format!("early-{number}")))?;
            anyhow::Ok(pods.create(&parameters, &pod).await?)
        };
        stream::iter(0..MANY).map(create).buffer_unordered(16).try_collect::<Vec<_>>().await?;
        tokio::time::sleep(Duration::from_secs(3)).await;
        rig.label_namespace("team-b", "pillion.dev/injection", "enabled").await?;
        let both = [json!(["team-a", 0, 0, 1, 0, 1]), json!(["team-b", 0, MANY, 0, 0, 1_000])];
        let all = wait_for_reports(control_plane, "a bounded report", &both).await?;
        ensure!(all[1]["results"][0]["properties"]["reason"] == "before_opt_in", "{}", all[1]["results"][0]);

        // A deleted pod and a deleted namespace.
        rig.pods("team-a").delete("web", &DeleteParams::default().grace_period(0)).await?;
        delete_namespace(control_plane, "team-b").await?;
        wait_for_reports(control_plane, "no results, no report", &[]).await?;
        let failed = writer.metric("pillion_controller_open_report_writes_total{result=\"failed\"}")?;
        ensure!(failed == 0, "{failed} requests failed");
        Ok(())
    });
}
