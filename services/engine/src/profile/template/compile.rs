//! Compiles the JSON of a template into nodes, or returns diagnostics. Directives are the keys that begin with `$`.

use std::collections::BTreeMap;

use serde_json::{Map, Value as Json};

use super::{
    Choice, ConflictRule, End, ForEach, Join, JoinFormat, JoinReference, Kind, Node, NodeDirectives, Piece, Position,
    Text, ValueWithChanges,
};
use crate::context::EXISTING;
use crate::expression::{self, Expression, ExpressionError, Scope};
use crate::json::{OwnedTape, write_escaped};
use crate::profile::Diagnostic;
use crate::profile::pod_schema::{Expected, Kind as FieldKind, PodSchema};
use crate::profile::typed::unknown_directive;

/// The local names that each variable reads, directly or through other variables. Local names, such as `container` or
/// `item`, are bound only in some parts of a profile.
pub(crate) type LocalNames = BTreeMap<Box<str>, Vec<&'static str>>;

/// The names that are in scope in elements with `$forEach` or `$prune`.
const ITEM_NAMES: [&str; 3] = ["item", "index", "key"];

/// The field that makes an init container a native sidecar.
const RESTART_POLICY: &str = "restartPolicy";

/// The position of a template part, which determines the valid directives.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    /// The value of a field.
    Field,
    /// An element of a list.
    Element,
    /// An element of a pod's `initContainers`.
    InitContainer,
}

/// Compiles the expressions and templates of one profile.
pub(crate) struct Compiler<'d> {
    /// The errors found so far.
    pub(crate) diagnostics: &'d mut Vec<Diagnostic>,
    /// The local names that each variable reads. Empty until the variables have been compiled.
    pub(crate) variable_locals: LocalNames,
    scope: Scope,
    /// The local names in scope.
    locals: Vec<String>,
    path: String,
    schema: PodSchema,
    /// The kind of the value at the path, according to the schema.
    expected: FieldKind,
}

impl<'d> Compiler<'d> {
    /// Creates a compiler for expressions that may use the names in `scope`.
    pub(crate) fn new(scope: Scope, diagnostics: &'d mut Vec<Diagnostic>) -> Self {
        Self {
            diagnostics,
            variable_locals: LocalNames::new(),
            scope,
            locals: Vec::new(),
            path: String::new(),
            schema: PodSchema::new(),
            expected: FieldKind::Any,
        }
    }

    /// Calls a function with additional local names in scope.
    pub(crate) fn with_locals<T>(&mut self, locals: &[&str], work: impl FnOnce(&mut Self) -> T) -> T {
        let around = self.scope.clone();
        let outer = self.locals.len();
        for local in locals {
            self.bind(local);
        }
        let result = work(self);
        self.scope = around;
        self.locals.truncate(outer);
        result
    }

    /// Compiles a template of this kind at a field path. `None` if the template has an error.
    pub(crate) fn template(&mut self, path: &str, template: &Json, kind: FieldKind) -> Option<Node> {
        let before = self.diagnostics.len();
        path.clone_into(&mut self.path);
        self.expected = kind;
        let node = self.with_locals(&[EXISTING], |compiler| compiler.node(template, Place::Field));
        if self.diagnostics.len() == before { node } else { None }
    }

    /// Compiles an expression at a field path. `None` if it has an error, which is reported.
    pub(crate) fn expression_at(&mut self, path: &str, source: &str) -> Option<Expression> {
        path.clone_into(&mut self.path);
        self.expression(source)
    }

    /// Compiles a string, which may contain expressions, at a field path. `None` if it has an error, which is reported.
    pub(crate) fn text_at(&mut self, path: &str, text: &str) -> Option<Choice<Box<str>>> {
        path.clone_into(&mut self.path);
        match expression::Text::parse(text) {
            Ok(expression::Text::Literal(text)) => Some(Choice::Constant(text.into())),
            Ok(parsed) => self.text(text, parsed).map(Choice::Computed),
            Err(error) => {
                self.report_expression_error(text, &error);
                None
            }
        }
    }

    fn node(&mut self, template: &Json, place: Place) -> Option<Node> {
        if is_plain(template) {
            return self.plain(template);
        }
        match template {
            Json::String(text) => self.string(text, place),
            Json::Array(items) => {
                let is_list = self.path.ends_with(".initContainers") || self.path.ends_with(".initContainers.$value");
                // Objects other than pods may also have a list with this name.
                let is_init = is_list && self.expected == FieldKind::List("Container");
                // A list within a list is a group of elements.
                let is_init = is_init || place == Place::InitContainer;
                let place = if is_init { Place::InitContainer } else { Place::Element };
                let items = items.iter().enumerate();
                let kind = self.expected.element();
                let nodes: Vec<_> = items
                    .map(|(index, item)| {
                        self.below_kind(&format!("[{index}]"), kind, |compiler| compiler.node(item, place))
                    })
                    .collect();
                let nodes: Box<[Node]> = nodes.into_iter().collect::<Option<_>>()?;
                let changes_earlier_additions = nodes.iter().any(|node| node.changes_earlier_additions);
                Some(Node {
                    kind: Kind::List(nodes),
                    directives: None,
                    uses_existing: false,
                    changes_earlier_additions,
                })
            }
            Json::Object(fields) => self.map(fields, place),
            Json::Null | Json::Bool(_) | Json::Number(_) => self.plain(template),
        }
    }

    fn map(&mut self, fields: &Map<String, Json>, place: Place) -> Option<Node> {
        let around = self.scope.clone();
        let locals = self.locals.len();
        // Compile the directives first: the list of `$forEach` is computed outside of the scope that `$forEach` opens.
        let mut directives = self.directives(fields, place);
        let adds = directives.as_ref().is_some_and(|directives| !directives.targets_existing_elements());
        let mut nodes = Vec::new();
        let mut complete = true;
        for (name, value) in fields.iter().filter(|(name, _)| !name.starts_with('$')) {
            if let Some(directives) = directives.as_mut().filter(|_| adds && place == Place::InitContainer)
                && name == RESTART_POLICY
                && !is_constant(value)
            {
                directives.restart_policy = self.below(".restartPolicy", |compiler| compiler.restart_policy(value));
                complete &= directives.restart_policy.is_some();
                continue;
            }
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
        let directives = directives?;
        let fields_change_earlier_additions = nodes.iter().any(|(_, node)| node.changes_earlier_additions);
        let changes_earlier_additions = directives.changes_earlier_additions()
            || fields_change_earlier_additions
            || matches!(&value, Some(Some(v)) if v.changes_earlier_additions);
        let uses_existing = directives.reads_existing();
        let directives = (!directives.is_empty()).then(|| Box::new(directives));
        if !complete {
            return None;
        }
        let map = |nodes: Vec<_>| Kind::Map(nodes.into());
        match value {
            None => Some(Node { kind: map(nodes), directives, uses_existing, changes_earlier_additions }),
            Some(value) => {
                let value = value?;
                if nodes.is_empty() {
                    let uses_existing = uses_existing || value.uses_existing;
                    let (mut value, mut directives) = (value, directives);
                    // A computed `restartPolicy` is not a directive, so it may be in `$value` while directives are
                    // beside `$value`.
                    if let (Some(directives), Some(inner)) = (&mut directives, &mut value.directives) {
                        directives.restart_policy =
                            directives.restart_policy.take().or_else(|| inner.restart_policy.take());
                        value.directives = value.directives.filter(|inner| !inner.is_empty());
                    }
                    // One map cannot contain both sets of directives.
                    if value.directives.is_some() && directives.is_some() {
                        let help = "move all of them to one of the two places";
                        self.report("there are directives both beside $value and in it", help);
                        return None;
                    }
                    let directives = directives.or(value.directives);
                    return Some(Node { kind: value.kind, directives, uses_existing, changes_earlier_additions });
                }
                let changes =
                    Node { kind: map(nodes), directives: None, uses_existing: false, changes_earlier_additions: false };
                let kind = Kind::Changed(Box::new(ValueWithChanges { value, changes }));
                Some(Node { kind, directives, uses_existing, changes_earlier_additions })
            }
        }
    }

    fn string(&mut self, text: &str, place: Place) -> Option<Node> {
        let parsed = match expression::Text::parse(text) {
            Ok(parsed) => parsed,
            Err(error) => {
                self.report_expression_error(text, &error);
                return None;
            }
        };
        if let expression::Text::Literal(literal) = parsed {
            return self.plain(&Json::String(literal));
        }
        let text = self.text(text, parsed)?;
        let uses_existing = text.uses(EXISTING);
        let expected = Expected { kind: self.expected, is_element: place != Place::Field };
        Some(Node {
            kind: Kind::Text(text, expected),
            directives: None,
            uses_existing,
            changes_earlier_additions: false,
        })
    }

    /// Compiles the expressions in a parsed string. `whole` is the string as written, for error messages.
    fn text(&mut self, whole: &str, parsed: expression::Text) -> Option<Text> {
        match parsed {
            expression::Text::Literal(literal) => Some(Text::Mixed([Piece::Literal(literal.into())].into())),
            expression::Text::Whole(source) => self.single_expression(whole, &source).map(Text::Whole),
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

    /// Compiles an expression in the string `whole`.
    fn single_expression(&mut self, whole: &str, source: &expression::Source) -> Option<Expression> {
        match Expression::compile(&source.text, &self.scope) {
            Ok(expression) => self.check_locals(expression),
            Err(error) => {
                self.report_expression_error(whole, &error.moved(source.offset));
                None
            }
        }
    }

    /// Compiles a string that is an expression.
    fn expression(&mut self, source: &str) -> Option<Expression> {
        match Expression::compile(source, &self.scope) {
            Ok(expression) => self.check_locals(expression),
            Err(error) => {
                self.report_expression_error(source, &error);
                None
            }
        }
    }

    /// Returns an expression if the local names that its variables read are in scope. Otherwise reports the missing
    /// name.
    fn check_locals(&mut self, expression: Expression) -> Option<Expression> {
        let missing = expression.members("variables").find_map(|variable| {
            let needed = self.variable_locals.get(variable)?.iter();
            let missing = needed.copied().find(|needed| !self.locals.iter().any(|local| local == needed))?;
            Some((variable.to_owned(), missing))
        });
        if let Some((variable, missing)) = missing {
            let message = format!("variables.{variable} depends on `{missing}`, which is not available here");
            let help = match missing {
                "container" => "`container` is available in spec.containerPatches",
                _ => "`item`, `index` and `key` are available in elements with $forEach or $prune",
            };
            self.report(&message, help);
            return None;
        }
        Some(expression)
    }

    fn plain(&mut self, value: &Json) -> Option<Node> {
        match OwnedTape::parse(value.to_string()) {
            Ok(tape) => Some(Node {
                kind: Kind::Plain(tape),
                directives: None,
                uses_existing: false,
                changes_earlier_additions: false,
            }),
            Err(error) => {
                self.report(&format!("the template cannot be used: {error}"), "make the template smaller");
                None
            }
        }
    }

    fn report_expression_error(&mut self, text: &str, error: &ExpressionError) {
        self.diagnostics.push(Diagnostic::of_expression(self.path.clone(), text, error));
    }

    fn report(&mut self, message: &str, help: &str) {
        self.diagnostics.push(Diagnostic::new(self.path.clone(), message).with_help(help));
    }

    fn below_kind<T>(&mut self, part: &str, kind: FieldKind, work: impl FnOnce(&mut Self) -> T) -> T {
        let around = std::mem::replace(&mut self.expected, kind);
        let result = self.below(part, work);
        self.expected = around;
        result
    }

    fn below<T>(&mut self, part: &str, work: impl FnOnce(&mut Self) -> T) -> T {
        let length = self.path.len();
        self.path.push_str(part);
        let result = work(self);
        self.path.truncate(length);
        result
    }

    /// Compiles the directives of a map. `None` if one is invalid. Their local names are in scope afterwards.
    fn directives(&mut self, fields: &Map<String, Json>, place: Place) -> Option<NodeDirectives> {
        let before = self.diagnostics.len();
        let mut directives = NodeDirectives::default();
        if let Some(list) = fields.get("$forEach") {
            directives.for_each = self.below(".$forEach", |compiler| compiler.for_each(list, place));
        }
        if fields.contains_key("$forEach") || fields.contains_key("$prune") {
            for name in ITEM_NAMES {
                self.bind(name);
            }
        }
        for (name, value) in fields.iter().filter(|(name, _)| name.starts_with('$')) {
            self.below(&format!(".{name}"), |compiler| compiler.directive(&mut directives, name, value, place));
        }
        if directives.join.is_some() && directives.conflict.is_some() {
            self.report("$join and $conflict are mutually exclusive", "$join keeps the object's value and adds to it");
        }
        if matches!(directives.for_each, Some(ForEach::Existing)) && directives.prune.is_some() {
            let help = "$forEach: existing changes existing elements, and $prune removes some; use two elements";
            self.report("$forEach: existing and $prune are mutually exclusive", help);
        }
        (self.diagnostics.len() == before).then_some(directives)
    }

    fn directive(&mut self, directives: &mut NodeDirectives, name: &str, value: &Json, place: Place) {
        match name {
            "$value" | "$forEach" => {}
            "$when" => directives.when = self.expression_directive(value),
            "$conflict" => directives.conflict = self.choice(value, ConflictRule::from_word, ConflictRule::WORDS),
            "$position" if place == Place::Field => {
                self.report("$position is allowed only in an element of a list", "move it there");
            }
            "$position" => directives.position = self.position(value),
            "$join" => directives.join = self.join(value),
            "$prune" => {
                directives.prune = self.expression_directive(value).and_then(|prune| self.without_existing(prune));
            }
            _ => self.diagnostics.push(unknown_directive(&self.path, name)),
        }
    }

    fn for_each(&mut self, list: &Json, place: Place) -> Option<ForEach> {
        if place == Place::Field {
            self.report("$forEach is allowed only in an element of a list", "write it as [{$forEach: ..., ...}]");
            return None;
        }
        if list == EXISTING {
            return Some(ForEach::Existing);
        }
        let list = self.expression_directive(list).and_then(|list| self.without_existing(list));
        list.map(ForEach::Items)
    }

    /// Compiles the computed `restartPolicy` of an init container.
    fn restart_policy(&mut self, value: &Json) -> Option<Text> {
        let parsed = value.as_str().map(expression::Text::parse);
        if let (Json::String(whole), Some(Ok(parsed @ expression::Text::Whole(_)))) = (value, parsed) {
            let text = self.text(whole, parsed)?;
            if text.uses(EXISTING) {
                self.report(
                    "`existing` is not available here",
                    "`overlays` contains the containers of the pod's author",
                );
                return None;
            }
            return Some(text);
        }
        let message = "a computed restartPolicy of an init container must be one expression";
        self.report(message, "for instance \"${params.native ? 'Always' : null}\"; null makes it a regular container");
        None
    }

    /// Returns an expression if it does not read `existing`. Otherwise reports an error, because the expression is
    /// evaluated for several elements and not at a single path.
    fn without_existing(&mut self, expression: Expression) -> Option<Expression> {
        if expression.uses(EXISTING) {
            let help = "`item` is the current element, `object` the original object; \
                        $forEach: existing merges the fields into the existing elements";
            self.report("`existing` is not available here", help);
            return None;
        }
        Some(expression)
    }

    fn bind(&mut self, name: &str) {
        self.scope = std::mem::take(&mut self.scope).with(name);
        self.locals.push(name.to_owned());
    }

    /// Compiles a directive whose value is an expression. `None` if it has an error, which is reported.
    fn expression_directive(&mut self, value: &Json) -> Option<Expression> {
        match value {
            Json::String(source) => self.expression(source),
            Json::Bool(value) => self.expression(if *value { "true" } else { "false" }),
            _ => {
                self.report(&format!("expected an expression, found {value}"), "quote it");
                None
            }
        }
    }

    fn position(&mut self, value: &Json) -> Option<Position> {
        let Json::Object(fields) = value else {
            return self.choice(value, End::from_word, End::WORDS).map(Position::End);
        };
        let mut fields = fields.iter();
        let name = |text: &str| Some(Box::from(text));
        match (fields.next(), fields.next()) {
            (Some((side, key)), None) if side == "before" => self.choice(key, name, "a name").map(Position::Before),
            (Some((side, key)), None) if side == "after" => self.choice(key, name, "a name").map(Position::After),
            _ => {
                let help = "use the name of another element of the list";
                self.report(&format!("expected {}, found {value}", End::WORDS), help);
                None
            }
        }
    }

    fn join(&mut self, value: &Json) -> Option<Join> {
        let Json::Object(fields) = value else {
            let help = "for instance {separator: \",\"}, or {} for a list";
            self.report(&format!("expected an object, found {value}"), help);
            return None;
        };
        let mut join = Join::default();
        for (name, value) in fields {
            match (name.as_str(), value.as_str()) {
                ("separator", Some(text)) => join.separator = text.into(),
                ("key", Some(text)) if !text.is_empty() => join.key = Some(text.into()),
                ("prepend", Some(_)) => {
                    join.prepend = self
                        .below(".prepend", |compiler| compiler.choice(value, |text| Some(Box::from(text)), "a text"));
                }
                ("format", Some("Text")) => join.format = JoinFormat::Text,
                ("format", Some("JSON")) => join.format = JoinFormat::Json,
                ("format", Some("Auto")) => join.format = JoinFormat::Auto,
                ("valueFrom", Some("Skip")) => join.value_from = JoinReference::Skip,
                ("valueFrom", Some("Compose")) => join.value_from = JoinReference::Compose,
                _ => {
                    let known = "its fields are separator, key, prepend, format (Text, JSON or Auto) and valueFrom (Skip or Compose)";
                    self.report(&format!("$join cannot have {name} with the value {value}"), known);
                }
            }
        }
        Some(join)
    }

    fn choice<T>(&mut self, value: &Json, known: impl Fn(&str) -> Option<T>, expected: &str) -> Option<Choice<T>> {
        if let Json::String(text) = value {
            if text.contains("${") {
                match expression::Text::parse(text) {
                    Ok(parsed) => return self.text(text, parsed).map(Choice::Computed),
                    Err(error) => {
                        self.report_expression_error(text, &error);
                        return None;
                    }
                }
            }
            if let Some(known) = known(text) {
                return Some(Choice::Constant(known));
            }
        }
        self.report(
            &format!("expected {expected}, found {value}"),
            "use one of these words, or one expression ${...} that returns it",
        );
        None
    }
}

/// Returns a template without its directives. Each `$value` replaces the map that contains it. If the `$value` is a
/// map, the fields beside it are added to it. Any other `$value` is dropped if there are fields beside it.
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
            // A nested list is spliced into the outer list.
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

/// Whether a value is always present and contains no expression. In a map, only `$when` and `$value` are checked.
fn is_constant(value: &Json) -> bool {
    match value {
        Json::Object(fields) => !fields.contains_key("$when") && fields.get("$value").is_none_or(is_constant),
        value => is_plain(value),
    }
}

fn escaped(name: &str) -> Box<str> {
    let mut out = String::with_capacity(name.len());
    write_escaped(&mut out, name);
    out.into()
}
