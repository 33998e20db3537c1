//! Limits the memory of namespaced profiles, for each namespace and for all namespaces together.
//!
//! Every replica has the compiled profiles in memory. Without a limit, one namespace with many large profiles would
//! exhaust the memory of all replicas. A limit only rejects new profiles and new versions of profiles. It never removes
//! accepted ones.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The memory limits for namespaced profiles.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Bytes for the profiles of one namespace.
    pub of_namespace: usize,
    /// Bytes for the profiles of all namespaces together. A namespace gets at most half of the bytes that the other
    /// namespaces do not use, or 64 KiB if half is less.
    pub of_all: usize,
}

impl Default for Limits {
    /// 16 MiB for one namespace, and 128 MiB for all namespaces.
    fn default() -> Self {
        Self { of_namespace: 16 << 20, of_all: 128 << 20 }
    }
}

/// Bytes that each namespace gets even if half of the free memory is less. A profile may also grow by this many bytes.
const SMALL: usize = 64 << 10;

/// Grants memory to profiles, and counts the granted bytes of each namespace.
#[derive(Debug, Default)]
pub struct Shares {
    limits: Limits,
    of_all: Arc<AtomicUsize>,
    of_namespaces: HashMap<Box<str>, Arc<AtomicUsize>>,
}

/// Memory granted to a profile. It is released when the last clone is dropped.
#[derive(Clone, Debug)]
pub struct Grant(Arc<Granted>);

#[derive(Debug)]
struct Granted {
    bytes: usize,
    /// The bytes used by the namespace, and by all namespaces.
    taken: [Arc<AtomicUsize>; 2],
}

impl Shares {
    /// Creates shares without any grant.
    #[must_use]
    pub fn new(limits: Limits) -> Self {
        Self { limits, ..Self::default() }
    }

    /// Checks that a namespace may have `bytes`. These bytes replace the grant `replaced`, if there is one.
    ///
    /// A namespace gets up to [`Limits::of_namespace`], and at most half of the bytes of [`Limits::of_all`] that the
    /// other namespaces do not use. So a few large namespaces do not take all memory. While memory is free, each
    /// namespace gets at least 64 KiB, and a replacement may be up to 64 KiB larger. A replacement that is not larger
    /// is always allowed.
    ///
    /// # Errors
    /// Returns the bytes that all profiles of the namespace may take now.
    pub(crate) fn fits(&self, namespace: &str, bytes: usize, replaced: Option<&Grant>) -> Result<(), usize> {
        let freed = replaced.map_or(0, |grant| grant.0.bytes);
        if bytes <= freed {
            return Ok(());
        }
        let taken = self.of_namespaces.get(namespace).map_or(0, |taken| taken.load(Ordering::Relaxed));
        let taken_by_others = self.of_all.load(Ordering::Relaxed).saturating_sub(taken);
        let free = self.limits.of_all.saturating_sub(taken_by_others);
        let small = if replaced.is_some() { taken.saturating_add(SMALL) } else { SMALL };
        let limit = self.limits.of_namespace.min((free / 2).max(small.min(free)));
        let after = taken.saturating_sub(freed).saturating_add(bytes);
        if after <= limit { Ok(()) } else { Err(limit) }
    }

    /// Grants these bytes even beyond the limits. Callers use it for profiles that were accepted before, or that fit.
    /// The caller drops the replaced grant afterwards.
    pub(crate) fn grant(&mut self, namespace: &str, bytes: usize) -> Grant {
        if !self.of_namespaces.contains_key(namespace) {
            // Remove the totals of namespaces that no longer have profiles.
            self.of_namespaces.retain(|_, taken| Arc::strong_count(taken) > 1);
        }
        let of_namespace = self.of_namespaces.entry(namespace.into()).or_default();
        let taken = [Arc::clone(of_namespace), Arc::clone(&self.of_all)];
        for taken in &taken {
            taken.fetch_add(bytes, Ordering::Relaxed);
        }
        Grant(Arc::new(Granted { bytes, taken }))
    }
}

impl Grant {
    /// Returns the bytes of the grant.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.0.bytes
    }
}

impl Drop for Granted {
    fn drop(&mut self) {
        for taken in &self.taken {
            taken.fetch_sub(self.bytes, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn grants_are_bounded_and_given_back() {
        let mut shares = Shares::new(Limits { of_namespace: 10, of_all: 1000 });
        let first = shares.grant("a", 6);
        assert_eq!(shares.fits("a", 5, None), Err(10));
        // An edit replaces the earlier grant.
        assert_eq!(shares.fits("a", 10, Some(&first)), Ok(()));
        let edited = shares.grant("a", 10);
        drop(first);
        let clone = edited.clone();
        drop(edited);
        assert_eq!(shares.fits("a", 1, None), Err(10));
        drop(clone);
        assert_eq!(shares.fits("a", 10, None), Ok(()));
        drop(shares.grant("c", 1));
        assert_eq!(shares.of_namespaces.len(), 1, "{shares:?}");
    }

    #[test]
    fn profile_may_grow_slightly_while_memory_lasts() {
        let mut shares = Shares::new(Limits { of_namespace: 16 << 20, of_all: 32 << 20 });
        let first = shares.grant("a", 10 << 20);
        let _others = shares.grant("b", 15 << 20);
        assert_eq!(shares.fits("a", 1, None), Err(17 << 19));
        assert_eq!(shares.fits("a", (10 << 20) + SMALL, Some(&first)), Ok(()));
        assert!(shares.fits("a", (10 << 20) + SMALL + 1, Some(&first)).is_err());
    }

    #[test]
    fn large_namespaces_leave_memory_to_others() {
        let mut shares = Shares::new(Limits { of_namespace: 16 << 20, of_all: 128 << 20 });
        let mut grants = Vec::new();
        for namespace in 0..14 {
            let namespace = format!("greedy-{namespace}");
            let most = shares.fits(&namespace, usize::MAX, None).unwrap_err();
            assert_eq!(shares.fits(&namespace, most, None), Ok(()));
            grants.push(shares.grant(&namespace, most));
        }
        assert_eq!(grants.iter().map(Grant::bytes).take(7).collect::<Vec<_>>(), [16 << 20; 7]);
        assert_eq!(shares.fits("modest", SMALL, None), Ok(()), "{shares:?}");
    }
}
