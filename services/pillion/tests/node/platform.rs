//! A cluster with Pillion's images, and the commands that a platform team runs: helm and kubectl.

use std::path::{Path, PathBuf};
use std::process::{Output, Stdio};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use k8s_openapi::api::core::v1::{Pod, ServiceAccount};
use kube::api::{Api, PostParams};
use pillion_testkit::cluster::{self, PAUSE_IMAGE};
use pillion_testkit::image::{self, Image};
use pillion_testkit::{Cluster, eventually, tools};
use serde_json::{Value as Json, json};

/// The namespace of Pillion.
pub(crate) const NAMESPACE: &str = "pillion-system";
/// Time limit for the cluster to show a requested change, unless the test checks a documented limit.
pub(crate) const SOON: Duration = Duration::from_mins(2);
/// The time limit of one call of helm or kubectl.
const COMMAND_LIMIT: Duration = Duration::from_mins(4);
/// The time limit of a test.
const TEST_LIMIT: Duration = Duration::from_mins(15);
/// The annotation that requests the sidecar of the shipped profile, and the sidecar's name.
const REQUEST_ANNOTATION: &str = "sidecar-injector-webhook.morven.me/inject";
pub(crate) const SIDECAR: &str = "sidecar-nginx";

/// The cluster, which is stopped at the end of the test.
pub(crate) struct Platform {
    pub(crate) cluster: Cluster,
    pub(crate) client: kube::Client,
    kubectl: PathBuf,
    helm: PathBuf,
}

/// Runs a test with its own cluster, one test at a time.
pub(crate) fn on_a_node<F>(body: F)
where
    F: AsyncFnOnce(&mut Platform) -> Result<()>,
{
    static ONE: Mutex<()> = Mutex::new(());
    // A failed test stops its own cluster, so a poisoned lock is harmless.
    let _one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        let run = async {
            let mut platform = Platform::start().await?;
            let outcome = body(&mut platform).await;
            if outcome.is_err() {
                platform.show().await;
            }
            outcome
        };
        tokio::time::timeout(TEST_LIMIT, run).await.context("the test has not ended").flatten().unwrap();
    });
}

impl Platform {
    async fn start() -> Result<Self> {
        let cluster = Cluster::owned().await?;
        let platform = Self {
            client: cluster.client().await?,
            cluster,
            kubectl: tools::program("kubectl")?,
            helm: tools::program("helm")?,
        };
        platform.import()?;
        Ok(platform)
    }

    /// Imports Pillion's image under two tags, and an idle image in place of the sidecar's image of the shipped
    /// profile.
    fn import(&self) -> Result<()> {
        for tag in ["one", "two"] {
            self.import_pillion(&format!("local.test/pillion:{tag}"))?;
        }
        self.import_idle("docker.io/library/nginx:1.29")
    }

    /// Imports Pillion's image under this reference: the archive that `PILLION_IMAGE` names, or an image of the program
    /// that was built for the tests.
    pub(crate) fn import_pillion(&self, reference: &str) -> Result<()> {
        let archive = self.cluster.home().join("pillion.tar");
        if let Some(shipped) = std::env::var_os("PILLION_IMAGE").filter(|value| !value.is_empty()) {
            image::renamed(Path::new(&shipped), reference, &archive)?;
        } else {
            let program = Path::new(env!("CARGO_BIN_EXE_pillion"));
            Image::new(reference, "/pillion")?.program("/pillion", program)?.write(&archive)?;
        }
        self.cluster.load(&archive)
    }

    /// Imports an image with this reference, whose container runs but does nothing.
    pub(crate) fn import_idle(&self, reference: &str) -> Result<()> {
        let folder = self.cluster.home();
        let pause = cluster::pause(folder)?;
        self.import_image(Image::new(reference, "/pause")?.file("/pause", &pause)?)
    }

    pub(crate) fn import_image(&self, image: Image) -> Result<()> {
        let archive = self.cluster.home().join("image.tar");
        image.write(&archive)?;
        self.cluster.load(&archive)
    }

    /// Returns the values on which every release in these tests is based: the imported image with this tag, the shipped
    /// profile, and logs as text.
    pub(crate) fn values(tag: &str) -> Json {
        json!({
            "image": {"registry": "local.test", "tag": tag},
            "profiles": ["nginx"],
            "webhook": {"logFormat": "text"},
            "controller": {"logFormat": "text"},
        })
    }

    /// Runs `helm COMMAND pillion [CHART --values VALUES] ARGUMENTS`. Returns the output.
    pub(crate) async fn helm(&self, command: &str, values: Option<&Json>, arguments: &[&str]) -> Result<String> {
        let folder = self.cluster.home().join("helm");
        std::fs::create_dir_all(&folder)?;
        let mut helm = tokio::process::Command::new(&self.helm);
        for variable in ["HELM_CACHE_HOME", "HELM_CONFIG_HOME", "HELM_DATA_HOME"] {
            helm.env(variable, &folder);
        }
        helm.arg("--kubeconfig").arg(self.cluster.kubeconfig()).args(["--namespace", NAMESPACE, command, "pillion"]);
        if let Some(values) = values {
            let file = folder.join("values.json");
            std::fs::write(&file, values.to_string())?;
            helm.arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../charts/pillion")).arg("--values").arg(file);
        }
        helm.args(arguments);
        finished(helm, "").await
    }

    /// Installs Pillion, and waits until its pods are ready and pods in `namespace` are injected.
    pub(crate) async fn install(&self, namespace: &str) -> Result<()> {
        self.helm("install", Some(&Self::values("one")), &["--create-namespace", "--wait", "--timeout=3m"]).await?;
        self.injects(namespace).await
    }

    /// Waits until pods in a namespace are injected. This takes a moment, because the API server receives the namespace
    /// through a watch.
    pub(crate) async fn injects(&self, namespace: &str) -> Result<()> {
        eventually(SOON, "pods are injected", async || {
            let pod = self.dry_run(namespace).await?;
            ensure!(is_injected(&pod), "not injected: {pod:?}");
            Ok(())
        })
        .await
    }

    pub(crate) async fn kubectl(&self, arguments: &[&str]) -> Result<String> {
        self.kubectl_with_input(arguments, "").await
    }

    pub(crate) async fn kubectl_with_input(&self, arguments: &[&str], input: &str) -> Result<String> {
        let mut kubectl = tokio::process::Command::new(&self.kubectl);
        kubectl.arg("--kubeconfig").arg(self.cluster.kubeconfig());
        kubectl.arg("--cache-dir").arg(self.cluster.home().join("kubectl")).env("KUBERC", "off").args(arguments);
        finished(kubectl, input).await
    }

    /// Creates a namespace with this failure mode, and with the objects that the shipped profile's sidecar mounts.
    pub(crate) async fn namespace(&self, name: &str, level: &str) -> Result<()> {
        let objects = json!({"apiVersion": "v1", "kind": "List", "items": [
            {"apiVersion": "v1", "kind": "Namespace",
             "metadata": {"name": name, "labels": {"pillion.dev/injection": level}}},
            {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "nginx-configmap", "namespace": name}},
        ]});
        self.kubectl_with_input(&["apply", "--server-side", "-f", "-"], &objects.to_string()).await?;
        // Pods need the default service account, which a controller creates.
        let accounts: Api<ServiceAccount> = Api::namespaced(self.client.clone(), name);
        eventually(SOON, "the service account exists", async || Ok(accounts.get("default").await.map(drop)?)).await
    }

    pub(crate) fn pods(&self, namespace: &str) -> Api<Pod> {
        Api::namespaced(self.client.clone(), namespace)
    }

    /// Returns the pod that the API server would store for a pod with the sidecar's annotation.
    pub(crate) async fn dry_run(&self, namespace: &str) -> kube::Result<Pod> {
        let parameters = PostParams { dry_run: true, ..PostParams::default() };
        self.pods(namespace).create(&parameters, &pod("probe", true)).await
    }

    /// Prints the state of the cluster, for the log of a failed test.
    async fn show(&self) {
        for arguments in [
            &["get", "pods", "--all-namespaces", "--output=wide"][..],
            &["get", "events", "--all-namespaces", "--sort-by=.lastTimestamp"],
            &["logs", "--namespace", NAMESPACE, "--selector=app.kubernetes.io/name=pillion", "--tail=30", "--prefix"],
        ] {
            let output = self.kubectl(arguments).await.unwrap_or_else(|error| format!("{error:#}"));
            let last: Vec<&str> = output.lines().rev().take(60).collect();
            println!("--- kubectl {}", arguments.join(" "));
            last.into_iter().rev().for_each(|line| println!("{line}"));
        }
    }
}

/// Returns a pod that requests the sidecar and uses the imported image. If `runs` is false, it matches no node.
pub(crate) fn pod(name: &str, runs: bool) -> Pod {
    let selector = if runs { json!({}) } else { json!({"example.com/nowhere": "yes"}) };
    serde_json::from_value(json!({
        "metadata": {"name": name, "annotations": {REQUEST_ANNOTATION: "yes"}},
        "spec": {"nodeSelector": selector, "terminationGracePeriodSeconds": 1,
            "containers": [{"name": "app", "image": PAUSE_IMAGE, "imagePullPolicy": "IfNotPresent"}]},
    }))
    .unwrap()
}

/// Returns whether a pod has the sidecar.
pub(crate) fn is_injected(pod: &Pod) -> bool {
    pod.spec.iter().flat_map(|spec| &spec.containers).any(|container| container.name == SIDECAR)
}

/// Fails unless all containers of a pod run and are ready.
pub(crate) fn is_ready(pod: &Pod) -> Result<()> {
    let status = pod.status.as_ref().context("no status")?;
    let statuses = status.container_statuses.iter().flatten().chain(status.init_container_statuses.iter().flatten());
    let statuses: Vec<_> = statuses.collect();
    ensure!(!statuses.is_empty(), "no container was started: {:?}", status.conditions);
    for each in statuses {
        let running = each.state.as_ref().is_some_and(|state| state.running.is_some());
        ensure!(each.ready && running, "{}: {:?}", each.name, each.state);
    }
    Ok(())
}

async fn finished(mut command: tokio::process::Command, input: &str) -> Result<String> {
    use tokio::io::AsyncWriteExt;
    let line = format!("{:?}", command.as_std());
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
    let mut child = command.spawn().with_context(|| format!("cannot run {line}"))?;
    if let Some(mut stdin) = child.stdin.take() {
        stdin.write_all(input.as_bytes()).await?;
    }
    let ended = tokio::time::timeout(COMMAND_LIMIT, child.wait_with_output());
    let Output { status, stdout, stderr } = ended.await.with_context(|| format!("{line} does not end"))??;
    if !status.success() {
        bail!("{line} ({status}): {}{}", String::from_utf8_lossy(&stdout), String::from_utf8_lossy(&stderr));
    }
    Ok(String::from_utf8(stdout)?)
}
