//! Counts requests, and records how long they took.

use std::time::{Duration, SystemTime};

use opentelemetry::trace::TraceId;
use pillion_engine::decision::Outcome;
use pillion_engine::review::Endpoint;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::exemplar::HistogramWithExemplars;
use prometheus_client::metrics::family::Family;
use prometheus_client::registry::Registry;

/// The outcome of a request, as it appears in metrics and logs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum RequestOutcome {
    /// The request was decided, and the decision was returned to the client.
    Decided(Outcome),
    /// The request is not a valid admission review, or its body could not be read completely: HTTP 4xx.
    BadRequest,
    /// Pillion failed: HTTP 500.
    Error,
    /// The replica shed the request: HTTP 503. [`Shed`](crate::overload::Shed) gives the reason.
    Shed,
}

impl RequestOutcome {
    /// All outcomes.
    pub(crate) const ALL: [Self; 8] = [
        Self::Decided(Outcome::Injected),
        Self::Decided(Outcome::Unchanged),
        Self::Decided(Outcome::Skipped),
        Self::Decided(Outcome::Validated),
        Self::Decided(Outcome::Denied),
        Self::BadRequest,
        Self::Error,
        Self::Shed,
    ];

    /// Returns the outcome as it appears in metrics and logs.
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Decided(outcome) => outcome.as_str(),
            Self::BadRequest => "bad_request",
            Self::Error => "error",
            Self::Shed => "shed",
        }
    }

    /// Returns the position of this outcome in [`Self::ALL`].
    pub(super) const fn index(self) -> usize {
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

/// Bucket bounds in seconds. A decision takes about 30 µs, and the API server waits for at most 30 s.
const DURATION_BUCKETS: [f64; 15] =
    [0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0];

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
        registry.register("requests", "Answered admission requests, by path and outcome", family.clone());
        Self(Endpoint::ALL.map(|endpoint| {
            RequestOutcome::ALL.map(|outcome| {
                let labels = RequestLabels { endpoint: endpoint.as_str(), outcome: outcome.as_str() };
                family.get_or_create_owned(&labels)
            })
        }))
    }

    #[expect(
        clippy::indexing_slicing,
        reason = "both indexes are positions in the arrays from which the handles were created"
    )]
    pub(super) fn count(&self, endpoint: Endpoint, outcome: RequestOutcome) {
        self.0[endpoint_index(endpoint)][outcome.index()].inc();
    }
}

/// Returns the index of an endpoint in [`Endpoint::ALL`].
fn endpoint_index(endpoint: Endpoint) -> usize {
    Endpoint::ALL.iter().position(|candidate| *candidate == endpoint).unwrap_or(0)
}

/// One histogram for each outcome of a decision, and one for all failed requests. Each exports 18 series.
#[derive(Debug)]
pub(super) struct Durations([HistogramWithExemplars<TraceLabel>; Self::OUTCOMES.len()]);

/// The label of an exemplar: the trace of the request.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct TraceLabel {
    trace_id: String,
}

impl Durations {
    const OUTCOMES: [&str; 6] = [
        Outcome::Injected.as_str(),
        Outcome::Unchanged.as_str(),
        Outcome::Skipped.as_str(),
        Outcome::Validated.as_str(),
        Outcome::Denied.as_str(),
        "failed",
    ];

    pub(super) fn register(registry: &mut Registry) -> Self {
        let family = Family::<OutcomeLabel, HistogramWithExemplars<TraceLabel>>::new_with_constructor(|| {
            HistogramWithExemplars::new(DURATION_BUCKETS.into_iter())
        });
        let help = "Time from the head of a request to its response, by outcome";
        registry.register("request_duration_seconds", help, family.clone());
        Self(Self::OUTCOMES.map(|outcome| family.get_or_create_owned(&OutcomeLabel { outcome })))
    }

    /// Records a duration. If the request's trace is sampled, the trace becomes the exemplar of the bucket.
    #[expect(
        clippy::indexing_slicing,
        reason = "`outcome as usize` is the index in OUTCOMES, and its last element is for failed requests"
    )]
    pub(super) fn observe(&self, outcome: RequestOutcome, elapsed: Duration, trace: Option<TraceId>) {
        let histogram = &self.0[match outcome {
            RequestOutcome::Decided(outcome) => outcome as usize,
            RequestOutcome::BadRequest | RequestOutcome::Error | RequestOutcome::Shed => Self::OUTCOMES.len() - 1,
        }];
        let label = trace.map(|trace| TraceLabel { trace_id: trace.to_string() });
        let at = label.is_some().then(SystemTime::now);
        histogram.observe(elapsed.as_secs_f64(), label, at);
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OutcomeLabel {
    outcome: &'static str,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outcomes_match_their_positions() {
        for (position, outcome) in RequestOutcome::ALL.into_iter().enumerate() {
            assert_eq!(outcome.index(), position, "{outcome:?}");
        }
        for outcome in Outcome::ALL {
            assert_eq!(Durations::OUTCOMES[outcome as usize], outcome.as_str());
        }
    }
}
