//! Stores the candidates of namespaces, each distinct set once.
//!
//! With thousands of profiles for some namespaces only, the candidates of one namespace take hundreds of bytes, and ten
//! thousand namespaces share a few hundred distinct sets.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, PoisonError};

use crate::select::candidates::Candidates;

/// Below this size, unused entries are not searched for.
const FEW: usize = 64;

/// The candidates of one set of profiles. Namespaces hold weak references, so a set of profiles that is no longer
/// served is freed with its pool.
#[derive(Debug, Default)]
pub(super) struct CandidatesPool {
    known: Mutex<HashSet<Arc<Candidates>>>,
}

impl CandidatesPool {
    /// Returns the stored candidates that are equal, or stores these.
    pub(super) fn share(&self, candidates: Candidates) -> Arc<Candidates> {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = known.get(&candidates) {
            return Arc::clone(known);
        }
        // Before the table grows: entries that no namespace caches and no request uses belong to namespaces that
        // changed.
        if known.len() >= FEW && known.len() == known.capacity() {
            known.retain(|candidates| Arc::weak_count(candidates) > 0 || Arc::strong_count(candidates) > 1);
        }
        let candidates = Arc::new(candidates);
        known.insert(Arc::clone(&candidates));
        candidates
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.known.lock().unwrap_or_else(PoisonError::into_inner).len()
    }
}
