//! The keys of list elements, and the tokens for them in the JSON pointers of the record.
//!
//! The first key of each existing element is read once per list, not once for each element of the template.

use std::borrow::Cow;

use crate::json::{Document, Kind as JsonKind, OwnedTape, SlotId, Value, has_byte, needs_escape, split_at_escape};
use crate::schema::{self, KeyedList};

/// Appends a slash and the escaped token to a pointer.
pub(super) fn push_token(pointer: &mut String, token: &str) {
    pointer.push('/');
    push_escaped(pointer, token);
}

/// Appends a token to a pointer, with `~` and `/` escaped.
pub(super) fn push_escaped(pointer: &mut String, token: &str) {
    let mut rest = token;
    if needs_escape(token) {
        while let Some((plain, escape, behind)) = split_at_escape(rest) {
            pointer.push_str(plain);
            pointer.push_str(escape);
            rest = behind;
        }
    }
    pointer.push_str(rest);
}

/// The values of an element's key fields.
pub(super) struct Keys<'a> {
    fields: &'static [&'static str],
    values: [Option<Value<'a>>; 2],
    /// The values as strings for comparison. Absent fields have their defaults.
    texts: [Option<Cow<'a, str>>; 2],
}

impl<'a> Keys<'a> {
    pub(super) fn new(keyed: &'static KeyedList, values: [Option<Value<'a>>; 2]) -> Self {
        let text = |place: usize| key_of(values.get(place).copied().flatten(), keyed.keys.get(place)?, keyed);
        Self { fields: keyed.keys, values, texts: [text(0), text(1)] }
    }

    /// Appends a slash and the token of the element: the values of its keys, separated by commas.
    pub(super) fn push(&self, pointer: &mut String) {
        push_texts(pointer, self.fields.iter().enumerate().map(|(place, _)| self.text(place).unwrap_or_default()));
    }

    /// Returns the key field at an index as a string for comparison. `None` if it is absent and has no default.
    pub(super) fn text(&self, place: usize) -> Option<&str> {
        self.texts.get(place)?.as_deref()
    }

    /// Returns the value of the key field with this name, if the element has it.
    pub(super) fn get(&self, field: &str) -> Option<Value<'a>> {
        self.at(self.fields.iter().position(|candidate| *candidate == field)?)
    }

    /// Returns the value of the key field at this index, if the element has it.
    fn at(&self, place: usize) -> Option<Value<'a>> {
        self.values.get(place).copied().flatten()
    }
}

/// The elements of the last list that was read, each with its first key.
#[derive(Default)]
pub(super) struct Index<'a> {
    list: Option<SlotId>,
    /// The number of structural changes of the document when the list was read.
    change_count: u32,
    elements: Vec<(SlotId, Option<Value<'a>>)>,
}

impl<'a> Index<'a> {
    /// Clears the index but keeps its buffer.
    pub(super) fn forget(&mut self) {
        self.list = None;
        self.elements.clear();
        self.elements.reserve(16);
    }

    /// Returns the elements of a list, each with the value of its field `key`. Reads the list again unless it was the
    /// last one read and the document has not changed since.
    pub(super) fn of(&mut self, document: &Document<'a>, list: SlotId, key: &str) -> &[(SlotId, Option<Value<'a>>)] {
        if self.list != Some(list) || self.change_count != document.change_count() {
            self.list = Some(list);
            self.change_count = document.change_count();
            self.elements.clear();
            self.elements.extend(document.children(list).map(|slot| (slot, document.value_of(slot, key))));
        }
        &self.elements
    }

    /// Adds an element that was just inserted into the list. Does nothing if the document has other changes since the
    /// list was read.
    pub(super) fn added(&mut self, document: &Document<'a>, list: SlotId, element: SlotId, keys: &Keys<'a>) {
        let change_count = self.change_count.wrapping_add(1);
        if self.list == Some(list) && change_count == document.change_count() {
            self.change_count = change_count;
            self.elements.push((element, keys.at(0)));
        }
    }
}

/// Whether a constant list of a template can be added as one value to an object that has no such list. The list must be
/// short, the first keys of its elements must be distinct, and its environment variables must not need ordering.
pub(super) fn is_one_value(list: Value<'_>, keyed: &KeyedList) -> bool {
    /// The maximum number of elements. Each element is compared with all those before it.
    const MOST: usize = 8;
    let Some(first) = keyed.keys.first() else { return false };
    let mut keys = [None; MOST];
    let mut items = list.items();
    for (place, item) in items.by_ref().take(MOST).enumerate() {
        let key = item.get(first).filter(|key| key.is_scalar());
        if key.is_none() || keys.iter().take(place).any(|earlier: &Option<Value<'_>>| same_key(*earlier, key)) {
            return false;
        }
        if let Some(noted) = keys.get_mut(place) {
            *noted = key;
        }
    }
    items.next().is_none() && !(schema::is_env(keyed) && has_byte(list.raw(), b'$'))
}

/// Whether two values of a key field are equal as strings. False if one of them is absent.
pub(super) fn same_key(left: Option<Value<'_>>, right: Option<Value<'_>>) -> bool {
    left.zip(right).is_some_and(|(left, right)| key_text(left) == key_text(right))
}

/// Returns the value of a key field as a string: a string unescaped, other values as written. For an absent field,
/// returns the default; `None` if there is none.
pub(super) fn key_of<'v>(value: Option<Value<'v>>, key: &str, keyed: &'v KeyedList) -> Option<Cow<'v, str>> {
    if let Some(value) = value {
        return Some(key_text(value));
    }
    let default = keyed.defaults.iter().find(|(field, _)| *field == key);
    default.map(|(_, text)| Cow::Borrowed(text.trim_matches('"')))
}

/// Whether the value of a key field equals a string.
pub(super) fn is_key(value: Value<'_>, text: &str) -> bool {
    match value.kind() {
        JsonKind::String | JsonKind::EscapedString => value.is(text),
        _ => value.raw() == text,
    }
}

fn key_text(value: Value<'_>) -> Cow<'_, str> {
    value.as_str().unwrap_or_else(|| Cow::Borrowed(value.raw()))
}

/// Appends a slash and the token of an element. `value` returns the value of a key field.
pub(super) fn push_keys<'v>(pointer: &mut String, keyed: &'v KeyedList, value: impl Fn(&str) -> Option<Value<'v>>) {
    push_texts(pointer, keyed.keys.iter().map(|key| key_of(value(key), key, keyed).unwrap_or_default()));
}

fn push_texts(pointer: &mut String, texts: impl Iterator<Item = impl AsRef<str>>) {
    for (index, text) in texts.enumerate() {
        if index == 0 {
            push_token(pointer, text.as_ref());
        } else {
            pointer.push(',');
            push_escaped(pointer, text.as_ref());
        }
    }
}

/// Returns the unescaped content of a JSON string; `None` if `raw` is not a string.
pub(super) fn text_of(raw: &str) -> Option<Cow<'_, str>> {
    if !raw.starts_with('"') {
        return None;
    }
    if has_byte(raw, b'\\') {
        let tape = OwnedTape::parse(raw).ok()?;
        return tape.root().as_str().map(|text| Cow::Owned(text.into_owned()));
    }
    raw.get(1..raw.len() - 1).map(Cow::Borrowed)
}
