//! Bounds in time: how often the API server is asked, and how often the log tells of what may come very often.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

/// So many in any one second.
#[derive(Debug)]
pub(crate) struct Rate {
    limit: usize,
    /// When the last ones were, `limit` at most, the oldest first.
    last: Mutex<VecDeque<Instant>>,
}

/// Says whether the log is to tell of something that may come very often.
#[derive(Debug)]
pub(crate) struct Throttle {
    quiet_for: Duration,
    state: Mutex<ThrottleState>,
}

#[derive(Debug, Default)]
struct ThrottleState {
    told: Option<Instant>,
    suppressed: u64,
}

impl Rate {
    pub(crate) const fn new(limit: usize) -> Self {
        Self { limit, last: Mutex::new(VecDeque::new()) }
    }

    /// Whether it may be once more, now.
    pub(crate) fn take(&self) -> bool {
        let now = Instant::now();
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        if last.len() >= self.limit {
            if last.front().is_some_and(|oldest| now.duration_since(*oldest) < Duration::from_secs(1)) {
                return false;
            }
            last.pop_front();
        }
        last.push_back(now);
        true
    }
}

impl Throttle {
    pub(crate) fn new(quiet_for: Duration) -> Self {
        Self { quiet_for, state: Mutex::default() }
    }

    /// If it is to be told now: how many times it was not since it was told last.
    pub(crate) fn tell(&self) -> Option<u64> {
        let now = Instant::now();
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if state.told.is_some_and(|told| now.duration_since(told) < self.quiet_for) {
            state.suppressed = state.suppressed.saturating_add(1);
            return None;
        }
        state.told = Some(now);
        Some(std::mem::take(&mut state.suppressed))
    }
}
