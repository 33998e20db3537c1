//! How much an expression may do.
//!
//! Work is counted, not timed, so that the same expression on the same object always has the same result. A unit is about
//! one part of an expression evaluated once, one item of a list looked at, or sixteen bytes of text written.

use regex::Regex;

use super::error::EvaluationError;

/// The work that is left to expressions. One budget may be used for several of them.
#[derive(Debug)]
pub struct Budget {
    left: usize,
    nested: usize,
    /// Regular expressions that are not written as literals, so that a loop compiles them once.
    patterns: Vec<(Box<str>, Regex)>,
}

/// How many regular expressions are remembered.
const MAXIMUM_PATTERNS: usize = 8;

/// How deep expressions may evaluate others through variables.
const MAXIMUM_NESTED: usize = 24;

impl Budget {
    /// The units that one expression may use, with all variables that it reads for the first time: a few milliseconds.
    pub const EXPRESSION: usize = 100_000;

    /// The units that one profile may use on one object, all its expressions together.
    pub(crate) const PROFILE: usize = 4 * Self::EXPRESSION;

    /// The bytes of text that count as one unit.
    pub(crate) const BYTES: usize = 16;

    /// A budget for one expression.
    #[must_use]
    pub const fn new() -> Self {
        Self::of(Self::EXPRESSION)
    }

    /// A budget of so many units.
    #[must_use]
    pub const fn of(units: usize) -> Self {
        Self { left: units, nested: 0, patterns: Vec::new() }
    }

    /// The units that are left.
    #[must_use]
    pub const fn left(&self) -> usize {
        self.left
    }

    pub(super) fn charge(&mut self, units: usize) -> Result<(), EvaluationError> {
        let left = self.left.checked_sub(units);
        self.left = left.unwrap_or(0);
        if left.is_some() { Ok(()) } else { Err(too_much()) }
    }

    pub(crate) fn charge_bytes(&mut self, bytes: usize) -> Result<(), EvaluationError> {
        self.charge(bytes / Self::BYTES)
    }

    pub(super) fn pattern(&self, text: &str) -> Option<Regex> {
        self.patterns.iter().find(|(pattern, _)| **pattern == *text).map(|(_, regex)| regex.clone())
    }

    pub(super) fn remember(&mut self, text: &str, regex: &Regex) {
        if self.patterns.len() < MAXIMUM_PATTERNS {
            self.patterns.push((text.into(), regex.clone()));
        }
    }

    pub(super) fn enter(&mut self) -> Result<(), EvaluationError> {
        self.nested += 1;
        if self.nested > MAXIMUM_NESTED {
            return Err(EvaluationError::exhausted(format!(
                "variables refer to one another more than {MAXIMUM_NESTED} deep"
            )));
        }
        Ok(())
    }

    pub(super) fn leave(&mut self) {
        self.nested = self.nested.saturating_sub(1);
    }
}

impl Default for Budget {
    fn default() -> Self {
        Self::new()
    }
}

#[cold]
fn too_much() -> EvaluationError {
    EvaluationError::exhausted("the expression does too much work and was ended")
        .with_help("go over smaller lists, or over one list instead of every pair of two")
}
