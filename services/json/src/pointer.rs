//! Escapes tokens of JSON pointers (RFC 6901): `~` and `/`.

use super::bytes::{any, find, marked};

/// Whether a key has a character that a pointer escapes. Almost all keys have none.
pub fn needs_escape(key: &str) -> bool {
    any(key.as_bytes(), |word| special(word) != 0, is_special)
}

/// Splits a key at the first character that a pointer escapes: the part before it, its escape, and the rest. Returns
/// `None` if there is no such character.
pub fn split_at_escape(key: &str) -> Option<(&str, &'static str, &str)> {
    let place = find(key.as_bytes(), special, is_special)?;
    let (plain, behind) = key.split_at_checked(place)?;
    Some((plain, if behind.starts_with('~') { "~0" } else { "~1" }, behind.get(1..)?))
}

fn special(word: u64) -> u64 {
    marked(word, b'~') | marked(word, b'/')
}

fn is_special(byte: u8) -> bool {
    matches!(byte, b'~' | b'/')
}

#[cfg(test)]
mod tests {
    use super::{needs_escape, split_at_escape};

    #[test]
    fn what_is_escaped_is_found_at_every_place() {
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
}
