//! The table of functions, and how they are called.

pub(super) mod duration;
mod conversions;
mod encoding;
pub(super) mod lists;
mod maps;
mod math;
mod names;
mod optionals;
mod patch;
mod pods;
mod quantity;
mod regex;
mod strings;

use super::error::EvaluationError;
use super::meter::Meter;
use super::pattern::Pattern;
use super::value::{Items, Key, Text, TextBuilder, Value};

/// A function that expressions may call.
#[derive(Debug)]
pub(super) struct Function {
    pub(super) name: &'static str,
    pub(super) style: Style,
    /// How many arguments it takes, with what it is called on.
    minimum: usize,
    maximum: usize,
    /// How it is called, for people.
    pub(super) signature: &'static str,
    pub(super) run: Run,
    /// Which argument is a regular expression.
    pub(super) pattern: Option<usize>,
}

/// How a function is called.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Style {
    /// `f(x)`.
    Global,
    /// `x.f()`.
    Member,
}

type Run = for<'a, 'v> fn(&mut Call<'a, 'v>) -> Evaluated<'v>;

type Evaluated<'v> = Result<Value<'v>, EvaluationError>;

/// A call of a function: its arguments, and what else it may use.
pub(super) struct Call<'a, 'v> {
    pub(super) function: &'static Function,
    pub(super) arguments: &'a [Value<'v>],
    /// The regular expression, if it stood there as a literal.
    pub(super) pattern: Option<&'a Pattern>,
    pub(super) seed: &'a str,
    pub(super) meter: &'a mut Meter,
}

const GROUPS: [&[Function]; 13] = [
    conversions::FUNCTIONS,
    duration::FUNCTIONS,
    encoding::FUNCTIONS,
    lists::FUNCTIONS,
    maps::FUNCTIONS,
    math::FUNCTIONS,
    names::FUNCTIONS,
    optionals::FUNCTIONS,
    patch::FUNCTIONS,
    pods::FUNCTIONS,
    quantity::FUNCTIONS,
    regex::FUNCTIONS,
    strings::FUNCTIONS,
];

static ALL: [&[Function]; 13] = GROUPS;

/// All functions.
pub(super) fn all() -> impl Iterator<Item = &'static Function> {
    ALL.iter().flat_map(|group| group.iter())
}

/// The functions of a name.
pub(super) fn named(name: &str) -> impl Iterator<Item = &'static Function> {
    all().filter(move |function| function.name == name)
}

/// Whether functions have names that begin with this one and a dot.
pub(super) fn is_library(name: &str) -> bool {
    all().any(|function| function.name.split_once('.').is_some_and(|(library, _)| library == name))
}

/// How every function is called, for documents and completion: `text.split(separator)`.
pub fn signatures() -> impl Iterator<Item = &'static str> {
    all().map(|function| function.signature)
}

impl Function {
    pub(super) fn takes(&self, arguments: usize) -> bool {
        (self.minimum..=self.maximum).contains(&arguments)
    }

    const fn with_pattern(mut self, argument: usize) -> Self {
        self.pattern = Some(argument);
        self
    }
}

/// A function `f(x)` that takes from `minimum` to `maximum` arguments.
const fn global(name: &'static str, minimum: usize, maximum: usize, signature: &'static str, run: Run) -> Function {
    Function { name, style: Style::Global, minimum, maximum, signature, run, pattern: None }
}

/// A function `x.f()` that takes from `minimum` to `maximum` arguments besides `x`.
const fn member(name: &'static str, minimum: usize, maximum: usize, signature: &'static str, run: Run) -> Function {
    Function { name, style: Style::Member, minimum: minimum + 1, maximum: maximum + 1, signature, run, pattern: None }
}

impl<'a, 'v> Call<'a, 'v> {
    fn given(&self, place: usize) -> bool {
        place < self.arguments.len()
    }

    fn value(&self, place: usize) -> &'a Value<'v> {
        // The compiler has counted the arguments.
        self.arguments.get(place).unwrap_or(&Value::Null)
    }

    fn text(&mut self, place: usize) -> Result<&'a Text<'v>, EvaluationError> {
        match self.value(place) {
            Value::String(text) => {
                // Whatever is done with it, it is read.
                self.meter.charge(text.len() / 64)?;
                Ok(text)
            }
            _ => Err(self.wrong(place, "a string")),
        }
    }

    fn int(&self, place: usize) -> Result<i64, EvaluationError> {
        match self.value(place) {
            Value::Int(number) => Ok(*number),
            Value::UInt(number) => i64::try_from(*number).map_err(|_| self.wrong(place, "an int")),
            _ => Err(self.wrong(place, "an int")),
        }
    }

    /// A number of items or characters.
    fn size(&self, place: usize) -> Result<usize, EvaluationError> {
        let number = self.int(place)?;
        usize::try_from(number).map_err(|_| self.error(format!("{number} is negative")))
    }

    fn list(&mut self, place: usize) -> Result<Items<'v>, EvaluationError> {
        let items = self.value(place).items(self.meter)?;
        items.ok_or_else(|| self.wrong(place, "a list"))
    }

    fn map(&mut self, place: usize) -> Result<Vec<(Key<'v>, Value<'v>)>, EvaluationError> {
        let entries = self.value(place).entries(self.meter)?;
        entries.ok_or_else(|| self.wrong(place, "a map"))
    }

    /// A list of texts.
    fn texts(&mut self, place: usize) -> Result<Vec<Text<'v>>, EvaluationError> {
        let items = self.list(place)?;
        self.meter.charge_items(items.len())?;
        items
            .iter()
            .map(|item| match item {
                Value::String(text) => Ok(text.clone()),
                _ => Err(self.error(format!("the list has {} in it where a string is wanted", item.described()))),
            })
            .collect()
    }

    /// The error of an argument that is not of the kind that is wanted.
    #[cold]
    fn wrong(&self, place: usize, wanted: &str) -> EvaluationError {
        let value = self.value(place);
        let found = value.described();
        let name = self.function.name;
        let error = EvaluationError::new(match (self.function.style, place) {
            (Style::Member, 0) => format!("`{name}` is called on {wanted}, not on {found}"),
            (Style::Member, _) => format!("argument {place} of `{name}` has to be {wanted}, and is {found}"),
            (Style::Global, _) => format!("argument {} of `{name}` has to be {wanted}, and is {found}", place + 1),
        });
        let error = match value {
            Value::Optional(_) => error.with_help("say what counts if it is absent: .orValue(...)"),
            _ => error,
        };
        error.with_signature(self.function.signature)
    }

    #[cold]
    fn error(&self, message: impl std::fmt::Display) -> EvaluationError {
        EvaluationError::new(format!("`{}`: {message}", self.function.name))
    }

    /// A text that is no longer than this number of bytes, which are granted before it is written.
    fn written(&mut self, bytes: usize, write: impl FnOnce(&mut TextBuilder) -> std::fmt::Result) -> Evaluated<'v> {
        let mut text = TextBuilder::with_capacity(bytes, self.meter)?;
        write(&mut text).map_err(|_| self.error("the text is longer than it was said to be"))?;
        text.finish(self.meter)
    }

    /// A copy of a short text, such as a number's.
    fn short(&mut self, text: &str) -> Evaluated<'v> {
        Value::owned(text, self.meter)
    }
}

impl EvaluationError {
    /// Shows how the function is called, unless there is better help.
    fn with_signature(self, signature: &str) -> Self {
        if self.help().is_some() { self } else { self.with_help(format!("it is {signature}")) }
    }
}

/// A part of a text, which borrows what the text borrows.
///
/// # Errors
/// The meter does not grant the copy of a part of a text that was computed.
fn part<'v>(text: &Text<'v>, range: std::ops::Range<usize>, meter: &mut Meter) -> Result<Text<'v>, EvaluationError> {
    match text {
        Text::Borrowed(text) => Ok(Text::Borrowed(text.get(range).unwrap_or_default())),
        Text::Shared(_) => Text::owned(text.get(range).unwrap_or_default(), meter),
    }
}

/// The range of a part in the text that it was taken from.
fn range_in(text: &str, inner: &str) -> std::ops::Range<usize> {
    let start = (inner.as_ptr() as usize).saturating_sub(text.as_ptr() as usize);
    start..start + inner.len()
}

/// A part of a text as a value.
///
/// # Errors
/// As [`part`].
fn part_of<'v>(text: &Text<'v>, inner: &str, meter: &mut Meter) -> Evaluated<'v> {
    Ok(Value::String(part(text, range_in(text, inner), meter)?))
}

/// The beginning of a text, short enough for a message.
pub(super) fn shown(text: &str) -> &str {
    text.char_indices().nth(60).map_or(text, |(end, _)| text.get(..end).unwrap_or_default())
}

/// A number of things as a value.
fn count<'v>(number: usize) -> Value<'v> {
    Value::Int(i64::try_from(number).unwrap_or(i64::MAX))
}
