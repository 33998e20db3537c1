//! Compiled regular expressions with the syntax of RE2. The time of a search is linear in the length of the searched
//! string.
//!
//! The time per byte depends on the pattern. With a small deterministic automaton, a byte takes a few nanoseconds. Any
//! other pattern may visit all its states for each byte. A [`Pattern`] records whether it is cheap, so that the correct
//! number of steps is charged before each search.

use std::sync::Arc;

use regex::{Regex, RegexBuilder};
use regex_automata::dfa::{StartKind, dense};
use regex_automata::nfa::thompson;

use super::MAXIMUM_SOURCE;

/// A compiled pattern. Clones share the compiled data. Other crates create it with
/// [`Scope::pattern`](super::Scope::pattern).
#[derive(Clone, Debug)]
pub struct Pattern(Arc<Compiled>);

#[derive(Debug)]
struct Compiled {
    /// The pattern as written.
    source: Box<str>,
    regex: Regex,
    /// The number of states of the nondeterministic automaton.
    states: usize,
    /// Whether the deterministic automatons of both search directions are small.
    is_cheap: bool,
    /// The memory of the pattern, in bytes, including the caches for searches.
    memory: usize,
}

/// The maximum length of a pattern, in bytes. It equals that of an expression, which may contain a pattern as a
/// literal.
const LONGEST: usize = MAXIMUM_SOURCE;

/// The maximum memory of a pattern's automaton, in bytes.
const SIZE: usize = 256 * 1024;

/// The maximum memory of the automaton of a computed pattern, in bytes.
pub(crate) const COMPUTED_SIZE: usize = 32 * 1024;

/// The maximum memory of a deterministic automaton whose searches are cheap, in bytes.
const CHEAP: usize = 32 * 1024;

/// The number of bytes that a search with a cheap pattern reads in one step.
const BYTES: usize = 16;

/// The number of states that a search with an expensive pattern visits in one step. It may visit all states for each
/// byte.
const STATES: usize = 4;

impl Pattern {
    /// Compiles a pattern.
    ///
    /// # Errors
    /// The pattern is invalid or too large.
    pub(crate) fn compile(pattern: &str) -> Result<Self, String> {
        Self::compile_at_most(pattern, SIZE)
    }

    /// Compiles a pattern like [`Self::compile`], but with `size_limit` as the maximum size of the automaton, in bytes.
    pub(crate) fn compile_at_most(pattern: &str, size_limit: usize) -> Result<Self, String> {
        if pattern.len() > LONGEST {
            return Err(format!("this regular expression has {} bytes; {LONGEST} are allowed", pattern.len()));
        }
        let source = pattern.into();
        let pattern = with_ascii_classes(pattern);
        let regex = RegexBuilder::new(&pattern).size_limit(size_limit).dfa_size_limit(SIZE).nest_limit(32).build();
        let regex = regex.map_err(|error| match error {
            regex::Error::CompiledTooBig(_) => "this regular expression is too large".to_owned(),
            error => {
                let message = error.to_string();
                let reason = message.lines().rev().find_map(|line| line.strip_prefix("error: ")).unwrap_or(&message);
                format!("this is not a regular expression: {reason}")
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
        // A search first runs forward to find the end of a match, and then backward to find its beginning.
        let is_cheap = forward.is_some_and(|automaton| is_small(&automaton, StartKind::Unanchored))
            && reverse.is_some_and(|automaton| is_small(&automaton, StartKind::Anchored));
        // The memory of the automatons for both directions, and of the caches for searches.
        let memory = 2 * size + 2 * if is_cheap { CHEAP } else { SIZE };
        Ok(Self(Arc::new(Compiled { source, regex, states, is_cheap, memory })))
    }

    /// Returns the memory of the pattern in bytes, including the caches for searches.
    pub(crate) fn memory(&self) -> usize {
        self.0.memory
    }

    pub(crate) fn regex(&self) -> &Regex {
        &self.0.regex
    }

    /// Returns the pattern as written.
    #[must_use]
    pub fn source(&self) -> &str {
        &self.0.source
    }

    /// Whether the pattern matches a part of a string. The caller must first charge [`Self::search_steps`].
    #[must_use]
    pub fn is_match(&self, text: &str) -> bool {
        self.0.regex.is_match(text)
    }

    /// Returns the number of steps for a search in a string with this number of bytes.
    #[must_use]
    pub fn search_steps(&self, bytes: usize) -> usize {
        1 + if self.0.is_cheap { bytes / BYTES } else { self.all_states(bytes) }
    }

    /// Returns the additional number of steps for a search that also finds groups, because it visits all states. Zero
    /// for a pattern without groups.
    pub(crate) fn group_steps(&self, bytes: usize) -> usize {
        if self.0.regex.captures_len() > 1 { self.all_states(bytes) } else { 0 }
    }

    fn all_states(&self, bytes: usize) -> usize {
        bytes.saturating_mul(1 + self.0.states / STATES)
    }
}

/// Replaces `\w`, `\d`, `\s`, `\b` and their negations with their ASCII meaning, as in RE2. Their Unicode meaning would
/// need automata with a thousand ranges.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_match_ascii_only() {
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
}
