//! Writes the endpoint slice that routes the canary's Service to the leading controller.
//!
//! The Service has no selector: it would match all controllers, and only the leader has the certificate. So the leader
//! writes the Service's one endpoint slice.

use std::net::SocketAddr;

use k8s_openapi::api::core::v1::Service;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::Client;
use kube::api::{Api, DeleteParams, Patch, PatchParams};
use serde_json::json;

use crate::leader::FIELD_MANAGER;
use crate::release::Release;

/// The canary's Service, as in the manifests.
///
/// # Errors
/// Never in practice: the object is a valid Service.
pub fn service(release: &Release) -> Result<Service, serde_json::Error> {
    serde_json::from_value(json!({
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": release.canary_service(), "namespace": release.namespace()},
        "spec": {"ports": [{"name": "https", "port": 443, "protocol": "TCP", "targetPort": "https"}]},
    }))
}

/// The endpoint slice that routes to this address.
///
/// # Errors
/// Never in practice: the object is a valid endpoint slice.
pub fn slice(release: &Release, address: SocketAddr) -> Result<EndpointSlice, serde_json::Error> {
    serde_json::from_value(json!({
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {
            "name": release.canary_service(),
            "namespace": release.namespace(),
            "labels": {
                "kubernetes.io/service-name": release.canary_service(),
                // Otherwise the endpoint slice controller might treat it as its own and delete it.
                "endpointslice.kubernetes.io/managed-by": FIELD_MANAGER,
            },
        },
        "addressType": if address.is_ipv4() { "IPv4" } else { "IPv6" },
        "endpoints": [{"addresses": [address.ip().to_string()], "conditions": {"ready": true}}],
        "ports": [{"name": "https", "port": address.port(), "protocol": "TCP"}],
    }))
}

/// Routes the canary's Service to this address, replacing the earlier one.
pub(super) async fn publish(client: &Client, release: &Release, address: SocketAddr) -> kube::Result<()> {
    let slice = slice(release, address).map_err(kube::Error::SerdeError)?;
    let slices: Api<EndpointSlice> = Api::namespaced(client.clone(), release.namespace());
    let (name, params) = (release.canary_service(), PatchParams::apply(FIELD_MANAGER).force());
    match slices.patch(&name, &params, &Patch::Apply(&slice)).await {
        // The address has the other IP family, and a slice's address type is immutable.
        Err(kube::Error::Api(status)) if status.code == 422 => {
            slices.delete(&name, &DeleteParams::default()).await?;
            slices.patch(&name, &params, &Patch::Apply(&slice)).await.map(drop)
        }
        outcome => outcome.map(drop),
    }
}
