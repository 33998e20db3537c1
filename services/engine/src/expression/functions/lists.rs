//! Functions on lists.

use std::cmp::Ordering;

use super::{Call, Evaluated, Function, count, global, member};
use crate::expression::budget::Budget;
use crate::expression::error::EvaluationError;
use crate::expression::operators::{arithmetic, equal, order};
use crate::expression::syntax::Operator;
use crate::expression::value::Value;

pub(super) const FUNCTIONS: &[Function] = &[
    member("slice", 2, 2, "list.slice(start, end)", slice),
    member("flatten", 0, 1, "list.flatten(depth)", flatten),
    member("distinct", 0, 0, "list.distinct()", distinct),
    member("sort", 0, 0, "list.sort()", |call| {
        let mut items = call.list(0)?.to_vec();
        sort(&mut items, |item| item, call.budget)?;
        Ok(Value::list(items))
    }),
    member("sum", 0, 0, "list.sum()", sum),
    member("min", 0, 0, "list.min()", |call| extreme(call, Ordering::Less)),
    member("max", 0, 0, "list.max()", |call| extreme(call, Ordering::Greater)),
    member("first", 0, 0, "list.first()", |call| Ok(call.list(0)?.first().cloned().map_or(Value::none(), Value::some))),
    member("last", 0, 0, "list.last()", |call| Ok(call.list(0)?.last().cloned().map_or(Value::none(), Value::some))),
    global("lists.range", 1, 1, "lists.range(number)", |call| {
        let size = call.size(0)?;
        call.budget.charge(size)?;
        Ok(Value::list((0..size).map(count).collect()))
    }),
    global("firstOf", 1, 1, "firstOf(list)", first_of),
];

fn slice<'v>(call: &mut Call<'_, 'v>) -> Evaluated<'v> {
    let (items, start, end) = (call.list(0)?, call.size(1)?, call.size(2)?);
    let slice = items.get(start..end);
    let slice = slice.ok_or_else(|| call.error(format!("a list of {} has no items {start} to {end}", items.len())))?;
    Ok(Value::list(slice.to_vec()))
}

fn flatten<'v>(call: &mut Call<'_, 'v>) -> Evaluated<'v> {
    let depth = if call.given(1) { call.size(1)? } else { 1 };
    let mut items = call.list(0)?.to_vec();
    for _ in 0..depth {
        if !items.iter().any(Value::is_list) {
            break;
        }
        let mut flat = Vec::with_capacity(items.len());
        for item in items {
            match item.items() {
                Some(inner) => {
                    // Before they are copied: one long list may stand in the other many times.
                    call.budget.charge(inner.len())?;
                    flat.extend(inner.iter().cloned());
                }
                None => flat.push(item),
            }
        }
        items = flat;
    }
    Ok(Value::list(items))
}

fn distinct<'v>(call: &mut Call<'_, 'v>) -> Evaluated<'v> {
    let items = call.list(0)?;
    let mut unique: Vec<Value<'v>> = Vec::new();
    for item in items.iter() {
        let mut seen = false;
        for other in &unique {
            call.budget.charge(1)?;
            if equal(other, item, call.budget)? {
                seen = true;
                break;
            }
        }
        if !seen {
            unique.push(item.clone());
        }
    }
    Ok(Value::list(unique))
}

/// Sorts by keys, which have to be of one kind that has an order. What is equal stays in its order.
pub(in crate::expression) fn sort<'v, T>(
    items: &mut [T],
    key: impl Fn(&T) -> &Value<'v>,
    budget: &mut Budget,
) -> Result<(), EvaluationError> {
    budget.charge(items.len().saturating_mul(8))?;
    if let Some(first) = items.first().map(&key) {
        for item in items.iter() {
            let item = key(item);
            // Values of one kind that all compare with one of them compare with one another.
            if item.type_name() != first.type_name() || order(first, item).is_none() {
                return Err(EvaluationError::new(format!(
                    "a list is sorted by values of one kind; there are {} and {}",
                    first.described(),
                    item.described()
                )));
            }
        }
    }
    items.sort_by(|left, right| order(key(left), key(right)).unwrap_or(Ordering::Equal));
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
    items.try_fold(first.clone(), |sum, item| arithmetic(Operator::Add, &sum, item, call.budget))
}

fn extreme<'v>(call: &mut Call<'_, 'v>, wanted: Ordering) -> Evaluated<'v> {
    let items = call.list(0)?;
    let Some(first) = items.first() else { return Err(call.error("the list is empty")) };
    let mut best = first;
    for item in items.iter() {
        let found = order(item, best);
        let found =
            found.ok_or_else(|| call.error(format!("{} and {} do not compare", item.described(), best.described())))?;
        if found == wanted {
            best = item;
        }
    }
    Ok(best.clone())
}

/// `list.indexOf(value)` and `list.lastIndexOf(value)`.
pub(super) fn index_of<'v>(call: &mut Call<'_, 'v>, last: bool) -> Evaluated<'v> {
    if call.given(2) {
        return Err(call.error("a list is searched as a whole: it takes one argument"));
    }
    let items = call.list(0)?;
    let mut found = None;
    for (place, item) in items.iter().enumerate() {
        if equal(item, call.value(1), call.budget)? {
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
