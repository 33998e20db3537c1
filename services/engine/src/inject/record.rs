//! The record of what was injected: the annotation `pillion.dev/injected`.
//!
//! It lists, for each profile, its revision, the elements that it added, and what stood at every place whose value it
//! replaced. A place is named by a pointer in which the elements of keyed lists stand by their keys, because places in
//! lists change: `/spec/containers/logger`.
//!
//! A record is trusted only if it is genuine. In a CREATE review, `metadata.managedFields` names what the author of the
//! request wrote and nothing that admission added, and the API server computes it; so a record that managedFields name
//! was written by somebody else than us.

use std::borrow::Cow;

use pillion_api::names::INJECTED_ANNOTATION;

use crate::json::{OwnedTape, Value, write_string};
use crate::limits::Done;

/// How large the record may be, in bytes. All annotations of an object together may be 256 KiB.
const MAX_RECORD_BYTES: usize = 16 * 1024;

/// The version of the record's form.
const VERSION: &str = "1";

/// The record of an earlier pass, as it was found.
#[derive(Debug)]
pub(crate) struct Record {
    tape: OwnedTape,
}

/// What one profile did in an earlier pass, by pointers.
#[derive(Debug, Default)]
pub(crate) struct Earlier<'r> {
    pub(crate) added: Vec<Cow<'r, str>>,
    /// With what stood there.
    pub(crate) replaced: Vec<(Cow<'r, str>, Value<'r>)>,
    /// What profiles that come behind it added: this one did not see it then, and does not now.
    pub(crate) added_later: Vec<Cow<'r, str>>,
    /// What they replaced, with what stood there.
    pub(crate) replaced_later: Vec<(Cow<'r, str>, Value<'r>)>,
}

/// Whether the annotation of an object that has one is genuine: managedFields are there and do not name it.
pub(crate) fn is_genuine(object: Value<'_>) -> bool {
    let Some(managed) = object.at(&["metadata", "managedFields"]) else { return false };
    let mut entries = managed.items().peekable();
    let names_it = |entry: Value<'_>| {
        let annotations = entry.at(&["fieldsV1", "f:metadata", "f:annotations"]);
        let mut fields = annotations.into_iter().flat_map(Value::members);
        fields.any(|(field, _)| field.text().strip_prefix("f:") == Some(INJECTED_ANNOTATION))
    };
    entries.peek().is_some() && !entries.any(names_it)
}

impl Record {
    /// Reads a record; `None` if it is not one that this build understands.
    pub(crate) fn read(text: &str) -> Option<Self> {
        if text.len() > MAX_RECORD_BYTES {
            return None;
        }
        let tape = OwnedTape::parse(text).ok()?;
        (tape.root().get("version")?.raw() == VERSION).then_some(Self { tape })
    }

    /// The profiles that were applied, each with its revision.
    pub(crate) fn revisions(&self) -> impl Iterator<Item = (Cow<'_, str>, Cow<'_, str>)> {
        self.profiles().filter_map(|entry| {
            Some((entry.get("profile").and_then(Value::as_str)?, entry.get("revision").and_then(Value::as_str)?))
        })
    }

    /// The elements that any profile added.
    pub(crate) fn all_added(&self) -> impl Iterator<Item = Cow<'_, str>> {
        self.profiles().flat_map(Self::added)
    }

    /// The places whose values any profile replaced, and what stood there.
    pub(crate) fn all_replaced(&self) -> impl Iterator<Item = (Cow<'_, str>, Value<'_>)> {
        self.profiles().flat_map(Self::replaced)
    }

    /// The places that the platform's profiles added or replaced. A namespaced profile is called by its namespace too.
    pub(crate) fn of_the_platform(&self) -> impl Iterator<Item = (Cow<'_, str>, Done)> {
        let is_cluster =
            |entry: &Value<'_>| entry.get("profile").and_then(Value::as_str).is_some_and(|name| !name.contains('/'));
        let places = |entry| {
            let added = Self::added(entry).map(|pointer| (pointer, Done::Added));
            added.chain(Self::replaced(entry).map(|(pointer, _)| (pointer, Done::Set)))
        };
        self.profiles().filter(is_cluster).flat_map(places)
    }

    /// What a profile did, and what was done behind it. `is_before` tells the profiles that come before it.
    pub(crate) fn of(&self, profile: &str, is_before: impl Fn(&str) -> bool) -> Earlier<'_> {
        let mut earlier = Earlier::default();
        for entry in self.profiles() {
            let name = entry.get("profile").and_then(Value::as_str).unwrap_or_default();
            if name == profile {
                earlier.added.extend(Self::added(entry));
                earlier.replaced.extend(Self::replaced(entry));
            } else if !is_before(&name) {
                earlier.added_later.extend(Self::added(entry));
                earlier.replaced_later.extend(Self::replaced(entry));
            }
        }
        earlier
    }

    fn profiles(&self) -> impl Iterator<Item = Value<'_>> {
        self.tape.root().get("profiles").into_iter().flat_map(Value::items)
    }

    fn entry(&self, profile: &str) -> Option<Value<'_>> {
        self.profiles().find(|entry| entry.get("profile").is_some_and(|name| name.is(profile)))
    }

    fn added(entry: Value<'_>) -> impl Iterator<Item = Cow<'_, str>> {
        entry.get("added").into_iter().flat_map(Value::items).filter_map(Value::as_str)
    }

    fn replaced(entry: Value<'_>) -> impl Iterator<Item = (Cow<'_, str>, Value<'_>)> {
        entry.get("replaced").into_iter().flat_map(Value::items).filter_map(|pair| {
            let mut pair = pair.items();
            Some((pair.next()?.as_str()?, pair.next()?))
        })
    }
}

/// Writes the record of this pass, profile by profile.
#[derive(Debug)]
pub(crate) struct RecordWriter {
    out: Vec<u8>,
    /// Whether the profile at hand has an element.
    has_elements: bool,
    /// What the profile at hand replaced, as pairs of a pointer and what stood there.
    replaced: Vec<u8>,
}

impl RecordWriter {
    pub(crate) fn new() -> Self {
        let mut out = Vec::with_capacity(512);
        out.extend_from_slice(b"{\"version\":");
        out.extend_from_slice(VERSION.as_bytes());
        out.extend_from_slice(b",\"profiles\":[");
        Self { out, has_elements: false, replaced: Vec::new() }
    }

    /// Begins the entry of a profile, with what it added in an earlier pass. Gives a mark to come back to.
    pub(crate) fn begin(&mut self, profile: &str, revision: &str, earlier: Option<&Record>) -> usize {
        let mark = self.out.len();
        self.separate();
        self.out.extend_from_slice(b"{\"profile\":");
        write_string(&mut self.out, profile);
        self.out.extend_from_slice(b",\"revision\":");
        write_string(&mut self.out, revision);
        self.out.extend_from_slice(b",\"added\":[");
        self.has_elements = false;
        self.replaced.clear();
        let entry = earlier.and_then(|record| record.entry(profile));
        for pointer in entry.into_iter().flat_map(Record::added) {
            self.add(&pointer);
        }
        for (pointer, original) in entry.into_iter().flat_map(Record::replaced) {
            self.replace(&pointer, original.raw());
        }
        mark
    }

    /// Notes an element that was added.
    pub(crate) fn add(&mut self, pointer: &str) {
        if self.has_elements {
            self.out.push(b',');
        }
        self.has_elements = true;
        write_string(&mut self.out, pointer);
    }

    /// Notes a place whose value was replaced, and what stood there as JSON.
    pub(crate) fn replace(&mut self, pointer: &str, original: &str) {
        if !self.replaced.is_empty() {
            self.replaced.push(b',');
        }
        self.replaced.push(b'[');
        write_string(&mut self.replaced, pointer);
        self.replaced.push(b',');
        self.replaced.extend_from_slice(original.as_bytes());
        self.replaced.push(b']');
    }

    /// Whether there is more in it already than it may have.
    pub(crate) const fn is_full(&self) -> bool {
        self.out.len() + self.replaced.len() > MAX_RECORD_BYTES
    }

    /// Ends the entry. Whether the record is not too large.
    pub(crate) fn end(&mut self) -> bool {
        if !self.replaced.is_empty() {
            self.out.extend_from_slice(b"],\"replaced\":[");
            self.out.append(&mut self.replaced);
        }
        self.out.extend_from_slice(b"]}");
        self.out.len() + 2 <= MAX_RECORD_BYTES
    }

    /// The record as it was at the mark.
    pub(crate) fn at(&self, mark: usize) -> Option<Record> {
        let entries = std::str::from_utf8(self.out.get(..mark)?).ok()?;
        Record::read(&format!("{entries}]}}"))
    }

    /// Forgets all since the mark.
    pub(crate) fn take_back(&mut self, mark: usize) {
        self.out.truncate(mark);
        self.replaced.clear();
    }

    /// Forgets all since the mark, and keeps the entry that a profile had before, with its revision: this pass changed
    /// nothing.
    pub(crate) fn keep(&mut self, mark: usize, earlier: Option<&Record>, profile: &str) {
        self.take_back(mark);
        if let Some(entry) = earlier.and_then(|record| record.entry(profile)) {
            self.separate();
            self.out.extend_from_slice(entry.raw().as_bytes());
        }
    }

    /// Keeps the entries of an earlier record whose profiles were not applied this time: what they added is there still.
    /// They come first, so that a new profile for which there is no room any more is the one that is left out.
    pub(crate) fn keep_others<'p>(&mut self, earlier: &Record, mut is_applied: impl FnMut(&str) -> bool + 'p) {
        for entry in earlier.profiles() {
            if entry.get("profile").and_then(Value::as_str).is_some_and(|name| !is_applied(&name)) {
                self.separate();
                self.out.extend_from_slice(entry.raw().as_bytes());
            }
        }
    }

    /// The record as a JSON string, ready to be the annotation's value; `None` if nothing was ever added.
    pub(crate) fn finish(mut self) -> Option<String> {
        if self.out.last() == Some(&b'[') {
            return None;
        }
        self.out.extend_from_slice(b"]}");
        let text = String::from_utf8(self.out).ok()?;
        let mut quoted = Vec::with_capacity(text.len() + text.len() / 4);
        write_string(&mut quoted, &text);
        String::from_utf8(quoted).ok()
    }

    fn separate(&mut self) {
        if self.out.last() != Some(&b'[') {
            self.out.push(b',');
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(text: &str) -> Record {
        Record::read(text).unwrap()
    }

    #[test]
    fn what_is_written_is_read_back() {
        let mut writer = RecordWriter::new();
        writer.begin("a", "1", None);
        writer.add("/spec/containers/x");
        writer.add("/metadata/annotations/example.com~1y");
        assert!(writer.end());
        let mark = writer.begin("b", "2", None);
        writer.add("/spec/volumes/gone");
        writer.take_back(mark);
        writer.begin("c", "3", None);
        assert!(writer.end());
        let text: String = serde_json::from_str(&writer.finish().unwrap()).unwrap();
        let read = record(&text);
        assert_eq!(read.of("a", |_| false).added, ["/spec/containers/x", "/metadata/annotations/example.com~1y"]);
        assert!(read.of("b", |_| false).added.is_empty());
    }

    #[test]
    fn an_earlier_entry_is_continued_and_others_are_kept() {
        let earlier = record(
            r#"{"version":1,"profiles":[{"profile":"a","revision":"1","added":["/x"]},{"profile":"b","revision":"1","added":["/y"]}]}"#,
        );
        let mut writer = RecordWriter::new();
        writer.begin("a", "1", Some(&earlier));
        assert!(writer.end());
        writer.keep_others(&earlier, |name| name == "a");
        let text: String = serde_json::from_str(&writer.finish().unwrap()).unwrap();
        assert_eq!(record(&text).of("a", |_| false).added, ["/x"]);
        assert_eq!(record(&text).of("b", |_| false).added, ["/y"]);
    }

    #[test]
    fn no_entry_is_no_record() {
        assert_eq!(RecordWriter::new().finish(), None);
    }

    #[test]
    fn another_version_is_not_understood() {
        assert!(Record::read(r#"{"version":2,"profiles":[]}"#).is_none());
        assert!(Record::read("nonsense").is_none());
    }

    #[test]
    fn a_record_is_genuine_if_managed_fields_do_not_name_it() {
        let genuine = |managed: &str| {
            let text = format!(r#"{{"metadata":{{"managedFields":{managed}}}}}"#);
            is_genuine(OwnedTape::parse(text).unwrap().root())
        };
        let named =
            r#"[{"fieldsV1":{}},{"fieldsV1":{"f:metadata":{"f:annotations":{".":{},"f:pillion.dev/injected":{}}}}}]"#;
        assert!(!genuine(named));
        assert!(genuine(r#"[{"fieldsV1":{"f:metadata":{"f:annotations":{".":{},"f:other":{}}}}}]"#));
        assert!(!genuine("[]"));
        assert!(!is_genuine(OwnedTape::parse(r#"{"metadata":{}}"#).unwrap().root()));
    }
}
