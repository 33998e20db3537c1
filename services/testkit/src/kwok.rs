//! Starts the real [kwok](https://kwok.sigs.k8s.io), which simulates the nodes and the kubelets of large clusters.
//! `kwok/stages.yaml` defines the behaviour of its pods.

use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;

use anyhow::Context;
use k8s_openapi::api::core::v1::Node;
use kube::Api;
use kube::api::{Patch, PatchParams, PostParams};
use serde_json::json;

use crate::certificates::TestCa;
use crate::control_plane::ControlPlane;
use crate::daemon::Daemon;
use crate::eventually::eventually;
use crate::tools;

/// How long kwok may take to start.
const START_LIMIT: std::time::Duration = std::time::Duration::from_mins(2);

/// A running kwok. Dropping this value ends it.
#[derive(Debug)]
pub struct Kwok {
    _daemon: Daemon,
}

impl Kwok {
    /// Creates nodes with the names `node-0`, `node-1` and so on, starts kwok as the administrator, and waits until the
    /// last of these nodes is ready.
    ///
    /// # Errors
    /// The program cannot be built or ends early, a node cannot be created, or the last node is not ready in time.
    pub async fn start(control_plane: &ControlPlane, nodes: usize) -> anyhow::Result<Self> {
        Self::run(control_plane, nodes, &[]).await
    }

    /// Like [`Self::start`], and serves the resource metrics of all nodes at `address`, as kubelets do. Each container
    /// uses the CPU and memory in the annotations `kwok.x-k8s.io/usage-cpu` and `kwok.x-k8s.io/usage-memory` of its pod.
    /// `module` is the source of kwok, which contains the definitions of the metrics
    /// ([`tools::go_module`]`("kwok", "sigs.k8s.io/kwok")`).
    ///
    /// # Errors
    /// As [`Self::start`], or a certificate cannot be written.
    pub async fn with_metrics(
        control_plane: &ControlPlane,
        nodes: usize,
        module: &Path,
        address: SocketAddr,
    ) -> anyhow::Result<Self> {
        let metrics = module.join("kustomize/metrics");
        let tls = TestCa::new()?.serving_files(control_plane.directory(), "kwok", &[&address.ip().to_string()])?;
        let arguments = [
            format!("--config={}", metrics.join("resource/metrics-resource.yaml").display()),
            format!("--config={}", metrics.join("usage/usage-from-annotation.yaml").display()),
            format!("--server-address={address}"),
            format!("--tls-cert-file={}", tls.cert.display()),
            format!("--tls-private-key-file={}", tls.key.display()),
        ];
        let kwok = Self::run(control_plane, nodes, &arguments).await?;
        let api = Api::<Node>::all(control_plane.client());
        let status = Patch::Merge(json!({"status": {
            "addresses": [{"type": "InternalIP", "address": address.ip().to_string()}],
            "daemonEndpoints": {"kubeletEndpoint": {"Port": address.port()}},
        }}));
        for number in 0..nodes {
            let name = format!("node-{number}");
            // kwok serves the metrics of each node at its own path, which metrics-server reads from this annotation.
            let path = format!("/metrics/nodes/{name}/metrics/resource");
            let annotation =
                Patch::Merge(json!({"metadata": {"annotations": {"metrics.k8s.io/resource-metrics-path": path}}}));
            let parameters = PatchParams::default();
            api.patch(&name, &parameters, &annotation).await.with_context(|| format!("cannot annotate {name}"))?;
            api.patch_status(&name, &parameters, &status).await.with_context(|| format!("cannot update {name}"))?;
        }
        Ok(kwok)
    }

    async fn run(control_plane: &ControlPlane, nodes: usize, arguments: &[String]) -> anyhow::Result<Self> {
        let api = Api::<Node>::all(control_plane.client());
        for number in 0..nodes {
            let node = json!({"metadata": {"name": format!("node-{number}")}});
            api.create(&PostParams::default(), &serde_json::from_value(node)?).await?;
        }
        let stages = Path::new(env!("CARGO_MANIFEST_DIR")).join("kwok/stages.yaml");
        let mut command = Command::new(tools::program("kwok")?);
        command
            .arg(format!("--kubeconfig={}", control_plane.kubeconfig().display()))
            .arg(format!("--config={}", stages.display()))
            .arg("--manage-all-nodes")
            // Without Leases, kwok sends no heartbeats.
            .arg("--node-lease-duration-seconds=0")
            .args(arguments);
        // `just` sets GOGC for other Go programs. In a large cluster, kwok would need too much memory with it.
        command.env_remove("GOGC");
        for variable in ["HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy"] {
            command.env_remove(variable);
        }
        let daemon = Daemon::spawn("kwok", &mut command, &control_plane.directory().join("kwok.log"))?;
        let last = format!("node-{}", nodes.saturating_sub(1));
        eventually(START_LIMIT, "the nodes are ready", async || {
            let status = api.get(&last).await?.status.unwrap_or_default();
            let mut conditions = status.conditions.iter().flatten();
            anyhow::ensure!(conditions.any(|one| one.type_ == "Ready" && one.status == "True"), "{status:?}");
            Ok(())
        })
        .await?;
        Ok(Self { _daemon: daemon })
    }
}
