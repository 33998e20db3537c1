//! Functions on maps. The order of a map's entries is kept: the first map's first, then what others add.

use std::fmt::Write as _;

use super::{Call, Evaluated, Function, global, part_of};
use crate::expression::value::{Key, Map, Text, Value};

pub(super) const FUNCTIONS: &[Function] = &[
    global("merge", 1, 16, "merge(map, ...)", merge),
    global("omitEmpty", 1, 1, "omitEmpty(map)", |call| {
        let entries = call.map(0)?.into_iter();
        Ok(Value::map(
            entries
                .filter(|(_, value)| !value.is_empty())
                .filter_map(|(key, value)| Some((key, value.unwrapped()?)))
                .collect(),
        ))
    }),
    global("toMap", 1, 1, "toMap(pairs)", to_map),
    global("pick", 2, 2, "pick(map, keys)", |call| chosen(call, true)),
    global("without", 2, 2, "without(map, keys)", |call| chosen(call, false)),
    global("prefixed", 2, 2, "prefixed(map, prefix)", prefixed),
    global("pairs", 1, 1, "pairs(map)", pairs),
    global("parsePairs", 1, 1, "parsePairs(text)", parse_pairs),
];

fn merge<'v>(call: &mut Call<'_, 'v>) -> Evaluated<'v> {
    let mut merged = Map::new();
    for place in 0..call.arguments.len() {
        for (key, value) in call.map(place)? {
            merged.entry(key).or_insert(value);
        }
    }
    Ok(Value::map(merged))
}

fn to_map<'v>(call: &mut Call<'_, 'v>) -> Evaluated<'v> {
    let items = call.list(0)?;
    let mut map = Map::with_capacity(items.len());
    for item in items.iter() {
        let pair = item.items();
        let [key, value] = pair.as_deref().unwrap_or_default() else {
            return Err(call.error("each item is a list of a key and a value"));
        };
        let Some(key) = key.to_key() else {
            return Err(call.error(format!("the key of a map cannot be {}", key.described())));
        };
        map.entry(key).or_insert_with(|| value.clone());
    }
    Ok(Value::map(map))
}

fn chosen<'v>(call: &mut Call<'_, 'v>, wanted: bool) -> Evaluated<'v> {
    let entries = call.map(0)?;
    let keys = call.texts(1)?;
    call.budget.charge(entries.len().saturating_mul(keys.len()))?;
    let listed = |key: &Key<'_>| keys.iter().any(|name| key.is(name));
    Ok(Value::map(entries.into_iter().filter(|(key, _)| listed(key) == wanted).collect()))
}

fn prefixed<'v>(call: &mut Call<'_, 'v>) -> Evaluated<'v> {
    let (entries, prefix) = (call.map(0)?, call.text(1)?);
    let cut = |key: Key<'v>| match &key {
        Key::String(text) => {
            let rest = text.strip_prefix(&**prefix)?;
            match part_of(text, rest) {
                Value::String(text) => Some(Key::String(text)),
                _ => None,
            }
        }
        _ => None,
    };
    Ok(Value::map(entries.into_iter().filter_map(|(key, value)| Some((cut(key)?, value))).collect()))
}

fn pairs<'v>(call: &mut Call<'_, 'v>) -> Evaluated<'v> {
    let entries = call.map(0)?;
    let mut entries: Vec<_> = entries.iter().map(|(key, value)| (key.to_text(), value)).collect();
    entries.sort_by(|(left, _), (right, _)| left.cmp(right));
    let mut text = String::new();
    for (key, value) in entries {
        let Some(value) = value.clone().unwrapped() else { continue };
        if !text.is_empty() {
            text.push(',');
        }
        let value = value.to_text().map_err(|error| call.error(format!("the value of {key:?}: {error}")))?;
        write!(text, "{key}={value}").map_err(|_| call.error("the text cannot be written"))?;
        super::super::operators::check_length(text.len())?;
    }
    call.made(text)
}

fn parse_pairs<'v>(call: &mut Call<'_, 'v>) -> Evaluated<'v> {
    let text = call.text(0)?;
    call.budget.charge_bytes(text.len())?;
    let mut map = Map::new();
    for piece in text.split(',').map(str::trim).filter(|piece| !piece.is_empty()) {
        let Some((key, value)) = piece.split_once('=') else {
            return Err(call.error(format!("{:?} has no = in it; pairs are written a=b,c=d", shown(piece))));
        };
        call.budget.charge(1)?;
        map.insert(Key::String(Text::Shared(key.trim().into())), part_of(text, value.trim()));
    }
    Ok(Value::map(map))
}

/// A text that is short enough for a message.
pub(super) fn shown(text: &str) -> String {
    match text.char_indices().nth(60) {
        Some((end, _)) => format!("{}...", text.get(..end).unwrap_or_default()),
        None => text.to_owned(),
    }
}
