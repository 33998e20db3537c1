//! Diagnostics: errors in a profile, with the field, what was expected, and how to correct it.

use std::fmt;
use std::ops::Range;

use crate::expression::ExpressionError;

/// The maximum length, in bytes, of a piece of an expression that a message quotes.
const LONGEST_PIECE: usize = 60;

/// The maximum number of bytes that a diagnostic keeps of a path, a message or a help text. Longer strings are
/// shortened, because they may contain parts of the profile.
const LONGEST_TEXT: usize = 1_000;

/// An error in a profile.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Diagnostic {
    /// The path of the field, such as `spec.template.spec.containers[0].image`.
    pub path: String,
    /// The description of the error: a sentence without its full stop.
    pub message: String,
    /// How to correct the error.
    pub help: Option<String>,
    /// The part of the field to which the diagnostic refers.
    pub part: Part,
}

/// The part of a field to which a diagnostic refers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Part {
    /// The field's value.
    #[default]
    Value,
    /// The field's name, because the field is not allowed here.
    Name,
    /// A byte range of the field's string value, such as a part of an expression.
    Bytes(Range<usize>),
}

impl Diagnostic {
    pub(crate) fn new(path: impl Into<String>, message: impl Into<String>) -> Self {
        Self { path: shortened(path.into()), message: shortened(message.into()), help: None, part: Part::Value }
    }

    pub(crate) fn with_help(self, help: impl Into<String>) -> Self {
        Self { help: Some(shortened(help.into())), ..self }
    }

    /// Makes the diagnostic refer to the name of the field instead of its value.
    pub(crate) fn of_name(self) -> Self {
        Self { part: Part::Name, ..self }
    }

    /// Creates the diagnostic for an error in an expression. `text` is the field's value; the range in `error` refers
    /// to it.
    pub(crate) fn of_expression(path: impl Into<String>, text: &str, error: &ExpressionError) -> Self {
        let is_quoted = |piece: &str| error.message.contains(&format!("`{piece}`"));
        let piece = text
            .get(error.range.clone())
            .filter(|piece| !piece.is_empty() && piece.len() <= LONGEST_PIECE && !is_quoted(piece));
        let message = piece.map_or_else(|| error.message.clone(), |piece| format!("{}: `{piece}`", error.message));
        Self { help: error.help.clone(), part: Part::Bytes(error.range.clone()), ..Self::new(path, message) }
    }
}

/// Shortens a long string by removing its middle.
fn shortened(text: String) -> String {
    if text.len() <= LONGEST_TEXT {
        return text;
    }
    let half = LONGEST_TEXT / 2;
    let begin = text.get(..text.floor_char_boundary(half)).unwrap_or_default();
    let end = text.get(text.ceil_char_boundary(text.len() - half)..).unwrap_or_default();
    format!("{begin}…{end}")
}

impl fmt::Display for Diagnostic {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}: {}", self.path, self.message)?;
        match &self.help {
            Some(help) => write!(formatter, " (help: {help})"),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shortens_long_text_in_the_middle() {
        let long = Diagnostic::new("spec", format!("begin {} end", "é".repeat(100_000)));
        assert!(long.message.len() < 1_010 && long.message.starts_with("begin é"), "{}", long.message.len());
        assert!(long.message.ends_with("é end") && long.message.contains("é…é"));
        assert_eq!(Diagnostic::new("spec", "short").to_string(), "spec: short");
    }
}
