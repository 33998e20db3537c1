//! Strings of JSON: their escapes, read and written, and the keys of objects, which are strings that are compared often
//! and read seldom.

use std::borrow::Cow;
use std::fmt;

/// The key of a member, as it stands in the text between its quotes.
#[derive(Clone, Copy)]
pub struct Key<'t> {
    escaped: &'t str,
}

impl<'t> Key<'t> {
    /// A key whose text is escaped for JSON, without its quotes.
    pub(crate) const fn new(escaped: &'t str) -> Self {
        Self { escaped }
    }

    /// The key, escaped for JSON, without its quotes.
    pub(crate) const fn escaped(self) -> &'t str {
        self.escaped
    }

    /// The text that the key stands for.
    #[must_use]
    pub fn text(self) -> Cow<'t, str> {
        if self.has_escapes() { Cow::Owned(unescape(self.escaped)) } else { Cow::Borrowed(self.escaped) }
    }

    /// Whether the key stands for this text.
    #[must_use]
    pub fn is(self, text: &str) -> bool {
        self.escaped == text || (self.has_escapes() && unescape(self.escaped) == text)
    }

    fn has_escapes(self) -> bool {
        // Compared for every key that is looked for, and of a length for which a call is dearer than a loop.
        self.escaped.bytes().any(|byte| byte == b'\\')
    }
}

impl fmt::Debug for Key<'_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.escaped)
    }
}

/// The text that the inside of a string stands for. The string was checked when it was read; what does not fit all the
/// same is left out.
pub(super) fn unescape(inner: &str) -> String {
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

/// The character of `XXXX` or `XXXX\uXXXX`, and how many bytes that is.
fn unicode(digits: &str) -> (Option<char>, usize) {
    let unit = |at: usize| digits.get(at..at + 4).and_then(|hex| u16::from_str_radix(hex, 16).ok());
    let units = [unit(0), unit(6).filter(|_| unit(0).is_some_and(|first| (0xD800..0xDC00).contains(&first)))];
    let character = char::decode_utf16(units.into_iter().flatten()).next().and_then(Result::ok);
    (character, character.map_or(4, |character| if character.len_utf16() == 2 { 10 } else { 4 }))
}

/// Writes a text as a string of JSON, with its quotes.
pub(crate) fn write_string(out: &mut Vec<u8>, text: &str) {
    out.push(b'"');
    write_escaped(out, text);
    out.push(b'"');
}

/// Writes a text as the inside of a string of JSON.
pub(crate) fn write_escaped(out: &mut Vec<u8>, text: &str) {
    let mut plain = 0;
    for (index, byte) in text.bytes().enumerate() {
        let escape: &[u8] = match byte {
            b'"' => b"\\\"",
            b'\\' => b"\\\\",
            b'\n' => b"\\n",
            b'\r' => b"\\r",
            b'\t' => b"\\t",
            0..0x20 => {
                let hex = |nibble: u8| if nibble < 10 { b'0' + nibble } else { b'a' + nibble - 10 };
                out.extend_from_slice(text.as_bytes().get(plain..index).unwrap_or_default());
                out.extend_from_slice(&[b'\\', b'u', b'0', b'0', hex(byte >> 4), hex(byte & 15)]);
                plain = index + 1;
                continue;
            }
            _ => continue,
        };
        out.extend_from_slice(text.as_bytes().get(plain..index).unwrap_or_default());
        out.extend_from_slice(escape);
        plain = index + 1;
    }
    out.extend_from_slice(text.as_bytes().get(plain..).unwrap_or_default());
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn what_is_written_is_read_back(text in any::<String>()) {
            let mut written = Vec::new();
            write_string(&mut written, &text);
            let written = String::from_utf8(written).unwrap();
            prop_assert_eq!(&serde_json::from_str::<String>(&written).unwrap(), &text);
            let key = Key::new(&written[1..written.len() - 1]);
            prop_assert_eq!(key.text(), text.as_str());
            prop_assert!(key.is(&text));
        }

        #[test]
        fn what_others_escape_is_read(text in any::<String>()) {
            let escaped: Vec<_> = text.encode_utf16().map(|unit| format!("\\u{unit:04x}")).collect();
            prop_assert_eq!(unescape(&escaped.concat()), text);
        }
    }
}
