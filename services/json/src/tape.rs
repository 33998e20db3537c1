//! The tape of a JSON text, and values that refer to it.
//!
//! A node contains the start and the end of a value in the text. It also contains the number of nodes that the value
//! spans, so a value can be skipped in one step. Object keys are nodes, too. Each key precedes its value.

use std::borrow::Cow;

use super::string::{Key, may_equal, unescape, write_string};

/// The kind of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// `null`.
    Null,
    /// `false`.
    False,
    /// `true`.
    True,
    /// A number. Its notation is preserved.
    Number,
    /// A string without escapes.
    String,
    /// A string with at least one backslash.
    EscapedString,
    /// A list.
    Array,
    /// An object.
    Object,
}

/// The position of a value or a key in the text.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Node {
    /// The offset of the first byte.
    pub(crate) start: u32,
    /// The offset after the last byte.
    pub(crate) end: u32,
    /// The number of nodes that the value spans, including itself and nested values. The span of a key also includes
    /// its value.
    pub(crate) span: u32,
    pub(crate) kind: Kind,
}

/// If an object has more members than this, its members are sorted before a comparison.
const FEW: usize = 24;

/// A JSON text with the table of its values. Compiled templates and results of expressions are stored in this form.
#[derive(Clone, Debug)]
pub struct OwnedTape {
    text: Box<str>,
    nodes: Nodes,
}

/// The table of an [`OwnedTape`].
#[derive(Clone, Debug)]
enum Nodes {
    /// A single node. Most results of expressions are scalars, so this avoids allocating a table.
    One([Node; 1]),
    Many(Box<[Node]>),
}

/// A borrowed JSON text, such as a request body, with the table of its values.
#[derive(Debug)]
pub struct BorrowedTape<'t> {
    text: &'t str,
    nodes: Vec<Node>,
}

/// A value in a tape. Copies refer to the same value.
#[derive(Clone, Copy)]
pub struct Value<'t> {
    /// The whole text.
    text: &'t str,
    /// The node of the value, followed by the nodes of nested values.
    nodes: &'t [Node],
}

impl OwnedTape {
    pub(crate) fn from_parts(text: Box<str>, nodes: Vec<Node>) -> Self {
        let nodes = match <[Node; 1]>::try_from(nodes) {
            Ok(node) => Nodes::One(node),
            Err(nodes) => Nodes::Many(nodes.into_boxed_slice()),
        };
        Self { text, nodes }
    }

    /// Creates a tape that consists of a JSON string with this content.
    #[must_use]
    pub fn of_string(text: &str) -> Self {
        // Most strings need no escapes, so this capacity is usually exact.
        let mut quoted = String::with_capacity(text.len() + 2);
        write_string(&mut quoted, text);
        let kind = if quoted.len() == text.len() + 2 { Kind::String } else { Kind::EscapedString };
        // Other limits keep the length of strings far below `u32::MAX`.
        let node = Node { start: 0, end: u32::try_from(quoted.len()).unwrap_or(0), span: 1, kind };
        Self { text: quoted.into(), nodes: Nodes::One([node]) }
    }

    /// Returns the root value.
    #[must_use]
    #[inline]
    pub fn root(&self) -> Value<'_> {
        Value { text: &self.text, nodes: self.nodes() }
    }

    #[inline]
    fn nodes(&self) -> &[Node] {
        match &self.nodes {
            Nodes::One(node) => node,
            Nodes::Many(nodes) => nodes,
        }
    }

    /// Returns the memory of the text and the table in bytes, excluding the struct itself.
    #[must_use]
    #[inline]
    pub fn memory(&self) -> usize {
        let nodes = match &self.nodes {
            Nodes::One(_) => 0,
            Nodes::Many(nodes) => size_of_val(&**nodes),
        };
        self.text.len() + nodes
    }
}

impl<'t> BorrowedTape<'t> {
    pub(crate) const fn from_parts(text: &'t str, nodes: Vec<Node>) -> Self {
        Self { text, nodes }
    }

    /// Returns the root value.
    #[inline]
    #[must_use]
    pub fn root(&self) -> Value<'_> {
        Value { text: self.text, nodes: &self.nodes }
    }

    /// Returns the content of a string on this tape, with the lifetime of the text. `None` for other kinds of values.
    #[inline]
    #[must_use]
    pub fn text_of(&self, value: Value<'_>) -> Option<Cow<'t, str>> {
        let node = value.node()?;
        let inner = self.text.get(node.start as usize + 1..(node.end as usize).checked_sub(1)?)?;
        match node.kind {
            Kind::String => Some(Cow::Borrowed(inner)),
            Kind::EscapedString => Some(Cow::Owned(unescape(inner))),
            _ => None,
        }
    }
}

impl<'t> Value<'t> {
    /// Returns the kind of the value.
    #[must_use]
    #[inline]
    pub fn kind(self) -> Kind {
        self.node().map_or(Kind::Null, |node| node.kind)
    }

    /// Returns the JSON text of the value as it is written.
    #[must_use]
    #[inline]
    pub fn raw(self) -> &'t str {
        self.node().and_then(|node| self.text.get(node.start as usize..node.end as usize)).unwrap_or_default()
    }

    /// Whether the value is `null`.
    #[must_use]
    #[inline]
    pub fn is_null(self) -> bool {
        self.kind() == Kind::Null
    }

    /// Whether the value is a scalar other than `null`.
    #[must_use]
    #[inline]
    pub fn is_scalar(self) -> bool {
        !matches!(self.kind(), Kind::Array | Kind::Object | Kind::Null)
    }

    /// Returns the number of values and keys in this value, including itself. Takes constant time.
    #[must_use]
    #[inline]
    pub const fn node_count(self) -> usize {
        self.nodes.len()
    }

    /// Returns the content of a string. `None` for other kinds of values.
    #[must_use]
    #[inline]
    pub fn as_str(self) -> Option<Cow<'t, str>> {
        match self.kind() {
            Kind::String => Some(Cow::Borrowed(self.inner())),
            Kind::EscapedString => Some(Cow::Owned(unescape(self.inner()))),
            _ => None,
        }
    }

    /// Returns the value of a boolean. `None` for other kinds of values.
    #[must_use]
    #[inline]
    pub fn as_bool(self) -> Option<bool> {
        match self.kind() {
            Kind::True => Some(true),
            Kind::False => Some(false),
            _ => None,
        }
    }

    /// Whether the value is a string with this content.
    #[must_use]
    #[inline]
    pub fn is(self, text: &str) -> bool {
        match self.kind() {
            Kind::String => self.raw_len() == text.len() + 2 && self.inner().as_bytes() == text.as_bytes(),
            Kind::EscapedString => may_equal(self.inner(), text) && unescape(self.inner()) == text,
            _ => false,
        }
    }

    /// Returns the value of a member. `None` if this value is not an object or has no such member. If the key is
    /// repeated, returns the last member, as everywhere in Kubernetes.
    #[must_use]
    #[inline]
    pub fn get(self, key: &str) -> Option<Self> {
        let [node, members @ ..] = self.nodes else { return None };
        if node.kind != Kind::Object {
            return None;
        }
        // `length` includes the quotes. A JSON text is never so long that the fallback or the wrapping matters.
        let length = u32::try_from(key.len()).unwrap_or(u32::MAX).wrapping_add(2);
        let (mut rest, mut found) = (members, None);
        while let [name, ..] = rest {
            // Most keys have a different length, so there is no need to compare their bytes.
            if (name.end.wrapping_sub(name.start) == length || name.kind == Kind::EscapedString)
                && self.is_key(name, key)
            {
                found = rest.get(1..name.span as usize);
            }
            rest = rest.get(name.span as usize..)?;
        }
        Some(Self { text: self.text, nodes: found? })
    }

    #[inline]
    fn is_key(self, name: &Node, key: &str) -> bool {
        let (start, end) = (name.start as usize + 1, name.end.wrapping_sub(1) as usize);
        if name.kind == Kind::EscapedString {
            return self.text.get(start..end).is_some_and(|inner| Key::read(inner, true).is(key));
        }
        self.text.as_bytes().get(start..end) == Some(key.as_bytes())
    }

    /// Returns the value at a path of keys. `None` if a member is missing.
    #[must_use]
    #[inline]
    pub fn at(self, path: &[&str]) -> Option<Self> {
        path.iter().try_fold(self, |value, key| value.get(key))
    }

    /// Returns the members of an object in order. Empty for other kinds of values.
    #[inline]
    pub fn members(self) -> impl Iterator<Item = (Key<'t>, Self)> {
        let Children { text, mut rest } = self.children(Kind::Object);
        std::iter::from_fn(move || {
            let (member, tail) = rest.split_at_checked(rest.first()?.span as usize)?;
            let (name, nodes) = member.split_first()?;
            rest = tail;
            let key = text.get(name.start as usize + 1..(name.end as usize).checked_sub(1)?)?;
            Some((Key::read(key, name.kind == Kind::EscapedString), Self { text, nodes }))
        })
    }

    /// Returns the items of a list in order. Empty for other kinds of values.
    #[inline]
    pub fn items(self) -> impl Iterator<Item = Self> {
        self.children(Kind::Array)
    }

    /// Whether two values are equal. Objects may have their members in any order. Strings are compared by content, and
    /// other scalars by their JSON text.
    #[must_use]
    pub fn equals(self, other: Self) -> bool {
        match (self.kind(), other.kind()) {
            (Kind::Object, Kind::Object) => {
                let count = self.members().count();
                if count != other.members().count() {
                    return false;
                }
                if count > FEW {
                    return self
                        .sorted()
                        .zip(other.sorted())
                        .all(|((key, value), (other_key, other))| key == other_key && value.equals(other));
                }
                self.members().all(|(key, value)| other.get(&key.text()).is_some_and(|other| value.equals(other)))
            }
            (Kind::Array, Kind::Array) => {
                self.items().count() == other.items().count()
                    && self.items().zip(other.items()).all(|(item, other)| item.equals(other))
            }
            (Kind::String | Kind::EscapedString, Kind::String | Kind::EscapedString) => self.as_str() == other.as_str(),
            _ => self.raw() == other.raw(),
        }
    }

    /// Returns the members of an object, sorted by key.
    fn sorted(self) -> impl Iterator<Item = (Cow<'t, str>, Self)> {
        let mut members: Vec<_> = self.members().map(|(key, value)| (key.text(), value)).collect();
        members.sort_by(|(key, _), (other, _)| key.cmp(other));
        members.into_iter()
    }

    /// Whether the value is a scalar and the whole text of its tape, such as a newly created scalar.
    #[inline]
    pub(crate) fn is_whole_text(self) -> bool {
        self.is_scalar() && matches!(self.nodes, [node] if node.start == 0 && node.end as usize == self.text.len())
    }

    /// Whether both values are the same node of the same tape.
    #[inline]
    pub(crate) fn is_same_node(self, other: Self) -> bool {
        std::ptr::eq(self.nodes, other.nodes)
    }

    #[inline]
    fn children(self, kind: Kind) -> Children<'t> {
        match self.nodes {
            [node, inner_nodes @ ..] if node.kind == kind => Children { text: self.text, rest: inner_nodes },
            _ => Children { text: self.text, rest: &[] },
        }
    }

    /// Returns the length of the value's JSON text in bytes.
    #[inline]
    fn raw_len(self) -> usize {
        self.node().map_or(0, |node| node.end.saturating_sub(node.start) as usize)
    }

    /// Returns the JSON text of a string without its quotes.
    #[inline]
    fn inner(self) -> &'t str {
        let inner =
            self.node().and_then(|node| self.text.get(node.start as usize + 1..(node.end as usize).checked_sub(1)?));
        inner.unwrap_or_default()
    }

    #[inline]
    fn node(self) -> Option<&'t Node> {
        self.nodes.first()
    }
}

impl std::fmt::Debug for Value<'_> {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str(self.raw())
    }
}

/// Iterates over the items of a list. For an object, only [`Value::members`] uses `rest`: the nodes of the keys, each
/// followed by the nodes of its value.
struct Children<'t> {
    text: &'t str,
    rest: &'t [Node],
}

impl<'t> Iterator for Children<'t> {
    type Item = Value<'t>;

    #[inline]
    fn next(&mut self) -> Option<Value<'t>> {
        let (nodes, tail) = self.rest.split_at_checked(self.rest.first()?.span as usize)?;
        self.rest = tail;
        Some(Value { text: self.text, nodes })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tape(text: &str) -> OwnedTape {
        OwnedTape::parse(text).unwrap()
    }

    #[test]
    fn finds_values_by_path() {
        let tape = tape(r#" {"a": {"b":[1, {"c" : 1e999}],"d":null} , "e":"x"} "#);
        let root = tape.root();
        assert_eq!(root.at(&["a", "b"]).unwrap().raw(), r#"[1, {"c" : 1e999}]"#);
        assert!(root.at(&["a", "d"]).unwrap().is_null());
        assert_eq!(root.get("e").unwrap().as_str().unwrap(), "x");
        assert!(root.at(&["a", "x"]).is_none());
        assert!(root.at(&["e", "x"]).is_none());
        let raws: Vec<_> = root.at(&["a", "b"]).unwrap().items().map(Value::raw).collect();
        assert_eq!(raws, ["1", r#"{"c" : 1e999}"#]);
    }

    #[test]
    fn last_of_duplicate_members_counts() {
        assert_eq!(tape(r#"{"a":1,"b":0,"\u0061":2}"#).root().get("a").unwrap().raw(), "2");
    }

    #[test]
    fn created_string_equals_parsed_string() {
        for text in ["", "plain", "\"q\" \\ \n \u{1} é 😀"] {
            let created = OwnedTape::of_string(text);
            let read = tape(created.root().raw());
            assert_eq!((created.root().kind(), created.root().as_str()), (read.root().kind(), read.root().as_str()));
            assert_eq!(created.root().as_str().unwrap(), text);
            assert_eq!(created.root().raw(), read.root().raw());
        }
    }

    #[test]
    fn decodes_every_escape() {
        let tape = tape(r#"["plain","\"q\" \\ \/ \b\f\n\r\t \u00e9 \ud83d\ude00"]"#);
        let texts: Vec<_> = tape.root().items().map(|item| item.as_str().unwrap().into_owned()).collect();
        assert_eq!(texts, ["plain", "\"q\" \\ / \u{8}\u{c}\n\r\t é 😀"]);
        assert!(tape.root().items().nth(1).unwrap().is(&texts[1]));
    }
}
