//! Converts results of expressions to JSON and to strings.

use std::borrow::Cow;

use serde_json::{Map, Number};

use super::error::EvaluationError;
use super::functions::numbers::duration_text;
use super::meter::Meter;
use super::quantity;
use super::value::{Value, whole};
use super::{MAXIMUM_RESULT, operators};
use pillion_json as json;

/// The result of an expression for a field or an element.
#[derive(Clone, Debug, PartialEq)]
pub enum Outcome {
    /// The value of the field or element.
    Value(serde_json::Value),
    /// An empty optional or null: the field or element is left out.
    Absent,
}

impl Value<'_> {
    /// Converts the value of a field or element. Leaves out nested empty optionals.
    ///
    /// # Errors
    /// The value cannot be represented in JSON: bytes, a type, or a double that is infinite or NaN. Or the value is
    /// larger than [`MAXIMUM_RESULT`], or the meter's budget is too small.
    pub fn to_outcome(&self, meter: &mut Meter) -> Result<Outcome, EvaluationError> {
        Ok(match self.to_json(meter)? {
            Some(serde_json::Value::Null) | None => Outcome::Absent,
            Some(value) => Outcome::Value(value),
        })
    }

    /// Converts the value to JSON. `None` for an empty optional.
    ///
    /// # Errors
    /// Like [`Value::to_outcome`].
    pub fn to_json(&self, meter: &mut Meter) -> Result<Option<serde_json::Value>, EvaluationError> {
        self.write_json(&mut Output { left: MAXIMUM_RESULT, meter })
    }

    /// Converts the value recursively. [`Meter::charge_depth`] and the JSON parsers limit the depth.
    fn write_json(&self, output: &mut Output<'_>) -> Result<Option<serde_json::Value>, EvaluationError> {
        output.take(SCALAR, VALUE)?;
        let value = match self {
            Self::Null => serde_json::Value::Null,
            Self::Bool(value) => (*value).into(),
            Self::Int(number) => (*number).into(),
            Self::UInt(number) => (*number).into(),
            Self::Double(number) => double(*number)?,
            Self::String(text) => {
                output.take(text.len(), text.len())?;
                (**text).into()
            }
            Self::Tape(value) => {
                output.take(value.raw().len(), value.raw().len())?;
                from_tape(*value, output.meter)?
            }
            Self::Json(value) => {
                output.take_json(value)?;
                (*value).clone()
            }
            Self::Duration(nanoseconds) => duration_text(*nanoseconds).into(),
            Self::Quantity(quantity) => quantity::to_text(quantity).into(),
            Self::Optional(None) => return Ok(None),
            Self::Optional(Some(present)) => return present.value().write_json(output),
            Self::Bytes(_) | Self::Type(_) => {
                let help = if matches!(self, Self::Bytes(_)) {
                    "use base64.encode(...) or string(...)"
                } else {
                    "use string(...)"
                };
                return Err(
                    EvaluationError::new(format!("{} cannot be a value in an object", self.describe())).with_help(help)
                );
            }
            Self::List(_) => {
                let mut list = Vec::new();
                for item in self.items(output.meter)?.iter().flat_map(|items| items.iter()) {
                    list.extend(item.write_json(output)?);
                }
                list.into()
            }
            Self::Map(_) | Self::Extended(_) => {
                let mut members = Map::new();
                for (key, value) in self.entries(output.meter)?.unwrap_or_default() {
                    let key = key.to_text();
                    output.take(key.len(), MEMBER + key.len())?;
                    if let Some(value) = value.write_json(output)? {
                        members.insert(key.into_owned(), value);
                    }
                }
                members.into()
            }
        };
        Ok(Some(value))
    }

    /// Converts the value to a condition.
    ///
    /// # Errors
    /// The value is not a bool.
    pub(crate) fn to_bool(&self) -> Result<bool, EvaluationError> {
        match self {
            Self::Bool(value) => Ok(*value),
            Self::Optional(_) => Err(EvaluationError::new(format!("the condition is {}, not a bool", self.describe()))
                .with_help("provide a default for an absent value: .orValue(false)")),
            _ => Err(EvaluationError::new(format!("the condition is {}, not a bool", self.describe()))
                .with_help("compare it: x == 'value', x != '', list.size() > 0")),
        }
    }

    /// Converts a string, number or bool to a string that is inserted into a longer one.
    ///
    /// # Errors
    /// The value has a different type.
    pub fn to_text(&self) -> Result<Cow<'_, str>, EvaluationError> {
        Ok(match self {
            Self::String(text) => Cow::Borrowed(text),
            Self::Bool(value) => Cow::Borrowed(if *value { "true" } else { "false" }),
            Self::Int(number) => number.to_string().into(),
            Self::UInt(number) => number.to_string().into(),
            Self::Double(number) => operators::double_text(*number).into(),
            _ => {
                let error = EvaluationError::new(format!("{} cannot be inserted into a string", self.describe()));
                return Err(match self {
                    Self::Optional(_) => error.with_help("provide a default for an absent value: .orValue('')"),
                    Self::List(_) => error.with_help("use .join(',') or toJson(...)"),
                    Self::Duration(_) | Self::Quantity(_) => error.with_help("use string(...)"),
                    _ if self.is_map() => error.with_help("use pairs(...) or toJson(...)"),
                    _ if self.is_list() => error.with_help("use .join(',') or toJson(...)"),
                    _ => error,
                });
            }
        })
    }
}

/// The budget for writing JSON: the remaining number of bytes, and the meter.
struct Output<'m> {
    left: usize,
    meter: &'m mut Meter,
}

/// The size that is charged for each value, in bytes, in addition to its string. This limits lists of many small
/// values, such as nulls.
const SCALAR: usize = 4;

/// The memory that is charged for a value, in bytes, without its string.
const VALUE: usize = 48;

/// The memory that is charged for a member of an object, in bytes, without its key and value.
const MEMBER: usize = 96;

impl Output<'_> {
    fn take(&mut self, bytes: usize, memory: usize) -> Result<(), EvaluationError> {
        self.meter.charge_memory(memory)?;
        self.left = self.left.checked_sub(bytes).ok_or_else(|| {
            EvaluationError::new(format!("the result is larger than {} KiB", MAXIMUM_RESULT / 1024))
                .with_help("put large contents into a ConfigMap")
        })?;
        Ok(())
    }

    fn take_json(&mut self, value: &serde_json::Value) -> Result<(), EvaluationError> {
        self.take(SCALAR, VALUE)?;
        match value {
            serde_json::Value::String(text) => self.take(text.len(), text.len()),
            serde_json::Value::Array(items) => items.iter().try_for_each(|item| self.take_json(item)),
            serde_json::Value::Object(members) => members.iter().try_for_each(|(key, value)| {
                self.take(key.len(), MEMBER + key.len())?;
                self.take_json(value)
            }),
            _ => Ok(()),
        }
    }
}

fn from_tape(value: json::Value<'_>, meter: &mut Meter) -> Result<serde_json::Value, EvaluationError> {
    meter.charge_memory(VALUE)?;
    Ok(match value.kind() {
        json::Kind::Array => {
            serde_json::Value::Array(value.items().map(|item| from_tape(item, meter)).collect::<Result<_, _>>()?)
        }
        json::Kind::Object => {
            let mut members = Map::new();
            for (key, value) in value.members() {
                meter.charge_memory(MEMBER)?;
                members.insert(key.text().into_owned(), from_tape(value, meter)?);
            }
            members.into()
        }
        // A number is copied as it is written, even if expressions could not compute with it.
        _ => {
            let length = value.raw().len();
            meter.charge(length / 8)?;
            meter.take_memory(length)?;
            serde_json::from_str(value.raw()).unwrap_or_default()
        }
    })
}

/// Converts a double to a JSON number as Kubernetes does. Whole numbers have no fraction. Returns an error for a double
/// that is infinite or NaN.
fn double(number: f64) -> Result<serde_json::Value, EvaluationError> {
    if let Some(whole) = whole(number) {
        return Ok(whole.into());
    }
    Number::from_f64(number)
        .map(serde_json::Value::Number)
        .ok_or_else(|| EvaluationError::new(format!("{number} cannot be a value in an object")))
}
