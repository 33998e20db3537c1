//! Chooses the revisions of the profiles for an object.
//!
//! * The API server may call the webhook again for the same object (a second pass). Then the revisions of the first
//!   pass are used if they are still stored, even if others were published in the meantime.
//! * `pillion.dev/profiles: name@hash`, on the pod or its namespace, pins a stored revision. A unique prefix of the
//!   hash is enough. A profile with `optOut: Forbidden` cannot be pinned. A namespaced profile that only sets values of
//!   its parent cannot be pinned either, because its old revisions contain an old spec of the parent.
//! * Otherwise, a rollout gives the newest revision to a share of the *workloads*, and the promoted one, if there is
//!   one, to all others. So all pods of a workload get the same revision. A hash of profile, namespace and workload
//!   determines the revision, so every replica chooses the same one. A larger share includes the workloads of a smaller
//!   one. The choices for different profiles are independent.
//!
//! Usually there is nothing to choose, and the only cost is reading two annotations.

use std::borrow::Cow;
use std::sync::Arc;

use pillion_api::names::{GROUP, PROFILES_ANNOTATION, VERSION};
use pillion_api::profile::OptOut;
use pillion_api::revision::object_name;
use sha2::{Digest, Sha256};

use crate::decision::Notice;
use crate::json::Value;
use crate::lookup::{Answer, ObjectSelection, Query, workload};
use crate::namespace::NamespaceMetadata;
use crate::profile::request::names;
use crate::profile::{CompiledProfile, Limits, ProfileName};
use crate::record::Record;

use super::candidates::{Candidates, Choice, Place};
use super::request::Pod;

/// The number of buckets into which workloads are hashed. One bucket has a hundredth of a percent of all workloads.
const SHARES: u64 = 10_000;

/// The object for which revisions are chosen.
#[derive(Clone, Copy)]
pub(crate) struct TargetObject<'s> {
    pub(crate) namespace_name: &'s str,
    pub(crate) namespace: &'s NamespaceMetadata,
    /// The original object, without injected changes.
    pub(crate) object: Value<'s>,
    /// The record of an earlier pass for the same object.
    pub(crate) record: Option<&'s Record>,
}

/// Chooses the revisions. `fetch` returns stored revisions that are not active.
pub(crate) fn choose(
    candidates: Arc<Candidates>,
    subject: TargetObject<'_>,
    fetch: &mut dyn FnMut(&ProfileName, &str) -> Answer<Arc<CompiledProfile>>,
) -> Arc<Candidates> {
    let pods = Pod::new(subject.object).annotation(PROFILES_ANNOTATION).unwrap_or_default();
    let has_pins = [&*pods, &*candidates.namespace_names].iter().any(|list| list.contains('@'));
    if !has_pins && subject.record.is_none() && !candidates.has_stages() {
        return candidates;
    }
    let mut chooser = Chooser { candidates: &candidates, fetch, choice: Choice::default() };
    chooser.shares(subject);
    // The pins of the namespace come first. Those of the pod replace them.
    let mut pins: Vec<Pin<'_>> = Vec::new();
    for list in [&*candidates.namespace_names, &*pods] {
        for (word, name, digits) in names(list).filter_map(pin) {
            if let Some(pin) = chooser.pinned(word, name, digits) {
                // Only the last pin of a profile is used, so only its revision is fetched and compiled.
                pins.retain(|other| other.places != pin.places);
                pins.push(pin);
            }
        }
    }
    for Pin { word, places, name, revision } in pins {
        if !chooser.take(&name, &places, revision) {
            chooser.choice.unknown.push(word.into());
        }
    }
    for (profile, revision) in subject.record.into_iter().flat_map(Record::revisions) {
        chooser.recorded(&profile, &revision);
    }
    let choice = chooser.choice;
    if choice == Choice::default() { candidates } else { Arc::new(candidates.with_choice(choice)) }
}

/// Whether the choice may need revisions that are not active.
pub(crate) fn may_need_revisions(candidates: &Candidates, object: Value<'_>, has_record: bool) -> bool {
    let is_pin = |list: &str| list.contains('@');
    has_record
        || is_pin(&candidates.namespace_names)
        || Pod::new(object).annotation(PROFILES_ANNOTATION).is_some_and(|list| is_pin(&list))
}

/// Returns the lookup of the object that contains a revision.
pub(crate) fn query(profile: &ProfileName, revision: &str) -> Query {
    let resource = match profile.namespace {
        Some(_) => pillion_api::kinds::plural::NAMESPACED_REVISION,
        None => pillion_api::kinds::plural::CLUSTER_REVISION,
    };
    Query {
        group: GROUP.into(),
        version: VERSION.into(),
        resource: resource.into(),
        namespace: profile.namespace.clone().unwrap_or_default(),
        which: ObjectSelection::Named(object_name(&profile.name, revision).into()),
    }
}

/// Splits a value of the form `name@digits`. A value that begins with `-` is an opt-out and not a pin.
fn pin(word: &str) -> Option<(&str, &str, &str)> {
    let (name, digits) = word.split_once('@')?;
    (!name.starts_with('-')).then_some((word, name, digits))
}

/// Whether the workload of a pod is in the share of `percent` of all workloads, so that new pods get the newest
/// revision of the profile with this display name while a rollout lasts. Needs only the pod's `metadata`.
#[must_use]
pub fn is_in_share(percent: u8, profile: &str, namespace: &str, pod: Value<'_>) -> bool {
    is_among(percent, profile, namespace, &workload(pod))
}

/// Whether a workload is in the share of `percent` of all workloads. Which workloads are in the share depends on the
/// profile and the namespace.
pub(crate) fn is_among(percent: u8, profile: &str, namespace: &str, workload: &str) -> bool {
    let mut hash = Sha256::new();
    for part in [profile, namespace, workload] {
        hash.update(part);
        hash.update([0]);
    }
    let digest = hash.finalize();
    let number = digest.iter().take(8).fold(0_u64, |number, byte| (number << 8) | u64::from(*byte));
    number % SHARES < u64::from(percent) * (SHARES / 100)
}

/// A `name@digits` entry of the annotation `pillion.dev/profiles`, resolved to a stored revision of a profile.
struct Pin<'c> {
    word: &'c str,
    places: Vec<Place>,
    name: ProfileName,
    revision: &'c str,
}

struct Chooser<'c, 'f> {
    candidates: &'c Candidates,
    fetch: &'f mut dyn FnMut(&ProfileName, &str) -> Answer<Arc<CompiledProfile>>,
    choice: Choice,
}

impl<'c> Chooser<'c, '_> {
    /// Chooses the newest or the promoted revision for each profile in a rollout.
    fn shares(&mut self, subject: TargetObject<'_>) {
        let mut workload_name: Option<Cow<'_, str>> = None;
        for (staged, places) in self.candidates.stages() {
            let is_selected =
                staged.namespaces.as_ref().is_none_or(|selector| selector.matches(|key| subject.namespace.label(key)));
            let name = workload_name.get_or_insert_with(|| workload(subject.object));
            let gets_newest = is_selected && is_among(staged.percent, &staged.profile, subject.namespace_name, name);
            let other = if gets_newest { places.promoted } else { places.newest };
            self.choice.unchosen.extend(other);
        }
    }

    /// Resolves an entry `name@digits` to a pin. `None` if the profile cannot be pinned, or if the digits do not
    /// identify exactly one of its revisions. This is reported to the author.
    fn pinned(&mut self, word: &'c str, name: &str, digits: &str) -> Option<Pin<'c>> {
        let mut places = self.candidates.places_of(name).peekable();
        // Unknown names are reported like other unknown values.
        places.peek()?;
        let places: Vec<_> = places.collect();
        let chosen = places.iter().find(|place| !self.choice.unchosen.contains(place)).or_else(|| places.first());
        let profile = chosen.and_then(|place| self.candidates.profile(*place))?;
        let refused = match (profile.opt_out, profile.limits()) {
            (OptOut::Forbidden, _) => {
                Some("it cannot be pinned, because it forbids opting out; the active revision is used")
            }
            (_, Limits::Parent) => {
                Some("it cannot be pinned, because it only sets values of its parent; the active revision is used")
            }
            _ => None,
        };
        if let Some(text) = refused {
            self.choice.notices.push(Notice::OfProfile { profile: profile.display_name().into(), text: text.into() });
            return None;
        }
        let stored = places.iter().flat_map(|place| self.candidates.revisions_at(*place));
        let mut found: Vec<&'c str> =
            stored.filter(|revision| !digits.is_empty() && revision.starts_with(digits)).collect();
        found.sort_unstable();
        found.dedup();
        let [revision] = found.as_slice() else {
            self.choice.unknown.push(word.into());
            return None;
        };
        Some(Pin { word, name: profile.name().clone(), revision, places })
    }

    /// Chooses the revision that an earlier pass applied. If it is no longer stored, the active revision is used.
    fn recorded(&mut self, profile: &str, revision: &str) {
        let places: Vec<_> = self.candidates.active_places_of(profile).collect();
        let Some(name) = places.first().and_then(|place| self.candidates.profile(*place)).map(|profile| profile.name())
        else {
            return;
        };
        let is_known =
            places.iter().flat_map(|place| self.candidates.revisions_at(*place)).any(|kept| kept == revision);
        if is_known {
            self.take(name, &places, revision);
        }
    }

    /// Chooses a revision of the profile at these positions. Returns false if the revision is not available.
    fn take(&mut self, name: &ProfileName, places: &[Place], revision: &str) -> bool {
        let is_it =
            |place: &&Place| self.candidates.profile(**place).is_some_and(|profile| profile.revision() == revision);
        let stands_for = match places.iter().find(is_it) {
            Some(place) => *place,
            None => match (self.fetch)(name, revision) {
                // In this revision, the profile only set values of its parent. The revision would replace the parent's
                // current spec with an old one.
                Answer::Found(compiled) if compiled.limits() == Limits::Parent => return false,
                Answer::Found(compiled) => {
                    let Some(place) = places.first() else { return false };
                    self.choice.pinned.retain(|(other, _)| !places.contains(other));
                    self.choice.pinned.push((*place, compiled));
                    self.choose(places, *place);
                    return true;
                }
                Answer::NotRequested | Answer::Missing | Answer::Failed(_) => return false,
            },
        };
        self.choice.pinned.retain(|(other, _)| !places.contains(other));
        self.choose(places, stands_for);
        true
    }

    /// Chooses one of the positions of a profile, and excludes the others.
    fn choose(&mut self, places: &[Place], chosen: Place) {
        self.choice.unchosen.retain(|place| !places.contains(place));
        self.choice.unchosen.extend(places.iter().copied().filter(|place| *place != chosen));
    }
}

#[cfg(test)]
mod tests;
