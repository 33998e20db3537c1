//! Finds which fields of a value an expression reads.
//!
//! A value may be expensive as a whole but cheap in part, so its provider needs the fields that an expression reads. If
//! the expression uses the value in any other way, it reads all of it.

use std::collections::BTreeSet;

use super::compile::Expression;
use super::program::{Index, Loop, LoopKind, Node, NodeKind};
use super::syntax::Literal;

impl Expression {
    /// Returns the fields that it reads of a name of the scope or, for a list, of its items; `None` if it may read any
    /// field.
    #[must_use]
    pub fn fields_of(&self, name: &str, is_list: bool) -> Option<BTreeSet<Box<str>>> {
        let mut reach = Reach { name, is_list, locals: Vec::new(), fields: BTreeSet::new(), whole: false };
        reach.node(self.root());
        (!reach.whole).then_some(reach.fields)
    }
}

struct Reach<'n> {
    name: &'n str,
    is_list: bool,
    /// Whether each bound value of the expression is the tracked value.
    locals: Vec<bool>,
    fields: BTreeSet<Box<str>>,
    whole: bool,
}

impl Reach<'_> {
    fn node(&mut self, node: &Node) {
        // The value itself is used here, and not one of its fields.
        if self.value(node) || self.list(node) {
            self.whole = true;
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
                let is_counted = |reach: &mut Self, argument: &Node| match call.function.name {
                    "size" => reach.list(argument),
                    "hasValue" => reach.value(argument),
                    _ => false,
                };
                for argument in &call.arguments {
                    if !is_counted(self, argument) {
                        self.node(argument);
                    }
                }
            }
            NodeKind::List(elements) => self.all(elements.iter().map(|element| &element.value)),
            NodeKind::Map(entries) => self.all(entries.iter().flat_map(|(key, element)| [key, &element.value])),
            NodeKind::Loop(looped) => {
                let is_item = self.list(&looped.range);
                if !is_item {
                    self.node(&looped.range);
                }
                self.body(looped, is_item);
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

    fn body(&mut self, looped: &Loop, is_item: bool) {
        self.locals.push(is_item);
        self.all(looped.filter.iter().chain([&looped.body]));
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

    /// Whether the node is the value, or an item of the list. In that case its subexpressions are visited.
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

    /// Whether the node is the list, filtered or sorted. In that case its subexpressions are visited.
    fn list(&mut self, node: &Node) -> bool {
        match &node.kind {
            NodeKind::Name(name) => self.is_list && **name == *self.name,
            NodeKind::Loop(looped) if matches!(looped.kind, LoopKind::Filter | LoopKind::SortBy) => {
                let is_list = self.list(&looped.range);
                if is_list {
                    self.body(looped, true);
                }
                is_list
            }
            _ => false,
        }
    }
}
