//! The memory that profiles of namespaces may take, for each namespace and for all of them together.
//!
//! Compiled profiles are in the memory of every replica. Without a bound, one namespace with many large profiles would
//! end all of them. A limit stops what is new; what was accepted before is never taken back for it.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The bounds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Bytes for the profiles of one namespace.
    pub of_namespace: usize,
    /// Bytes for the profiles of all namespaces together.
    pub of_all: usize,
}

impl Default for Limits {
    /// 16 MiB and 128 MiB.
    fn default() -> Self {
        Self { of_namespace: 16 << 20, of_all: 128 << 20 }
    }
}

/// Grants memory to namespaces, and knows what is granted.
#[derive(Debug, Default)]
pub struct Shares {
    limits: Limits,
    of_all: Arc<AtomicUsize>,
    of_namespaces: HashMap<Box<str>, Arc<AtomicUsize>>,
}

/// Memory that a profile was granted. It is given back when the last clone is dropped.
#[derive(Clone, Debug)]
pub struct Grant(Arc<Granted>);

#[derive(Debug)]
struct Granted {
    bytes: usize,
    /// What is taken of the namespace's share, and of that of all.
    taken: [Arc<AtomicUsize>; 2],
}

/// A limit that leaves no room for a profile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exceeded {
    /// The namespace's share, which is so many bytes.
    Namespace(usize),
    /// What there is for all namespaces together, which is so many bytes.
    All(usize),
}

impl Shares {
    /// With these limits.
    #[must_use]
    pub fn new(limits: Limits) -> Self {
        Self { limits, ..Self::default() }
    }

    /// Whether there is room for so many bytes in the place of an earlier grant.
    ///
    /// # Errors
    /// The limit that leaves no room.
    pub fn fits(&self, namespace: &str, bytes: usize, instead_of: Option<&Grant>) -> Result<(), Exceeded> {
        let freed = instead_of.map_or(0, |grant| grant.0.bytes);
        let after = |taken: &AtomicUsize| taken.load(Ordering::Relaxed).saturating_sub(freed).saturating_add(bytes);
        let Limits { of_namespace, of_all } = self.limits;
        // What takes no more than before is never refused: limits may have become lower.
        if bytes <= freed {
            return Ok(());
        }
        if self.of_namespaces.get(namespace).map_or(bytes, |taken| after(taken)) > of_namespace {
            return Err(Exceeded::Namespace(of_namespace));
        }
        if after(&self.of_all) > of_all {
            return Err(Exceeded::All(of_all));
        }
        Ok(())
    }

    /// Grants so many bytes, also beyond the limits: for what was accepted before, or fits. The grant that this one replaces
    /// has to be dropped afterwards.
    pub fn grant(&mut self, namespace: &str, bytes: usize) -> Grant {
        if !self.of_namespaces.contains_key(namespace) {
            // Nothing is kept of namespaces that have no profiles any more.
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
    /// How much was granted.
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
    fn what_is_granted_is_bounded_and_given_back() {
        let mut shares = Shares::new(Limits { of_namespace: 10, of_all: 15 });
        let first = shares.grant("a", 6);
        assert_eq!(shares.fits("a", 5, None), Err(Exceeded::Namespace(10)));
        // An edit counts in the place of what it replaces.
        assert_eq!(shares.fits("a", 10, Some(&first)), Ok(()));
        let edited = shares.grant("a", 10);
        drop(first);
        assert_eq!(shares.fits("b", 6, None), Err(Exceeded::All(15)));
        let other = shares.grant("b", 5);
        let clone = edited.clone();
        drop(edited);
        assert_eq!(shares.fits("a", 1, None), Err(Exceeded::Namespace(10)));
        drop(clone);
        assert_eq!(shares.fits("a", 10, None), Ok(()));
        drop(other);
        drop(shares.grant("c", 1));
        assert_eq!(shares.of_namespaces.len(), 1, "{shares:?}");
    }
}
