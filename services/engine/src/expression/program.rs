//! A compiled expression: the tree for evaluation.

use super::error::Span;
use super::functions::Function;
use super::pattern::Pattern;
use super::syntax::{Literal, Operator};

#[derive(Debug)]
pub(super) struct Node {
    pub(super) kind: NodeKind,
    pub(super) span: Span,
}

#[derive(Debug)]
pub(super) enum NodeKind {
    Literal(Literal),
    /// The name of a type.
    Type(&'static str),
    /// A name of the scope.
    Name(Box<str>),
    /// A member of a name with members.
    Member(Box<Member>),
    /// A value bound within the expression, by its index among the enclosing bindings.
    Local(usize),
    Select(Box<Select>),
    /// `has(a.b)`.
    Has(Box<Select>),
    Index(Box<Index>),
    Not(Box<Node>),
    Negate(Box<Node>),
    And(Box<[Node; 2]>),
    Or(Box<[Node; 2]>),
    Binary(Operator, Box<[Node; 2]>),
    Conditional(Box<[Node; 3]>),
    Call(Box<Invocation>),
    List(Box<[Element]>),
    Map(Box<[(Node, Element)]>),
    Loop(Box<Loop>),
    /// Binds a value that is evaluated once.
    Bind(Box<[Node; 2]>),
    /// `optMap`, `optFlatMap`: binds the value of the first part, if it has one, and evaluates the second part.
    MapOptional {
        parts: Box<[Node; 2]>,
        flat: bool,
    },
}

#[derive(Debug)]
pub(super) struct Member {
    pub(super) of: Box<str>,
    pub(super) name: Box<str>,
    pub(super) access: Access,
}

/// The syntax of an access to a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Access {
    Plain,
    Optional,
    Has,
}

#[derive(Debug)]
pub(super) struct Select {
    pub(super) operand: Node,
    pub(super) field: Box<str>,
    pub(super) optional: bool,
}

#[derive(Debug)]
pub(super) struct Index {
    pub(super) operand: Node,
    pub(super) key: Node,
    pub(super) optional: bool,
}

#[derive(Debug)]
pub(super) struct Invocation {
    pub(super) function: &'static Function,
    pub(super) arguments: Box<[Node]>,
    /// The compiled regular expression, if it is a literal.
    pub(super) pattern: Option<Pattern>,
}

#[derive(Debug)]
pub(super) struct Element {
    pub(super) optional: bool,
    pub(super) value: Node,
}

/// A macro that iterates over the items of a list or the keys of a map, and binds each.
#[derive(Debug)]
pub(super) struct Loop {
    pub(super) kind: LoopKind,
    pub(super) range: Node,
    pub(super) filter: Option<Node>,
    pub(super) body: Node,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LoopKind {
    All,
    Exists,
    ExistsOne,
    Map,
    Filter,
    SortBy,
}
