//! Leader election among the controllers, with a Lease.
//!
//! The holder renews the Lease every few seconds, and all other candidates watch it. Clocks of different machines are
//! never compared. A candidate may take the Lease when it has not changed for the lease duration, *measured by the
//! candidate's own monotonic clock*. So a candidate with a wrong clock cannot take the Lease early.
//!
//! The holder stops leading before others may take over: [`Settings::renew_deadline`] after it *sent* its last
//! successful write. [`Claim::holds`] reads the clock, so a process that was paused notices this at once. The
//! `resourceVersion` that was read is a precondition of each write, so one of two concurrent writers gets a conflict.
//! The Lease does not protect the leader's other writes: each of them has its own preconditions.
//!
//! When the leader shuts down, its tasks end first. Then the leader removes itself from the Lease. The other candidates
//! watch the Lease, so one of them takes over at once.
//!
//! [`decide`](decide::decide) chooses the next action without I/O, and [`elector`] executes it. kube-rs has no leader
//! election. RBAC permissions: `get`, `update` and `watch` on the one Lease by name, and `create`.

pub mod decide;
pub mod elector;

use std::time::Duration;

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

use self::decide::Loss;
use crate::labels::Label;

pub use elector::{Claim, Elector};

/// Durations of the election. Tests use shorter ones. The lease duration is written in whole seconds, rounded up.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Settings {
    /// How long a Lease must be unchanged before other candidates may take it.
    pub lease_duration: Duration,
    /// How long the holder may fail to write before it stops leading. Shorter than `lease_duration`.
    pub renew_deadline: Duration,
    /// Time between two writes of the holder. After an error, the next attempt follows within this time.
    pub retry_period: Duration,
    /// Timeout of a request.
    pub request_timeout: Duration,
    /// How long the leader's tasks may take to end before they are aborted.
    pub grace: Duration,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            lease_duration: Duration::from_secs(15),
            renew_deadline: Duration::from_secs(10),
            retry_period: Duration::from_secs(2),
            request_timeout: Duration::from_secs(4),
            grace: Duration::from_secs(5),
        }
    }
}

/// The settings do not allow a safe election.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "in the leader election's settings, renewDeadline ({renew_deadline:?}) must be shorter than leaseDuration \
     ({lease_duration:?}) and longer than retryPeriod ({retry_period:?}): otherwise two controllers could lead at the \
     same time, or none for a long time"
)]
pub struct SettingsError {
    lease_duration: Duration,
    renew_deadline: Duration,
    retry_period: Duration,
}

impl Settings {
    /// Checks that an election with these settings is safe.
    ///
    /// # Errors
    /// The holder would lead for the whole lease duration or longer, or would stop leading before its second attempt to
    /// write.
    pub fn check(&self) -> Result<(), SettingsError> {
        let Self { lease_duration, renew_deadline, retry_period, .. } = *self;
        if renew_deadline < lease_duration && retry_period < renew_deadline {
            return Ok(());
        }
        Err(SettingsError { lease_duration, renew_deadline, retry_period })
    }
}

pillion_api::labelled! {
    /// The purpose of a request to the API server.
    pub enum LeaseOperation {
        /// Reading the Lease, or watching it.
        Read => "read",
        /// Taking the Lease.
        Acquire => "acquire",
        /// Renewing the Lease.
        Renew => "renew",
        /// Releasing the Lease.
        Release => "release",
    }
}

pillion_api::labelled! {
    /// Why a term ended.
    pub enum TermEnd {
        /// The process shuts down.
        Stopped => "stopped",
        /// The Lease could not be renewed in time.
        Deadline => "deadline",
        /// Another candidate took the Lease.
        Taken => "taken",
        /// The leader's tasks returned early.
        Finished => "finished",
    }
}

/// Gauges and counters of the election. Clones share them.
#[derive(Clone, Debug, Default)]
pub struct LeaseMetrics {
    leader: Gauge,
    began: Counter,
    ended: Family<Label, Counter>,
    errors: Family<Label, Counter>,
}

impl From<Loss> for TermEnd {
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
        registry.register("leader", "1 if this controller is the leader", metrics.leader.clone());
        let text = "Terms that this controller began as the leader";
        registry.register("leaderships", text, metrics.began.clone());
        let text = "Terms of this controller that ended, by reason";
        registry.register("leaderships_ended", text, metrics.ended.clone());
        let text = "Failed requests for the Lease, by operation. A lost election counts as one, since it is a conflict";
        registry.register("lease_errors", text, metrics.errors.clone());
        for operation in LeaseOperation::ALL {
            drop(metrics.errors.get_or_create_owned(&[("operation", operation.as_str())]));
        }
        for end in TermEnd::ALL {
            drop(metrics.ended.get_or_create_owned(&[("reason", end.as_str())]));
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

    pub(super) fn ended(&self, end: TermEnd) {
        self.leader.set(0);
        self.ended.get_or_create_owned(&[("reason", end.as_str())]).inc();
    }

    pub(super) fn failed(&self, operation: LeaseOperation) {
        self.errors.get_or_create_owned(&[("operation", operation.as_str())]).inc();
    }

    /// Number of failed requests for this operation.
    #[must_use]
    pub fn failures(&self, operation: LeaseOperation) -> u64 {
        self.errors.get_or_create_owned(&[("operation", operation.as_str())]).get()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rejects_deadline_beyond_lease_duration() {
        assert_eq!(Settings::default().check(), Ok(()));
        let late_deadline = Settings { renew_deadline: Duration::from_secs(15), ..Settings::default() };
        let error = late_deadline.check().unwrap_err().to_string();
        assert!(error.contains("renewDeadline (15s)"), "{error}");
        let long_retry = Settings { retry_period: Duration::from_secs(10), ..Settings::default() };
        assert!(long_retry.check().is_err());
    }

    #[test]
    fn exposition_has_all_series() {
        let mut registry = Registry::default();
        let metrics = LeaseMetrics::register(&mut registry);
        metrics.began();
        metrics.ended(TermEnd::Taken);
        metrics.began();
        metrics.failed(LeaseOperation::Renew);
        let text = crate::labels::exposition(&registry);
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
