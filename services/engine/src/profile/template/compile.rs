//! Compiles the JSON of a template into nodes, or into diagnostics.

use std::collections::BTreeMap;

use serde_json::{Map, Value as Json};

use super::{Changed, Choice, Kind, Node, Piece, Rules, Text};
use crate::context::EXISTING;
use crate::expression::{self, Expression, ExpressionError, Scope};
use crate::json::{OwnedTape, write_escaped};
use crate::profile::Diagnostic;
use crate::profile::pod_schema::{Expected, Kind as FieldKind, PodSchema};

/// The local names, `container` or `item`, that each variable reads. They exist only in some parts of a profile.
pub(crate) type LocalNames = BTreeMap<Box<str>, Vec<&'static str>>;

/// The position of a part of a template, which decides which directives are valid.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Place {
    /// The value of a field.
    Field,
    /// An element of a list.
    Element,
    /// An element of a pod's `initContainers`.
    InitContainer,
}

/// Compiles templates. Mistakes go to `diagnostics`.
pub(crate) struct Compiler<'s> {
    pub(super) diagnostics: &'s mut Vec<Diagnostic>,
    pub(super) scope: Scope,
    /// The local names in scope.
    pub(super) locals: Vec<String>,
    needs: &'s LocalNames,
    pub(super) path: String,
    schema: PodSchema,
    /// The schema's kind of the value at the path.
    expected: FieldKind,
}

impl<'s> Compiler<'s> {
    /// Creates a compiler. Expressions may use the names of `scope`, and of the local names only `locals`.
    pub(crate) fn new(
        scope: &Scope,
        locals: &[&str],
        needs: &'s LocalNames,
        diagnostics: &'s mut Vec<Diagnostic>,
    ) -> Self {
        let scope = locals.iter().fold(scope.clone(), |scope, local| scope.with(*local));
        let locals = locals.iter().map(|local| (*local).to_owned()).collect();
        let (path, schema) = (String::new(), PodSchema::new());
        Self { diagnostics, scope, locals, needs, path, schema, expected: FieldKind::Any }
    }

    /// Compiles a template of this kind at a field path; `None` if it has a mistake.
    pub(crate) fn template(&mut self, path: &str, template: &Json, kind: FieldKind) -> Option<Node> {
        let before = self.diagnostics.len();
        path.clone_into(&mut self.path);
        self.expected = kind;
        let around = self.scope.clone();
        self.scope = around.clone().with(EXISTING);
        self.locals.push(EXISTING.to_owned());
        let node = self.node(template, Place::Field);
        self.locals.pop();
        self.scope = around;
        if self.diagnostics.len() == before { node } else { None }
    }

    /// Compiles an expression at a field path.
    pub(crate) fn condition(&mut self, path: &str, source: &str) -> Option<Expression> {
        path.clone_into(&mut self.path);
        self.expression(source)
    }

    /// Compiles a string at a field path that may contain expressions.
    pub(crate) fn words(&mut self, path: &str, text: &str) -> Option<Choice<Box<str>>> {
        path.clone_into(&mut self.path);
        match expression::Text::parse(text) {
            Ok(expression::Text::Literal(text)) => Some(Choice::Known(text.into())),
            Ok(parsed) => self.text(text, parsed).map(Choice::Found),
            Err(error) => {
                self.wrong(text, &error);
                None
            }
        }
    }

    pub(super) fn node(&mut self, template: &Json, place: Place) -> Option<Node> {
        if is_plain(template) {
            return self.plain(template);
        }
        match template {
            Json::String(text) => self.string(text, place),
            Json::Array(items) => {
                let is_init = self.path.ends_with(".initContainers") || self.path.ends_with(".initContainers.$value");
                let place = if is_init { Place::InitContainer } else { Place::Element };
                let items = items.iter().enumerate();
                let kind = self.expected.element();
                let nodes: Vec<_> = items
                    .map(|(index, item)| {
                        self.below_kind(&format!("[{index}]"), kind, |compiler| compiler.node(item, place))
                    })
                    .collect();
                let nodes: Box<[Node]> = nodes.into_iter().collect::<Option<_>>()?;
                let acts_again = nodes.iter().any(|node| node.acts_again);
                Some(Node { kind: Kind::List(nodes), rules: None, uses_existing: false, acts_again })
            }
            Json::Object(fields) => self.map(fields, place),
            Json::Null | Json::Bool(_) | Json::Number(_) => self.plain(template),
        }
    }

    fn map(&mut self, fields: &Map<String, Json>, place: Place) -> Option<Node> {
        let around = self.scope.clone();
        let locals = self.locals.len();
        // The directives come first, because the list of `$forEach` is computed outside of its scope.
        let rules = self.rules(fields, place);
        let mut nodes = Vec::new();
        let mut complete = true;
        for (name, value) in fields.iter().filter(|(name, _)| !name.starts_with('$')) {
            let kind = match self.expected {
                FieldKind::Object(of) => self.schema.field(of, name).unwrap_or(FieldKind::Any),
                FieldKind::Map(value) => FieldKind::of(value),
                _ => FieldKind::Any,
            };
            match self.below_kind(&format!(".{name}"), kind, |compiler| compiler.node(value, Place::Field)) {
                Some(node) => nodes.push((escaped(name), node)),
                None => complete = false,
            }
        }
        let value = fields.get("$value").map(|value| self.below(".$value", |compiler| compiler.node(value, place)));
        self.scope = around;
        self.locals.truncate(locals);
        let rules = rules?;
        let fields_act_again = nodes.iter().any(|(_, node)| node.acts_again);
        let acts_again = rules.acts_again() || fields_act_again || matches!(&value, Some(Some(v)) if v.acts_again);
        let uses_existing = rules.use_existing();
        let rules = (!rules.is_empty()).then(|| Box::new(rules));
        if !complete {
            return None;
        }
        let map = |nodes: Vec<_>| Kind::Map(nodes.into());
        match value {
            None => Some(Node { kind: map(nodes), rules, uses_existing, acts_again }),
            Some(value) => {
                let value = value?;
                if nodes.is_empty() {
                    let uses_existing = uses_existing || value.uses_existing;
                    // One map cannot hold both sets of directives.
                    if value.rules.is_some() && rules.is_some() {
                        let help = "write all of them into one of the two";
                        self.report("directives stand both beside $value and in it", help);
                        return None;
                    }
                    let rules = rules.or(value.rules);
                    return Some(Node { kind: value.kind, rules, uses_existing, acts_again });
                }
                let changes = Node { kind: map(nodes), rules: None, uses_existing: false, acts_again: false };
                let kind = Kind::Changed(Box::new(Changed { value, changes }));
                Some(Node { kind, rules, uses_existing, acts_again })
            }
        }
    }

    fn string(&mut self, text: &str, place: Place) -> Option<Node> {
        let parsed = match expression::Text::parse(text) {
            Ok(parsed) => parsed,
            Err(error) => {
                self.wrong(text, &error);
                return None;
            }
        };
        if let expression::Text::Literal(literal) = parsed {
            return self.plain(&Json::String(literal));
        }
        let text = self.text(text, parsed)?;
        let uses_existing = text.uses(EXISTING);
        let expected = Expected { kind: self.expected, is_element: place != Place::Field };
        Some(Node { kind: Kind::Text(text, expected), rules: None, uses_existing, acts_again: false })
    }

    /// Compiles a string that contains at least one expression.
    pub(super) fn text(&mut self, whole: &str, parsed: expression::Text) -> Option<Text> {
        match parsed {
            expression::Text::Literal(literal) => Some(Text::Mixed([Piece::Literal(literal.into())].into())),
            expression::Text::Whole(source) => self.part(whole, &source).map(Text::Whole),
            expression::Text::Mixed(parts) => {
                let pieces: Vec<_> = parts
                    .into_iter()
                    .map(|part| match part {
                        expression::Part::Text(text) => Some(Piece::Literal(text.into())),
                        expression::Part::Expression(source) => self.expression(&source.text).map(Piece::Expression),
                    })
                    .collect();
                Some(Text::Mixed(pieces.into_iter().collect::<Option<_>>()?))
            }
        }
    }

    /// Compiles an expression within a string.
    fn part(&mut self, whole: &str, source: &expression::Source) -> Option<Expression> {
        match Expression::compile(&source.text, &self.scope) {
            Ok(expression) => self.known(expression),
            Err(error) => {
                self.wrong(whole, &error.moved(source.offset));
                None
            }
        }
    }

    /// Compiles a string that is an expression as a whole.
    pub(super) fn expression(&mut self, source: &str) -> Option<Expression> {
        match Expression::compile(source, &self.scope) {
            Ok(expression) => self.known(expression),
            Err(error) => {
                self.wrong(source, &error);
                None
            }
        }
    }

    /// Returns an expression if the local names that its variables read are in scope.
    fn known(&mut self, expression: Expression) -> Option<Expression> {
        let missing = expression.members("variables").find_map(|variable| {
            let needed = self.needs.get(variable)?.iter();
            let missing = needed.copied().find(|needed| !self.locals.iter().any(|local| local == needed))?;
            Some((variable.to_owned(), missing))
        });
        if let Some((variable, missing)) = missing {
            let message = format!("variables.{variable} is computed from `{missing}`, which is not known here");
            let help = match missing {
                "container" => "`container` is known in the rules of spec.containers",
                _ => "`item`, `index` and `key` are known where $forEach, $each or $prune stands",
            };
            self.report(&message, help);
            return None;
        }
        Some(expression)
    }

    fn plain(&mut self, value: &Json) -> Option<Node> {
        match OwnedTape::parse(value.to_string()) {
            Ok(tape) => Some(Node { kind: Kind::Plain(tape), rules: None, uses_existing: false, acts_again: false }),
            Err(error) => {
                self.report(&format!("the template cannot be used: {error}"), "make it smaller");
                None
            }
        }
    }

    pub(super) fn wrong(&mut self, text: &str, error: &ExpressionError) {
        self.diagnostics.push(Diagnostic::of_expression(self.path.clone(), text, error));
    }

    pub(super) fn report(&mut self, message: &str, help: &str) {
        self.diagnostics.push(Diagnostic::new(self.path.clone(), message).with_help(help));
    }

    fn below_kind<T>(&mut self, part: &str, kind: FieldKind, work: impl FnOnce(&mut Self) -> T) -> T {
        let around = std::mem::replace(&mut self.expected, kind);
        let result = self.below(part, work);
        self.expected = around;
        result
    }

    pub(super) fn below<T>(&mut self, part: &str, work: impl FnOnce(&mut Self) -> T) -> T {
        let length = self.path.len();
        self.path.push_str(part);
        let result = work(self);
        self.path.truncate(length);
        result
    }
}

/// Returns a template without its directives. Each `$value` replaces the map around it, and the map's other fields are
/// added to it if it is a map.
pub(crate) fn without_directives(template: &Json) -> Json {
    match template {
        Json::Object(fields) => {
            let others = fields.iter().filter(|(name, _)| !name.starts_with('$'));
            let mut others: Map<_, _> = others.map(|(name, value)| (name.clone(), without_directives(value))).collect();
            match fields.get("$value").map(without_directives) {
                Some(Json::Object(mut value)) => {
                    value.append(&mut others);
                    Json::Object(value)
                }
                Some(value) if others.is_empty() => value,
                _ => Json::Object(others),
            }
        }
        Json::Array(items) => {
            // A nested list is spliced.
            let items = items.iter().map(without_directives).flat_map(|item| match item {
                Json::Array(items) => items,
                other => vec![other],
            });
            Json::Array(items.collect())
        }
        other => other.clone(),
    }
}

/// Whether a value contains neither directives nor expressions.
fn is_plain(value: &Json) -> bool {
    match value {
        Json::Array(items) => items.iter().all(is_plain),
        Json::Object(fields) => fields.iter().all(|(name, value)| !name.starts_with('$') && is_plain(value)),
        Json::String(text) => !text.contains("${"),
        Json::Null | Json::Bool(_) | Json::Number(_) => true,
    }
}

fn escaped(name: &str) -> Box<str> {
    let mut out = String::with_capacity(name.len());
    write_escaped(&mut out, name);
    out.into()
}

impl Rules {
    fn is_empty(&self) -> bool {
        let Self { when, for_each, conflict, position, join, each, prune, sidecar } = self;
        let expressions = [when, each, prune, sidecar];
        expressions.iter().all(|expression| expression.is_none())
            && for_each.is_none()
            && conflict.is_none()
            && position.is_none()
            && join.is_none()
    }
}
