//! A timer for polling files that change, until the process ends.

use std::time::Duration;

use tokio::time::{Interval, MissedTickBehavior, interval};
use tokio_util::sync::CancellationToken;

/// A polling timer.
#[derive(Debug)]
pub(crate) struct Ticks {
    interval: Interval,
    stop: CancellationToken,
}

impl Ticks {
    /// Creates a timer whose first tick is immediate. A handler that takes longer than `every` delays the next tick;
    /// missed ticks are skipped.
    pub(crate) fn new(every: Duration, stop: CancellationToken) -> Self {
        let mut interval = interval(every);
        interval.set_missed_tick_behavior(MissedTickBehavior::Delay);
        Self { interval, stop }
    }

    /// Waits for the next tick. Returns `false` once stopped.
    pub(crate) async fn next(&mut self) -> bool {
        self.stop.run_until_cancelled(self.interval.tick()).await.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn there_is_a_next_time_until_it_is_stopped() {
        let stop = CancellationToken::new();
        let mut ticks = Ticks::new(Duration::from_secs(10), stop.clone());
        let began = tokio::time::Instant::now();
        assert!(ticks.next().await);
        assert_eq!(began.elapsed(), Duration::ZERO);
        assert!(ticks.next().await);
        assert_eq!(began.elapsed(), Duration::from_secs(10));
        // One poll takes long.
        tokio::time::sleep(Duration::from_secs(25)).await;
        assert!(ticks.next().await);
        assert!(ticks.next().await);
        assert_eq!(began.elapsed(), Duration::from_secs(45));
        stop.cancel();
        assert!(!ticks.next().await);
    }
}
