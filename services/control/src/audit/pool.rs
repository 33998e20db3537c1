//! Interns values that many pods share, since the pods of a workload are alike.

use std::collections::HashSet;
use std::hash::Hash;
use std::sync::Arc;

/// Number of values from which unused ones are searched for.
const LEAST: usize = 256;

/// Shared values. Unused values are removed from time to time.
#[derive(Debug)]
pub(super) struct Pool<T> {
    known: HashSet<Arc<T>>,
    sweep_at: usize,
}

impl<T> Default for Pool<T> {
    fn default() -> Self {
        Self { known: HashSet::new(), sweep_at: LEAST }
    }
}

impl<T: Hash + Eq> Pool<T> {
    /// Returns the shared value that equals this one; shares this one if there is none.
    pub(super) fn share(&mut self, value: T) -> Arc<T> {
        if let Some(known) = self.known.get(&value) {
            return Arc::clone(known);
        }
        if self.known.len() >= self.sweep_at {
            self.known.retain(|known| Arc::strong_count(known) > 1);
            self.known.shrink_to(self.known.len() * 2);
            self.sweep_at = LEAST.max(self.known.len() * 2);
        }
        let value = Arc::new(value);
        self.known.insert(Arc::clone(&value));
        value
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.known.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_the_same_is_kept_once_and_what_nobody_has_is_forgotten() {
        let mut pool = Pool::default();
        let first = pool.share("a".to_owned());
        assert!(Arc::ptr_eq(&first, &pool.share("a".to_owned())));
        for number in 0..10_000 {
            pool.share(number.to_string());
        }
        assert!(pool.len() <= LEAST + 1, "{}", pool.len());
        assert!(Arc::ptr_eq(&first, &pool.share("a".to_owned())));
    }
}
