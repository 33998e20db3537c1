//! Every profile that might act on an object, and what its parameters were set to: for whoever asks why something was or
//! was not done. A decision lists only the profiles that were asked for, so that it costs nothing for the others; this is
//! asked by people, and costs what it costs.

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

/// Whether a profile comes into question for an object, before its own conditions are looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Standing {
    /// It is asked for: a decision has it.
    Asked,
    /// It might act here, and neither the object nor its namespace asks for it.
    NotAsked,
    /// The labels of the namespace do not match its `namespaceSelector`.
    NamespaceSelector,
    /// It is for other resources or operations.
    OtherTarget,
}

/// Who set a parameter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SetBy {
    /// A label or annotation of the object.
    Object,
    /// One of its service account's.
    ServiceAccount,
    /// One of its namespace's.
    Namespace,
    /// The profile of the namespace that extends the platform's.
    NamespaceProfile,
    /// Nobody: it is the profile's default, if it has one.
    Default,
}

/// What a parameter stands for.
#[derive(Clone, Debug, PartialEq)]
pub struct ParameterValue {
    /// Its name.
    pub name: Box<str>,
    /// Its value; `None` if nobody sets it and it has no default. An error says why it has none.
    pub value: Result<Option<Json>, Box<str>>,
    /// Who set it, the one that counts most first. Where values are united there may be several.
    pub set_by: Vec<(SetBy, Box<str>)>,
}

/// A profile that was considered.
#[derive(Clone, Debug)]
pub struct Considered {
    /// Which one, at the revision that the object gets.
    pub profile: Arc<CompiledProfile>,
    /// Whether it comes into question.
    pub standing: Standing,
    /// What its parameters stand for; empty unless it is asked for.
    pub parameters: Vec<ParameterValue>,
}

impl SetBy {
    /// As it stands in output for programs.
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

/// All profiles that are the platform's or the namespace's own, those that are asked for first.
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
        // Of a profile that is rolled out there are two.
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
