//! The reasons for shedding a request, and the metrics of shed and queued requests.

use std::fmt;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

use crate::counters::Counters;

pillion_api::labelled! {
    /// Why a request was rejected with 503.
    pub(crate) enum Shed {
        /// The limit of concurrent requests is reached.
        InFlight => "in_flight",
        /// Too many bodies were incomplete, in total or from one client address, and the request's body was the oldest
        /// of them.
        Unfinished => "incomplete_body",
        /// The queue for permits is full, or a later request displaced this one from the full queue. For the review of
        /// a profile, also: the client address has its maximum number of queued reviews.
        QueueFull => "queue_full",
        /// The request's namespace has its maximum number of queued requests.
        TenantQueueFull => "tenant_queue_full",
        /// The request's deadline passed before the request was decided.
        Deadline => "deadline",
        /// The memory budget for bodies is exhausted, or the request's incomplete body was evicted to free memory for
        /// another one.
        NoMemory => "no_memory",
        /// The replica has not finished its start. For example, it has not loaded all profiles and namespaces yet.
        NotReady => "not_ready",
        /// The lookup of the request's namespace failed, and the failure mode of the called path requires the
        /// namespace. The namespace is missing from the snapshot, or has a different failure mode there.
        Namespace => "namespace_unknown",
    }
}

impl Shed {
    /// Whether to send `Retry-After`. After the deadline the header is useless, because the client no longer waits.
    pub(crate) const fn sends_retry_after(self) -> bool {
        !matches!(self, Self::Deadline)
    }
}

impl fmt::Display for Shed {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::InFlight => "the limit of concurrent requests is reached: try again",
            Self::Unfinished => {
                "too many requests are still sending their bodies, and this one was the oldest: send the body \
                 at once, and try again"
            }
            Self::QueueFull => "the queue of waiting requests is full: try again",
            Self::TenantQueueFull => "the queue of this namespace's waiting requests is full: try again",
            Self::Deadline => "the caller's deadline passed before the request was decided",
            Self::NoMemory => "the memory for request bodies is exhausted: try again",
            Self::Namespace => "this replica does not have the namespace yet, and its lookup failed: try again",
            Self::NotReady => "this replica has not loaded all profiles and namespaces yet: try again",
        })
    }
}

/// Bucket bounds in seconds. Without overload, a queued request waits for a few decisions of about 50 µs each.
const WAIT_BUCKETS: [f64; 6] = [0.0001, 0.001, 0.01, 0.1, 1.0, 10.0];

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct SizeLabel {
    size: &'static str,
}

/// The metrics of shed and queued requests.
#[derive(Clone, Debug)]
pub(crate) struct OverloadMetrics {
    shed: Counters<{ Shed::ALL.len() }>,
    pub(super) small: QueueMetrics,
    pub(super) large: QueueMetrics,
}

/// The metrics of one queue.
#[derive(Clone, Debug)]
pub(super) struct QueueMetrics {
    /// Requests that wait for a permit.
    pub(super) queued: Gauge,
    /// How long requests waited in the queue, in seconds. Includes requests that got no permit.
    pub(super) waited: Histogram,
}

impl QueueMetrics {
    /// Creates metrics that are not exported.
    pub(super) fn unregistered() -> Self {
        Self { queued: Gauge::default(), waited: Histogram::new(WAIT_BUCKETS) }
    }
}

impl OverloadMetrics {
    /// Creates the metrics and registers them in `registry`, which already has the prefix.
    pub(crate) fn register(registry: &mut Registry) -> Self {
        let shed = Counters::register(
            registry,
            "shed_requests",
            "Requests that the replica shed with HTTP 503, by reason",
            "reason",
            Shed::ALL.map(Shed::as_str),
        );
        let queued = Family::<SizeLabel, Gauge>::default();
        registry.register("queued_requests", "Requests that wait for a decision permit, by size", queued.clone());
        let waited = Family::<SizeLabel, Histogram>::new_with_constructor(|| Histogram::new(WAIT_BUCKETS));
        registry.register(
            "queue_wait_seconds",
            "Time that queued requests waited for a permit, by size of the request",
            waited.clone(),
        );
        let queue = |size| QueueMetrics {
            queued: queued.get_or_create_owned(&SizeLabel { size }),
            waited: waited.get_or_create_owned(&SizeLabel { size }),
        };
        Self { shed, small: queue("small"), large: queue("large") }
    }

    pub(crate) fn count(&self, shed: Shed) {
        self.shed.count(shed as usize);
    }
}
