//! The decision of the election: takes what was seen and the local clock, and returns what to do.

use std::time::Duration;

use tokio::time::Instant;

use super::{Held, Settings};

/// A holder may promise to others that they wait longer than this controller's settings say, as one of another version
/// does; not longer than so many times, so that a Lease that somebody wrote by hand does not stop the controllers for ever.
const LONGEST: u32 = 4;

/// What one controller knows of the Lease.
#[derive(Clone, Debug)]
pub struct View {
    /// What stands in it; `None` if there is no Lease.
    pub held: Option<Held>,
    /// Since when it has been seen to stand there unchanged.
    pub since: Instant,
    /// If this controller leads: when it sent the last of its writes that went through.
    pub claim: Option<Instant>,
}

/// What to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Make the Lease, and hold it.
    Create,
    /// Take the Lease, which nobody holds any more; or keep it, if somebody emptied it.
    Acquire,
    /// Write into the Lease that is held.
    Renew,
    /// Somebody else holds it: nothing to do before that time, unless it changes.
    Wait {
        /// When it may be taken.
        until: Instant,
    },
    /// Not the leader any more.
    Lost(Loss),
}

/// Why a leader is not the leader any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Loss {
    /// It could not write for too long, or did not run for so long.
    Deadline,
    /// Somebody else stands in the Lease.
    Taken,
}

impl View {
    /// Nothing is known yet.
    #[must_use]
    pub const fn unknown(now: Instant) -> Self {
        Self { held: None, since: now, claim: None }
    }

    /// The Lease was read. Only what stands in it counts: a label that somebody writes is no sign of life of its holder.
    pub fn see(&mut self, held: Option<Held>, now: Instant) {
        if self.held != held {
            (self.held, self.since) = (held, now);
        }
    }

    /// A write that was sent then went through.
    pub fn wrote(&mut self, held: Held, sent: Instant, now: Instant) {
        self.see(Some(held), now);
        self.claim = Some(sent);
    }

    /// Until when this controller may act as the leader, if it does.
    #[must_use]
    pub fn deadline(&self, settings: &Settings) -> Option<Instant> {
        self.claim.map(|sent| sent + settings.renew_deadline)
    }
}

/// What to do now. `identity` is no other process's, and no earlier one's.
#[must_use]
pub fn decide(settings: &Settings, identity: &str, view: &View, now: Instant) -> Action {
    // The clock first: whoever was stopped for a while knows nothing of the Lease yet.
    if view.deadline(settings).is_some_and(|deadline| now >= deadline) {
        return Action::Lost(Loss::Deadline);
    }
    let leads = view.claim.is_some();
    let Some(held) = &view.held else { return Action::Create };
    match held.holder.as_deref() {
        None => Action::Acquire,
        Some(holder) if holder == identity => {
            if leads {
                Action::Renew
            } else {
                // A write whose answer was lost, or a term that ended without a word.
                Action::Acquire
            }
        }
        Some(_) if leads => Action::Lost(Loss::Taken),
        Some(_) => {
            let until = view.since + patience(settings, held.duration);
            if now >= until { Action::Acquire } else { Action::Wait { until } }
        }
    }
}

/// How long to wait for a holder that says nothing: as long as it promised, and at least as long as the settings say, since
/// it may be the settings that it goes by.
fn patience(settings: &Settings, promised: Duration) -> Duration {
    promised.clamp(settings.lease_duration, settings.lease_duration * LONGEST)
}

/// How many times the holder has changed once `identity` holds it.
pub(super) fn transitions(before: &Held, identity: &str) -> i32 {
    before.transitions.saturating_add(i32::from(before.holder.as_deref() != Some(identity)))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn by(holder: &str) -> Held {
        Held { holder: Some(holder.to_owned()), duration: 15 * SECOND, ..Held::default() }
    }

    /// What `me` does at second 100, when the Lease has been so since second `since`, and the last own write was at `claim`.
    struct Case {
        what: &'static str,
        held: Option<Held>,
        since: u32,
        claim: Option<u32>,
        /// Given second 0.
        does: fn(Instant) -> Action,
    }

    const fn case(
        what: &'static str,
        held: Option<Held>,
        since: u32,
        claim: Option<u32>,
        does: fn(Instant) -> Action,
    ) -> Case {
        Case { what, held, since, claim, does }
    }

    #[test]
    fn table() {
        let released = || Some(Held::default());
        let other = || Some(by("other"));
        let mine = || Some(by("me"));
        let promised = |seconds: u32| Some(Held { duration: seconds * SECOND, ..by("other") });
        let cases = [
            case("there is none", None, 99, None, |_| Action::Create),
            case("there is none any more, while leading", None, 99, Some(95), |_| Action::Create),
            case("released", released(), 100, None, |_| Action::Acquire),
            case("emptied, while leading", released(), 100, Some(98), |_| Action::Acquire),
            case("another's, fresh", other(), 99, None, |zero| Action::Wait { until: zero + 114 * SECOND }),
            case("another's, at its end", other(), 86, None, |zero| Action::Wait { until: zero + 101 * SECOND }),
            case("another's, unchanged for its duration", other(), 85, None, |_| Action::Acquire),
            case("who promised more", promised(30), 85, None, |zero| Action::Wait { until: zero + 115 * SECOND }),
            case("who promised no time", promised(0), 99, None, |zero| Action::Wait { until: zero + 114 * SECOND }),
            case("who promised years", promised(1 << 30), 41, None, |zero| Action::Wait { until: zero + 101 * SECOND }),
            case("who promised years, long ago", promised(1 << 30), 40, None, |_| Action::Acquire),
            case("mine", mine(), 99, Some(98), |_| Action::Renew),
            case("mine, at the last moment", mine(), 91, Some(91), |_| Action::Renew),
            case("mine, too late", mine(), 90, Some(90), |_| Action::Lost(Loss::Deadline)),
            case("mine, the write was seen late", mine(), 99, Some(90), |_| Action::Lost(Loss::Deadline)),
            case("there is none, too late", None, 99, Some(90), |_| Action::Lost(Loss::Deadline)),
            case("released, too late", released(), 99, Some(90), |_| Action::Lost(Loss::Deadline)),
            case("taken", other(), 100, Some(99), |_| Action::Lost(Loss::Taken)),
            case("mine, and I do not lead", mine(), 99, None, |_| Action::Acquire),
        ];
        for Case { what, held, since, claim, does } in cases {
            let zero = Instant::now();
            let view = View { held, since: zero + since * SECOND, claim: claim.map(|claim| zero + claim * SECOND) };
            assert_eq!(decide(&Settings::default(), "me", &view, zero + 100 * SECOND), does(zero), "{what}");
        }
    }

    #[test]
    fn only_a_change_of_what_stands_there_is_a_sign_of_life() {
        let zero = Instant::now();
        let mut view = View::unknown(zero);
        view.see(Some(by("other")), zero + SECOND);
        view.see(Some(by("other")), zero + 9 * SECOND);
        assert_eq!(view.since, zero + SECOND);
        // A remote clock that runs backwards is a sign of life as any other.
        let backwards = Held { renewed: Some("1970-01-01T00:00:00Z".parse().unwrap()), ..by("other") };
        view.see(Some(backwards), zero + 10 * SECOND);
        assert_eq!(view.since, zero + 10 * SECOND);
    }

    #[test]
    fn the_holder_gives_up_before_anybody_may_take_it() {
        // Whatever the moment at which the write is seen, it is seen after it was sent.
        let settings = Settings::default();
        let sent = Instant::now();
        let mut holder = View::unknown(sent);
        holder.wrote(by("me"), sent, sent + 3 * SECOND);
        for seen in [sent, sent + SECOND] {
            let mut other = View::unknown(seen);
            other.see(Some(by("me")), seen);
            for milliseconds in (0..20_000).step_by(50) {
                let now = sent + Duration::from_millis(milliseconds);
                let leads = decide(&settings, "me", &holder, now) == Action::Renew;
                let takes = decide(&settings, "other", &other, now) == Action::Acquire;
                assert!(!(leads && takes), "both at {milliseconds} ms");
            }
        }
    }

    #[test]
    fn transitions_count_changes_of_the_holder() {
        let held = Held { transitions: 7, ..by("other") };
        assert_eq!(transitions(&held, "me"), 8);
        assert_eq!(transitions(&held, "other"), 7);
        assert_eq!(transitions(&Held { holder: None, ..held }, "other"), 8);
    }
}
