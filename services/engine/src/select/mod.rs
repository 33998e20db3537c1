//! Which profiles are for an object, and why the others are not.
//!
//! A profile is a candidate of its namespace by its selector and its target; it is asked for by its activation, by name,
//! or by a key of its own; and it is dropped by an opt-out, its object selector or its exclusive group. Only profiles that
//! are asked for are looked at.

pub(crate) mod candidates;
mod conditions;
pub(crate) mod index;
pub(crate) mod pod;
mod request;

use std::sync::Arc;

use pillion_api::names::{INJECT_LABEL, InjectionLevel};
use pillion_api::profile::OptOut;

use crate::compute::World;
use crate::profile::CompiledProfile;
use crate::profile::target::Action;
use crate::report::{Notice, ProfileDecision, ProfileOutcome, Reason};

use candidates::Candidates;
pub(crate) use conditions::resolve_all;
use pod::Pod;
use request::Asked;

/// What selection found.
pub(crate) struct Selection {
    /// The profiles that were asked for, in their order. Those that are for the object are `Unchanged` until they are
    /// applied.
    pub(crate) profiles: Vec<ProfileDecision>,
    pub(crate) notices: Vec<Notice>,
    /// Why the object is refused.
    pub(crate) denied: Option<(Reason, Box<str>)>,
    /// Why nothing was asked for, if nothing was.
    pub(crate) reason: Reason,
}

/// Why a profile is not for an object.
pub(crate) struct Refusal {
    pub(crate) outcome: ProfileOutcome,
    pub(crate) reason: Reason,
    pub(crate) detail: Option<Box<str>>,
}

/// Selects the profiles that act on what a request is about.
pub(crate) fn select(
    candidates: &Candidates,
    action: Action<'_>,
    level: InjectionLevel,
    world: World<'_>,
) -> Selection {
    let pod = Pod::of(world);
    if candidates.is_empty() {
        return Selection { profiles: Vec::new(), notices: Vec::new(), denied: None, reason: Reason::NoProfile };
    }
    let Asked { places, dropped, notices, denied } = request::asked(candidates, action, level, pod);
    let opted_out = pod.label(INJECT_LABEL).is_some_and(|value| value == "false");
    let mut profiles: Vec<ProfileDecision> = Vec::with_capacity(places.len());
    for place in places {
        let Some(profile) = candidates.profile(place) else { continue };
        let not_matched = |reason| Some(Refusal { outcome: ProfileOutcome::NotMatched, reason, detail: None });
        let refusal = if (opted_out || dropped.contains(&place)) && profile.opt_out == OptOut::Allowed {
            not_matched(Reason::OptedOut)
        } else if !object_matches(profile, pod) {
            not_matched(Reason::ObjectSelector)
        } else if let Some(refusal) = conditions::check(profile, world) {
            Some(refusal)
        } else if group_is_taken(profile, &profiles) {
            not_matched(Reason::ExclusiveGroup)
        } else {
            None
        };
        let Refusal { outcome, reason, detail } = refusal.unwrap_or(Refusal {
            outcome: ProfileOutcome::Unchanged,
            reason: Reason::AlreadyInjected,
            detail: None,
        });
        profiles.push(ProfileDecision { profile: Arc::clone(profile), outcome, reason, detail });
    }
    let reason = if opted_out { Reason::OptedOut } else { Reason::NotRequested };
    Selection { profiles, notices, denied, reason }
}

fn object_matches(profile: &CompiledProfile, pod: Pod<'_>) -> bool {
    let Some(selector) = &profile.object_selector else { return true };
    let labels: Vec<_> = pod.labels().filter_map(|(key, value)| Some((key.text(), value.as_str()?))).collect();
    selector.matches(|key| labels.iter().find(|(candidate, _)| candidate == key).map(|(_, value)| &**value))
}

fn group_is_taken(profile: &CompiledProfile, earlier: &[ProfileDecision]) -> bool {
    profile.exclusive_group.is_some()
        && earlier.iter().any(|decision| {
            decision.outcome == ProfileOutcome::Unchanged && decision.profile.exclusive_group == profile.exclusive_group
        })
}

#[cfg(test)]
mod tests;
