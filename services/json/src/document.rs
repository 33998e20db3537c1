//! An editable JSON value: a tree of slots over a tape.
//!
//! A slot is opened only if something below it is read or changed. Its members or items then become slots. Everything
//! else remains one slot that refers to the tape. Slots record whether they existed initially, so that the module
//! `patch` can derive the changes from the tree. All slots are in one vector, so opening and adding slots rarely
//! allocates memory. A document can return to an earlier state, the mark: it saves each slot before the first change
//! after the mark.

use std::num::NonZeroU32;

use thiserror::Error;

use super::string::{Key, first_duplicate_key};
use super::tape::{Kind, Value};

mod edit;

/// The number of a slot in a document, starting with 1. It refers to the same slot in copies of the document, and
/// remains valid unless [`Document::go_back`] removes the slot. Newer slots have greater numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SlotId(NonZeroU32);

/// The number of a string that a document owns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TextId(u32);

/// How a slot has changed since the document was created.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// The slot existed initially and was not replaced. Slots below it may have changed.
    Original,
    /// The slot existed initially, and its value was replaced.
    Replaced,
    /// The slot did not exist initially.
    Added,
    /// The slot existed initially, and has been removed. Only its position is kept.
    Removed,
}

/// The content of a slot.
#[derive(Clone, Copy, Debug)]
pub enum Content<'a> {
    /// An unopened value in a tape.
    Value(Value<'a>),
    /// A scalar as JSON text. When a patch is checked, it may also be an object or list, which is never opened.
    Scalar(&'a str),
    /// The JSON text of a new scalar, owned by the document.
    Made(TextId),
    /// An object whose members are slots.
    Map,
    /// A list whose items are slots.
    List,
}

/// The error for an object that cannot be edited, because a duplicate key makes it ambiguous.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("the key {key:?} occurs twice in one object")]
pub struct Malformed {
    /// The duplicate key.
    pub key: Box<str>,
}

#[derive(Clone, Copy, Debug)]
struct Slot<'a> {
    key: Option<Key<'a>>,
    content: Content<'a>,
    state: State,
    /// Whether [`Document::before`] contains the state of this slot at the mark.
    is_saved: bool,
    first: Option<SlotId>,
    last: Option<SlotId>,
    next: Option<SlotId>,
}

/// A slot with its number. Several fields of the slot can be read with a single lookup.
#[derive(Clone, Copy, Debug)]
pub struct Entry<'d, 'a> {
    /// The number of the slot.
    pub id: SlotId,
    slot: &'d Slot<'a>,
}

/// An editable JSON value.
#[derive(Clone, Debug)]
pub struct Document<'a> {
    slots: Vec<Slot<'a>>,
    texts: Vec<String>,
    /// The initial values of replaced slots.
    originals: Vec<(SlotId, Value<'a>)>,
    /// The number of replacements, removals, insertions into lists, and returns to the mark.
    change_count: u32,
    /// Whether any initially existing slot was ever removed.
    has_removed: bool,
    /// The slots that were removed when [`Document::disregard_removed`] was called, in ascending order.
    disregarded: Vec<SlotId>,
    /// Whether duplicate keys are not checked, because another document checks them.
    skips_key_check: bool,
    mark: Mark,
    /// For each slot that existed at the mark and has changed since, its state at the mark.
    before: Vec<(SlotId, Slot<'a>)>,
}

/// The lengths of a document's vectors at the mark.
#[derive(Clone, Copy, Debug, Default)]
struct Mark {
    slots: usize,
    texts: usize,
    originals: usize,
}

impl SlotId {
    /// Creates the ID for the slot with this number. The number fits into 32 bits, because documents have far fewer
    /// slots.
    #[inline]
    fn number(number: usize) -> Self {
        Self(u32::try_from(number).ok().and_then(NonZeroU32::new).unwrap_or(NonZeroU32::MAX))
    }

    #[inline]
    const fn place(self) -> usize {
        self.0.get() as usize - 1
    }
}

impl<'a> Document<'a> {
    /// The slot of the whole value.
    pub const ROOT: SlotId = SlotId(NonZeroU32::MIN);

    /// The initial capacity, in slots. A pod that gets one sidecar opens about 50 slots, and a pod that gets three
    /// about 100.
    const CAPACITY: usize = 160;

    /// The initial capacity for saved slots.
    const CHANGES: usize = 64;

    /// If an object has more members than this, duplicate keys are found by sorting.
    const FEW: usize = 24;

    /// Creates a document without edits.
    #[must_use]
    pub fn new(root: Value<'a>) -> Self {
        let mut slots = Vec::with_capacity(Self::CAPACITY);
        slots.push(Slot::new(None, Content::Value(root), State::Original));
        Self {
            slots,
            texts: Vec::new(),
            originals: Vec::new(),
            change_count: 0,
            has_removed: false,
            disregarded: Vec::new(),
            skips_key_check: false,
            mark: Mark::default(),
            before: Vec::new(),
        }
    }

    /// Creates a document without a check for duplicate keys, for comparison with another document. The other document
    /// has the same initial value, opens at least the same slots, and checks their keys.
    pub(crate) fn for_comparison(root: Value<'a>) -> Self {
        Self { skips_key_check: true, ..Self::new(root) }
    }

    /// Sets the mark to the current state. [`Self::go_back`] returns to it.
    pub fn mark(&mut self) {
        self.mark = Mark { slots: self.slots.len(), texts: self.texts.len(), originals: self.originals.len() };
        for (id, _) in self.before.drain(..) {
            if let Some(slot) = self.slots.get_mut(id.place()) {
                slot.is_saved = false;
            }
        }
        self.before.reserve(Self::CHANGES);
    }

    /// Returns to the state at the mark. Slots that were created after the mark become invalid.
    pub fn go_back(&mut self) {
        self.slots.truncate(self.mark.slots);
        self.texts.truncate(self.mark.texts);
        self.originals.truncate(self.mark.originals);
        self.change_count += 1;
        for (id, slot) in self.before.drain(..) {
            if let Some(changed) = self.slots.get_mut(id.place()) {
                *changed = slot;
            }
        }
    }

    /// Disregards the slots that are removed now: `patch::length` is computed as if they had never existed.
    pub fn disregard_removed(&mut self) {
        let removed = self.slots.iter().enumerate().filter(|(_, slot)| slot.state == State::Removed);
        self.disregarded = removed.map(|(place, _)| SlotId::number(place + 1)).collect();
    }

    /// Whether the slot was removed when [`Self::disregard_removed`] was called. It may exist again.
    pub(crate) fn is_disregarded(&self, id: SlotId) -> bool {
        self.disregarded.binary_search(&id).is_ok()
    }

    /// Returns the number of the next new slot.
    #[inline]
    #[must_use]
    pub fn end(&self) -> SlotId {
        SlotId::number(self.slots.len() + 1)
    }

    /// Returns a counter of changes to values and positions. Inserting an item into a list increments it by one. Adding
    /// a member to an object does not increment it, unless a removed member had the same key.
    #[inline]
    #[must_use]
    pub const fn change_count(&self) -> u32 {
        self.change_count
    }

    /// Stores the JSON text of a new scalar, and returns the content for its slot.
    pub fn keep(&mut self, text: impl Into<String>) -> Content<'a> {
        let id = TextId(u32::try_from(self.texts.len()).unwrap_or(u32::MAX));
        self.texts.push(text.into());
        Content::Made(id)
    }

    /// Returns the JSON text of an unopened slot. `None` if the slot is open.
    #[inline]
    #[must_use]
    pub fn raw(&self, id: SlotId) -> Option<&str> {
        match self.content(id) {
            Content::Value(value) => Some(value.raw()),
            Content::Scalar(text) => Some(text),
            Content::Made(text) => self.made(text),
            Content::Map | Content::List => None,
        }
    }

    #[inline]
    fn made(&self, id: TextId) -> Option<&str> {
        self.texts.get(id.0 as usize).map(String::as_str)
    }

    /// Returns the content of a slot.
    #[inline]
    #[must_use]
    pub fn content(&self, id: SlotId) -> Content<'a> {
        self.slot(id).map_or(Content::Scalar("null"), |slot| slot.content)
    }

    /// Returns how a slot has changed since the document was created.
    #[inline]
    #[must_use]
    pub fn state(&self, id: SlotId) -> State {
        self.slot(id).map_or(State::Removed, |slot| slot.state)
    }

    /// Whether a replaced slot has its initial value again.
    pub(crate) fn has_initial_value(&self, id: SlotId) -> bool {
        let original = self.originals.iter().find(|(slot, _)| *slot == id);
        original.is_some_and(|(_, original)| self.raw(id) == Some(original.raw()))
    }

    /// Returns the key of a member. `None` for items and the root.
    #[inline]
    #[must_use]
    pub fn key(&self, id: SlotId) -> Option<Key<'a>> {
        self.slot(id).and_then(|slot| slot.key)
    }

    /// Returns the kind of the current value.
    #[inline]
    #[must_use]
    pub fn kind(&self, id: SlotId) -> Kind {
        match self.content(id) {
            Content::Value(value) => value.kind(),
            Content::Map => Kind::Object,
            Content::List => Kind::Array,
            Content::Scalar(text) => scalar_kind(text),
            Content::Made(text) => scalar_kind(self.made(text).unwrap_or_default()),
        }
    }

    /// Returns the first child of an open slot, which may be one that was removed.
    #[inline]
    #[must_use]
    pub fn first(&self, id: SlotId) -> Option<SlotId> {
        self.slot(id).and_then(|slot| slot.first)
    }

    /// Returns the next sibling, which may be one that was removed.
    #[inline]
    #[must_use]
    pub fn next(&self, id: SlotId) -> Option<SlotId> {
        self.slot(id).and_then(|slot| slot.next)
    }

    /// Returns the numbers of the children of an open slot, including removed ones.
    #[inline]
    pub(crate) fn all_children(&self, id: SlotId) -> impl Iterator<Item = SlotId> {
        std::iter::successors(self.first(id), |child| self.next(*child))
    }

    /// Returns the children of an open slot as [`Entry`] values, including removed ones.
    #[inline]
    pub fn entries(&self, id: SlotId) -> impl Iterator<Item = Entry<'_, 'a>> {
        let mut next = self.first(id);
        std::iter::from_fn(move || {
            let id = next?;
            let slot = self.slot(id)?;
            next = slot.next;
            Some(Entry { id, slot })
        })
    }

    /// Returns the children of an open slot, without removed ones.
    #[inline]
    pub fn children(&self, id: SlotId) -> impl Iterator<Item = SlotId> {
        self.entries(id).filter(|entry| !entry.is_removed()).map(|entry| entry.id)
    }

    /// Returns the member of an open object with this key, and the number of members that were compared. Ignores
    /// removed members.
    #[inline]
    #[must_use]
    pub fn look_for(&self, id: SlotId, key: &str) -> (usize, Option<SlotId>) {
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

    /// Opens an object or list: converts its members or items to slots. Does nothing for scalars and open slots.
    pub fn open(&mut self, id: SlotId) -> Result<(), Malformed> {
        let Content::Value(value) = self.content(id) else { return Ok(()) };
        // The parts of a new value are also new.
        let state = if self.state(id) == State::Original { State::Original } else { State::Added };
        match value.kind() {
            Kind::Object => {
                let start = self.slots.len();
                let members = value.members().map(|(key, value)| (Some(key), value));
                self.open_parts(id, Content::Map, members, state);
                if self.skips_key_check { Ok(()) } else { self.check_keys(start) }
            }
            Kind::Array => {
                self.open_parts(id, Content::List, value.items().map(|item| (None, item)), state);
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// Converts the members or items of a value to linked slots, and makes them the children of the slot `id`.
    fn open_parts(
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

    /// Opens an object, and returns its member with this key. `None` if the member is absent or removed.
    #[inline]
    pub fn member(&mut self, id: SlotId, key: &str) -> Result<Option<SlotId>, Malformed> {
        self.open(id)?;
        Ok(self.look_for(id, key).1)
    }

    /// Returns the value of a member that is in a tape, without opening slots. `None` if the member is absent, open, or
    /// a scalar that is not in a tape.
    #[inline]
    #[must_use]
    pub fn value_of(&self, id: SlotId, key: &str) -> Option<Value<'a>> {
        match self.content(id) {
            Content::Value(value) => value.get(key),
            Content::Map => match self.content(self.look_for(id, key).1?) {
                Content::Value(value) => Some(value),
                Content::Scalar(_) | Content::Made(_) | Content::Map | Content::List => None,
            },
            Content::Scalar(_) | Content::Made(_) | Content::List => None,
        }
    }

    /// Returns the JSON text of an unopened member. `None` if the member is absent or open.
    #[inline]
    pub fn raw_of(&self, id: SlotId, key: &str) -> Option<&str> {
        match self.content(id) {
            Content::Value(value) => value.get(key).map(Value::raw),
            Content::Map => self.raw(self.look_for(id, key).1?),
            Content::Scalar(_) | Content::Made(_) | Content::List => None,
        }
    }

    /// Appends the current value of a slot as JSON to `out`.
    pub fn write(&self, id: SlotId, out: &mut String) {
        match self.content(id) {
            Content::Value(value) => out.push_str(value.raw()),
            Content::Scalar(text) => out.push_str(text),
            Content::Made(text) => out.push_str(self.made(text).unwrap_or_default()),
            Content::Map => self.write_children(id, out, '{', '}'),
            Content::List => self.write_children(id, out, '[', ']'),
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

    /// Checks that the slots from `start` on, which are the members of one object, have no duplicate keys.
    fn check_keys(&self, start: usize) -> Result<(), Malformed> {
        let members = self.slots.get(start..).unwrap_or_default();
        let keys = || members.iter().filter_map(|slot| slot.key);
        let twice = if members.len() <= Self::FEW {
            first_duplicate_key(keys).map(Key::text)
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

    #[inline]
    fn slot(&self, id: SlotId) -> Option<&Slot<'a>> {
        self.slots.get(id.place())
    }

    /// Returns a slot for changing it. Every change to a slot that existed at the mark must use this function, so that
    /// [`go_back`](Self::go_back) can revert it.
    fn slot_mut(&mut self, id: SlotId) -> Option<&mut Slot<'a>> {
        let slot = self.slots.get_mut(id.place())?;
        if id.place() < self.mark.slots && !slot.is_saved {
            self.before.push((id, *slot));
            slot.is_saved = true;
        }
        Some(slot)
    }
}

impl<'d, 'a> Entry<'d, 'a> {
    /// Returns the key of a member. `None` for items.
    #[inline]
    #[must_use]
    pub fn key(self) -> Option<Key<'a>> {
        self.slot.key
    }

    /// Returns the content of the slot.
    #[inline]
    #[must_use]
    pub fn content(self) -> &'d Content<'a> {
        &self.slot.content
    }

    /// Whether the slot is removed.
    #[inline]
    pub(crate) fn is_removed(self) -> bool {
        self.slot.state == State::Removed
    }

    /// Whether the slot and everything in it are certainly unchanged. False for an open slot, even if nothing below it
    /// has changed.
    #[inline]
    pub(crate) fn is_untouched(self) -> bool {
        self.slot.state == State::Original && matches!(self.slot.content, Content::Value(_))
    }
}

impl<'a> Slot<'a> {
    const fn new(key: Option<Key<'a>>, content: Content<'a>, state: State) -> Self {
        Self { key, content, state, is_saved: false, first: None, last: None, next: None }
    }
}

#[inline]
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
