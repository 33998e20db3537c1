//! Selects the profiles for an object, and returns the reasons why other requested profiles do not match.
//!
//! The namespace selector and the target of a profile determine whether it is a candidate in a namespace. A candidate
//! is requested by its activation, by its name, or by its request key. An opt-out, the object selector or the exclusive
//! group may then exclude it. Only requested profiles are evaluated.

pub(crate) mod candidates;
mod request;
pub mod considered;
pub(crate) mod revisions;

use std::borrow::Cow;
use std::sync::Arc;

use pillion_api::names::{FailureMode, INJECT_LABEL};
use pillion_api::parameter::OnInvalid;
use pillion_api::profile::{Activation, FailurePolicy, OptOut, PreconditionAction};

use crate::context::{Arena, EvalContext, Parameters, ProfileBindings};
use crate::decision::{Notice, ProfileDecision, ProfileOutcome, Reason};
use crate::expression::{EvaluationError, Meter, Purpose};
use crate::json::Value;
use crate::lookup::{self, Wanted};
use crate::namespace::NamespaceMetadata;
use crate::parameter::{self, Invalid, Metadata, Parameter, Resolved, Sources};
use crate::profile::target::Action;
use crate::profile::{CompiledProfile, Limits};

use candidates::Candidates;
use request::{Pod, RequestedProfiles};
pub use revisions::is_in_share;

/// A requested profile.
pub(crate) struct Selected<'v> {
    /// The decision for the profile. `Unchanged` if the profile matches the object but has not been applied yet.
    pub(crate) decision: ProfileDecision,
    pub(crate) profile: &'v CompiledProfile,
    /// The bindings of the profile's expressions, if the profile matches the object.
    pub(crate) bindings: Option<ProfileBindings<'v>>,
    /// Whether the profile is a stand-in: a namespaced profile that is applied instead of the cluster profile that it
    /// extends. It precedes that cluster profile in [`Selection::profiles`].
    pub(crate) stands_in: bool,
}

impl Selected<'_> {
    /// Whether the platform controls the profile: it is a cluster profile, or a stand-in, which only sets permitted
    /// values of a cluster profile.
    pub(crate) fn is_of_platform(&self) -> bool {
        self.profile.name().namespace.is_none() || self.stands_in
    }
}

/// The result of selection.
pub(crate) struct Selection<'v> {
    /// The requested profiles, in the order in which they are applied.
    pub(crate) profiles: Vec<Selected<'v>>,
    pub(crate) notices: Vec<Notice>,
    /// The reason and the details, if an unknown value in a request denies the object.
    pub(crate) denied: Option<(Reason, Box<str>)>,
    /// The reason for the decision if no profile was requested.
    pub(crate) reason: Reason,
}

impl<'v> Selection<'v> {
    /// Returns the revision of the cluster profile `parent`, if it takes over the record entry of the namespaced
    /// profile `name`. `None` if `name` still stands in for it, or if `parent` does not match the object.
    pub(crate) fn successor_revision(&self, name: &str, parent: &str) -> Option<&'v str> {
        let is_successor = |selected: &&Selected<'v>| {
            selected.profile.display_name() == parent && selected.decision.outcome == ProfileOutcome::Unchanged
        };
        let successor = self.profiles.iter().find(is_successor).filter(|_| !self.has_stand_in(name));
        successor.map(|selected| selected.profile.revision())
    }

    /// Whether the profile with this name stands in for the cluster profile that it extends.
    pub(crate) fn has_stand_in(&self, name: &str) -> bool {
        self.profiles.iter().any(|selected| selected.stands_in && selected.profile.display_name() == name)
    }
}

/// The reason why a profile does not match or is not applied.
pub(crate) struct Refusal {
    pub(crate) outcome: ProfileOutcome,
    pub(crate) reason: Reason,
    pub(crate) detail: Option<Box<str>>,
}

/// Selects the profiles for an object.
pub(crate) fn select<'v>(
    candidates: &'v Candidates,
    action: Action<'_>,
    failure_mode: FailureMode,
    context: EvalContext<'v>,
    arena: &'v Arena,
) -> Selection<'v> {
    let pod = Pod::of(context);
    if candidates.is_empty() {
        return Selection { profiles: Vec::new(), notices: Vec::new(), denied: None, reason: Reason::NoProfile };
    }
    let RequestedProfiles { places, dropped, mut notices, denied } =
        request::requested_profiles(candidates, action, failure_mode, pod);
    notices.extend(candidates.choice.notices.iter().cloned());
    let mut earlier = notices.len();
    let opted_out = pod.label(INJECT_LABEL).is_some_and(|value| value == "false");
    let mut profiles: Vec<Selected<'v>> = Vec::with_capacity(places.len());
    for place in places {
        let Some(profile) = candidates.profile(place) else { continue };
        let not_matched = |reason| Some(Refusal { outcome: ProfileOutcome::NotMatched, reason, detail: None });
        let mut bindings = None;
        let refusal = if (opted_out || dropped.contains(&place)) && profile.opt_out == OptOut::Allowed {
            not_matched(Reason::OptedOut)
        } else if !object_matches(profile, pod) {
            not_matched(Reason::ObjectSelector)
        } else {
            let noticed = notices.len();
            match check_conditions(profile, context, arena, &mut notices) {
                Err(refusal) => Some(refusal),
                Ok(_) if group_is_taken(profile, &profiles) => {
                    notices.truncate(noticed);
                    not_matched(Reason::ExclusiveGroup)
                }
                Ok(computed) => {
                    bindings = Some(computed);
                    None
                }
            }
        };
        let Refusal { outcome, reason, detail } = refusal.unwrap_or(Refusal {
            outcome: ProfileOutcome::Unchanged,
            reason: Reason::AlreadyInjected,
            detail: None,
        });
        let decision = ProfileDecision { profile: Arc::clone(profile), outcome, reason, detail };
        profiles.push(Selected { decision, profile, bindings, stands_in: false });
    }
    drop_replaced(&mut profiles);
    put_in_place(&mut profiles);
    // A stand-in inherits the preconditions of the cluster profile, so only the stand-in warns.
    let is_extended = |name: &str| {
        let mut extended = profiles.iter().filter(|selected| selected.decision.reason == Reason::Extended);
        extended.any(|selected| selected.profile.display_name() == name)
    };
    notices.retain(|notice| {
        let is_earlier = earlier > 0;
        earlier = earlier.saturating_sub(1);
        is_earlier || !matches!(notice, Notice::OfProfile { profile, .. } if is_extended(profile))
    });
    let reason = if opted_out { Reason::OptedOut } else { Reason::NotRequested };
    Selection { profiles, notices, denied, reason }
}

/// Returns the lookups that the requested profiles may need for an object. Conditions are not evaluated, because they
/// may need lookups themselves.
pub(crate) fn wanted(
    candidates: &Candidates,
    action: Action<'_>,
    failure_mode: FailureMode,
    namespace: &str,
    object: Value<'_>,
) -> Wanted {
    let mut wanted = Wanted { namespace: namespace.into(), ..Wanted::default() };
    let pod = Pod::new(object);
    let RequestedProfiles { places, dropped, .. } = request::requested_profiles(candidates, action, failure_mode, pod);
    let opted_out = pod.label(INJECT_LABEL).is_some_and(|value| value == "false");
    for place in places {
        let Some(profile) = candidates.profile(place).filter(|profile| !profile.needs().is_empty()) else { continue };
        let is_dropped = (opted_out || dropped.contains(&place)) && profile.opt_out == OptOut::Allowed;
        if !is_dropped && object_matches(profile, pod) {
            wanted.add(profile.needs(), &profile.lookups, object);
        }
    }
    wanted
}

fn object_matches(profile: &CompiledProfile, pod: Pod<'_>) -> bool {
    let Some(selector) = &profile.object_selector else { return true };
    let labels: Vec<_> = pod.labels().filter_map(|(key, value)| Some((key.text(), value.as_str()?))).collect();
    selector.matches(|key| labels.iter().find(|(candidate, _)| candidate == key).map(|(_, value)| &**value))
}

fn group_is_taken(profile: &CompiledProfile, earlier: &[Selected<'_>]) -> bool {
    profile.exclusive_group.is_some()
        && earlier.iter().any(|earlier| {
            earlier.decision.outcome == ProfileOutcome::Unchanged
                && earlier.profile.exclusive_group == profile.exclusive_group
                && !is_stand_in(profile, earlier.profile)
        })
}

/// Excludes each cluster profile that has a stand-in. The stand-in is the first matching namespaced profile that only
/// sets values of the cluster profile.
fn drop_replaced(profiles: &mut [Selected<'_>]) {
    for index in 0..profiles.len() {
        let Some((earlier, [child, ..])) = profiles.split_at_mut_checked(index) else { continue };
        if child.decision.outcome != ProfileOutcome::Unchanged || child.profile.limits() != Limits::Parent {
            continue;
        }
        for parent in earlier.iter_mut().filter(|parent| is_stand_in(child.profile, parent.profile)) {
            if parent.decision.outcome == ProfileOutcome::Unchanged {
                parent.decision.outcome = ProfileOutcome::NotMatched;
                parent.decision.reason = Reason::Extended;
                parent.decision.detail = Some(child.profile.display_name().into());
                child.stands_in = true;
            }
        }
    }
}

/// Moves each stand-in directly before its cluster profile, so that later cluster profiles get the same object as
/// without the stand-in.
fn put_in_place(profiles: &mut [Selected<'_>]) {
    for index in 0..profiles.len() {
        let Some(child) = profiles.get(index).filter(|child| child.stands_in).map(|child| child.profile) else {
            continue;
        };
        let parent = profiles.iter().position(|parent| is_stand_in(child, parent.profile));
        if let Some(moved) = parent.and_then(|parent| profiles.get_mut(parent..=index)) {
            moved.rotate_right(1);
        }
    }
}

/// Whether `profile` is namespaced and only sets values of the cluster profile `parent`, or of a profile that extends
/// `parent`. In the second case, the intermediate profile may have changed the template, so `parent` must have
/// `activation: Requested` and allow opting out.
fn is_stand_in(profile: &CompiledProfile, parent: &CompiledProfile) -> bool {
    let is_optional = parent.opt_out == OptOut::Allowed && parent.activation == Activation::Requested;
    let mut ancestors = profile.ancestors().take(if is_optional { usize::MAX } else { 1 });
    profile.limits() == Limits::Parent
        && parent.name().namespace.is_none()
        && ancestors.any(|ancestor| *ancestor == *parent.name().name)
}

/// Returns the bindings of a profile if its conditions hold, and otherwise a refusal.
///
/// If a match condition is false, the profile does not match, and nothing else is reported. Otherwise, the refusal is
/// the most severe of the errors, invalid parameters and failed preconditions, with the details of all that are equally
/// severe.
fn check_conditions<'v>(
    profile: &'v CompiledProfile,
    context: EvalContext<'v>,
    arena: &'v Arena,
    notices: &mut Vec<Notice>,
) -> Result<ProfileBindings<'v>, Refusal> {
    let mut parameter_notices = Vec::new();
    let (parameters, invalid) = if profile.parameters.is_empty() && profile.lookups.is_empty() {
        (&parameter::NO_VALUES, None)
    } else {
        let (parameters, invalid) = resolve_parameters(profile, context, &mut parameter_notices);
        (arena.keep_parameters(parameters), invalid)
    };
    let bindings = ProfileBindings::new(context, parameters, profile.definitions());
    let mut meter = bindings.meter(Purpose::Decide, Meter::EXPRESSION);
    let failed = |name: &str, error: &EvaluationError| Refusal {
        outcome: ProfileOutcome::of_failure(profile.failure_policy),
        reason: lookup::reason_of(error),
        detail: Some(format!("{name}: {}", error.message()).into()),
    };
    let mut unmatched: Vec<&str> = Vec::new();
    let mut refusals: Vec<Refusal> = Vec::new();
    for condition in &profile.match_conditions {
        match condition.expression.evaluate_bool(&bindings, &mut meter) {
            Ok(true) => {}
            Ok(false) => unmatched.push(&condition.name),
            // The condition reads an invalid parameter, which is reported separately.
            Err(_) if invalid.is_some() => {}
            Err(error) => refusals.push(failed(&condition.name, &error)),
        }
    }
    if !unmatched.is_empty() {
        let detail = Some(unmatched.join("; ").into());
        return Err(Refusal { outcome: ProfileOutcome::NotMatched, reason: Reason::MatchCondition, detail });
    }
    notices.append(&mut parameter_notices);
    // Preconditions apply only to objects that match. After an error in a match condition, it is unknown whether the
    // object matches.
    let preconditions = if refusals.is_empty() { &*profile.preconditions } else { &[] };
    let mut warnings = Vec::new();
    for precondition in preconditions {
        let outcome = match (precondition.expression.evaluate_bool(&bindings, &mut meter), precondition.action) {
            (Ok(true), _) => continue,
            (Ok(false), PreconditionAction::Warn) => {
                let text = precondition.failure_message(&bindings, &mut meter);
                warnings.push(Notice::OfProfile { profile: profile.display_name().into(), text });
                continue;
            }
            (Ok(false), PreconditionAction::Skip) => ProfileOutcome::Skipped,
            (Ok(false), PreconditionAction::Deny) => ProfileOutcome::Denied,
            (Err(_), _) if invalid.is_some() => continue,
            (Err(error), _) => {
                refusals.push(failed(&precondition.name, &error));
                continue;
            }
        };
        let detail = Some(precondition.failure_message(&bindings, &mut meter));
        refusals.push(Refusal { outcome, reason: Reason::Precondition, detail });
    }
    refusals.extend(invalid);
    if let Some(refusal) = refusals.into_iter().reduce(more_severe) {
        return Err(refusal);
    }
    notices.append(&mut warnings);
    Ok(bindings)
}

/// Resolves the parameters of a profile. Adds warnings about clamped and replaced values to `notices`. Also returns a
/// refusal if the default does not replace an invalid value, or if resolving exceeds a limit of steps or time.
///
/// Computed defaults are evaluated here, in the order of the parameters. A failing default only affects expressions
/// that read the parameter.
fn resolve_parameters(
    profile: &CompiledProfile,
    context: EvalContext<'_>,
    notices: &mut Vec<Notice>,
) -> (Parameters, Option<Refusal>) {
    let pod = Pod::new(context.object);
    // Use the service account only if a parameter may come from it.
    let reads_account = profile.parameters.iter().any(Parameter::reads_service_account);
    let account = if reads_account { context.looked_up.service_account.known("the service account") } else { Ok(None) };
    let account = account.map(|object| object.map(|object| Pod::new(object.root())));
    let service_account = account.as_ref().map(|account| account.as_ref().map(|account| account as &dyn Metadata));
    let sources = Sources { pod: &pod, service_account, namespace: context.namespace };
    let mut values = Parameters::new(&profile.lookups, context.looked_up, context.namespace_name);
    let definitions = profile.definitions();
    let mut meter = context.meter(definitions.owner, Purpose::Decide, Meter::EXPRESSION);
    let mut warn = |message: Box<str>| {
        notices.push(Notice::Parameter { profile: profile.display_name().into(), message });
    };
    let mut invalid: Option<Refusal> = None;
    for parameter in &profile.parameters {
        let value = match parameter::resolve(parameter, sources, &mut meter) {
            Ok(Resolved { value, moved }) => {
                moved.into_iter().for_each(&mut warn);
                value
            }
            Err(Invalid { consequence: Some(OnInvalid::Default), message }) => {
                warn(format!("{message}; the default is used").into());
                Ok(None)
            }
            Err(Invalid { message, consequence }) => {
                let denies = match consequence {
                    Some(consequence) => consequence == OnInvalid::Deny,
                    None => profile.failure_policy == FailurePolicy::Fail,
                };
                let outcome = if denies { ProfileOutcome::Denied } else { ProfileOutcome::Skipped };
                let reason = Reason::InvalidParameter;
                values.push(&parameter.name, Err(EvaluationError::new(reason.sentence())));
                let refusal = Refusal { outcome, reason, detail: Some(message) };
                invalid = Some(match invalid.take() {
                    Some(first) => more_severe(first, refusal),
                    None => refusal,
                });
                continue;
            }
        };
        if let Err(error) = &value
            && error.is_exhausted()
        {
            // The value may be invalid. All further charges would fail, too.
            let outcome = ProfileOutcome::of_failure(profile.failure_policy);
            let detail = Some(format!("params.{}: {}", parameter.name, error.message()).into());
            invalid.get_or_insert_with(|| Refusal { outcome, reason: lookup::reason_of(error), detail });
            break;
        }
        let value = match value {
            Ok(None) => parameter.default_value(&ProfileBindings::new(context, &values, definitions), &mut meter),
            set => set,
        };
        if let Some(value) = value.transpose() {
            values.push(&parameter.name, value);
        }
    }
    (values, invalid)
}

/// Returns the more severe of two refusals. If they are equally severe, returns one with both details.
fn more_severe(first: Refusal, next: Refusal) -> Refusal {
    match (first.outcome == ProfileOutcome::Denied, next.outcome == ProfileOutcome::Denied) {
        (true, false) => first,
        (false, true) => next,
        _ => Refusal {
            detail: first.detail.zip(next.detail).map(|(first, next)| format!("{first}; {next}").into()),
            ..first
        },
    }
}

impl Metadata for Pod<'_> {
    fn label(&self, key: &str) -> Option<Cow<'_, str>> {
        Pod::label(*self, key)
    }

    fn annotation(&self, key: &str) -> Option<Cow<'_, str>> {
        Pod::annotation(*self, key)
    }

    fn entries(&self) -> usize {
        Pod::entries(*self)
    }

    fn annotations_below<'m>(&'m self, prefix: &'m str) -> Box<dyn Iterator<Item = (Cow<'m, str>, Cow<'m, str>)> + 'm> {
        Box::new(self.annotations().filter_map(move |(key, value)| {
            let rest = key.text().strip_prefix(prefix)?.to_owned();
            Some((Cow::Owned(rest), value.as_str()?))
        }))
    }
}

impl Metadata for NamespaceMetadata {
    fn label(&self, key: &str) -> Option<Cow<'_, str>> {
        Self::label(self, key).map(Cow::Borrowed)
    }

    fn annotation(&self, key: &str) -> Option<Cow<'_, str>> {
        Self::annotation(self, key).map(Cow::Borrowed)
    }

    fn entries(&self) -> usize {
        Self::entries(self)
    }

    fn annotations_below<'m>(&'m self, prefix: &'m str) -> Box<dyn Iterator<Item = (Cow<'m, str>, Cow<'m, str>)> + 'm> {
        Box::new(
            self.annotations()
                .filter_map(move |(key, value)| Some((Cow::Borrowed(key.strip_prefix(prefix)?), Cow::Borrowed(value)))),
        )
    }
}

#[cfg(test)]
mod tests;
