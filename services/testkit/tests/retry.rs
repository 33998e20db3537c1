//! Tests that the API server retries when a replica sheds load: it opens a new connection, which may reach a different
//! replica. Each retry delays the creation of a pod by about a second.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use arc_swap::ArcSwap;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use futures::future::try_join_all;
use k8s_openapi::api::admissionregistration::v1::MutatingWebhookConfiguration;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, PostParams};
use pillion_api::names::FailureMode;
use pillion_engine::snapshot::{Namespace, Snapshot};
use pillion_testkit::namespace::replica_address;
use pillion_testkit::registration::{NAMESPACE, SERVER_NAME, SERVICE};
use pillion_testkit::{ControlPlane, TestCa, eventually, https, isolated, register_service, register_webhook};
use pillion_webhook::admission::{Admission, RequestSettings};
use pillion_webhook::metrics::Metrics;
use pillion_webhook::router::router;
use pillion_webhook::switch::Switch;
use prometheus_client::registry::Registry;
use serde_json::json;
use tokio::net::TcpListener;

const SOON: Duration = Duration::from_mins(1);
const PODS: usize = 12;
const SHED: &str = "pillion_webhook_shed_requests_total{reason=\"in_flight\"}";
const ANSWERED: &str = "pillion_webhook_requests_total{endpoint=\"required\",outcome=\"skipped\"}";

#[test]
fn shed_request_is_retried_on_another_replica() {
    isolated(|| async {
        let control_plane = ControlPlane::start().await?;
        let client = control_plane.client();
        control_plane.create_namespace("tenant", &[("pillion.dev/injection", "required")]).await?;
        let ca = TestCa::new()?;
        // The API server makes up to ten attempts, each at a random endpoint. Three of four endpoints accept requests,
        // so about one pod in a million fails all ten attempts.
        let addresses = [replica_address(1), replica_address(2), replica_address(3), replica_address(4)];
        let full = serve(&ca, &addresses[..1], 0).await?;
        let free = serve(&ca, &addresses[1..], 1024).await?;
        register_service(&client, &addresses).await?;
        register_webhook(&client, &configuration(&ca)?).await?;

        let pods: Api<Pod> = Api::namespaced(client, "tenant");
        let create = async |name: String| -> Result<()> {
            let pod = serde_json::from_value(json!({
                "metadata": {"name": name},
                "spec": {"containers": [{"name": "app", "image": "app:1"}]},
            }))?;
            // With failurePolicy Fail, a pod is created only after a replica has answered.
            pods.create(&PostParams::default(), &pod).await?;
            Ok(())
        };
        let mut number = 0;
        eventually(SOON, "the API server calls the webhook", async || {
            number += 1;
            create(format!("probe-{number}")).await?;
            ensure!(value(&free, ANSWERED)? > 0.0, "created without a webhook call");
            Ok(())
        })
        .await?;

        let (shed, answered) = (value(&full, SHED)?, value(&free, ANSWERED)?);
        let mut created = 0;
        // Concurrent requests open new connections, and about a quarter of these reach the replica that sheds load. On
        // a busy machine the requests may run one after another and never reach it, so the loop creates more pods.
        while created == 0 || (value(&full, SHED)? - shed < 1.0 && created < 10 * PODS) {
            try_join_all((created..created + PODS).map(|number| create(format!("pod-{number}")))).await?;
            created += PODS;
        }
        let (shed, answered) = (value(&full, SHED)? - shed, value(&free, ANSWERED)? - answered);
        ensure!(shed >= 1.0, "no request was shed");
        ensure!((answered - f64::from(u32::try_from(created)?)).abs() < 0.5, "{answered} responses for {created} pods");
        ensure!(value(&full, ANSWERED)? < 0.5, "the full replica responded");
        Ok(())
    });
}

/// Serves a replica that listens on all `addresses` and accepts at most `max_in_flight` concurrent requests. Returns
/// the replica's metrics.
async fn serve(ca: &TestCa, addresses: &[IpAddr], max_in_flight: usize) -> Result<Arc<Registry>> {
    let mut registry = Registry::default();
    let metrics = Arc::new(Metrics::register(&mut registry));
    let namespace = Namespace::opted_in(FailureMode::Required);
    let snapshot = Snapshot::default().with_namespace("tenant", Some(namespace));
    let mut settings = RequestSettings::default();
    settings.overload.max_in_flight = max_in_flight;
    let app = router(Admission {
        snapshot: Arc::new(ArcSwap::from_pointee(snapshot)),
        live_namespace: None,
        lookups: None,
        policy: Arc::default(),
        switch: Switch::default(),
        metrics,
        settings,
    });
    let (cert, key) = ca.serving(&[SERVER_NAME])?;
    let tls = https::server_config(cert.as_bytes(), key.as_bytes())?;
    for address in addresses {
        tokio::spawn(https::serve(TcpListener::bind((*address, 8443)).await?, tls.clone(), app.clone()));
    }
    Ok(Arc::new(registry))
}

/// Returns the value of a metric series.
fn value(registry: &Registry, series: &str) -> Result<f64> {
    let mut text = String::new();
    prometheus_client::encoding::text::encode(&mut text, registry)?;
    let value = text.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' ')).context("no such series")?;
    Ok(value.parse()?)
}

fn configuration(ca: &TestCa) -> Result<MutatingWebhookConfiguration> {
    Ok(serde_json::from_value(json!({
        "metadata": {"name": "pillion"},
        "webhooks": [{
            "name": "required.pillion.example",
            "admissionReviewVersions": ["v1"],
            "sideEffects": "None",
            "failurePolicy": "Fail",
            "timeoutSeconds": 10,
            "clientConfig": {
                "service": {"namespace": NAMESPACE, "name": SERVICE, "path": "/mutate/required", "port": 443},
                "caBundle": STANDARD.encode(ca.bundle_pem()),
            },
            "namespaceSelector": {"matchLabels": {"pillion.dev/injection": "required"}},
            "rules": [{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}],
        }],
    }))?)
}
