//! Functions on texts. Places in a text are counted in characters, as everywhere in CEL.

use super::{Call, Evaluated, Function, count, global, member, part, part_of};
use crate::expression::error::EvaluationError;
use crate::expression::operators::{double_text, nearest};
use crate::expression::value::Value;

pub(super) const FUNCTIONS: &[Function] = &[
    global("size", 1, 1, "size(value)", size),
    member("size", 0, 0, "value.size()", size),
    member("contains", 1, 1, "text.contains(part)", |call| Ok(Value::Bool(call.text(0)?.contains(&**call.text(1)?)))),
    member("startsWith", 1, 1, "text.startsWith(part)", |call| {
        Ok(Value::Bool(call.text(0)?.starts_with(&**call.text(1)?)))
    }),
    member("endsWith", 1, 1, "text.endsWith(part)", |call| Ok(Value::Bool(call.text(0)?.ends_with(&**call.text(1)?)))),
    member("charAt", 1, 1, "text.charAt(place)", char_at),
    member("indexOf", 1, 2, "text.indexOf(part, from)", index_of),
    member("lastIndexOf", 1, 2, "text.lastIndexOf(part, from)", last_index_of),
    member("lowerAscii", 0, 0, "text.lowerAscii()", |call| {
        let text = call.text(0)?.to_ascii_lowercase();
        call.made(text)
    }),
    member("upperAscii", 0, 0, "text.upperAscii()", |call| {
        let text = call.text(0)?.to_ascii_uppercase();
        call.made(text)
    }),
    member("trim", 0, 0, "text.trim()", |call| {
        let text = call.text(0)?;
        Ok(part_of(text, text.trim()))
    }),
    member("replace", 2, 3, "text.replace(old, new, limit)", replace),
    member("split", 1, 2, "text.split(separator, limit)", split),
    member("join", 0, 1, "list.join(separator)", join),
    member("substring", 1, 2, "text.substring(start, end)", substring),
    member("reverse", 0, 0, "value.reverse()", reverse),
    member("format", 1, 1, "text.format(list)", format),
    global("strings.quote", 1, 1, "strings.quote(text)", |call| {
        let quoted = serde_json::Value::from(&**call.text(0)?).to_string();
        call.made(quoted)
    }),
];

fn size<'v>(call: &mut Call<'_, 'v>) -> Evaluated<'v> {
    Ok(count(match call.value(0) {
        Value::String(text) => {
            call.budget.charge_bytes(text.len())?;
            text.chars().count()
        }
        Value::Bytes(bytes) => bytes.len(),
        value => {
            call.budget.charge(value.lookup_cost())?;
            value.count().ok_or_else(|| call.wrong(0, "a string, list or map"))?
        }
    }))
}

/// The byte at which a character is; the end for the place behind the last one.
fn byte_of(text: &str, place: usize) -> Option<usize> {
    text.char_indices().map(|(byte, _)| byte).chain([text.len()]).nth(place)
}

fn outside(call: &Call<'_, '_>, place: usize) -> EvaluationError {
    call.error(format!("place {place} is outside of the text"))
}

fn char_at<'v>(call: &mut Call<'_, 'v>) -> Evaluated<'v> {
    let (text, place) = (call.text(0)?, call.size(1)?);
    let start = byte_of(text, place).ok_or_else(|| outside(call, place))?;
    let length = text.get(start..).and_then(|rest| rest.chars().next()).map_or(0, char::len_utf8);
    Ok(Value::String(part(text, start..start + length)))
}

/// The place of a byte, counted in characters; -1 for none.
fn place_of<'v>(text: &str, byte: Option<usize>) -> Value<'v> {
    byte.and_then(|byte| text.get(..byte)).map_or(Value::Int(-1), |before| count(before.chars().count()))
}

fn index_of<'v>(call: &mut Call<'_, 'v>) -> Evaluated<'v> {
    if call.value(0).is_list() {
        return super::lists::index_of(call, false);
    }
    let (text, wanted) = (call.text(0)?, call.text(1)?);
    let from = if call.given(2) { call.size(2)? } else { 0 };
    let start = byte_of(text, from).ok_or_else(|| outside(call, from))?;
    let found = text.get(start..).and_then(|rest| rest.find(&**wanted)).map(|byte| byte + start);
    Ok(place_of(text, found))
}

fn last_index_of<'v>(call: &mut Call<'_, 'v>) -> Evaluated<'v> {
    if call.value(0).is_list() {
        return super::lists::index_of(call, true);
    }
    let (text, wanted) = (call.text(0)?, call.text(1)?);
    let end = if call.given(2) {
        let from = call.size(2)?;
        let start = byte_of(text, from).ok_or_else(|| outside(call, from))?;
        (start + wanted.len()).min(text.len())
    } else {
        text.len()
    };
    Ok(place_of(text, text.get(..end).and_then(|before| before.rfind(&**wanted))))
}

fn replace<'v>(call: &mut Call<'_, 'v>) -> Evaluated<'v> {
    let (text, old, new) = (call.text(0)?, call.text(1)?, call.text(2)?);
    let limit = if call.given(3) { usize::try_from(call.int(3)?).unwrap_or(usize::MAX) } else { usize::MAX };
    // How long the result is is known before it is made.
    let found = text.matches(&**old).take(limit).count();
    super::super::operators::check_length(text.len() + found * new.len())?;
    let text = text.replacen(&**old, new, limit);
    call.made(text)
}

fn split<'v>(call: &mut Call<'_, 'v>) -> Evaluated<'v> {
    let (text, separator) = (call.text(0)?, call.text(1)?);
    let limit = if call.given(2) { usize::try_from(call.int(2)?).unwrap_or(usize::MAX) } else { usize::MAX };
    // How many there will be is charged before they are made.
    let parts = if separator.is_empty() { text.chars().count() } else { text.matches(&**separator).count() };
    call.budget.charge(parts.min(limit))?;
    let parts: Vec<_> = match (limit, separator.is_empty()) {
        (0, _) => Vec::new(),
        (1, true) => vec![part_of(text, text)],
        (_, true) => {
            let mut bytes: Vec<_> = text.char_indices().map(|(byte, _)| byte).take(limit).collect();
            bytes.push(text.len());
            bytes
                .windows(2)
                .filter_map(|pair| match pair {
                    [start, end] => Some(Value::String(part(text, *start..*end))),
                    _ => None,
                })
                .collect()
        }
        (_, false) => text.splitn(limit, &**separator).map(|inner| part_of(text, inner)).collect(),
    };
    Ok(Value::list(parts))
}

fn join<'v>(call: &mut Call<'_, 'v>) -> Evaluated<'v> {
    let parts = call.texts(0)?;
    let separator: &str = if call.given(1) { call.text(1)? } else { "" };
    let length = parts.iter().map(|part| part.len() + separator.len()).sum();
    super::super::operators::check_length(length)?;
    let mut text = String::with_capacity(length);
    for (index, part) in parts.iter().enumerate() {
        if index > 0 {
            text.push_str(separator);
        }
        text.push_str(part);
    }
    call.made(text)
}

fn substring<'v>(call: &mut Call<'_, 'v>) -> Evaluated<'v> {
    let (text, start) = (call.text(0)?, call.size(1)?);
    let first = byte_of(text, start).ok_or_else(|| outside(call, start))?;
    let last = if call.given(2) {
        let end = call.size(2)?;
        byte_of(text, end).ok_or_else(|| outside(call, end))?
    } else {
        text.len()
    };
    if last < first {
        return Err(call.error("it would end before it begins"));
    }
    Ok(Value::String(part(text, first..last)))
}

fn reverse<'v>(call: &mut Call<'_, 'v>) -> Evaluated<'v> {
    if call.value(0).is_list() {
        let items = call.list(0)?;
        return Ok(Value::list(items.iter().rev().cloned().collect()));
    }
    let text = call.text(0)?.chars().rev().collect();
    call.made(text)
}

fn format<'v>(call: &mut Call<'_, 'v>) -> Evaluated<'v> {
    let text = call.text(0)?;
    let items = call.list(1)?;
    let mut items = items.iter();
    let mut made = String::new();
    let mut rest: &str = text;
    while let Some((before, directive)) = rest.split_once('%') {
        made.push_str(before);
        let (digits, kind, behind) = directive_of(directive).ok_or_else(|| {
            call.error("after % there stands s, d, f, e, x, X, o or b, with .n before f and e; %% is a percent sign")
        })?;
        rest = behind;
        if kind == '%' {
            made.push('%');
            continue;
        }
        let item = items.next().ok_or_else(|| call.error("there are more directives than values"))?;
        made.push_str(&written(call, kind, digits, item)?);
        super::super::operators::check_length(made.len())?;
    }
    made.push_str(rest);
    call.made(made)
}

/// The digits, the kind, and what stands behind a directive.
fn directive_of(text: &str) -> Option<(usize, char, &str)> {
    let (digits, rest) = match text.strip_prefix('.') {
        Some(rest) => {
            let length = rest.bytes().take_while(u8::is_ascii_digit).count();
            (rest.get(..length)?.parse().ok().filter(|digits| *digits <= 100)?, rest.get(length..)?)
        }
        None => (6, text),
    };
    let kind = rest.chars().next().filter(|kind| "sdfexXob%".contains(*kind))?;
    Some((digits, kind, rest.get(kind.len_utf8()..)?))
}

fn written(call: &Call<'_, '_>, kind: char, digits: usize, item: &Value<'_>) -> Result<String, EvaluationError> {
    let wrong = || call.error(format!("%{kind} does not take {}", item.described()));
    Ok(match (kind, item) {
        ('s', _) => match item {
            Value::Double(number) => double_text(*number),
            _ => super::conversions::text_of(item).ok_or_else(wrong)?,
        },
        ('d', Value::Int(number)) => number.to_string(),
        ('d', Value::UInt(number)) => number.to_string(),
        ('f' | 'e', Value::Int(number)) => fraction(kind, digits, nearest(*number)),
        ('f' | 'e', Value::Double(number)) => fraction(kind, digits, *number),
        ('x', Value::Int(number)) => signed(*number, |number| format!("{number:x}")),
        ('X', Value::Int(number)) => signed(*number, |number| format!("{number:X}")),
        ('o', Value::Int(number)) => signed(*number, |number| format!("{number:o}")),
        ('b', Value::Int(number)) => signed(*number, |number| format!("{number:b}")),
        ('b', Value::Bool(value)) => u8::from(*value).to_string(),
        ('x', Value::String(text)) => super::encoding::hexadecimal(text.as_bytes()),
        ('x', Value::Bytes(bytes)) => super::encoding::hexadecimal(bytes),
        _ => return Err(wrong()),
    })
}

fn fraction(kind: char, digits: usize, number: f64) -> String {
    if kind == 'f' { format!("{number:.digits$}") } else { exponent(&format!("{number:.digits$e}")) }
}

/// `1.5e3` as `1.5e+03`, as elsewhere.
fn exponent(text: &str) -> String {
    let Some((number, power)) = text.split_once('e') else { return text.to_owned() };
    let (sign, power) = power.strip_prefix('-').map_or(('+', power), |power| ('-', power));
    format!("{number}e{sign}{power:0>2}")
}

fn signed(number: i64, digits: impl Fn(u64) -> String) -> String {
    let sign = if number < 0 { "-" } else { "" };
    format!("{sign}{}", digits(number.unsigned_abs()))
}
