//! Runs the load test that creates pods through the API server, with the real k6, as load-tests/README.md describes.
//! The service account of k6 may only create and delete pods. The run must pass for injected pods, and fail for a pod
//! without its sidecar.

use std::path::{Path, PathBuf};
use std::process::Output;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use pillion_testkit::{ControlPlane, eventually, isolated_with_crds, tools};
use serde_json::Value as Json;
use tokio::process::Command;

use crate::managed::{Managed, QUICK};
use crate::rig::PATIENCE;

/// The exit code of k6 when a threshold is exceeded.
const THRESHOLD_BROKEN: i32 = 99;
const NAMESPACES: &str = "3";
/// Maximum duration of a run.
const LIMIT: Duration = Duration::from_mins(3);

#[test]
fn k6_creates_and_checks_pods() {
    isolated_with_crds(|| async {
        let managed = Managed::start(ControlPlane::builder(), QUICK, 1, 1).await?;
        let cluster = &managed.rig.control_plane;
        for manifests in [std::fs::read_to_string(scripts().join("profile.yaml"))?, printed("namespaces.sh").await?] {
            cluster.apply_yaml(&manifests).await?;
        }
        cluster.apply_yaml(&printed("account.sh").await?).await?;
        let k6 = K6::of(cluster).await?;
        is_injected(cluster).await?;

        let dry = k6.run(&[]).await?;
        ensure!(dry.status == Some(0), "{dry:?}");
        ensure!(dry.count("requests")? >= 60 && dry.count("checks_passed")? == 2 * dry.count("requests")?, "{dry:?}");
        for key in ["checks_failed", "failed", "not_sent", "without_sidecar"] {
            ensure!(dry.count(key)? == 0, "{key}: {dry:?}");
        }
        for scenario in ["injected", "plain"] {
            ensure!(dry.figures[scenario]["p50_ms"].as_f64().is_some_and(|time| time > 0.0), "{scenario}: {dry:?}");
        }
        ensure!(stored(cluster).await?.is_empty(), "a dry run has left {}", stored(cluster).await?);

        let kept = k6.run(&[("STORE", "yes"), ("DURATION", "1s")]).await?;
        ensure!(kept.status == Some(0), "{kept:?}");
        ensure!(stored(cluster).await?.is_empty(), "the run has left {}", stored(cluster).await?);

        // One namespace no longer opts in, so its pods are created without a sidecar. No request fails, but the run
        // must fail.
        cluster.kubectl_ok(&["label", "namespace", "load-test-1", "pillion.dev/injection-"]).await?;
        let missed = k6.run(&[]).await?;
        ensure!(missed.status == Some(THRESHOLD_BROKEN) && missed.count("without_sidecar")? > 0, "{missed:?}");
        ensure!(missed.count("failed")? == 0, "{missed:?}");

        // With an invalid token, the run cannot create pods, and counts each rejection as failed.
        let refused = k6.run(&[("KUBERNETES_TOKEN", "nonsense"), ("DURATION", "1s")]).await?;
        ensure!(refused.status == Some(THRESHOLD_BROKEN) && refused.count("failed")? > 0, "{refused:?}");
        Ok(())
    });
}

fn scripts() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../load-tests")
}

/// Returns the output of a script for [`NAMESPACES`] namespaces.
async fn printed(script: &str) -> Result<String> {
    let output = Command::new(scripts().join(script)).arg(NAMESPACES).output().await.context("bash")?;
    ensure!(output.status.success(), "{output:?}");
    Ok(String::from_utf8(output.stdout)?)
}

/// Waits until the replicas serve the load tests' profile in each of their namespaces.
async fn is_injected(cluster: &ControlPlane) -> Result<()> {
    let count: u32 = NAMESPACES.parse()?;
    for number in 0..count {
        let namespace = format!("load-test-{number}");
        eventually(PATIENCE, "pods get the sidecar", async || {
            let arguments =
                ["run", "probe", "--image=a", "-n", &namespace, "--dry-run=server", "--restart=Never", "-o", "yaml"];
            let pod = cluster.kubectl_ok(&arguments).await?;
            ensure!(pod.contains("name: load-test-sidecar"), "{pod}");
            Ok(())
        })
        .await?;
    }
    Ok(())
}

/// Returns the names of the remaining pods of the load tests.
async fn stored(cluster: &ControlPlane) -> Result<String> {
    cluster.kubectl_ok(&["get", "pods", "-A", "-l", "example.com/load-test=true", "-o", "name"]).await
}

/// The environment of a k6 run: its folder, and the API server's URL and token.
struct K6 {
    folder: PathBuf,
    url: String,
    token: String,
}

/// The result of a k6 run: its exit status, its figures and its output.
#[derive(Debug)]
struct Run {
    status: Option<i32>,
    figures: Json,
    #[expect(dead_code, reason = "printed by `Debug` in the message of a failed check")]
    output: Output,
}

impl K6 {
    /// Reads the URL and the CA from a kubeconfig, and creates a token, as in the README.
    async fn of(cluster: &ControlPlane) -> Result<Self> {
        let config = async |raw: &[&str], path: &str| {
            let output = format!("jsonpath={{.clusters[0].cluster.{path}}}");
            cluster.kubectl_ok(&[&["config", "view", "--minify"], raw, &["-o", &output]].concat()).await
        };
        let url = config(&[], "server").await?;
        let ca = config(&["--raw"], "certificate-authority-data").await?;
        let folder = cluster.directory().join("k6");
        std::fs::create_dir_all(&folder)?;
        std::fs::write(folder.join("api-server.crt"), STANDARD.decode(ca.trim())?)?;
        let token = cluster.kubectl_ok(&["-n", "load-test-plain", "create", "token", "load-test"]).await?;
        Ok(Self { folder, url: url.trim().to_owned(), token: token.trim().to_owned() })
    }

    /// Runs the load test for a moment. Its rate is low, because a late request exceeds a threshold, and other tests
    /// use the same machine.
    async fn run(&self, settings: &[(&str, &str)]) -> Result<Run> {
        let summary = self.folder.join("figures.json");
        let _ = std::fs::remove_file(&summary);
        let mut command = Command::new(tools::program("k6")?);
        command
            .args(["run", "--no-usage-report", "--no-color", "--quiet"])
            .arg(scripts().join("pods.js"))
            .current_dir(&self.folder)
            .kill_on_drop(true)
            .env("HOME", &self.folder)
            .env("K6_AUTO_EXTENSION_RESOLUTION", "false")
            .env("SSL_CERT_FILE", self.folder.join("api-server.crt"))
            .env("SSL_CERT_DIR", "/nonexistent")
            .env("KUBERNETES_URL", &self.url)
            .env("KUBERNETES_TOKEN", &self.token)
            .env("SUMMARY", &summary)
            .envs([("NAMESPACES", NAMESPACES), ("RATE", "12"), ("DURATION", "6s"), ("P99_MS", "15000")])
            .envs(settings.iter().copied());
        for variable in ["HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy", "ALL_PROXY", "all_proxy"] {
            command.env_remove(variable);
        }
        let output = tokio::time::timeout(LIMIT, command.output()).await.context("k6 did not end")??;
        let figures = std::fs::read(&summary).with_context(|| format!("no figures: {output:?}"))?;
        Ok(Run { status: output.status.code(), figures: serde_json::from_slice(&figures)?, output })
    }
}

impl Run {
    fn count(&self, key: &str) -> Result<u64> {
        self.figures[key].as_u64().with_context(|| format!("{key} is not a number: {self:?}"))
    }
}
