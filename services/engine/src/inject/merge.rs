//! The merge of one template into one object.
//!
//! Objects merge by key, keyed lists by their keys, everything else is one value; where the object has a value, its
//! author wins unless the template says otherwise. Expressions are evaluated at the place where their value goes, because
//! they may ask what is there.
//!
//! What an earlier pass added is settled: it is left alone, whatever others made of it since, except for a `$join` and a
//! written `Replace`.

use crate::compute::{Arena, Computation};
use crate::expression::Budget;
use crate::json::{Content, Document, Key, Kind as JsonKind, Malformed, SlotId, State, Value, needs_escape};
use crate::profile::template::{ConflictRule, Join, Kind, Node};
use crate::report::Reason;
use crate::schema::{self, Field, OneOf, Type};

use super::authors::Authors;
use super::elements::{Keys, Places};
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
    /// A rule of the profile's refuses the object.
    Denied(Conflict),
    Malformed(Malformed),
}

impl From<Malformed> for Fault {
    fn from(malformed: Malformed) -> Self {
        Self::Malformed(malformed)
    }
}

/// A part of a template: with directives or expressions below it, or the plain JSON that it is.
#[derive(Clone, Copy)]
pub(super) enum Part<'a> {
    Node(&'a Node),
    Plain(Value<'a>),
}

/// The directives of a part, as far as they matter where it is laid.
#[derive(Clone, Copy, Default)]
pub(super) struct Directives<'a> {
    pub(super) conflict: Option<ConflictRule>,
    pub(super) join: Option<&'a Join>,
}

/// How parts are laid at the place at hand. A template's directive changes it for all that is below.
#[derive(Clone, Copy)]
pub(super) struct Manner {
    /// What happens where the object has a value that differs.
    pub(super) conflict: ConflictRule,
    /// Whether an earlier pass added what is here.
    pub(super) settled: bool,
    /// Whether what is here was added in this pass, so that the record has it with what is around it.
    pub(super) within_added: bool,
    /// Whether this is a container of the author's that says how an injected one should be.
    pub(super) overlay: bool,
}

/// What a merge works on and with.
pub(super) struct Surroundings<'d, 'a> {
    pub(super) document: &'d mut Document<'a>,
    pub(super) places: &'d mut Places,
    pub(super) record: &'d mut RecordWriter,
    pub(super) computation: &'d Computation<'a>,
    pub(super) arena: &'a Arena,
    pub(super) authors: Authors<'a>,
    /// What is known of the whole object.
    pub(super) type_: &'static Type,
    /// Whether anybody asks which containers were added.
    pub(super) collects_containers: bool,
}

/// One template's merge.
pub(super) struct Merge<'d, 'a> {
    pub(super) document: &'d mut Document<'a>,
    pub(super) computation: &'d Computation<'a>,
    pub(super) arena: &'a Arena,
    pub(super) budget: Budget,
    pub(super) authors: Authors<'a>,
    /// What is known of the whole object.
    pub(super) type_: &'static Type,
    /// What the same profile did in an earlier pass.
    pub(super) earlier: &'d Earlier<'a>,
    pub(super) places: &'d mut Places,
    pub(super) record: &'d mut RecordWriter,
    pub(super) manner: Manner,
    /// How much was changed, as the record has it.
    pub(super) changes: usize,
    /// How often anything was edited, also what counts as one change with others.
    pub(super) edits: usize,
    /// Pointer to the place at hand, with the elements of keyed lists by their keys.
    pub(super) pointer: String,
    /// Env entries of the list at hand that are new or joined.
    pub(super) env: Vec<SlotId>,
    /// Elements that were added in this pass. Later ones have higher numbers, so it is in order.
    pub(super) own: Vec<SlotId>,
    pub(super) collects_containers: bool,
    /// Containers that were added in this pass, by their pointers, if anybody asks.
    pub(super) containers: Vec<Box<str>>,
    /// What the author is told.
    pub(super) notes: Vec<Box<str>>,
}

impl<'d, 'a> Merge<'d, 'a> {
    pub(super) fn new(surroundings: Surroundings<'d, 'a>, earlier: &'d Earlier<'a>) -> Self {
        let Surroundings { document, places, record, computation, arena, authors, type_, collects_containers } =
            surroundings;
        Self {
            document,
            computation,
            arena,
            budget: Budget::of(Budget::PROFILE),
            authors,
            type_,
            earlier,
            places,
            record,
            manner: Manner { conflict: ConflictRule::Merge, settled: false, within_added: false, overlay: false },
            changes: 0,
            edits: 0,
            collects_containers,
            pointer: String::with_capacity(128),
            env: Vec::new(),
            own: Vec::with_capacity(16),
            containers: Vec::new(),
            notes: Vec::new(),
        }
    }

    /// How much was changed, what the author is told, and the containers that were added.
    pub(super) fn finish(self) -> (usize, Vec<Box<str>>, Vec<Box<str>>) {
        (self.changes, self.notes, self.containers)
    }

    /// Lays the template over the whole object.
    pub(super) fn whole(&mut self, template: &'a Node, type_: &'static Type) -> Result<(), Fault> {
        let Some(part) = self.resolve(template, type_)? else { return Ok(()) };
        self.object(Document::ROOT, part, type_, None)
    }

    /// Lays an object's members. Those of its fields that are keys of its list are known already.
    pub(super) fn object(
        &mut self,
        at: SlotId,
        part: Part<'a>,
        type_: &'static Type,
        keys: Option<&Keys<'a>>,
    ) -> Result<(), Fault> {
        self.document.open(at)?;
        let length = self.pointer.len();
        match part {
            Part::Plain(value) => {
                for (key, value) in value.members() {
                    let name = key.text();
                    push_token(&mut self.pointer, &name);
                    let existing = self.find_member(at, &name)?;
                    let directives = Directives::default();
                    self.member(at, existing, key, Part::Plain(value), directives, type_)?;
                    self.pointer.truncate(length);
                }
            }
            Part::Node(Node { kind: Kind::Map(fields), .. }) => {
                let is_new = self.is_new(at, type_);
                for (key, node) in fields {
                    let key = Key::new(key);
                    let name = key.text();
                    if is_new && let Some(value) = node.as_one_value(type_.field(&name)) {
                        self.add_value(at, key, value)?;
                        continue;
                    }
                    push_token(&mut self.pointer, &name);
                    let existing = self.find_member(at, &name)?;
                    match keys.and_then(|keys| keys.get(&name)) {
                        Some(value) => {
                            let directives = Directives::default();
                            self.member(at, existing, key, Part::Plain(value), directives, type_)?;
                        }
                        None => self.node(at, existing, key, node, type_)?,
                    }
                    self.pointer.truncate(length);
                }
            }
            Part::Node(_) => return Err(self.fault(Reason::TypeConflict)),
        }
        Ok(())
    }

    /// Whether an object was just made for what is added, so that no part of it can be in the way of another.
    fn is_new(&self, at: SlotId, type_: &Type) -> bool {
        self.manner.within_added
            && !self.manner.settled
            && matches!(type_.one_of, OneOf::Nothing)
            && self.document.first(at).is_none()
    }

    /// Adds a member to an object that is new. Most of a sidecar is such, and needs nothing of what is there.
    fn add_value(&mut self, at: SlotId, key: Key<'a>, value: Value<'a>) -> Result<(), Fault> {
        let content = Content::Value(value);
        self.charge_content(content)?;
        self.document.add_member(at, key, content);
        self.note_added();
        Ok(())
    }

    /// The member of an object that is open.
    fn find_member(&mut self, at: SlotId, name: &str) -> Result<Option<SlotId>, Fault> {
        let mut looks = 0;
        let found = self.document.children(at).find(|child| {
            looks += 1;
            self.document.key(*child).is_some_and(|key| key.is(name))
        });
        self.charge_looks(looks)?;
        Ok(found)
    }

    /// Lays a member with its directives.
    fn node(
        &mut self,
        at: SlotId,
        existing: Option<SlotId>,
        key: Key<'a>,
        node: &'a Node,
        type_: &'static Type,
    ) -> Result<(), Fault> {
        let known = self.computation.known();
        self.know_existing(node, existing)?;
        let below = type_.field(&key.text()).map_or(&schema::ANY, |field| match field {
            Field::Object(type_) => type_,
            Field::Keyed(keyed) => keyed.element,
        });
        if self.is_wanted(node)? {
            let directives = self.directives(node)?;
            if let Some(prune) = node.rules.as_ref().and_then(|rules| rules.prune.as_ref())
                && let Some(existing) = existing
            {
                self.prune_map(existing, prune)?;
            }
            if let Some(part) = self.resolve(node, below)? {
                self.computation.forget(known);
                return self.member(at, existing, key, part, directives, type_);
            }
        }
        self.computation.forget(known);
        Ok(())
    }

    fn member(
        &mut self,
        at: SlotId,
        existing: Option<SlotId>,
        key: Key<'a>,
        part: Part<'a>,
        directives: Directives<'a>,
        type_: &'static Type,
    ) -> Result<(), Fault> {
        let name = key.text();
        let field = type_.field(&name);
        let around = self.manner;
        self.follow(directives);
        let present = existing.filter(|slot| self.document.kind(*slot) != JsonKind::Null);
        if present.is_some() && self.manner.conflict != ConflictRule::Replace && self.is_ours() {
            self.settle();
        }
        let result = match present {
            Some(present) => self.lay(at, present, part, directives.join, field),
            None if self.manner.settled && directives.join.is_none() && !part.acts_again() => Ok(()),
            None => match self.make_room(at, &name, &type_.one_of) {
                Ok(true) => self.add_member(at, existing, key, part, directives.join, field),
                Ok(false) => Ok(()),
                Err(fault) => Err(fault),
            },
        };
        self.manner = around;
        result
    }

    /// What a part's directives say holds for all that is below it.
    pub(super) fn follow(&mut self, directives: Directives<'a>) {
        if let Some(rule) = directives.conflict {
            self.manner.conflict = rule;
            self.manner.settled &= rule != ConflictRule::Replace;
        }
    }

    /// What an earlier pass added is left alone from here on, as far as nothing says otherwise below.
    pub(super) const fn settle(&mut self) {
        self.manner.settled = true;
        self.manner.conflict = ConflictRule::Merge;
    }

    /// Whether a member of a choice may be added: the object has no other of that choice, or has none any more.
    fn make_room(&mut self, at: SlotId, name: &str, one_of: &OneOf) -> Result<bool, Fault> {
        let others = self.chosen_otherwise(at, name, one_of);
        if others.is_empty() {
            return Ok(true);
        }
        match self.manner.conflict {
            ConflictRule::Merge | ConflictRule::Keep => Ok(false),
            ConflictRule::Fail => Err(self.fault(Reason::NameTaken)),
            ConflictRule::Replace => {
                for other in others {
                    self.take_away(at, other);
                }
                Ok(true)
            }
        }
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
        join: Option<&'a Join>,
        field: Option<&'static Field>,
    ) -> Result<(), Fault> {
        if let Some(join) = join {
            let Some(value) = self.value_of(part)? else { return Ok(()) };
            return self.join(present, value, join);
        }
        if self.manner.conflict == ConflictRule::Keep {
            return Ok(());
        }
        match (self.document.kind(present), part.kind(), field) {
            (JsonKind::Object, JsonKind::Object, Some(Field::Object(type_))) => self.object(present, part, type_, None),
            (JsonKind::Object, JsonKind::Object, None) => self.object(present, part, &schema::ANY, None),
            (JsonKind::Array, JsonKind::Array, Some(Field::Keyed(keyed))) => self.list(parent, present, part, keyed),
            (JsonKind::Array, JsonKind::Array, None) if part.changes_elements() => self.change_items(present, part),
            (_, _, Some(_)) => Err(self.fault(Reason::TypeConflict)),
            // A scalar, or a list that is one value.
            _ => match self.value_of(part)? {
                Some(value) => self.leaf(present, value),
                None => Ok(()),
            },
        }
    }

    fn leaf(&mut self, present: SlotId, value: Value<'a>) -> Result<(), Fault> {
        if self.manner.settled || self.is_equal(present, value) {
            return Ok(());
        }
        match self.manner.conflict {
            // What admission added to the author's word is not the author's word.
            ConflictRule::Merge if self.manner.overlay => {
                self.charge(self.authors.size())?;
                if self.is_authors() || self.is_known() {
                    return Ok(());
                }
            }
            ConflictRule::Merge | ConflictRule::Keep => return Ok(()),
            ConflictRule::Fail => return Err(self.fault(Reason::NameTaken)),
            ConflictRule::Replace => {}
        }
        self.charge_content(Content::Value(value))?;
        self.note_replaced(present);
        self.document.replace(present, Content::Value(value));
        Ok(())
    }

    /// Adds what is missing to what the object has. A value of another type stays as it is.
    pub(super) fn join(&mut self, present: SlotId, value: Value<'a>, join: &'a Join) -> Result<(), Fault> {
        match (self.document.kind(present), value.kind()) {
            (JsonKind::Array, JsonKind::Array) => {
                self.document.open(present)?;
                let slots: Vec<_> = self.document.children(present).collect();
                let items = slots.into_iter().map(|slot| self.current(slot)).collect::<Result<Vec<_>, _>>()?;
                let mut missing = Vec::new();
                for item in value.items() {
                    // Every item of the one list may be compared with every one of the other.
                    self.charge(items.len().saturating_mul(Budget::BYTES))?;
                    if !items.iter().any(|other| other.means(item)) {
                        missing.push(item);
                    }
                }
                if !missing.is_empty() {
                    self.note_replaced(present);
                    for item in missing {
                        self.charge_content(Content::Value(item))?;
                        self.document.push_item(present, Content::Value(item));
                    }
                }
                Ok(())
            }
            _ => self.join_text(present, value, join),
        }
    }

    /// Where nothing was, what goes in front and what goes behind are joined with one another.
    pub(super) fn join_front(&mut self, added: SlotId, join: Option<&'a Join>) -> Result<(), Fault> {
        let Some(join) = join.filter(|join| join.prepend.is_some()) else { return Ok(()) };
        let around = self.enter_added();
        let own = self.current(added)?;
        let result = self.join_text(added, own, join);
        self.manner = around;
        result
    }

    pub(super) fn join_text(&mut self, present: SlotId, value: Value<'a>, join: &'a Join) -> Result<(), Fault> {
        let prepend = match &join.prepend {
            Some(text) => self.choice(text)?,
            None => None,
        };
        let there = self.document.raw(present).and_then(join::text_of);
        let (Some(there), Some(value)) = (there, value.as_str()) else { return Ok(()) };
        if let Some(joined) = join::text(&there, &value, prepend.as_deref(), join) {
            self.note_replaced(present);
            let content = self.document.keep(joined);
            self.document.replace(present, content);
        }
        Ok(())
    }

    /// Adds a member that the object does not have, or has as null.
    fn add_member(
        &mut self,
        at: SlotId,
        null: Option<SlotId>,
        key: Key<'a>,
        part: Part<'a>,
        join: Option<&'a Join>,
        field: Option<&'static Field>,
    ) -> Result<(), Fault> {
        let content = match (field, part) {
            (Some(Field::Object(type_)), _) if type_.spread && part.kind() == JsonKind::Object => Content::Map,
            (Some(Field::Keyed(_)), _) if part.kind() == JsonKind::Array => Content::List,
            (_, Part::Node(Node { kind: Kind::Map(_), .. })) => Content::Map,
            _ if self.manner.settled && join.is_none() => return Ok(()),
            _ => match self.value_of(part)? {
                Some(value) => Content::Value(value),
                None => return Ok(()),
            },
        };
        self.charge_content(content)?;
        let original = null.map(|null| (self.document.content(null), self.document.state(null)));
        let slot = match null {
            Some(null) => {
                self.document.replace(null, content);
                null
            }
            None => self.document.add_member(at, key, content),
        };
        match (content, field) {
            (Content::Map, Some(Field::Object(type_))) if type_.spread => self.object(slot, part, type_, None)?,
            (Content::Map, _) => {
                let type_ = match field {
                    Some(Field::Object(type_)) => type_,
                    _ => &schema::ANY,
                };
                let around = self.manner;
                if !self.manner.settled {
                    self.enter_added();
                }
                let result = self.object(slot, part, type_, None);
                self.manner = around;
                result?;
                if !self.manner.settled && self.document.children(slot).next().is_some() {
                    self.note_added();
                }
            }
            (Content::List, Some(Field::Keyed(keyed))) => self.list(at, slot, part, keyed)?,
            _ => {
                self.join_front(slot, join)?;
                self.note_added();
            }
        }
        // A map or list whose every part was left out is left out too.
        let is_made = matches!(self.document.content(slot), Content::Map | Content::List);
        if is_made && self.document.children(slot).next().is_none() {
            match original {
                Some((original, State::Original)) => self.document.restore(slot, original),
                Some((original, _)) => self.document.replace(slot, original),
                None => self.document.remove(slot, at),
            }
        }
        Ok(())
    }

    /// Goes into something that is added. Gives the manner to come back to.
    pub(super) const fn enter_added(&mut self) -> Manner {
        let around = self.manner;
        self.manner.within_added = true;
        self.manner.settled = false;
        self.manner.overlay = false;
        around
    }

    pub(super) fn is_equal(&self, existing: SlotId, value: Value<'a>) -> bool {
        match self.document.content(existing) {
            Content::Value(other) => other.means(value),
            _ => self.document.raw(existing).is_some_and(|raw| raw == value.raw()),
        }
    }

    /// Takes a member away that excludes one of ours, which is at the place at hand.
    fn take_away(&mut self, parent: SlotId, member: SlotId) {
        let around = self.pointer.rfind('/').unwrap_or(0);
        if let Some(key) = self.document.key(member) {
            let mut pointer = self.pointer.get(..around).unwrap_or_default().to_owned();
            push_token(&mut pointer, &key.text());
            let ours = std::mem::replace(&mut self.pointer, pointer);
            self.note_replaced(member);
            self.pointer = ours;
        }
        self.document.remove(member, parent);
    }

    pub(super) fn fault(&self, reason: Reason) -> Fault {
        Fault::Conflict(Conflict { reason, place: self.pointer.as_str().into() })
    }
}

impl Node {
    /// The value of a field that is added as it stands in the template, if it is one.
    fn as_one_value(&self, field: Option<&Field>) -> Option<Value<'_>> {
        let is_merged = match field {
            Some(Field::Keyed(_)) => true,
            Some(Field::Object(type_)) => type_.spread,
            None => false,
        };
        match &self.kind {
            Kind::Plain(tape) if self.rules.is_none() && !is_merged => Some(tape.root()),
            _ => None,
        }
    }
}

impl Part<'_> {
    /// What it is. A string with expressions and a changed value are resolved before anybody asks.
    pub(super) fn kind(self) -> JsonKind {
        match self {
            Self::Plain(value) => value.kind(),
            Self::Node(node) => match &node.kind {
                Kind::Plain(tape) => tape.root().kind(),
                Kind::Map(_) => JsonKind::Object,
                Kind::List(_) => JsonKind::Array,
                Kind::Text(_) | Kind::Changed(_) => JsonKind::Null,
            },
        }
    }

    /// Whether it is a list that changes or removes elements that are there.
    fn changes_elements(self) -> bool {
        let Self::Node(Node { kind: Kind::List(nodes), .. }) = self else { return false };
        let mut rules = nodes.iter().filter_map(|node| node.rules.as_ref());
        rules.any(|rules| rules.each.is_some() || rules.prune.is_some())
    }
}

pub(super) fn push_token(pointer: &mut String, token: &str) {
    pointer.push('/');
    push_escaped(pointer, token);
}

pub(super) fn push_escaped(pointer: &mut String, token: &str) {
    if !needs_escape(token) {
        pointer.push_str(token);
        return;
    }
    let mut rest = token;
    while let Some(place) = rest.bytes().position(|byte| matches!(byte, b'~' | b'/')) {
        let (plain, behind) = rest.split_at_checked(place).unwrap_or_default();
        pointer.push_str(plain);
        pointer.push_str(if behind.starts_with('~') { "~0" } else { "~1" });
        rest = behind.get(1..).unwrap_or_default();
    }
    pointer.push_str(rest);
}
