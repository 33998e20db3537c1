//! Who is probed: every address behind the Service, and pods by a label.

use std::collections::BTreeSet;
use std::fmt;
use std::net::{IpAddr, SocketAddr};

use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::Client;
use kube::api::{Api, ListParams};

use super::Settings;
use crate::release::Release;

/// An endpoint as the cluster names it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Endpoint {
    /// Its address, an IP address unless somebody writes slices by hand.
    pub address: String,
    /// Its port; `None` if the slice has none of the name that was asked for.
    pub port: Option<u16>,
}

/// Which endpoints are probed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Selected {
    /// All of them: ready, not ready, and on their way out.
    pub endpoints: BTreeSet<Endpoint>,
}

impl Endpoint {
    /// Where to connect to, if it is a place at all.
    #[must_use]
    pub fn socket(&self) -> Option<SocketAddr> {
        let address: IpAddr = self.address.parse().ok()?;
        Some(SocketAddr::new(address, self.port?))
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.socket(), self.port) {
            (Some(socket), _) => socket.fmt(formatter),
            (None, Some(port)) => write!(formatter, "{}:{port}", self.address),
            (None, None) => write!(formatter, "{} (no port)", self.address),
        }
    }
}

impl Selected {
    /// Those in slices of one Service, at the port of this name.
    #[must_use]
    pub fn of_slices<'s>(slices: impl IntoIterator<Item = &'s EndpointSlice>, port: &str) -> Self {
        let mut endpoints = BTreeSet::new();
        for slice in slices {
            let port = port_of(slice, port);
            let addresses = slice.endpoints.iter().flatten().flat_map(|endpoint| &endpoint.addresses);
            endpoints.extend(addresses.map(|address| Endpoint { address: address.clone(), port }));
        }
        Self { endpoints }
    }

    /// The addresses of pods that may serve: all that have one and have not ended.
    pub fn add_pods<'p>(&mut self, pods: impl IntoIterator<Item = &'p Pod>, port: u16) {
        for status in pods.into_iter().filter_map(|pod| pod.status.as_ref()) {
            if matches!(status.phase.as_deref(), Some("Succeeded" | "Failed")) {
                continue;
            }
            let all = status.pod_ips.iter().flatten().map(|ip| &ip.ip).chain(&status.pod_ip);
            self.endpoints.extend(all.map(|address| Endpoint { address: address.clone(), port: Some(port) }));
        }
    }

    /// As the API server has them now, not a cache.
    ///
    /// # Errors
    /// They cannot be listed.
    pub async fn list(client: &Client, release: &Release, settings: &Settings) -> kube::Result<Self> {
        let slices: Api<EndpointSlice> = Api::namespaced(client.clone(), release.namespace());
        let of_service = ListParams::default().labels(&format!("kubernetes.io/service-name={}", release.service()));
        let mut selected = Self::of_slices(&slices.list(&of_service).await?.items, &settings.port);
        if let Some((selector, port)) = &settings.pods {
            let pods: Api<Pod> = Api::namespaced(client.clone(), release.namespace());
            selected.add_pods(&pods.list(&ListParams::default().labels(selector)).await?.items, *port);
        }
        Ok(selected)
    }
}

/// The port of this name, or the only one.
fn port_of(slice: &EndpointSlice, name: &str) -> Option<u16> {
    let ports = slice.ports.as_deref().unwrap_or_default();
    let port = match ports {
        [only] => Some(only),
        several => several.iter().find(|port| port.name.as_deref() == Some(name)),
    };
    port.and_then(|port| port.port).and_then(|port| u16::try_from(port).ok())
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn slice(value: Value) -> EndpointSlice {
        serde_json::from_value(value).unwrap()
    }

    fn told(selected: &Selected) -> Vec<String> {
        selected.endpoints.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn all_addresses_are_probed_whatever_their_conditions() {
        let first = slice(json!({
            "addressType": "IPv4",
            "metadata": {"name": "a"},
            "ports": [{"name": "metrics", "port": 9090}, {"name": "https", "port": 8443}],
            "endpoints": [
                {"addresses": ["10.0.0.1"], "conditions": {"ready": true}},
                {"addresses": ["10.0.0.2"], "conditions": {"ready": false}},
                {"addresses": ["10.0.0.3"], "conditions": {"ready": false, "serving": true, "terminating": true}},
            ],
        }));
        let second = slice(json!({
            "addressType": "IPv6",
            "metadata": {"name": "b"},
            "ports": [{"name": "any", "port": 8443}],
            "endpoints": [{"addresses": ["fd00::1"]}],
        }));
        let again = slice(json!({
            "addressType": "IPv4",
            "metadata": {"name": "c"},
            "ports": [{"name": "https", "port": 8443}],
            "endpoints": [{"addresses": ["10.0.0.1"]}],
        }));
        let selected = Selected::of_slices([&first, &second, &again], "https");
        assert_eq!(told(&selected), ["10.0.0.1:8443", "10.0.0.2:8443", "10.0.0.3:8443", "[fd00::1]:8443"]);
    }

    #[test]
    fn what_cannot_be_connected_to_is_there_all_the_same() {
        let named = slice(json!({
            "addressType": "FQDN",
            "metadata": {"name": "a"},
            "ports": [{"name": "https", "port": 8443}],
            "endpoints": [{"addresses": ["replica.example.org"]}],
        }));
        let without = slice(json!({
            "addressType": "IPv4", "metadata": {"name": "b"}, "endpoints": [{"addresses": ["10.0.0.1"]}],
        }));
        let selected = Selected::of_slices([&named, &without], "https");
        assert_eq!(told(&selected), ["10.0.0.1 (no port)", "replica.example.org:8443"]);
        assert!(selected.endpoints.iter().all(|endpoint| endpoint.socket().is_none()));
        let nothing =
            slice(json!({"addressType": "IPv4", "metadata": {"name": "b"}, "endpoints": null, "ports": null}));
        assert_eq!(Selected::of_slices([&nothing], "https"), Selected::default());
    }

    #[test]
    fn pods_that_ended_or_have_no_address_are_not_probed() {
        let pod = |status: Value| -> Pod { serde_json::from_value(json!({"metadata": {}, "status": status})).unwrap() };
        let pods = [
            pod(json!({"phase": "Running", "podIP": "10.0.0.1", "podIPs": [{"ip": "10.0.0.1"}, {"ip": "fd00::1"}]})),
            pod(json!({"phase": "Failed", "podIP": "10.0.0.2"})),
            pod(json!({"phase": "Pending"})),
            Pod::default(),
        ];
        let mut selected = Selected::default();
        selected.add_pods(&pods, 8443);
        assert_eq!(told(&selected), ["10.0.0.1:8443", "[fd00::1]:8443"]);
    }
}
