//! What the webhook measures. Every label comes from a closed set, and every handle that a request needs is resolved
//! before the first one comes: counting takes no lock and no look-up by name.

use std::fmt;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use arc_swap::ArcSwap;
use pillion_engine::report::{Decision, Outcome, ProfileOutcome, Reason};
use pillion_engine::review::Endpoint;
use pillion_engine::snapshot::Snapshot;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet, EncodeMetric};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::{ConstGauge, Gauge};
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::metrics::info::Info;
use prometheus_client::registry::Registry;

use crate::transport::TransportMetrics;

/// Seconds. A decision takes some 30 us; the API server waits up to 30 s.
const DURATION_BUCKETS: [f64; 15] =
    [0.0001, 0.000_25, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0];
/// Bytes. A pod's review is some 8 KB; 7 MiB are the limit.
const REQUEST_BUCKETS: [f64; 9] =
    [2048.0, 4096.0, 8192.0, 16384.0, 32768.0, 65536.0, 262_144.0, 1_048_576.0, 7_340_032.0];
/// Bytes.
const PATCH_BUCKETS: [f64; 8] = [256.0, 1024.0, 2048.0, 4096.0, 8192.0, 16384.0, 65536.0, 262_144.0];

/// How a request ended, as it stands in metrics and logs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RequestOutcome {
    /// A decision was made and answered.
    Decided(Outcome),
    /// The request is not an admission review that can be decided: HTTP 4xx.
    BadRequest,
    /// Pillion failed: HTTP 500.
    Error,
    /// There was no memory for the request's body: HTTP 503.
    Shed,
}

impl RequestOutcome {
    /// All outcomes.
    pub const ALL: [Self; 8] = [
        Self::Decided(Outcome::Injected),
        Self::Decided(Outcome::Unchanged),
        Self::Decided(Outcome::Skipped),
        Self::Decided(Outcome::Validated),
        Self::Decided(Outcome::Denied),
        Self::BadRequest,
        Self::Error,
        Self::Shed,
    ];

    /// The outcome as it stands in metrics and logs.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Decided(outcome) => outcome.as_str(),
            Self::BadRequest => "bad_request",
            Self::Error => "error",
            Self::Shed => "shed",
        }
    }

    /// Its place in [`Self::ALL`].
    const fn index(self) -> usize {
        match self {
            Self::Decided(Outcome::Injected) => 0,
            Self::Decided(Outcome::Unchanged) => 1,
            Self::Decided(Outcome::Skipped) => 2,
            Self::Decided(Outcome::Validated) => 3,
            Self::Decided(Outcome::Denied) => 4,
            Self::BadRequest => 5,
            Self::Error => 6,
            Self::Shed => 7,
        }
    }
}

/// How a TLS handshake ended, or why there was none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum HandshakeResult {
    /// The connection is served.
    Ok,
    /// The client spoke no TLS, or none that is offered, or went away.
    Failed,
    /// It was not done in time.
    TimedOut,
    /// There were as many connections as are allowed.
    Refused,
    /// The client showed a certificate that is not one of those that are asked for: expired, or of another authority.
    ClientCertificate,
}

impl HandshakeResult {
    /// All results.
    pub const ALL: [Self; 5] = [Self::Ok, Self::Failed, Self::TimedOut, Self::Refused, Self::ClientCertificate];

    /// The result as it stands in metrics.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Failed => "failed",
            Self::TimedOut => "timed_out",
            Self::Refused => "refused",
            Self::ClientCertificate => "client_certificate",
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RequestLabels {
    endpoint: &'static str,
    outcome: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OutcomeLabel {
    outcome: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct DecisionLabels {
    outcome: &'static str,
    reason: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ResultLabel {
    result: &'static str,
}

/// The metrics of the TLS connections.
#[derive(Clone, Debug)]
pub struct ConnectionMetrics {
    /// Connections that are open, those in their handshake too.
    pub connections: Gauge,
    /// What else the server measures.
    pub transport: TransportMetrics,
    handshakes: [Counter; HandshakeResult::ALL.len()],
}

/// The metrics of the admission requests and of their connections.
#[derive(Debug)]
pub struct Metrics {
    requests: [[Counter; RequestOutcome::ALL.len()]; Endpoint::ALL.len()],
    durations: [Histogram; RequestOutcome::ALL.len()],
    decisions: DecisionCounters,
    /// Bytes of the bodies that were read whole.
    pub request_bytes: Histogram,
    /// Bytes of the patches, before base64.
    pub patch_bytes: Histogram,
    /// Bytes that the bodies of the requests that are being answered take.
    pub body_bytes: Gauge,
    /// Requests that are being answered.
    pub inflight: Gauge,
    /// Panics that were caught.
    pub panics: Counter,
    /// The connections.
    pub connections: ConnectionMetrics,
}

impl Metrics {
    /// Makes the metrics and registers them, with the prefix `pillion_`.
    pub fn register(registry: &mut Registry) -> Self {
        let registry = registry.sub_registry_with_prefix("pillion");

        let family = Family::<RequestLabels, Counter>::default();
        registry.register("admission_requests", "Admission requests, by path and by how they ended", family.clone());
        let requests = Endpoint::ALL.map(|endpoint| {
            RequestOutcome::ALL.map(|outcome| {
                let labels = RequestLabels { endpoint: endpoint.as_str(), outcome: outcome.as_str() };
                family.get_or_create_owned(&labels)
            })
        });

        let family = Family::<OutcomeLabel, Histogram>::new_with_constructor(|| Histogram::new(DURATION_BUCKETS));
        registry.register(
            "admission_duration_seconds",
            "Time from the head of a request to its answer, in seconds",
            family.clone(),
        );
        let durations =
            RequestOutcome::ALL.map(|outcome| family.get_or_create_owned(&OutcomeLabel { outcome: outcome.as_str() }));

        let decisions = DecisionCounters::new();
        registry.register(
            "decisions",
            "Decisions: one for each profile that came into question, or one for the request where none did",
            decisions.family.clone(),
        );

        let request_bytes = Histogram::new(REQUEST_BUCKETS);
        registry.register("request_bytes", "Size of the requests' bodies, in bytes", request_bytes.clone());
        let patch_bytes = Histogram::new(PATCH_BUCKETS);
        registry.register("patch_bytes", "Size of the patches before base64, in bytes", patch_bytes.clone());
        let body_bytes = Gauge::default();
        registry.register(
            "body_bytes",
            "Memory that the bodies of the requests being answered take, in bytes",
            body_bytes.clone(),
        );
        let inflight = Gauge::default();
        registry.register("inflight", "Admission requests that are being answered", inflight.clone());
        let panics = Counter::default();
        registry.register("panics", "Panics that were caught while answering", panics.clone());

        let build = Info::new([("version", env!("CARGO_PKG_VERSION"))]);
        registry.register("build", "The version of Pillion", build);

        let connections = ConnectionMetrics::register(registry);
        Self { requests, durations, decisions, request_bytes, patch_bytes, body_bytes, inflight, panics, connections }
    }

    /// Adds the sizes of the snapshot, computed at each scrape.
    pub fn register_snapshot(registry: &mut Registry, snapshot: Arc<ArcSwap<Snapshot>>) {
        registry.sub_registry_with_prefix("pillion").register_collector(Box::new(SnapshotSizes(snapshot)));
    }

    /// Counts a request that was answered.
    #[expect(
        clippy::indexing_slicing,
        reason = "both indexes are the places in the arrays that the handles were made from"
    )]
    pub fn answered(&self, endpoint: Endpoint, outcome: RequestOutcome, elapsed: Duration) {
        self.requests[endpoint_index(endpoint)][outcome.index()].inc();
        self.durations[outcome.index()].observe(elapsed.as_secs_f64());
    }

    /// Counts what was decided.
    pub fn decided(&self, decision: &Decision) {
        if decision.profiles.is_empty() {
            self.decisions.count(as_profile_outcome(decision.outcome), decision.reason);
        }
        for profile in &decision.profiles {
            self.decisions.count(profile.outcome, profile.reason);
        }
    }
}

impl ConnectionMetrics {
    fn register(registry: &mut Registry) -> Self {
        let connections = Gauge::default();
        registry.register("tls_connections", "TLS connections that are open", connections.clone());
        let family = Family::<ResultLabel, Counter>::default();
        registry.register("tls_handshakes", "TLS handshakes, by how they ended", family.clone());
        let handshakes =
            HandshakeResult::ALL.map(|result| family.get_or_create_owned(&ResultLabel { result: result.as_str() }));
        Self { connections, transport: TransportMetrics::register(registry), handshakes }
    }

    /// Counts a handshake.
    #[expect(clippy::indexing_slicing, reason = "a fieldless enum's discriminant is its place in ALL")]
    pub fn handshake(&self, result: HandshakeResult) {
        self.handshakes[result as usize].inc();
    }
}

/// A counter for each outcome and reason. A pair gets its series when it first comes up: most of them never do.
#[derive(Debug)]
struct DecisionCounters {
    family: Family<DecisionLabels, Counter>,
    cells: Box<[OnceLock<Counter>]>,
}

impl DecisionCounters {
    /// How many outcomes a profile can have.
    const OUTCOMES: usize = ProfileOutcome::Denied as usize + 1;

    fn new() -> Self {
        let cells = (0..Self::OUTCOMES * Reason::ALL.len()).map(|_| OnceLock::new()).collect();
        Self { family: Family::default(), cells }
    }

    fn count(&self, outcome: ProfileOutcome, reason: Reason) {
        let index = outcome as usize * Reason::ALL.len() + reason as usize;
        if let Some(cell) = self.cells.get(index) {
            let labels = || DecisionLabels { outcome: outcome.as_str(), reason: reason.as_str() };
            cell.get_or_init(|| self.family.get_or_create_owned(&labels())).inc();
        }
    }
}

fn as_profile_outcome(outcome: Outcome) -> ProfileOutcome {
    match outcome {
        Outcome::Injected => ProfileOutcome::Applied,
        Outcome::Unchanged => ProfileOutcome::Unchanged,
        Outcome::Skipped => ProfileOutcome::Skipped,
        Outcome::Validated => ProfileOutcome::Validated,
        Outcome::Denied => ProfileOutcome::Denied,
    }
}

/// The place of an endpoint in [`Endpoint::ALL`].
fn endpoint_index(endpoint: Endpoint) -> usize {
    Endpoint::ALL.iter().position(|candidate| *candidate == endpoint).unwrap_or(0)
}

struct SnapshotSizes(Arc<ArcSwap<Snapshot>>);

impl fmt::Debug for SnapshotSizes {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("SnapshotSizes")
    }
}

impl Collector for SnapshotSizes {
    fn encode(&self, mut encoder: DescriptorEncoder) -> Result<(), fmt::Error> {
        let snapshot = self.0.load();
        for (name, help, count) in [
            ("profiles", "Profiles that are served", snapshot.profiles().len()),
            ("namespaces", "Namespaces that are known", snapshot.namespace_count()),
        ] {
            let gauge = ConstGauge::new(i64::try_from(count).unwrap_or(i64::MAX));
            gauge.encode(encoder.encode_descriptor(name, help, None, gauge.metric_type())?)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use pillion_engine::snapshot::Namespace;

    use super::*;

    fn text(registry: &Registry) -> String {
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, registry).unwrap();
        text
    }

    #[test]
    fn each_outcome_is_counted_under_its_own_name() {
        let mut registry = Registry::default();
        let metrics = Metrics::register(&mut registry);
        for (times, outcome) in RequestOutcome::ALL.into_iter().enumerate() {
            for _ in 0..=times {
                for endpoint in Endpoint::ALL {
                    metrics.answered(endpoint, outcome, Duration::from_micros(300));
                }
            }
        }
        let text = text(&registry);
        for (times, outcome) in RequestOutcome::ALL.into_iter().enumerate() {
            for endpoint in Endpoint::ALL {
                let (endpoint, outcome) = (endpoint.as_str(), outcome.as_str());
                let line = format!(
                    "pillion_admission_requests_total{{endpoint=\"{endpoint}\",outcome=\"{outcome}\"}} {}\n",
                    times + 1
                );
                assert!(text.contains(&line), "{line} is not in\n{text}");
            }
            let count = (times + 1) * Endpoint::ALL.len();
            let line =
                format!("pillion_admission_duration_seconds_count{{outcome=\"{}\"}} {count}\n", outcome.as_str());
            assert!(text.contains(&line), "{line} is not in\n{text}");
        }
        assert!(
            text.contains(concat!("pillion_build_info{version=\"", env!("CARGO_PKG_VERSION"), "\"} 1\n")),
            "{text}"
        );
    }

    #[test]
    fn each_handshake_result_is_counted_under_its_own_name() {
        let mut registry = Registry::default();
        let metrics = Metrics::register(&mut registry);
        for result in HandshakeResult::ALL {
            metrics.connections.handshake(result);
            let line = format!("pillion_tls_handshakes_total{{result=\"{}\"}} 1\n", result.as_str());
            let text = text(&registry);
            assert!(text.contains(&line), "{line} is not in\n{text}");
        }
    }

    #[test]
    fn a_decision_is_counted_by_outcome_and_reason_and_others_have_no_series() {
        let mut registry = Registry::default();
        let metrics = Metrics::register(&mut registry);
        assert!(!text(&registry).contains("pillion_decisions_total{"));
        for reason in Reason::ALL {
            metrics.decided(&Decision::skipped(*reason));
            metrics.decided(&Decision::denied(*reason, "for a test"));
            metrics.decided(&Decision::denied(*reason, "for a test"));
            let text = text(&registry);
            let reason = reason.as_str();
            for (outcome, times) in [("skipped", 1), ("denied", 2)] {
                let line = format!("pillion_decisions_total{{outcome=\"{outcome}\",reason=\"{reason}\"}} {times}\n");
                assert!(text.contains(&line), "{line} is not in\n{text}");
            }
        }
        let series = text(&registry).lines().filter(|line| line.starts_with("pillion_decisions_total{")).count();
        assert_eq!(series, 2 * Reason::ALL.len());
    }

    #[test]
    fn the_snapshot_is_measured_when_it_is_scraped() {
        let mut registry = Registry::default();
        let snapshot = Arc::new(ArcSwap::from_pointee(Snapshot::default()));
        Metrics::register_snapshot(&mut registry, Arc::clone(&snapshot));
        assert!(text(&registry).contains("pillion_namespaces 0\n"), "{}", text(&registry));
        snapshot.store(Arc::new(Snapshot::default().with_namespace("team-a", Some(Namespace::default()))));
        let text = text(&registry);
        assert!(text.contains("pillion_namespaces 1\n") && text.contains("pillion_profiles 0\n"), "{text}");
    }
}
