//! Removes the scheduling gate of `held` namespaces. A policy of the API server adds the gate to every pod that is
//! created there, and the response removes it in the same patch that injects.
//!
//! The gate means that the pod was not decided yet. So every decision removes it, also if nothing is injected, or if a
//! profile is left out because of its `onError`. It stays if there is no response, and on denied pods. Other gates keep
//! their place and order.

use pillion_api::names::{INJECTION_GATE, InjectionLevel};

use super::{Decided, InternalError};
use crate::decision::Outcome;
use crate::json::{Document, Kind, Malformed, SlotId, Value};
use crate::patch::{self, CheckFault};

/// Removes the gate from a document, and the list of gates if it becomes empty.
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

/// Whether a JSON text is the name of the gate. The name needs no escapes, but a client may write some.
fn is_the_gate(raw: &str) -> bool {
    serde_json::from_str::<String>(raw).is_ok_and(|name| name == INJECTION_GATE)
}

/// Removes the gate also if a decision allows the object without a patch.
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
