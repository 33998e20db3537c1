//! Merges one template into one object: the state of a merge, and the merging of objects and their members.
//!
//! Objects are merged by key, and keyed lists by the keys of their elements. Any other value is kept or replaced as a
//! whole. The author's value is kept unless the template sets another conflict rule. Expressions are evaluated when
//! their value is merged, because they may read the existing value.
//!
//! A pass is one call of the webhook for the object. A value that an earlier pass added is settled: the merge does not
//! change it, even if another writer has changed it since. Only `$join`, an explicit `Replace`, and directives for
//! existing elements apply to it again.
//!
//! The other modules in this folder add methods to [`Merge`]: `render` evaluates expressions, `notes` writes the
//! record, `elements` merges lists, `join` joins values, `changes` changes existing elements, and `containers` applies
//! container patches.

use std::borrow::Cow;
use std::collections::HashMap;

use crate::context::{Arena, ProfileBindings};
use crate::decision::Reason;
use crate::expression::{Meter, Purpose};
use crate::json::{Content, Document, Key, Kind as JsonKind, Malformed, OwnedTape, SlotId, State, Value};
use crate::limits::{Excess, Protected};
use crate::profile::template::{ConflictRule, Join, Kind, Node, NodeDirectives, Position};
use crate::record::{ChangeKind, EarlierPass, RecordWriter};
use crate::schema::{self, Field, OneOf, Type};

use super::keys::{Index, Keys, is_one_value, push_token};
use super::managed_fields::ManagedFields;

/// The name of the pod spec's field for init containers.
pub(super) const INIT_CONTAINERS: &str = "initContainers";

/// The reason why a template cannot be merged into an object, and the place of the conflict.
#[derive(Debug)]
pub(crate) struct Conflict {
    pub(crate) reason: Reason,
    /// The pointer to the conflict, such as `/spec/containers/logger`. A message may follow it.
    pub(crate) place: Box<str>,
}

impl Conflict {
    pub(super) fn new(reason: Reason, place: &str) -> Self {
        Self { reason, place: place.into() }
    }
}

/// An error that ends a merge.
pub(super) enum MergeError {
    Conflict(Conflict),
    /// A failed precondition of a container patch denies the object.
    Denied(Conflict),
    Malformed(Malformed),
}

impl MergeError {
    pub(super) fn conflict(reason: Reason, place: &str) -> Self {
        Self::Conflict(Conflict::new(reason, place))
    }
}

impl From<&Excess> for MergeError {
    fn from(excess: &Excess) -> Self {
        Self::conflict(Reason::LimitExceeded, &excess.to_string())
    }
}

impl From<Malformed> for MergeError {
    fn from(malformed: Malformed) -> Self {
        Self::Malformed(malformed)
    }
}

/// A part of a template: a node that contains directives or expressions, or plain JSON.
#[derive(Clone, Copy)]
pub(super) enum Part<'a> {
    Node(&'a Node),
    Plain(Value<'a>),
}

/// The directives of a part that determine how it merges into an existing value.
#[derive(Clone, Copy, Default)]
pub(super) struct ResolvedDirectives<'a> {
    pub(super) conflict: Option<ConflictRule>,
    pub(super) join: Option<&'a Join>,
}

/// How parts merge at the current place. A directive changes the mode for everything below it.
#[derive(Clone, Copy)]
pub(super) struct MergeMode {
    /// The rule for template values that differ from the object's values.
    pub(super) conflict: ConflictRule,
    /// Whether an earlier pass added the current value, and no rule `Replace` applies to it.
    pub(super) settled: bool,
    /// Whether changes at the current place get no entries in the record, because the place is part of an addition, of
    /// a list that is recorded as a whole, or of a copy.
    pub(super) within_added: bool,
    /// Whether the current container is an overlay: the author wrote it, and the template adds a container of the same
    /// name.
    pub(super) overlay: bool,
}

/// The inputs of a merge.
pub(super) struct MergeInputs<'d, 'a> {
    pub(super) document: &'d mut Document<'a>,
    pub(super) insert_counts: &'d mut InsertCounts,
    pub(super) merge_scratch: &'d mut MergeScratch<'a>,
    pub(super) record: &'d mut RecordWriter,
    pub(super) bindings: &'d ProfileBindings<'a>,
    pub(super) arena: &'a Arena,
    pub(super) managed_fields: ManagedFields<'a>,
    /// The schema of the whole object.
    pub(super) type_: &'static Type,
    /// Whether the output contains the pointers of the added containers.
    pub(super) collects_containers: bool,
    /// Whether the profile also changes containers that it adds itself.
    pub(super) changes_own: bool,
    pub(super) profile_origin: ProfileOrigin<'d>,
}

/// Whether the profile is a cluster profile or a namespaced profile. A stand-in counts as a cluster profile.
#[derive(Default)]
pub(super) enum ProfileOrigin<'d> {
    /// A cluster profile, if no namespaced profile is requested. Also used for changes to a copy of a value.
    #[default]
    Platform,
    /// A cluster profile. Values that the object already has, and that the profile sets too, are protected from the
    /// namespaced profiles that follow.
    Watched(&'d mut Confirmed),
    /// A namespaced profile. It must not change the protected paths.
    Namespace(&'d Protected),
}

/// Buffers that successive merges reuse.
#[derive(Default)]
pub(super) struct MergeScratch<'a> {
    pointer: String,
    scratch: String,
    own: Vec<SlotId>,
    env: Vec<SlotId>,
    index: Index<'a>,
}

/// The result of a merge.
#[derive(Default)]
pub(super) struct ApplyOutput {
    /// The number of recorded changes, including those that an earlier pass has already recorded.
    pub(super) changes: usize,
    /// Messages for the author of the object.
    pub(super) notes: Vec<Box<str>>,
    /// Pointers of the added containers, if they are collected.
    pub(super) containers: Vec<Box<str>>,
}

/// The merge of one profile into one object.
pub(super) struct Merge<'d, 'a> {
    pub(super) document: &'d mut Document<'a>,
    pub(super) bindings: &'d ProfileBindings<'a>,
    pub(super) arena: &'a Arena,
    pub(super) meter: Meter,
    /// The separate meter for recomputing the result of an earlier pass.
    pub(super) recompute_meter: Meter,
    pub(super) managed_fields: ManagedFields<'a>,
    /// The schema of the whole object.
    pub(super) type_: &'static Type,
    /// The changes of the same profile in an earlier pass.
    pub(super) earlier: &'d EarlierPass<'a>,
    pub(super) insert_counts: &'d mut InsertCounts,
    pub(super) record: &'d mut RecordWriter,
    pub(super) mode: MergeMode,
    /// The number of recorded changes, including those that an earlier pass has already recorded.
    pub(super) changes: usize,
    /// The number of edits. One change in the record may cover several edits.
    pub(super) edits: usize,
    /// The pointer to the current place. Elements of keyed lists are identified by their keys.
    pub(super) pointer: String,
    /// A buffer for building values before they are stored.
    pub(super) scratch: String,
    /// The elements of the current list.
    pub(super) index: Index<'a>,
    /// New or joined environment variables. Those of the current list follow those of the enclosing lists.
    pub(super) env: Vec<SlotId>,
    /// Where [`Self::finish`] stores the buffers for the next merge.
    buffers: &'d mut MergeScratch<'a>,
    /// Slots of the elements that the profile added in this pass. Slot numbers increase, so the list is sorted.
    pub(super) added_slots: Vec<SlotId>,
    /// Slots of the containers that the profile moved in this pass between `containers` and `initContainers`. The
    /// record lists each as added to its new list.
    pub(super) moved_containers: Vec<SlotId>,
    pub(super) collects_containers: bool,
    pub(super) changes_own: bool,
    pub(super) profile_origin: ProfileOrigin<'d>,
    /// The number of places that already had the profile's value.
    pub(super) confirmations: usize,
    /// Pointers of the containers that the profile added in this pass, if they are collected.
    pub(super) containers: Vec<Box<str>>,
    /// Messages for the author.
    pub(super) notes: Vec<Box<str>>,
}

impl<'d, 'a> Merge<'d, 'a> {
    pub(super) fn new(inputs: MergeInputs<'d, 'a>, earlier: &'d EarlierPass<'a>) -> Self {
        let MergeInputs {
            document,
            insert_counts,
            merge_scratch,
            record,
            bindings,
            arena,
            managed_fields,
            type_,
            collects_containers,
            changes_own,
            profile_origin,
        } = inputs;
        let MergeScratch { mut pointer, scratch, mut own, mut env, mut index } = std::mem::take(merge_scratch);
        pointer.clear();
        pointer.reserve(128);
        own.clear();
        own.reserve(32);
        env.clear();
        index.forget();
        Self {
            document,
            bindings,
            arena,
            meter: bindings.meter(Purpose::Decide, Meter::PROFILE),
            recompute_meter: bindings.meter(Purpose::Recognize, Meter::PROFILE),
            managed_fields,
            type_,
            earlier,
            insert_counts,
            record,
            mode: MergeMode { conflict: ConflictRule::Merge, settled: false, within_added: false, overlay: false },
            changes: 0,
            edits: 0,
            collects_containers,
            changes_own,
            profile_origin,
            confirmations: 0,
            pointer,
            scratch,
            index,
            env,
            added_slots: own,
            moved_containers: Vec::new(),
            buffers: merge_scratch,
            containers: Vec::new(),
            notes: Vec::new(),
        }
    }

    /// Returns the output of the merge, and stores the buffers for the next merge.
    pub(super) fn finish(self) -> ApplyOutput {
        let Self { pointer, scratch, added_slots: own, env, index, .. } = self;
        *self.buffers = MergeScratch { pointer, scratch, own, env, index };
        ApplyOutput { changes: self.changes, notes: self.notes, containers: self.containers }
    }

    pub(super) fn conflict_here(&self, reason: Reason) -> MergeError {
        MergeError::conflict(reason, &self.pointer)
    }
}

impl Part<'_> {
    /// Returns the kind of the part's value. Returns `Null` for a string with expressions or a changed `$value`, which
    /// must be resolved first.
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

    /// Whether the part is a list that contains directives that change or remove existing elements.
    pub(super) fn targets_existing_elements(self) -> bool {
        let Self::Node(Node { kind: Kind::List(nodes), .. }) = self else { return false };
        nodes
            .iter()
            .filter_map(|node| node.directives.as_ref())
            .any(|directives| directives.targets_existing_elements())
    }

    /// Whether the part also changes values that an earlier pass added to the object.
    pub(super) fn changes_earlier_additions(self) -> bool {
        matches!(self, Self::Node(node) if node.changes_earlier_additions)
    }
}

/// An element of a template's list.
#[derive(Clone, Copy)]
pub(super) struct Element<'a> {
    pub(super) part: Part<'a>,
    /// The directives in the element.
    pub(super) directives: Option<&'a NodeDirectives>,
    /// The group that contains the element: a list within the template's list.
    pub(super) group: Option<&'a Node>,
    /// The element's node, if its `$when` is not evaluated yet because it reads the existing element.
    pub(super) node: Option<&'a Node>,
}

impl<'a> Element<'a> {
    /// Returns the nodes whose `$when` is not evaluated yet: the group, the element, or both.
    pub(super) fn pending_conditions(&self) -> impl Iterator<Item = &'a Node> + use<'a> {
        self.group.filter(|group| group.uses_existing).into_iter().chain(self.node)
    }

    /// Returns the position that the element sets, otherwise the position that its group sets.
    pub(super) fn position(&self) -> Option<&'a Position> {
        let own = self.directives.and_then(|directives| directives.position.as_ref());
        own.or_else(|| self.of_group().and_then(|directives| directives.position.as_ref()))
    }

    /// Returns the directives of the element's group, if it has one.
    pub(super) fn of_group(&self) -> Option<&'a NodeDirectives> {
        self.group.and_then(|group| group.directives.as_deref())
    }
}

/// A member of an object, which may be present or absent.
pub(super) struct Member<'a> {
    /// The slot of the object.
    pub(super) at: SlotId,
    pub(super) key: Key<'a>,
    /// The unescaped key.
    pub(super) name: Cow<'a, str>,
    /// The schema of the field.
    pub(super) field: Option<&'static Field>,
    /// The fields of the object that are mutually exclusive.
    pub(super) one_of: &'static OneOf,
}

impl<'a> Member<'a> {
    pub(super) fn new(at: SlotId, key: Key<'a>, type_: &'static Type) -> Self {
        let name = key.text();
        let field = type_.field(&name);
        Self { at, key, name, field, one_of: &type_.one_of }
    }
}

/// The position of a new element.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum InsertPosition {
    First,
    Last,
    /// Before the element with this name. Last, if there is no such element.
    Before(Box<str>),
    /// After the element with this name. Last, if there is no such element.
    After(Box<str>),
}

/// Counts the elements that all profiles inserted at each position of a list, to keep the order of inserted elements.
#[derive(Clone, Debug, Default)]
pub(super) struct InsertCounts(HashMap<Box<str>, Vec<(InsertPosition, usize)>>);

impl InsertCounts {
    /// Returns the number of lists with insertions.
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// Resets the counts for [`InsertPosition::First`], because namespaced profiles insert after the elements that the
    /// platform inserted there.
    pub(super) fn reset_first(&mut self) {
        for positions in self.0.values_mut() {
            positions.retain(|(position, _)| *position != InsertPosition::First);
        }
    }

    /// Returns the count at a position of a list, and increments it. `list` is the pointer to the list.
    pub(super) fn next(&mut self, list: &str, position: &InsertPosition) -> usize {
        let positions = match self.0.get_mut(list) {
            Some(positions) => positions,
            None => self.0.entry(list.into()).or_default(),
        };
        if let Some((_, count)) = positions.iter_mut().find(|(at, _)| at == position) {
            *count += 1;
            return *count - 1;
        }
        positions.push((position.clone(), 1));
        0
    }
}

/// The value at a place before an earlier pass of the same profile.
#[derive(Clone, Copy)]
pub(super) enum OriginalValue<'a> {
    /// An earlier pass did not change the value.
    Unchanged,
    /// The place had no value.
    Nothing,
    /// The place had this value.
    Was(Value<'a>),
}

/// Places that already had the value of a cluster profile in this pass, and elements that a cluster profile put in
/// front of others. Pointers are written as in the record.
pub(super) type Confirmed = Vec<(Box<str>, ChangeKind)>;

impl<'a> Merge<'_, 'a> {
    /// Merges a template into the object.
    pub(super) fn merge_template(&mut self, template: &'a Node, type_: &'static Type) -> Result<(), MergeError> {
        let Some(part) = self.resolve(template, type_)? else { return Ok(()) };
        self.object(Document::ROOT, part, type_, None)
    }

    /// Merges the members of a part into the object `at`. If the object is an element of a keyed list, `keys` contains
    /// its key fields.
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
                    self.member(&member, existing, Part::Plain(value), ResolvedDirectives::default())?;
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
                        Some(value) => {
                            self.member(&member, existing, Part::Plain(value), ResolvedDirectives::default())?;
                        }
                        None => self.node(&member, existing, node)?,
                    }
                    self.pointer.truncate(length);
                }
            }
            Part::Node(_) => return Err(self.conflict_here(Reason::TypeConflict)),
        }
        Ok(())
    }

    /// Applies the conflict rule of a part to everything below the part.
    pub(super) fn apply_directives(&mut self, directives: ResolvedDirectives<'a>) {
        if let Some(rule) = directives.conflict {
            self.mode.conflict = rule;
            self.mode.settled &= rule != ConflictRule::Replace;
        }
    }

    /// Marks the current value as settled, so that only explicit directives below it change it.
    pub(super) const fn settle(&mut self) {
        self.mode.settled = true;
        self.mode.conflict = ConflictRule::Merge;
    }

    /// Merges a part into the existing value in the slot `present`. If `join` is set, joins the part to that value.
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
            (JsonKind::Array, JsonKind::Array, None) if part.targets_existing_elements() => {
                self.change_items(present, part)
            }
            (_, _, Some(_)) => Err(self.conflict_here(Reason::TypeConflict)),
            // The part is merged as one value, which is kept or replaced as a whole.
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
            // In an overlay, values that the author did not write come from admission plugins, so the template replaces
            // them.
            ConflictRule::Merge if self.mode.overlay => {
                self.charge(self.managed_fields.size())?;
                if self.is_author_written() || self.is_earlier_replacement() {
                    return Ok(());
                }
            }
            ConflictRule::Merge | ConflictRule::Keep => return Ok(()),
            ConflictRule::Fail => return Err(self.conflict_here(Reason::NameTaken)),
            ConflictRule::Replace => {}
        }
        self.charge_content(Content::Value(value))?;
        self.note_replaced(present);
        self.document.replace(present, Content::Value(value));
        Ok(())
    }

    /// Marks the current value as part of an addition. Returns the previous mode, to be restored afterwards.
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
            return Ok(other.equals(value));
        }
        if let Some(raw) = self.document.raw(existing) {
            return Ok(raw == value.raw());
        }
        // A part of the value was edited, so the comparison needs its serialized form.
        let mut text = String::new();
        self.document.write(existing, &mut text);
        self.charge(text.len())?;
        Ok(OwnedTape::parse(text).is_ok_and(|tape| tape.root().equals(value)))
    }

    /// Whether an object was created in this pass as part of an addition and is still empty, so that its members cannot
    /// conflict.
    pub(super) fn is_new(&self, at: SlotId, type_: &Type) -> bool {
        self.mode.within_added
            && !self.mode.settled
            && matches!(type_.one_of, OneOf::Nothing)
            && self.document.first(at).is_none()
    }

    /// Adds a member to a new object without searching for an existing one. Most fields of a sidecar are added this
    /// way.
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

    /// Merges a member, and applies its directives.
    pub(super) fn node(
        &mut self,
        member: &Member<'a>,
        existing: Option<SlotId>,
        node: &'a Node,
    ) -> Result<(), MergeError> {
        let known = self.bindings.bound_count();
        self.bind_existing(node, existing)?;
        let below = member.field.map_or(&schema::ANY, |field| match field {
            Field::Object(type_) => type_,
            Field::Keyed(keyed) => keyed.element,
        });
        if self.is_wanted(node)? {
            let directives = self.directives(node)?;
            if let Some(prune) = node.directives.as_ref().and_then(|directives| directives.prune.as_ref())
                && let Some(existing) = existing
            {
                self.prune_map(existing, prune)?;
            }
            if let Some(part) = self.resolve(node, below)? {
                self.bindings.unbind_to(known);
                return self.member(member, existing, part, directives);
            }
        }
        self.bindings.unbind_to(known);
        Ok(())
    }

    pub(super) fn member(
        &mut self,
        member: &Member<'a>,
        existing: Option<SlotId>,
        part: Part<'a>,
        directives: ResolvedDirectives<'a>,
    ) -> Result<(), MergeError> {
        let around = self.mode;
        self.apply_directives(directives);
        let present = existing.filter(|slot| self.document.kind(*slot) != JsonKind::Null);
        if present.is_some() && self.mode.conflict != ConflictRule::Replace && self.is_earlier_addition() {
            self.settle();
        }
        let result = match present {
            Some(present) => self.merge_part(member.at, present, part, directives.join, member.field),
            None if self.mode.settled && directives.join.is_none() && !part.changes_earlier_additions() => Ok(()),
            None => match self.make_room_for(member) {
                Ok(true) => self.add_member(member, existing, part, directives.join),
                Ok(false) => Ok(()),
                Err(error) => Err(error),
            },
        };
        self.mode = around;
        result
    }

    /// Adds a member that is absent. If it exists with the value null, `null` is its slot.
    fn add_member(
        &mut self,
        member: &Member<'a>,
        null: Option<SlotId>,
        part: Part<'a>,
        join: Option<&'a Join>,
    ) -> Result<(), MergeError> {
        let Member { at, key, field, .. } = *member;
        let content = match (field, part) {
            (Some(Field::Object(type_)), _) if type_.records_by_field && part.kind() == JsonKind::Object => {
                Content::Map
            }
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
            (Content::Map, Some(Field::Object(type_))) if type_.records_by_field => {
                self.object(slot, part, type_, None)?;
            }
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
        // A map or list without any remaining parts is left out.
        let is_created = matches!(self.document.content(slot), Content::Map | Content::List);
        if is_created && self.document.children(slot).next().is_none() {
            match original {
                Some((original, State::Original)) => self.document.restore(slot, original),
                Some((original, _)) => self.document.replace(slot, original),
                None => self.document.remove(slot, at),
            }
        }
        Ok(())
    }

    /// Whether a member may be added. False if existing members exclude it, unless the conflict rule is `Replace`,
    /// which removes them. The rule `Fail` returns an error instead.
    fn make_room_for(&mut self, member: &Member<'a>) -> Result<bool, MergeError> {
        let others = self.alternatives(member);
        if others.is_empty() {
            return Ok(true);
        }
        match self.mode.conflict {
            ConflictRule::Merge | ConflictRule::Keep => Ok(false),
            ConflictRule::Fail => Err(self.conflict_here(Reason::NameTaken)),
            ConflictRule::Replace => {
                for other in others {
                    self.remove_alternative(member.at, other);
                }
                Ok(true)
            }
        }
    }

    /// Returns the slots of the object's members that exclude the given one.
    fn alternatives(&self, member: &Member<'a>) -> Vec<SlotId> {
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

    /// Removes an existing member that excludes the profile's member at the current pointer.
    fn remove_alternative(&mut self, parent: SlotId, member: SlotId) {
        let around = self.pointer.rfind('/').unwrap_or(0);
        if let Some(key) = self.document.key(member) {
            let mut pointer = self.pointer.get(..around).unwrap_or_default().to_owned();
            push_token(&mut pointer, &key.text());
            let own = std::mem::replace(&mut self.pointer, pointer);
            self.note_replaced(member);
            self.pointer = own;
        }
        self.document.remove(member, parent);
    }
}

impl Node {
    /// Returns the node's value if it can be added as one value, exactly as in the template. `None` if the node has
    /// directives or expressions, if the record must list its entries separately, or if later steps search its
    /// elements. These are the lists of containers and, if `is_changed`, all keyed lists.
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
            Some(Field::Object(type_)) => !type_.records_by_field,
            None => true,
        };
        (is_one && self.directives.is_none()).then_some(value)
    }
}
