//! Lays the templates of the selected profiles over an object, one after the other, each wholly or not at all, and keeps
//! the record of what was added.

mod join;
mod merge;
mod record;

use pillion_api::names::INJECTED_ANNOTATION;
use pillion_api::profile::OnError;

use crate::json::{Content, Document, Key, Kind, Malformed};
use crate::report::{ProfileDecision, ProfileOutcome, Reason};

use merge::{Conflict, Fault, Merge, Places};
pub(crate) use record::{Record, RecordWriter, is_genuine};

/// What became of a profile.
#[derive(Clone, Debug)]
pub(crate) struct Verdict {
    pub(crate) outcome: ProfileOutcome,
    pub(crate) reason: Reason,
    pub(crate) detail: Option<Box<str>>,
}

impl Verdict {
    /// Whether what the profile says is in the object now.
    pub(crate) const fn is_in_force(&self) -> bool {
        matches!(self.outcome, ProfileOutcome::Applied | ProfileOutcome::Unchanged)
    }
}

/// Applies each profile that selection left `Unchanged`, and says of each what became of it; of the others, `None`.
pub(crate) fn apply<'a>(
    document: &mut Document<'a>,
    profiles: &'a [ProfileDecision],
    earlier: Option<&Record>,
    record: &mut RecordWriter,
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
        let written = record.begin(profile.display_name(), profile.revision(), earlier);
        let placed = &mut places;
        let mut merge = Merge::new(document, earlier.map(|record| record.of(profile.display_name())), placed, record);
        let result = merge.pod(profile.template());
        let changes = merge.changes();
        let conflict = match result {
            Ok(()) if record.end() => None,
            Ok(()) => Some(Conflict { reason: Reason::RecordTooLarge, place: "pillion.dev/injected".into() }),
            Err(Fault::Conflict(conflict)) => Some(conflict),
            Err(Fault::Malformed(malformed)) => return Err(malformed),
        };
        verdicts.push(Some(match conflict {
            Some(conflict) => {
                (*document, places) = before;
                record.take_back(written);
                let outcome = match profile.on_error {
                    OnError::Skip => ProfileOutcome::Skipped,
                    OnError::Deny => ProfileOutcome::Denied,
                };
                Verdict { outcome, reason: conflict.reason, detail: Some(conflict.place) }
            }
            None if changes == 0 => {
                Verdict { outcome: ProfileOutcome::Unchanged, reason: Reason::AlreadyInjected, detail: None }
            }
            None => Verdict { outcome: ProfileOutcome::Applied, reason: Reason::Injected, detail: None },
        }));
    }
    Ok(verdicts)
}

/// Sets the record's annotation, or takes away one that is there and should not be. `text` is the record as a JSON
/// string.
pub(crate) fn set_record<'a>(document: &mut Document<'a>, text: Option<&'a str>) -> Result<(), Malformed> {
    let root = Document::ROOT;
    let Some(metadata) = document.member(root, "metadata")? else { return Ok(()) };
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
