//! Truncates and escapes text from clients before it is written to a log or a response.

use std::fmt::{self, Write};

/// The maximum number of bytes of one text from a client in a log line.
pub(crate) const LOGGED_BYTES: usize = 256;

/// Displays a string as one line of printable characters, truncated to this number of bytes. A truncated string is
/// followed by `...`, which does not count towards the limit.
pub(crate) struct Bounded<'t>(pub(crate) &'t str, pub(crate) usize);

impl fmt::Display for Bounded<'_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut left = self.1;
        for character in self.0.chars() {
            let quoted = matches!(character, '"' | '\'' | '\\');
            let bytes = if quoted { 1 } else { character.escape_debug().map(char::len_utf8).sum() };
            let Some(rest) = left.checked_sub(bytes) else { return formatter.write_str("...") };
            left = rest;
            if quoted {
                formatter.write_char(character)?;
            } else {
                write!(formatter, "{}", character.escape_debug())?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn client_text_is_bounded_and_on_one_line() {
        assert_eq!(Bounded("pod \"a\\b\"", 64).to_string(), "pod \"a\\b\"");
        assert_eq!(Bounded("a\nb\u{1b}[31m\u{202e}", 64).to_string(), "a\\nb\\u{1b}[31m\\u{202e}");
        assert_eq!(Bounded("abcdef", 3).to_string(), "abc...");
        assert_eq!(Bounded("ab\n", 3).to_string(), "ab...");
        assert_eq!(Bounded(&"x".repeat(10_000), LOGGED_BYTES).to_string().len(), LOGGED_BYTES + 3);
    }
}
