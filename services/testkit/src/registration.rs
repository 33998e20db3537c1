//! Registers replicas with the API server: a Service without a selector, one endpoint slice for each replica, and the
//! webhook configuration.

use std::net::IpAddr;

use anyhow::Context;
use k8s_openapi::api::admissionregistration::v1::MutatingWebhookConfiguration;
use k8s_openapi::api::core::v1::Service;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::Client;
use kube::api::{Api, DeleteParams, Patch, PatchParams};
use serde_json::json;

use crate::control_plane::objects::{MANAGER, create_namespace};
use crate::replica::WEBHOOK_PORT;

/// The namespace of the release.
pub const NAMESPACE: &str = "pillion-system";
/// The name of the Service.
pub const SERVICE: &str = "pillion";
/// The name that the API server expects in a replica's certificate.
pub const SERVER_NAME: &str = "pillion.pillion-system.svc";

/// A registered Service, whose endpoints a test can change.
#[derive(Debug, Clone)]
pub struct RegisteredService {
    slices: Api<EndpointSlice>,
}

/// Creates the Service [`SERVICE`] in [`NAMESPACE`], with one ready endpoint for each replica. Creates the namespace if
/// it is missing.
///
/// # Errors
/// The API server rejects an object, for instance a loopback address as an endpoint.
pub async fn register_service(client: &Client, replicas: &[IpAddr]) -> anyhow::Result<RegisteredService> {
    create_namespace(client, NAMESPACE, &[]).await?;
    let service: Service = serde_json::from_value(json!({
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": { "name": SERVICE },
        "spec": { "ports": [{ "name": "https", "port": 443, "targetPort": "https" }] },
    }))
    .context("the Service")?;
    Api::<Service>::namespaced(client.clone(), NAMESPACE)
        .patch(SERVICE, &PatchParams::apply(MANAGER).force(), &Patch::Apply(&service))
        .await
        .context("the API server rejects the Service")?;
    let registered = RegisteredService { slices: Api::namespaced(client.clone(), NAMESPACE) };
    for replica in replicas {
        registered.set_ready(*replica, true).await?;
    }
    Ok(registered)
}

impl RegisteredService {
    /// Adds a replica or changes its readiness, as the endpoint slice controller would.
    ///
    /// # Errors
    /// The API server rejects the address.
    pub async fn set_ready(&self, replica: IpAddr, ready: bool) -> anyhow::Result<()> {
        let name = slice_name(replica);
        let slice: EndpointSlice = serde_json::from_value(json!({
            "apiVersion": "discovery.k8s.io/v1",
            "kind": "EndpointSlice",
            "metadata": { "name": name, "labels": { "kubernetes.io/service-name": SERVICE } },
            "addressType": if replica.is_ipv4() { "IPv4" } else { "IPv6" },
            "endpoints": [{ "addresses": [replica.to_string()], "conditions": { "ready": ready } }],
            "ports": [{ "name": "https", "port": WEBHOOK_PORT, "protocol": "TCP" }],
        }))
        .context("the endpoint slice")?;
        self.slices
            .patch(&name, &PatchParams::apply(MANAGER).force(), &Patch::Apply(&slice))
            .await
            .with_context(|| format!("the API server rejects an endpoint slice for {replica}"))?;
        Ok(())
    }

    /// Removes a replica's endpoint, as when its pod is deleted.
    ///
    /// # Errors
    /// The replica was never added, or its endpoint has already been removed.
    pub async fn remove(&self, replica: IpAddr) -> anyhow::Result<()> {
        self.slices
            .delete(&slice_name(replica), &DeleteParams::default())
            .await
            .with_context(|| format!("cannot delete the endpoint slice of {replica}"))?;
        Ok(())
    }
}

/// Creates or replaces a webhook configuration.
///
/// The API server applies the change, and notices new endpoints, with a short delay. Retry the first request with
/// [`eventually`](crate::eventually()).
///
/// # Errors
/// The configuration has no name, or the API server rejects it.
pub async fn register_webhook(client: &Client, configuration: &MutatingWebhookConfiguration) -> anyhow::Result<()> {
    let name = configuration.metadata.name.as_deref().context("a MutatingWebhookConfiguration without a name")?;
    Api::<MutatingWebhookConfiguration>::all(client.clone())
        .patch(name, &PatchParams::apply(MANAGER).force(), &Patch::Apply(configuration))
        .await
        .with_context(|| format!("the API server rejects the MutatingWebhookConfiguration {name}"))?;
    Ok(())
}

fn slice_name(replica: IpAddr) -> String {
    format!("{SERVICE}-{replica}").replace([':', '.'], "-")
}
