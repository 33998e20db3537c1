//! Converts JSON to values, from a tape and from `serde_json`. Integers that fit become ints.

use std::borrow::Cow;

use super::{Key, ListBuilder, MapBuilder, SharedText, Text, Value};
use crate::error::EvaluationError;
use crate::meter::Meter;
use pillion_json as json;

impl<'v> Value<'v> {
    /// Converts a value of a tape. Objects, lists and strings without escapes are borrowed.
    ///
    /// # Errors
    /// The meter does not grant the copy of a string with escapes, or the parsing of a long number.
    #[inline]
    pub fn read(value: json::Value<'v>, meter: &mut Meter) -> Result<Self, EvaluationError> {
        Ok(match value.kind() {
            json::Kind::Null => Self::Null,
            json::Kind::False => Self::Bool(false),
            json::Kind::True => Self::Bool(true),
            json::Kind::String | json::Kind::EscapedString => Self::String(Text::read(value, meter)?),
            json::Kind::Number => {
                meter.charge_bytes(value.raw().len())?;
                number(value.raw())
            }
            json::Kind::Array | json::Kind::Object => Self::Tape(value),
        })
    }

    /// Converts parsed JSON.
    ///
    /// # Errors
    /// The meter does not grant it, or it nests too deeply.
    pub fn from_json(value: serde_json::Value, meter: &mut Meter) -> Result<Self, EvaluationError> {
        meter.charge(1)?;
        Ok(match value {
            serde_json::Value::Null => Self::Null,
            serde_json::Value::Bool(value) => Self::Bool(value),
            serde_json::Value::Number(value) => json_number(&value),
            serde_json::Value::String(text) => Self::owned(&text, meter)?,
            serde_json::Value::Array(items) => {
                let mut list = ListBuilder::with_capacity(items.len(), meter)?;
                for item in items {
                    list.push(Self::from_json(item, meter)?, meter)?;
                }
                list.finish(meter)?
            }
            serde_json::Value::Object(members) => {
                let mut map = MapBuilder::new();
                for (key, value) in members {
                    let key = Key::String(Text::owned(&key, meter)?);
                    map.insert(key, Self::from_json(value, meter)?, meter)?;
                }
                map.finish(meter)?
            }
        })
    }
}

impl<'v> Text<'v> {
    /// Converts a string of a tape; any other value becomes an empty string.
    ///
    /// # Errors
    /// The meter does not grant the copy of a string with escapes.
    #[inline]
    pub fn read(value: json::Value<'v>, meter: &mut Meter) -> Result<Self, EvaluationError> {
        if value.kind() == json::Kind::EscapedString {
            meter.charge_memory(2 * value.raw().len())?;
        }
        Ok(Self::of(value.as_str().unwrap_or_default()))
    }

    /// Converts the key of a tape's object.
    ///
    /// # Errors
    /// The meter does not grant the copy of a key with escapes.
    #[inline]
    pub fn read_key(key: json::Key<'v>, meter: &mut Meter) -> Result<Self, EvaluationError> {
        if key.has_escapes() {
            meter.charge_memory(2 * key.escaped().len())?;
        }
        Ok(Self::of(key.text()))
    }

    #[inline]
    fn of(text: Cow<'v, str>) -> Self {
        match text {
            Cow::Borrowed(text) => Self::Borrowed(text),
            Cow::Owned(text) => Self::Shared(SharedText(text.into())),
        }
    }
}

impl<'v> From<&'v serde_json::Value> for Value<'v> {
    #[inline]
    fn from(value: &'v serde_json::Value) -> Self {
        match value {
            serde_json::Value::Null => Self::Null,
            serde_json::Value::Bool(value) => Self::Bool(*value),
            serde_json::Value::Number(value) => json_number(value),
            serde_json::Value::String(text) => Self::text(text),
            serde_json::Value::Array(_) | serde_json::Value::Object(_) => Self::Json(value),
        }
    }
}

/// Converts a JSON number: to an int if it is an integer that fits, as in Kubernetes.
fn number<'v>(text: &str) -> Value<'v> {
    match text.parse() {
        Ok(number) => Value::Int(number),
        Err(_) => text.parse().map_or(Value::Null, Value::Double),
    }
}

fn json_number<'v>(number: &serde_json::Number) -> Value<'v> {
    match number.as_i64() {
        Some(number) => Value::Int(number),
        None => number.as_f64().map_or(Value::Null, Value::Double),
    }
}
