//! Writes changes to the record: the pointers of additions, the originals of replaced values, and moves. Recognizes the
//! changes of an earlier pass (an earlier call of the webhook for the object), and notes the places that already had
//! the values of cluster profiles.

use std::borrow::Cow;

use crate::expression::Meter;
use crate::json::{Document, SlotId, Value};
use crate::record::{Change, ChangeKind, Move};
use crate::schema::{self, KeyedList};

use super::keys::push_keys;
use super::merge::{Element, InsertPosition, Merge, MergeError, OriginalValue, ProfileOrigin};
use super::undo::{before, part_before, value_at};

impl<'a> Merge<'_, 'a> {
    /// Whether an earlier pass of the same profile added the current value.
    pub(super) fn is_earlier_addition(&self) -> bool {
        self.earlier.added.iter().any(|pointer| *pointer == self.pointer)
    }

    /// Whether an earlier pass of the same profile replaced the current value or a value that contains it.
    pub(super) fn is_earlier_replacement(&self) -> bool {
        self.earlier.replaced.iter().any(|(pointer, _)| is_at_or_below(&self.pointer, pointer))
    }

    /// Records an addition at the current place. Additions of an earlier pass are already in the record.
    pub(super) fn note_added(&mut self) {
        self.edits += 1;
        if self.mode.within_added {
            return;
        }
        self.changes += 1;
        if !self.is_earlier_addition() {
            self.record.add(&self.pointer);
        }
    }

    /// Records the current value before it is replaced. If an earlier pass replaced it, the record already contains the
    /// original. A value that an earlier pass of the profile added has no original.
    pub(super) fn note_replaced(&mut self, present: SlotId) {
        self.note_replaced_or_removed(present, None);
    }

    /// Records an element of a keyed list before it is removed, together with the preceding element, so that undoing
    /// restores the order.
    pub(super) fn note_removed(
        &mut self,
        present: SlotId,
        previous: Option<SlotId>,
        keyed: &'static KeyedList,
    ) -> Result<(), MergeError> {
        let mut behind = String::new();
        if let Some(previous) = previous {
            let item = self.current(previous)?;
            push_keys(&mut behind, keyed, |key| item.get(key));
        }
        self.note_replaced_or_removed(present, Some(&behind));
        Ok(())
    }

    fn note_replaced_or_removed(&mut self, present: SlotId, behind: Option<&str>) {
        self.edits += 1;
        if self.mode.within_added {
            return;
        }
        self.changes += 1;
        if self.is_earlier_replacement() || self.is_in_earlier_addition() {
            return;
        }
        if let Some(original) = self.document.raw(present) {
            self.record.replace(&self.pointer, original, behind);
        } else {
            let mut original = String::new();
            self.document.write(present, &mut original);
            self.record.replace(&self.pointer, &original, behind);
        }
    }

    /// Records an existing element before it is moved within its list or to another list. The first `list_pointer`
    /// bytes of the pointer are the pointer to the list.
    pub(super) fn note_move(&mut self, list: SlotId, item: SlotId, list_pointer: usize, keyed: &'static KeyedList) {
        let pointer = self.pointer.get(..list_pointer).unwrap_or_default();
        let is_ours = self.earlier.added.iter().any(|added| is_at_or_below(pointer, added));
        if !self.mode.within_added && !is_ours && self.record.has_room_for_moves() {
            let moved = move_of(self.document, list, item, pointer, keyed, &self.earlier.added, |slot| {
                self.added_slots.binary_search(&slot).is_ok() || self.moved_containers.contains(&slot)
            });
            self.record.moves(&moved);
        }
    }

    /// Runs `work`, which changes a list. Records the whole original list instead of each change.
    pub(super) fn change_whole_list(
        &mut self,
        list: SlotId,
        work: impl FnOnce(&mut Self) -> Result<(), MergeError>,
    ) -> Result<(), MergeError> {
        let mut original = String::new();
        if !self.mode.within_added && !self.is_earlier_replacement() && !self.is_in_earlier_addition() {
            self.document.write(list, &mut original);
        }
        let (around, edits, confirmations) = (self.mode, self.edits, self.confirmations);
        self.mode.within_added = true;
        let result = work(self);
        self.mode = around;
        result?;
        if self.edits == edits && self.confirmations > confirmations {
            self.confirm();
        }
        if self.edits > edits && !self.mode.within_added {
            self.changes += 1;
            // The record of an earlier pass already contains the list.
            if !original.is_empty() {
                self.record.replace(&self.pointer, &original, None);
            }
        }
        Ok(())
    }

    /// Returns the value that the current place had before an earlier pass of the same profile.
    pub(super) fn original(&self) -> OriginalValue<'a> {
        // The originals of this profile have priority, because later profiles may have replaced the same places.
        let replaced = self.earlier.replaced.iter().map(|(pointer, original)| (pointer, *original));
        let later = self.earlier.later.iter().filter_map(|change| match change {
            Change::Replaced((pointer, original, _)) => Some((pointer, *original)),
            Change::Added(_) | Change::Moved(_) => None,
        });
        let mut all = replaced.chain(later);
        if let Some((pointer, original)) = all.find(|(pointer, _)| is_at_or_below(&self.pointer, pointer)) {
            return self.part_of(original, pointer.len());
        }
        if self.is_in_earlier_addition() {
            // If an earlier pass moved the container between `containers` and `initContainers`, the record has its
            // original under its path in the list that it came from.
            let source_pointer = self.moved_from();
            let moved = self.earlier.replaced.iter().find(|(pointer, _)| source_pointer.as_deref() == Some(&**pointer));
            if let (Some((_, original)), Some(length)) = (moved, container_length(&self.pointer)) {
                return self.part_of(*original, length);
            }
        }
        // An element that was added as a whole has no original, and neither do its parts.
        if self.is_earlier_addition()
            || self.is_later_addition()
            || (self.mode.settled && self.is_in_earlier_addition())
        {
            return OriginalValue::Nothing;
        }
        OriginalValue::Unchanged
    }

    /// Returns the current value without the changes that later profiles made below it in an earlier pass.
    pub(super) fn seen(&mut self, slot: SlotId) -> Result<Value<'a>, MergeError> {
        let earlier = self.earlier;
        let is_below = |pointer: &str| is_at_or_below(pointer, &self.pointer);
        let changes: Vec<_> = earlier.later.iter().filter(|change| is_below(change.pointer())).cloned().collect();
        if changes.is_empty() {
            return self.current(slot);
        }
        let whole = self.current(Document::ROOT)?;
        match before(whole, changes, &self.pointer, self.type_)? {
            Some(text) => self.keep(&text),
            None => self.current(slot),
        }
    }

    /// Returns the current element without the changes that this profile and later ones made below it in an earlier
    /// pass.
    pub(super) fn element_before(
        &mut self,
        slot: SlotId,
        type_: &'static schema::Type,
    ) -> Result<Value<'a>, MergeError> {
        let earlier = self.earlier;
        let all = earlier.changes.iter().chain(&earlier.later);
        let changes: Vec<_> = all.filter_map(|change| change.below(&self.pointer)).collect();
        let value = self.current(slot)?;
        if changes.is_empty() { Ok(value) } else { self.keep(&part_before(value, changes, type_)?) }
    }

    /// Returns the part of an original at the current place. The first `length` bytes of the current pointer are the
    /// pointer to the original.
    fn part_of(&self, original: Value<'a>, length: usize) -> OriginalValue<'a> {
        match value_at(original, &self.pointer, length, self.type_) {
            Some(value) => OriginalValue::Was(value),
            None => OriginalValue::Nothing,
        }
    }

    /// Whether the author of the object wrote the current value. For a value of a container, also checks the place that
    /// it would have in the other list of containers, because a profile may have moved the container.
    pub(super) fn is_author_written(&self) -> bool {
        let before = || {
            let rest = self.pointer.get(container_length(&self.pointer)?..)?;
            Some(format!("{}{rest}", self.moved_from()?))
        };
        self.managed_fields.wrote(&self.pointer) || before().is_some_and(|before| self.managed_fields.wrote(&before))
    }

    /// Returns the pointer that the current container would have in the other list of containers.
    fn moved_from(&self) -> Option<String> {
        let container = self.pointer.get(..container_length(&self.pointer)?)?;
        let [current, other] = if container.starts_with("/spec/initContainers/") {
            ["/spec/initContainers/", "/spec/containers/"]
        } else {
            ["/spec/containers/", "/spec/initContainers/"]
        };
        container.strip_prefix(current).map(|name| format!("{other}{name}"))
    }

    /// Whether a later profile added the current value, or a value that contains it, in an earlier pass.
    pub(super) fn is_later_addition(&self) -> bool {
        let mut later = self.earlier.later.iter();
        later.any(|change| matches!(change, Change::Added(pointer) if is_at_or_below(&self.pointer, pointer)))
    }

    pub(super) fn is_in_earlier_addition(&self) -> bool {
        self.earlier.added.iter().any(|pointer| is_at_or_below(&self.pointer, pointer))
    }

    /// Notes that the current place already has the profile's value.
    pub(super) fn confirm(&mut self) {
        self.confirmations += 1;
        self.confirm_as(ChangeKind::Set);
    }

    /// Protects the position of an element that a cluster profile inserts first or before another element, so that
    /// namespaced profiles insert nothing before it.
    pub(super) fn note_in_front(&mut self, list: SlotId, element: Element<'a>, keyed: &'static KeyedList) {
        let Some(position) = element.position().filter(|_| matches!(self.profile_origin, ProfileOrigin::Watched(_)))
        else {
            return;
        };
        // Use a separate meter, so that a profile does not exceed its budget only because other profiles follow it.
        let meter = std::mem::replace(&mut self.meter, Meter::of(Meter::PROFILE));
        let is_in_front = match self.insert_position(Some(position)) {
            Ok(InsertPosition::First) => true,
            Ok(InsertPosition::Before(name)) => matches!(self.index_of(list, &name, keyed), Ok(Some(_))),
            Ok(InsertPosition::Last | InsertPosition::After(_)) | Err(_) => false,
        };
        self.meter = meter;
        if is_in_front {
            self.confirm_as(ChangeKind::PutInFront);
        }
    }

    fn confirm_as(&mut self, done: ChangeKind) {
        if let ProfileOrigin::Watched(confirmed) = &mut self.profile_origin
            && !self.mode.within_added
        {
            confirmed.push((self.pointer.as_str().into(), done));
        }
    }

    /// Returns the number of elements at the start of a list before which the profile must not insert anything, because
    /// cluster profiles put them there. The first `list_pointer` bytes of the pointer are the pointer to the list.
    pub(super) fn front(
        &mut self,
        list: SlotId,
        list_pointer: usize,
        keyed: &'static KeyedList,
    ) -> Result<usize, MergeError> {
        let ProfileOrigin::Namespace(protected) = self.profile_origin else { return Ok(0) };
        let list_pointer = self.pointer.get(..list_pointer).unwrap_or_default();
        let elements = self.document.children(list).map(|element| {
            let mut pointer = list_pointer.to_owned();
            push_keys(&mut pointer, keyed, |key| -> Option<Value<'a>> { self.document.value_of(element, key) });
            pointer
        });
        let front = protected.front(elements);
        let looks = self.document.children(list).count();
        self.charge_looks(looks)?;
        Ok(front)
    }
}

/// Returns the record entry for the move of `item`: its position among the elements that remain when the profile's
/// additions are undone. `earlier` contains the pointers that an earlier pass added. `is_own` returns whether this pass
/// added an element.
pub(super) fn move_of(
    document: &Document<'_>,
    list: SlotId,
    item: SlotId,
    list_pointer: &str,
    keyed: &KeyedList,
    earlier: &[Cow<'_, str>],
    is_own: impl Fn(SlotId) -> bool,
) -> Move<'static> {
    let place_of = |slot: SlotId| {
        let mut place = list_pointer.to_owned();
        push_keys(&mut place, keyed, |key| document.value_of(slot, key));
        place
    };
    let is_ours = |slot: SlotId| is_own(slot) || (!earlier.is_empty() && earlier.contains(&place_of(slot).into()));
    let before: Vec<_> = document.children(list).take_while(|child| *child != item).collect();
    let found = before.iter().enumerate().rev().find(|(_, child)| !is_ours(**child));
    let pointer = place_of(item).into();
    let Some((place, behind)) = found else { return Move { pointer, behind: "".into(), same: 0 } };
    let behind = place_of(*behind);
    let behind = behind.get(list_pointer.len()..).unwrap_or_default().to_owned();
    let mut keys = String::new();
    let has_keys = |child: &SlotId| {
        keys.clear();
        push_keys(&mut keys, keyed, |key| document.value_of(*child, key));
        keys == behind
    };
    let same = document.children(list).skip(place + 1).filter(has_keys).count();
    Move { pointer, behind: behind.into(), same }
}

/// Whether the pointer `place` equals `other`, or is below it.
fn is_at_or_below(place: &str, other: &str) -> bool {
    place.strip_prefix(other).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// Returns the length of the part of a pointer that identifies a container. `None` if the pointer is shorter than that.
fn container_length(pointer: &str) -> Option<usize> {
    let mut slashes = pointer.match_indices('/').map(|(place, _)| place).skip(3);
    (pointer.matches('/').count() >= 3).then(|| slashes.next().unwrap_or(pointer.len()))
}
