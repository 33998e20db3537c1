//! Writes JSON values as literals of the API server's CEL.

use serde_json::Value;

use super::conditions::quoted;

/// The largest integer that every JSON parser reads exactly.
const MAX_INTEGER: u64 = 1 << 53;

/// Placeholders for the values of a template that the API server computes. In the templates that the engine renders,
/// [`Slots::text`] stands for such a value.
pub(super) struct Slots;

impl Slots {
    const OPEN: char = '\u{27e6}';
    const CLOSE: char = '\u{27e7}';

    /// Returns the placeholder for the value with this number. Fields that restrict their strings reject it. This is
    /// intended, because the API server could not check the computed value.
    pub(super) fn text(number: usize) -> String {
        format!("{}{number}{}", Self::OPEN, Self::CLOSE)
    }

    /// Whether a string contains a character of [`Self::text`].
    pub(super) fn is_ambiguous(text: &str) -> bool {
        text.contains([Self::OPEN, Self::CLOSE])
    }

    /// Splits a string into literal strings (`Ok`) and the numbers of values (`Err`).
    fn split(text: &str) -> Vec<Result<&str, usize>> {
        let mut parts = Vec::new();
        let mut rest = text;
        while let Some((literal, after)) = rest.split_once(Self::OPEN) {
            let Some((number, behind)) = after.split_once(Self::CLOSE) else { break };
            let Ok(number) = number.parse() else { break };
            if !literal.is_empty() {
                parts.push(Ok(literal));
            }
            parts.push(Err(number));
            rest = behind;
        }
        if !rest.is_empty() || parts.is_empty() {
            parts.push(Ok(rest));
        }
        parts
    }
}

/// Returns a string as an expression. `value` returns the expression for the value with the given number.
pub(super) fn string(text: &str, value: &dyn Fn(usize) -> String) -> String {
    let parts = Slots::split(text);
    if let [Err(number)] = parts.as_slice() {
        return value(*number);
    }
    let parts = parts.into_iter().map(|part| match part {
        Ok(literal) => quoted(literal),
        Err(number) => format!("string({})", value(number)),
    });
    parts.collect::<Vec<_>>().join(" + ")
}

/// Collects the numbers of the values that make up a whole string. Their results keep their types.
pub(super) fn whole_strings(json: &Value, numbers: &mut Vec<usize>) {
    match json {
        Value::String(text) => {
            if let [Err(number)] = Slots::split(text).as_slice() {
                numbers.push(*number);
            }
        }
        Value::Array(items) => items.iter().for_each(|item| whole_strings(item, numbers)),
        Value::Object(fields) => fields.values().for_each(|field| whole_strings(field, numbers)),
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

/// Replaces the placeholders in the strings of a JSON value with the example `x`.
pub(super) fn fill(json: &mut Value) {
    match json {
        Value::String(text) => {
            let filled: String = Slots::split(text).into_iter().map(|part| part.unwrap_or("x")).collect();
            *text = filled;
        }
        Value::Array(items) => items.iter_mut().for_each(fill),
        Value::Object(fields) => fields.values_mut().for_each(fill),
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

/// Returns a JSON value as an expression. Values in lists and maps are wrapped in `dyn`, because the API server
/// requires one type for all of them.
///
/// # Errors
/// The value contains a number that is not an integer, or an integer beyond [`MAX_INTEGER`].
pub(super) fn json(json: &Value, value: &dyn Fn(usize) -> String) -> Result<String, String> {
    Ok(match json {
        Value::Null => "null".to_owned(),
        Value::Bool(known) => known.to_string(),
        Value::Number(number) => {
            let is_exact = number.as_i64().is_some_and(|integer| integer.unsigned_abs() <= MAX_INTEGER);
            if !is_exact {
                return Err(format!("the API server cannot add the number {number} exactly"));
            }
            number.to_string()
        }
        Value::String(text) => string(text, value),
        Value::Array(items) => {
            let items = items.iter().map(|item| Ok(format!("dyn({})", self::json(item, value)?)));
            format!("[{}]", items.collect::<Result<Vec<_>, String>>()?.join(", "))
        }
        Value::Object(fields) => {
            let fields =
                fields.iter().map(|(key, field)| Ok(format!("{}: dyn({})", quoted(key), self::json(field, value)?)));
            format!("{{{}}}", fields.collect::<Result<Vec<_>, String>>()?.join(", "))
        }
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::{Slots, fill, json, whole_strings};

    #[test]
    fn literals_keep_values_and_types() {
        let slot = Slots::text(1);
        let value = json!({"a": [1, true, "it's"], "b": {"c": slot, "d": format!("x-{slot}")}});
        let text = json(&value, &|number| format!("v{number}")).unwrap();
        assert_eq!(
            text,
            "{'a': dyn([dyn(1), dyn(true), dyn('it\\'s')]), 'b': dyn({'c': dyn(v1), 'd': dyn('x-' + string(v1))})}"
        );
        let mut numbers = Vec::new();
        whole_strings(&value, &mut numbers);
        assert_eq!(numbers, [1]);
        let mut filled = json!([format!("x-{slot}"), "plain"]);
        fill(&mut filled);
        assert_eq!(filled, json!(["x-x", "plain"]));
        assert!(json(&json!(1.5), &|_| String::new()).is_err());
    }
}
