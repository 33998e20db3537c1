//! Notes the places that the platform's profiles found as they want them.
//!
//! The profiles change nothing there, so the record does not list them. They are protected all the same. Otherwise the
//! author of a pod could write what a profile would add, and a namespaced profile could then change it.

use crate::expression::Meter;
use crate::json::{SlotId, Value};
use crate::record::ChangeKind;
use crate::schema::KeyedList;

use super::index::push_keys;
use super::state::{Element, InsertPosition, Merge, MergeError, ProfileOrigin};

impl<'a> Merge<'_, 'a> {
    /// Notes that the current place already is as the profile wants it.
    pub(super) fn confirm(&mut self) {
        self.confirmations += 1;
        self.confirm_as(ChangeKind::Set);
    }

    /// Notes an element that the profile puts first, or before another one.
    pub(super) fn note_in_front(&mut self, list: SlotId, element: Element<'a>, keyed: &'static KeyedList) {
        let Some(position) = element.position().filter(|_| matches!(self.profile_origin, ProfileOrigin::Watched(_)))
        else {
            return;
        };
        // A profile must not fail because other profiles follow it, so this uses a meter of its own.
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
            confirmed.0.push((self.pointer.as_str().into(), done));
        }
    }

    /// The number of elements at the start of a list that the platform put in front, and that the profile must leave
    /// there. The first `list_pointer` bytes of the pointer name the list.
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
