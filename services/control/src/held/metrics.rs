//! Metrics of waiting pods, of actions on them, and of the policies.

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

use crate::labels::Label;

use super::pod::OwnerKind;

pillion_api::labelled! {
    /// The state of the policies of `held` namespaces.
    pub enum Policies {
        /// The policies are in their desired state.
        InPlace => "in_place",
        /// The policies are removed, since no pod should wait.
        Off => "off",
        /// The API server does not support mutating policies.
        Unsupported => "unsupported",
        /// The policies could not be written, or it is unknown whether the API server supports them.
        Failing => "failing",
    }
}

pillion_api::labelled! {
    /// Result of a step for a waiting pod.
    pub enum Released {
        /// The pod was deleted, so that its owner creates a new one.
        Recreated => "recreated",
        /// The scheduling gate was removed, so the pod runs without injection.
        GateRemoved => "gate_removed",
        /// An Event was recorded, since no owner would create a new pod.
        Reported => "reported",
        /// The pod had changed or was deleted, so nothing was done.
        Changed => "changed",
        /// The API server rejected the request or was unavailable.
        Failed => "failed",
    }
}

/// Gauges and counters of `held` namespaces. Clones share the values.
#[derive(Clone, Debug)]
pub struct HeldMetrics {
    policies: [Gauge; Policies::ALL.len()],
    repairs: Counter,
    waiting: [Gauge; OwnerKind::ALL.len()],
    released: [Counter; Released::ALL.len()],
}

impl HeldMetrics {
    /// Creates the metrics and registers them.
    pub fn register(registry: &mut Registry) -> Self {
        let policies = Family::<Label, Gauge>::default();
        let waiting = Family::<Label, Gauge>::default();
        let released = Family::<Label, Counter>::default();
        let repairs = Counter::default();
        registry.register(
            "pillion_controller_held_policies",
            "1 for the state of the admission policies of held namespaces",
            policies.clone(),
        );
        registry.register(
            "pillion_controller_held_policy_repairs",
            "Drifted admission policies of held namespaces that were corrected",
            repairs.clone(),
        );
        registry.register(
            "pillion_controller_held_pods",
            "Pods that wait at the scheduling gate of held namespaces, by kind of their owner",
            waiting.clone(),
        );
        registry.register(
            "pillion_controller_held_pods_handled",
            "Waiting pods of held namespaces that the controller handled, by result",
            released.clone(),
        );
        Self {
            policies: Policies::ALL.map(|state| policies.get_or_create_owned(&[("state", state.as_str())])),
            repairs,
            waiting: OwnerKind::ALL.map(|owner| waiting.get_or_create_owned(&[("owner", owner.as_str())])),
            released: Released::ALL.map(|result| released.get_or_create_owned(&[("result", result.as_str())])),
        }
    }

    /// Sets the gauges to 0 when leadership ends.
    pub fn reset(&self) {
        for gauge in self.policies.iter().chain(&self.waiting) {
            gauge.set(0);
        }
    }

    pub(super) fn policies(&self, state: Policies) {
        for (gauge, each) in self.policies.iter().zip(Policies::ALL) {
            gauge.set(i64::from(each == state));
        }
    }

    pub(super) fn repaired(&self) {
        self.repairs.inc();
    }

    pub(super) fn waiting(&self, kinds: impl Iterator<Item = OwnerKind>) {
        let mut counts = [0_i64; OwnerKind::ALL.len()];
        for kind in kinds {
            for (count, each) in counts.iter_mut().zip(OwnerKind::ALL) {
                *count += i64::from(each == kind);
            }
        }
        for (gauge, count) in self.waiting.iter().zip(counts) {
            gauge.set(count);
        }
    }

    pub(super) fn released(&self, result: Released) {
        for (counter, each) in self.released.iter().zip(Released::ALL) {
            if each == result {
                counter.inc();
            }
        }
    }
}
