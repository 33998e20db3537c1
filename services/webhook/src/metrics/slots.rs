//! Counters for names that come and go (namespaces, profiles), for a limited number at one time; further names are
//! counted together.
//!
//! Counting takes no lock: a name with a slot is found in a map that is replaced as a whole, and a name without room is
//! counted as [`OTHER`]. Only a name that gets its slot, once, waits for others that do.
//!
//! A slot is released at a scrape that finds its name gone for [`GRACE`]: by then every Prometheus has read its last
//! value. The value is not added to the names counted together, where it would look like a burst; a sum over rates
//! loses nothing.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;

/// The name for everything without a slot. Kubernetes names cannot begin with `_`.
pub(super) const OTHER: &str = "_other";

/// How long the series of a deleted name are kept.
pub(super) const GRACE: Duration = Duration::from_mins(5);

#[derive(Debug)]
pub(super) struct Slots<C> {
    max: usize,
    taken: ArcSwap<HashMap<Arc<str>, Arc<Slot<C>>>>,
    other: Arc<Slot<C>>,
    /// Held while the map is replaced.
    changing: Mutex<()>,
}

/// The counters of one name.
#[derive(Debug, Default)]
pub(super) struct Slot<C> {
    pub(super) counters: C,
    /// When a scrape first found the name deleted.
    gone: Mutex<Option<Instant>>,
}

impl<C: Default> Slots<C> {
    pub(super) fn new(max: usize) -> Self {
        Self { max, taken: ArcSwap::default(), other: Arc::default(), changing: Mutex::new(()) }
    }

    /// Returns the counters of a name. The caller must know that it exists, so that clients cannot invent names.
    pub(super) fn of(&self, name: &str) -> Arc<Slot<C>> {
        let taken = self.taken.load();
        match taken.get(name) {
            Some(slot) => Arc::clone(slot),
            None if taken.len() >= self.max => Arc::clone(&self.other),
            None => self.take(name),
        }
    }

    /// Returns the counters for all names without a slot.
    pub(super) fn other(&self) -> Arc<Slot<C>> {
        Arc::clone(&self.other)
    }

    fn take(&self, name: &str) -> Arc<Slot<C>> {
        let _changing = self.changing.lock().unwrap_or_else(PoisonError::into_inner);
        let taken = self.taken.load();
        // Another thread may have added it meanwhile.
        if let Some(slot) = taken.get(name) {
            return Arc::clone(slot);
        }
        if taken.len() >= self.max {
            return Arc::clone(&self.other);
        }
        let slot = Arc::<Slot<C>>::default();
        let mut more = HashMap::clone(&taken);
        more.insert(name.into(), Arc::clone(&slot));
        self.taken.store(Arc::new(more));
        slot
    }

    /// Releases the slots of names that were deleted at least [`GRACE`] ago.
    pub(super) fn release(&self, now: Instant, exists: impl Fn(&str) -> bool) {
        let _changing = self.changing.lock().unwrap_or_else(PoisonError::into_inner);
        let taken = self.taken.load();
        let stays = |name: &str, slot: &Slot<C>| {
            let mut gone = slot.gone.lock().unwrap_or_else(PoisonError::into_inner);
            if exists(name) {
                *gone = None;
                return true;
            }
            now.duration_since(*gone.get_or_insert(now)) < GRACE
        };
        let left: HashMap<_, _> = taken
            .iter()
            .filter(|(name, slot)| stays(name, slot))
            .map(|(name, slot)| (Arc::clone(name), Arc::clone(slot)))
            .collect();
        if left.len() < taken.len() {
            self.taken.store(Arc::new(left));
        }
    }

    /// Returns all names that have a slot, sorted, followed by [`OTHER`].
    pub(super) fn all(&self) -> Vec<(Arc<str>, Arc<Slot<C>>)> {
        let taken = self.taken.load();
        let mut all: Vec<_> = taken.iter().map(|(name, slot)| (Arc::clone(name), Arc::clone(slot))).collect();
        all.sort_unstable_by(|(one, _), (other, _)| one.cmp(other));
        all.push((OTHER.into(), Arc::clone(&self.other)));
        all
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;

    fn count(slots: &Slots<AtomicU64>, name: &str) {
        slots.of(name).counters.fetch_add(1, Ordering::Relaxed);
    }

    fn shown(slots: &Slots<AtomicU64>) -> Vec<(String, u64)> {
        let all = slots.all().into_iter();
        all.map(|(name, slot)| (name.to_string(), slot.counters.load(Ordering::Relaxed))).collect()
    }

    fn pairs(pairs: &[(&str, u64)]) -> Vec<(String, u64)> {
        pairs.iter().map(|(name, count)| ((*name).to_owned(), *count)).collect()
    }

    #[test]
    fn what_is_beyond_the_limit_is_counted_together() {
        let slots = Slots::new(2);
        for name in ["b", "a", "c", "a", "d"] {
            count(&slots, name);
        }
        assert_eq!(shown(&slots), pairs(&[("a", 2), ("b", 1), (OTHER, 2)]));
        assert_eq!(shown(&Slots::new(0)), pairs(&[(OTHER, 0)]));
    }

    #[test]
    fn a_slot_is_free_again_some_time_after_its_name_is_gone() {
        let slots = Slots::new(1);
        count(&slots, "old");
        count(&slots, "new");
        let first = Instant::now();
        slots.release(first, |name| name == "new");
        slots.release(first + GRACE / 2, |name| name == "new");
        assert_eq!(shown(&slots), pairs(&[("old", 1), (OTHER, 1)]), "its last value is there to be scraped");
        // It reappears for a moment, so the grace period starts again.
        slots.release(first + GRACE, |_| true);
        slots.release(first + GRACE, |name| name == "new");
        slots.release(first + GRACE * 3 / 2, |name| name == "new");
        assert_eq!(shown(&slots).len(), 2);
        slots.release(first + GRACE * 2, |name| name == "new");
        count(&slots, "new");
        assert_eq!(shown(&slots), pairs(&[("new", 1), (OTHER, 1)]));
    }

    #[test]
    fn threads_that_come_with_new_names_at_once_lose_no_count() {
        let slots = Slots::new(50);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| (0..10_000).for_each(|number| count(&slots, &format!("n{}", number % 100))));
            }
        });
        let shown = shown(&slots);
        assert_eq!(shown.len(), 51);
        assert_eq!(shown.iter().map(|(_, count)| count).sum::<u64>(), 40_000);
    }
}
