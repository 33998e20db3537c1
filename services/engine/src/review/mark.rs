//! Marks pods of `required` namespaces as decided: by their record, which is empty if nothing is injected.
//!
//! A policy of the API server rejects pods of such namespaces without the mark. So every decision writes it, as it
//! removes the [gate](super::gate) of a `held` namespace. Denied pods get no mark.

use super::{Decided, InternalError};
use crate::decision::Outcome;
use crate::inject::set_record;
use crate::json::{Document, Value};
use crate::patch::{self, CheckFault};
use crate::record::RecordWriter;

/// Adds the empty record if a decision allows an object without a genuine record and without a patch.
pub(super) fn settle(object: Value<'_>, decided: Decided) -> Result<Decided, InternalError> {
    if decided.patch.is_some() || decided.decision.outcome == Outcome::Denied {
        return Ok(decided);
    }
    let mut document = Document::new(object);
    let malformed = |malformed| InternalError(CheckFault::Malformed(malformed));
    set_record(&mut document, Some(RecordWriter::empty())).map_err(malformed)?;
    let Some(patch) = patch::write(&document) else { return Ok(decided) };
    let patch = patch::check(object, patch, &document)?;
    Ok(Decided { patch: Some(patch), ..decided })
}
