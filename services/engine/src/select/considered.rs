//! Lists every profile that might act on an object, with its parameters, for people who ask why.
//!
//! A decision lists only requested profiles, so that the others cost it nothing. This list is made on demand and is
//! allowed to be slow.

use std::sync::Arc;

use pillion_api::names::InjectionLevel;
use pillion_api::parameter::Source;
use serde_json::Value as Json;

use super::candidates::Candidates;
use super::pod::Pod;
use super::{parameters, request};
use crate::context::EvalContext;
use crate::parameter::{Metadata, Parameter, Sources};
use crate::profile::CompiledProfile;
use crate::profile::target::Action;

/// The standing of a profile before its conditions are evaluated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Standing {
    /// It is requested and part of the decision.
    Asked,
    /// It might act on the object, but neither the object nor its namespace requests it.
    NotAsked,
    /// The labels of the namespace do not match its `namespaceSelector`.
    NamespaceSelector,
    /// Its target has other resources or operations.
    OtherTarget,
}

/// The source of a parameter value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SetBy {
    /// A label or annotation of the object.
    Object,
    /// A label or annotation of the service account.
    ServiceAccount,
    /// A label or annotation of the namespace.
    Namespace,
    /// The namespaced profile that extends the cluster profile.
    NamespaceProfile,
    /// The default of the profile, if it has one.
    Default,
}

/// The value of a parameter.
#[derive(Clone, Debug, PartialEq)]
pub struct ParameterValue {
    /// Its name.
    pub name: Box<str>,
    /// Its value; `None` if it was not set and has no default. An error says why it has none.
    pub value: Result<Option<Json>, Box<str>>,
    /// The sources with their keys, the most specific first. Merged values may have several.
    pub set_by: Vec<(SetBy, Box<str>)>,
}

/// A profile that was considered.
#[derive(Clone, Debug)]
pub struct Considered {
    /// The profile, at the revision that the object gets.
    pub profile: Arc<CompiledProfile>,
    /// Its standing.
    pub standing: Standing,
    /// The values of its parameters; empty unless it is requested.
    pub parameters: Vec<ParameterValue>,
}

impl SetBy {
    /// The value in machine-readable output.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Object => "object",
            Self::ServiceAccount => "serviceAccount",
            Self::Namespace => "namespace",
            Self::NamespaceProfile => "namespaceProfile",
            Self::Default => "default",
        }
    }
}

/// Lists the cluster profiles and the namespace's own, requested ones first.
pub(crate) fn considered<'p>(
    profiles: impl Iterator<Item = &'p Arc<CompiledProfile>>,
    candidates: &Candidates,
    action: Action<'_>,
    level: InjectionLevel,
    context: EvalContext<'_>,
) -> Vec<Considered> {
    let places = request::requested_profiles(candidates, action, level, Pod::of(context)).places;
    let asked: Vec<_> = places.into_iter().filter_map(|place| candidates.profile(place)).collect();
    let is_asked = |profile: &CompiledProfile| asked.iter().any(|asked| asked.name() == profile.name());
    let is_visible = |profile: &CompiledProfile| {
        profile.name().namespace.as_deref().is_none_or(|namespace| namespace == context.namespace_name)
    };
    let mut all: Vec<_> = asked
        .iter()
        .map(|profile| Considered {
            profile: Arc::clone(profile),
            standing: Standing::Asked,
            parameters: values(profile, context),
        })
        .collect();
    for profile in profiles.filter(|profile| is_visible(profile) && !is_asked(profile)) {
        let selector = profile.namespace_selector();
        let standing = if !profile.acts_on(action) {
            Standing::OtherTarget
        } else if selector.is_some_and(|selector| !selector.matches(|key| context.namespace.label(key))) {
            Standing::NamespaceSelector
        } else {
            Standing::NotAsked
        };
        // A profile in a rollout has two revisions.
        if !all.iter().any(|other| other.profile.name() == profile.name()) {
            all.push(Considered { profile: Arc::clone(profile), standing, parameters: Vec::new() });
        }
    }
    all
}

fn values(profile: &CompiledProfile, context: EvalContext<'_>) -> Vec<ParameterValue> {
    let (values, _) = parameters::resolve(profile, context, &mut Vec::new());
    let pod = Pod::new(context.object);
    let account = context.looked_up.service_account.known("the service account").ok().flatten();
    let account = account.map(|account| Pod::new(account.root()));
    let sources = Sources {
        pod: &pod,
        service_account: Ok(account.as_ref().map(|account| account as &dyn Metadata)),
        namespace: context.namespace,
    };
    let value = |parameter: &Parameter| ParameterValue {
        name: Box::from(&*parameter.name),
        value: values.parameter(&parameter.name).transpose().map(Option::<&Json>::cloned),
        set_by: set_by(parameter, sources),
    };
    profile.parameters.iter().map(value).collect()
}

fn set_by(parameter: &Parameter, sources: Sources<'_>) -> Vec<(SetBy, Box<str>)> {
    let mut found: Vec<_> = parameter
        .found_in(sources)
        .into_iter()
        .map(|(source, key)| {
            let set_by = match source {
                Source::Pod => SetBy::Object,
                Source::ServiceAccount => SetBy::ServiceAccount,
                Source::Namespace => SetBy::Namespace,
            };
            (set_by, key)
        })
        .collect();
    if found.is_empty() {
        found.push((if parameter.set_by_namespace { SetBy::NamespaceProfile } else { SetBy::Default }, Box::default()));
    }
    found
}
