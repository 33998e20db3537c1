//! The default of a parameter: a constant or a value that contains expressions.

use serde_json::Value as Json;

use super::Kind;
use super::value::copy_steps;
use crate::diagnostic::Diagnostic;
use crate::expression::{Bindings, EvaluationError, Expression, Meter, Outcome, Part, Scope, Source as Piece, Text};

/// The default of a parameter.
#[derive(Debug)]
pub(crate) enum Default {
    /// A constant that was checked during compilation, and the number of steps for copying it.
    Value(Json, usize),
    /// A value that is computed and checked for each object.
    Computed(Node),
}

/// A value that may contain expressions.
#[derive(Debug)]
pub(crate) enum Node {
    Literal(Json),
    /// A string that consists of one `${...}`: the result of the expression, with its type.
    Whole(Expression),
    /// A string that contains expressions.
    Mixed(Box<[MixedPart]>),
    List(Box<[Self]>),
    Map(Box<[(Box<str>, Self)]>),
}

/// A part of [`Node::Mixed`].
#[derive(Debug)]
pub(crate) enum MixedPart {
    Text(Box<str>),
    Expression(Expression),
}

impl Default {
    /// Compiles a default. `None` if it has an error, which is added to `diagnostics`.
    pub(super) fn compile(
        path: &str,
        text: &Json,
        kind: &Kind,
        scope: &Scope,
        diagnostics: &mut Vec<Diagnostic>,
    ) -> Option<Self> {
        match Node::compile(path, text, scope, diagnostics)? {
            Node::Literal(value) => match check(value, kind) {
                Ok(value) => {
                    let steps = copy_steps(&value);
                    Some(Self::Value(value, steps))
                }
                Err(message) => {
                    diagnostics.push(Diagnostic::new(path, message));
                    None
                }
            },
            node => Some(Self::Computed(node)),
        }
    }
}

/// Checks a constant. Fails if it is invalid, or if the check takes too many steps.
fn check(value: Json, kind: &Kind) -> Result<Json, String> {
    Meter::new().charge(kind.value_steps(&value)).map_err(|error| error.message().to_owned())?;
    kind.check(value)
}

impl Node {
    fn compile(path: &str, value: &Json, scope: &Scope, diagnostics: &mut Vec<Diagnostic>) -> Option<Self> {
        let mut literal = true;
        let node = match value {
            Json::String(text) => return Self::text(path, text, scope, diagnostics),
            Json::Array(items) => {
                let mut nodes = Vec::with_capacity(items.len());
                for (index, item) in items.iter().enumerate() {
                    nodes.push(Self::compile(&format!("{path}[{index}]"), item, scope, diagnostics)?);
                    literal &= matches!(nodes.last(), Some(Self::Literal(_)));
                }
                Self::List(nodes.into())
            }
            Json::Object(members) => {
                let mut nodes = Vec::with_capacity(members.len());
                for (key, member) in members {
                    let node = Self::compile(&format!("{path}.{key}"), member, scope, diagnostics)?;
                    literal &= matches!(node, Self::Literal(_));
                    nodes.push((key.as_str().into(), node));
                }
                Self::Map(nodes.into())
            }
            Json::Null | Json::Bool(_) | Json::Number(_) => return Some(Self::Literal(value.clone())),
        };
        // If all parts are literals, the whole value is a literal.
        Some(if literal { Self::Literal(node.literal()) } else { node })
    }

    fn text(path: &str, text: &str, scope: &Scope, diagnostics: &mut Vec<Diagnostic>) -> Option<Self> {
        let compile = |source: &Piece, diagnostics: &mut Vec<Diagnostic>| match Expression::compile(&source.text, scope)
        {
            Ok(expression) => Some(expression),
            Err(error) => {
                let mut diagnostic = Diagnostic::of_expression(path, text, &error.clone().moved(source.offset));
                if error.message.contains("`params.") {
                    diagnostic.help = Some("a default may use only the parameters before it".to_owned());
                }
                diagnostics.push(diagnostic);
                None
            }
        };
        Some(match Text::parse(text) {
            Ok(Text::Literal(text)) => Self::Literal(Json::from(text)),
            Ok(Text::Whole(source)) => Self::Whole(compile(&source, diagnostics)?),
            Ok(Text::Mixed(parts)) => {
                let parts = parts.iter().map(|part| match part {
                    Part::Text(text) => Some(MixedPart::Text(text.as_str().into())),
                    Part::Expression(source) => compile(source, diagnostics).map(MixedPart::Expression),
                });
                Self::Mixed(parts.collect::<Option<_>>()?)
            }
            Err(error) => {
                diagnostics.push(Diagnostic::of_expression(path, text, &error));
                return None;
            }
        })
    }

    /// Returns the value of a node without expressions.
    fn literal(&self) -> Json {
        match self {
            Self::Literal(value) => value.clone(),
            Self::Whole(_) | Self::Mixed(_) => Json::Null,
            Self::List(nodes) => nodes.iter().map(Self::literal).collect(),
            Self::Map(nodes) => nodes.iter().map(|(key, node)| (key.to_string(), node.literal())).collect(),
        }
    }

    /// Evaluates the node. `None` if the value is left out, because its expression returns an empty optional.
    pub(super) fn evaluate<'v>(
        &'v self,
        bindings: &dyn Bindings<'v>,
        meter: &mut Meter,
    ) -> Result<Option<Json>, EvaluationError> {
        Ok(Some(match self {
            Self::Literal(value) => value.clone(),
            Self::Whole(expression) => match expression.evaluate_outcome(bindings, meter)? {
                Outcome::Value(value) => value,
                Outcome::Absent => return Ok(None),
            },
            Self::Mixed(parts) => {
                let mut text = String::new();
                for part in parts {
                    match part {
                        MixedPart::Text(part) => text.push_str(part),
                        MixedPart::Expression(expression) => {
                            text.push_str(&expression.evaluate_text(bindings, meter)?);
                        }
                    }
                }
                text.into()
            }
            Self::List(nodes) => {
                let mut items = Vec::with_capacity(nodes.len());
                for node in nodes {
                    items.extend(node.evaluate(bindings, meter)?);
                }
                items.into()
            }
            Self::Map(nodes) => {
                let mut members = serde_json::Map::new();
                for (key, node) in nodes {
                    if let Some(value) = node.evaluate(bindings, meter)? {
                        members.insert(key.to_string(), value);
                    }
                }
                members.into()
            }
        }))
    }

    pub(super) fn each_expression(&self, see: &mut dyn FnMut(&Expression)) {
        match self {
            Self::Literal(_) => {}
            Self::Whole(expression) => see(expression),
            Self::Mixed(parts) => {
                for part in parts {
                    if let MixedPart::Expression(expression) = part {
                        see(expression);
                    }
                }
            }
            Self::List(nodes) => nodes.iter().for_each(|node| node.each_expression(see)),
            Self::Map(nodes) => nodes.iter().for_each(|(_, node)| node.each_expression(see)),
        }
    }
}
