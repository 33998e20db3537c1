//! Functions that convert values between types.

use super::{Call, Evaluated, Function, duration, global, shown};
use crate::operators::{double_text, nearest};
use crate::quantity;
use crate::value::{Value, whole};

pub(super) const FUNCTIONS: &[Function] = &[
    global("int", 1, 1, "int(value)", int),
    global("uint", 1, 1, "uint(value)", uint),
    global("double", 1, 1, "double(value)", double),
    global("string", 1, 1, "string(value)", string),
    global("bool", 1, 1, "bool(value)", bool),
    global("bytes", 1, 1, "bytes(value)", bytes),
    global("dyn", 1, 1, "dyn(value)", |call| Ok(call.value(0).clone())),
    global("type", 1, 1, "type(value)", |call| Ok(Value::Type(call.value(0).type_name()))),
];

/// Returns a string that is short enough to be parsed as a number; otherwise an empty one, which is not a number.
fn number_text(text: &str) -> &str {
    const LONGEST: usize = 1024;
    if text.len() <= LONGEST { text } else { "" }
}

fn int<'v>(call: &mut Call<'_, 'v>) -> Evaluated<'v> {
    let number = match call.value(0) {
        Value::Int(number) => Some(*number),
        Value::UInt(number) => i64::try_from(*number).ok(),
        Value::Double(number) => whole(number.trunc()),
        Value::Quantity(quantity) => quantity.whole(),
        Value::String(text) => {
            return number_text(text)
                .parse()
                .map(Value::Int)
                .map_err(|_| call.error(format!("{:?} is no whole number", shown(text))));
        }
        _ => return Err(call.wrong(0, "a number or a string")),
    };
    number.map(Value::Int).ok_or_else(|| call.error("the number does not fit into an int"))
}

fn uint<'v>(call: &mut Call<'_, 'v>) -> Evaluated<'v> {
    let number = match call.value(0) {
        Value::UInt(number) => Some(*number),
        Value::Int(number) => u64::try_from(*number).ok(),
        Value::Double(number) => whole(number.trunc()).and_then(|number| u64::try_from(number).ok()),
        Value::String(text) => {
            return number_text(text)
                .parse()
                .map(Value::UInt)
                .map_err(|_| call.error(format!("{:?} is no whole number", shown(text))));
        }
        _ => return Err(call.wrong(0, "a number or a string")),
    };
    number.map(Value::UInt).ok_or_else(|| call.error("the number does not fit into a uint"))
}

#[expect(clippy::cast_precision_loss, reason = "the nearest double is what is asked for")]
fn double<'v>(call: &mut Call<'_, 'v>) -> Evaluated<'v> {
    Ok(Value::Double(match call.value(0) {
        Value::Double(number) => *number,
        Value::Int(number) => nearest(*number),
        Value::UInt(number) => *number as f64,
        Value::Quantity(quantity) => quantity.approximately(),
        Value::String(text) => {
            return number_text(text)
                .parse()
                .map(Value::Double)
                .map_err(|_| call.error(format!("{:?} is no number", shown(text))));
        }
        _ => return Err(call.wrong(0, "a number or a string")),
    }))
}

/// Converts a value to a string; `None` if it has no string form.
pub(super) fn text_of(value: &Value<'_>) -> Option<String> {
    Some(match value {
        Value::Duration(nanoseconds) => duration::to_text(*nanoseconds),
        Value::Quantity(quantity) => quantity::to_text(quantity),
        Value::Double(number) => double_text(*number),
        Value::Bytes(bytes) => std::str::from_utf8(bytes).ok()?.to_owned(),
        Value::Null => "null".to_owned(),
        Value::Type(name) => (*name).to_owned(),
        _ => value.to_text().ok()?.into_owned(),
    })
}

/// Steps for formatting a number.
const NUMBER: usize = 8;

fn string<'v>(call: &mut Call<'_, 'v>) -> Evaluated<'v> {
    match call.value(0) {
        text @ Value::String(_) => Ok(text.clone()),
        Value::Bytes(bytes) => {
            call.meter.charge_bytes(bytes.len())?;
            let text = std::str::from_utf8(bytes).map_err(|_| call.error("the bytes are no UTF-8 text"))?;
            Value::owned(text, call.meter)
        }
        Value::Null | Value::Type(_) => Err(call.wrong(0, "a bool, number, string, duration or quantity")),
        value => {
            call.meter.charge(NUMBER)?;
            let text = text_of(value);
            let text = text.ok_or_else(|| call.wrong(0, "a bool, number, string, duration or quantity"))?;
            call.short(&text)
        }
    }
}

fn bool<'v>(call: &mut Call<'_, 'v>) -> Evaluated<'v> {
    match call.value(0) {
        Value::Bool(value) => Ok(Value::Bool(*value)),
        Value::String(text) => match &**text {
            "1" | "t" | "T" | "true" | "TRUE" | "True" => Ok(Value::Bool(true)),
            "0" | "f" | "F" | "false" | "FALSE" | "False" => Ok(Value::Bool(false)),
            _ => Err(call.error(format!("{:?} is neither true nor false", shown(text)))),
        },
        _ => Err(call.wrong(0, "a bool or a string")),
    }
}

fn bytes<'v>(call: &mut Call<'_, 'v>) -> Evaluated<'v> {
    match call.value(0) {
        bytes @ Value::Bytes(_) => Ok(bytes.clone()),
        Value::String(text) => Value::bytes(text.as_bytes(), call.meter),
        _ => Err(call.wrong(0, "a string")),
    }
}
