//! Series for names that come and go: requests by namespace, injections by profile, and the sizes of the snapshot.
//!
//! Counting takes no lock: a name with a slot is found in a map that is replaced as a whole, and a name without a slot
//! is counted as [`OTHER`]. Only the first count of a new name takes a lock, to give it a slot.
//!
//! A slot is released at a scrape that finds its name deleted for [`GRACE`]: by then every Prometheus has read its last
//! value. The value is not added to [`OTHER`], where it would look like a burst; a sum over rates loses nothing.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use pillion_engine::decision::{Decision, Outcome, ProfileOutcome};
use pillion_engine::snapshot::Snapshot;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::gauge::ConstGauge;

use super::requests::RequestOutcome;
use crate::counters::labelled;

/// The label value for all names without a slot. Kubernetes names cannot begin with `_`.
pub(super) const OTHER: &str = "_other";

/// How long the series of a deleted name are kept.
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

    /// Returns the counters of a name, or those of [`OTHER`] if all slots are taken. The caller must know that the name
    /// exists, so that clients cannot invent names.
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
        // Another thread may have added the name meanwhile.
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

/// Whether requests are counted by namespace, and for how many namespaces.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct TenantSettings {
    /// Whether to count by namespace.
    pub enabled: bool,
    /// Namespaces with their own series, four each. Requests of all others are counted as `_other`.
    pub max_namespaces: usize,
}

impl Default for TenantSettings {
    fn default() -> Self {
        Self { enabled: false, max_namespaces: 500 }
    }
}

labelled! {
    /// The outcome of a tenant's request: coarser than [`RequestOutcome`], since each value costs a series for each
    /// tenant.
    enum TenantOutcome {
        Injected => "injected",
        /// Allowed without changes.
        Allowed => "allowed",
        Denied => "denied",
        /// Rejected for lack of resources, or failed: HTTP 5xx.
        Failed => "failed",
    }
}

impl From<RequestOutcome> for TenantOutcome {
    fn from(outcome: RequestOutcome) -> Self {
        match outcome {
            RequestOutcome::Decided(Outcome::Injected) => Self::Injected,
            RequestOutcome::Decided(Outcome::Unchanged | Outcome::Skipped | Outcome::Validated) => Self::Allowed,
            RequestOutcome::Decided(Outcome::Denied) => Self::Denied,
            // A bad request has no namespace, so [`Tenant::answered`] never converts its outcome.
            RequestOutcome::Shed | RequestOutcome::Error | RequestOutcome::BadRequest => Self::Failed,
        }
    }
}

type TenantCounters = [AtomicU64; TenantOutcome::ALL.len()];

/// The counters of all namespaces. `None`: counting is off.
#[derive(Clone, Debug)]
pub(crate) struct Tenants(Option<Arc<Slots<TenantCounters>>>);

/// The namespace of a request, once known. `None`: counting is off. Clones refer to the same request.
#[derive(Clone, Debug, Default)]
pub(crate) struct Tenant(Option<Arc<TenantSlot>>);

#[derive(Debug)]
struct TenantSlot {
    slots: Arc<Slots<TenantCounters>>,
    /// Empty until the namespace is known.
    found: OnceLock<Arc<Slot<TenantCounters>>>,
}

impl Tenants {
    pub(super) fn new(settings: &TenantSettings) -> Self {
        Self(settings.enabled.then(|| Arc::new(Slots::new(settings.max_namespaces))))
    }

    /// Returns a tenant whose namespace is not known yet.
    #[must_use]
    pub(crate) fn request(&self) -> Tenant {
        Tenant(self.0.clone().map(|slots| Arc::new(TenantSlot { slots, found: OnceLock::new() })))
    }

    pub(super) fn release(&self, now: Instant, exists: impl Fn(&str) -> bool) {
        if let Some(slots) = &self.0 {
            slots.release(now, exists);
        }
    }
}

impl Tenant {
    /// Sets the request's namespace. `known`: the snapshot has it; otherwise the request is counted as [`OTHER`]. Only
    /// the first call has an effect.
    pub(crate) fn set_namespace(&self, namespace: &str, known: bool) {
        if let Some(TenantSlot { slots, found }) = self.0.as_deref() {
            found.get_or_init(|| if known { slots.of(namespace) } else { slots.other() });
        }
    }

    /// Counts the request, unless its namespace is unknown or counting is off.
    #[expect(clippy::indexing_slicing, reason = "a fieldless enum's discriminant is its place in ALL")]
    pub(super) fn answered(&self, outcome: RequestOutcome) {
        if let Some(slot) = self.0.as_deref().and_then(|tenant| tenant.found.get()) {
            slot.counters[TenantOutcome::from(outcome) as usize].fetch_add(1, Ordering::Relaxed);
        }
    }
}

impl Collector for Tenants {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let Some(slots) = &self.0 else { return Ok(()) };
        let help = "Admission requests whose namespace was found out, by namespace and by how they ended";
        let mut metric = encoder.encode_descriptor("tenant_requests", help, None, MetricType::Counter)?;
        for (namespace, slot) in slots.all() {
            for (outcome, count) in TenantOutcome::ALL.iter().zip(&slot.counters) {
                let labels = [("namespace", &*namespace), ("outcome", outcome.as_str())];
                let count = count.load(Ordering::Relaxed);
                metric.encode_family(&labels)?.encode_counter::<NoLabelSet, u64, u64>(&count, None)?;
            }
        }
        Ok(())
    }
}

/// Profiles with their own series. Injections of all others are counted as `_other`.
pub(super) const MAX_PROFILES: usize = 200;

/// How often each profile was applied.
#[derive(Clone, Debug)]
pub(super) struct ProfileCounters(Arc<Slots<AtomicU64>>);

impl ProfileCounters {
    pub(super) fn new() -> Self {
        Self(Arc::new(Slots::new(MAX_PROFILES)))
    }

    pub(super) fn decided(&self, decision: &Decision) {
        for decided in decision.profiles.iter().filter(|decided| decided.outcome == ProfileOutcome::Applied) {
            self.0.of(decided.profile.display_name()).counters.fetch_add(1, Ordering::Relaxed);
        }
    }

    pub(super) fn release(&self, now: Instant, exists: impl Fn(&str) -> bool) {
        self.0.release(now, exists);
    }
}

impl Collector for ProfileCounters {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let help = "Objects that a profile was applied to, by the profile's name";
        let mut metric = encoder.encode_descriptor("profile_injections", help, None, MetricType::Counter)?;
        for (profile, slot) in self.0.all() {
            let count = slot.counters.load(Ordering::Relaxed);
            let labels = [("profile", &*profile)];
            metric.encode_family(&labels)?.encode_counter::<NoLabelSet, u64, u64>(&count, None)?;
        }
        Ok(())
    }
}

pub(super) struct SnapshotCollector {
    pub(super) snapshot: Arc<ArcSwap<Snapshot>>,
    pub(super) tenants: Tenants,
    pub(super) profiles: ProfileCounters,
}

impl fmt::Debug for SnapshotCollector {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("SnapshotCollector")
    }
}

impl Collector for SnapshotCollector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let snapshot = self.snapshot.load();
        let now = Instant::now();
        self.tenants.release(now, |name| snapshot.namespace(name).is_some());
        let profiles: HashSet<_> = snapshot.profiles().iter().map(|profile| profile.display_name()).collect();
        self.profiles.release(now, |name| profiles.contains(name));
        for (name, help, count) in [
            ("profiles", "Profiles that are served", snapshot.profiles().len()),
            ("namespaces", "Namespaces that are known", snapshot.namespace_count()),
        ] {
            let gauge = ConstGauge::new(i64::try_from(count).unwrap_or(i64::MAX));
            gauge.encode(encoder.encode_descriptor(name, help, None, gauge.metric_type())?)?;
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
        // The name reappears for a moment, so the grace period starts again.
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
        let counts = |outcome| TenantOutcome::from(outcome).as_str();
        assert_eq!(
            RequestOutcome::ALL.map(counts),
            ["injected", "allowed", "allowed", "allowed", "denied", "failed", "failed", "failed"]
        );
    }
}
