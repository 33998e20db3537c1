//! Starts the real Vertical Pod Autoscaler: the admission controller, which sets the requests of new pods, and the
//! updater, which evicts pods whose requests are outside the recommended range. There is no recommender: tests write
//! the recommendations themselves.
//!
//! Both programs have only the permissions that the project's own manifests grant.

use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, ensure};
use http::StatusCode;
use k8s_openapi::api::admissionregistration::v1::MutatingWebhookConfiguration;
use k8s_openapi::api::coordination::v1::Lease;
use kube::Api;

use crate::certificates::TestCa;
use crate::control_plane::ControlPlane;
use crate::daemon::Daemon;
use crate::eventually::eventually;
use crate::replica;
use crate::tools;

/// The name of the webhook configuration that the admission controller creates.
pub const CONFIGURATION: &str = "vpa-webhook-config";
/// The user name of the updater.
pub const UPDATER: &str = "system:serviceaccount:kube-system:vpa-updater";

/// The namespace of both programs.
const NAMESPACE: &str = "kube-system";
/// The Lease that the admission controller renews. The updater evicts no pods without it.
const LEASE: &str = "vpa-admission-controller";
/// The port on which the API server calls the admission controller.
const WEBHOOK_PORT: u16 = 8000;
/// The port of the updater's metrics.
const UPDATER_METRICS_PORT: u16 = 8943;
/// The port of the admission controller's metrics.
const ADMISSION_METRICS_PORT: u16 = 8944;
/// How long each program may take to start. The admission controller waits ten seconds before it creates its webhook
/// configuration, and another ten before it renews its Lease.
const START_LIMIT: Duration = Duration::from_mins(2);

/// A running Vertical Pod Autoscaler. Dropping this value ends its programs.
#[derive(Debug)]
pub struct VerticalPodAutoscaler {
    _admission_controller: Daemon,
    _updater: Daemon,
    address: IpAddr,
}

impl VerticalPodAutoscaler {
    /// Installs the CRDs and roles from `module`, the source of the project
    /// ([`tools::go_module`]`("vpa", "k8s.io/autoscaler/vertical-pod-autoscaler")`). Starts both programs at `address`,
    /// and waits until the API server has the webhook configuration and the updater may evict pods. The updater looks
    /// for pods to evict once in each `interval`.
    ///
    /// # Errors
    /// A program cannot be built or ends early, the API server rejects an object, or a program is not ready in time.
    pub async fn start(
        control_plane: &ControlPlane,
        module: &Path,
        address: IpAddr,
        interval: Duration,
    ) -> anyhow::Result<Self> {
        for file in ["vpa-v1-crd-gen.yaml", "vpa-rbac.yaml"] {
            let path = module.join("deploy").join(file);
            let text = std::fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
            control_plane.apply_yaml(&text).await.with_context(|| format!("cannot apply {}", path.display()))?;
        }
        let crds = ["verticalpodautoscalers", "verticalpodautoscalercheckpoints"];
        let crds = crds.map(|plural| format!("{plural}.autoscaling.k8s.io"));
        control_plane.wait_for_crds(&crds.each_ref().map(String::as_str)).await?;

        let folder = control_plane.directory();
        let ca = TestCa::new()?;
        let tls = ca.serving_files(folder, "vpa", &[&address.to_string()])?;
        let ca_file = folder.join("vpa-ca.crt");
        std::fs::write(&ca_file, ca.bundle_pem()).with_context(|| format!("cannot write {}", ca_file.display()))?;
        let admission = [
            format!("--address={}", SocketAddr::new(address, ADMISSION_METRICS_PORT)),
            format!("--client-ca-file={}", ca_file.display()),
            format!("--tls-cert-file={}", tls.cert.display()),
            format!("--tls-private-key={}", tls.key.display()),
            "--register-by-url".to_owned(),
            format!("--webhook-address=https://{address}"),
            format!("--webhook-port={WEBHOOK_PORT}"),
            format!("--port={WEBHOOK_PORT}"),
        ];
        let mut admission_controller = spawn(control_plane, "vpa-admission-controller", &admission).await?;
        let updater = [
            format!("--address={}", SocketAddr::new(address, UPDATER_METRICS_PORT)),
            format!("--updater-interval={}s", interval.as_secs()),
        ];
        let updater = spawn(control_plane, "vpa-updater", &updater).await?;

        let client = control_plane.client();
        let configurations: Api<MutatingWebhookConfiguration> = Api::all(client.clone());
        let leases: Api<Lease> = Api::namespaced(client, NAMESPACE);
        let registered = async || {
            configurations.get(CONFIGURATION).await?;
            leases.get(LEASE).await?;
            Ok(())
        };
        admission_controller.ready(START_LIMIT, registered).await?;
        let autoscaler = Self { _admission_controller: admission_controller, _updater: updater, address };
        eventually(START_LIMIT, "the updater looks for pods", async || {
            autoscaler.loops().await?;
            Ok(())
        })
        .await?;
        Ok(autoscaler)
    }

    /// Returns how often the updater has looked for pods to evict. Does not count attempts without a valid Lease, or
    /// without an object that requests it.
    ///
    /// # Errors
    /// The updater does not respond.
    pub async fn loops(&self) -> anyhow::Result<u64> {
        let (status, text) = replica::get(SocketAddr::new(self.address, UPDATER_METRICS_PORT), "/metrics").await?;
        ensure!(status == StatusCode::OK, "the updater's metrics: {status}");
        let series = "vpa_updater_execution_latency_seconds_count{step=\"EvictPods\"} ";
        let value = text.lines().find_map(|line| line.strip_prefix(series));
        value.map_or(Ok(0), |value| value.parse().with_context(|| format!("{series}{value}")))
    }
}

/// Starts a program with the token of the service account that has the program's name.
async fn spawn(control_plane: &ControlPlane, name: &str, arguments: &[String]) -> anyhow::Result<Daemon> {
    let kubeconfig = control_plane.kubeconfig_for_service_account(NAMESPACE, name).await?;
    let mut command = Command::new(tools::program(name)?);
    command.arg(format!("--kubeconfig={}", kubeconfig.display())).args(arguments).env("NAMESPACE", NAMESPACE);
    for variable in ["HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy"] {
        command.env_remove(variable);
    }
    Daemon::spawn(name, &mut command, &control_plane.directory().join(format!("{name}.log")))
}
