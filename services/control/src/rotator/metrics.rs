//! Metrics of the rotation's state.

use jiff::Timestamp;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::{Registry, Unit};

use super::Done;
use crate::certificates::rotation::{Blocked, Phase, Record, Trigger};

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct PhaseLabel {
    phase: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ReasonLabel {
    reason: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct StepLabels {
    step: &'static str,
    result: &'static str,
}

/// The state of the leader's rotation. A controller that does not lead reports no phase, and its times are 0.
#[derive(Clone, Debug, Default)]
pub struct RotatorMetrics {
    phases: Family<PhaseLabel, Gauge>,
    blocked: Family<ReasonLabel, Gauge>,
    begun: Family<ReasonLabel, Counter>,
    steps: Family<StepLabels, Counter>,
    disbelieved: Counter,
    phase_since: Gauge,
    authority_ends: Gauge,
    leaf_renewal: Gauge,
    last_look: Gauge,
}

impl RotatorMetrics {
    /// Creates the metrics and registers them, with all series.
    pub fn register(registry: &mut Registry) -> Self {
        let metrics = Self::default();
        for phase in Phase::ALL {
            metrics.phases.get_or_create_owned(&PhaseLabel { phase: phase.as_str() });
        }
        for reason in Blocked::ALL {
            metrics.blocked.get_or_create_owned(&ReasonLabel { reason: reason.as_str() });
        }
        for trigger in Trigger::ALL {
            metrics.begun.get_or_create_owned(&ReasonLabel { reason: trigger.as_str() });
        }
        for step in Done::STEPS {
            for result in Done::RESULTS {
                metrics.steps.get_or_create_owned(&StepLabels { step, result });
            }
        }
        let registry = registry.sub_registry_with_prefix("pillion_controller");
        registry.register("rotation_phase", "1 for the phase that the rotation is in", metrics.phases.clone());
        registry.register("rotation_blocked", "1 for what the rotation waits for", metrics.blocked.clone());
        registry.register("rotations_begun", "New authorities, by why they were made", metrics.begun.clone());
        registry.register("rotation_steps", "Writes of the rotation, by how they ended", metrics.steps.clone());
        let text = "Epochs in annotations that nobody who rotates wrote, and that were written over";
        registry.register("rotation_epochs_disbelieved", text, metrics.disbelieved.clone());
        let seconds = |registry: &mut Registry, name: &str, help: &str, gauge: &Gauge| {
            registry.register_with_unit(name, help, Unit::Seconds, gauge.clone());
        };
        seconds(registry, "rotation_phase_since", "Since when it is in this phase, as Unix time", &metrics.phase_since);
        seconds(
            registry,
            "authority_not_after",
            "When the signing authority ends, as Unix time",
            &metrics.authority_ends,
        );
        seconds(
            registry,
            "leaf_renewal",
            "When the replicas' certificate is to be renewed, as Unix time",
            &metrics.leaf_renewal,
        );
        seconds(registry, "rotation_last_look", "When everything was last looked at, as Unix time", &metrics.last_look);
        metrics
    }

    pub(super) fn looked(&self, now: Timestamp, record: Option<&Record>, renewal: Option<Timestamp>) {
        self.last_look.set(now.as_second());
        for phase in Phase::ALL {
            let is = record.is_some_and(|record| record.phase == phase);
            self.phases.get_or_create_owned(&PhaseLabel { phase: phase.as_str() }).set(i64::from(is));
        }
        self.phase_since.set(record.map_or(0, |record| record.since.as_second()));
        let signer = record.and_then(Record::signer);
        self.authority_ends.set(signer.map_or(0, |signer| signer.not_after.as_second()));
        self.leaf_renewal.set(renewal.map_or(0, Timestamp::as_second));
    }

    pub(super) fn waits(&self, blocked: Option<Blocked>) {
        for reason in Blocked::ALL {
            let label = ReasonLabel { reason: reason.as_str() };
            self.blocked.get_or_create_owned(&label).set(i64::from(blocked == Some(reason)));
        }
    }

    pub(super) fn did(&self, step: &'static str, result: &'static str) {
        self.steps.get_or_create_owned(&StepLabels { step, result }).inc();
    }

    pub(super) fn disbelieved(&self) {
        self.disbelieved.inc();
    }

    pub(super) fn began(&self, trigger: Trigger) {
        self.begun.get_or_create_owned(&ReasonLabel { reason: trigger.as_str() }).inc();
    }

    /// Resets the metrics when leadership ends.
    pub(super) fn forget(&self) {
        self.looked(Timestamp::UNIX_EPOCH, None, None);
        self.waits(None);
    }
}
