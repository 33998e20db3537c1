//! JSON becomes values: places in a tape, and what `serde_json` has read. Numbers that are whole and fit are ints.

use super::{Key, Text, Value};
use crate::json;

impl<'v> From<json::Value<'v>> for Value<'v> {
    fn from(value: json::Value<'v>) -> Self {
        match value.kind() {
            json::Kind::Null => Self::Null,
            json::Kind::False => Self::Bool(false),
            json::Kind::True => Self::Bool(true),
            json::Kind::String | json::Kind::EscapedString => {
                value.as_str().map_or(Self::Null, |text| Self::String(Text::from(text)))
            }
            json::Kind::Number => number(value.raw()),
            json::Kind::Array | json::Kind::Object => Self::Tape(value),
        }
    }
}

impl<'v> From<&'v serde_json::Value> for Value<'v> {
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

/// A whole value that nobody else holds: what was read from a text.
impl From<serde_json::Value> for Value<'_> {
    fn from(value: serde_json::Value) -> Self {
        match value {
            serde_json::Value::Null => Self::Null,
            serde_json::Value::Bool(value) => Self::Bool(value),
            serde_json::Value::Number(value) => json_number(&value),
            serde_json::Value::String(text) => Self::owned(text),
            serde_json::Value::Array(items) => Self::list(items.into_iter().map(Self::from).collect()),
            serde_json::Value::Object(members) => Self::map(
                members
                    .into_iter()
                    .map(|(key, value)| (Key::String(Text::Shared(key.into())), Self::from(value)))
                    .collect(),
            ),
        }
    }
}

/// A number of JSON: an int if it is one and fits, as for Kubernetes.
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
