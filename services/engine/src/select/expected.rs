//! Selects profiles by labels and annotations alone, without evaluating expressions.
//!
//! Requests, opt-outs and object selectors read only metadata. Conditions, and parameters that may be invalid, do not.
//! A profile that has either is *open*, and the caller is asked for its result.

use std::sync::Arc;

use pillion_api::names::{INJECT_LABEL, InjectionLevel};
use pillion_api::parameter::OnInvalid;
use pillion_api::profile::OptOut;

use super::candidates::Candidates;
use super::pod::Pod;
use super::request::{self, RequestedProfiles};
use super::{Selected, give_way, group_is_taken, is_stand_in, object_matches};
use crate::decision::{ProfileDecision, ProfileOutcome, Reason};
use crate::json::Value;
use crate::profile::CompiledProfile;
use crate::profile::target::Action;

/// A requested profile.
pub(crate) struct Expected {
    /// The decision about it; `None` if it is open and the caller does not know its result. A profile that matches the
    /// object is `Unchanged`.
    pub(crate) decision: Option<ProfileDecision>,
    pub(crate) profile: Arc<CompiledProfile>,
}

/// Whether a profile is open: metadata is not enough to decide whether it matches.
pub(crate) fn is_open(profile: &CompiledProfile) -> bool {
    let refuses = |on_invalid: Option<OnInvalid>| on_invalid != Some(OnInvalid::Default);
    !profile.conditions.is_empty() || profile.parameters.iter().any(|parameter| refuses(parameter.on_invalid))
}

/// Selects like [`super::select`], as far as metadata allows. `known` returns whether an open profile matches the
/// object. A profile for which `is_unread` is true stands in for a revision whose text is not available, and is open in
/// any case.
pub(crate) fn expected(
    candidates: &Candidates,
    level: InjectionLevel,
    object: Value<'_>,
    is_unread: impl Fn(&CompiledProfile) -> bool,
    mut known: impl FnMut(&CompiledProfile) -> Option<bool>,
) -> Vec<Expected> {
    if candidates.is_empty() {
        return Vec::new();
    }
    let pod = Pod::new(object);
    let RequestedProfiles { places, dropped, .. } =
        request::requested_profiles(candidates, Action::CREATE_POD, level, pod);
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
                // While the result of an earlier profile of its group is open, so is its own.
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
    give_way(&mut selected);
    // The same holds for a profile that may have to give way.
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
