//! Profiles: from what an author wrote to what the engine runs.
//!
//! [`compile`] finds everything that can be wrong with a profile before it takes effect, so that a request only looks
//! things up. A [`CompiledProfile`] never changes; a [`ProfileSet`] holds all of them in the order in which they apply.

mod check;
mod compile;
mod diagnostic;
pub(crate) mod expressions;
mod object;
mod set;
pub(crate) mod target;
pub(crate) mod template;
mod tenant;
mod typed;
pub(crate) mod validations;

use std::fmt;

use pillion_api::profile::{Activation, OnError, OnUnknown, OptOut};
use pillion_api::selector::LabelSelector;

use crate::compute::Variable;
use crate::parameter::Parameter;
use crate::schema::{self, Type};
use target::{Action, Phase};

pub use compile::{MAX_TEMPLATE_BYTES, compile};
pub use diagnostic::Diagnostic;
pub use set::ProfileSet;

/// What a profile is called. Cluster profiles stand before namespaced ones.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ProfileName {
    /// The namespace of a tenant's profile; `None` for the platform's.
    pub namespace: Option<Box<str>>,
    /// The name of the object.
    pub name: Box<str>,
}

impl ProfileName {
    /// The name of a profile of the platform.
    #[must_use]
    pub fn cluster(name: impl Into<Box<str>>) -> Self {
        Self { namespace: None, name: name.into() }
    }

    /// The name of a tenant's profile.
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

/// How a pod or its namespace asks for a profile by a key of the profile's own. All words are in lower case.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    pub(crate) label: Option<Box<str>>,
    pub(crate) annotation: Option<Box<str>>,
    pub(crate) values: Box<[Box<str>]>,
    pub(crate) truthy: Box<[Box<str>]>,
    pub(crate) falsy: Box<[Box<str>]>,
    pub(crate) on_unknown: OnUnknown,
}

/// A profile that was found to be right, in the form in which it is run.
#[derive(Debug)]
pub struct CompiledProfile {
    name: ProfileName,
    /// The name as it stands in records, metrics and messages.
    display_name: Box<str>,
    revision: Box<str>,
    pub(crate) activation: Activation,
    pub(crate) request: Option<Request>,
    pub(crate) opt_out: OptOut,
    pub(crate) namespace_selector: Option<LabelSelector>,
    pub(crate) object_selector: Option<LabelSelector>,
    pub(crate) exclusive_group: Option<Box<str>>,
    pub(crate) order: i32,
    pub(crate) on_error: OnError,
    pub(crate) parameters: Box<[Parameter]>,
    pub(crate) variables: Box<[Variable]>,
    pub(crate) conditions: Box<[expressions::Condition]>,
    pub(crate) validations: Box<[validations::Validation]>,
    pub(crate) target: target::Target,
    /// Whether it lays anything over an object, or has validations only.
    pub(crate) has_template: bool,
    template: template::Node,
    /// Whether it adds containers that are not said to be for Windows.
    pub(crate) adds_linux_containers: bool,
    /// Volumes that its containers mount and that it does not add.
    pub(crate) foreign_volumes: Box<[Box<str>]>,
}

impl CompiledProfile {
    /// What it is called.
    #[must_use]
    pub const fn name(&self) -> &ProfileName {
        &self.name
    }

    /// What it is called, as it stands in records and messages: `nginx`, `team-a/logger`.
    #[must_use]
    pub fn display_name(&self) -> &str {
        &self.display_name
    }

    /// Which text of it this is: a hash of what the author wrote, the same wherever it is compiled.
    #[must_use]
    pub fn revision(&self) -> &str {
        &self.revision
    }

    /// The label and the annotation by which a pod or its namespace asks for it.
    pub fn request_keys(&self) -> impl Iterator<Item = &str> {
        let keys = self.request.iter().flat_map(|request| [&request.label, &request.annotation]);
        keys.flatten().map(|key| &**key)
    }

    /// A word that asks for it by its key; `None` if it has no key.
    #[must_use]
    pub fn request_word(&self) -> Option<&str> {
        self.request.as_ref().map(|request| request.truthy.first().map_or(&*self.name.name, |word| &**word))
    }

    /// Who gets it without asking.
    #[must_use]
    pub const fn activation(&self) -> Activation {
        self.activation
    }

    /// Whether it does anything with what a request is about.
    pub(crate) fn acts_on(&self, action: Action<'_>) -> bool {
        match action.phase {
            Phase::Mutate => self.has_template && self.target.lays(action),
            Phase::Validate => !self.validations.is_empty() && self.target.holds(action),
        }
    }

    /// How Kubernetes merges the objects that it is for.
    #[expect(dead_code, reason = "the merge begins at schema::POD as yet; it is to begin here")]
    pub(crate) fn object_type(&self) -> &'static Type {
        schema::of(&self.target.group, self.target.resources.first().map_or("", |resource| resource))
    }

    /// The partial object that is laid over the one that is being created.
    pub(crate) const fn template(&self) -> &template::Node {
        &self.template
    }
}

#[cfg(test)]
mod tests;
