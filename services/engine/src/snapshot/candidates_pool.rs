//! What namespaces get, kept once for all that get the same.
//!
//! With thousands of profiles that are for some namespaces only, what one namespace gets is a list of hundreds of bytes,
//! and ten thousand namespaces have a few hundred different ones among them.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, PoisonError};

use crate::select::candidates::Candidates;

/// With fewer than so many it is not worth looking for those that nobody needs any more.
const FEW: usize = 64;

/// The candidates of one set of profiles. Namespaces remember theirs without keeping them, so that a set that is not
/// served any more goes away with its pool, whoever asked for it last.
#[derive(Debug, Default)]
pub(super) struct CandidatesPool {
    known: Mutex<HashSet<Arc<Candidates>>>,
}

impl CandidatesPool {
    /// The same, kept once.
    pub(super) fn share(&self, candidates: Candidates) -> Arc<Candidates> {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = known.get(&candidates) {
            return Arc::clone(known);
        }
        // Before the table grows: what no namespace remembers and no request uses is of namespaces that have changed.
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
