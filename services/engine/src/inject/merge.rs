//! The merge of one template into one object.
//!
//! Objects merge by key, keyed lists by their keys, everything else is one value; where the object has a value, its
//! author wins unless the template says otherwise. Expressions are evaluated at the place where their value goes, because
//! they may ask what is there.
//!
//! What an earlier pass added is settled: it is left alone, whatever others made of it since, except for a `$join` and a
//! written `Replace`.

use crate::decision::Reason;
use crate::json::{Content, Document, Key, Kind as JsonKind, OwnedTape, SlotId, Value};
use crate::profile::template::{ConflictRule, Join, Kind, Node};
use crate::schema::{self, Field, Type};

use super::index::Keys;
use super::pointer::push_token;
use super::state::{Directives, Fault, Manner, Member, Merge, Part};

impl<'a> Merge<'_, 'a> {
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
                    let member = Member::new(at, key, type_);
                    push_token(&mut self.pointer, &member.name);
                    let existing = self.find_member(at, &member.name)?;
                    self.member(&member, existing, Part::Plain(value), Directives::default())?;
                    self.pointer.truncate(length);
                }
            }
            Part::Node(Node { kind: Kind::Map(fields), .. }) => {
                let is_new = self.is_new(at, type_);
                for (key, node) in fields {
                    let member = Member::new(at, Key::new(key), type_);
                    if is_new && let Some(value) = node.as_one_value(member.field, self.changes_own) {
                        self.add_value(at, member.key, value)?;
                        continue;
                    }
                    push_token(&mut self.pointer, &member.name);
                    let existing = self.find_member(at, &member.name)?;
                    match keys.and_then(|keys| keys.get(&member.name)) {
                        Some(value) => self.member(&member, existing, Part::Plain(value), Directives::default())?,
                        None => self.node(&member, existing, node)?,
                    }
                    self.pointer.truncate(length);
                }
            }
            Part::Node(_) => return Err(self.fault(Reason::TypeConflict)),
        }
        Ok(())
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

    /// Lays a part over what the object has.
    pub(super) fn lay(
        &mut self,
        parent: SlotId,
        present: SlotId,
        part: Part<'a>,
        join: Option<&'a Join>,
        field: Option<&'static Field>,
    ) -> Result<(), Fault> {
        if let Some(join) = join {
            let Some(value) = self.value_of(part)? else { return Ok(()) };
            return self.join(present, value, join, field);
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
        if self.manner.settled {
            return Ok(());
        }
        if self.is_equal(present, value)? {
            self.confirm();
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

    /// Goes into something that is added. Gives the manner to come back to.
    pub(super) const fn enter_added(&mut self) -> Manner {
        let around = self.manner;
        self.manner.within_added = true;
        self.manner.settled = false;
        self.manner.overlay = false;
        around
    }

    pub(super) fn is_equal(&mut self, existing: SlotId, value: Value<'a>) -> Result<bool, Fault> {
        self.charge(value.raw().len())?;
        if let Content::Value(other) = self.document.content(existing) {
            return Ok(other.means(value));
        }
        if let Some(raw) = self.document.raw(existing) {
            return Ok(raw == value.raw());
        }
        // Something within it was changed or undone.
        let mut text = String::new();
        self.document.write(existing, &mut text);
        self.charge(text.len())?;
        Ok(OwnedTape::parse(text).is_ok_and(|tape| tape.root().means(value)))
    }
}
