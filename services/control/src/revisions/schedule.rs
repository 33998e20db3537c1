//! Decides when all profiles are planned again: soon after a change, when namespaces may be counted again, and after a
//! pause when a write failed. It reads no clock.
//!
//! A change brings the next pass forward: for example, a pass that waits for a count of namespaces, which may be a
//! minute away. A change does not bring forward the retry of failed writes. In a large cluster, something always
//! changes, and each pass repeats all plans and all failing writes.
//!
//! The plans of a large cluster take long, and its profiles change often. So after each pass, changes wait [`REST`]
//! times as long as the plans took, but at most [`LONGEST_REST`]. If the plans of a pass take up to half a second,
//! planning takes at most about a tenth of a core. Retries wait for the end of this pause too.
//!
//! [`Budget`] limits Events and dry runs. Each namespace may use a burst at once, and then one more after each pause. A
//! namespace that has used up its budget takes nothing from the budget of others. All namespaces together have a limit
//! too, so that thousands of them do not overload the API server. Cluster profiles have a separate budget.

use std::collections::HashMap;
use std::time::Duration;

use tokio::time::Instant;

use super::Settings;

/// The length of the pause after a pass, as a multiple of the time that the pass's plans took.
const REST: u32 = 9;
/// The longest pause after a pass.
const LONGEST_REST: Duration = Duration::from_secs(5);

/// Result of a pass over all profiles.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum PassResult {
    /// All profiles are in their desired state.
    Complete,
    /// Work is left, or an observation was outdated. The next pass follows the next change, or starts after the pause
    /// for retries.
    Incomplete,
    /// A request failed. The next pass starts after the pause for retries, even if something changes before.
    Failed,
}

/// The time of the next pass.
#[derive(Debug)]
pub(super) struct Schedule {
    settings: Settings,
    pass_at: Option<Instant>,
    /// The time before which no pass starts, even after a change.
    retry_at: Option<Instant>,
    /// The end of the pause after the last pass.
    rested_at: Option<Instant>,
    counted_at: Option<Instant>,
}

impl Schedule {
    /// Creates a schedule without any pass before the first change.
    pub(super) const fn new(settings: Settings) -> Self {
        Self { settings, pass_at: None, retry_at: None, rested_at: None, counted_at: None }
    }

    /// Returns the time of the next pass; `None` until something changes.
    pub(super) fn next_pass(&self) -> Option<Instant> {
        let at = self.retry_at.or(self.pass_at)?;
        Some(self.rested_at.map_or(at, |rested| rested.max(at)))
    }

    /// Records a change.
    pub(super) fn changed(&mut self, now: Instant) {
        self.schedule_by(now + self.settings.settle);
    }

    /// Records the start of a pass. Returns whether the pass counts namespaces: namespaces have changed, and the last
    /// count is at least `count_every` ago.
    pub(super) fn start_pass(&mut self, namespaces_changed: bool, now: Instant) -> bool {
        (self.pass_at, self.retry_at) = (None, None);
        if !namespaces_changed {
            return false;
        }
        let again = self.counted_at.map(|at| at + self.settings.count_every).filter(|at| *at > now);
        match again {
            Some(_) => self.pass_at = again,
            None => self.counted_at = Some(now),
        }
        again.is_none()
    }

    /// Records the end of a pass. `planning` is the time that its plans took.
    pub(super) fn end_pass(&mut self, result: PassResult, planning: Duration, now: Instant) {
        self.rested_at = Some(now + planning.saturating_mul(REST).min(LONGEST_REST));
        match result {
            PassResult::Complete => {}
            PassResult::Incomplete => self.schedule_by(now + self.settings.retry),
            PassResult::Failed => self.failed(now),
        }
    }

    /// Records a failed request: no pass starts before the pause for retries is over.
    pub(super) fn failed(&mut self, now: Instant) {
        self.retry_at = Some(now + self.settings.retry);
    }

    /// Schedules a pass at this time at the latest, unless the pause after a failed write lasts longer.
    pub(super) fn schedule_by(&mut self, at: Instant) {
        self.pass_at = Some(self.pass_at.map_or(at, |before| before.min(at)));
    }
}

/// The rate of each namespace, and of all cluster profiles together.
const NAMESPACE_RATE: Rate = Rate { burst: 25, pause: Duration::from_secs(2) };

/// The rate of all namespaces together. Ten namespaces at their limit exhaust it in a burst, and twenty in the long
/// run.
const TOTAL_RATE: Rate = Rate { burst: 250, pause: Duration::from_millis(100) };

/// Permits `burst` uses at once, then one use for each `pause`.
#[derive(Clone, Copy, Debug)]
struct Rate {
    burst: u32,
    pause: Duration,
}

/// The remaining budgets. A namespace with a full budget has no entry.
#[derive(Debug, Default)]
pub(super) struct Budget {
    namespaces: HashMap<Box<str>, RemainingBudget>,
    all: Option<RemainingBudget>,
    platform: Option<RemainingBudget>,
}

#[derive(Debug)]
struct RemainingBudget {
    rate: Rate,
    left: u32,
    /// Time up to which the budget has been refilled.
    at: Instant,
}

impl Budget {
    /// Takes one use from the budget of a namespace, or of cluster profiles if `None`. A use of a namespace also counts
    /// against the total budget. Returns false if no use is left.
    pub(super) fn take(&mut self, namespace: Option<&str>, now: Instant) -> bool {
        let Some(namespace) = namespace else {
            return self.platform.get_or_insert_with(|| RemainingBudget::full(NAMESPACE_RATE, now)).take(now);
        };
        self.namespaces.retain(|_, used| {
            used.refill(now);
            used.left < NAMESPACE_RATE.burst
        });
        // A namespace that has used up its budget takes nothing from the total. If the total is exhausted, the
        // namespace keeps its own budget.
        if self.namespaces.get(namespace).is_some_and(|used| used.left == 0) {
            return false;
        }
        self.all.get_or_insert_with(|| RemainingBudget::full(TOTAL_RATE, now)).take(now)
            && self
                .namespaces
                .entry(namespace.into())
                .or_insert_with(|| RemainingBudget::full(NAMESPACE_RATE, now))
                .take(now)
    }
}

impl RemainingBudget {
    const fn full(rate: Rate, now: Instant) -> Self {
        Self { rate, left: rate.burst, at: now }
    }

    fn take(&mut self, now: Instant) -> bool {
        self.refill(now);
        let Some(left) = self.left.checked_sub(1) else { return false };
        self.left = left;
        true
    }

    fn refill(&mut self, now: Instant) {
        let Rate { burst, pause } = self.rate;
        let refilled = now.duration_since(self.at).as_millis() / pause.as_millis();
        let refilled = u32::try_from(refilled).unwrap_or(u32::MAX);
        self.left = self.left.saturating_add(refilled).min(burst);
        self.at += pause.saturating_mul(refilled);
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
    fn failed_pass_waits_despite_changes() {
        let (start, mut schedule) = (Instant::now(), schedule());
        schedule.changed(start);
        assert_eq!(schedule.next_pass(), Some(start + SETTLE));
        assert!(!schedule.start_pass(false, start + SETTLE));
        let ended = start + SETTLE;
        schedule.end_pass(PassResult::Failed, Duration::ZERO, ended);
        for passed in [0, 100, 500, 1_999] {
            schedule.changed(ended + Duration::from_millis(passed));
            assert_eq!(schedule.next_pass(), Some(ended + RETRY), "after {passed} ms");
        }
        // One pass handles all changes, so no other pass is scheduled.
        schedule.start_pass(false, ended + RETRY);
        schedule.end_pass(PassResult::Complete, Duration::ZERO, ended + RETRY);
        assert_eq!(schedule.next_pass(), None);
        schedule.changed(ended + RETRY);
        assert_eq!(schedule.next_pass(), Some(ended + RETRY + SETTLE));
    }

    #[test]
    fn long_plans_delay_next_pass() {
        let (start, mut schedule) = (Instant::now(), schedule());
        for (planning, pause) in [(0, 100), (5, 100), (50, 450), (200, 1_800), (10_000, 5_000)] {
            schedule.start_pass(false, start);
            schedule.end_pass(PassResult::Complete, Duration::from_millis(planning), start);
            assert_eq!(schedule.next_pass(), None);
            schedule.changed(start);
            assert_eq!(schedule.next_pass(), Some(start + Duration::from_millis(pause)), "plans of {planning} ms");
        }
        // A change during a pass, such as its own writes, waits too.
        schedule.start_pass(false, start);
        schedule.changed(start);
        schedule.end_pass(PassResult::Incomplete, Duration::from_millis(200), start);
        assert_eq!(schedule.next_pass(), Some(start + Duration::from_millis(1_800)));
        schedule.start_pass(false, start);
        schedule.end_pass(PassResult::Failed, Duration::from_secs(10), start);
        assert_eq!(schedule.next_pass(), Some(start + LONGEST_REST));
        let later = start + 2 * LONGEST_REST;
        schedule.start_pass(false, start);
        schedule.changed(later);
        assert_eq!(schedule.next_pass(), Some(later + SETTLE));
    }

    #[test]
    fn outdated_pass_is_repeated_after_next_change() {
        let (start, mut schedule) = (Instant::now(), schedule());
        schedule.start_pass(false, start);
        schedule.end_pass(PassResult::Incomplete, Duration::ZERO, start);
        assert_eq!(schedule.next_pass(), Some(start + RETRY), "the pass is repeated even without a change");
        schedule.changed(start);
        assert_eq!(schedule.next_pass(), Some(start + SETTLE));
    }

    #[test]
    fn counting_namespaces_delays_no_plan() {
        let (start, mut schedule) = (Instant::now(), schedule());
        assert!(schedule.start_pass(true, start), "the first pass counts");
        let later = start + Duration::from_secs(10);
        assert!(!schedule.start_pass(true, later));
        assert_eq!(schedule.next_pass(), Some(start + COUNT));
        schedule.changed(later);
        assert_eq!(schedule.next_pass(), Some(later + SETTLE));
        assert!(!schedule.start_pass(true, later + SETTLE));
        assert_eq!(schedule.next_pass(), Some(start + COUNT), "the next count stays scheduled");
        assert!(schedule.start_pass(true, start + COUNT));
        assert_eq!(schedule.next_pass(), None);
    }

    #[test]
    fn worst_pass_result_counts() {
        assert_eq!(
            [PassResult::Incomplete, PassResult::Failed, PassResult::Complete].into_iter().max(),
            Some(PassResult::Failed)
        );
    }

    #[test]
    fn namespace_uses_up_only_its_own_budget() {
        let (mut budget, now) = (Budget::default(), Instant::now());
        let noisy = |budget: &mut Budget, now| (0..100).filter(|_| budget.take(Some("noisy"), now)).count();
        assert_eq!(noisy(&mut budget, now), 25);
        assert!(budget.take(Some("quiet"), now) && budget.take(None, now));
        assert_eq!(noisy(&mut budget, now + NAMESPACE_RATE.pause / 2), 0);
        assert_eq!(noisy(&mut budget, now + 3 * NAMESPACE_RATE.pause / 2), 1);
        assert_eq!(noisy(&mut budget, now + 2 * NAMESPACE_RATE.pause), 1, "partial pauses are added up");
        assert_eq!(budget.namespaces.len(), 1, "full budgets have no entry");
        assert_eq!(noisy(&mut budget, now + 1_000 * NAMESPACE_RATE.pause), 25);
    }

    #[test]
    fn all_namespaces_share_a_total_budget() {
        let (mut budget, now) = (Budget::default(), Instant::now());
        let names: Vec<_> = (0..5_000).map(|number| format!("team-{number}")).collect();
        let round =
            |budget: &mut Budget, now| names.iter().filter(|name| budget.take(Some(name.as_str()), now)).count();
        assert_eq!(round(&mut budget, now), 250);
        assert!(budget.take(None, now), "the platform's own profiles have a separate budget");
        let second = Duration::from_secs(1);
        assert_eq!(round(&mut budget, now + second), 10);
        let late = "team-4999";
        assert!(!budget.take(Some(late), now + second));
        let left = (0..100).filter(|_| budget.take(Some(late), now + 10 * second)).count();
        assert_eq!(left, 25, "a blocked namespace keeps its own budget");
    }
}
