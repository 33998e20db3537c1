//! Errors in the source of expressions, and errors of their evaluation.

use std::ops::Range;

use thiserror::Error;

/// An error in the source of an expression or in a string of a template.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{message}")]
pub struct ExpressionError {
    /// The affected bytes of the source or string. The range is empty if something is missing at that position.
    pub range: Range<usize>,
    /// The description of the error.
    pub message: String,
    /// How to correct the error, if known.
    pub help: Option<String>,
}

/// The reason why a valid expression cannot be evaluated.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{}", .inner.message)]
pub struct EvaluationError {
    // Boxed to keep results small, because most of them are values.
    inner: Box<Inner>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Inner {
    message: String,
    help: Option<String>,
    range: Option<Range<usize>>,
    exhausted: bool,
    unavailable: bool,
}

/// A range of bytes in a source. The positions fit into 16 bits, because a source has at most [`super::MAXIMUM_SOURCE`]
/// bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Span {
    start: u16,
    end: u16,
}

impl ExpressionError {
    pub(crate) fn new(range: Range<usize>, message: impl Into<String>) -> Self {
        Self { range, message: message.into(), help: None }
    }

    pub(crate) fn at(span: Span, message: impl Into<String>) -> Self {
        Self::new(span.range(), message)
    }

    pub(crate) fn with_help(mut self, help: impl Into<String>) -> Self {
        self.help = Some(help.into());
        self
    }

    /// Adds `offset` to the range, for a source that begins at `offset` in a longer string.
    #[must_use]
    pub fn moved(mut self, offset: usize) -> Self {
        self.range = self.range.start + offset..self.range.end + offset;
        self
    }
}

impl EvaluationError {
    /// Creates an error about a value that the expression has read or computed.
    pub fn new(message: impl Into<String>) -> Self {
        let message = message.into();
        Self { inner: Box::new(Inner { message, help: None, range: None, exhausted: false, unavailable: false }) }
    }

    /// Creates the error for an exceeded limit. `||` and `&&` absorb all other errors, but not this one.
    pub(crate) fn exhausted(message: impl Into<String>) -> Self {
        let mut error = Self::new(message);
        error.inner.exhausted = true;
        error
    }

    /// Creates the error for data that could not be looked up. It is not caused by the expression or the object.
    pub fn unavailable(message: impl Into<String>) -> Self {
        let mut error = Self::new(message);
        error.inner.unavailable = true;
        error
    }

    /// Adds a help text that explains how to correct the error.
    #[must_use]
    pub fn with_help(mut self, help: impl Into<String>) -> Self {
        self.inner.help = Some(help.into());
        self
    }

    /// Sets the range in the source, unless the error already has the range of a nested part.
    pub(crate) fn within(mut self, span: Span) -> Self {
        self.inner.range.get_or_insert_with(|| span.range());
        self
    }

    /// Removes the range, because it refers to the source of another expression.
    pub(crate) fn without_range(mut self) -> Self {
        self.inner.range = None;
        self
    }

    /// Returns the message of the error.
    #[must_use]
    pub fn message(&self) -> &str {
        &self.inner.message
    }

    /// Returns how to correct the error, if known.
    #[must_use]
    pub fn help(&self) -> Option<&str> {
        self.inner.help.as_deref()
    }

    /// Returns the range of the part that failed, in the expression's source, if known.
    #[must_use]
    pub fn range(&self) -> Option<Range<usize>> {
        self.inner.range.clone()
    }

    /// Whether a limit ended the evaluation.
    #[must_use]
    pub fn is_exhausted(&self) -> bool {
        self.inner.exhausted
    }

    /// Whether the expression reads data that could not be looked up.
    #[must_use]
    pub fn is_unavailable(&self) -> bool {
        self.inner.unavailable
    }
}

impl Span {
    pub(crate) fn new(start: usize, end: usize) -> Self {
        let fit = |offset| u16::try_from(offset).unwrap_or(u16::MAX);
        Self { start: fit(start), end: fit(end) }
    }

    pub(crate) fn range(self) -> Range<usize> {
        usize::from(self.start)..usize::from(self.end)
    }

    /// Returns the span from the start of this span to the end of `other`, or to its own end if that is later.
    pub(crate) fn to(self, other: Self) -> Self {
        Self { start: self.start, end: other.end.max(self.end) }
    }
}
