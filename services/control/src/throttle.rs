//! Limits the rate of requests to the API server, in total and for each client. Also limits the rate of log lines.

use std::collections::{HashMap, VecDeque};
use std::net::IpAddr;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

/// Limits events per second.
#[derive(Debug)]
pub(crate) struct Rate {
    limit: usize,
    /// Times of the last events, at most `limit`, oldest first.
    last: Mutex<VecDeque<Instant>>,
}

/// Limits events per second for each client address.
#[derive(Debug)]
pub(crate) struct ClientRates {
    limit: u32,
    windows: Mutex<HashMap<IpAddr, Window>>,
}

/// A client's events in the current second.
#[derive(Clone, Copy, Debug)]
struct Window {
    since: Instant,
    count: u32,
}

/// Maximum number of clients in the table, without the entry that all further clients share. When it is reached,
/// clients whose window of one second has ended are removed.
const CLIENTS: usize = 1024;

/// Limits log lines about frequent events.
#[derive(Debug)]
pub(crate) struct Throttle {
    quiet_for: Duration,
    state: Mutex<ThrottleState>,
}

#[derive(Debug, Default)]
struct ThrottleState {
    logged_at: Option<Instant>,
    suppressed: u64,
}

impl Rate {
    pub(crate) const fn new(limit: usize) -> Self {
        Self { limit, last: Mutex::new(VecDeque::new()) }
    }

    /// Counts one more event if the limit allows it now. Returns whether the event was allowed.
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

impl ClientRates {
    pub(crate) fn new(limit: u32) -> Self {
        Self { limit, windows: Mutex::default() }
    }

    /// Counts one more event of this client if the client's limit allows it now. Returns whether the event was allowed.
    /// The table has up to [`CLIENTS`] addresses. If more clients are active within a second, the rest share one limit.
    pub(crate) fn take(&self, client: IpAddr) -> bool {
        let (now, second) = (Instant::now(), Duration::from_secs(1));
        let mut windows = self.windows.lock().unwrap_or_else(PoisonError::into_inner);
        if windows.len() >= CLIENTS && !windows.contains_key(&client) {
            windows.retain(|_, window| now.duration_since(window.since) < second);
        }
        let others = IpAddr::V4(std::net::Ipv4Addr::UNSPECIFIED);
        let is_kept = windows.len() < CLIENTS || windows.contains_key(&client);
        let window = windows.entry(if is_kept { client } else { others }).or_insert(Window { since: now, count: 0 });
        if now.duration_since(window.since) >= second {
            *window = Window { since: now, count: 0 };
        }
        let may = window.count < self.limit;
        window.count += u32::from(may);
        may
    }
}

impl Throttle {
    pub(crate) fn new(quiet_for: Duration) -> Self {
        Self { quiet_for, state: Mutex::default() }
    }

    /// Returns `None` if no line may be logged now. Otherwise, returns how many lines were suppressed since the last
    /// logged line.
    pub(crate) fn take_turn(&self) -> Option<u64> {
        let now = Instant::now();
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if state.logged_at.is_some_and(|at| now.duration_since(at) < self.quiet_for) {
            state.suppressed = state.suppressed.saturating_add(1);
            return None;
        }
        state.logged_at = Some(now);
        Some(std::mem::take(&mut state.suppressed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn clients_have_separate_limits_until_table_is_full() {
        let rates = ClientRates::new(2);
        let client = |number: u32| IpAddr::from(number.to_be_bytes());
        let taken = |client: IpAddr| (0..5).filter(|_| rates.take(client)).count();
        assert_eq!((taken(client(1)), taken(client(2))), (2, 2));
        tokio::time::advance(Duration::from_millis(999)).await;
        assert_eq!(taken(client(1)), 0);
        tokio::time::advance(Duration::from_millis(1)).await;
        assert_eq!(taken(client(1)), 2);
        let all: usize =
            (0x0a00_0000..0x0a00_0000 + 3 * u32::try_from(CLIENTS).unwrap()).map(|n| taken(client(n))).sum();
        assert!(all <= 2 * (CLIENTS + 1), "{all}");
        assert!(rates.windows.lock().unwrap().len() <= CLIENTS + 1);
        assert_eq!(taken(client(1)), 0, "a client in the table keeps its limit");
    }
}
