//! Functions on maps. Entries keep their order: those of the first map first, then those that the others add.

use super::{Call, Evaluated, Function, global, part, part_of, range_in, shown};
use crate::value::{Key, MapBuilder, Text, TextBuilder, Value};

pub(super) const FUNCTIONS: &[Function] = &[
    global("merge", 1, 16, "merge(map, ...)", merge),
    global("omitEmpty", 1, 1, "omitEmpty(map)", |call| {
        let entries = call.map(0)?.into_iter().filter(|(_, value)| !value.is_empty());
        Value::map(entries.filter_map(|(key, value)| Some((key, value.unwrapped()?))), call.meter)
    }),
    global("toMap", 1, 1, "toMap(pairs)", to_map),
    global("pick", 2, 2, "pick(map, keys)", |call| chosen(call, true)),
    global("without", 2, 2, "without(map, keys)", |call| chosen(call, false)),
    global("prefixed", 2, 2, "prefixed(map, prefix)", prefixed),
    global("pairs", 1, 1, "pairs(map)", pairs),
    global("parsePairs", 1, 1, "parsePairs(text)", parse_pairs),
];

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
            return Err(call.error("each item is a list of a key and a value"));
        };
        let Some(key) = key.to_key() else {
            return Err(call.error(format!("the key of a map cannot be {}", key.described())));
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
        let value = value.to_text().map_err(|error| call.error(format!("the value of {:?}: {error}", shown(&key))))?;
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
            return Err(call.error(format!("{:?} has no = in it; pairs are written a=b,c=d", shown(piece))));
        };
        let key = Text::owned(key.trim(), call.meter)?;
        map.insert(Key::String(key), part_of(text, value.trim(), call.meter)?, call.meter)?;
    }
    map.finish(call.meter)
}
