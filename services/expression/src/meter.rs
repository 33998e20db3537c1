//! The meter grants the steps, memory, depth and time that expressions use.
//!
//! Every computation needs a meter: loops, patterns, and the builders in [`value`](super::value). Each computation
//! charges the meter before it uses a resource, even if it then fails. The meter counts steps instead of time, so an
//! expression has the same result each time for the same object. The deadline is a last resort.
//!
//! A step is about one evaluated node, one visited item, or sixteen written bytes: at most 25 ns of CPU time.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Instant;

use super::MAXIMUM_RESULT;
use super::error::EvaluationError;
use super::pattern::Pattern;

/// The remaining budget of expressions. Several expressions may share one meter.
#[derive(Debug)]
pub struct Meter {
    steps: usize,
    memory: usize,
    nested: usize,
    deadline: Option<Instant>,
    /// If fewer steps than this remain, [`Meter::charge`] reads the clock or rejects the charge.
    clock_at: usize,
    /// The limit that was reached. All later charges are rejected.
    reached: Option<Limit>,
    /// The pool that receives the unused budget when the meter is dropped.
    allowance: Option<Allowance>,
    /// Compiled patterns that are not literals, so that a loop compiles them once.
    patterns: Vec<(Box<str>, Pattern)>,
}

/// The budgets of one request: for each [`Purpose`], one for all cluster profiles and one for all profiles of the
/// namespace. A tenant with a hundred expensive profiles gets no more than a tenant with one, and takes nothing from
/// the budget of cluster profiles.
#[derive(Clone, Debug)]
pub struct Allowances {
    pools: Rc<[Pool; 4]>,
    deadline: Option<Instant>,
}

#[derive(Debug)]
struct Pool {
    steps: Cell<usize>,
    memory: Cell<usize>,
}

/// The pool that a meter's budget was taken from.
#[derive(Debug)]
struct Allowance {
    pools: Rc<[Pool; 4]>,
    index: usize,
}

/// The owner of the profile that a meter is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Owner {
    /// A cluster profile.
    Platform,
    /// A profile of the object's namespace.
    Namespace,
}

/// The purpose of a meter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// Deciding what a profile does.
    Decide,
    /// Recognizing what the profile did in an earlier pass. The budget for this purpose is separate, so that every
    /// profile that could be applied can also be recognized.
    Recognize,
}

impl Allowances {
    /// The steps that the profiles of one owner may use on one request, for each purpose.
    pub const STEPS: usize = Meter::PROFILE;

    /// Creates the budgets of a request with this deadline.
    #[must_use]
    pub fn until(deadline: Option<Instant>) -> Self {
        let pool = || Pool { steps: Cell::new(Self::STEPS), memory: Cell::new(Meter::MEMORY) };
        Self { pools: Rc::new([pool(), pool(), pool(), pool()]), deadline }
    }

    /// Creates a meter for at most this number of steps. Dropping the meter returns its unused budget to the pool.
    #[must_use]
    pub fn meter(&self, owner: Owner, purpose: Purpose, steps: usize) -> Meter {
        let index = 2 * owner as usize + purpose as usize;
        let mut meter = Meter::of(steps);
        if let Some(pool) = self.pools.get(index) {
            meter.steps = steps.min(pool.steps.get());
            meter.memory = pool.memory.replace(0);
            pool.steps.set(pool.steps.get() - meter.steps);
        }
        meter.allowance = Some(Allowance { pools: Rc::clone(&self.pools), index });
        meter.until(self.deadline)
    }
}

impl Drop for Meter {
    fn drop(&mut self) {
        let Some(Allowance { pools, index }) = self.allowance.take() else { return };
        if let Some(pool) = pools.get(index) {
            pool.steps.set(pool.steps.get() + self.steps);
            pool.memory.set(pool.memory.get() + self.memory);
        }
    }
}

/// A limit that ended an evaluation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Limit {
    /// More steps than were granted.
    Steps,
    /// More memory than was granted.
    Memory,
    /// Values or variables that nest deeper than allowed.
    Depth,
    /// The deadline of the request has passed.
    Time,
}

/// The maximum number of cached patterns.
const MAXIMUM_PATTERNS: usize = 8;

/// The maximum depth of expressions that evaluate other expressions by reading variables.
const MAXIMUM_NESTED: usize = 24;

/// The maximum depth of computed values. The parsers bound the depth of values from JSON. So no recursion over a
/// value exhausts the stack of a request's thread.
pub(crate) const MAXIMUM_VALUE_DEPTH: u8 = 64;

/// Steps between two reads of the clock: less than a millisecond.
const CLOCK_INTERVAL: usize = 20_000;

/// Steps for creating the message of an error that does not end the evaluation.
const ERROR: usize = 20;

impl Meter {
    /// The steps that one expression may use, including the evaluation of variables that it is the first to read.
    pub const EXPRESSION: usize = 100_000;

    /// The steps that one profile may use on one object, for all its expressions together.
    pub const PROFILE: usize = 4 * Self::EXPRESSION;

    /// Bytes of a string that cost one step.
    pub const BYTES: usize = 16;

    /// Bytes of memory that one meter grants in total. Freed memory counts too.
    pub const MEMORY: usize = 8 << 20;

    /// Creates a meter for one expression.
    #[must_use]
    pub const fn new() -> Self {
        Self::of(Self::EXPRESSION)
    }

    /// Creates a meter with this number of steps.
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

    /// Sets the deadline after which charges are rejected; `None` for no deadline.
    #[must_use]
    pub fn until(mut self, deadline: Option<Instant>) -> Self {
        self.deadline = deadline;
        self.clock_at = if deadline.is_some() { self.steps.saturating_sub(CLOCK_INTERVAL) } else { 0 };
        self
    }

    /// Returns the remaining steps.
    #[must_use]
    #[inline]
    pub const fn left(&self) -> usize {
        self.steps
    }

    /// Returns the remaining bytes of memory.
    #[must_use]
    #[inline]
    pub const fn memory_left(&self) -> usize {
        self.memory
    }

    /// Charges steps.
    ///
    /// # Errors
    /// Fails if this or an earlier charge reached a limit.
    #[inline]
    pub fn charge(&mut self, steps: usize) -> Result<(), EvaluationError> {
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

    /// Charges the steps for reading or writing this number of bytes.
    #[inline]
    pub fn charge_bytes(&mut self, bytes: usize) -> Result<(), EvaluationError> {
        self.charge(bytes / Self::BYTES)
    }

    /// Charges memory, and the steps for writing to it.
    #[inline]
    pub(crate) fn charge_memory(&mut self, bytes: usize) -> Result<(), EvaluationError> {
        self.charge(bytes / Self::BYTES)?;
        self.take_memory(bytes)
    }

    /// Charges memory only. The caller charges the steps for writing to it.
    #[inline]
    pub(crate) fn take_memory(&mut self, bytes: usize) -> Result<(), EvaluationError> {
        match self.memory.checked_sub(bytes) {
            Some(left) => {
                self.memory = left;
                Ok(())
            }
            None => Err(self.reach(Limit::Memory)),
        }
    }

    /// Charges a string of this length. Fails if the string is longer than [`MAXIMUM_RESULT`].
    pub(crate) fn charge_text(&mut self, bytes: usize) -> Result<(), EvaluationError> {
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

    /// Charges sorting `count` values, whose strings have at most `longest` bytes.
    pub(crate) fn charge_sort(&mut self, count: usize, longest: usize) -> Result<(), EvaluationError> {
        let comparisons = count.saturating_mul(usize::BITS.saturating_sub(count.leading_zeros()) as usize);
        self.charge(comparisons.saturating_mul(1 + longest / 64))
    }

    /// Checks the nesting of a new value around values of depth `inner`, and returns the new value's depth.
    pub(crate) fn charge_depth(&mut self, inner: u8) -> Result<u8, EvaluationError> {
        match inner.checked_add(1) {
            Some(depth) if depth <= MAXIMUM_VALUE_DEPTH => Ok(depth),
            _ => Err(self.reach(Limit::Depth)),
        }
    }

    /// Charges an error that does not end the evaluation, and returns it. Fails with the error if it is about a reached
    /// limit, which does end the evaluation.
    pub(crate) fn absorb(&mut self, error: EvaluationError) -> Result<EvaluationError, EvaluationError> {
        if error.is_exhausted() {
            return Err(error);
        }
        self.charge(ERROR)?;
        Ok(error)
    }

    /// Returns the compiled form of a pattern; `None` if it is not cached.
    pub(crate) fn pattern(&self, text: &str) -> Option<Pattern> {
        self.patterns.iter().find(|(pattern, _)| **pattern == *text).map(|(_, compiled)| compiled.clone())
    }

    pub(crate) fn cache_pattern(&mut self, text: &str, pattern: &Pattern) {
        if self.patterns.len() < MAXIMUM_PATTERNS {
            self.patterns.push((text.into(), pattern.clone()));
        }
    }

    pub(crate) fn enter(&mut self) -> Result<(), EvaluationError> {
        self.nested += 1;
        if self.nested > MAXIMUM_NESTED {
            self.reach(Limit::Depth);
            return Err(EvaluationError::exhausted(format!(
                "the references between variables are nested more than {MAXIMUM_NESTED} levels deep"
            )));
        }
        self.charge(1)
    }

    pub(crate) fn leave(&mut self) {
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
                "the expression takes too many steps and was stopped".to_owned(),
                "loop over smaller lists, or over one list instead of all pairs of two lists",
            ),
            Self::Memory => (
                format!("the expression uses more than {} MiB of memory and was stopped", Meter::MEMORY >> 20),
                "build smaller lists and strings, and read only the fields that are needed",
            ),
            Self::Depth => {
                (format!("a value is nested more than {MAXIMUM_VALUE_DEPTH} levels deep"), "build flat lists and maps")
            }
            Self::Time => {
                ("the deadline of the request passed before the expression ended".to_owned(), "loop over smaller lists")
            }
        };
        EvaluationError::exhausted(message).with_help(help)
    }
}
