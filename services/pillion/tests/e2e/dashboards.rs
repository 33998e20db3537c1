//! Tests the dashboards and alerts with a complete cluster. Panels about the API server must have data too, and real
//! faults must fire the right alerts. Time windows last seconds instead of minutes, and alerts have no `for` duration.

#![allow(clippy::print_stdout, reason = "the test prints the alerts that fire")]

mod pictures;

use std::collections::BTreeSet;
use std::fs;
use std::io::Write;
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use pillion_testkit::replica::{METRICS_PORT, WEBHOOK_PORT};
use pillion_testkit::{ControlPlane, Isolation, Replica, eventually, tools};
use serde_json::Value as Json;

use crate::direct::{Direct, review};
use crate::managed::{Managed, QUICK};
use crate::prometheus::Prometheus;
use crate::rig::{REJECTED, SOON, bare_pod};
use crate::rotation::Damage;

/// Time limit for an alert to fire. It is several times as long as a window.
const FIRES_WITHIN: Duration = Duration::from_mins(1);
/// Alerts that must not fire in a healthy cluster.
const INACTIVE_ALERTS: [&str; 28] = [
    "PillionAuditIncomplete",
    "PillionCacheStale",
    "PillionCallsFail",
    "PillionClocksDiffer",
    "PillionConfigurationContested",
    "PillionWebhooksDisabled",
    "PillionDown",
    "PillionEndpointInvalid",
    "PillionErrorBudgetBurnsFast",
    "PillionErrorBudgetBurnsSlowly",
    "PillionFailedOpen",
    "PillionHandshakesFail",
    "PillionHeldPoliciesFail",
    "PillionInjectedPodsRejected",
    "PillionCertificateNotLoaded",
    "PillionNoLeader",
    "PillionNotScraped",
    "PillionPanicked",
    "PillionPatchRejected",
    "PillionPodsHeld",
    "PillionPodsNotInjected",
    "PillionRedundancyLost",
    "PillionRolloutFailed",
    "PillionRotationBlocked",
    "PillionRotationNotReconciled",
    "PillionSelfCheckFailed",
    "PillionShedding",
    "PillionSwitchedOff",
];
/// Placeholders for names. The test does not run commands of runbooks that contain one.
const PLACEHOLDERS: [&str; 3] = [" NAME", "/NAME", " -n NAMESPACE"];
/// Alerts that fire from the start, since the CA is valid for only a month.
const FOR_EXPIRING_CA: [&str; 2] = ["PillionCAExpiresSoon", "PillionCAExpiring"];
/// Alerts that fire when requests get no decision.
const FOR_UNDECIDED_REQUESTS: [&str; 3] =
    ["PillionErrorBudgetBurnsFast", "PillionErrorBudgetBurnsSlowly", "PillionShedding"];
/// Alerts that fire when certificates are not renewed.
const FOR_EXPIRING_CERTIFICATE: [&str; 2] = ["PillionCertificateExpiresSoon", "PillionCertificateExpiring"];

fn folder(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../dashboards").join(name)
}

fn texts(name: &str, ending: &str) -> Result<Vec<(String, String)>> {
    let mut texts = Vec::new();
    for entry in fs::read_dir(folder(name))? {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == ending) {
            let name = path.file_name().and_then(|name| name.to_str()).context("a name")?;
            texts.push((name.to_owned(), fs::read_to_string(&path)?));
        }
    }
    texts.sort();
    Ok(texts)
}

/// Returns the rules, with windows of ten seconds and without `for` durations.
fn scaled(rules: &str) -> String {
    let lines: Vec<_> = rules.lines().filter(|line| !line.starts_with("        for: ")).collect();
    let mut text = lines.join("\n") + "\n";
    for window in ["5m", "10m", "15m", "30m", "1h", "6h"] {
        text = text.replace(&format!("[{window}]"), "[10s]").replace(&format!("offset {window}"), "offset 10s");
    }
    text
}

/// Starts a Prometheus that scrapes all components and the API server.
async fn start_prometheus(managed: &Managed) -> Result<Prometheus> {
    let control_plane = &managed.rig.control_plane;
    let jsonpath = "jsonpath={.users[0].user.token}";
    let token = control_plane.kubectl_ok(&["config", "view", "--raw", "--output", jsonpath]).await?;
    let api_server = control_plane.url().trim_start_matches("https://").to_owned();
    let addresses = |replicas: &[Replica]| {
        let all = replicas.iter().map(|replica| format!("{}:{METRICS_PORT}", replica.address()));
        all.collect::<Vec<_>>()
    };
    let rules = texts("rules", "yaml")?.into_iter().map(|(name, text)| (format!("rules-{name}"), scaled(&text)));
    let rules: Vec<_> = rules.collect();
    let files: Vec<_> = rules.iter().map(|(name, text)| (&**name, &**text)).collect();
    // The API server exports many metrics, so its scrape has a longer timeout.
    let config = format!(
        "rule_files: ['rules-*.yaml']\n\
         scrape_configs:\n\
         - {{job_name: pillion, static_configs: [{{targets: {:?}, labels: {{namespace: pillion-system}}}}]}}\n\
         - {{job_name: pillion-controller, static_configs: [{{targets: {:?}, labels: {{namespace: pillion-system}}}}]}}\n\
         - {{job_name: apiserver, scrape_interval: 2s, scrape_timeout: 2s, scheme: https, \
             tls_config: {{insecure_skip_verify: true}}, \
             authorization: {{credentials: {token:?}}}, static_configs: [{{targets: [{api_server:?}]}}]}}\n",
        addresses(&managed.rig.replicas),
        addresses(&managed.controllers),
    );
    Ok(Prometheus::with(&config, &files))
}

/// Waits until all alerts in `wanted` fire and no alert in `others` fires.
async fn wait_for_alerts(prometheus: &Prometheus, what: &str, wanted: &[&str], others: &[&str]) -> Result<()> {
    let began = std::time::Instant::now();
    eventually(FIRES_WITHIN, what, async || {
        let firing = prometheus.firing();
        let names: BTreeSet<_> = firing.iter().filter_map(|labels| labels["alertname"].as_str()).collect();
        let lacks: Vec<_> = wanted.iter().filter(|name| !names.contains(**name)).collect();
        let too_many: Vec<_> = others.iter().filter(|name| names.contains(**name)).collect();
        ensure!(lacks.is_empty() && too_many.is_empty(), "{lacks:?} do not fire, {too_many:?} do; firing: {firing:?}");
        Ok(())
    })
    .await?;
    println!("{what}: {wanted:?} after {:.0?}", began.elapsed());
    Ok(())
}

/// Merges the JSON object `data` into the data of the ConfigMap `pillion` with kubectl.
async fn set(managed: &Managed, data: &str) -> Result<()> {
    let patch = format!(r#"{{"data":{data}}}"#);
    let arguments =
        ["--namespace", "pillion-system", "patch", "configmap", "pillion", "--type", "merge", "--patch", &patch];
    managed.rig.control_plane.kubectl_ok(&arguments).await?;
    Ok(())
}

/// Changes the webhook configuration, and waits until it is restored.
async fn change_configuration(managed: &Managed) -> Result<()> {
    const THEIRS: i32 = 11;
    let patch = format!(r#"[{{"op":"replace","path":"/webhooks/0/timeoutSeconds","value":{THEIRS}}}]"#);
    let arguments = ["patch", "mutatingwebhookconfiguration", "pillion", "--type", "json", "--patch", &patch];
    managed.rig.control_plane.kubectl_ok(&arguments).await?;
    eventually(SOON, "the configuration is restored", async || {
        let entries = managed.configurations().get("pillion").await?.webhooks.unwrap_or_default();
        ensure!(entries.iter().all(|entry| entry.timeout_seconds != Some(THEIRS)));
        Ok(())
    })
    .await
}

/// Runs every command of the runbooks that contains no placeholder, once. Retries a failed command until it succeeds,
/// since some delete objects that the controllers recreate and that later commands read. Returns the number of
/// commands.
async fn run_runbooks(managed: &Managed) -> Result<usize> {
    let kubectl = tools::program("kubectl")?;
    let pillion = Path::new(env!("CARGO_BIN_EXE_pillion")).parent().context("a folder")?;
    let kubectls = kubectl.parent().context("a folder")?;
    let path = format!("{}:{}:{}", kubectls.display(), pillion.display(), std::env::var("PATH").unwrap_or_default());
    let kubeconfig = managed.rig.control_plane.kubeconfig();
    let mut run = BTreeSet::new();
    for (name, text) in texts("../docs/runbooks", "md")? {
        let blocks = text.split("```sh\n").skip(1).filter_map(|rest| rest.split_once("\n```"));
        for line in blocks.flat_map(|(block, _)| block.lines()) {
            if PLACEHOLDERS.iter().any(|word| line.contains(word)) || !run.insert(line.to_owned()) {
                continue;
            }
            eventually(2 * FIRES_WITHIN, &name, async || {
                let mut command = tokio::process::Command::new("sh");
                command.args(["-ec", line]).env("PATH", &path).kill_on_drop(true);
                command.env("KUBECONFIG", &kubeconfig).env("PILLION_KUBECONFIG", &kubeconfig);
                let output = command.output().await?;
                // `pillion status` exits with 1 if it has findings, which is a valid result here.
                let has_findings = line.starts_with("pillion status") && output.status.code() == Some(1);
                let is_expected = output.status.success() || has_findings;
                ensure!(is_expected, "{line}\n{}", String::from_utf8_lossy(&output.stderr));
                Ok(())
            })
            .await?;
        }
    }
    Ok(run.len())
}

/// Creates pods that a profile makes invalid, until the alert for rejected pods fires.
async fn expect_rejected_pods_alert(managed: &Managed, prometheus: &Prometheus) -> Result<()> {
    let kubectl = &managed.rig.control_plane;
    kubectl.apply_yaml(REJECTED).await?;
    // A replica that does not serve the profile yet does not make the pod invalid.
    let rejected = async |number: usize| {
        let mut pod = bare_pod(&format!("rejected-{number}"));
        pod["metadata"]["annotations"]["pillion.dev/profiles"] = "rejected".into();
        managed.rig.create("team-a", &pod).await.is_err_and(|error| format!("{error:#}").contains("successThreshold"))
    };
    let mut number = 0;
    eventually(FIRES_WITHIN, "injected pods are rejected", async || {
        number += 1;
        ensure!(rejected(number).await);
        let firing = prometheus.firing();
        ensure!(firing.iter().any(|labels| labels["alertname"] == "PillionInjectedPodsRejected"), "{firing:?}");
        Ok(())
    })
    .await?;
    println!("PillionInjectedPodsRejected after {number} pods");
    kubectl.kubectl_ok(&["delete", "ciprof", "rejected"]).await?;
    Ok(())
}

/// Waits until each query of each panel returns a number, and creates pods in the meantime. Returns the number of
/// queries.
async fn expect_data_in_panels(managed: &Managed, prometheus: &Prometheus) -> Result<usize> {
    let mut asked = 0;
    for (name, text) in texts("", "json")? {
        let dashboard: Json = serde_json::from_str(&text)?;
        let panels = dashboard["panels"].as_array().context("panels")?;
        for target in panels.iter().filter_map(|panel| panel["targets"].as_array()).flatten() {
            let query = target["expr"].as_str().context("an expression")?;
            let query = query.replace("$__rate_interval", "20s").replace("$__range", "1m");
            let query = query.replace("$cluster_label", "cluster");
            let variables = ["$cluster", "$namespace", "$job", "$instance", "$tenant", "$profile"];
            let query = variables.iter().fold(query, |query, name| query.replace(name, ".*"));
            eventually(FIRES_WITHIN, &format!("{name}: {query}"), async || {
                let values = prometheus.query(&query).map_err(anyhow::Error::msg)?;
                if !values.is_empty() && values.iter().any(|value| !value.is_nan()) {
                    return Ok(());
                }
                managed.rig.dry_run("team-a", &bare_pod("load")).await?;
                anyhow::bail!("found {values:?}")
            })
            .await?;
            asked += 1;
        }
    }
    Ok(asked)
}

/// Sets the kill switch, then disables the webhooks, and checks the alert for each.
async fn expect_switch_alerts(managed: &Managed, prometheus: &Prometheus) -> Result<()> {
    set(managed, r#"{"injection":"disabled"}"#).await?;
    wait_for_alerts(prometheus, "the kill switch is set", &["PillionSwitchedOff"], &["PillionWebhooksDisabled"])
        .await?;
    set(managed, r#"{"injection":"enabled"}"#).await?;
    wait_for_alerts(prometheus, "it is not set any more", &[], &["PillionSwitchedOff"]).await?;
    set(managed, r#"{"webhooks":"disabled"}"#).await?;
    wait_for_alerts(prometheus, "disabled", &["PillionWebhooksDisabled"], &["PillionSwitchedOff"]).await?;
    set(managed, r#"{"webhooks":"enabled"}"#).await?;
    wait_for_alerts(prometheus, "enabled", &[], &["PillionWebhooksDisabled"]).await
}

/// Sends requests whose deadline passes before the replica can decide.
async fn exceed_deadlines(replica: &Replica) -> Result<()> {
    let (direct, late) = (Direct::to(replica)?, review("late", "team-a", &bare_pod("late")));
    for _ in 0..5 {
        // The client retries rejected requests. The test does not wait for these retries, but only long enough for the
        // connection.
        let response = direct.answer("/mutate/enabled?timeout=1us", &late);
        let response = tokio::time::timeout(Duration::from_secs(1), response).await;
        ensure!(!matches!(response, Ok(Ok(_))), "decided after the deadline");
    }
    Ok(())
}

#[test]
fn real_faults_fire_expected_alerts() {
    Isolation::new().with_crds().time_limit(Duration::from_mins(15)).run(|| async {
        let policy = QUICK.replace("  interval: 1s\n", "  interval: 1s\n  caLifetime: 700h\n  rotateAfter: 350h\n");
        ensure!(policy != QUICK);
        let mut managed = Managed::start(ControlPlane::builder(), &policy, 2, 2).await?;
        managed.rig.namespace("shop", Some("required")).await?;
        managed.rig.create("team-a", &bare_pod("first")).await?;
        let prometheus = start_prometheus(&managed).await?;
        eventually(FIRES_WITHIN, "all targets are scraped", async || {
            let up = prometheus.query("sum(up)").map_err(anyhow::Error::msg)?;
            ensure!(up == [5.0], "{up:?}");
            Ok(())
        })
        .await?;

        wait_for_alerts(&prometheus, "a CA that is valid for a month", &FOR_EXPIRING_CA, &INACTIVE_ALERTS).await?;
        let asked = expect_data_in_panels(&managed, &prometheus).await?;
        println!("{asked} queries of panels, each with a number");
        ensure!(asked > 100, "{asked} queries");
        wait_for_alerts(&prometheus, "after load", &FOR_EXPIRING_CA, &INACTIVE_ALERTS).await?;

        let commands = run_runbooks(&managed).await?;
        println!("{commands} commands of runbooks");
        ensure!(commands > 20, "{commands} commands");
        wait_for_alerts(
            &prometheus,
            "after the runbooks' commands",
            &FOR_EXPIRING_CA,
            &["PillionWebhooksDisabled", "PillionSwitchedOff"],
        )
        .await?;

        expect_rejected_pods_alert(&managed, &prometheus).await?;

        expect_switch_alerts(&managed, &prometheus).await?;
        managed.rig.wait_until_called("team-a").await?;

        // The alerts for the later faults must not fire yet.
        let next = [
            "PillionConfigurationContested",
            "PillionCertificateNotLoaded",
            "PillionHandshakesFail",
            "PillionShedding",
        ];
        wait_for_alerts(&prometheus, "enabled for a while", &[], &next).await?;
        for round in 0..7 {
            change_configuration(&managed).await.with_context(|| format!("round {round}"))?;
        }
        wait_for_alerts(
            &prometheus,
            "another client writes the configuration",
            &["PillionConfigurationContested"],
            &[],
        )
        .await?;
        managed.damage(Damage::CertificateInvalid).await?;
        wait_for_alerts(&prometheus, "the certificate is invalid", &["PillionCertificateNotLoaded"], &[]).await?;
        let replica = &managed.rig.replicas[0];
        for _ in 0..20 {
            let mut stream = TcpStream::connect((replica.address(), WEBHOOK_PORT))?;
            stream.write_all(b"no TLS at all\r\n\r\n")?;
        }
        wait_for_alerts(&prometheus, "connections without TLS", &["PillionHandshakesFail"], &[]).await?;
        exceed_deadlines(replica).await?;
        wait_for_alerts(&prometheus, "requests are shed", &FOR_UNDECIDED_REQUESTS, &[]).await?;

        managed.rig.replicas[0].kill()?;
        wait_for_alerts(
            &prometheus,
            "one replica is stopped",
            &["PillionRedundancyLost", "PillionNotScraped"],
            &["PillionDown"],
        )
        .await?;
        managed.rig.replicas[1].kill()?;
        wait_for_alerts(
            &prometheus,
            "both replicas are stopped",
            &["PillionDown", "PillionEndpointInvalid"],
            &["PillionRedundancyLost"],
        )
        .await?;
        let (open, refused) = (bare_pod("open"), bare_pod("refused"));
        managed.rig.create("team-a", &open).await?;
        ensure!(
            managed.rig.create("shop", &refused).await.is_err(),
            "no replica responds, and the namespace is required"
        );
        let wanted = ["PillionFailedOpen", "PillionPodsNotInjected"];
        wait_for_alerts(&prometheus, "a pod is created without a response", &wanted, &[]).await?;
        // The counter of failed calls appears with its first event, and has a rate only after its second event.
        ensure!(managed.rig.create("shop", &refused).await.is_err());
        wait_for_alerts(&prometheus, "a pod is rejected", &["PillionCallsFail"], &[]).await?;

        managed.rotate()?;
        wait_for_alerts(&prometheus, "a rotation cannot continue", &["PillionRotationBlocked"], &[]).await?;
        managed.rig.namespace("till", Some("held")).await?;
        managed.rig.create("till", &bare_pod("waits")).await?;
        wait_for_alerts(&prometheus, "a pod waits that no controller recreates", &["PillionPodsHeld"], &[]).await?;

        for mut controller in managed.controllers.drain(..) {
            controller.kill()?;
        }
        wait_for_alerts(&prometheus, "no controller leads", &["PillionNoLeader"], &[]).await
    });
}

#[test]
fn expiring_certificate_fires_alerts() {
    Isolation::new().with_crds().run(|| async {
        let policy = QUICK.replace("  interval: 1s\n", "  interval: 1s\n  servingLifetime: 40s\n");
        ensure!(policy != QUICK);
        let mut managed = Managed::start(ControlPlane::builder(), &policy, 1, 1).await?;
        let prometheus = start_prometheus(&managed).await?;
        // The certificate is renewed at least once.
        eventually(FIRES_WITHIN, "the certificate is renewed", async || {
            let changes = prometheus
                .query("changes(pillion_webhook_certificate_not_after_timestamp_seconds[1m])")
                .map_err(anyhow::Error::msg)?;
            ensure!(changes.iter().any(|changes| *changes > 0.5), "{changes:?}");
            Ok(())
        })
        .await?;
        wait_for_alerts(&prometheus, "a renewed certificate", &["PillionRedundancyLost"], &FOR_EXPIRING_CERTIFICATE)
            .await?;
        managed.controllers[0].kill()?;
        wait_for_alerts(&prometheus, "no controller leads", &["PillionNoLeader"], &[]).await?;
        wait_for_alerts(&prometheus, "no controller renews it", &FOR_EXPIRING_CERTIFICATE, &["PillionDown"]).await
    });
}
