//! Functions on strings, and functions that encode values as strings or decode them. Positions count characters, as in
//! CEL.

use std::fmt::Write as _;

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, STANDARD_NO_PAD};
use sha2::{Digest, Sha256};

use super::{Call, Evaluated, Function, count, global, member, part, part_of, truncated};
use crate::MAXIMUM_RESULT;
use crate::error::EvaluationError;
use crate::operators::{double_text, nearest};
use crate::value::{ListBuilder, TextBuilder, Value};

pub(super) const FUNCTIONS: &[Function] = &[
    global("size(value)", size).native(),
    member("value.size()", size).native(),
    member("text.contains(part)", |call| {
        call.charge_search()?;
        Ok(Value::Bool(call.text(0)?.contains(&**call.text(1)?)))
    })
    .native(),
    member("text.startsWith(part)", |call| Ok(Value::Bool(call.text(0)?.starts_with(&**call.text(1)?)))).native(),
    member("text.endsWith(part)", |call| Ok(Value::Bool(call.text(0)?.ends_with(&**call.text(1)?)))).native(),
    member("text.charAt(place)", char_at).native(),
    member("text.indexOf(part, from)", index_of).with_optional_last().native(),
    member("text.lastIndexOf(part, from)", last_index_of).with_optional_last().native(),
    member("text.lowerAscii()", |call| {
        let text = call.text(0)?;
        call.build_text(text.len(), |out| {
            out.write_str(text)?;
            out.as_mut_str().make_ascii_lowercase();
            Ok(())
        })
    })
    .native(),
    member("text.upperAscii()", |call| {
        let text = call.text(0)?;
        call.build_text(text.len(), |out| {
            out.write_str(text)?;
            out.as_mut_str().make_ascii_uppercase();
            Ok(())
        })
    })
    .native(),
    member("text.trim()", |call| {
        let text = call.text(0)?;
        part_of(text, text.trim(), call.meter)
    })
    .native(),
    member("text.replace(old, new, limit)", replace).with_optional_last().native(),
    member("text.split(separator, limit)", split).with_optional_last().native(),
    member("list.join(separator)", join).with_optional_last().native(),
    member("text.substring(start, end)", substring).with_optional_last().native(),
    member("value.reverse()", reverse),
    member("text.format(list)", format).native(),
    global("strings.quote(text)", |call| {
        let text = call.text(0)?;
        // Escaping a byte results in at most six bytes.
        call.meter.charge_memory(6 * text.len())?;
        let quoted = serde_json::to_string(&**text).unwrap_or_default();
        call.build_text(quoted.len(), |out| out.write_str(&quoted))
    })
    .native(),
    global("base64.encode(bytes)", |call| {
        let bytes = bytes_of(call)?;
        call.meter.charge_text(bytes.len() / 3 * 4 + 4)?;
        let text = STANDARD.encode(bytes);
        call.short_text(&text)
    }),
    global("base64.decode(text)", |call| {
        let text = call.text(0)?;
        call.meter.charge_memory(text.len())?;
        let engine = if text.ends_with('=') || text.len() % 4 == 0 { &STANDARD } else { &STANDARD_NO_PAD };
        let bytes = engine.decode(text.as_bytes());
        let bytes = bytes.map_err(|_| call.error(format!("{:?} is not base64", truncated(text))))?;
        Value::bytes(&bytes, call.meter)
    }),
    global("sha256(value)", |call| {
        let text = hexadecimal(&Sha256::digest(bytes_of(call)?));
        call.short_text(&text)
    }),
    global("toJson(value)", |call| {
        let json = call.value(0).to_json(call.meter)?.unwrap_or_default();
        let mut length = Length(0);
        serde_json::to_writer(&mut length, &json).map_err(|error| call.error(error))?;
        call.meter.charge_text(length.0)?;
        call.short_text(&json.to_string())
    }),
    global("parseJson(text)", |call| {
        let text = readable(call)?;
        let value: serde_json::Value =
            serde_json::from_str(text).map_err(|error| call.error(format!("the string is not JSON: {error}")))?;
        Value::from_json(value, call.meter)
    }),
    global("isJson(text)", |call| {
        let text = readable(call)?;
        Ok(Value::Bool(serde_json::from_str::<serde::de::IgnoredAny>(text).is_ok()))
    }),
    global("parseYaml(text)", |call| {
        let text = readable(call)?;
        // Parsing YAML is much slower than parsing JSON, and aliases may repeat values up to the limits of the parser.
        call.meter.charge(text.len().saturating_mul(8))?;
        call.meter.charge_memory(pillion_json::yaml::MAXIMUM_NODES.min(text.len().saturating_mul(64)) * VALUE)?;
        let value = pillion_json::yaml::parse(text).map_err(|message| call.error(message))?;
        Value::from_json(value, call.meter)
    }),
];

impl Call<'_, '_> {
    /// Charges the meter for searching the first argument for the second one.
    fn charge_search(&mut self) -> Result<(), EvaluationError> {
        let length = self.value(0).length() + self.value(1).length();
        self.meter.charge(length / 8)
    }
}

fn size<'v>(call: &mut Call<'_, 'v>) -> Evaluated<'v> {
    Ok(count(match call.value(0) {
        Value::String(text) => {
            call.meter.charge_bytes(text.len())?;
            text.chars().count()
        }
        Value::Bytes(bytes) => bytes.len(),
        value => value.count(call.meter)?.ok_or_else(|| call.type_error(0, "a string, list or map"))?,
    }))
}

/// Returns the byte offset of the character at a position. For the position after the last character, returns the
/// length of the string.
fn byte_of(call: &mut Call<'_, '_>, text: &str, place: usize) -> Result<usize, EvaluationError> {
    // Finding the offset requires counting characters one by one.
    call.meter.charge(text.len() / 8)?;
    let found = text.char_indices().map(|(byte, _)| byte).chain([text.len()]).nth(place);
    found.ok_or_else(|| call.error(format!("position {place} is outside of the string")))
}

fn char_at<'v>(call: &mut Call<'_, 'v>) -> Evaluated<'v> {
    let (text, place) = (call.text(0)?, call.size(1)?);
    let start = byte_of(call, text, place)?;
    let length = text.get(start..).and_then(|rest| rest.chars().next()).map_or(0, char::len_utf8);
    Ok(Value::String(part(text, start..start + length, call.meter)?))
}

/// Returns the position of the character at a byte offset. -1 if the offset is `None`.
fn position_of<'v>(text: &str, byte: Option<usize>) -> Value<'v> {
    byte.and_then(|byte| text.get(..byte)).map_or(Value::Int(-1), |before| count(before.chars().count()))
}

fn index_of<'v>(call: &mut Call<'_, 'v>) -> Evaluated<'v> {
    if call.value(0).is_list() {
        return super::collections::index_of(call, false);
    }
    call.charge_search()?;
    let (text, part_text) = (call.text(0)?, call.text(1)?);
    let from = if call.has_argument(2) { call.size(2)? } else { 0 };
    let start = byte_of(call, text, from)?;
    let found = text.get(start..).and_then(|rest| rest.find(&**part_text)).map(|byte| byte + start);
    Ok(position_of(text, found))
}

fn last_index_of<'v>(call: &mut Call<'_, 'v>) -> Evaluated<'v> {
    if call.value(0).is_list() {
        return super::collections::index_of(call, true);
    }
    call.charge_search()?;
    let (text, part_text) = (call.text(0)?, call.text(1)?);
    let end = if call.has_argument(2) {
        let from = call.size(2)?;
        let start = byte_of(call, text, from)?;
        (start + part_text.len()).min(text.len())
    } else {
        text.len()
    };
    Ok(position_of(text, text.get(..end).and_then(|before| before.rfind(&**part_text))))
}

fn replace<'v>(call: &mut Call<'_, 'v>) -> Evaluated<'v> {
    let (text, old, new) = (call.text(0)?, call.text(1)?, call.text(2)?);
    let limit = call.limit(3)?;
    call.charge_search()?;
    // The length of the result is computed first, so that it is charged before the result is built.
    let found = text.matches(&**old).take(limit).count();
    let length = (text.len() + found.saturating_mul(new.len())).saturating_sub(found * old.len());
    call.build_text(length, |out| {
        let mut tail = 0;
        for (at, old) in text.match_indices(&**old).take(limit) {
            out.write_str(text.get(tail..at).unwrap_or_default())?;
            out.write_str(new)?;
            tail = at + old.len();
        }
        out.write_str(text.get(tail..).unwrap_or_default())
    })
}

fn split<'v>(call: &mut Call<'_, 'v>) -> Evaluated<'v> {
    let (text, separator) = (call.text(0)?, call.text(1)?);
    let limit = call.limit(2)?;
    call.charge_search()?;
    let mut parts = ListBuilder::new();
    if separator.is_empty() {
        // Each character is a separate part, but with a limit, the last part contains the rest of the string.
        let starts = text.char_indices().map(|(byte, _)| byte).take(limit);
        let ends = text.char_indices().map(|(byte, _)| byte).skip(1).chain([text.len()]);
        for (place, (start, end)) in starts.zip(ends).enumerate() {
            let end = if place + 1 == limit { text.len() } else { end };
            parts.push(Value::String(part(text, start..end, call.meter)?), call.meter)?;
        }
    } else {
        for inner in text.splitn(limit, &**separator) {
            parts.push(part_of(text, inner, call.meter)?, call.meter)?;
        }
    }
    parts.finish(call.meter)
}

fn join<'v>(call: &mut Call<'_, 'v>) -> Evaluated<'v> {
    let parts = call.texts(0)?;
    let separator: &str = if call.has_argument(1) { call.text(1)? } else { "" };
    let length = parts.iter().map(|part| part.len() + separator.len()).sum();
    call.build_text(length, |text| {
        parts.iter().enumerate().try_for_each(|(index, part)| {
            text.write_str(if index > 0 { separator } else { "" })?;
            text.write_str(part)
        })
    })
}

fn substring<'v>(call: &mut Call<'_, 'v>) -> Evaluated<'v> {
    let (text, start) = (call.text(0)?, call.size(1)?);
    let first = byte_of(call, text, start)?;
    let last = if call.has_argument(2) {
        let end = call.size(2)?;
        byte_of(call, text, end)?
    } else {
        text.len()
    };
    if last < first {
        return Err(call.error("the end is before the start"));
    }
    Ok(Value::String(part(text, first..last, call.meter)?))
}

fn reverse<'v>(call: &mut Call<'_, 'v>) -> Evaluated<'v> {
    if call.value(0).is_list() {
        let items = call.list(0)?;
        return Value::list(items.iter().rev().cloned(), call.meter);
    }
    let text = call.text(0)?;
    call.build_text(text.len(), |out| out.extend(text.chars().rev()))
}

fn format<'v>(call: &mut Call<'_, 'v>) -> Evaluated<'v> {
    let text = call.text(0)?;
    let items = call.list(1)?;
    let mut items = items.iter();
    let mut result = TextBuilder::with_capacity(0, call.meter)?;
    let mut rest: &str = text;
    while let Some((before, directive)) = rest.split_once('%') {
        call.meter.charge(FORMAT)?;
        result.push(before, call.meter)?;
        let (digits, kind, tail) = directive_of(directive).ok_or_else(|| {
            call.error(
                "% must be followed by s, d, f, e, x, X, o or b; f and e may have .n before them; %% is a percent sign",
            )
        })?;
        rest = tail;
        if kind == '%' {
            result.push("%", call.meter)?;
            continue;
        }
        let item = items.next().ok_or_else(|| call.error("there are more directives than values"))?;
        // A byte is formatted as at most two hexadecimal digits.
        call.meter.charge_text(2 * item.length())?;
        result.push(&formatted(call, kind, digits, item)?, call.meter)?;
    }
    result.push(rest, call.meter)?;
    result.finish(call.meter)
}

/// Parses a directive after its percent sign. Returns its precision, its kind, and the rest of the string. `None` if it
/// is invalid.
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

/// The number of steps for one directive of a format. It is enough to format a number with a hundred decimals.
const FORMAT: usize = 20;

fn formatted(call: &Call<'_, '_>, kind: char, digits: usize, item: &Value<'_>) -> Result<String, EvaluationError> {
    let wrong = || call.error(format!("%{kind} does not take {}", item.describe()));
    Ok(match (kind, item) {
        ('s', _) => match item {
            Value::Double(number) => double_text(*number),
            _ => super::numbers::text_of(item).ok_or_else(wrong)?,
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
        ('x', Value::String(text)) => hexadecimal(text.as_bytes()),
        ('x', Value::Bytes(bytes)) => hexadecimal(bytes),
        _ => return Err(wrong()),
    })
}

fn fraction(kind: char, digits: usize, number: f64) -> String {
    if kind == 'f' { format!("{number:.digits$}") } else { exponent(&format!("{number:.digits$e}")) }
}

/// Pads an exponent to two digits with a sign: `1.5e3` becomes `1.5e+03`.
fn exponent(text: &str) -> String {
    let Some((number, power)) = text.split_once('e') else { return text.to_owned() };
    let (sign, power) = power.strip_prefix('-').map_or(('+', power), |power| ('-', power));
    format!("{number}e{sign}{power:0>2}")
}

fn signed(number: i64, digits: impl Fn(u64) -> String) -> String {
    let sign = if number < 0 { "-" } else { "" };
    format!("{sign}{}", digits(number.unsigned_abs()))
}

fn bytes_of<'a>(call: &mut Call<'a, '_>) -> Result<&'a [u8], EvaluationError> {
    let bytes: &[u8] = match call.value(0) {
        Value::Bytes(bytes) => bytes,
        Value::String(text) => text.as_bytes(),
        _ => return Err(call.type_error(0, "a string or bytes")),
    };
    call.meter.charge(bytes.len() / 4)?;
    Ok(bytes)
}

/// Returns the string to decode, and charges the meter for decoding it.
///
/// # Errors
/// The string is too long, or the meter's budget is too small for decoding it.
fn readable<'a>(call: &mut Call<'a, '_>) -> Result<&'a str, EvaluationError> {
    let text = call.text(0)?;
    if text.len() > MAXIMUM_RESULT {
        return Err(call.error(format!("a string of {} bytes is too long to be decoded", text.len())));
    }
    call.meter.charge(text.len() / 4)?;
    // A value may follow each comma, colon and opening bracket.
    let values = 1 + text.bytes().filter(|byte| b",:[{".contains(byte)).count();
    call.meter.charge(values)?;
    call.meter.charge_memory(text.len() + values.saturating_mul(VALUE))?;
    Ok(text)
}

/// The memory that is charged for a decoded value, in bytes, including its slot in a list or map.
const VALUE: usize = 96;

/// A writer that only counts bytes.
struct Length(usize);

impl std::io::Write for Length {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0 += bytes.len();
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

pub(super) fn hexadecimal(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len() * 2);
    for byte in bytes {
        // Writing to a string never fails.
        let _ = write!(text, "{byte:02x}");
    }
    text
}
