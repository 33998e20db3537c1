//! The merge of one template into one object.
//!
//! Objects merge by key, keyed lists by their keys, everything else is one value; where the object has a value, its
//! author wins unless the template says otherwise. An element that a template adds by a name that is taken is a conflict,
//! unless the record of an earlier pass says that it is ours: then it is left alone, whatever others made of it since.

use std::borrow::Cow;

use crate::json::{Content, Document, Key, Kind as JsonKind, Malformed, SlotId, Value};
use crate::profile::template::{ConflictRule, Join, Kind, Node, Position, Rules};
use crate::report::Reason;
use crate::schema::{self, Field, KeyedList, OneOf, Type};

use super::join;
use super::record::{Earlier, RecordWriter};

/// Why a template cannot be laid over an object.
#[derive(Debug)]
pub(crate) struct Conflict {
    pub(crate) reason: Reason,
    /// Where: `/spec/containers/logger`.
    pub(crate) place: Box<str>,
}

impl Conflict {
    pub(super) fn new(reason: Reason, place: &str) -> Self {
        Self { reason, place: place.into() }
    }
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

/// How many elements were put at each place of a list so far, by all profiles: several at one place keep their order.
#[derive(Clone, Debug, Default)]
pub(super) struct Places(Vec<(Box<str>, Position, usize)>);

impl Places {
    /// How many there were, and counts one more.
    fn next(&mut self, list: &str, position: &Position) -> usize {
        let known = self.0.iter_mut().find(|(other, at, _)| **other == *list && at == position);
        if let Some((_, _, count)) = known {
            *count += 1;
            return *count - 1;
        }
        self.0.push((list.into(), position.clone(), 1));
        0
    }
}

/// A part of a template: with directives below it, or the plain JSON that it is.
#[derive(Clone, Copy)]
enum Part<'a> {
    Node(&'a Node),
    Plain(Value<'a>),
}

impl<'a> Part<'a> {
    /// The whole of it, without its directives.
    fn value(self) -> Value<'a> {
        match self {
            Self::Node(node) => node.whole.root(),
            Self::Plain(value) => value,
        }
    }

    fn rules(self) -> Option<&'a Rules> {
        match self {
            Self::Node(node) => Some(&node.rules),
            Self::Plain(_) => None,
        }
    }

    fn conflict(self) -> Option<ConflictRule> {
        self.rules().and_then(|rules| rules.conflict)
    }

    fn join(self) -> Option<&'a Join> {
        self.rules().and_then(|rules| rules.join.as_ref())
    }

    fn for_each_member(self, work: &mut dyn FnMut(Key<'a>, Self) -> Result<(), Fault>) -> Result<(), Fault> {
        match self {
            Self::Node(Node { kind: Kind::Map(fields), .. }) => {
                fields.iter().try_for_each(|(key, node)| work(Key::new(key), Self::Node(node)))
            }
            _ => self.value().members().try_for_each(|(key, value)| work(key, Self::Plain(value))),
        }
    }

    fn for_each_item(self, work: &mut dyn FnMut(Self) -> Result<(), Fault>) -> Result<(), Fault> {
        match self {
            Self::Node(Node { kind: Kind::List(nodes), .. }) => {
                nodes.iter().try_for_each(|node| work(Self::Node(node)))
            }
            _ => self.value().items().try_for_each(|value| work(Self::Plain(value))),
        }
    }
}

/// One template's merge.
pub(super) struct Merge<'d, 'a, 'r> {
    document: &'d mut Document<'a>,
    /// What the same profile did in an earlier pass.
    earlier: Earlier<'r>,
    places: &'d mut Places,
    record: &'d mut RecordWriter,
    /// The rule of the template's parts around the one at hand.
    conflict: ConflictRule,
    changes: usize,
    /// Pointer to the place at hand, with the elements of keyed lists by their keys.
    pointer: String,
}

impl<'d, 'a, 'r> Merge<'d, 'a, 'r> {
    pub(super) fn new(
        document: &'d mut Document<'a>,
        earlier: Option<Earlier<'r>>,
        places: &'d mut Places,
        record: &'d mut RecordWriter,
    ) -> Self {
        Self {
            document,
            earlier: earlier.unwrap_or_default(),
            places,
            record,
            conflict: ConflictRule::Merge,
            changes: 0,
            pointer: String::with_capacity(128),
        }
    }

    /// How much was changed.
    pub(super) const fn changes(&self) -> usize {
        self.changes
    }

    /// Lays the template over the whole pod.
    pub(super) fn pod(&mut self, template: &'a Node) -> Result<(), Fault> {
        self.object(Document::ROOT, Part::Node(template), &schema::POD)
    }

    fn object(&mut self, at: SlotId, part: Part<'a>, type_: &'static Type) -> Result<(), Fault> {
        self.document.open(at)?;
        part.for_each_member(&mut |key, part| {
            let length = self.pointer.len();
            let name = key.text();
            push_token(&mut self.pointer, &name);
            self.member(at, key, &name, part, type_)?;
            self.pointer.truncate(length);
            Ok(())
        })
    }

    fn member(
        &mut self,
        at: SlotId,
        key: Key<'a>,
        name: &str,
        part: Part<'a>,
        type_: &'static Type,
    ) -> Result<(), Fault> {
        let existing = self.document.member(at, name)?;
        let present = existing.filter(|slot| self.document.kind(*slot) != JsonKind::Null);
        let field = type_.field(name);
        if let Some(present) = present {
            return self.lay(at, present, part, field);
        }
        let others = self.chosen_otherwise(at, name, &type_.one_of);
        if !others.is_empty() {
            match part.conflict().unwrap_or(self.conflict) {
                ConflictRule::Merge | ConflictRule::Keep => return Ok(()),
                ConflictRule::Fail => return Err(self.fault(Reason::NameTaken)),
                ConflictRule::Replace => others.into_iter().for_each(|other| self.take_away(at, other)),
            }
        }
        self.add_member(at, existing, key, part, field)
    }

    /// The object's members of the same choice, if it has others than this one: then its author has chosen.
    fn chosen_otherwise(&self, at: SlotId, name: &str, one_of: &OneOf) -> Vec<SlotId> {
        if !one_of.holds(name) {
            return Vec::new();
        }
        let is_other = |child: &SlotId| {
            self.document.kind(*child) != JsonKind::Null
                && self.document.key(*child).is_some_and(|key| !key.is(name) && one_of.holds(&key.text()))
        };
        self.document.children(at).filter(is_other).collect()
    }

    /// Lays a part over what the object has.
    fn lay(
        &mut self,
        parent: SlotId,
        present: SlotId,
        part: Part<'a>,
        field: Option<&'static Field>,
    ) -> Result<(), Fault> {
        if let Some(join) = part.join() {
            return self.join(present, part, join);
        }
        let around = self.conflict;
        self.conflict = part.conflict().unwrap_or(around);
        let result = match (self.document.kind(present), part.value().kind(), field) {
            _ if self.conflict == ConflictRule::Keep => Ok(()),
            (JsonKind::Object, JsonKind::Object, Some(Field::Object(type_))) => self.object(present, part, type_),
            (JsonKind::Object, JsonKind::Object, None) => self.object(present, part, &schema::ANY),
            (JsonKind::Array, JsonKind::Array, Some(Field::Keyed(keyed))) => self.list(parent, present, part, keyed),
            (_, _, Some(_)) => Err(self.fault(Reason::TypeConflict)),
            // A scalar, or a list that is one value.
            _ => self.leaf(present, part.value()),
        };
        self.conflict = around;
        result
    }

    fn leaf(&mut self, present: SlotId, value: Value<'a>) -> Result<(), Fault> {
        if self.is_equal(present, value) {
            return Ok(());
        }
        match self.conflict {
            ConflictRule::Merge | ConflictRule::Keep => Ok(()),
            ConflictRule::Fail => Err(self.fault(Reason::NameTaken)),
            ConflictRule::Replace => {
                self.note_replaced(present);
                self.document.replace(present, Content::Value(value));
                Ok(())
            }
        }
    }

    /// Adds what is missing to what the object has. A value of another type stays as it is.
    fn join(&mut self, present: SlotId, part: Part<'a>, join: &Join) -> Result<(), Fault> {
        match (self.document.kind(present), part.value().kind()) {
            (JsonKind::Array, JsonKind::Array) => {
                let items = self.document.children_of_value(present);
                let is_there = |item: &Value<'a>| items.iter().any(|other| other.means(*item));
                let missing: Vec<_> = part.value().items().filter(|item| !is_there(item)).collect();
                if !missing.is_empty() {
                    self.note_replaced(present);
                    self.document.open(present)?;
                    for item in missing {
                        self.document.push_item(present, Content::Value(item));
                    }
                }
            }
            // An entry of an env list: the join is about its value. A reference stays.
            (JsonKind::Object, JsonKind::Object) => {
                let value = part.value().get("value");
                if let (Some(slot), Some(value)) = (self.document.member(present, "value")?, value) {
                    let length = self.pointer.len();
                    push_token(&mut self.pointer, "value");
                    self.join_text(slot, value, join);
                    self.pointer.truncate(length);
                }
            }
            _ => self.join_text(present, part.value(), join),
        }
        Ok(())
    }

    fn join_text(&mut self, present: SlotId, value: Value<'a>, join: &Join) {
        let there = self.document.raw(present).and_then(join::text_of);
        let (Some(there), Some(value)) = (there, value.as_str()) else { return };
        if let Some(joined) = join::text(&there, &value, join) {
            self.note_replaced(present);
            let content = self.document.keep(joined);
            self.document.replace(present, content);
        }
    }

    /// Adds a member that the object does not have, or has as null.
    fn add_member(
        &mut self,
        at: SlotId,
        null: Option<SlotId>,
        key: Key<'a>,
        part: Part<'a>,
        field: Option<&'static Field>,
    ) -> Result<(), Fault> {
        let value = part.value();
        let content = match (field, value.kind()) {
            (Some(Field::Object(type_)), JsonKind::Object) if type_.spread => Content::Map,
            (Some(Field::Keyed(_)), JsonKind::Array) => Content::List,
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
            (Content::Map, Some(Field::Object(type_))) => self.object(slot, part, type_),
            (Content::List, Some(Field::Keyed(keyed))) => self.list(at, slot, part, keyed),
            _ => {
                self.note_added();
                Ok(())
            }
        }
    }

    fn list(&mut self, parent: SlotId, list: SlotId, part: Part<'a>, keyed: &'static KeyedList) -> Result<(), Fault> {
        self.document.open(list)?;
        part.for_each_item(&mut |element| {
            let length = self.pointer.len();
            push_keys(&mut self.pointer, keyed, |key| element.value().get(key));
            self.element(parent, list, element, keyed, length)?;
            self.pointer.truncate(length);
            Ok(())
        })
    }

    fn element(
        &mut self,
        parent: SlotId,
        list: SlotId,
        element: Part<'a>,
        keyed: &'static KeyedList,
        list_pointer: usize,
    ) -> Result<(), Fault> {
        let written = element.conflict();
        let rule = written.unwrap_or(if keyed.names { ConflictRule::Fail } else { self.conflict });
        let Some(existing) = self.find(list, element.value(), keyed) else {
            self.check_siblings(parent, list, element.value(), keyed)?;
            self.insert(list, element, list_pointer);
            self.note_added();
            return Ok(());
        };
        let reaches_in = element.join().is_some() || matches!(rule, ConflictRule::Merge | ConflictRule::Replace);
        // What an earlier pass added is left alone, except that a join adds missing pieces and a written `Replace` sets
        // its value again.
        let sets_again = element.join().is_some() || written == Some(ConflictRule::Replace);
        match rule {
            _ if self.is_ours() && !sets_again => Ok(()),
            _ if self.is_equal(existing, element.value()) => Ok(()),
            _ if reaches_in => {
                let around = std::mem::replace(&mut self.conflict, rule);
                let result = match element.join() {
                    Some(join) => self.join(existing, element, join),
                    None => self.object(existing, element, keyed.element),
                };
                self.conflict = around;
                result
            }
            ConflictRule::Keep => Ok(()),
            _ => Err(self.fault(Reason::NameTaken)),
        }
    }

    /// Puts a new element where its profile says.
    fn insert(&mut self, list: SlotId, element: Part<'a>, list_pointer: usize) {
        let position = element.rules().and_then(|rules| rules.position.as_ref()).unwrap_or(&Position::Last);
        let index = match position {
            Position::Last => None,
            Position::First => Some(0),
            Position::Before(name) => self.index_of(list, name),
            Position::After(name) => self.index_of(list, name).map(|index| index + 1),
        };
        let content = Content::Value(element.value());
        match (index, position) {
            (None, _) => {
                self.document.push_item(list, content);
            }
            // Each goes directly before the element that is named, so behind those that went there already.
            (Some(index), Position::Before(_)) => {
                self.document.insert_item(list, index, content);
            }
            (Some(index), _) => {
                let list_pointer = self.pointer.get(..list_pointer).unwrap_or_default();
                let already = self.places.next(list_pointer, position);
                self.document.insert_item(list, index + already, content);
            }
        }
    }

    fn index_of(&self, list: SlotId, name: &str) -> Option<usize> {
        let has_name = |child| self.document.value_of(child, "name").is_some_and(|value| value.is(name));
        self.document.children(list).position(has_name)
    }

    /// The element of a list that has the same keys.
    fn find(&self, list: SlotId, element: Value<'a>, keyed: &KeyedList) -> Option<SlotId> {
        self.document.children(list).find(|candidate| {
            keyed.keys.iter().all(|key| {
                let found = self.document.value_of(*candidate, key);
                key_of(element.get(key), key, keyed) == key_of(found, key, keyed)
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
                return Err(self.fault(Reason::NameTaken));
            }
        }
        Ok(())
    }

    fn is_equal(&self, existing: SlotId, value: Value<'a>) -> bool {
        match self.document.content(existing) {
            Content::Value(other) => other.means(value),
            _ => self.document.raw(existing).is_some_and(|raw| raw == value.raw()),
        }
    }

    /// Takes a member away that excludes one of ours.
    fn take_away(&mut self, parent: SlotId, member: SlotId) {
        let length = self.pointer.len();
        let parent_pointer = self.pointer.rfind('/').unwrap_or(0);
        if let Some(key) = self.document.key(member) {
            let mut pointer = self.pointer.get(..parent_pointer).unwrap_or_default().to_owned();
            push_token(&mut pointer, &key.text());
            let ours = std::mem::replace(&mut self.pointer, pointer);
            self.note_replaced(member);
            self.pointer = ours;
        }
        self.pointer.truncate(length);
        self.document.remove(member, parent);
    }

    /// Whether an earlier pass of the same profile added what stands at the place at hand.
    fn is_ours(&self) -> bool {
        self.earlier.added.iter().any(|pointer| *pointer == self.pointer)
    }

    /// Notes that something was added at the place at hand. What an earlier pass had added stands in the record already.
    fn note_added(&mut self) {
        self.changes += 1;
        if !self.is_ours() {
            self.record.add(&self.pointer);
        }
    }

    /// Notes what stands at the place at hand, before it is replaced. What stood there before an earlier pass replaced it
    /// stands in the record already; what we added ourselves is no original.
    fn note_replaced(&mut self, present: SlotId) {
        self.changes += 1;
        let is_known = self.earlier.replaced.iter().any(|pointer| *pointer == self.pointer);
        if is_known || self.is_below_ours() {
            return;
        }
        let mut original = Vec::new();
        self.document.write(present, &mut original);
        if let Ok(original) = std::str::from_utf8(&original) {
            self.record.replace(&self.pointer, original);
        }
    }

    fn is_below_ours(&self) -> bool {
        self.earlier.added.iter().any(|pointer| {
            let rest = self.pointer.strip_prefix(&**pointer);
            rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        })
    }

    fn fault(&self, reason: Reason) -> Fault {
        Fault::Conflict(Conflict { reason, place: self.pointer.as_str().into() })
    }
}

/// The value of a key field, as text: strings by what they stand for, anything else as it stands.
fn key_of<'v>(value: Option<Value<'v>>, key: &str, keyed: &'v KeyedList) -> Option<Cow<'v, str>> {
    if let Some(value) = value {
        return Some(value.as_str().unwrap_or_else(|| Cow::Borrowed(value.raw())));
    }
    let default = keyed.defaults.iter().find(|(field, _)| *field == key);
    default.map(|(_, text)| Cow::Borrowed(text.trim_matches('"')))
}

/// Writes the token of an element by the values of its key fields.
pub(super) fn push_keys<'v>(pointer: &mut String, keyed: &'v KeyedList, value: impl Fn(&str) -> Option<Value<'v>>) {
    for (index, key) in keyed.keys.iter().enumerate() {
        let value = key_of(value(key), key, keyed).unwrap_or_default();
        if index == 0 {
            push_token(pointer, &value);
        } else {
            pointer.push(',');
            push_escaped(pointer, &value);
        }
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
