//! Errors of expressions: in their text, and at evaluation.

use std::ops::Range;

use thiserror::Error;

/// What is wrong with the text of an expression or a template. It can be shown under the text like a compiler's
/// message.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{message}")]
pub struct ExpressionError {
    /// The bytes of the text that it is about. It may be empty, at a place where something is missing.
    pub range: Range<usize>,
    /// What is wrong.
    pub message: String,
    /// What to do.
    pub help: Option<String>,
}

/// Why an expression that is well written has no value.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{}", .inner.message)]
pub struct EvaluationError {
    // Behind a pointer, because nearly all results are values and should be small.
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

/// A range of bytes in a text of at most [`super::MAXIMUM_SOURCE`] bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Span {
    start: u16,
    end: u16,
}

impl ExpressionError {
    pub(super) fn new(range: Range<usize>, message: impl Into<String>) -> Self {
        Self { range, message: message.into(), help: None }
    }

    pub(super) fn at(span: Span, message: impl Into<String>) -> Self {
        Self::new(span.range(), message)
    }

    pub(super) fn with_help(mut self, help: impl Into<String>) -> Self {
        self.help = Some(help.into());
        self
    }

    /// The same error in a text in which the expression begins at `offset`.
    #[must_use]
    pub fn moved(mut self, offset: usize) -> Self {
        self.range = self.range.start + offset..self.range.end + offset;
        self
    }
}

impl EvaluationError {
    /// An error that says what is wrong with a value that was read or computed.
    pub fn new(message: impl Into<String>) -> Self {
        let message = message.into();
        Self { inner: Box::new(Inner { message, help: None, range: None, exhausted: false, unavailable: false }) }
    }

    /// The error of an expression that does more than it may. Unlike others it is not absorbed by `||` and `&&`.
    pub(super) fn exhausted(message: impl Into<String>) -> Self {
        let mut error = Self::new(message);
        error.inner.exhausted = true;
        error
    }

    /// The error of an expression that reads what could not be looked up: nothing is wrong with it, nor with the
    /// object.
    pub(crate) fn unavailable(message: impl Into<String>) -> Self {
        let mut error = Self::new(message);
        error.inner.unavailable = true;
        error
    }

    /// Adds what to do about it.
    #[must_use]
    pub fn with_help(mut self, help: impl Into<String>) -> Self {
        self.inner.help = Some(help.into());
        self
    }

    /// Says where in the source it happened, unless a place further inside is known already.
    pub(super) fn within(mut self, span: Span) -> Self {
        self.inner.range.get_or_insert_with(|| span.range());
        self
    }

    /// Forgets the place: the error comes from another expression's source.
    pub(super) fn elsewhere(mut self) -> Self {
        self.inner.range = None;
        self
    }

    /// What is wrong.
    #[must_use]
    pub fn message(&self) -> &str {
        &self.inner.message
    }

    /// What to do.
    #[must_use]
    pub fn help(&self) -> Option<&str> {
        self.inner.help.as_deref()
    }

    /// The bytes of the expression's source in which it happened.
    #[must_use]
    pub fn range(&self) -> Option<Range<usize>> {
        self.inner.range.clone()
    }

    /// Whether the expression was ended because it did more than it may.
    #[must_use]
    pub fn is_exhausted(&self) -> bool {
        self.inner.exhausted
    }

    /// Whether something could not be looked up that the expression reads.
    #[must_use]
    pub fn is_unavailable(&self) -> bool {
        self.inner.unavailable
    }
}

impl Span {
    pub(super) fn new(start: usize, end: usize) -> Self {
        let fit = |offset| u16::try_from(offset).unwrap_or(u16::MAX);
        Self { start: fit(start), end: fit(end) }
    }

    pub(super) fn range(self) -> Range<usize> {
        usize::from(self.start)..usize::from(self.end)
    }

    /// From where this one begins to where the other one ends.
    pub(super) fn to(self, other: Self) -> Self {
        Self { start: self.start, end: other.end.max(self.end) }
    }
}
