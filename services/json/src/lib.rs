//! JSON documents: parsing and editing without copies, JSON patches, and YAML as JSON.
//!
//! The engine reads a few hundred bytes of an admission review, and changes even fewer. So a JSON text is parsed once
//! into a *tape*: a table with the start and end of every value. Values that are not read remain slices of the request.
//! Unknown fields are preserved byte for byte. A [`Document`] records edits to a tape. [`patch`] writes the edits as a
//! JSON patch, and checks the patch.
//!
//! # Example
//!
//! ```
//! use pillion_json::{Content, Document, Key, OwnedTape, patch};
//!
//! let tape = OwnedTape::parse(r#"{"spec": {"hostNetwork": false}}"#).unwrap();
//! assert_eq!(tape.root().at(&["spec", "hostNetwork"]).unwrap().as_bool(), Some(false));
//!
//! let mut document = Document::new(tape.root());
//! let spec = document.member(Document::ROOT, "spec").unwrap().unwrap();
//! document.open(spec).unwrap();
//! document.add_member(spec, Key::new("nodeName"), Content::Scalar("\"a\""));
//!
//! let written = patch::write(&document).unwrap();
//! let checked = patch::check(tape.root(), written, &document).unwrap();
//! assert_eq!(checked, br#"[{"op":"add","path":"/spec/nodeName","value":"a"}]"#);
//! ```

mod bytes;
mod string;
mod tape;
mod document;
mod parse;
pub mod patch;
pub mod yaml;

pub(crate) use bytes::before_byte;
pub use bytes::has_byte;
pub use document::{Content, Document, Entry, Malformed, SlotId, State, TextId};
pub(crate) use parse::is_scalar;
pub use parse::{Limits, SyntaxError};
pub(crate) use string::after_plain;
pub use string::{
    Key, Sink, first_duplicate_key, is_plain, needs_escape, split_at_escape, write_escaped, write_string,
};
pub use tape::{BorrowedTape, Kind, OwnedTape, Value};
