//! Tests the path of a request from the API server to a webhook, as in production: Service, endpoint slices, HTTP/1.1,
//! failurePolicy Fail.

#![expect(clippy::unwrap_used, clippy::indexing_slicing, reason = "helpers of tests fail by panicking")]

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::Version;
use axum::routing::post;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use k8s_openapi::api::admissionregistration::v1::MutatingWebhookConfiguration;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, PostParams};
use pillion_testkit::namespace::replica_address;
use pillion_testkit::registration::{NAMESPACE, SERVER_NAME, SERVICE};
use pillion_testkit::{ControlPlane, TestCa, eventually, https, isolated, register_service, register_webhook};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

const SOON: Duration = Duration::from_mins(1);

#[test]
fn webhook_behind_service_patches_pod_over_http1() {
    isolated(|| async {
        let control_plane = ControlPlane::start().await?;
        let client = control_plane.client();
        control_plane.create_namespace("tenant", &[("pillion.dev/injection", "required")]).await?;
        let ca = TestCa::new()?;
        let addresses = [replica_address(1), replica_address(2)];
        let seen = Seen::default();
        for address in addresses {
            serve_labeller(&ca, address, seen.clone()).await?;
        }
        let service = register_service(&client, &addresses).await?;
        register_webhook(&client, &labeller_configuration(&ca)?).await?;

        let pods: Api<Pod> = Api::namespaced(client.clone(), "tenant");
        let mut number = 0;
        let created = eventually(SOON, "a pod is created through the webhook", async || {
            number += 1;
            let pod = pods.create(&PostParams::default(), &pod(&format!("p{number}"))?).await?;
            ensure!(label(&pod).is_some(), "it was created without a webhook call");
            Ok(pod)
        })
        .await?;
        ensure!(seen.versions() == [Version::HTTP_11], "{:?}", seen.versions());

        // The stored pod has the label with the replica's address, as the created pod does.
        let name = created.metadata.name.clone().context("a pod without a name")?;
        ensure!(label(&pods.get(&name).await?) == label(&created));

        // The API server's pooled connections outlive their endpoint. So the test also ends the first replica's
        // connections, as if its pod had been deleted.
        service.set_ready(addresses[0], false).await?;
        service.remove(addresses[0]).await?;
        seen.hang_up(addresses[0]);
        eventually(SOON, "the other replica is called", async || {
            number += 1;
            let pod = pods.create(&PostParams::default(), &pod(&format!("p{number}"))?).await?;
            ensure!(label(&pod).as_deref() == Some("10.111.1.2"), "{:?}", label(&pod));
            Ok(())
        })
        .await?;

        // Without any endpoint, failurePolicy Fail rejects the pod.
        service.remove(addresses[1]).await?;
        seen.hang_up(addresses[1]);
        eventually(SOON, "the pod is rejected", async || {
            number += 1;
            match pods.create(&PostParams::default(), &pod(&format!("p{number}"))?).await {
                Err(kube::Error::Api(status)) if status.message.contains("failed calling webhook") => Ok(()),
                other => bail!("{other:?}"),
            }
        })
        .await
    });
}

/// The HTTP versions of the requests that the test's webhooks received, and the tasks that serve the webhooks.
#[derive(Debug, Clone, Default)]
struct Seen {
    versions: Arc<Mutex<Vec<Version>>>,
    servers: Arc<Mutex<BTreeMap<IpAddr, JoinHandle<()>>>>,
}

impl Seen {
    fn versions(&self) -> Vec<Version> {
        let mut versions = self.versions.lock().unwrap().clone();
        versions.dedup();
        versions
    }

    /// Ends the webhook at an address and its connections, as if its pod had been deleted.
    fn hang_up(&self, address: IpAddr) {
        self.servers.lock().unwrap().remove(&address).unwrap().abort();
    }
}

/// Serves a webhook at `address` that labels each pod with that address.
async fn serve_labeller(ca: &TestCa, address: IpAddr, seen: Seen) -> anyhow::Result<()> {
    let (cert, key) = ca.serving(&[SERVER_NAME])?;
    let tls = https::server_config(cert.as_bytes(), key.as_bytes())?;
    let listener = TcpListener::bind((address, 8443)).await?;
    let answer = async move |State(seen): State<Seen>, version: Version, body: Bytes| {
        seen.versions.lock().unwrap().push(version);
        let review: Value = serde_json::from_slice(&body).unwrap();
        let patch = json!([{ "op": "add", "path": "/metadata/labels/seen-by", "value": address.to_string() }]);
        let answer = json!({
            "apiVersion": "admission.k8s.io/v1",
            "kind": "AdmissionReview",
            "response": {
                "uid": review["request"]["uid"],
                "allowed": true,
                "patchType": "JSONPatch",
                "patch": STANDARD.encode(patch.to_string()),
            },
        });
        ([("content-type", "application/json")], answer.to_string())
    };
    let app = Router::new().route("/mutate/required", post(answer)).with_state(seen.clone());
    let server = tokio::spawn(https::serve(listener, tls, app));
    seen.servers.lock().unwrap().insert(address, server);
    Ok(())
}

fn labeller_configuration(ca: &TestCa) -> anyhow::Result<MutatingWebhookConfiguration> {
    Ok(serde_json::from_value(json!({
        "metadata": { "name": "labeller" },
        "webhooks": [{
            "name": "labeller.example.test",
            "admissionReviewVersions": ["v1"],
            "sideEffects": "None",
            "failurePolicy": "Fail",
            "timeoutSeconds": 3,
            "clientConfig": {
                "service": { "namespace": NAMESPACE, "name": SERVICE, "path": "/mutate/required", "port": 443 },
                "caBundle": STANDARD.encode(ca.bundle_pem()),
            },
            "namespaceSelector": { "matchLabels": { "pillion.dev/injection": "required" } },
            "rules": [{ "apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"] }],
        }],
    }))?)
}

fn pod(name: &str) -> anyhow::Result<Pod> {
    Ok(serde_json::from_value(json!({
        "metadata": { "name": name, "labels": { "app": "test" } },
        "spec": { "containers": [{ "name": "app", "image": "app:1" }] },
    }))?)
}

fn label(pod: &Pod) -> Option<String> {
    pod.metadata.labels.as_ref().and_then(|labels: &BTreeMap<_, _>| labels.get("seen-by").cloned())
}
