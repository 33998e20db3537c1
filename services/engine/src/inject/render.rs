//! Evaluates the parts of a template: expressions and directives.

use std::borrow::Cow;

use pillion_api::names::INJECTED_ANNOTATION;

use crate::context::EXISTING;
use crate::decision::Reason;
use crate::expression::{EvaluationError, Expression, Outcome, Value as Computed};
use crate::json::{Content, Document, OwnedTape, SlotId, Value, write_escaped};
use crate::lookup;
use crate::profile::template::{
    Choice, ConflictRule, End, Kind, Node, NodeDirectives, Piece, Position, Text, ValueWithChanges,
};
use crate::profile::{Expected, InvalidValue};
use crate::record::{EarlierPass, RecordWriter};
use crate::schema::Type;

use super::merge::{
    InsertCounts, InsertPosition, Merge, MergeError, MergeInputs, MergeScratch, OriginalValue, Part, ProfileOrigin,
    ResolvedDirectives,
};

/// The number of bytes charged to the budget for reading one member or element.
const LOOK_COST: usize = 4;

/// The initial capacity of buffers for values, in bytes.
const SCRATCH: usize = 256;

impl<'a> Merge<'_, 'a> {
    /// Resolves a part of a template for merging. `None` if the part is left out.
    pub(super) fn resolve(&mut self, node: &'a Node, type_: &'static Type) -> Result<Option<Part<'a>>, MergeError> {
        match &node.kind {
            Kind::Plain(tape) => Ok(Some(Part::Plain(tape.root()))),
            Kind::Map(_) | Kind::List(_) => Ok(Some(Part::Node(node))),
            Kind::Text(text, expected) => Ok(self.text(text, *expected)?.map(Part::Plain)),
            Kind::Changed(changed) => Ok(self.changed(changed, type_)?.map(Part::Plain)),
        }
    }

    /// Resolves a part of a template to one value. `None` if the part is left out.
    pub(super) fn value_of(&mut self, part: Part<'a>) -> Result<Option<Value<'a>>, MergeError> {
        let node = match part {
            Part::Plain(value) => return Ok(Some(value)),
            Part::Node(Node { kind: Kind::Plain(tape), .. }) => return Ok(Some(tape.root())),
            Part::Node(node) => node,
        };
        let mut out = self.take_scratch();
        let value = if self.write_kind(node, &mut out)? { Some(self.keep(&out)?) } else { None };
        self.scratch = out;
        Ok(value)
    }

    /// Evaluates a string with expressions, and checks that the result has the type that the API server expects. `None`
    /// if the whole string is one expression whose result is null or absent.
    pub(super) fn text(&mut self, text: &'a Text, expected: Expected) -> Result<Option<Value<'a>>, MergeError> {
        let value = self.any_text(text)?;
        if let Some(value) = value
            && (expected.has_rule() || matches!(text, Text::Whole(_)))
        {
            expected.check(value).map_err(|invalid| match invalid {
                InvalidValue::Type(message) => self.failed(&EvaluationError::new(message)),
                InvalidValue::Combination(rule) => {
                    MergeError::conflict(Reason::InvalidResult, &format!("{}: {rule}", self.pointer))
                }
            })?;
        }
        Ok(value)
    }

    /// Evaluates a string with expressions without checking the type of the result. `None` if the whole string is one
    /// expression whose result is null or absent.
    fn any_text(&mut self, text: &'a Text) -> Result<Option<Value<'a>>, MergeError> {
        match text {
            Text::Whole(expression) => {
                let value = self.evaluate(expression)?;
                self.json_of(&value)
            }
            Text::Mixed(pieces) => {
                let mut out = self.take_scratch();
                self.each_piece(pieces, &mut |text| out.push_str(text))?;
                let value = self.arena.keep(OwnedTape::of_string(&out));
                self.scratch = out;
                Ok(Some(value))
            }
        }
    }

    /// Evaluates a string with expressions, and converts the value to a string.
    fn plain_text(&mut self, text: &'a Text) -> Result<String, MergeError> {
        match text {
            Text::Whole(expression) => {
                let value = self.evaluate(expression)?;
                value.to_text().map(Cow::into_owned).map_err(|error| self.failed(&error))
            }
            Text::Mixed(pieces) => {
                let mut out = String::new();
                self.each_piece(pieces, &mut |text| out.push_str(text))?;
                Ok(out)
            }
        }
    }

    /// Evaluates the pieces of a string with expressions, and calls `put` with each result.
    fn each_piece(&mut self, pieces: &'a [Piece], put: &mut dyn FnMut(&str)) -> Result<(), MergeError> {
        let mut length = 0;
        for piece in pieces {
            match piece {
                Piece::Literal(text) => {
                    length += text.len();
                    put(text);
                }
                Piece::Expression(expression) => {
                    let value = self.evaluate(expression)?;
                    let text = value.to_text().map_err(|error| self.failed(&error))?;
                    length += text.len();
                    put(&text);
                }
            }
        }
        self.charge(length)
    }

    /// Writes the result of a string with expressions as JSON. Returns false if the whole string is one expression
    /// whose result is null or absent.
    fn write_text(&mut self, text: &'a Text, expected: Expected, out: &mut String) -> Result<bool, MergeError> {
        match text {
            Text::Mixed(pieces) if !expected.has_rule() => {
                out.push('"');
                self.each_piece(pieces, &mut |text| write_escaped(out, text))?;
                out.push('"');
                Ok(true)
            }
            Text::Whole(_) | Text::Mixed(_) => {
                let value = self.text(text, expected)?;
                out.push_str(value.map(Value::raw).unwrap_or_default());
                Ok(value.is_some())
            }
        }
    }

    /// Returns a field of a part as one value. `None` if the part is not an object, or if the field is absent or left
    /// out.
    pub(super) fn field_of(&mut self, part: Part<'a>, name: &str) -> Result<Option<Value<'a>>, MergeError> {
        let fields = match part {
            Part::Plain(value) => return Ok(value.get(name)),
            Part::Node(Node { kind: Kind::Plain(tape), .. }) => return Ok(tape.root().get(name)),
            Part::Node(Node { kind: Kind::Map(fields), .. }) => fields,
            Part::Node(_) => return Ok(None),
        };
        let Some((_, node)) = fields.iter().find(|(key, _)| **key == *name) else { return Ok(None) };
        let known = self.bindings.bound_count();
        self.bind_existing_to_none(node);
        let part = if self.is_wanted(node)? { self.resolve(node, &crate::schema::ANY)? } else { None };
        self.bindings.unbind_to(known);
        match part {
            Some(part) => self.value_of(part),
            None => Ok(None),
        }
    }

    /// Resolves `$value`, and merges the fields beside it into the result. `None` if `$value` is left out.
    fn changed(
        &mut self,
        changed: &'a ValueWithChanges,
        type_: &'static Type,
    ) -> Result<Option<Value<'a>>, MergeError> {
        let Some(part) = self.resolve(&changed.value, type_)? else { return Ok(None) };
        let Some(value) = self.value_of(part)? else { return Ok(None) };
        self.change_copy(value, |merge| {
            merge.mode.conflict = ConflictRule::Replace;
            merge.merge_template(&changed.changes, type_)
        })
        .map(Some)
    }

    /// Returns a copy of a value after `work` has changed it. These changes are not recorded.
    pub(super) fn change_copy(
        &mut self,
        value: Value<'a>,
        work: impl FnOnce(&mut Merge<'_, 'a>) -> Result<(), MergeError>,
    ) -> Result<Value<'a>, MergeError> {
        let mut copy = Document::new(value);
        let mut insert_counts = InsertCounts::default();
        let mut merge_scratch = MergeScratch::default();
        let mut record = RecordWriter::new();
        let earlier = EarlierPass::default();
        let inputs = MergeInputs {
            document: &mut copy,
            insert_counts: &mut insert_counts,
            merge_scratch: &mut merge_scratch,
            record: &mut record,
            bindings: self.bindings,
            arena: self.arena,
            managed_fields: self.managed_fields,
            type_: self.type_,
            collects_containers: false,
            changes_own: true,
            profile_origin: ProfileOrigin::Platform,
        };
        let mut merge = Merge::new(inputs, &earlier);
        merge.pointer.clone_from(&self.pointer);
        merge.mode.within_added = true;
        std::mem::swap(&mut merge.meter, &mut self.meter);
        let result = work(&mut merge);
        std::mem::swap(&mut merge.meter, &mut self.meter);
        result?;
        let mut out = String::with_capacity(value.raw().len() + 128);
        copy.write(Document::ROOT, &mut out);
        self.keep(&out)
    }

    /// Writes a part as one JSON value, without applying the directives of the part itself. Returns false if the part
    /// has no value.
    fn write_kind(&mut self, node: &'a Node, out: &mut String) -> Result<bool, MergeError> {
        match &node.kind {
            Kind::Plain(tape) => out.push_str(tape.root().raw()),
            Kind::Text(text, expected) => return self.write_text(text, *expected, out),
            Kind::Changed(changed) => match self.changed(changed, &crate::schema::ANY)? {
                Some(value) => out.push_str(value.raw()),
                None => return Ok(false),
            },
            Kind::Map(fields) => {
                let start = out.len();
                out.push('{');
                for (key, node) in fields {
                    let before = out.len();
                    if before > start + 1 {
                        out.push(',');
                    }
                    out.push('"');
                    out.push_str(key);
                    out.push_str("\":");
                    let known = self.bindings.bound_count();
                    self.bind_existing_to_none(node);
                    let written = self.is_wanted(node)? && self.write_kind(node, out)?;
                    self.bindings.unbind_to(known);
                    if !written {
                        out.truncate(before);
                    }
                }
                // A map is left out if all its fields are.
                if out.len() == start + 1 {
                    out.truncate(start);
                    return Ok(false);
                }
                out.push('}');
            }
            Kind::List(nodes) => {
                let start = out.len();
                out.push('[');
                self.expand(nodes, None, &crate::schema::ANY, &mut |merge, element| {
                    for node in element.pending_conditions() {
                        merge.bind_existing_to_none(node);
                        if !merge.is_wanted(node)? {
                            return Ok(());
                        }
                    }
                    let before = out.len();
                    if before > start + 1 {
                        out.push(',');
                    }
                    let written = match element.part {
                        Part::Plain(value) => {
                            out.push_str(value.raw());
                            true
                        }
                        Part::Node(node) => merge.write_kind(node, out)?,
                    };
                    if !written {
                        out.truncate(before);
                    }
                    Ok(())
                })?;
                // A list is left out if all its elements are.
                if out.len() == start + 1 {
                    out.truncate(start);
                    return Ok(false);
                }
                out.push(']');
            }
        }
        Ok(true)
    }

    /// Evaluates the node's `$when`. True if it has no `$when`.
    pub(super) fn is_wanted(&mut self, node: &'a Node) -> Result<bool, MergeError> {
        match node.directives.as_ref().and_then(|directives| directives.when.as_ref()) {
            Some(when) => self.truth(when),
            None => Ok(true),
        }
    }

    /// Returns the directives of a part that determine how it merges into an existing value.
    pub(super) fn directives(&mut self, node: &'a Node) -> Result<ResolvedDirectives<'a>, MergeError> {
        match &node.directives {
            Some(directives) => self.directives_of(directives),
            None => Ok(ResolvedDirectives::default()),
        }
    }

    pub(super) fn directives_of(
        &mut self,
        directives: &'a NodeDirectives,
    ) -> Result<ResolvedDirectives<'a>, MergeError> {
        let conflict = match &directives.conflict {
            None => None,
            Some(Choice::Constant(rule)) => Some(*rule),
            Some(Choice::Computed(text)) => Some(self.keyword(text, ConflictRule::from_word, ConflictRule::WORDS)?),
        };
        Ok(ResolvedDirectives { conflict, join: directives.join.as_ref() })
    }

    /// Evaluates the position of a new element. Returns the last position if none is set, or if the name in it is null,
    /// absent or not a string.
    pub(super) fn insert_position(&mut self, position: Option<&'a Position>) -> Result<InsertPosition, MergeError> {
        let end = |end: End| match end {
            End::First => InsertPosition::First,
            End::Last => InsertPosition::Last,
        };
        match position {
            None => Ok(InsertPosition::Last),
            Some(Position::End(Choice::Constant(known))) => Ok(end(*known)),
            Some(Position::End(Choice::Computed(text))) => Ok(end(self.keyword(text, End::from_word, End::WORDS)?)),
            Some(Position::Before(name)) => Ok(self.choice(name)?.map_or(InsertPosition::Last, InsertPosition::Before)),
            Some(Position::After(name)) => Ok(self.choice(name)?.map_or(InsertPosition::Last, InsertPosition::After)),
        }
    }

    /// Returns a constant or computed string. `None` if the result of the expression is null, absent or not a string.
    pub(super) fn choice(&mut self, choice: &'a Choice<Box<str>>) -> Result<Option<Box<str>>, MergeError> {
        match choice {
            Choice::Constant(text) => Ok(Some(text.clone())),
            Choice::Computed(text) => {
                Ok(self.any_text(text)?.and_then(|value| value.as_str().map(|text| text.as_ref().into())))
            }
        }
    }

    fn keyword<T>(
        &mut self,
        text: &'a Text,
        read: impl Fn(&str) -> Option<T>,
        expected: &str,
    ) -> Result<T, MergeError> {
        let word = self.plain_text(text)?;
        read(&word).ok_or_else(|| self.failed(&EvaluationError::new(format!("expected {expected}, found {word:?}"))))
    }

    pub(super) fn truth(&mut self, expression: &'a Expression) -> Result<bool, MergeError> {
        expression.evaluate_bool(self.bindings, &mut self.meter).map_err(|error| self.failed(&error))
    }

    pub(super) fn evaluate(&mut self, expression: &'a Expression) -> Result<Computed<'a>, MergeError> {
        expression.evaluate(self.bindings, &mut self.meter).map_err(|error| self.failed(&error))
    }

    /// Converts a computed value to JSON. `None` if it is null or absent.
    pub(super) fn json_of(&mut self, value: &Computed<'a>) -> Result<Option<Value<'a>>, MergeError> {
        if let Computed::Tape(value) = value {
            return Ok((!value.is_null()).then_some(*value));
        }
        if let Computed::String(text) = value {
            self.charge(text.len())?;
            return Ok(Some(self.arena.keep(OwnedTape::of_string(text))));
        }
        match value.to_outcome(&mut self.meter).map_err(|error| self.failed(&error))? {
            Outcome::Absent => Ok(None),
            Outcome::Value(value) => self.keep(&value.to_string()).map(Some),
        }
    }

    /// Binds the variable `existing` to the object's value at the current place, if the node uses the variable.
    pub(super) fn bind_existing(&mut self, node: &Node, existing: Option<SlotId>) -> Result<(), MergeError> {
        if !node.uses_existing {
            return Ok(());
        }
        // Prefer the original, so that a second pass reads the same value as the first one.
        let value = match (self.original(), existing) {
            (OriginalValue::Was(value), _) => Some(value),
            (OriginalValue::Unchanged, Some(slot)) => Some(self.seen(slot)?),
            (OriginalValue::Nothing, _) | (OriginalValue::Unchanged, None) => None,
        };
        let meter = &mut self.meter;
        let value = value.map(|value| Computed::read(value, meter)).transpose();
        let value = value.and_then(|value| Computed::optional(value, meter)).map_err(|error| self.failed(&error))?;
        self.bindings.bind(EXISTING, value);
        Ok(())
    }

    /// Binds the variable `existing` to an empty optional, for parts that have no existing value.
    pub(super) fn bind_existing_to_none(&self, node: &Node) {
        if node.uses_existing {
            self.bindings.bind(EXISTING, Computed::none());
        }
    }

    /// Returns the current value of a slot.
    pub(super) fn current(&mut self, slot: SlotId) -> Result<Value<'a>, MergeError> {
        if let Content::Value(value) = self.document.content(slot) {
            return Ok(value);
        }
        let mut out = self.take_scratch();
        self.document.write(slot, &mut out);
        let value = self.keep(&out)?;
        self.scratch = out;
        Ok(value)
    }

    /// Takes the buffer for building values. The caller puts it back, so that the next call does not allocate.
    pub(super) fn take_scratch(&mut self) -> String {
        let mut scratch = std::mem::take(&mut self.scratch);
        scratch.clear();
        scratch.reserve(SCRATCH);
        scratch
    }

    /// Parses JSON, and stores the value until the request ends. Charges its length, because a loop may store values
    /// that are never used.
    pub(super) fn keep(&mut self, text: &str) -> Result<Value<'a>, MergeError> {
        self.charge(text.len())?;
        // The text is valid JSON, so parsing fails only if it exceeds the limits on depth or size.
        match OwnedTape::parse(text) {
            Ok(tape) => Ok(self.arena.keep(tape)),
            Err(_) => Err(self.failed(&EvaluationError::new("the value is nested too deeply or too large"))),
        }
    }

    pub(super) fn charge(&mut self, bytes: usize) -> Result<(), MergeError> {
        self.meter.charge_bytes(bytes).map_err(|error| self.failed(&error))
    }

    /// Charges a search over `looks` members or elements. Fails if the record already exceeds its maximum size,
    /// because the profile cannot be applied then. Without this check, long lists could take quadratic time.
    pub(super) fn charge_looks(&mut self, looks: usize) -> Result<(), MergeError> {
        if self.record.is_full() {
            return Err(MergeError::conflict(Reason::RecordTooLarge, INJECTED_ANNOTATION));
        }
        self.charge(looks.saturating_mul(LOOK_COST))
    }

    /// Charges the length of an unopened JSON value each time it is inserted, even if its creation was already charged,
    /// because a loop may insert it many times. Other content is not charged here.
    pub(super) fn charge_content(&mut self, content: Content<'a>) -> Result<(), MergeError> {
        match content {
            Content::Value(value) => self.charge(value.raw().len()),
            Content::Scalar(_) | Content::Made(_) | Content::Map | Content::List => Ok(()),
        }
    }

    /// Returns the error for an expression that failed at the current place.
    pub(super) fn failed(&self, error: &EvaluationError) -> MergeError {
        let place = format!("{}: {}", self.pointer, error.message());
        MergeError::conflict(lookup::reason_of(error), &place)
    }
}
