//! Profiles: from the author's spec to the compiled profile.
//!
//! All profiles are processed in these steps by [`ProfileSource::compile`]. The source determines the first step:
//!
//! 1. The spec of an author is checked: a namespaced profile must not set what only cluster profiles may set.
//! 2. The spec is flattened: merged with the cluster profiles that it extends ([`FlattenedProfile`]). The leader
//!    publishes the flattened profile as a revision. Replicas start with a revision, at the next step.
//! 3. The flattened profile is compiled ([`CompiledProfile`]). All errors are reported before a profile takes effect,
//!    and requests only use compiled profiles.

mod elements;
mod flattened;
pub(crate) mod pod_schema;
mod typed;
mod unmarked;
pub(crate) mod template;
mod check;
mod tenant;
mod extend;
pub(crate) mod request;
pub(crate) mod target;
pub(crate) mod parts;
mod compile;
mod review;

use std::fmt;

use pillion_api::profile::{Activation, FailurePolicy, OptOut, ProfileSpec, Rollout};
use pillion_api::revision::RevisionSpec;
use pillion_api::selector::LabelSelector;

use crate::context::{Definitions, Variable};
use crate::expression::Owner;
use crate::lookup::{Declared, Needs};
use crate::parameter::Parameter;
use crate::schema::{self, Type};
use request::Request;
use target::{Action, Phase};

pub use crate::diagnostic::{Diagnostic, Part};
pub use check::{MAX_TEMPLATE_BYTES, warnings};
#[cfg(test)]
pub(crate) use extend::tests::Library;
pub use extend::{MAX_CHAIN, NoParents, Parent, Parents};
pub use flattened::FlattenedProfile;
pub(crate) use parts::one_line;
pub(crate) use pod_schema::{Expected, InvalidValue};
pub use review::{KnownParents, ProfileReview};

/// The source from which a profile is compiled.
#[derive(Clone, Copy)]
pub enum ProfileSource<'s> {
    /// The spec of an author, from the API server or a file, with the cluster profiles that it may extend.
    Author(&'s ProfileSpec, &'s dyn Parents),
    /// A published revision. It is already flattened.
    Revision(&'s RevisionSpec),
}

impl ProfileSource<'_> {
    /// Merges the profile with the profiles that it extends, or reads the revision.
    ///
    /// # Errors
    /// The chain or the revision is invalid, or a namespaced profile sets what only cluster profiles may set. The
    /// flattened profile may still have errors that only compilation finds.
    pub fn flatten(self, name: &ProfileName) -> Result<FlattenedProfile, Vec<Diagnostic>> {
        let diagnostics = self.check(name);
        if diagnostics.is_empty() { self.merge(name) } else { Err(diagnostics) }
    }

    /// Compiles the profile.
    ///
    /// # Errors
    /// Returns all diagnostics, including those for inherited parts.
    pub fn compile(self, name: &ProfileName) -> Result<CompiledProfile, Vec<Diagnostic>> {
        let mut diagnostics = self.check(name);
        match self.merge(name).and_then(|flattened| flattened.compile(name)) {
            Ok(profile) if diagnostics.is_empty() => return Ok(profile),
            Ok(_) => {}
            Err(more) => diagnostics.extend(more),
        }
        Err(diagnostics)
    }

    /// Returns the errors in the author's own spec: fields that a namespaced profile must not set.
    fn check(self, name: &ProfileName) -> Vec<Diagnostic> {
        let mut diagnostics = Vec::new();
        if let (Self::Author(spec, _), Some(_)) = (self, &name.namespace) {
            tenant::check_fields(spec, &mut diagnostics);
        }
        diagnostics
    }

    fn merge(self, name: &ProfileName) -> Result<FlattenedProfile, Vec<Diagnostic>> {
        match self {
            Self::Author(spec, parents) => extend::flatten(name, spec, parents),
            Self::Revision(revision) => {
                FlattenedProfile::from_revision(name, revision).map_err(|diagnostic| vec![diagnostic])
            }
        }
    }
}

/// Compiles the spec of a profile that does not extend another one.
///
/// # Errors
/// Returns all diagnostics if the profile is invalid.
pub fn compile(name: &ProfileName, spec: &ProfileSpec) -> Result<CompiledProfile, Vec<Diagnostic>> {
    ProfileSource::Author(spec, &NoParents).compile(name)
}

/// The name of a profile. Cluster profiles sort before namespaced ones.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ProfileName {
    /// The namespace of a namespaced profile. `None` for a cluster profile.
    pub namespace: Option<Box<str>>,
    /// The name of the object.
    pub name: Box<str>,
}

impl ProfileName {
    /// Creates the name of a cluster profile.
    #[must_use]
    pub fn cluster(name: impl Into<Box<str>>) -> Self {
        Self { namespace: None, name: name.into() }
    }

    /// Creates the name of a namespaced profile.
    #[must_use]
    pub fn namespaced(namespace: impl Into<Box<str>>, name: impl Into<Box<str>>) -> Self {
        Self { namespace: Some(namespace.into()), name: name.into() }
    }
}

impl fmt::Display for ProfileName {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.namespace {
            Some(namespace) => write!(formatter, "{namespace}/{}", self.name),
            None => formatter.write_str(&self.name),
        }
    }
}

/// The limits that apply to a profile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Limits {
    /// No limits: the profile is a cluster profile.
    Platform,
    /// The limits of the extended cluster profile. They apply to namespaced profiles that only set permitted values.
    Parent,
    /// The limits for namespaced profiles.
    Tenant,
}

impl Limits {
    /// Returns the limits of a profile that does not extend another one.
    const fn of(name: &ProfileName) -> Self {
        match name.namespace {
            Some(_) => Self::Tenant,
            None => Self::Platform,
        }
    }
}

/// A valid profile in compiled form.
#[derive(Debug)]
pub struct CompiledProfile {
    name: ProfileName,
    /// The name in records, metrics and messages.
    display_name: Box<str>,
    revision: Box<str>,
    memory: usize,
    limits: Limits,
    ancestors: Box<[Box<str>]>,
    pub(crate) activation: Activation,
    pub(crate) request: Option<Request>,
    pub(crate) opt_out: OptOut,
    pub(crate) namespace_selector: Option<LabelSelector>,
    rollout: Option<Rollout>,
    safety_net: bool,
    pub(crate) object_selector: Option<LabelSelector>,
    pub(crate) exclusive_group: Option<Box<str>>,
    pub(crate) order: i32,
    pub(crate) failure_policy: FailurePolicy,
    pub(crate) parameters: Box<[Parameter]>,
    pub(crate) variables: Box<[Variable]>,
    pub(crate) match_conditions: Box<[parts::MatchCondition]>,
    pub(crate) preconditions: Box<[parts::Precondition]>,
    pub(crate) template: Option<template::Node>,
    pub(crate) container_patches: Box<[parts::ContainerPatch]>,
    /// The names of the containers that the profile adds, except computed names.
    pub(crate) own_containers: Box<[Box<str>]>,
    pub(crate) lookups: Box<[Declared]>,
    pub(crate) needs: Needs,
    pub(crate) validations: Box<[parts::Validation]>,
    pub(crate) target: target::Target,
    /// Whether the profile has a template or container patches, and not only validations.
    pub(crate) has_template: bool,
    /// Whether the profile adds containers that are not for Windows.
    pub(crate) adds_linux_containers: bool,
    /// Volumes that the profile's containers mount, but that the profile does not add.
    pub(crate) foreign_volumes: Box<[Box<str>]>,
}

impl CompiledProfile {
    /// Returns the name.
    #[must_use]
    pub const fn name(&self) -> &ProfileName {
        &self.name
    }

    /// Returns the name in records and messages, such as `nginx` or `team-a/logger`.
    #[must_use]
    pub fn display_name(&self) -> &str {
        &self.display_name
    }

    /// Returns the revision: a hash of the flattened profile. It does not depend on the replica that compiles the
    /// profile.
    #[must_use]
    pub fn revision(&self) -> &str {
        &self.revision
    }

    /// Returns an upper bound for the memory of the profile, in bytes, estimated from the size of its parts.
    #[must_use]
    pub const fn memory(&self) -> usize {
        self.memory
    }

    /// Returns the limits of the profile.
    #[must_use]
    pub const fn limits(&self) -> Limits {
        self.limits
    }

    /// Whether the limits for namespaced profiles apply.
    pub(crate) fn is_limited(&self) -> bool {
        self.limits == Limits::Tenant
    }

    /// Returns the names of the cluster profiles that the profile extends, the nearest first.
    pub fn ancestors(&self) -> impl Iterator<Item = &str> {
        self.ancestors.iter().map(|name| &**name)
    }

    /// Returns the target in its API form.
    #[must_use]
    pub fn target(&self) -> pillion_api::profile::Target {
        self.target.to_text()
    }

    /// Whether the profile can change objects.
    #[must_use]
    pub fn injects(&self) -> bool {
        self.has_template && self.activation != Activation::Never
    }

    /// Whether the profile has validations that apply to objects. A profile with `activation: Never` only serves
    /// as a parent of other profiles.
    #[must_use]
    pub fn validates(&self) -> bool {
        !self.validations.is_empty() && self.activation != Activation::Never
    }

    /// Returns the label and the annotation with which a pod or its namespace requests the profile.
    pub fn request_keys(&self) -> impl Iterator<Item = &str> {
        [self.request_label(), self.request_annotation()].into_iter().flatten()
    }

    /// Returns the label that requests the profile, if there is one.
    #[must_use]
    pub fn request_label(&self) -> Option<&str> {
        self.request.as_ref()?.label.as_deref()
    }

    /// Returns the annotation that requests the profile, if there is one.
    #[must_use]
    pub fn request_annotation(&self) -> Option<&str> {
        self.request.as_ref()?.annotation.as_deref()
    }

    /// Whether the given values of the profile's request keys request a profile: this one, or another with the same
    /// keys. The values are in order of precedence, the object's before the namespace's.
    #[must_use]
    pub fn is_requested_by<'v>(&self, values: impl IntoIterator<Item = &'v str>) -> bool {
        let Some(request) = &self.request else { return false };
        let set = values.into_iter().filter(|value| request.empty.says(value));
        let mut asks = set.map(|value| !request.declines(value));
        match self.opt_out {
            // Any request is sufficient for a profile that does not allow opting out.
            OptOut::Forbidden => asks.any(|asks| asks),
            OptOut::Allowed => asks.next().unwrap_or(false),
        }
    }

    /// Returns a value for the request key that requests the profile. `None` if the profile has no request key.
    #[must_use]
    pub fn request_value(&self) -> Option<&str> {
        self.request.as_ref().map(|request| request.truthy.first().map_or(&*self.name.name, |word| &**word))
    }

    /// Returns the lookups that the profile's expressions may need.
    #[must_use]
    pub const fn needs(&self) -> &Needs {
        &self.needs
    }

    /// Returns the activation of the profile.
    #[must_use]
    pub const fn activation(&self) -> Activation {
        self.activation
    }

    /// Returns the selector for namespaces. `None` selects all namespaces that are opted in.
    #[must_use]
    pub const fn namespace_selector(&self) -> Option<&LabelSelector> {
        self.namespace_selector.as_ref()
    }

    /// Returns the selector for the labels of objects. `None` selects all objects.
    #[must_use]
    pub const fn object_selector(&self) -> Option<&LabelSelector> {
        self.object_selector.as_ref()
    }

    /// Returns the rollout in the spec. The spec of a revision contains no rollout, because the publisher of the
    /// revision decides on the rollout.
    #[must_use]
    pub const fn rollout(&self) -> Option<&Rollout> {
        self.rollout.as_ref()
    }

    /// Whether the spec opts in to the safety net. The spec of a revision does not contain this field.
    #[must_use]
    pub const fn has_safety_net(&self) -> bool {
        self.safety_net
    }

    /// Makes the profile namespaced without checking its spec. So tests can reach the checks of computed values with
    /// constants that compilation would reject.
    #[cfg(test)]
    pub(crate) fn into_namespaced(mut self, namespace: &str) -> Self {
        self.name.namespace = Some(namespace.into());
        self.limits = Limits::Tenant;
        self.display_name = self.name.to_string().into();
        self
    }

    /// Returns the definitions that are available to the profile's expressions.
    pub(crate) fn definitions(&self) -> Definitions<'_> {
        let owner = if self.name.namespace.is_none() { Owner::Platform } else { Owner::Namespace };
        Definitions { owner, variables: &self.variables, own_containers: &self.own_containers }
    }

    /// Whether the profile applies to the action of a request.
    pub(crate) fn acts_on(&self, action: Action<'_>) -> bool {
        match action.phase {
            Phase::Mutate => self.has_template && self.target.takes_template(action),
            Phase::Validate => !self.validations.is_empty() && self.target.holds(action),
        }
    }

    /// Returns the merge schema of the profile's target.
    pub(crate) fn object_type(&self) -> &'static Type {
        schema::of(&self.target.group, self.target.resources.first().map_or("", |resource| resource))
    }
}

#[cfg(test)]
mod tests;
