//! Parses the value of an annotation or a label into a typed value, and checks it.

use pillion_api::parameter::{ParameterType, TextFormat};
use serde_json::{Map, Number, Value as Json};

use super::{Bound, Kind};
use crate::expression::{Meter, Pattern, Quantity};

/// The length of each unit of a duration, in seconds. A unit precedes its own prefixes, such as `ms` before `m`.
const UNITS: [(&str, f64); 7] =
    [("ns", 1e-9), ("us", 1e-6), ("\u{b5}s", 1e-6), ("ms", 1e-3), ("h", 3600.0), ("m", 60.0), ("s", 1.0)];

/// Lower-case values for true and false: those of Go's `ParseBool`, and some more.
const TRUE: [&str; 7] = ["true", "t", "1", "yes", "y", "on", "enabled"];
const FALSE: [&str; 7] = ["false", "f", "0", "no", "n", "off", "disabled"];

/// Whether a value was parsed from a string.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Form {
    /// Parsed from a string.
    Text,
    /// A typed value, from a default or from a JSON or YAML list.
    Value,
}

impl Kind {
    /// Returns the number of steps for parsing a string and checking its value.
    pub(super) fn text_steps(&self, text: &str) -> usize {
        let bytes = text.len();
        // Each value in the string is followed by one of these characters, or by the end.
        let values = 1 + text.bytes().filter(|byte| matches!(byte, b',' | b'\n')).count();
        let parsing = match (self.type_, self.format) {
            (ParameterType::List | ParameterType::Map | ParameterType::Object, TextFormat::Yaml) => bytes + 8 * values,
            (ParameterType::List | ParameterType::Map | ParameterType::Object, _) => bytes / 4 + 2 * values,
            _ => bytes / Meter::BYTES,
        };
        parsing.saturating_add(self.check_steps(values, bytes))
    }

    /// Returns the number of steps for checking a value.
    pub(super) fn value_steps(&self, value: &Json) -> usize {
        let (values, bytes) = size(value);
        copy_steps(value).saturating_add(self.check_steps(values, bytes))
    }

    /// Returns the number of steps for checking at most `values` values, with this number of bytes together.
    fn check_steps(&self, values: usize, bytes: usize) -> usize {
        // Longer strings are invalid whether or not the pattern matches.
        let searched = self.max_length.map_or(bytes, |longest| bytes.min(values.saturating_mul(longest)));
        // Each string is checked only once. The factor 2 is a margin.
        let pattern_steps =
            |pattern: &Pattern| 2usize.saturating_mul(pattern.search_steps(searched).saturating_add(values));
        let own = self.pattern.as_ref().map_or(0, pattern_steps);
        let allowed = self.enum_.len().saturating_mul(values.saturating_add(bytes / Meter::BYTES));
        let items = self.items.as_ref().map_or(0, |items| items.check_steps(values, bytes));
        values.saturating_add(own).saturating_add(allowed).saturating_add(items)
    }

    /// Parses a string into a value of this type. Checks the string itself only if parsing changes it. Call
    /// [`Kind::check_read`] to check the value.
    pub(super) fn parse(&self, text: &str) -> Result<Json, String> {
        let trimmed = text.trim();
        if self.is_read() {
            self.check_text(text)?;
        }
        match self.type_ {
            ParameterType::String => Ok(Json::from(text)),
            ParameterType::Quantity | ParameterType::Duration => Ok(Json::from(trimmed)),
            ParameterType::Integer => {
                trimmed.parse::<i64>().map(Json::from).map_err(|_| expected("a whole number", text))
            }
            ParameterType::Number => {
                let number = trimmed.parse::<f64>().ok().and_then(Number::from_f64);
                number.map(Json::Number).ok_or_else(|| expected("a number", text))
            }
            ParameterType::Boolean => {
                let word = trimmed.to_lowercase();
                match (TRUE.contains(&&*word), FALSE.contains(&&*word)) {
                    (true, _) => Ok(Json::from(true)),
                    (_, true) => Ok(Json::from(false)),
                    _ => Err(expected("true or false", text)),
                }
            }
            ParameterType::List => self.list(trimmed),
            ParameterType::Map => match self.format {
                TextFormat::Json | TextFormat::Yaml => structured(trimmed, self.format),
                TextFormat::Pairs | TextFormat::Csv => pairs(trimmed),
            },
            ParameterType::Object => structured(trimmed, self.format),
            ParameterType::Records => Err("records are read only from annotations with a prefix".to_owned()),
        }
    }

    fn list(&self, text: &str) -> Result<Json, String> {
        if matches!(self.format, TextFormat::Json | TextFormat::Yaml) {
            return structured(text, self.format);
        }
        let items = text.split(',').map(str::trim).filter(|item| !item.is_empty());
        let items = items.map(|item| match &self.items {
            Some(kind) => kind.parse(item),
            None => Ok(Json::from(item)),
        });
        items.collect::<Result<_, _>>().map(Json::Array)
    }

    /// Whether parsing changes the text of the value: `yes` becomes a boolean with the JSON text `true`.
    const fn is_read(&self) -> bool {
        matches!(self.type_, ParameterType::Boolean | ParameterType::Integer | ParameterType::Number)
    }

    /// Checks a typed value, such as a default. If the parameter has `clamp`, clamps the value to its range.
    pub(super) fn check(&self, value: Json) -> Result<Json, String> {
        self.check_form(value, Form::Value)
    }

    /// Checks a value that [`Kind::parse`] returned.
    pub(super) fn check_read(&self, value: Json) -> Result<Json, String> {
        self.check_form(value, Form::Text)
    }

    fn check_form(&self, value: Json, form: Form) -> Result<Json, String> {
        let value = self.fit_type(value, form)?;
        // Strings were checked before they were parsed. Typed values are checked as JSON text.
        if self.is_read() && form == Form::Value {
            self.check_text(&value.to_string())?;
        }
        let value = self.fit_range(value)?;
        if !self.enum_.is_empty() && !self.enum_.iter().any(|allowed| self.same(allowed, &value)) {
            let allowed: Vec<_> = self.enum_.iter().map(Json::to_string).collect();
            return Err(format!("{value} is not one of {}", allowed.join(", ")));
        }
        if let Some(text) = value.as_str() {
            self.check_text(text)?;
        }
        Ok(value)
    }

    /// Whether two values are equal. For type `number`, `1` equals `1.0`.
    fn same(&self, left: &Json, right: &Json) -> bool {
        left == right
            || (self.type_ == ParameterType::Number && left.is_number() && self.size(left) == self.size(right))
    }

    /// Checks a string against `maxLength` and `pattern`.
    fn check_text(&self, text: &str) -> Result<(), String> {
        if let Some(longest) = self.max_length
            && text.len() > longest
        {
            return Err(format!("{} bytes exceed the maximum of {longest}", text.len()));
        }
        match &self.pattern {
            Some(pattern) if !pattern.is_match(text) => Err(unlike(text, pattern.source())),
            _ => Ok(()),
        }
    }

    fn fit_type(&self, value: Json, form: Form) -> Result<Json, String> {
        let name = match self.type_ {
            ParameterType::String if value.is_string() => return Ok(value),
            ParameterType::Integer if value.is_i64() || value.is_u64() => return Ok(value),
            ParameterType::Number if value.is_number() => return Ok(value),
            ParameterType::Boolean if value.is_boolean() => return Ok(value),
            ParameterType::Object if value.is_object() => return Ok(value),
            ParameterType::Records if value.is_array() => return Ok(value),
            ParameterType::Quantity | ParameterType::Duration => {
                // A number is a valid quantity, as everywhere in Kubernetes.
                let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
                match self.size(&Json::from(text.as_str())) {
                    Some(_) => return Ok(Json::from(text)),
                    None if self.type_ == ParameterType::Quantity => "a quantity such as 100m or 1Gi",
                    None => "a duration such as 1h30m",
                }
            }
            ParameterType::List => match value {
                Json::Array(items) => {
                    let Some(kind) = &self.items else { return Ok(Json::Array(items)) };
                    // The items of a JSON or YAML list are typed values.
                    let form = if self.format == TextFormat::Csv { form } else { Form::Value };
                    let checked = items.into_iter().map(|item| kind.check_form(item, form));
                    return checked.collect::<Result<_, String>>().map(Json::Array);
                }
                _ => "a list",
            },
            ParameterType::Map if value.as_object().is_some_and(|map| map.values().all(Json::is_string)) => {
                return Ok(value);
            }
            ParameterType::String => "text",
            ParameterType::Integer => "a whole number",
            ParameterType::Number => "a number",
            ParameterType::Boolean => "true or false",
            ParameterType::Map => "a map with string values",
            ParameterType::Object => "an object",
            ParameterType::Records => "a list of records",
        };
        Err(expected(name, &value.to_string()))
    }

    fn fit_range(&self, value: Json) -> Result<Json, String> {
        let Some(size) = self.size(&value) else { return Ok(value) };
        let below = self.minimum.as_ref().filter(|bound| size < bound.size);
        let above = self.maximum.as_ref().filter(|bound| size > bound.size);
        match (below, above) {
            (Some(Bound { value: bound, .. }), _) | (None, Some(Bound { value: bound, .. })) if self.clamp => {
                Ok(bound.clone())
            }
            (Some(bound), _) => Err(format!("{value} is less than {}", bound.value)),
            (None, Some(bound)) => Err(format!("{value} is more than {}", bound.value)),
            (None, None) => Ok(value),
        }
    }

    /// Returns the size of a value in the base unit of its type. `None` if the type has no size or the value is
    /// invalid.
    pub(super) fn size(&self, value: &Json) -> Option<f64> {
        match self.type_ {
            ParameterType::Integer | ParameterType::Number => value.as_f64(),
            ParameterType::Quantity => match value {
                Json::String(text) => Quantity::size(text),
                other => Quantity::size(&other.to_string()),
            },
            ParameterType::Duration => value.as_str().and_then(duration),
            _ => None,
        }
    }
}

/// Returns the number of steps for copying a value.
pub(super) fn copy_steps(value: &Json) -> usize {
    let (values, bytes) = size(value);
    values.saturating_add(bytes / Meter::BYTES)
}

/// Returns the number of values in a JSON value, including itself, and approximately the bytes of its text.
fn size(value: &Json) -> (usize, usize) {
    let add = |(values, bytes): (usize, usize), (more, longer): (usize, usize)| (values + more, bytes + longer);
    match value {
        Json::String(text) => (1, text.len()),
        Json::Array(items) => items.iter().map(size).fold((1, 0), add),
        Json::Object(members) => {
            members.iter().fold((1, 0), |sum, (key, value)| add(add(sum, (0, key.len())), size(value)))
        }
        // As text, most of these values have at most 8 bytes, and the longest about 25.
        Json::Null | Json::Bool(_) | Json::Number(_) => (1, 8),
    }
}

fn structured(text: &str, format: TextFormat) -> Result<Json, String> {
    match format {
        TextFormat::Yaml => crate::yaml::parse(text),
        _ => serde_json::from_str(text).map_err(|error| format!("not JSON: {error}")),
    }
}

fn pairs(text: &str) -> Result<Json, String> {
    let pieces = text.split(',').map(str::trim).filter(|piece| !piece.is_empty());
    let pairs = pieces.map(|piece| match piece.split_once('=') {
        Some((key, value)) => Ok((key.trim().to_owned(), Json::from(value.trim()))),
        None => Err(expected("key=value", piece)),
    });
    pairs.collect::<Result<Map<_, _>, _>>().map(Json::Object)
}

fn unlike(text: &str, pattern: &str) -> String {
    format!("{} does not match {pattern:?}", shown(text))
}

fn expected(what: &str, found: &str) -> String {
    format!("expected {what}, found {}", shown(found))
}

/// Quotes and shortens an untrusted string.
fn shown(text: &str) -> String {
    let short: String = text.chars().take(60).collect();
    if short.len() < text.len() { format!("{short:?}...") } else { format!("{short:?}") }
}

/// Parses a duration, and returns it in seconds. `None` if the string is invalid.
fn duration(text: &str) -> Option<f64> {
    let (sign, mut rest) = match text.strip_prefix('-') {
        Some(rest) => (-1.0, rest),
        None => (1.0, text),
    };
    if rest == "0" {
        return Some(0.0);
    }
    let mut total = 0.0;
    if rest.is_empty() {
        return None;
    }
    while !rest.is_empty() {
        let end = rest.find(|character: char| !character.is_ascii_digit() && character != '.')?;
        let (number, behind) = rest.split_at_checked(end)?;
        let (unit, seconds) = UNITS.iter().find(|(unit, _)| behind.starts_with(unit))?;
        total += number.parse::<f64>().ok()? * seconds;
        rest = behind.get(unit.len()..)?;
    }
    // Too many digits overflow to infinity.
    total.is_finite().then_some(sign * total)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_durations() {
        for (text, seconds) in [("1h30m", 5400.0), ("1.5s", 1.5), ("250ms", 0.25), ("0", 0.0), ("-5s", -5.0)] {
            assert!((duration(text).unwrap() - seconds).abs() < 1e-9, "{text}");
        }
        for text in ["", "5", "s", "1d", "1h 30m", "-", format!("{}h", "9".repeat(400)).as_str()] {
            assert_eq!(duration(text), None, "{text}");
        }
    }
}
