//! Merges members of objects: into existing members, as new members, and among members that exclude each other.

use crate::decision::Reason;
use crate::json::{Content, Key, Kind as JsonKind, SlotId, State, Value};
use crate::profile::template::{ConflictRule, Join, Kind, Node};
use crate::schema::{self, Field, OneOf, Type};

use super::index::is_one_value;
use super::pointer::push_token;
use super::state::{Directives, Member, Merge, MergeError, Part};

impl<'a> Merge<'_, 'a> {
    /// Whether an object was just created for an addition, so that its parts cannot conflict.
    pub(super) fn is_new(&self, at: SlotId, type_: &Type) -> bool {
        self.mode.within_added
            && !self.mode.settled
            && matches!(type_.one_of, OneOf::Nothing)
            && self.document.first(at).is_none()
    }

    /// Adds a member to a new object. Most of a sidecar is added so, without reading the object.
    pub(super) fn add_value(&mut self, at: SlotId, key: Key<'a>, value: Value<'a>) -> Result<(), MergeError> {
        let content = Content::Value(value);
        self.charge_content(content)?;
        self.document.add_member(at, key, content);
        self.note_added();
        Ok(())
    }

    /// Finds a member of an open object.
    pub(super) fn find_member(&mut self, at: SlotId, name: &str) -> Result<Option<SlotId>, MergeError> {
        let (looks, found) = self.document.look_for(at, name);
        self.charge_looks(looks)?;
        Ok(found)
    }

    /// Merges a member with its directives.
    pub(super) fn node(
        &mut self,
        member: &Member<'a>,
        existing: Option<SlotId>,
        node: &'a Node,
    ) -> Result<(), MergeError> {
        let known = self.bindings.known();
        self.know_existing(node, existing)?;
        let below = member.field.map_or(&schema::ANY, |field| match field {
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
                self.bindings.forget(known);
                return self.member(member, existing, part, directives);
            }
        }
        self.bindings.forget(known);
        Ok(())
    }

    pub(super) fn member(
        &mut self,
        member: &Member<'a>,
        existing: Option<SlotId>,
        part: Part<'a>,
        directives: Directives<'a>,
    ) -> Result<(), MergeError> {
        let around = self.mode;
        self.follow(directives);
        let present = existing.filter(|slot| self.document.kind(*slot) != JsonKind::Null);
        if present.is_some() && self.mode.conflict != ConflictRule::Replace && self.is_ours() {
            self.settle();
        }
        let result = match present {
            Some(present) => self.merge_part(member.at, present, part, directives.join, member.field),
            None if self.mode.settled && directives.join.is_none() && !part.acts_again() => Ok(()),
            None => match self.make_room(member) {
                Ok(true) => self.add_member(member, existing, part, directives.join),
                Ok(false) => Ok(()),
                Err(fault) => Err(fault),
            },
        };
        self.mode = around;
        result
    }

    /// Adds a member that is absent or null.
    fn add_member(
        &mut self,
        member: &Member<'a>,
        null: Option<SlotId>,
        part: Part<'a>,
        join: Option<&'a Join>,
    ) -> Result<(), MergeError> {
        let Member { at, key, field, .. } = *member;
        let content = match (field, part) {
            (Some(Field::Object(type_)), _) if type_.spread && part.kind() == JsonKind::Object => Content::Map,
            (Some(Field::Keyed(_)), _) if part.kind() == JsonKind::Array => Content::List,
            (_, Part::Node(Node { kind: Kind::Map(_), .. })) => Content::Map,
            _ if self.mode.settled && join.is_none() => return Ok(()),
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
                let around = self.mode;
                if !self.mode.settled {
                    self.enter_added();
                }
                let result = self.object(slot, part, type_, None);
                self.mode = around;
                result?;
                if !self.mode.settled && self.document.children(slot).next().is_some() {
                    self.note_added();
                }
            }
            (Content::List, Some(Field::Keyed(keyed))) => self.list(at, slot, part, keyed)?,
            _ => {
                self.join_front(slot, join)?;
                self.note_added();
            }
        }
        // A map or list is left out if all its parts are left out.
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

    /// Whether a member may be added to a choice: the object has no other member of the choice, or it was removed.
    fn make_room(&mut self, member: &Member<'a>) -> Result<bool, MergeError> {
        let others = self.chosen_otherwise(member);
        if others.is_empty() {
            return Ok(true);
        }
        match self.mode.conflict {
            ConflictRule::Merge | ConflictRule::Keep => Ok(false),
            ConflictRule::Fail => Err(self.conflict_at_hand(Reason::NameTaken)),
            ConflictRule::Replace => {
                for other in others {
                    self.take_away(member.at, other);
                }
                Ok(true)
            }
        }
    }

    /// The object's other members of the same choice: the author has chosen one of them.
    fn chosen_otherwise(&self, member: &Member<'a>) -> Vec<SlotId> {
        let Member { at, one_of, name, .. } = member;
        if !one_of.holds(name) {
            return Vec::new();
        }
        let is_other = |child: &SlotId| {
            self.document.kind(*child) != JsonKind::Null
                && self.document.key(*child).is_some_and(|key| !key.is(name) && one_of.holds(&key.text()))
        };
        self.document.children(*at).filter(is_other).collect()
    }

    /// Removes a member that excludes one of the profile's at the current place.
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
}

impl Node {
    /// The value of a field that can be added as it stands in the template. Elements of lists are excluded, because
    /// later steps search for them.
    pub(super) fn as_one_value(&self, field: Option<&Field>, is_changed: bool) -> Option<Value<'_>> {
        let Kind::Plain(tape) = &self.kind else { return None };
        let value = tape.root();
        let is_one = match field {
            Some(Field::Keyed(keyed)) => {
                value.kind() == JsonKind::Array
                    && !is_changed
                    && keyed.siblings.is_empty()
                    && is_one_value(value, keyed)
            }
            Some(Field::Object(type_)) => !type_.spread,
            None => true,
        };
        (is_one && self.rules.is_none()).then_some(value)
    }
}
