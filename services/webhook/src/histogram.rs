//! Histograms without a lock that keep the latest trace of each bucket as an exemplar.
//!
//! The client library's histogram takes a lock for each observation, and a scrape holds that lock while it writes. Its
//! histogram with exemplars takes two. Here an observation is two additions. An exemplar is one more pointer store, and
//! only traced requests have one.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use arc_swap::ArcSwapOption;
use opentelemetry::trace::TraceId;
use prometheus_client::encoding::{EncodeMetric, MetricEncoder, NoLabelSet};
use prometheus_client::metrics::{MetricType, TypedMetric};

/// A histogram of sizes in bytes or of durations.
#[derive(Clone, Debug)]
pub struct Histogram(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    /// Upper bounds in the counted unit (bytes, nanoseconds). Values above them go to one more bucket.
    bounds: &'static [u64],
    /// Counted units for each exported unit: 10⁹ nanoseconds are a second.
    scale: f64,
    buckets: Box<[AtomicU64]>,
    sum: AtomicU64,
    exemplars: Box<[ArcSwapOption<Exemplar>]>,
}

/// A measured request with its trace.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Exemplar {
    pub(crate) trace: TraceId,
    /// In the exported unit.
    pub(crate) value: f64,
    pub(crate) at: SystemTime,
}

impl Histogram {
    /// Returns a histogram of sizes in bytes with these upper bounds.
    pub(crate) fn bytes(bounds: &'static [u64]) -> Self {
        Self::new(bounds, 1.0)
    }

    /// Returns a histogram of durations. The bounds are nanoseconds; seconds are exported.
    pub(crate) fn seconds(bounds: &'static [u64]) -> Self {
        Self::new(bounds, 1e9)
    }

    fn new(bounds: &'static [u64], scale: f64) -> Self {
        Self(Arc::new(Inner {
            bounds,
            scale,
            buckets: (0..=bounds.len()).map(|_| AtomicU64::new(0)).collect(),
            sum: AtomicU64::new(0),
            exemplars: (0..=bounds.len()).map(|_| ArcSwapOption::empty()).collect(),
        }))
    }

    /// Counts a size in bytes.
    pub fn observe_bytes(&self, bytes: usize) {
        self.observe(bytes as u64);
    }

    /// Counts a duration.
    pub fn observe_time(&self, time: Duration) {
        self.observe(nanoseconds(time));
    }

    /// Counts a duration, and keeps its trace as an exemplar.
    pub(crate) fn observe_traced(&self, time: Duration, trace: TraceId) {
        let bucket = self.observe(nanoseconds(time));
        if let Some(exemplar) = self.0.exemplars.get(bucket) {
            exemplar.store(Some(Arc::new(Exemplar { trace, value: time.as_secs_f64(), at: SystemTime::now() })));
        }
    }

    /// Counts a value and returns the index of its bucket.
    fn observe(&self, value: u64) -> usize {
        let Inner { bounds, buckets, sum, .. } = &*self.0;
        let bucket = bounds.partition_point(|bound| *bound < value);
        if let Some(bucket) = buckets.get(bucket) {
            bucket.fetch_add(1, Ordering::Relaxed);
        }
        sum.fetch_add(value, Ordering::Relaxed);
        bucket
    }

    /// Returns the exported upper bounds, each with the count of its own bucket (not cumulative).
    fn counted(&self) -> Vec<(f64, u64)> {
        let counts = self.0.buckets.iter().map(|bucket| bucket.load(Ordering::Relaxed));
        self.shown_bounds().zip(counts).collect()
    }

    fn shown_bounds(&self) -> impl Iterator<Item = f64> {
        self.0.bounds.iter().map(|bound| as_shown(*bound, self.0.scale)).chain([f64::INFINITY])
    }

    /// Returns the latest trace of each bucket that has one, with the bucket's upper bound.
    pub(crate) fn exemplars(&self) -> impl Iterator<Item = (f64, Arc<Exemplar>)> {
        let exemplars = self.0.exemplars.iter().map(ArcSwapOption::load_full);
        self.shown_bounds().zip(exemplars).filter_map(|(bound, exemplar)| Some((bound, exemplar?)))
    }
}

fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

#[expect(clippy::cast_precision_loss, reason = "what is shown is a floating-point number")]
fn as_shown(value: u64, scale: f64) -> f64 {
    value as f64 / scale
}

impl TypedMetric for Histogram {
    const TYPE: MetricType = MetricType::Histogram;
}

impl EncodeMetric for Histogram {
    fn encode(&self, mut encoder: MetricEncoder<'_>) -> Result<(), fmt::Error> {
        let sum = as_shown(self.0.sum.load(Ordering::Relaxed), self.0.scale);
        let buckets = self.counted();
        let count = buckets.iter().map(|(_, count)| count).sum();
        encoder.encode_histogram::<NoLabelSet>(sum, count, &buckets, None)
    }

    fn metric_type(&self) -> MetricType {
        Self::TYPE
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_falls_into_the_first_bucket_that_is_not_below_it() {
        let histogram = Histogram::bytes(&[10, 20]);
        for bytes in [0, 10, 11, 20, 21, 1_000_000] {
            histogram.observe_bytes(bytes);
        }
        assert_eq!(histogram.counted(), [(10.0, 2), (20.0, 2), (f64::INFINITY, 2)]);
        assert_eq!(histogram.0.sum.load(Ordering::Relaxed), 1_000_062);
    }

    #[test]
    fn times_are_shown_in_seconds_and_a_trace_stays_with_its_bucket() {
        let histogram = Histogram::seconds(&[100_000, 2_500_000]);
        let trace = TraceId::from_bytes([7; 16]);
        histogram.observe_time(Duration::from_micros(50));
        histogram.observe_traced(Duration::from_millis(1), trace);
        histogram.observe_time(Duration::from_millis(2));
        assert_eq!(histogram.counted(), [(0.0001, 1), (0.0025, 2), (f64::INFINITY, 0)]);
        let exemplars: Vec<_> = histogram.exemplars().collect();
        let [(bound, exemplar)] = exemplars.as_slice() else { panic!("{exemplars:?}") };
        assert!((*bound - 0.0025).abs() < 1e-12 && exemplar.trace == trace && (exemplar.value - 0.001).abs() < 1e-12);
    }

    #[test]
    fn threads_lose_no_count() {
        let histogram = Histogram::bytes(&[10]);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| (0..10_000).for_each(|_| histogram.observe_bytes(3)));
            }
        });
        assert_eq!(histogram.counted(), [(10.0, 40_000), (f64::INFINITY, 0)]);
        assert_eq!(histogram.0.sum.load(Ordering::Relaxed), 120_000);
    }
}
