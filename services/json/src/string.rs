//! Escapes in JSON strings and JSON pointers (RFC 6901), and object keys.

use std::borrow::Cow;
use std::fmt;

use super::bytes::{self, ONES};

/// A destination for JSON text: a string or bytes.
pub trait Sink {
    /// Appends a string.
    fn put(&mut self, text: &str);
}

/// The key of a member, as it is written between the quotes. Keys are compared far more often than decoded, and few
/// contain escapes, so each key records whether it contains any.
#[derive(Clone, Copy)]
pub struct Key<'t> {
    escaped: &'t str,
    has_escapes: bool,
}

impl<'t> Key<'t> {
    /// Creates a key from its escaped form, without quotes.
    #[inline]
    #[must_use]
    pub fn new(escaped: &'t str) -> Self {
        Self { escaped, has_escapes: bytes::has_byte(escaped, b'\\') }
    }

    /// Creates a key from the parser's result. `has_escapes` must be set if `escaped` contains a backslash.
    #[inline]
    #[must_use]
    pub const fn read(escaped: &'t str, has_escapes: bool) -> Self {
        Self { escaped, has_escapes }
    }

    /// Returns the key with JSON escapes, without quotes.
    #[inline]
    #[must_use]
    pub const fn escaped(self) -> &'t str {
        self.escaped
    }

    /// Whether the key contains an escape.
    #[inline]
    #[must_use]
    pub const fn has_escapes(self) -> bool {
        self.has_escapes
    }

    /// Returns the unescaped key.
    #[must_use]
    #[inline]
    pub fn text(self) -> Cow<'t, str> {
        if self.has_escapes { Cow::Owned(unescape(self.escaped)) } else { Cow::Borrowed(self.escaped) }
    }

    /// Returns a 64-bit filter for finding equal keys. A key without escapes sets one bit: the same bit for equal keys,
    /// and mostly different bits for the other keys of an object. A key with escapes sets all bits, because the same
    /// key can also be written without escapes.
    #[inline]
    fn bits(self) -> u64 {
        if self.has_escapes {
            return u64::MAX;
        }
        let byte = |place: Option<&u8>| place.map_or(0, |byte| usize::from(*byte));
        let bytes = self.escaped.as_bytes();
        let digest =
            bytes.len().wrapping_mul(7) ^ byte(bytes.first()).wrapping_mul(5) ^ byte(bytes.last()).wrapping_mul(3);
        1 << (digest % 64)
    }

    /// Whether the unescaped key equals a string.
    #[inline]
    #[must_use]
    pub fn is(self, text: &str) -> bool {
        if self.has_escapes {
            may_equal(self.escaped, text) && unescape(self.escaped) == text
        } else {
            self.escaped == text
        }
    }
}

impl fmt::Debug for Key<'_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.escaped)
    }
}

/// Whether `escaped` is short enough to equal `text`, since an escape of six bytes decodes to at least one byte. Longer
/// strings need no decoding, so the length of `text` limits the cost of a comparison.
#[inline]
pub(crate) const fn may_equal(escaped: &str, text: &str) -> bool {
    escaped.len() <= text.len().saturating_mul(6)
}

/// Returns the first duplicate key. Compares a key with the previous ones only if their filters overlap. This is only
/// suitable for small objects, because in large ones every key would be compared.
#[inline]
pub fn first_duplicate_key<'t, I: Iterator<Item = Key<'t>>>(keys: impl Fn() -> I) -> Option<Key<'t>> {
    let mut seen = 0;
    let twice = keys().enumerate().find(|(index, key)| {
        let (before, bits) = (seen, key.bits());
        seen |= bits;
        if before & bits == 0 {
            return false;
        }
        let text = key.text();
        keys().take(*index).any(|earlier| earlier.is(&text))
    });
    twice.map(|(_, key)| key)
}

/// Decodes the content of a string. The parser has checked the string, so it contains no invalid escapes.
pub(crate) fn unescape(inner: &str) -> String {
    let mut text = String::with_capacity(inner.len());
    let mut rest = inner;
    while let Some((plain, escape)) = rest.split_once('\\') {
        text.push_str(plain);
        let mut chars = escape.chars();
        match chars.next() {
            Some('b') => text.push('\u{8}'),
            Some('f') => text.push('\u{c}'),
            Some('n') => text.push('\n'),
            Some('r') => text.push('\r'),
            Some('t') => text.push('\t'),
            Some('u') => {
                let (character, length) = unicode(chars.as_str());
                text.extend(character);
                rest = chars.as_str().get(length..).unwrap_or_default();
                continue;
            }
            Some(other) => text.push(other),
            None => {}
        }
        rest = chars.as_str();
    }
    text.push_str(rest);
    text
}

/// Decodes `XXXX` or `XXXX\uXXXX`. Returns the character, and the number of bytes read.
fn unicode(digits: &str) -> (Option<char>, usize) {
    let unit = |at: usize| digits.get(at..at + 4).and_then(|hex| u16::from_str_radix(hex, 16).ok());
    let units = [unit(0), unit(6).filter(|_| unit(0).is_some_and(|first| (0xD800..0xDC00).contains(&first)))];
    let character = char::decode_utf16(units.into_iter().flatten()).next().and_then(Result::ok);
    (character, character.map_or(4, |character| if character.len_utf16() == 2 { 10 } else { 4 }))
}

impl Sink for String {
    #[inline]
    fn put(&mut self, text: &str) {
        self.push_str(text);
    }
}

impl Sink for Vec<u8> {
    #[inline]
    fn put(&mut self, text: &str) {
        self.extend_from_slice(text.as_bytes());
    }
}

/// Writes a string as a JSON string with quotes.
pub fn write_string(out: &mut impl Sink, text: &str) {
    out.put("\"");
    write_escaped(out, text);
    out.put("\"");
}

/// Writes a string as the content of a JSON string, with escapes.
pub fn write_escaped(out: &mut impl Sink, text: &str) {
    const DIGITS: &str = "0123456789abcdef";
    // `rest` has not been written yet. Its first `skip` bytes need no escape.
    let (mut rest, mut skip) = (text, 0);
    loop {
        let special = after_plain(rest.as_bytes().get(skip..).unwrap_or_default());
        let (plain, tail) = rest.split_at_checked(rest.len() - special.len()).unwrap_or_default();
        out.put(plain);
        let Some(byte) = tail.bytes().next() else { return };
        skip = 0;
        match byte {
            // After the backslash, the character itself follows, so it is written together with the next bytes.
            b'"' | b'\\' => {
                out.put("\\");
                (rest, skip) = (tail, 1);
                continue;
            }
            b'\n' => out.put("\\n"),
            b'\r' => out.put("\\r"),
            b'\t' => out.put("\\t"),
            byte => {
                let digit = |nibble: u8| DIGITS.get(usize::from(nibble)..=usize::from(nibble)).unwrap_or_default();
                out.put("\\u00");
                out.put(digit(byte >> 4));
                out.put(digit(byte & 15));
            }
        }
        rest = tail.get(1..).unwrap_or_default();
    }
}

/// Whether a string needs no escapes in JSON.
#[inline]
#[must_use]
pub fn is_plain(text: &str) -> bool {
    !bytes::any(text.as_bytes(), |word| special_bytes(word) != 0, |byte| matches!(byte, b'"' | b'\\' | 0..0x20))
}

/// Returns the rest of a string after its leading bytes that need no escape in JSON. Reads eight bytes at a time,
/// because most bytes of an object are in strings.
#[inline]
pub(crate) fn after_plain(text: &[u8]) -> &[u8] {
    let mut rest = text;
    while let Some((word, tail)) = rest.split_first_chunk() {
        let special = special_bytes(u64::from_le_bytes(*word));
        if special != 0 {
            return rest.get(special.trailing_zeros() as usize / 8..).unwrap_or_default();
        }
        rest = tail;
    }
    while let [byte, tail @ ..] = rest
        && !matches!(byte, b'"' | b'\\' | 0..0x20)
    {
        rest = tail;
    }
    rest
}

/// Sets the highest bit of each byte in a word that needs an escape: quotes, backslashes and control characters. Only
/// the lowest bit that is set is certain to be correct, because of carries in the subtraction.
const fn special_bytes(word: u64) -> u64 {
    // With bit 1 flipped, the quote becomes a space, which directly follows the control characters.
    let quote_or_control = (word ^ (ONES * 0x02)).wrapping_sub(ONES * 0x21);
    let backslash = (word ^ (ONES * b'\\' as u64)).wrapping_sub(ONES);
    (quote_or_control | backslash) & !word & (ONES << 7)
}

/// Whether a key contains a character that JSON pointers escape. Almost no key does.
pub fn needs_escape(key: &str) -> bool {
    bytes::any(key.as_bytes(), |word| pointer_specials(word) != 0, is_pointer_special)
}

/// Splits a key at the first character that JSON pointers escape. Returns the part before it, its escape, and the part
/// after it. `None` if there is no such character.
pub fn split_at_escape(key: &str) -> Option<(&str, &'static str, &str)> {
    let place = bytes::find(key.as_bytes(), pointer_specials, is_pointer_special)?;
    let (plain, tail) = key.split_at_checked(place)?;
    Some((plain, if tail.starts_with('~') { "~0" } else { "~1" }, tail.get(1..)?))
}

fn pointer_specials(word: u64) -> u64 {
    bytes::marked(word, b'~') | bytes::marked(word, b'/')
}

fn is_pointer_special(byte: u8) -> bool {
    matches!(byte, b'~' | b'/')
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn finds_special_byte_at_every_position() {
        for special in [b'"', b'\\', 0, 0x1f] {
            for place in 0..8 {
                let mut bytes = *b"abc\xc3\xa9 ~\x7f";
                bytes[place] = special;
                let found = special_bytes(u64::from_le_bytes(bytes)).trailing_zeros() as usize / 8;
                assert_eq!(found, place, "{special:#x}");
            }
        }
        assert_eq!(special_bytes(u64::from_le_bytes(*b" !#[]\x7f\xff\x80")), 0);
    }

    #[test]
    fn finds_escaped_character_at_every_position() {
        for length in 1..20 {
            assert!(!needs_escape(&"x".repeat(length)));
            for place in 0..length {
                for special in ['~', '/'] {
                    let key: String = (0..length).map(|at| if at == place { special } else { '.' }).collect();
                    assert!(needs_escape(&key), "{key}");
                    let escape = if special == '~' { "~0" } else { "~1" };
                    assert_eq!(split_at_escape(&key), Some((&key[..place], escape, &key[place + 1..])));
                }
            }
        }
        assert_eq!(split_at_escape("a.b"), None);
        assert!(!needs_escape("0.}\u{7f}é\u{ae}\u{af}"));
    }

    proptest! {
        #[test]
        fn written_string_reads_back(text in any::<String>()) {
            let (mut written, mut bytes) = (String::new(), Vec::new());
            write_string(&mut written, &text);
            write_string(&mut bytes, &text);
            prop_assert_eq!(written.as_bytes(), &bytes);
            prop_assert_eq!(is_plain(&text), written.len() == text.len() + 2);
            prop_assert_eq!(&serde_json::from_str::<String>(&written).unwrap(), &text);
            let key = Key::new(&written[1..written.len() - 1]);
            prop_assert_eq!(key.text(), text.as_str());
            prop_assert!(key.is(&text));
        }

        #[test]
        fn decodes_unicode_escapes(text in any::<String>()) {
            let escaped: Vec<_> = text.encode_utf16().map(|unit| format!("\\u{unit:04x}")).collect();
            prop_assert_eq!(unescape(&escaped.concat()), text);
        }
    }
}
