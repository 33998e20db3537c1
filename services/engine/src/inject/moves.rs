//! Containers that may stand in one list or another: `$sidecar` decides, and an author's container of that name is moved
//! along.

use crate::json::{Content, Key, SlotId};
use crate::profile::template::ConflictRule;
use crate::report::Reason;
use crate::schema::KeyedList;

use super::elements::{Element, Keys};
use super::merge::{Fault, Merge, push_token};

const INIT_CONTAINERS: &str = "initContainers";
const CONTAINERS: &str = "containers";

impl<'a> Merge<'_, 'a> {
    /// The list that an element is for: containers change theirs by `$sidecar`.
    pub(super) fn list_of(
        &mut self,
        parent: SlotId,
        list: SlotId,
        element: Element<'a>,
        list_pointer: usize,
    ) -> Result<(SlotId, usize), Fault> {
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

    pub(super) fn sidecar(&mut self, element: Element<'a>) -> Result<Option<bool>, Fault> {
        match element.rules.and_then(|rules| rules.sidecar.as_ref()) {
            Some(expression) => self.truth(expression).map(Some),
            None => Ok(None),
        }
    }

    pub(super) fn make_sidecar(&mut self, container: SlotId) -> Result<(), Fault> {
        if self.document.member(container, "restartPolicy")?.is_none() {
            let length = self.pointer.len();
            push_token(&mut self.pointer, "restartPolicy");
            self.document.add_member(container, Key::new("restartPolicy"), Content::Scalar("\"Always\""));
            self.note_added();
            self.pointer.truncate(length);
        }
        Ok(())
    }

    /// Containers of all kinds share their names. One that `$sidecar` puts elsewhere is put, all others are in the way.
    pub(super) fn find_elsewhere(
        &mut self,
        parent: SlotId,
        list: SlotId,
        keys: &Keys<'a>,
        keyed: &'static KeyedList,
        rule: ConflictRule,
        element: Element<'a>,
    ) -> Result<Option<SlotId>, Fault> {
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
                return Err(self.fault(Reason::NameTaken));
            }
            let (ours, others) =
                if *name == CONTAINERS { (INIT_CONTAINERS, CONTAINERS) } else { (CONTAINERS, INIT_CONTAINERS) };
            let current = self.current(found)?;
            let there = self.pointer.replacen(ours, others, 1);
            let here = std::mem::replace(&mut self.pointer, there);
            self.note_replaced(found);
            self.pointer = here;
            self.document.remove(found, sibling);
            let length = self.pointer.rfind('/').unwrap_or(0);
            let put = self.insert(list, element, Content::Value(current), keyed, length)?;
            self.note_added();
            return Ok(Some(put));
        }
        Ok(None)
    }
}
