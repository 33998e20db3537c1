//! Tests every shipped profile on a real API server, which must accept the pods that result from the profile's test
//! cases. A pod that meets the *restricted* level of Pod Security must still meet it after injection. The exceptions
//! are listed here with a reason.
//!
//! All profiles are in the cluster at the same time. Each selects its own two namespaces. Compatible profiles also
//! select the namespace [`SHARED_NAMESPACE`]. The pods come from `profiles/*/tests/*.yaml`, completed with fields that
//! only the API server requires (images, volumes).

#![allow(
    clippy::panic,
    clippy::print_stderr,
    reason = "helpers of tests fail by panicking, and the test prints a table"
)]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use futures::{StreamExt as _, TryStreamExt as _};
use pillion_testkit::{ControlPlane, eventually, isolated_with_crds};
use serde_json::{Value as Json, json};

use crate::rig::{PATIENCE, Rig, SOON, annotation};

/// The label with which a profile selects its namespaces.
const FOLDER: &str = "example.com/profile";

/// The namespace that all profiles select, except those that [`excludes`] names.
const SHARED_NAMESPACE: &str = "together";

/// Number of pods that are tested concurrently.
const CONCURRENCY: usize = 8;

/// Profiles whose injected pods do not meet *restricted*, each with the reason.
const UNRESTRICTED: [(&str, &str); 7] = [
    ("dapr", "pods may request what *restricted* forbids: volumes of the host, another user"),
    ("istio", "an init container writes packet rules, unless the parameter cni is set"),
    ("linkerd", "an init container writes packet rules, unless the parameter cni is set"),
    ("nginx", "the tutorial's nginx runs as root and listens on port 80"),
    ("otel-go", "the agent instruments another process with eBPF, as root"),
    ("vault-agent", "a pod may request an agent that runs as root"),
    ("wireguard", "an init container creates a network interface"),
];

/// Returns the folders of all shipped profiles, by name.
fn folders() -> BTreeMap<String, PathBuf> {
    let shipped = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../profiles");
    let folders = fs::read_dir(shipped).unwrap().map(|entry| entry.unwrap().path());
    let named = folders.filter(|folder| folder.join("profile.yaml").exists());
    named.map(|folder| (folder.file_name().unwrap().to_string_lossy().into_owned(), folder)).collect()
}

fn documents(path: &Path) -> Vec<Json> {
    let text = fs::read_to_string(path).unwrap();
    let found: Vec<Json> =
        serde_saphyr::from_multiple(&text).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    found.into_iter().filter(|document| !document.is_null()).collect()
}

/// Returns the test cases in a folder that concern pods.
fn cases(folder: &Path) -> Vec<Json> {
    let Ok(files) = fs::read_dir(folder.join("tests")) else { return Vec::new() };
    let mut files: Vec<_> = files.map(|entry| entry.unwrap().path()).collect();
    files.sort();
    let yaml = files.iter().filter(|file| file.extension().is_some_and(|extension| extension == "yaml"));
    let all = yaml.flat_map(|file| documents(file));
    all.filter(|case| case["object"]["kind"].as_str().is_none_or(|kind| kind == "Pod")).collect()
}

/// Returns the pod of a test case, completed with fields that the API server requires.
fn completed(case: &Json, number: usize) -> Json {
    let mut pod = case["object"].clone();
    pod["apiVersion"] = json!("v1");
    pod["kind"] = json!("Pod");
    let object = pod.as_object_mut().unwrap();
    let metadata = object.entry("metadata").or_insert(json!({})).as_object_mut().unwrap();
    for field in ["namespace", "generateName", "managedFields"] {
        metadata.remove(field);
    }
    metadata.insert("name".to_owned(), json!(format!("case-{number}")));
    for owner in metadata.get_mut("ownerReferences").and_then(Json::as_array_mut).into_iter().flatten() {
        owner.as_object_mut().unwrap().entry("uid").or_insert(json!("029dc23e-3de8-41af-ab3c-a95b34b82bf3"));
    }
    let Some(spec) = pod.get_mut("spec").and_then(Json::as_object_mut) else { return pod };
    // The API server here has no admission plugin that sets the service account.
    spec.entry("serviceAccountName").or_insert(json!("default"));
    let mut mounted = BTreeSet::new();
    for list in ["initContainers", "containers"] {
        for container in spec.get_mut(list).and_then(Json::as_array_mut).into_iter().flatten() {
            let Some(fields) = container.as_object_mut() else { continue };
            fields.entry("image").or_insert(json!("registry.example.com/app:1"));
            let mounts = container["volumeMounts"].as_array().into_iter().flatten();
            mounted.extend(mounts.filter_map(|mount| Some(mount["name"].as_str()?.to_owned())));
        }
    }
    let volumes = spec.entry("volumes").or_insert(json!([]));
    if volumes.is_null() {
        *volumes = json!([]);
    }
    let Some(volumes) = volumes.as_array_mut() else { return pod };
    for volume in volumes.iter_mut().filter(|volume| volume.as_object().is_some_and(|volume| volume.len() == 1)) {
        volume["emptyDir"] = json!({});
    }
    let missing = mounted.into_iter().filter(|name| !volumes.iter().any(|volume| volume["name"] == **name));
    let missing: Vec<_> = missing.map(|name| json!({"name": name, "emptyDir": {}})).collect();
    volumes.extend(missing);
    pod
}

/// Returns the pod, with the security contexts that *restricted* requires.
fn restricted(mut pod: Json) -> Json {
    let Some(spec) = pod.get_mut("spec").filter(|spec| spec.is_object()) else { return pod };
    let set = |at: &mut Json, more: Json| {
        let context = at.as_object_mut().unwrap().entry("securityContext").or_insert(json!({}));
        context.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    };
    set(spec, json!({"runAsNonRoot": true, "seccompProfile": {"type": "RuntimeDefault"}}));
    for list in ["initContainers", "containers"] {
        for container in spec.get_mut(list).and_then(Json::as_array_mut).into_iter().flatten() {
            set(container, json!({"allowPrivilegeEscalation": false, "capabilities": {"drop": ["ALL"]}}));
        }
    }
    pod
}

/// Starts a cluster with a replica. Its policy file contains the minor version of Kubernetes, as the chart's does.
async fn start() -> Result<Rig> {
    let version = std::env::var("KUBERNETES").unwrap_or_else(|_| "1.37".to_owned());
    let minor: u32 = version.rsplit('.').next().context("a version")?.parse()?;
    let mut policy = tempfile::NamedTempFile::new()?;
    let kind = "apiVersion: config.pillion.dev/v1alpha1\nkind: WebhookPolicy";
    writeln!(policy, "{kind}\ncluster: {{kubernetesMinor: {minor}}}")?;
    let path = policy.path().to_str().context("a path")?;
    Rig::start_with(ControlPlane::builder(), &["--config", path], 1).await?.called().await
}

/// Installs all profiles, each for its own namespaces. Returns the number of installed profiles.
async fn install(rig: &Rig, folders: &BTreeMap<String, PathBuf>) -> Result<usize> {
    rig.control_plane.kubectl_ok(&["delete", "ciprof", "nginx"]).await?;
    let mut installed = 0;
    for (name, folder) in folders {
        for mut profile in documents(&folder.join("profile.yaml")) {
            let values = if excludes(name) { json!([name]) } else { json!([name, SHARED_NAMESPACE]) };
            // Some profiles inject nothing without trust anchors or an image, so these parameters get a value.
            let parameters = profile.pointer_mut("/spec/parameters").and_then(Json::as_array_mut).into_iter().flatten();
            for parameter in parameters.filter(|parameter| {
                parameter["name"] == "trustAnchors" || (parameter["name"] == "image" && parameter["default"] == "")
            }) {
                parameter["default"] = json!("roots");
            }
            let selector = profile["spec"].as_object_mut().unwrap().entry("namespaceSelector").or_insert(json!({}));
            selector["matchExpressions"] = json!([{"key": FOLDER, "operator": "In", "values": values}]);
            rig.control_plane.apply_yaml(&profile.to_string()).await.with_context(|| name.clone())?;
            installed += 1;
        }
        namespace(&rig.control_plane, &format!("p-{name}"), name, &[("pillion.dev/injection", "enabled")]).await?;
        let strict = [("pillion.dev/injection", "enabled"), ("pod-security.kubernetes.io/enforce", "restricted")];
        namespace(&rig.control_plane, &format!("r-{name}"), name, &strict).await?;
    }
    namespace(&rig.control_plane, SHARED_NAMESPACE, SHARED_NAMESPACE, &[("pillion.dev/injection", "enabled")]).await?;
    rig.control_plane.create_namespace("plain", &[]).await?;
    rig.control_plane.create_namespace("strict", &[("pod-security.kubernetes.io/enforce", "restricted")]).await?;
    let served = format!("pillion_webhook_profiles {installed}");
    eventually(PATIENCE, "all profiles are served", async || {
        let metrics = rig.replicas[0].metrics_text().await?;
        let line = metrics.lines().find(|line| line.starts_with("pillion_webhook_profiles ")).unwrap_or_default();
        ensure!(line == served, "{line}, and not {served}: {}", rig.replicas[0].log_text()?);
        Ok(())
    })
    .await?;
    Ok(installed)
}

/// Returns whether a profile conflicts with the other profiles on one pod, or rejects nearly all pods.
fn excludes(folder: &str) -> bool {
    // `linkerd` conflicts with the profile of the other mesh. `deny-env` rejects variables in the author's containers,
    // such as those that other profiles add there. `reserved-namespaces` rejects every pod.
    ["linkerd", "deny-env", "reserved-namespaces"].contains(&folder)
}

async fn namespace(control_plane: &ControlPlane, name: &str, folder: &str, labels: &[(&str, &str)]) -> Result<()> {
    let labels: Vec<_> = labels.iter().copied().chain([(FOLDER, folder)]).collect();
    control_plane.create_namespace(name, &labels).await
}

/// Returns the pod that the API server would store, or the message of its rejection. Fails on other errors.
async fn ask_api_server(rig: &Rig, namespace: &str, pod: &Json) -> Result<Result<Json, String>> {
    match rig.dry_run(namespace, pod).await {
        Ok(pod) => Ok(Ok(pod)),
        Err(error) => match error.downcast::<kube::Error>() {
            Ok(kube::Error::Api(status)) => Ok(Err(status.message.clone())),
            Ok(error) => Err(error.into()),
            // The object is not a valid pod, for example if the value of a label is not a string.
            Err(error) => Ok(Err(error.to_string())),
        },
    }
}

/// The numbers of a profile's test cases, by result.
#[derive(Debug, Default)]
struct Tally {
    accepted: usize,
    injected: usize,
    refused: usize,
    restricted: usize,
    unrestricted: usize,
    /// Pods that the API server rejects without any injection.
    impossible: usize,
    /// Pods that the API server rejects because of the injection.
    wrong: Vec<String>,
}

/// Tests the pod of a test case without and with injection, and again in a namespace that enforces *restricted*.
async fn try_case(rig: &Rig, folder: &str, name: &Json, pod: Json) -> Result<Tally> {
    let mut tally = Tally::default();
    if let Err(why) = ask_api_server(rig, "plain", &pod).await? {
        eprintln!("{folder}: {name}: no pod without injection either: {why}");
        tally.impossible = 1;
        return Ok(tally);
    }
    match ask_api_server(rig, &format!("p-{folder}"), &pod).await? {
        Ok(made) => {
            tally.accepted = 1;
            tally.injected = usize::from(annotation(&made, "pillion.dev/injected").is_some());
        }
        // A rejection by the webhook is a decision of a profile. A rejection by the API server itself means that the
        // injection is invalid.
        Err(why) if why.contains("denied the request") => tally.refused = 1,
        Err(why) => tally.wrong.push(format!("{folder}: {name}: {why}")),
    }
    let pod = restricted(pod);
    if ask_api_server(rig, "strict", &pod).await?.is_err() {
        return Ok(tally);
    }
    match ask_api_server(rig, &format!("r-{folder}"), &pod).await? {
        Err(why) if !why.contains("denied the request") => {
            tally.unrestricted = 1;
            if !UNRESTRICTED.iter().any(|(profile, _)| *profile == folder) {
                tally.wrong.push(format!("{folder}: {name}: no longer restricted: {why}"));
            }
        }
        _ => tally.restricted = 1,
    }
    Ok(tally)
}

#[test]
fn api_server_accepts_shipped_profiles() {
    isolated_with_crds(|| async {
        let rig = start().await?;
        let folders = folders();
        let installed = install(&rig, &folders).await?;
        let mut wrong = Vec::new();
        let mut unrestricted = BTreeSet::new();
        eprintln!("{:<24} cases accepted injected refused impossible restricted unrestricted", "profile");
        for (folder, path) in &folders {
            let cases = cases(path);
            let all = futures::stream::iter(cases.iter().enumerate())
                .map(|(number, case)| try_case(&rig, folder, &case["name"], completed(case, number)))
                .buffer_unordered(CONCURRENCY)
                .try_collect::<Vec<_>>()
                .await?;
            let sum = |count: fn(&Tally) -> usize| all.iter().map(count).sum::<usize>();
            eprintln!(
                "{folder:<24} {:>5} {:>8} {:>8} {:>7} {:>10} {:>10} {:>12}",
                cases.len(),
                sum(|tally| tally.accepted),
                sum(|tally| tally.injected),
                sum(|tally| tally.refused),
                sum(|tally| tally.impossible),
                sum(|tally| tally.restricted),
                sum(|tally| tally.unrestricted),
            );
            if sum(|tally| tally.unrestricted) > 0 {
                unrestricted.insert(folder.as_str());
            }
            wrong.extend(all.into_iter().flat_map(|tally| tally.wrong));
        }
        for (folder, why) in UNRESTRICTED {
            ensure!(unrestricted.contains(folder), "{folder} meets *restricted*, in spite of: {why}");
        }
        ensure!(wrong.is_empty(), "{} of the pods of {installed} profiles:\n{}", wrong.len(), wrong.join("\n"));
        Ok(())
    });
}

/// A pod to which all profiles in [`COMBINED`] are applied, with the parameters that they need.
const EVERYTHING: &str = r#"
apiVersion: v1
kind: Pod
metadata:
  name: everything
  labels: {agones.dev/gameserver: everything}
  annotations:
    sidecar-injector-webhook.morven.me/inject: "yes"
    vault.hashicorp.com/agent-inject: "true"
    vault.hashicorp.com/agent-inject-secret-db: kv/db
    vault.hashicorp.com/role: everything
    dapr.io/enabled: "true"
    dapr.io/app-id: everything
    instrumentation.opentelemetry.io/inject-java: "true"
    instrumentation.opentelemetry.io/java-container-names: app
    instrumentation.opentelemetry.io/inject-python: "true"
    instrumentation.opentelemetry.io/python-container-names: worker
    sidecar.opentelemetry.io/inject: "true"
    cloud-sql-proxy.pillion.dev/instances: "p:r:db"
    wireguard.pillion.dev/address: 10.9.0.2/32
    wireguard.pillion.dev/routes: 10.9.0.0/24
    agones.dev/container: app
    pillion.dev/profiles: log-shipper,cloud-sql-proxy,wireguard
spec:
  serviceAccountName: builder
  containers:
  - name: app
    image: registry.example.com/app:1
    volumeMounts: [{name: token, mountPath: /var/run/secrets/kubernetes.io/serviceaccount}]
  - name: worker
    image: registry.example.com/worker:1
    volumeMounts: [{name: token, mountPath: /var/run/secrets/kubernetes.io/serviceaccount}]
  volumes: [{name: token, emptyDir: {}}]
"#;

/// The service account, which has the AWS role of the pod.
const BUILDER: &str = "
apiVersion: v1
kind: ServiceAccount
metadata:
  name: builder
  namespace: together
  annotations: {eks.amazonaws.com/role-arn: 'arn:aws:iam::1:role/builder'}
";

/// The profiles that are applied to [`EVERYTHING`].
const COMBINED: [&str; 13] = [
    "agones-sdk",
    "annotate",
    "cloud-sql-proxy",
    "dapr",
    "eks-web-identity",
    "istio-sidecar",
    "log-shipper",
    "nginx",
    "otel-collector-sidecar",
    "otel-java",
    "otel-python",
    "vault-agent",
    "wireguard",
];

#[test]
fn compatible_shipped_profiles_combine_on_one_pod() {
    isolated_with_crds(|| async {
        let rig = start().await?;
        let folders = folders();
        install(&rig, &folders).await?;
        rig.control_plane.apply_yaml(BUILDER).await?;
        let pod: Json = serde_saphyr::from_str(EVERYTHING)?;
        // The lookup of the service account may take 250 ms, and replicas receive the namespace's labels through a
        // watch.
        let first = eventually(SOON, "all profiles act on the pod", async || {
            let first = rig.dry_run(SHARED_NAMESPACE, &pod).await?;
            let record: Json = serde_json::from_str(annotation(&first, "pillion.dev/injected").context("a record")?)?;
            let profiles = record["profiles"].as_array().into_iter().flatten();
            let applied: BTreeSet<_> = profiles.filter_map(|profile| profile["profile"].as_str()).collect();
            eprintln!("{} profiles on one pod: {applied:?}", applied.len());
            let log = rig.replicas[0].log_text()?;
            let decided = log.lines().rfind(|line| line.contains("name=everything")).unwrap_or_default();
            ensure!(applied == BTreeSet::from(COMBINED), "{applied:?}: {decided}");
            Ok(first)
        })
        .await?;
        // Injection is deterministic: the same pod must give the same result. The API server stores the pod.
        let mut again = rig.dry_run(SHARED_NAMESPACE, &pod).await?;
        let mut first = first;
        for pod in [&mut first, &mut again] {
            let metadata = pod["metadata"].as_object_mut().unwrap();
            for field in ["uid", "creationTimestamp", "managedFields"] {
                metadata.remove(field);
            }
        }
        ensure!(first == again, "creating the pod again changes it");
        rig.create(SHARED_NAMESPACE, &pod).await?;
        Ok(())
    });
}
