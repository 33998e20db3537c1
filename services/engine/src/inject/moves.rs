//! Moves containers. `$sidecar` selects the list of a container, and an author's container with the same name moves
//! along. Within a list, `$position` selects the place.

use crate::decision::Reason;
use crate::json::{Content, Key, SlotId};
use crate::profile::template::ConflictRule;
use crate::schema::KeyedList;

use super::index::{Keys, same_key};
use super::pointer::push_token;
use super::state::{Element, INIT_CONTAINERS, InsertPosition, Merge, MergeError};

const CONTAINERS: &str = "containers";

impl<'a> Merge<'_, 'a> {
    /// The list of an element: `$sidecar` changes it for containers.
    pub(super) fn list_of(
        &mut self,
        parent: SlotId,
        list: SlotId,
        element: Element<'a>,
        list_pointer: usize,
    ) -> Result<(SlotId, usize), MergeError> {
        if self.sidecar(element)? != Some(false) {
            return Ok((list, list_pointer));
        }
        let other = match self.document.member(parent, CONTAINERS)? {
            Some(other) => other,
            None => self.document.add_member(parent, Key::new(CONTAINERS), Content::List),
        };
        self.document.open(other)?;
        let pointer = self.pointer.replacen(INIT_CONTAINERS, CONTAINERS, 1);
        let length = list_pointer + CONTAINERS.len() - INIT_CONTAINERS.len();
        self.pointer = pointer;
        Ok((other, length))
    }

    /// Whether the current place is the list of init containers. `field` is the offset of its name in the pointer.
    pub(super) fn is_at_init_containers(&self, field: usize) -> bool {
        self.pointer.get(field..) == Some(INIT_CONTAINERS)
    }

    pub(super) fn sidecar(&mut self, element: Element<'a>) -> Result<Option<bool>, MergeError> {
        match element.rules.and_then(|rules| rules.sidecar.as_ref()) {
            Some(expression) => self.truth(expression).map(Some),
            None => Ok(None),
        }
    }

    pub(super) fn make_sidecar(&mut self, container: SlotId) -> Result<(), MergeError> {
        let existing = self.document.member(container, "restartPolicy")?;
        let length = self.pointer.len();
        push_token(&mut self.pointer, "restartPolicy");
        if existing.is_none() {
            self.document.add_member(container, Key::new("restartPolicy"), Content::Scalar("\"Always\""));
            self.note_added();
        } else {
            self.confirm();
        }
        self.pointer.truncate(length);
        Ok(())
    }

    /// Moves an author's overlay to the position of the injected container. A later pass leaves it there, because
    /// others may have inserted elements beside it since. It also stays if another container has its name, which no API
    /// server accepts: the last one counts, and a move would change which one that is.
    pub(super) fn put_in_place(
        &mut self,
        list: SlotId,
        container: SlotId,
        element: Element<'a>,
        keyed: &'static KeyedList,
        list_pointer: usize,
    ) -> Result<(), MergeError> {
        let Some(position) = element.position().filter(|_| !keyed.siblings.is_empty() && !self.earlier.is_there) else {
            return Ok(());
        };
        let position = self.insert_position(Some(position))?;
        let all: Vec<_> = self.document.children(list).collect();
        self.charge_looks(all.len())?;
        let Some(own) = all.iter().position(|slot| *slot == container) else { return Ok(()) };
        let name = self.document.value_of(container, "name");
        if all.iter().any(|slot| *slot != container && same_key(self.document.value_of(*slot, "name"), name)) {
            return Ok(());
        }
        // Positions are counted without the container itself.
        let without = |index: usize| index - usize::from(index > own);
        let index = match &position {
            InsertPosition::Last => None,
            InsertPosition::First => Some(0),
            InsertPosition::Before(name) => self.index_of(list, name, keyed)?.map(without),
            InsertPosition::After(name) => self.index_of(list, name, keyed)?.map(|index| without(index + 1)),
        };
        let index = match (index, &position) {
            (Some(index), InsertPosition::First | InsertPosition::After(_)) => {
                let already = self.insert_counts.next(self.pointer.get(..list_pointer).unwrap_or_default(), &position);
                Some((index + already).min(all.len() - 1))
            }
            (index, _) => index,
        };
        let index = index.unwrap_or(all.len() - 1);
        if index != own {
            self.note_move(list, container, list_pointer, keyed);
            let before = all.iter().filter(|slot| **slot != container).nth(index).copied();
            self.document.move_item(list, container, before);
            self.edits += 1;
            self.changes += 1;
        }
        Ok(())
    }

    /// Containers of all kinds share their names. A container that `$sidecar` moves is moved; all others are conflicts.
    pub(super) fn find_elsewhere(
        &mut self,
        parent: SlotId,
        list: SlotId,
        keys: &Keys<'a>,
        keyed: &'static KeyedList,
        rule: ConflictRule,
        element: Element<'a>,
    ) -> Result<Option<SlotId>, MergeError> {
        for name in keyed.siblings {
            let Some(sibling) = self.document.member(parent, name)?.filter(|sibling| *sibling != list) else {
                continue;
            };
            self.document.open(sibling)?;
            let Some(found) = self.find(sibling, keys, keyed)? else { continue };
            let moves = element.rules.is_some_and(|rules| rules.sidecar.is_some())
                && matches!(*name, INIT_CONTAINERS | CONTAINERS)
                && matches!(rule, ConflictRule::Merge | ConflictRule::Replace);
            if !moves {
                return Err(self.conflict_at_hand(Reason::NameTaken));
            }
            let (ours, others) =
                if *name == CONTAINERS { (INIT_CONTAINERS, CONTAINERS) } else { (CONTAINERS, INIT_CONTAINERS) };
            let current = self.current(found)?;
            let there = self.pointer.replacen(ours, others, 1);
            let here = std::mem::replace(&mut self.pointer, there);
            // It is appended first, and then moved to its position.
            let list_pointer = self.pointer.rfind('/').unwrap_or(0);
            self.note_move(sibling, found, list_pointer, keyed);
            self.note_replaced(found);
            self.pointer = here;
            self.document.remove(found, sibling);
            let length = self.pointer.rfind('/').unwrap_or(0);
            let put = self.insert(list, element, Content::Value(current), keyed, length)?;
            self.put.push(put);
            self.note_added();
            return Ok(Some(put));
        }
        Ok(None)
    }
}
