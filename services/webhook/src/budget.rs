//! Bounds the memory of all request bodies together, over all connections.
//!
//! Each body is bounded, and so is the number of connections, but their product exceeds any machine's memory. So a body
//! takes its share of one budget as its bytes arrive, never before, and returns it when the request is answered. Large
//! bodies leave a part of the budget to small ones: most reviews have a few kilobytes and must be answered while
//! another client sends large ones slowly.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use prometheus_client::metrics::gauge::Gauge;

/// Bytes up to which a body may use the whole budget. A pod's review has some 8 KiB.
pub(crate) const SMALL: usize = 128 * 1024;

/// Bytes that bodies may take together.
#[derive(Debug)]
pub(crate) struct Budget {
    limit: usize,
    /// The limit for bodies that are not [`SMALL`]: bytes in use, including their own.
    large_limit: usize,
    taken: AtomicUsize,
    /// Exports `taken` as a metric.
    gauge: Gauge,
}

/// The part of the budget that one body uses. Returned on drop.
#[derive(Debug)]
pub(crate) struct Share {
    budget: Arc<Budget>,
    bytes: usize,
}

/// The budget has too few bytes left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Exhausted {
    /// Bytes that would have to be released first.
    pub(crate) missing: usize,
}

impl Budget {
    pub(crate) fn new(limit: usize, gauge: Gauge) -> Arc<Self> {
        Arc::new(Self { limit, large_limit: limit / 4 * 3, taken: AtomicUsize::new(0), gauge })
    }

    /// Returns an empty share.
    pub(crate) fn share(self: &Arc<Self>) -> Share {
        Share { budget: Arc::clone(self), bytes: 0 }
    }
}

impl Share {
    /// Grows the share to this size, and never shrinks it. On an error it stays unchanged.
    pub(crate) fn grow_to(&mut self, bytes: usize) -> Result<(), Exhausted> {
        let Some(more) = bytes.checked_sub(self.bytes).filter(|more| *more > 0) else { return Ok(()) };
        let Budget { limit, large_limit, taken, gauge } = &*self.budget;
        let limit = if bytes <= SMALL { *limit } else { *large_limit };
        let fits = |taken: usize| taken.checked_add(more).filter(|taken| *taken <= limit);
        let refused = taken.fetch_update(Ordering::Relaxed, Ordering::Relaxed, fits);
        refused.map_err(|taken| Exhausted { missing: taken.saturating_add(more).saturating_sub(limit) })?;
        gauge.inc_by(i64::try_from(more).unwrap_or(i64::MAX));
        self.bytes = bytes;
        Ok(())
    }

    /// The size of the share in bytes.
    pub(crate) const fn bytes(&self) -> usize {
        self.bytes
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.budget.taken.fetch_sub(self.bytes, Ordering::Relaxed);
        self.budget.gauge.dec_by(i64::try_from(self.bytes).unwrap_or(i64::MAX));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_never_exceed_the_limit_and_are_given_back() {
        let gauge = Gauge::default();
        let budget = Budget::new(4 * SMALL, gauge.clone());
        let (mut one, mut other, mut small) = (budget.share(), budget.share(), budget.share());
        one.grow_to(2 * SMALL).unwrap();
        other.grow_to(SMALL).unwrap();
        assert_eq!(other.grow_to(SMALL + 1), Err(Exhausted { missing: 1 }), "a large one leaves a quarter");
        assert_eq!(gauge.get(), i64::try_from(3 * SMALL).unwrap(), "what was refused was not taken");
        small.grow_to(SMALL).unwrap();
        assert_eq!(budget.share().grow_to(1), Err(Exhausted { missing: 1 }));
        small.grow_to(1).unwrap();
        drop(one);
        other.grow_to(2 * SMALL).unwrap();
        drop((other, small));
        assert_eq!(gauge.get(), 0);
    }

    #[test]
    fn no_size_overflows() {
        let budget = Budget::new(usize::MAX, Gauge::default());
        let mut one = budget.share();
        one.grow_to(1).unwrap();
        assert!(budget.share().grow_to(usize::MAX).is_err());
    }
}
