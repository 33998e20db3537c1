//! Checks the containers that a profile changed against the API server's rules about several fields together.
//!
//! Literal values of a template are checked when the profile is compiled, and computed ones when they are computed. Left are
//! fields that are merged: of the object and the profile, or of literals and expressions.

use crate::json::{Content, Document, Malformed, OwnedTape, SlotId, State, Value};
use crate::profile::together::{FIELDS, broken_rule};

/// A rule that a container breaks.
pub(super) struct BrokenRule {
    /// Where: `/spec/containers/proxy/resources`.
    pub(super) place: String,
    pub(super) message: String,
}

/// Returns the first rule that a pod's containers break; `None` if they break none. Rules that the original object breaks too
/// are not the profile's fault.
pub(super) fn broken(document: &mut Document<'_>, original: Value<'_>) -> Result<Option<BrokenRule>, Malformed> {
    let Some(spec) = document.member(Document::ROOT, "spec")? else { return Ok(None) };
    for list in ["containers", "initContainers"] {
        let Some(containers) = document.member(spec, list)? else { continue };
        for container in document.children(containers) {
            for (field, of) in FIELDS {
                let Some(message) = broken_by(document, container, field, of) else { continue };
                let name = document.raw_of(container, "name").unwrap_or_default();
                let same = original.at(&["spec", list]).into_iter().flat_map(Value::items);
                let same = same.filter(|container| container.get("name").is_some_and(|own| own.raw() == name));
                if !same.filter_map(|container| container.get(field)).any(|own| broken_rule(of, own, true).is_some()) {
                    let place = format!("/spec/{list}/{}/{field}", name.trim_matches('"'));
                    return Ok(Some(BrokenRule { place, message }));
                }
            }
        }
    }
    Ok(None)
}

fn broken_by(document: &Document<'_>, container: SlotId, field: &str, of: &str) -> Option<String> {
    if !matches!(document.content(container), Content::Map) {
        return None;
    }
    let slot = document.look_for(container, field).1?;
    match document.content(slot) {
        Content::Map => {
            let mut text = String::new();
            document.write(slot, &mut text);
            broken_rule(of, OwnedTape::parse(text).ok()?.root(), true)
        }
        Content::Value(value)
            if document.state(container) != State::Added && document.state(slot) != State::Original =>
        {
            broken_rule(of, value, true)
        }
        Content::Value(_) | Content::Scalar(_) | Content::Made(_) | Content::List => None,
    }
}
