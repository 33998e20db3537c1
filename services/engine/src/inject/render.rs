//! From a part of a template to the value that it stands for here: expressions evaluated, directives asked.

use std::borrow::Cow;

use pillion_api::names::INJECTED_ANNOTATION;

use crate::expression::{EvaluationError, Expression, Outcome, Value as Computed};
use crate::json::{Content, OwnedTape, SlotId, Value};
use crate::lookup;
use crate::profile::template::{Changed, Choice, ConflictRule, End, Kind, Node, Piece, Position, Rules, Text};
use crate::report::Reason;
use crate::schema::Type;

use super::merge::{Conflict, Directives, Fault, Merge, Part};
use super::notes::Original;

/// Where a new element goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Spot {
    First,
    Last,
    /// Before the element with this name; last if there is none.
    Before(Box<str>),
    /// Behind the element with this name; last if there is none.
    After(Box<str>),
}

/// Bytes that looking at one member or element is charged as.
const LOOK_COST: usize = 4;

/// The name of what the object has at the place at hand.
const EXISTING: &str = "existing";

impl<'a> Merge<'_, 'a> {
    /// A part of a template as it can be laid; `None` if it is left out.
    pub(super) fn resolve(&mut self, node: &'a Node, type_: &'static Type) -> Result<Option<Part<'a>>, Fault> {
        match &node.kind {
            Kind::Plain(tape) => Ok(Some(Part::Plain(tape.root()))),
            Kind::Map(_) | Kind::List(_) => Ok(Some(Part::Node(node))),
            Kind::Text(text) => Ok(self.text(text)?.map(Part::Plain)),
            Kind::Changed(changed) => Ok(self.changed(changed, type_)?.map(Part::Plain)),
        }
    }

    /// A part of a template as one value; `None` if it is left out.
    pub(super) fn value_of(&mut self, part: Part<'a>) -> Result<Option<Value<'a>>, Fault> {
        let node = match part {
            Part::Plain(value) => return Ok(Some(value)),
            Part::Node(Node { kind: Kind::Plain(tape), .. }) => return Ok(Some(tape.root())),
            Part::Node(node) => node,
        };
        let mut out = Vec::with_capacity(128);
        if !self.write_kind(node, &mut out)? {
            return Ok(None);
        }
        self.keep(out).map(Some)
    }

    /// The value that a string with expressions stands for.
    fn text(&mut self, text: &'a Text) -> Result<Option<Value<'a>>, Fault> {
        match text {
            Text::Whole(expression) => {
                let value = self.evaluate(expression)?;
                self.json_of(&value)
            }
            Text::Mixed(_) => {
                let text = self.plain_text(text)?;
                Ok(Some(self.arena.keep(OwnedTape::of_string(&text))))
            }
        }
    }

    /// The text that a string with expressions stands for.
    fn plain_text(&mut self, text: &'a Text) -> Result<String, Fault> {
        match text {
            Text::Whole(expression) => {
                let value = self.evaluate(expression)?;
                value.to_text().map(Cow::into_owned).map_err(|error| self.failed(&error))
            }
            Text::Mixed(pieces) => {
                let mut out = String::with_capacity(64);
                for piece in pieces {
                    match piece {
                        Piece::Literal(text) => out.push_str(text),
                        Piece::Expression(expression) => {
                            let value = self.evaluate(expression)?;
                            out.push_str(&value.to_text().map_err(|error| self.failed(&error))?);
                        }
                    }
                }
                self.charge(out.len())?;
                Ok(out)
            }
        }
    }

    /// `$value` with the fields beside it laid over it.
    fn changed(&mut self, changed: &'a Changed, type_: &'static Type) -> Result<Option<Value<'a>>, Fault> {
        let Some(part) = self.resolve(&changed.value, type_)? else { return Ok(None) };
        let Some(value) = self.value_of(part)? else { return Ok(None) };
        let mut copy = crate::json::Document::new(value);
        let mut places = super::elements::Places::default();
        let mut record = super::record::RecordWriter::new();
        let earlier = super::record::Earlier::default();
        let surroundings = super::merge::Surroundings {
            document: &mut copy,
            places: &mut places,
            record: &mut record,
            computation: self.computation,
            arena: self.arena,
            authors: self.authors,
            type_: self.type_,
            collects_containers: false,
        };
        let mut merge = Merge::new(surroundings, &earlier);
        merge.pointer.clone_from(&self.pointer);
        merge.manner.conflict = ConflictRule::Replace;
        merge.manner.within_added = true;
        std::mem::swap(&mut merge.budget, &mut self.budget);
        let result = merge.whole(&changed.changes, type_);
        std::mem::swap(&mut merge.budget, &mut self.budget);
        result?;
        let mut out = Vec::with_capacity(value.raw().len() + 128);
        copy.write(crate::json::Document::ROOT, &mut out);
        self.keep(out).map(Some)
    }

    /// Writes a part as one value, its own directives aside. Whether there is one.
    fn write_kind(&mut self, node: &'a Node, out: &mut Vec<u8>) -> Result<bool, Fault> {
        match &node.kind {
            Kind::Plain(tape) => out.extend_from_slice(tape.root().raw().as_bytes()),
            Kind::Text(text) => match self.text(text)? {
                Some(value) => out.extend_from_slice(value.raw().as_bytes()),
                None => return Ok(false),
            },
            Kind::Changed(changed) => match self.changed(changed, &crate::schema::ANY)? {
                Some(value) => out.extend_from_slice(value.raw().as_bytes()),
                None => return Ok(false),
            },
            Kind::Map(fields) => {
                let start = out.len();
                out.push(b'{');
                for (key, node) in fields {
                    let before = out.len();
                    if before > start + 1 {
                        out.push(b',');
                    }
                    out.push(b'"');
                    out.extend_from_slice(key.as_bytes());
                    out.extend_from_slice(b"\":");
                    let known = self.computation.known();
                    self.know_nothing_exists(node);
                    let written = self.is_wanted(node)? && self.write_kind(node, out)?;
                    self.computation.forget(known);
                    if !written {
                        out.truncate(before);
                    }
                }
                // A map whose every field was left out is left out too.
                if out.len() == start + 1 {
                    out.truncate(start);
                    return Ok(false);
                }
                out.push(b'}');
            }
            Kind::List(nodes) => {
                let mut items: Vec<u8> = Vec::new();
                self.expand(nodes, None, &crate::schema::ANY, &mut |merge, element| {
                    for node in element.asks() {
                        merge.know_nothing_exists(node);
                        if !merge.is_wanted(node)? {
                            return Ok(());
                        }
                    }
                    let before = items.len();
                    if before > 0 {
                        items.push(b',');
                    }
                    let written = match element.part {
                        Part::Plain(value) => {
                            items.extend_from_slice(value.raw().as_bytes());
                            true
                        }
                        Part::Node(node) => merge.write_kind(node, &mut items)?,
                    };
                    if !written {
                        items.truncate(before);
                    }
                    Ok(())
                })?;
                // So is a list whose every element was left out.
                if items.is_empty() {
                    return Ok(false);
                }
                out.push(b'[');
                out.extend_from_slice(&items);
                out.push(b']');
            }
        }
        Ok(true)
    }

    /// Whether `$when` lets a part be.
    pub(super) fn is_wanted(&mut self, node: &'a Node) -> Result<bool, Fault> {
        match node.rules.as_ref().and_then(|rules| rules.when.as_ref()) {
            Some(when) => self.truth(when),
            None => Ok(true),
        }
    }

    /// The directives of a part that matter where it is laid.
    pub(super) fn directives(&mut self, node: &'a Node) -> Result<Directives<'a>, Fault> {
        match &node.rules {
            Some(rules) => self.directives_of(rules),
            None => Ok(Directives::default()),
        }
    }

    pub(super) fn directives_of(&mut self, rules: &'a Rules) -> Result<Directives<'a>, Fault> {
        let conflict = match &rules.conflict {
            None => None,
            Some(Choice::Known(rule)) => Some(*rule),
            Some(Choice::Found(text)) => Some(self.word(text, ConflictRule::from_word, ConflictRule::WORDS)?),
        };
        Ok(Directives { conflict, join: rules.join.as_ref() })
    }

    /// Where a new element goes.
    pub(super) fn spot(&mut self, position: Option<&'a Position>) -> Result<Spot, Fault> {
        let end = |end: End| match end {
            End::First => Spot::First,
            End::Last => Spot::Last,
        };
        match position {
            None => Ok(Spot::Last),
            Some(Position::End(Choice::Known(known))) => Ok(end(*known)),
            Some(Position::End(Choice::Found(text))) => Ok(end(self.word(text, End::from_word, End::WORDS)?)),
            Some(Position::Before(name)) => Ok(self.choice(name)?.map_or(Spot::Last, Spot::Before)),
            Some(Position::After(name)) => Ok(self.choice(name)?.map_or(Spot::Last, Spot::After)),
        }
    }

    /// A text that is known or found; `None` if the expression gives none.
    pub(super) fn choice(&mut self, choice: &'a Choice<Box<str>>) -> Result<Option<Box<str>>, Fault> {
        match choice {
            Choice::Known(text) => Ok(Some(text.clone())),
            Choice::Found(text) => {
                Ok(self.text(text)?.and_then(|value| value.as_str().map(|text| text.as_ref().into())))
            }
        }
    }

    fn word<T>(&mut self, text: &'a Text, read: impl Fn(&str) -> Option<T>, expected: &str) -> Result<T, Fault> {
        let word = self.plain_text(text)?;
        read(&word).ok_or_else(|| self.failed(&EvaluationError::new(format!("expected {expected}, found {word:?}"))))
    }

    pub(super) fn truth(&mut self, expression: &'a Expression) -> Result<bool, Fault> {
        expression.evaluate_bool(self.computation, &mut self.budget).map_err(|error| self.failed(&error))
    }

    pub(super) fn evaluate(&mut self, expression: &'a Expression) -> Result<Computed<'a>, Fault> {
        expression.evaluate(self.computation, &mut self.budget).map_err(|error| self.failed(&error))
    }

    /// A computed value as JSON; `None` if it is absent.
    pub(super) fn json_of(&mut self, value: &Computed<'a>) -> Result<Option<Value<'a>>, Fault> {
        if let Computed::Tape(value) = value {
            return Ok((!value.is_null()).then_some(*value));
        }
        if let Computed::String(text) = value {
            self.charge(text.len())?;
            return Ok(Some(self.arena.keep(OwnedTape::of_string(text))));
        }
        match value.to_outcome().map_err(|error| self.failed(&error))? {
            Outcome::Absent => Ok(None),
            Outcome::Value(value) => {
                let text = value.to_string();
                self.charge(text.len())?;
                self.keep(text.into()).map(Some)
            }
        }
    }

    /// Brings what the object has at a place into scope, if a part asks for it.
    pub(super) fn know_existing(&mut self, node: &Node, existing: Option<SlotId>) -> Result<(), Fault> {
        if !node.uses_existing {
            return Ok(());
        }
        // A second pass sees what the first one saw.
        let value = match (self.original(), existing) {
            (Original::Was(value), _) => Computed::some(Computed::from(value)),
            (Original::Unchanged, Some(slot)) => Computed::some(Computed::from(self.seen(slot)?)),
            (Original::Nothing, _) | (Original::Unchanged, None) => Computed::none(),
        };
        self.computation.know(EXISTING, value);
        Ok(())
    }

    /// Inside a value that is written as a whole there is nothing yet.
    pub(super) fn know_nothing_exists(&self, node: &Node) {
        if node.uses_existing {
            self.computation.know(EXISTING, Computed::none());
        }
    }

    /// What a slot holds now.
    pub(super) fn current(&mut self, slot: SlotId) -> Result<Value<'a>, Fault> {
        if let Content::Value(value) = self.document.content(slot) {
            return Ok(value);
        }
        let mut out = Vec::new();
        self.document.write(slot, &mut out);
        self.charge(out.len())?;
        self.keep(out)
    }

    /// Keeps a JSON text for as long as the request lives.
    pub(super) fn keep(&mut self, text: Vec<u8>) -> Result<Value<'a>, Fault> {
        // It was written from values that are JSON.
        let tape = String::from_utf8(text).ok().and_then(|text| OwnedTape::parse(text).ok());
        match tape {
            Some(tape) => Ok(self.arena.keep(tape)),
            None => Err(self.failed(&EvaluationError::new("the value is nested too deeply or too large"))),
        }
    }

    pub(super) fn charge(&mut self, bytes: usize) -> Result<(), Fault> {
        self.budget.charge_bytes(bytes).map_err(|error| self.failed(&error))
    }

    /// Charges going over so many members or elements in search of one; ends where the record has no room anyway, so that
    /// long lists do not take the square of their length.
    pub(super) fn charge_looks(&mut self, looks: usize) -> Result<(), Fault> {
        if self.record.is_full() {
            return Err(Fault::Conflict(Conflict::new(Reason::RecordTooLarge, INJECTED_ANNOTATION)));
        }
        self.charge(looks.saturating_mul(LOOK_COST))
    }

    /// Text that is put into the object is paid for each time, also where it was made long before: a loop may put it many
    /// times.
    pub(super) fn charge_content(&mut self, content: Content<'a>) -> Result<(), Fault> {
        match content {
            Content::Value(value) => self.charge(value.raw().len()),
            Content::Scalar(_) | Content::Made(_) | Content::Map | Content::List => Ok(()),
        }
    }

    /// An expression that has no value here.
    pub(super) fn failed(&self, error: &EvaluationError) -> Fault {
        let place = format!("{}: {}", self.pointer, error.message());
        Fault::Conflict(Conflict { reason: lookup::reason_of(error), place: place.into() })
    }
}
