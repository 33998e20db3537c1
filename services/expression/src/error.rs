//! Errors of expressions: in their source, and at evaluation.

use std::ops::Range;

use thiserror::Error;

/// A mistake in the source of an expression, or in a string of a template. The range locates it in that source or
/// string.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{message}")]
pub struct ExpressionError {
    /// The affected bytes of the source or string. The range is empty where something is missing.
    pub range: Range<usize>,
    /// The mistake.
    pub message: String,
    /// The remedy, if one is known.
    pub help: Option<String>,
}

/// The reason why a valid expression has no value.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{}", .inner.message)]
pub struct EvaluationError {
    // Boxed, because results are mostly values and should be small.
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

/// A range of bytes in a source of at most [`super::MAXIMUM_SOURCE`] bytes.
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

    /// Returns the same error for a string in which the source begins at `offset`.
    #[must_use]
    pub fn moved(mut self, offset: usize) -> Self {
        self.range = self.range.start + offset..self.range.end + offset;
        self
    }
}

impl EvaluationError {
    /// Creates an error about a value that the expression read or computed.
    pub fn new(message: impl Into<String>) -> Self {
        let message = message.into();
        Self { inner: Box::new(Inner { message, help: None, range: None, exhausted: false, unavailable: false }) }
    }

    /// Creates the error for an exceeded limit. `||` and `&&` do not absorb this error, unlike all others.
    pub(crate) fn exhausted(message: impl Into<String>) -> Self {
        let mut error = Self::new(message);
        error.inner.exhausted = true;
        error
    }

    /// Creates the error for data that could not be looked up. Neither the expression nor the object is at fault.
    pub fn unavailable(message: impl Into<String>) -> Self {
        let mut error = Self::new(message);
        error.inner.unavailable = true;
        error
    }

    /// Adds the remedy to the error.
    #[must_use]
    pub fn with_help(mut self, help: impl Into<String>) -> Self {
        self.inner.help = Some(help.into());
        self
    }

    /// Sets the range in the source, unless the error already has the range of an inner part.
    pub(crate) fn within(mut self, span: Span) -> Self {
        self.inner.range.get_or_insert_with(|| span.range());
        self
    }

    /// Removes the range, because the error comes from another expression's source.
    pub(crate) fn without_range(mut self) -> Self {
        self.inner.range = None;
        self
    }

    /// Returns the message of the error.
    #[must_use]
    pub fn message(&self) -> &str {
        &self.inner.message
    }

    /// Returns the remedy, if one is known.
    #[must_use]
    pub fn help(&self) -> Option<&str> {
        self.inner.help.as_deref()
    }

    /// Returns the range of the expression's source that failed, if it is known.
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

    /// Returns the span from the start of this span to the end of `other`.
    pub(crate) fn to(self, other: Self) -> Self {
        Self { start: self.start, end: other.end.max(self.end) }
    }
}
