//! The mark that a pod of a `required` namespace was decided about: its record, an empty one if nothing is injected.
//!
//! A policy of the API server refuses pods of such namespaces without it. So whatever is decided writes it, as it takes away
//! the [gate](super::gate) of a `held` namespace; only what is refused goes without.

use super::{Decided, InternalError};
use crate::decision::Outcome;
use crate::inject::set_record;
use crate::json::{Document, Value};
use crate::patch::{self, CheckFault};
use crate::record::RecordWriter;

/// Adds the empty record to a decision that lets an object without a genuine record through, and sends no patch.
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
