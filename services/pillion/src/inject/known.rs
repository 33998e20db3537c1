//! Lookups without a cluster: they find the other objects of the manifests.
//!
//! A workload's template is decided as a pod of that workload, which is therefore its owner. Objects that no manifest
//! has are missing, as in a cluster to which only the manifest was applied.

pub(crate) use pillion_engine::lookup::KnownObjects;
use pillion_engine::lookup::{LookedUp, OwnerChain, OwnerReference, Wanted, metadata_tape};
use serde_json::Value;

use super::objects::Place;

/// Answers the lookups of a review of a pod in a manifest.
pub(crate) fn answer(known: &KnownObjects, mut wanted: Wanted, document: &Value, place: &Place) -> LookedUp {
    wanted.owners = owner_of_template(document, place).or(wanted.owners);
    known.answer(wanted)
}

/// Returns the workload as the owner, if the pod is its template.
fn owner_of_template(document: &Value, place: &Place) -> Option<OwnerChain> {
    let object = place.workload(document)?;
    let reference = OwnerReference {
        api_version: object.get("apiVersion").and_then(Value::as_str).unwrap_or(&place.api_version).into(),
        kind: place.kind.as_str().into(),
        name: place.name.as_deref().unwrap_or_default().into(),
        uid: None,
    };
    Some(OwnerChain::from_owner(reference, metadata_tape(object)?))
}
