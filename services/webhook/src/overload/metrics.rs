//! Metrics of overload.

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

use super::Shed;
use crate::histogram::Histogram;

/// Nanoseconds, 100 us to 10 s. Without overload, a permit comes within a few decisions of some 50 us.
const WAIT_BUCKETS: [u64; 6] = [100_000, 1_000_000, 10_000_000, 100_000_000, 1_000_000_000, 10_000_000_000];

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ReasonLabel {
    reason: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct SizeLabel {
    size: &'static str,
}

/// The metrics of overload.
#[derive(Clone, Debug)]
pub struct OverloadMetrics {
    shed: [Counter; Shed::ALL.len()],
    pub(super) small: QueueMetrics,
    pub(super) large: QueueMetrics,
}

/// The metrics of one queue.
#[derive(Clone, Debug)]
pub(super) struct QueueMetrics {
    /// Requests that wait for a permit.
    pub(super) queued: Gauge,
    /// Waiting times of queued requests, with and without a permit in the end.
    pub(super) waited: Histogram,
}

impl QueueMetrics {
    /// Metrics that are not exported.
    pub(super) fn unregistered() -> Self {
        Self { queued: Gauge::default(), waited: Histogram::seconds(&WAIT_BUCKETS) }
    }
}

impl OverloadMetrics {
    /// Creates the metrics and registers them under the registry's own prefix.
    pub fn register(registry: &mut Registry) -> Self {
        let family = Family::<ReasonLabel, Counter>::default();
        registry.register(
            "shed",
            "Requests that were turned away with 503, by the bound that they met",
            family.clone(),
        );
        let shed = Shed::ALL.map(|shed| family.get_or_create_owned(&ReasonLabel { reason: shed.as_str() }));

        let queued = Family::<SizeLabel, Gauge>::default();
        registry.register("queued", "Requests that wait for their turn to be decided, by size", queued.clone());
        let waited = Family::<SizeLabel, Histogram>::new_with_constructor(|| Histogram::seconds(&WAIT_BUCKETS));
        registry.register(
            "queue_wait_seconds",
            "How long requests waited for their turn to be decided, in seconds; only those that had to wait",
            waited.clone(),
        );
        let queue = |size| QueueMetrics {
            queued: queued.get_or_create_owned(&SizeLabel { size }),
            waited: waited.get_or_create_owned(&SizeLabel { size }),
        };
        Self { shed, small: queue("small"), large: queue("large") }
    }

    #[expect(clippy::indexing_slicing, reason = "a fieldless enum's discriminant is its place in ALL")]
    pub(crate) fn count(&self, shed: Shed) {
        self.shed[shed as usize].inc();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_reason_is_counted_under_its_own_name() {
        let mut registry = Registry::with_prefix("pillion");
        let metrics = OverloadMetrics::register(&mut registry);
        for (times, shed) in Shed::ALL.into_iter().enumerate() {
            (0..=times).for_each(|_| metrics.count(shed));
        }
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
        for (times, shed) in Shed::ALL.into_iter().enumerate() {
            let line = format!("pillion_shed_total{{reason=\"{}\"}} {}\n", shed.as_str(), times + 1);
            assert!(text.contains(&line), "{line} is not in\n{text}");
        }
    }
}
