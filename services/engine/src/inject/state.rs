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
pub(super) enum MergeError {
    Conflict(Conflict),
    /// A rule of the profile's refuses the object.
    Denied(Conflict),
    Malformed(Malformed),
}

impl From<Malformed> for MergeError {
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
pub(super) struct MergeMode {
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
pub(super) struct MergeInputs<'d, 'a> {
    pub(super) document: &'d mut Document<'a>,
    pub(super) insert_counts: &'d mut InsertCounts,
    pub(super) merge_scratch: &'d mut MergeScratch<'a>,
    pub(super) record: &'d mut RecordWriter,
    pub(super) bindings: &'d ProfileBindings<'a>,
    pub(super) arena: &'a Arena,
    pub(super) managed_fields: ManagedFields<'a>,
    /// What is known of the whole object.
    pub(super) type_: &'static Type,
    /// Whether anybody asks which containers were added.
    pub(super) collects_containers: bool,
    /// Whether the profile changes containers that it adds itself.
    pub(super) changes_own: bool,
    pub(super) profile_origin: ProfileOrigin<'d>,
}

/// Whose profile is merged.
#[derive(Default)]
pub(super) enum ProfileOrigin<'d> {
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
    /// How many changes the record has of it.
    pub(super) changes: usize,
    /// Messages for the author of the object.
    pub(super) notes: Vec<Box<str>>,
    /// Pointers of the containers that were added, if they were asked for.
    pub(super) containers: Vec<Box<str>>,
}

/// One template's merge.
pub(super) struct Merge<'d, 'a> {
    pub(super) document: &'d mut Document<'a>,
    pub(super) bindings: &'d ProfileBindings<'a>,
    pub(super) arena: &'a Arena,
    pub(super) meter: Meter,
    /// For finding out what an earlier pass did.
    pub(super) again: Meter,
    pub(super) managed_fields: ManagedFields<'a>,
    /// What is known of the whole object.
    pub(super) type_: &'static Type,
    /// What the same profile did in an earlier pass.
    pub(super) earlier: &'d EarlierPass<'a>,
    pub(super) insert_counts: &'d mut InsertCounts,
    pub(super) record: &'d mut RecordWriter,
    pub(super) mode: MergeMode,
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
    merge_scratch: &'d mut MergeScratch<'a>,
    /// Elements that were added in this pass. Later ones have higher numbers, so it is in order.
    pub(super) own: Vec<SlotId>,
    /// Containers that were put into a list from the other one in this pass: they are in the record as added.
    pub(super) put: Vec<SlotId>,
    pub(super) collects_containers: bool,
    pub(super) changes_own: bool,
    pub(super) profile_origin: ProfileOrigin<'d>,
    /// How often something was found to be as the profile says it.
    pub(super) confirmations: usize,
    /// Containers that were added in this pass, by their pointers, if anybody asks.
    pub(super) containers: Vec<Box<str>>,
    /// What the author is told.
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
            merge_scratch,
            containers: Vec::new(),
            notes: Vec::new(),
        }
    }

    /// Returns the output of the merge, and its buffers to the next one.
    pub(super) fn finish(self) -> ApplyOutput {
        let Self { pointer, scratch, own, env, index, .. } = self;
        *self.merge_scratch = MergeScratch { pointer, scratch, own, env, index };
        ApplyOutput { changes: self.changes, notes: self.notes, containers: self.containers }
    }

    pub(super) fn conflict_at_hand(&self, reason: Reason) -> MergeError {
        MergeError::Conflict(Conflict { reason, place: self.pointer.as_str().into() })
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
    pub(super) fn changes_elements(self) -> bool {
        let Self::Node(Node { kind: Kind::List(nodes), .. }) = self else { return false };
        let mut rules = nodes.iter().filter_map(|node| node.rules.as_ref());
        rules.any(|rules| rules.each.is_some() || rules.prune.is_some())
    }

    /// Whether there is something to do in it also where an earlier pass has added it.
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
    /// The group that it stands in.
    pub(super) group: Option<&'a Node>,
    /// Whether `$when` is still to be asked, because it asks what the object has.
    pub(super) node: Option<&'a Node>,
}

impl<'a> Element<'a> {
    /// The parts whose `$when` is still to be asked.
    pub(super) fn asks(&self) -> impl Iterator<Item = &'a Node> + use<'a> {
        self.group.filter(|group| group.uses_existing).into_iter().chain(self.node)
    }

    /// Where its profile wants it: it says so itself, or its group does.
    pub(super) fn position(&self) -> Option<&'a Position> {
        let own = self.rules.and_then(|rules| rules.position.as_ref());
        own.or_else(|| self.of_group().and_then(|rules| rules.position.as_ref()))
    }

    /// The directives of its group.
    pub(super) fn of_group(&self) -> Option<&'a Rules> {
        self.group.and_then(|group| group.rules.as_deref())
    }
}

/// A member of an object, be it there or not.
pub(super) struct Member<'a> {
    /// The object.
    pub(super) at: SlotId,
    pub(super) key: Key<'a>,
    /// The text that the key stands for.
    pub(super) name: Cow<'a, str>,
    /// What is known of it.
    pub(super) field: Option<&'static Field>,
    /// The choice among the object's fields.
    pub(super) one_of: &'static OneOf,
}

impl<'a> Member<'a> {
    pub(super) fn new(at: SlotId, key: Key<'a>, type_: &'static Type) -> Self {
        let name = key.text();
        let field = type_.field(&name);
        Self { at, key, name, field, one_of: &type_.one_of }
    }
}

/// Where a new element goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum InsertPosition {
    First,
    Last,
    /// Before the element with this name; last if there is none.
    Before(Box<str>),
    /// Behind the element with this name; last if there is none.
    After(Box<str>),
}

/// How many elements were put at each place of a list so far, by all profiles: several at one place keep their order.
#[derive(Clone, Debug, Default)]
pub(super) struct InsertCounts(HashMap<Box<str>, Vec<(InsertPosition, usize)>>);

impl InsertCounts {
    /// How many lists have elements.
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// Forgets what stands first: namespaces' profiles come behind what the platform put there.
    pub(super) fn forget_first(&mut self) {
        for positions in self.0.values_mut() {
            positions.retain(|(position, _)| *position != InsertPosition::First);
        }
    }

    /// How many there were, and counts one more.
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

/// What stood at a place before an earlier pass of the same profile.
#[derive(Clone, Copy)]
pub(super) enum OriginalValue<'a> {
    /// That pass left it alone.
    Unchanged,
    /// Nothing was there.
    Nothing,
    /// This.
    Was(Value<'a>),
}

/// Places that the platform's profiles confirmed in this pass, by pointers as they stand in the record.
#[derive(Debug, Default)]
pub(super) struct Confirmed(pub(super) Vec<(Box<str>, ChangeKind)>);

impl Confirmed {
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// Forgets what a profile confirmed that is not applied.
    pub(super) fn truncate(&mut self, length: usize) {
        self.0.truncate(length);
    }

    pub(super) fn places(&self) -> impl Iterator<Item = (&str, ChangeKind)> {
        self.0.iter().map(|(pointer, done)| (&**pointer, *done))
    }
}
