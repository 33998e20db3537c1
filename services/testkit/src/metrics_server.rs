//! Starts the real metrics-server, from which horizontal autoscalers read the usage of CPU and memory. It reads this
//! usage from kubelets, which [`Kwok::with_metrics`](crate::Kwok::with_metrics) simulates.
//!
//! The API server passes requests for `metrics.k8s.io` on to it, with the arguments of [`aggregation`].

use std::net::IpAddr;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::Context;
use http::Request;
use serde_json::json;

use crate::certificates::TestCa;
use crate::control_plane::ControlPlane;
use crate::daemon::Daemon;
use crate::tools;

/// The namespace and the name of the Service and of the service account.
const NAMESPACE: &str = "kube-system";
const NAME: &str = "metrics-server";
/// The port on which metrics-server listens.
const PORT: u16 = 4443;
/// How often metrics-server reads the usage, in seconds. It allows no shorter time.
const RESOLUTION: u64 = 10;
/// How long metrics-server may take to start.
const START_LIMIT: Duration = Duration::from_mins(2);
/// The common name with which the API server passes requests on.
const FRONT_PROXY: &str = "front-proxy-client";

/// A running metrics-server. Dropping this value ends it.
#[derive(Debug)]
pub struct MetricsServer {
    _daemon: Daemon,
}

/// Returns the arguments with which an API server passes requests on to other API servers. Writes the certificates to
/// `folder`.
///
/// # Errors
/// A file cannot be written.
pub fn aggregation(folder: &Path) -> anyhow::Result<Vec<String>> {
    let front_proxy = TestCa::new()?;
    let client = front_proxy.client_files(folder, FRONT_PROXY, FRONT_PROXY)?;
    let file = |name: &str, ca: &TestCa| {
        let path = folder.join(name);
        std::fs::write(&path, ca.bundle_pem()).with_context(|| format!("cannot write {}", path.display()))?;
        anyhow::Ok(path)
    };
    let front_proxy = file("front-proxy-ca.crt", &front_proxy)?;
    // metrics-server waits for this CA too, although no client has a certificate of it.
    let clients = file("client-ca.crt", &TestCa::new()?)?;
    Ok(vec![
        format!("--client-ca-file={}", clients.display()),
        format!("--requestheader-client-ca-file={}", front_proxy.display()),
        format!("--requestheader-allowed-names={FRONT_PROXY}"),
        "--requestheader-username-headers=X-Remote-User".to_owned(),
        "--requestheader-group-headers=X-Remote-Group".to_owned(),
        "--requestheader-extra-headers-prefix=X-Remote-Extra-".to_owned(),
        format!("--proxy-client-cert-file={}", client.cert.display()),
        format!("--proxy-client-key-file={}", client.key.display()),
    ])
}

impl MetricsServer {
    /// Applies the roles, the Service and the `APIService` from `module`, the source of the project
    /// ([`tools::go_module`]`("metrics-server", "sigs.k8s.io/metrics-server")`). Starts metrics-server at `address`, and
    /// waits until the API server passes requests on to it. The API server needs the arguments of [`aggregation`].
    /// metrics-server serves the usage of a pod after two readings.
    ///
    /// # Errors
    /// The program cannot be built or ends early, the API server rejects an object, or does not reach it in time.
    pub async fn start(control_plane: &ControlPlane, module: &Path, address: IpAddr) -> anyhow::Result<Self> {
        for file in ["rbac.yaml", "service.yaml", "apiservice.yaml"] {
            let path = module.join("manifests/base").join(file);
            let text = std::fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
            control_plane.apply_yaml(&text).await.with_context(|| format!("cannot apply {}", path.display()))?;
        }
        let endpoints = json!({
            "apiVersion": "discovery.k8s.io/v1",
            "kind": "EndpointSlice",
            "metadata": {"name": NAME, "namespace": NAMESPACE, "labels": {"kubernetes.io/service-name": NAME}},
            "addressType": "IPv4",
            "endpoints": [{"addresses": [address.to_string()], "conditions": {"ready": true}}],
            "ports": [{"name": "https", "port": PORT, "protocol": "TCP"}],
        });
        control_plane.apply_yaml(&endpoints.to_string()).await?;

        let kubeconfig = control_plane.kubeconfig_for_service_account(NAMESPACE, NAME).await?;
        let kubeconfig = kubeconfig.display();
        let mut command = Command::new(tools::program(NAME)?);
        command
            .arg(format!("--kubeconfig={kubeconfig}"))
            .arg(format!("--authentication-kubeconfig={kubeconfig}"))
            .arg(format!("--authorization-kubeconfig={kubeconfig}"))
            .arg(format!("--bind-address={address}"))
            .arg(format!("--secure-port={PORT}"))
            .arg(format!("--cert-dir={}", control_plane.directory().join("metrics-server").display()))
            .arg("--kubelet-preferred-address-types=InternalIP")
            .arg("--kubelet-use-node-status-port")
            .arg("--kubelet-insecure-tls")
            // It must be shorter than the resolution.
            .arg("--kubelet-request-timeout=5s")
            .arg(format!("--metric-resolution={RESOLUTION}s"));
        for variable in ["HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy"] {
            command.env_remove(variable);
        }
        let mut daemon = Daemon::spawn(NAME, &mut command, &control_plane.directory().join("metrics-server.log"))?;
        let client = control_plane.client();
        let serves = async || {
            client.request_text(Request::get("/apis/metrics.k8s.io/v1beta1/pods").body(Vec::new())?).await?;
            Ok(())
        };
        daemon.ready(START_LIMIT, serves).await?;
        Ok(Self { _daemon: daemon })
    }
}
