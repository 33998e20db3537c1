//! Metrics of the safety net.

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

use crate::labels::Label;

pillion_api::labelled! {
    /// The state of the safety net's policy.
    pub enum NetState {
        /// The policy is in its desired state.
        InPlace => "in_place",
        /// The policy is removed: it covers no profile, or an administrator disabled injection or the webhooks.
        Off => "off",
        /// The API server does not support mutating policies.
        Unsupported => "unsupported",
        /// The last attempt failed: a revision could not be read, or the policy could not be checked, written or
        /// deleted.
        Failing => "failing",
    }
}

/// Gauges and counters of the safety net. Clones share the values.
#[derive(Clone, Debug)]
pub struct SafetyNetMetrics {
    states: [Gauge; NetState::ALL.len()],
    covered: Gauge,
    uncovered: Gauge,
    repairs: Counter,
}

impl SafetyNetMetrics {
    /// Creates the metrics and registers them.
    pub fn register(registry: &mut Registry) -> Self {
        let states = Family::<Label, Gauge>::default();
        let profiles = Family::<Label, Gauge>::default();
        let repairs = Counter::default();
        registry.register(
            "pillion_controller_safety_net_policy",
            "1 for the state of the admission policy of the safety net",
            states.clone(),
        );
        registry.register(
            "pillion_controller_safety_net_profiles",
            "Profiles that opt in to the safety net, by whether its policy covers them",
            profiles.clone(),
        );
        registry.register(
            "pillion_controller_safety_net_policy_repairs",
            "Drifted objects of the safety net that were corrected",
            repairs.clone(),
        );
        let count = |covered| profiles.get_or_create_owned(&[("covered", covered)]);
        Self {
            states: NetState::ALL.map(|state| states.get_or_create_owned(&[("state", state.as_str())])),
            covered: count("true"),
            uncovered: count("false"),
            repairs,
        }
    }

    /// Sets the gauges to 0 when leadership ends.
    pub fn reset(&self) {
        for gauge in self.states.iter().chain([&self.covered, &self.uncovered]) {
            gauge.set(0);
        }
    }

    pub(super) fn state(&self, state: NetState) {
        for (gauge, each) in self.states.iter().zip(NetState::ALL) {
            gauge.set(i64::from(each == state));
        }
    }

    pub(super) fn profiles(&self, covered: usize, uncovered: usize) {
        self.covered.set(i64::try_from(covered).unwrap_or(i64::MAX));
        self.uncovered.set(i64::try_from(uncovered).unwrap_or(i64::MAX));
    }

    pub(super) fn repaired(&self) {
        self.repairs.inc();
    }
}
