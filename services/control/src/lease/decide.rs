//! The content of the Lease, and the decision of the election. The decision takes the observed Lease and the local
//! clock, and returns the next action.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use tokio::time::Instant;

use super::Settings;

/// The fields of a Lease that the election uses. Times are compared only with their earlier values: any change shows
/// that the holder has written the Lease.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LeaseContent {
    /// The holder; `None` after a release.
    pub holder: Option<String>,
    /// The lease duration: how long other candidates must wait.
    pub duration: Duration,
    /// When the holder took the Lease, by the holder's clock.
    pub acquired: Option<Timestamp>,
    /// The last renewal, by the holder's clock.
    pub renewed: Option<Timestamp>,
    /// The number of changes of the holder.
    pub transitions: i32,
}

impl LeaseContent {
    /// Reads a Lease. Negative numbers, which only manual edits cause, are treated as missing.
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

    /// Writes the contents into a Lease, and keeps its other fields.
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

/// The longest lease duration of another holder that this controller respects, as a multiple of its own lease duration.
/// A holder of another version may use a longer duration. Without a maximum, a Lease edited by hand could stop the
/// controllers forever.
const MAX_DURATION_FACTOR: u32 = 4;

/// One controller's view of the Lease.
#[derive(Clone, Debug)]
pub struct LeaseView {
    /// The contents of the Lease; `None` if it does not exist.
    pub content: Option<LeaseContent>,
    /// When this controller first saw these contents.
    pub since: Instant,
    /// When this leader sent its last successful write; `None` if this controller does not lead.
    pub claim: Option<Instant>,
}

/// The next action.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Create the Lease, and hold it.
    Create,
    /// Take the Lease, which has expired, has no holder, or names this process although it does not lead. A leader also
    /// takes the Lease if another client has removed the leader as holder.
    Acquire,
    /// Renew the held Lease.
    Renew,
    /// Another controller holds the Lease: wait until this time or a change.
    Wait {
        /// When this controller may take the Lease.
        until: Instant,
    },
    /// Stop leading.
    Lost(Loss),
}

/// Why a leader must stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Loss {
    /// The leader could not write for too long, or was paused for too long.
    Deadline,
    /// Another controller holds the Lease.
    Taken,
}

impl LeaseView {
    /// Creates a view without any observation.
    #[must_use]
    pub const fn unknown(now: Instant) -> Self {
        Self { content: None, since: now, claim: None }
    }

    /// Records the Lease. Only its election fields are compared: a changed label does not prove that the holder is
    /// alive.
    pub fn observe(&mut self, content: Option<LeaseContent>, now: Instant) {
        if self.content != content {
            (self.content, self.since) = (content, now);
        }
    }

    /// Records a successful write that was sent at this time.
    pub fn record_write(&mut self, content: LeaseContent, sent: Instant, now: Instant) {
        self.observe(Some(content), now);
        self.claim = Some(sent);
    }

    /// When this controller must stop leading; `None` if it does not lead.
    #[must_use]
    pub fn deadline(&self, settings: &Settings) -> Option<Instant> {
        self.claim.map(|sent| sent + settings.renew_deadline)
    }
}

/// Returns the next action. `identity` must be unique to this process.
#[must_use]
pub fn decide(settings: &Settings, identity: &str, view: &LeaseView, now: Instant) -> Action {
    // Check the clock first: a controller that was paused has an outdated view of the Lease.
    if view.deadline(settings).is_some_and(|deadline| now >= deadline) {
        return Action::Lost(Loss::Deadline);
    }
    let leads = view.claim.is_some();
    let Some(content) = &view.content else { return Action::Create };
    match content.holder.as_deref() {
        None => Action::Acquire,
        Some(holder) if holder == identity => {
            if leads {
                Action::Renew
            } else {
                // This process holds the Lease without leading: the response to its last write was lost, or its last
                // term ended without a release.
                Action::Acquire
            }
        }
        Some(_) if leads => Action::Lost(Loss::Taken),
        Some(_) => {
            let until = view.since + wait_for_holder(settings, content.duration);
            if now >= until { Action::Acquire } else { Action::Wait { until } }
        }
    }
}

/// Returns how long to wait for a silent holder: the Lease's duration, but at least this controller's own lease
/// duration, and at most [`MAX_DURATION_FACTOR`] times as long.
fn wait_for_holder(settings: &Settings, lease_duration: Duration) -> Duration {
    lease_duration.clamp(settings.lease_duration, settings.lease_duration * MAX_DURATION_FACTOR)
}

/// Returns the number of changes of the holder, including the one when `identity` takes the Lease.
pub(super) fn transitions(before: &LeaseContent, identity: &str) -> i32 {
    before.transitions.saturating_add(i32::from(before.holder.as_deref() != Some(identity)))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn by(holder: &str) -> LeaseContent {
        LeaseContent { holder: Some(holder.to_owned()), duration: 15 * SECOND, ..LeaseContent::default() }
    }

    /// A test case: the action of `me` at second 100. The Lease has not changed since second `since`. `me` sent its
    /// last successful write at second `claim`.
    struct Case {
        what: &'static str,
        content: Option<LeaseContent>,
        since: u32,
        claim: Option<u32>,
        /// Returns the expected action, given the time of second 0.
        does: fn(Instant) -> Action,
    }

    const fn case(
        what: &'static str,
        content: Option<LeaseContent>,
        since: u32,
        claim: Option<u32>,
        does: fn(Instant) -> Action,
    ) -> Case {
        Case { what, content, since, claim, does }
    }

    #[test]
    fn decides_by_lease_and_clock() {
        let released = || Some(LeaseContent::default());
        let other = || Some(by("other"));
        let mine = || Some(by("me"));
        let lease_duration = |seconds: u32| Some(LeaseContent { duration: seconds * SECOND, ..by("other") });
        let cases = [
            case("no Lease", None, 99, None, |_| Action::Create),
            case("the leader's Lease was deleted", None, 99, Some(95), |_| Action::Create),
            case("released", released(), 100, None, |_| Action::Acquire),
            case("the leader was removed from the Lease", released(), 100, Some(98), |_| Action::Acquire),
            case("held by another, just renewed", other(), 99, None, |zero| Action::Wait {
                until: zero + 114 * SECOND,
            }),
            case("held by another, expires in a second", other(), 86, None, |zero| Action::Wait {
                until: zero + 101 * SECOND,
            }),
            case("held by another, expired", other(), 85, None, |_| Action::Acquire),
            case("held by another with a longer duration", lease_duration(30), 85, None, |zero| Action::Wait {
                until: zero + 115 * SECOND,
            }),
            case("held by another without a duration", lease_duration(0), 99, None, |zero| Action::Wait {
                until: zero + 114 * SECOND,
            }),
            case("held by another for years", lease_duration(1 << 30), 41, None, |zero| Action::Wait {
                until: zero + 101 * SECOND,
            }),
            case("held by another for years, silent for long", lease_duration(1 << 30), 40, None, |_| Action::Acquire),
            case("held by me", mine(), 99, Some(98), |_| Action::Renew),
            case("held by me, just before the deadline", mine(), 91, Some(91), |_| Action::Renew),
            case("held by me, at the deadline", mine(), 90, Some(90), |_| Action::Lost(Loss::Deadline)),
            case("held by me, response was late", mine(), 99, Some(90), |_| Action::Lost(Loss::Deadline)),
            case("no Lease, at the deadline", None, 99, Some(90), |_| Action::Lost(Loss::Deadline)),
            case("released, at the deadline", released(), 99, Some(90), |_| Action::Lost(Loss::Deadline)),
            case("taken by another", other(), 100, Some(99), |_| Action::Lost(Loss::Taken)),
            case("held by me, without leading", mine(), 99, None, |_| Action::Acquire),
        ];
        for Case { what, content, since, claim, does } in cases {
            let zero = Instant::now();
            let view =
                LeaseView { content, since: zero + since * SECOND, claim: claim.map(|claim| zero + claim * SECOND) };
            assert_eq!(decide(&Settings::default(), "me", &view, zero + 100 * SECOND), does(zero), "{what}");
        }
    }

    #[test]
    fn only_changed_fields_prove_the_holder_alive() {
        let zero = Instant::now();
        let mut view = LeaseView::unknown(zero);
        view.observe(Some(by("other")), zero + SECOND);
        view.observe(Some(by("other")), zero + 9 * SECOND);
        assert_eq!(view.since, zero + SECOND);
        // Even a renewal time that is earlier than before proves that the holder is alive.
        let backwards = LeaseContent { renewed: Some("1970-01-01T00:00:00Z".parse().unwrap()), ..by("other") };
        view.observe(Some(backwards), zero + 10 * SECOND);
        assert_eq!(view.since, zero + 10 * SECOND);
    }

    #[test]
    fn holder_gives_up_before_others_may_take() {
        // The deadline starts when the write is sent, not when its response arrives.
        let settings = Settings::default();
        let sent = Instant::now();
        let mut holder = LeaseView::unknown(sent);
        holder.record_write(by("me"), sent, sent + 3 * SECOND);
        for seen in [sent, sent + SECOND] {
            let mut other = LeaseView::unknown(seen);
            other.observe(Some(by("me")), seen);
            for milliseconds in (0..20_000).step_by(50) {
                let now = sent + Duration::from_millis(milliseconds);
                let leads = decide(&settings, "me", &holder, now) == Action::Renew;
                let takes = decide(&settings, "other", &other, now) == Action::Acquire;
                assert!(!(leads && takes), "two leaders after {milliseconds} ms");
            }
        }
    }

    #[test]
    fn transitions_count_changes_of_the_holder() {
        let content = LeaseContent { transitions: 7, ..by("other") };
        assert_eq!(transitions(&content, "me"), 8);
        assert_eq!(transitions(&content, "other"), 7);
        assert_eq!(transitions(&LeaseContent { holder: None, ..content }, "other"), 8);
    }

    #[test]
    fn lease_content_round_trips() {
        let now: Timestamp = "2026-11-21T12:00:00.123456Z".parse().unwrap();
        let content = LeaseContent {
            holder: Some("a".to_owned()),
            duration: Duration::from_secs(15),
            acquired: Some(now),
            renewed: Some(now),
            transitions: 3,
        };
        let mut lease = Lease::default();
        content.write_to(&mut lease);
        assert_eq!(LeaseContent::of(&lease), content);

        let scaled = LeaseContent { duration: Duration::from_millis(1_200), holder: None, ..content };
        scaled.write_to(&mut lease);
        assert_eq!(LeaseContent::of(&lease), LeaseContent { duration: Duration::from_secs(2), ..scaled });
    }

    #[test]
    fn invalid_fields_count_as_missing() {
        let spec = LeaseSpec {
            holder_identity: Some(String::new()),
            lease_duration_seconds: Some(-5),
            lease_transitions: Some(-1),
            ..LeaseSpec::default()
        };
        assert_eq!(LeaseContent::of(&Lease { spec: Some(spec), ..Lease::default() }), LeaseContent::default());
        assert_eq!(LeaseContent::of(&Lease::default()), LeaseContent::default());
    }
}
