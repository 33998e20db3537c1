//! Counters for names that are created and deleted, such as those of profiles. Also counts requests by tenant.
//!
//! Each name can have a slot with counters. Counting takes no lock: a name's slot is looked up in a map that is
//! replaced as a whole. Only the first count of a new name takes a lock, to assign a slot. While all slots are taken,
//! further names are counted as [`OTHER`].
//!
//! A scrape releases a slot if an earlier scrape found its name deleted at least [`GRACE`] ago. By then, every
//! Prometheus server has scraped the last value of the slot. The value is not added to [`OTHER`], where it would look
//! like a burst of requests, so sums of rates stay correct.

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use pillion_engine::decision::Outcome;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;

use super::requests::RequestOutcome;

/// The label value for all names without a slot. Kubernetes names cannot begin with `_`.
pub(super) const OTHER: &str = "_other";

/// How long the series of a name are kept after a scrape first found the name deleted.
pub(super) const GRACE: Duration = Duration::from_mins(5);

#[derive(Debug)]
pub(super) struct Slots<C> {
    max: usize,
    taken: ArcSwap<HashMap<Arc<str>, Arc<Slot<C>>>>,
    other: Arc<Slot<C>>,
    /// Held while the map is replaced.
    replacing: Mutex<()>,
}

/// The counters of one name.
#[derive(Debug, Default)]
pub(super) struct Slot<C> {
    pub(super) counters: C,
    /// When a scrape first found the name deleted.
    deleted_at: Mutex<Option<Instant>>,
}

impl<C: Default> Slots<C> {
    pub(super) fn new(max: usize) -> Self {
        Self { max, taken: ArcSwap::default(), other: Arc::default(), replacing: Mutex::new(()) }
    }

    /// Returns the counters of a name, or those of [`OTHER`] if all slots are taken. The caller must check that the
    /// name exists, so that clients cannot create series with invented names.
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
        let _replacing = self.replacing.lock().unwrap_or_else(PoisonError::into_inner);
        let taken = self.taken.load();
        // Another thread may have added the name before this one got the lock.
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

    /// Releases the slots of names that an earlier call found deleted at least [`GRACE`] before `now`. `exists` returns
    /// whether a name exists now.
    pub(super) fn release(&self, now: Instant, exists: impl Fn(&str) -> bool) {
        let _replacing = self.replacing.lock().unwrap_or_else(PoisonError::into_inner);
        let taken = self.taken.load();
        let keeps = |name: &str, slot: &Slot<C>| {
            let mut deleted_at = slot.deleted_at.lock().unwrap_or_else(PoisonError::into_inner);
            if exists(name) {
                *deleted_at = None;
                return true;
            }
            now.duration_since(*deleted_at.get_or_insert(now)) < GRACE
        };
        let kept: HashMap<_, _> = taken
            .iter()
            .filter(|(name, slot)| keeps(name, slot))
            .map(|(name, slot)| (Arc::clone(name), Arc::clone(slot)))
            .collect();
        if kept.len() < taken.len() {
            self.taken.store(Arc::new(kept));
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

pillion_api::labelled! {
    /// The outcome of a tenant's request. It has fewer values than [`RequestOutcome`], because each value costs one
    /// series per tenant.
    enum TenantOutcome {
        Injected => "injected",
        /// Allowed without changes.
        Allowed => "allowed",
        /// Allowed, although a profile was skipped.
        Incomplete => "incomplete",
        Denied => "denied",
        /// Shed, or failed: HTTP 5xx. Also a large body that is not a valid review: HTTP 400.
        Failed => "failed",
    }
}

impl TenantOutcome {
    /// Converts the outcome of a request to the outcome that is counted for its tenant. `incomplete` means that a
    /// profile was skipped.
    const fn of(outcome: RequestOutcome, incomplete: bool) -> Self {
        match outcome {
            RequestOutcome::Decided(Outcome::Denied) => Self::Denied,
            RequestOutcome::Decided(_) if incomplete => Self::Incomplete,
            RequestOutcome::Decided(Outcome::Injected) => Self::Injected,
            RequestOutcome::Decided(Outcome::Unchanged | Outcome::Skipped | Outcome::Validated) => Self::Allowed,
            // For most bad requests no namespace is set, so they are not counted. The namespace of a large body is set
            // before the body is parsed, so such a body is counted even if it is not a valid review.
            RequestOutcome::Shed | RequestOutcome::Error | RequestOutcome::BadRequest => Self::Failed,
        }
    }
}

type TenantCounters = [AtomicU64; TenantOutcome::ALL.len()];

/// The counters of all tenants. Clones share the counters.
#[derive(Clone, Debug)]
pub(crate) struct Tenants(Arc<Slots<TenantCounters>>);

/// The tenant of a request, which is set once the request's namespace is known. If a clone is made before that, its
/// namespace must be set separately.
#[derive(Clone, Debug)]
pub(crate) struct Tenant {
    slots: Arc<Slots<TenantCounters>>,
    /// The tenant's counters. Empty until the namespace is known.
    found: OnceLock<Arc<Slot<TenantCounters>>>,
}

impl Tenants {
    pub(super) fn new(max: usize) -> Self {
        Self(Arc::new(Slots::new(max)))
    }

    /// Returns a tenant whose namespace is not known yet.
    #[must_use]
    pub(crate) fn request(&self) -> Tenant {
        Tenant { slots: Arc::clone(&self.0), found: OnceLock::new() }
    }

    pub(super) fn release(&self, now: Instant, exists: impl Fn(&str) -> bool) {
        self.0.release(now, exists);
    }
}

impl Tenant {
    /// Sets the request's namespace. `known` means that the snapshot has it; otherwise the request is counted as
    /// [`OTHER`]. Only the first call has an effect.
    pub(crate) fn set_namespace(&self, namespace: &str, known: bool) {
        self.found.get_or_init(|| if known { self.slots.of(namespace) } else { self.slots.other() });
    }

    /// Counts the request, unless no namespace was set. `incomplete` means that a profile was skipped.
    #[expect(clippy::indexing_slicing, reason = "a fieldless enum's discriminant is its place in ALL")]
    pub(crate) fn answered(&self, outcome: RequestOutcome, incomplete: bool) {
        if let Some(slot) = self.found.get() {
            slot.counters[TenantOutcome::of(outcome, incomplete) as usize].fetch_add(1, Ordering::Relaxed);
        }
    }
}

impl Collector for Tenants {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let help = "Answered admission requests whose namespace is known, by tenant and outcome";
        let mut metric = encoder.encode_descriptor("tenant_requests", help, None, MetricType::Counter)?;
        for (tenant, slot) in self.0.all() {
            for (outcome, count) in TenantOutcome::ALL.iter().zip(&slot.counters) {
                let labels = [("tenant", &*tenant), ("outcome", outcome.as_str())];
                let count = count.load(Ordering::Relaxed);
                metric.encode_family(&labels)?.encode_counter::<NoLabelSet, u64, u64>(&count, None)?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn count(slots: &Slots<AtomicU64>, name: &str) {
        slots.of(name).counters.fetch_add(1, Ordering::Relaxed);
    }

    fn counts(slots: &Slots<AtomicU64>) -> Vec<(String, u64)> {
        let all = slots.all().into_iter();
        all.map(|(name, slot)| (name.to_string(), slot.counters.load(Ordering::Relaxed))).collect()
    }

    fn pairs(pairs: &[(&str, u64)]) -> Vec<(String, u64)> {
        pairs.iter().map(|(name, count)| ((*name).to_owned(), *count)).collect()
    }

    #[test]
    fn names_beyond_limit_are_counted_together() {
        let slots = Slots::new(2);
        for name in ["b", "a", "c", "a", "d"] {
            count(&slots, name);
        }
        assert_eq!(counts(&slots), pairs(&[("a", 2), ("b", 1), (OTHER, 2)]));
        assert_eq!(counts(&Slots::new(0)), pairs(&[(OTHER, 0)]));
    }

    #[test]
    fn slot_is_released_after_grace_period() {
        let slots = Slots::new(1);
        count(&slots, "old");
        count(&slots, "new");
        let first = Instant::now();
        slots.release(first, |name| name == "new");
        slots.release(first + GRACE / 2, |name| name == "new");
        assert_eq!(counts(&slots), pairs(&[("old", 1), (OTHER, 1)]), "its last value can still be scraped");
        // The name exists again for one scrape, so the grace period starts again.
        slots.release(first + GRACE, |_| true);
        slots.release(first + GRACE, |name| name == "new");
        slots.release(first + GRACE * 3 / 2, |name| name == "new");
        assert_eq!(counts(&slots).len(), 2);
        slots.release(first + GRACE * 2, |name| name == "new");
        count(&slots, "new");
        assert_eq!(counts(&slots), pairs(&[("new", 1), (OTHER, 1)]));
    }

    #[test]
    fn concurrent_new_names_lose_no_count() {
        let slots = Slots::new(50);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| (0..10_000).for_each(|number| count(&slots, &format!("n{}", number % 100))));
            }
        });
        let counts = counts(&slots);
        assert_eq!(counts.len(), 51);
        assert_eq!(counts.iter().map(|(_, count)| count).sum::<u64>(), 40_000);
    }

    #[test]
    fn request_outcomes_map_to_tenant_outcomes() {
        let outcomes = |incomplete| RequestOutcome::ALL.map(|outcome| TenantOutcome::of(outcome, incomplete).as_str());
        assert_eq!(
            outcomes(false),
            ["injected", "allowed", "allowed", "allowed", "denied", "failed", "failed", "failed"]
        );
        assert_eq!(
            outcomes(true),
            ["incomplete", "incomplete", "incomplete", "incomplete", "denied", "failed", "failed", "failed"]
        );
    }
}
