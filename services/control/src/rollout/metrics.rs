//! Metrics of rollouts to running pods.

use std::sync::{Arc, Mutex, PoisonError};

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

/// Maximum number of pairs of profile and revision with counters. Beyond it, upgrades are not counted.
const MAX_REVISIONS: usize = 200;

pillion_api::labelled! {
    /// The result of a step of an upgrade.
    pub(super) enum UpgradeResult {
        /// A pod was changed.
        Begun => "begun",
        /// The changed containers of a pod are ready.
        Completed => "completed",
        /// An upgrade failed.
        Failed => "failed",
        /// The API server rejected the change of a pod, or was unavailable.
        Rejected => "rejected",
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Labels {
    profile: Arc<str>,
    revision: Arc<str>,
    result: &'static str,
}

/// The profiles and revisions that have counters.
type KnownRevisions = Vec<(Arc<str>, Arc<str>)>;

/// Gauges and counters of rollouts to running pods. Clones share the values.
#[derive(Clone, Debug, Default)]
pub struct RolloutMetrics {
    running: Gauge,
    failed: Gauge,
    results: Family<Labels, Counter>,
    known: Arc<Mutex<KnownRevisions>>,
}

impl RolloutMetrics {
    /// Creates the metrics and registers them.
    pub fn register(registry: &mut Registry) -> Self {
        let metrics = Self::default();
        registry.register(
            "pillion_controller_upgrading_pods",
            "Pods whose containers are being changed in place",
            metrics.running.clone(),
        );
        registry.register(
            "pillion_controller_failed_rollouts",
            "Profiles whose rollout to running pods has failed",
            metrics.failed.clone(),
        );
        registry.register(
            "pillion_controller_pod_upgrades",
            "Steps of upgrades in place, by profile, revision and result",
            metrics.results.clone(),
        );
        metrics
    }

    /// Sets the gauges to 0 when leadership ends.
    pub fn reset(&self) {
        self.running.set(0);
        self.failed.set(0);
    }

    /// Counts a step of an upgrade to a revision. The counters of a profile's earlier revisions are removed.
    pub(super) fn count(&self, profile: &str, revision: &str, result: UpgradeResult) {
        let (profile, revision): (Arc<str>, Arc<str>) = (profile.into(), revision.into());
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if !known.iter().any(|(name, of)| *name == profile && *of == revision) {
            known.retain(|(name, earlier)| {
                let is_earlier = *name == profile;
                for result in UpgradeResult::ALL.iter().filter(|_| is_earlier) {
                    let (profile, revision) = (Arc::clone(name), Arc::clone(earlier));
                    self.results.remove(&Labels { profile, revision, result: result.as_str() });
                }
                !is_earlier
            });
            if known.len() >= MAX_REVISIONS {
                return;
            }
            known.push((Arc::clone(&profile), Arc::clone(&revision)));
        }
        self.results.get_or_create(&Labels { profile, revision, result: result.as_str() }).inc();
    }

    pub(super) fn show(&self, running: usize, failed: usize) {
        self.running.set(i64::try_from(running).unwrap_or(i64::MAX));
        self.failed.set(i64::try_from(failed).unwrap_or(i64::MAX));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::labels::exposition;

    #[test]
    fn only_last_revision_of_profile_has_counters() {
        let mut registry = Registry::default();
        let metrics = RolloutMetrics::register(&mut registry);
        metrics.count("log", "r1", UpgradeResult::Begun);
        metrics.count("mesh", "m1", UpgradeResult::Begun);
        metrics.count("log", "r2", UpgradeResult::Failed);
        let text = exposition(&registry);
        let lines: Vec<_> = text.lines().filter(|line| line.contains("pod_upgrades_total{")).collect();
        assert_eq!(lines.len(), 2, "{text}");
        assert!(text.contains(r#"pod_upgrades_total{profile="log",revision="r2",result="failed"} 1"#), "{text}");
        for number in 0..2 * MAX_REVISIONS {
            metrics.count(&format!("p{number}"), "r", UpgradeResult::Begun);
        }
        assert_eq!(metrics.known.lock().unwrap().len(), MAX_REVISIONS);
    }
}
