//! Compiled templates: partial objects with compiled expressions and directives.
//!
//! Most of a template contains no expressions or directives. Such a part remains parsed JSON, so that requests only
//! copy it into the patch.

mod compile;

use crate::context::EXISTING;
use crate::expression::{Bindings, EvaluationError, Expression, Meter};
use crate::json::OwnedTape;
use crate::profile::pod_schema::Expected;

pub(crate) use compile::{Compiler, LocalNames, without_directives};

/// A part of a template.
#[derive(Debug)]
pub(crate) struct Node {
    pub(crate) kind: Kind,
    /// The directives in the map, if there are any.
    pub(crate) directives: Option<Box<NodeDirectives>>,
    /// Whether an expression of this part itself, but not of a nested part, reads `existing`.
    pub(crate) uses_existing: bool,
    /// Whether the part can change values that an earlier call of the webhook added to the object, because it contains
    /// `$join`, `$forEach: existing`, `$prune`, or `$conflict` with `Replace` or an expression.
    pub(crate) changes_earlier_additions: bool,
}

/// The kind of a part of a template.
#[derive(Debug)]
pub(crate) enum Kind {
    /// Plain JSON, without expressions and directives.
    Plain(OwnedTape),
    /// A string with expressions, and the expected type of the result.
    Text(Text, Expected),
    /// An object. Its keys are already escaped for JSON.
    Map(Box<[(Box<str>, Node)]>),
    /// A list.
    List(Box<[Node]>),
    /// `$value` beside other fields: the value of `$value`, changed by these fields.
    Changed(Box<ValueWithChanges>),
}

/// A value, and the changes to make to it.
#[derive(Debug)]
pub(crate) struct ValueWithChanges {
    pub(crate) value: Node,
    /// The fields beside `$value`, as an object.
    pub(crate) changes: Node,
}

/// A string with expressions.
#[derive(Debug)]
pub(crate) enum Text {
    /// A single expression. Its result keeps its type.
    Whole(Expression),
    /// Pieces of literal text and expressions. Their results are concatenated.
    Mixed(Box<[Piece]>),
}

/// A part of a string with expressions.
#[derive(Debug)]
pub(crate) enum Piece {
    /// Literal text.
    Literal(Box<str>),
    /// An expression.
    Expression(Expression),
}

/// The directives of a part of a template.
#[derive(Debug, Default)]
pub(crate) struct NodeDirectives {
    pub(crate) when: Option<Expression>,
    pub(crate) for_each: Option<ForEach>,
    pub(crate) conflict: Option<Choice<ConflictRule>>,
    pub(crate) position: Option<Position>,
    pub(crate) join: Option<Join>,
    pub(crate) prune: Option<Expression>,
    /// The computed `restartPolicy` of a container in `initContainers`. If its result is null or absent, the container
    /// is added to `containers`.
    pub(crate) restart_policy: Option<Text>,
}

/// The value of `$forEach`.
#[derive(Debug)]
pub(crate) enum ForEach {
    /// One element is added for each item of this list or entry of this map.
    Items(Expression),
    /// The fields are merged into each existing element of the object's list.
    Existing,
}

/// A constant or a computed value.
#[derive(Debug)]
pub(crate) enum Choice<T> {
    Constant(T),
    Computed(Text),
}

/// The rule for a template value that differs from the object's value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ConflictRule {
    /// Maps and keyed lists merge. For other values, the object's value is kept.
    Merge,
    /// The object's whole value is kept.
    Keep,
    /// Maps and keyed lists merge. For other values, the profile's value is used.
    Replace,
    /// The profile is not applied to the object.
    Fail,
}

/// The position of a new element, as written in the template.
#[derive(Debug)]
pub(crate) enum Position {
    End(Choice<End>),
    /// Before the element with this name. Last, if there is no such element.
    Before(Choice<Box<str>>),
    /// After the element with this name. Last, if there is no such element.
    After(Choice<Box<str>>),
}

/// The start or the end of a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    First,
    Last,
}

/// The directive that adds pieces to the object's value.
#[derive(Debug, Default)]
pub(crate) struct Join {
    /// The separator between pieces.
    pub(crate) separator: Box<str>,
    /// The separator between the key and the rest of a piece. A piece is skipped if an existing piece has the same key.
    pub(crate) key: Option<Box<str>>,
    /// The string to insert before the object's value.
    pub(crate) prepend: Option<Choice<Box<str>>>,
    pub(crate) format: JoinFormat,
    pub(crate) value_from: JoinReference,
}

/// The format of a joined value.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum JoinFormat {
    /// A string that is split at the separator.
    #[default]
    Text,
    /// JSON: objects and arrays are merged.
    Json,
    /// JSON if the existing value is a JSON object or array. Otherwise, a string that is split at the separator.
    Auto,
}

/// The rule for an environment variable with `valueFrom`, which has no value to extend.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum JoinReference {
    /// The variable is unchanged, and the author gets a warning.
    #[default]
    Skip,
    /// The variable is renamed, and the joined variable refers to it.
    Compose,
}

impl Node {
    /// Visits all expressions of the node.
    pub(crate) fn each_expression(&self, see: &mut dyn FnMut(&Expression)) {
        match &self.kind {
            Kind::Plain(_) => {}
            Kind::Text(text, _) => text.each_expression(see),
            Kind::Map(fields) => fields.iter().for_each(|(_, node)| node.each_expression(see)),
            Kind::List(nodes) => nodes.iter().for_each(|node| node.each_expression(see)),
            Kind::Changed(changed) => {
                changed.value.each_expression(see);
                changed.changes.each_expression(see);
            }
        }
        if let Some(directives) = &self.directives {
            directives.each_expression(see);
        }
    }
}

impl Text {
    fn each_expression(&self, see: &mut dyn FnMut(&Expression)) {
        match self {
            Self::Whole(expression) => see(expression),
            Self::Mixed(pieces) => pieces.iter().for_each(|piece| match piece {
                Piece::Literal(_) => {}
                Piece::Expression(expression) => see(expression),
            }),
        }
    }

    /// Evaluates the expressions, and returns the string.
    pub(crate) fn evaluate<'v>(
        &'v self,
        bindings: &dyn Bindings<'v>,
        meter: &mut Meter,
    ) -> Result<String, EvaluationError> {
        match self {
            Self::Whole(expression) => expression.evaluate_text(bindings, meter),
            Self::Mixed(pieces) => {
                let mut out = String::new();
                for piece in pieces {
                    match piece {
                        Piece::Literal(text) => out.push_str(text),
                        Piece::Expression(expression) => out.push_str(&expression.evaluate_text(bindings, meter)?),
                    }
                }
                Ok(out)
            }
        }
    }

    /// Whether one of the expressions reads the given name.
    pub(crate) fn uses(&self, name: &str) -> bool {
        let mut found = false;
        self.each_expression(&mut |expression| found |= expression.uses(name));
        found
    }
}

impl<T> Choice<T> {
    /// Visits all expressions of a computed value.
    pub(crate) fn each_expression(&self, see: &mut dyn FnMut(&Expression)) {
        match self {
            Self::Constant(_) => {}
            Self::Computed(text) => text.each_expression(see),
        }
    }
}

impl NodeDirectives {
    fn each_expression(&self, see: &mut dyn FnMut(&Expression)) {
        let Self { when, for_each, conflict, position, join, prune, restart_policy } = self;
        [when, prune].into_iter().flatten().for_each(&mut *see);
        if let Some(ForEach::Items(list)) = for_each {
            see(list);
        }
        if let Some(policy) = restart_policy {
            policy.each_expression(see);
        }
        if let Some(conflict) = conflict {
            conflict.each_expression(see);
        }
        match position {
            Some(Position::End(end)) => end.each_expression(see),
            Some(Position::Before(name) | Position::After(name)) => name.each_expression(see),
            None => {}
        }
        if let Some(prepend) = join.as_ref().and_then(|join| join.prepend.as_ref()) {
            prepend.each_expression(see);
        }
    }

    /// Whether an expression of the directives reads `existing`, the object's value at this path.
    fn reads_existing(&self) -> bool {
        let found = |text: &Text| text.uses(EXISTING);
        let in_conflict = matches!(&self.conflict, Some(Choice::Computed(text)) if found(text));
        let in_position = match &self.position {
            Some(
                Position::End(Choice::Computed(text))
                | Position::Before(Choice::Computed(text))
                | Position::After(Choice::Computed(text)),
            ) => found(text),
            _ => false,
        };
        let in_join = self.join.as_ref().and_then(|join| join.prepend.as_ref());
        let in_join = matches!(in_join, Some(Choice::Computed(text)) if found(text));
        in_conflict || in_position || in_join || self.when.as_ref().is_some_and(|when| when.uses(EXISTING))
    }

    /// Whether the element only changes or removes existing elements, and adds none.
    pub(crate) const fn targets_existing_elements(&self) -> bool {
        matches!(self.for_each, Some(ForEach::Existing)) || self.prune.is_some()
    }

    /// Whether the directives can change or remove values that an earlier call of the webhook added to the object.
    const fn changes_earlier_additions(&self) -> bool {
        let replaces = match &self.conflict {
            Some(Choice::Constant(rule)) => matches!(rule, ConflictRule::Replace),
            Some(Choice::Computed(_)) => true,
            None => false,
        };
        replaces || self.join.is_some() || self.targets_existing_elements()
    }

    fn is_empty(&self) -> bool {
        let Self { when, for_each, conflict, position, join, prune, restart_policy } = self;
        when.is_none()
            && for_each.is_none()
            && conflict.is_none()
            && position.is_none()
            && join.is_none()
            && prune.is_none()
            && restart_policy.is_none()
    }
}

impl ConflictRule {
    pub(crate) const WORDS: &'static str = "Merge, Keep, Replace or Fail";

    pub(crate) fn from_word(word: &str) -> Option<Self> {
        match word {
            "Merge" => Some(Self::Merge),
            "Keep" => Some(Self::Keep),
            "Replace" => Some(Self::Replace),
            "Fail" => Some(Self::Fail),
            _ => None,
        }
    }
}

impl End {
    pub(crate) const WORDS: &'static str = "First, Last, {before: name} or {after: name}";

    pub(crate) fn from_word(word: &str) -> Option<Self> {
        match word {
            "First" => Some(Self::First),
            "Last" => Some(Self::Last),
            _ => None,
        }
    }
}
