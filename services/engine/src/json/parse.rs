//! Text to [`Tape`]: one pass over the bytes that checks all of the grammar of RFC 8259 and notes where values are.
//!
//! The parser recurses, so its depth is bounded; the table is four words for each value, so their number is bounded.
//! Strings are the larger part of every Kubernetes object and are read eight bytes at a time.

use thiserror::Error;

use super::string::plain_length;
use super::tape::{Kind, Node, OwnedTape};

/// What a text may hold at most.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Objects and lists within one another. The parser uses the stack in proportion.
    pub depth: usize,
    /// Keys and values in total. The table takes 16 bytes for each.
    pub nodes: usize,
}

impl Default for Limits {
    /// As deep as Kubernetes' own decoder goes for practical objects, and as many values as two objects of the largest
    /// size that etcd stores could hold.
    fn default() -> Self {
        Self { depth: 128, nodes: 1 << 20 }
    }
}

/// Where and why a text is not JSON, or more than it may be.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{what} at byte {offset}")]
pub struct SyntaxError {
    /// Offset of the first byte that does not fit.
    pub offset: usize,
    /// What is wrong there.
    pub what: &'static str,
}

/// Reads a text into the table of its values.
///
/// # Errors
/// If the text is not UTF-8, not JSON, followed by more than white space, or exceeds the limits.
pub(super) fn nodes(text: &[u8], limits: Limits) -> Result<Vec<Node>, SyntaxError> {
    let fault = |what| SyntaxError { offset: 0, what };
    if u32::try_from(text.len()).is_err() {
        return Err(fault("a text of four gigabytes or more"));
    }
    // A value of a Kubernetes object takes about nine bytes with its key; too much is better than growing once.
    let nodes = Vec::with_capacity((text.len() / 7 + 4).min(limits.nodes));
    let mut parser = Parser { text, at: 0, nodes, limits, fault: None };
    match parser.whole() {
        Some(()) => Ok(parser.nodes),
        None => Err(parser.fault.unwrap_or_else(|| fault("a text that cannot be read"))),
    }
}

struct Parser<'t> {
    text: &'t [u8],
    at: usize,
    nodes: Vec<Node>,
    limits: Limits,
    /// Why reading ended, where a function gives `None`. Here and not in every result, because a result that is one bit
    /// is cheaper to look at, and one is looked at for every few bytes.
    fault: Option<SyntaxError>,
}

impl Parser<'_> {
    fn whole(&mut self) -> Option<()> {
        self.value(0)?;
        self.space();
        if self.peek().is_some() { self.fail("something behind the end of the value") } else { Some(()) }
    }

    fn value(&mut self, depth: usize) -> Option<()> {
        self.space();
        match self.peek() {
            Some(b'"') => self.string(),
            Some(b'{') => self.object(depth),
            Some(b'[') => self.array(depth),
            Some(b't') => self.word(b"true", Kind::True),
            Some(b'f') => self.word(b"false", Kind::False),
            Some(b'n') => self.word(b"null", Kind::Null),
            Some(b'-' | b'0'..=b'9') => self.number(),
            Some(_) => self.fail("expected a value"),
            None => self.fail("the text ends where a value was expected"),
        }
    }

    fn object(&mut self, depth: usize) -> Option<()> {
        let index = self.enter(Kind::Object, depth)?;
        self.space();
        if self.peek() == Some(b'}') {
            return self.leave(index);
        }
        loop {
            self.space();
            if self.peek() != Some(b'"') {
                return self.fail("expected a key in quotes");
            }
            self.string()?;
            self.space();
            self.expect(b':', "expected a colon behind the key")?;
            self.value(depth + 1)?;
            self.space();
            match self.peek() {
                Some(b',') => self.at += 1,
                Some(b'}') => return self.leave(index),
                _ => return self.fail("expected a comma or the end of the object"),
            }
        }
    }

    fn array(&mut self, depth: usize) -> Option<()> {
        let index = self.enter(Kind::Array, depth)?;
        self.space();
        if self.peek() == Some(b']') {
            return self.leave(index);
        }
        loop {
            self.value(depth + 1)?;
            self.space();
            match self.peek() {
                Some(b',') => self.at += 1,
                Some(b']') => return self.leave(index),
                _ => return self.fail("expected a comma or the end of the list"),
            }
        }
    }

    fn enter(&mut self, kind: Kind, depth: usize) -> Option<usize> {
        if depth >= self.limits.depth {
            return self.fail("nested too deeply");
        }
        let index = self.nodes.len();
        let start = self.at;
        self.at += 1;
        self.push(kind, start)?;
        Some(index)
    }

    /// Notes the end of an object or list, now that it is known.
    fn leave(&mut self, index: usize) -> Option<()> {
        self.at += 1;
        let (end, next) = (narrow(self.at), narrow(self.nodes.len()));
        let Some(node) = self.nodes.get_mut(index) else { return self.fail("the table of values is broken") };
        node.end = end;
        node.next = next;
        Some(())
    }

    fn string(&mut self) -> Option<()> {
        let start = self.at;
        self.at += 1;
        let mut kind = Kind::String;
        loop {
            self.plain();
            match self.peek() {
                Some(b'"') => {
                    self.at += 1;
                    return self.push(kind, start);
                }
                Some(b'\\') => {
                    kind = Kind::EscapedString;
                    self.escape()?;
                }
                Some(_) => return self.fail("a control character in a string"),
                None => return self.fail("the text ends in a string"),
            }
        }
    }

    /// Passes over the part of a string that stands for itself.
    fn plain(&mut self) {
        self.at += self.text.get(self.at..).map_or(0, plain_length);
    }

    fn escape(&mut self) -> Option<()> {
        self.at += 1;
        match self.peek() {
            Some(b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't') => {
                self.at += 1;
                Some(())
            }
            Some(b'u') => {
                self.at += 1;
                match self.unit()? {
                    0xD800..=0xDBFF => {
                        if self.text.get(self.at..self.at + 2) != Some(b"\\u") {
                            return self.fail("half of a surrogate pair");
                        }
                        self.at += 2;
                        match self.unit()? {
                            0xDC00..=0xDFFF => Some(()),
                            _ => self.fail("half of a surrogate pair"),
                        }
                    }
                    0xDC00..=0xDFFF => self.fail("half of a surrogate pair"),
                    _ => Some(()),
                }
            }
            _ => self.fail("an unknown escape in a string"),
        }
    }

    /// Four hexadecimal digits.
    fn unit(&mut self) -> Option<u32> {
        let mut unit = 0;
        for _ in 0..4 {
            let digit = self.peek().and_then(|byte| char::from(byte).to_digit(16));
            let Some(digit) = digit else { return self.fail("expected four hexadecimal digits") };
            unit = unit * 16 + digit;
            self.at += 1;
        }
        Some(unit)
    }

    fn number(&mut self) -> Option<()> {
        let start = self.at;
        if self.peek() == Some(b'-') {
            self.at += 1;
        }
        match self.peek() {
            Some(b'0') => self.at += 1,
            _ => self.digits()?,
        }
        if self.peek() == Some(b'.') {
            self.at += 1;
            self.digits()?;
        }
        if matches!(self.peek(), Some(b'e' | b'E')) {
            self.at += 1;
            if matches!(self.peek(), Some(b'+' | b'-')) {
                self.at += 1;
            }
            self.digits()?;
        }
        self.push(Kind::Number, start)
    }

    fn digits(&mut self) -> Option<()> {
        let start = self.at;
        while self.peek().is_some_and(|byte| byte.is_ascii_digit()) {
            self.at += 1;
        }
        if self.at == start { self.fail("expected a digit") } else { Some(()) }
    }

    fn word(&mut self, word: &[u8], kind: Kind) -> Option<()> {
        let start = self.at;
        if !self.text.get(start..).is_some_and(|rest| rest.starts_with(word)) {
            return self.fail("expected a value");
        }
        self.at += word.len();
        self.push(kind, start)
    }

    fn push(&mut self, kind: Kind, start: usize) -> Option<()> {
        if self.nodes.len() >= self.limits.nodes {
            return self.fail("too many values");
        }
        let next = narrow(self.nodes.len() + 1);
        self.nodes.push(Node { start: narrow(start), end: narrow(self.at), next, kind });
        Some(())
    }

    fn expect(&mut self, byte: u8, what: &'static str) -> Option<()> {
        if self.peek() != Some(byte) {
            return self.fail(what);
        }
        self.at += 1;
        Some(())
    }

    fn space(&mut self) {
        while matches!(self.peek(), Some(b' ' | b'\n' | b'\r' | b'\t')) {
            self.at += 1;
        }
    }

    fn peek(&self) -> Option<u8> {
        self.text.get(self.at).copied()
    }

    /// Notes what is wrong at the place at hand.
    #[cold]
    fn fail<T>(&mut self, what: &'static str) -> Option<T> {
        self.fault = Some(SyntaxError { offset: self.at, what });
        None
    }
}

/// The length of the text was checked to fit before anything else.
#[expect(
    clippy::cast_possible_truncation,
    reason = "positions are below the length of the text, which fits in 32 bits"
)]
const fn narrow(position: usize) -> u32 {
    position as u32
}

impl OwnedTape {
    /// Reads a text that is kept with its table.
    ///
    /// # Errors
    /// If the text is not JSON.
    pub fn parse(text: impl Into<Box<str>>) -> Result<Self, SyntaxError> {
        let text = text.into();
        let nodes = nodes(text.as_bytes(), Limits::default())?;
        Ok(Self::from_parts(text, nodes))
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
    fn a_fault_names_its_place() {
        let fault = |text: &str| nodes(text.as_bytes(), Limits::default()).unwrap_err();
        assert_eq!(fault(r#"{"a":1,}"#), SyntaxError { offset: 7, what: "expected a key in quotes" });
        assert_eq!(fault("[1 2]").offset, 3);
        assert_eq!(fault("").what, "the text ends where a value was expected");
        assert_eq!(fault("{} x").what, "something behind the end of the value");
    }

    #[test]
    fn depth_and_number_are_bounded() {
        let nested = |depth: usize| format!("{}{}", "[".repeat(depth), "]".repeat(depth));
        assert!(accepts(&nested(128)));
        assert!(!accepts(&nested(129)));
        assert!(!accepts(&"[".repeat(100_000)));
        let limits = Limits { nodes: 4, ..Limits::default() };
        assert!(nodes(b"[1,2,3]", limits).is_ok());
        assert_eq!(nodes(b"[1,2,3,4]", limits).unwrap_err().what, "too many values");
    }

    proptest! {
        /// What we accept, and only that, serde_json accepts too.
        #[test]
        fn the_grammar_is_that_of_serde_json(
            text in r#"[\[\]{}:, \n\t0-9eE+.truefalsnx"\\u\-dD8bcC0-9/é]{0,24}"#
        ) {
            let theirs: Result<serde::de::IgnoredAny, _> = serde_json::from_str(&text);
            let value: Result<serde_json::Value, _> = serde_json::from_str(&text);
            // Reading into a value also refuses halves of surrogate pairs and numbers beyond f64; ours keeps numbers as
            // they stand.
            let number_out_of_range = value.as_ref().is_err_and(|e| e.to_string().contains("number out of range"));
            prop_assert_eq!(accepts(&text), (theirs.is_ok() && value.is_ok()) || (number_out_of_range && theirs.is_ok()));
        }

        #[test]
        fn every_json_value_is_accepted(value in any_json()) {
            prop_assert!(accepts(&value.to_string()));
            prop_assert!(accepts(&serde_json::to_string_pretty(&value).unwrap()));
        }

        #[test]
        fn arbitrary_bytes_do_no_harm(bytes in proptest::collection::vec(any::<u8>(), 0..64)) {
            let _ = nodes(&bytes, Limits::default());
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
