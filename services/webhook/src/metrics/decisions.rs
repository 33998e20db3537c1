//! Counts decisions by outcome and reason, and warnings to the authors of objects.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use pillion_engine::decision::{Decision, Notice, Outcome, ProfileOutcome, Reason, ValidationOutcome};
use prometheus_client::encoding::{EncodeLabelSet, EncodeMetric, MetricEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::registry::Registry;

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct NoticeLabel {
    notice: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OutcomeLabel {
    outcome: &'static str,
}

/// The counters of decisions.
#[derive(Debug)]
pub(super) struct DecisionCounters {
    pairs: Pairs,
    notices: [Counter; NOTICES.len()],
    validations: [Counter; VALIDATIONS.len()],
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

        let told = Family::<NoticeLabel, Counter>::default();
        registry.register(
            "notices",
            "What authors of objects were told beside what was decided about each profile",
            told.clone(),
        );
        let notices = NOTICES.map(|notice| told.get_or_create_owned(&NoticeLabel { notice }));

        let failed = Family::<OutcomeLabel, Counter>::default();
        registry.register(
            "validation_failures",
            "Validations of profiles that an object did not pass, by what followed",
            failed.clone(),
        );
        let validations =
            VALIDATIONS.map(|outcome| failed.get_or_create_owned(&OutcomeLabel { outcome: outcome.as_str() }));
        Self { pairs, notices, validations }
    }

    #[expect(clippy::indexing_slicing, reason = "both indexes are places in the arrays that they index")]
    pub(super) fn decided(&self, decision: &Decision) {
        if decision.profiles.is_empty() {
            self.pairs.count(as_profile_outcome(decision.outcome), decision.reason);
        }
        for profile in &decision.profiles {
            self.pairs.count(profile.outcome, profile.reason);
        }
        for notice in &decision.notices {
            self.notices[notice_index(notice)].inc();
        }
        for failed in &decision.validations {
            self.validations[failed.outcome as usize].inc();
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
    fn outcomes_stand_where_their_discriminant_says() {
        for (place, outcome) in OUTCOMES.into_iter().enumerate() {
            assert_eq!(outcome as usize, place);
        }
        for (place, outcome) in VALIDATIONS.into_iter().enumerate() {
            assert_eq!(outcome as usize, place);
        }
    }

    #[test]
    fn each_notice_is_counted_under_its_own_name() {
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
        for (place, notice) in notices.into_iter().enumerate() {
            counters.decided(&Decision { notices: vec![notice], ..Decision::skipped(Reason::NoProfile) });
            let mut text = String::new();
            prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
            for (index, name) in NOTICES.iter().enumerate() {
                let line = format!("notices_total{{notice=\"{name}\"}} {}\n", u8::from(index <= place));
                assert!(text.contains(&line), "{line} is not in\n{text}");
            }
        }
    }
}
