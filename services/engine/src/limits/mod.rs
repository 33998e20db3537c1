//! Limits of namespaced profiles, checked on the result of every injection.
//!
//! A tenant's profile acts on all pods of the namespace. Values may come from expressions, so the profile's spec does
//! not show its effect. The pod after the profile is therefore compared with the pod before it:
//!
//! * `protected`: changes of the platform's profiles keep their values and positions.
//! * `scope`: which fields may change at all, and how much may be added.
//! * `pod_security`: no new violations of the Pod Security Standards ([`Control`]).
//!
//! [`Guardrails`] are the limits that the platform configures: registries, kinds of volumes, numbers. The first
//! violation is returned as an `Excess`, and the profile is not applied. Cluster profiles belong to the platform and
//! have no limits.

mod guardrails;
mod pod_security;
mod protected;
mod scope;

use std::fmt;

pub use guardrails::{Domain, Guardrails, ImagePrefix, VolumeKind};
pub use pod_security::{Control, PodSecurityLevel};
pub(crate) use protected::Protected;

use crate::json::{Document, OwnedTape, Value};
use crate::namespace::NamespaceMetadata;
use crate::profile::Limits;

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
    /// The work of checking the results of a namespace's profiles on a large pod.
    Work,
    /// A pod or record that cannot be read, and so cannot be checked.
    Unreadable,
}

/// A violation of a limit by a namespaced profile.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Excess {
    /// The exceeded limit.
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

    /// Creates the violation for a namespace whose budget does not suffice to check the result of one more profile.
    pub(crate) fn too_much_work() -> Self {
        let message = "the profiles of the namespace take more work on a pod of this size than a namespace gets for one \
                       request; combine profiles, or make the pod smaller";
        Self::new(Limit::Work, "/", message)
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

/// The limits of the namespaced profiles of one request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TenantLimits<'b> {
    pub(crate) namespace: &'b NamespaceMetadata,
    pub(crate) guardrails: &'b Guardrails,
}

impl TenantLimits<'_> {
    /// Checks the result of a namespaced profile. `limits` selects the checks. `before` is the object after the
    /// preceding profiles.
    ///
    /// # Errors
    /// The first violation.
    pub(crate) fn check(
        &self,
        limits: Limits,
        before: Value<'_>,
        after: Value<'_>,
        protected: &Protected,
    ) -> Result<(), Excess> {
        match limits {
            Limits::Tenant => check(before, after, protected, self.namespace, self.guardrails),
            Limits::Parent | Limits::Platform => protected.check(before, after),
        }
    }
}

/// Checks that the result of all profiles keeps the protected changes in the result of the platform's profiles alone.
///
/// # Errors
/// The first violation.
pub(crate) fn check_interference(
    alone: &Document<'_>,
    together: &Document<'_>,
    protected: &Protected,
) -> Result<(), Excess> {
    protected.check(render(alone)?.root(), render(together)?.root())
}

/// Renders a document, so that it can be compared with another one.
///
/// # Errors
/// Fails if the document has too many values.
pub(crate) fn render(document: &Document<'_>) -> Result<OwnedTape, Excess> {
    let mut text = String::new();
    document.write(Document::ROOT, &mut text);
    OwnedTape::parse(text).map_err(|_| Excess::unreadable())
}

/// Checks the result of a namespaced profile on a pod.
///
/// # Errors
/// The first violation.
pub(crate) fn check(
    before: Value<'_>,
    after: Value<'_>,
    protected: &Protected,
    namespace: &NamespaceMetadata,
    guardrails: &Guardrails,
) -> Result<(), Excess> {
    protected.check(before, after)?;
    scope::check(before, after, protected, guardrails)?;
    let label = PodSecurityLevel::from_label(namespace.label(PodSecurityLevel::LABEL));
    pod_security::check(before, after, label.max(guardrails.minimum_pod_security))
}

#[cfg(test)]
mod tests;
