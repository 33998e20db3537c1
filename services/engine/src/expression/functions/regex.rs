//! Regular expressions. They take time in proportion to the text, whatever they are, and their size is bounded.

use regex::{NoExpand, Regex, RegexBuilder};

use super::{Call, Evaluated, Function, global, maps, member, part_of};
use crate::expression::error::EvaluationError;
use crate::expression::operators::check_length;
use crate::expression::value::Value;

pub(super) const FUNCTIONS: &[Function] = &[
    member("matches", 1, 1, "text.matches(pattern)", matches).with_pattern(1),
    global("matches", 2, 2, "matches(text, pattern)", matches).with_pattern(1),
    member("find", 1, 1, "text.find(pattern)", find).with_pattern(1),
    member("findAll", 1, 2, "text.findAll(pattern, limit)", find_all).with_pattern(1),
    global("regex.extract", 2, 2, "regex.extract(text, pattern)", extract).with_pattern(1),
    global("regex.replace", 3, 3, "regex.replace(text, pattern, replacement)", replace).with_pattern(1),
];

/// Bytes of memory that a compiled pattern may take.
const SIZE: usize = 256 * 1024;

/// What compiling a pattern costs that is not a literal; a literal is compiled with its expression.
const COST: usize = 5_000;

/// Compiles a pattern.
pub(in crate::expression) fn compile(pattern: &str) -> Result<Regex, String> {
    let regex = RegexBuilder::new(pattern).size_limit(SIZE).dfa_size_limit(SIZE).nest_limit(32).build();
    regex.map_err(|error| match error {
        regex::Error::CompiledTooBig(_) => "this regular expression is too large".to_owned(),
        error => {
            let message = error.to_string();
            let reason = message.lines().rev().find_map(|line| line.strip_prefix("error: ")).unwrap_or(&message);
            format!("this is no regular expression: {reason}")
        }
    })
}

/// Runs something with the pattern of a call, which is charged for the text.
fn with<'v, T>(
    call: &mut Call<'_, 'v>,
    run: impl FnOnce(&mut Call<'_, 'v>, &Regex) -> Result<T, EvaluationError>,
) -> Result<T, EvaluationError> {
    let length = call.text(0)?.len();
    call.budget.charge(length / 4)?;
    if let Some(pattern) = call.pattern {
        return run(call, pattern);
    }
    let pattern = call.text(1)?;
    if let Some(regex) = call.budget.pattern(pattern) {
        return run(call, &regex);
    }
    call.budget.charge(COST)?;
    let regex = compile(pattern).map_err(|message| call.error(format!("{:?}: {message}", maps::shown(pattern))))?;
    call.budget.remember(pattern, &regex);
    run(call, &regex)
}

fn matches<'v>(call: &mut Call<'_, 'v>) -> Evaluated<'v> {
    with(call, |call, regex| Ok(Value::Bool(regex.is_match(call.text(0)?))))
}

fn find<'v>(call: &mut Call<'_, 'v>) -> Evaluated<'v> {
    with(call, |call, regex| {
        let text = call.text(0)?;
        Ok(part_of(text, regex.find(text).map_or("", |found| found.as_str())))
    })
}

fn find_all<'v>(call: &mut Call<'_, 'v>) -> Evaluated<'v> {
    let limit = if call.given(2) { usize::try_from(call.int(2)?).unwrap_or(usize::MAX) } else { usize::MAX };
    with(call, |call, regex| {
        let text = call.text(0)?;
        let mut found = Vec::new();
        for part in regex.find_iter(text).take(limit) {
            call.budget.charge(1)?;
            found.push(part_of(text, part.as_str()));
        }
        Ok(Value::list(found))
    })
}

fn extract<'v>(call: &mut Call<'_, 'v>) -> Evaluated<'v> {
    with(call, |call, regex| {
        let text = call.text(0)?;
        let captures = regex.captures(text);
        let found = captures.and_then(|captures| captures.get(1).or_else(|| captures.get(0)));
        Ok(found.map_or(Value::none(), |found| Value::some(part_of(text, found.as_str()))))
    })
}

fn replace<'v>(call: &mut Call<'_, 'v>) -> Evaluated<'v> {
    with(call, |call, regex| {
        let (text, replacement) = (call.text(0)?, call.text(2)?);
        let mut made = String::new();
        let mut behind = 0;
        for captures in regex.captures_iter(text) {
            let Some(found) = captures.get(0) else { continue };
            call.budget.charge(1)?;
            made.push_str(text.get(behind..found.start()).unwrap_or_default());
            if replacement.contains('$') {
                captures.expand(replacement, &mut made);
            } else {
                made.push_str(NoExpand(replacement).0);
            }
            check_length(made.len())?;
            behind = found.end();
        }
        made.push_str(text.get(behind..).unwrap_or_default());
        call.made(made)
    })
}
