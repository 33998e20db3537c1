//! Executes the election: reads, writes and watches the Lease, and runs the leader's tasks.

use std::fmt;
use std::future::Future;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures::stream::BoxStream;
use futures::{StreamExt, TryStreamExt};
use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;
use kube::api::{Api, ObjectMeta, PostParams, WatchEvent, WatchParams};
use kube::{Client, ResourceExt};
use tokio::time::{Instant, sleep, sleep_until, timeout};
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;
use tracing::{debug, info, warn};

use super::decide::{Action, LeaseContent, LeaseView, Loss, decide, transitions};
use super::{LeaseMetrics, LeaseOperation, Settings, SettingsError, TermEnd};
use crate::client::WATCH_DURATION;
use crate::leader::{FIELD_MANAGER, LeaderContext};
use crate::random;
use crate::release::Release;

/// The longest pause between two terms, in lease durations. A term that lasts this long resets the pause.
const MAX_PAUSE_FACTOR: u32 = 4;

/// A term of leadership, for the leader's tasks.
#[derive(Clone, Debug)]
pub struct Claim {
    stop: CancellationToken,
    until: Arc<Mutex<Instant>>,
}

/// A candidate in the election.
pub struct Elector {
    leases: Api<Lease>,
    name: String,
    identity: String,
    settings: Settings,
    metrics: LeaseMetrics,
    view: LeaseView,
    /// The Lease as last read, for its `resourceVersion`; `None` if it does not exist.
    lease: Option<Lease>,
    /// Whether the Lease must be read before a write: it was never read, or a write or the watch failed.
    stale: bool,
    /// Whether this candidate may hold the Lease without knowing it: the result of its last write is unknown.
    may_hold: bool,
    changes: Option<Changes>,
}

/// A watch of the Lease.
struct Changes {
    stream: BoxStream<'static, kube::Result<WatchEvent<Lease>>>,
    since: Instant,
}

/// Why a request failed.
#[derive(Debug, thiserror::Error)]
enum RequestError {
    #[error("no response within {0:?}")]
    Timeout(Duration),
    #[error("another client has written the Lease since it was read")]
    Conflict,
    #[error("the watch of the Lease ended")]
    Ended,
    #[error(transparent)]
    Client(#[from] kube::Error),
}

impl Claim {
    /// Returns the token that is cancelled when the term is over.
    #[must_use]
    pub const fn stop(&self) -> &CancellationToken {
        &self.stop
    }

    /// Returns the context for the leader's tasks.
    #[must_use]
    pub fn leading(&self, client: Client, release: Arc<Release>) -> LeaderContext {
        LeaderContext { client, release, stop: self.stop.clone() }
    }

    /// Whether the term continues, by the clock. After a long pause of the process, returns `false` at once, even
    /// before [`Claim::stop`] is cancelled.
    #[must_use]
    pub fn holds(&self) -> bool {
        !self.stop.is_cancelled() && Instant::now() < *self.until.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn set(&self, until: Instant) {
        *self.until.lock().unwrap_or_else(PoisonError::into_inner) = until;
    }
}

impl fmt::Debug for Elector {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Elector")
            .field("identity", &self.identity)
            .field("view", &self.view)
            .finish_non_exhaustive()
    }
}

impl Elector {
    /// Creates a candidate for the release's Lease. Its `holderIdentity` is the name of the `pod` with a random suffix.
    /// So it differs from all other candidates, and from earlier processes of the same pod.
    ///
    /// # Errors
    /// The election would not be safe with these settings ([`Settings::check`]).
    pub fn new(
        client: Client,
        release: &Release,
        pod: &str,
        settings: Settings,
        metrics: LeaseMetrics,
    ) -> Result<Self, SettingsError> {
        settings.check()?;
        Ok(Self {
            leases: Api::namespaced(client, release.namespace()),
            name: release.lease(),
            identity: format!("{pod}_{}", random::token()),
            settings,
            metrics,
            view: LeaseView::unknown(Instant::now()),
            lease: None,
            stale: true,
            may_hold: false,
            changes: None,
        })
    }

    /// The `holderIdentity` of this candidate.
    #[must_use]
    pub fn identity(&self) -> &str {
        &self.identity
    }

    /// Takes part in the election until `stop`. In each term, runs `lead` with the [`Claim`] as a separate task. At the
    /// end of a term, cancels the claim's token, and gives the task [`Settings::grace`] to end. At `stop`, holds the
    /// Lease until the task has ended, and then releases it.
    ///
    /// A task that returns early ends the term.
    pub async fn run<F, Fut>(mut self, stop: CancellationToken, mut lead: F)
    where
        F: FnMut(Claim) -> Fut,
        Fut: Future<Output = ()> + Send + 'static,
    {
        let mut pause = self.settings.retry_period;
        while let Some(claim) = self.acquire(&stop).await {
            let began = Instant::now();
            info!(identity = self.identity, lease = self.name, "this controller leads");
            self.metrics.began();
            let task = AbortOnDropHandle::new(tokio::spawn(lead(claim.clone())));
            let end = self.term(&stop, &claim, task).await;
            info!(identity = self.identity, reason = end.as_str(), "this controller no longer leads");
            self.metrics.ended(end);
            if matches!(end, TermEnd::Stopped | TermEnd::Finished) {
                self.release().await;
            }
            self.view.claim = None;
            // Pause, so that another candidate can take over.
            if end != TermEnd::Stopped {
                pause = pause_after(&self.settings, pause, end, began.elapsed());
                sleep_with_jitter(pause, &stop).await;
            }
        }
        if self.may_hold {
            self.release().await;
        }
    }

    /// Runs one term, until the leader's task has ended.
    async fn term(&mut self, stop: &CancellationToken, claim: &Claim, mut task: AbortOnDropHandle<()>) -> TermEnd {
        let grace = self.settings.grace;
        let renewal = self.renew_until_lost(claim);
        tokio::pin!(renewal);
        let end = tokio::select! {
            biased;
            loss = &mut renewal => loss.into(),
            () = stop.cancelled() => TermEnd::Stopped,
            ended = &mut task => {
                if let Err(error) = ended {
                    warn!(%error, "the leader's task failed");
                }
                claim.stop.cancel();
                return TermEnd::Finished;
            }
        };
        claim.stop.cancel();
        let ending = timeout(grace, &mut task);
        let ended = if end == TermEnd::Stopped {
            // Hold the Lease while the tasks end, so that no other leader starts.
            tokio::select! {
                ended = ending => ended,
                loss = renewal => {
                    debug!(?loss, "the Lease was lost while the leader's tasks ended");
                    return loss.into();
                }
            }
        } else {
            ending.await
        };
        if ended.is_err() {
            warn!(?grace, "the leader's task did not end in time and is aborted");
            task.abort();
        }
        end
    }

    /// Waits until this candidate becomes the leader. Returns `None` at `stop`.
    async fn acquire(&mut self, stop: &CancellationToken) -> Option<Claim> {
        loop {
            let attempt = self.attempt(stop);
            let outcome = tokio::select! {
                biased;
                () = stop.cancelled() => return None,
                outcome = attempt => outcome,
            };
            match outcome {
                Ok(Some(claim)) => return Some(claim),
                Ok(None) => {}
                Err((operation, error)) => {
                    self.failed(operation, &error);
                    sleep_with_jitter(self.settings.retry_period, stop).await;
                }
            }
        }
    }

    /// Runs one round of a candidate: reads the Lease if needed, and takes the next action. Returns the claim if this
    /// candidate now leads.
    async fn attempt(&mut self, stop: &CancellationToken) -> Result<Option<Claim>, (LeaseOperation, RequestError)> {
        if self.stale {
            self.read().await.map_err(|error| (LeaseOperation::Read, error))?;
        }
        match decide(&self.settings, &self.identity, &self.view, Instant::now()) {
            Action::Wait { until } => {
                // Add a random delay, so that the candidates do not all try at once.
                let until = until + random::up_to(self.settings.retry_period);
                self.wait(until).await.map_err(|error| (LeaseOperation::Read, error))?;
                Ok(None)
            }
            Action::Create | Action::Acquire | Action::Renew => {
                self.changes = None;
                self.write().await.map_err(|error| (LeaseOperation::Acquire, error))?;
                let until = self.view.deadline(&self.settings).unwrap_or_else(Instant::now);
                Ok(Some(Claim { stop: stop.child_token(), until: Arc::new(Mutex::new(until)) }))
            }
            Action::Lost(_) => {
                self.view.claim = None;
                Ok(None)
            }
        }
    }

    /// Renews the Lease until it is lost. Returns the reason.
    async fn renew_until_lost(&mut self, claim: &Claim) -> Loss {
        let mut next = Instant::now() + self.settings.retry_period;
        loop {
            let Some(deadline) = self.view.deadline(&self.settings) else { return Loss::Deadline };
            sleep_until(next.min(deadline)).await;
            let now = Instant::now();
            let action = decide(&self.settings, &self.identity, &self.view, now);
            let outcome = match action {
                Action::Lost(loss) => return loss,
                // `decide` never returns this action to a leader.
                Action::Wait { .. } => return Loss::Taken,
                // The result of the last write is unknown, so read the Lease first.
                _ if self.stale => {
                    let left = deadline.saturating_duration_since(now);
                    timeout(left, self.read()).await.map(|read| read.map_err(|error| (LeaseOperation::Read, error)))
                }
                Action::Create | Action::Acquire | Action::Renew => {
                    let left = deadline.saturating_duration_since(now);
                    timeout(left, self.write()).await.map(|write| write.map_err(|error| (LeaseOperation::Renew, error)))
                }
            };
            let retry = self.settings.retry_period;
            next = match outcome {
                // The deadline has passed, and the next round handles it.
                Err(_) => now,
                // After a read, write at once.
                Ok(Ok(())) if self.view.claim.is_none_or(|sent| sent < now) => now,
                Ok(Ok(())) => now + retry,
                Ok(Err((operation, error))) => {
                    self.failed(operation, &error);
                    let soon = matches!(error, RequestError::Conflict);
                    now + if soon { retry / 8 } else { retry / 2 + random::up_to(retry / 2) }
                }
            };
            if let Some(deadline) = self.view.deadline(&self.settings) {
                claim.set(deadline);
            }
        }
    }

    /// Reads the Lease into the view.
    async fn read(&mut self) -> Result<(), RequestError> {
        let lease = with_timeout(self.settings.request_timeout, self.leases.get_opt(&self.name)).await?;
        self.observe(lease);
        self.stale = false;
        Ok(())
    }

    fn observe(&mut self, lease: Option<Lease>) {
        self.view.observe(lease.as_ref().map(LeaseContent::of), Instant::now());
        self.lease = lease;
    }

    /// Creates, acquires or renews the Lease, with this process as the holder. Fails with a conflict if the Lease has
    /// changed since it was read.
    async fn write(&mut self) -> Result<(), RequestError> {
        let clock = Timestamp::now();
        let before = self.view.content.clone().unwrap_or_default();
        let stays = before.holder.as_deref() == Some(self.identity.as_str());
        let content = LeaseContent {
            holder: Some(self.identity.clone()),
            duration: self.settings.lease_duration,
            acquired: before.acquired.filter(|_| stays).or(Some(clock)),
            renewed: Some(clock),
            // A new Lease has had no other holder.
            transitions: if self.lease.is_some() { transitions(&before, &self.identity) } else { 0 },
        };
        let sent = Instant::now();
        let lease = self.put(&content).await?;
        self.view.record_write(LeaseContent::of(&lease), sent, Instant::now());
        self.lease = Some(lease);
        self.stale = false;
        Ok(())
    }

    async fn put(&mut self, content: &LeaseContent) -> Result<Lease, RequestError> {
        // Until the response arrives, the result of the write is unknown.
        (self.stale, self.may_hold) = (true, true);
        let params = PostParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PostParams::default() };
        let mut lease = self.lease.clone().unwrap_or_else(|| Lease {
            metadata: ObjectMeta { name: Some(self.name.clone()), ..ObjectMeta::default() },
            spec: None,
        });
        content.write_to(&mut lease);
        // The API server maintains this field, and it is larger than all others together.
        lease.metadata.managed_fields = None;
        let limit = self.settings.request_timeout;
        let outcome = if self.lease.is_some() {
            with_timeout(limit, self.leases.replace(&self.name, &params, &lease)).await
        } else {
            with_timeout(limit, self.leases.create(&params, &lease)).await
        };
        self.may_hold = !matches!(outcome, Ok(_) | Err(RequestError::Conflict));
        outcome
    }

    /// Releases the Lease if this candidate holds it. Tries twice, since the result of the last write may be unknown.
    /// After that, the Lease is left to expire.
    async fn release(&mut self) {
        let limit = self.settings.request_timeout * 2;
        let tries = async {
            for _ in 0..2 {
                let outcome = self.release_once().await;
                match outcome {
                    Ok(()) => break,
                    Err(error) => self.failed(LeaseOperation::Release, &error),
                }
            }
        };
        if timeout(limit, tries).await.is_err() {
            warn!(lease = self.name, "the Lease was not released in time: other controllers wait until it expires");
        }
        self.may_hold = false;
    }

    async fn release_once(&mut self) -> Result<(), RequestError> {
        if self.stale {
            self.read().await?;
        }
        let Some(content) = self.view.content.clone() else { return Ok(()) };
        if content.holder.as_deref() != Some(self.identity.as_str()) {
            return Ok(());
        }
        let released = LeaseContent { holder: None, duration: Duration::from_secs(1), ..content };
        let lease = self.put(&released).await?;
        self.observe(Some(lease));
        self.stale = false;
        Ok(())
    }

    /// Waits until this time or a change of the Lease, and records the change.
    async fn wait(&mut self, until: Instant) -> Result<(), RequestError> {
        let next = tokio::time::timeout_at(until, self.next_change());
        // The time was reached without a change.
        let Ok(change) = next.await else { return Ok(()) };
        match change {
            Ok(lease) => {
                self.observe(lease);
                Ok(())
            }
            Err(error) => {
                let lived = self.changes.take().map(|changes| changes.since.elapsed());
                self.stale = true;
                // Watches end regularly, which is not an error. The next read finds any changes.
                let is_old = lived.is_some_and(|lived| lived > self.settings.retry_period);
                if is_old && matches!(error, RequestError::Ended) { Ok(()) } else { Err(error) }
            }
        }
    }

    /// Returns the Lease after its next change, or `None` if it was deleted.
    async fn next_change(&mut self) -> Result<Option<Lease>, RequestError> {
        if self.changes.is_none() {
            let seconds = u32::try_from(WATCH_DURATION.as_secs()).unwrap_or(u32::MAX);
            let params = WatchParams::default().fields(&format!("metadata.name={}", self.name)).timeout(seconds);
            let version = self.lease.as_ref().and_then(ResourceExt::resource_version).unwrap_or_default();
            let stream =
                with_timeout(self.settings.request_timeout, self.leases.watch(&params, &version)).await?.boxed();
            self.changes = Some(Changes { stream, since: Instant::now() });
        }
        let Some(changes) = &mut self.changes else { return Err(RequestError::Ended) };
        loop {
            match changes.stream.try_next().await? {
                Some(WatchEvent::Added(lease) | WatchEvent::Modified(lease)) => return Ok(Some(lease)),
                Some(WatchEvent::Deleted(_)) => return Ok(None),
                Some(WatchEvent::Bookmark(_)) => {}
                Some(WatchEvent::Error(status)) => return Err(kube::Error::Api(status).into()),
                None => return Err(RequestError::Ended),
            }
        }
    }

    fn failed(&self, operation: LeaseOperation, error: &RequestError) {
        self.metrics.failed(operation);
        let operation = operation.as_str();
        if matches!(error, RequestError::Conflict) {
            debug!(operation, lease = self.name, "another client wrote the Lease");
        } else {
            warn!(operation, lease = self.name, %error, "a request for the Lease failed");
        }
    }
}

async fn with_timeout<T>(limit: Duration, request: impl Future<Output = kube::Result<T>>) -> Result<T, RequestError> {
    match timeout(limit, request).await {
        Err(_) => Err(RequestError::Timeout(limit)),
        Ok(Err(kube::Error::Api(status))) if status.code == 409 => Err(RequestError::Conflict),
        Ok(outcome) => Ok(outcome?),
    }
}

/// Returns the pause after a term. A term begins with lists of the whole cluster. If an overloaded API server ends
/// terms early, each new term would add load. So the pause doubles after each short term that ended because the Lease
/// could not be renewed in time.
fn pause_after(settings: &Settings, before: Duration, end: TermEnd, lasted: Duration) -> Duration {
    let longest = settings.lease_duration * MAX_PAUSE_FACTOR;
    if end == TermEnd::Deadline && lasted < longest { (before * 2).min(longest) } else { settings.retry_period }
}

async fn sleep_with_jitter(retry: Duration, stop: &CancellationToken) {
    tokio::select! {
        () = stop.cancelled() => {}
        () = sleep(retry / 2 + random::up_to(retry / 2)) => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pause_grows_after_short_terms() {
        let settings = Settings::default();
        let minute = Duration::from_mins(1);
        assert_eq!(settings.lease_duration * MAX_PAUSE_FACTOR, minute);
        let mut pause = settings.retry_period;
        let pauses = std::iter::from_fn(|| {
            pause = pause_after(&settings, pause, TermEnd::Deadline, minute / 2);
            Some(pause.as_secs())
        });
        assert_eq!(pauses.take(6).collect::<Vec<_>>(), [4, 8, 16, 32, 60, 60]);
        for (end, lasted) in
            [(TermEnd::Deadline, minute), (TermEnd::Taken, minute / 2), (TermEnd::Finished, minute / 2)]
        {
            assert_eq!(pause_after(&settings, minute, end, lasted), settings.retry_period, "{end:?}");
        }
    }
}
