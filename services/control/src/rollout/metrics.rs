//! Metrics of rollouts to running pods.

use std::sync::{Arc, Mutex, PoisonError};

use pillion_engine::profile::ProfileName;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

/// Maximum number of cluster profiles with counters, and maximum number of namespaced ones. Upgrades of further
/// profiles are not counted. Tenants cannot use up the counters of cluster profiles.
const MAX_PROFILES: usize = 200;

pillion_api::labelled! {
    /// Whether a profile belongs to the platform or to a tenant.
    enum Scope {
        /// Cluster profiles.
        Cluster => "cluster",
        /// Namespaced profiles.
        Namespaced => "namespaced",
    }
}

pillion_api::labelled! {
    /// The result of a step of an upgrade or of an eviction.
    pub(super) enum UpgradeResult {
        /// A pod was changed or evicted.
        Begun => "begun",
        /// The changed containers of a pod are ready, or the replacement of an evicted pod is.
        Completed => "completed",
        /// An upgrade failed, or no replacement of an evicted pod was ready in time.
        Failed => "failed",
        /// The API server rejected the change of a pod, or its eviction.
        Rejected => "rejected",
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Labels {
    profile: Arc<str>,
    revision: Arc<str>,
    result: &'static str,
}

impl Scope {
    fn of(is_namespaced: bool) -> Self {
        if is_namespaced { Self::Namespaced } else { Self::Cluster }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ScopeLabel {
    scope: &'static str,
}

/// The profiles and revisions that have counters.
type KnownRevisions = Vec<(Arc<str>, Arc<str>)>;

/// Gauges and counters of rollouts to running pods. Clones share the values.
#[derive(Clone, Debug, Default)]
pub struct RolloutMetrics {
    running: Gauge,
    failed: Family<ScopeLabel, Gauge>,
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
            "Profiles whose rollout to running pods has failed, by scope",
            metrics.failed.clone(),
        );
        metrics.show(0, &[]);
        registry.register(
            "pillion_controller_pod_upgrades",
            "Steps of upgrades in place, by profile, revision and result",
            metrics.results.clone(),
        );
        metrics
    }

    /// Sets the gauges to 0 when leadership ends.
    pub fn reset(&self) {
        self.show(0, &[]);
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
            let scope = |name: &str| Scope::of(name.contains('/'));
            let of_scope = known.iter().filter(|(name, _)| scope(name) == scope(&profile));
            if of_scope.count() >= MAX_PROFILES {
                return;
            }
            known.push((Arc::clone(&profile), Arc::clone(&revision)));
        }
        self.results.get_or_create(&Labels { profile, revision, result: result.as_str() }).inc();
    }

    /// Shows the number of pods that are being changed, and the profiles whose rollout has failed.
    pub(super) fn show(&self, running: usize, failed: &[ProfileName]) {
        let number = |count: usize| i64::try_from(count).unwrap_or(i64::MAX);
        self.running.set(number(running));
        for scope in Scope::ALL {
            let of_scope = failed.iter().filter(|name| Scope::of(name.namespace.is_some()) == scope);
            self.failed.get_or_create(&ScopeLabel { scope: scope.as_str() }).set(number(of_scope.count()));
        }
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
    }

    #[test]
    fn tenants_have_their_own_series() {
        let mut registry = Registry::default();
        let metrics = RolloutMetrics::register(&mut registry);
        for number in 0..2 * MAX_PROFILES {
            metrics.count(&format!("shop/p{number}"), "r", UpgradeResult::Begun);
        }
        metrics.count("log", "r", UpgradeResult::Begun);
        let text = exposition(&registry);
        assert_eq!(text.matches(r#"pod_upgrades_total{profile="shop/"#).count(), MAX_PROFILES);
        assert!(text.contains(r#"pod_upgrades_total{profile="log""#), "{text}");
        metrics.show(1, &[ProfileName::namespaced("shop", "a"), ProfileName::namespaced("shop", "b")]);
        let text = exposition(&registry);
        for line in [r#"failed_rollouts{scope="cluster"} 0"#, r#"failed_rollouts{scope="namespaced"} 2"#] {
            assert!(text.contains(line), "{text}");
        }
    }
}
