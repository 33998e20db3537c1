//! The scheduling gate of `held` namespaces: the API server puts it on every pod that is created there, and it is taken away
//! with the answer, in the same patch as what is injected.
//!
//! The gate means that nothing was decided yet. So whatever is decided takes it away, also that nothing is injected, and
//! that a profile is left out because its `onError` says so. It stays where no answer is given, and on what is refused.
//! Only this gate is touched; others keep their places and their order.

use pillion_api::names::{INJECTION_GATE, InjectionLevel};

use super::{Decided, InternalError};
use crate::decision::Outcome;
use crate::json::{Document, Kind, Malformed, SlotId, Value};
use crate::patch::{self, CheckFault};

/// Takes the gate out of a document, and the list with it if nothing else is in it.
pub(super) fn take_away(document: &mut Document<'_>, level: InjectionLevel) -> Result<(), Malformed> {
    if level != InjectionLevel::Held {
        return Ok(());
    }
    let Some(spec) = document.member(Document::ROOT, "spec")? else { return Ok(()) };
    let Some(gates) = document.member(spec, "schedulingGates")? else { return Ok(()) };
    if document.kind(gates) != Kind::Array {
        return Ok(());
    }
    document.open(gates)?;
    let all: Vec<SlotId> = document.children(gates).collect();
    let mut ours = Vec::new();
    for gate in &all {
        let is_ours = match document.member(*gate, "name")? {
            Some(name) => document.raw(name).is_some_and(is_the_gate),
            None => false,
        };
        ours.extend(is_ours.then_some(*gate));
    }
    if ours.len() == all.len() && !ours.is_empty() {
        document.remove(gates, spec);
    } else {
        for gate in ours {
            document.remove(gate, gates);
        }
    }
    Ok(())
}

/// A name as JSON text. That of the gate needs no escapes, and only a client that wants to be odd would write any.
fn is_the_gate(raw: &str) -> bool {
    serde_json::from_str::<String>(raw).is_ok_and(|name| name == INJECTION_GATE)
}

/// A decision that sends no patch, or none of its own any more, takes the gate away as well if it lets the object through.
pub(super) fn settle(object: Value<'_>, level: InjectionLevel, decided: Decided) -> Result<Decided, InternalError> {
    if level != InjectionLevel::Held || decided.patch.is_some() || decided.decision.outcome == Outcome::Denied {
        return Ok(decided);
    }
    let mut document = Document::new(object);
    let malformed = |malformed| InternalError(CheckFault::Malformed(malformed));
    take_away(&mut document, level).map_err(malformed)?;
    let Some(patch) = patch::write(&document) else { return Ok(decided) };
    let patch = patch::check(object, patch, &document)?;
    Ok(Decided { patch: Some(patch), ..decided })
}
