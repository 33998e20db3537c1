//! Functions that use regular expressions.

use regex::{Captures, Regex};

use super::{Call, Evaluated, Function, global, member, part_of, truncated};
use crate::error::EvaluationError;
use crate::meter::Meter;
use crate::pattern::{COMPUTED_SIZE, Pattern};
use crate::value::{ListBuilder, Text, TextBuilder, Value};

pub(super) const FUNCTIONS: &[Function] = &[
    member("text.matches(pattern)", matches).native().with_pattern(1),
    global("matches(text, pattern)", matches).with_pattern(1),
    member("text.find(pattern)", find).native().with_pattern(1),
    member("text.findAll(pattern, limit)", find_all).with_optional_last().native().with_pattern(1),
    global("regex.extract(text, pattern)", extract).with_pattern(1),
    global("regex.replace(text, pattern, replacement)", replace).with_pattern(1),
];

/// The cost of compiling a computed pattern: the fixed number of steps, and the number of bytes of the pattern's memory
/// that cost one more step. Literal patterns are compiled together with their expression. The memory is known only
/// after compiling, but [`COMPUTED_SIZE`] limits the size of the automaton.
const COMPILING: (usize, usize) = (10_000, 32);

/// Returns the pattern of a call. Compiles a computed pattern, unless the meter has cached it.
fn pattern_of(call: &mut Call<'_, '_>) -> Result<Pattern, EvaluationError> {
    if let Some(pattern) = call.pattern {
        return Ok(pattern.clone());
    }
    let text = call.text(1)?;
    if let Some(pattern) = call.meter.pattern(text) {
        return Ok(pattern);
    }
    call.meter.charge(COMPILING.0)?;
    let pattern = Pattern::compile_at_most(text, COMPUTED_SIZE)
        .map_err(|message| call.error(format!("{:?}: {message}", truncated(text))))?;
    call.meter.charge(pattern.memory() / COMPILING.1)?;
    call.meter.take_memory(pattern.memory())?;
    call.meter.cache_pattern(text, &pattern);
    Ok(pattern)
}

/// Returns the string and the pattern of a call.
fn operands<'a, 'v>(call: &mut Call<'a, 'v>) -> Result<(&'a Text<'v>, Pattern), EvaluationError> {
    let text = call.text(0)?;
    Ok((text, pattern_of(call)?))
}

fn matches<'v>(call: &mut Call<'_, 'v>) -> Evaluated<'v> {
    let (text, pattern) = operands(call)?;
    call.meter.charge(pattern.search_steps(text.len()))?;
    Ok(Value::Bool(pattern.regex().is_match(text)))
}

fn find<'v>(call: &mut Call<'_, 'v>) -> Evaluated<'v> {
    let (text, pattern) = operands(call)?;
    call.meter.charge(pattern.search_steps(text.len()))?;
    part_of(text, pattern.regex().find(text).map_or("", |found| found.as_str()), call.meter)
}

fn find_all<'v>(call: &mut Call<'_, 'v>) -> Evaluated<'v> {
    let limit = call.limit(2)?;
    let (text, pattern) = operands(call)?;
    call.meter.charge(pattern.search_steps(text.len()))?;
    let mut found = ListBuilder::new();
    for part in pattern.regex().find_iter(text).take(limit) {
        call.meter.charge(SEARCH)?;
        found.push(part_of(text, part.as_str(), call.meter)?, call.meter)?;
    }
    found.finish(call.meter)
}

/// The number of steps for continuing a search after a match.
const SEARCH: usize = 8;

fn extract<'v>(call: &mut Call<'_, 'v>) -> Evaluated<'v> {
    let (text, pattern) = operands(call)?;
    call.meter.charge(pattern.search_steps(text.len()))?;
    call.meter.charge(pattern.group_steps(text.len()))?;
    let captures = pattern.regex().captures(text);
    match captures.and_then(|captures| captures.get(1).or_else(|| captures.get(0))) {
        Some(found) => {
            let found = part_of(text, found.as_str(), call.meter)?;
            Value::some(found, call.meter)
        }
        None => Ok(Value::none()),
    }
}

fn replace<'v>(call: &mut Call<'_, 'v>) -> Evaluated<'v> {
    let (text, pattern) = operands(call)?;
    let pieces = pieces(call.text(2)?, pattern.regex(), call.meter)?;
    call.meter.charge(pattern.search_steps(text.len()))?;
    call.meter.charge(pattern.group_steps(text.len()))?;
    let for_each_match = SEARCH + pattern.regex().captures_len() + pieces.len();
    let mut result = TextBuilder::with_capacity(0, call.meter)?;
    let mut tail = 0;
    for captures in pattern.regex().captures_iter(text) {
        let Some(found) = captures.get(0) else { continue };
        call.meter.charge(for_each_match)?;
        result.push(text.get(tail..found.start()).unwrap_or_default(), call.meter)?;
        for piece in &pieces {
            result.push(piece.text(&captures), call.meter)?;
        }
        tail = found.end();
    }
    result.push(text.get(tail..).unwrap_or_default(), call.meter)?;
    result.finish(call.meter)
}

/// A part of the replacement string of `regex.replace`.
enum Piece<'t> {
    Literal(&'t str),
    /// The value of a capture group, referenced as `$1`, `$name`, `${1}` or `${name}`.
    Group(usize),
}

impl<'t> Piece<'t> {
    fn text(&self, captures: &Captures<'t>) -> &'t str {
        match self {
            Self::Literal(text) => text,
            Self::Group(number) => captures.get(*number).map_or("", |group| group.as_str()),
        }
    }
}

/// Parses a replacement string. `$$`, or a `$` without a name after it, is a literal dollar sign. A group that does not
/// exist in the pattern is replaced with an empty string.
fn pieces<'t>(replacement: &'t str, regex: &Regex, meter: &mut Meter) -> Result<Vec<Piece<'t>>, EvaluationError> {
    meter.charge_bytes(replacement.len())?;
    let mut pieces = Vec::new();
    let (mut rest, mut has_braces) = (replacement, true);
    while !rest.is_empty() {
        // The charge includes comparing the name with the names of all groups.
        meter.charge(4 + regex.captures_len() / 4)?;
        meter.take_memory(2 * size_of::<Piece<'_>>())?;
        let Some(tail) = rest.strip_prefix('$') else {
            let (literal, tail) = rest.split_at(rest.find('$').unwrap_or(rest.len()));
            pieces.push(Piece::Literal(literal));
            rest = tail;
            continue;
        };
        let braced = tail.strip_prefix('{').filter(|_| has_braces).map(|tail| tail.split_once('}'));
        // If there is no closing brace here, there is none later either, so do not search again.
        has_braces &= braced != Some(None);
        let is_name = |letter: char| letter.is_ascii_alphanumeric() || letter == '_';
        let length = tail.find(|letter| !is_name(letter)).unwrap_or(tail.len());
        let (name, after) = match braced.flatten() {
            Some(braced) => braced,
            None if length > 0 => tail.split_at(length),
            None => {
                pieces.push(Piece::Literal("$"));
                rest = tail.strip_prefix('$').unwrap_or(tail);
                continue;
            }
        };
        let named = || regex.capture_names().position(|group| group == Some(name));
        pieces.extend(name.parse().ok().or_else(named).map(Piece::Group));
        rest = after;
    }
    Ok(pieces)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replacement_expands_like_regex_crate() {
        let regex = Regex::new("(?P<first>[a-z])([0-9])").unwrap();
        for replacement in
            ["<$1>", "${first}-${2}", "$$1", "$", "a$", "$first_", "${", "${${$1", "$0$0", "${x}y", "$1a", "$-$2", ""]
        {
            let expected = regex.replace_all("a1 b2!", replacement);
            let captures = regex.captures_iter("a1 b2!");
            let mut found = String::new();
            let mut tail = 0;
            for captures in captures {
                found.push_str(&"a1 b2!"[tail..captures.get(0).unwrap().start()]);
                for piece in pieces(replacement, &regex, &mut Meter::new()).unwrap() {
                    found.push_str(piece.text(&captures));
                }
                tail = captures.get(0).unwrap().end();
            }
            found.push_str(&"a1 b2!"[tail..]);
            assert_eq!(found, expected, "{replacement}");
        }
    }
}
