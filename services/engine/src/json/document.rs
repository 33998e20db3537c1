//! A JSON value under edit: a tree of slots over a tape.
//!
//! A slot is opened, so that its members or items become slots, only where something below it is read or changed.
//! Everything else stays one slot that refers to the tape. Slots know whether they existed from the start, so the
//! changes can be read off the tree (see the module `patch`). All slots live in one vector, so opening and adding do not
//! allocate per slot. To return to an earlier state, a document remembers the slots that changed after it.

use std::num::NonZeroU32;

use thiserror::Error;

use super::string::{Key, key_that_stands_twice};
use super::tape::{Kind, Value};

mod edit;

/// A slot of a document, by its number, the first of which is 1. It stays valid for as long as the document is there;
/// on a copy it means the same slot. Slots that were made later are greater.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct SlotId(NonZeroU32);

/// A text that a document keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TextId(u32);

/// What happened to a slot since the document was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    /// It was there. What is below it may have changed.
    Original,
    /// It was there, and holds another value now.
    Replaced,
    /// It was not there.
    Added,
    /// It was there and is gone; only its place is remembered.
    Removed,
}

/// What a slot holds.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Content<'a> {
    /// A value in some tape, not opened.
    Value(Value<'a>),
    /// A scalar as JSON text. The check of a patch has other values as such, too, into which nobody looks.
    Scalar(&'a str),
    /// A scalar as JSON text that was made here, and is kept by the document.
    Made(TextId),
    /// An object whose members are slots.
    Map,
    /// A list whose items are slots.
    List,
}

/// An object that cannot be edited, because what it means is not certain.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("the key {key:?} stands twice in one object")]
pub(crate) struct Malformed {
    pub(crate) key: Box<str>,
}

#[derive(Clone, Copy, Debug)]
struct Slot<'a> {
    key: Option<Key<'a>>,
    content: Content<'a>,
    state: State,
    /// Whether it is remembered as it was at the mark.
    is_remembered: bool,
    first: Option<SlotId>,
    last: Option<SlotId>,
    next: Option<SlotId>,
}

/// A slot that is looked at, for whoever needs more than one thing of it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Entry<'d, 'a> {
    pub(crate) id: SlotId,
    slot: &'d Slot<'a>,
}

/// A JSON value under edit.
#[derive(Clone, Debug)]
pub(crate) struct Document<'a> {
    slots: Vec<Slot<'a>>,
    texts: Vec<String>,
    /// What the slots that were replaced held.
    originals: Vec<(SlotId, Value<'a>)>,
    /// How often something was replaced, removed, or put into a list.
    upheavals: u32,
    /// Whether anything was ever removed that was there from the beginning.
    has_removed: bool,
    /// Whether it is known of all that will be opened that no key stands twice.
    keys_are_known: bool,
    mark: Mark,
    /// Slots that were there at the mark and have changed since, as they were.
    before: Vec<(SlotId, Slot<'a>)>,
}

/// How much of everything a document had at a moment that it may go back to.
#[derive(Clone, Copy, Debug, Default)]
struct Mark {
    slots: usize,
    texts: usize,
    originals: usize,
}

impl SlotId {
    /// The slot of a number. A document has fewer slots than a tape has nodes, and those fit.
    fn number(number: usize) -> Self {
        Self(u32::try_from(number).ok().and_then(NonZeroU32::new).unwrap_or(NonZeroU32::MAX))
    }

    const fn place(self) -> usize {
        self.0.get() as usize - 1
    }
}

impl<'a> Document<'a> {
    /// The slot of the whole value.
    pub(crate) const ROOT: SlotId = SlotId(NonZeroU32::MIN);

    /// How many slots are made room for. A pod with one sidecar opens about fifty, one with three twice as many.
    const CAPACITY: usize = 160;

    /// For how many changes since a mark room is made.
    const CHANGES: usize = 64;

    /// Above this number of members, a key that stands twice is looked for by sorting.
    const FEW: usize = 24;

    pub(crate) fn new(root: Value<'a>) -> Self {
        let mut slots = Vec::with_capacity(Self::CAPACITY);
        slots.push(Slot::new(None, Content::Value(root), State::Original));
        Self {
            slots,
            texts: Vec::new(),
            originals: Vec::new(),
            upheavals: 0,
            has_removed: false,
            keys_are_known: false,
            mark: Mark::default(),
            before: Vec::new(),
        }
    }

    /// The same value as another document is made from, of which no more will be opened than there: so the keys were
    /// looked at.
    pub(crate) fn beside(root: Value<'a>) -> Self {
        Self { keys_are_known: true, ..Self::new(root) }
    }

    /// Marks the moment as the one to go back to.
    pub(crate) fn mark(&mut self) {
        self.mark = Mark { slots: self.slots.len(), texts: self.texts.len(), originals: self.originals.len() };
        let mut before = std::mem::take(&mut self.before);
        for (id, _) in before.drain(..) {
            if let Some(slot) = self.slots.get_mut(id.place()) {
                slot.is_remembered = false;
            }
        }
        before.reserve(Self::CHANGES);
        self.before = before;
    }

    /// Goes back to what it was at the mark. Slots that were made since are no slots any more.
    pub(crate) fn go_back(&mut self) {
        let mut before = std::mem::take(&mut self.before);
        self.slots.truncate(self.mark.slots);
        self.texts.truncate(self.mark.texts);
        self.originals.truncate(self.mark.originals);
        self.upheavals += 1;
        for (id, slot) in before.drain(..) {
            if let Some(changed) = self.slots.get_mut(id.place()) {
                *changed = slot;
            }
        }
    }

    /// The slot that will be made next.
    pub(crate) fn end(&self) -> SlotId {
        SlotId::number(self.slots.len() + 1)
    }

    /// A number that changes whenever a slot gets another value or another place, and grows by one where an item is put
    /// into a list. Only a new member leaves it as it is.
    pub(crate) const fn upheavals(&self) -> u32 {
        self.upheavals
    }

    /// Keeps a scalar that was made for this document, as JSON text.
    pub(crate) fn keep(&mut self, text: impl Into<String>) -> Content<'a> {
        let id = TextId(u32::try_from(self.texts.len()).unwrap_or(u32::MAX));
        self.texts.push(text.into());
        Content::Made(id)
    }

    /// The JSON text of a slot that is not open; `None` if it is.
    pub(crate) fn raw(&self, id: SlotId) -> Option<&str> {
        match self.content(id) {
            Content::Value(value) => Some(value.raw()),
            Content::Scalar(text) => Some(text),
            Content::Made(text) => self.made(text),
            Content::Map | Content::List => None,
        }
    }

    fn made(&self, id: TextId) -> Option<&str> {
        self.texts.get(id.0 as usize).map(String::as_str)
    }

    pub(crate) fn content(&self, id: SlotId) -> Content<'a> {
        self.slot(id).map_or(Content::Scalar("null"), |slot| slot.content)
    }

    pub(crate) fn state(&self, id: SlotId) -> State {
        self.slot(id).map_or(State::Removed, |slot| slot.state)
    }

    /// Whether a slot that was replaced holds what it held from the beginning.
    pub(crate) fn is_as_it_was(&self, id: SlotId) -> bool {
        let original = self.originals.iter().find(|(slot, _)| *slot == id);
        original.is_some_and(|(_, original)| self.raw(id) == Some(original.raw()))
    }

    pub(crate) fn key(&self, id: SlotId) -> Option<Key<'a>> {
        self.slot(id).and_then(|slot| slot.key)
    }

    pub(crate) fn kind(&self, id: SlotId) -> Kind {
        match self.content(id) {
            Content::Value(value) => value.kind(),
            Content::Map => Kind::Object,
            Content::List => Kind::Array,
            Content::Scalar(text) => scalar_kind(text),
            Content::Made(text) => scalar_kind(self.made(text).unwrap_or_default()),
        }
    }

    /// The first slot directly below one that is open, removed ones included.
    pub(crate) fn first(&self, id: SlotId) -> Option<SlotId> {
        self.slot(id).and_then(|slot| slot.first)
    }

    /// The slot behind one, removed ones included.
    pub(crate) fn next(&self, id: SlotId) -> Option<SlotId> {
        self.slot(id).and_then(|slot| slot.next)
    }

    /// The slots directly below one that is open, removed ones included.
    pub(crate) fn all_children(&self, id: SlotId) -> impl Iterator<Item = SlotId> {
        std::iter::successors(self.first(id), |child| self.next(*child))
    }

    /// The slots directly below one that is open, removed ones included, to be looked at.
    pub(crate) fn entries(&self, id: SlotId) -> impl Iterator<Item = Entry<'_, 'a>> {
        let mut next = self.first(id);
        std::iter::from_fn(move || {
            let id = next?;
            let slot = self.slot(id)?;
            next = slot.next;
            Some(Entry { id, slot })
        })
    }

    /// The slots directly below one that is open, without those that are removed.
    pub(crate) fn children(&self, id: SlotId) -> impl Iterator<Item = SlotId> {
        self.entries(id).filter(|entry| !entry.is_removed()).map(|entry| entry.id)
    }

    /// The member of an object that is open, removed ones left out; also how many were looked at.
    pub(crate) fn look_for(&self, id: SlotId, key: &str) -> (usize, Option<SlotId>) {
        let (mut looks, mut next) = (0, self.first(id));
        while let Some((id, slot)) = next.and_then(|id| Some((id, self.slot(id)?))) {
            next = slot.next;
            if slot.state == State::Removed {
                continue;
            }
            looks += 1;
            if slot.key.is_some_and(|candidate| candidate.is(key)) {
                return (looks, Some(id));
            }
        }
        (looks, None)
    }

    /// Makes slots of the members or items of an object or list. Anything else, and what is open, stays as it is.
    pub(crate) fn open(&mut self, id: SlotId) -> Result<(), Malformed> {
        let Content::Value(value) = self.content(id) else { return Ok(()) };
        // What is below a value that was added is a part of that addition.
        let state = if self.state(id) == State::Original { State::Original } else { State::Added };
        match value.kind() {
            Kind::Object => {
                let start = self.slots.len();
                let members = value.members().map(|(key, value)| (Some(key), value));
                self.take_apart(id, Content::Map, members, state);
                if self.keys_are_known { Ok(()) } else { self.check_keys(start) }
            }
            Kind::Array => {
                self.take_apart(id, Content::List, value.items().map(|item| (None, item)), state);
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// Makes slots of the parts of a value, one behind the other.
    fn take_apart(
        &mut self,
        id: SlotId,
        content: Content<'a>,
        parts: impl Iterator<Item = (Option<Key<'a>>, Value<'a>)>,
        state: State,
    ) {
        let before = self.slots.len();
        for (key, value) in parts {
            let next = Some(SlotId::number(self.slots.len() + 2));
            self.slots.push(Slot { next, ..Slot::new(key, Content::Value(value), state) });
        }
        let (mut first, mut last) = (None, None);
        if let Some(slot) = self.slots.get_mut(before..).and_then(<[_]>::last_mut) {
            slot.next = None;
            first = Some(SlotId::number(before + 1));
            last = Some(SlotId::number(self.slots.len()));
        }
        if let Some(slot) = self.slot_mut(id) {
            slot.content = content;
            slot.first = first;
            slot.last = last;
        }
    }

    /// The member of an object by its key, removed ones left out. Opens the object.
    pub(crate) fn member(&mut self, id: SlotId, key: &str) -> Result<Option<SlotId>, Malformed> {
        self.open(id)?;
        Ok(self.look_for(id, key).1)
    }

    /// The value of a member as it was read, without opening anything; `None` if it is absent, open, or made here.
    pub(crate) fn value_of(&self, id: SlotId, key: &str) -> Option<Value<'a>> {
        match self.content(id) {
            Content::Value(value) => value.get(key),
            Content::Map => match self.content(self.look_for(id, key).1?) {
                Content::Value(value) => Some(value),
                Content::Scalar(_) | Content::Made(_) | Content::Map | Content::List => None,
            },
            Content::Scalar(_) | Content::Made(_) | Content::List => None,
        }
    }

    /// The JSON text of a member that is not open; `None` if it is absent or open.
    pub(crate) fn raw_of(&self, id: SlotId, key: &str) -> Option<&str> {
        match self.content(id) {
            Content::Value(value) => value.get(key).map(Value::raw),
            Content::Map => self.raw(self.look_for(id, key).1?),
            Content::Scalar(_) | Content::Made(_) | Content::List => None,
        }
    }

    /// Writes the value of a slot as it is now.
    pub(crate) fn write(&self, id: SlotId, out: &mut String) {
        match self.content(id) {
            Content::Value(value) => out.push_str(value.raw()),
            Content::Scalar(text) => out.push_str(text),
            Content::Made(text) => out.push_str(self.made(text).unwrap_or_default()),
            Content::Map => {
                self.write_children(id, out, '{', '}');
            }
            Content::List => {
                self.write_children(id, out, '[', ']');
            }
        }
    }

    fn write_children(&self, id: SlotId, out: &mut String, open: char, close: char) {
        out.push(open);
        for (index, child) in self.entries(id).filter(|child| !child.is_removed()).enumerate() {
            if index > 0 {
                out.push(',');
            }
            if let Some(key) = child.key() {
                out.push('"');
                out.push_str(key.escaped());
                out.push_str("\":");
            }
            self.write(child.id, out);
        }
        out.push(close);
    }

    /// Whether a key stands twice among the slots from `start` on, which are the members of one object.
    fn check_keys(&self, start: usize) -> Result<(), Malformed> {
        let members = self.slots.get(start..).unwrap_or_default();
        let keys = || members.iter().filter_map(|slot| slot.key);
        let twice = if members.len() <= Self::FEW {
            key_that_stands_twice(keys).map(Key::text)
        } else {
            let mut sorted: Vec<_> = keys().map(Key::text).collect();
            sorted.sort_unstable();
            let twice = sorted.windows(2).position(|pair| matches!(pair, [first, second] if first == second));
            twice.map(|place| sorted.swap_remove(place))
        };
        match twice {
            Some(key) => Err(Malformed { key: key.into() }),
            None => Ok(()),
        }
    }

    fn slot(&self, id: SlotId) -> Option<&Slot<'a>> {
        self.slots.get(id.place())
    }

    /// A slot to be changed. All changes are made by this way, so that they can be undone.
    fn slot_mut(&mut self, id: SlotId) -> Option<&mut Slot<'a>> {
        let slot = self.slots.get_mut(id.place())?;
        if id.place() < self.mark.slots && !slot.is_remembered {
            self.before.push((id, *slot));
            slot.is_remembered = true;
        }
        Some(slot)
    }
}

impl<'d, 'a> Entry<'d, 'a> {
    pub(crate) fn key(self) -> Option<Key<'a>> {
        self.slot.key
    }

    pub(crate) fn content(self) -> &'d Content<'a> {
        &self.slot.content
    }

    /// Whether only its place is remembered.
    pub(crate) fn is_removed(self) -> bool {
        self.slot.state == State::Removed
    }

    /// Whether it is as it was, with all that is below it.
    pub(crate) fn is_untouched(self) -> bool {
        self.slot.state == State::Original && matches!(self.slot.content, Content::Value(_))
    }
}

impl<'a> Slot<'a> {
    const fn new(key: Option<Key<'a>>, content: Content<'a>, state: State) -> Self {
        Self { key, content, state, is_remembered: false, first: None, last: None, next: None }
    }
}

fn scalar_kind(text: &str) -> Kind {
    match text.as_bytes().first() {
        Some(b'"') => Kind::String,
        Some(b't') => Kind::True,
        Some(b'f') => Kind::False,
        Some(b'n') | None => Kind::Null,
        Some(_) => Kind::Number,
    }
}

#[cfg(test)]
mod tests;
