//! What a review wants looked up before it can be decided.
//!
//! It is found as a decision is: the same candidates, the same object. What comes out is a bound of what the decision may
//! read, as conditions are not evaluated here.

use std::sync::Arc;

use pillion_api::names::SYSTEM_NAMESPACES;

use super::decide::{FoundRecord, level};
use super::envelope::{Envelope, object_of};
use super::{Endpoint, Facts};
use crate::json::{BorrowedTape, OwnedTape};
use crate::lookup::Wanted;
use crate::schema;
use crate::select;
use crate::snapshot::{Namespace, Snapshot};

/// What is wanted; nothing for what no profile is for.
pub(super) fn wanted(
    envelope: &Envelope<'_>,
    tape: &BorrowedTape<'_>,
    endpoint: Endpoint,
    snapshot: &Snapshot,
    facts: &Facts,
) -> Wanted {
    let nothing = Wanted::default();
    let Some(action) = envelope.action(endpoint.phase()) else { return nothing };
    if SYSTEM_NAMESPACES.contains(&&*envelope.namespace) {
        return nothing;
    }
    let (Some(object), Some(level)) = (object_of(tape), level(endpoint, facts)) else { return nothing };
    let namespace = facts.namespace.clone().unwrap_or_else(|| Arc::new(Namespace::opted_in(level)));
    let candidates = snapshot.candidates(&envelope.namespace, &namespace);
    if !candidates.want_look_ups() {
        return nothing;
    }
    let type_ = schema::of(&envelope.group, &envelope.resource);
    // An object that is malformed is refused when it is decided on.
    let Ok(authors) = FoundRecord::find(object, facts.record_trust).authors(object, type_) else { return nothing };
    let object = authors.as_ref().map_or(object, OwnedTape::root);
    select::wanted(&candidates, action, level, &envelope.namespace, object)
}
