//! Lays the templates of the selected profiles over an object, one after the other, each wholly or not at all, and keeps
//! the record of what was added.

mod join;
mod locate;
mod merge;
mod record;

use pillion_api::names::INJECTED_ANNOTATION;
use pillion_api::profile::OnError;

use crate::json::{Content, Document, Key, Kind, Malformed};
use crate::limits::Bounds;
use crate::profile::CompiledProfile;
use crate::report::{ProfileDecision, ProfileOutcome, Reason};

pub(crate) use locate::without_record;
use merge::{Conflict, Fault, Merge, Places};
pub(crate) use record::{Record, RecordWriter, is_genuine};

/// The label by which a pod asks for nodes of an operating system.
const OS_LABEL: &str = "kubernetes.io/os";

/// What became of a profile.
#[derive(Clone, Debug)]
pub(crate) struct Verdict {
    pub(crate) outcome: ProfileOutcome,
    pub(crate) reason: Reason,
    pub(crate) detail: Option<Box<str>>,
}

/// Applies each profile that selection left `Unchanged`, and says of each what became of it; of the others, `None`.
pub(crate) fn apply<'a>(
    document: &mut Document<'a>,
    profiles: &'a [ProfileDecision],
    earlier: Option<&Record>,
    record: &mut RecordWriter,
    bounds: Bounds<'_>,
) -> Result<Vec<Option<Verdict>>, Malformed> {
    let mut verdicts = Vec::with_capacity(profiles.len());
    let mut places = Places::default();
    for decision in profiles {
        if decision.outcome != ProfileOutcome::Unchanged {
            verdicts.push(None);
            continue;
        }
        let profile = &decision.profile;
        let before = (document.clone(), places.clone());
        let mark = record.begin(profile.display_name(), profile.revision(), earlier);
        let changes = match lay(document, profile, earlier, &mut places, record) {
            Ok(_) if !record.end() => Err(Conflict::new(Reason::RecordTooLarge, INJECTED_ANNOTATION)),
            Ok(changes @ 1..) if profile.name().namespace.is_some() => {
                let checked = bounds.check(&before.0, document, record.at(mark).as_ref());
                checked.map(|()| changes).map_err(|excess| Conflict::new(Reason::LimitExceeded, &excess.to_string()))
            }
            Ok(changes) => Ok(changes),
            Err(Fault::Conflict(conflict)) => Err(conflict),
            Err(Fault::Malformed(malformed)) => return Err(malformed),
        };
        if !matches!(changes, Ok(1..)) {
            // What an earlier pass did is there still, at the revision of that pass.
            record.keep(mark, earlier, profile.display_name());
        }
        verdicts.push(Some(match changes {
            Ok(0) => Verdict { outcome: ProfileOutcome::Unchanged, reason: Reason::AlreadyInjected, detail: None },
            Ok(_) => Verdict { outcome: ProfileOutcome::Applied, reason: Reason::Injected, detail: None },
            Err(Conflict { reason, place }) => {
                (*document, places) = before;
                let outcome = match profile.on_error {
                    OnError::Skip => ProfileOutcome::Skipped,
                    OnError::Deny => ProfileOutcome::Denied,
                };
                Verdict { outcome, reason, detail: Some(place) }
            }
        }));
    }
    Ok(verdicts)
}

/// Lays one profile's template over the document. How much was changed.
fn lay<'a>(
    document: &mut Document<'a>,
    profile: &'a CompiledProfile,
    earlier: Option<&Record>,
    places: &mut Places,
    record: &mut RecordWriter,
) -> Result<usize, Fault> {
    if profile.adds_linux_containers && is_for_windows(document)? {
        return Err(Fault::Conflict(Conflict::new(Reason::OperatingSystem, "/spec/os/name")));
    }
    let earlier = earlier.map(|record| record.of(profile.display_name()));
    let mut merge = Merge::new(document, earlier, places, record);
    merge.pod(profile.template())?;
    let changes = merge.changes();
    for volume in &profile.foreign_volumes {
        if !has_volume(document, volume)? {
            return Err(Fault::Conflict(Conflict::new(Reason::MissingVolume, volume)));
        }
    }
    Ok(changes)
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

/// Sets the record's annotation, or takes away one that is there and should not be. `text` is the record as a JSON
/// string.
pub(crate) fn set_record<'a>(document: &mut Document<'a>, text: Option<&'a str>) -> Result<(), Malformed> {
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
                document.replace(existing, Content::Scalar(text));
            }
        }
        (Some(existing), None) => document.remove(existing, annotations),
        (None, Some(text)) => {
            document.add_member(annotations, Key::new(INJECTED_ANNOTATION), Content::Scalar(text));
        }
        (None, None) => {}
    }
    Ok(())
}
