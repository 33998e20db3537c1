//! Selects the endpoints to probe: every address behind the Service and, if [`Settings::pods`] is set, every pod that
//! the Service selects.

use std::collections::BTreeSet;
use std::fmt;
use std::net::{IpAddr, SocketAddr};

use k8s_openapi::api::core::v1::{Pod, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use kube::Client;
use kube::api::{Api, ListParams};

use super::Settings;
use crate::release::Release;

/// An endpoint to probe: an address behind the Service, or a pod that it selects.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Endpoint {
    /// The address. It is an IP address, unless a slice was written by hand.
    pub address: String,
    /// The port; `None` if the slice or the pod has no port with the requested name.
    pub port: Option<u16>,
}

/// The endpoints selected from endpoint slices and pods.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Selected {
    /// All endpoints: ready, not ready and terminating.
    pub endpoints: BTreeSet<Endpoint>,
}

/// How a Service selects and reaches its pods.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Replicas {
    /// The label selector, as a string for a list request.
    pub selector: String,
    /// The target port in the pods.
    pub port: IntOrString,
    /// The Service's IP families (`IPv4`, `IPv6`); empty if not specified.
    pub families: Vec<String>,
}

impl Endpoint {
    /// Returns the socket address; `None` if the endpoint has no IP address or no port.
    #[must_use]
    pub(crate) fn socket(&self) -> Option<SocketAddr> {
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
    /// Selects the endpoints in slices of one Service, at the port with the name `port`. If a slice has only one port,
    /// selects that one.
    #[must_use]
    pub(crate) fn of_slices<'s>(slices: impl IntoIterator<Item = &'s EndpointSlice>, port: &str) -> Self {
        let mut endpoints = BTreeSet::new();
        for slice in slices {
            let port = port_of(slice, port);
            let addresses = slice.endpoints.iter().flatten().flat_map(|endpoint| &endpoint.addresses);
            endpoints.extend(addresses.map(|address| Endpoint { address: address.clone(), port }));
        }
        Self { endpoints }
    }

    /// Adds the addresses of pods at the Service's target port: all pods that have an address and have not terminated.
    ///
    /// In a dual-stack cluster, each pod has addresses of both families, even if it listens on only one of them. Only
    /// addresses of the Service's families are added, or the primary address of a pod that has none of them. Other
    /// addresses get no traffic of the Service, and a probe of them might get no response.
    pub(crate) fn add_pods<'p>(&mut self, pods: impl IntoIterator<Item = &'p Pod>, replicas: &Replicas) {
        for pod in pods {
            let Some(status) = &pod.status else { continue };
            if matches!(status.phase.as_deref(), Some("Succeeded" | "Failed")) {
                continue;
            }
            let port = target_port(pod, &replicas.port);
            let all = status.pod_ips.iter().flatten().map(|ip| &ip.ip).chain(&status.pod_ip);
            let mut reached: Vec<_> = all.filter(|address| replicas.routes_to(address)).collect();
            if reached.is_empty() {
                // Fall back to the pod's primary address, so that each pod is probed.
                reached.extend(&status.pod_ip);
            }
            self.endpoints.extend(reached.into_iter().map(|address| Endpoint { address: address.clone(), port }));
        }
    }

    /// Lists the endpoints from the API server, not from a cache.
    ///
    /// # Errors
    /// A request failed.
    pub async fn list(client: &Client, release: &Release, settings: &Settings) -> kube::Result<Self> {
        let slices: Api<EndpointSlice> = Api::namespaced(client.clone(), release.namespace());
        let of_service = ListParams::default().labels(&format!("kubernetes.io/service-name={}", release.service()));
        let mut selected = Self::of_slices(&slices.list(&of_service).await?.items, &settings.port);
        if settings.pods {
            let services: Api<Service> = Api::namespaced(client.clone(), release.namespace());
            let service = services.get_opt(release.service()).await?;
            if let Some(replicas) = service.as_ref().and_then(|service| Replicas::of(service, &settings.port)) {
                let pods: Api<Pod> = Api::namespaced(client.clone(), release.namespace());
                let pods = pods.list(&ListParams::default().labels(&replicas.selector)).await?;
                selected.add_pods(&pods.items, &replicas);
            }
        }
        Ok(selected)
    }
}

impl Replicas {
    /// Reads how a Service selects and reaches its pods. If it has only one port, uses that one. Returns `None` if the
    /// Service has no selector, or has no or several ports and none of them has the name `port`.
    fn of(service: &Service, port: &str) -> Option<Self> {
        let spec = service.spec.as_ref()?;
        let selector = spec.selector.as_ref().filter(|selector| !selector.is_empty())?;
        let selector: Vec<_> = selector.iter().map(|(key, value)| format!("{key}={value}")).collect();
        let port = match spec.ports.as_deref().unwrap_or_default() {
            [only] => only,
            several => several.iter().find(|each| each.name.as_deref() == Some(port))?,
        };
        Some(Self {
            selector: selector.join(","),
            port: port.target_port.clone().unwrap_or(IntOrString::Int(port.port)),
            families: spec.ip_families.clone().unwrap_or_default(),
        })
    }

    /// Whether the Service can route to this address.
    fn routes_to(&self, address: &str) -> bool {
        let family = match address.parse() {
            Ok(IpAddr::V4(_)) => "IPv4",
            Ok(IpAddr::V6(_)) => "IPv6",
            Err(_) => return false,
        };
        self.families.iter().any(|each| each == family)
    }
}

/// Returns the target port of a pod, by number or by the name of a container port. `None` if no container has this port
/// name.
fn target_port(pod: &Pod, target: &IntOrString) -> Option<u16> {
    let number = match target {
        IntOrString::Int(number) => *number,
        IntOrString::String(name) => {
            let containers = pod.spec.iter().flat_map(|spec| &spec.containers);
            let mut ports = containers.flat_map(|container| container.ports.iter().flatten());
            ports.find(|port| port.name.as_ref() == Some(name))?.container_port
        }
    };
    u16::try_from(number).ok()
}

/// Returns the slice's only port or, if it has several, the port with this name.
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

    fn texts(selected: &Selected) -> Vec<String> {
        selected.endpoints.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn selects_addresses_in_any_condition() {
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
        assert_eq!(texts(&selected), ["10.0.0.1:8443", "10.0.0.2:8443", "10.0.0.3:8443", "[fd00::1]:8443"]);
    }

    #[test]
    fn unusable_addresses_stay_selected() {
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
        assert_eq!(texts(&selected), ["10.0.0.1 (no port)", "replica.example.org:8443"]);
        assert!(selected.endpoints.iter().all(|endpoint| endpoint.socket().is_none()));
        let nothing =
            slice(json!({"addressType": "IPv4", "metadata": {"name": "b"}, "endpoints": null, "ports": null}));
        assert_eq!(Selected::of_slices([&nothing], "https"), Selected::default());
    }

    #[test]
    fn skips_pods_ended_or_without_address() {
        let pod = |status: Value| -> Pod { serde_json::from_value(json!({"metadata": {}, "status": status})).unwrap() };
        let pods = [
            pod(json!({"phase": "Running", "podIP": "10.0.0.1", "podIPs": [{"ip": "10.0.0.1"}, {"ip": "fd00::1"}]})),
            pod(json!({"phase": "Failed", "podIP": "10.0.0.2"})),
            pod(json!({"phase": "Pending"})),
            Pod::default(),
        ];
        let mut selected = Selected::default();
        selected.add_pods(&pods, &replicas(&["IPv4"]));
        assert_eq!(texts(&selected), ["10.0.0.1:8443"]);
    }

    fn replicas(families: &[&str]) -> Replicas {
        let families = families.iter().map(|&family| family.to_owned()).collect();
        Replicas { selector: "app=pillion".to_owned(), port: IntOrString::Int(8443), families }
    }

    #[test]
    fn selects_pod_addresses_of_service_families() {
        let pod: Pod = serde_json::from_value(json!({"metadata": {}, "status": {
            "phase": "Running", "podIP": "10.0.0.1", "podIPs": [{"ip": "10.0.0.1"}, {"ip": "fd00::1"}],
        }}))
        .unwrap();
        let old: Pod = serde_json::from_value(json!({"metadata": {}, "status": {"podIP": "10.0.0.2"}})).unwrap();
        for (families, expected) in [
            (&["IPv4"][..], &["10.0.0.1:8443", "10.0.0.2:8443"][..]),
            (&["IPv6"], &["10.0.0.2:8443", "[fd00::1]:8443"]),
            (&["IPv6", "IPv4"], &["10.0.0.1:8443", "10.0.0.2:8443", "[fd00::1]:8443"]),
            (&[], &["10.0.0.1:8443", "10.0.0.2:8443"]),
        ] {
            let mut selected = Selected::default();
            selected.add_pods([&pod, &old], &replicas(families));
            assert_eq!(texts(&selected), expected, "{families:?}");
        }
    }

    #[test]
    fn service_defines_pods_and_target_port() {
        let service = |spec: Value| -> Service { serde_json::from_value(json!({"spec": spec})).unwrap() };
        let ports = json!([{"name": "metrics", "port": 9090}, {"name": "https", "port": 443, "targetPort": "tls"}]);
        let of = |spec| Replicas::of(&service(spec), "https");
        assert_eq!(of(json!({"ports": ports})), None, "a Service without a selector");
        let replicas = of(json!({
            "ports": ports, "selector": {"app": "pillion", "part": "webhook"}, "ipFamilies": ["IPv6", "IPv4"],
        }))
        .unwrap();
        assert_eq!(replicas.selector, "app=pillion,part=webhook");
        assert_eq!(replicas.families, ["IPv6", "IPv4"]);
        let same = of(json!({"ports": [{"port": 443}], "selector": {"app": "pillion"}})).unwrap();
        assert_eq!((same.port, same.families), (IntOrString::Int(443), Vec::new()));
        let pod: Pod = serde_json::from_value(json!({"metadata": {}, "spec": {"containers": [
            {"name": "a", "ports": [{"name": "metrics", "containerPort": 9090}]},
            {"name": "b", "ports": [{"name": "tls", "containerPort": 8443}]},
        ]}}))
        .unwrap();
        assert_eq!(target_port(&pod, &replicas.port), Some(8443));
        assert_eq!(target_port(&pod, &IntOrString::String("none".to_owned())), None);
    }
}
