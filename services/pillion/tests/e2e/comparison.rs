//! Tests the examples in `docs/comparison.md`. The Kubernetes policies are valid, and they change a pod in the same way
//! as the profiles in the same folders. `tests/docs.rs` compares Kyverno's examples with these policies.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, PostParams};
use pillion_testkit::{ControlPlane, eventually, isolated};
use serde_json::{Value as Json, json};

const SOON: Duration = Duration::from_mins(1);
const MUTATIONS: [&str; 4] = ["log-sidecar", "ca-bundle", "proxy", "default-resources"];
const VALIDATION: &str = "deny-host-path";
/// The namespace to which no policy applies.
const PLAIN: &str = "plain";

fn file(job: &str, name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/comparison").join(job).join(name)
}

/// Returns a pod whose author set some of the values that the examples add.
fn pod() -> Json {
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": "web", "labels": {"app": "web", "logs": "files"}},
        "spec": {
            "automountServiceAccountToken": false,
            "initContainers": [{"name": "migrate", "image": "registry.example.com/migrate:1.0"}],
            "containers": [
                {"name": "web", "image": "registry.example.com/web:1.0",
                 "env": [{"name": "SSL_CERT_FILE", "value": "/etc/own.crt"}],
                 "resources": {"requests": {"cpu": "500m"}}},
                {"name": "jobs", "image": "registry.example.com/jobs:1.0"},
            ],
        },
    })
}

/// Starts a control plane with one namespace for each example, and the namespace [`PLAIN`]. In the namespace of an
/// example, only the policy of that example applies.
async fn start() -> Result<ControlPlane> {
    let plane = ControlPlane::start().await?;
    let mut objects = Vec::new();
    for name in MUTATIONS.iter().chain([&VALIDATION, &PLAIN]) {
        objects.push(
            json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": {"injection": name}}}),
        );
        objects.push(
            json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default", "namespace": name}}),
        );
    }
    plane.apply_yaml(&json!({"apiVersion": "v1", "kind": "List", "items": objects}).to_string()).await?;
    for job in MUTATIONS.iter().chain([&VALIDATION]) {
        let policy = std::fs::read_to_string(file(job, "policy.yaml"))?;
        let (everywhere, here) = ("{injection: enabled}", format!("{{injection: {job}}}"));
        ensure!(policy.contains(everywhere), "the policy of {job} does not select {everywhere}");
        plane.apply_yaml(&policy.replace(everywhere, &here)).await?;
    }
    Ok(plane)
}

/// Returns the spec of the pod that the API server would store.
async fn created(plane: &ControlPlane, namespace: &str, pod: &Json) -> Result<Json> {
    let pods: Api<Pod> = Api::namespaced(plane.client(), namespace);
    let parameters = PostParams { dry_run: true, ..PostParams::default() };
    Ok(serde_json::to_value(pods.create(&parameters, &serde_json::from_value(pod.clone())?).await?.spec)?)
}

/// Returns the pod as `pillion inject` changes it with the profile of an example. `job` is the example's folder in
/// `docs/comparison/`.
fn inject(job: &str, pod: &Json) -> Result<Json> {
    let folder = tempfile::tempdir()?;
    let manifest = folder.path().join("pod.json");
    std::fs::write(&manifest, pod.to_string())?;
    let mut command = Command::new(env!("CARGO_BIN_EXE_pillion"));
    command.arg("inject").arg("-f").arg(&manifest).arg("-p").arg(file(job, "pillion.yaml")).args(["-o", "patch"]);
    let output = command.output()?;
    let errors = String::from_utf8(output.stderr)?;
    ensure!(output.status.success(), "{job}: {errors}");
    let patch: json_patch::Patch =
        serde_json::from_slice(&output.stdout).with_context(|| format!("no patch:\n{errors}"))?;
    let mut injected = pod.clone();
    json_patch::patch(&mut injected, &patch)?;
    Ok(injected)
}

/// Fails unless `pillion test` reports that the profile of an example rejects the pod with this message.
fn profile_denies(job: &str, pod: &Json, message: &str) -> Result<()> {
    let folder = tempfile::tempdir()?;
    std::fs::create_dir(folder.path().join("tests"))?;
    std::fs::copy(file(job, "pillion.yaml"), folder.path().join("profile.yaml"))?;
    let case = json!({"name": "rejected", "object": pod, "denied": message});
    std::fs::write(folder.path().join("tests/cases.yaml"), case.to_string())?;
    let output = Command::new(env!("CARGO_BIN_EXE_pillion")).arg("test").arg(folder.path()).output()?;
    let text = [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned()).concat();
    ensure!(output.status.success(), "{job}: {text}");
    Ok(())
}

#[test]
fn policies_of_comparison_do_what_profiles_do() {
    isolated(|| async {
        let plane = start().await?;
        let plain = created(&plane, PLAIN, &pod()).await?;
        for job in MUTATIONS {
            let injected = inject(job, &pod())?;
            let by_profile = created(&plane, PLAIN, &injected).await?;
            ensure!(by_profile != plain, "the profile of {job} changes nothing");
            // The API server reloads policies periodically.
            eventually(SOON, &format!("the policy of {job} does what the profile does"), async || {
                let by_policy = created(&plane, job, &pod()).await?;
                ensure!(by_policy == by_profile, "by the policy:\n{by_policy:#}\nby the profile:\n{by_profile:#}");
                Ok(())
            })
            .await?;
        }

        let mut forbidden = pod();
        forbidden["spec"]["volumes"] = json!([{"name": "host", "hostPath": {"path": "/"}}]);
        created(&plane, PLAIN, &forbidden).await.context("allowed without a policy")?;
        profile_denies(VALIDATION, &forbidden, "a volume is a hostPath")?;
        eventually(SOON, "the policy rejects a hostPath", async || {
            let refused = created(&plane, VALIDATION, &forbidden).await.err().context("the pod is allowed")?;
            ensure!(format!("{refused:#}").contains("a volume is a hostPath"), "{refused:#}");
            Ok(())
        })
        .await?;
        created(&plane, VALIDATION, &pod()).await.context("a pod without a hostPath is rejected").map(drop)
    });
}
