//! Limits of namespaced profiles, checked on the result of every injection.
//!
//! A tenant's profile applies to all pods of the namespace. Expressions compute some of its values, so its spec does
//! not show its full effect. Therefore the pod is compared before and after the profile is applied:
//!
//! * `protected`: changes by cluster profiles keep their values and positions.
//! * `scope`: only some fields may change, and only a limited amount may be added.
//! * `pod_security`: there are no new violations of the Pod Security Standards ([`Control`]).
//!
//! [`Guardrails`] are the limits that the platform configures, such as registries, kinds of volumes, and maximum
//! numbers. The first violation is returned as an `Excess`, and the profile is not applied. A namespaced profile that
//! only extends a cluster profile and sets values is checked only against `protected`. Cluster profiles belong to the
//! platform, so they have no limits.

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
    /// The kinds of volumes that may be added, changed or mounted.
    VolumeKind,
    /// Use of the service account tokens of the pod.
    ServiceAccountToken,
    /// The paths of mounts, which must not hide the mounts of cluster profiles.
    Mount,
    /// Volumes used as raw block devices (`volumeDevices`).
    RawDevice,
    /// Labels and annotations that other components rely on.
    ReservedKey,
    /// Fields of the pod that namespaced profiles must not change.
    Field,
    /// Removal of existing containers and volumes, and changes to the keys of list elements.
    Removal,
    /// Changes to values that cluster profiles added or set.
    Protected,
    /// The position of list elements that cluster profiles added or moved.
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
    /// The size of the patch of all profiles together with the object.
    Patch,
    /// The budget for checking the results of a namespace's profiles on a large pod.
    Work,
    /// The pod or its record cannot be read, so the limits cannot be checked.
    Unreadable,
}

/// A violation of a limit by a namespaced profile.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Excess {
    /// The exceeded limit.
    pub(crate) limit: Limit,
    /// The path in the pod, such as `/spec/containers/app/image`. List elements are identified by their keys.
    pub(crate) place: String,
    /// The value that was found, the expected value, and how to correct it.
    pub(crate) message: String,
}

impl Excess {
    pub(crate) fn new(limit: Limit, place: impl Into<String>, message: impl Into<String>) -> Self {
        Self { limit, place: place.into(), message: message.into() }
    }

    /// Creates the violation for a namespace whose budget is too small to check the result of one more profile.
    pub(crate) fn too_much_work() -> Self {
        let message = "with a pod of this size, the profiles of the namespace exceed the namespace's evaluation budget \
                       for one request; combine profiles, or make the pod smaller";
        Self::new(Limit::Work, "/", message)
    }

    /// Creates the violation for a pod or record that cannot be read, so that no limit can be checked.
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
    /// Checks the result of a namespaced profile. `limits` determines which checks are run. `before` is the object
    /// after the preceding profiles.
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

/// Checks that the protected changes in the result of the cluster profiles alone are also in the result of all
/// profiles.
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

/// Renders a document for comparison with another one.
///
/// # Errors
/// The rendered document cannot be parsed, for example because it has too many values.
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
