//! Analyzes a compiled expression: which fields of a value it reads, and which of its features API servers do not
//! support.
//!
//! Getting a whole value may be expensive while some of its fields are cheap, so the provider of a value needs to know
//! which fields an expression reads. If the expression uses the value in any other way, it reads the whole value.
//!
//! Kubernetes' admission policies support some of these expressions with the same meaning, so an API server can
//! evaluate them. One stricter rule of the API server can be checked in the source: the elements of a list or map
//! literal must have the same type. When a policy is stored, the API server reports all other type errors in its
//! expressions.

use std::collections::BTreeSet;

use super::compile::{Expression, Index, Loop, LoopKind, Node, NodeKind};
use super::functions::Native;
use super::parse::{Literal, Operator};

impl Expression {
    /// Returns the fields that the expression reads from the variable `name`, or from its items if `is_list` is set.
    /// `None` if the expression may read any field.
    #[must_use]
    pub fn fields_of(&self, name: &str, is_list: bool) -> Option<BTreeSet<Box<str>>> {
        let mut collector =
            FieldCollector { name, is_list, locals: Vec::new(), fields: BTreeSet::new(), reads_all: false };
        collector.node(self.root());
        (!collector.reads_all).then_some(collector.fields)
    }
}

struct FieldCollector<'n> {
    name: &'n str,
    is_list: bool,
    /// For each local variable of the expression, whether it is the tracked value or an item of the tracked list.
    locals: Vec<bool>,
    fields: BTreeSet<Box<str>>,
    reads_all: bool,
}

impl FieldCollector<'_> {
    fn node(&mut self, node: &Node) {
        // The expression uses the value itself, and not only one of its fields.
        if self.value(node) || self.list(node) {
            self.reads_all = true;
            return;
        }
        match &node.kind {
            NodeKind::Literal(_) | NodeKind::Type(_) | NodeKind::Name(_) | NodeKind::Member(_) | NodeKind::Local(_) => {
            }
            NodeKind::Select(select) | NodeKind::Has(select) => {
                if self.value(&select.operand) {
                    self.fields.insert(select.field.clone());
                } else {
                    self.node(&select.operand);
                }
            }
            NodeKind::Index(index) => self.index(index),
            NodeKind::Not(operand) | NodeKind::Negate(operand) => self.node(operand),
            NodeKind::And(operands) | NodeKind::Or(operands) | NodeKind::Binary(_, operands) => self.all(&**operands),
            NodeKind::Conditional(parts) => self.all(&**parts),
            NodeKind::Call(call) => {
                let reads_no_field = |collector: &mut Self, argument: &Node| match call.function.name {
                    "size" => collector.list(argument),
                    "hasValue" => collector.value(argument),
                    _ => false,
                };
                for argument in &call.arguments {
                    if !reads_no_field(self, argument) {
                        self.node(argument);
                    }
                }
            }
            NodeKind::List(elements) => self.all(elements.iter().map(|element| &element.value)),
            NodeKind::Map(entries) => self.all(entries.iter().flat_map(|(key, element)| [key, &element.value])),
            NodeKind::Loop(iteration) => {
                let is_item = self.list(&iteration.range);
                if !is_item {
                    self.node(&iteration.range);
                }
                self.body(iteration, is_item);
            }
            NodeKind::Bind(parts) | NodeKind::MapOptional { parts, .. } => {
                let [bound, body] = &**parts;
                let is_value = self.value(bound);
                if !is_value {
                    self.node(bound);
                }
                self.locals.push(is_value);
                self.node(body);
                self.locals.pop();
            }
        }
    }

    fn all<'a>(&mut self, nodes: impl IntoIterator<Item = &'a Node>) {
        for node in nodes {
            self.node(node);
        }
    }

    fn body(&mut self, iteration: &Loop, is_item: bool) {
        self.locals.push(is_item);
        self.all(iteration.filter.iter().chain([&iteration.body]));
        self.locals.pop();
    }

    fn index(&mut self, index: &Index) {
        match &index.key.kind {
            NodeKind::Literal(Literal::String(field)) if self.value(&index.operand) => {
                self.fields.insert((&**field).into());
            }
            _ => self.all([&index.operand, &index.key]),
        }
    }

    /// Whether the node is the tracked value or an item of the tracked list. If so, visits its subexpressions.
    fn value(&mut self, node: &Node) -> bool {
        match &node.kind {
            NodeKind::Name(name) => !self.is_list && **name == *self.name,
            NodeKind::Local(place) => self.locals.get(*place).copied().unwrap_or(false),
            NodeKind::Index(index) if self.list(&index.operand) => {
                self.node(&index.key);
                true
            }
            _ => false,
        }
    }

    /// Whether the node is the tracked list, possibly filtered or sorted. If so, visits its subexpressions.
    fn list(&mut self, node: &Node) -> bool {
        match &node.kind {
            NodeKind::Name(name) => self.is_list && **name == *self.name,
            NodeKind::Loop(iteration) if matches!(iteration.kind, LoopKind::Filter | LoopKind::SortBy) => {
                let is_list = self.list(&iteration.range);
                if is_list {
                    self.body(iteration, true);
                }
                is_list
            }
            _ => false,
        }
    }
}

impl Expression {
    /// Returns a sorted list of the expression's features that admission policies do not support. Does not check
    /// whether policies have the names that the expression reads.
    #[must_use]
    pub fn not_native(&self) -> Vec<String> {
        let mut finder = UnsupportedFinder::default();
        finder.node(self.root());
        if finder.has_quantities && finder.uses_quantity_operators {
            finder.found.insert("quantities with operators or conversions".to_owned());
        }
        finder.found.into_iter().collect()
    }
}

/// The type of an element, if the source alone determines it.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Shape {
    Literal(&'static str),
    /// A part of an object. The API server does not know its type either.
    Dynamic,
    List(Option<Box<Self>>),
    Map(Option<Box<(Self, Self)>>),
    /// A value of unknown type. The API server may know its type.
    Unknown,
}

#[derive(Default)]
struct UnsupportedFinder {
    found: BTreeSet<String>,
    has_quantities: bool,
    /// Whether the expression contains an operator or a function that accepts quantities here, but not in the API
    /// server.
    uses_quantity_operators: bool,
}

impl UnsupportedFinder {
    fn node(&mut self, node: &Node) {
        match &node.kind {
            NodeKind::Literal(_) | NodeKind::Type(_) | NodeKind::Name(_) | NodeKind::Member(_) | NodeKind::Local(_) => {
            }
            NodeKind::Select(select) | NodeKind::Has(select) => self.node(&select.operand),
            NodeKind::Index(index) => self.all([&index.operand, &index.key]),
            NodeKind::Not(operand) | NodeKind::Negate(operand) => self.node(operand),
            NodeKind::And(operands) | NodeKind::Or(operands) => self.all(operands.iter()),
            NodeKind::Binary(operator, operands) => {
                self.uses_quantity_operators |=
                    !matches!(operator, Operator::Equal | Operator::NotEqual | Operator::In);
                self.all(operands.iter());
            }
            NodeKind::Conditional(parts) => self.all(parts.iter()),
            NodeKind::Call(call) => {
                let name = call.function.name;
                match call.function.native {
                    Native::No => {
                        self.found.insert(format!("{name}()"));
                    }
                    Native::Yes => self.has_quantities |= name == "quantity",
                    Native::ExceptQuantities => self.uses_quantity_operators = true,
                }
                // The API server's `quantity` only accepts strings. The types of an object's fields are unknown here.
                let is_number = |argument| matches!(shape(argument), Shape::Literal(kind) if kind != "string");
                if name == "quantity" && call.arguments.iter().any(is_number) {
                    self.found.insert("quantity() of a number".to_owned());
                }
                for argument in &call.arguments {
                    // The arguments of `format` may have different types.
                    match (&argument.kind, name) {
                        (NodeKind::List(elements), "format") => self.all(elements.iter().map(|element| &element.value)),
                        _ => self.node(argument),
                    }
                }
            }
            NodeKind::List(elements) => {
                self.check_same_type(elements.iter().map(|element| shape(&element.value)));
                self.all(elements.iter().map(|element| &element.value));
            }
            NodeKind::Map(entries) => {
                self.check_same_type(entries.iter().map(|(key, _)| shape(key)));
                self.check_same_type(entries.iter().map(|(_, element)| shape(&element.value)));
                self.all(entries.iter().flat_map(|(key, element)| [key, &element.value]));
            }
            NodeKind::Loop(iteration) => {
                self.all([&iteration.range, &iteration.body]);
                self.all(&iteration.filter);
            }
            NodeKind::Bind(parts) => {
                self.found.insert("cel.bind()".to_owned());
                self.all(parts.iter());
            }
            NodeKind::MapOptional { parts, .. } => self.all(parts.iter()),
        }
    }

    fn all<'n>(&mut self, nodes: impl IntoIterator<Item = &'n Node>) {
        nodes.into_iter().for_each(|node| self.node(node));
    }

    fn check_same_type(&mut self, shapes: impl Iterator<Item = Shape>) {
        let shapes: Vec<_> = shapes.collect();
        let [first, rest @ ..] = shapes.as_slice() else { return };
        if !rest.is_empty() && (*first == Shape::Unknown || rest.iter().any(|shape| shape != first)) {
            self.found.insert("a list or map whose elements may be of different types".to_owned());
        }
    }
}

fn shape(node: &Node) -> Shape {
    match &node.kind {
        NodeKind::Literal(literal) => Shape::Literal(match literal {
            Literal::Null => "null",
            Literal::Bool(_) => "bool",
            Literal::Int(_) => "int",
            Literal::UInt(_) => "uint",
            Literal::Double(_) => "double",
            Literal::String(_) => "string",
            Literal::Bytes(_) => "bytes",
        }),
        NodeKind::List(elements) => Shape::List(elements.first().map(|element| Box::new(shape(&element.value)))),
        NodeKind::Map(entries) => {
            Shape::Map(entries.first().map(|(key, element)| Box::new((shape(key), shape(&element.value)))))
        }
        NodeKind::Select(select) if !select.optional => match shape(&select.operand) {
            Shape::Dynamic => Shape::Dynamic,
            _ => Shape::Unknown,
        },
        NodeKind::Index(index) if !index.optional => match shape(&index.operand) {
            Shape::Dynamic => Shape::Dynamic,
            _ => Shape::Unknown,
        },
        // Like this analysis, the API server does not know the type of the object. It knows the types of the request
        // and of the namespace.
        NodeKind::Name(name) if matches!(&**name, "object" | "oldObject") => Shape::Dynamic,
        _ => Shape::Unknown,
    }
}

#[cfg(test)]
mod tests {
    use crate::{Expression, Scope};

    fn not_native(source: &str) -> Vec<String> {
        let scope = Scope::new().with("object").with("request").with_any_members("variables");
        Expression::compile(source, &scope).unwrap().not_native()
    }

    #[test]
    fn names_features_that_api_server_lacks() {
        let types = "a list or map whose elements may be of different types";
        let quantities = "quantities with operators or conversions";
        for (source, found) in [
            ("object.spec.?x.orValue('') == 'a' && object.list.all(x, x.matches('^a'))", &[][..]),
            ("object.x in ['a', 'b']", &[]),
            ("[object.a, object.b[0]].exists(x, x == 1)", &[]),
            ("'%s %d'.format(['a', 1]) == 'a 1'", &[]),
            ("quantity('1').isGreaterThan(quantity(object.x))", &[]),
            ("pairs(object.labels) == '' || hasEnv(object, 'A')", &["hasEnv()", "pairs()"]),
            ("base64.encode('x') == 'x'", &["base64.encode()"]),
            ("cel.bind(x, 1, x) == 1", &["cel.bind()"]),
            ("['a', object.b].size() == 2", &[types]),
            ("{'a': 1, 'b': 'c'}.size() == 2", &[types]),
            ("[variables.a, variables.b].size() == 2", &[types]),
            ("[[1], ['a']].size() == 2", &[types]),
            ("quantity('1') + quantity('2') == quantity('3')", &[quantities]),
            ("int(quantity('1')) == 1", &[quantities]),
            ("quantity(1).isLessThan(quantity(object.x))", &["quantity() of a number"]),
            ("quantity('500m') == quantity(0.5)", &["quantity() of a number"]),
            ("quantity(-1).sign() == -1", &["quantity() of a number", "sign()"]),
        ] {
            assert_eq!(not_native(source), found, "{source}");
        }
    }
}
