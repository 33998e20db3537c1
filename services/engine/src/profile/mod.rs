//! Profiles: from what an author wrote to what the engine runs.
//!
//! [`compile`] finds everything that can be wrong with a profile before it takes effect, so that a request only looks
//! things up. A [`CompiledProfile`] never changes; a [`ProfileSet`] holds all of them in the order in which they apply.

mod advice;
mod check;
mod compile;
mod contend;
mod elements;
pub(crate) mod expressions;
mod extend;
mod object;
mod pod_schema;
pub(crate) mod request;
mod review;
mod revision;
pub(crate) mod rules;
pub(crate) mod target;
pub(crate) mod template;
mod tenant;
mod typed;
pub(crate) mod validations;
mod flattened;

use std::fmt;

use pillion_api::profile::{Activation, OnError, OptOut, Rollout};
use pillion_api::selector::LabelSelector;

use crate::context::{Definitions, Variable};
use crate::expression::Owner;
use crate::lookup::{Declared, Needs};
use crate::parameter::Parameter;
use crate::schema::{self, Type};
use request::Request;
use target::{Action, Phase};

pub use crate::diagnostic::{Diagnostic, Part};
pub use advice::advise;
pub use check::MAX_TEMPLATE_BYTES;
pub(crate) use expressions::one_line;
#[cfg(test)]
pub(crate) use extend::tests::Library;
pub use extend::{MAX_CHAIN, NoParents, Parent, Parents};
pub use flattened::{FlattenedProfile, compile, compile_revision, compile_with};
pub(crate) use pod_schema::Expected;
pub use review::{KnownParents, ProfileReview};

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

/// What bounds a profile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Limits {
    /// Nothing: it is the platform's.
    Platform,
    /// What the platform's profile that it extends may do: it is a namespace's, and sets only what that one lets it set.
    Parent,
    /// What namespaces may do with profiles of their own.
    Tenant,
}

impl Limits {
    /// Of a profile that extends nothing.
    const fn of(name: &ProfileName) -> Self {
        match name.namespace {
            Some(_) => Self::Tenant,
            None => Self::Platform,
        }
    }
}

/// A profile that was found to be right, in the form in which it is run.
#[derive(Debug)]
pub struct CompiledProfile {
    name: ProfileName,
    /// The name as it stands in records, metrics and messages.
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
    pub(crate) object_selector: Option<LabelSelector>,
    pub(crate) exclusive_group: Option<Box<str>>,
    pub(crate) order: i32,
    pub(crate) on_error: OnError,
    pub(crate) parameters: Box<[Parameter]>,
    pub(crate) variables: Box<[Variable]>,
    pub(crate) conditions: Box<[expressions::Condition]>,
    pub(crate) template: Option<template::Node>,
    pub(crate) rules: Box<[rules::ContainerRule]>,
    /// The names of the containers that it adds, as far as they are known from its text.
    pub(crate) own_containers: Box<[Box<str>]>,
    pub(crate) lookups: Box<[Declared]>,
    pub(crate) needs: Needs,
    pub(crate) validations: Box<[validations::Validation]>,
    pub(crate) target: target::Target,
    /// Whether it lays anything over an object, or has validations only.
    pub(crate) has_template: bool,
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

    /// Which text of it this is: a hash of what the author wrote with what it inherits, the same wherever it is compiled.
    #[must_use]
    pub fn revision(&self) -> &str {
        &self.revision
    }

    /// Bytes of memory that it may take: no less than it does, estimated from the sizes of its parts.
    #[must_use]
    pub const fn memory(&self) -> usize {
        self.memory
    }

    /// What bounds it.
    #[must_use]
    pub const fn limits(&self) -> Limits {
        self.limits
    }

    /// Whether it is bounded by what namespaces may do with profiles of their own.
    #[must_use]
    pub fn is_limited(&self) -> bool {
        self.limits == Limits::Tenant
    }

    /// The names of the cluster profiles that it extends, the nearest first.
    pub fn ancestors(&self) -> impl Iterator<Item = &str> {
        self.ancestors.iter().map(|name| &**name)
    }

    /// Which objects it is for, as profiles say it.
    #[must_use]
    pub fn target(&self) -> pillion_api::profile::Target {
        self.target.to_text()
    }

    /// Whether objects may be changed for it.
    #[must_use]
    pub fn injects(&self) -> bool {
        self.has_template && self.activation != Activation::Never
    }

    /// Whether objects may be refused for it.
    #[must_use]
    pub fn validates(&self) -> bool {
        !self.validations.is_empty() && self.activation != Activation::Never
    }

    /// The label and the annotation by which a pod or its namespace asks for it.
    pub fn request_keys(&self) -> impl Iterator<Item = &str> {
        [self.request_label(), self.request_annotation()].into_iter().flatten()
    }

    /// The label alone.
    #[must_use]
    pub fn request_label(&self) -> Option<&str> {
        self.request.as_ref()?.label.as_deref()
    }

    /// The annotation alone.
    #[must_use]
    pub fn request_annotation(&self) -> Option<&str> {
        self.request.as_ref()?.annotation.as_deref()
    }

    /// Whether values of its keys ask for it, or for another profile that has the same keys. They are given in the order
    /// in which they decide, the object's before its namespace's.
    #[must_use]
    pub fn is_asked_for<'v>(&self, values: impl IntoIterator<Item = &'v str>) -> bool {
        let Some(request) = &self.request else { return false };
        let said = values.into_iter().filter(|value| request.empty.says(value));
        let mut asks = said.map(|value| !request.declines(value));
        match self.opt_out {
            // Whoever asks for a profile that cannot be dropped, nobody can take that back.
            OptOut::Forbidden => asks.any(|asks| asks),
            OptOut::Allowed => asks.next().unwrap_or(false),
        }
    }

    /// A word that asks for it by its key; `None` if it has no key.
    #[must_use]
    pub fn request_word(&self) -> Option<&str> {
        self.request.as_ref().map(|request| request.truthy.first().map_or(&*self.name.name, |word| &**word))
    }

    /// What has to be looked up for it, as its text says.
    #[must_use]
    pub const fn needs(&self) -> &Needs {
        &self.needs
    }

    /// Who gets it without asking.
    #[must_use]
    pub const fn activation(&self) -> Activation {
        self.activation
    }

    /// Which namespaces may have it; `None`: all that are opted in.
    #[must_use]
    pub const fn namespace_selector(&self) -> Option<&LabelSelector> {
        self.namespace_selector.as_ref()
    }

    /// Which objects may have it, by their labels; `None`: all.
    #[must_use]
    pub const fn object_selector(&self) -> Option<&LabelSelector> {
        self.object_selector.as_ref()
    }

    /// Who is to get it, as its text says. It is no part of a revision: whoever publishes one decides.
    #[must_use]
    pub const fn rollout(&self) -> Option<&Rollout> {
        self.rollout.as_ref()
    }

    /// Says from where it is inherited.
    fn complete(&mut self, ancestors: &[Box<str>], set_by_namespace: &[String]) {
        self.ancestors = ancestors.into();
        for parameter in &mut self.parameters {
            parameter.set_by_namespace = set_by_namespace.iter().any(|name| **name == *parameter.name);
        }
    }

    /// The same as a tenant's, whatever the check of its text would say: what one does whose values come from expressions.
    #[cfg(test)]
    pub(crate) fn into_namespaced(mut self, namespace: &str) -> Self {
        self.name.namespace = Some(namespace.into());
        self.limits = Limits::Tenant;
        self.display_name = self.name.to_string().into();
        self
    }

    /// What it defines for its expressions.
    pub(crate) fn definitions(&self) -> Definitions<'_> {
        let owner = if self.name.namespace.is_none() { Owner::Platform } else { Owner::Namespace };
        Definitions { owner, variables: &self.variables, own_containers: &self.own_containers }
    }

    /// Whether it does anything with what a request is about.
    pub(crate) fn acts_on(&self, action: Action<'_>) -> bool {
        match action.phase {
            Phase::Mutate => self.has_template && self.target.lays(action),
            Phase::Validate => !self.validations.is_empty() && self.target.holds(action),
        }
    }

    /// How Kubernetes merges the objects that it is for.
    pub(crate) fn object_type(&self) -> &'static Type {
        schema::of(&self.target.group, self.target.resources.first().map_or("", |resource| resource))
    }
}

#[cfg(test)]
mod tests;
