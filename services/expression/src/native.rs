//! Detects expressions that Kubernetes' admission policies support with the same meaning, so that only those are handed
//! to the API server.
//!
//! One stricter rule of the API server shows in the text: the elements of a list or map literal must have one type.
//! The API server reports other type errors when a policy is applied to it.

use std::collections::BTreeSet;

use super::compile::Expression;
use super::functions::Style;
use super::program::{Node, NodeKind};
use super::syntax::{Literal, Operator};

/// The global functions that the API server has too, with the same meaning.
const GLOBAL: [&str; 17] = [
    "size",
    "string",
    "int",
    "uint",
    "double",
    "bool",
    "bytes",
    "type",
    "dyn",
    "duration",
    "quantity",
    "isQuantity",
    "optional.of",
    "optional.none",
    "optional.ofNonZeroValue",
    "lists.range",
    "strings.quote",
];

/// The member functions that the API server has too, with the same meaning.
const MEMBER: [&str; 43] = [
    "size",
    "contains",
    "startsWith",
    "endsWith",
    "matches",
    "indexOf",
    "lastIndexOf",
    "charAt",
    "substring",
    "replace",
    "split",
    "join",
    "trim",
    "upperAscii",
    "lowerAscii",
    "format",
    "find",
    "findAll",
    "distinct",
    "sort",
    "flatten",
    "slice",
    "first",
    "last",
    "sum",
    "min",
    "max",
    "hasValue",
    "value",
    "or",
    "orValue",
    "add",
    "sub",
    "isGreaterThan",
    "isLessThan",
    "isInteger",
    "compareTo",
    "asInteger",
    "asApproximateFloat",
    "getHours",
    "getMinutes",
    "getSeconds",
    "getMilliseconds",
];

/// The functions above that accept quantities here, but not in the API server.
const NOT_OF_QUANTITIES: [&str; 6] = ["int", "string", "double", "sum", "min", "max"];

impl Expression {
    /// Describes the features of it that the API server's policies do not have, sorted. Names of the scope are not
    /// checked.
    #[must_use]
    pub fn not_native(&self) -> Vec<String> {
        let mut finder = Finder::default();
        finder.node(self.root());
        if finder.functions.contains("quantity") {
            let with = finder.functions.iter().find(|name| NOT_OF_QUANTITIES.contains(name));
            if finder.computes || with.is_some() {
                finder.found.insert("quantities with operators or conversions".to_owned());
            }
        }
        finder.found.into_iter().collect()
    }
}

/// The type of an element, as far as the text shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Shape {
    Literal(&'static str),
    /// A part of an object, whose type the API server does not know either.
    Dynamic,
    List(Option<Box<Self>>),
    Map(Option<Box<(Self, Self)>>),
    /// A value whose type the API server may know.
    Unknown,
}

#[derive(Default)]
struct Finder {
    found: BTreeSet<String>,
    functions: BTreeSet<&'static str>,
    /// Whether it has an operator that computes or orders values.
    computes: bool,
}

impl Finder {
    fn node(&mut self, node: &Node) {
        match &node.kind {
            NodeKind::Literal(_) | NodeKind::Type(_) | NodeKind::Name(_) | NodeKind::Member(_) | NodeKind::Local(_) => {
            }
            NodeKind::Select(select) | NodeKind::Has(select) => self.node(&select.operand),
            NodeKind::Index(index) => self.all([&index.operand, &index.key]),
            NodeKind::Not(operand) | NodeKind::Negate(operand) => self.node(operand),
            NodeKind::And(operands) | NodeKind::Or(operands) => self.all(operands.iter()),
            NodeKind::Binary(operator, operands) => {
                self.computes |= !matches!(operator, Operator::Equal | Operator::NotEqual | Operator::In);
                self.all(operands.iter());
            }
            NodeKind::Conditional(parts) => self.all(parts.iter()),
            NodeKind::Call(call) => {
                let (name, style) = (call.function.name, call.function.style);
                let native: &[&str] = if style == Style::Global { &GLOBAL } else { &MEMBER };
                if !native.contains(&name) {
                    self.found.insert(format!("{name}()"));
                }
                self.functions.insert(name);
                // The API server's function takes strings only. The types of an object's fields are not known here.
                let is_number = |argument| matches!(shape(argument), Shape::Literal(kind) if kind != "string");
                if name == "quantity" && call.arguments.iter().any(is_number) {
                    self.found.insert("quantity() of a number".to_owned());
                }
                for argument in &call.arguments {
                    // The arguments of a format may have different types.
                    match (&argument.kind, name) {
                        (NodeKind::List(elements), "format") => self.all(elements.iter().map(|element| &element.value)),
                        _ => self.node(argument),
                    }
                }
            }
            NodeKind::List(elements) => {
                self.same(elements.iter().map(|element| shape(&element.value)));
                self.all(elements.iter().map(|element| &element.value));
            }
            NodeKind::Map(entries) => {
                self.same(entries.iter().map(|(key, _)| shape(key)));
                self.same(entries.iter().map(|(_, element)| shape(&element.value)));
                self.all(entries.iter().flat_map(|(key, element)| [key, &element.value]));
            }
            NodeKind::Loop(looped) => {
                self.all([&looped.range, &looped.body]);
                self.all(&looped.filter);
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

    fn same(&mut self, shapes: impl Iterator<Item = Shape>) {
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
        // The API server knows the types of the request and the namespace.
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
    fn what_the_api_server_does_not_have_is_named() {
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
