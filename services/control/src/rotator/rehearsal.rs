//! The connectivity check: whether API servers reach the replicas, before API servers are told to reject pods without a
//! response.
//!
//! A replica that answers at its own address proves nothing about the Service: endpoints, and the rules for them on
//! each API server's machine, follow seconds later. So an empty configuration is first written for a check: a failed
//! call rejects no pod, and dry runs are routed to the replicas. Each API server is asked for a dry run. When each has
//! reached a replica, the final configuration is written. After a time limit it is written anyway, since then only the
//! replicas' own readiness is known.
//!
//! The result holds while this controller leads, so a deleted configuration comes back at once, until an operator
//! disables the webhooks.

use std::time::Duration;

use tokio::time::Instant;

use crate::certificates::rotation::{Configuration, Propagation};
use crate::release::Release;
use crate::webhook_config::Live;

/// Time limit of the check.
pub(super) const LIMIT: Duration = Duration::from_secs(30);

/// State of the connectivity check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Rehearsal {
    /// No webhook is called yet; the configuration will be written for a check.
    Due,
    /// The check started at this time.
    Since(Instant),
    /// The check ended, or was not needed: an earlier leader wrote the final configuration.
    Over,
}

/// Result of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// Each API server reached a replica.
    Proven,
    /// Some did, and the others are unknown: for example, they cannot be asked one by one.
    Partly,
    /// No API server is known to have reached a replica.
    Late,
}

/// State of the configuration, as far as the check needs it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// No webhook is called, since an operator disabled the webhooks.
    Disarmed,
    /// No webhook is called.
    Empty,
    /// It is written for a check.
    Rehearsal,
    /// It is final.
    Filled,
}

impl Stage {
    pub(super) fn of(configuration: &Configuration, live: &Live, release: &Release) -> Self {
        match configuration {
            Configuration::Disarmed => Self::Disarmed,
            Configuration::Absent | Configuration::Empty { .. } => Self::Empty,
            Configuration::Present(_) if live.rehearses(release) => Self::Rehearsal,
            Configuration::Present(_) => Self::Filled,
        }
    }
}

impl Rehearsal {
    /// Whether configurations are written for a check.
    pub(super) const fn is_wanted(self) -> bool {
        !matches!(self, Self::Over)
    }

    /// Whether the check is running.
    pub(super) const fn goes_on(self) -> bool {
        matches!(self, Self::Since(_))
    }

    /// The next state, after this stage was observed at `now`.
    pub(super) const fn after(self, stage: Stage, now: Instant) -> Self {
        match (self, stage) {
            (_, Stage::Disarmed) => Self::Due,
            (Self::Due, Stage::Rehearsal) => Self::Since(now),
            (Self::Due, Stage::Filled) => Self::Over,
            // A check that has started or ended stays so, even if another client writes or deletes the configuration.
            (known, _) => known,
        }
    }

    /// The result, if the check ends now.
    pub(super) fn end(self, propagation: Propagation, now: Instant) -> Option<End> {
        let Self::Since(since) = self else { return None };
        let Propagation { proven, behind, silent } = propagation;
        if proven > 0 && behind == 0 && silent == 0 {
            return Some(End::Proven);
        }
        let is_late = now.saturating_duration_since(since) >= LIMIT;
        is_late.then_some(if proven > 0 { End::Partly } else { End::Late })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn answers(proven: usize, behind: usize, silent: usize) -> Propagation {
        Propagation { proven, behind, silent }
    }

    #[test]
    fn whoever_finds_nothing_rehearses_and_whoever_finds_it_filled_does_not() {
        let now = Instant::now();
        let after = |stages: &[Stage]| stages.iter().fold(Rehearsal::Due, |known, stage| known.after(*stage, now));
        assert!(after(&[]).is_wanted() && !after(&[]).goes_on());
        assert_eq!(after(&[Stage::Empty]), Rehearsal::Due);
        assert_eq!(after(&[Stage::Empty, Stage::Rehearsal]), Rehearsal::Since(now));
        assert_eq!(after(&[Stage::Filled]), Rehearsal::Over, "of an earlier leader");
        assert_eq!(after(&[Stage::Rehearsal]), Rehearsal::Since(now), "of an earlier leader, who did not see the end");
        // A deleted configuration comes back unchanged, and another writer's check is overruled.
        assert_eq!(after(&[Stage::Filled, Stage::Empty]), Rehearsal::Over);
        assert_eq!(after(&[Stage::Filled, Stage::Rehearsal]), Rehearsal::Over);
        // A configuration that another writer made final too early is overruled too.
        assert_eq!(after(&[Stage::Rehearsal, Stage::Filled]), Rehearsal::Since(now));
        // After an operator enables the webhooks again, other replicas may have started.
        assert_eq!(after(&[Stage::Filled, Stage::Disarmed, Stage::Empty]), Rehearsal::Due);
    }

    #[test]
    fn it_begins_when_it_is_seen_first_and_is_not_begun_anew() {
        let (begun, later) = (Instant::now(), Instant::now() + LIMIT / 2);
        assert_eq!(Rehearsal::Since(begun).after(Stage::Rehearsal, later), Rehearsal::Since(begun));
        assert_eq!(Rehearsal::Since(begun).after(Stage::Empty, later), Rehearsal::Since(begun));
    }

    #[test]
    fn it_ends_when_everybody_reached_a_replica_or_after_a_while_whatever_is_known() {
        let begun = Instant::now();
        let end = |answers, after| Rehearsal::Since(begun).end(answers, begun + after);
        let (early, late) = (Duration::from_millis(1), LIMIT);
        assert_eq!(end(answers(2, 0, 0), early), Some(End::Proven));
        for not_yet in [answers(0, 0, 0), answers(1, 0, 1), answers(1, 1, 0), answers(0, 0, 1)] {
            assert_eq!(end(not_yet, late.saturating_sub(early)), None, "{not_yet:?}");
        }
        assert_eq!(end(answers(1, 1, 1), late), Some(End::Partly));
        assert_eq!(end(answers(0, 0, 0), late), Some(End::Late), "nobody could be asked: it is armed all the same");
        assert_eq!(Rehearsal::Due.end(answers(2, 0, 0), begun + late), None);
        assert_eq!(Rehearsal::Over.end(answers(0, 0, 2), begun + late), None);
    }
}
