//! The real helm installs, upgrades and deletes the chart on a real API server. No node runs pods here, so the test
//! acts as the kubelet: it starts the real program with the arguments, policy files and service accounts from the
//! cluster, and runs the jobs that helm waits for.

use std::path::Path;
use std::process::Output;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use k8s_openapi::api::admissionregistration::v1::{MutatingWebhookConfiguration, ValidatingWebhookConfiguration};
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::ConfigMap;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{Api, ListParams, Patch, PatchParams};
use pillion_api::names::{
    ROLLBACK_FROM_ANNOTATION, ROLLBACK_TIME_ANNOTATION, ROLLBACK_TO_ANNOTATION, ROLLOUT_ANNOTATION,
};
use pillion_testkit::control_plane::client_of;
use pillion_testkit::namespace::replica_address;
use pillion_testkit::registration::NAMESPACE;
use pillion_testkit::replica::Role;
use pillion_testkit::{ControlPlane, Replica, ReplicaSpec, eventually, isolated, register_service, tools};
use serde_json::{Value as Json, json};

use crate::managed::controller;
use crate::rbac::{kubeconfig, refusals};
use crate::rig::{Rig, SOON, annotation, bare_pod};

/// The timeout of one helm call.
const HELM_LIMIT: Duration = Duration::from_secs(90);
/// The last byte of the address of the first controller.
const CONTROLLERS: u8 = 101;
/// The CRD that an upgrade changes while clients watch its objects.
const DEFINITION: &str = "clusterinjectionprofiles.pillion.dev";
/// JSON pointer to the name of the CRD's first printer column. The test changes it to simulate an older CRD.
const HEADING: &str = "/spec/versions/0/additionalPrinterColumns/0/name";

/// Returns chart values for an installation with these profiles and short waiting times.
pub(crate) fn values(profiles: &Json) -> Json {
    json!({
        "profiles": profiles, "optIn": ["istio-injection=enabled"],
        "webhook": {"logFormat": "text", "policy": {"connections": {"drainMinimum": "0s"}}},
        "controller": {"logFormat": "text", "policy": {
            "leadership": {"leaseDuration": "3s", "renewDeadline": "2s", "retryPeriod": "500ms"},
            "certificates": {"propagationTimeout": "5s", "probeRounds": 2, "probeGap": "100ms", "probeTimeout": "2s",
                "overlap": "200ms", "interval": "1s"},
        }},
    })
}

/// Runs helm with the permissions of the administrator.
pub(crate) async fn helm(control_plane: &ControlPlane, arguments: &[&str], values: Option<&Json>) -> Result<Output> {
    let home = control_plane.directory().join("helm");
    std::fs::create_dir_all(&home)?;
    let mut command = tokio::process::Command::new(tools::program("helm")?);
    for variable in ["HELM_CACHE_HOME", "HELM_CONFIG_HOME", "HELM_DATA_HOME"] {
        command.env(variable, &home);
    }
    // A short run needs no garbage collection, which takes processor time.
    command.env("GOGC", "off");
    command.arg("--kubeconfig").arg(control_plane.kubeconfig()).args(["--namespace", NAMESPACE]).args(arguments);
    if let Some(values) = values {
        let file = home.join("values.json");
        std::fs::write(&file, values.to_string())?;
        command.arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../charts/pillion")).arg("--values").arg(file);
    }
    let ran = tokio::time::timeout(HELM_LIMIT, command.kill_on_drop(true).output()).await;
    ran.with_context(|| format!("helm {arguments:?} did not end"))?.context("helm cannot be run")
}

pub(crate) async fn helm_ok(control_plane: &ControlPlane, arguments: &[&str], values: Option<&Json>) -> Result<String> {
    let Output { status, stdout, stderr } = helm(control_plane, arguments, values).await?;
    ensure!(status.success(), "helm {arguments:?}: {}", String::from_utf8_lossy(&stderr));
    Ok(String::from_utf8(stdout)?)
}

/// Runs helm and the job that helm waits for. Returns the output of helm.
pub(crate) async fn helm_with_job(
    control_plane: &ControlPlane,
    job: &str,
    arguments: &[&str],
    values: Option<&Json>,
) -> Result<String> {
    let (output, ran) = tokio::join!(helm_ok(control_plane, arguments, values), run_job(control_plane, job));
    let output = output?;
    ran?;
    Ok(output)
}

/// Simulates the kubelet and the job controller: runs the pod's container with the pod's service account, and marks the
/// job as complete.
async fn run_job(control_plane: &ControlPlane, name: &str) -> Result<()> {
    let jobs: Api<Job> = Api::namespaced(control_plane.client(), NAMESPACE);
    let job = eventually(HELM_LIMIT, "the job exists", async || Ok(jobs.get(name).await?)).await?;
    let job = serde_json::to_value(job)?;
    let pod = &job["spec"]["template"]["spec"];
    let account = pod["serviceAccountName"].as_str().context("an account")?;
    let kubeconfig = control_plane.kubeconfig_for_service_account(NAMESPACE, account).await?;
    let ran = tokio::process::Command::new(env!("CARGO_BIN_EXE_pillion"))
        .args(strings(&pod["containers"][0]["args"]))
        .arg("--kubeconfig")
        .arg(kubeconfig)
        .output()
        .await?;
    if !ran.status.success() {
        bail!("the job {name}: {}{}", String::from_utf8_lossy(&ran.stdout), String::from_utf8_lossy(&ran.stderr));
    }
    end_job(&jobs, &job, ["SuccessCriteriaMet", "Complete"]).await
}

/// Marks the job of a hook as failed.
async fn fail_job(control_plane: &ControlPlane, name: &str) -> Result<()> {
    let jobs: Api<Job> = Api::namespaced(control_plane.client(), NAMESPACE);
    let job = eventually(HELM_LIMIT, "the job exists", async || Ok(jobs.get(name).await?)).await?;
    end_job(&jobs, &serde_json::to_value(job)?, ["FailureTarget", "Failed"]).await
}

/// Sets the conditions of a finished job, as the job controller does.
async fn end_job(jobs: &Api<Job>, job: &Json, conditions: [&str; 2]) -> Result<()> {
    let now = &job["metadata"]["creationTimestamp"];
    let conditions = conditions.map(|kind| json!({"type": kind, "status": "True", "lastTransitionTime": now}));
    let mut status = json!({"startTime": now, "conditions": conditions});
    if conditions[1]["type"] == "Complete" {
        (status["succeeded"], status["completionTime"]) = (json!(1), now.clone());
    }
    let name = job["metadata"]["name"].as_str().context("a name")?;
    jobs.patch_status(name, &PatchParams::default(), &Patch::Merge(&json!({"status": status}))).await?;
    Ok(())
}

fn strings(list: &Json) -> Vec<String> {
    list.as_array().into_iter().flatten().map(|item| item.as_str().unwrap().to_owned()).collect()
}

/// Returns the container arguments of a Deployment in the cluster. Leaves out the listen addresses, and replaces the
/// path of the policy file with the local path.
async fn arguments(control_plane: &ControlPlane, component: &str) -> Result<Vec<String>> {
    let name = format!("pillion-{component}");
    let deployments: Api<Deployment> = Api::namespaced(control_plane.client(), NAMESPACE);
    let pod = serde_json::to_value(deployments.get(&name).await?)?["spec"]["template"]["spec"].take();
    ensure!(pod["serviceAccountName"] == name, "{pod}");
    ensure!(pod["volumes"][0]["configMap"]["name"] == name, "{pod}");
    let configs: Api<ConfigMap> = Api::namespaced(control_plane.client(), NAMESPACE);
    let policy = configs.get(&name).await?.data.context("data")?.remove("policy.yaml").context("a policy")?;
    let file = control_plane.directory().join(format!("{component}-policy.yaml"));
    std::fs::write(&file, policy)?;

    let mut all = strings(&pod["containers"][0]["args"]);
    ensure!(all.remove(0) == component, "the first argument is the command");
    let count = all.len();
    all.retain(|argument| {
        !["--listen=", "--trust-probe-listen=", "--metrics-listen="].iter().any(|flag| argument.starts_with(flag))
    });
    ensure!(count - all.len() == 2, "the listen addresses: {all:?}");
    let config = all.iter_mut().find(|argument| argument.starts_with("--config=")).context("a policy file")?;
    *config = format!("--config={}", file.display());
    Ok(all)
}

/// Starts the controllers and replicas of the Deployments.
pub(crate) async fn run(control_plane: ControlPlane) -> Result<(Rig, Vec<Replica>)> {
    let service = register_service(&control_plane.client(), &[]).await?;
    let binary = env!("CARGO_BIN_EXE_pillion");
    let mut spec = ReplicaSpec::of(Role::Controller, binary, kubeconfig(&control_plane, "controller").await?);
    spec.args = arguments(&control_plane, "controller").await?;
    let mut controllers = Vec::new();
    for number in 0..2 {
        controllers.push(controller(&spec, replica_address(CONTROLLERS + number)).await?);
    }
    let mut spec = ReplicaSpec::new(binary, kubeconfig(&control_plane, "webhook").await?, None);
    spec.args = arguments(&control_plane, "webhook").await?;
    let replicas = Replica::start_many(&spec, 3).await?;
    for replica in &replicas {
        service.set_ready(replica.address(), true).await?;
    }
    Ok((Rig { control_plane, replicas, service, spec, serving_ca: String::new() }, controllers))
}

/// Returns the heading of the CRD's first column.
async fn heading(definitions: &Api<CustomResourceDefinition>) -> Result<String> {
    let definition = serde_json::to_value(definitions.get(DEFINITION).await?)?;
    Ok(definition.pointer(HEADING).and_then(Json::as_str).context("a column")?.to_owned())
}

#[test]
fn release_installs_injects_upgrades_and_uninstalls() {
    isolated(|| async {
        let control_plane = ControlPlane::start().await?;
        let client = control_plane.client();
        let definitions: Api<CustomResourceDefinition> = Api::all(client.clone());

        // A dry run makes the API server check all objects without storing them.
        control_plane.create_namespace(NAMESPACE, &[]).await?;
        helm_ok(&control_plane, &["install", "pillion", "--dry-run=server"], Some(&json!({}))).await?;
        ensure!(definitions.list(&ListParams::default()).await?.items.is_empty(), "the dry run has installed objects");

        let installed = helm_ok(&control_plane, &["install", "pillion"], Some(&values(&json!(["nginx"])))).await?;
        ensure!(installed.contains("kubectl label namespace"), "{installed}");
        let policy = ["get", "configmap", "pillion-webhook", "--output", "jsonpath={.data}"];
        let policy = control_plane.kubectl_ok(&[&["--namespace", NAMESPACE][..], &policy].concat()).await?;
        let minor = client.apiserver_version().await?.minor;
        ensure!(policy.contains(&format!("kubernetesMinor: {minor}\\n")), "{policy}");
        // Change the stored CRD, as if an older release had installed it.
        let before = heading(&definitions).await?;
        let older: json_patch::Patch =
            serde_json::from_value(json!([{"op": "replace", "path": HEADING, "value": "older"}]))?;
        definitions.patch(DEFINITION, &PatchParams::default(), &Patch::<()>::Json(older)).await?;

        let (rig, controllers) = run(control_plane).await?;
        rig.namespace("team-a", Some("required")).await?;
        rig.wait_until_called("team-a").await?;
        rig.control_plane.create_namespace("mesh", &[("istio-injection", "enabled")]).await?;
        rig.wait_until_called("mesh").await?;

        // The upgrade adds a profile and updates the CRDs, after an administrator scaled the Deployment.
        rig.control_plane
            .kubectl_ok(&["--namespace", NAMESPACE, "scale", "deployment/pillion-webhook", "--replicas=5"])
            .await?;
        let more = values(&json!({"nginx": {}, "annotate": {}}));
        helm_with_job(&rig.control_plane, "pillion-crds", &["upgrade", "pillion"], Some(&more)).await?;
        ensure!(heading(&definitions).await? == before, "the CRD has changed");
        let deployments: Api<Deployment> = Api::namespaced(client.clone(), NAMESPACE);
        let replicas = deployments.get("pillion-webhook").await?.spec.replicas;
        ensure!(replicas == Some(5), "manual scaling is preserved: {replicas:?}");
        eventually(SOON, "the new profile is served", async || {
            let mut pod = bare_pod("probe");
            pod["metadata"]["annotations"]["pillion.dev/profiles"] = "annotate".into();
            let pod = rig.dry_run("team-a", &pod).await?;
            ensure!(annotation(&pod, "injected-by").is_some(), "{pod}");
            Ok(())
        })
        .await?;
        for process in controllers.iter().chain(&rig.replicas) {
            let log = process.log_text()?;
            ensure!(refusals(&log).is_empty(), "{:#?}", refusals(&log));
        }

        // Stop all processes, then delete the release.
        let Rig { control_plane, replicas, .. } = rig;
        drop((replicas, controllers));
        // A failed job is kept, so that its log can be read. Helm deletes the job's RBAC permissions.
        let uninstall = ["uninstall", "pillion"];
        let (output, failed) =
            tokio::join!(helm(&control_plane, &uninstall, None), fail_job(&control_plane, "pillion-uninstall"));
        failed?;
        ensure!(!output?.status.success());
        let left = control_plane
            .kubectl_ok(&[
                "get",
                "clusterroles,clusterrolebindings,roles,rolebindings,serviceaccounts",
                "--namespace",
                NAMESPACE,
                "--output=name",
            ])
            .await?;
        ensure!(!left.contains("pillion-uninstall"), "{left}");
        control_plane.kubectl_ok(&["delete", "job", "pillion-uninstall", "--namespace", NAMESPACE]).await?;
        helm_with_job(&control_plane, "pillion-uninstall", &uninstall, None).await?;
        let mutating: Api<MutatingWebhookConfiguration> = Api::all(client.clone());
        let validating: Api<ValidatingWebhookConfiguration> = Api::all(client.clone());
        ensure!(mutating.get_opt("pillion").await?.is_none() && validating.get_opt("pillion").await?.is_none());
        ensure!(definitions.get_opt(DEFINITION).await?.is_some(), "CRDs are kept");
        let left = control_plane
            .kubectl_ok(&[
                "get",
                "clusterinjectionprofiles,clusterroles,clusterrolebindings,validatingadmissionpolicies",
                "-l",
                "app.kubernetes.io/instance=pillion",
                "--output=name",
            ])
            .await?;
        ensure!(left.is_empty(), "{left}");
        // The API server receives the deletion of the webhook configuration through its watch, so it may still call the
        // webhook for a moment.
        let create = ["--namespace", "team-a", "run", "app", "--image=app:1"];
        eventually(SOON, "a pod is created", async || control_plane.kubectl_ok(&create).await.map(drop)).await
    });
}

/// A profile that a tenant stores.
const PROFILE: &str = "
apiVersion: pillion.dev/v1alpha1
kind: InjectionProfile
metadata: {name: own, namespace: team-a}
spec: {activation: Always, template: {metadata: {annotations: {example.com/a: b}}}}
";

/// The annotations of a profile that change what pods get.
const STEERING_ANNOTATIONS: [&str; 4] =
    [ROLLBACK_TO_ANNOTATION, ROLLBACK_FROM_ANNOTATION, ROLLBACK_TIME_ANNOTATION, ROLLOUT_ANNOTATION];

#[test]
fn pod_creators_may_edit_namespaced_profiles() {
    isolated(|| async {
        let control_plane = ControlPlane::start().await?;
        control_plane.create_namespace(NAMESPACE, &[]).await?;
        control_plane.create_namespace("team-a", &[]).await?;
        helm_ok(&control_plane, &["install", "pillion"], Some(&json!({}))).await?;
        let bind = ["create", "rolebinding", "-n", "team-a", "--user=tenant"];
        control_plane.kubectl_ok(&[&bind[..], &["profiles", "--clusterrole=pillion-edit"]].concat()).await?;
        let tenant = client_of(&control_plane.kubeconfig_as("tenant", &[])?).await?;
        let profile: kube::api::DynamicObject = serde_saphyr::from_str(PROFILE)?;
        let kind = kube::discovery::ApiResource::from_gvk(&kube::api::GroupVersionKind::gvk(
            "pillion.dev",
            "v1alpha1",
            "InjectionProfile",
        ));
        let profiles: Api<kube::api::DynamicObject> = Api::namespaced_with(tenant, "team-a", &kind);
        let parameters = kube::api::PostParams { dry_run: true, ..kube::api::PostParams::default() };
        eventually(SOON, "the policy is active", async || {
            let error = profiles.create(&parameters, &profile).await.err().context("it was stored")?.to_string();
            ensure!(error.contains("only users who may create pods in team-a may store one there"), "{error}");
            Ok(())
        })
        .await?;

        // Users who may not create pods also cannot publish an earlier revision, end a rollback, or steer a rollout.
        let annotate = async |key: &str, value: Option<&str>| {
            let patch = Patch::Merge(json!({"metadata": {"annotations": {key: value}}}));
            profiles.patch("own", &PatchParams { dry_run: true, ..PatchParams::default() }, &patch).await
        };
        control_plane.apply_yaml(PROFILE).await?;
        annotate("example.com/owner", Some("tenant")).await?;
        for key in STEERING_ANNOTATIONS {
            let set = annotate(key, Some("x")).await.err().with_context(|| format!("{key} was set"))?.to_string();
            ensure!(set.contains("may store one there, roll it back or steer its rollout"), "{key}: {set}");
            control_plane
                .kubectl_ok(&["annotate", "injectionprofile", "own", "-n", "team-a", &format!("{key}=x")])
                .await?;
            ensure!(annotate(key, Some("y")).await.is_err(), "{key} was changed");
            ensure!(annotate(key, None).await.is_err(), "{key} was removed");
            annotate("example.com/owner", Some("tenant")).await?;
        }

        control_plane
            .kubectl_ok(&["create", "role", "pods", "-n", "team-a", "--verb=create", "--resource=pods"])
            .await?;
        control_plane.kubectl_ok(&[&bind[..], &["pods", "--role=pods"]].concat()).await?;
        eventually(SOON, "the role is active", async || Ok(annotate(STEERING_ANNOTATIONS[0], None).await.map(drop)?))
            .await?;
        for key in STEERING_ANNOTATIONS {
            annotate(key, Some("y")).await?;
        }
        control_plane.kubectl_ok(&["delete", "injectionprofile", "own", "-n", "team-a"]).await?;
        profiles.create(&parameters, &profile).await?;
        Ok(())
    });
}
