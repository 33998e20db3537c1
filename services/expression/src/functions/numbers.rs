//! Functions that convert values between types, and functions on numbers, durations and quantities.

use std::cmp::Ordering;

use super::{Call, Evaluated, Function, global, member, truncated};
use crate::error::EvaluationError;
use crate::operators::{double_text, nearest, negate, order, quantities};
use crate::parse::Operator;
use crate::quantity::{self, Quantity};
use crate::value::{Items, Value, whole};

pub(super) const FUNCTIONS: &[Function] = &[
    global("int(value)", int).native_except_quantities(),
    global("uint(value)", uint).native(),
    global("double(value)", double).native_except_quantities(),
    global("string(value)", string).native_except_quantities(),
    global("bool(value)", bool).native(),
    global("bytes(value)", bytes).native(),
    global("dyn(value)", |call| Ok(call.value(0).clone())).native(),
    global("type(value)", |call| Ok(Value::Type(call.value(0).type_name()))).native(),
    global("math.greatest(number, ...)", |call| extreme(call, Ordering::Greater)),
    global("math.least(number, ...)", |call| extreme(call, Ordering::Less)),
    global("math.ceil(double)", |call| rounded(call, f64::ceil)),
    global("math.floor(double)", |call| rounded(call, f64::floor)),
    global("math.round(double)", |call| rounded(call, f64::round)),
    global("math.trunc(double)", |call| rounded(call, f64::trunc)),
    global("math.abs(number)", |call| match call.value(0) {
        Value::Int(number) if *number < 0 => negate(call.value(0)),
        Value::Double(number) => Ok(Value::Double(number.abs())),
        value @ (Value::Int(_) | Value::UInt(_)) => Ok(value.clone()),
        _ => Err(call.type_error(0, "a number")),
    }),
    global("math.sign(number)", |call| match call.value(0) {
        Value::Int(number) => Ok(Value::Int(number.signum())),
        Value::UInt(number) => Ok(Value::UInt((*number).min(1))),
        Value::Double(number) if *number == 0.0 || number.is_nan() => Ok(Value::Double(*number)),
        Value::Double(number) => Ok(Value::Double(number.signum())),
        _ => Err(call.type_error(0, "a number")),
    }),
    global("duration(text)", |call| match call.value(0) {
        span @ Value::Duration(_) => Ok(span.clone()),
        Value::String(text) => parse_duration(text).map(Value::Duration).ok_or_else(|| {
            call.error(format!("{:?} is not a duration", truncated(text)))
                .with_help("examples of durations are 1h30m, 6s and 250ms")
        }),
        _ => Err(call.type_error(0, "a string")),
    })
    .native(),
    member("duration.getHours()", |call| units(call, 3_600_000_000_000)).native(),
    member("duration.getMinutes()", |call| units(call, 60_000_000_000)).native(),
    member("duration.getSeconds()", |call| units(call, 1_000_000_000)).native(),
    member("duration.getMilliseconds()", |call| units(call, 1_000_000)).native(),
    global("quantity(value)", |call| match call.value(0) {
        quantity @ Value::Quantity(_) => Ok(quantity.clone()),
        Value::Int(number) => Ok(Value::Quantity(Quantity::of(*number))),
        Value::Double(number) => {
            let quantity = quantity::of_double(*number).map(Value::Quantity);
            quantity.ok_or_else(|| call.error(format!("{number} is not a quantity, or it is too large")))
        }
        Value::String(text) => Quantity::read(text).map(Value::Quantity).ok_or_else(|| {
            call.error(format!("{:?} is not a quantity", truncated(text)))
                .with_help("examples of quantities are 500m, 1.5, 64Mi and 2G")
        }),
        _ => Err(call.type_error(0, "a string or a number")),
    })
    .native(),
    global("isQuantity(text)", |call| Ok(Value::Bool(Quantity::is_written(call.text(0)?)))).native(),
    member("quantity.add(quantity)", |call| called(call, Operator::Add)).native(),
    member("quantity.sub(quantity)", |call| called(call, Operator::Subtract)).native(),
    member("quantity.isGreaterThan(quantity)", |call| {
        Ok(Value::Bool(quantity_of(call, 0)?.billionths() > quantity_of(call, 1)?.billionths()))
    })
    .native(),
    member("quantity.isLessThan(quantity)", |call| {
        Ok(Value::Bool(quantity_of(call, 0)?.billionths() < quantity_of(call, 1)?.billionths()))
    })
    .native(),
    member("quantity.compareTo(quantity)", |call| {
        let order = quantity_of(call, 0)?.billionths().cmp(&quantity_of(call, 1)?.billionths());
        Ok(Value::Int(i64::from(order as i8)))
    })
    .native(),
    member("quantity.isInteger()", |call| Ok(Value::Bool(quantity_of(call, 0)?.whole().is_some()))).native(),
    member("quantity.asInteger()", |call| {
        let whole = quantity_of(call, 0)?.whole();
        whole
            .map(Value::Int)
            .ok_or_else(|| call.error("the quantity is not a whole number, or does not fit into an int"))
    })
    .native(),
    member("quantity.asApproximateFloat()", |call| Ok(Value::Double(quantity_of(call, 0)?.approximately()))).native(),
    member("quantity.sign()", |call| {
        Ok(Value::Int(i64::try_from(quantity_of(call, 0)?.billionths().signum()).unwrap_or(0)))
    }),
];

/// Returns the string if it is short enough to be parsed as a number. Otherwise returns an empty string, which is
/// invalid.
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
                .map_err(|_| call.error(format!("{:?} is not a whole number", truncated(text))));
        }
        _ => return Err(call.type_error(0, "a number or a string")),
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
                .map_err(|_| call.error(format!("{:?} is not a whole number", truncated(text))));
        }
        _ => return Err(call.type_error(0, "a number or a string")),
    };
    number.map(Value::UInt).ok_or_else(|| call.error("the number does not fit into a uint"))
}

#[expect(clippy::cast_precision_loss, reason = "the result is the nearest double")]
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
                .map_err(|_| call.error(format!("{:?} is not a number", truncated(text))));
        }
        _ => return Err(call.type_error(0, "a number or a string")),
    }))
}

/// Converts a value to a string. `None` if the value is a list, a map or an optional, or bytes that are not UTF-8.
pub(super) fn text_of(value: &Value<'_>) -> Option<String> {
    Some(match value {
        Value::Duration(nanoseconds) => duration_text(*nanoseconds),
        Value::Quantity(quantity) => quantity::to_text(quantity),
        Value::Double(number) => double_text(*number),
        Value::Bytes(bytes) => std::str::from_utf8(bytes).ok()?.to_owned(),
        Value::Null => "null".to_owned(),
        Value::Type(name) => (*name).to_owned(),
        _ => value.to_text().ok()?.into_owned(),
    })
}

/// The number of steps for formatting a number.
const NUMBER: usize = 8;

fn string<'v>(call: &mut Call<'_, 'v>) -> Evaluated<'v> {
    match call.value(0) {
        text @ Value::String(_) => Ok(text.clone()),
        Value::Bytes(bytes) => {
            call.meter.charge_bytes(bytes.len())?;
            let text = std::str::from_utf8(bytes).map_err(|_| call.error("the bytes are not valid UTF-8"))?;
            Value::owned(text, call.meter)
        }
        Value::Null | Value::Type(_) => Err(call.type_error(0, "a bool, number, string, duration or quantity")),
        value => {
            call.meter.charge(NUMBER)?;
            let text = text_of(value);
            let text = text.ok_or_else(|| call.type_error(0, "a bool, number, string, duration or quantity"))?;
            call.short_text(&text)
        }
    }
}

fn bool<'v>(call: &mut Call<'_, 'v>) -> Evaluated<'v> {
    match call.value(0) {
        Value::Bool(value) => Ok(Value::Bool(*value)),
        Value::String(text) => match &**text {
            "1" | "t" | "T" | "true" | "TRUE" | "True" => Ok(Value::Bool(true)),
            "0" | "f" | "F" | "false" | "FALSE" | "False" => Ok(Value::Bool(false)),
            _ => Err(call.error(format!("{:?} is neither true nor false", truncated(text)))),
        },
        _ => Err(call.type_error(0, "a bool or a string")),
    }
}

fn bytes<'v>(call: &mut Call<'_, 'v>) -> Evaluated<'v> {
    match call.value(0) {
        bytes @ Value::Bytes(_) => Ok(bytes.clone()),
        Value::String(text) => Value::bytes(text.as_bytes(), call.meter),
        _ => Err(call.type_error(0, "a string")),
    }
}

fn rounded<'v>(call: &mut Call<'_, 'v>, round: fn(f64) -> f64) -> Evaluated<'v> {
    match call.value(0) {
        Value::Double(number) => Ok(Value::Double(round(*number))),
        Value::Quantity(quantity) => Ok(Value::Double(round(quantity.approximately()))),
        _ => Err(call.type_error(0, "a double")),
    }
}

fn extreme<'v>(call: &mut Call<'_, 'v>, expected_order: Ordering) -> Evaluated<'v> {
    let numbers = if call.arguments.len() == 1 && call.value(0).is_list() {
        call.list(0)?
    } else {
        call.meter.charge_items(call.arguments.len())?;
        Items::Own(call.arguments.to_vec())
    };
    let Some(mut best) = numbers.first() else { return Err(call.error("the list is empty")) };
    for number in numbers.iter() {
        let is_number = matches!(
            number,
            Value::Int(_) | Value::UInt(_) | Value::Double(_) | Value::Quantity(_) | Value::Duration(_)
        );
        let found = order(number, best, call.meter)?.filter(|_| is_number);
        let found =
            found.ok_or_else(|| call.error(format!("{} cannot be compared with numbers here", number.describe())))?;
        if found == expected_order {
            best = number;
        }
    }
    Ok(best.clone())
}

/// The maximum length of a duration, in bytes. It is enough for a duration that contains every unit once, with all
/// digits.
const LONGEST_DURATION: usize = 256;

const UNITS: [(&str, i64); 8] = [
    ("ns", 1),
    ("us", 1_000),
    ("\u{b5}s", 1_000),
    ("\u{3bc}s", 1_000),
    ("ms", 1_000_000),
    ("s", 1_000_000_000),
    ("m", 60_000_000_000),
    ("h", 3_600_000_000_000),
];

fn units<'v>(call: &mut Call<'_, 'v>, unit: i64) -> Evaluated<'v> {
    match call.value(0) {
        Value::Duration(span) => Ok(Value::Int(span / unit)),
        _ => Err::<_, EvaluationError>(call.type_error(0, "a duration")),
    }
}

fn parse_duration(text: &str) -> Option<i64> {
    if text.len() > LONGEST_DURATION {
        return None;
    }
    let (negative, mut rest) = match text.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, text.strip_prefix('+').unwrap_or(text)),
    };
    if rest == "0" {
        return Some(0);
    }
    let mut total = 0_i128;
    if rest.is_empty() {
        return None;
    }
    while !rest.is_empty() {
        let length = rest.bytes().take_while(|byte| byte.is_ascii_digit() || *byte == b'.').count();
        let (number, tail) = rest.split_at_checked(length)?;
        let length = tail.bytes().take_while(|byte| !byte.is_ascii_digit() && *byte != b'.').count();
        let (unit, tail) = tail.split_at_checked(length)?;
        let (_, unit) = UNITS.iter().find(|(name, _)| *name == unit)?;
        let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
        if whole.is_empty() && fraction.is_empty() || number.len() > 20 {
            return None;
        }
        let unit = i128::from(*unit);
        let whole: i128 = if whole.is_empty() { 0 } else { whole.parse().ok()? };
        total += whole * unit;
        if !fraction.is_empty() {
            total += fraction.parse::<i128>().ok()? * unit / 10_i128.pow(u32::try_from(fraction.len()).ok()?);
        }
        rest = tail;
        if total > i128::from(i64::MAX) {
            return None;
        }
    }
    i64::try_from(if negative { -total } else { total }).ok()
}

/// Formats a duration in seconds, as CEL does, such as `5400s` or `0.25s`.
pub(crate) fn duration_text(nanoseconds: i64) -> String {
    let sign = if nanoseconds < 0 { "-" } else { "" };
    let (seconds, rest) = (nanoseconds.unsigned_abs() / 1_000_000_000, nanoseconds.unsigned_abs() % 1_000_000_000);
    if rest == 0 {
        return format!("{sign}{seconds}s");
    }
    let fraction = format!("{rest:09}");
    format!("{sign}{seconds}.{}s", fraction.trim_end_matches('0'))
}

fn quantity_of(call: &Call<'_, '_>, place: usize) -> Result<Quantity, EvaluationError> {
    match call.value(place) {
        Value::Quantity(quantity) => Ok(*quantity),
        Value::Int(number) => Ok(Quantity::of(*number)),
        _ => Err(call.type_error(place, "a quantity").with_help("make it one: quantity('500m')")),
    }
}

fn called<'v>(call: &mut Call<'_, 'v>, operator: Operator) -> Evaluated<'v> {
    let (left, right) = (quantity_of(call, 0)?, quantity_of(call, 1)?);
    quantities(operator, &Value::Quantity(left), &Value::Quantity(right))
}
