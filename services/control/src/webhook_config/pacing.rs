//! Limits how often the controller corrects changes of a client that repeats them.
//!
//! The controller corrects the first changes of a client at once. But after each change of a bundle, every API server
//! has to open new connections. So endless changes and corrections would do more harm than one wrong change. After a
//! few consecutive corrections against the same client, there is a pause before the next one, and the pauses grow.
//! After some time without changes, corrections are again made at once.

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

/// Maximum number of clients that are tracked separately. All others count as one client.
const MAX_WRITERS: usize = 64;
/// The name under which all other clients are tracked together.
const OTHERS: &str = "(others)";

/// Settings of the pauses. Tests scale all durations down.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Settings {
    /// Number of corrections against one client before the first pause.
    pub at_once: u32,
    /// The first pause. Each later pause is twice as long as the one before it, up to `longest_pause`.
    pub first_pause: Duration,
    /// The longest pause.
    pub longest_pause: Duration,
    /// A client that was quiet for this long after its last pause starts again without a pause.
    pub reset_after: Duration,
    /// The time window in which corrections are counted for the alert.
    pub window: Duration,
    /// The alert is raised if there are more corrections than this in the window.
    pub many: usize,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            at_once: 3,
            first_pause: Duration::from_secs(1),
            longest_pause: Duration::from_secs(30),
            reset_after: Duration::from_mins(1),
            window: Duration::from_mins(10),
            many: 5,
        }
    }
}

/// Tracks the corrections against each client.
#[derive(Debug)]
pub(super) struct Pacing {
    settings: Settings,
    writers: BTreeMap<String, Writer>,
    /// Times of recent corrections, oldest first. Only as many are kept as the alert needs.
    recent: VecDeque<Instant>,
}

#[derive(Clone, Copy, Debug)]
struct Writer {
    repairs: u32,
    last: Instant,
}

impl Pacing {
    /// Creates a state without any corrections.
    pub(super) const fn new(settings: Settings) -> Self {
        Self { settings, writers: BTreeMap::new(), recent: VecDeque::new() }
    }

    /// Returns when a change of this client may be corrected: `now`, or later during a pause.
    pub(super) fn due(&self, writer: &str, now: Instant) -> Instant {
        let Some(known) = self.writers.get(self.key(writer)) else { return now };
        let pause = self.pause(known.repairs);
        if now.saturating_duration_since(known.last) > pause + self.settings.reset_after {
            now
        } else {
            now.max(known.last + pause)
        }
    }

    /// Records a correction against this client.
    pub(super) fn repaired(&mut self, writer: &str, now: Instant) {
        let (settings, key) = (&self.settings, self.key(writer).to_owned());
        let longest = settings.longest_pause + settings.reset_after;
        self.writers.retain(|_, writer| now.saturating_duration_since(writer.last) <= longest);
        let fresh = Writer { repairs: 0, last: now };
        let known = self.writers.get(&key).copied().unwrap_or(fresh);
        let is_over = now.saturating_duration_since(known.last) > self.pause(known.repairs) + self.settings.reset_after;
        let known = if is_over { fresh } else { known };
        self.writers.insert(key, Writer { repairs: known.repairs.saturating_add(1), last: now });
        self.recent.push_back(now);
        while self.recent.len() > self.settings.many + 1 {
            self.recent.pop_front();
        }
    }

    /// Whether there were more than `many` corrections in the window, so that the alert is raised.
    pub(super) fn is_contested(&self, now: Instant) -> bool {
        let of_late = self.recent.iter().filter(|at| now.saturating_duration_since(**at) <= self.settings.window);
        of_late.count() > self.settings.many
    }

    /// Returns the pause after this number of consecutive corrections.
    fn pause(&self, repairs: u32) -> Duration {
        match repairs.checked_sub(self.settings.at_once) {
            None => Duration::ZERO,
            Some(more) => {
                let factor = 1_u32.checked_shl(more).unwrap_or(u32::MAX);
                self.settings.first_pause.saturating_mul(factor).min(self.settings.longest_pause)
            }
        }
    }

    fn key<'w>(&self, writer: &'w str) -> &'w str {
        let is_known = self.writers.contains_key(writer) || self.writers.len() < MAX_WRITERS;
        if is_known { writer } else { OTHERS }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Makes `repairs` corrections, each as soon as allowed. Returns the seconds of waiting before each.
    fn waits(pacing: &mut Pacing, now: &mut Instant, repairs: usize) -> Vec<u64> {
        let next = |_| {
            let due = pacing.due("vandal", *now);
            let waited = due.duration_since(*now).as_secs();
            *now = due;
            pacing.repaired("vandal", due);
            waited
        };
        (0..repairs).map(next).collect()
    }

    #[test]
    fn pauses_grow_per_writer() {
        let (mut pacing, mut now) = (Pacing::new(Settings::default()), Instant::now());
        assert_eq!(waits(&mut pacing, &mut now, 10), [0, 0, 0, 1, 2, 4, 8, 16, 30, 30]);
        assert_eq!(pacing.due("another writer", now), now);
        now += Duration::from_secs(89);
        assert_eq!(pacing.due("vandal", now), now, "the pause is over");
        assert_eq!(waits(&mut pacing, &mut now, 2), [0, 30], "the next pause is as long");
        now += Duration::from_secs(91);
        assert_eq!(waits(&mut pacing, &mut now, 4), [0, 0, 0, 1], "after a quiet time, pauses start again");
    }

    #[test]
    fn many_repairs_in_ten_minutes_are_contested() {
        let (mut pacing, start) = (Pacing::new(Settings::default()), Instant::now());
        for minute in 0..6 {
            assert!(!pacing.is_contested(start + Duration::from_mins(minute)), "{minute}");
            pacing.repaired("a", start + Duration::from_mins(minute));
        }
        assert!(pacing.is_contested(start + Duration::from_mins(10)));
        assert!(!pacing.is_contested(start + Duration::from_secs(601)));
    }

    #[test]
    fn writers_with_changing_names_are_bounded() {
        let (mut pacing, now) = (Pacing::new(Settings::default()), Instant::now());
        for number in 0..1000 {
            pacing.repaired(&format!("vandal-{number}"), now);
        }
        assert!(pacing.writers.len() <= MAX_WRITERS + 1, "{}", pacing.writers.len());
        assert!(pacing.due("vandal-1001", now) >= now + Duration::from_secs(30));
    }
}
