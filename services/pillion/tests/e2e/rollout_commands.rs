//! Tests `pillion rollout status`, `pause`, `resume` and `undo` on a real API server. No controller runs, so the test
//! writes the profile's status.

use std::process::Stdio;

use anyhow::{Context, Result, ensure};
use pillion_testkit::{ControlPlane, isolated_with_crds};
use serde_json::{Value as Json, json};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, BufReader};
use tokio::process::Command;

use crate::rig::install_crds;

/// A cluster profile and a namespaced profile with the strategy `InPlace`, and a profile without it.
const PROFILES: &str = "
apiVersion: pillion.dev/v1alpha1
kind: ClusterInjectionProfile
metadata: {name: shipper}
spec:
  activation: Always
  rollout: {strategy: InPlace, steps: [{percent: 5}, {percent: 25, bakeSeconds: 60}]}
  template: {metadata: {annotations: {example.com/shipper: 'x'}}}
---
apiVersion: pillion.dev/v1alpha1
kind: InjectionProfile
metadata: {name: logger, namespace: team-a}
spec:
  rollout: {strategy: InPlace}
  template: {metadata: {annotations: {example.com/logger: 'x'}}}
---
apiVersion: pillion.dev/v1alpha1
kind: ClusterInjectionProfile
metadata: {name: plain}
spec:
  activation: Always
  template: {metadata: {annotations: {example.com/plain: 'x'}}}
";

const SHIPPER: &[&str] = &["ciprof", "shipper"];
const LOGGER: &[&str] = &["iprof", "logger", "-n", "team-a"];

/// The exit code and the output of a command.
struct Run {
    code: Option<i32>,
    stdout: String,
    stderr: String,
}

struct Cluster {
    control_plane: ControlPlane,
}

impl Cluster {
    async fn start() -> Result<Self> {
        let control_plane = ControlPlane::start().await?;
        install_crds(&control_plane).await?;
        control_plane.create_namespace("team-a", &[]).await?;
        control_plane.apply_yaml(PROFILES).await?;
        Ok(Self { control_plane })
    }

    /// Returns the command with these arguments, separated by spaces.
    fn command(&self, arguments: &str) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_pillion"));
        command.args(arguments.split(' ')).arg("--kubeconfig").arg(self.control_plane.kubeconfig()).kill_on_drop(true);
        command
    }

    async fn pillion(&self, arguments: &str) -> Result<Run> {
        let output = self.command(arguments).output().await?;
        let text = |bytes| String::from_utf8(bytes).context("text");
        Ok(Run { code: output.status.code(), stdout: text(output.stdout)?, stderr: text(output.stderr)? })
    }

    /// Runs a command that must succeed. Returns its standard output.
    async fn succeed(&self, arguments: &str) -> Result<String> {
        let Run { code, stdout, stderr } = self.pillion(arguments).await?;
        ensure!(code == Some(0), "{arguments}: {stdout} {stderr}");
        Ok(stdout)
    }

    /// Runs a command that must fail with an error that contains `expected`, and must not change the annotation.
    async fn fail(&self, arguments: &str, expected: &str) -> Result<()> {
        let before = self.annotation(SHIPPER).await?;
        let Run { code, stdout, stderr } = self.pillion(arguments).await?;
        ensure!(code == Some(2) && stdout.is_empty() && stderr.contains(expected), "{arguments}: {stdout} {stderr}");
        ensure!(self.annotation(SHIPPER).await? == before, "{arguments} changed the annotation");
        Ok(())
    }

    /// Writes the status that a controller would write in this phase.
    async fn set_phase(&self, profile: &[&str], phase: &str) -> Result<()> {
        let message =
            ["Halted", "SteppedBack"].contains(&phase).then_some("pod team-a/web-0: the image cannot be pulled");
        let upgrade = json!({
            "revision": "b2b2", "previousRevision": "a1a1", "phase": phase, "step": 1, "since": "2026-01-02T03:04:05Z",
            "pods": 40, "upgraded": 12, "upgrading": 1, "notInPlace": 0, "message": message,
        });
        let status = json!({"status": {
            "observedGeneration": 1, "revision": "b2b2", "promotedRevision": "a1a1", "acceptedRevision": "b2b2",
            "upgrade": upgrade,
        }});
        let status = status.to_string();
        let patch = ["--subresource=status", "--type=merge", "-p", &status];
        self.control_plane.kubectl_ok(&[&["patch"][..], profile, &patch[..]].concat()).await?;
        Ok(())
    }

    /// Returns the annotation that steers the rollout; empty if it is not set.
    async fn annotation(&self, profile: &[&str]) -> Result<String> {
        let path = ["-o", r"jsonpath={.metadata.annotations.pillion\.dev/rollout}"];
        self.control_plane.kubectl_ok(&[&["get"][..], profile, &path[..]].concat()).await
    }
}

#[test]
fn commands_steer_rollout_by_annotation() {
    isolated_with_crds(|| async {
        let cluster = Cluster::start().await?;
        cluster.fail("rollout pause shipper", "ClusterInjectionProfile shipper has no rollout to pause").await?;
        cluster.fail("rollout pause plain", "its spec.rollout.strategy is neither InPlace nor Restart").await?;
        cluster.fail("rollout undo missing", "there is no ClusterInjectionProfile missing").await?;
        cluster.fail("rollout undo team-a/logger -n team-b", "not in namespace team-b").await?;

        cluster.set_phase(SHIPPER, "Upgrading").await?;
        cluster.fail("rollout resume shipper", "neither paused nor failed").await?;
        let done = cluster.succeed("rollout pause shipper").await?;
        ensure!(done.starts_with("ClusterInjectionProfile shipper: requested to pause the rollout"), "{done}");
        ensure!(done.lines().count() == 1, "{done}");
        ensure!(cluster.annotation(SHIPPER).await? == "pause");
        cluster
            .fail("rollout pause shipper", "already paused: continue it with `pillion rollout resume shipper`")
            .await?;

        cluster.set_phase(SHIPPER, "Paused").await?;
        let done = cluster.succeed("rollout resume shipper").await?;
        ensure!(done == "ClusterInjectionProfile shipper: ended the pause of the rollout\n", "{done}");
        ensure!(cluster.annotation(SHIPPER).await?.is_empty());
        cluster.fail("rollout resume shipper", "has already ended").await?;

        cluster.set_phase(SHIPPER, "Baking").await?;
        let done = cluster.succeed("rollout undo shipper").await?;
        ensure!(done.contains("undo the rollout of revision b2b2; pods return to a1a1"), "{done}");
        let undo = cluster.annotation(SHIPPER).await?;
        ensure!(undo.starts_with("undo b2b2 20"), "{undo}");

        cluster.set_phase(SHIPPER, "SteppedBack").await?;
        cluster.fail("rollout undo shipper", "already returned to the previous revision").await?;
        cluster.fail("rollout pause shipper", "cannot be paused in the phase SteppedBack").await?;
        cluster.succeed("rollout resume shipper").await?;
        let first = cluster.annotation(SHIPPER).await?;
        ensure!(first.starts_with("resume b2b2 20"), "{first}");
        // The second request needs a different time. Otherwise the controller would treat it as already handled.
        cluster.succeed("rollout resume shipper").await?;
        let second = cluster.annotation(SHIPPER).await?;
        ensure!(second.starts_with("resume b2b2 20") && second != first, "{second}");

        cluster.set_phase(SHIPPER, "Complete").await?;
        cluster.fail("rollout undo shipper", "`pillion profiles rollback shipper`").await?;

        cluster.set_phase(LOGGER, "Halted").await?;
        for profile in ["team-a/logger", "logger -n team-a"] {
            let done = cluster.succeed(&format!("rollout resume {profile}")).await?;
            ensure!(done.contains("InjectionProfile team-a/logger: requested to resume"), "{done}");
        }
        ensure!(cluster.annotation(LOGGER).await?.starts_with("resume b2b2 20"));
        Ok(())
    });
}

#[test]
fn status_lists_rollouts_and_failures() {
    isolated_with_crds(|| async {
        let cluster = Cluster::start().await?;
        let run = cluster.pillion("rollout status -A").await?;
        ensure!(run.code == Some(0) && run.stdout.is_empty(), "{} {}", run.stdout, run.stderr);
        ensure!(run.stderr == "no rollouts to running pods found\n", "{}", run.stderr);
        let run = cluster.pillion("rollout status plain").await?;
        ensure!(run.code == Some(0) && run.stderr.contains("plain has no rollout to running pods"), "{}", run.stderr);
        let run = cluster.pillion("rollout status missing").await?;
        ensure!(run.code == Some(2) && run.stderr.contains("there is no"), "{}", run.stderr);

        cluster.set_phase(SHIPPER, "Upgrading").await?;
        let table = cluster.succeed("rollout status").await?;
        let expected = "PROFILE   REVISION   PHASE       STEP         PODS    MESSAGE\n\
                        shipper   b2b2       Upgrading   2/3 (25 %)   12/40   -\n";
        ensure!(table == expected, "{table}");

        cluster.set_phase(LOGGER, "Halted").await?;
        let run = cluster.pillion("rollout status -A").await?;
        ensure!(run.code == Some(1), "{} {}", run.stdout, run.stderr);
        let row = run.stdout.lines().find(|line| line.starts_with("team-a/logger ")).unwrap_or_default();
        ensure!(row.contains("Halted") && row.ends_with("the image cannot be pulled"), "{}", run.stdout);
        // Without -A, the namespace is that of the context. The failed profile is in another one.
        cluster.succeed("rollout status").await?;
        cluster.succeed("rollout status shipper").await?;
        for profile in ["team-a/logger", "logger -n team-a"] {
            let run = cluster.pillion(&format!("rollout status {profile} -o json")).await?;
            ensure!(run.code == Some(1), "{} {}", run.stdout, run.stderr);
            let result: Json = serde_json::from_str(&run.stdout)?;
            let rollout = &result["rollouts"][0];
            ensure!((&rollout["name"], &rollout["namespace"]) == (&json!("logger"), &json!("team-a")), "{result:#}");
            ensure!((&rollout["phase"], &rollout["pods"]) == (&json!("Halted"), &json!(40)), "{result:#}");
        }
        Ok(())
    });
}

#[test]
fn watch_ends_with_rollout() {
    isolated_with_crds(|| async {
        let cluster = Cluster::start().await?;
        cluster.set_phase(SHIPPER, "Upgrading").await?;
        let run = cluster.pillion("rollout status shipper --watch --timeout 1s").await?;
        ensure!(run.code == Some(1), "{} {}", run.stdout, run.stderr);
        ensure!(
            run.stderr.contains("after 1s, the rollout of shipper still has the phase Upgrading"),
            "{}",
            run.stderr
        );

        for (phase, code) in [("Complete", 0), ("SteppedBack", 1)] {
            cluster.set_phase(SHIPPER, "Upgrading").await?;
            let mut command = cluster.command("rollout status shipper --watch --timeout 1m");
            let mut child = command.stdout(Stdio::piped()).stderr(Stdio::inherit()).spawn()?;
            let mut stdout = BufReader::new(child.stdout.take().context("standard output")?);
            let mut lines = String::new();
            for _ in 0..2 {
                stdout.read_line(&mut lines).await?;
            }
            ensure!(lines.contains("Upgrading"), "{lines}");
            cluster.set_phase(SHIPPER, phase).await?;
            let mut rest = String::new();
            stdout.read_to_string(&mut rest).await?;
            ensure!(child.wait().await?.code() == Some(code) && rest.contains(phase), "{lines}{rest}");
        }
        Ok(())
    });
}
