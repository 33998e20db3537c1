//! The drain of a server: asks connections to end, and bounds how long to wait for them.

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

/// How long before the end of a drain idle connections are closed. Requests in flight have this time to be answered. At
/// most a tenth of the drain.
const LAST_ANSWERS: Duration = Duration::from_secs(1);

/// When a connection stops accepting requests.
#[derive(Clone, Debug)]
pub(crate) struct Retire {
    at: Option<Instant>,
    drain: Drain,
}

/// Whether the server is draining. Each response reads the flag; tasks wait for the token.
#[derive(Clone, Debug)]
pub(super) struct Drain {
    flag: Arc<AtomicBool>,
    token: CancellationToken,
    /// Cancelled shortly before the drain ends.
    last: CancellationToken,
}

impl Drain {
    /// Returns a drain that begins when the token is cancelled.
    pub(super) fn when(token: CancellationToken) -> Self {
        Self { flag: Arc::default(), token, last: CancellationToken::new() }
    }

    /// Waits until the drain has begun and ended: no connection is left, or its deadline has passed. Returns the
    /// deadline.
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
        // A closed tracker still accepts new tasks; `wait` completes only after `close`.
        tracker.close();
        tokio::select! {
            () = tracker.wait() => {}
            () = sleep_until(deadline) => {}
            never = self.last_answers(deadline, settings) => match never {},
        }
        deadline
    }

    /// Closes idle connections shortly before the deadline. They lose no request, and requests in flight get this time
    /// before their connections are cut.
    pub(super) async fn last_answers(&self, deadline: Instant, settings: &ServerSettings) -> Infallible {
        sleep_until(deadline - LAST_ANSWERS.min(settings.drain_deadline / 10)).await;
        self.last.cancel();
        pending().await
    }
}

impl Retire {
    /// Retires at this time, if any, or when the server drains.
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

    /// Waits until idle connections are to be closed.
    pub(crate) async fn last(&self) {
        self.drain.last.cancelled().await;
    }
}
