//! Finds the lookups that a review needs before it can be decided.
//!
//! It selects candidates and the object as a decision does. The result is an upper bound of what the decision may read,
//! because conditions are not evaluated here.

use std::sync::Arc;

use pillion_api::names::{INJECTED_ANNOTATION, SYSTEM_NAMESPACES};
use pillion_api::profile::Operation;

use super::envelope::{Envelope, object_of};
use super::found_record::FoundRecord;
use super::{Endpoint, Facts};
use crate::json::{BorrowedTape, OwnedTape};
use crate::lookup::Wanted;
use crate::schema;
use crate::select;
use crate::select::revisions::{self, TargetObject};
use crate::snapshot::{Namespace, Snapshot};

/// Returns the lookups; none if no profile matches.
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
    let (Some(object), Some(level)) = (object_of(tape), facts.level(endpoint)) else { return nothing };
    let namespace = facts.namespace.clone().unwrap_or_else(|| Arc::new(Namespace::opted_in(level)));
    let candidates = snapshot.candidates(&envelope.namespace, &namespace);
    let may_have_record = || {
        action.operation == Operation::Create && object.at(&["metadata", "annotations", INJECTED_ANNOTATION]).is_some()
    };
    if !candidates.want_look_ups() && !revisions::may_fetch(&candidates, object, may_have_record()) {
        return nothing;
    }
    let type_ = schema::of(&envelope.group, &envelope.resource);
    // A malformed object is denied when it is decided.
    let found = FoundRecord::find(object, facts.record_trust);
    let Ok(original) = found.original_object(object, type_) else { return nothing };
    let object = original.as_ref().map_or(object, OwnedTape::root);
    let record = found.genuine().filter(|_| action.operation == Operation::Create);
    let subject = TargetObject { namespace_name: &envelope.namespace, namespace: &namespace, object, record };
    let (candidates, revisions) = snapshot.choosing(candidates, subject);
    let mut wanted = select::wanted(&candidates, action, level, &envelope.namespace, object);
    wanted.objects.extend(revisions);
    wanted
}
