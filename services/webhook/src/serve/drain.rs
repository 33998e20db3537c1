//! The drain of a server: what its connections are told, and how long it waits for them.

use std::convert::Infallible;
use std::future::pending;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::time::{Instant, sleep, sleep_until};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::ServerSettings;
use crate::metrics::ConnectionMetrics;

/// How long before the end of a drain connections are closed that nobody sends a request on: what is in flight then has
/// this time to be answered. No more than a tenth of the drain.
const LAST_ANSWERS: Duration = Duration::from_secs(1);

/// When a connection is to be used no more.
#[derive(Clone, Debug)]
pub(crate) struct Retire {
    at: Option<Instant>,
    drain: Drain,
}

/// Whether the server ends. The flag is what each answer reads; the token is for those who wait.
#[derive(Clone, Debug)]
pub(super) struct Drain {
    flag: Arc<AtomicBool>,
    token: CancellationToken,
    /// The drain is nearly over.
    last: CancellationToken,
}

impl Drain {
    /// Begins when the token is cancelled.
    pub(super) fn when(token: CancellationToken) -> Self {
        Self { flag: Arc::default(), token, last: CancellationToken::new() }
    }

    /// Waits for the drain, and for its end: no connection is left, or there is no more time. Returns its deadline.
    pub(super) async fn ended(
        &self,
        tracker: &TaskTracker,
        settings: &ServerSettings,
        metrics: Option<&ConnectionMetrics>,
    ) -> Instant {
        self.token.cancelled().await;
        self.flag.store(true, Ordering::Relaxed);
        if let Some(metrics) = metrics {
            metrics.transport.draining.set(1);
        }
        let deadline = Instant::now() + settings.drain_deadline;
        sleep(settings.drain_minimum.min(settings.drain_deadline)).await;
        // A tracker that is closed still takes new tasks; it only tells from now on when it has none.
        tracker.close();
        tokio::select! {
            () = tracker.wait() => {}
            () = sleep_until(deadline) => {}
            never = self.last_answers(deadline, settings) => match never {},
        }
        deadline
    }

    /// A moment before the deadline, closes what nobody sends a request on. Nobody is in flight there; who is has this moment
    /// to be answered before the rest is cut.
    pub(super) async fn last_answers(&self, deadline: Instant, settings: &ServerSettings) -> Infallible {
        sleep_until(deadline - LAST_ANSWERS.min(settings.drain_deadline / 10)).await;
        self.last.cancel();
        pending().await
    }
}

impl Retire {
    /// At this time, if any, or with the server.
    pub(super) const fn new(at: Option<Instant>, drain: Drain) -> Self {
        Self { at, drain }
    }

    pub(crate) fn is_due(&self) -> bool {
        self.drain.flag.load(Ordering::Relaxed) || self.at.is_some_and(|at| at <= Instant::now())
    }

    pub(crate) async fn due(&self) {
        match self.at {
            Some(at) => tokio::select! {
                () = self.drain.token.cancelled() => {}
                () = sleep_until(at) => {}
            },
            None => self.drain.token.cancelled().await,
        }
    }

    /// The moment from which on a connection without a request is closed.
    pub(crate) async fn last(&self) {
        self.drain.last.cancelled().await;
    }
}
