//! Arithmetic, equality and order of values, with the semantics of CEL.

use std::cmp::Ordering;

use super::error::EvaluationError;
use super::meter::Meter;
use super::parse::Operator;
use super::value::{ListBuilder, TextBuilder, Value};

/// Converts an integer to the nearest double.
#[expect(clippy::cast_precision_loss, reason = "the result is the nearest double")]
pub(crate) fn nearest(number: i64) -> f64 {
    number as f64
}

#[expect(clippy::cast_precision_loss, reason = "the result is the nearest double")]
fn nearest_unsigned(number: u64) -> f64 {
    number as f64
}

/// Formats a double. Whole numbers have no fraction, as in CEL and Kubernetes.
pub(crate) fn double_text(number: f64) -> String {
    if number.is_nan() {
        return "NaN".to_owned();
    }
    if number.is_infinite() {
        return if number > 0.0 { "+Inf" } else { "-Inf" }.to_owned();
    }
    if number.abs() >= 1e21 || (number != 0.0 && number.abs() < 1e-7) {
        format!("{number:e}")
    } else {
        number.to_string()
    }
}

/// Whether two values are equal. Numbers of different types are compared by value, and an integer is converted to a
/// double to compare it with one. Lists and maps are compared by content. All other values of different types are
/// unequal.
pub(crate) fn equal(left: &Value<'_>, right: &Value<'_>, meter: &mut Meter) -> Result<bool, EvaluationError> {
    Ok(match (left, right) {
        (Value::Null, Value::Null) => true,
        (Value::Bool(left), Value::Bool(right)) => left == right,
        (Value::String(left), Value::String(right)) => {
            meter.charge_bytes(left.len().min(right.len()))?;
            **left == **right
        }
        (Value::Bytes(left), Value::Bytes(right)) => {
            meter.charge_bytes(left.len().min(right.len()))?;
            **left == **right
        }
        (Value::Duration(left), Value::Duration(right)) => left == right,
        (Value::Quantity(left), Value::Quantity(right)) => left.billionths() == right.billionths(),
        (Value::Type(left), Value::Type(right)) => left == right,
        (Value::Optional(left), Value::Optional(right)) => match (left, right) {
            (Some(left), Some(right)) => equal(left.value(), right.value(), meter)?,
            (left, right) => left.is_none() && right.is_none(),
        },
        (Value::Int(_) | Value::UInt(_) | Value::Double(_), Value::Int(_) | Value::UInt(_) | Value::Double(_)) => {
            number_order(left, right) == Some(Ordering::Equal)
        }
        _ if left.is_list() && right.is_list() => {
            let (Some(left), Some(right)) = (left.items(meter)?, right.items(meter)?) else { return Ok(false) };
            if left.len() != right.len() {
                return Ok(false);
            }
            for (left, right) in left.iter().zip(right.iter()) {
                meter.charge(1)?;
                if !equal(left, right, meter)? {
                    return Ok(false);
                }
            }
            true
        }
        _ if left.is_map() && right.is_map() => {
            let Some(entries) = left.entries(meter)? else { return Ok(false) };
            let right = right.searchable(meter)?;
            if Some(entries.len()) != right.count(meter)? {
                return Ok(false);
            }
            for (key, value) in entries {
                meter.charge(1)?;
                match right.entry(&key, meter)? {
                    Some(other) if equal(&value, &other, meter)? => {}
                    _ => return Ok(false),
                }
            }
            true
        }
        _ => false,
    })
}

/// Returns the order of two values. `None` if values of their types cannot be ordered, or if one of them is NaN.
///
/// # Errors
/// The meter's budget is too small for the comparison.
pub(crate) fn order(
    left: &Value<'_>,
    right: &Value<'_>,
    meter: &mut Meter,
) -> Result<Option<Ordering>, EvaluationError> {
    meter.charge_bytes(left.length().min(right.length()))?;
    Ok(unmetered_order(left, right))
}

/// Returns the order of two values like [`order`]. The caller has already charged the meter.
pub(crate) fn unmetered_order(left: &Value<'_>, right: &Value<'_>) -> Option<Ordering> {
    match (left, right) {
        (Value::Bool(left), Value::Bool(right)) => Some(left.cmp(right)),
        (Value::String(left), Value::String(right)) => Some((**left).cmp(&**right)),
        (Value::Bytes(left), Value::Bytes(right)) => Some((**left).cmp(&**right)),
        (Value::Duration(left), Value::Duration(right)) => Some(left.cmp(right)),
        (Value::Quantity(left), Value::Quantity(right)) => Some(left.billionths().cmp(&right.billionths())),
        _ => number_order(left, right),
    }
}

fn number_order(left: &Value<'_>, right: &Value<'_>) -> Option<Ordering> {
    match (left, right) {
        (Value::Int(left), Value::Int(right)) => Some(left.cmp(right)),
        (Value::UInt(left), Value::UInt(right)) => Some(left.cmp(right)),
        (Value::Int(left), Value::UInt(right)) => Some(i128::from(*left).cmp(&i128::from(*right))),
        (Value::UInt(left), Value::Int(right)) => Some(i128::from(*left).cmp(&i128::from(*right))),
        (Value::Double(left), Value::Double(right)) => left.partial_cmp(right),
        (Value::Double(left), Value::Int(right)) => left.partial_cmp(&nearest(*right)),
        (Value::Int(left), Value::Double(right)) => nearest(*left).partial_cmp(right),
        (Value::Double(left), Value::UInt(right)) => left.partial_cmp(&nearest_unsigned(*right)),
        (Value::UInt(left), Value::Double(right)) => nearest_unsigned(*left).partial_cmp(right),
        _ => None,
    }
}

/// Evaluates `-x`, where `value` is `x`.
pub(crate) fn negate<'v>(value: &Value<'v>) -> Result<Value<'v>, EvaluationError> {
    match value {
        Value::Int(number) => number.checked_neg().map(Value::Int).ok_or_else(overflow),
        Value::Double(number) => Ok(Value::Double(-number)),
        Value::Duration(span) => span.checked_neg().map(Value::Duration).ok_or_else(overflow),
        _ => Err(EvaluationError::new(format!("- does not take {}", value.describe()))),
    }
}

/// Evaluates `+`, `-`, `*`, `/` and `%`.
pub(crate) fn arithmetic<'v>(
    operator: Operator,
    left: &Value<'v>,
    right: &Value<'v>,
    meter: &mut Meter,
) -> Result<Value<'v>, EvaluationError> {
    match (left, right) {
        (Value::Int(left), Value::Int(right)) => integers(operator, *left, *right),
        (Value::UInt(left), Value::UInt(right)) => unsigned(operator, *left, *right),
        (Value::Double(left), Value::Double(right)) => match operator {
            Operator::Add => Ok(Value::Double(left + right)),
            Operator::Subtract => Ok(Value::Double(left - right)),
            Operator::Multiply => Ok(Value::Double(left * right)),
            Operator::Divide => Ok(Value::Double(left / right)),
            _ => Err(EvaluationError::new("% takes whole numbers")),
        },
        (Value::Duration(left), Value::Duration(right)) => match operator {
            Operator::Add => left.checked_add(*right).map(Value::Duration).ok_or_else(overflow),
            Operator::Subtract => left.checked_sub(*right).map(Value::Duration).ok_or_else(overflow),
            _ => Err(EvaluationError::new(format!("{} does not take durations", operator.symbol()))),
        },
        (Value::Quantity(_), _) | (_, Value::Quantity(_)) => quantities(operator, left, right),
        (Value::String(left), Value::String(right)) if operator == Operator::Add => {
            let mut text = TextBuilder::with_capacity(left.len() + right.len(), meter)?;
            text.push(left, meter)?;
            text.push(right, meter)?;
            text.finish(meter)
        }
        (Value::Bytes(left), Value::Bytes(right)) if operator == Operator::Add => {
            meter.charge_text(left.len() + right.len())?;
            Value::bytes(&[&**left, &**right].concat(), meter)
        }
        _ if operator == Operator::Add && left.is_list() && right.is_list() => {
            let (Some(left), Some(right)) = (left.items(meter)?, right.items(meter)?) else {
                return Err(mismatch(operator, left, right));
            };
            let mut list = ListBuilder::with_capacity(left.len() + right.len(), meter)?;
            for item in left.iter().chain(right.iter()) {
                list.push(item.clone(), meter)?;
            }
            list.finish(meter)
        }
        _ => Err(mismatch(operator, left, right)),
    }
}

fn integers<'v>(operator: Operator, left: i64, right: i64) -> Result<Value<'v>, EvaluationError> {
    let result = match operator {
        Operator::Add => left.checked_add(right),
        Operator::Subtract => left.checked_sub(right),
        Operator::Multiply => left.checked_mul(right),
        _ if right == 0 => return Err(by_zero()),
        Operator::Divide => left.checked_div(right),
        _ => left.checked_rem(right),
    };
    result.map(Value::Int).ok_or_else(overflow)
}

fn unsigned<'v>(operator: Operator, left: u64, right: u64) -> Result<Value<'v>, EvaluationError> {
    let result = match operator {
        Operator::Add => left.checked_add(right),
        Operator::Subtract => left.checked_sub(right),
        Operator::Multiply => left.checked_mul(right),
        _ if right == 0 => return Err(by_zero()),
        Operator::Divide => left.checked_div(right),
        _ => left.checked_rem(right),
    };
    result.map(Value::UInt).ok_or_else(overflow)
}

#[cold]
fn overflow() -> EvaluationError {
    EvaluationError::new("the result is too large for its type")
}

#[cold]
fn by_zero() -> EvaluationError {
    EvaluationError::new("a number is divided by zero")
}

/// Creates the error for an operator that does not support operands of these types.
#[cold]
pub(crate) fn mismatch(operator: Operator, left: &Value<'_>, right: &Value<'_>) -> EvaluationError {
    let error = EvaluationError::new(format!(
        "{} does not take {} and {}",
        operator.symbol(),
        left.describe(),
        right.describe()
    ));
    match (left, right) {
        (Value::Optional(_), _) | (_, Value::Optional(_)) => {
            error.with_help("provide a default for an empty optional: .orValue(...)")
        }
        (Value::String(_), _) | (_, Value::String(_)) if operator == Operator::Add => {
            error.with_help("convert numbers to strings with string(...)")
        }
        (Value::Int(_), Value::Double(_)) | (Value::Double(_), Value::Int(_)) => {
            error.with_help("convert one of them with double(...) or int(...)")
        }
        _ => error,
    }
}

/// Evaluates `+` and `-` for two quantities, `*` for a quantity and an int or double, and `/` for a quantity and an
/// int.
pub(crate) fn quantities<'v>(
    operator: Operator,
    left: &Value<'v>,
    right: &Value<'v>,
) -> Result<Value<'v>, EvaluationError> {
    let result = match (operator, left, right) {
        (Operator::Add, Value::Quantity(left), Value::Quantity(right)) => left.checked_add(*right),
        (Operator::Subtract, Value::Quantity(left), Value::Quantity(right)) => left.checked_sub(*right),
        (Operator::Multiply, Value::Quantity(quantity), Value::Int(number))
        | (Operator::Multiply, Value::Int(number), Value::Quantity(quantity)) => quantity.checked_mul(*number),
        (Operator::Multiply, Value::Quantity(quantity), Value::Double(number))
        | (Operator::Multiply, Value::Double(number), Value::Quantity(quantity)) => quantity.scaled(*number),
        (Operator::Divide, Value::Quantity(quantity), Value::Int(number)) => quantity.checked_div(*number),
        _ => return Err(mismatch(operator, left, right)),
    };
    result.map(Value::Quantity).ok_or_else(|| EvaluationError::new("the quantity is too large, or divided by zero"))
}
