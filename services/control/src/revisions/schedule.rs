//! Decides when all profiles are planned again: soon after a change, when namespaces may be counted again, and a while
//! after a failed write. Pure.
//!
//! A change brings forward work that waits for the next count, which may be a minute away. It does not bring forward
//! failed writes: in a large cluster something changes at every moment, and each round repeats all plans and all
//! failing writes.

use tokio::time::Instant;

use super::Settings;

/// Result of a pass over all profiles.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Ended {
    /// All profiles are in their desired state.
    Well,
    /// Work is left, or an observation was outdated. The next pass follows the next change.
    Open,
    /// A write failed, and an immediate retry would fail too.
    InVain,
}

/// The time of the next pass.
#[derive(Debug)]
pub(super) struct Schedule {
    settings: Settings,
    look_at: Option<Instant>,
    /// No pass before this time, whatever changes.
    retry_at: Option<Instant>,
    counted_at: Option<Instant>,
}

impl Schedule {
    /// Without any pass before the first change.
    pub(super) const fn new(settings: Settings) -> Self {
        Self { settings, look_at: None, retry_at: None, counted_at: None }
    }

    /// Time of the next pass; `None` until something changes.
    pub(super) fn next_look(&self) -> Option<Instant> {
        self.retry_at.or(self.look_at)
    }

    /// Records a change.
    pub(super) fn changed(&mut self, now: Instant) {
        self.look_by(now + self.settings.settle);
    }

    /// Records the start of a pass. Returns whether it counts namespaces, if they have changed.
    pub(super) fn begins(&mut self, namespaces_changed: bool, now: Instant) -> bool {
        (self.look_at, self.retry_at) = (None, None);
        if !namespaces_changed {
            return false;
        }
        let again = self.counted_at.map(|at| at + self.settings.count_every).filter(|at| *at > now);
        match again {
            Some(_) => self.look_at = again,
            None => self.counted_at = Some(now),
        }
        again.is_none()
    }

    /// Records the end of a pass.
    pub(super) fn ended(&mut self, how: Ended, now: Instant) {
        match how {
            Ended::Well => {}
            Ended::Open => self.look_by(now + self.settings.retry),
            Ended::InVain => self.retry_at = Some(now + self.settings.retry),
        }
    }

    /// Schedules a pass at this time at the latest, unless a write failed.
    pub(super) fn look_by(&mut self, at: Instant) {
        self.look_at = Some(self.look_at.map_or(at, |before| before.min(at)));
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const SETTLE: Duration = Duration::from_millis(100);
    const RETRY: Duration = Duration::from_secs(2);
    const COUNT: Duration = Duration::from_mins(1);

    fn schedule() -> Schedule {
        let settings = Settings { settle: SETTLE, retry: RETRY, count_every: COUNT, ..Settings::default() };
        Schedule::new(settings)
    }

    #[test]
    fn what_was_in_vain_waits_however_much_changes() {
        let (begun, mut schedule) = (Instant::now(), schedule());
        schedule.changed(begun);
        assert_eq!(schedule.next_look(), Some(begun + SETTLE));
        assert!(!schedule.begins(false, begun + SETTLE));
        let ended = begun + SETTLE;
        schedule.ended(Ended::InVain, ended);
        for passed in [0, 100, 500, 1_999] {
            schedule.changed(ended + Duration::from_millis(passed));
            assert_eq!(schedule.next_look(), Some(ended + RETRY), "after {passed} ms");
        }
        // One pass handles all changes, and clears the wait.
        schedule.begins(false, ended + RETRY);
        schedule.ended(Ended::Well, ended + RETRY);
        assert_eq!(schedule.next_look(), None);
        schedule.changed(ended + RETRY);
        assert_eq!(schedule.next_look(), Some(ended + RETRY + SETTLE));
    }

    #[test]
    fn what_was_seen_too_late_is_looked_at_when_it_is_seen() {
        let (begun, mut schedule) = (Instant::now(), schedule());
        schedule.begins(false, begun);
        schedule.ended(Ended::Open, begun);
        assert_eq!(schedule.next_look(), Some(begun + RETRY), "also if nobody tells of it");
        schedule.changed(begun);
        assert_eq!(schedule.next_look(), Some(begun + SETTLE));
    }

    #[test]
    fn namespaces_are_counted_now_and_then_and_profiles_do_not_wait_for_it() {
        let (begun, mut schedule) = (Instant::now(), schedule());
        assert!(schedule.begins(true, begun), "nobody has counted");
        let later = begun + Duration::from_secs(10);
        assert!(!schedule.begins(true, later));
        assert_eq!(schedule.next_look(), Some(begun + COUNT));
        schedule.changed(later);
        assert_eq!(schedule.next_look(), Some(later + SETTLE));
        assert!(!schedule.begins(true, later + SETTLE));
        assert_eq!(schedule.next_look(), Some(begun + COUNT), "it is not forgotten");
        assert!(schedule.begins(true, begun + COUNT));
        assert_eq!(schedule.next_look(), None);
    }

    #[test]
    fn of_several_ends_the_worst_counts() {
        assert_eq!([Ended::Open, Ended::InVain, Ended::Well].into_iter().max(), Some(Ended::InVain));
    }
}
