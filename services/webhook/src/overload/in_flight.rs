//! Limits how many requests are answered at one time.

use std::sync::atomic::{AtomicUsize, Ordering};

use prometheus_client::metrics::gauge::Gauge;

/// The permits for requests that are being answered.
#[derive(Debug)]
pub(crate) struct RequestPermits {
    limit: usize,
    taken: AtomicUsize,
    /// Exports `taken` as a metric.
    gauge: Gauge,
}

/// A permit to answer a request. It is returned when it is dropped: with the response, or when the client disconnects.
#[derive(Debug)]
pub(crate) struct RequestPermit<'p>(&'p RequestPermits);

impl RequestPermits {
    pub(crate) fn new(limit: usize, gauge: Gauge) -> Self {
        Self { limit, taken: AtomicUsize::new(0), gauge }
    }

    /// Returns a permit, or none if all are taken.
    pub(crate) fn take(&self) -> Option<RequestPermit<'_>> {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_are_so_many_and_one_given_back_is_there_again() {
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

    #[test]
    fn of_no_places_none_is_given() {
        assert!(RequestPermits::new(0, Gauge::default()).take().is_none());
    }
}
