//! The metrics of the webhook; `docs/metrics.md` lists them.
//!
//! Every label has a fixed or a limited set of values. The series that a request needs are created before the first
//! request, so counting needs no lookup by name. Tenants and profiles are the exception: their names are looked up in a
//! map, which is replaced as a whole when it changes.
//!
//! - `requests`: outcomes and durations of requests.
//! - `process`: the metrics that every process of Pillion has: its resources and its build.
//! - `series`: series for names that are created and deleted, such as the requests of each tenant.
//! - `decisions`: decisions by profile, outcome and reason.
//! - `snapshot`: the sizes of the snapshot.
//! - `connections`: connections, handshakes and the serving certificate.
//! - `exposition`: the text of `/metrics`.

mod connections;
mod decisions;
pub(crate) mod exposition;
mod process;
mod requests;
mod series;
mod snapshot;

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
use prometheus_client::registry::Registry;

pub use connections::{ConnectionMetrics, ReloadMetrics, ReloadResult, register_certificate};
pub(crate) use connections::{HandshakeResult, Unauthorized, Waiting};
use decisions::DecisionCounters;
pub use exposition::Exposition;
pub use process::register_process;
pub(crate) use requests::RequestOutcome;
use requests::{Durations, RequestCounters};
pub(crate) use series::{Tenant, Tenants};
use snapshot::SnapshotCollector;

use crate::counters::{Counters, register};
use crate::overload::OverloadMetrics;

/// Bucket bounds for request bodies, in bytes. The review of a pod has about 8 KB, and the default limit is 7 MiB.
const REQUEST_BUCKETS: [f64; 9] =
    [2048.0, 4096.0, 8192.0, 16384.0, 32768.0, 65536.0, 262_144.0, 1_048_576.0, 7_340_032.0];
/// Bucket bounds for patches, in bytes.
const PATCH_BUCKETS: [f64; 8] = [256.0, 1024.0, 2048.0, 4096.0, 8192.0, 16384.0, 65536.0, 262_144.0];

/// The prefix of the metrics that only replicas of the webhook export.
pub const PREFIX: &str = "pillion_webhook";

/// Limits on the number of series of metrics that are labelled with names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MetricsSettings {
    /// Maximum number of tenants with series of their own. Requests of all other tenants are counted as `_other`.
    pub max_tenants: usize,
    /// Maximum number of profiles with series of their own. Decisions on all other profiles are counted as `_other`.
    pub max_profiles: usize,
}

impl Default for MetricsSettings {
    fn default() -> Self {
        Self { max_tenants: 100, max_profiles: 200 }
    }
}

/// The metrics of the admission requests and of their connections.
#[derive(Debug)]
pub struct Metrics {
    requests: RequestCounters,
    durations: Durations,
    decisions: DecisionCounters,
    self_checks: Counters<{ CheckStage::ALL.len() }>,
    dry_runs: Counter,
    request_bytes: Histogram,
    patch_bytes: Histogram,
    /// Bytes in use by the bodies of all current requests, complete or not.
    pub(crate) body_memory: Gauge,
    /// Requests with a complete body and no response yet.
    pub(crate) inflight: Gauge,
    /// Requests whose bodies are still arriving.
    pub(crate) incomplete_bodies: Gauge,
    /// Panics that were caught.
    pub(crate) panics: Counter,
    /// Shed requests, queued requests, and the time that requests wait in queues.
    pub(crate) overload: OverloadMetrics,
    /// The metrics of the TLS connections.
    pub connections: ConnectionMetrics,
    /// Requests by tenant.
    pub(crate) tenants: Tenants,
}

impl Metrics {
    /// Calls [`Metrics::register_with`] with the default settings.
    pub fn register(registry: &mut Registry) -> Self {
        Self::register_with(registry, &MetricsSettings::default())
    }

    /// Creates and registers the metrics, including those of the process.
    pub fn register_with(registry: &mut Registry, settings: &MetricsSettings) -> Self {
        register_process(registry, "webhook");
        let registry = registry.sub_registry_with_prefix(PREFIX);

        let requests = RequestCounters::register(registry);
        let durations = Durations::register(registry);
        let decisions = DecisionCounters::register(registry, settings.max_profiles);
        let tenants = Tenants::new(settings.max_tenants);
        registry.register_collector(Box::new(tenants.clone()));

        let self_checks = Counters::register(
            registry,
            "self_check_failures",
            "Patches that failed the check before they are sent, by step of the check. Each request got HTTP 500",
            "step",
            CheckStage::ALL.map(CheckStage::as_str),
        );
        let dry_runs = register(registry, "dry_runs", "Decided reviews of dry-run requests");

        let request_bytes = Histogram::new(REQUEST_BUCKETS);
        registry.register("request_size_bytes", "Size of a request's body", request_bytes.clone());
        let patch_bytes = Histogram::new(PATCH_BUCKETS);
        registry.register("patch_size_bytes", "Size of a patch, before base64", patch_bytes.clone());
        let help = "Memory that the bodies of the current requests take";
        let body_memory = register(registry, "body_memory_bytes", help);
        let help = "Requests with a complete body and no response yet";
        let inflight = register(registry, "inflight_requests", help);
        let help = "Requests whose body is still arriving";
        let incomplete_bodies = register(registry, "incomplete_bodies", help);
        let panics = register(registry, "panics", "Panics while answering a request. Each request got HTTP 500");

        let connections = ConnectionMetrics::register(registry);
        Self {
            requests,
            durations,
            decisions,
            self_checks,
            dry_runs,
            request_bytes,
            patch_bytes,
            body_memory,
            inflight,
            incomplete_bodies,
            panics,
            overload: OverloadMetrics::register(registry),
            connections,
            tenants,
        }
    }

    /// Registers the sizes of the snapshot, which are computed at each scrape. A scrape also removes series of profiles
    /// and namespaces that left the snapshot some time ago.
    pub fn register_snapshot(&self, registry: &mut Registry, snapshot: Arc<ArcSwap<Snapshot>>) {
        let collector =
            SnapshotCollector { snapshot, tenants: self.tenants.clone(), profiles: self.decisions.profiles.clone() };
        registry.sub_registry_with_prefix(PREFIX).register_collector(Box::new(collector));
    }

    /// Counts an answered request. If its trace is sampled, the trace becomes an exemplar.
    pub(crate) fn answered(
        &self,
        endpoint: Endpoint,
        outcome: RequestOutcome,
        elapsed: Duration,
        trace: Option<TraceId>,
    ) {
        self.requests.count(endpoint, outcome);
        self.durations.observe(outcome, elapsed, trace);
    }

    /// Records the size of a body that was read completely.
    pub(crate) fn body_read(&self, bytes: usize) {
        self.request_bytes.observe(as_float(bytes));
    }

    /// Records the size of a patch before base64 encoding.
    pub(crate) fn patched(&self, bytes: usize) {
        self.patch_bytes.observe(as_float(bytes));
    }

    /// Counts a decision. If `dry_run` is set, the request changes nothing in the cluster, and is also counted as a dry
    /// run.
    pub(crate) fn decided(&self, decision: &Decision, dry_run: bool) {
        self.decisions.decided(decision);
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

#[cfg(test)]
mod tests;
