//! Grants permits to decide requests. Only a limited number is granted at a time. If more requests wait, they are
//! served in a fair order.
//!
//! A decision only computes, and never waits. So a limit on concurrent decisions does not suffice: with as many permits
//! as worker threads, the queue would never fill and fairness would never apply. Requests would wait in the runtime's
//! own queue, which is fair to connections but not to namespaces. So this module also counts the requests that were
//! decided on arrival since the queue last became empty, and limits their number.
//!
//! Further requests wait in the queue. A task yields, so that the other ready tasks run, and then grants permits. By
//! then, nearly every request that has arrived is in the queue, in the fair order. Once the queue is empty, a few
//! requests may again be decided on arrival. Without load, most requests only increment one counter.
//!
//! The cost of a decision is known only afterwards, because it depends on the namespace's profiles. So each permit
//! measures its use. A long decision on arrival counts as several. A decision on a queued request is charged to the
//! class of the request, if it took more time than the request's cost covers.
//!
//! Reading a thread's processor time is a system call, which would be a few percent of a usual decision. So the
//! processor time is read only after a decision has taken a good part of a millisecond, until the queue is empty. Before
//! that, elapsed time is measured instead.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant as ActualInstant};

use rustix::time::{ClockId, clock_gettime};
use tokio::sync::{Notify, oneshot};
use tokio::time::{Instant, timeout_at};

use super::fair::{self, FairQueue, Ticket};
use super::request::Deadline;
use super::shed::{QueueMetrics, Shed};

/// The cost of a microsecond of processor time. For comparison: the review of a pod with 8 KiB has a cost of 12 KiB,
/// and its decision takes some 40 µs.
const COST_PER_MICROSECOND: u64 = 256;
/// For each full period of this length, a decision on arrival counts as one further decision. Some six usual decisions
/// take this long.
const UNQUEUED_TIME: Duration = Duration::from_micros(250);
/// The longest time that is charged to a class if the thread's processor time was not read. So a class pays little for
/// a time in which other threads used the processor.
const LONGEST_UNREAD: Duration = Duration::from_millis(1);

/// The bounds of a queue.
#[derive(Clone, Debug)]
pub(super) struct Bounds {
    /// Maximum number of permits that queued requests hold at the same time.
    pub(super) slots: usize,
    /// Maximum number of requests that are decided on arrival before further ones are queued.
    pub(super) unqueued: usize,
    /// Whether the processor time of each decision on a queued request is read, and not only while long decisions occur.
    /// For decisions that usually take milliseconds.
    pub(super) reads_processor_time: bool,
    /// The bounds on the number of waiting requests.
    pub(super) queue: fair::Bounds,
}

/// Grants permits to decide, in a fair order.
#[derive(Debug)]
pub(crate) struct DecisionQueue {
    slots: usize,
    unqueued_limit: usize,
    /// The number of requests decided on arrival since the last reset. Long decisions count as several. The task that
    /// grants permits resets it once the queue is empty.
    unqueued: AtomicUsize,
    state: Mutex<State>,
    /// See [`Bounds::reads_processor_time`].
    reads_processor_time: bool,
    /// Whether some decision has recently taken long: on arrival longer than [`UNQUEUED_TIME`], or on a queued request
    /// longer than its cost covers by more than [`UNQUEUED_TIME`]. The task that grants permits resets it when it finds
    /// the queue empty.
    has_long_decisions: AtomicBool,
    /// Notified when the permit of a queued request is returned.
    returned: Notify,
    metrics: QueueMetrics,
}

#[derive(Debug)]
struct State {
    queue: FairQueue<oneshot::Sender<Result<Permit, Shed>>>,
    /// The number of permits that queued requests hold.
    held: usize,
    /// Whether the task that grants permits is running.
    is_served: bool,
}

/// The permit to decide one request. Dropping it counts what the decision has cost. The permit of a queued request is
/// then available to the next queued request. The holder must not wait, and must compute on one thread.
#[derive(Debug)]
#[must_use = "a permit is returned when it is dropped"]
pub(crate) struct Permit {
    queue: Arc<DecisionQueue>,
    usage: Usage,
}

/// What a permit was used for.
#[derive(Debug)]
enum Usage {
    /// A decision on arrival. Its time is only compared with [`UNQUEUED_TIME`], so the cheapest clock suffices. This is
    /// not the clock that tests pause.
    Unqueued { began: ActualInstant },
    /// None yet: the permit is on its way to a queued request.
    Granted,
    /// A decision on a queued request of this class and cost.
    Queued { class: u64, cost: u64, began: Start },
}

/// The beginning of a decision on a queued request. Its times come from real clocks, which tests cannot pause.
#[derive(Clone, Copy, Debug)]
struct Start {
    wall: ActualInstant,
    /// The processor time of the thread that decides, if long decisions are expected. With it, a class is not charged
    /// for the time in which other threads use the processor. Without it, at most [`LONGEST_UNREAD`] is charged. Reading
    /// it is a system call, which would be a few percent of a usual decision.
    processor: Option<Duration>,
}

impl Start {
    fn now(reads_processor_time: bool) -> Self {
        Self { wall: ActualInstant::now(), processor: reads_processor_time.then(processor_time) }
    }

    /// Returns the cost of the time since the start, as far as it exceeds this cost.
    fn excess(self, cost: u64) -> u64 {
        // The elapsed time is never shorter than the processor time, so this is an upper bound.
        let longest = cost_of(self.wall.elapsed()).saturating_sub(cost);
        match self.processor {
            _ if longest == 0 => 0,
            Some(began) => cost_of(processor_time().saturating_sub(began)).saturating_sub(cost),
            None => longest.min(cost_of(LONGEST_UNREAD)),
        }
    }
}

/// A request in the queue. Dropping this value removes it from the queue.
struct QueuedRequest<'q> {
    queue: &'q DecisionQueue,
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
            reads_processor_time: bounds.reads_processor_time,
            has_long_decisions: AtomicBool::new(false),
            state: Mutex::new(State { queue: FairQueue::new(bounds.queue.clone()), held: 0, is_served: false }),
            returned: Notify::new(),
            metrics,
        })
    }

    /// Returns a permit at once. `None`: the maximum number of requests was already decided on arrival.
    pub(super) fn unqueued(self: &Arc<Self>) -> Option<Permit> {
        let is_within_limit = self.unqueued.load(Ordering::Relaxed) < self.unqueued_limit
            && self.unqueued.fetch_add(1, Ordering::Relaxed) < self.unqueued_limit;
        is_within_limit
            .then(|| Permit { queue: Arc::clone(self), usage: Usage::Unqueued { began: ActualInstant::now() } })
    }

    /// Queues a request of this class and cost. Waits for its permit until the deadline. Also returns an error if the
    /// queue is full, if the class has its maximum number of requests in the queue, or if a later request displaces
    /// this one.
    pub(super) async fn queued(self: &Arc<Self>, class: u64, cost: u64, deadline: Deadline) -> Result<Permit, Shed> {
        let (sender, permit) = oneshot::channel();
        let (ticket, displaced) = {
            let mut state = self.state();
            let fair::Pushed { ticket, displaced } = state.queue.push(class, cost, sender)?;
            self.update_gauge(&state);
            if !state.is_served {
                state.is_served = true;
                tokio::spawn(Arc::clone(self).serve());
            }
            (ticket, displaced)
        };
        if let Some(displaced) = displaced {
            // An error means that the displaced request no longer waits, for example because its deadline has passed.
            let _ = displaced.send(Err(Shed::QueueFull));
        }
        let _queued = QueuedRequest { queue: self, class, ticket, since: Instant::now() };
        match timeout_at(deadline.0, permit).await {
            Ok(Ok(permit)) if deadline.has_passed() => permit.and(Err(Shed::Deadline)),
            Ok(Ok(permit)) => permit.map(|mut permit| {
                permit.usage = Usage::Queued { class, cost, began: self.start() };
                permit
            }),
            // Before the deadline, the sender is dropped only if the runtime shuts down.
            Ok(Err(_)) | Err(_) => Err(Shed::Deadline),
        }
    }

    /// Starts the measurement of a decision on a queued request.
    fn start(&self) -> Start {
        Start::now(self.reads_processor_time || self.has_long_decisions.load(Ordering::Relaxed))
    }

    /// Grants permits until the queue is empty.
    async fn serve(self: Arc<Self>) {
        loop {
            // Lets most or all of the tasks that are ready now run first.
            tokio::task::yield_now().await;
            let chosen = {
                let mut state = self.state();
                if state.queue.is_empty() {
                    state.is_served = false;
                    state.queue.forget_debts();
                    self.unqueued.store(0, Ordering::Relaxed);
                    self.has_long_decisions.store(false, Ordering::Relaxed);
                    return;
                }
                self.take_next(&mut state)
            };
            if chosen.is_empty() {
                self.returned.notified().await;
            }
            for waiting in chosen {
                // If the request no longer waits, the message with the permit is dropped, which returns the permit.
                let _ = waiting.send(Ok(Permit { queue: Arc::clone(&self), usage: Usage::Granted }));
            }
        }
    }

    /// Takes the next requests from the queue, at most as many as there are free permits.
    fn take_next(&self, state: &mut State) -> Vec<oneshot::Sender<Result<Permit, Shed>>> {
        let free = self.slots.saturating_sub(state.held);
        let chosen: Vec<_> = std::iter::from_fn(|| state.queue.pop()).take(free).collect();
        state.held += chosen.len();
        self.update_gauge(state);
        chosen
    }

    /// Returns the debt of a class.
    #[cfg(test)]
    pub(super) fn debt(&self, class: u64) -> u64 {
        self.state().queue.debt(class)
    }

    /// Returns whether all permits given to queued requests have been returned.
    #[cfg(test)]
    pub(super) fn is_idle(&self) -> bool {
        self.state().held == 0
    }

    fn update_gauge(&self, state: &State) {
        self.metrics.queued.set(i64::try_from(state.queue.len()).unwrap_or(i64::MAX));
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Permit {
    /// Starts the measurement again, on the calling thread. Needed if the work begins later than the request receives
    /// the permit, or on another thread.
    pub(super) fn restart(&mut self) {
        match &mut self.usage {
            Usage::Unqueued { began } => *began = ActualInstant::now(),
            Usage::Granted => {}
            Usage::Queued { began, .. } => *began = self.queue.start(),
        }
    }

    /// Returns a queued request's permit. Charges the class for the cost that exceeds the cost of the request.
    fn give_back(&self, charge: Option<(u64, u64)>) {
        let mut state = self.queue.state();
        state.held -= 1;
        // Once the task that grants permits has ended, there are no debts.
        if state.is_served
            && let Some((class, excess)) = charge
        {
            state.queue.charge(class, excess);
        }
        drop(state);
        self.queue.returned.notify_one();
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        match self.usage {
            Usage::Unqueued { began } => {
                let further = further_unqueued(began.elapsed());
                if further > 0 {
                    self.queue.unqueued.fetch_add(further, Ordering::Relaxed);
                    self.queue.has_long_decisions.store(true, Ordering::Relaxed);
                }
            }
            Usage::Granted => self.give_back(None),
            Usage::Queued { class, cost, began } => {
                let excess = began.excess(cost);
                if excess > cost_of(UNQUEUED_TIME) {
                    self.queue.has_long_decisions.store(true, Ordering::Relaxed);
                }
                self.give_back(Some((class, excess)));
            }
        }
    }
}

/// Returns the cost of computing for this time, in the unit of the cost of requests.
pub(super) fn cost_of(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX).saturating_mul(COST_PER_MICROSECOND)
}

/// Returns the number of further decisions on arrival that a decision of this duration counts as.
fn further_unqueued(time: Duration) -> usize {
    usize::try_from(time.as_micros() / UNQUEUED_TIME.as_micros()).unwrap_or(usize::MAX)
}

/// Returns the processor time that the calling thread has used.
fn processor_time() -> Duration {
    Duration::try_from(clock_gettime(ClockId::ThreadCPUTime)).unwrap_or_default()
}

/// Uses this much processor time.
#[cfg(test)]
pub(super) fn compute_for(time: Duration) {
    let began = processor_time();
    while processor_time().saturating_sub(began) < time {}
}

impl Drop for QueuedRequest<'_> {
    fn drop(&mut self) {
        let mut state = self.queue.state();
        let removed = state.queue.remove(self.class, self.ticket);
        self.queue.update_gauge(&state);
        drop(state);
        drop(removed);
        self.queue.metrics.waited.observe(self.since.elapsed().as_secs_f64());
    }
}

#[cfg(test)]
mod tests {
    use futures::future::join_all;
    use tokio::task::{JoinSet, yield_now};
    use tokio::time::sleep;

    use super::*;

    fn queue(slots: usize, unqueued: usize, length: usize) -> Arc<DecisionQueue> {
        let queue = fair::Bounds { length, per_class: length, quantum: 8, debt: u64::MAX };
        let metrics = QueueMetrics::unregistered();
        DecisionQueue::new(&Bounds { slots, unqueued, reads_processor_time: false, queue }, metrics)
    }

    fn far() -> Deadline {
        Deadline(Instant::now() + Duration::from_mins(1))
    }

    /// Asserts that the queue is empty, all permits are returned, and the task that grants permits has ended.
    #[track_caller]
    fn assert_idle(queue: &DecisionQueue) {
        let state = queue.state();
        assert_eq!((state.queue.len(), state.held, queue.metrics.queued.get()), (0, 0, 0));
        assert!(!state.is_served);
        drop(state);
        assert_eq!(queue.unqueued.load(Ordering::Relaxed), 0);
    }

    async fn settle() {
        for _ in 0..10 {
            yield_now().await;
        }
    }

    #[tokio::test]
    async fn few_are_decided_on_arrival_and_rest_queued() {
        let queue = queue(1, 2, 10);
        assert!(queue.unqueued().is_some() && queue.unqueued().is_some());
        assert!(queue.unqueued().is_none() && queue.unqueued().is_none());
        let order = Arc::new(Mutex::new(Vec::new()));
        let mut tasks = JoinSet::new();
        let noting = |name: &'static str| {
            let order = Arc::clone(&order);
            move || order.lock().unwrap().push(name)
        };
        let (waiting, note) = (Arc::clone(&queue), noting("queued"));
        tasks.spawn(async move {
            let _permit = waiting.queued(1, 1, far()).await.unwrap();
            note();
        });
        for _ in 0..10 {
            let note = noting("ready");
            tasks.spawn(async move {
                // Runs four tasks in sequence. Each becomes ready only after the previous one has run.
                note();
                for _ in 0..3 {
                    let note = note.clone();
                    tokio::spawn(async move { note() }).await.unwrap();
                }
            });
        }
        tasks.join_all().await;
        let order = order.lock().unwrap().clone();
        assert_eq!(order.iter().position(|name| *name == "queued"), Some(40), "{order:?}");
        settle().await;
        assert_idle(&queue);
        assert!(queue.unqueued().is_some());
    }

    #[test]
    fn long_decision_on_arrival_counts_as_several() {
        for (micros, further) in [(0, 0), (40, 0), (249, 0), (250, 1), (20_000, 80)] {
            assert_eq!(further_unqueued(Duration::from_micros(micros)), further, "{micros}");
        }
        let queue = queue(1, 8, 10);
        let permit = queue.unqueued().unwrap();
        std::thread::sleep(8 * UNQUEUED_TIME);
        assert!(queue.unqueued().is_some(), "the first decision has not ended");
        drop(permit);
        assert!(queue.unqueued().is_none());
    }

    #[tokio::test]
    async fn real_cost_delays_next_requests_of_class() {
        let queue = queue(1, 0, 20);
        let order = Arc::new(Mutex::new(Vec::new()));
        let mut tasks = JoinSet::new();
        for class in [1, 2].repeat(10) {
            let (queue, order) = (Arc::clone(&queue), Arc::clone(&order));
            tasks.spawn(async move {
                let _permit = queue.queued(class, 8, far()).await.unwrap();
                order.lock().unwrap().push(class);
                if class == 1 {
                    compute_for(Duration::from_millis(5));
                }
            });
        }
        tasks.join_all().await;
        let order = order.lock().unwrap().clone();
        assert_eq!(order, [vec![1], vec![2; 10], vec![1; 9]].concat());
        settle().await;
        assert_idle(&queue);
    }

    #[tokio::test]
    async fn pauses_of_thread_are_hardly_charged() {
        let (long, queue) = (Duration::from_millis(20), queue(1, 0, 10));
        let mut waiting = [(); 3].map(|()| Box::pin(queue.queued(1, 8, far())));
        for request in &mut waiting {
            assert!(futures::poll!(request).is_pending());
        }
        let [first, second, third] = waiting;
        // A decision that is only a little longer than its cost covers does not enable the thread's clock.
        queue.state().held += 1;
        let began = Start::now(true);
        compute_for(UNQUEUED_TIME / 10);
        drop(Permit { queue: Arc::clone(&queue), usage: Usage::Queued { class: 2, cost: 0, began } });
        assert!(!queue.has_long_decisions.load(Ordering::Relaxed));
        let permit = first.await.unwrap();
        std::thread::sleep(long);
        drop(permit);
        let unread = queue.debt(1);
        assert!(unread > 0 && unread <= cost_of(LONGEST_UNREAD), "{unread}");
        assert!(queue.has_long_decisions.load(Ordering::Relaxed));
        // Now the thread's clock is read.
        let permit = second.await.unwrap();
        std::thread::sleep(long);
        drop(permit);
        assert!(queue.debt(1) < unread + cost_of(long) / 2, "{}", queue.debt(1));
        drop(third);
        settle().await;
        assert_idle(&queue);
        assert!(!queue.has_long_decisions.load(Ordering::Relaxed));
        // A long decision on arrival also enables the thread's clock.
        let arrived = Permit { queue: Arc::clone(&queue), usage: Usage::Unqueued { began: ActualInstant::now() } };
        std::thread::sleep(UNQUEUED_TIME);
        drop(arrived);
        assert!(queue.has_long_decisions.load(Ordering::Relaxed));
    }

    #[tokio::test]
    async fn only_time_of_work_is_charged() {
        let long = Duration::from_millis(5);
        let queue = queue(1, 0, 10);
        queue.has_long_decisions.store(true, Ordering::Relaxed);
        let mut waiting = [(); 3].map(|()| Box::pin(queue.queued(1, 8, far())));
        for request in &mut waiting {
            assert!(futures::poll!(request).is_pending());
        }
        let [first, second, _third] = waiting;
        settle().await;
        // The permit is on its way.
        compute_for(long);
        let mut permit = first.await.unwrap();
        // The work waits for its thread.
        compute_for(long);
        permit.restart();
        drop(permit);
        assert!(queue.debt(1) < cost_of(long) / 2, "{}", queue.debt(1));
        let permit = second.await.unwrap();
        compute_for(long);
        drop(permit);
        assert!(queue.debt(1) > cost_of(long) / 2, "{}", queue.debt(1));
    }

    #[tokio::test]
    async fn permits_never_exceed_slots() {
        let queue = queue(3, 0, 500);
        let (running, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let all = (0..500).map(|number| {
            let (queue, running, most) = (Arc::clone(&queue), Arc::clone(&running), Arc::clone(&most));
            async move {
                let _permit = queue.queued(number % 7, 10, far()).await.unwrap();
                most.fetch_max(running.fetch_add(1, Ordering::Relaxed) + 1, Ordering::Relaxed);
                yield_now().await;
                running.fetch_sub(1, Ordering::Relaxed);
            }
        });
        join_all(all).await;
        assert_eq!(most.load(Ordering::Relaxed), 3);
        settle().await;
        assert_idle(&queue);
    }

    #[tokio::test(start_paused = true)]
    async fn queued_request_is_shed_at_deadline() {
        let queue = queue(1, 0, 1);
        let permit = queue.queued(1, 1, far()).await.unwrap();
        let began = Instant::now();
        let deadline = Deadline(began + Duration::from_millis(300));
        assert_eq!(queue.queued(2, 1, deadline).await.unwrap_err(), Shed::Deadline);
        assert_eq!(began.elapsed(), Duration::from_millis(300));
        let waiting = tokio::spawn({
            let queue = Arc::clone(&queue);
            async move { queue.queued(2, 1, far()).await.map(drop) }
        });
        settle().await;
        assert_eq!(queue.queued(3, 1, far()).await.unwrap_err(), Shed::QueueFull, "the queue is full again");
        drop(permit);
        waiting.await.unwrap().unwrap();
        settle().await;
        assert_idle(&queue);
    }

    #[tokio::test]
    async fn full_queue_displaces_item_of_longest_class() {
        let queue = queue(1, 0, 3);
        let permit = queue.queued(0, 1, far()).await.unwrap();
        let mut noisy = JoinSet::new();
        for _ in 0..3 {
            let queue = Arc::clone(&queue);
            noisy.spawn(async move { queue.queued(1, 1, far()).await.map(drop) });
        }
        settle().await;
        let quiet = tokio::spawn({
            let queue = Arc::clone(&queue);
            async move { queue.queued(2, 1, far()).await.map(drop) }
        });
        settle().await;
        drop(permit);
        quiet.await.unwrap().unwrap();
        let ended = noisy.join_all().await;
        assert_eq!(ended.iter().filter(|ended| **ended == Err(Shed::QueueFull)).count(), 1);
    }

    /// Cancels tasks while they wait, when they get a permit, and while they decide. Some other tasks panic.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn cancelled_request_returns_permit() {
        let queue = queue(2, 4, 64);
        for round in 0..200_u64 {
            let mut tasks = JoinSet::new();
            for number in 0..50_u64 {
                let queue = Arc::clone(&queue);
                tasks.spawn(async move {
                    let permit = match queue.unqueued() {
                        Some(permit) => permit,
                        None => match queue.queued(number % 5, number, far()).await {
                            Ok(permit) => permit,
                            Err(_) => return,
                        },
                    };
                    match (round + number) % 4 {
                        0 => yield_now().await,
                        1 => std::future::pending().await,
                        2 if round % 20 == 0 => std::panic::resume_unwind(Box::new("for a test")),
                        _ => {}
                    }
                    drop(permit);
                });
            }
            for _ in 0..round % 7 {
                yield_now().await;
            }
            tasks.shutdown().await;
        }
        for _ in 0..20_000 {
            if !queue.state().is_served {
                break;
            }
            sleep(Duration::from_millis(1)).await;
        }
        // The counter still includes requests that were decided on arrival after the queue was last empty.
        queue.unqueued.store(0, Ordering::Relaxed);
        assert_idle(&queue);
    }
}
