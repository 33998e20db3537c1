//! Functions on quantities.

use super::{Call, Evaluated, Function, global, member, shown};
use crate::error::EvaluationError;
use crate::operators::quantities;
use crate::quantity::{Quantity, of_double, parse};
use crate::syntax::Operator;
use crate::value::Value;

pub(super) const FUNCTIONS: &[Function] = &[
    global("quantity", 1, 1, "quantity(value)", |call| match call.value(0) {
        quantity @ Value::Quantity(_) => Ok(quantity.clone()),
        Value::Int(number) => Ok(Value::Quantity(Quantity::of(*number))),
        Value::Double(number) => {
            let quantity = of_double(*number).map(Value::Quantity);
            quantity.ok_or_else(|| call.error(format!("{number} is no quantity, or one that is too large")))
        }
        Value::String(text) => parse(text).map(Value::Quantity).ok_or_else(|| {
            call.error(format!("{:?} is no quantity", shown(text))).with_help("it is written 500m, 1.5, 64Mi, 2G")
        }),
        _ => Err(call.wrong(0, "a string or a number")),
    }),
    global("isQuantity", 1, 1, "isQuantity(text)", |call| Ok(Value::Bool(parse(call.text(0)?).is_some()))),
    member("add", 1, 1, "quantity.add(quantity)", |call| called(call, Operator::Add)),
    member("sub", 1, 1, "quantity.sub(quantity)", |call| called(call, Operator::Subtract)),
    member("isGreaterThan", 1, 1, "quantity.isGreaterThan(quantity)", |call| {
        Ok(Value::Bool(quantity_of(call, 0)?.worth() > quantity_of(call, 1)?.worth()))
    }),
    member("isLessThan", 1, 1, "quantity.isLessThan(quantity)", |call| {
        Ok(Value::Bool(quantity_of(call, 0)?.worth() < quantity_of(call, 1)?.worth()))
    }),
    member("compareTo", 1, 1, "quantity.compareTo(quantity)", |call| {
        let order = quantity_of(call, 0)?.worth().cmp(&quantity_of(call, 1)?.worth());
        Ok(Value::Int(i64::from(order as i8)))
    }),
    member("isInteger", 0, 0, "quantity.isInteger()", |call| Ok(Value::Bool(quantity_of(call, 0)?.whole().is_some()))),
    member("asInteger", 0, 0, "quantity.asInteger()", |call| {
        let whole = quantity_of(call, 0)?.whole();
        whole.map(Value::Int).ok_or_else(|| call.error("it is no whole number that fits into an int"))
    }),
    member("asApproximateFloat", 0, 0, "quantity.asApproximateFloat()", |call| {
        Ok(Value::Double(quantity_of(call, 0)?.approximately()))
    }),
    member("sign", 0, 0, "quantity.sign()", |call| {
        Ok(Value::Int(i64::try_from(quantity_of(call, 0)?.worth().signum()).unwrap_or(0)))
    }),
];

fn quantity_of(call: &Call<'_, '_>, place: usize) -> Result<Quantity, EvaluationError> {
    match call.value(place) {
        Value::Quantity(quantity) => Ok(*quantity),
        Value::Int(number) => Ok(Quantity::of(*number)),
        _ => Err(call.wrong(place, "a quantity").with_help("make it one: quantity('500m')")),
    }
}

fn called<'v>(call: &mut Call<'_, 'v>, operator: Operator) -> Evaluated<'v> {
    let (left, right) = (quantity_of(call, 0)?, quantity_of(call, 1)?);
    quantities(operator, &Value::Quantity(left), &Value::Quantity(right))
}
