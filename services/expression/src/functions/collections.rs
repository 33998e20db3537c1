//! Functions on lists, maps and optionals. A merged map has the entries of the first map, followed by those entries of
//! the later maps that have other keys.

use std::cmp::Ordering;

use super::{Call, Evaluated, Function, count, global, member, part, part_of, range_in, truncated};
use crate::error::EvaluationError;
use crate::meter::Meter;
use crate::operators::{arithmetic, equal, order, unmetered_order};
use crate::parse::Operator;
use crate::value::{Key, ListBuilder, MapBuilder, Text, TextBuilder, Value};

pub(super) const FUNCTIONS: &[Function] = &[
    member("list.slice(start, end)", slice).native(),
    member("list.flatten(depth)", flatten).with_optional_last().native(),
    member("list.distinct()", distinct).native(),
    member("list.sort()", |call| {
        let items = call.list(0)?;
        call.meter.charge_items(items.len())?;
        let mut items = items.to_vec();
        sort(&mut items, |item| item, call.meter)?;
        Value::list(items, call.meter)
    })
    .native(),
    member("list.sum()", sum).native_except_quantities(),
    member("list.min()", |call| extreme(call, Ordering::Less)).native_except_quantities(),
    member("list.max()", |call| extreme(call, Ordering::Greater)).native_except_quantities(),
    member("list.first()", |call| {
        let first = call.list(0)?.first().cloned();
        Value::optional(first, call.meter)
    })
    .native(),
    member("list.last()", |call| {
        let last = call.list(0)?.last().cloned();
        Value::optional(last, call.meter)
    })
    .native(),
    global("lists.range(number)", |call| {
        let mut list = ListBuilder::with_capacity(call.size(0)?, call.meter)?;
        for number in 0..call.size(0)? {
            list.push(count(number), call.meter)?;
        }
        list.finish(call.meter)
    })
    .native(),
    global("firstOf(list)", first_of),
    global("merge(map, ...)", merge),
    global("omitEmpty(map)", |call| {
        let entries = call.map(0)?.into_iter().filter(|(_, value)| !value.is_empty());
        Value::map(entries.filter_map(|(key, value)| Some((key, value.unwrapped()?))), call.meter)
    }),
    global("toMap(pairs)", to_map),
    global("pick(map, keys)", |call| chosen(call, true)),
    global("without(map, keys)", |call| chosen(call, false)),
    global("prefixed(map, prefix)", prefixed),
    global("pairs(map)", pairs),
    global("parsePairs(text)", parse_pairs),
    global("optional.of(value)", |call| Value::some(call.value(0).clone(), call.meter)).native(),
    global("optional.none()", |_| Ok(Value::none())).native(),
    global("optional.ofNonZeroValue(value)", |call| {
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
    })
    .native(),
    member("optional.hasValue()", |call| Ok(Value::Bool(inner(call)?.is_some()))).native(),
    member("optional.value()", |call| match inner(call)? {
        Some(value) => Ok(value.clone()),
        None => Err(call.error("the optional is empty").with_help("use .orValue(...), or check .hasValue() first")),
    })
    .native(),
    member("optional.or(optional)", |call| {
        let chosen = if inner(call)?.is_some() { call.value(0) } else { call.value(1) };
        match chosen {
            Value::Optional(_) => Ok(chosen.clone()),
            _ => Err(call.type_error(1, "an optional").with_help("use .orValue(...)")),
        }
    })
    .native(),
    member("optional.orValue(value)", |call| Ok(inner(call)?.map_or_else(|| call.value(1).clone(), Value::clone)))
        .native(),
];

fn slice<'v>(call: &mut Call<'_, 'v>) -> Evaluated<'v> {
    let (items, start, end) = (call.list(0)?, call.size(1)?, call.size(2)?);
    let slice = items.get(start..end);
    let slice = slice.ok_or_else(|| call.error(format!("a list of {} has no items {start} to {end}", items.len())))?;
    Value::list(slice.iter().cloned(), call.meter)
}

fn flatten<'v>(call: &mut Call<'_, 'v>) -> Evaluated<'v> {
    let depth = if call.has_argument(1) { call.size(1)? } else { 1 };
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

/// Sorts items by their keys. All keys must have the same type, and that type must have an order. Items with equal keys
/// keep their order.
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
            // If all values have the type of the first one and can be compared with it, all can be compared with one
            // another.
            if item.type_name() != first.type_name() || unmetered_order(first, item).is_none() {
                return Err(EvaluationError::new(format!(
                    "the sort keys of a list must have the same type, but there are {} and {}",
                    first.describe(),
                    item.describe()
                )));
            }
        }
    }
    items.sort_by(|left, right| unmetered_order(key(left), key(right)).unwrap_or(Ordering::Equal));
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
        return Err(call.error(format!("the list contains {}, which cannot be summed", first.describe())));
    }
    items.try_fold(first.clone(), |sum, item| arithmetic(Operator::Add, &sum, item, call.meter))
}

fn extreme<'v>(call: &mut Call<'_, 'v>, wanted: Ordering) -> Evaluated<'v> {
    let items = call.list(0)?;
    let Some(first) = items.first() else { return Err(call.error("the list is empty")) };
    let mut best = first;
    for item in items.iter() {
        let found = order(item, best, call.meter)?;
        let found = found
            .ok_or_else(|| call.error(format!("{} and {} cannot be compared", item.describe(), best.describe())))?;
        if found == wanted {
            best = item;
        }
    }
    Ok(best.clone())
}

/// Implements `list.indexOf(value)` and `list.lastIndexOf(value)`.
pub(super) fn index_of<'v>(call: &mut Call<'_, 'v>, last: bool) -> Evaluated<'v> {
    if call.has_argument(2) {
        return Err(call.error("on a list, this function takes one argument"));
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

fn merge<'v>(call: &mut Call<'_, 'v>) -> Evaluated<'v> {
    let mut merged = MapBuilder::new();
    for place in 0..call.arguments.len() {
        for (key, value) in call.map(place)? {
            merged.insert_if_absent(key, value, call.meter)?;
        }
    }
    merged.finish(call.meter)
}

fn to_map<'v>(call: &mut Call<'_, 'v>) -> Evaluated<'v> {
    let items = call.list(0)?;
    let mut map = MapBuilder::new();
    for item in items.iter() {
        let pair = item.items(call.meter)?;
        let [key, value] = pair.as_deref().unwrap_or_default() else {
            return Err(call.error("each item must be a list of a key and a value"));
        };
        let Some(key) = key.to_key() else {
            return Err(call.error(format!("the key of a map cannot be {}", key.describe())));
        };
        map.insert_if_absent(key, value.clone(), call.meter)?;
    }
    map.finish(call.meter)
}

fn chosen<'v>(call: &mut Call<'_, 'v>, wanted: bool) -> Evaluated<'v> {
    let entries = call.map(0)?;
    let keys = call.texts(1)?;
    let longest = keys.iter().map(|key| key.len()).max().unwrap_or(0);
    call.meter.charge(entries.len().saturating_mul(keys.len()).saturating_mul(1 + longest / 64))?;
    let listed = |key: &Key<'_>| keys.iter().any(|name| key.is(name));
    Value::map(entries.into_iter().filter(|(key, _)| listed(key) == wanted), call.meter)
}

fn prefixed<'v>(call: &mut Call<'_, 'v>) -> Evaluated<'v> {
    let (entries, prefix) = (call.map(0)?, call.text(1)?);
    let mut map = MapBuilder::new();
    for (key, value) in entries {
        call.meter.charge_bytes(prefix.len())?;
        if let Key::String(text) = &key
            && let Some(rest) = text.strip_prefix(&**prefix)
        {
            let rest = part(text, range_in(text, rest), call.meter)?;
            map.insert(Key::String(rest), value, call.meter)?;
        }
    }
    map.finish(call.meter)
}

fn pairs<'v>(call: &mut Call<'_, 'v>) -> Evaluated<'v> {
    let entries = call.map(0)?;
    let mut entries: Vec<_> = entries.iter().map(|(key, value)| (key.to_text(), value)).collect();
    call.meter.charge_sort(entries.len(), entries.iter().map(|(key, _)| key.len()).max().unwrap_or(0))?;
    entries.sort_by(|(left, _), (right, _)| left.cmp(right));
    let mut text = TextBuilder::with_capacity(0, call.meter)?;
    for (key, value) in entries {
        let Some(value) = value.clone().unwrapped() else { continue };
        if !text.as_str().is_empty() {
            text.push(",", call.meter)?;
        }
        let value =
            value.to_text().map_err(|error| call.error(format!("the value of {:?}: {error}", truncated(&key))))?;
        for piece in [&key, "=", &value] {
            text.push(piece, call.meter)?;
        }
    }
    text.finish(call.meter)
}

fn parse_pairs<'v>(call: &mut Call<'_, 'v>) -> Evaluated<'v> {
    let text = call.text(0)?;
    call.meter.charge_bytes(text.len())?;
    let mut map = MapBuilder::new();
    for piece in text.split(',').map(str::trim) {
        call.meter.charge(1)?;
        if piece.is_empty() {
            continue;
        }
        let Some((key, value)) = piece.split_once('=') else {
            return Err(call.error(format!("{:?} contains no =; write pairs as a=b,c=d", truncated(piece))));
        };
        let key = Text::owned(key.trim(), call.meter)?;
        map.insert(Key::String(key), part_of(text, value.trim(), call.meter)?, call.meter)?;
    }
    map.finish(call.meter)
}

fn inner<'a, 'v>(call: &Call<'a, 'v>) -> Result<Option<&'a Value<'v>>, EvaluationError> {
    match call.value(0) {
        Value::Optional(present) => Ok(present.as_ref().map(|present| present.value())),
        _ => Err(call.type_error(0, "an optional").with_help("read a value that may be absent with a.?b or a[?b]")),
    }
}
