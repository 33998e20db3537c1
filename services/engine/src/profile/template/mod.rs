//! Compiled templates: a partial object with compiled expressions and directives.
//!
//! Most of a template is plain, without expressions or directives. A plain part stays parsed JSON, and costs a request
//! only its bytes in the patch.

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
    /// The directives in the same map, if there are any.
    pub(crate) rules: Option<Box<Rules>>,
    /// Whether an expression of this part itself, not of a nested one, reads `existing`.
    pub(crate) uses_existing: bool,
    /// Whether the part can change what an earlier pass added, by a directive on the part or on a nested one: `$join`,
    /// `$forEach: existing`, `$prune`, or `$conflict` with `Replace` or an expression.
    pub(crate) changes_earlier_additions: bool,
}

/// The kind of a part of a template.
#[derive(Debug)]
pub(crate) enum Kind {
    /// Plain JSON, without expressions and directives below.
    Plain(OwnedTape),
    /// A string with expressions, and the type that the result must have.
    Text(Text, Expected),
    /// An object. Its keys are escaped for JSON.
    Map(Box<[(Box<str>, Node)]>),
    /// A list.
    List(Box<[Node]>),
    /// `$value` with other fields in the same map: the value of `$value`, changed by these fields.
    Changed(Box<Changed>),
}

/// A value, and the changes to it.
#[derive(Debug)]
pub(crate) struct Changed {
    pub(crate) value: Node,
    /// The fields next to `$value`, as an object.
    pub(crate) changes: Node,
}

/// A string with expressions.
#[derive(Debug)]
pub(crate) enum Text {
    /// A single expression, whose result keeps its type.
    Whole(Expression),
    /// A string that contains expressions and literal text.
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
pub(crate) struct Rules {
    pub(crate) when: Option<Expression>,
    pub(crate) for_each: Option<ForEach>,
    pub(crate) conflict: Option<Choice<ConflictRule>>,
    pub(crate) position: Option<Position>,
    pub(crate) join: Option<Join>,
    pub(crate) prune: Option<Expression>,
    /// The computed `restartPolicy` of a container in `initContainers`. If it has no value, the container goes to
    /// `containers`.
    pub(crate) restart_policy: Option<Text>,
}

/// The value of `$forEach`.
#[derive(Debug)]
pub(crate) enum ForEach {
    /// The element is added for each item of this list, or for each entry of this map.
    Items(Expression),
    /// The fields are merged into each existing element of the object's list.
    Existing,
}

/// A constant, or a value that an expression computes.
#[derive(Debug)]
pub(crate) enum Choice<T> {
    Constant(T),
    Computed(Text),
}

/// The rule for a template's value that differs from the object's value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ConflictRule {
    /// Maps merge, and the object's leaves win.
    Merge,
    /// The object's value stays as a whole.
    Keep,
    /// Maps merge, and the profile's leaves win.
    Replace,
    /// The profile is not applied.
    Fail,
}

/// The position of a new element, as written in the template.
#[derive(Debug)]
pub(crate) enum Position {
    End(Choice<End>),
    /// Before the element with this name; at the end if no element has it.
    Before(Choice<Box<str>>),
    /// After the element with this name; at the end if no element has it.
    After(Choice<Box<str>>),
}

/// The start or the end of a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    First,
    Last,
}

/// The directive that joins pieces to the object's value.
#[derive(Debug, Default)]
pub(crate) struct Join {
    /// The separator between pieces.
    pub(crate) separator: Box<str>,
    /// The key separator. A piece is skipped if an existing piece has the same part before this separator.
    pub(crate) key: Option<Box<str>>,
    /// The string to put before the object's value.
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
    /// JSON if the existing value is JSON, otherwise a string that is split.
    Auto,
}

/// The rule for environment variables with `valueFrom`, which have no value to join.
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
        if let Some(rules) = &self.rules {
            rules.each_expression(see);
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

    /// Whether one of the expressions reads this name.
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

impl Rules {
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

    /// Whether one of the directives' expressions reads `existing`, the object's value at this path.
    fn use_existing(&self) -> bool {
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

    /// Whether the element changes or removes existing elements, and adds none.
    pub(crate) const fn change_elements(&self) -> bool {
        matches!(self.for_each, Some(ForEach::Existing)) || self.prune.is_some()
    }

    /// Whether the directives can change or remove what an earlier pass added.
    const fn changes_earlier_additions(&self) -> bool {
        let replaces = match &self.conflict {
            Some(Choice::Constant(rule)) => matches!(rule, ConflictRule::Replace),
            Some(Choice::Computed(_)) => true,
            None => false,
        };
        replaces || self.join.is_some() || self.change_elements()
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
