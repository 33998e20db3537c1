//! Checks a patch: parses it, applies it to the object, and compares the result with the document.
//!
//! Every byte of the patch is checked. An operation has exactly one valid form, and its value must equal the document's
//! value byte for byte. Values that are parts of a tape are valid JSON. Scalars that may be newly created are parsed
//! again.

use std::borrow::Cow;
use std::ops::Range;

use thiserror::Error;

use super::{ADD, REMOVE, REPLACE, VALUE, Written};
use crate::{
    Content, Document, Key, Kind, Malformed, SlotId, State, Value, after_plain, before_byte, has_byte, is_plain,
    is_scalar, needs_escape,
};

/// The initial capacity of [`PathCache`], in slots. The path to a list element in a container has five slots.
const PATH_DEPTH: usize = 8;

/// The reason why a patch must not be sent. This is always a bug in Pillion, and not an invalid request.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum CheckFault {
    /// The operation at this index cannot be parsed.
    #[error("operation {0} is malformed")]
    Operation(usize),
    /// The path of an operation does not exist, or a previous operation changed it.
    #[error("operation {index} has the path {path:?}, which does not exist")]
    Path {
        /// The index of the operation.
        index: usize,
        /// The pointer of the operation.
        path: Box<str>,
    },
    /// The patched object differs from the document.
    #[error("the patched object differs from the intended object")]
    Result,
    /// The object contains a duplicate key, so it cannot be edited.
    #[error(transparent)]
    Malformed(#[from] Malformed),
}

/// Applies the patch to the object, and compares the result with the document from which the patch was written. Returns
/// the patch to send.
pub fn check(object: Value<'_>, patch: Written, document: &Document<'_>) -> Result<Vec<u8>, CheckFault> {
    let mut keys = String::with_capacity(128);
    let operations = read(&patch.text, &patch.ends, &mut keys)?;
    let mut patched = Document::for_comparison(object);
    let mut cache = PathCache { pointer: "", slots: Vec::with_capacity(PATH_DEPTH) };
    for (index, operation) in operations.iter().enumerate() {
        let applied = match cache.resolve(&mut patched, operation.parent_path())? {
            Some(parent) => operation.apply(&mut patched, parent, &keys)?,
            None => false,
        };
        if !applied {
            return Err(CheckFault::Path { index, path: operation.path.as_ref().into() });
        }
    }
    if slots_equal(&patched, Document::ROOT, document, Document::ROOT) {
        Ok(patch.text.into_bytes())
    } else {
        Err(CheckFault::Result)
    }
}

/// The action of an operation, with its value as JSON. The value is not parsed, and no later operation may change a
/// part of it.
#[derive(Clone, Copy)]
enum Action<'p> {
    Add(&'p str),
    Replace(&'p str),
    Remove,
}

/// A parsed operation.
struct Operation<'p> {
    action: Action<'p>,
    path: Cow<'p, str>,
    /// The offset of the last slash in the path.
    slash: usize,
    key: LastKey<'p>,
}

/// The last token of a path, as an object key with JSON escapes.
enum LastKey<'p> {
    /// The token as it is written in the path.
    Borrowed(Key<'p>),
    /// The range in `keys` that contains the token without pointer escapes.
    Unescaped(Range<usize>),
}

/// Parses the operations of a patch. `ends` contains the end offsets of their values. Keys with pointer escapes are
/// unescaped into `keys`.
fn read<'p>(patch: &'p str, ends: &[usize], keys: &mut String) -> Result<Vec<Operation<'p>>, CheckFault> {
    let mut operations = Vec::with_capacity(ends.len() + 8);
    let mut reader = Reader { rest: patch, length: patch.len(), ends: ends.iter() };
    if !reader.accept("[") {
        return Err(CheckFault::Operation(0));
    }
    while reader.rest != "]" {
        let is_next = operations.is_empty() || reader.accept(",");
        let operation = is_next.then(|| reader.operation(keys)).flatten();
        operations.push(operation.ok_or(CheckFault::Operation(operations.len()))?);
    }
    Ok(operations)
}

/// A partially parsed patch.
struct Reader<'p, 'e> {
    rest: &'p str,
    /// The length of the whole patch in bytes.
    length: usize,
    ends: std::slice::Iter<'e, usize>,
}

impl<'p> Reader<'p, '_> {
    /// Consumes `text` if the rest begins with it. Returns whether it did.
    fn accept(&mut self, text: &str) -> bool {
        let tail = self.rest.strip_prefix(text);
        self.rest = tail.unwrap_or(self.rest);
        tail.is_some()
    }

    /// Consumes and returns `length` bytes. `None` if there are fewer.
    fn pass(&mut self, length: usize) -> Option<&'p str> {
        let (passed, rest) = self.rest.split_at_checked(length)?;
        self.rest = rest;
        Some(passed)
    }

    /// Parses an operation. `None` if it does not have exactly the valid form.
    fn operation(&mut self, keys: &mut String) -> Option<Operation<'p>> {
        let head = [ADD, REPLACE, REMOVE].into_iter().find(|head| self.accept(head))?;
        let escaped = in_quotes(self.rest)?;
        // A path without JSON escapes needs no check.
        if escaped.has_escapes() && !is_inside_of_string(escaped.escaped()) {
            return None;
        }
        let (text, has_escapes) = (escaped.text(), escaped.has_escapes());
        let escaped = escaped.escaped();
        self.pass(escaped.len())?;
        let value = match head {
            REMOVE => self.accept("\"").then_some("")?,
            _ => (self.accept("\"") && self.accept(VALUE)).then(|| self.value()).flatten()?,
        };
        let action = match head {
            ADD => Action::Add(value),
            REPLACE => Action::Replace(value),
            _ => Action::Remove,
        };
        let last = escaped.get(escaped.bytes().rposition(|byte| byte == b'/')? + 1..)?;
        let slash = match &text {
            Cow::Borrowed(path) => path.len().checked_sub(last.len() + 1)?,
            // JSON escapes must not contain slashes or tildes. Otherwise, the API server would find a different last
            // token.
            Cow::Owned(path) => {
                let count = |text: &str| text.bytes().filter(|byte| matches!(byte, b'/' | b'~')).count();
                path.rfind('/').filter(|_| count(path) == count(escaped))?
            }
        };
        let key = if needs_escape(last) {
            unescape_token(last, keys)?
        } else {
            LastKey::Borrowed(Key::read(last, has_escapes))
        };
        self.accept("}").then_some(Operation { action, path: text, slash, key })
    }

    /// Consumes and returns the value of the current operation, up to its end offset.
    fn value(&mut self) -> Option<&'p str> {
        let place = self.length - self.rest.len();
        let end = *self.ends.next()?;
        self.pass(end.checked_sub(place)?)
    }
}

impl Operation<'_> {
    /// Returns the JSON pointer of the value's parent.
    fn parent_path(&self) -> &str {
        self.path.get(..self.slash).unwrap_or_default()
    }

    /// Applies the operation. Returns false if its path does not exist, or if an earlier operation changed the value
    /// there.
    fn apply<'a>(&'a self, document: &mut Document<'a>, parent: SlotId, keys: &'a str) -> Result<bool, Malformed> {
        let last = self.path.get(self.slash + 1..).unwrap_or_default();
        document.open(parent)?;
        if let (Action::Add(value), Kind::Array) = (self.action, document.kind(parent)) {
            let place = list_index(last).filter(|place| *place <= document.children(parent).count());
            if let Some(place) = place {
                document.insert_item(parent, place, Content::Scalar(value));
            }
            return Ok(place.is_some());
        }
        match (self.action, child(document, parent, last)?) {
            // An earlier operation changed this path or a path below it, so the value of that operation could no longer
            // be compared.
            (_, Some(existing)) if !matches!(document.content(existing), Content::Value(_)) => return Ok(false),
            (Action::Add(value) | Action::Replace(value), Some(existing)) => {
                document.replace(existing, Content::Scalar(value));
            }
            (Action::Remove, Some(existing)) => document.remove(existing, parent),
            (Action::Add(value), None) if document.kind(parent) == Kind::Object => {
                let key = match &self.key {
                    LastKey::Borrowed(key) => *key,
                    LastKey::Unescaped(range) => Key::new(keys.get(range.clone()).unwrap_or_default()),
                };
                document.add_member(parent, key, Content::Scalar(value));
            }
            _ => return Ok(false),
        }
        Ok(true)
    }
}

/// Appends a token to `keys` without its pointer escapes. `None` if it contains escapes other than `~0` and `~1`.
fn unescape_token<'p>(token: &str, keys: &mut String) -> Option<LastKey<'p>> {
    let start = keys.len();
    let mut rest = token;
    while let Some((plain, escape)) = rest.split_once('~') {
        keys.push_str(plain);
        keys.push(match escape.bytes().next()? {
            b'0' => '~',
            b'1' => '/',
            _ => return None,
        });
        rest = escape.get(1..)?;
    }
    keys.push_str(rest);
    Some(LastKey::Unescaped(start..keys.len()))
}

/// Returns the content of a JSON string after its opening quote. `None` if the string does not end.
fn in_quotes(text: &str) -> Option<Key<'_>> {
    let (mut rest, mut has_escapes) = (text.as_bytes(), false);
    loop {
        match after_plain(rest) {
            found @ [b'"', ..] => return Some(Key::read(text.get(..text.len() - found.len())?, has_escapes)),
            [b'\\', _, tail @ ..] => (rest, has_escapes) = (tail, true),
            _ => return None,
        }
    }
}

/// The slots on the path of the previous operation. The path of the next operation usually begins with the same slots,
/// and an operation does not change the slots of its parents.
struct PathCache<'p> {
    pointer: &'p str,
    /// Each slot on the path, with the length of the pointer to it.
    slots: Vec<(usize, SlotId)>,
}

impl<'p> PathCache<'p> {
    /// Returns the slot at a JSON pointer. `None` if there is no such value.
    fn resolve(&mut self, document: &mut Document<'_>, pointer: &'p str) -> Result<Option<SlotId>, Malformed> {
        if self.pointer == pointer
            && let Some((_, slot)) = self.slots.last()
        {
            return Ok(Some(*slot));
        }
        let is_shared = |length: usize| {
            let cached = self.pointer.get(..length);
            cached == pointer.get(..length) && matches!(pointer.as_bytes().get(length), None | Some(b'/'))
        };
        while self.slots.pop_if(|(length, _)| !is_shared(*length)).is_some() {}
        self.pointer = pointer;
        let (mut length, mut slot) = self.slots.last().copied().unwrap_or((0, Document::ROOT));
        while let Some(rest) = pointer.get(length..).and_then(|rest| rest.strip_prefix('/')) {
            let token = before_byte(rest, b'/');
            let Some(child) = child(document, slot, token)? else { return Ok(None) };
            length += token.len() + 1;
            slot = child;
            self.slots.push((length, slot));
        }
        Ok(Some(slot))
    }
}

/// Whether a token with pointer escapes equals a key. Does not unescape the token first, because most keys already
/// differ in their first characters.
fn token_equals(token: &str, key: Key<'_>) -> bool {
    let text = key.text();
    let mut key = text.chars();
    let mut token = token.chars();
    loop {
        let expected_char = match token.next() {
            Some('~') => match token.next() {
                Some('0') => Some('~'),
                Some('1') => Some('/'),
                _ => return false,
            },
            other => other,
        };
        match (expected_char, key.next()) {
            (None, None) => return true,
            (Some(expected_char), Some(found)) if expected_char == found => {}
            _ => return false,
        }
    }
}

/// Returns the child for a token of a JSON pointer. `None` if there is no such child.
fn child(document: &mut Document<'_>, parent: SlotId, token: &str) -> Result<Option<SlotId>, Malformed> {
    match document.kind(parent) {
        Kind::Object => {
            document.open(parent)?;
            if !has_byte(token, b'~') {
                return Ok(document.look_for(parent, token).1);
            }
            let mut members = document.entries(parent).filter(|member| !member.is_removed());
            Ok(members.find(|member| member.key().is_some_and(|key| token_equals(token, key))).map(|member| member.id))
        }
        Kind::Array => {
            document.open(parent)?;
            Ok(list_index(token).and_then(|index| document.children(parent).nth(index)))
        }
        _ => Ok(None),
    }
}

/// Parses a list index according to RFC 6901: without a sign or leading zeros.
fn list_index(token: &str) -> Option<usize> {
    let canonical = token == "0" || !token.starts_with(['0', '+']);
    token.parse().ok().filter(|_| canonical)
}

/// Whether the slot `p` of the patched object equals the slot `m` of the document. Unchanged slots refer to the same
/// node of the tape, which makes them equal without a comparison, so the cost depends only on the changes.
fn slots_equal(patched: &Document<'_>, p: SlotId, document: &Document<'_>, m: SlotId) -> bool {
    match (patched.content(p), document.content(m)) {
        (Content::Scalar(text), content) => {
            after_slot(document, m, &content, text.as_bytes()).is_some_and(<[u8]>::is_empty)
        }
        (Content::Value(value), _) => has_value(document, m, value),
        (_, Content::Value(value)) => has_value(patched, p, value),
        (Content::Map, Content::Map) | (Content::List, Content::List) => {
            // Both documents are based on the same object, so their members have the same order. Finding each member by
            // its key would be quadratic: ten billion steps for an object with a hundred thousand members.
            let mut left = patched.entries(p).filter(|entry| !entry.is_removed());
            let mut right = document.entries(m).filter(|entry| !entry.is_removed());
            loop {
                let (a, b) = match (left.next(), right.next()) {
                    (Some(a), Some(b)) => (a, b),
                    (a, b) => return a.is_none() && b.is_none(),
                };
                let same_key = match (a.key(), b.key()) {
                    (Some(a), Some(b)) => same_key(a, b),
                    (a, b) => a.is_none() && b.is_none(),
                };
                let is_same_place = match (a.content(), b.content()) {
                    (Content::Value(left), Content::Value(right)) => left.is_same_node(*right),
                    _ => false,
                };
                if !same_key || !(is_same_place || slots_equal(patched, a.id, document, b.id)) {
                    return false;
                }
            }
        }
        _ => false,
    }
}

/// Returns the rest of `text` after the value of a slot. `None` if the text does not begin with that value, or if the
/// value is not valid JSON.
fn after_slot<'t>(document: &Document<'_>, slot: SlotId, content: &Content<'_>, text: &'t [u8]) -> Option<&'t [u8]> {
    let (open, close) = match content {
        Content::Map => (b'{', b'}'),
        Content::List => (b'[', b']'),
        Content::Value(value) if !value.is_whole_text() => return text.strip_prefix(value.raw().as_bytes()),
        Content::Value(_) | Content::Scalar(_) | Content::Made(_) => {
            let raw = document.raw(slot)?;
            return text.strip_prefix(raw.as_bytes()).filter(|_| is_scalar(raw));
        }
    };
    let mut rest = text.strip_prefix(&[open])?;
    for (index, child) in document.entries(slot).filter(|child| !child.is_removed()).enumerate() {
        if index > 0 {
            rest = rest.strip_prefix(b",")?;
        }
        if open == b'{' {
            let key = child.key()?.escaped();
            let (in_quotes, tail) = rest.strip_prefix(b"\"")?.split_at_checked(key.len())?;
            rest = tail.strip_prefix(b"\":").filter(|_| in_quotes == key.as_bytes() && is_inside_of_string(key))?;
        }
        rest = after_slot(document, child.id, child.content(), rest)?;
    }
    rest.strip_prefix(&[close])
}

/// Whether a key, as written in a patch, is a valid JSON string when it is put in quotes.
fn is_inside_of_string(key: &str) -> bool {
    is_plain(key) || is_scalar(&format!("\"{key}\""))
}

/// Whether a slot has this value. The slot may be open.
fn has_value(document: &Document<'_>, slot: SlotId, value: Value<'_>) -> bool {
    match (document.content(slot), value.kind()) {
        (Content::Value(other), _) => value.is_same_node(other) || value.raw() == other.raw(),
        (Content::Map, Kind::Object) => {
            let mut child = present_from(document, document.first(slot));
            for (key, member) in value.members() {
                let Some(found) = child else { return false };
                if !document.key(found).is_some_and(|found| same_key(found, key)) || !has_value(document, found, member)
                {
                    return false;
                }
                child = present_from(document, document.next(found));
            }
            child.is_none()
        }
        (Content::List, Kind::Array) => {
            let mut child = present_from(document, document.first(slot));
            for item in value.items() {
                let Some(found) = child.filter(|found| has_value(document, *found, item)) else { return false };
                child = present_from(document, document.next(found));
            }
            child.is_none()
        }
        _ => document.raw(slot) == Some(value.raw()),
    }
}

fn same_key(left: Key<'_>, right: Key<'_>) -> bool {
    let (left_text, right_text) = (left.escaped(), right.escaped());
    // Keys at the same position of the same JSON text are equal without a comparison.
    std::ptr::eq(left_text, right_text) || left_text == right_text || left.text() == right.text()
}

/// Returns the first slot, starting with `from`, that is not removed.
fn present_from(document: &Document<'_>, from: Option<SlotId>) -> Option<SlotId> {
    std::iter::successors(from, |slot| document.next(*slot)).find(|slot| document.state(*slot) != State::Removed)
}
