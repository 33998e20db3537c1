//! Leader election among the controllers, by a Lease.
//!
//! The holder renews the Lease every few seconds, and all other candidates watch it. Clocks of different machines are
//! never compared: a Lease is lost when its content has not changed for as long as it promises, *measured by the
//! watcher's own monotonic clock*. A fast clock steals nothing.
//!
//! The holder gives up earlier than others may take over: [`Settings::renew_deadline`] after it *sent* its last
//! successful write. [`Claim::holds`] reads the clock, so a process that was paused notices at once. Each write names
//! the `resourceVersion` that was read, so one of two concurrent writers gets a conflict. The Lease does not fence the
//! leader's other writes: those guard themselves.
//!
//! At the end of a term the leader's tasks end first. Then the holder is removed from the Lease, and the next candidate
//! takes over at once, since it watches.
//!
//! [`decide`](decide::decide) is the pure decision; [`elector`] executes it. RBAC permissions: `get`, `update` and
//! `watch` on the one Lease by name, and `create`.

pub mod decide;
pub mod elector;
pub mod metrics;
mod record;

use std::time::Duration;

pub use elector::{Claim, Elector};
pub use metrics::LeaseMetrics;
pub use record::Held;

/// Durations of the election. Tests scale them down; the Lease itself has whole seconds, rounded up.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Settings {
    /// How long a Lease must be unchanged before other candidates may take it.
    pub lease_duration: Duration,
    /// How long the holder may fail to write before it stops leading. Shorter than `lease_duration`.
    pub renew_deadline: Duration,
    /// Time between two writes of the holder, and between two attempts after an error.
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
    "of an election's settings, renewDeadline ({renew_deadline:?}) has to be shorter than leaseDuration \
     ({lease_duration:?}) and longer than retryPeriod ({retry_period:?}): else two lead, or nobody for long"
)]
pub struct SettingsError {
    lease_duration: Duration,
    renew_deadline: Duration,
    retry_period: Duration,
}

impl Settings {
    /// Divides all durations, for tests.
    #[must_use]
    pub fn scaled_down(&self, by: u32) -> Self {
        let by = by.max(1);
        Self {
            lease_duration: self.lease_duration / by,
            renew_deadline: self.renew_deadline / by,
            retry_period: self.retry_period / by,
            request_timeout: self.request_timeout / by,
            grace: self.grace / by,
        }
    }

    /// Checks that an election with these settings is safe.
    ///
    /// # Errors
    /// The holder would not give up before others may take the Lease, or would give up before its next attempt.
    pub fn check(&self) -> Result<(), SettingsError> {
        let Self { lease_duration, renew_deadline, retry_period, .. } = *self;
        if renew_deadline < lease_duration && retry_period < renew_deadline {
            return Ok(());
        }
        Err(SettingsError { lease_duration, renew_deadline, retry_period })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_holder_that_would_outstay_its_lease_is_refused() {
        assert_eq!(Settings::default().check(), Ok(()));
        assert_eq!(Settings::default().scaled_down(10).check(), Ok(()));
        let outstays = Settings { renew_deadline: Duration::from_secs(15), ..Settings::default() };
        let error = outstays.check().unwrap_err().to_string();
        assert!(error.contains("renewDeadline (15s)"), "{error}");
        let hasty = Settings { retry_period: Duration::from_secs(10), ..Settings::default() };
        assert!(hasty.check().is_err());
    }
}
