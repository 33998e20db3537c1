//! A cluster with Pillion, and the objects that tests create there.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use k8s_openapi::api::core::v1::{Namespace, Pod};
use kube::api::{Api, Patch, PatchParams, PostParams};
use pillion_api::webhook_configuration::{self, Settings};
use pillion_testkit::control_plane::Builder;
use pillion_testkit::registration::{NAMESPACE, SERVER_NAME};
use pillion_testkit::{
    ControlPlane, RegisteredService, Replica, ReplicaSpec, TestCa, eventually, register_service, register_webhook,
};
use serde_json::{Value as Json, json};

use crate::direct::metric;
use crate::load::print_figures;

/// Time limit for the cluster to show a requested change.
pub(crate) const SOON: Duration = Duration::from_secs(20);
/// Time limit for a step without a documented duration, such as starting processes that wait for one another.
pub(crate) const PATIENCE: Duration = Duration::from_mins(1);

/// Maximum number of attempts at a step with a short time limit.
pub(crate) const TRIES: usize = 6;

/// The annotation that requests the shipped profile, and the annotation that marks an injected pod.
pub(crate) const REQUEST_ANNOTATION: &str = "sidecar-injector-webhook.morven.me/inject";
pub(crate) const STATUS_ANNOTATION: &str = "sidecar-injector-webhook.morven.me/status";

/// A profile whose pods the API server rejects, because a liveness probe must have a success threshold of 1.
pub(crate) const REJECTED: &str = "
apiVersion: pillion.dev/v1alpha1
kind: ClusterInjectionProfile
metadata: {name: rejected}
spec:
  activation: Requested
  parameters: [{name: threshold, type: integer, default: 2}]
  template:
    spec:
      containers:
      - {name: rejected, image: 'i:1', livenessProbe: {tcpSocket: {port: 1}, successThreshold: '${params.threshold}'}}
";

/// The shipped profile.
pub(crate) const NGINX: &str = include_str!("../../../../profiles/nginx/profile.yaml");

/// Returns the program that replicas run. For measurements, `PILLION_PROGRAM` names a build other than that of the
/// tests.
pub(crate) fn program() -> PathBuf {
    std::env::var_os("PILLION_PROGRAM").map_or_else(|| env!("CARGO_BIN_EXE_pillion").into(), PathBuf::from)
}

/// A control plane with replicas that serve the shipped profile.
pub(crate) struct Rig {
    pub(crate) control_plane: ControlPlane,
    pub(crate) replicas: Vec<Replica>,
    /// The Service through which the API server reaches the replicas.
    pub(crate) service: RegisteredService,
    /// The specification from which replicas start.
    pub(crate) spec: ReplicaSpec,
    /// The CA certificate of the replicas, as PEM.
    pub(crate) serving_ca: String,
}

impl Rig {
    /// Starts a cluster with the CRDs that the program prints, the profile, replicas, and the webhook configuration.
    /// Waits until the API server calls the webhook. Replicas log each decision, and stop without delay.
    pub(crate) async fn start(replicas: u8) -> Result<Self> {
        Self::start_with(ControlPlane::builder(), &[], replicas).await?.called().await
    }

    /// Like [`Rig::start`], but with the log level and the shutdown delay of production.
    pub(crate) async fn start_as_in_production(replicas: u8) -> Result<Self> {
        Self::start_as_in_production_with(ControlPlane::builder(), replicas).await
    }

    /// Like [`Rig::start_as_in_production`], with this control plane.
    pub(crate) async fn start_as_in_production_with(control_plane: Builder, replicas: u8) -> Result<Self> {
        Self::run(control_plane, &[], replicas, "info").await?.called().await
    }

    /// Like [`Rig::start`], but with this control plane and these arguments. It creates no namespace, and does not wait
    /// until the webhook is called.
    pub(crate) async fn start_with(control_plane: Builder, arguments: &[&str], replicas: u8) -> Result<Self> {
        let arguments: Vec<_> = ["--drain-minimum", "0"].iter().chain(arguments).copied().collect();
        Self::run(control_plane, &arguments, replicas, "info,pillion_webhook=debug").await
    }

    /// Adds the namespace `team-a`, and waits until the webhook is called for it.
    pub(crate) async fn called(self) -> Result<Self> {
        self.namespace("team-a", Some("enabled")).await?;
        self.wait_until_called("team-a").await?;
        Ok(self)
    }

    async fn run(control_plane: Builder, args: &[&str], replicas: u8, log_level: &str) -> Result<Self> {
        let control_plane = control_plane.start().await?;
        install_crds(&control_plane).await?;
        control_plane.apply_yaml(NGINX).await?;

        let ca = TestCa::new()?;
        let tls = ca.serving_files(control_plane.directory(), "serving", &[SERVER_NAME])?;
        let mut spec = ReplicaSpec::new(program(), control_plane.kubeconfig(), tls);
        spec.args = args.iter().map(|arg| (*arg).to_owned()).collect();
        spec.env.push(("PILLION_LOG_LEVEL".to_owned(), log_level.to_owned()));
        let replicas = Replica::start_many(&spec, replicas).await?;
        let addresses: Vec<_> = replicas.iter().map(Replica::address).collect();
        let service = register_service(&control_plane.client(), &addresses).await?;
        let configuration = webhook_configuration::mutating(&Settings::new(NAMESPACE, ca.bundle_pem()));
        register_webhook(&control_plane.client(), &configuration).await?;

        Ok(Self { control_plane, replicas, service, spec, serving_ca: ca.bundle_pem() })
    }

    /// Creates a namespace with this failure mode, or without an opt-in label if it is `None`.
    pub(crate) async fn namespace(&self, name: &str, failure_mode: Option<&str>) -> Result<()> {
        let labels: Vec<_> =
            failure_mode.map(|failure_mode| ("pillion.dev/injection", failure_mode)).into_iter().collect();
        self.control_plane.create_namespace(name, &labels).await
    }

    /// Waits until the API server calls the webhook for pods in the namespace. The API server receives configurations
    /// and namespaces through its watches.
    pub(crate) async fn wait_until_called(&self, namespace: &str) -> Result<()> {
        eventually(PATIENCE, "the API server calls the webhook", async || {
            let pod = self.dry_run(namespace, &bare_pod("probe")).await?;
            ensure!(names(&pod).contains(&"sidecar-nginx".to_owned()), "not injected: {pod}");
            Ok(())
        })
        .await
    }

    /// Waits until each replica serves at least this many profiles. Replicas receive each profile independently.
    pub(crate) async fn wait_until_served(&self, profiles: u32) -> Result<()> {
        eventually(PATIENCE, "each replica serves the profiles", async || {
            for replica in &self.replicas {
                let served = metric(replica, "pillion_webhook_profiles ").await?;
                ensure!(served >= f64::from(profiles), "{}: {served} of {profiles}", replica.address());
            }
            Ok(())
        })
        .await
    }

    /// Waits until the first replica reports this number of broken profiles. Its metric of broken profiles changes
    /// after that of served profiles.
    pub(crate) async fn wait_for_broken_profiles(&self, count: u32) -> Result<()> {
        eventually(SOON, "broken profiles are counted", async || {
            let broken = metric(&self.replicas[0], "pillion_webhook_broken_profiles ").await?;
            ensure!((broken - f64::from(count)).abs() < 0.5, "{broken}");
            Ok(())
        })
        .await
    }

    pub(crate) fn pods(&self, namespace: &str) -> Api<Pod> {
        Api::namespaced(self.control_plane.client(), namespace)
    }

    /// Creates a pod and reads it back.
    pub(crate) async fn create(&self, namespace: &str, pod: &Json) -> Result<Json> {
        let pods = self.pods(namespace);
        let created = pods.create(&PostParams::default(), &serde_json::from_value(pod.clone())?).await?;
        let name = created.metadata.name.context("a name")?;
        Ok(serde_json::to_value(pods.get(&name).await?)?)
    }

    /// Returns the pod that a creation would store, from a dry run.
    pub(crate) async fn dry_run(&self, namespace: &str, pod: &Json) -> Result<Json> {
        let parameters = PostParams { dry_run: true, ..PostParams::default() };
        let pod = self.pods(namespace).create(&parameters, &serde_json::from_value(pod.clone())?).await?;
        Ok(serde_json::to_value(pod)?)
    }

    pub(crate) async fn patch(&self, namespace: &str, name: &str, patch: &Json) -> Result<Json> {
        let pod = self.pods(namespace).patch(name, &PatchParams::default(), &Patch::Merge(patch)).await?;
        Ok(serde_json::to_value(pod)?)
    }

    pub(crate) async fn label_namespace(&self, name: &str, label: &str, value: &str) -> Result<()> {
        let namespaces: Api<Namespace> = Api::all(self.control_plane.client());
        let patch = json!({"metadata": {"labels": {label: value}}});
        namespaces.patch(name, &PatchParams::default(), &Patch::Merge(&patch)).await?;
        Ok(())
    }
}

/// Installs the CRDs that the program prints. Uses client-side apply, as most users do, because it limits the size of
/// CRDs. If the control plane had the CRDs at the start of the test, does nothing.
pub(crate) async fn install_crds(control_plane: &ControlPlane) -> Result<()> {
    if control_plane.has_crds() {
        return Ok(());
    }
    let crds = std::process::Command::new(env!("CARGO_BIN_EXE_pillion")).arg("crds").output()?;
    ensure!(crds.status.success(), "{}", String::from_utf8_lossy(&crds.stderr));
    let applied = control_plane.kubectl_with_input(&["apply", "-f", "-"], std::str::from_utf8(&crds.stdout)?).await?;
    ensure!(applied.status.success(), "{}", String::from_utf8_lossy(&applied.stderr));
    let kinds = ["clusterinjectionprofiles", "injectionprofiles", "clusterprofilerevisions", "profilerevisions"];
    let names = kinds.map(|kind| format!("{kind}.pillion.dev"));
    control_plane.wait_for_crds(&names.each_ref().map(String::as_str)).await
}

/// Returns a pod without an owner that requests the sidecar.
pub(crate) fn bare_pod(name: &str) -> Json {
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": name, "annotations": {REQUEST_ANNOTATION: "yes", "example.com/kept": "as it is"}},
        "spec": {"containers": [{"name": "app", "image": "app:1"}]},
    })
}

/// Returns a pod in the form in which a Deployment's ReplicaSet creates it.
pub(crate) fn deployment_pod() -> Json {
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {
            "generateName": "web-7c9d6f5b8-",
            "labels": {"app": "web", "pod-template-hash": "7c9d6f5b8"},
            "annotations": {REQUEST_ANNOTATION: "Yes"},
            "ownerReferences": [owner("apps/v1", "ReplicaSet", "web-7c9d6f5b8")],
        },
        "spec": {
            "containers": [
                {"name": "web", "image": "web:1", "ports": [{"containerPort": 80}],
                 "volumeMounts": [{"name": "data", "mountPath": "/data"}]},
                {"name": "exporter", "image": "exporter:1"},
            ],
            "volumes": [{"name": "data", "emptyDir": {}}],
        },
    })
}

/// Returns a pod in the form in which a Job creates it.
pub(crate) fn job_pod() -> Json {
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {
            "generateName": "backup-",
            "labels": {"batch.kubernetes.io/job-name": "backup"},
            "annotations": {REQUEST_ANNOTATION: "on"},
            "ownerReferences": [owner("batch/v1", "Job", "backup")],
        },
        "spec": {"restartPolicy": "Never", "containers": [{"name": "backup", "image": "backup:1"}]},
    })
}

fn owner(api_version: &str, kind: &str, name: &str) -> Json {
    json!({
        "apiVersion": api_version, "kind": kind, "name": name, "controller": true, "blockOwnerDeletion": true,
        "uid": "029dc23e-3de8-41af-ab3c-a95b34b82bf3",
    })
}

/// Returns the names of a pod's containers.
pub(crate) fn names(pod: &Json) -> Vec<String> {
    let containers = pod["spec"]["containers"].as_array();
    containers.into_iter().flatten().map(|container| container["name"].as_str().unwrap().to_owned()).collect()
}

pub(crate) fn annotation<'p>(pod: &'p Json, key: &str) -> Option<&'p str> {
    pod["metadata"]["annotations"].get(key).and_then(Json::as_str)
}

/// Returns whether a pod contains no change by Pillion.
pub(crate) fn is_untouched(pod: &Json) -> bool {
    let text = pod.to_string();
    !text.contains("sidecar-nginx") && !text.contains("nginx-conf") && !text.contains("pillion.dev/injected")
}

/// Returns the status with which the API server rejected a request. Fails if the API server did not reject it.
pub(crate) fn refusal(result: Result<Json>) -> Result<Json> {
    match result {
        Ok(object) => bail!("the request was not rejected: {object}"),
        Err(error) => match error.downcast::<kube::Error>()? {
            kube::Error::Api(status) => Ok(serde_json::to_value(status)?),
            error => Err(error.into()),
        },
    }
}

/// Encodes bytes in the format of the data of Secrets in JSON.
pub(crate) fn base64(bytes: impl AsRef<[u8]>) -> String {
    use base64::Engine;
    base64::engine::general_purpose::STANDARD.encode(bytes)
}

/// Repeats a measurement until the duration is below `bar`, and returns the duration. Fails after [`TRIES`] slow
/// measurements, since a busy machine can cause a single delay.
pub(crate) async fn quickest(
    bar: Duration,
    what: &str,
    mut once: impl AsyncFnMut() -> Result<Duration>,
) -> Result<Duration> {
    let mut quickest = Duration::MAX;
    for _ in 0..TRIES {
        quickest = quickest.min(once().await?);
        if quickest < bar {
            print_figures(&format!("{what}: after {quickest:?}"));
            return Ok(quickest);
        }
    }
    bail!("{what}: after {quickest:?}, and not within {bar:?}")
}
