//! What is wrong with a profile, said so that its author can mend it: which field, what is there, what was expected.

use std::fmt;

use crate::expression::ExpressionError;

/// One mistake in a profile.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Diagnostic {
    /// The field: `spec.template.spec.containers[0].image`.
    pub path: String,
    /// What is wrong, as a sentence without its full stop.
    pub message: String,
    /// What to do about it.
    pub help: Option<String>,
}

impl Diagnostic {
    pub(crate) fn new(path: impl Into<String>, message: impl Into<String>) -> Self {
        Self { path: path.into(), message: message.into(), help: None }
    }

    /// An expression's mistake with the piece of source that it is about.
    pub(crate) fn of_expression(path: impl Into<String>, source: &str, error: &ExpressionError) -> Self {
        let piece = source.get(error.range.clone()).filter(|piece| !piece.is_empty());
        let message = piece.map_or_else(|| error.message.clone(), |piece| format!("{}: `{piece}`", error.message));
        Self { path: path.into(), message, help: error.help.clone() }
    }

    pub(crate) fn with_help(self, help: impl Into<String>) -> Self {
        Self { help: Some(help.into()), ..self }
    }
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
