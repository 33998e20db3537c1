//! Counts and durations of requests.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use opentelemetry::trace::TraceId;
use pillion_engine::decision::Outcome;
use pillion_engine::review::Endpoint;
use prometheus_client::encoding::{EncodeLabelSet, EncodeMetric, MetricEncoder};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::registry::Registry;

use super::{Histogram, RequestOutcome};
use crate::histogram::Exemplar;

/// Nanoseconds. A decision takes some 30 us; the API server waits up to 30 s.
const DURATION_BUCKETS: [u64; 15] = [
    100_000,
    250_000,
    500_000,
    1_000_000,
    2_500_000,
    5_000_000,
    10_000_000,
    25_000_000,
    50_000_000,
    100_000_000,
    250_000_000,
    500_000_000,
    1_000_000_000,
    2_500_000_000,
    5_000_000_000,
];

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RequestLabels {
    endpoint: &'static str,
    outcome: &'static str,
}

/// A counter for each path and outcome.
#[derive(Debug)]
pub(super) struct RequestCounters([[Counter; RequestOutcome::ALL.len()]; Endpoint::ALL.len()]);

impl RequestCounters {
    pub(super) fn register(registry: &mut Registry) -> Self {
        let family = Family::<RequestLabels, Counter>::default();
        registry.register("admission_requests", "Admission requests, by path and by how they ended", family.clone());
        Self(Endpoint::ALL.map(|endpoint| {
            RequestOutcome::ALL.map(|outcome| {
                let labels = RequestLabels { endpoint: endpoint.as_str(), outcome: outcome.as_str() };
                family.get_or_create_owned(&labels)
            })
        }))
    }

    #[expect(
        clippy::indexing_slicing,
        reason = "both indexes are the places in the arrays that the handles were made from"
    )]
    pub(super) fn count(&self, endpoint: Endpoint, outcome: RequestOutcome) {
        self.0[endpoint_index(endpoint)][outcome.index()].inc();
    }
}

/// Returns the index of an endpoint in [`Endpoint::ALL`].
fn endpoint_index(endpoint: Endpoint) -> usize {
    Endpoint::ALL.iter().position(|candidate| *candidate == endpoint).unwrap_or(0)
}

/// A histogram for each outcome of a decision, and one for all failed requests. Each has 18 series.
#[derive(Clone, Debug)]
pub(super) struct Durations(Arc<[Histogram; Self::OUTCOMES.len()]>);

impl Durations {
    /// The metric's name without its prefix.
    pub(super) const NAME: &str = "admission_duration_seconds";

    const OUTCOMES: [&str; 6] = [
        Outcome::Injected.as_str(),
        Outcome::Unchanged.as_str(),
        Outcome::Skipped.as_str(),
        Outcome::Validated.as_str(),
        Outcome::Denied.as_str(),
        "failed",
    ];

    pub(super) fn register(registry: &mut Registry) -> Self {
        let durations = Self(Arc::new(Self::OUTCOMES.map(|_| Histogram::seconds(&DURATION_BUCKETS))));
        let help = "Time from the head of a request to its answer, in seconds";
        registry.register(Self::NAME, help, durations.clone());
        durations
    }

    #[expect(
        clippy::indexing_slicing,
        reason = "a fieldless enum's discriminant is its place in OUTCOMES, which is one longer"
    )]
    pub(super) fn observe(&self, outcome: RequestOutcome, elapsed: Duration, trace: Option<TraceId>) {
        let histogram = &self.0[match outcome {
            RequestOutcome::Decided(outcome) => outcome as usize,
            RequestOutcome::BadRequest | RequestOutcome::Error | RequestOutcome::Shed => Self::OUTCOMES.len() - 1,
        }];
        match trace {
            Some(trace) => histogram.observe_traced(elapsed, trace),
            None => histogram.observe_time(elapsed),
        }
    }

    /// Returns the latest traces, each with its outcome and the upper bound of its bucket.
    pub(super) fn exemplars(&self) -> impl Iterator<Item = (&'static str, f64, Arc<Exemplar>)> {
        Self::OUTCOMES.into_iter().zip(&*self.0).flat_map(|(outcome, histogram)| {
            histogram.exemplars().map(move |(bound, exemplar)| (outcome, bound, exemplar))
        })
    }
}

impl EncodeMetric for Durations {
    fn encode(&self, mut encoder: MetricEncoder<'_>) -> Result<(), fmt::Error> {
        for (outcome, histogram) in Self::OUTCOMES.into_iter().zip(&*self.0) {
            histogram.encode(encoder.encode_family(&[("outcome", outcome)])?)?;
        }
        Ok(())
    }

    fn metric_type(&self) -> MetricType {
        MetricType::Histogram
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_outcome_of_a_decision_stands_where_its_discriminant_says() {
        for outcome in Outcome::ALL {
            assert_eq!(Durations::OUTCOMES[outcome as usize], outcome.as_str());
        }
    }
}
