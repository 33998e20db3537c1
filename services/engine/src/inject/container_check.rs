//! Checks a pod's containers, after a profile changed them, against the API server's rules about several fields together.

use crate::json::{Content, Document, OwnedTape, SlotId, State, Value};
use crate::profile::container_rules::{Completeness, FIELDS, violation};
use crate::reason::Reason;

use super::state::{Conflict, Merge, MergeError};

/// What looking at one container or field costs, in bytes of text.
const LOOK: usize = 64;

impl Merge<'_, '_> {
    /// Checks the containers that profiles added or merged into. A violation that the original pod has too is not attributed
    /// to the profile.
    ///
    /// # Errors
    /// A container violates a rule, or the profile may not use as much work.
    pub(super) fn check_containers(&mut self, original: Value<'_>) -> Result<(), MergeError> {
        let Some(spec) = self.document.member(Document::ROOT, "spec")? else { return Ok(()) };
        for list in ["containers", "initContainers"] {
            let Some(containers) = self.document.member(spec, list)? else { continue };
            let mut next = self.document.first(containers);
            while let Some(container) = next {
                next = self.document.next(container);
                if !self.is_changed(container) {
                    continue;
                }
                for (field, type_name) in FIELDS {
                    let Some(rule) = self.violation_in(container, field, type_name)? else { continue };
                    let name = self.document.raw_of(container, "name").unwrap_or_default().to_owned();
                    if !self.is_violated_before(original, &name, field, type_name, &rule)? {
                        let place = format!("/spec/{list}/{}/{field}: {rule}", name.trim_matches('"'));
                        return Err(MergeError::Conflict(Conflict::new(Reason::InvalidResult, &place)));
                    }
                }
            }
        }
        Ok(())
    }

    /// Whether a slot is there and is not as the object had it.
    fn is_changed(&self, slot: SlotId) -> bool {
        match self.document.state(slot) {
            State::Removed => false,
            State::Original => !matches!(self.document.content(slot), Content::Value(_)),
            State::Replaced | State::Added => true,
        }
    }

    /// Returns the rule that a field of a changed container violates.
    fn violation_in(&mut self, container: SlotId, field: &str, type_name: &str) -> Result<Option<String>, MergeError> {
        self.charge(LOOK)?;
        if let Content::Value(container) = self.document.content(container) {
            let value = container.get(field).filter(|value| !value.is_null());
            return Ok(value.and_then(|value| violation(type_name, value, Completeness::Complete)));
        }
        let Some(slot) = self.document.look_for(container, field).1 else { return Ok(None) };
        match self.document.content(slot) {
            Content::Value(_) if self.document.state(container) == State::Original && !self.is_changed(slot) => {
                Ok(None)
            }
            Content::Value(value) if value.is_null() => Ok(None),
            Content::Value(value) => Ok(violation(type_name, value, Completeness::Complete)),
            Content::Map => {
                let mut text = String::new();
                self.document.write(slot, &mut text);
                self.charge(2 * text.len())?;
                let tape = OwnedTape::parse(text).ok();
                Ok(tape.and_then(|tape| violation(type_name, tape.root(), Completeness::Complete)))
            }
            Content::Scalar(_) | Content::Made(_) | Content::List => Ok(None),
        }
    }

    /// Whether the container of this name in the original pod violates the same rule. A profile may have moved it to the other
    /// list.
    fn is_violated_before(
        &mut self,
        original: Value<'_>,
        name: &str,
        field: &str,
        type_name: &str,
        rule: &str,
    ) -> Result<bool, MergeError> {
        for list in ["containers", "initContainers"] {
            for container in original.at(&["spec", list]).into_iter().flat_map(Value::items) {
                self.charge(LOOK)?;
                if container.get("name").is_some_and(|own| own.raw() == name)
                    && let Some(value) = container.get(field)
                    && violation(type_name, value, Completeness::Complete).as_deref() == Some(rule)
                {
                    return Ok(true);
                }
            }
        }
        Ok(false)
    }
}
