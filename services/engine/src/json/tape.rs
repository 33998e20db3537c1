//! The tape of a JSON text, and cursors over it.
//!
//! A node holds the start and end of a value in the text, and the number of nodes that the value spans, so that a value
//! can be skipped in one step. Keys of objects are nodes too, each before its value.

use std::borrow::Cow;

use super::string::{Key, may_stand_for, unescape, write_string};

/// What a value is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// `null`.
    Null,
    /// `false`.
    False,
    /// `true`.
    True,
    /// A number, as it stands.
    Number,
    /// A string that stands for itself.
    String,
    /// A string with at least one backslash.
    EscapedString,
    /// A list.
    Array,
    /// An object.
    Object,
}

/// Where a value is.
#[derive(Clone, Copy, Debug)]
pub(super) struct Node {
    /// Offset of its first byte.
    pub(super) start: u32,
    /// Offset behind its last byte.
    pub(super) end: u32,
    /// How many nodes it is, with all that is in it; of a key, with its value.
    pub(super) span: u32,
    pub(super) kind: Kind,
}

/// Above this number of members, those of two objects are compared in order and not looked for.
const FEW: usize = 24;

/// A text and the table of its values, kept together: a compiled template's, or what an expression gave.
#[derive(Clone, Debug)]
pub struct OwnedTape {
    text: Box<str>,
    nodes: Nodes,
}

/// The table of an [`OwnedTape`].
#[derive(Clone, Debug)]
enum Nodes {
    /// Of a scalar. Most of what expressions give is one, and asks for no memory of its own.
    One([Node; 1]),
    Many(Box<[Node]>),
}

/// The table of a text that somebody else owns: a request's.
#[derive(Debug)]
pub(crate) struct BorrowedTape<'t> {
    text: &'t str,
    nodes: Vec<Node>,
}

/// A value in a tape. Copying it copies a place, not the value.
#[derive(Clone, Copy)]
pub struct Value<'t> {
    /// All of the text.
    text: &'t str,
    /// Its own node, and those of what is in it.
    nodes: &'t [Node],
}

impl OwnedTape {
    pub(super) fn from_parts(text: Box<str>, nodes: Vec<Node>) -> Self {
        let nodes = match <[Node; 1]>::try_from(nodes) {
            Ok(node) => Nodes::One(node),
            Err(nodes) => Nodes::Many(nodes.into_boxed_slice()),
        };
        Self { text, nodes }
    }

    /// A string that stands for a text.
    pub(crate) fn of_string(text: &str) -> Self {
        // Nearly always it is neither too little nor too much.
        let mut quoted = String::with_capacity(text.len() + 2);
        write_string(&mut quoted, text);
        let kind = if quoted.len() == text.len() + 2 { Kind::String } else { Kind::EscapedString };
        // What is escaped is a text again; the lengths of texts are bounded long before they are.
        let node = Node { start: 0, end: u32::try_from(quoted.len()).unwrap_or(0), span: 1, kind };
        Self { text: quoted.into(), nodes: Nodes::One([node]) }
    }

    /// The text's one value.
    #[must_use]
    pub fn root(&self) -> Value<'_> {
        Value { text: &self.text, nodes: self.nodes() }
    }

    fn nodes(&self) -> &[Node] {
        match &self.nodes {
            Nodes::One(node) => node,
            Nodes::Many(nodes) => nodes,
        }
    }

    /// Bytes of memory that it takes, apart from the struct itself.
    #[must_use]
    pub fn memory(&self) -> usize {
        let nodes = match &self.nodes {
            Nodes::One(_) => 0,
            Nodes::Many(nodes) => size_of_val(&**nodes),
        };
        self.text.len() + nodes
    }
}

impl<'t> BorrowedTape<'t> {
    pub(super) const fn from_parts(text: &'t str, nodes: Vec<Node>) -> Self {
        Self { text, nodes }
    }

    pub(crate) fn root(&self) -> Value<'_> {
        Value { text: self.text, nodes: &self.nodes }
    }

    /// The text that a string of this tape stands for, for as long as the text is there.
    pub(crate) fn text_of(&self, value: Value<'_>) -> Option<Cow<'t, str>> {
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
    /// What it is.
    #[must_use]
    pub fn kind(self) -> Kind {
        self.node().map_or(Kind::Null, |node| node.kind)
    }

    /// Its text, as it stands.
    #[must_use]
    pub fn raw(self) -> &'t str {
        self.node().and_then(|node| self.text.get(node.start as usize..node.end as usize)).unwrap_or_default()
    }

    /// Whether it is `null`.
    #[must_use]
    pub fn is_null(self) -> bool {
        self.kind() == Kind::Null
    }

    /// Whether it is neither an object nor a list nor `null`.
    #[must_use]
    pub fn is_scalar(self) -> bool {
        !matches!(self.kind(), Kind::Array | Kind::Object | Kind::Null)
    }

    /// The text that a string stands for; `None` if it is not a string.
    #[must_use]
    pub fn as_str(self) -> Option<Cow<'t, str>> {
        match self.kind() {
            Kind::String => Some(Cow::Borrowed(self.inner())),
            Kind::EscapedString => Some(Cow::Owned(unescape(self.inner()))),
            _ => None,
        }
    }

    /// `true` or `false`; `None` if it is neither.
    #[must_use]
    pub fn as_bool(self) -> Option<bool> {
        match self.kind() {
            Kind::True => Some(true),
            Kind::False => Some(false),
            _ => None,
        }
    }

    /// Whether it is a string that stands for this text.
    #[must_use]
    pub fn is(self, text: &str) -> bool {
        match self.kind() {
            Kind::String => self.raw_len() == text.len() + 2 && self.inner().as_bytes() == text.as_bytes(),
            Kind::EscapedString => may_stand_for(self.inner(), text) && unescape(self.inner()) == text,
            _ => false,
        }
    }

    /// The value of a member of an object; `None` if it is not an object or has no such member. Of two with the same
    /// key, the last one counts, as everywhere in Kubernetes.
    #[must_use]
    pub fn get(self, key: &str) -> Option<Self> {
        let [node, members @ ..] = self.nodes else { return None };
        if node.kind != Kind::Object {
            return None;
        }
        // With its quotes. No text is so long that this is not it.
        let length = u32::try_from(key.len()).unwrap_or(u32::MAX).wrapping_add(2);
        let (mut rest, mut found) = (members, None);
        while let [name, ..] = rest {
            // Most keys are of another length, and their text is not looked at.
            if (name.end.wrapping_sub(name.start) == length || name.kind == Kind::EscapedString)
                && self.is_key(name, key)
            {
                found = rest.get(1..name.span as usize);
            }
            rest = rest.get(name.span as usize..)?;
        }
        Some(Self { text: self.text, nodes: found? })
    }

    fn is_key(self, name: &Node, key: &str) -> bool {
        let (start, end) = (name.start as usize + 1, name.end.wrapping_sub(1) as usize);
        if name.kind == Kind::EscapedString {
            return self.text.get(start..end).is_some_and(|inner| Key::read(inner, true).is(key));
        }
        self.text.as_bytes().get(start..end) == Some(key.as_bytes())
    }

    /// The value below a path of keys.
    #[must_use]
    pub fn at(self, path: &[&str]) -> Option<Self> {
        path.iter().try_fold(self, |value, key| value.get(key))
    }

    /// The members of an object in their order; none if it is not an object.
    pub fn members(self) -> impl Iterator<Item = (Key<'t>, Self)> {
        let Children { text, mut rest } = self.children(Kind::Object);
        std::iter::from_fn(move || {
            let (member, behind) = rest.split_at_checked(rest.first()?.span as usize)?;
            let (name, nodes) = member.split_first()?;
            rest = behind;
            let key = text.get(name.start as usize + 1..(name.end as usize).checked_sub(1)?)?;
            Some((Key::read(key, name.kind == Kind::EscapedString), Self { text, nodes }))
        })
    }

    /// The items of a list in their order; none if it is not a list.
    pub fn items(self) -> impl Iterator<Item = Self> {
        self.children(Kind::Array)
    }

    /// Whether both mean the same: objects by their members in any order, lists by their items in order, scalars by
    /// their text.
    #[must_use]
    pub fn means(self, other: Self) -> bool {
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
                        .all(|((key, value), (other_key, other))| key == other_key && value.means(other));
                }
                self.members().all(|(key, value)| other.get(&key.text()).is_some_and(|other| value.means(other)))
            }
            (Kind::Array, Kind::Array) => {
                self.items().count() == other.items().count()
                    && self.items().zip(other.items()).all(|(item, other)| item.means(other))
            }
            (Kind::String | Kind::EscapedString, Kind::String | Kind::EscapedString) => self.as_str() == other.as_str(),
            _ => self.raw() == other.raw(),
        }
    }

    /// The members of an object by their keys.
    fn sorted(self) -> impl Iterator<Item = (Cow<'t, str>, Self)> {
        let mut members: Vec<_> = self.members().map(|(key, value)| (key.text(), value)).collect();
        members.sort_by(|(key, _), (other, _)| key.cmp(other));
        members.into_iter()
    }

    /// Whether it is a scalar that is all of its text, as one that was made is.
    pub(crate) fn stands_alone(self) -> bool {
        self.is_scalar() && matches!(self.nodes, [node] if node.start == 0 && node.end as usize == self.text.len())
    }

    /// Whether both are the same place.
    pub(crate) fn same_place(self, other: Self) -> bool {
        std::ptr::eq(self.nodes, other.nodes)
    }

    fn children(self, kind: Kind) -> Children<'t> {
        match self.nodes {
            [node, within @ ..] if node.kind == kind => Children { text: self.text, rest: within },
            _ => Children { text: self.text, rest: &[] },
        }
    }

    /// How many bytes its text has.
    fn raw_len(self) -> usize {
        self.node().map_or(0, |node| node.end.saturating_sub(node.start) as usize)
    }

    /// A string without its quotes.
    fn inner(self) -> &'t str {
        let inner =
            self.node().and_then(|node| self.text.get(node.start as usize + 1..(node.end as usize).checked_sub(1)?));
        inner.unwrap_or_default()
    }

    fn node(self) -> Option<&'t Node> {
        self.nodes.first()
    }
}

impl std::fmt::Debug for Value<'_> {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str(self.raw())
    }
}

/// The nodes directly below one, keys and values alike.
struct Children<'t> {
    text: &'t str,
    rest: &'t [Node],
}

impl<'t> Iterator for Children<'t> {
    type Item = Value<'t>;

    fn next(&mut self) -> Option<Value<'t>> {
        let (nodes, behind) = self.rest.split_at_checked(self.rest.first()?.span as usize)?;
        self.rest = behind;
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
    fn a_value_is_found_by_its_path_and_is_the_slice_that_it_was() {
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
    fn of_two_members_with_one_key_the_last_counts() {
        assert_eq!(tape(r#"{"a":1,"b":0,"\u0061":2}"#).root().get("a").unwrap().raw(), "2");
    }

    #[test]
    fn a_string_that_is_made_is_one_that_is_read() {
        for text in ["", "plain", "\"q\" \\ \n \u{1} é 😀"] {
            let made = OwnedTape::of_string(text);
            let read = tape(made.root().raw());
            assert_eq!((made.root().kind(), made.root().as_str()), (read.root().kind(), read.root().as_str()));
            assert_eq!(made.root().as_str().unwrap(), text);
            assert_eq!(made.root().raw(), read.root().raw());
        }
    }

    #[test]
    fn strings_are_read_whatever_their_escapes() {
        let tape = tape(r#"["plain","\"q\" \\ \/ \b\f\n\r\t \u00e9 \ud83d\ude00"]"#);
        let texts: Vec<_> = tape.root().items().map(|item| item.as_str().unwrap().into_owned()).collect();
        assert_eq!(texts, ["plain", "\"q\" \\ / \u{8}\u{c}\n\r\t é 😀"]);
        assert!(tape.root().items().nth(1).unwrap().is(&texts[1]));
    }
}
