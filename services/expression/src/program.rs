//! A compiled expression: the tree for evaluation.

use super::error::Span;
use super::functions::Function;
use super::pattern::Pattern;
use super::syntax::{Literal, Operator};

#[derive(Debug)]
pub(crate) struct Node {
    pub(crate) kind: NodeKind,
    pub(crate) span: Span,
}

#[derive(Debug)]
pub(crate) enum NodeKind {
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
pub(crate) struct Member {
    pub(crate) of: Box<str>,
    pub(crate) name: Box<str>,
    pub(crate) access: Access,
}

/// The syntax of an access to a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    Plain,
    Optional,
    Has,
}

#[derive(Debug)]
pub(crate) struct Select {
    pub(crate) operand: Node,
    pub(crate) field: Box<str>,
    pub(crate) optional: bool,
}

#[derive(Debug)]
pub(crate) struct Index {
    pub(crate) operand: Node,
    pub(crate) key: Node,
    pub(crate) optional: bool,
}

#[derive(Debug)]
pub(crate) struct Invocation {
    pub(crate) function: &'static Function,
    pub(crate) arguments: Box<[Node]>,
    /// The compiled regular expression, if it is a literal.
    pub(crate) pattern: Option<Pattern>,
}

#[derive(Debug)]
pub(crate) struct Element {
    pub(crate) optional: bool,
    pub(crate) value: Node,
}

/// A macro that iterates over the items of a list or the keys of a map, and binds each.
#[derive(Debug)]
pub(crate) struct Loop {
    pub(crate) kind: LoopKind,
    pub(crate) range: Node,
    pub(crate) filter: Option<Node>,
    pub(crate) body: Node,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LoopKind {
    All,
    Exists,
    ExistsOne,
    Map,
    Filter,
    SortBy,
}
