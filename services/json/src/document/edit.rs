//! Edits documents: adds, replaces, moves and removes members and items.

use super::{Content, Document, Key, Slot, SlotId, State};

impl<'a> Document<'a> {
    /// Adds a member to an open object that does not contain the key. Uses the slot of a removed member with this key
    /// if there is one, and otherwise appends the member. Returns the slot of the member.
    pub fn add_member(&mut self, id: SlotId, key: Key<'a>, content: Content<'a>) -> SlotId {
        let all = self.has_removed.then(|| self.all_children(id));
        let removed = all.into_iter().flatten().find(|child| {
            self.state(*child) == State::Removed && self.key(*child).is_some_and(|candidate| candidate.is(&key.text()))
        });
        match removed {
            Some(child) => {
                self.replace(child, content);
                child
            }
            None => self.append(id, Some(key), content, State::Added),
        }
    }

    /// Adds an item at the end of an open list. Returns its slot.
    pub fn push_item(&mut self, id: SlotId, content: Content<'a>) -> SlotId {
        self.change_count += 1;
        self.append(id, None, content, State::Added)
    }

    /// Inserts an item into an open list, and returns its slot. The index does not count removed items. If the list is
    /// shorter, appends the item.
    pub fn insert_item(&mut self, id: SlotId, index: usize, content: Content<'a>) -> SlotId {
        let before = self.children(id).nth(index);
        self.change_count += u32::from(before.is_some());
        let Some(before) = before else { return self.push_item(id, content) };
        let previous = self.all_children(id).find(|child| self.next(*child) == Some(before));
        let added = self.new_slot(None, content, State::Added);
        if let Some(slot) = self.slot_mut(added) {
            slot.next = Some(before);
        }
        match previous {
            Some(previous) => self.link(previous, added),
            None => {
                if let Some(slot) = self.slot_mut(id) {
                    slot.first = Some(added);
                }
            }
        }
        added
    }

    /// Moves an item of a list before the item `before`, or to the end if that is `None`. Removes the item, adds it
    /// again, and returns its new slot. Does nothing if `before` is the item itself.
    pub fn move_item(&mut self, list: SlotId, item: SlotId, before: Option<SlotId>) -> SlotId {
        if before == Some(item) {
            return item;
        }
        let Some(Slot { content, first, last, .. }) = self.slot(item).copied() else { return item };
        self.remove(item, list);
        let index = before.and_then(|before| self.children(list).position(|child| child == before));
        let moved = match index {
            Some(index) => self.insert_item(list, index, content),
            None => self.push_item(list, content),
        };
        if let Some(slot) = self.slot_mut(moved) {
            slot.first = first;
            slot.last = last;
        }
        moved
    }

    /// Replaces the content of a slot.
    pub fn replace(&mut self, id: SlotId, content: Content<'a>) {
        self.change_count += 1;
        if let (State::Original, Content::Value(original)) = (self.state(id), self.content(id)) {
            self.originals.push((id, original));
        }
        if let Some(slot) = self.slot_mut(id) {
            slot.content = content;
            slot.first = None;
            slot.last = None;
            slot.state = if slot.state == State::Added { State::Added } else { State::Replaced };
        }
    }

    /// Restores the initial content of a slot, `original`. The slot is then unchanged again.
    pub fn restore(&mut self, id: SlotId, original: Content<'a>) {
        self.replace(id, original);
        if let Some(slot) = self.slot_mut(id) {
            slot.state = State::Original;
        }
    }

    /// Removes a slot. An added slot is unlinked, so that it does not appear in the patch.
    pub fn remove(&mut self, id: SlotId, parent: SlotId) {
        self.change_count += 1;
        if self.state(id) == State::Added {
            self.unlink(id, parent);
        } else if let Some(slot) = self.slot_mut(id) {
            slot.state = State::Removed;
            self.has_removed = true;
        }
    }

    fn append(&mut self, parent: SlotId, key: Option<Key<'a>>, content: Content<'a>, state: State) -> SlotId {
        let added = self.new_slot(key, content, state);
        let Some(slot) = self.slot_mut(parent) else { return added };
        match slot.last.replace(added) {
            Some(last) => self.link(last, added),
            None => slot.first = Some(added),
        }
        added
    }

    fn new_slot(&mut self, key: Option<Key<'a>>, content: Content<'a>, state: State) -> SlotId {
        self.slots.push(Slot::new(key, content, state));
        SlotId::number(self.slots.len())
    }

    fn link(&mut self, id: SlotId, next: SlotId) {
        if let Some(slot) = self.slot_mut(id) {
            slot.next = Some(next);
        }
    }

    fn unlink(&mut self, id: SlotId, parent: SlotId) {
        let after = self.next(id);
        let previous = self.all_children(parent).find(|child| self.next(*child) == Some(id));
        if let Some(previous) = previous.and_then(|previous| self.slot_mut(previous)) {
            previous.next = after;
        }
        if let Some(slot) = self.slot_mut(parent) {
            if slot.first == Some(id) {
                slot.first = after;
            }
            if slot.last == Some(id) {
                slot.last = previous;
            }
        }
    }
}
