//! Which profiles are for a pod that is there already, and which ones its record says it has. Nothing is rendered.
//!
//! Selection is asked about the pod without its record, as a second pass of injection does. What a request knew and a stored
//! pod does not say (who created it) is not there for expressions; a profile that reads it is [`Standing::Undecided`].
//!
//! Whoever keeps the labels and annotations of many pods asks [`of_metadata`], which evaluates no expression; whoever has
//! the whole pod asks [`of_object`].

use std::sync::Arc;

use pillion_api::names::{INJECTED_ANNOTATION, SYSTEM_NAMESPACES};

use crate::context::{Arena, EvalContext};
use crate::decision::{ProfileDecision, ProfileOutcome, Reason};
use crate::expression::Allowances;
use crate::inject::without_record;
use crate::json::{OwnedTape, Value, write_string};
use crate::lookup::{LookedUp, Wanted};
use crate::profile::CompiledProfile;
use crate::profile::target::Action;
use crate::record::{Record, is_genuine};
use crate::schema;
use crate::select::revisions::TargetObject;
use crate::select::{self, expected};
use crate::snapshot::{Namespace, Snapshot};

/// What a profile is to a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Standing {
    /// It is for the pod.
    Wanted,
    /// It is asked for, and the pod's author takes it away.
    OptedOut,
    /// It is asked for, and not for this pod.
    NotWanted,
    /// More than metadata has to be looked at: [`of_object`] says.
    Open,
    /// What it reads is not known of a stored pod.
    Undecided,
    /// Something that it reads could not be looked up: whoever asks again may be told.
    NotLookedUp,
}

/// A profile that is asked for.
#[derive(Clone, Debug)]
pub struct Expected {
    /// Which one.
    pub profile: Arc<CompiledProfile>,
    /// What it is to the pod.
    pub standing: Standing,
    /// The revision that the pod or its namespace pins, where it is not here: the profile stands in for it.
    pub pinned: Option<Box<str>>,
}

impl Expected {
    /// Which revision the pod would get.
    #[must_use]
    pub fn revision(&self) -> &str {
        self.pinned.as_deref().unwrap_or_else(|| self.profile.revision())
    }
}

/// What a pod's record says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Injected {
    /// There is none.
    Nothing,
    /// One that was not written by Pillion, or not in a form that this build knows.
    Foreign,
    /// These profiles, as they are displayed, at these revisions.
    Profiles(Vec<(Box<str>, Box<str>)>),
}

/// A pod's record, and the pod without it.
#[derive(Debug)]
pub struct Read {
    /// What the record says.
    pub injected: Injected,
    /// The pod as its author wrote it, where that is not how it is.
    pub original_object: Option<OwnedTape>,
}

/// Reads the record of a pod, of which the metadata at least are there. A pod with a key that stands twice is one that no
/// API server sends; it has no record.
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
    let profiles = record.revisions().map(|(profile, revision)| (profile.into(), revision.into())).collect();
    let original_object = without_record(pod, &record, schema::of("", "pods")).ok().flatten();
    Read { injected: Injected::Profiles(profiles), original_object }
}

/// Which profiles are for a pod, as far as labels and annotations say: `pod` is what its author wrote, its `metadata` at
/// least. `known` is asked about profiles for which that does not suffice, at the revision that the pod would get; they are
/// [`Standing::Open`] if it does not know. One that is pinned to a revision whose text is not here is such a profile.
#[must_use]
pub fn of_metadata(
    snapshot: &Snapshot,
    name: &str,
    namespace: &Namespace,
    pod: Value<'_>,
    mut known: impl FnMut(&CompiledProfile, &str) -> Option<bool>,
) -> Vec<Expected> {
    let Some(level) = namespace.level().filter(|_| !SYSTEM_NAMESPACES.contains(&name)) else { return Vec::new() };
    let candidates = snapshot.candidates(name, namespace);
    let (candidates, pins) = snapshot.standing_in(candidates, subject(name, namespace, pod));
    let pin =
        |profile: &CompiledProfile| pins.iter().find(|(name, _)| name == profile.name()).map(|(_, revision)| revision);
    let known =
        |profile: &CompiledProfile| known(profile, pin(profile).map_or_else(|| profile.revision(), |pin| &**pin));
    let found = expected::expected(&candidates, level, pod, |profile| pin(profile).is_some(), known).into_iter();
    found
        .map(|expected::Expected { decision, profile }| Expected {
            pinned: pin(&profile).cloned(),
            profile,
            standing: decision.as_ref().map_or(Standing::Open, standing),
        })
        .collect()
}

/// Whether labels and annotations do not suffice to say whether the profile is for a pod.
#[must_use]
pub fn is_open(profile: &CompiledProfile) -> bool {
    expected::is_open(profile)
}

/// What has to be looked up before [`of_object`] can say anything of a pod, as its author wrote it.
#[must_use]
pub fn needs(snapshot: &Snapshot, name: &str, namespace: &Namespace, pod: Value<'_>) -> Wanted {
    let candidates = snapshot.candidates(name, namespace);
    let (candidates, revisions) = snapshot.choosing(candidates, subject(name, namespace, pod));
    match namespace.level().filter(|_| candidates.want_look_ups() || !revisions.is_empty()) {
        Some(level) => {
            let mut wanted = select::wanted(&candidates, Action::CREATE_POD, level, name, pod);
            wanted.objects.extend(revisions);
            wanted
        }
        None => Wanted::default(),
    }
}

/// Which revision of a profile a pod gets depends on whose it is and on what it asks for, and not on its record: the
/// question is what it would get now.
fn subject<'s>(namespace_name: &'s str, namespace: &'s Namespace, object: Value<'s>) -> TargetObject<'s> {
    TargetObject { namespace_name, namespace, object, record: None }
}

/// Which profiles are for a pod: `pod` is the whole of it, as its author wrote it.
#[must_use]
pub fn of_object(
    snapshot: &Snapshot,
    name: &str,
    namespace: &Namespace,
    pod: Value<'_>,
    looked_up: &LookedUp,
) -> Vec<Expected> {
    let Some(level) = namespace.level().filter(|_| !SYSTEM_NAMESPACES.contains(&name)) else { return Vec::new() };
    let Some(request) = request_of(name, pod) else { return Vec::new() };
    let candidates = snapshot.candidates(name, namespace);
    let candidates = snapshot.chosen(candidates, subject(name, namespace, pod), looked_up);
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
    let selection = select::select(&candidates, Action::CREATE_POD, level, context, &arena);
    let profiles = selection.profiles.into_iter().map(|selected| selected.decision);
    let expected =
        |decision: ProfileDecision| Expected { standing: standing(&decision), profile: decision.profile, pinned: None };
    profiles.map(expected).collect()
}

fn standing(decision: &ProfileDecision) -> Standing {
    match (decision.outcome, decision.reason) {
        (ProfileOutcome::Unchanged, _) => Standing::Wanted,
        (_, Reason::OptedOut) => Standing::OptedOut,
        (_, Reason::ExpressionFailed) => Standing::Undecided,
        (_, Reason::LookupFailed) => Standing::NotLookedUp,
        _ => Standing::NotWanted,
    }
}

/// As much of the request as is known: that somebody created this pod.
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
