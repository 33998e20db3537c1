//! Expressions: the language in which profiles compute, a dialect of CEL.
//!
//! An expression is pure. It reads what it is given and gives a value or an error; it knows no clock, no network and no
//! chance, goes over lists in their order and over maps in the order of their keys, and so gives the same every time.
//!
//! 1. [`Text`] finds the expressions in the strings of a template.
//! 2. [`Expression::compile`] checks an expression once, when a profile is stored: its size before anything else, so that
//!    no text can exhaust the stack; then its names and functions against a [`Scope`].
//! 3. [`Expression::evaluate`] asks [`Bindings`] for what the expression reaches, and for nothing else, and stops when a
//!    [`Meter`] grants no more.
//!
//! Values borrow from what they were read from, see [`Value`]: reading a field of a pod copies nothing.

mod compile;
mod error;
mod evaluate;
mod functions;
mod lexer;
mod meter;
mod native;
mod operators;
mod output;
mod parse;
mod pattern;
mod program;
mod quantity;
mod reach;
mod scope;
mod syntax;
mod text;
mod value;

pub use compile::{Expression, Path};
pub use error::{EvaluationError, ExpressionError};
pub use evaluate::Bindings;
pub use functions::signatures;
pub(crate) use meter::{Allowances, Owner, Purpose};
pub use meter::{Limit, Meter};
pub use output::Outcome;
pub use quantity::Quantity;
pub(crate) use scope::closest;
pub use scope::{MAXIMUM_PATTERN_MEMORY, MAXIMUM_PROFILE_NODES, Scope};
pub use text::{Part, Source, Text};
pub use value::{Extended, Key, ListBuilder, Map, MapBuilder, Text as TextValue, TextBuilder, Value};

/// Bytes that the text of an expression may have.
pub const MAXIMUM_SOURCE: usize = 1024;

/// Parts (literals, names, operators, calls) that an expression may have.
pub const MAXIMUM_NODES: usize = 256;

/// How deep the parts of an expression may stand in one another.
pub const MAXIMUM_DEPTH: usize = 32;

/// How many loops (`map`, `filter`, `all`, ...) may stand in one another.
pub const MAXIMUM_LOOPS: usize = 2;

/// Bytes that a text, or the whole result of an expression, may have.
pub const MAXIMUM_RESULT: usize = 256 * 1024;

#[cfg(test)]
mod tests;
