//! The merge of one template into one object.
//!
//! Objects merge by key, keyed lists by their keys, everything else is one value; where the object has a value, its
//! author wins. An element that a template adds by a name that is taken is a conflict, unless the record of an earlier
//! pass says that it is ours: then it is left alone, whatever others made of it since.

use std::borrow::Cow;

use crate::json::{Content, Document, Key, Kind, Malformed, SlotId, Value};
use crate::report::Reason;
use crate::schema::{self, Field, KeyedList, OneOf, Type};

use super::record::RecordWriter;

/// Why a template cannot be laid over an object.
#[derive(Debug)]
pub(crate) struct Conflict {
    pub(crate) reason: Reason,
    /// Where: `/spec/containers/logger`.
    pub(crate) place: Box<str>,
}

/// What ends a merge.
pub(super) enum Fault {
    Conflict(Conflict),
    Malformed(Malformed),
}

impl From<Malformed> for Fault {
    fn from(malformed: Malformed) -> Self {
        Self::Malformed(malformed)
    }
}

/// One template's merge.
pub(super) struct Merge<'d, 'a, 'r> {
    document: &'d mut Document<'a>,
    /// What the same profile added in an earlier pass.
    earlier: Vec<Cow<'r, str>>,
    record: &'d mut RecordWriter,
    added: usize,
    /// Pointer to the place at hand, with the elements of keyed lists by their keys.
    pointer: String,
}

impl<'d, 'a, 'r> Merge<'d, 'a, 'r> {
    pub(super) fn new(
        document: &'d mut Document<'a>,
        earlier: Option<Vec<Cow<'r, str>>>,
        record: &'d mut RecordWriter,
    ) -> Self {
        Self { document, earlier: earlier.unwrap_or_default(), record, added: 0, pointer: String::with_capacity(128) }
    }

    /// How much was added.
    pub(super) const fn added(&self) -> usize {
        self.added
    }

    /// Lays the template over the whole pod.
    pub(super) fn pod(&mut self, template: Value<'a>) -> Result<(), Fault> {
        self.object(Document::ROOT, template, &schema::POD)
    }

    fn object(&mut self, at: SlotId, template: Value<'a>, type_: &'static Type) -> Result<(), Fault> {
        self.document.open(at)?;
        for (key, value) in template.members() {
            let length = self.pointer.len();
            let name = key.text();
            push_token(&mut self.pointer, &name);
            let existing = self.document.member(at, &name)?;
            let present = existing.filter(|slot| self.document.kind(*slot) != Kind::Null);
            match present {
                Some(present) => self.member(at, present, value, type_.field(&name))?,
                None if self.chosen_otherwise(at, &name, &type_.one_of)? => {}
                None => self.add_member(at, existing, key, value, type_.field(&name))?,
            }
            self.pointer.truncate(length);
        }
        Ok(())
    }

    /// Whether the object has another member of the same choice: then its author has chosen.
    fn chosen_otherwise(&mut self, at: SlotId, name: &str, one_of: &OneOf) -> Result<bool, Fault> {
        if !one_of.holds(name) {
            return Ok(false);
        }
        self.document.open(at)?;
        let chosen = self.document.children(at).any(|child| {
            self.document.kind(child) != Kind::Null
                && self.document.key(child).is_some_and(|key| !key.is(name) && one_of.holds(&key.text()))
        });
        Ok(chosen)
    }

    /// A member that the object has.
    fn member(
        &mut self,
        parent: SlotId,
        present: SlotId,
        value: Value<'a>,
        field: Option<&'static Field>,
    ) -> Result<(), Fault> {
        match (self.document.kind(present), value.kind(), field) {
            (Kind::Object, Kind::Object, Some(Field::Object(type_))) => self.object(present, value, type_),
            (Kind::Object, Kind::Object, None) => self.object(present, value, &schema::ANY),
            (Kind::Array, Kind::Array, Some(Field::Keyed(keyed))) => self.list(parent, present, value, keyed),
            (_, _, Some(_)) => Err(self.conflict(Reason::TypeConflict)),
            // A scalar, or a list that is one value: the author's stays.
            _ => Ok(()),
        }
    }

    /// A member that the object does not have, or has as null.
    fn add_member(
        &mut self,
        at: SlotId,
        null: Option<SlotId>,
        key: Key<'a>,
        value: Value<'a>,
        field: Option<&'static Field>,
    ) -> Result<(), Fault> {
        let content = match (field, value.kind()) {
            (Some(Field::Object(type_)), Kind::Object) if type_.spread => Content::Map,
            (Some(Field::Keyed(_)), Kind::Array) => Content::List,
            _ => Content::Value(value),
        };
        let slot = match null {
            Some(null) => {
                self.document.replace(null, content);
                null
            }
            None => self.document.add_member(at, key, content),
        };
        match (content, field) {
            (Content::Map, Some(Field::Object(type_))) => self.object(slot, value, type_),
            (Content::List, Some(Field::Keyed(keyed))) => self.list(at, slot, value, keyed),
            _ => {
                self.note();
                Ok(())
            }
        }
    }

    fn list(
        &mut self,
        parent: SlotId,
        list: SlotId,
        template: Value<'a>,
        keyed: &'static KeyedList,
    ) -> Result<(), Fault> {
        self.document.open(list)?;
        for element in template.items() {
            let length = self.pointer.len();
            self.push_keys(element, keyed);
            let existing = self.find(list, element, keyed);
            match existing {
                Some(_) if self.is_ours() => {}
                Some(existing) if self.is_equal(existing, element) => {}
                Some(_) if keyed.names => return Err(self.conflict(Reason::NameTaken)),
                Some(existing) => self.object(existing, element, keyed.element)?,
                None => {
                    self.check_siblings(parent, list, element, keyed)?;
                    self.document.push_item(list, Content::Value(element));
                    self.note();
                }
            }
            self.pointer.truncate(length);
        }
        Ok(())
    }

    /// The element of a list that has the same keys.
    fn find(&self, list: SlotId, element: Value<'a>, keyed: &KeyedList) -> Option<SlotId> {
        self.document.children(list).find(|candidate| {
            keyed.keys.iter().all(|key| {
                let wanted = key_of(element, key, keyed);
                match self.document.content(*candidate) {
                    Content::Value(value) => wanted == key_of(value, key, keyed),
                    _ => wanted.is_some() && self.document.text(*candidate, key) == wanted,
                }
            })
        })
    }

    /// Containers of all kinds share their names.
    fn check_siblings(
        &mut self,
        parent: SlotId,
        list: SlotId,
        element: Value<'a>,
        keyed: &'static KeyedList,
    ) -> Result<(), Fault> {
        for sibling in keyed.siblings {
            let Some(sibling) = self.document.member(parent, sibling)?.filter(|sibling| *sibling != list) else {
                continue;
            };
            self.document.open(sibling)?;
            if self.find(sibling, element, keyed).is_some() {
                return Err(self.conflict(Reason::NameTaken));
            }
        }
        Ok(())
    }

    fn is_equal(&self, existing: SlotId, element: Value<'a>) -> bool {
        matches!(self.document.content(existing), Content::Value(value) if value.means(element))
    }

    /// Whether an earlier pass of the same profile added what stands at the place at hand.
    fn is_ours(&self) -> bool {
        self.earlier.iter().any(|pointer| *pointer == self.pointer)
    }

    /// Notes that something was added at the place at hand. What an earlier pass had added stands in the record already.
    fn note(&mut self) {
        self.added += 1;
        if !self.is_ours() {
            self.record.add(&self.pointer);
        }
    }

    fn push_keys(&mut self, element: Value<'a>, keyed: &KeyedList) {
        for (index, key) in keyed.keys.iter().enumerate() {
            let value = key_of(element, key, keyed).unwrap_or_default();
            if index == 0 {
                push_token(&mut self.pointer, &value);
            } else {
                self.pointer.push(',');
                push_escaped(&mut self.pointer, &value);
            }
        }
    }

    fn conflict(&self, reason: Reason) -> Fault {
        Fault::Conflict(Conflict { reason, place: self.pointer.as_str().into() })
    }
}

/// The value of a key field, as text: strings by what they stand for, anything else as it stands.
fn key_of<'v>(element: Value<'v>, key: &str, keyed: &KeyedList) -> Option<Cow<'v, str>> {
    let absent = || keyed.defaults.iter().find(|(field, _)| *field == key).map(|(_, text)| text.trim_matches('"'));
    match element.get(key) {
        Some(value) => Some(value.as_str().unwrap_or_else(|| Cow::Borrowed(value.raw()))),
        None => absent().map(Cow::Borrowed),
    }
}

fn push_token(pointer: &mut String, token: &str) {
    pointer.push('/');
    push_escaped(pointer, token);
}

fn push_escaped(pointer: &mut String, token: &str) {
    for character in token.chars() {
        match character {
            '~' => pointer.push_str("~0"),
            '/' => pointer.push_str("~1"),
            other => pointer.push(other),
        }
    }
}
