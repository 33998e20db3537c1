//! The merge of one template into one object.
//!
//! Objects merge by key, keyed lists by their keys, everything else is one value; where the object has a value, its
//! author wins unless the template says otherwise. Expressions are evaluated at the place where their value goes, because
//! they may ask what is there.
//!
//! What an earlier pass added is settled: it is left alone, whatever others made of it since, except for a `$join` and a
//! written `Replace`.

use crate::context::{Arena, Computation};
use crate::decision::Reason;
use crate::expression::{Meter, Purpose};
use crate::json::{
    Content, Document, Key, Kind as JsonKind, Malformed, OwnedTape, SlotId, Value, needs_escape, split_at_escape,
};
use crate::limits::{Excess, Protected};
use crate::profile::template::{ConflictRule, Join, Kind, Node};
use crate::record::{Earlier, RecordWriter};
use crate::schema::{self, Field, Type};

use super::authors::Authors;
use super::confirmed::Confirmed;
use super::elements::Places;
use super::index::{Index, Keys};
use super::members::Member;

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

    pub(super) fn of(excess: &Excess) -> Self {
        Self::new(Reason::LimitExceeded, &excess.to_string())
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
    pub(super) desk: &'d mut Desk<'a>,
    pub(super) record: &'d mut RecordWriter,
    pub(super) computation: &'d Computation<'a>,
    pub(super) arena: &'a Arena,
    pub(super) authors: Authors<'a>,
    /// What is known of the whole object.
    pub(super) type_: &'static Type,
    /// Whether anybody asks which containers were added.
    pub(super) collects_containers: bool,
    /// Whether the profile changes containers that it adds itself.
    pub(super) changes_own: bool,
    pub(super) part: PartOf<'d>,
}

/// Whose profile is merged.
#[derive(Default)]
pub(super) enum PartOf<'d> {
    /// The platform's, and none of a namespace's comes behind it.
    #[default]
    Platform,
    /// The platform's. What it confirms is protected from those that come behind it.
    Watched(&'d mut Confirmed),
    /// A namespace's.
    Namespace(&'d Protected),
}

/// Memory that one merge after the other works in.
#[derive(Default)]
pub(super) struct Desk<'a> {
    pointer: String,
    scratch: String,
    own: Vec<SlotId>,
    env: Vec<SlotId>,
    index: Index<'a>,
}

/// One template's merge.
pub(super) struct Merge<'d, 'a> {
    pub(super) document: &'d mut Document<'a>,
    pub(super) computation: &'d Computation<'a>,
    pub(super) arena: &'a Arena,
    pub(super) meter: Meter,
    /// For finding out what an earlier pass did.
    pub(super) again: Meter,
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
    /// Where values are written before they are kept.
    pub(super) scratch: String,
    /// What is in the list at hand.
    pub(super) index: Index<'a>,
    /// Env entries that are new or joined: those of the list at hand, behind those of the lists around it.
    pub(super) env: Vec<SlotId>,
    /// Where its memory goes back to.
    desk: &'d mut Desk<'a>,
    /// Elements that were added in this pass. Later ones have higher numbers, so it is in order.
    pub(super) own: Vec<SlotId>,
    /// Containers that were put into a list from the other one in this pass: they are in the record as added.
    pub(super) put: Vec<SlotId>,
    pub(super) collects_containers: bool,
    pub(super) changes_own: bool,
    pub(super) part: PartOf<'d>,
    /// How often something was found to be as the profile says it.
    pub(super) confirmations: usize,
    /// Containers that were added in this pass, by their pointers, if anybody asks.
    pub(super) containers: Vec<Box<str>>,
    /// What the author is told.
    pub(super) notes: Vec<Box<str>>,
}

impl<'d, 'a> Merge<'d, 'a> {
    pub(super) fn new(surroundings: Surroundings<'d, 'a>, earlier: &'d Earlier<'a>) -> Self {
        let Surroundings {
            document,
            places,
            desk,
            record,
            computation,
            arena,
            authors,
            type_,
            collects_containers,
            changes_own,
            part,
        } = surroundings;
        let Desk { mut pointer, scratch, mut own, mut env, mut index } = std::mem::take(desk);
        pointer.clear();
        pointer.reserve(128);
        own.clear();
        own.reserve(32);
        env.clear();
        index.forget();
        Self {
            document,
            computation,
            arena,
            meter: computation.meter(Purpose::Decide, Meter::PROFILE),
            again: computation.meter(Purpose::Recognize, Meter::PROFILE),
            authors,
            type_,
            earlier,
            places,
            record,
            manner: Manner { conflict: ConflictRule::Merge, settled: false, within_added: false, overlay: false },
            changes: 0,
            edits: 0,
            collects_containers,
            changes_own,
            part,
            confirmations: 0,
            pointer,
            scratch,
            index,
            env,
            own,
            put: Vec::new(),
            desk,
            containers: Vec::new(),
            notes: Vec::new(),
        }
    }

    /// How much was changed, what the author is told, and the containers that were added.
    pub(super) fn finish(self) -> (usize, Vec<Box<str>>, Vec<Box<str>>) {
        let Self { pointer, scratch, own, env, index, .. } = self;
        *self.desk = Desk { pointer, scratch, own, env, index };
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

    pub(super) fn fault(&self, reason: Reason) -> Fault {
        Fault::Conflict(Conflict { reason, place: self.pointer.as_str().into() })
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
                Kind::Text(..) | Kind::Changed(_) => JsonKind::Null,
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
    let mut rest = token;
    if needs_escape(token) {
        while let Some((plain, escape, behind)) = split_at_escape(rest) {
            pointer.push_str(plain);
            pointer.push_str(escape);
            rest = behind;
        }
    }
    pointer.push_str(rest);
}
