//! Selections that are not part of a decision, for `pillion explain` and the audit of running pods.
//!
//! `considered` lists all cluster profiles and the namespace's own profiles, with the parameters of the requested ones.
//! Decisions only list requested profiles, which is faster. This list is only made on demand, so it may be slow.
//!
//! `expected` selects by labels and annotations, without evaluating expressions. Requests, opt-outs and object
//! selectors only depend on the metadata. Conditions may depend on more, and so may the validity of parameter values. A
//! profile with conditions, or with parameters that can exclude it, is *open*: the caller supplies its result.

use std::sync::Arc;

use pillion_api::names::{FailureMode, INJECT_LABEL};
use pillion_api::parameter::{OnInvalid, Source};
use pillion_api::profile::OptOut;
use serde_json::Value as Json;

use crate::context::EvalContext;
use crate::decision::{ProfileDecision, ProfileOutcome, Reason};
use crate::json::Value;
use crate::parameter::{Metadata, Parameter, Sources};
use crate::profile::CompiledProfile;
use crate::profile::target::Action;

use super::candidates::Candidates;
use super::request::{self, Pod, RequestedProfiles};
use super::{Selected, drop_replaced, group_is_taken, is_stand_in, object_matches, resolve_parameters};

/// The state of a profile before its conditions are evaluated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RequestState {
    /// The profile is requested. It is part of the decision.
    Requested,
    /// Neither the object nor its namespace requests the profile, or no object can, because its activation is `Never`.
    NotRequested,
    /// The labels of the namespace do not match the profile's `namespaceSelector`.
    NamespaceSelector,
    /// The profile targets other resources or operations.
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
    /// The default in the profile. Also used if the parameter has no value at all.
    Default,
}

/// The value of a parameter.
#[derive(Clone, Debug, PartialEq)]
pub struct ParameterValue {
    /// The parameter's name.
    pub name: Box<str>,
    /// The value. `None` if it was not set and has no default. An error contains the reason why there is no value.
    pub value: Result<Option<Json>, Box<str>>,
    /// The sources and their keys, the most specific first. A merged value may have several. The key is empty if no
    /// label or annotation sets the value.
    pub set_by: Vec<(SetBy, Box<str>)>,
}

/// A profile that was considered.
#[derive(Clone, Debug)]
pub struct Considered {
    /// The profile. If it is requested, this is the revision that applies to the object. Otherwise it is the newest
    /// revision.
    pub profile: Arc<CompiledProfile>,
    /// The state of the profile.
    pub request_state: RequestState,
    /// The values of the profile's parameters. Empty if the profile is not requested.
    pub parameters: Vec<ParameterValue>,
}

impl SetBy {
    /// Returns the source for machine-readable output.
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

/// Lists the cluster profiles and the namespace's own profiles. Requested profiles come first.
pub(crate) fn considered<'p>(
    profiles: impl Iterator<Item = &'p Arc<CompiledProfile>>,
    candidates: &Candidates,
    action: Action<'_>,
    failure_mode: FailureMode,
    context: EvalContext<'_>,
) -> Vec<Considered> {
    let places = request::requested_profiles(candidates, action, failure_mode, Pod::of(context)).places;
    let requested: Vec<_> = places.into_iter().filter_map(|place| candidates.profile(place)).collect();
    let is_requested = |profile: &CompiledProfile| requested.iter().any(|requested| requested.name() == profile.name());
    let is_visible = |profile: &CompiledProfile| {
        profile.name().namespace.as_deref().is_none_or(|namespace| namespace == context.namespace_name)
    };
    let mut all: Vec<_> = requested
        .iter()
        .map(|profile| Considered {
            profile: Arc::clone(profile),
            request_state: RequestState::Requested,
            parameters: values(profile, context),
        })
        .collect();
    for profile in profiles.filter(|profile| is_visible(profile) && !is_requested(profile)) {
        let selector = profile.namespace_selector();
        let request_state = if !profile.acts_on(action) {
            RequestState::OtherTarget
        } else if selector.is_some_and(|selector| !selector.matches(|key| context.namespace.label(key))) {
            RequestState::NamespaceSelector
        } else {
            RequestState::NotRequested
        };
        // A profile in a rollout has two revisions, but is listed only once.
        if !all.iter().any(|other| other.profile.name() == profile.name()) {
            all.push(Considered { profile: Arc::clone(profile), request_state, parameters: Vec::new() });
        }
    }
    all
}

fn values(profile: &CompiledProfile, context: EvalContext<'_>) -> Vec<ParameterValue> {
    let (values, _) = resolve_parameters(profile, context, &mut Vec::new());
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

/// A requested profile.
pub(crate) struct Expected {
    /// The decision for the profile. `Unchanged` if the profile matches the object. `None` if the profile is open and
    /// the caller does not know its result.
    pub(crate) decision: Option<ProfileDecision>,
    pub(crate) profile: Arc<CompiledProfile>,
}

/// Whether a profile is open: the metadata alone does not show whether it matches.
pub(crate) fn is_open(profile: &CompiledProfile) -> bool {
    let refuses = |on_invalid: Option<OnInvalid>| on_invalid != Some(OnInvalid::Default);
    !profile.match_conditions.is_empty()
        || !profile.preconditions.is_empty()
        || profile.parameters.iter().any(|parameter| refuses(parameter.on_invalid))
}

/// Selects profiles like [`super::select`], but only by metadata. `known` returns whether an open profile matches the
/// object, or `None` if this is unknown. If `is_unread` is true for a profile, the profile is a placeholder for a
/// revision with an unavailable spec, and is always open.
pub(crate) fn expected(
    candidates: &Candidates,
    failure_mode: FailureMode,
    object: Value<'_>,
    is_unread: impl Fn(&CompiledProfile) -> bool,
    mut known: impl FnMut(&CompiledProfile) -> Option<bool>,
) -> Vec<Expected> {
    if candidates.is_empty() {
        return Vec::new();
    }
    let pod = Pod::new(object);
    let RequestedProfiles { places, dropped, .. } =
        request::requested_profiles(candidates, Action::CREATE_POD, failure_mode, pod);
    let opted_out = pod.label(INJECT_LABEL).is_some_and(|value| value == "false");
    let mut selected: Vec<Selected<'_>> = Vec::with_capacity(places.len());
    let mut unknown = Vec::new();
    for place in places {
        let Some(profile) = candidates.profile(place) else { continue };
        let refusal = if (opted_out || dropped.contains(&place)) && profile.opt_out == OptOut::Allowed {
            Some(Reason::OptedOut)
        } else if !is_unread(profile) && !object_matches(profile, pod) {
            Some(Reason::ObjectSelector)
        } else {
            let is_for = if is_open(profile) || is_unread(profile) { known(profile) } else { Some(true) };
            match is_for {
                // The profile is open while an earlier profile of its exclusive group is open.
                Some(true) if waits_for_group(profile, &selected, &unknown) => {
                    unknown.push(selected.len());
                    Some(Reason::ExclusiveGroup)
                }
                None => {
                    unknown.push(selected.len());
                    Some(Reason::MatchCondition)
                }
                Some(false) => Some(Reason::MatchCondition),
                Some(true) if group_is_taken(profile, &selected) => Some(Reason::ExclusiveGroup),
                Some(true) => None,
            }
        };
        let (outcome, reason) = match refusal {
            Some(reason) => (ProfileOutcome::NotMatched, reason),
            None => (ProfileOutcome::Unchanged, Reason::AlreadyInjected),
        };
        let decision = ProfileDecision { profile: Arc::clone(profile), outcome, reason, detail: None };
        selected.push(Selected { decision, profile, bindings: None, stands_in: false });
    }
    drop_replaced(&mut selected);
    // A cluster profile is also open if an open profile may stand in for it.
    for child in unknown.clone() {
        let Some(child) = selected.get(child).map(|child| child.profile) else { continue };
        let parents = selected.iter().enumerate().filter(|(_, parent)| is_stand_in(child, parent.profile));
        unknown.extend(parents.map(|(index, _)| index));
    }
    let decisions = selected.into_iter().map(|selected| selected.decision).enumerate();
    decisions
        .map(|(index, decision)| Expected {
            profile: Arc::clone(&decision.profile),
            decision: (!unknown.contains(&index)).then_some(decision),
        })
        .collect()
}

fn waits_for_group(profile: &CompiledProfile, earlier: &[Selected<'_>], unknown: &[usize]) -> bool {
    let of_group = |index: &usize| {
        let earlier = earlier.get(*index).map(|earlier| earlier.profile);
        earlier.is_some_and(|earlier| earlier.exclusive_group == profile.exclusive_group)
    };
    profile.exclusive_group.is_some() && unknown.iter().any(of_group)
}
