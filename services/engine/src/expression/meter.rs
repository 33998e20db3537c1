//! The meter grants the steps, memory, depth and time that expressions use.
//!
//! Every computation needs a meter. The builders in [`value`](super::value) create computed values with it, patterns
//! are compiled and loops are entered with it. Each charges the meter before it uses a resource, whether it then
//! succeeds or fails. Steps are counted, not timed, so an expression on the same object always has the same result. The
//! deadline is a last resort.
//!
//! A step is about one evaluated node, one visited item, or sixteen written bytes of text: at most 25 ns of CPU time.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Instant;

use super::MAXIMUM_RESULT;
use super::error::EvaluationError;
use super::pattern::Pattern;

/// What expressions may still use. One meter may serve several of them.
#[derive(Debug)]
pub struct Meter {
    steps: usize,
    memory: usize,
    nested: usize,
    deadline: Option<Instant>,
    /// Below this number of steps left, [`Meter::charge`] has more to do than to count: to read the clock, or to
    /// refuse.
    clock_at: usize,
    /// The limit that was reached. Nothing is granted afterwards.
    reached: Option<Limit>,
    /// Where the rest goes back to.
    allowance: Option<Allowance>,
    /// Patterns that are not literals, so that a loop compiles them once.
    patterns: Vec<(Box<str>, Pattern)>,
}

/// What all profiles may use on one request: those of the platform together, and those of the namespace together. A
/// tenant who writes a hundred expensive profiles gets no more than one who writes a single one, and takes nothing from
/// the platform's.
#[derive(Clone, Debug)]
pub(crate) struct Allowances {
    pools: Rc<[Pool; 4]>,
    deadline: Option<Instant>,
}

#[derive(Debug)]
struct Pool {
    steps: Cell<usize>,
    memory: Cell<usize>,
}

/// The pool of which a meter was granted its part.
#[derive(Debug)]
struct Allowance {
    pools: Rc<[Pool; 4]>,
    place: usize,
}

/// Whose profile a meter is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Owner {
    /// A cluster profile.
    Platform,
    /// A profile of the object's namespace.
    Namespace,
}

/// What a meter is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// To decide what a profile does.
    Decide,
    /// To find out what it did in an earlier pass. It has an allowance of its own: a profile that could be applied can
    /// also be recognized.
    Recognize,
}

impl Allowances {
    /// Steps that the profiles of one owner may use on one request, for each purpose.
    pub(crate) const STEPS: usize = Meter::PROFILE;

    /// Allowances for a request that has to be answered at this time.
    pub(crate) fn until(deadline: Option<Instant>) -> Self {
        let pool = || Pool { steps: Cell::new(Self::STEPS), memory: Cell::new(Meter::MEMORY) };
        Self { pools: Rc::new([pool(), pool(), pool(), pool()]), deadline }
    }

    /// A meter for at most this number of steps. What is left of it when it is dropped goes back.
    pub(crate) fn meter(&self, owner: Owner, purpose: Purpose, steps: usize) -> Meter {
        let place = 2 * owner as usize + purpose as usize;
        let mut meter = Meter::of(steps);
        if let Some(pool) = self.pools.get(place) {
            meter.steps = steps.min(pool.steps.get());
            meter.memory = pool.memory.replace(0);
            pool.steps.set(pool.steps.get() - meter.steps);
        }
        meter.allowance = Some(Allowance { pools: Rc::clone(&self.pools), place });
        meter.until(self.deadline)
    }
}

impl Drop for Meter {
    fn drop(&mut self) {
        let Some(Allowance { pools, place }) = self.allowance.take() else { return };
        if let Some(pool) = pools.get(place) {
            pool.steps.set(pool.steps.get() + self.steps);
            pool.memory.set(pool.memory.get() + self.memory);
        }
    }
}

/// A limit that ended an evaluation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Limit {
    /// More steps than were granted.
    Steps,
    /// More memory than was granted.
    Memory,
    /// Values or variables that nest deeper than allowed.
    Depth,
    /// The request has to be answered.
    Time,
}

/// Patterns that are remembered.
const MAXIMUM_PATTERNS: usize = 8;

/// How deep expressions may evaluate others through variables.
const MAXIMUM_NESTED: usize = 24;

/// How deep computed values may nest. Values that were parsed from JSON nest no deeper than the parsers allow, so that
/// no walk over a value needs more stack than a request's thread has.
pub(super) const MAXIMUM_VALUE_DEPTH: u8 = 64;

/// Steps between two readings of the clock: less than a millisecond.
const CLOCK_INTERVAL: usize = 20_000;

/// Steps for an error that the evaluation goes on after: making its message takes this long.
const ERROR: usize = 20;

impl Meter {
    /// Steps that one expression may use, with all variables that it reads for the first time.
    pub const EXPRESSION: usize = 100_000;

    /// Steps that one profile may use on one object, all its expressions together.
    pub(crate) const PROFILE: usize = 4 * Self::EXPRESSION;

    /// Bytes of text that take one step.
    pub(crate) const BYTES: usize = 16;

    /// Bytes of memory that one meter grants, whether they are freed before its end or not.
    pub const MEMORY: usize = 8 << 20;

    /// A meter for one expression.
    #[must_use]
    pub const fn new() -> Self {
        Self::of(Self::EXPRESSION)
    }

    /// A meter that grants this number of steps.
    #[must_use]
    pub const fn of(steps: usize) -> Self {
        Self {
            steps,
            memory: Self::MEMORY,
            nested: 0,
            deadline: None,
            clock_at: 0,
            reached: None,
            allowance: None,
            patterns: Vec::new(),
        }
    }

    /// Grants nothing after this time.
    #[must_use]
    pub fn until(mut self, deadline: Option<Instant>) -> Self {
        self.deadline = deadline;
        self.clock_at = if deadline.is_some() { self.steps.saturating_sub(CLOCK_INTERVAL) } else { 0 };
        self
    }

    /// Steps that are left.
    #[must_use]
    pub const fn left(&self) -> usize {
        self.steps
    }

    /// Bytes of memory that are left.
    #[must_use]
    pub const fn memory_left(&self) -> usize {
        self.memory
    }

    /// The limit that was reached, if one was.
    #[must_use]
    pub const fn reached(&self) -> Option<Limit> {
        self.reached
    }

    /// Grants steps.
    ///
    /// # Errors
    /// A limit is reached, now or before.
    #[inline]
    pub(crate) fn charge(&mut self, steps: usize) -> Result<(), EvaluationError> {
        match self.steps.checked_sub(steps) {
            Some(left) if left >= self.clock_at => {
                self.steps = left;
                Ok(())
            }
            left => self.charge_slowly(left),
        }
    }

    #[cold]
    fn charge_slowly(&mut self, left: Option<usize>) -> Result<(), EvaluationError> {
        if let Some(limit) = self.reached {
            return Err(limit.error());
        }
        self.steps = left.unwrap_or(0);
        if left.is_none() {
            return Err(self.reach(Limit::Steps));
        }
        if self.deadline.is_some_and(|deadline| Instant::now() >= deadline) {
            return Err(self.reach(Limit::Time));
        }
        self.clock_at = self.steps.saturating_sub(CLOCK_INTERVAL);
        Ok(())
    }

    /// Grants the steps for reading or writing this number of bytes.
    pub(crate) fn charge_bytes(&mut self, bytes: usize) -> Result<(), EvaluationError> {
        self.charge(bytes / Self::BYTES)
    }

    /// Grants memory, and the steps for writing to it.
    pub(crate) fn charge_memory(&mut self, bytes: usize) -> Result<(), EvaluationError> {
        self.charge(bytes / Self::BYTES)?;
        self.take_memory(bytes)
    }

    /// Grants memory whose steps are charged otherwise.
    pub(super) fn take_memory(&mut self, bytes: usize) -> Result<(), EvaluationError> {
        match self.memory.checked_sub(bytes) {
            Some(left) => {
                self.memory = left;
                Ok(())
            }
            None => Err(self.reach(Limit::Memory)),
        }
    }

    /// Grants a text of this length, which [`MAXIMUM_RESULT`] bounds.
    pub(super) fn charge_text(&mut self, bytes: usize) -> Result<(), EvaluationError> {
        if bytes > MAXIMUM_RESULT {
            self.charge(ERROR)?;
            return Err(EvaluationError::new(format!(
                "a text of {bytes} bytes is longer than {} KiB",
                MAXIMUM_RESULT / 1024
            )));
        }
        self.charge(1)?;
        self.charge_memory(bytes)
    }

    /// Grants sorting this number of values, whose texts have at most this number of bytes.
    pub(super) fn charge_sort(&mut self, count: usize, longest: usize) -> Result<(), EvaluationError> {
        let comparisons = count.saturating_mul(usize::BITS.saturating_sub(count.leading_zeros()) as usize);
        self.charge(comparisons.saturating_mul(1 + longest / 64))
    }

    /// Grants a level of nesting below values of this depth; returns the depth of the value around them.
    pub(super) fn charge_depth(&mut self, within: u8) -> Result<u8, EvaluationError> {
        match within.checked_add(1) {
            Some(depth) if depth <= MAXIMUM_VALUE_DEPTH => Ok(depth),
            _ => Err(self.reach(Limit::Depth)),
        }
    }

    /// Grants going on after an error. No limit that was reached is gone on after.
    pub(super) fn go_on_after(&mut self, error: EvaluationError) -> Result<EvaluationError, EvaluationError> {
        if error.is_exhausted() {
            return Err(error);
        }
        self.charge(ERROR)?;
        Ok(error)
    }

    /// The compiled form of a pattern that was compiled before.
    pub(super) fn pattern(&self, text: &str) -> Option<Pattern> {
        self.patterns.iter().find(|(pattern, _)| **pattern == *text).map(|(_, compiled)| compiled.clone())
    }

    pub(super) fn remember(&mut self, text: &str, pattern: &Pattern) {
        if self.patterns.len() < MAXIMUM_PATTERNS {
            self.patterns.push((text.into(), pattern.clone()));
        }
    }

    pub(super) fn enter(&mut self) -> Result<(), EvaluationError> {
        self.nested += 1;
        if self.nested > MAXIMUM_NESTED {
            self.reach(Limit::Depth);
            return Err(EvaluationError::exhausted(format!(
                "variables refer to one another more than {MAXIMUM_NESTED} deep"
            )));
        }
        self.charge(1)
    }

    pub(super) fn leave(&mut self) {
        self.nested = self.nested.saturating_sub(1);
    }

    #[cold]
    fn reach(&mut self, limit: Limit) -> EvaluationError {
        self.reached = Some(limit);
        self.clock_at = usize::MAX;
        limit.error()
    }
}

impl Default for Meter {
    fn default() -> Self {
        Self::new()
    }
}

impl Limit {
    fn error(self) -> EvaluationError {
        let (message, help) = match self {
            Self::Steps => (
                "the expression does too much work and was ended".to_owned(),
                "loop over smaller lists, or over one list instead of every pair of two",
            ),
            Self::Memory => (
                format!("the expression uses more than {} MiB of memory and was ended", Meter::MEMORY >> 20),
                "build smaller lists and texts, and read only the fields that are needed",
            ),
            Self::Depth => {
                (format!("a value nests more than {MAXIMUM_VALUE_DEPTH} levels deep"), "build flat lists and maps")
            }
            Self::Time => {
                ("the request has to be answered before the expression ends".to_owned(), "loop over smaller lists")
            }
        };
        EvaluationError::exhausted(message).with_help(help)
    }
}
