//! Regular expressions: RE2's syntax, and time in proportion to the text.
//!
//! How long a search takes for each byte of a text depends on the pattern. One whose deterministic automaton is small takes
//! a few nanoseconds; any other may take as long as all its states one after the other. A [`Pattern`] knows which it is, and
//! the meter is charged accordingly before each search.

use std::sync::Arc;

use regex::{Captures, Regex, RegexBuilder};
use regex_automata::dfa::{StartKind, dense};
use regex_automata::nfa::thompson;

use super::{Call, Evaluated, Function, global, member, part_of, shown};
use crate::expression::error::EvaluationError;
use crate::expression::meter::Meter;
use crate::expression::value::{ListBuilder, Text, TextBuilder, Value};

pub(super) const FUNCTIONS: &[Function] = &[
    member("matches", 1, 1, "text.matches(pattern)", matches).with_pattern(1),
    global("matches", 2, 2, "matches(text, pattern)", matches).with_pattern(1),
    member("find", 1, 1, "text.find(pattern)", find).with_pattern(1),
    member("findAll", 1, 2, "text.findAll(pattern, limit)", find_all).with_pattern(1),
    global("regex.extract", 2, 2, "regex.extract(text, pattern)", extract).with_pattern(1),
    global("regex.replace", 3, 3, "regex.replace(text, pattern, replacement)", replace).with_pattern(1),
];

/// A compiled pattern. Cloning it shares it.
#[derive(Clone, Debug)]
pub(in crate::expression) struct Pattern(Arc<Compiled>);

#[derive(Debug)]
struct Compiled {
    regex: Regex,
    /// States of the automaton that is not deterministic.
    states: usize,
    /// Whether the deterministic automatons are small, in both directions.
    is_cheap: bool,
    /// Bytes of memory, with what searches keep.
    memory: usize,
}

/// Bytes that a pattern may have: as many as the expression in which a literal stands.
const LONGEST: usize = crate::expression::MAXIMUM_SOURCE;

/// Bytes of memory that the automaton of a pattern may take.
const SIZE: usize = 256 * 1024;

/// The same for a pattern that is computed for a request.
const COMPUTED_SIZE: usize = 32 * 1024;

/// Bytes of memory that a deterministic automaton may take whose searches are cheap.
const CHEAP: usize = 32 * 1024;

/// Bytes that a search by a cheap pattern reads in a step.
const BYTES: usize = 16;

/// States of an expensive pattern that a search visits in a step, for each byte.
const STATES: usize = 4;

/// Steps for compiling a pattern that is not a literal, and the bytes of its memory for which there is one more. A literal is
/// compiled with its expression. [`COMPUTED_SIZE`] bounds what is known only afterwards.
const COMPILING: (usize, usize) = (10_000, 32);

impl Pattern {
    /// Compiles a pattern.
    ///
    /// # Errors
    /// What is wrong with it.
    pub(in crate::expression) fn compile(pattern: &str) -> Result<Self, String> {
        Self::compile_at_most(pattern, SIZE)
    }

    /// Compiles a pattern whose automaton takes at most this number of bytes.
    fn compile_at_most(pattern: &str, size_limit: usize) -> Result<Self, String> {
        if pattern.len() > LONGEST {
            return Err(format!("this regular expression has {} bytes; {LONGEST} are allowed", pattern.len()));
        }
        let pattern = with_ascii_classes(pattern);
        let regex = RegexBuilder::new(&pattern).size_limit(size_limit).dfa_size_limit(SIZE).nest_limit(32).build();
        let regex = regex.map_err(|error| match error {
            regex::Error::CompiledTooBig(_) => "this regular expression is too large".to_owned(),
            error => {
                let message = error.to_string();
                let reason = message.lines().rev().find_map(|line| line.strip_prefix("error: ")).unwrap_or(&message);
                format!("this is no regular expression: {reason}")
            }
        })?;
        let automaton = |reverse: bool| {
            let config = thompson::Config::new()
                .reverse(reverse)
                .which_captures(thompson::WhichCaptures::None)
                .nfa_size_limit(Some(2 * size_limit));
            thompson::Compiler::new().configure(config).build(&pattern).ok()
        };
        let is_small = |automaton: &thompson::NFA, start: StartKind| {
            let config =
                dense::Config::new().start_kind(start).determinize_size_limit(Some(CHEAP)).dfa_size_limit(Some(CHEAP));
            dense::Builder::new().configure(config).build_from_nfa(automaton).is_ok()
        };
        let (forward, reverse) = (automaton(false), automaton(true));
        let (states, size) =
            forward.as_ref().map_or((SIZE, SIZE), |automaton| (automaton.states().len(), automaton.memory_usage()));
        // A search runs forward to where a match ends, and back from there to where it begins.
        let is_cheap = forward.is_some_and(|automaton| is_small(&automaton, StartKind::Unanchored))
            && reverse.is_some_and(|automaton| is_small(&automaton, StartKind::Anchored));
        // Both directions, and what searches remember.
        let memory = 2 * size + 2 * if is_cheap { CHEAP } else { SIZE };
        Ok(Self(Arc::new(Compiled { regex, states, is_cheap, memory })))
    }

    /// Bytes of memory, with what searches keep.
    pub(in crate::expression) fn memory(&self) -> usize {
        self.0.memory
    }

    /// Grants a search of this number of bytes.
    fn charge(&self, bytes: usize, meter: &mut Meter) -> Result<(), EvaluationError> {
        let steps = if self.0.is_cheap { bytes / BYTES } else { self.all_states(bytes) };
        meter.charge(1 + steps)
    }

    /// Grants a search that finds groups: where they begin and end is found state by state.
    fn charge_groups(&self, bytes: usize, meter: &mut Meter) -> Result<(), EvaluationError> {
        self.charge(bytes, meter)?;
        let has_groups = self.0.regex.captures_len() > 1;
        meter.charge(if has_groups { self.all_states(bytes) } else { 0 })
    }

    fn all_states(&self, bytes: usize) -> usize {
        bytes.saturating_mul(1 + self.0.states / STATES)
    }
}

/// A pattern in which `\w`, `\d`, `\s` and `\b` mean ASCII, as in RE2. They stand for a thousand ranges of Unicode
/// otherwise.
fn with_ascii_classes(pattern: &str) -> String {
    let mut written = String::with_capacity(pattern.len());
    let mut letters = pattern.chars();
    let mut in_class = false;
    while let Some(letter) = letters.next() {
        match letter {
            '[' => in_class = true,
            ']' => in_class = false,
            '\\' => {
                let escaped = letters.next();
                match escaped {
                    Some('w') => written.push_str("[0-9A-Za-z_]"),
                    Some('W') => written.push_str("[^0-9A-Za-z_]"),
                    Some('d') => written.push_str("[0-9]"),
                    Some('D') => written.push_str("[^0-9]"),
                    Some('s') => written.push_str("[\\t\\n\\f\\r ]"),
                    Some('S') => written.push_str("[^\\t\\n\\f\\r ]"),
                    Some(boundary @ ('b' | 'B')) if !in_class => {
                        written.push_str("(?-u:\\");
                        written.push(boundary);
                        written.push(')');
                    }
                    escaped => {
                        written.push('\\');
                        written.extend(escaped);
                    }
                }
                continue;
            }
            _ => {}
        }
        written.push(letter);
    }
    written
}

/// The pattern of a call: the literal, or the text that was computed.
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
        .map_err(|message| call.error(format!("{:?}: {message}", shown(text))))?;
    call.meter.charge(pattern.memory() / COMPILING.1)?;
    call.meter.take_memory(pattern.memory())?;
    call.meter.remember(text, &pattern);
    Ok(pattern)
}

/// The text and the pattern of a call.
fn operands<'a, 'v>(call: &mut Call<'a, 'v>) -> Result<(&'a Text<'v>, Pattern), EvaluationError> {
    let text = call.text(0)?;
    Ok((text, pattern_of(call)?))
}

fn matches<'v>(call: &mut Call<'_, 'v>) -> Evaluated<'v> {
    let (text, pattern) = operands(call)?;
    pattern.charge(text.len(), call.meter)?;
    Ok(Value::Bool(pattern.0.regex.is_match(text)))
}

fn find<'v>(call: &mut Call<'_, 'v>) -> Evaluated<'v> {
    let (text, pattern) = operands(call)?;
    pattern.charge(text.len(), call.meter)?;
    part_of(text, pattern.0.regex.find(text).map_or("", |found| found.as_str()), call.meter)
}

fn find_all<'v>(call: &mut Call<'_, 'v>) -> Evaluated<'v> {
    let limit = if call.given(2) { usize::try_from(call.int(2)?).unwrap_or(usize::MAX) } else { usize::MAX };
    let (text, pattern) = operands(call)?;
    pattern.charge(text.len(), call.meter)?;
    let mut found = ListBuilder::new();
    for part in pattern.0.regex.find_iter(text).take(limit) {
        call.meter.charge(SEARCH)?;
        found.push(part_of(text, part.as_str(), call.meter)?, call.meter)?;
    }
    found.finish(call.meter)
}

/// Steps for going on with a search behind a match.
const SEARCH: usize = 8;

fn extract<'v>(call: &mut Call<'_, 'v>) -> Evaluated<'v> {
    let (text, pattern) = operands(call)?;
    pattern.charge_groups(text.len(), call.meter)?;
    let captures = pattern.0.regex.captures(text);
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
    let pieces = pieces(call.text(2)?, &pattern.0.regex, call.meter)?;
    pattern.charge_groups(text.len(), call.meter)?;
    let for_each_match = SEARCH + pattern.0.regex.captures_len() + pieces.len();
    let mut made = TextBuilder::with_capacity(0, call.meter)?;
    let mut behind = 0;
    for captures in pattern.0.regex.captures_iter(text) {
        let Some(found) = captures.get(0) else { continue };
        call.meter.charge(for_each_match)?;
        made.push(text.get(behind..found.start()).unwrap_or_default(), call.meter)?;
        for piece in &pieces {
            made.push(piece.text(&captures), call.meter)?;
        }
        behind = found.end();
    }
    made.push(text.get(behind..).unwrap_or_default(), call.meter)?;
    made.finish(call.meter)
}

/// A piece of a replacement.
enum Piece<'t> {
    Literal(&'t str),
    /// `$1`, `${1}`, `${name}`: the group of this number.
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

/// The pieces of a replacement: `$$` is a dollar sign, and so is one that no name follows. A group that the pattern does
/// not have is empty.
fn pieces<'t>(replacement: &'t str, regex: &Regex, meter: &mut Meter) -> Result<Vec<Piece<'t>>, EvaluationError> {
    meter.charge_bytes(replacement.len())?;
    let mut pieces = Vec::new();
    let (mut rest, mut has_braces) = (replacement, true);
    while !rest.is_empty() {
        // Names are compared with those of the groups.
        meter.charge(4 + regex.captures_len() / 4)?;
        meter.take_memory(2 * size_of::<Piece<'_>>())?;
        let Some(behind) = rest.strip_prefix('$') else {
            let (literal, behind) = rest.split_at(rest.find('$').unwrap_or(rest.len()));
            pieces.push(Piece::Literal(literal));
            rest = behind;
            continue;
        };
        let braced = behind.strip_prefix('{').filter(|_| has_braces).map(|behind| behind.split_once('}'));
        // Looked for once: where no brace closes, none does further on.
        has_braces &= braced != Some(None);
        let is_name = |letter: char| letter.is_ascii_alphanumeric() || letter == '_';
        let length = behind.find(|letter| !is_name(letter)).unwrap_or(behind.len());
        let (name, after) = match braced.flatten() {
            Some(braced) => braced,
            None if length > 0 => behind.split_at(length),
            None => {
                pieces.push(Piece::Literal("$"));
                rest = behind.strip_prefix('$').unwrap_or(behind);
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
    fn classes_mean_ascii_as_in_re2() {
        for (pattern, text, expected) in [
            (r"^\w+$", "a_1", true),
            (r"^\w$", "\u{e9}", false),
            (r"^\W$", "\u{e9}", true),
            (r"^[\w.-]+$", "a.b-c", true),
            (r"^[^\d]$", "\u{661}", true),
            (r"^\\w$", r"\w", true),
            (r"\bab\b", "x ab y", true),
            (r"^[\]\\]\d$", "]1", true),
            (r"^\S\s\D$", "a b", true),
        ] {
            assert_eq!(Pattern::compile(pattern).unwrap().0.regex.is_match(text), expected, "{pattern} {text}");
        }
    }

    #[test]
    fn patterns_of_profiles_are_cheap() {
        for pattern in [
            "-[a-z0-9]{5}$",
            r"^[\w.-]+(:\d+)?/[a-z0-9/_-]+@sha256:[0-9a-f]{64}$",
            "^(AWS|GOOGLE|AZURE)_",
            r"\.(svc|cluster)\.local$",
            "^(.*)-[0-9]{8,10}$",
        ] {
            assert!(Pattern::compile(pattern).unwrap().0.is_cheap, "{pattern}");
        }
        for pattern in ["(a|b)*a(a|b){12}", r"(\w{1,20}){1,10}x", r"^\pL+$"] {
            assert!(!Pattern::compile(pattern).unwrap().0.is_cheap, "{pattern}");
        }
    }

    #[test]
    fn replacement_is_expanded_as_by_the_library() {
        let regex = Regex::new("(?P<first>[a-z])([0-9])").unwrap();
        for replacement in
            ["<$1>", "${first}-${2}", "$$1", "$", "a$", "$first_", "${", "${${$1", "$0$0", "${x}y", "$1a", "$-$2", ""]
        {
            let expected = regex.replace_all("a1 b2!", replacement);
            let captures = regex.captures_iter("a1 b2!");
            let mut found = String::new();
            let mut behind = 0;
            for captures in captures {
                found.push_str(&"a1 b2!"[behind..captures.get(0).unwrap().start()]);
                for piece in pieces(replacement, &regex, &mut Meter::new()).unwrap() {
                    found.push_str(piece.text(&captures));
                }
                behind = captures.get(0).unwrap().end();
            }
            found.push_str(&"a1 b2!"[behind..]);
            assert_eq!(found, expected, "{replacement}");
        }
    }
}
