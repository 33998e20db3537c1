//! Compares the profiles that should be injected into a running pod with the profiles that its injection record names.
//!
//! Profiles are selected for the original pod, without injected changes, as when the API server calls the webhook again
//! for a pod that already has injected changes. No template is evaluated. A stored pod does not contain its creator, so
//! a profile that reads the creator is [`MatchState::Undecided`].
//!
//! [`of_metadata`] decides from labels and annotations alone and evaluates no expression. [`of_object`] needs the whole
//! pod.
//!
//! [`added_containers`] returns the containers that profiles added, with their CPU and memory.

mod added;

use std::sync::Arc;

use pillion_api::names::{INJECTED_ANNOTATION, SYSTEM_NAMESPACES, UPGRADED_ANNOTATION};

use crate::context::{Arena, EvalContext};
use crate::decision::{ProfileDecision, ProfileOutcome, Reason};
use crate::expression::Allowances;
use crate::in_place::Upgraded;
use crate::inject::without_record;
use crate::json::{OwnedTape, Value, write_string};
use crate::lookup::{LookedUp, Wanted};
use crate::profile::CompiledProfile;
use crate::profile::target::Action;
use crate::record::{Record, is_genuine};
use crate::schema;
use crate::select::revisions::TargetObject;
use crate::select::{self, considered};
use crate::snapshot::{Namespace, Snapshot};

pub use added::{AddedContainer, AddedResource, added_containers};

/// The relation of a profile to a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum MatchState {
    /// The profile matches the pod.
    Wanted,
    /// The profile is requested, but the pod or its namespace opts out of it.
    OptedOut,
    /// The profile is requested, but does not match the pod.
    NotWanted,
    /// The metadata alone does not show whether the profile matches. Call [`of_object`] to find out.
    Open,
    /// An expression of the profile failed, usually because it reads request values that a stored pod does not contain.
    Undecided,
    /// A lookup that the profile needs failed. A later attempt may succeed.
    NotLookedUp,
}

/// A requested profile.
#[derive(Clone, Debug)]
pub struct Expected {
    /// The profile.
    pub profile: Arc<CompiledProfile>,
    /// The relation of the profile to the pod.
    pub match_state: MatchState,
    /// The pinned revision, if the snapshot does not contain it. In that case, `profile` is the active revision.
    pub pinned: Option<Box<str>>,
}

impl Expected {
    /// Returns the revision of the profile that would be injected.
    #[must_use]
    pub fn revision(&self) -> &str {
        self.pinned.as_deref().unwrap_or_else(|| self.profile.revision())
    }
}

/// The content of a pod's injection record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Injected {
    /// There is no record.
    Nothing,
    /// The annotation was not written by Pillion, or this version does not understand its format.
    Foreign,
    /// The display names of the profiles, with their revisions. If a pod was upgraded in place, these are the revisions
    /// after the upgrade.
    Profiles(Vec<(Box<str>, Box<str>)>),
}

/// The content of a pod's injection record, and the pod without injected changes.
#[derive(Debug)]
pub struct Read {
    /// The content of the record.
    pub injected: Injected,
    /// The original pod, without injected changes. `None` if it equals the stored pod, or cannot be reconstructed.
    pub original_object: Option<OwnedTape>,
}

/// Reads the injection record of a pod. Only the pod's metadata needs to be complete. If an object in the pod has a
/// duplicate key, which API servers never send, the changes are not removed, and `original_object` is `None`.
#[must_use]
pub fn read(pod: Value<'_>) -> Read {
    let none = |injected| Read { injected, original_object: None };
    let Some(annotation) = pod.at(&["metadata", "annotations", INJECTED_ANNOTATION]) else {
        return none(Injected::Nothing);
    };
    if !is_genuine(pod) {
        return none(Injected::Foreign);
    }
    let Some(record) = annotation.as_str().and_then(|text| Record::read(&text)) else {
        return none(Injected::Foreign);
    };
    let upgraded = upgraded(pod);
    let revision = |profile: &str, recorded: &str| -> Box<str> {
        upgraded.as_ref().map_or(recorded, |upgraded| upgraded.revision(profile, recorded)).into()
    };
    let profiles = record
        .revisions()
        .map(|(profile, recorded)| (profile.as_ref().into(), revision(&profile, &recorded)))
        .collect();
    let original_object = without_record(pod, &record, schema::of("", "pods")).ok().flatten();
    Read { injected: Injected::Profiles(profiles), original_object }
}

/// Returns the annotation of an upgrade in place. `None` if there was no upgrade, or if the annotation is invalid or
/// was copied from another pod.
fn upgraded(pod: Value<'_>) -> Option<Upgraded> {
    let text = pod.at(&["metadata", "annotations", UPGRADED_ANNOTATION])?.as_str()?;
    Upgraded::read(&text, &pod.at(&["metadata", "uid"])?.as_str()?)
}

/// Returns the JSON pointers of the elements that the record of a pod lists as added. Empty without a genuine record.
#[must_use]
pub fn added(pod: Value<'_>) -> Vec<Box<str>> {
    let annotation = pod.at(&["metadata", "annotations", INJECTED_ANNOTATION]).filter(|_| is_genuine(pod));
    let record = annotation.and_then(|annotation| Record::read(&annotation.as_str()?));
    record.map(|record| record.all_added().map(Into::into).collect()).unwrap_or_default()
}

/// Selects the profiles for a pod by labels and annotations. `pod` is the original pod, and only its `metadata` is
/// needed. If the metadata does not show whether a profile matches, or if the profile is pinned to an unavailable
/// revision, calls `known` with the profile and the revision that would be injected. `known` returns whether the
/// profile matches, or `None` if the caller does not know. The profile is then [`MatchState::Open`].
#[must_use]
pub fn of_metadata(
    snapshot: &Snapshot,
    name: &str,
    namespace: &Namespace,
    pod: Value<'_>,
    mut known: impl FnMut(&CompiledProfile, &str) -> Option<bool>,
) -> Vec<Expected> {
    let Some(failure_mode) = namespace.failure_mode().filter(|_| !SYSTEM_NAMESPACES.contains(&name)) else {
        return Vec::new();
    };
    let candidates = snapshot.candidates(name, namespace);
    let (candidates, pins) = snapshot.choose_available(candidates, subject(name, namespace, pod));
    let pin =
        |profile: &CompiledProfile| pins.iter().find(|(name, _)| name == profile.name()).map(|(_, revision)| revision);
    let known =
        |profile: &CompiledProfile| known(profile, pin(profile).map_or_else(|| profile.revision(), |pin| &**pin));
    let found =
        considered::expected(&candidates, failure_mode, pod, |profile| pin(profile).is_some(), known).into_iter();
    found
        .map(|considered::Expected { decision, profile }| Expected {
            pinned: pin(&profile).cloned(),
            profile,
            match_state: decision.as_ref().map_or(MatchState::Open, match_state),
        })
        .collect()
}

/// Whether more than the pod's metadata is needed to decide if the profile matches.
#[must_use]
pub fn is_open(profile: &CompiledProfile) -> bool {
    considered::is_open(profile)
}

/// Returns the lookups that [`of_object`] needs for an original pod.
#[must_use]
pub fn needs(snapshot: &Snapshot, name: &str, namespace: &Namespace, pod: Value<'_>) -> Wanted {
    let candidates = snapshot.candidates(name, namespace);
    let (candidates, revisions) = snapshot.missing_revisions(candidates, subject(name, namespace, pod));
    match namespace.failure_mode().filter(|_| candidates.wants_lookups() || !revisions.is_empty()) {
        Some(failure_mode) => {
            let mut wanted = select::wanted(&candidates, Action::CREATE_POD, failure_mode, name, pod);
            wanted.objects.extend(revisions);
            wanted
        }
        None => Wanted::default(),
    }
}

/// Returns the object for which revisions are chosen. The injection record is left out, so that the same revisions are
/// chosen as for a new pod.
fn subject<'s>(namespace_name: &'s str, namespace: &'s Namespace, object: Value<'s>) -> TargetObject<'s> {
    TargetObject { namespace_name, namespace, object, record: None }
}

/// Selects the profiles for a pod. `pod` is the complete original pod.
#[must_use]
pub fn of_object(
    snapshot: &Snapshot,
    name: &str,
    namespace: &Namespace,
    pod: Value<'_>,
    looked_up: &LookedUp,
) -> Vec<Expected> {
    let Some(failure_mode) = namespace.failure_mode().filter(|_| !SYSTEM_NAMESPACES.contains(&name)) else {
        return Vec::new();
    };
    let Some(request) = request_of(name, pod) else { return Vec::new() };
    let candidates = snapshot.candidates(name, namespace);
    let candidates = snapshot.choose_revisions(candidates, subject(name, namespace, pod), looked_up);
    let arena = Arena::new();
    let allowances = Allowances::until(None);
    let context = EvalContext {
        object: pod,
        request: request.root(),
        namespace_name: name,
        namespace,
        uid: "",
        looked_up,
        allowances: &allowances,
    };
    let selection = select::select(&candidates, Action::CREATE_POD, failure_mode, context, &arena);
    let profiles = selection.profiles.into_iter().map(|selected| selected.decision);
    let expected = |decision: ProfileDecision| Expected {
        match_state: match_state(&decision),
        profile: decision.profile,
        pinned: None,
    };
    profiles.map(expected).collect()
}

fn match_state(decision: &ProfileDecision) -> MatchState {
    match (decision.outcome, decision.reason) {
        (ProfileOutcome::Unchanged, _) => MatchState::Wanted,
        (_, Reason::OptedOut) => MatchState::OptedOut,
        (_, Reason::ExpressionFailed) => MatchState::Undecided,
        (_, Reason::LookupFailed) => MatchState::NotLookedUp,
        _ => MatchState::NotWanted,
    }
}

/// Returns an admission request for the creation of this pod, with the fields that a stored pod provides.
fn request_of(namespace: &str, pod: Value<'_>) -> Option<OwnedTape> {
    let mut text = String::with_capacity(256);
    text.push_str(r#"{"uid":"","operation":"CREATE","kind":{"group":"","version":"v1","kind":"Pod"},"#);
    text.push_str(r#""resource":{"group":"","version":"v1","resource":"pods"},"dryRun":false,"namespace":"#);
    write_string(&mut text, namespace);
    if let Some(name) = pod.at(&["metadata", "name"]).and_then(Value::as_str) {
        text.push_str(r#","name":"#);
        write_string(&mut text, &name);
    }
    text.push('}');
    OwnedTape::parse(text).ok()
}

#[cfg(test)]
mod tests;
