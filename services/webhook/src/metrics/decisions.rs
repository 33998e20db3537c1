//! What was decided, counted: by outcome and reason, and what the authors of objects were told.

use std::sync::OnceLock;

use pillion_engine::report::{Decision, Notice, Outcome, ProfileOutcome, Reason, ValidationOutcome};
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::registry::Registry;

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct DecisionLabels {
    outcome: &'static str,
    reason: &'static str,
}

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
    family: Family<DecisionLabels, Counter>,
    /// One for each outcome and reason. A pair gets its series when it first comes up: most of them never do.
    cells: Box<[OnceLock<Counter>]>,
    notices: [Counter; NOTICES.len()],
    validations: [Counter; VALIDATIONS.len()],
}

/// The kinds of [`Notice`], as they stand in metrics.
const NOTICES: [&str; 5] = ["record_dropped", "unknown_word", "ambiguous_word", "of_profile", "parameter"];

const VALIDATIONS: [ValidationOutcome; 3] =
    [ValidationOutcome::Denied, ValidationOutcome::Warned, ValidationOutcome::Audited];

/// How many outcomes a profile can have.
const OUTCOMES: usize = ProfileOutcome::Denied as usize + 1;

impl DecisionCounters {
    pub(super) fn register(registry: &mut Registry) -> Self {
        let family = Family::<DecisionLabels, Counter>::default();
        registry.register(
            "decisions",
            "Decisions: one for each profile that came into question, or one for the request where none did",
            family.clone(),
        );
        let cells = (0..OUTCOMES * Reason::ALL.len()).map(|_| OnceLock::new()).collect();

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
        Self { family, cells, notices, validations }
    }

    #[expect(clippy::indexing_slicing, reason = "both indexes are places in the arrays that they index")]
    pub(super) fn decided(&self, decision: &Decision) {
        if decision.profiles.is_empty() {
            self.count(as_profile_outcome(decision.outcome), decision.reason);
        }
        for profile in &decision.profiles {
            self.count(profile.outcome, profile.reason);
        }
        for notice in &decision.notices {
            self.notices[notice_index(notice)].inc();
        }
        for failed in &decision.validations {
            self.validations[failed.outcome as usize].inc();
        }
    }

    fn count(&self, outcome: ProfileOutcome, reason: Reason) {
        let index = outcome as usize * Reason::ALL.len() + reason as usize;
        if let Some(cell) = self.cells.get(index) {
            let labels = || DecisionLabels { outcome: outcome.as_str(), reason: reason.as_str() };
            cell.get_or_init(|| self.family.get_or_create_owned(&labels())).inc();
        }
    }
}

/// Its place in [`NOTICES`].
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
    fn validations_stand_where_their_discriminant_says() {
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
