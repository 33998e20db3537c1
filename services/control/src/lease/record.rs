//! The content of the Lease.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;

/// The contents of a Lease that the election uses. Its times are only compared with their earlier values: a change
/// means that the holder wrote.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Held {
    /// The holder; `None` after a release.
    pub holder: Option<String>,
    /// How long other candidates must wait, as the holder promised.
    pub duration: Duration,
    /// When the holder took it, by the holder's clock.
    pub acquired: Option<Timestamp>,
    /// The last renewal, by the holder's clock.
    pub renewed: Option<Timestamp>,
    /// The number of changes of the holder.
    pub transitions: i32,
}

impl Held {
    /// Reads a Lease. Negative numbers, which only manual edits cause, count as missing.
    #[must_use]
    pub fn of(lease: &Lease) -> Self {
        let Some(spec) = &lease.spec else { return Self::default() };
        let seconds = spec.lease_duration_seconds.and_then(|seconds| u64::try_from(seconds).ok());
        Self {
            holder: spec.holder_identity.clone().filter(|holder| !holder.is_empty()),
            duration: Duration::from_secs(seconds.unwrap_or(0)),
            acquired: spec.acquire_time.as_ref().map(|time| time.0),
            renewed: spec.renew_time.as_ref().map(|time| time.0),
            transitions: spec.lease_transitions.unwrap_or(0).max(0),
        }
    }

    /// Writes the contents into a Lease; other fields stay.
    pub(super) fn write_to(&self, lease: &mut Lease) {
        // The duration is in whole seconds, at least one.
        let seconds = self.duration.as_secs() + u64::from(self.duration.subsec_nanos() > 0);
        let spec = lease.spec.get_or_insert_with(LeaseSpec::default);
        spec.holder_identity.clone_from(&self.holder);
        spec.lease_duration_seconds = Some(i32::try_from(seconds.max(1)).unwrap_or(i32::MAX));
        spec.acquire_time = self.acquired.map(MicroTime);
        spec.renew_time = self.renewed.map(MicroTime);
        spec.lease_transitions = Some(self.transitions);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_back() {
        let now: Timestamp = "2026-11-21T12:00:00.123456Z".parse().unwrap();
        let held = Held {
            holder: Some("a".to_owned()),
            duration: Duration::from_secs(15),
            acquired: Some(now),
            renewed: Some(now),
            transitions: 3,
        };
        let mut lease = Lease::default();
        held.write_to(&mut lease);
        assert_eq!(Held::of(&lease), held);

        let scaled = Held { duration: Duration::from_millis(1_200), holder: None, ..held };
        scaled.write_to(&mut lease);
        assert_eq!(Held::of(&lease), Held { duration: Duration::from_secs(2), ..scaled });
    }

    #[test]
    fn nonsense_is_nobody_holding_it_for_no_time() {
        let spec = LeaseSpec {
            holder_identity: Some(String::new()),
            lease_duration_seconds: Some(-5),
            lease_transitions: Some(-1),
            ..LeaseSpec::default()
        };
        assert_eq!(Held::of(&Lease { spec: Some(spec), ..Lease::default() }), Held::default());
        assert_eq!(Held::of(&Lease::default()), Held::default());
    }
}
