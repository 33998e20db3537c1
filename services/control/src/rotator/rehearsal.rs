//! The connectivity check: whether API servers reach the replicas, before API servers are told to reject pods without a
//! response.
//!
//! A replica that answers at its own address proves nothing about the Service: endpoints, and the rules for them on
//! each API server's machine, follow seconds later. So an empty configuration is first written for a check, in which a
//! failed call rejects no pod and canaries lead to the replicas. Each API server is asked for a canary. When each has
//! reached a replica, the final configuration is written. After a time limit it is written anyway, since then only the
//! replicas' own readiness is known.
//!
//! The result holds for the leader's term, so a deleted configuration comes back at once, until an operator disables
//! the webhooks.

use std::time::Duration;

use tokio::time::Instant;

use crate::certificates::rotation::{Configuration, Propagation};
use crate::release::Release;
use crate::webhook_config::Live;

/// How long it is waited for at most.
pub(super) const LIMIT: Duration = Duration::from_secs(30);

/// What is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Rehearsal {
    /// Nothing is called yet: what is filled is filled for a rehearsal.
    Due,
    /// It goes on since then.
    Since(Instant),
    /// It is over, or never was needed: who led before has called for pods to be refused.
    Over,
}

/// How one ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// Each API server reached a replica.
    Proven,
    /// Some did, and nothing is known of the others: they cannot be asked one by one, for example.
    Partly,
    /// None did, as far as is known.
    Late,
}

/// What there is, as far as it matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// Nobody is called, and that is how a person wants it.
    Disarmed,
    /// Nobody is called.
    Empty,
    /// It is filled for a rehearsal.
    Rehearsal,
    /// It is filled to stay.
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
    /// Whether what is written is for a rehearsal.
    pub(super) const fn is_wanted(self) -> bool {
        !matches!(self, Self::Over)
    }

    /// Whether it goes on.
    pub(super) const fn goes_on(self) -> bool {
        matches!(self, Self::Since(_))
    }

    /// What is known, after this is seen at `now`.
    pub(super) const fn after(self, stage: Stage, now: Instant) -> Self {
        match (self, stage) {
            (_, Stage::Disarmed) => Self::Due,
            (Self::Due, Stage::Rehearsal) => Self::Since(now),
            (Self::Due, Stage::Filled) => Self::Over,
            // Once begun it goes on, and once it is over it stays so, whatever somebody else wrote or deleted.
            (known, _) => known,
        }
    }

    /// How it ends, if it ends now.
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
        // What is deleted comes back as it was, and who writes a rehearsal into it is overruled.
        assert_eq!(after(&[Stage::Filled, Stage::Empty]), Rehearsal::Over);
        assert_eq!(after(&[Stage::Filled, Stage::Rehearsal]), Rehearsal::Over);
        // Who filled it before there was a proof is overruled too.
        assert_eq!(after(&[Stage::Rehearsal, Stage::Filled]), Rehearsal::Since(now));
        // A person who arms it again has others come up meanwhile.
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
