//! Violations of the limits of namespaced profiles.

use std::fmt;

use super::control::Control;

/// A limit of namespaced profiles.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Limit {
    /// A control of the Pod Security Standards.
    PodSecurity(Control),
    /// Where images come from.
    Registry,
    /// The kinds of volumes.
    VolumeKind,
    /// Tokens of the pod's service account.
    ServiceAccountToken,
    /// What may be mounted, and where.
    Mount,
    /// Volumes as raw devices.
    RawDevice,
    /// Labels and annotations that others rely on.
    ReservedKey,
    /// Fields of the pod that no namespaced profile changes.
    Field,
    /// Containers and volumes that were there stay.
    Removal,
    /// What the platform's profiles added or set.
    Protected,
    /// Where elements of the platform's profiles stand in their lists.
    Order,
    /// How many containers are added.
    Containers,
    /// How many volumes are added.
    Volumes,
    /// How many entries of environments are added.
    Env,
    /// How many mounts are added.
    Mounts,
    /// How many labels and annotations are added.
    Keys,
    /// By how much the pod grows.
    Bytes,
    /// How large the patch of all profiles together is, or the pod that it makes.
    Patch,
    /// What cannot be checked is not applied.
    Unreadable,
}

/// A namespaced profile did something to a pod that none may do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Excess {
    /// The limit.
    pub(crate) limit: Limit,
    /// Where in the pod, with elements of lists by their keys: `/spec/containers/app/image`.
    pub(crate) place: String,
    /// What is there, what was expected, and what to do.
    pub(crate) message: String,
}

impl Excess {
    pub(crate) fn new(limit: Limit, place: impl Into<String>, message: impl Into<String>) -> Self {
        Self { limit, place: place.into(), message: message.into() }
    }

    /// Without the pod and the record no limit can be checked, so the profile is not applied.
    pub(crate) fn unreadable() -> Self {
        Self::new(Limit::Unreadable, "/", "the pod or its record cannot be read, so no limit can be checked")
    }
}

impl fmt::Display for Excess {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}: {}", self.place, self.message)
    }
}
