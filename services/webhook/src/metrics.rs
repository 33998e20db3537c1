//! The metrics of the webhook; `docs/metrics.md` lists them.
//!
//! Every label has a closed or a bounded set of values. Every handle that a request needs is resolved before the first
//! request, so counting looks up no name. Tenants and profiles are the exception: their names are found in a map that
//! is replaced as a whole.
//!
//! - `requests`: results and durations of requests, decisions.
//! - `series`: requests by namespace, injections by profile, the snapshot.
//! - `connections`: connections, handshakes and the serving certificate.
//! - `exposition`: the text of `/metrics`, and the process.

mod connections;
pub(crate) mod exposition;
mod requests;
mod series;

use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use opentelemetry::trace::TraceId;
use pillion_engine::decision::Decision;
use pillion_engine::review::{CheckStage, Endpoint, InternalError};
use pillion_engine::snapshot::Snapshot;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::metrics::info::Info;
use prometheus_client::registry::Registry;

pub use connections::{ConnectionMetrics, ReloadMetrics, ReloadResult, register_certificate};
pub(crate) use connections::{HandshakeResult, Unauthorized, Waiting};
pub use exposition::Exposition;
use exposition::ProcessCollector;
pub(crate) use requests::RequestOutcome;
use requests::{DecisionCounters, Durations, RequestCounters};
pub use series::TenantSettings;
use series::{ProfileCounters, SnapshotCollector};
pub(crate) use series::{Tenant, Tenants};

use crate::counters::{Counters, register};
use crate::overload::OverloadMetrics;

/// Bounds in bytes. The review of a pod has about 8 KB, and the limit is 7 MiB.
const REQUEST_BUCKETS: [f64; 9] =
    [2048.0, 4096.0, 8192.0, 16384.0, 32768.0, 65536.0, 262_144.0, 1_048_576.0, 7_340_032.0];
/// Bounds in bytes.
const PATCH_BUCKETS: [f64; 8] = [256.0, 1024.0, 2048.0, 4096.0, 8192.0, 16384.0, 65536.0, 262_144.0];

/// Settings of the optional metrics.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct MetricsSettings {
    /// Requests by namespace.
    pub tenants: TenantSettings,
}

/// The metrics of the admission requests and of their connections.
#[derive(Debug)]
pub struct Metrics {
    requests: RequestCounters,
    durations: Durations,
    decisions: DecisionCounters,
    profiles: ProfileCounters,
    self_checks: Counters<{ CheckStage::ALL.len() }>,
    dry_runs: Counter,
    request_bytes: Histogram,
    patch_bytes: Histogram,
    /// Bytes in use by the bodies of requests in flight.
    pub(crate) body_bytes: Gauge,
    /// Requests in flight.
    pub(crate) inflight: Gauge,
    /// Requests whose bodies are still arriving.
    pub(crate) unfinished_bodies: Gauge,
    /// Panics that were caught.
    pub(crate) panics: Counter,
    /// Rejected requests and queue waits.
    pub(crate) overload: OverloadMetrics,
    /// The metrics of the TLS connections.
    pub connections: ConnectionMetrics,
    /// Requests by namespace.
    pub(crate) tenants: Tenants,
}

impl Metrics {
    /// Calls [`Metrics::register_with`] with the default settings.
    pub fn register(registry: &mut Registry) -> Self {
        Self::register_with(registry, &MetricsSettings::default())
    }

    /// Creates and registers the metrics. Those of the process keep their standard names; all others get the prefix
    /// `pillion_`.
    pub fn register_with(registry: &mut Registry, settings: &MetricsSettings) -> Self {
        registry.register_collector(Box::new(ProcessCollector));
        let registry = registry.sub_registry_with_prefix("pillion");

        let requests = RequestCounters::register(registry);
        let durations = Durations::register(registry);
        let decisions = DecisionCounters::register(registry);
        let profiles = ProfileCounters::new();
        registry.register_collector(Box::new(profiles.clone()));
        let tenants = Tenants::new(&settings.tenants);
        registry.register_collector(Box::new(tenants.clone()));

        let self_checks = Counters::register(
            registry,
            "selfcheck_failures",
            "Patches that did not pass the check before they would have been sent, by where they failed; each was \
             answered with HTTP 500",
            "stage",
            CheckStage::ALL.map(CheckStage::as_str),
        );
        let dry_runs = register(registry, "dry_runs", "Decisions about requests that change nothing in the cluster");

        let request_bytes = Histogram::new(REQUEST_BUCKETS);
        registry.register("request_bytes", "Size of the requests' bodies, in bytes", request_bytes.clone());
        let patch_bytes = Histogram::new(PATCH_BUCKETS);
        registry.register("patch_bytes", "Size of the patches before base64, in bytes", patch_bytes.clone());
        let help = "Memory that the bodies of the requests being answered take, in bytes";
        let body_bytes = register(registry, "body_bytes", help);
        let help = "Requests whose bodies have arrived and that are being answered";
        let inflight = register(registry, "inflight", help);
        let help = "Requests whose bodies have to be waited for";
        let unfinished_bodies = register(registry, "unfinished_bodies", help);
        let panics = register(registry, "panics", "Panics that were caught while answering");
        registry.register("build", "What this program was built from, and by which compiler", build());

        let connections = ConnectionMetrics::register(registry);
        Self {
            requests,
            durations,
            decisions,
            profiles,
            self_checks,
            dry_runs,
            request_bytes,
            patch_bytes,
            body_bytes,
            inflight,
            unfinished_bodies,
            panics,
            overload: OverloadMetrics::register(registry),
            connections,
            tenants,
        }
    }

    /// Registers the sizes of the snapshot, computed at each scrape. Series of profiles and namespaces that leave the
    /// snapshot are removed some time later.
    pub fn register_snapshot(&self, registry: &mut Registry, snapshot: Arc<ArcSwap<Snapshot>>) {
        let collector = SnapshotCollector { snapshot, tenants: self.tenants.clone(), profiles: self.profiles.clone() };
        registry.sub_registry_with_prefix("pillion").register_collector(Box::new(collector));
    }

    /// Counts an answered request, with its trace as an exemplar if the trace is sampled.
    pub(crate) fn answered(
        &self,
        endpoint: Endpoint,
        outcome: RequestOutcome,
        elapsed: Duration,
        trace: Option<TraceId>,
        tenant: &Tenant,
    ) {
        self.requests.count(endpoint, outcome);
        self.durations.observe(outcome, elapsed, trace);
        tenant.answered(outcome);
    }

    /// Counts a body that was read completely.
    pub(crate) fn body_read(&self, bytes: usize) {
        self.request_bytes.observe(as_float(bytes));
    }

    /// Counts a patch, by its size before base64.
    pub(crate) fn patched(&self, bytes: usize) {
        self.patch_bytes.observe(as_float(bytes));
    }

    /// Counts a decision. `dry_run`: its request changes nothing in the cluster, and is also counted as a dry run.
    pub(crate) fn decided(&self, decision: &Decision, dry_run: bool) {
        self.decisions.decided(decision);
        self.profiles.decided(decision);
        if dry_run {
            self.dry_runs.inc();
        }
    }

    /// Counts an internal error of the engine by its stage.
    pub(crate) fn self_check_failed(&self, error: &InternalError) {
        self.self_checks.count(error.stage() as usize);
    }
}

#[expect(clippy::cast_precision_loss, reason = "a body has far less than 2^52 bytes")]
const fn as_float(bytes: usize) -> f64 {
    bytes as f64
}

fn build() -> Info<[(&'static str, &'static str); 3]> {
    let known = |text: &'static str| if text.is_empty() { "unknown" } else { text };
    Info::new([
        ("version", env!("CARGO_PKG_VERSION")),
        ("revision", known(env!("PILLION_REVISION"))),
        ("rustc", known(env!("PILLION_RUSTC"))),
    ])
}

#[cfg(test)]
mod tests;
