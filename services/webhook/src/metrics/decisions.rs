//! Counts decisions by profile, outcome and reason. Also counts their warnings, and failed validations.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use pillion_engine::decision::{Decision, Notice, Outcome, ProfileOutcome, Reason, ValidationOutcome};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, MetricEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Registry;

use super::series::Slots;
use crate::counters::Counters;

/// The value of the label `profile` if no profile was considered for a request. It cannot be a profile's name, because
/// Kubernetes names cannot begin with `_`.
pub(super) const NONE: &str = "_none";

/// Counts decisions, their warnings, and failed validations.
#[derive(Debug)]
pub(super) struct DecisionCounters {
    /// Decisions on requests for which no profile was considered.
    without_profile: Arc<Pairs>,
    pub(super) profiles: ProfileCounters,
    warnings: Counters<{ WARNINGS.len() }>,
    validations: Counters<{ VALIDATIONS.len() }>,
}

/// Counts the decisions on each profile. Clones share the counts.
#[derive(Clone, Debug)]
pub(super) struct ProfileCounters(Arc<Slots<Pairs>>);

/// A count for each pair of outcome and reason. A pair gets a series only when it first occurs, because most pairs
/// never occur.
#[derive(Debug)]
pub(super) struct Pairs(Box<[AtomicU64]>);

/// Exports the decisions when the metrics are scraped.
#[derive(Debug)]
struct DecisionCollector {
    without_profile: Arc<Pairs>,
    profiles: ProfileCounters,
}

/// The value of the label `kind` for each kind of [`Notice`].
const WARNINGS: [&str; 5] = ["record_dropped", "unknown_value", "ambiguous_value", "profile", "parameter"];

const VALIDATIONS: [ValidationOutcome; 3] =
    [ValidationOutcome::Denied, ValidationOutcome::Warned, ValidationOutcome::Audited];

/// The outcomes of a profile, in the order of the variants.
const OUTCOMES: [ProfileOutcome; 6] = [
    ProfileOutcome::Applied,
    ProfileOutcome::Unchanged,
    ProfileOutcome::NotMatched,
    ProfileOutcome::Skipped,
    ProfileOutcome::Validated,
    ProfileOutcome::Denied,
];

impl DecisionCounters {
    /// Registers the counters. At most `max_profiles` profiles have series of their own.
    pub(super) fn register(registry: &mut Registry, max_profiles: usize) -> Self {
        let without_profile = Arc::<Pairs>::default();
        let profiles = ProfileCounters(Arc::new(Slots::new(max_profiles)));
        let collector = DecisionCollector { without_profile: Arc::clone(&without_profile), profiles: profiles.clone() };
        registry.register_collector(Box::new(collector));
        let warnings = Counters::register(
            registry,
            "warnings",
            "Warnings to the authors of objects, except those about a skipped profile, by kind",
            "kind",
            WARNINGS,
        );
        let validations = Counters::register(
            registry,
            "validation_failures",
            "Validations of profiles that an object failed, by outcome",
            "outcome",
            VALIDATIONS.map(ValidationOutcome::as_str),
        );
        Self { without_profile, profiles, warnings, validations }
    }

    pub(super) fn decided(&self, decision: &Decision) {
        if decision.profiles.is_empty() {
            self.without_profile.count(as_profile_outcome(decision.outcome), decision.reason);
        }
        for decided in &decision.profiles {
            self.profiles.0.of(decided.profile.display_name()).counters.count(decided.outcome, decided.reason);
        }
        for notice in &decision.notices {
            self.warnings.count(warning_index(notice));
        }
        for failed in &decision.validations {
            self.validations.count(failed.outcome as usize);
        }
    }
}

impl ProfileCounters {
    /// Removes the series of profiles that were deleted some time ago.
    pub(super) fn release(&self, now: Instant, exists: impl Fn(&str) -> bool) {
        self.0.release(now, exists);
    }
}

impl Default for Pairs {
    fn default() -> Self {
        Self((0..OUTCOMES.len() * Reason::ALL.len()).map(|_| AtomicU64::new(0)).collect())
    }
}

impl Pairs {
    fn count(&self, outcome: ProfileOutcome, reason: Reason) {
        if let Some(count) = self.0.get(outcome as usize * Reason::ALL.len() + reason as usize) {
            count.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn encode(&self, profile: &str, encoder: &mut MetricEncoder<'_>) -> Result<(), fmt::Error> {
        let pairs = OUTCOMES.iter().flat_map(|outcome| Reason::ALL.iter().map(move |reason| (outcome, reason)));
        for ((outcome, reason), count) in pairs.zip(&*self.0) {
            let count = count.load(Ordering::Relaxed);
            if count > 0 {
                let labels = [("profile", profile), ("outcome", outcome.as_str()), ("reason", reason.as_str())];
                encoder.encode_family(&labels)?.encode_counter::<NoLabelSet, u64, u64>(&count, None)?;
            }
        }
        Ok(())
    }
}

impl Collector for DecisionCollector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let help = "Decisions: one for each considered profile, and one for each request without such a profile";
        let mut metric = encoder.encode_descriptor("decisions", help, None, MetricType::Counter)?;
        self.without_profile.encode(NONE, &mut metric)?;
        for (profile, slot) in self.profiles.0.all() {
            slot.counters.encode(&profile, &mut metric)?;
        }
        Ok(())
    }
}

/// Returns the index of this notice in [`WARNINGS`].
const fn warning_index(notice: &Notice) -> usize {
    match notice {
        Notice::RecordDropped => 0,
        Notice::UnknownProfile { .. } => 1,
        Notice::AmbiguousRequest { .. } => 2,
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
        for (position, outcome) in OUTCOMES.into_iter().enumerate() {
            assert_eq!(outcome as usize, position);
        }
        for (position, outcome) in VALIDATIONS.into_iter().enumerate() {
            assert_eq!(outcome as usize, position);
        }
    }

    #[test]
    fn warnings_are_counted_by_kind() {
        let mut registry = Registry::default();
        let counters = DecisionCounters::register(&mut registry, 10);
        let text = || Box::<str>::from("x");
        let notices = vec![
            Notice::RecordDropped,
            Notice::UnknownProfile { key: text(), word: text() },
            Notice::AmbiguousRequest { key: text() },
            Notice::OfProfile { profile: text(), text: text() },
            Notice::Parameter { profile: text(), message: text() },
        ];
        for (position, notice) in notices.into_iter().enumerate() {
            counters.decided(&Decision { notices: vec![notice], ..Decision::skipped(Reason::NoProfile) });
            let text = crate::counters::text(&registry);
            for (index, name) in WARNINGS.iter().enumerate() {
                let line = format!("warnings_total{{kind=\"{name}\"}} {}\n", u8::from(index <= position));
                assert!(text.contains(&line), "{line} is not in\n{text}");
            }
        }
    }
}
