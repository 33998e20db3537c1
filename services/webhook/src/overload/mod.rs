//! Sheds load fairly: every wait is bounded, queues are fair between tenants, and a request that cannot be answered in
//! time is rejected at once.
//!
//! A request passes these parts in order: its `deadline`, the bound of `unfinished` bodies, a permit of those
//! `in_flight`, its `tenant`, and a permit to compute from one of two `decision_queue`s, each with a `fair` queue. A rejected
//! request has a [`Shed`] as its reason.

mod large_bodies;
mod deadline;
mod fair;
mod in_flight;
mod decision_queue;
mod metrics;
mod shed;
mod tenant;
mod unfinished;

use std::hash::{BuildHasher, RandomState};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use prometheus_client::metrics::gauge::Gauge;
use tokio::time::timeout_at;

use crate::budget::SMALL;
pub(crate) use deadline::Deadline;
use decision_queue::DecisionQueue;
pub(crate) use decision_queue::Permit;
pub(crate) use in_flight::RequestPermit;
use in_flight::RequestPermits;
use large_bodies::LargeBodyPool;
pub(crate) use large_bodies::Panicked;
pub use metrics::OverloadMetrics;
pub use shed::Shed;
pub(crate) use unfinished::{Bounds as UnfinishedBounds, Eviction, Unfinished, UnfinishedBodies};

/// The base cost of a request, in bytes: even a small pod takes time to decide.
const BASE_COST: u64 = 4096;

/// Limits on concurrent requests and on their time.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct OverloadSettings {
    /// The timeout if `?timeout=` is missing or invalid: 10 s, the API server's default.
    pub default_timeout: Duration,
    /// The maximum of `?timeout=`: 30 s, the longest that the API server waits.
    pub longest_timeout: Duration,
    /// How long before the caller's deadline a request is given up, so that the response still arrives: 200 ms, or a
    /// fifth of the timeout if that is less.
    pub margin: Duration,
    /// Concurrent requests with a complete body and no response yet: 1024.
    pub max_in_flight: usize,
    /// Concurrent requests with an incomplete body: 2048. Beyond that, the oldest is shed.
    pub max_unfinished: usize,
    /// The part of `max_unfinished` for one client address: 256. An API server has 200 mutating requests in flight by
    /// default, and their bodies arrive within milliseconds.
    pub max_unfinished_per_address: usize,
    /// Queued requests with a body of at most 128 KiB: 512.
    pub max_queued: usize,
    /// The part of `max_queued` for one namespace: 128.
    pub max_queued_per_tenant: usize,
    /// Queued requests with a larger body: 16.
    pub max_queued_large: usize,
    /// The part of `max_queued_large` for one namespace: 4.
    pub max_queued_large_per_tenant: usize,
    /// Queued reviews of profiles: 16, and a quarter of that for one client address.
    pub max_queued_profiles: usize,
    /// Concurrent decisions about small bodies. Large ones get half as many threads (at least one), separate from the
    /// runtime. `None`: the number of workers of the runtime in which the router is created.
    pub workers: Option<usize>,
    /// Small requests that a worker may decide on arrival before it queues further ones in a fair order: 8.
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
    /// Reviews of profiles, by client address.
    profiles: Arc<DecisionQueue>,
    profile_thread: LargeBodyPool,
    metrics: OverloadMetrics,
    /// Random keys, so that clients cannot make two namespaces share a class.
    keys: RandomState,
}

impl Overload {
    pub(crate) fn new(settings: OverloadSettings, in_flight: Gauge, metrics: OverloadMetrics) -> Self {
        let request_permits = RequestPermits::new(settings.max_in_flight, in_flight);
        let workers = settings.workers.unwrap_or_else(workers).max(1);
        let small = decision_queue::Bounds {
            slots: workers,
            unqueued: settings.unqueued_per_worker.saturating_mul(workers),
            queue: fair::Bounds {
                length: settings.max_queued,
                per_class: settings.max_queued_per_tenant,
                // About one request of a small pod.
                quantum: 2 * BASE_COST,
            },
        };
        let threads = (workers / 2).max(1);
        let large = decision_queue::Bounds {
            slots: threads,
            unqueued: 0,
            queue: fair::Bounds {
                length: settings.max_queued_large,
                per_class: settings.max_queued_large_per_tenant,
                quantum: SMALL as u64,
            },
        };
        let profiles = decision_queue::Bounds {
            slots: 1,
            unqueued: 0,
            queue: fair::Bounds {
                length: settings.max_queued_profiles,
                per_class: settings.max_queued_profiles / 4,
                quantum: BASE_COST,
            },
        };
        let profiles = DecisionQueue::new(&profiles, metrics::QueueMetrics::unregistered());
        let small = DecisionQueue::new(&small, metrics.small.clone());
        let large = DecisionQueue::new(&large, metrics.large.clone());
        let (large_bodies, profile_thread) =
            (LargeBodyPool::new("pillion-large", threads), LargeBodyPool::new("pillion-profile", 1));
        let keys = RandomState::new();
        Self { settings, request_permits, small, large, large_bodies, profiles, profile_thread, metrics, keys }
    }

    /// Returns a permit for a request whose body has arrived, or none if all are taken.
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
        let class = tenant::class(&self.keys, body);
        // Boxed because it is rare: a request that does not queue has a smaller future.
        Box::pin(queue.queued(class, BASE_COST + body.len() as u64, deadline)).await
    }

    /// Runs `work` on a thread for large bodies. The caller holds a permit.
    ///
    /// # Errors
    /// `work` panicked.
    pub(crate) async fn offload<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, Panicked> {
        self.large_bodies.run(work).await
    }

    /// Runs `work` on the thread for profiles, in an order that is fair between clients. Work that exceeds the deadline
    /// keeps its permit until it is done, but the caller does not wait for it.
    pub(crate) async fn review_profile<T: Send + 'static>(
        &self,
        client: IpAddr,
        deadline: Deadline,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<Result<T, Panicked>, Shed> {
        let class = self.keys.hash_one(client);
        let permit = self.profiles.queued(class, BASE_COST, deadline).await.map_err(|shed| match shed {
            // Its classes are client addresses, not tenants.
            Shed::TenantQueueFull => Shed::QueueFull,
            shed => shed,
        })?;
        let work = move || {
            let _permit = permit;
            work()
        };
        timeout_at(deadline.0, self.profile_thread.run(work)).await.map_err(|_| Shed::Deadline)
    }

    /// Counts a rejected request.
    pub(crate) fn count(&self, shed: Shed) {
        self.metrics.count(shed);
    }
}

/// Returns the namespace peeked from a body, if it is valid UTF-8.
pub(crate) fn namespace(body: &Bytes) -> Option<&str> {
    tenant::namespace(body).and_then(|name| std::str::from_utf8(name).ok())
}

/// Whether a body is decided on a separate thread, since that may take milliseconds.
pub(crate) const fn is_large(body: &Bytes) -> bool {
    body.len() > SMALL
}

fn workers() -> usize {
    match tokio::runtime::Handle::try_current() {
        Ok(runtime) => runtime.metrics().num_workers(),
        Err(_) => std::thread::available_parallelism().map_or(1, usize::from),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use prometheus_client::registry::Registry;

    use super::*;

    #[tokio::test]
    async fn review_of_a_profile_delays_no_pod() {
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
        // Meanwhile pods of any size are decided, and the next profile waits until its deadline.
        for size in [10, 2 * SMALL] {
            let permit = overload.permit(&Bytes::from(vec![b' '; size]), far).await.unwrap();
            assert_eq!(overload.offload(|| 7).await.unwrap(), 7);
            drop(permit);
        }
        let soon = Deadline(tokio::time::Instant::now() + Duration::from_millis(20));
        let other = IpAddr::from([192, 0, 2, 2]);
        assert!(matches!(overload.review_profile(other, soon, || ()).await, Err(Shed::Deadline)));
        go_on.send(()).unwrap();
        compiling.await.unwrap().unwrap().unwrap();
        overload.review_profile(other, far, || ()).await.unwrap().unwrap();
        // The caller does not wait for work that exceeds the deadline.
        let (go_on, waiting) = mpsc::channel::<()>();
        let soon = Deadline(tokio::time::Instant::now() + Duration::from_millis(20));
        assert!(matches!(overload.review_profile(other, soon, move || waiting.recv()).await, Err(Shed::Deadline)));
        go_on.send(()).unwrap();
    }
}
