//! Runs the real kubectl.

use std::process::{Output, Stdio};
use std::time::Duration;

use anyhow::{Context, bail};
use tokio::io::AsyncWriteExt;

use super::ControlPlane;

/// The timeout of one kubectl command.
const KUBECTL_LIMIT: Duration = Duration::from_mins(1);

impl ControlPlane {
    /// Runs kubectl as the administrator, for at most a minute.
    ///
    /// # Errors
    /// kubectl cannot be run or does not end in time. An exit code other than 0 is not an error; see
    /// [`ControlPlane::kubectl_ok`].
    pub async fn kubectl(&self, arguments: &[&str]) -> anyhow::Result<Output> {
        self.kubectl_with_input(arguments, "").await
    }

    /// Like [`ControlPlane::kubectl`], and passes `input` to kubectl as standard input.
    ///
    /// # Errors
    /// As [`ControlPlane::kubectl`].
    pub async fn kubectl_with_input(&self, arguments: &[&str], input: &str) -> anyhow::Result<Output> {
        let line = format!("kubectl {}", arguments.join(" "));
        let mut child = tokio::process::Command::new(self.settings.tools.join("kubectl"))
            .arg(format!("--kubeconfig={}", self.kubeconfig().display()))
            .arg(format!("--cache-dir={}", self.settings.path("kubectl-cache").display()))
            .args(arguments)
            // Ignores the preferences of the user who runs the test.
            .env("KUBERC", "off")
            // A short run needs no garbage collection, which takes processor time.
            .env("GOGC", "off")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .with_context(|| format!("cannot run {line}"))?;
        let stdin = child.stdin.take();
        let run = async {
            let feed = async {
                if let Some(mut stdin) = stdin {
                    // An error means that kubectl closed the pipe without reading all input.
                    let _ = stdin.write_all(input.as_bytes()).await;
                }
            };
            // Input is written while output is read. If kubectl's output pipe is full, kubectl blocks and reads no
            // further input.
            tokio::join!(feed, child.wait_with_output()).1
        };
        tokio::time::timeout(KUBECTL_LIMIT, run)
            .await
            .with_context(|| format!("{line} did not end within {KUBECTL_LIMIT:?}"))?
            .with_context(|| format!("cannot run {line}"))
    }

    /// Runs kubectl and returns its standard output.
    ///
    /// # Errors
    /// As [`ControlPlane::kubectl`], or the exit code is not 0; the error contains kubectl's output.
    pub async fn kubectl_ok(&self, arguments: &[&str]) -> anyhow::Result<String> {
        succeeded(arguments, self.kubectl(arguments).await?)
    }
}

fn succeeded(arguments: &[&str], output: Output) -> anyhow::Result<String> {
    if !output.status.success() {
        bail!(
            "kubectl {} failed ({}): {}",
            arguments.join(" "),
            output.status,
            String::from_utf8_lossy(&output.stderr).trim()
        );
    }
    String::from_utf8(output.stdout).context("kubectl's output is not UTF-8")
}
