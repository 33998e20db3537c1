//! The metrics of the webhook; `docs/metrics.md` lists them.
//!
//! Every label has a closed or a bounded set of values. Every handle that a request needs is resolved before the first
//! request, so counting takes no lock and looks up no name. Tenants and profiles are the exception: their names are
//! found in a map that is replaced as a whole.
//!
//! - `requests`, `outcome`: results and durations of requests.
//! - `decisions`, `profiles`: decisions and applied profiles.
//! - `tenants`: requests by namespace, if enabled. `slots`: gives a series to a name and takes it back.
//! - `tls`: connections and the serving certificate.
//! - `cluster`, `process`: the snapshot and the process.
//! - `exposition`: the text of `/metrics`.

mod cluster;
mod decisions;
pub(crate) mod exposition;
mod outcome;
mod process;
mod profiles;
mod requests;
mod slots;
mod tenants;
mod tls;

use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use opentelemetry::trace::TraceId;
use pillion_engine::decision::Decision;
use pillion_engine::review::{CheckStage, Endpoint, InternalError};
use pillion_engine::snapshot::Snapshot;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::info::Info;
use prometheus_client::registry::Registry;

pub use exposition::Exposition;
pub use outcome::RequestOutcome;
pub use profiles::MAX_PROFILES;
pub use tenants::{Tenant, TenantSettings, Tenants};
pub use tls::{ConnectionMetrics, HandshakeResult, ReloadMetrics, ReloadResult, register_certificate};

use crate::histogram::Histogram;
use crate::overload::OverloadMetrics;

use cluster::Cluster;
use decisions::DecisionCounters;
use process::Process;
use profiles::ProfileCounters;
use requests::{Durations, RequestCounters};

/// Bytes. A pod's review is some 8 KB; 7 MiB are the limit.
const REQUEST_BUCKETS: [u64; 9] = [2048, 4096, 8192, 16384, 32768, 65536, 262_144, 1_048_576, 7_340_032];
/// Bytes.
const PATCH_BUCKETS: [u64; 8] = [256, 1024, 2048, 4096, 8192, 16384, 65536, 262_144];

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct StageLabel {
    stage: &'static str,
}

/// Optional metrics.
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
    self_checks: [Counter; CheckStage::ALL.len()],
    dry_runs: Counter,
    /// Bytes of bodies that were read completely.
    pub request_bytes: Histogram,
    /// Bytes of the patches, before base64.
    pub patch_bytes: Histogram,
    /// Bytes in use by the bodies of requests in flight.
    pub body_bytes: Gauge,
    /// Requests in flight.
    pub inflight: Gauge,
    /// Requests whose bodies are still arriving.
    pub unfinished_bodies: Gauge,
    /// Panics that were caught.
    pub panics: Counter,
    /// Rejected requests and queue waits.
    pub overload: OverloadMetrics,
    /// The connections.
    pub connections: ConnectionMetrics,
    /// Requests by namespace.
    pub tenants: Tenants,
}

impl Metrics {
    /// Calls [`Metrics::register_with`] with the default settings.
    pub fn register(registry: &mut Registry) -> Self {
        Self::register_with(registry, &MetricsSettings::default())
    }

    /// Creates and registers the metrics. Those of the process keep their standard names; all others get the prefix
    /// `pillion_`.
    pub fn register_with(registry: &mut Registry, settings: &MetricsSettings) -> Self {
        registry.register_collector(Box::new(Process));
        let registry = registry.sub_registry_with_prefix("pillion");

        let requests = RequestCounters::register(registry);
        let durations = Durations::register(registry);
        let decisions = DecisionCounters::register(registry);
        let profiles = ProfileCounters::new();
        registry.register_collector(Box::new(profiles.clone()));
        let tenants = Tenants::new(&settings.tenants);
        registry.register_collector(Box::new(tenants.clone()));

        let family = Family::<StageLabel, Counter>::default();
        registry.register(
            "selfcheck_failures",
            "Patches that did not pass the check before they would have been sent, by where they failed; each was \
             answered with HTTP 500",
            family.clone(),
        );
        let self_checks =
            CheckStage::ALL.map(|stage| family.get_or_create_owned(&StageLabel { stage: stage.as_str() }));
        let dry_runs = Counter::default();
        registry.register("dry_runs", "Decisions about requests that change nothing in the cluster", dry_runs.clone());

        let request_bytes = Histogram::bytes(&REQUEST_BUCKETS);
        registry.register("request_bytes", "Size of the requests' bodies, in bytes", request_bytes.clone());
        let patch_bytes = Histogram::bytes(&PATCH_BUCKETS);
        registry.register("patch_bytes", "Size of the patches before base64, in bytes", patch_bytes.clone());
        let body_bytes = Gauge::default();
        registry.register(
            "body_bytes",
            "Memory that the bodies of the requests being answered take, in bytes",
            body_bytes.clone(),
        );
        let inflight = Gauge::default();
        registry.register(
            "inflight",
            "Requests whose bodies have arrived and that are being answered",
            inflight.clone(),
        );
        let unfinished_bodies = Gauge::default();
        registry.register(
            "unfinished_bodies",
            "Requests whose bodies have to be waited for",
            unfinished_bodies.clone(),
        );
        let panics = Counter::default();
        registry.register("panics", "Panics that were caught while answering", panics.clone());
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
        let cluster = Cluster { snapshot, tenants: self.tenants.clone(), profiles: self.profiles.clone() };
        registry.sub_registry_with_prefix("pillion").register_collector(Box::new(cluster));
    }

    /// Counts an answered request, with its trace as an exemplar if the trace is sampled.
    pub fn answered(
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

    /// Counts a decision.
    pub fn decided(&self, decision: &Decision, dry_run: bool) {
        self.decisions.decided(decision);
        self.profiles.decided(decision);
        if dry_run {
            self.dry_runs.inc();
        }
    }

    /// Counts an internal error of the engine by its stage.
    #[expect(clippy::indexing_slicing, reason = "a fieldless enum's discriminant is its place in ALL")]
    pub fn failed(&self, fault: &InternalError) {
        self.self_checks[fault.stage() as usize].inc();
    }
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
