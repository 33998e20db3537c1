//! What an expression gave, as JSON and as text.

use std::borrow::Cow;

use serde_json::{Map, Number};

use super::error::EvaluationError;
use super::functions::{duration, quantity};
use super::value::Value;
use super::{MAXIMUM_RESULT, operators};
use crate::json;

/// What an expression gave for a field or an element.
#[derive(Clone, Debug, PartialEq)]
pub enum Outcome {
    /// A value.
    Value(serde_json::Value),
    /// An empty optional or null: the field or element is left out.
    Absent,
}

impl Value<'_> {
    /// The value for a field or element. Empty optionals inside of it are left out.
    ///
    /// # Errors
    /// What has no form in JSON (bytes, types, a double that is not a number), and what is larger than
    /// [`MAXIMUM_RESULT`].
    pub fn to_outcome(&self) -> Result<Outcome, EvaluationError> {
        Ok(match self.to_json()? {
            Some(serde_json::Value::Null) | None => Outcome::Absent,
            Some(value) => Outcome::Value(value),
        })
    }

    /// The value as JSON; `None` for an empty optional.
    ///
    /// # Errors
    /// As [`Value::to_outcome`].
    pub fn to_json(&self) -> Result<Option<serde_json::Value>, EvaluationError> {
        let mut room = MAXIMUM_RESULT;
        self.json_within(&mut room)
    }

    fn json_within(&self, room: &mut usize) -> Result<Option<serde_json::Value>, EvaluationError> {
        // What a value takes besides its text is counted too, so that a list of a million nulls is not small.
        take(room, 4)?;
        let value = match self {
            Self::Null => serde_json::Value::Null,
            Self::Bool(value) => (*value).into(),
            Self::Int(number) => (*number).into(),
            Self::UInt(number) => (*number).into(),
            Self::Double(number) => double(*number)?,
            Self::String(text) => {
                take(room, text.len())?;
                (**text).into()
            }
            Self::Tape(value) => {
                take(room, value.raw().len())?;
                from_tape(*value)
            }
            Self::Json(value) => {
                take_json(value, room)?;
                (*value).clone()
            }
            Self::Duration(nanoseconds) => duration::to_text(*nanoseconds).into(),
            Self::Quantity(quantity) => quantity::to_text(quantity).into(),
            Self::Optional(None) => return Ok(None),
            Self::Optional(Some(value)) => return value.json_within(room),
            Self::Bytes(_) | Self::Type(_) => {
                let help = if matches!(self, Self::Bytes(_)) {
                    "use base64.encode(...) or string(...)"
                } else {
                    "use string(...)"
                };
                return Err(
                    EvaluationError::new(format!("{} cannot stand in an object", self.described())).with_help(help)
                );
            }
            Self::List(items) => {
                let mut list = Vec::with_capacity(items.len());
                for item in items.iter() {
                    list.extend(item.json_within(room)?);
                }
                list.into()
            }
            Self::Map(_) | Self::Extended(_) => {
                let mut members = Map::new();
                for (key, value) in self.entries().unwrap_or_default() {
                    let key = key.to_text();
                    take(room, key.len())?;
                    if let Some(value) = value.json_within(room)? {
                        members.insert(key.into_owned(), value);
                    }
                }
                members.into()
            }
        };
        Ok(Some(value))
    }

    /// The value as a condition.
    ///
    /// # Errors
    /// What is no bool.
    pub fn to_bool(&self) -> Result<bool, EvaluationError> {
        match self {
            Self::Bool(value) => Ok(*value),
            Self::Optional(_) => {
                Err(EvaluationError::new(format!("the condition is {}, not a bool", self.described()))
                    .with_help("say what counts if it is absent: .orValue(false)"))
            }
            _ => Err(EvaluationError::new(format!("the condition is {}, not a bool", self.described()))
                .with_help("compare it: x == 'value', x != '', list.size() > 0")),
        }
    }

    /// The value as a part of a longer text: texts, numbers and bools as they are.
    ///
    /// # Errors
    /// Any other value.
    pub fn to_text(&self) -> Result<Cow<'_, str>, EvaluationError> {
        Ok(match self {
            Self::String(text) => Cow::Borrowed(text),
            Self::Bool(value) => Cow::Borrowed(if *value { "true" } else { "false" }),
            Self::Int(number) => number.to_string().into(),
            Self::UInt(number) => number.to_string().into(),
            Self::Double(number) => operators::double_text(*number).into(),
            _ => {
                let error = EvaluationError::new(format!("{} cannot be put into a text", self.described()));
                return Err(match self {
                    Self::Optional(_) => error.with_help("say what stands there if it is absent: .orValue('')"),
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

fn take(room: &mut usize, bytes: usize) -> Result<(), EvaluationError> {
    *room = room.checked_sub(bytes).ok_or_else(|| {
        EvaluationError::new(format!("the result is larger than {} KiB", MAXIMUM_RESULT / 1024))
            .with_help("large contents belong into a ConfigMap")
    })?;
    Ok(())
}

fn take_json(value: &serde_json::Value, room: &mut usize) -> Result<(), EvaluationError> {
    take(room, 4)?;
    match value {
        serde_json::Value::String(text) => take(room, text.len()),
        serde_json::Value::Array(items) => items.iter().try_for_each(|item| take_json(item, room)),
        serde_json::Value::Object(members) => members.iter().try_for_each(|(key, value)| {
            take(room, key.len())?;
            take_json(value, room)
        }),
        _ => Ok(()),
    }
}

fn from_tape(value: json::Value<'_>) -> serde_json::Value {
    match value.kind() {
        json::Kind::Array => value.items().map(from_tape).collect::<Vec<_>>().into(),
        json::Kind::Object => value
            .members()
            .map(|(key, value)| (key.text().into_owned(), from_tape(value)))
            .collect::<Map<_, _>>()
            .into(),
        // A number stays what it was, also if it is none that an expression could compute with.
        _ => serde_json::from_str(value.raw()).unwrap_or_default(),
    }
}

/// A double is written as Kubernetes writes it: without a fraction if it has none.
fn double(number: f64) -> Result<serde_json::Value, EvaluationError> {
    if let Some(whole) = operators::whole(number) {
        return Ok(whole.into());
    }
    Number::from_f64(number)
        .map(serde_json::Value::Number)
        .ok_or_else(|| EvaluationError::new(format!("{number} cannot stand in an object")))
}
