//! A JSON value under edit: a tree of slots laid over a tape.
//!
//! A slot is opened, its members or items becoming slots of their own, only where something below it is looked for or
//! changed; all else stays one slot that holds a place in the tape. Slots know whether they were there from the
//! beginning, so what was changed can be read off the tree (see [`crate::patch`]). All slots live in one vector: opening
//! and adding cost no allocation of their own, and a document is copied, to come back to it, by copying that vector.

use std::num::NonZeroU32;

use thiserror::Error;

use super::string::Key;
use super::tape::{Kind, Value};

/// A slot of a document, by its number, the first of which is 1. It stays valid for as long as the document is there; on a
/// copy it means the same slot. Slots that were made later are greater.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
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
    /// A scalar as JSON text.
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
    first: Option<SlotId>,
    last: Option<SlotId>,
    next: Option<SlotId>,
}

/// A JSON value under edit.
#[derive(Clone, Debug)]
pub(crate) struct Document<'a> {
    slots: Vec<Slot<'a>>,
    texts: Vec<String>,
    /// What the slots that were replaced held.
    originals: Vec<(SlotId, Value<'a>)>,
}

impl SlotId {
    /// The slot of a number. A document has fewer slots than a tape has nodes, and those fit.
    fn number(number: usize) -> Self {
        Self(u32::try_from(number).ok().and_then(NonZeroU32::new).unwrap_or(NonZeroU32::MAX))
    }
}

impl<'a> Document<'a> {
    /// The slot of the whole value.
    pub(crate) const ROOT: SlotId = SlotId(NonZeroU32::MIN);

    /// How many slots are made room for. A pod with one sidecar opens about fifty, one with three twice as many.
    const CAPACITY: usize = 160;

    /// Above this number of members, a key that stands twice is looked for by sorting.
    const FEW: usize = 24;

    pub(crate) fn new(root: Value<'a>) -> Self {
        let mut slots = Vec::with_capacity(Self::CAPACITY);
        slots.push(Slot::new(None, Content::Value(root), State::Original));
        Self { slots, texts: Vec::new(), originals: Vec::new() }
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

    /// Whether it is as it was, with all that is below it.
    pub(crate) fn is_untouched(&self, id: SlotId) -> bool {
        self.slot(id).is_some_and(|slot| slot.state == State::Original && matches!(slot.content, Content::Value(_)))
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

    /// The slots directly below one that is open, without those that are removed.
    pub(crate) fn children(&self, id: SlotId) -> impl Iterator<Item = SlotId> {
        self.all_children(id).filter(|child| self.state(*child) != State::Removed)
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
                self.check_keys(start)
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
        Ok(self.children(id).find(|child| self.key(*child).is_some_and(|candidate| candidate.is(key))))
    }

    /// The value of a member as it was read, without opening anything; `None` if it is absent, open, or made here.
    pub(crate) fn value_of(&self, id: SlotId, key: &str) -> Option<Value<'a>> {
        match self.content(id) {
            Content::Value(value) => value.get(key),
            Content::Map => {
                let child = self.children(id).find(|child| self.key(*child).is_some_and(|other| other.is(key)))?;
                match self.content(child) {
                    Content::Value(value) => Some(value),
                    Content::Scalar(_) | Content::Made(_) | Content::Map | Content::List => None,
                }
            }
            Content::Scalar(_) | Content::Made(_) | Content::List => None,
        }
    }

    /// The JSON text of a member that is not open; `None` if it is absent or open.
    pub(crate) fn raw_of(&self, id: SlotId, key: &str) -> Option<&str> {
        match self.content(id) {
            Content::Value(value) => value.get(key).map(Value::raw),
            Content::Map => {
                let mut children = self.children(id);
                self.raw(children.find(|child| self.key(*child).is_some_and(|other| other.is(key)))?)
            }
            Content::Scalar(_) | Content::Made(_) | Content::List => None,
        }
    }

    /// Adds a member that is not there, behind the others. The object has to be open.
    pub(crate) fn add_member(&mut self, id: SlotId, key: Key<'a>, content: Content<'a>) -> SlotId {
        let removed = self.all_children(id).find(|child| {
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

    /// Adds an item to a list, behind the others. The list has to be open.
    pub(crate) fn push_item(&mut self, id: SlotId, content: Content<'a>) -> SlotId {
        self.append(id, None, content, State::Added)
    }

    /// Adds an item to a list before the one that is number `index`, not counting removed ones; behind all if there are
    /// not so many. The list has to be open.
    pub(crate) fn insert_item(&mut self, id: SlotId, index: usize, content: Content<'a>) -> SlotId {
        let before = self.children(id).nth(index);
        let Some(before) = before else { return self.push_item(id, content) };
        let previous = self.all_children(id).find(|child| self.next(*child) == Some(before));
        let added = self.make(None, content, State::Added);
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

    /// Moves an item of a list before another one; behind all if there is none. One that was there from the beginning is
    /// removed at its place and added at the other. Gives the slot that it is in then.
    pub(crate) fn move_item(&mut self, list: SlotId, item: SlotId, before: Option<SlotId>) -> SlotId {
        if before == Some(item) {
            return item;
        }
        let Some(Slot { content, first, last, .. }) = self.slot(item).copied() else { return item };
        self.remove(item, list);
        let place = before.and_then(|before| self.children(list).position(|child| child == before));
        let moved = match place {
            Some(place) => self.insert_item(list, place, content),
            None => self.push_item(list, content),
        };
        if let Some(slot) = self.slot_mut(moved) {
            slot.first = first;
            slot.last = last;
        }
        moved
    }

    /// Gives a slot another value.
    pub(crate) fn replace(&mut self, id: SlotId, content: Content<'a>) {
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

    /// Gives a slot back what it held from the beginning.
    pub(crate) fn restore(&mut self, id: SlotId, original: Content<'a>) {
        self.replace(id, original);
        if let Some(slot) = self.slot_mut(id) {
            slot.state = State::Original;
        }
    }

    /// Takes a slot away. One that was added is as if it had never been there.
    pub(crate) fn remove(&mut self, id: SlotId, parent: SlotId) {
        if self.state(id) == State::Added {
            self.unlink(id, parent);
        } else if let Some(slot) = self.slot_mut(id) {
            slot.state = State::Removed;
        }
    }

    /// Writes the value of a slot as it is now.
    pub(crate) fn write(&self, id: SlotId, out: &mut Vec<u8>) {
        match self.content(id) {
            Content::Value(value) => out.extend_from_slice(value.raw().as_bytes()),
            Content::Scalar(text) => out.extend_from_slice(text.as_bytes()),
            Content::Made(text) => out.extend_from_slice(self.made(text).unwrap_or_default().as_bytes()),
            Content::Map => {
                self.write_children(id, out, b'{', b'}');
            }
            Content::List => {
                self.write_children(id, out, b'[', b']');
            }
        }
    }

    fn write_children(&self, id: SlotId, out: &mut Vec<u8>, open: u8, close: u8) {
        out.push(open);
        for (index, child) in self.children(id).enumerate() {
            if index > 0 {
                out.push(b',');
            }
            if let Some(key) = self.key(child) {
                out.push(b'"');
                out.extend_from_slice(key.escaped().as_bytes());
                out.extend_from_slice(b"\":");
            }
            self.write(child, out);
        }
        out.push(close);
    }

    fn append(&mut self, parent: SlotId, key: Option<Key<'a>>, content: Content<'a>, state: State) -> SlotId {
        let added = self.make(key, content, state);
        let last = self.slot(parent).and_then(|slot| slot.last);
        match last {
            Some(last) => self.link(last, added),
            None => {
                if let Some(slot) = self.slot_mut(parent) {
                    slot.first = Some(added);
                }
            }
        }
        if let Some(slot) = self.slot_mut(parent) {
            slot.last = Some(added);
        }
        added
    }

    fn make(&mut self, key: Option<Key<'a>>, content: Content<'a>, state: State) -> SlotId {
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

    /// Whether a key stands twice among the slots from `start` on, which are the members of one object.
    fn check_keys(&self, start: usize) -> Result<(), Malformed> {
        let members = self.slots.get(start..).unwrap_or_default();
        let keys = || members.iter().filter_map(|slot| slot.key);
        let twice = if members.len() <= Self::FEW {
            keys()
                .enumerate()
                .find(|(index, key)| keys().take(*index).any(|earlier| earlier.escaped() == key.escaped()))
        } else {
            let mut sorted: Vec<_> = keys().enumerate().collect();
            sorted.sort_unstable_by_key(|(_, key)| key.escaped());
            sorted.windows(2).find_map(|pair| match pair {
                [first, second] if first.1.escaped() == second.1.escaped() => Some(*second),
                _ => None,
            })
        };
        match twice {
            Some((_, key)) => Err(Malformed { key: key.text().into() }),
            None => Ok(()),
        }
    }

    fn slot(&self, id: SlotId) -> Option<&Slot<'a>> {
        self.slots.get(id.0.get() as usize - 1)
    }

    fn slot_mut(&mut self, id: SlotId) -> Option<&mut Slot<'a>> {
        self.slots.get_mut(id.0.get() as usize - 1)
    }
}

impl<'a> Slot<'a> {
    const fn new(key: Option<Key<'a>>, content: Content<'a>, state: State) -> Self {
        Self { key, content, state, first: None, last: None, next: None }
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
mod tests {
    use super::super::OwnedTape;
    use super::*;

    fn written(document: &Document<'_>) -> String {
        let mut out = Vec::new();
        document.write(Document::ROOT, &mut out);
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn what_nobody_touched_is_written_as_it_stood() {
        let text = r#"{ "a" : [1 , 2], "b":{"c":1.10} }"#;
        let tape = OwnedTape::parse(text).unwrap();
        let mut document = Document::new(tape.root());
        assert_eq!(written(&document), text);
        let root = Document::ROOT;
        document.open(root).unwrap();
        assert_eq!(written(&document), r#"{"a":[1 , 2],"b":{"c":1.10}}"#);
    }

    #[test]
    fn members_and_items_are_added_replaced_and_removed() {
        let tape = OwnedTape::parse(r#"{"list":[1,2,3],"x":true,"y":false}"#).unwrap();
        let mut document = Document::new(tape.root());
        let root = Document::ROOT;
        let list = document.member(root, "list").unwrap().unwrap();
        document.open(list).unwrap();
        let second = document.children(list).nth(1).unwrap();
        document.remove(second, list);
        document.insert_item(list, 0, Content::Scalar("0"));
        document.insert_item(list, 2, Content::Scalar("9"));
        document.push_item(list, Content::Scalar("4"));
        let x = document.member(root, "x").unwrap().unwrap();
        document.replace(x, Content::Scalar("\"new\""));
        let y = document.member(root, "y").unwrap().unwrap();
        document.remove(y, root);
        document.add_member(root, Key::new("z"), Content::Map);
        assert_eq!(written(&document), r#"{"list":[0,1,9,3,4],"x":"new","z":{}}"#);
    }

    #[test]
    fn an_addition_that_is_taken_back_leaves_no_trace() {
        let tape = OwnedTape::parse("[1]").unwrap();
        let mut document = Document::new(tape.root());
        let root = Document::ROOT;
        document.open(root).unwrap();
        let last = document.push_item(root, Content::Scalar("2"));
        document.remove(last, root);
        let first = document.insert_item(root, 0, Content::Scalar("0"));
        document.remove(first, root);
        document.push_item(root, Content::Scalar("3"));
        assert_eq!(written(&document), "[1,3]");
    }

    #[test]
    fn a_key_that_stands_twice_is_found() {
        for padding in [0, 40] {
            let members: Vec<_> = (0..padding).map(|i| format!("\"k{i}\":0,")).collect();
            let text = format!(r#"{{{}"same":1,"same":2}}"#, members.concat());
            let tape = OwnedTape::parse(text).unwrap();
            let mut document = Document::new(tape.root());
            let root = Document::ROOT;
            assert_eq!(document.open(root), Err(Malformed { key: "same".into() }));
        }
    }

    #[test]
    fn a_removed_member_that_comes_back_is_a_replacement() {
        let tape = OwnedTape::parse(r#"{"a":1}"#).unwrap();
        let mut document = Document::new(tape.root());
        let root = Document::ROOT;
        let a = document.member(root, "a").unwrap().unwrap();
        document.remove(a, root);
        assert_eq!(document.member(root, "a").unwrap(), None);
        let again = document.add_member(root, Key::new("a"), Content::Scalar("2"));
        assert_eq!(again, a);
        assert_eq!(document.state(a), State::Replaced);
    }
}
