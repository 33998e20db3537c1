//! Places for requests that are being answered: so many and no more.

use std::sync::atomic::{AtomicUsize, Ordering};

use prometheus_client::metrics::gauge::Gauge;

/// Places for requests that are being answered.
#[derive(Debug)]
pub(crate) struct Places {
    limit: usize,
    taken: AtomicUsize,
    /// The same as `taken`, for people.
    gauge: Gauge,
}

/// A place. Dropped with the answer, or when the client goes away, it is given back.
#[derive(Debug)]
pub(crate) struct Place<'p>(&'p Places);

impl Places {
    pub(crate) fn new(limit: usize, gauge: Gauge) -> Self {
        Self { limit, taken: AtomicUsize::new(0), gauge }
    }

    /// A place, if there is one.
    pub(crate) fn take(&self) -> Option<Place<'_>> {
        if self.taken.fetch_add(1, Ordering::Relaxed) >= self.limit {
            self.taken.fetch_sub(1, Ordering::Relaxed);
            return None;
        }
        self.gauge.inc();
        Some(Place(self))
    }
}

impl Drop for Place<'_> {
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
        let places = Places::new(2, gauge.clone());
        let (one, other) = (places.take().unwrap(), places.take().unwrap());
        assert!(places.take().is_none() && places.take().is_none());
        assert_eq!(gauge.get(), 2);
        drop(one);
        let again = places.take();
        assert!(again.is_some() && places.take().is_none());
        drop((again, other));
        assert_eq!((gauge.get(), places.taken.into_inner()), (0, 0));
    }

    #[test]
    fn of_no_places_none_is_given() {
        assert!(Places::new(0, Gauge::default()).take().is_none());
    }
}
