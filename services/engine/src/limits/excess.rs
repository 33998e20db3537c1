//! Violations of the limits of namespaced profiles.

use std::fmt;

use super::control::Control;

/// A limit of namespaced profiles.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Limit {
    /// A control of the Pod Security Standards.
    PodSecurity(Control),
    /// The registries of images.
    Registry,
    /// The kinds of volumes.
    VolumeKind,
    /// Tokens of the pod's service account.
    ServiceAccountToken,
    /// Volumes to mount, and their mount paths.
    Mount,
    /// Volumes as raw devices.
    RawDevice,
    /// Labels and annotations that other components rely on.
    ReservedKey,
    /// Fields of the pod that namespaced profiles must not change.
    Field,
    /// Removal of existing containers and volumes.
    Removal,
    /// Changes of fields that the platform's profiles added or set.
    Protected,
    /// The position in lists of elements that the platform's profiles added or moved.
    Order,
    /// The number of added containers.
    Containers,
    /// The number of added volumes.
    Volumes,
    /// The number of added environment variables.
    Env,
    /// The number of added mounts.
    Mounts,
    /// The number of added labels and annotations.
    Keys,
    /// The growth of the pod in bytes.
    Bytes,
    /// The size of the joint patch of all profiles, or of the patched pod.
    Patch,
    /// A pod or record that cannot be read, and so cannot be checked.
    Unreadable,
}

/// A violation of a limit by a namespaced profile.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Excess {
    /// The limit.
    pub(crate) limit: Limit,
    /// The path in the pod, with elements of lists by their keys: `/spec/containers/app/image`.
    pub(crate) place: String,
    /// The found value, the expected value, and the remedy.
    pub(crate) message: String,
}

impl Excess {
    pub(crate) fn new(limit: Limit, place: impl Into<String>, message: impl Into<String>) -> Self {
        Self { limit, place: place.into(), message: message.into() }
    }

    /// Creates the violation for an unreadable pod or record, for which no limit can be checked.
    pub(crate) fn unreadable() -> Self {
        Self::new(Limit::Unreadable, "/", "the pod or its record cannot be read, so no limit can be checked")
    }
}

impl fmt::Display for Excess {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}: {}", self.place, self.message)
    }
}
