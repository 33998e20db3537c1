//! Injections by profile: the active profiles, and how often each was applied.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use pillion_engine::decision::{Decision, ProfileOutcome};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;

use super::slots::Slots;

/// Profiles with their own series. Injections of all others are counted as `_other`.
pub const MAX_PROFILES: usize = 200;

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
