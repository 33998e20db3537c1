//! Checks whether every API server trusts the newest CA, by making each of them call an endpoint.
//!
//! A change of the webhook configuration reaches each API server at a different time, without notice. So the controller
//! serves a small admission endpoint, with a certificate of the newest CA and behind a separate Service. Both webhook
//! configurations have an entry ([`pillion_api::trust_probe::WEBHOOK`]) that routes the kind `InjectionTrustProbe` to
//! this endpoint. The controller sends each API server, at its own address, a dry run that creates an object of this
//! kind. The API server must call the endpoint, and the result shows whether it trusts the CA.
//!
//! Only a recorded call is proof. Each request has a random name. The endpoint records the names in the calls, together
//! with the certificate of the connection. A connection serves one call, so an earlier handshake is never used as proof
//! for a later call.
//!
//! [`server`] is the endpoint, [`asker`] lists the API servers and sends the dry runs, and [`answer`] interprets the
//! responses. An API server is asked again and again until it proves its trust. No object changes when it does, so this
//! task is not a kube-rs `Controller`.
//!
//! RBAC permissions: `create` on `injectiontrustprobes`; `list` on endpoint slices in the namespace `default`;
//! `create`, `patch` and `delete` on the one endpoint slice of the endpoint's Service; and `list` on leases in
//! `kube-system`, to count API servers behind one address. Without the permission for leases, the number of API servers
//! is unknown.

pub mod answer;
pub mod asker;
pub mod server;

use std::time::Duration;

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

use crate::certificates::rotation::Propagation;
use crate::labels::Label;

pub use answer::{ServerOutcome, Silence, fold};
pub use asker::{ApiServerProber, ServerAnswer, TrustRound, service};
pub use server::{Identity, TrustProbe};

/// Timeouts and limits. Tests scale all durations down.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Settings {
    /// Timeout of one dry run, including the API server's call.
    pub timeout: Duration,
    /// How long an API server is still asked after it disappeared from the list, since it may be paused and continue
    /// with an old configuration. Without a response, it counts as silent. Must be at least as long as the rotation
    /// waits for silent API servers.
    pub keep_unlisted_for: Duration,
    /// Timeout of one call to the endpoint, from the connection to the response.
    pub call_limit: Duration,
    /// Maximum number of connections to the endpoint. Further connections wait.
    pub connections: usize,
    /// The name in the API servers' certificates. A name in the client's configuration takes precedence.
    pub server_name: String,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            timeout: Duration::from_secs(5),
            keep_unlisted_for: Duration::from_mins(2),
            call_limit: Duration::from_secs(5),
            connections: 32,
            server_name: "kubernetes.default.svc".to_owned(),
        }
    }
}

/// Gauges and counters of the trust probe. Clones share them.
#[derive(Clone, Debug, Default)]
pub struct TrustProbeMetrics {
    servers: Family<Label, Gauge>,
    asked: Family<Label, Counter>,
    calls: Counter,
}

impl TrustProbeMetrics {
    /// Creates the metrics and registers them with the prefix `pillion_controller`.
    pub fn register(registry: &mut Registry) -> Self {
        let metrics = Self::default();
        let registry = registry.sub_registry_with_prefix("pillion_controller");
        let text = "API servers, by whether the last round of trust probes proved that they trust the newest CA";
        registry.register("trust_probe_api_servers", text, metrics.servers.clone());
        let text = "Trust probes of API servers, by result";
        registry.register("trust_probe_requests", text, metrics.asked.clone());
        let text = "Calls of API servers for a trust probe that this controller answered";
        registry.register("trust_probe_calls", text, metrics.calls.clone());
        for result in ServerOutcome::LABELS {
            drop(metrics.servers.get_or_create_owned(&[("state", result)]));
            drop(metrics.asked.get_or_create_owned(&[("result", result)]));
        }
        metrics
    }

    /// Sets the gauges to 0 when leadership ends.
    pub fn reset(&self) {
        for state in ServerOutcome::LABELS {
            self.servers.get_or_create_owned(&[("state", state)]).set(0);
        }
    }

    /// Number of answered calls.
    #[must_use]
    pub fn calls(&self) -> u64 {
        self.calls.get()
    }

    pub(super) fn count_call(&self) {
        self.calls.inc();
    }

    pub(super) fn count_request(&self, outcome: &ServerOutcome) {
        self.asked.get_or_create_owned(&[("result", outcome.as_str())]).inc();
    }

    pub(super) fn set_servers(&self, found: Propagation) {
        let Propagation { proven, behind, silent } = found;
        for (state, number) in ServerOutcome::LABELS.into_iter().zip([proven, behind, silent]) {
            let number = i64::try_from(number).unwrap_or(i64::MAX);
            self.servers.get_or_create_owned(&[("state", state)]).set(number);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exposition_has_all_series() {
        let mut registry = Registry::default();
        let metrics = TrustProbeMetrics::register(&mut registry);
        metrics.count_call();
        metrics.count_request(&ServerOutcome::Behind);
        metrics.set_servers(Propagation { proven: 1, behind: 2, silent: 3 });
        let text = crate::labels::exposition(&registry);
        for line in [
            "pillion_controller_trust_probe_api_servers{state=\"proven\"} 1",
            "pillion_controller_trust_probe_api_servers{state=\"behind\"} 2",
            "pillion_controller_trust_probe_api_servers{state=\"silent\"} 3",
            "pillion_controller_trust_probe_requests_total{result=\"behind\"} 1",
            "pillion_controller_trust_probe_requests_total{result=\"proven\"} 0",
            "pillion_controller_trust_probe_calls_total 1",
        ] {
            assert!(text.lines().any(|each| each == line), "{line} is not in\n{text}");
        }
    }
}
