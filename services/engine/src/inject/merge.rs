//! Merges one template into one object.
//!
//! Objects merge by key, keyed lists by their keys, and everything else is one value. The author's value wins unless
//! the template says otherwise. Expressions are evaluated at the place where their value goes, because they may read
//! the existing value.
//!
//! What an earlier pass added is settled: it is left as it is, whatever changed it since, except for `$join` and an
//! explicit `Replace`.

use crate::decision::Reason;
use crate::json::{Content, Document, Key, Kind as JsonKind, OwnedTape, SlotId, Value};
use crate::profile::template::{ConflictRule, Join, Kind, Node};
use crate::schema::{self, Field, Type};

use super::index::Keys;
use super::pointer::push_token;
use super::state::{Directives, Member, Merge, MergeError, MergeMode, Part};

impl<'a> Merge<'_, 'a> {
    /// Merges a template into the object.
    pub(super) fn merge_template(&mut self, template: &'a Node, type_: &'static Type) -> Result<(), MergeError> {
        let Some(part) = self.resolve(template, type_)? else { return Ok(()) };
        self.object(Document::ROOT, part, type_, None)
    }

    /// Merges the members of an object. Fields that are keys of its list are known already.
    pub(super) fn object(
        &mut self,
        at: SlotId,
        part: Part<'a>,
        type_: &'static Type,
        keys: Option<&Keys<'a>>,
    ) -> Result<(), MergeError> {
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
            Part::Node(_) => return Err(self.conflict_at_hand(Reason::TypeConflict)),
        }
        Ok(())
    }

    /// Applies a part's directives to everything below it.
    pub(super) fn follow(&mut self, directives: Directives<'a>) {
        if let Some(rule) = directives.conflict {
            self.mode.conflict = rule;
            self.mode.settled &= rule != ConflictRule::Replace;
        }
    }

    /// Leaves what an earlier pass added as it is, unless a directive below says otherwise.
    pub(super) const fn settle(&mut self) {
        self.mode.settled = true;
        self.mode.conflict = ConflictRule::Merge;
    }

    /// Merges a part into an existing value.
    pub(super) fn merge_part(
        &mut self,
        parent: SlotId,
        present: SlotId,
        part: Part<'a>,
        join: Option<&'a Join>,
        field: Option<&'static Field>,
    ) -> Result<(), MergeError> {
        if let Some(join) = join {
            let Some(value) = self.value_of(part)? else { return Ok(()) };
            return self.join(present, value, join, field);
        }
        if self.mode.conflict == ConflictRule::Keep {
            return Ok(());
        }
        match (self.document.kind(present), part.kind(), field) {
            (JsonKind::Object, JsonKind::Object, Some(Field::Object(type_))) => self.object(present, part, type_, None),
            (JsonKind::Object, JsonKind::Object, None) => self.object(present, part, &schema::ANY, None),
            (JsonKind::Array, JsonKind::Array, Some(Field::Keyed(keyed))) => self.list(parent, present, part, keyed),
            (JsonKind::Array, JsonKind::Array, None) if part.changes_elements() => self.change_items(present, part),
            (_, _, Some(_)) => Err(self.conflict_at_hand(Reason::TypeConflict)),
            // A scalar, or a list that is one value.
            _ => match self.value_of(part)? {
                Some(value) => self.leaf(present, value),
                None => Ok(()),
            },
        }
    }

    fn leaf(&mut self, present: SlotId, value: Value<'a>) -> Result<(), MergeError> {
        if self.mode.settled {
            return Ok(());
        }
        if self.is_equal(present, value)? {
            self.confirm();
            return Ok(());
        }
        match self.mode.conflict {
            // Values that admission added to an overlay are not the author's.
            ConflictRule::Merge if self.mode.overlay => {
                self.charge(self.managed_fields.size())?;
                if self.is_author_written() || self.is_known() {
                    return Ok(());
                }
            }
            ConflictRule::Merge | ConflictRule::Keep => return Ok(()),
            ConflictRule::Fail => return Err(self.conflict_at_hand(Reason::NameTaken)),
            ConflictRule::Replace => {}
        }
        self.charge_content(Content::Value(value))?;
        self.note_replaced(present);
        self.document.replace(present, Content::Value(value));
        Ok(())
    }

    /// Enters an addition. Returns the mode to restore afterwards.
    pub(super) const fn enter_added(&mut self) -> MergeMode {
        let around = self.mode;
        self.mode.within_added = true;
        self.mode.settled = false;
        self.mode.overlay = false;
        around
    }

    pub(super) fn is_equal(&mut self, existing: SlotId, value: Value<'a>) -> Result<bool, MergeError> {
        self.charge(value.raw().len())?;
        if let Content::Value(other) = self.document.content(existing) {
            return Ok(other.means(value));
        }
        if let Some(raw) = self.document.raw(existing) {
            return Ok(raw == value.raw());
        }
        // A part of it was changed or undone.
        let mut text = String::new();
        self.document.write(existing, &mut text);
        self.charge(text.len())?;
        Ok(OwnedTape::parse(text).is_ok_and(|tape| tape.root().means(value)))
    }
}
