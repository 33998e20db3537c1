//! Tests the audit with the real API server. Some test pods were created while no webhook was called, or before their
//! namespace opted in, or before their profile was edited or deleted. The audit must report exactly these pods in time,
//! with the cause.

#![allow(clippy::print_stdout, reason = "the test prints its durations")]

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use arc_swap::ArcSwap;
use k8s_openapi::api::core::v1::Pod;
use kube::Client;
use kube::api::{Api, DeleteParams, PostParams};
use pillion_api::webhook_configuration::{self, Settings};
use pillion_control::LeaderContext;
use pillion_control::Lookups;
use pillion_control::Publisher;
use pillion_control::Release;
use pillion_control::audit::{
    self, AuditChannels, AuditMetrics, AuditQuestion, AuditSettings, Audited, Cause, Finding, Reads, State,
};
use pillion_control::release::DEFAULT_CLUSTER_DOMAIN;
use pillion_control::revisions;
use pillion_engine::snapshot::Snapshot;
use pillion_testkit::namespace::replica_address;
use pillion_testkit::registration::{NAMESPACE, SERVER_NAME};
use pillion_testkit::{
    ControlPlane, Replica, ReplicaSpec, TestCa, eventually, isolated, isolated_with_crds, register_service,
    register_webhook,
};
use prometheus_client::registry::Registry;
use serde_json::{Value as Json, json};
use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;

use crate::rig::{NGINX, Rig, SOON, bare_pod, install_crds, names};

/// Time limit for the audit to report a finding.
const FOUND_WITHIN: Duration = Duration::from_secs(30);

/// A profile for pods with exactly one container. The test edits its template.
const CONDITIONAL: &str = "
apiVersion: pillion.dev/v1alpha1
kind: ClusterInjectionProfile
metadata: {name: single}
spec:
  activation: Always
  matchConditions: [{name: one, expression: 'object.spec.containers.size() == 1'}]
  template: {metadata: {annotations: {example.com/single: '1'}}}
";

/// Runs the audit like the leader. Also publishes the revisions with which the audit compares the pods.
pub(crate) struct Audit {
    pub(crate) audited: watch::Receiver<Audited>,
    pub(crate) questions: mpsc::Sender<AuditQuestion>,
    registry: Registry,
    stop: CancellationToken,
}

impl Drop for Audit {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

impl Audit {
    pub(crate) fn start(client: Client) -> Result<Self> {
        let release = Arc::new(Release::new("pillion", NAMESPACE, DEFAULT_CLUSTER_DOMAIN)?);
        let stop = CancellationToken::new();
        let served = Arc::new(ArcSwap::from_pointee(Snapshot::default()));
        let (publisher, status) = Publisher::new(Arc::clone(&served));
        let mut registry = Registry::default();
        let (sender, audited) = watch::channel(Audited::default());
        let (questions, asked) = mpsc::channel(1);
        let lookups = Some(Lookups::new(
            client.clone(),
            pillion_control::informer::lookups::Metrics::register(&mut Registry::default()),
        ));
        let parts = AuditChannels {
            published: served,
            status,
            reads: Reads { lookups, cluster: None },
            metrics: AuditMetrics::register(&mut registry, 10, 10),
            audited: sender,
            questions: asked,
        };
        let leading = LeaderContext { client, release, stop: stop.clone() };
        let publishing = revisions::Settings::default();
        tokio::spawn(revisions::run(leading.clone(), publishing, revisions::Metrics::default(), publisher));
        tokio::spawn(audit::run(leading, parts, AuditSettings::default()));
        Ok(Self { audited, questions, registry, stop })
    }

    /// Waits until a complete report contains exactly these findings. Each consists of a pod, a profile, a state and a
    /// cause.
    pub(crate) async fn wait_for_findings(&self, what: &str, expected: &[(&str, &str, State, Cause)]) -> Result<()> {
        let began = Instant::now();
        eventually(FOUND_WITHIN, what, async || {
            let report = Arc::clone(&self.audited.borrow().report);
            let found: Vec<_> = report.findings.iter().map(fields_of).collect();
            ensure!(report.is_complete && found == expected, "found {found:?}, complete {}", report.is_complete);
            Ok(())
        })
        .await?;
        println!("{what}: after {:?}", began.elapsed());
        Ok(())
    }

    /// Waits until a report is complete.
    async fn wait_until_complete(&self) -> Result<()> {
        eventually(FOUND_WITHIN, "the report is complete", async || {
            ensure!(self.audited.borrow().report.is_complete);
            Ok(())
        })
        .await
    }

    /// Waits until the metrics contain this line. A report may be older than the last pods, so the metrics are read
    /// repeatedly.
    async fn wait_for_metric(&self, line: &str) -> Result<()> {
        eventually(FOUND_WITHIN, "the metrics contain the line", async || {
            let mut text = String::new();
            prometheus_client::encoding::text::encode(&mut text, &self.registry)?;
            ensure!(text.lines().any(|found| found == line), "{line} is not in:\n{text}");
            Ok(())
        })
        .await
    }
}

fn fields_of(finding: &Finding) -> (&str, &str, State, Cause) {
    (&finding.pod, &finding.profile, finding.state, finding.cause)
}

/// Runs `pillion status`. Returns its exit code, standard output and standard error.
async fn status(control_plane: &ControlPlane, arguments: &[&str]) -> Result<(Option<i32>, String, String)> {
    let output = tokio::process::Command::new(env!("CARGO_BIN_EXE_pillion"))
        .args(["status", "--pods", "--kubeconfig"])
        .arg(control_plane.kubeconfig())
        .args(arguments)
        .output()
        .await?;
    let text = |bytes| String::from_utf8(bytes).context("text");
    Ok((output.status.code(), text(output.stdout)?, text(output.stderr)?))
}

async fn with_definitions() -> Result<ControlPlane> {
    let control_plane = ControlPlane::start().await?;
    install_crds(&control_plane).await?;
    control_plane.create_namespace(NAMESPACE, &[]).await?;
    Ok(control_plane)
}

async fn create(control_plane: &ControlPlane, namespace: &str, pod: &Json) -> Result<Json> {
    let pods: Api<Pod> = Api::namespaced(control_plane.client(), namespace);
    Ok(serde_json::to_value(pods.create(&PostParams::default(), &serde_json::from_value(pod.clone())?).await?)?)
}

fn labelled(name: &str, label: &str, value: &str) -> Json {
    let mut pod = bare_pod(name);
    pod["metadata"]["labels"] = json!({label: value});
    pod
}

/// Waits more than two seconds. Timestamps of objects are whole seconds, so the order of events that are closer
/// together is unknown.
async fn wait_for_later_timestamp() {
    tokio::time::sleep(Duration::from_millis(3_200)).await;
}

#[test]
fn audit_finds_missed_pods_with_cause() {
    isolated(|| async {
        let control_plane = with_definitions().await?;
        control_plane.apply_yaml(NGINX).await?;
        control_plane.apply_yaml(CONDITIONAL).await?;
        control_plane.create_namespace("team-a", &[("pillion.dev/injection", "enabled")]).await?;
        control_plane.create_namespace("team-b", &[]).await?;
        wait_for_later_timestamp().await;
        let audit = Audit::start(control_plane.client())?;
        audit.wait_until_complete().await?;
        create(&control_plane, "team-a", &bare_pod("lost")).await?;
        create(&control_plane, "team-a", &labelled("out", "pillion.dev/inject", "false")).await?;
        let mut two = bare_pod("two");
        two["metadata"].as_object_mut().context("a map")?.remove("annotations");
        two["spec"]["containers"] = json!([{"name": "a", "image": "a:1"}, {"name": "b", "image": "b:1"}]);
        create(&control_plane, "team-a", &two).await?;
        create(&control_plane, "team-b", &bare_pod("early")).await?;
        let away = [
            ("lost", "nginx", State::Missing, Cause::WebhookUnavailable),
            ("lost", "single", State::Missing, Cause::WebhookUnavailable),
        ];
        audit.wait_for_findings("pods created without a webhook", &away).await?;
        audit
            .wait_for_metric("pillion_controller_audit_findings{state=\"missing\",reason=\"webhook_unavailable\"} 2")
            .await?;
        audit.wait_for_metric("pillion_controller_audit_pods{state=\"opted_out\"} 1").await?;
        audit.wait_for_metric("pillion_controller_audit_pods{state=\"not_requested\"} 1").await?;

        // The namespace opts in after the pod was created.
        wait_for_later_timestamp().await;
        control_plane.kubectl_ok(&["label", "namespace", "team-b", "pillion.dev/injection=enabled"]).await?;
        let early = [
            ("early", "nginx", State::Missing, Cause::BeforeOptIn),
            ("early", "single", State::Missing, Cause::BeforeOptIn),
        ];
        audit.wait_for_findings("a pod from before its namespace opted in", &[away, early].concat()).await?;

        let (code, table, summary) = status(&control_plane, &[]).await?;
        ensure!(code == Some(1), "{code:?} {table} {summary}");
        let lines: Vec<_> = table.lines().map(|line| line.split("   ").last().unwrap_or_default().trim()).collect();
        let causes = ["created while no replica was ready", "created before the namespace was opted in"];
        ensure!(lines == ["CAUSE", causes[0], causes[0], causes[1], causes[1]], "{table}");
        ensure!(summary.contains("2 without a profile") && summary.contains("2 namespaces"), "{summary}");
        let (code, table, _) = status(&control_plane, &["--namespace", "team-b"]).await?;
        ensure!(code == Some(1) && table.lines().count() == 3 && !table.contains("lost"), "{table}");
        let (code, _, error) = status(&control_plane, &["-n", "default"]).await?;
        ensure!(code == Some(2) && error.contains("default is not opted in"), "{error}");

        let pods: Api<Pod> = Api::namespaced(control_plane.client(), "team-a");
        pods.delete("lost", &DeleteParams::default().grace_period(0)).await?;
        audit.wait_for_findings("a deleted pod is not a finding", &early).await
    });
}

#[test]
fn audit_finds_pods_with_changed_profiles() {
    isolated_with_crds(|| async {
        let rig = Rig::start_with(ControlPlane::builder(), &["--profiles-from", "revisions"], 1).await?;
        let control_plane = &rig.control_plane;
        control_plane.apply_yaml(CONDITIONAL).await?;
        let audit = Audit::start(control_plane.client())?;
        rig.namespace("team-a", Some("enabled")).await?;
        eventually(SOON, "both profiles are served", async || {
            let pod = rig.dry_run("team-a", &bare_pod("probe")).await?;
            ensure!(pod["metadata"]["annotations"]["example.com/single"] == "1", "{pod}");
            ensure!(names(&pod).contains(&"sidecar-nginx".to_owned()), "{pod}");
            Ok(())
        })
        .await?;
        let injected = rig.create("team-a", &bare_pod("web")).await?;
        ensure!(names(&injected).contains(&"sidecar-nginx".to_owned()), "{injected}");
        eventually(FOUND_WITHIN, "the audit reports the pod as injected", async || {
            let report = Arc::clone(&audit.audited.borrow().report);
            ensure!(report.is_complete && report.pods.injected == 1 && report.total() == 0, "{report:?}");
            Ok(())
        })
        .await?;
        let (code, table, summary) = status(control_plane, &[]).await?;
        ensure!(code == Some(0) && table.is_empty(), "{table} {summary}");
        ensure!(summary.contains("1 up to date"), "{summary}");

        control_plane.apply_yaml(&CONDITIONAL.replace("'1'}", "'2'}")).await?;
        let outdated = [("web", "single", State::Outdated, Cause::ProfileChanged)];
        audit.wait_for_findings("a pod with an older revision", &outdated).await?;

        // A pod that pins the older revision gets that revision, so the audit reports nothing about it.
        let old = injected["metadata"]["annotations"]["pillion.dev/injected"].as_str().context("a record")?;
        let old: Json = serde_json::from_str(old)?;
        let mut entries = old["profiles"].as_array().into_iter().flatten();
        let old = entries.find(|entry| entry["profile"] == "single").and_then(|entry| entry["revision"].as_str());
        let pin = format!("single@{}", old.context("a revision")?);
        let mut pinning = bare_pod("pinning");
        pinning["metadata"]["annotations"]["pillion.dev/profiles"] = json!(pin);
        // The replica has 250 ms to fetch the revision, and caches it afterwards.
        eventually(SOON, "the pinned revision is cached", async || {
            let pod = rig.dry_run("team-a", &pinning).await?;
            ensure!(pod["metadata"]["annotations"]["example.com/single"] == "1", "{pod}");
            Ok(())
        })
        .await?;
        let pinning = rig.create("team-a", &pinning).await?;
        ensure!(pinning["metadata"]["annotations"]["example.com/single"] == "1", "{pinning}");
        eventually(FOUND_WITHIN, "the audit reports the pinning pod as injected", async || {
            let report = Arc::clone(&audit.audited.borrow().report);
            ensure!(report.is_complete && report.pods.injected == 1 && report.total() == 1, "{report:?}");
            Ok(())
        })
        .await?;
        let (_, table, _) = status(control_plane, &[]).await?;
        ensure!(table.lines().count() == 2 && !table.contains("pinning"), "{table}");
        rig.pods("team-a").delete("pinning", &DeleteParams::default().grace_period(0)).await?;

        // A profile that the controller does not accept has no effect on pods.
        control_plane.apply_yaml(&CONDITIONAL.replace("== 1", "= 1")).await?;
        wait_for_later_timestamp().await;
        audit.wait_for_findings("only the pod with the older revision", &outdated).await?;
        let (_, table, _) = status(control_plane, &[]).await?;
        ensure!(table.lines().count() == 2 && table.contains("outdated"), "{table}");
        control_plane.kubectl_ok(&["delete", "ciprof", "single"]).await?;
        let orphaned = [("web", "single", State::Orphaned, Cause::ProfileDeleted)];
        audit.wait_for_findings("a pod with a deleted profile", &orphaned).await?;
        let counts = audit.audited.borrow().report.profiles["nginx"];
        ensure!((counts.injected, counts.missing) == (1, 0), "{counts:?}");
        Ok(())
    });
}

#[test]
fn audit_names_kill_switch_and_survives_outage() {
    isolated(|| async {
        let mut control_plane = with_definitions().await?;
        control_plane.apply_yaml(NGINX).await?;
        control_plane.create_namespace("team-a", &[("pillion.dev/injection", "enabled")]).await?;
        // Starts a replica that is ready, but that no API server can call.
        let ca = TestCa::new()?;
        let tls = ca.serving_files(control_plane.directory(), "serving", &[SERVER_NAME])?;
        let spec = ReplicaSpec::new(env!("CARGO_BIN_EXE_pillion"), control_plane.kubeconfig(), tls);
        let replica = Replica::start(&spec, replica_address(1)).await?;
        register_service(&control_plane.client(), &[replica.address()]).await?;
        // The webhook configuration trusts a different CA, so every call fails.
        let mut settings = Settings::new(NAMESPACE, TestCa::new()?.bundle_pem());
        settings.excluded_namespaces.push("team-b".to_owned());
        control_plane.create_namespace("team-b", &[("pillion.dev/injection", "enabled")]).await?;
        register_webhook(&control_plane.client(), &webhook_configuration::mutating(&settings)).await?;
        let off = json!({"apiVersion": "v1", "kind": "ConfigMap", "data": {"injection": "disabled"},
            "metadata": {"name": "pillion", "namespace": NAMESPACE}});
        control_plane.apply_yaml(&off.to_string()).await?;
        wait_for_later_timestamp().await;
        let audit = Audit::start(control_plane.client())?;
        audit.wait_until_complete().await?;
        create(&control_plane, "team-b", &bare_pod("excluded")).await?;
        create(&control_plane, "team-a", &bare_pod("lost")).await?;
        let lost = ("lost", "nginx", State::Missing, Cause::SwitchedOff);
        audit.wait_for_findings("switched off", &[lost]).await?;
        let (code, table, _) = status(&control_plane, &[]).await?;
        ensure!(code == Some(1) && table.lines().count() == 2, "{table}");
        let (code, _, error) = status(&control_plane, &["-n", "team-b"]).await?;
        ensure!(code == Some(2) && error.contains("team-b is excluded"), "{error}");

        // The audit keeps its findings while the API server is down, and continues afterwards.
        control_plane.restart_api_server().await?;
        create(&control_plane, "team-a", &bare_pod("other")).await?;
        audit.wait_for_findings("after the API server was down", &[lost, ("other", "nginx", lost.2, lost.3)]).await
    });
}
