//! What the record is told: what was added where, and what stood at the places that were replaced.

use crate::json::{Document, SlotId, Value};

use super::locate::{before, value_at};
use super::merge::{Fault, Merge};

/// What stood at a place before an earlier pass of the same profile.
#[derive(Clone, Copy)]
pub(super) enum Original<'a> {
    /// That pass left it alone.
    Unchanged,
    /// Nothing was there.
    Nothing,
    /// This.
    Was(Value<'a>),
}

impl<'a> Merge<'_, 'a> {
    /// Whether an earlier pass of the same profile added what stands at the place at hand.
    pub(super) fn is_ours(&self) -> bool {
        self.earlier.added.iter().any(|pointer| *pointer == self.pointer)
    }

    /// Whether an earlier pass of the same profile replaced what stands at the place at hand, or around it.
    pub(super) fn is_known(&self) -> bool {
        self.earlier.replaced.iter().any(|(pointer, _)| is_at_or_below(&self.pointer, pointer))
    }

    /// Notes that something was added at the place at hand. What an earlier pass had added stands in the record already.
    pub(super) fn note_added(&mut self) {
        self.edits += 1;
        if self.manner.within_added {
            return;
        }
        self.changes += 1;
        if !self.is_ours() {
            self.record.add(&self.pointer);
        }
    }

    /// Notes what stands at the place at hand, before it is replaced. What stood there before an earlier pass replaced it
    /// stands in the record already; what we added ourselves is no original.
    pub(super) fn note_replaced(&mut self, present: SlotId) {
        self.edits += 1;
        if self.manner.within_added {
            return;
        }
        let mut original = Vec::new();
        if !self.is_known() && !self.is_below_ours() {
            self.document.write(present, &mut original);
        }
        self.note_original(&original);
    }

    /// Notes the original of the place at hand; an empty one is known already.
    pub(super) fn note_original(&mut self, original: &[u8]) {
        self.changes += 1;
        if let Ok(original) = std::str::from_utf8(original)
            && !original.is_empty()
        {
            self.record.replace(&self.pointer, original);
        }
    }

    /// Does some work on a list whose elements have no names, so that the record can only have it as a whole.
    pub(super) fn as_one(
        &mut self,
        list: SlotId,
        work: impl FnOnce(&mut Self) -> Result<(), Fault>,
    ) -> Result<(), Fault> {
        let mut original = Vec::new();
        if !self.manner.within_added && !self.is_known() && !self.is_below_ours() {
            self.document.write(list, &mut original);
        }
        let (around, edits) = (self.manner, self.edits);
        self.manner.within_added = true;
        let result = work(self);
        self.manner = around;
        result?;
        if self.edits > edits && !self.manner.within_added {
            self.note_original(&original);
        }
        Ok(())
    }

    /// What stood at the place at hand before an earlier pass of the same profile.
    pub(super) fn original(&self) -> Original<'a> {
        // What this profile replaced, it saw before those behind it did.
        let mut replaced = self.earlier.replaced.iter().chain(&self.earlier.replaced_later);
        if let Some((pointer, original)) = replaced.find(|(pointer, _)| is_at_or_below(&self.pointer, pointer)) {
            return self.part_of(*original, pointer.len());
        }
        if self.is_below_ours() {
            // A container that was moved along was there, in the other list.
            let there = self.moved_from();
            let moved = self.earlier.replaced.iter().find(|(pointer, _)| there.as_deref() == Some(&**pointer));
            if let (Some((_, original)), Some(length)) = (moved, container_length(&self.pointer)) {
                return self.part_of(*original, length);
            }
        }
        // Where an element was added as a whole, its parts found nothing.
        if self.is_ours() || self.is_later() || (self.manner.settled && self.is_below_ours()) {
            return Original::Nothing;
        }
        Original::Unchanged
    }

    /// What stands at the place at hand, without what profiles that come behind this one did below it in an earlier pass.
    pub(super) fn seen(&mut self, slot: SlotId) -> Result<Value<'a>, Fault> {
        let earlier = self.earlier;
        let is_below = |pointer: &str| is_at_or_below(pointer, &self.pointer);
        let added: Vec<_> = earlier.added_later.iter().filter(|pointer| is_below(pointer)).cloned().collect();
        let replaced: Vec<_> =
            earlier.replaced_later.iter().filter(|(pointer, _)| is_below(pointer)).cloned().collect();
        if added.is_empty() && replaced.is_empty() {
            return self.current(slot);
        }
        let whole = self.current(Document::ROOT)?;
        match before(whole, replaced, added, &self.pointer, self.type_)? {
            Some(text) => {
                self.charge(text.len())?;
                self.keep(text)
            }
            None => self.current(slot),
        }
    }

    /// The part of an original that stood at the place at hand; the first bytes of the pointer lead to the original.
    fn part_of(&self, original: Value<'a>, length: usize) -> Original<'a> {
        match value_at(original, &self.pointer, length, self.type_) {
            Some(value) => Original::Was(value),
            None => Original::Nothing,
        }
    }

    /// Whether the author of the object wrote what stands at the place at hand, or stood there before a container was moved
    /// to the other list.
    pub(super) fn is_authors(&self) -> bool {
        let before = || {
            let rest = self.pointer.get(container_length(&self.pointer)?..)?;
            Some(format!("{}{rest}", self.moved_from()?))
        };
        self.authors.wrote(&self.pointer) || before().is_some_and(|before| self.authors.wrote(&before))
    }

    /// The place of the container at hand in the other list of containers.
    fn moved_from(&self) -> Option<String> {
        let container = self.pointer.get(..container_length(&self.pointer)?)?;
        let [ours, other] = if container.starts_with("/spec/initContainers/") {
            ["/spec/initContainers/", "/spec/containers/"]
        } else {
            ["/spec/containers/", "/spec/initContainers/"]
        };
        container.strip_prefix(ours).map(|name| format!("{other}{name}"))
    }

    /// Whether a profile that comes behind this one added what stands at the place at hand.
    pub(super) fn is_later(&self) -> bool {
        self.earlier.added_later.iter().any(|pointer| is_at_or_below(&self.pointer, pointer))
    }

    pub(super) fn is_below_ours(&self) -> bool {
        self.earlier.added.iter().any(|pointer| is_at_or_below(&self.pointer, pointer))
    }
}

/// Whether a place is another one, or is below it.
fn is_at_or_below(place: &str, other: &str) -> bool {
    place.strip_prefix(other).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// How much of a pointer leads to a container.
fn container_length(pointer: &str) -> Option<usize> {
    let mut slashes = pointer.match_indices('/').map(|(place, _)| place).skip(3);
    (pointer.matches('/').count() >= 3).then(|| slashes.next().unwrap_or(pointer.len()))
}
