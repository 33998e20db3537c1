//! Functions on optional values.

use super::{Call, Function, global, member};
use crate::error::EvaluationError;
use crate::value::Value;

pub(super) const FUNCTIONS: &[Function] = &[
    global("optional.of", 1, 1, "optional.of(value)", |call| Value::some(call.value(0).clone(), call.meter)),
    global("optional.none", 0, 0, "optional.none()", |_| Ok(Value::none())),
    global("optional.ofNonZeroValue", 1, 1, "optional.ofNonZeroValue(value)", |call| {
        let value = call.value(0);
        let zero = match value {
            Value::Bool(value) => !value,
            Value::Int(number) => *number == 0,
            Value::UInt(number) => *number == 0,
            Value::Double(number) => *number == 0.0,
            Value::Duration(span) => *span == 0,
            value => value.is_empty(),
        };
        if zero { Ok(Value::none()) } else { Value::some(value.clone(), call.meter) }
    }),
    member("hasValue", 0, 0, "optional.hasValue()", |call| Ok(Value::Bool(inner(call)?.is_some()))),
    member("value", 0, 0, "optional.value()", |call| match inner(call)? {
        Some(value) => Ok(value.clone()),
        None => Err(call.error("the optional is empty").with_help("use .orValue(...), or ask .hasValue() first")),
    }),
    member("or", 1, 1, "optional.or(optional)", |call| {
        let chosen = if inner(call)?.is_some() { call.value(0) } else { call.value(1) };
        match chosen {
            Value::Optional(_) => Ok(chosen.clone()),
            _ => Err(call.wrong(1, "an optional").with_help("use .orValue(...)")),
        }
    }),
    member("orValue", 1, 1, "optional.orValue(value)", |call| {
        Ok(inner(call)?.map_or_else(|| call.value(1).clone(), Value::clone))
    }),
];

fn inner<'a, 'v>(call: &Call<'a, 'v>) -> Result<Option<&'a Value<'v>>, EvaluationError> {
    match call.value(0) {
        Value::Optional(present) => Ok(present.as_ref().map(|present| present.value())),
        _ => Err(call.wrong(0, "an optional").with_help("what may be absent is read with a.?b or a[?b]")),
    }
}
