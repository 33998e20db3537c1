//! JSON parsing and editing without copies.
//!
//! The engine reads a few hundred bytes of an admission review and changes fewer. So a text is parsed once into a
//! *tape*, a table with the start and end of every value. Values that are not read stay slices of the request. Unknown
//! fields are preserved byte for byte. A `Document` records edits on top of a tape; `patch` turns them into a JSON
//! patch.

mod bytes;
mod pointer;
mod string;
mod tape;
mod document;
mod parse;

pub(crate) use bytes::{before_byte, has_byte};
pub(crate) use document::{Content, Document, Malformed, SlotId, State};
pub(crate) use parse::is_scalar;
pub use parse::{Limits, SyntaxError};
pub(crate) use pointer::{needs_escape, split_at_escape};
pub use string::Key;
pub(crate) use string::{behind_plain, is_plain, key_that_stands_twice, write_escaped, write_string};
pub(crate) use tape::BorrowedTape;
pub use tape::{Kind, OwnedTape, Value};
