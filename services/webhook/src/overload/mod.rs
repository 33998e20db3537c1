//! Sheds load fairly. Every wait is bounded, queues are fair between tenants, and a request is rejected when its queue
//! is full or its deadline passes.
//!
//! A request passes these parts in order: its `Deadline`, the limits on `unfinished` bodies, a `RequestPermit`, and a
//! `Permit` to compute from one of the `decision_queue`s. Each decision queue contains a `fair` queue. Its classes are
//! namespaces, or client addresses in the queue for reviews of profiles. If a request is rejected, a `Shed` gives the
//! reason.

mod decision_queue;
mod fair;
mod request;
mod shed;
mod unfinished;

use std::any::Any;
use std::hash::{BuildHasher, RandomState};
use std::net::IpAddr;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::thread;
use std::time::Duration;

use bytes::Bytes;
use prometheus_client::metrics::gauge::Gauge;
use tokio::sync::oneshot;
use tokio::time::timeout_at;

use decision_queue::DecisionQueue;
pub(crate) use decision_queue::Permit;
pub(crate) use request::{Deadline, peek_namespace};
use shed::QueueMetrics;
pub(crate) use shed::{OverloadMetrics, Shed};
pub(crate) use unfinished::{Bounds as UnfinishedBounds, Eviction, Unfinished, UnfinishedBodies};

/// The maximum size of a small body, in bytes. Small bodies may use the whole memory budget, and are decided on the
/// thread that read them. A pod's review has some 8 KiB.
pub(crate) const SMALL: usize = 128 * 1024;
/// The fixed part of a request's cost, to which the size of its body in bytes is added. Even the decision on a small
/// pod takes time.
const BASE_COST: u64 = 4096;
/// An upper bound on the time of a decision. Expressions take some 40 ms if they use up all four budgets: one for the
/// cluster profiles and one for those of the namespace, each for two purposes. A large body takes some 10 ms.
const LONGEST_DECISION: Duration = Duration::from_millis(100);
/// The increase of the niceness of the threads for large bodies. On a busy machine, each of these threads gets about a
/// tenth of a core.
const NICE_INCREMENT: i32 = 10;

/// The payload of a caught panic.
pub(crate) type PanicPayload = Box<dyn Any + Send>;

/// Why the work of a profile's review did not finish.
#[derive(Debug)]
pub(crate) enum ReviewFailure {
    /// The replica shed the request.
    Shed(Shed),
    /// The work panicked.
    Panicked(PanicPayload),
}

/// Limits on concurrent requests and on their time.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct OverloadSettings {
    /// The timeout if `?timeout=` is missing or invalid. Default: 10 s, like the API server's default.
    pub default_timeout: Duration,
    /// The maximum of `?timeout=`. Default: 30 s, the longest time that the API server waits.
    pub longest_timeout: Duration,
    /// The time between the server's own deadline and that of the API server, so that the response still arrives.
    /// Default: 200 ms. It is at most a fifth of the timeout.
    pub margin: Duration,
    /// Maximum number of concurrent requests with a complete body and without a response. Default: 1024.
    pub max_in_flight: usize,
    /// Maximum number of concurrent requests with an incomplete body. Default: 2048. If there are more, the oldest is
    /// shed.
    pub max_unfinished: usize,
    /// The share of `max_unfinished` that one client address may use. Default: 256. By default, an API server has at
    /// most 200 mutating requests in flight, and their bodies arrive within milliseconds.
    pub max_unfinished_per_address: usize,
    /// Maximum number of queued requests with a body of at most 128 KiB. Default: 512.
    pub max_queued: usize,
    /// The share of `max_queued` that one namespace may use. Default: 128.
    pub max_queued_per_tenant: usize,
    /// Maximum number of queued requests with a larger body. Default: 16.
    pub max_queued_large: usize,
    /// The share of `max_queued_large` that one namespace may use. Default: 4.
    pub max_queued_large_per_tenant: usize,
    /// Maximum number of queued reviews of profiles. Default: 16. One client address may use a quarter of it.
    pub max_queued_profiles: usize,
    /// Maximum number of concurrent decisions on queued requests with small bodies. Large bodies have half as many
    /// threads (at least one), separate from the runtime. `None`: the number of workers of the runtime in which the
    /// router is created, or the number of cores if there is no runtime.
    pub workers: Option<usize>,
    /// Maximum number of small requests that each worker decides on arrival before further ones are queued in a fair
    /// order. Long decisions count as several. Default: 8.
    pub unqueued_per_worker: usize,
}

impl Default for OverloadSettings {
    fn default() -> Self {
        Self {
            default_timeout: Duration::from_secs(10),
            longest_timeout: Duration::from_secs(30),
            margin: Duration::from_millis(200),
            max_in_flight: 1024,
            max_unfinished: 2048,
            max_unfinished_per_address: 256,
            max_queued: 512,
            max_queued_per_tenant: 128,
            max_queued_large: 16,
            max_queued_large_per_tenant: 4,
            max_queued_profiles: 16,
            workers: None,
            unqueued_per_worker: 8,
        }
    }
}

/// The limits that all requests share.
#[derive(Debug)]
pub(crate) struct Overload {
    settings: OverloadSettings,
    request_permits: RequestPermits,
    small: Arc<DecisionQueue>,
    large: Arc<DecisionQueue>,
    large_bodies: LargeBodyPool,
    /// The queue of profile reviews. Its classes are client addresses.
    profiles: Arc<DecisionQueue>,
    profile_thread: LargeBodyPool,
    metrics: OverloadMetrics,
    /// Random keys to compute classes, so that clients cannot choose namespaces that share a class.
    keys: RandomState,
}

impl Overload {
    pub(crate) fn new(settings: OverloadSettings, in_flight: Gauge, metrics: OverloadMetrics) -> Self {
        let request_permits = RequestPermits::new(settings.max_in_flight, in_flight);
        let workers = settings.workers.unwrap_or_else(workers).max(1);
        // A namespace that holds all permits may owe all of its decisions at once.
        let debt = |slots| decision_queue::cost_of(LONGEST_DECISION).saturating_mul(slots as u64);
        let small = decision_queue::Bounds {
            slots: workers,
            unqueued: settings.unqueued_per_worker.saturating_mul(workers),
            reads_processor_time: false,
            queue: fair::Bounds {
                length: settings.max_queued,
                per_class: settings.max_queued_per_tenant,
                // About the cost of one small pod's review.
                quantum: 2 * BASE_COST,
                debt: debt(workers),
            },
        };
        let threads = (workers / 2).max(1);
        let large = decision_queue::Bounds {
            slots: threads,
            unqueued: 0,
            reads_processor_time: true,
            queue: fair::Bounds {
                length: settings.max_queued_large,
                per_class: settings.max_queued_large_per_tenant,
                quantum: SMALL as u64,
                debt: debt(threads),
            },
        };
        let profiles = decision_queue::Bounds {
            slots: 1,
            unqueued: 0,
            reads_processor_time: true,
            queue: fair::Bounds {
                length: settings.max_queued_profiles,
                per_class: settings.max_queued_profiles / 4,
                quantum: BASE_COST,
                debt: debt(1),
            },
        };
        let profiles = DecisionQueue::new(&profiles, QueueMetrics::unregistered());
        let small = DecisionQueue::new(&small, metrics.small.clone());
        let large = DecisionQueue::new(&large, metrics.large.clone());
        let (large_bodies, profile_thread) =
            (LargeBodyPool::new("pillion-large", threads), LargeBodyPool::new("pillion-profile", 1));
        let keys = RandomState::new();
        Self { settings, request_permits, small, large, large_bodies, profiles, profile_thread, metrics, keys }
    }

    /// Returns a permit for a request whose body has arrived, or `None` if all permits are taken.
    pub(crate) fn request_permit(&self) -> Option<RequestPermit<'_>> {
        self.request_permits.take()
    }

    /// Returns the deadline of a request whose head has just arrived.
    pub(crate) fn deadline(&self, query: Option<&str>) -> Deadline {
        Deadline::of(query, &self.settings)
    }

    /// Waits for a permit to decide the request with this body, until the deadline.
    pub(crate) async fn permit(&self, body: &Bytes, deadline: Deadline) -> Result<Permit, Shed> {
        if deadline.has_passed() {
            return Err(Shed::Deadline);
        }
        let queue = if is_large(body) { &self.large } else { &self.small };
        if let Some(permit) = queue.unqueued() {
            return Ok(permit);
        }
        let class = request::class(&self.keys, body);
        // The future is boxed because queueing is rare: a request that does not queue then needs less memory.
        Box::pin(queue.queued(class, BASE_COST + body.len() as u64, deadline)).await
    }

    /// Runs `work` on a thread for large bodies. The permit is returned when `work` is done, even if the caller no
    /// longer waits.
    ///
    /// # Errors
    /// `work` panicked.
    pub(crate) async fn offload<T: Send + 'static>(
        &self,
        permit: Permit,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, PanicPayload> {
        self.large_bodies.run(with_permit(permit, work)).await
    }

    /// Runs `work` on the thread for profiles, in an order that is fair between clients. If `work` exceeds the
    /// deadline, the caller does not wait for it, but its permit is returned only when it is done.
    ///
    /// # Errors
    /// The request was shed, or `work` panicked.
    pub(crate) async fn review_profile<T: Send + 'static>(
        &self,
        client: IpAddr,
        deadline: Deadline,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, ReviewFailure> {
        let class = self.keys.hash_one(client);
        let permit = self.profiles.queued(class, BASE_COST, deadline).await.map_err(|shed| match shed {
            // The classes of this queue are client addresses and not tenants, so this reason does not apply.
            Shed::TenantQueueFull => ReviewFailure::Shed(Shed::QueueFull),
            shed => ReviewFailure::Shed(shed),
        })?;
        let running = self.profile_thread.run(with_permit(permit, work));
        let finished = timeout_at(deadline.0, running).await.map_err(|_| ReviewFailure::Shed(Shed::Deadline))?;
        finished.map_err(ReviewFailure::Panicked)
    }

    /// Counts a shed request.
    pub(crate) fn count(&self, shed: Shed) {
        self.metrics.count(shed);
    }
}

/// Returns whether a body is so large that its decision may take milliseconds. Such a body is decided on a separate
/// thread.
pub(crate) const fn is_large(body: &Bytes) -> bool {
    body.len() > SMALL
}

/// Returns a function that runs `work` while it holds the permit. The permit measures from the start of the call, on
/// the calling thread.
fn with_permit<T>(mut permit: Permit, work: impl FnOnce() -> T) -> impl FnOnce() -> T {
    move || {
        permit.restart();
        work()
    }
}

fn workers() -> usize {
    match tokio::runtime::Handle::try_current() {
        Ok(runtime) => runtime.metrics().num_workers(),
        Err(_) => thread::available_parallelism().map_or(1, usize::from),
    }
}

/// The permits for requests between their complete body and their response.
#[derive(Debug)]
struct RequestPermits {
    limit: usize,
    taken: AtomicUsize,
    /// Exports `taken` as a metric.
    gauge: Gauge,
}

/// A permit to answer a request. Dropping this value returns the permit: when the response is ready, or when the client
/// disconnects.
#[derive(Debug)]
pub(crate) struct RequestPermit<'p>(&'p RequestPermits);

impl RequestPermits {
    const fn new(limit: usize, gauge: Gauge) -> Self {
        Self { limit, taken: AtomicUsize::new(0), gauge }
    }

    /// Returns a permit, or `None` if all are taken.
    fn take(&self) -> Option<RequestPermit<'_>> {
        if self.taken.fetch_add(1, Ordering::Relaxed) >= self.limit {
            self.taken.fetch_sub(1, Ordering::Relaxed);
            return None;
        }
        self.gauge.inc();
        Some(RequestPermit(self))
    }
}

impl Drop for RequestPermit<'_> {
    fn drop(&mut self) {
        self.0.taken.fetch_sub(1, Ordering::Relaxed);
        self.0.gauge.dec();
    }
}

type Job = Box<dyn FnOnce() + Send>;

/// Threads for large bodies or for profiles, with a lower priority than the threads that serve requests. They are
/// started for the first job.
///
/// Deciding a review of 3 MiB takes ten milliseconds. On a separate thread, the decision does not delay other requests,
/// unless there are fewer cores than threads. In that case the kernel alternates between threads every few
/// milliseconds, and a small request waits that long. So these threads have a lower priority, which costs nothing on an
/// idle machine.
#[derive(Debug)]
struct LargeBodyPool {
    name: &'static str,
    threads: usize,
    jobs: OnceLock<Option<Sender<Job>>>,
}

impl LargeBodyPool {
    const fn new(name: &'static str, threads: usize) -> Self {
        Self { name, threads, jobs: OnceLock::new() }
    }

    /// Runs `work` on one of the threads. If no thread could be started, runs it on the runtime's pool for blocking
    /// work.
    ///
    /// # Errors
    /// `work` panicked.
    async fn run<T: Send + 'static>(&self, work: impl FnOnce() -> T + Send + 'static) -> Result<T, PanicPayload> {
        let (done, result) = oneshot::channel();
        // The thread logs to the caller's subscriber.
        let subscriber = tracing::dispatcher::get_default(Clone::clone);
        let job = Box::new(move || {
            // Unwind-safe: `work` owns its data, which is dropped if it panics. `send` fails if the caller no longer
            // waits.
            let work = AssertUnwindSafe(|| tracing::dispatcher::with_default(&subscriber, work));
            let _ = done.send(catch_unwind(work));
        });
        match self.jobs.get_or_init(|| start_threads(self.name, self.threads)) {
            // `send` fails only if all threads have ended, which cannot happen while this pool exists. A failed `send`
            // would drop the job, and `result` below would return an error.
            Some(jobs) => drop(jobs.send(job)),
            None => drop(tokio::task::spawn_blocking(job)),
        }
        result.await.unwrap_or_else(|_| Err(Box::new("a thread for large bodies has ended")))
    }
}

/// Starts the threads, which end when all senders are dropped. `None`: no thread could be started.
fn start_threads(name: &str, threads: usize) -> Option<Sender<Job>> {
    let (sender, receiver) = mpsc::channel();
    let receiver = Arc::new(Mutex::new(receiver));
    let started = (0..threads).filter(|_| {
        let receiver = Arc::clone(&receiver);
        let started = thread::Builder::new().name(name.to_owned()).spawn(move || run_jobs(&receiver));
        if let Err(error) = &started {
            tracing::warn!(%error, "cannot start a thread for large bodies");
        }
        started.is_ok()
    });
    (started.count() > 0).then_some(sender)
}

fn run_jobs(jobs: &Mutex<Receiver<Job>>) {
    if let Err(error) = rustix::process::nice(NICE_INCREMENT) {
        tracing::debug!(%error, "cannot lower the priority of a thread for large bodies");
    }
    loop {
        // A thread holds the lock while it waits for the next job, and releases it before it runs the job.
        let next = jobs.lock().unwrap_or_else(PoisonError::into_inner).recv();
        let Ok(job) = next else { return };
        job();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;

    use prometheus_client::registry::Registry;

    use super::*;

    #[tokio::test]
    async fn profile_review_delays_no_pod() {
        let metrics = OverloadMetrics::register(&mut Registry::default());
        let settings = OverloadSettings { workers: Some(1), unqueued_per_worker: 0, ..OverloadSettings::default() };
        let overload = Overload::new(settings, Gauge::default(), metrics);
        let (go_on, waiting) = mpsc::channel::<()>();
        let client = IpAddr::from([192, 0, 2, 1]);
        let far = overload.deadline(None);
        let compiling = overload.review_profile(client, far, move || waiting.recv());
        tokio::pin!(compiling);
        while overload.profiles.is_idle() {
            assert!(futures::poll!(compiling.as_mut()).is_pending());
            tokio::task::yield_now().await;
        }
        // While a profile compiles, reviews of pods of any size get their decisions. The review of another profile
        // waits until its deadline.
        for size in [10, 2 * SMALL] {
            let permit = overload.permit(&Bytes::from(vec![b' '; size]), far).await.unwrap();
            assert_eq!(overload.offload(permit, || 7).await.unwrap(), 7);
        }
        let soon = Deadline(tokio::time::Instant::now() + Duration::from_millis(20));
        let other = IpAddr::from([192, 0, 2, 2]);
        assert!(matches!(overload.review_profile(other, soon, || ()).await, Err(ReviewFailure::Shed(Shed::Deadline))));
        go_on.send(()).unwrap();
        compiling.await.unwrap().unwrap();
        overload.review_profile(other, far, || ()).await.unwrap();
        // The caller does not wait for work that exceeds the deadline.
        let (go_on, waiting) = mpsc::channel::<()>();
        let soon = Deadline(tokio::time::Instant::now() + Duration::from_millis(20));
        assert!(matches!(
            overload.review_profile(other, soon, move || waiting.recv()).await,
            Err(ReviewFailure::Shed(Shed::Deadline))
        ));
        go_on.send(()).unwrap();
    }

    #[tokio::test]
    async fn large_decision_is_charged_on_its_thread() {
        let metrics = OverloadMetrics::register(&mut Registry::default());
        let settings = OverloadSettings { workers: Some(1), ..OverloadSettings::default() };
        let overload = Overload::new(settings, Gauge::default(), metrics);
        let body = Bytes::from(vec![b' '; 2 * SMALL]);
        let class = request::class(&overload.keys, &body);
        let far = overload.deadline(None);
        // The requests of another namespace keep the queue from becoming empty, which would end all debts.
        let mut other = br#"{"request":{"namespace":"other"}}"#.to_vec();
        other.resize(2 * SMALL, b' ');
        let other = Bytes::from(other);
        assert_ne!(request::class(&overload.keys, &other), class);
        let first = overload.permit(&body, far);
        let (second, third) = (overload.permit(&other, far), overload.permit(&other, far));
        tokio::pin!(first, second, third);
        assert!(futures::poll!(first.as_mut()).is_pending());
        assert!(futures::poll!(second.as_mut()).is_pending() && futures::poll!(third.as_mut()).is_pending());
        let time = Duration::from_millis(10);
        // Each thread has its own clock of processor time. If the start were read from this thread's clock, the work
        // would seem to be free.
        decision_queue::compute_for(2 * time);
        let permit = first.await.unwrap();
        overload.offload(permit, move || decision_queue::compute_for(time)).await.unwrap();
        let (debt, cost) = (overload.large.debt(class), decision_queue::cost_of(time));
        assert!((cost / 2..cost * 3 / 2).contains(&debt), "{debt}, expected about {cost}");
    }

    #[test]
    fn request_permits_are_bounded_and_returned() {
        let gauge = Gauge::default();
        let permits = RequestPermits::new(2, gauge.clone());
        let (one, other) = (permits.take().unwrap(), permits.take().unwrap());
        assert!(permits.take().is_none() && permits.take().is_none());
        assert_eq!(gauge.get(), 2);
        drop(one);
        let again = permits.take();
        assert!(again.is_some() && permits.take().is_none());
        drop((again, other));
        assert_eq!((gauge.get(), permits.taken.into_inner()), (0, 0));
    }

    #[tokio::test]
    async fn panic_is_returned_and_thread_continues() {
        let pool = LargeBodyPool::new("pillion-test", 1);
        let panicked = pool.run(|| panic!("for a test")).await;
        let panicked: PanicPayload = Result::<(), _>::unwrap_err(panicked);
        assert_eq!(panicked.downcast_ref::<&str>(), Some(&"for a test"));
        assert_eq!(pool.run(|| 7).await.unwrap(), 7);
    }

    #[tokio::test]
    async fn pool_threads_have_lower_priority() {
        let own = rustix::process::nice(0).unwrap();
        let pool = LargeBodyPool::new("pillion-test", 1).run(|| rustix::process::nice(0).unwrap()).await.unwrap();
        assert_eq!(pool, (own + NICE_INCREMENT).min(19));
    }

    #[tokio::test]
    async fn all_pool_threads_run_at_once() {
        let pool = LargeBodyPool::new("pillion-test", 2);
        let barrier = Arc::new(Barrier::new(2));
        let wait = |barrier: Arc<Barrier>| move || barrier.wait().is_leader();
        // Each job waits for the other, so one thread would not suffice.
        let leaders = tokio::join!(pool.run(wait(Arc::clone(&barrier))), pool.run(wait(barrier)));
        assert!(leaders.0.unwrap() != leaders.1.unwrap());
    }
}
