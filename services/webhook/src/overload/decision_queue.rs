//! Permits to decide: a limited number at one time, given in a fair order when more requests wait.
//!
//! Deciding computes and does not wait. If permits equalled worker threads, the queue would never fill and fairness
//! would never apply: requests would wait in the runtime's own queue, which is fair to connections and not to
//! namespaces. So this module counts the requests decided on arrival since all ready tasks last ran, and allows only a
//! few. Further requests wait here. A task yields, so that all ready tasks run, and only then gives permits: every
//! request that has arrived by that moment takes part in the order. Once the queue is empty, a few requests may again
//! be decided on arrival. Without load, the cost is one look at a counter.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::{Notify, oneshot};
use tokio::time::{Instant, timeout_at};

use super::fair::{self, FairQueue, Ticket};
use super::metrics::QueueMetrics;
use super::{Deadline, Shed};

/// The bounds of a queue.
#[derive(Clone, Debug)]
pub(super) struct Bounds {
    /// Permits at one time.
    pub(super) slots: usize,
    /// Requests that are decided on arrival before further ones have to queue.
    pub(super) unqueued: usize,
    /// The queue.
    pub(super) queue: fair::Bounds,
}

/// Gives permits to decide, in a fair order.
#[derive(Debug)]
pub(crate) struct DecisionQueue {
    slots: usize,
    unqueued_limit: usize,
    /// Requests decided on arrival since the queue was last empty after all ready tasks had run.
    unqueued: AtomicUsize,
    state: Mutex<State>,
    /// A permit was returned.
    returned: Notify,
    metrics: QueueMetrics,
}

#[derive(Debug)]
struct State {
    queue: FairQueue<oneshot::Sender<Result<Permit, Shed>>>,
    /// Permits that were given to waiting requests and are not returned yet.
    given: usize,
    /// Whether the task that gives permits is running.
    is_served: bool,
}

/// The permit to decide one request. When it is dropped, the next request gets it.
#[derive(Debug)]
#[must_use = "a permit is returned when it is dropped"]
pub(crate) struct Permit(Option<Arc<DecisionQueue>>);

/// A request in the queue. When it is dropped, it leaves the queue.
struct Waiting<'l> {
    queue: &'l DecisionQueue,
    class: u64,
    ticket: Ticket,
    since: Instant,
}

impl DecisionQueue {
    pub(super) fn new(bounds: &Bounds, metrics: QueueMetrics) -> Arc<Self> {
        Arc::new(Self {
            slots: bounds.slots,
            unqueued_limit: bounds.unqueued,
            unqueued: AtomicUsize::new(0),
            state: Mutex::new(State { queue: FairQueue::new(bounds.queue.clone()), given: 0, is_served: false }),
            returned: Notify::new(),
            metrics,
        })
    }

    /// Returns a permit at once, if only a few were given so recently.
    pub(super) fn unqueued(&self) -> Option<Permit> {
        let is_one_of_few = self.unqueued.load(Ordering::Relaxed) < self.unqueued_limit
            && self.unqueued.fetch_add(1, Ordering::Relaxed) < self.unqueued_limit;
        is_one_of_few.then_some(Permit(None))
    }

    /// Waits for a permit until the deadline.
    pub(super) async fn queued(self: &Arc<Self>, class: u64, cost: u64, deadline: Deadline) -> Result<Permit, Shed> {
        let (sender, permit) = oneshot::channel();
        let (ticket, displaced) = {
            let mut state = self.state();
            let fair::Pushed { ticket, displaced } = state.queue.push(class, cost, sender)?;
            self.show(&state);
            if !state.is_served {
                state.is_served = true;
                tokio::spawn(Arc::clone(self).serve());
            }
            (ticket, displaced)
        };
        if let Some(displaced) = displaced {
            // Err: the request has left the queue by itself.
            let _ = displaced.send(Err(Shed::QueueFull));
        }
        let _waiting = Waiting { queue: self, class, ticket, since: Instant::now() };
        match timeout_at(deadline.0, permit).await {
            Ok(Ok(permit)) if deadline.has_passed() => permit.and(Err(Shed::Deadline)),
            Ok(Ok(permit)) => permit,
            // The sender is gone only with the runtime.
            Ok(Err(_)) | Err(_) => Err(Shed::Deadline),
        }
    }

    /// Gives permits until no request waits.
    async fn serve(self: Arc<Self>) {
        loop {
            // Lets all ready tasks run, or many of them.
            tokio::task::yield_now().await;
            let chosen = {
                let mut state = self.state();
                if state.queue.is_empty() {
                    state.is_served = false;
                    self.unqueued.store(0, Ordering::Relaxed);
                    return;
                }
                self.next(&mut state)
            };
            if chosen.is_empty() {
                self.returned.notified().await;
            }
            for waiting in chosen {
                // A request that has just left the queue returns the permit by dropping the message.
                let _ = waiting.send(Ok(Permit(Some(Arc::clone(&self)))));
            }
        }
    }

    /// Takes the next requests from the queue, as many as there are free permits.
    fn next(&self, state: &mut State) -> Vec<oneshot::Sender<Result<Permit, Shed>>> {
        let free = self.slots.saturating_sub(state.given);
        let chosen: Vec<_> = std::iter::from_fn(|| state.queue.pop()).take(free).collect();
        state.given += chosen.len();
        self.show(state);
        chosen
    }

    /// Whether no queued request holds a permit.
    #[cfg(test)]
    pub(super) fn is_idle(&self) -> bool {
        self.state().given == 0
    }

    fn show(&self, state: &State) {
        self.metrics.queued.set(i64::try_from(state.queue.len()).unwrap_or(i64::MAX));
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        if let Some(queue) = &self.0 {
            queue.state().given -= 1;
            queue.returned.notify_one();
        }
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        let mut state = self.queue.state();
        let left = state.queue.remove(self.class, self.ticket);
        self.queue.show(&state);
        drop(state);
        drop(left);
        self.queue.metrics.waited.observe_time(self.since.elapsed());
    }
}

#[cfg(test)]
mod tests;
