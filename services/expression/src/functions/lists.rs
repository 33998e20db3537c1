//! Functions on lists.

use std::cmp::Ordering;

use super::{Call, Evaluated, Function, count, global, member};
use crate::error::EvaluationError;
use crate::meter::Meter;
use crate::operators::{arithmetic, equal, granted_order, order};
use crate::syntax::Operator;
use crate::value::{ListBuilder, Value};

pub(super) const FUNCTIONS: &[Function] = &[
    member("slice", 2, 2, "list.slice(start, end)", slice),
    member("flatten", 0, 1, "list.flatten(depth)", flatten),
    member("distinct", 0, 0, "list.distinct()", distinct),
    member("sort", 0, 0, "list.sort()", |call| {
        let items = call.list(0)?;
        call.meter.charge_items(items.len())?;
        let mut items = items.to_vec();
        sort(&mut items, |item| item, call.meter)?;
        Value::list(items, call.meter)
    }),
    member("sum", 0, 0, "list.sum()", sum),
    member("min", 0, 0, "list.min()", |call| extreme(call, Ordering::Less)),
    member("max", 0, 0, "list.max()", |call| extreme(call, Ordering::Greater)),
    member("first", 0, 0, "list.first()", |call| {
        let first = call.list(0)?.first().cloned();
        Value::optional(first, call.meter)
    }),
    member("last", 0, 0, "list.last()", |call| {
        let last = call.list(0)?.last().cloned();
        Value::optional(last, call.meter)
    }),
    global("lists.range", 1, 1, "lists.range(number)", |call| {
        let mut list = ListBuilder::with_capacity(call.size(0)?, call.meter)?;
        for number in 0..call.size(0)? {
            list.push(count(number), call.meter)?;
        }
        list.finish(call.meter)
    }),
    global("firstOf", 1, 1, "firstOf(list)", first_of),
];

fn slice<'v>(call: &mut Call<'_, 'v>) -> Evaluated<'v> {
    let (items, start, end) = (call.list(0)?, call.size(1)?, call.size(2)?);
    let slice = items.get(start..end);
    let slice = slice.ok_or_else(|| call.error(format!("a list of {} has no items {start} to {end}", items.len())))?;
    Value::list(slice.iter().cloned(), call.meter)
}

fn flatten<'v>(call: &mut Call<'_, 'v>) -> Evaluated<'v> {
    let depth = if call.given(1) { call.size(1)? } else { 1 };
    call.list(0)?;
    let mut list = call.value(0).clone();
    for _ in 0..depth {
        let Some(items) = list.items(call.meter)? else { break };
        if !items.iter().any(Value::is_list) {
            break;
        }
        let mut flat = ListBuilder::new();
        for item in items.iter() {
            match item.items(call.meter)? {
                Some(inner) => {
                    for item in inner.iter() {
                        flat.push(item.clone(), call.meter)?;
                    }
                }
                None => flat.push(item.clone(), call.meter)?,
            }
        }
        list = flat.finish(call.meter)?;
    }
    Ok(list)
}

fn distinct<'v>(call: &mut Call<'_, 'v>) -> Evaluated<'v> {
    let items = call.list(0)?;
    let mut unique: Vec<Value<'v>> = Vec::new();
    call.meter.charge_items(items.len())?;
    for item in items.iter() {
        let mut seen = false;
        for other in &unique {
            call.meter.charge(1)?;
            if equal(other, item, call.meter)? {
                seen = true;
                break;
            }
        }
        if !seen {
            unique.push(item.clone());
        }
    }
    Value::list(unique, call.meter)
}

/// Sorts by keys, which must be of one ordered type. Equal items keep their order.
pub(crate) fn sort<'v, T>(
    items: &mut [T],
    key: impl Fn(&T) -> &Value<'v>,
    meter: &mut Meter,
) -> Result<(), EvaluationError> {
    let longest = items.iter().map(|item| key(item).length()).max().unwrap_or(0);
    meter.charge_sort(items.len(), longest)?;
    if let Some(first) = items.first().map(&key) {
        for item in items.iter() {
            let item = key(item);
            // Values of one type that compare with the first one also compare with one another.
            if item.type_name() != first.type_name() || granted_order(first, item).is_none() {
                return Err(EvaluationError::new(format!(
                    "a list is sorted by values of one kind; there are {} and {}",
                    first.described(),
                    item.described()
                )));
            }
        }
    }
    items.sort_by(|left, right| granted_order(key(left), key(right)).unwrap_or(Ordering::Equal));
    Ok(())
}

fn sum<'v>(call: &mut Call<'_, 'v>) -> Evaluated<'v> {
    let items = call.list(0)?;
    let mut items = items.iter();
    let Some(first) = items.next() else { return Ok(Value::Int(0)) };
    let addable = |value: &Value<'_>| {
        matches!(value, Value::Int(_) | Value::UInt(_) | Value::Double(_) | Value::Duration(_) | Value::Quantity(_))
    };
    if !addable(first) {
        return Err(call.error(format!("the list has {} in it, which cannot be summed", first.described())));
    }
    items.try_fold(first.clone(), |sum, item| arithmetic(Operator::Add, &sum, item, call.meter))
}

fn extreme<'v>(call: &mut Call<'_, 'v>, wanted: Ordering) -> Evaluated<'v> {
    let items = call.list(0)?;
    let Some(first) = items.first() else { return Err(call.error("the list is empty")) };
    let mut best = first;
    for item in items.iter() {
        let found = order(item, best, call.meter)?;
        let found =
            found.ok_or_else(|| call.error(format!("{} and {} do not compare", item.described(), best.described())))?;
        if found == wanted {
            best = item;
        }
    }
    Ok(best.clone())
}

/// Implements `list.indexOf(value)` and `list.lastIndexOf(value)`.
pub(super) fn index_of<'v>(call: &mut Call<'_, 'v>, last: bool) -> Evaluated<'v> {
    if call.given(2) {
        return Err(call.error("a list is searched as a whole: it takes one argument"));
    }
    let items = call.list(0)?;
    let mut found = None;
    for (place, item) in items.iter().enumerate() {
        if equal(item, call.value(1), call.meter)? {
            found = Some(place);
            if !last {
                break;
            }
        }
    }
    Ok(found.map_or(Value::Int(-1), count))
}

fn first_of<'v>(call: &mut Call<'_, 'v>) -> Evaluated<'v> {
    let items = call.list(0)?;
    let found = items.iter().find(|item| !item.is_empty()).or_else(|| items.last());
    Ok(match found.cloned() {
        Some(Value::Optional(None)) | None => Value::none(),
        Some(value) => value.unwrapped().unwrap_or(Value::Null),
    })
}
