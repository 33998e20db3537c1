//! Expressions: the language of profiles, a dialect of CEL.
//!
//! An expression is pure: it reads its bindings, and returns a value or an error. It has no access to the clock, the
//! network or random numbers. It processes the items of lists and the keys of maps in a fixed order, so its result is
//! reproducible.
//!
//! 1. [`Text`] finds the expressions in the strings of a template.
//! 2. [`Expression::compile`] checks an expression once, when its profile is compiled. It first checks the size, so
//!    that no source can exhaust the stack, and then the names and functions against a [`Scope`].
//! 3. [`Expression::evaluate`] requests only the [`Bindings`] that the evaluation needs, and stops when it reaches a
//!    limit of its [`Meter`].
//!
//! A [`Value`] borrows from the object or profile that contains it. Reading a field of a pod only copies strings with
//! escapes.
//!
//! # Example
//!
//! ```
//! use pillion_expression::{Bindings, EvaluationError, Expression, Meter, Scope, Value};
//!
//! struct Names<'v>(&'v serde_json::Value);
//!
//! impl<'v> Bindings<'v> for Names<'v> {
//!     fn value(&self, name: &str, _: &mut Meter) -> Result<Value<'v>, EvaluationError> {
//!         Ok(Value::from(&self.0[name]))
//!     }
//!
//!     fn member(&self, _: &str, _: &str, _: &mut Meter) -> Result<Option<Value<'v>>, EvaluationError> {
//!         Ok(None)
//!     }
//!
//!     fn seed(&self) -> &str {
//!         ""
//!     }
//! }
//!
//! let expression = Expression::compile("object.ports.map(p, string(p + 1)).join(',')", &Scope::new().with("object")).unwrap();
//! let names = serde_json::json!({"object": {"ports": [80, 443]}});
//! let mut meter = Meter::new();
//! let text = expression.evaluate_text(&Names(&names), &mut meter).unwrap();
//! assert_eq!(text, "81,444");
//! ```

mod error;
mod lexer;
mod pattern;
mod meter;
mod quantity;
mod scope;
mod parse;
mod text;
mod value;
mod operators;
mod functions;
mod output;
mod compile;
mod evaluate;
mod analysis;
mod rename;

pub use compile::{Expression, Path};
pub use error::{EvaluationError, ExpressionError};
pub use evaluate::Bindings;
pub use functions::signatures;
pub use meter::{Allowances, Meter, Owner, Purpose};
pub use output::Outcome;
pub use pattern::Pattern;
pub use quantity::Quantity;
pub use rename::rename_members;
pub use scope::{Scope, closest};
pub use text::{Part, Source, Text};
pub use value::{Extended, Items, Key, ListBuilder, MapBuilder, Text as TextValue, Value};

/// The maximum length of an expression, in bytes.
pub const MAXIMUM_SOURCE: usize = 1024;

/// The maximum number of parts, such as literals, names, operators and calls, in an expression.
pub const MAXIMUM_NODES: usize = 256;

/// The maximum nesting depth of an expression.
pub const MAXIMUM_DEPTH: usize = 32;

/// The maximum nesting depth of loops (`map`, `filter`, `all`, ...).
const MAXIMUM_LOOPS: usize = 2;

/// The maximum size of a computed string, and of the whole result of an expression, in bytes.
pub const MAXIMUM_RESULT: usize = 256 * 1024;
