//! The meter limits the steps, memory, depth and time that expressions use.
//!
//! Everything that computes needs a meter: loops, patterns, and the builders in [`value`](super::value). A resource is
//! charged before it is used, or directly afterwards if the amount is not known earlier. If the computation fails, the
//! charge remains. The meter counts steps instead of time, so an expression has the same result each time for the same
//! object. The deadline is a last resort.
//!
//! One step is approximately one evaluated node, one processed item, or sixteen written bytes. A test limits the CPU
//! time of a step to 60 ns.

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
    /// If fewer steps than this remain, [`Meter::charge`] reads the clock or fails.
    clock_at: usize,
    /// The limit that was reached. All later charges of steps fail.
    reached: Option<Limit>,
    /// The pool that receives the unused budget when the meter is dropped.
    allowance: Option<Allowance>,
    /// Compiled patterns that are not literals, cached so that a loop compiles each of them once.
    patterns: Vec<(Box<str>, Pattern)>,
}

/// The budgets of one request. For each [`Purpose`], there is one budget for all cluster profiles and one for all
/// profiles of the namespace. So a tenant with a hundred expensive profiles gets the same budget as a tenant with one.
/// It cannot use up the budget of cluster profiles.
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

/// The pool from which the budget of a meter was taken.
#[derive(Debug)]
struct Allowance {
    pools: Rc<[Pool; 4]>,
    index: usize,
}

/// The owner of the profile that uses a meter.
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
    /// To decide what a profile does.
    Decide,
    /// To recognize what the profile did in an earlier call of the webhook for the same object. This purpose has a
    /// separate budget. So if the budget was sufficient to apply a profile, it is sufficient to recognize its changes.
    Recognize,
}

impl Allowances {
    /// The number of steps that all profiles of one owner may use for one request and purpose.
    pub const STEPS: usize = Meter::PROFILE;

    /// Creates the budgets for a request with this deadline.
    #[must_use]
    pub fn until(deadline: Option<Instant>) -> Self {
        let pool = || Pool { steps: Cell::new(Self::STEPS), memory: Cell::new(Meter::MEMORY) };
        Self { pools: Rc::new([pool(), pool(), pool(), pool()]), deadline }
    }

    /// Creates a meter with at most this number of steps. When it is dropped, its unused budget returns to the pool.
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
    /// More steps were needed than the budget allows.
    Steps,
    /// More memory was needed than the budget allows.
    Memory,
    /// Values or variables are nested too deeply.
    Depth,
    /// The deadline of the request has passed.
    Time,
}

/// The maximum number of cached patterns.
const MAXIMUM_PATTERNS: usize = 8;

/// The maximum depth of variables that read other variables.
const MAXIMUM_NESTED: usize = 24;

/// The maximum depth of computed values. The parsers limit the depth of values from JSON. With both limits, recursion
/// over a value does not exhaust the stack of a thread.
pub(crate) const MAXIMUM_VALUE_DEPTH: u8 = 64;

/// The number of steps between two reads of the clock. These steps take about a millisecond at most.
const CLOCK_INTERVAL: usize = 20_000;

/// The number of steps for creating an error that does not end the evaluation.
const ERROR: usize = 20;

impl Meter {
    /// The number of steps that one expression may use. They include the steps for variables that no earlier expression
    /// has read.
    pub const EXPRESSION: usize = 100_000;

    /// The number of steps that all expressions of a profile together may use for one object.
    pub const PROFILE: usize = 4 * Self::EXPRESSION;

    /// The number of bytes of a string that cost one step.
    pub const BYTES: usize = 16;

    /// The number of bytes of memory that one meter allows in total. Freeing memory does not reduce the count.
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

    /// Sets the deadline. Charges fail after the deadline, with a delay of at most 20,000 steps. `None` sets no
    /// deadline.
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
    /// This or an earlier charge reached a limit.
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

    /// Charges the steps for reading or writing a number of bytes.
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

    /// Charges only memory. The caller charges the steps for writing to it.
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
                "a string of {bytes} bytes is longer than {} KiB",
                MAXIMUM_RESULT / 1024
            )));
        }
        self.charge(1)?;
        self.charge_memory(bytes)
    }

    /// Charges the steps for sorting `count` values, whose strings have at most `longest` bytes.
    pub(crate) fn charge_sort(&mut self, count: usize, longest: usize) -> Result<(), EvaluationError> {
        let comparisons = count.saturating_mul(usize::BITS.saturating_sub(count.leading_zeros()) as usize);
        self.charge(comparisons.saturating_mul(1 + longest / 64))
    }

    /// Checks the nesting of a new value that contains a value of depth `inner`. Returns the depth of the new value.
    pub(crate) fn charge_depth(&mut self, inner: u8) -> Result<u8, EvaluationError> {
        match inner.checked_add(1) {
            Some(depth) if depth <= MAXIMUM_VALUE_DEPTH => Ok(depth),
            _ => Err(self.reach(Limit::Depth)),
        }
    }

    /// Charges the steps for an error that does not end the evaluation, and returns that error. Fails if the error is
    /// about a reached limit, because that ends the evaluation.
    pub(crate) fn absorb(&mut self, error: EvaluationError) -> Result<EvaluationError, EvaluationError> {
        if error.is_exhausted() {
            return Err(error);
        }
        self.charge(ERROR)?;
        Ok(error)
    }

    /// Returns the compiled pattern for this source. `None` if it is not cached.
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
