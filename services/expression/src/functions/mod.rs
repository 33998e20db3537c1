//! The table of functions, and how they are called.

pub(super) mod collections;
mod kubernetes;
pub(super) mod numbers;
mod regex;
mod strings;

use super::error::EvaluationError;
use super::meter::Meter;
use super::pattern::Pattern;
use super::value::{Items, Key, Text, TextBuilder, Value};

/// A function of the language. Its signature determines the name and the number of arguments.
#[derive(Debug)]
pub(super) struct Function {
    pub(super) name: &'static str,
    pub(super) style: Style,
    /// The minimum and the maximum number of arguments, including the receiver.
    minimum: usize,
    maximum: usize,
    /// The notation of a call, for messages and documentation, such as `text.split(separator, limit)`.
    pub(super) signature: &'static str,
    pub(super) run: Run,
    /// The index of the argument that is a regular expression, if there is one.
    pub(super) pattern: Option<usize>,
    pub(super) native: Native,
}

/// The syntax of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Style {
    /// `f(x)`.
    Global,
    /// `x.f()`.
    Member,
}

/// Whether Kubernetes' admission policies have the same function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Native {
    No,
    Yes,
    /// The API server's function does not support quantities.
    ExceptQuantities,
}

/// The maximum number of arguments of a function whose signature ends in `...`.
const MANY: usize = 16;

type Run = for<'a, 'v> fn(&mut Call<'a, 'v>) -> Evaluated<'v>;

type Evaluated<'v> = Result<Value<'v>, EvaluationError>;

/// A function call: its arguments and its context.
pub(super) struct Call<'a, 'v> {
    pub(super) function: &'static Function,
    pub(super) arguments: &'a [Value<'v>],
    /// The compiled regular expression, if the argument that contains it is a literal.
    pub(super) pattern: Option<&'a Pattern>,
    pub(super) seed: &'a str,
    pub(super) meter: &'a mut Meter,
}

/// The tables of functions, one for each subject.
static FUNCTIONS: [&[Function]; 5] =
    [strings::FUNCTIONS, regex::FUNCTIONS, numbers::FUNCTIONS, collections::FUNCTIONS, kubernetes::FUNCTIONS];

/// Returns all functions.
pub(super) fn all() -> impl Iterator<Item = &'static Function> {
    FUNCTIONS.iter().flat_map(|group| group.iter())
}

/// Returns the functions with this name.
pub(super) fn named(name: &str) -> impl Iterator<Item = &'static Function> {
    all().filter(move |function| function.name == name)
}

/// Whether there is a function whose name begins with this name and a dot.
pub(super) fn is_library(name: &str) -> bool {
    all().any(|function| function.name.split_once('.').is_some_and(|(library, _)| library == name))
}

/// Returns the signatures of all functions, for documentation and completion, such as `text.split(separator, limit)`.
pub fn signatures() -> impl Iterator<Item = &'static str> {
    all().map(|function| function.signature)
}

impl Function {
    pub(super) fn takes(&self, arguments: usize) -> bool {
        (self.minimum..=self.maximum).contains(&arguments)
    }

    /// Creates a function from its signature. In the signature of a member function, a dot separates the receiver from
    /// the name.
    const fn new(style: Style, signature: &'static str, run: Run) -> Self {
        let name = name_in(style, signature);
        let (named, is_open) = parameters_in(signature);
        let receiver = if matches!(style, Style::Member) { 1 } else { 0 };
        let (minimum, maximum) = (named + receiver, if is_open { MANY } else { named + receiver });
        Self { name, style, minimum, maximum, signature, run, pattern: None, native: Native::No }
    }

    /// Allows calls without the last argument.
    const fn with_optional_last(mut self) -> Self {
        self.minimum -= 1;
        self
    }

    const fn with_pattern(mut self, argument: usize) -> Self {
        self.pattern = Some(argument);
        self
    }

    const fn native(mut self) -> Self {
        self.native = Native::Yes;
        self
    }

    const fn native_except_quantities(mut self) -> Self {
        self.native = Native::ExceptQuantities;
        self
    }
}

/// Defines a function that is called as `f(x)`.
const fn global(signature: &'static str, run: Run) -> Function {
    Function::new(Style::Global, signature, run)
}

/// Defines a function that is called as `x.f()`.
const fn member(signature: &'static str, run: Run) -> Function {
    Function::new(Style::Member, signature, run)
}

/// Returns the function name in a signature. The names of global functions may contain dots.
const fn name_in(style: Style, signature: &'static str) -> &'static str {
    let (mut start, mut end, mut rest) = (0, 0, signature.as_bytes());
    while let [byte, tail @ ..] = rest {
        match *byte {
            b'(' => break,
            b'.' if matches!(style, Style::Member) => start = end + 1,
            _ => {}
        }
        end += 1;
        rest = tail;
    }
    signature.split_at(end).0.split_at(start).1
}

/// Returns the number of named parameters in a signature, and whether further arguments are allowed.
const fn parameters_in(signature: &str) -> (usize, bool) {
    let (mut count, mut rest) = (0, signature.as_bytes());
    let mut within = false;
    while let [byte, tail @ ..] = rest {
        match *byte {
            b'(' => {
                within = true;
                count = if matches!(tail, [b')', ..]) { 0 } else { 1 };
            }
            b',' => count += 1,
            // Three dots mean that further arguments are allowed, up to `MANY` in total.
            b'.' if within => return (count - 1, true),
            _ => {}
        }
        rest = tail;
    }
    (count, false)
}

impl<'a, 'v> Call<'a, 'v> {
    fn has_argument(&self, index: usize) -> bool {
        index < self.arguments.len()
    }

    fn value(&self, index: usize) -> &'a Value<'v> {
        // The compiler has checked the number of arguments.
        self.arguments.get(index).unwrap_or(&Value::Null)
    }

    fn text(&mut self, index: usize) -> Result<&'a Text<'v>, EvaluationError> {
        match self.value(index) {
            Value::String(text) => {
                // The caller reads the whole string.
                self.meter.charge(text.len() / 64)?;
                Ok(text)
            }
            _ => Err(self.type_error(index, "a string")),
        }
    }

    fn int(&self, index: usize) -> Result<i64, EvaluationError> {
        match self.value(index) {
            Value::Int(number) => Ok(*number),
            Value::UInt(number) => i64::try_from(*number).map_err(|_| self.type_error(index, "an int")),
            _ => Err(self.type_error(index, "an int")),
        }
    }

    /// Returns an argument that is a number of items or characters.
    fn size(&self, index: usize) -> Result<usize, EvaluationError> {
        let number = self.int(index)?;
        usize::try_from(number).map_err(|_| self.error(format!("{number} is negative")))
    }

    /// Returns an optional argument that is a maximum. If it is absent or negative, there is no maximum.
    fn limit(&self, index: usize) -> Result<usize, EvaluationError> {
        if !self.has_argument(index) {
            return Ok(usize::MAX);
        }
        Ok(usize::try_from(self.int(index)?).unwrap_or(usize::MAX))
    }

    fn list(&mut self, index: usize) -> Result<Items<'v>, EvaluationError> {
        let items = self.value(index).items(self.meter)?;
        items.ok_or_else(|| self.type_error(index, "a list"))
    }

    fn map(&mut self, index: usize) -> Result<Vec<(Key<'v>, Value<'v>)>, EvaluationError> {
        let entries = self.value(index).entries(self.meter)?;
        entries.ok_or_else(|| self.type_error(index, "a map"))
    }

    /// Returns an argument that is a list of strings.
    fn texts(&mut self, index: usize) -> Result<Vec<Text<'v>>, EvaluationError> {
        let items = self.list(index)?;
        self.meter.charge_items(items.len())?;
        items
            .iter()
            .map(|item| match item {
                Value::String(text) => Ok(text.clone()),
                _ => Err(self.error(format!("the list contains {} instead of a string", item.describe()))),
            })
            .collect()
    }

    /// Creates the error for an argument of the wrong type.
    #[cold]
    fn type_error(&self, index: usize, wanted: &str) -> EvaluationError {
        let value = self.value(index);
        let found = value.describe();
        let name = self.function.name;
        let error = EvaluationError::new(match (self.function.style, index) {
            (Style::Member, 0) => format!("`{name}` is called on {wanted}, not on {found}"),
            (Style::Member, _) => format!("argument {index} of `{name}` must be {wanted}, but is {found}"),
            (Style::Global, _) => format!("argument {} of `{name}` must be {wanted}, but is {found}", index + 1),
        });
        let error = match value {
            Value::Optional(_) => error.with_help("provide a default for an absent value: .orValue(...)"),
            _ => error,
        };
        error.with_signature(self.function.signature)
    }

    #[cold]
    fn error(&self, message: impl std::fmt::Display) -> EvaluationError {
        EvaluationError::new(format!("`{}`: {message}", self.function.name))
    }

    /// Creates a string of at most this number of bytes. Charges the meter before `write` writes the string.
    fn build_text(&mut self, bytes: usize, write: impl FnOnce(&mut TextBuilder) -> std::fmt::Result) -> Evaluated<'v> {
        let mut text = TextBuilder::with_capacity(bytes, self.meter)?;
        write(&mut text).map_err(|_| self.error("the string is longer than expected"))?;
        text.finish(self.meter)
    }

    /// Copies a string into a value.
    fn short_text(&mut self, text: &str) -> Evaluated<'v> {
        Value::owned(text, self.meter)
    }
}

impl EvaluationError {
    /// Adds the signature of the function as help, unless the error already has help.
    fn with_signature(self, signature: &str) -> Self {
        if self.help().is_some() { self } else { self.with_help(format!("use {signature}")) }
    }
}

/// Returns a part of a string. If the string is borrowed, so is the part.
///
/// # Errors
/// The string is computed, so the part must be copied, and the meter's budget is too small for that.
fn part<'v>(text: &Text<'v>, range: std::ops::Range<usize>, meter: &mut Meter) -> Result<Text<'v>, EvaluationError> {
    match text {
        Text::Borrowed(text) => Ok(Text::Borrowed(text.get(range).unwrap_or_default())),
        Text::Shared(_) => Text::owned(text.get(range).unwrap_or_default(), meter),
    }
}

/// Returns the range of a substring in the string that contains it.
fn range_in(text: &str, inner: &str) -> std::ops::Range<usize> {
    let start = (inner.as_ptr() as usize).saturating_sub(text.as_ptr() as usize);
    start..start + inner.len()
}

/// Returns `inner`, which must be a slice of `text`, as a value.
///
/// # Errors
/// Like [`part`].
fn part_of<'v>(text: &Text<'v>, inner: &str, meter: &mut Meter) -> Evaluated<'v> {
    Ok(Value::String(part(text, range_in(text, inner), meter)?))
}

/// Truncates a string to 60 characters, for messages.
pub(super) fn truncated(text: &str) -> &str {
    text.char_indices().nth(60).map_or(text, |(end, _)| text.get(..end).unwrap_or_default())
}

/// Converts a count to a value.
fn count<'v>(number: usize) -> Value<'v> {
    Value::Int(i64::try_from(number).unwrap_or(i64::MAX))
}
