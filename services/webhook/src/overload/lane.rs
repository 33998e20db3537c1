//! Turns to be decided: so many at one time, and in a fair order when more is asked for.
//!
//! Deciding is computing. With as many turns as there are workers nobody would ever be seen waiting for one: whoever has
//! to wait does so in the runtime's own queue, which is fair to connections and not to namespaces. So what is counted is
//! how many were decided as they came since all that was ready had been looked at for the last time; a few may be. The
//! next ones wait here, while a task of the lane lets all others run that are ready (it yields) and gives out turns only
//! then: whatever has come in by that moment is in the order. When nobody waits any more, a few may again be decided as
//! they come. Where there is little to do, that is one look at a counter.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::{Notify, oneshot};
use tokio::time::{Instant, timeout_at};

use super::fair::{self, FairQueue, Ticket};
use super::metrics::LaneMetrics;
use super::{Deadline, Shed};

/// The bounds of a lane.
#[derive(Clone, Debug)]
pub(super) struct Bounds {
    /// Turns at one time.
    pub(super) slots: usize,
    /// How many are decided as they come before it is looked whether others wait.
    pub(super) unqueued: usize,
    /// The queue.
    pub(super) queue: fair::Bounds,
}

/// Where turns are given out.
#[derive(Debug)]
pub(crate) struct Lane {
    slots: usize,
    unqueued_limit: usize,
    /// Decided as they came since the queue was seen empty, with all others having run that were ready.
    unqueued: AtomicUsize,
    state: Mutex<State>,
    /// A turn was given back.
    returned: Notify,
    metrics: LaneMetrics,
}

#[derive(Debug)]
struct State {
    queue: FairQueue<oneshot::Sender<Result<Turn, Shed>>>,
    /// Turns that were given out to those who had waited, and not yet given back.
    given: usize,
    /// Whether the task is at work that gives them out.
    is_served: bool,
}

/// The right to decide one request. Dropped, it goes to the next.
#[derive(Debug)]
#[must_use = "a turn is given back when it is dropped"]
pub(crate) struct Turn(Option<Arc<Lane>>);

/// A place in the queue. Dropped, it is given up.
struct Waiting<'l> {
    lane: &'l Lane,
    class: u64,
    ticket: Ticket,
    since: Instant,
}

impl Lane {
    pub(super) fn new(bounds: &Bounds, metrics: LaneMetrics) -> Arc<Self> {
        Arc::new(Self {
            slots: bounds.slots,
            unqueued_limit: bounds.unqueued,
            unqueued: AtomicUsize::new(0),
            state: Mutex::new(State { queue: FairQueue::new(bounds.queue.clone()), given: 0, is_served: false }),
            returned: Notify::new(),
            metrics,
        })
    }

    /// A turn at once, if few have been given out so lately.
    pub(super) fn unqueued(&self) -> Option<Turn> {
        let is_one_of_few = self.unqueued.load(Ordering::Relaxed) < self.unqueued_limit
            && self.unqueued.fetch_add(1, Ordering::Relaxed) < self.unqueued_limit;
        is_one_of_few.then_some(Turn(None))
    }

    /// A turn when it comes, by the deadline.
    pub(super) async fn queued(self: &Arc<Self>, class: u64, cost: u64, deadline: Deadline) -> Result<Turn, Shed> {
        let (sender, turn) = oneshot::channel();
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
            // Err: it has gone away by itself.
            let _ = displaced.send(Err(Shed::QueueFull));
        }
        let _waiting = Waiting { lane: self, class, ticket, since: Instant::now() };
        match timeout_at(deadline.0, turn).await {
            Ok(Ok(turn)) if deadline.has_passed() => turn.and(Err(Shed::Deadline)),
            Ok(Ok(turn)) => turn,
            // The sender is gone only with the runtime.
            Ok(Err(_)) | Err(_) => Err(Shed::Deadline),
        }
    }

    /// Gives out turns until nobody waits.
    async fn serve(self: Arc<Self>) {
        loop {
            // Until all others have run that are ready, or many of them have.
            tokio::task::yield_now().await;
            let turns = {
                let mut state = self.state();
                if state.queue.is_empty() {
                    state.is_served = false;
                    self.unqueued.store(0, Ordering::Relaxed);
                    return;
                }
                self.next(&mut state)
            };
            if turns.is_empty() {
                self.returned.notified().await;
            }
            for waiting in turns {
                // Whoever has gone away in this moment gives it back with the message.
                let _ = waiting.send(Ok(Turn(Some(Arc::clone(&self)))));
            }
        }
    }

    /// Those whose turn it is, as many as there are turns.
    fn next(&self, state: &mut State) -> Vec<oneshot::Sender<Result<Turn, Shed>>> {
        let free = self.slots.saturating_sub(state.given);
        let turns: Vec<_> = std::iter::from_fn(|| state.queue.pop()).take(free).collect();
        state.given += turns.len();
        self.show(state);
        turns
    }

    /// Whether nobody has a turn that was waited for.
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

impl Drop for Turn {
    fn drop(&mut self) {
        if let Some(lane) = &self.0 {
            lane.state().given -= 1;
            lane.returned.notify_one();
        }
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        let mut state = self.lane.state();
        let left = state.queue.remove(self.class, self.ticket);
        self.lane.show(&state);
        drop(state);
        drop(left);
        self.lane.metrics.waited.observe_time(self.since.elapsed());
    }
}

#[cfg(test)]
mod tests;
