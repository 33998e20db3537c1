//! Parses a JSON text into a tape. A single pass over the bytes checks the whole grammar of RFC 8259 and records the
//! positions of values.
//!
//! The parser is recursive, so the depth is limited. The table needs 16 bytes for each value, so the number of values
//! is limited. Most bytes of a Kubernetes object are in strings, so these are read eight bytes at a time.

use thiserror::Error;

use super::string::after_plain;
use super::tape::{BorrowedTape, Kind, Node, OwnedTape};

/// The number of nodes that a scalar spans.
const VALUE: u32 = 1;
/// The number of nodes that a key and its scalar value span.
const KEY: u32 = 2;

/// The limits for a JSON text.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// The maximum nesting of objects and lists. The parser's use of the stack is proportional to it.
    pub depth: usize,
    /// The maximum number of keys and values. The table needs 16 bytes for each of them.
    pub nodes: usize,
}

impl Default for Limits {
    /// A depth of 128 is enough for all objects that Kubernetes stores in practice. A million nodes are enough for two
    /// objects of the maximum size in etcd.
    fn default() -> Self {
        Self { depth: 128, nodes: 1 << 20 }
    }
}

/// The error for a text that is invalid JSON or exceeds the limits, with its position.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{what} at byte {offset}")]
pub struct SyntaxError {
    /// The offset of the byte at which the error was found.
    pub offset: usize,
    /// A description of the error.
    pub what: &'static str,
}

/// Parses a JSON text, and returns the table of its values.
///
/// # Errors
/// The text is invalid JSON, contains something other than white space after the value, or exceeds the limits.
pub(crate) fn nodes(text: &[u8], limits: Limits) -> Result<Vec<Node>, SyntaxError> {
    let error = |what| SyntaxError { offset: 0, what };
    if u32::try_from(text.len()).is_err() {
        return Err(error("the text has four gigabytes or more"));
    }
    // In Kubernetes objects, a key or value has about nine bytes on average. Unused capacity costs less than growing.
    let nodes = Vec::with_capacity((text.len() / 7 + 4).min(limits.nodes));
    let mut parser = Parser { length: text.len(), nodes, limits, error: None };
    match parser.document(text) {
        Some(()) => Ok(parser.nodes),
        None => Err(parser.error.unwrap_or_else(|| error("the text cannot be parsed"))),
    }
}

/// Whether a text is a JSON string, a number, `true`, `false` or `null`, possibly with white space around it.
pub(crate) fn is_scalar(text: &str) -> bool {
    match text.as_bytes() {
        [b'"', inner @ ..] if has_simple_escapes(inner) => true,
        [b'{' | b'[', ..] => false,
        text => nodes(text, Limits { nodes: 1, ..Limits::default() }).is_ok(),
    }
}

/// Whether the text after an opening quote is a string that contains no escapes except those of quotes and backslashes.
fn has_simple_escapes(inner: &[u8]) -> bool {
    let mut rest = inner;
    loop {
        match after_plain(rest) {
            [b'\\', b'"' | b'\\', tail @ ..] => rest = tail,
            rest => return rest == b"\"",
        }
    }
}

/// The state of the parser. Every function takes the remaining text, and returns the rest after the part that it
/// parsed, or `None` if there is an error. So the position stays in a register, and needs no checks for the end of the
/// text or for overflow.
struct Parser {
    /// The length of the whole text in bytes.
    length: usize,
    nodes: Vec<Node>,
    limits: Limits,
    /// The error, if a function returned `None`. It is stored here to keep the results small, because the parser checks
    /// a result for every few bytes.
    error: Option<SyntaxError>,
}

impl Parser {
    fn document(&mut self, text: &[u8]) -> Option<()> {
        let rest = after_space(self.value(text, 0)?);
        if rest.is_empty() { Some(()) } else { self.fail(rest, "unexpected text after the end of the value") }
    }

    fn value<'t>(&mut self, text: &'t [u8], depth: usize) -> Option<&'t [u8]> {
        match text {
            [b'"', inner @ ..] => self.string(inner, VALUE),
            [b'{', inner @ ..] => self.object(inner, depth),
            [b'[', inner @ ..] => self.array(inner, depth),
            [b't', ..] => self.word(text, b"true", Kind::True),
            [b'f', ..] => self.word(text, b"false", Kind::False),
            [b'n', ..] => self.word(text, b"null", Kind::Null),
            [b'-' | b'0'..=b'9', ..] => self.number(text),
            [b' ' | b'\n' | b'\r' | b'\t', ..] => self.value(after_space(text), depth),
            [_, ..] => self.fail(text, "expected a value"),
            [] => self.fail(text, "the text ends where a value is expected"),
        }
    }

    /// Parses an object after its opening brace.
    fn object<'t>(&mut self, inner: &'t [u8], depth: usize) -> Option<&'t [u8]> {
        let index = self.enter(Kind::Object, inner, depth)?;
        if let Some(tail) = after_byte(inner, b'}') {
            return self.leave(index, tail);
        }
        let mut key = self.key(inner)?;
        loop {
            let place = self.nodes.len();
            let start = self.offset(key).wrapping_sub(1);
            // The patterns of several bytes match what the API server writes: no white space, and few escapes.
            let value = if let [b'"', b':', value @ ..] = after_plain(key) {
                self.push(Kind::String, start, KEY, self.offset(value).wrapping_sub(1), value)?;
                value
            } else {
                let rest = self.string(key, KEY)?;
                let Some(value) = after_byte(rest, b':') else {
                    return self.fail(rest, "expected a colon after the key");
                };
                value
            };
            let rest = match value {
                // Most values are strings or, in managedFields, empty objects. Handling them here avoids recursive
                // calls.
                [b'"', inner @ ..] => self.string(inner, VALUE)?,
                [b'{', b'}', tail @ ..] if depth + 1 < self.limits.depth => {
                    self.push(Kind::Object, self.offset(value), VALUE, self.offset(tail), tail)?;
                    tail
                }
                _ => {
                    let tail = self.value(value, depth + 1)?;
                    self.span(place);
                    tail
                }
            };
            key = match rest {
                [b',', b'"', key @ ..] => key,
                [b'}', tail @ ..] => return self.leave(index, tail),
                _ => match after_space(rest) {
                    [b',', next @ ..] => self.key(next)?,
                    [b'}', tail @ ..] => return self.leave(index, tail),
                    _ => return self.fail(rest, "expected a comma or the end of the object"),
                },
            };
        }
    }

    /// Returns the text after the opening quote of a key.
    fn key<'t>(&mut self, text: &'t [u8]) -> Option<&'t [u8]> {
        after_byte(text, b'"').or_else(|| self.fail(text, "expected a key in quotes"))
    }

    /// Parses a list after its opening bracket.
    fn array<'t>(&mut self, inner: &'t [u8], depth: usize) -> Option<&'t [u8]> {
        let index = self.enter(Kind::Array, inner, depth)?;
        if let Some(tail) = after_byte(inner, b']') {
            return self.leave(index, tail);
        }
        let mut rest = inner;
        loop {
            rest = self.value(rest, depth + 1)?;
            let next = if let [b',' | b']', ..] = rest { rest } else { after_space(rest) };
            rest = match next {
                [b',', next @ ..] => next,
                [b']', tail @ ..] => return self.leave(index, tail),
                _ => return self.fail(rest, "expected a comma or the end of the list"),
            };
        }
    }

    /// Records the start of an object or list, which is one byte before `inner`. Returns the index of its node.
    fn enter(&mut self, kind: Kind, inner: &[u8], depth: usize) -> Option<usize> {
        if depth >= self.limits.depth {
            return self.fail(inner, "nested too deeply");
        }
        let index = self.nodes.len();
        let start = self.offset(inner).wrapping_sub(1);
        self.push(kind, start, VALUE, start.wrapping_add(1), inner)?;
        Some(index)
    }

    /// Records that the object or list with the node `index` ends where `tail` begins.
    #[inline]
    fn leave<'t>(&mut self, index: usize, tail: &'t [u8]) -> Option<&'t [u8]> {
        let end = self.offset(tail);
        let Some(node) = self.span(index) else { return self.fail(tail, "the table of values is inconsistent") };
        node.end = end;
        Some(tail)
    }

    /// Sets the span of a node: the number of nodes from this one to the current end of the table.
    #[inline]
    fn span(&mut self, index: usize) -> Option<&mut Node> {
        let count = self.nodes.len();
        let node = self.nodes.get_mut(index)?;
        node.span = narrow(count.wrapping_sub(index));
        Some(node)
    }

    /// Parses a string after its opening quote. `span` is [`VALUE`] for a value, or [`KEY`] for a key.
    #[expect(clippy::inline_always, reason = "most values are strings; a call would take a fifth of the parse time")]
    #[inline(always)]
    fn string<'t>(&mut self, inner: &'t [u8], span: u32) -> Option<&'t [u8]> {
        let start = self.offset(inner).wrapping_sub(1);
        match after_plain(inner) {
            [b'"', tail @ ..] => {
                self.push(Kind::String, start, span, self.offset(tail), tail)?;
                Some(tail)
            }
            rest => self.string_with_escapes(start, span, rest),
        }
    }

    /// Parses the rest of a string, starting at its first escape or invalid byte.
    #[cold]
    fn string_with_escapes<'t>(&mut self, start: u32, span: u32, from: &'t [u8]) -> Option<&'t [u8]> {
        let mut rest = from;
        loop {
            match rest {
                [b'"', tail @ ..] => {
                    self.push(Kind::EscapedString, start, span, self.offset(tail), tail)?;
                    return Some(tail);
                }
                [b'\\', tail @ ..] => rest = after_plain(self.escape(tail)?),
                [_, ..] => return self.fail(rest, "a control character in a string"),
                [] => return self.fail(rest, "the text ends in a string"),
            }
        }
    }

    /// Parses an escape after its backslash.
    fn escape<'t>(&mut self, text: &'t [u8]) -> Option<&'t [u8]> {
        match text {
            [b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't', tail @ ..] => Some(tail),
            [b'u', tail @ ..] => match self.unit(tail)? {
                (0xD800..=0xDBFF, [b'\\', b'u', tail @ ..]) => match self.unit(tail)? {
                    (0xDC00..=0xDFFF, tail) => Some(tail),
                    (_, tail) => self.fail(tail, "half of a surrogate pair"),
                },
                (0xD800..=0xDFFF, tail) => self.fail(tail, "half of a surrogate pair"),
                (_, tail) => Some(tail),
            },
            _ => self.fail(text, "an unknown escape in a string"),
        }
    }

    /// Parses four hexadecimal digits.
    fn unit<'t>(&mut self, text: &'t [u8]) -> Option<(u32, &'t [u8])> {
        let mut unit = 0;
        let mut rest = text;
        for _ in 0..4 {
            let digit = rest.split_first().and_then(|(byte, tail)| Some((char::from(*byte).to_digit(16)?, tail)));
            let Some((digit, tail)) = digit else { return self.fail(rest, "expected four hexadecimal digits") };
            unit = unit * 16 + digit;
            rest = tail;
        }
        Some((unit, rest))
    }

    fn number<'t>(&mut self, text: &'t [u8]) -> Option<&'t [u8]> {
        let mut rest = text.strip_prefix(b"-").unwrap_or(text);
        rest = match rest {
            [b'0', tail @ ..] => tail,
            _ => self.digits(rest)?,
        };
        if let [b'.', tail @ ..] = rest {
            rest = self.digits(tail)?;
        }
        if let [b'e' | b'E', b'+' | b'-', tail @ ..] | [b'e' | b'E', tail @ ..] = rest {
            rest = self.digits(tail)?;
        }
        self.push(Kind::Number, self.offset(text), VALUE, self.offset(rest), rest)?;
        Some(rest)
    }

    fn digits<'t>(&mut self, text: &'t [u8]) -> Option<&'t [u8]> {
        let mut rest = text;
        while let [b'0'..=b'9', tail @ ..] = rest {
            rest = tail;
        }
        if rest.len() == text.len() { self.fail(rest, "expected a digit") } else { Some(rest) }
    }

    fn word<'t>(&mut self, text: &'t [u8], word: &[u8], kind: Kind) -> Option<&'t [u8]> {
        let Some(tail) = text.strip_prefix(word) else { return self.fail(text, "expected a value") };
        self.push(kind, self.offset(text), VALUE, self.offset(tail), tail)?;
        Some(tail)
    }

    /// Records a value between the offsets `start` and `end`. `tail` is the text after it, for an error.
    #[expect(clippy::inline_always, reason = "the function is called for every value")]
    #[inline(always)]
    fn push(&mut self, kind: Kind, start: u32, span: u32, end: u32, tail: &[u8]) -> Option<()> {
        if self.nodes.len() == self.nodes.capacity() {
            self.grow(tail)?;
        }
        self.nodes.push(Node { start, end, span, kind });
        Some(())
    }

    /// Reserves memory for more nodes, up to the limit. The capacity never exceeds the limit, so only a full vector
    /// needs a check.
    #[cold]
    fn grow(&mut self, tail: &[u8]) -> Option<()> {
        let count = self.nodes.len();
        let room = self.limits.nodes.saturating_sub(count).min(count.max(16));
        if room == 0 {
            return self.fail(tail, "too many values");
        }
        self.nodes.reserve_exact(room);
        Some(())
    }

    /// Returns the offset of the remaining text.
    const fn offset(&self, rest: &[u8]) -> u32 {
        narrow(self.length.wrapping_sub(rest.len()))
    }

    /// Records an error at the first byte of the remaining text that is not white space. Always returns `None`.
    #[cold]
    fn fail<T>(&mut self, rest: &[u8], what: &'static str) -> Option<T> {
        self.error = Some(SyntaxError { offset: self.length.saturating_sub(after_space(rest).len()), what });
        None
    }
}

/// Returns the rest after `byte`, which may follow white space. `None` if another byte or the end of the text is next.
#[inline]
fn after_byte(text: &[u8], byte: u8) -> Option<&[u8]> {
    match text {
        [first, tail @ ..] if *first == byte => Some(tail),
        // The API server writes no white space, so this is rare.
        [0..=b' ', ..] => after_space(text).split_first().filter(|(first, _)| **first == byte).map(|(_, tail)| tail),
        _ => None,
    }
}

#[inline(never)]
fn after_space(text: &[u8]) -> &[u8] {
    let mut rest = text;
    while let [b' ' | b'\n' | b'\r' | b'\t', tail @ ..] = rest {
        rest = tail;
    }
    rest
}

/// Converts a position to 32 bits. [`nodes`] has checked that the length of the text fits.
#[expect(
    clippy::cast_possible_truncation,
    reason = "positions are below the length of the text, which fits in 32 bits"
)]
const fn narrow(position: usize) -> u32 {
    position as u32
}

impl OwnedTape {
    /// Parses a JSON text, and stores the text together with its table.
    ///
    /// # Errors
    /// The text is invalid JSON or exceeds the default limits.
    pub fn parse(text: impl Into<Box<str>>) -> Result<Self, SyntaxError> {
        let text = text.into();
        let nodes = nodes(text.as_bytes(), Limits::default())?;
        Ok(Self::from_parts(text, nodes))
    }
}

impl<'t> BorrowedTape<'t> {
    /// Parses a borrowed JSON text.
    ///
    /// # Errors
    /// The text is invalid JSON or exceeds the limits.
    pub fn parse(text: &'t str, limits: Limits) -> Result<Self, SyntaxError> {
        Ok(Self::from_parts(text, nodes(text.as_bytes(), limits)?))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn accepts(text: &str) -> bool {
        nodes(text.as_bytes(), Limits::default()).is_ok()
    }

    #[test]
    fn errors_have_offsets() {
        let error = |text: &str| nodes(text.as_bytes(), Limits::default()).unwrap_err();
        assert_eq!(error(r#"{"a":1,}"#), SyntaxError { offset: 7, what: "expected a key in quotes" });
        assert_eq!(error("[1 2]").offset, 3);
        assert_eq!(error("").what, "the text ends where a value is expected");
        assert_eq!(error("{} x").what, "unexpected text after the end of the value");
    }

    #[test]
    fn bounds_depth_and_number_of_values() {
        let nested = |depth: usize| format!("{}{}", "[".repeat(depth), "]".repeat(depth));
        assert!(accepts(&nested(128)));
        assert!(!accepts(&nested(129)));
        assert!(!accepts(&"[".repeat(100_000)));
        let objects = |depth: usize| format!("{}{{}}{}", "{\"a\":".repeat(depth - 1), "}".repeat(depth - 1));
        assert!(accepts(&objects(128)));
        assert!(!accepts(&objects(129)));
        let limits = Limits { nodes: 4, ..Limits::default() };
        assert!(nodes(b"[1,2,3]", limits).is_ok());
        assert_eq!(nodes(b"[1,2,3,4]", limits).unwrap_err().what, "too many values");
    }

    proptest! {
        /// The parser accepts the same texts as `serde_json`, and also numbers outside of the range of `f64`.
        #[test]
        fn accepts_same_grammar_as_serde_json(
            text in r#"[\[\]{}:, \n\t0-9eE+.truefalsnx"\\u\-dD8bcC0-9/é]{0,24}"#
        ) {
            let reference: Result<serde::de::IgnoredAny, _> = serde_json::from_str(&text);
            let value: Result<serde_json::Value, _> = serde_json::from_str(&text);
            // serde_json's `Value` also rejects unpaired surrogates and numbers outside of the range of `f64`. The tape
            // keeps the text of such numbers.
            let number_out_of_range = value.as_ref().is_err_and(|e| e.to_string().contains("number out of range"));
            prop_assert_eq!(accepts(&text), (reference.is_ok() && value.is_ok()) || (number_out_of_range && reference.is_ok()));
        }

        #[test]
        fn accepts_every_json_value(value in any_json()) {
            prop_assert!(accepts(&value.to_string()));
            prop_assert!(accepts(&serde_json::to_string_pretty(&value).unwrap()));
        }

        #[test]
        fn accepted_bytes_are_json(bytes in proptest::collection::vec(any::<u8>(), 0..64)) {
            // The parser must only accept bytes that are valid JSON for `serde_json`. Such bytes are also UTF-8, so
            // slices of them are valid strings.
            if nodes(&bytes, Limits::default()).is_ok() {
                prop_assert!(serde_json::from_slice::<serde::de::IgnoredAny>(&bytes).is_ok(), "{bytes:?}");
            }
        }
    }

    fn any_json() -> impl Strategy<Value = serde_json::Value> {
        let leaf = prop_oneof![
            Just(serde_json::Value::Null),
            any::<bool>().prop_map(serde_json::Value::from),
            any::<i64>().prop_map(serde_json::Value::from),
            any::<f64>().prop_map(serde_json::Value::from),
            ".{0,12}".prop_map(serde_json::Value::from),
        ];
        leaf.prop_recursive(4, 32, 6, |inner| {
            prop_oneof![
                proptest::collection::vec(inner.clone(), 0..6).prop_map(serde_json::Value::from),
                proptest::collection::vec((".{0,6}", inner), 0..6)
                    .prop_map(|pairs| serde_json::Value::Object(pairs.into_iter().collect())),
            ]
        })
    }
}
