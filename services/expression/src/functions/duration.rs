//! Durations in Go's notation: `1h30m`, `6s`, `250ms`.

use super::{Call, Evaluated, Function, global, member, shown};
use crate::error::EvaluationError;
use crate::value::Value;

pub(super) const FUNCTIONS: &[Function] = &[
    global("duration", 1, 1, "duration(text)", |call| match call.value(0) {
        span @ Value::Duration(_) => Ok(span.clone()),
        Value::String(text) => parse(text).map(Value::Duration).ok_or_else(|| {
            call.error(format!("{:?} is no duration", shown(text))).with_help("it is written 1h30m, 6s, 250ms")
        }),
        _ => Err(call.wrong(0, "a string")),
    }),
    member("getHours", 0, 0, "duration.getHours()", |call| units(call, 3_600_000_000_000)),
    member("getMinutes", 0, 0, "duration.getMinutes()", |call| units(call, 60_000_000_000)),
    member("getSeconds", 0, 0, "duration.getSeconds()", |call| units(call, 1_000_000_000)),
    member("getMilliseconds", 0, 0, "duration.getMilliseconds()", |call| units(call, 1_000_000)),
];

/// The maximum length of a duration in bytes. A duration with each unit once and all digits is shorter.
const LONGEST: usize = 256;

const UNITS: [(&str, i64); 8] = [
    ("ns", 1),
    ("us", 1_000),
    ("\u{b5}s", 1_000),
    ("\u{3bc}s", 1_000),
    ("ms", 1_000_000),
    ("s", 1_000_000_000),
    ("m", 60_000_000_000),
    ("h", 3_600_000_000_000),
];

fn units<'v>(call: &mut Call<'_, 'v>, unit: i64) -> Evaluated<'v> {
    match call.value(0) {
        Value::Duration(span) => Ok(Value::Int(span / unit)),
        _ => Err::<_, EvaluationError>(call.wrong(0, "a duration")),
    }
}

fn parse(text: &str) -> Option<i64> {
    if text.len() > LONGEST {
        return None;
    }
    let (negative, mut rest) = match text.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, text.strip_prefix('+').unwrap_or(text)),
    };
    if rest == "0" {
        return Some(0);
    }
    let mut total = 0_i128;
    if rest.is_empty() {
        return None;
    }
    while !rest.is_empty() {
        let length = rest.bytes().take_while(|byte| byte.is_ascii_digit() || *byte == b'.').count();
        let (number, behind) = rest.split_at_checked(length)?;
        let length = behind.bytes().take_while(|byte| !byte.is_ascii_digit() && *byte != b'.').count();
        let (unit, behind) = behind.split_at_checked(length)?;
        let (_, unit) = UNITS.iter().find(|(name, _)| *name == unit)?;
        let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
        if whole.is_empty() && fraction.is_empty() || number.len() > 20 {
            return None;
        }
        let unit = i128::from(*unit);
        let whole: i128 = if whole.is_empty() { 0 } else { whole.parse().ok()? };
        total += whole * unit;
        if !fraction.is_empty() {
            total += fraction.parse::<i128>().ok()? * unit / 10_i128.pow(u32::try_from(fraction.len()).ok()?);
        }
        rest = behind;
        if total > i128::from(i64::MAX) {
            return None;
        }
    }
    i64::try_from(if negative { -total } else { total }).ok()
}

/// Formats a duration in seconds, as CEL does: `5400s`, `0.25s`.
pub(crate) fn to_text(nanoseconds: i64) -> String {
    let sign = if nanoseconds < 0 { "-" } else { "" };
    let (seconds, rest) = (nanoseconds.unsigned_abs() / 1_000_000_000, nanoseconds.unsigned_abs() % 1_000_000_000);
    if rest == 0 {
        return format!("{sign}{seconds}s");
    }
    let fraction = format!("{rest:09}");
    format!("{sign}{seconds}.{}s", fraction.trim_end_matches('0'))
}
