//! Counts requests, their durations, and the decisions about them.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use opentelemetry::trace::TraceId;
use pillion_engine::decision::{Decision, Notice, Outcome, ProfileOutcome, Reason, ValidationOutcome};
use pillion_engine::review::Endpoint;
use prometheus_client::encoding::{EncodeLabelSet, EncodeMetric, MetricEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::exemplar::HistogramWithExemplars;
use prometheus_client::metrics::family::Family;
use prometheus_client::registry::Registry;

use crate::counters::Counters;

/// The outcome of a request, as shown in metrics and logs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum RequestOutcome {
    /// A decision was made and answered.
    Decided(Outcome),
    /// The request is not a valid admission review: HTTP 4xx.
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

    /// Returns the outcome as shown in metrics and logs.
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Decided(outcome) => outcome.as_str(),
            Self::BadRequest => "bad_request",
            Self::Error => "error",
            Self::Shed => "shed",
        }
    }

    /// Returns the index in [`Self::ALL`].
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

/// Bounds in seconds. A decision takes about 30 us, and the API server waits up to 30 s.
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
        let help = "Time from the head of a request to its answer, in seconds";
        registry.register("admission_duration_seconds", help, family.clone());
        Self(Self::OUTCOMES.map(|outcome| family.get_or_create_owned(&OutcomeLabel { outcome })))
    }

    /// Counts a duration. A sampled trace becomes the exemplar of its bucket.
    #[expect(
        clippy::indexing_slicing,
        reason = "a fieldless enum's discriminant is its place in OUTCOMES, which is one longer"
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

/// Counts decisions by outcome and reason, their notices, and the validations that failed.
#[derive(Debug)]
pub(super) struct DecisionCounters {
    pairs: Pairs,
    notices: Counters<{ NOTICES.len() }>,
    validations: Counters<{ VALIDATIONS.len() }>,
}

/// A count for each pair of outcome and reason. A pair gets a series on first use, since most never occur.
#[derive(Clone, Debug)]
struct Pairs(Arc<[AtomicU64]>);

/// The kinds of [`Notice`] as metric labels.
const NOTICES: [&str; 5] = ["record_dropped", "unknown_word", "ambiguous_word", "of_profile", "parameter"];

const VALIDATIONS: [ValidationOutcome; 3] =
    [ValidationOutcome::Denied, ValidationOutcome::Warned, ValidationOutcome::Audited];

/// Outcomes of a profile, in the order of their discriminants.
const OUTCOMES: [ProfileOutcome; 6] = [
    ProfileOutcome::Applied,
    ProfileOutcome::Unchanged,
    ProfileOutcome::NotMatched,
    ProfileOutcome::Skipped,
    ProfileOutcome::Validated,
    ProfileOutcome::Denied,
];

impl DecisionCounters {
    pub(super) fn register(registry: &mut Registry) -> Self {
        let pairs = Pairs((0..OUTCOMES.len() * Reason::ALL.len()).map(|_| AtomicU64::new(0)).collect());
        registry.register(
            "decisions",
            "Decisions: one for each profile that came into question, or one for the request where none did",
            pairs.clone(),
        );

        let notices = Counters::register(
            registry,
            "notices",
            "What authors of objects were told beside what was decided about each profile",
            "notice",
            NOTICES,
        );
        let validations = Counters::register(
            registry,
            "validation_failures",
            "Validations of profiles that an object did not pass, by what followed",
            "outcome",
            VALIDATIONS.map(ValidationOutcome::as_str),
        );
        Self { pairs, notices, validations }
    }

    pub(super) fn decided(&self, decision: &Decision) {
        if decision.profiles.is_empty() {
            self.pairs.count(as_profile_outcome(decision.outcome), decision.reason);
        }
        for profile in &decision.profiles {
            self.pairs.count(profile.outcome, profile.reason);
        }
        for notice in &decision.notices {
            self.notices.count(notice_index(notice));
        }
        for failed in &decision.validations {
            self.validations.count(failed.outcome as usize);
        }
    }
}

impl Pairs {
    fn count(&self, outcome: ProfileOutcome, reason: Reason) {
        if let Some(count) = self.0.get(outcome as usize * Reason::ALL.len() + reason as usize) {
            count.fetch_add(1, Ordering::Relaxed);
        }
    }
}

impl EncodeMetric for Pairs {
    fn encode(&self, mut encoder: MetricEncoder<'_>) -> Result<(), fmt::Error> {
        let pairs = OUTCOMES.iter().flat_map(|outcome| Reason::ALL.iter().map(move |reason| (outcome, reason)));
        for ((outcome, reason), count) in pairs.zip(&*self.0) {
            let count = count.load(Ordering::Relaxed);
            if count > 0 {
                let labels = [("outcome", outcome.as_str()), ("reason", reason.as_str())];
                encoder.encode_family(&labels)?.encode_counter::<NoLabelSet, u64, u64>(&count, None)?;
            }
        }
        Ok(())
    }

    fn metric_type(&self) -> MetricType {
        MetricType::Counter
    }
}

/// Returns the index of this notice in [`NOTICES`].
const fn notice_index(notice: &Notice) -> usize {
    match notice {
        Notice::RecordDropped => 0,
        Notice::UnknownWord { .. } => 1,
        Notice::AmbiguousWord { .. } => 2,
        Notice::OfProfile { .. } => 3,
        Notice::Parameter { .. } => 4,
    }
}

const fn as_profile_outcome(outcome: Outcome) -> ProfileOutcome {
    match outcome {
        Outcome::Injected => ProfileOutcome::Applied,
        Outcome::Unchanged => ProfileOutcome::Unchanged,
        Outcome::Skipped => ProfileOutcome::Skipped,
        Outcome::Validated => ProfileOutcome::Validated,
        Outcome::Denied => ProfileOutcome::Denied,
    }
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
        for (position, outcome) in OUTCOMES.into_iter().enumerate() {
            assert_eq!(outcome as usize, position);
        }
        for (position, outcome) in VALIDATIONS.into_iter().enumerate() {
            assert_eq!(outcome as usize, position);
        }
    }

    #[test]
    fn notices_are_counted_by_kind() {
        let mut registry = Registry::default();
        let counters = DecisionCounters::register(&mut registry);
        let text = || Box::<str>::from("x");
        let notices = vec![
            Notice::RecordDropped,
            Notice::UnknownWord { key: text(), word: text() },
            Notice::AmbiguousWord { key: text() },
            Notice::OfProfile { profile: text(), text: text() },
            Notice::Parameter { profile: text(), message: text() },
        ];
        for (position, notice) in notices.into_iter().enumerate() {
            counters.decided(&Decision { notices: vec![notice], ..Decision::skipped(Reason::NoProfile) });
            let text = crate::counters::text(&registry);
            for (index, name) in NOTICES.iter().enumerate() {
                let line = format!("notices_total{{notice=\"{name}\"}} {}\n", u8::from(index <= position));
                assert!(text.contains(&line), "{line} is not in\n{text}");
            }
        }
    }
}
