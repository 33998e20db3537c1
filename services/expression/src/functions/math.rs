//! Functions on numbers.

use std::cmp::Ordering;

use super::{Call, Evaluated, Function, global};
use crate::operators::{negate, order};
use crate::value::{Items, Value};

pub(super) const FUNCTIONS: &[Function] = &[
    global("math.greatest", 1, 16, "math.greatest(number, ...)", |call| extreme(call, Ordering::Greater)),
    global("math.least", 1, 16, "math.least(number, ...)", |call| extreme(call, Ordering::Less)),
    global("math.ceil", 1, 1, "math.ceil(double)", |call| rounded(call, f64::ceil)),
    global("math.floor", 1, 1, "math.floor(double)", |call| rounded(call, f64::floor)),
    global("math.round", 1, 1, "math.round(double)", |call| rounded(call, f64::round)),
    global("math.trunc", 1, 1, "math.trunc(double)", |call| rounded(call, f64::trunc)),
    global("math.abs", 1, 1, "math.abs(number)", |call| match call.value(0) {
        Value::Int(number) if *number < 0 => negate(call.value(0)),
        Value::Double(number) => Ok(Value::Double(number.abs())),
        value @ (Value::Int(_) | Value::UInt(_)) => Ok(value.clone()),
        _ => Err(call.wrong(0, "a number")),
    }),
    global("math.sign", 1, 1, "math.sign(number)", |call| match call.value(0) {
        Value::Int(number) => Ok(Value::Int(number.signum())),
        Value::UInt(number) => Ok(Value::UInt((*number).min(1))),
        Value::Double(number) if *number == 0.0 || number.is_nan() => Ok(Value::Double(*number)),
        Value::Double(number) => Ok(Value::Double(number.signum())),
        _ => Err(call.wrong(0, "a number")),
    }),
];

fn rounded<'v>(call: &mut Call<'_, 'v>, round: fn(f64) -> f64) -> Evaluated<'v> {
    match call.value(0) {
        Value::Double(number) => Ok(Value::Double(round(*number))),
        Value::Quantity(quantity) => Ok(Value::Double(round(quantity.approximately()))),
        _ => Err(call.wrong(0, "a double")),
    }
}

fn extreme<'v>(call: &mut Call<'_, 'v>, wanted: Ordering) -> Evaluated<'v> {
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
            found.ok_or_else(|| call.error(format!("{} does not compare with numbers here", number.described())))?;
        if found == wanted {
            best = number;
        }
    }
    Ok(best.clone())
}
