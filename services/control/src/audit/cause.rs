//! Finds the likely cause of a difference between a pod and its profiles. Does no I/O.

use std::fmt;

pillion_api::labelled! {
    /// A difference between a pod's record and a profile. The states are label values of a metric.
    #[derive(Hash, PartialOrd, Ord)]
    pub enum State {
        /// The profile matches the pod, and the pod's record does not list it.
        Missing => "missing",
        /// The record lists a revision other than the expected one.
        Outdated => "outdated",
        /// The record lists a profile that was deleted, or that no longer matches the pod.
        Orphaned => "orphaned",
    }
}

pillion_api::labelled! {
    /// The cause of a difference. The causes are label values of a metric.
    #[derive(Hash, PartialOrd, Ord)]
    pub enum Cause {
        /// The pod was created before the namespace was opted in, or so shortly afterwards that the opt-in had no
        /// effect yet.
        BeforeOptIn => "before_opt_in",
        /// The profile was created after the pod, or shortly before it.
        ProfileCreated => "profile_created",
        /// The kill switch was set to `injection: disabled`.
        SwitchedOff => "switched_off",
        /// The webhook was unavailable: no configuration was registered, or no replica was ready.
        WebhookUnavailable => "webhook_unavailable",
        /// The labels or annotations of the namespace have changed since the pod was created.
        NamespaceChanged => "namespace_changed",
        /// The profile has changed since the pod was created.
        ProfileChanged => "profile_changed",
        /// The profile was deleted.
        ProfileDeleted => "profile_deleted",
        /// The webhook did not apply the profile: a name conflict, a limit, or nothing to add.
        Skipped => "skipped",
        /// No known event explains the difference. Most likely the webhook timed out.
        Unknown => "unknown",
    }
}

/// Facts about a pod, its namespace and a profile. Times are in seconds since 1970; `None` if unknown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Circumstances {
    /// When the pod was created; 0 if unknown.
    pub created: i64,
    /// Whether the pod has an injection record.
    pub is_recorded: bool,
    /// The latest time at which the opt-in label can have been set.
    pub opted_in: Option<i64>,
    /// When another label or annotation of the namespace last changed.
    pub namespace_changed: Option<i64>,
    /// Whether the profile was deleted.
    pub profile_gone: bool,
    /// When the profile was created.
    pub profile_created: Option<i64>,
    /// When the profile's spec last changed.
    pub profile_changed: Option<i64>,
    /// Why the webhook may not have injected when the pod was created; `None` if no reason is known.
    pub not_called: Option<WhyNotCalled>,
}

/// Why the webhook does not inject at a given time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WhyNotCalled {
    /// Injection is disabled.
    SwitchedOff,
    /// The webhook is unavailable.
    Unavailable,
}

/// Time for a change to reach API servers and replicas, in seconds.
const PROPAGATION_SECONDS: i64 = 2;

impl Cause {
    /// Returns a description of the cause for users.
    #[must_use]
    pub const fn sentence(self) -> &'static str {
        match self {
            Self::BeforeOptIn => "created before the namespace was opted in",
            Self::ProfileCreated => "created before the profile",
            Self::SwitchedOff => "injection was disabled",
            Self::WebhookUnavailable => "created while no replica was ready",
            Self::NamespaceChanged => "the namespace changed after the pod was created",
            Self::ProfileChanged => "the profile changed after the pod was created",
            Self::ProfileDeleted => "the profile was deleted",
            Self::Skipped => "the webhook skipped it",
            Self::Unknown => "unknown; run pillion explain",
        }
    }
}

impl fmt::Display for State {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.pad(self.as_str())
    }
}

impl fmt::Display for Cause {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.pad(self.sentence())
    }
}

/// Returns the most likely cause of a difference. Events that prevented injection take precedence over later changes.
#[must_use]
pub fn cause(state: State, circumstances: &Circumstances) -> Cause {
    let Circumstances { created, is_recorded, not_called, .. } = *circumstances;
    // If the pod's creation time is unknown (0), no change counts as later than the pod.
    let precedes = |time: Option<i64>| created != 0 && time.is_some_and(|time| created <= time + PROPAGATION_SECONDS);
    let before = |time: Option<i64>| created != 0 && time.is_some_and(|time| created < time);
    let after = |time: Option<i64>| created != 0 && time.is_some_and(|time| created <= time);
    match state {
        State::Orphaned if circumstances.profile_gone => Cause::ProfileDeleted,
        State::Outdated | State::Orphaned => Cause::ProfileChanged,
        State::Missing if !is_recorded && before(circumstances.opted_in) => Cause::BeforeOptIn,
        State::Missing if before(circumstances.profile_created) => Cause::ProfileCreated,
        State::Missing if !is_recorded && not_called == Some(WhyNotCalled::SwitchedOff) => Cause::SwitchedOff,
        State::Missing if !is_recorded && not_called == Some(WhyNotCalled::Unavailable) => Cause::WebhookUnavailable,
        // The namespace was opted in, or the profile was created, shortly before the pod. The change may not have
        // reached API servers and replicas yet.
        State::Missing if !is_recorded && precedes(circumstances.opted_in) => Cause::BeforeOptIn,
        State::Missing if precedes(circumstances.profile_created) => Cause::ProfileCreated,
        State::Missing if after(circumstances.namespace_changed) => Cause::NamespaceChanged,
        State::Missing if after(circumstances.profile_changed) => Cause::ProfileChanged,
        State::Missing if is_recorded => Cause::Skipped,
        State::Missing => Cause::Unknown,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_cause_has_its_case() {
        let plain = Circumstances {
            created: 1_000,
            opted_in: Some(500),
            namespace_changed: Some(600),
            profile_created: Some(700),
            profile_changed: Some(800),
            ..Circumstances::default()
        };
        let away = Some(WhyNotCalled::Unavailable);
        let cases = [
            (State::Missing, plain, Cause::Unknown),
            (State::Missing, Circumstances { opted_in: Some(1_001), ..plain }, Cause::BeforeOptIn),
            (State::Missing, Circumstances { opted_in: Some(998), ..plain }, Cause::BeforeOptIn),
            (State::Missing, Circumstances { opted_in: Some(997), ..plain }, Cause::Unknown),
            // The webhook is known to have been unavailable when the pod was created. That explains the difference,
            // although the namespace was opted in during the same second.
            (
                State::Missing,
                Circumstances { opted_in: Some(1_000), not_called: away, ..plain },
                Cause::WebhookUnavailable,
            ),
            (State::Missing, Circumstances { opted_in: Some(1_001), not_called: away, ..plain }, Cause::BeforeOptIn),
            (State::Missing, Circumstances { profile_created: Some(1_500), ..plain }, Cause::ProfileCreated),
            (
                State::Missing,
                Circumstances { not_called: Some(WhyNotCalled::SwitchedOff), ..plain },
                Cause::SwitchedOff,
            ),
            (State::Missing, Circumstances { not_called: away, ..plain }, Cause::WebhookUnavailable),
            (
                State::Missing,
                Circumstances { not_called: away, profile_changed: Some(2_000), ..plain },
                Cause::WebhookUnavailable,
            ),
            (State::Missing, Circumstances { namespace_changed: Some(1_100), ..plain }, Cause::NamespaceChanged),
            (State::Missing, Circumstances { profile_changed: Some(1_100), ..plain }, Cause::ProfileChanged),
            (State::Missing, Circumstances { is_recorded: true, not_called: away, ..plain }, Cause::Skipped),
            (
                State::Missing,
                Circumstances { is_recorded: true, profile_created: Some(1_001), ..plain },
                Cause::ProfileCreated,
            ),
            (State::Missing, Circumstances::default(), Cause::Unknown),
            (State::Outdated, plain, Cause::ProfileChanged),
            (State::Orphaned, plain, Cause::ProfileChanged),
            (State::Orphaned, Circumstances { profile_gone: true, ..plain }, Cause::ProfileDeleted),
        ];
        for (state, circumstances, expected) in cases {
            assert_eq!(cause(state, &circumstances), expected, "{state}: {circumstances:?}");
        }
    }
}
