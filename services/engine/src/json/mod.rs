//! JSON as the engine needs it: read once into a flat table, never copied, and edited by laying changes over it.
//!
//! An admission review is a few kilobytes of which the engine looks at a few hundred bytes and changes fewer. So a text
//! becomes a *tape*: a table of where every value begins and ends. Whatever nobody looks at stays the slice of the
//! request that it is, to the byte, whether this build knows the field or not. A `Document` lays edits over a tape and
//! can say as a JSON patch what they are.

mod bytes;
mod document;
mod parse;
mod pointer;
mod string;
mod tape;

pub(crate) use bytes::{before_byte, has_byte};
pub(crate) use document::{Content, Document, Malformed, SlotId, State};
pub(crate) use parse::is_scalar;
pub use parse::{Limits, SyntaxError};
pub(crate) use pointer::{needs_escape, split_at_escape};
pub use string::Key;
pub(crate) use string::{behind_plain, is_plain, key_that_stands_twice, write_escaped, write_string};
pub(crate) use tape::BorrowedTape;
pub use tape::{Kind, OwnedTape, Value};
