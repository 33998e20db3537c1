//! Writes the edits of a document as a JSON patch (RFC 6902), and checks the patch.
//!
//! The patch is derived from the slots of the document. A slot that was added, replaced or removed results in one
//! operation, regardless of changes below it. A replaced slot that has its initial value again results in none. Since
//! no objects are compared, the cost depends only on the changes. The only operations are `add`, `replace` and
//! `remove`.
//!
//! The API server rejects a pod if its patch cannot be applied, even with `failurePolicy: Ignore`. Therefore [`check`]
//! applies every patch to the object, using an interpreter that shares only the [`Document`] type and a few constants
//! with the writer, and compares the result with the document.

mod check;

use crate::{Content, Document, SlotId, State, split_at_escape, write_escaped};

pub use check::{CheckFault, check};

/// The start of each operation, up to its path.
const ADD: &str = "{\"op\":\"add\",\"path\":\"";
const REPLACE: &str = "{\"op\":\"replace\",\"path\":\"";
const REMOVE: &str = "{\"op\":\"remove\",\"path\":\"";

/// The text between the path and the value.
const VALUE: &str = ",\"value\":";

/// The maximum [`length`] of a patch, in bytes.
pub const MAX_PATCH_BYTES: usize = 256 * 1024;

/// The maximum size of the patched object, in bytes. By default, etcd rejects requests of more than 1.5 MiB.
pub const MAX_OBJECT_BYTES: usize = 1_400 * 1024;

/// Whether a patch of this size is allowed for an object of this size, in bytes.
#[must_use]
pub const fn fits(patch: usize, object: usize) -> bool {
    patch <= MAX_PATCH_BYTES && patch + object <= MAX_OBJECT_BYTES
}

/// Returns the size of the patch for a document, in bytes. 0 if nothing changed. Slots that the document
/// [disregards](Document::disregard_removed) count as if they had never existed, so the patch itself may have another
/// size.
#[must_use]
pub fn length(document: &Document<'_>) -> usize {
    operations(document, true).map_or(0, |written| written.text.len())
}

/// The initial capacity of a patch, in bytes. It is enough for three sidecars.
const CAPACITY: usize = 8192;

/// The initial capacity for the end offsets of values.
const OPERATIONS: usize = 32;

/// A patch that has not been checked yet.
#[derive(Debug)]
pub struct Written {
    text: String,
    /// The offsets at which the values of operations end. The check verifies these offsets.
    ends: Vec<usize>,
}

/// Writes the patch for a document. `None` if nothing changed.
#[must_use]
pub fn write(document: &Document<'_>) -> Option<Written> {
    operations(document, false)
}

/// Writes the operations of a patch. If `disregards` is set, the result cannot be applied, and shows only the length.
fn operations(document: &Document<'_>, disregards: bool) -> Option<Written> {
    let out = Written { text: String::with_capacity(CAPACITY), ends: Vec::with_capacity(OPERATIONS) };
    let mut writer = Writer { document, disregards, out, path: String::with_capacity(128) };
    writer.out.text.push('[');
    writer.slot(Document::ROOT);
    if writer.out.text.len() == 1 {
        return None;
    }
    writer.out.text.push(']');
    Some(writer.out)
}

struct Writer<'d, 'a> {
    document: &'d Document<'a>,
    /// Whether slots that the document disregards are treated as if they had never existed.
    disregards: bool,
    out: Written,
    /// The JSON pointer of the current slot, with JSON escapes.
    path: String,
}

impl Writer<'_, '_> {
    fn slot(&mut self, id: SlotId) {
        let state = self.document.state(id);
        if self.disregards && self.document.is_disregarded(id) {
            if state != State::Removed {
                self.operation(ADD, Some(id));
            }
            return;
        }
        match state {
            State::Added => self.operation(ADD, Some(id)),
            State::Replaced if self.document.has_initial_value(id) => {}
            State::Replaced => self.operation(REPLACE, Some(id)),
            State::Removed => self.operation(REMOVE, None),
            State::Original => match self.document.content(id) {
                Content::Map => self.map(id),
                Content::List => self.list(id),
                Content::Value(_) | Content::Scalar(_) | Content::Made(_) => {}
            },
        }
    }

    fn map(&mut self, id: SlotId) {
        let (document, length) = (self.document, self.path.len());
        for child in document.entries(id).filter(|child| !child.is_untouched()) {
            self.path.push('/');
            if let Some(key) = child.key() {
                push_token(&mut self.path, &key.text());
            }
            self.slot(child.id);
            self.path.truncate(length);
        }
    }

    /// Writes the operations for the items of a list. The index of an operation counts items that earlier operations
    /// added, but not those that they removed.
    fn list(&mut self, id: SlotId) {
        let (document, length) = (self.document, self.path.len());
        let mut index = 0_usize;
        for child in document.entries(id) {
            if !child.is_untouched() {
                self.path.push('/');
                push_number(&mut self.path, index);
                self.slot(child.id);
                self.path.truncate(length);
            }
            index += usize::from(!child.is_removed());
        }
    }

    fn operation(&mut self, head: &str, value: Option<SlotId>) {
        let Written { text, ends } = &mut self.out;
        if text.len() > 1 {
            text.push(',');
        }
        text.push_str(head);
        text.push_str(&self.path);
        text.push('"');
        if let Some(value) = value {
            text.push_str(VALUE);
            self.document.write(value, text);
            ends.push(text.len());
        }
        text.push('}');
    }
}

/// Writes a key as a token of a JSON pointer (RFC 6901), with JSON escapes.
fn push_token(path: &mut String, key: &str) {
    let mut rest = key;
    while let Some((plain, escape, tail)) = split_at_escape(rest) {
        write_escaped(path, plain);
        path.push_str(escape);
        rest = tail;
    }
    write_escaped(path, rest);
}

/// Writes an index as a decimal number. Most indices have one digit.
fn push_number(path: &mut String, number: usize) {
    if number >= 10 {
        push_number(path, number / 10);
    }
    path.push(char::from(b'0' + u8::try_from(number % 10).unwrap_or(0)));
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::{Key, OwnedTape};

    fn patch_of(text: &str, edit: impl FnOnce(&mut Document<'_>)) -> Option<String> {
        let tape = OwnedTape::parse(text).unwrap();
        let mut document = Document::new(tape.root());
        edit(&mut document);
        let patch = write(&document)?;
        Some(String::from_utf8(check(tape.root(), patch, &document).unwrap()).unwrap())
    }

    /// Creates a patch from its JSON text. Each value ends at the closing brace of its operation.
    fn written(text: &str) -> Written {
        let ends = text.match_indices('}').map(|(place, _)| place).filter(|place| {
            let tail = &text[place + 1..];
            tail == "]" || tail.starts_with(",{\"op\"")
        });
        let has_value =
            |end: &usize| text[..*end].rfind("\"op\"").is_some_and(|start| text[start..*end].contains("\"value\""));
        Written { text: text.into(), ends: ends.filter(has_value).collect() }
    }

    fn member(document: &mut Document<'_>, path: &[&str]) -> SlotId {
        path.iter().fold(Document::ROOT, |slot, key| document.member(slot, key).unwrap().unwrap())
    }

    #[test]
    fn unchanged_document_has_no_patch() {
        assert_eq!(patch_of(r#"{"a":[1]}"#, |document| document.open(Document::ROOT).unwrap()), None);
    }

    #[test]
    fn escapes_pointers() {
        let patch = patch_of(r#"{"a/b~c\"d":{}}"#, |document| {
            let inner = member(document, &["a/b~c\"d"]);
            document.open(inner).unwrap();
            document.add_member(inner, Key::new("x/y"), Content::Scalar("1"));
        });
        assert_eq!(patch.unwrap(), r#"[{"op":"add","path":"/a~1b~0c\"d/x~1y","value":1}]"#);
    }

    #[test]
    fn nested_additions_are_one_operation() {
        let patch = patch_of("{}", |document| {
            document.open(Document::ROOT).unwrap();
            let map = document.add_member(Document::ROOT, Key::new("m"), Content::Map);
            let list = document.add_member(map, Key::new("l"), Content::List);
            document.push_item(list, Content::Scalar("1"));
        });
        assert_eq!(patch.unwrap(), r#"[{"op":"add","path":"/m","value":{"l":[1]}}]"#);
    }

    #[test]
    fn list_indices_follow_earlier_operations() {
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
    fn length_disregards_removed_slots() {
        let edited = |text: &str, remove: fn(&mut Document<'_>)| {
            let tape = OwnedTape::parse(text).unwrap();
            let mut document = Document::new(tape.root());
            let [map, list] = ["m", "l"].map(|key| member(&mut document, &[key]));
            for slot in [map, list] {
                document.open(slot).unwrap();
            }
            remove(&mut document);
            document.disregard_removed();
            document.add_member(map, Key::new("k"), Content::Scalar("1"));
            document.push_item(list, Content::Scalar("2"));
            length(&document)
        };
        let alone = edited(r#"{"m":{"a":0},"l":[1]}"#, |_| ());
        let both = edited(r#"{"m":{"a":0,"k":1,"n":2},"l":[1,2,3]}"#, |document| {
            let (map, list) = (member(document, &["m"]), member(document, &["l"]));
            for key in ["k", "n"] {
                let removed = member(document, &["m", key]);
                document.remove(removed, map);
            }
            for removed in document.children(list).skip(1).collect::<Vec<_>>() {
                document.remove(removed, list);
            }
        });
        assert_eq!(both, alone);
        let patch = r#"[{"op":"add","path":"/m/k","value":1},{"op":"add","path":"/l/1","value":2}]"#;
        assert_eq!(alone, patch.len());
    }

    #[test]
    fn check_finds_inapplicable_patch() {
        let tape = OwnedTape::parse(r#"{"metadata":{},"l":[1]}"#).unwrap();
        let fault = |patch: &str| check(tape.root(), written(patch), &Document::new(tape.root())).unwrap_err();
        let absent = "/metadata/annotations/x";
        let patch = format!(r#"[{{"op":"add","path":"{absent}","value":"y"}}]"#);
        assert_eq!(fault(&patch), CheckFault::Path { index: 0, path: absent.into() });
        for path in ["/l/2", "/l/-", "/l/01", "/l/+0", "/l/x", "/x/y"] {
            let patch = format!(r#"[{{"op":"add","path":"{path}","value":"y"}}]"#);
            assert_eq!(fault(&patch), CheckFault::Path { index: 0, path: path.into() }, "{path}");
        }
        assert!(matches!(fault(r#"[{"op":"remove","path":"/l/1"}]"#), CheckFault::Path { .. }));
        for malformed in
            [r#"{"op":"move","path":"/l/0"}"#, r#"{"op":"remove","path":"nowhere"}"#, r#"{"op":"add"}"#, "1", "{"]
        {
            assert_eq!(fault(&format!("[{malformed}]")), CheckFault::Operation(0), "{malformed}");
        }
    }

    #[test]
    fn check_finds_wrong_result() {
        let tape = OwnedTape::parse(r#"{"a":{"b":1}}"#).unwrap();
        let mut document = Document::new(tape.root());
        let b = member(&mut document, &["a", "b"]);
        document.replace(b, Content::Scalar("2"));
        for other in [r#"[{"op":"replace","path":"/a/b","value":3}]"#, r#"[{"op":"remove","path":"/a/b"}]"#, "[]"] {
            assert_eq!(check(tape.root(), written(other), &document).map(drop), Err(CheckFault::Result), "{other}");
        }
        assert!(check(tape.root(), written(r#"[{"op":"replace","path":"/a/b","value":2}]"#), &document).is_ok());
    }

    #[test]
    fn check_finds_wrong_addition() {
        let tape = OwnedTape::parse("{}").unwrap();
        let mut document = Document::new(tape.root());
        document.open(Document::ROOT).unwrap();
        let map = document.add_member(Document::ROOT, Key::new("m"), Content::Map);
        document.add_member(map, Key::new("a"), Content::Scalar("1"));
        document.add_member(map, Key::new("b"), Content::Scalar("2"));
        let checked = |value: &str| {
            let patch = format!(r#"[{{"op":"add","path":"/m","value":{value}}}]"#);
            check(tape.root(), written(&patch), &document).map(drop)
        };
        assert_eq!(checked(r#"{"a":1,"b":2}"#), Ok(()));
        for other in [
            r#"{"a": 1, "b": 2}"#,
            r#"{"a":1,"b":2},"x":1"#,
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

    #[test]
    fn check_parses_created_values() {
        let tape = OwnedTape::parse("{}").unwrap();
        let checked = |key: &'static str, made: &str| {
            let mut document = Document::new(tape.root());
            document.open(Document::ROOT).unwrap();
            let map = document.add_member(Document::ROOT, Key::new("m"), Content::Map);
            let made = document.keep(made);
            document.add_member(map, Key::new(key), made);
            let patch = write(&document).unwrap();
            check(tape.root(), patch, &document).map(drop)
        };
        for good in [r#""""#, r#""x""#, r#""\"\\x""#, r#""\u00e9\n""#, "17", "true"] {
            assert_eq!(checked("k", good), Ok(()), "{good}");
        }
        for bad in [r#""x"#, r#""x"y""#, "\"x\ny\"", r#""\x""#, "x", "", "1 2"] {
            assert_eq!(checked("k", bad), Err(CheckFault::Result), "{bad}");
        }
        assert_eq!(checked(r#"a\"b"#, "1"), Ok(()));
        assert_eq!(checked("a\"b", "1"), Err(CheckFault::Result));
        let empty = OwnedTape::parse("{}").unwrap();
        let mut document = Document::new(tape.root());
        document.open(Document::ROOT).unwrap();
        document.add_member(Document::ROOT, Key::new("m"), Content::Value(empty.root()));
        let patch = write(&document).unwrap();
        assert!(check(tape.root(), patch, &document).is_ok());
    }

    #[test]
    fn check_rejects_ambiguous_paths() {
        let tape = OwnedTape::parse(r#"{"a/b":1,"c~d":2,"m":{"x":1}}"#).unwrap();
        let checked = |operations: &[&str], expected_object: &dyn Fn(&mut Document<'_>)| {
            let mut document = Document::new(tape.root());
            document.open(Document::ROOT).unwrap();
            expected_object(&mut document);
            let mut written = Written { text: "[".to_owned(), ends: Vec::new() };
            for (index, operation) in operations.iter().enumerate() {
                written.text.push_str(if index > 0 { "," } else { "" });
                written.text.push_str(operation);
                if operation.contains("\"value\"") {
                    written.ends.push(written.text.len() - 1);
                }
            }
            written.text.push(']');
            check(tape.root(), written, &document).map(drop)
        };
        let add = |path: &str| format!(r#"{{"op":"add","path":"{path}","value":1}}"#);
        let added = |path: &str, key: &'static str| {
            checked(&[&add(path)], &|document| {
                document.add_member(Document::ROOT, Key::new(key), Content::Scalar("1"));
            })
        };
        for (path, key) in
            [("/k", "k"), (r"/\u00e9\n", r"\u00e9\n"), ("/a~1k", "a/k"), ("/a~0k", "a~k"), ("/~01", "~1")]
        {
            assert_eq!(added(path, key), Ok(()), "{path}");
        }
        for (path, key) in [
            (r"/\q", r"\q"),
            (r"/\u12", r"\u12"),
            (r"/k\ud800", r"k\ud800"),
            ("/a~2k", "a~k"),
            ("/ak~", "ak~"),
            (r"/a~\u0031k", "a/k"),
            (r"/a\u007e1k", "a~1k"),
            (r"/m\u002fk", r"m\u002fk"),
        ] {
            assert_eq!(added(path, key), Err(CheckFault::Operation(0)), "{path}");
        }
        let removed = |path: &str, key: &str| {
            checked(&[&format!(r#"{{"op":"remove","path":"{path}"}}"#)], &|document| {
                let member = document.member(Document::ROOT, key).unwrap().unwrap();
                document.remove(member, Document::ROOT);
            })
        };
        assert_eq!((removed("/a~1b", "a/b"), removed("/c~0d", "c~d")), (Ok(()), Ok(())));
        for path in ["/c~2d", "/c~d", "/c~"] {
            assert!(removed(path, "c~d").is_err(), "{path}");
        }
        // The check rejects these patches: if a later operation replaces or removes a value, the check can no longer
        // compare that value with the document.
        let k = |document: &mut Document<'_>| {
            document.add_member(Document::ROOT, Key::new("k"), Content::Scalar("1"));
        };
        let bad = r#"{"op":"add","path":"/k","value":x}"#;
        assert!(checked(&[bad, &add("/k")], &k).is_err());
        assert!(checked(&[bad, r#"{"op":"remove","path":"/k"}"#], &|_| ()).is_err());
        let gone = |document: &mut Document<'_>| {
            let member = document.member(Document::ROOT, "m").unwrap().unwrap();
            document.remove(member, Document::ROOT);
        };
        let below = r#"{"op":"add","path":"/m/y","value":x}"#;
        assert!(checked(&[below, r#"{"op":"remove","path":"/m"}"#], &gone).is_err());
        assert_eq!(checked(&[r#"{"op":"remove","path":"/m"}"#], &gone), Ok(()));
    }

    /// An edit in the property test. `Insert` contains a row and a position in the row. `Replace` and `Remove` contain
    /// the number of a cell.
    #[derive(Clone, Debug)]
    enum Edit {
        Insert(usize, usize),
        Replace(usize),
        Remove(usize),
    }

    proptest! {
        /// The reference implementation json-patch applies the patch. The result must equal the edited document.
        #[test]
        fn patch_gives_edited_document(
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
            let mut expected_object = String::new();
            document.write(Document::ROOT, &mut expected_object);
            let expected_object: serde_json::Value = serde_json::from_str(&expected_object).unwrap();
            let mut patched = object;
            if let Some(patch) = write(&document) {
                let patch = check(tape.root(), patch, &document).unwrap();
                json_patch::patch(&mut patched, &serde_json::from_slice::<json_patch::Patch>(&patch).unwrap()).unwrap();
            }
            prop_assert_eq!(patched, expected_object);
        }
    }
}
