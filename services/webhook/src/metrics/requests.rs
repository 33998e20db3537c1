//! Requests: how many ended how, and how long they took.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use opentelemetry::trace::TraceId;
use pillion_engine::report::Outcome;
use pillion_engine::review::Endpoint;
use prometheus_client::encoding::{EncodeMetric, MetricEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Registry;

use super::histogram::Exemplar;
use super::{Histogram, RequestOutcome};

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

/// A count for each path and outcome.
#[derive(Clone, Debug)]
pub(super) struct RequestCounters(Arc<[[AtomicU64; RequestOutcome::ALL.len()]; Endpoint::ALL.len()]>);

impl RequestCounters {
    pub(super) fn register(registry: &mut Registry) -> Self {
        let counters = Self(Arc::default());
        registry.register("admission_requests", "Admission requests, by path and by how they ended", counters.clone());
        counters
    }

    #[expect(
        clippy::indexing_slicing,
        reason = "both indexes are the places in the lists that the arrays are as long as"
    )]
    pub(super) fn count(&self, endpoint: Endpoint, outcome: RequestOutcome) {
        self.0[endpoint_index(endpoint)][outcome.index()].fetch_add(1, Ordering::Relaxed);
    }
}

impl EncodeMetric for RequestCounters {
    fn encode(&self, mut encoder: MetricEncoder<'_>) -> Result<(), fmt::Error> {
        for (endpoint, outcomes) in Endpoint::ALL.into_iter().zip(&*self.0) {
            for (outcome, count) in RequestOutcome::ALL.into_iter().zip(outcomes) {
                let count = count.load(Ordering::Relaxed);
                if count > 0 || is_expected(endpoint, outcome) {
                    let labels = [("endpoint", endpoint.as_str()), ("outcome", outcome.as_str())];
                    encoder.encode_family(&labels)?.encode_counter::<NoLabelSet, u64, u64>(&count, None)?;
                }
            }
        }
        Ok(())
    }

    fn metric_type(&self) -> MetricType {
        MetricType::Counter
    }
}

/// Whether a request on this path can end so. Where it can, its series is there from the beginning.
const fn is_expected(endpoint: Endpoint, outcome: RequestOutcome) -> bool {
    let validates = matches!(endpoint, Endpoint::Validate | Endpoint::ValidateLevel(_));
    match outcome {
        RequestOutcome::Decided(Outcome::Injected | Outcome::Unchanged) => !validates,
        RequestOutcome::Decided(Outcome::Validated) => validates,
        _ => true,
    }
}

/// The place of an endpoint in [`Endpoint::ALL`].
fn endpoint_index(endpoint: Endpoint) -> usize {
    Endpoint::ALL.iter().position(|candidate| *candidate == endpoint).unwrap_or(0)
}

/// A histogram for each outcome of a decision, and one for all requests that came to none: each is 18 series.
#[derive(Clone, Debug)]
pub(super) struct Durations(Arc<[Histogram; Self::OUTCOMES.len()]>);

impl Durations {
    /// Its name without its prefix.
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

    /// The last traces, each with its outcome and the upper bound of its bucket.
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

    #[test]
    fn what_a_path_cannot_lead_to_has_a_series_only_if_it_happens() {
        let mut registry = Registry::default();
        let counters = RequestCounters::register(&mut registry);
        let shown = || {
            let mut text = String::new();
            prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
            text.lines().filter(|line| !line.starts_with('#')).map(ToOwned::to_owned).collect::<Vec<_>>()
        };
        assert_eq!(shown().len(), 4 * 7 + 4 * 6);
        counters.count(Endpoint::Validate, RequestOutcome::Decided(Outcome::Injected));
        let line = "admission_requests_total{endpoint=\"validate_any\",outcome=\"injected\"} 1";
        assert!(shown().iter().any(|shown| shown == line), "{:?}", shown());
    }
}
