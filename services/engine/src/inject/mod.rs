//! Lays the templates of the selected profiles over an object, one after the other, each wholly or not at all, and keeps
//! the record of what was added.

pub(crate) mod authors;
mod changes;
mod elements;
mod index;
mod join;
mod locate;
mod members;
mod merge;
mod moves;
mod notes;
mod order;
mod record;
mod references;
mod render;
mod rules;
mod settled;
mod undo;

use std::collections::HashSet;

use pillion_api::names::INJECTED_ANNOTATION;
use pillion_api::profile::{ContainerType, OnError};

use crate::compute::{Arena, World};
use crate::json::{Content, Document, Key, Kind, Malformed, OwnedTape, SlotId, Value};
use crate::limits::{Bounds, Excess};
use crate::profile::CompiledProfile;
use crate::report::{ProfileOutcome, Reason};
use crate::select::Selected;

use authors::Authors;
use elements::Places;
use join::text_of;
pub(crate) use locate::without_record;
use merge::{Conflict, Desk, Fault, Merge, Surroundings};
use record::Change;
pub(crate) use record::{Record, RecordWriter, is_genuine};
use rules::Standing;
pub use undo::{UndoError, Undone, undo};

/// The label by which a pod asks for nodes of an operating system.
const OS_LABEL: &str = "kubernetes.io/os";

/// What became of a profile.
#[derive(Clone, Debug)]
pub(crate) struct Verdict {
    pub(crate) outcome: ProfileOutcome,
    pub(crate) reason: Reason,
    pub(crate) detail: Option<Box<str>>,
    /// What the author is told beside it.
    pub(crate) notes: Vec<Box<str>>,
}

/// What the profiles are applied to.
#[derive(Clone, Copy)]
pub(crate) struct Subject<'a> {
    /// The object as it came in.
    pub(crate) object: Value<'a>,
    pub(crate) world: World<'a>,
    pub(crate) arena: &'a Arena,
    /// The record of an earlier pass.
    pub(crate) earlier: Option<&'a Record>,
}

/// Applies each profile that selection left `Unchanged`, and says of each what became of it; of the others, `None`.
pub(crate) fn apply<'a>(
    document: &mut Document<'a>,
    profiles: &[Selected<'a>],
    subject: Subject<'a>,
    record: &mut RecordWriter,
    bounds: Bounds<'_>,
) -> Result<Vec<Option<Verdict>>, Malformed> {
    let mut verdicts = Vec::with_capacity(profiles.len());
    let mut places = Places::default();
    let mut injected = Injected::wanted_by(profiles);
    let mut desk = Desk::default();
    let mut is_touched = false;
    for selected in profiles {
        if selected.decision.outcome != ProfileOutcome::Unchanged {
            verdicts.push(None);
            continue;
        }
        let profile = selected.profile;
        document.mark();
        let places_before = places.clone();
        // What was there before a profile that is limited does not count against it.
        let before = (is_touched && profile.is_limited()).then(|| document.clone());
        if subject.earlier.is_some() {
            injected.profiles.push(profile.display_name().into());
        }
        let mark = record.begin(profile.display_name(), profile.revision(), subject.earlier);
        let room = Room { places: &mut places, desk: &mut desk, injected: &mut injected };
        let changes = match lay(document, selected, subject, room, record) {
            Ok(_) if !record.end() => Err((Conflict::new(Reason::RecordTooLarge, INJECTED_ANNOTATION), false)),
            Ok(changes @ (1.., ..)) if profile.is_limited() => {
                let checked = bounds.check(subject.object, before.as_ref(), document, record.at(mark).as_ref());
                let refused = |excess: Excess| (Conflict::new(Reason::LimitExceeded, &excess.to_string()), false);
                checked.map(|()| changes).map_err(refused)
            }
            Ok(changes) => Ok(changes),
            Err(Fault::Conflict(conflict)) => Err((conflict, false)),
            Err(Fault::Denied(conflict)) => Err((conflict, true)),
            Err(Fault::Malformed(malformed)) => return Err(malformed),
        };
        if !matches!(changes, Ok((1.., ..))) {
            // What an earlier pass did is there still, at the revision of that pass.
            record.keep(mark, subject.earlier, profile.display_name());
        }
        verdicts.push(Some(match changes {
            Ok((changes, notes, containers)) => {
                is_touched = true;
                if injected.is_wanted {
                    injected.extend(containers, profile.name().namespace.is_none());
                }
                let (outcome, reason) = match changes {
                    0 => (ProfileOutcome::Unchanged, Reason::AlreadyInjected),
                    _ => (ProfileOutcome::Applied, Reason::Injected),
                };
                Verdict { outcome, reason, detail: None, notes }
            }
            Err((Conflict { reason, place }, denies)) => {
                document.go_back();
                places = places_before;
                let outcome = match profile.on_error {
                    OnError::Skip if !denies => ProfileOutcome::Skipped,
                    OnError::Skip | OnError::Deny => ProfileOutcome::Denied,
                };
                Verdict { outcome, reason, detail: Some(place), notes: Vec::new() }
            }
        }));
    }
    Ok(verdicts)
}

/// How much a profile changed, what the author is told, and the containers that were added.
type Laid = (usize, Vec<Box<str>>, Vec<Box<str>>);

/// Lays one profile over the document.
fn lay<'a>(
    document: &mut Document<'a>,
    selected: &Selected<'a>,
    subject: Subject<'a>,
    room: Room<'_, 'a>,
    record: &mut RecordWriter,
) -> Result<Laid, Fault> {
    let Room { places, desk, injected } = room;
    let profile: &'a CompiledProfile = selected.profile;
    let Some(computation) = &selected.computation else { return Ok((0, Vec::new(), Vec::new())) };
    let refuses_containers = profile.adds_linux_containers && is_for_windows(document)?;
    let earlier = subject.earlier.map(|record| record.of(profile.display_name(), |other| injected.knows(other)));
    let earlier = earlier.unwrap_or_default();
    let is_cluster = profile.name().namespace.is_none();
    if injected.is_wanted {
        // It is there, whatever becomes of the profile in this pass.
        let own = earlier.added.iter().filter(|added| !earlier.moved.iter().any(|moved| *moved == ***added));
        injected.extend(own.map(|at| Box::from(&**at)), is_cluster);
    }
    let surroundings = Surroundings {
        document,
        places,
        desk,
        record,
        computation,
        arena: subject.arena,
        authors: Authors::of(subject.object),
        type_: profile.object_type(),
        collects_containers: injected.is_wanted || refuses_containers,
        changes_own: profile.rules.iter().any(|rule| rule.types.contains(&ContainerType::Injected)),
    };
    let mut merge = Merge::new(surroundings, &earlier);
    if let Some(template) = &profile.template {
        merge.whole(template, profile.object_type())?;
    }
    // Whether a container that hangs on a condition is added is known only now.
    if refuses_containers && !merge.containers.is_empty() {
        return Err(Fault::Conflict(Conflict::new(Reason::OperatingSystem, "/spec/os/name")));
    }
    if !profile.rules.is_empty() {
        let own = std::mem::take(&mut merge.containers);
        let is_later = |change: &Change<'_>, pointer: &str| matches!(change, Change::Added(added) if added == pointer);
        let standing = |pointer: &str| match injected.standing(pointer, is_cluster) {
            _ if own.iter().any(|own| **own == *pointer) => Standing::Injected,
            Standing::Authors if earlier.later.iter().any(|change| is_later(change, pointer)) => Standing::Hidden,
            standing => standing,
        };
        merge.rules(&profile.rules, subject.world.object, &standing)?;
        merge.containers = own;
    }
    let (changes, notes, containers) = merge.finish();
    match missing_volume(document, &profile.foreign_volumes)? {
        Some(volume) => Err(Fault::Conflict(Conflict::new(Reason::MissingVolume, volume))),
        None => Ok((changes, notes, containers)),
    }
}

/// What the merges of all profiles share.
struct Room<'r, 'a> {
    places: &'r mut Places,
    desk: &'r mut Desk<'a>,
    injected: &'r mut Injected,
}

/// What profiles have done so far.
#[derive(Default)]
struct Injected {
    /// Whether a profile has rules on containers, and so asks which of them were injected.
    is_wanted: bool,
    /// The places that were added, and whether a cluster profile did.
    places: Vec<(Box<str>, bool)>,
    /// The profiles.
    profiles: Vec<Box<str>>,
}

impl Injected {
    fn wanted_by(profiles: &[Selected<'_>]) -> Self {
        Self { is_wanted: profiles.iter().any(|selected| !selected.profile.rules.is_empty()), ..Self::default() }
    }

    fn extend(&mut self, places: impl IntoIterator<Item = Box<str>>, is_cluster: bool) {
        // So many of all profiles together.
        self.places.reserve(8);
        self.places.extend(places.into_iter().map(|place| (place, is_cluster)));
    }

    /// Whether a profile has had its turn.
    fn knows(&self, profile: &str) -> bool {
        self.profiles.iter().any(|known| **known == *profile)
    }

    /// What a profile takes the container at a place for. A tenant's never sees what a cluster profile added.
    fn standing(&self, pointer: &str, seen_by_cluster: bool) -> Standing {
        let mut standing = Standing::Authors;
        for (_, by_cluster) in self.places.iter().filter(|(place, _)| **place == *pointer) {
            if seen_by_cluster || !by_cluster {
                return Standing::Injected;
            }
            standing = Standing::Hidden;
        }
        standing
    }
}

fn is_for_windows(document: &mut Document<'_>) -> Result<bool, Malformed> {
    let Some(spec) = document.member(Document::ROOT, "spec")? else { return Ok(false) };
    let by_name = document.value_of(spec, "os").and_then(|os| os.get("name")).is_some_and(|name| name.is("windows"));
    let selector = document.value_of(spec, "nodeSelector");
    let by_node = selector.and_then(|selector| selector.get(OS_LABEL)).is_some_and(|name| name.is("windows"));
    Ok(by_name || by_node)
}

/// The first of some volumes that a container mounts and that is not there. The pod is read once for all of them.
fn missing_volume<'n>(document: &mut Document<'_>, names: &'n [Box<str>]) -> Result<Option<&'n str>, Malformed> {
    if names.is_empty() {
        return Ok(None);
    }
    let Some(spec) = document.member(Document::ROOT, "spec")? else { return Ok(None) };
    let absent = absent_volumes(document, spec, names)?;
    let Some(first) = absent.first().copied() else { return Ok(None) };
    let mut text = String::new();
    document.write(spec, &mut text);
    let Ok(spec) = OwnedTape::parse(text) else { return Ok(Some(first)) };
    let containers = ["initContainers", "containers"].into_iter().filter_map(|list| spec.root().get(list));
    let mounts = containers.flat_map(Value::items).filter_map(|container| container.get("volumeMounts"));
    let mounted: HashSet<_> = mounts.flat_map(Value::items).filter_map(|mount| mount.get("name")?.as_str()).collect();
    // A container or mount that `$when` leaves out needs none.
    Ok(absent.into_iter().find(|volume| mounted.contains(*volume)))
}

/// Those of some volumes that a pod does not have.
fn absent_volumes<'n>(
    document: &mut Document<'_>,
    spec: SlotId,
    names: &'n [Box<str>],
) -> Result<Vec<&'n str>, Malformed> {
    let names = names.iter().map(|name| &**name);
    let Some(volumes) = document.member(spec, "volumes")? else { return Ok(names.collect()) };
    document.open(volumes)?;
    let there = document.children(volumes).filter_map(|volume| document.value_of(volume, "name")?.as_str());
    let there: HashSet<_> = there.collect();
    Ok(names.filter(|name| !there.contains(*name)).collect())
}

/// Sets the record's annotation, or takes away one that is there and should not be. `text` is the record as a JSON
/// string.
pub(crate) fn set_record(document: &mut Document<'_>, text: Option<String>) -> Result<(), Malformed> {
    let metadata = match document.member(Document::ROOT, "metadata")? {
        Some(metadata) if document.kind(metadata) == Kind::Object => metadata,
        // The API server never sends a pod without metadata; others may.
        found if text.is_some() => match found {
            Some(other) => {
                document.replace(other, Content::Map);
                other
            }
            None => document.add_member(Document::ROOT, Key::new("metadata"), Content::Map),
        },
        _ => return Ok(()),
    };
    let annotations = match document.member(metadata, "annotations")? {
        Some(annotations) if document.kind(annotations) == Kind::Object => annotations,
        Some(other) if text.is_some() => {
            document.replace(other, Content::Map);
            other
        }
        None if text.is_some() => document.add_member(metadata, Key::new("annotations"), Content::Map),
        _ => return Ok(()),
    };
    match (document.member(annotations, INJECTED_ANNOTATION)?, text) {
        (Some(existing), Some(text)) => {
            // The API server may have escaped it in another way.
            let same = match document.content(existing) {
                Content::Value(value) => {
                    value.raw() == text || (value.as_str().is_some() && value.as_str() == text_of(&text))
                }
                _ => false,
            };
            if !same {
                let text = document.keep(text);
                document.replace(existing, text);
            }
        }
        (Some(existing), None) => document.remove(existing, annotations),
        (None, Some(text)) => {
            let text = document.keep(text);
            document.add_member(annotations, Key::new(INJECTED_ANNOTATION), text);
        }
        (None, None) => {}
    }
    Ok(())
}
