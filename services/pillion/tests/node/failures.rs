//! Causes failures of injected containers and rejections of pods, and checks that `pillion explain` reports each of
//! them.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use kube::api::PostParams;
use pillion_testkit::cluster::{self, PAUSE_IMAGE};
use pillion_testkit::eventually;
use pillion_testkit::image::Image;
use serde_json::{Value as Json, json};

use crate::platform::{Platform, on_a_node};

/// Time limit for `explain` to report a failure. A container counts as not ready after a minute.
const LIMIT: Duration = Duration::from_mins(4);

/// A sidecar that fails, and the sentence with which `explain` reports it. If several sentences are possible, they are
/// separated by `|`.
struct Failure {
    name: &'static str,
    sidecar: Json,
    sentence: &'static str,
}

/// A part of the API server's message when it rejects an injected pod, which is then never created.
const REJECTED: &str = "spec.containers[1].livenessProbe.successThreshold: Invalid value";

fn failures() -> Vec<Failure> {
    let failure = |name, sidecar, sentence| Failure { name, sidecar, sentence };
    vec![
        failure(
            "pull",
            json!({"image": "local.test/missing:1"}),
            "does not run: ErrImagePull|does not run: ImagePullBackOff",
        ),
        failure("name", json!({"image": "Not A Name"}), "does not run: InvalidImageName"),
        failure(
            "crash",
            json!({"image": "local.test/shell:1", "command": ["/sh", "-c", "exit 3"]}),
            "does not run: CrashLoopBackOff",
        ),
        failure("command", json!({"image": PAUSE_IMAGE, "command": ["/missing"]}), "does not run: "),
        failure(
            "memory",
            json!({"image": "local.test/shell:1", "command": ["/tail", "/dev/zero"],
                   "resources": {"limits": {"memory": "24Mi"}}}),
            "does not run: it used more memory than its limit of 24Mi",
        ),
        failure(
            "ready",
            json!({"image": PAUSE_IMAGE, "readinessProbe": {"tcpSocket": {"port": 9}, "periodSeconds": 1}}),
            "is not ready: its readiness probe has not succeeded for ",
        ),
        failure(
            "startup",
            json!({"image": PAUSE_IMAGE,
                   "startupProbe": {"tcpSocket": {"port": 9}, "periodSeconds": 1, "failureThreshold": 600}}),
            "is not ready: its startup probe has not succeeded for ",
        ),
        failure(
            "configuration",
            json!({"image": PAUSE_IMAGE,
                   "env": [{"name": "A", "valueFrom": {"secretKeyRef": {"name": "missing", "key": "a"}}}]}),
            "does not run: CreateContainerConfigError",
        ),
        failure(
            "liveness",
            json!({"image": PAUSE_IMAGE, "livenessProbe": {"tcpSocket": {"port": 9}, "periodSeconds": 1, "failureThreshold": 1}}),
            "does not run: CrashLoopBackOff|does not run: it was restarted ",
        ),
        failure(
            "room",
            json!({"image": PAUSE_IMAGE, "resources": {"requests": {"cpu": "900"}}}),
            "(container sidecar of profile room requests cpu 900)",
        ),
        failure(
            "probe",
            // A liveness probe must have a success threshold of 1.
            json!({"image": PAUSE_IMAGE, "livenessProbe": {"tcpSocket": {"port": 9}, "successThreshold": 2}}),
            REJECTED,
        ),
    ]
}

fn profile(failure: &Failure) -> Json {
    let mut sidecar = json!({"name": "sidecar", "imagePullPolicy": "IfNotPresent"});
    json_patch::merge(&mut sidecar, &failure.sidecar);
    json!({
        "apiVersion": "pillion.dev/v1alpha1", "kind": "ClusterInjectionProfile", "metadata": {"name": failure.name},
        "spec": {"activation": "Requested", "template": {"spec": {"containers": [sidecar]}}},
    })
}

fn pod(failure: &Failure) -> Json {
    json!({
        "metadata": {"name": failure.name, "annotations": {"pillion.dev/profiles": failure.name}},
        "spec": {"terminationGracePeriodSeconds": 1,
                 "containers": [{"name": "app", "image": PAUSE_IMAGE, "imagePullPolicy": "IfNotPresent"}]},
    })
}

/// Returns a Deployment whose pod requests this profile.
fn deployment(namespace: &str, profile: &str) -> Json {
    let pod = json!({
        "metadata": {"labels": {"app": "web"}, "annotations": {"pillion.dev/profiles": profile}},
        "spec": {"containers": [{"name": "app", "image": PAUSE_IMAGE, "imagePullPolicy": "IfNotPresent"}]},
    });
    json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web", "namespace": namespace},
           "spec": {"selector": {"matchLabels": {"app": "web"}}, "template": pod}})
}

/// Waits until the explanation of an object contains one of the sentences, which are separated by `|`, and has the exit
/// code 1.
async fn explained(platform: &Platform, namespace: &str, object: &str, sentences: &str) -> Result<()> {
    eventually(LIMIT, &format!("{object} is explained"), async || {
        let mut command = tokio::process::Command::new(env!("CARGO_BIN_EXE_pillion"));
        command.args(["explain", object, "-n", namespace]).env("KUBECONFIG", platform.cluster.kubeconfig());
        let output = tokio::time::timeout(LIMIT, command.kill_on_drop(true).output()).await.context("it hangs")??;
        let text = [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned()).concat();
        ensure!(sentences.split('|').any(|sentence| text.contains(sentence)), "not {sentences:?}:\n{text}");
        ensure!(output.status.code() == Some(1), "{:?}:\n{text}", output.status);
        Ok(())
    })
    .await
}

#[test]
#[ignore = "needs a real node: just node"]
fn failures_after_creation_are_explained() {
    on_a_node(async |platform| {
        let busybox = cluster::busybox()?;
        let shell = Image::new("local.test/shell:1", "/sh")?.file("/sh", &busybox)?.file("/tail", &busybox)?;
        platform.import_image(shell)?;
        for namespace in ["shop", "full", "strict"] {
            platform.namespace(namespace, "enabled").await?;
        }
        platform.install("shop").await?;
        let failures = failures();
        for failure in &failures {
            platform.kubectl_with_input(&["apply", "-f", "-"], &profile(failure).to_string()).await?;
        }
        let created = || failures.iter().filter(|failure| failure.sentence != REJECTED);
        for failure in created() {
            eventually(LIMIT, "the pod is injected", async || {
                let pod = serde_json::from_value(pod(failure))?;
                let pods = platform.pods("shop");
                let dry_run = PostParams { dry_run: true, ..PostParams::default() };
                let made = pods.create(&dry_run, &pod).await?;
                ensure!(made.spec.is_some_and(|spec| spec.containers.len() == 2), "without the sidecar");
                pods.create(&PostParams::default(), &pod).await?;
                Ok(())
            })
            .await?;
        }
        for failure in created() {
            let object = format!("pod/{}", failure.name);
            explained(platform, "shop", &object, failure.sentence).await?;
            println!("{object}: {}", failure.sentence);
        }

        // The API server rejects the pods of these Deployments, so the Deployments have no pods.
        platform.kubectl(&["create", "quota", "none", "--namespace=full", "--hard=pods=0"]).await?;
        platform.kubectl(&["label", "namespace", "strict", "pod-security.kubernetes.io/enforce=restricted"]).await?;
        for (namespace, profile, sentence) in [
            ("full", "startup", "exceeded quota: none"),
            ("strict", "startup", "violates PodSecurity"),
            ("shop", "probe", REJECTED),
        ] {
            let deployment = deployment(namespace, profile).to_string();
            platform.kubectl_with_input(&["apply", "-f", "-"], &deployment).await?;
            explained(platform, namespace, "deployment/web", sentence).await?;
            println!("deployment/web in {namespace}: {sentence}");
        }
        Ok(())
    });
}
