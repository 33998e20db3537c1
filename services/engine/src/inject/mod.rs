//! Lays the templates of the selected profiles over an object, one after the other, each wholly or not at all, and keeps
//! the record of what was added.

mod authors;
mod changes;
mod elements;
mod join;
mod locate;
mod merge;
mod moves;
mod notes;
mod order;
mod record;
mod references;
mod render;
mod rules;

use pillion_api::names::INJECTED_ANNOTATION;
use pillion_api::profile::OnError;

use crate::compute::{Arena, World};
use crate::json::{Content, Document, Key, Kind, Malformed, OwnedTape, Value};
use crate::limits::{Bounds, Excess};
use crate::profile::CompiledProfile;
use crate::report::{ProfileOutcome, Reason};
use crate::select::Selected;

use authors::Authors;
use elements::Places;
pub(crate) use locate::without_record;
use merge::{Conflict, Fault, Merge, Surroundings};
pub(crate) use record::{Record, RecordWriter, is_genuine};

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
    // While the object is as it came in, there is nothing to copy to come back to it.
    let mut is_touched = false;
    for selected in profiles {
        if selected.decision.outcome != ProfileOutcome::Unchanged {
            verdicts.push(None);
            continue;
        }
        let profile = selected.profile;
        let before = is_touched.then(|| (document.clone(), places.clone()));
        if subject.earlier.is_some() {
            injected.profiles.push(profile.display_name().into());
        }
        let mark = record.begin(profile.display_name(), profile.revision(), subject.earlier);
        let changes = match lay(document, selected, subject, &mut places, &mut injected, record) {
            Ok(_) if !record.end() => Err((Conflict::new(Reason::RecordTooLarge, INJECTED_ANNOTATION), false)),
            Ok(changes @ (1.., _)) if profile.is_limited() => {
                let before = before.as_ref().map(|(document, _)| document);
                let checked = bounds.check(subject.object, before, document, record.at(mark).as_ref());
                let refused = |excess: Excess| (Conflict::new(Reason::LimitExceeded, &excess.to_string()), false);
                checked.map(|()| changes).map_err(refused)
            }
            Ok(changes) => Ok(changes),
            Err(Fault::Conflict(conflict)) => Err((conflict, false)),
            Err(Fault::Denied(conflict)) => Err((conflict, true)),
            Err(Fault::Malformed(malformed)) => return Err(malformed),
        };
        if !matches!(changes, Ok((1.., _))) {
            // What an earlier pass did is there still, at the revision of that pass.
            record.keep(mark, subject.earlier, profile.display_name());
        }
        verdicts.push(Some(match changes {
            Ok((changes, notes)) => {
                is_touched = true;
                let (outcome, reason) = match changes {
                    0 => (ProfileOutcome::Unchanged, Reason::AlreadyInjected),
                    _ => (ProfileOutcome::Applied, Reason::Injected),
                };
                Verdict { outcome, reason, detail: None, notes }
            }
            Err((Conflict { reason, place }, denies)) => {
                (*document, places) = before.unwrap_or_else(|| (Document::new(subject.object), Places::default()));
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

/// Lays one profile over the document. How much was changed, and what the author is told.
fn lay<'a>(
    document: &mut Document<'a>,
    selected: &Selected<'a>,
    subject: Subject<'a>,
    places: &mut Places,
    injected: &mut Injected,
    record: &mut RecordWriter,
) -> Result<(usize, Vec<Box<str>>), Fault> {
    let profile: &'a CompiledProfile = selected.profile;
    let Some(computation) = &selected.computation else { return Ok((0, Vec::new())) };
    let refuses_containers = profile.adds_linux_containers && is_for_windows(document)?;
    let earlier = subject.earlier.map(|record| record.of(profile.display_name(), |other| injected.knows(other)));
    let earlier = earlier.unwrap_or_default();
    let surroundings = Surroundings {
        document,
        places,
        record,
        computation,
        arena: subject.arena,
        authors: Authors::of(subject.object),
        type_: profile.object_type(),
        collects_containers: injected.is_wanted || refuses_containers,
    };
    let mut merge = Merge::new(surroundings, &earlier);
    if let Some(template) = &profile.template {
        merge.whole(template, profile.object_type())?;
    }
    // Whether a container that hangs on a condition is added is known only now.
    if refuses_containers && !merge.containers.is_empty() {
        return Err(Fault::Conflict(Conflict::new(Reason::OperatingSystem, "/spec/os/name")));
    }
    let is_cluster = profile.name().namespace.is_none();
    if !profile.rules.is_empty() {
        let own = std::mem::take(&mut merge.containers);
        let is_injected = |pointer: &str| {
            own.iter().any(|own| **own == *pointer)
                || earlier.added.iter().any(|added| *added == pointer)
                || injected.has(pointer, is_cluster)
        };
        merge.rules(&profile.rules, subject.world.object, &is_injected)?;
        merge.containers = own;
    }
    let (changes, notes, containers) = merge.finish();
    for volume in &profile.foreign_volumes {
        // A container or mount that `$when` leaves out needs none.
        if !has_volume(document, volume)? && is_mounted(document, volume)? {
            return Err(Fault::Conflict(Conflict::new(Reason::MissingVolume, volume)));
        }
    }
    if injected.is_wanted {
        injected.extend(containers, is_cluster);
        injected.extend(earlier.added.iter().map(|at| Box::from(&**at)), is_cluster);
    }
    Ok((changes, notes))
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
        self.places.extend(places.into_iter().map(|place| (place, is_cluster)));
    }

    /// Whether a profile has had its turn.
    fn knows(&self, profile: &str) -> bool {
        self.profiles.iter().any(|known| **known == *profile)
    }

    /// Whether a profile sees what stands at a place as injected. A tenant's never sees what a cluster profile added.
    fn has(&self, pointer: &str, seen_by_cluster: bool) -> bool {
        self.places.iter().any(|(place, by_cluster)| **place == *pointer && (seen_by_cluster || !by_cluster))
    }
}

fn is_for_windows(document: &mut Document<'_>) -> Result<bool, Malformed> {
    let Some(spec) = document.member(Document::ROOT, "spec")? else { return Ok(false) };
    let by_name = document.value_of(spec, "os").and_then(|os| os.get("name")).is_some_and(|name| name.is("windows"));
    let selector = document.value_of(spec, "nodeSelector");
    let by_node = selector.and_then(|selector| selector.get(OS_LABEL)).is_some_and(|name| name.is("windows"));
    Ok(by_name || by_node)
}

fn has_volume(document: &mut Document<'_>, name: &str) -> Result<bool, Malformed> {
    let Some(spec) = document.member(Document::ROOT, "spec")? else { return Ok(false) };
    let Some(volumes) = document.member(spec, "volumes")? else { return Ok(false) };
    document.open(volumes)?;
    let mut all = document.children(volumes);
    Ok(all.any(|volume| document.value_of(volume, "name").is_some_and(|value| value.is(name))))
}

/// Whether a container mounts a volume.
fn is_mounted(document: &mut Document<'_>, volume: &str) -> Result<bool, Malformed> {
    let mut text = Vec::new();
    let Some(spec) = document.member(Document::ROOT, "spec")? else { return Ok(false) };
    document.write(spec, &mut text);
    let Some(spec) = String::from_utf8(text).ok().and_then(|text| OwnedTape::parse(text).ok()) else {
        return Ok(true);
    };
    let containers = ["initContainers", "containers"].into_iter().filter_map(|list| spec.root().get(list));
    let mounts = containers.flat_map(Value::items).filter_map(|container| container.get("volumeMounts"));
    Ok(mounts.flat_map(Value::items).any(|mount| mount.get("name").is_some_and(|name| name.is(volume))))
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
            let same = matches!(document.content(existing), Content::Value(value) if value.raw() == text);
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
