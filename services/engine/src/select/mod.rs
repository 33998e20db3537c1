//! Which profiles are for an object, and why the others are not.
//!
//! A profile is a candidate of its namespace by its selector and its target; it is asked for by its activation, by name,
//! or by a key of its own; and it is dropped by an opt-out, its object selector or its exclusive group. Only profiles that
//! are asked for are looked at.

pub(crate) mod candidates;
pub(crate) mod index;
pub(crate) mod pod;
mod request;

use std::sync::Arc;

use pillion_api::names::{INJECT_LABEL, InjectionLevel};
use pillion_api::profile::OptOut;

use crate::profile::CompiledProfile;
use crate::report::{Notice, ProfileDecision, ProfileOutcome, Reason};

use candidates::Candidates;
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

/// Selects the profiles of a pod.
pub(crate) fn select(candidates: &Candidates, level: InjectionLevel, pod: Pod<'_>) -> Selection {
    if candidates.is_empty() {
        return Selection { profiles: Vec::new(), notices: Vec::new(), denied: None, reason: Reason::NoProfile };
    }
    let Asked { places, dropped, notices, denied } = request::asked(candidates, level, pod);
    let opted_out = pod.label(INJECT_LABEL).is_some_and(|value| value == "false");
    let mut profiles: Vec<ProfileDecision> = Vec::with_capacity(places.len());
    for place in places {
        let Some(profile) = candidates.profile(place) else { continue };
        let reason = if (opted_out || dropped.contains(&place)) && profile.opt_out == OptOut::Allowed {
            Some(Reason::OptedOut)
        } else if !object_matches(profile, pod) {
            Some(Reason::ObjectSelector)
        } else if group_is_taken(profile, &profiles) {
            Some(Reason::ExclusiveGroup)
        } else {
            None
        };
        profiles.push(ProfileDecision {
            profile: Arc::clone(profile),
            outcome: if reason.is_some() { ProfileOutcome::NotMatched } else { ProfileOutcome::Unchanged },
            reason: reason.unwrap_or(Reason::AlreadyInjected),
            detail: None,
        });
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
