//! Metrics of the election.

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

use super::decide::Loss;

/// The purpose of a request to the API server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Reading the Lease, or watching it.
    Read,
    /// Taking the Lease.
    Acquire,
    /// Renewing it.
    Renew,
    /// Releasing it.
    Release,
}

/// Why a term ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// The process shuts down.
    Stopped,
    /// The Lease could not be renewed in time.
    Deadline,
    /// Another candidate took the Lease.
    Taken,
    /// The leader's tasks returned early.
    Finished,
}

/// Gauges and counters of the election. Clones share them.
#[derive(Clone, Debug, Default)]
pub struct LeaseMetrics {
    leader: Gauge,
    began: Counter,
    ended: Family<ReasonLabel, Counter>,
    errors: Family<OperationLabel, Counter>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ReasonLabel {
    reason: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OperationLabel {
    operation: &'static str,
}

impl Operation {
    /// All operations.
    pub const ALL: [Self; 4] = [Self::Read, Self::Acquire, Self::Renew, Self::Release];

    /// The operation in metrics and logs.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Acquire => "acquire",
            Self::Renew => "renew",
            Self::Release => "release",
        }
    }
}

impl End {
    /// All reasons.
    pub const ALL: [Self; 4] = [Self::Stopped, Self::Deadline, Self::Taken, Self::Finished];

    /// The reason in metrics and logs.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Stopped => "stopped",
            Self::Deadline => "deadline",
            Self::Taken => "taken",
            Self::Finished => "finished",
        }
    }
}

impl From<Loss> for End {
    fn from(loss: Loss) -> Self {
        match loss {
            Loss::Deadline => Self::Deadline,
            Loss::Taken => Self::Taken,
        }
    }
}

impl LeaseMetrics {
    /// Creates the metrics and registers them with the prefix `pillion_controller`.
    pub fn register(registry: &mut Registry) -> Self {
        let metrics = Self::default();
        let registry = registry.sub_registry_with_prefix("pillion_controller");
        registry.register("leader", "Whether this controller leads", metrics.leader.clone());
        let text = "How often this controller became the leader";
        registry.register("leaderships", text, metrics.began.clone());
        let text = "How often this controller ceased to be the leader, by reason: asked to end, no write of the Lease in \
                    time, taken by another, its tasks ended";
        registry.register("leaderships_ended", text, metrics.ended.clone());
        let text = "Requests for the Lease that failed, by what they were for; conflicts, which are how an election is \
                    lost, among them";
        registry.register("lease_errors", text, metrics.errors.clone());
        for operation in Operation::ALL {
            drop(metrics.errors.get_or_create_owned(&OperationLabel { operation: operation.as_str() }));
        }
        for end in End::ALL {
            drop(metrics.ended.get_or_create_owned(&ReasonLabel { reason: end.as_str() }));
        }
        metrics
    }

    /// Whether this controller leads.
    #[must_use]
    pub fn leads(&self) -> bool {
        self.leader.get() == 1
    }

    pub(super) fn began(&self) {
        self.leader.set(1);
        self.began.inc();
    }

    pub(super) fn ended(&self, end: End) {
        self.leader.set(0);
        self.ended.get_or_create_owned(&ReasonLabel { reason: end.as_str() }).inc();
    }

    pub(super) fn failed(&self, operation: Operation) {
        self.errors.get_or_create_owned(&OperationLabel { operation: operation.as_str() }).inc();
    }

    /// Number of failed requests for this operation.
    #[must_use]
    pub fn failures(&self, operation: Operation) -> u64 {
        self.errors.get_or_create_owned(&OperationLabel { operation: operation.as_str() }).get()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_series_are_there_from_the_beginning() {
        let mut registry = Registry::default();
        let metrics = LeaseMetrics::register(&mut registry);
        metrics.began();
        metrics.ended(End::Taken);
        metrics.began();
        metrics.failed(Operation::Renew);
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
        for line in [
            "pillion_controller_leader 1",
            "pillion_controller_leaderships_total 2",
            "pillion_controller_leaderships_ended_total{reason=\"taken\"} 1",
            "pillion_controller_leaderships_ended_total{reason=\"deadline\"} 0",
            "pillion_controller_lease_errors_total{operation=\"renew\"} 1",
            "pillion_controller_lease_errors_total{operation=\"read\"} 0",
        ] {
            assert!(text.lines().any(|each| each == line), "{line} is not in\n{text}");
        }
    }
}
