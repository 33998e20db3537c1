//! What was changed in a document, as a JSON patch (RFC 6902), and the check of that patch before it leaves.
//!
//! A patch is read off the document's slots: a slot that was added, replaced or removed is one operation, whatever
//! happened below it. No two objects are compared, so a patch is minimal by construction and costs what it changes. It
//! has no operation but `add`, `replace` and `remove`.
//!
//! The check reads the bytes that would be sent and applies them to the object by an interpreter that shares nothing with
//! the writer. The API server rejects a pod whose patch does not apply, also where it is told to ignore failures; so a
//! patch that does not apply must never leave, and neither must one whose result is not what was meant.

use std::borrow::Cow;

use thiserror::Error;

use crate::json::{
    BorrowedTape, Content, Document, Key, Kind, Limits, Malformed, SlotId, State, SyntaxError, Value, needs_escape,
    write_escaped,
};

/// How many bytes are made room for: the patch of a sidecar or two.
const CAPACITY: usize = 4096;

/// The patch that makes the document of what it was made from; `None` if nothing was changed.
pub(crate) fn write(document: &Document<'_>) -> Option<Vec<u8>> {
    let mut writer = Writer { document, out: Vec::with_capacity(CAPACITY), path: Vec::with_capacity(128) };
    writer.out.push(b'[');
    writer.slot(Document::ROOT);
    if writer.out.len() == 1 {
        return None;
    }
    writer.out.push(b']');
    Some(writer.out)
}

struct Writer<'d, 'a> {
    document: &'d Document<'a>,
    out: Vec<u8>,
    /// The pointer to the slot at hand, escaped for JSON.
    path: Vec<u8>,
}

impl Writer<'_, '_> {
    fn slot(&mut self, id: SlotId) {
        match self.document.state(id) {
            State::Added => self.operation("add", Some(id)),
            State::Replaced if self.document.is_as_it_was(id) => {}
            State::Replaced => self.operation("replace", Some(id)),
            State::Removed => self.operation("remove", None),
            State::Original => match self.document.content(id) {
                Content::Map => self.map(id),
                Content::List => self.list(id),
                Content::Value(_) | Content::Scalar(_) | Content::Made(_) => {}
            },
        }
    }

    fn map(&mut self, id: SlotId) {
        let (document, length) = (self.document, self.path.len());
        for child in document.all_children(id).filter(|child| !document.is_untouched(*child)) {
            self.path.push(b'/');
            if let Some(key) = document.key(child) {
                push_token(&mut self.path, &key.text());
            }
            self.slot(child);
            self.path.truncate(length);
        }
    }

    /// Indices are those at the time of the operation: what was removed before does not count, what was added does.
    fn list(&mut self, id: SlotId) {
        let (document, length) = (self.document, self.path.len());
        let mut index = 0_usize;
        for child in document.all_children(id) {
            if !document.is_untouched(child) {
                self.path.push(b'/');
                push_number(&mut self.path, index);
                self.slot(child);
                self.path.truncate(length);
            }
            index += usize::from(document.state(child) != State::Removed);
        }
    }

    fn operation(&mut self, name: &str, value: Option<SlotId>) {
        if self.out.len() > 1 {
            self.out.push(b',');
        }
        self.out.extend_from_slice(b"{\"op\":\"");
        self.out.extend_from_slice(name.as_bytes());
        self.out.extend_from_slice(b"\",\"path\":\"");
        self.out.extend_from_slice(&self.path);
        self.out.push(b'"');
        if let Some(value) = value {
            self.out.extend_from_slice(b",\"value\":");
            self.document.write(value, &mut self.out);
        }
        self.out.push(b'}');
    }
}

/// Writes a key as one token of a pointer (RFC 6901), escaped for JSON.
fn push_token(path: &mut Vec<u8>, key: &str) {
    if !needs_escape(key) {
        write_escaped(path, key);
        return;
    }
    for part in key.split_inclusive(['~', '/']) {
        let (plain, escape) = match part.as_bytes().last() {
            Some(b'~') => (part.strip_suffix('~'), "~0"),
            Some(b'/') => (part.strip_suffix('/'), "~1"),
            _ => (Some(part), ""),
        };
        write_escaped(path, plain.unwrap_or_default());
        path.extend_from_slice(escape.as_bytes());
    }
}

fn push_number(path: &mut Vec<u8>, mut number: usize) {
    let start = path.len();
    loop {
        path.push(b'0' + u8::try_from(number % 10).unwrap_or(0));
        number /= 10;
        if number == 0 {
            break;
        }
    }
    if let Some(digits) = path.get_mut(start..) {
        digits.reverse();
    }
}

/// Why a patch must not leave. Each is a mistake of this build, never of the request.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub(crate) enum CheckFault {
    #[error("the patch is not JSON: {0}")]
    Syntax(#[from] SyntaxError),
    #[error("operation {0} is malformed")]
    Operation(usize),
    #[error("operation {index} points at {path:?}, which is not there")]
    Path { index: usize, path: Box<str> },
    #[error("the patched object is not the one that was meant")]
    Result,
    #[error(transparent)]
    Malformed(#[from] Malformed),
}

/// Applies the patch to the object and compares the result with the document that the patch was written from.
pub(crate) fn check(object: Value<'_>, patch: &[u8], meant: &Document<'_>) -> Result<(), CheckFault> {
    let text = std::str::from_utf8(patch).map_err(|_| CheckFault::Operation(0))?;
    let tape = BorrowedTape::parse(text, Limits::default())?;
    let mut operations = Vec::with_capacity(tape.root().items().count());
    for (index, operation) in tape.root().items().enumerate() {
        operations.push(Operation::read(operation).ok_or(CheckFault::Operation(index))?);
    }
    let mut patched = Document::new(object);
    let mut last: Option<(&str, SlotId)> = None;
    for (index, operation) in operations.iter().enumerate() {
        let around = operation.around();
        // Most operations follow one on another part of the same object or list, which stays where it is meanwhile.
        let parent = match last {
            Some((last, parent)) if last == around => Some(parent),
            _ => locate(&mut patched, around)?,
        };
        last = parent.map(|parent| (around, parent));
        let applied = match parent {
            Some(parent) => operation.apply(&mut patched, parent)?,
            None => false,
        };
        if !applied {
            return Err(CheckFault::Path { index, path: operation.path.as_ref().into() });
        }
    }
    if same(&patched, Document::ROOT, meant, Document::ROOT) { Ok(()) } else { Err(CheckFault::Result) }
}

#[derive(Clone, Copy)]
enum Action<'p> {
    Add(Value<'p>),
    Replace(Value<'p>),
    Remove,
}

/// One operation as it is read back.
struct Operation<'p> {
    action: Action<'p>,
    path: Cow<'p, str>,
    /// Where in the path the last slash is.
    slash: usize,
    /// The last token of the path as the key of a member, escaped for JSON.
    key: Cow<'p, str>,
}

impl<'p> Operation<'p> {
    fn read(operation: Value<'p>) -> Option<Self> {
        let (mut name, mut path, mut value) = (None, None, None);
        for (key, member) in operation.members() {
            match &*key.text() {
                "op" => name = Some(member),
                "path" => path = member.as_str(),
                "value" => value = Some(member),
                _ => {}
            }
        }
        let action = match &*name?.as_str()? {
            "add" => Action::Add(value?),
            "replace" => Action::Replace(value?),
            "remove" => Action::Remove,
            _ => return None,
        };
        let path = path?;
        let slash = path.rfind('/')?;
        let key = match &path {
            Cow::Borrowed(path) if !path.get(slash + 1..)?.contains('~') => Cow::Borrowed(path.get(slash + 1..)?),
            _ => {
                let token = path.get(slash + 1..)?;
                let mut key = Vec::with_capacity(token.len());
                let mut rest = token;
                while let Some((plain, escape)) = rest.split_once('~') {
                    write_escaped(&mut key, plain);
                    key.push(if escape.starts_with('1') { b'/' } else { b'~' });
                    rest = escape.get(1..)?;
                }
                write_escaped(&mut key, rest);
                Cow::Owned(String::from_utf8(key).ok()?)
            }
        };
        Some(Self { action, path, slash, key })
    }

    /// The pointer to what the operation is on a part of.
    fn around(&self) -> &str {
        self.path.get(..self.slash).unwrap_or_default()
    }

    /// Whether the path was there.
    fn apply<'a>(&'a self, document: &mut Document<'a>, parent: SlotId) -> Result<bool, Malformed> {
        let last = self.path.get(self.slash + 1..).unwrap_or_default();
        document.open(parent)?;
        if let (Action::Add(value), Kind::Array) = (self.action, document.kind(parent)) {
            let place = list_index(last).filter(|place| *place <= document.children(parent).count());
            if let Some(place) = place {
                document.insert_item(parent, place, Content::Value(value));
            }
            return Ok(place.is_some());
        }
        match (self.action, child(document, parent, last)?) {
            (Action::Add(value) | Action::Replace(value), Some(existing)) => {
                document.replace(existing, Content::Value(value));
            }
            (Action::Remove, Some(existing)) => document.remove(existing, parent),
            (Action::Add(value), None) if document.kind(parent) == Kind::Object => {
                document.add_member(parent, Key::new(&self.key), Content::Value(value));
            }
            _ => return Ok(false),
        }
        Ok(true)
    }
}

/// The slot that a pointer names.
fn locate(document: &mut Document<'_>, pointer: &str) -> Result<Option<SlotId>, Malformed> {
    let mut slot = Document::ROOT;
    for token in pointer.split('/').skip(1) {
        match child(document, slot, token)? {
            Some(child) => slot = child,
            None => return Ok(None),
        }
    }
    Ok(Some(slot))
}

/// Whether a token of a pointer that has escapes names a key. Nothing is unescaped for it: most keys differ in their first
/// letters.
fn names(token: &str, key: Key<'_>) -> bool {
    let text = key.text();
    let mut key = text.chars();
    let mut token = token.chars();
    loop {
        let wanted = match token.next() {
            Some('~') if token.next() == Some('1') => Some('/'),
            Some('~') => Some('~'),
            other => other,
        };
        match (wanted, key.next()) {
            (None, None) => return true,
            (Some(wanted), Some(found)) if wanted == found => {}
            _ => return false,
        }
    }
}

/// The slot that a token of a pointer names.
fn child(document: &mut Document<'_>, parent: SlotId, token: &str) -> Result<Option<SlotId>, Malformed> {
    match document.kind(parent) {
        Kind::Object => {
            document.open(parent)?;
            let has_escapes = token.contains('~');
            let is_meant = |key: Key<'_>| if has_escapes { names(token, key) } else { key.is(token) };
            let is_named = |child: &SlotId| document.key(*child).is_some_and(is_meant);
            Ok(document.children(parent).find(is_named))
        }
        Kind::Array => {
            document.open(parent)?;
            Ok(list_index(token).and_then(|index| document.children(parent).nth(index)))
        }
        _ => Ok(None),
    }
}

/// An index as RFC 6901 writes it: without a sign and without leading zeros.
fn list_index(token: &str) -> Option<usize> {
    let canonical = token == "0" || !token.starts_with(['0', '+']);
    token.parse().ok().filter(|_| canonical)
}

/// Whether two slots hold the same value. Slots that hold one place of one tape are the same without a look, so this
/// costs what was changed.
fn same(left: &Document<'_>, l: SlotId, right: &Document<'_>, r: SlotId) -> bool {
    match (left.content(l), right.content(r)) {
        (Content::Value(value), _) => holds(right, r, value),
        (_, Content::Value(value)) => holds(left, l, value),
        (Content::Map, Content::Map) | (Content::List, Content::List) => {
            // Both were made from one object and got the same members in the same order. Members are never looked up by
            // their keys: in an object of a hundred thousand that would take ten thousand million looks.
            let mut pairs = (live(left, left.first(l)), live(right, right.first(r)));
            while let (Some(a), Some(b)) = pairs {
                let is_one_key = match (left.key(a), right.key(b)) {
                    (Some(a), Some(b)) => is_one_key(a, b),
                    (a, b) => a.is_none() && b.is_none(),
                };
                if !is_one_key || !same(left, a, right, b) {
                    return false;
                }
                pairs = (live(left, left.next(a)), live(right, right.next(b)));
            }
            pairs == (None, None)
        }
        _ => left.raw(l).is_some_and(|raw| right.raw(r) == Some(raw)),
    }
}

/// Whether a slot holds a value, be it in one piece or taken apart.
fn holds(document: &Document<'_>, slot: SlotId, value: Value<'_>) -> bool {
    match (document.content(slot), value.kind()) {
        (Content::Value(other), _) => value.same_place(other) || value.raw() == other.raw(),
        (Content::Map, Kind::Object) => {
            let mut child = live(document, document.first(slot));
            for (key, member) in value.members() {
                let Some(found) = child else { return false };
                if !document.key(found).is_some_and(|found| is_one_key(found, key)) || !holds(document, found, member) {
                    return false;
                }
                child = live(document, document.next(found));
            }
            child.is_none()
        }
        (Content::List, Kind::Array) => {
            let mut child = live(document, document.first(slot));
            for item in value.items() {
                let Some(found) = child.filter(|found| holds(document, *found, item)) else { return false };
                child = live(document, document.next(found));
            }
            child.is_none()
        }
        _ => document.raw(slot) == Some(value.raw()),
    }
}

fn is_one_key(left: Key<'_>, right: Key<'_>) -> bool {
    left.escaped() == right.escaped() || left.text() == right.text()
}

/// The slot, or the next one behind it that is not removed.
fn live(document: &Document<'_>, from: Option<SlotId>) -> Option<SlotId> {
    std::iter::successors(from, |slot| document.next(*slot)).find(|slot| document.state(*slot) != State::Removed)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::json::OwnedTape;

    fn patch_of(text: &str, edit: impl FnOnce(&mut Document<'_>)) -> Option<String> {
        let tape = OwnedTape::parse(text).unwrap();
        let mut document = Document::new(tape.root());
        edit(&mut document);
        let patch = write(&document)?;
        check(tape.root(), &patch, &document).unwrap();
        Some(String::from_utf8(patch).unwrap())
    }

    fn member(document: &mut Document<'_>, path: &[&str]) -> SlotId {
        path.iter().fold(Document::ROOT, |slot, key| document.member(slot, key).unwrap().unwrap())
    }

    #[test]
    fn nothing_changed_is_no_patch() {
        assert_eq!(patch_of(r#"{"a":[1]}"#, |document| document.open(Document::ROOT).unwrap()), None);
    }

    #[test]
    fn pointers_are_escaped() {
        let patch = patch_of(r#"{"a/b~c\"d":{}}"#, |document| {
            let inner = member(document, &["a/b~c\"d"]);
            document.open(inner).unwrap();
            document.add_member(inner, Key::new("x/y"), Content::Scalar("1"));
        });
        assert_eq!(patch.unwrap(), r#"[{"op":"add","path":"/a~1b~0c\"d/x~1y","value":1}]"#);
    }

    #[test]
    fn an_addition_below_an_addition_is_one_operation() {
        let patch = patch_of("{}", |document| {
            document.open(Document::ROOT).unwrap();
            let map = document.add_member(Document::ROOT, Key::new("m"), Content::Map);
            let list = document.add_member(map, Key::new("l"), Content::List);
            document.push_item(list, Content::Scalar("1"));
        });
        assert_eq!(patch.unwrap(), r#"[{"op":"add","path":"/m","value":{"l":[1]}}]"#);
    }

    #[test]
    fn list_indices_are_those_of_their_moment() {
        let patch = patch_of(r#"{"l":["a","b","c"]}"#, |document| {
            let list = member(document, &["l"]);
            document.open(list).unwrap();
            let first = document.children(list).next().unwrap();
            let third = document.children(list).last().unwrap();
            document.remove(first, list);
            document.insert_item(list, 0, Content::Scalar("0"));
            document.replace(third, Content::Scalar("9"));
            document.push_item(list, Content::Scalar("10"));
        });
        let expected = [
            r#"{"op":"remove","path":"/l/0"}"#,
            r#"{"op":"add","path":"/l/0","value":0}"#,
            r#"{"op":"replace","path":"/l/2","value":9}"#,
            r#"{"op":"add","path":"/l/3","value":10}"#,
        ];
        assert_eq!(patch.unwrap(), format!("[{}]", expected.join(",")));
    }

    #[test]
    fn a_patch_that_does_not_apply_is_found() {
        let tape = OwnedTape::parse(r#"{"metadata":{},"l":[1]}"#).unwrap();
        let fault = |patch: &str| check(tape.root(), patch.as_bytes(), &Document::new(tape.root())).unwrap_err();
        let absent = "/metadata/annotations/x";
        let patch = format!(r#"[{{"op":"add","path":"{absent}","value":"y"}}]"#);
        assert_eq!(fault(&patch), CheckFault::Path { index: 0, path: absent.into() });
        for path in ["/l/2", "/l/-", "/l/01", "/l/+0", "/l/x", "/x/y"] {
            let patch = format!(r#"[{{"op":"add","path":"{path}","value":"y"}}]"#);
            assert_eq!(fault(&patch), CheckFault::Path { index: 0, path: path.into() }, "{path}");
        }
        assert!(matches!(fault(r#"[{"op":"remove","path":"/l/1"}]"#), CheckFault::Path { .. }));
        for malformed in
            [r#"{"op":"move","path":"/l/0"}"#, r#"{"op":"remove","path":"nowhere"}"#, r#"{"op":"add"}"#, "1"]
        {
            assert_eq!(fault(&format!("[{malformed}]")), CheckFault::Operation(0), "{malformed}");
        }
        assert!(matches!(fault("[{"), CheckFault::Syntax(_)));
    }

    #[test]
    fn a_patch_that_does_something_else_is_found() {
        let tape = OwnedTape::parse(r#"{"a":{"b":1}}"#).unwrap();
        let mut document = Document::new(tape.root());
        let b = member(&mut document, &["a", "b"]);
        document.replace(b, Content::Scalar("2"));
        for other in [r#"[{"op":"replace","path":"/a/b","value":3}]"#, r#"[{"op":"remove","path":"/a/b"}]"#, "[]"] {
            assert_eq!(check(tape.root(), other.as_bytes(), &document), Err(CheckFault::Result), "{other}");
        }
        assert_eq!(check(tape.root(), br#"[{"op":"replace","path":"/a/b","value":2}]"#, &document), Ok(()));
    }

    #[test]
    fn an_addition_of_something_else_is_found() {
        let tape = OwnedTape::parse("{}").unwrap();
        let mut document = Document::new(tape.root());
        document.open(Document::ROOT).unwrap();
        let map = document.add_member(Document::ROOT, Key::new("m"), Content::Map);
        document.add_member(map, Key::new("a"), Content::Scalar("1"));
        document.add_member(map, Key::new("b"), Content::Scalar("2"));
        let checked = |value: &str| {
            let patch = format!(r#"[{{"op":"add","path":"/m","value":{value}}}]"#);
            check(tape.root(), patch.as_bytes(), &document)
        };
        for same in [r#"{"a":1,"b":2}"#, r#"{"a": 1, "b": 2}"#] {
            assert_eq!(checked(same), Ok(()), "{same}");
        }
        for other in [
            r#"{"a":1}"#,
            r#"{"a":1,"b":3}"#,
            r#"{"a":1,"b":22}"#,
            r#"{"a":1,"b":2,"c":3}"#,
            r#"{"x":1,"b":2}"#,
            "[1,2]",
        ] {
            assert_eq!(checked(other), Err(CheckFault::Result), "{other}");
        }
    }

    /// An edit that a test makes: where, and what.
    #[derive(Clone, Debug)]
    enum Edit {
        Insert(usize, usize),
        Replace(usize),
        Remove(usize),
    }

    proptest! {
        /// The oracle: what json-patch makes of the object by our patch is what the document says.
        #[test]
        fn the_patch_makes_what_the_document_is(
            rows in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..4), 1..4),
            edits in proptest::collection::vec(
                prop_oneof![
                    (0usize..4, 0usize..6).prop_map(|(row, place)| Edit::Insert(row, place)),
                    (0usize..20).prop_map(Edit::Replace),
                    (0usize..20).prop_map(Edit::Remove),
                ],
                0..12,
            ),
        ) {
            let object = serde_json::json!({"keep": true, "rows": rows});
            let tape = OwnedTape::parse(object.to_string()).unwrap();
            let mut document = Document::new(tape.root());
            let list = member(&mut document, &["rows"]);
            document.open(list).unwrap();
            let rows: Vec<_> = document.children(list).collect();
            for row in &rows {
                document.open(*row).unwrap();
            }
            for edit in edits {
                let cells: Vec<_> =
                    rows.iter().flat_map(|row| document.children(*row).map(|cell| (*row, cell))).collect();
                match edit {
                    Edit::Insert(row, place) => {
                        document.insert_item(rows[row % rows.len()], place, Content::Scalar("\"new\""));
                    }
                    Edit::Replace(cell) if !cells.is_empty() => {
                        document.replace(cells[cell % cells.len()].1, Content::Scalar("\"other\""));
                    }
                    Edit::Remove(cell) if !cells.is_empty() => {
                        let (row, cell) = cells[cell % cells.len()];
                        document.remove(cell, row);
                    }
                    Edit::Replace(_) | Edit::Remove(_) => {}
                }
            }
            let mut meant = Vec::new();
            document.write(Document::ROOT, &mut meant);
            let meant: serde_json::Value = serde_json::from_slice(&meant).unwrap();
            let mut patched = object;
            if let Some(patch) = write(&document) {
                check(tape.root(), &patch, &document).unwrap();
                json_patch::patch(&mut patched, &serde_json::from_slice::<json_patch::Patch>(&patch).unwrap()).unwrap();
            }
            prop_assert_eq!(patched, meant);
        }
    }
}
