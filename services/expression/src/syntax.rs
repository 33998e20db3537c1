//! The syntax tree of an expression, between the parser and the compiler.

use super::error::Span;

/// A node of the tree. It records its depth, so that no tree becomes too deep for recursion.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Ast {
    pub(crate) kind: AstKind,
    pub(crate) span: Span,
    pub(crate) depth: usize,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum AstKind {
    Literal(Literal),
    Name(String),
    /// `a.b`, `a.?b`.
    Select {
        operand: Box<Ast>,
        field: String,
        optional: bool,
    },
    /// `a[b]`, `a[?b]`.
    Index {
        operand: Box<Ast>,
        index: Box<Ast>,
        optional: bool,
    },
    /// `f(a)`, `x.f(a)`.
    Call {
        target: Option<Box<Ast>>,
        name: String,
        name_span: Span,
        arguments: Vec<Ast>,
    },
    List(Vec<Item>),
    Map(Vec<Entry>),
    Not(Box<Ast>),
    Negate(Box<Ast>),
    Binary(Operator, Box<Ast>, Box<Ast>),
    Conditional(Box<Ast>, Box<Ast>, Box<Ast>),
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Literal {
    Null,
    Bool(bool),
    Int(i64),
    UInt(u64),
    Double(f64),
    String(Box<str>),
    Bytes(Box<[u8]>),
}

/// An element of a list literal; `?x` is optional.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Item {
    pub(crate) optional: bool,
    pub(crate) value: Ast,
}

/// An entry of a map literal; `?k: v` is optional.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Entry {
    pub(crate) optional: bool,
    pub(crate) key: Ast,
    pub(crate) value: Ast,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Operator {
    Or,
    And,
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
    Equal,
    NotEqual,
    In,
    Add,
    Subtract,
    Multiply,
    Divide,
    Remainder,
}

impl Operator {
    pub(crate) fn symbol(self) -> &'static str {
        match self {
            Self::Or => "||",
            Self::And => "&&",
            Self::Less => "<",
            Self::LessOrEqual => "<=",
            Self::Greater => ">",
            Self::GreaterOrEqual => ">=",
            Self::Equal => "==",
            Self::NotEqual => "!=",
            Self::In => "in",
            Self::Add => "+",
            Self::Subtract => "-",
            Self::Multiply => "*",
            Self::Divide => "/",
            Self::Remainder => "%",
        }
    }

    pub(crate) fn of(symbol: &str) -> Option<Self> {
        const ALL: [Operator; 14] = [
            Operator::Or,
            Operator::And,
            Operator::Less,
            Operator::LessOrEqual,
            Operator::Greater,
            Operator::GreaterOrEqual,
            Operator::Equal,
            Operator::NotEqual,
            Operator::In,
            Operator::Add,
            Operator::Subtract,
            Operator::Multiply,
            Operator::Divide,
            Operator::Remainder,
        ];
        ALL.into_iter().find(|operator| operator.symbol() == symbol)
    }

    /// Returns the precedence. All operators are left-associative.
    pub(crate) fn precedence(self) -> u8 {
        match self {
            Self::Or => 1,
            Self::And => 2,
            Self::Less
            | Self::LessOrEqual
            | Self::Greater
            | Self::GreaterOrEqual
            | Self::Equal
            | Self::NotEqual
            | Self::In => 3,
            Self::Add | Self::Subtract => 4,
            Self::Multiply | Self::Divide | Self::Remainder => 5,
        }
    }
}
