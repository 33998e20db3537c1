//! The state of a merge: what it works on, and the small types that its steps pass to each other.
//!
//! The steps are methods of [`Merge`] in the other files of this folder.

use std::borrow::Cow;
use std::collections::HashMap;

use crate::context::{Arena, ProfileBindings};
use crate::decision::Reason;
use crate::expression::{Meter, Purpose};
use crate::json::{Document, Key, Kind as JsonKind, Malformed, SlotId, Value};
use crate::limits::{Excess, Protected};
use crate::profile::template::{ConflictRule, Join, Kind, Node, Position, Rules};
use crate::record::{ChangeKind, EarlierPass, RecordWriter};
use crate::schema::{Field, OneOf, Type};

use super::index::Index;
use super::managed_fields::ManagedFields;

/// The list of init containers in the spec of a pod.
pub(super) const INIT_CONTAINERS: &str = "initContainers";

/// Why a template cannot be merged into an object.
#[derive(Debug)]
pub(crate) struct Conflict {
    pub(crate) reason: Reason,
    /// The pointer of the conflict: `/spec/containers/logger`.
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

/// An error that ends a merge.
pub(super) enum MergeError {
    Conflict(Conflict),
    /// A conflict rule of the profile denies the object.
    Denied(Conflict),
    Malformed(Malformed),
}

impl From<Malformed> for MergeError {
    fn from(malformed: Malformed) -> Self {
        Self::Malformed(malformed)
    }
}

/// A part of a template: a node with directives or expressions below it, or plain JSON.
#[derive(Clone, Copy)]
pub(super) enum Part<'a> {
    Node(&'a Node),
    Plain(Value<'a>),
}

/// The directives of a part that matter where it is merged.
#[derive(Clone, Copy, Default)]
pub(super) struct Directives<'a> {
    pub(super) conflict: Option<ConflictRule>,
    pub(super) join: Option<&'a Join>,
}

/// How parts are merged at the current place. A directive changes the mode for everything below it.
#[derive(Clone, Copy)]
pub(super) struct MergeMode {
    /// The rule for values that differ from the object.
    pub(super) conflict: ConflictRule,
    /// Whether an earlier pass added the current value.
    pub(super) settled: bool,
    /// Whether the current value is part of an addition of this pass, so that the record already covers it.
    pub(super) within_added: bool,
    /// Whether the current container is an author's overlay of an injected one.
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
    /// Whether the added containers are returned.
    pub(super) collects_containers: bool,
    /// Whether the profile changes containers that it adds itself.
    pub(super) changes_own: bool,
    pub(super) profile_origin: ProfileOrigin<'d>,
}

/// Whose profile is merged.
#[derive(Default)]
pub(super) enum ProfileOrigin<'d> {
    /// The platform's, without a namespaced profile after it.
    #[default]
    Platform,
    /// The platform's. The places that it confirms are protected from the namespaced profiles after it.
    Watched(&'d mut Confirmed),
    /// A namespace's, with the places that it must not change.
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

/// What a merge did.
#[derive(Default)]
pub(super) struct ApplyOutput {
    /// The number of changes in the record.
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
    /// The meter for recognizing what an earlier pass did.
    pub(super) again: Meter,
    pub(super) managed_fields: ManagedFields<'a>,
    /// The schema of the whole object.
    pub(super) type_: &'static Type,
    /// The changes of the same profile in an earlier pass.
    pub(super) earlier: &'d EarlierPass<'a>,
    pub(super) insert_counts: &'d mut InsertCounts,
    pub(super) record: &'d mut RecordWriter,
    pub(super) mode: MergeMode,
    /// The number of changes in the record.
    pub(super) changes: usize,
    /// The number of edits, including those that one change in the record covers.
    pub(super) edits: usize,
    /// The pointer of the current place, with elements of keyed lists by their keys.
    pub(super) pointer: String,
    /// A buffer for values before they are stored.
    pub(super) scratch: String,
    /// The elements of the current list.
    pub(super) index: Index<'a>,
    /// New or joined environment variables: those of the current list after those of the lists around it.
    pub(super) env: Vec<SlotId>,
    /// The buffers to return at the end.
    buffers: &'d mut MergeScratch<'a>,
    /// Slots of the elements added in this pass. Slot numbers rise, so the list is sorted.
    pub(super) own: Vec<SlotId>,
    /// Containers that moved from the other list in this pass. The record has them as added.
    pub(super) put: Vec<SlotId>,
    pub(super) collects_containers: bool,
    pub(super) changes_own: bool,
    pub(super) profile_origin: ProfileOrigin<'d>,
    /// The number of places that already were as the profile wants them.
    pub(super) confirmations: usize,
    /// Pointers of the containers added in this pass, if they are collected.
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
            again: bindings.meter(Purpose::Recognize, Meter::PROFILE),
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
            own,
            put: Vec::new(),
            buffers: merge_scratch,
            containers: Vec::new(),
            notes: Vec::new(),
        }
    }

    /// Returns the output of the merge, and its buffers to the next one.
    pub(super) fn finish(self) -> ApplyOutput {
        let Self { pointer, scratch, own, env, index, .. } = self;
        *self.buffers = MergeScratch { pointer, scratch, own, env, index };
        ApplyOutput { changes: self.changes, notes: self.notes, containers: self.containers }
    }

    pub(super) fn conflict_at_hand(&self, reason: Reason) -> MergeError {
        MergeError::Conflict(Conflict { reason, place: self.pointer.as_str().into() })
    }
}

impl Part<'_> {
    /// The kind of its value. Strings with expressions and changed values are resolved before this is called.
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

    /// Whether it is a list that changes or removes existing elements.
    pub(super) fn changes_elements(self) -> bool {
        let Self::Node(Node { kind: Kind::List(nodes), .. }) = self else { return false };
        let mut rules = nodes.iter().filter_map(|node| node.rules.as_ref());
        rules.any(|rules| rules.each.is_some() || rules.prune.is_some())
    }

    /// Whether it acts again on what an earlier pass added.
    pub(super) fn acts_again(self) -> bool {
        matches!(self, Self::Node(node) if node.acts_again)
    }
}

/// An element of a template's list.
#[derive(Clone, Copy)]
pub(super) struct Element<'a> {
    pub(super) part: Part<'a>,
    /// The directives beside its fields.
    pub(super) rules: Option<&'a Rules>,
    /// The group that holds it.
    pub(super) group: Option<&'a Node>,
    /// The node whose `$when` is still to be evaluated, because it reads the existing element.
    pub(super) node: Option<&'a Node>,
}

impl<'a> Element<'a> {
    /// The nodes whose `$when` is still to be evaluated.
    pub(super) fn asks(&self) -> impl Iterator<Item = &'a Node> + use<'a> {
        self.group.filter(|group| group.uses_existing).into_iter().chain(self.node)
    }

    /// The position that it or its group sets.
    pub(super) fn position(&self) -> Option<&'a Position> {
        let own = self.rules.and_then(|rules| rules.position.as_ref());
        own.or_else(|| self.of_group().and_then(|rules| rules.position.as_ref()))
    }

    /// The directives of its group.
    pub(super) fn of_group(&self) -> Option<&'a Rules> {
        self.group.and_then(|group| group.rules.as_deref())
    }
}

/// A member of an object, existing or not.
pub(super) struct Member<'a> {
    /// The slot of the object.
    pub(super) at: SlotId,
    pub(super) key: Key<'a>,
    /// The unescaped key.
    pub(super) name: Cow<'a, str>,
    /// The schema of the field.
    pub(super) field: Option<&'static Field>,
    /// The fields of the object that exclude each other.
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
    /// Before the element with this name; last if there is none.
    Before(Box<str>),
    /// After the element with this name; last if there is none.
    After(Box<str>),
}

/// Counts the elements that all profiles inserted at each position of a list, so that they keep their order.
#[derive(Clone, Debug, Default)]
pub(super) struct InsertCounts(HashMap<Box<str>, Vec<(InsertPosition, usize)>>);

impl InsertCounts {
    /// The number of lists with insertions.
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// Resets the counts of the first position: namespaced profiles insert after what the platform inserted there.
    pub(super) fn forget_first(&mut self) {
        for positions in self.0.values_mut() {
            positions.retain(|(position, _)| *position != InsertPosition::First);
        }
    }

    /// Returns the count at a position and increments it.
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
    /// The pass did not change it.
    Unchanged,
    /// There was no value.
    Nothing,
    /// This value.
    Was(Value<'a>),
}

/// Places that the platform's profiles confirmed in this pass, by pointers as in the record.
#[derive(Debug, Default)]
pub(super) struct Confirmed(pub(super) Vec<(Box<str>, ChangeKind)>);

impl Confirmed {
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// Removes what a profile confirmed that is not applied after all.
    pub(super) fn truncate(&mut self, length: usize) {
        self.0.truncate(length);
    }

    pub(super) fn places(&self) -> impl Iterator<Item = (&str, ChangeKind)> {
        self.0.iter().map(|(pointer, done)| (&**pointer, *done))
    }
}
