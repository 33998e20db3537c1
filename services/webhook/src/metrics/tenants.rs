//! Counts requests by namespace.
//!
//! It is off by default, because it multiplies the series. Only namespaces in the snapshot get a series, so a client
//! cannot invent names, and their number is bounded.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use pillion_engine::decision::Outcome;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;

use super::RequestOutcome;
use super::slots::{Slot, Slots};

/// Whether requests are counted by namespace, and for how many.
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

/// The outcome of a tenant's request: coarser than [`RequestOutcome`], since each value costs a series for each tenant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TenantOutcome {
    Injected,
    /// Allowed without changes.
    Allowed,
    Denied,
    /// Rejected for lack of resources, or failed: HTTP 5xx.
    Failed,
}

impl TenantOutcome {
    const ALL: [Self; 4] = [Self::Injected, Self::Allowed, Self::Denied, Self::Failed];

    const fn as_str(self) -> &'static str {
        match self {
            Self::Injected => "injected",
            Self::Allowed => "allowed",
            Self::Denied => "denied",
            Self::Failed => "failed",
        }
    }
}

impl From<RequestOutcome> for TenantOutcome {
    fn from(outcome: RequestOutcome) -> Self {
        match outcome {
            RequestOutcome::Decided(Outcome::Injected) => Self::Injected,
            RequestOutcome::Decided(Outcome::Unchanged | Outcome::Skipped | Outcome::Validated) => Self::Allowed,
            RequestOutcome::Decided(Outcome::Denied) => Self::Denied,
            // A bad request has no namespace, so it never gets here.
            RequestOutcome::Shed | RequestOutcome::Error | RequestOutcome::BadRequest => Self::Failed,
        }
    }
}

type Counters = [AtomicU64; TenantOutcome::ALL.len()];

/// The counters of all namespaces. `None`: counting is off.
#[derive(Clone, Debug)]
pub struct Tenants(Option<Arc<Slots<Counters>>>);

/// The namespace of a request, once known. `None`: counting is off. Clones refer to the same request.
#[derive(Clone, Debug, Default)]
pub struct Tenant(Option<Arc<Pending>>);

#[derive(Debug)]
struct Pending {
    slots: Arc<Slots<Counters>>,
    /// Empty until the namespace is known.
    found: OnceLock<Arc<Slot<Counters>>>,
}

impl Tenants {
    pub(super) fn new(settings: &TenantSettings) -> Self {
        Self(settings.enabled.then(|| Arc::new(Slots::new(settings.max_namespaces))))
    }

    /// Returns a tenant whose namespace is not known yet.
    #[must_use]
    pub fn request(&self) -> Tenant {
        let pending = |slots| Arc::new(Pending { slots, found: OnceLock::new() });
        Tenant(self.0.clone().map(pending))
    }

    pub(super) fn release(&self, now: Instant, exists: impl Fn(&str) -> bool) {
        if let Some(slots) = &self.0 {
            slots.release(now, exists);
        }
    }
}

impl Tenant {
    /// Sets the request's namespace, and whether the snapshot has it. Only the first call counts.
    pub fn found(&self, namespace: &str, known: bool) {
        if let Some(Pending { slots, found }) = self.0.as_deref() {
            found.get_or_init(|| if known { slots.of(namespace) } else { slots.other() });
        }
    }

    /// Counts the request, unless its namespace is unknown or counting is off.
    #[expect(clippy::indexing_slicing, reason = "a fieldless enum's discriminant is its place in ALL")]
    pub(super) fn answered(&self, outcome: RequestOutcome) {
        if let Some(slot) = self.0.as_deref().and_then(|pending| pending.found.get()) {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_outcome_is_one_of_a_tenant() {
        for (place, outcome) in TenantOutcome::ALL.into_iter().enumerate() {
            assert_eq!(outcome as usize, place);
        }
        let shown = |outcome| TenantOutcome::from(outcome).as_str();
        assert_eq!(
            RequestOutcome::ALL.map(shown),
            ["injected", "allowed", "allowed", "allowed", "denied", "failed", "failed", "failed"]
        );
    }
}
