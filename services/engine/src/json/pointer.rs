//! Tokens of JSON pointers (RFC 6901), in which `~` and `/` are escaped.

/// Whether a key has a character that a pointer escapes. Nearly none has, and every key on the way is asked; so eight bytes
/// are looked at at a time.
pub(crate) fn needs_escape(key: &str) -> bool {
    const ONES: u64 = u64::MAX / 255;
    // A byte is zero where the key has the character. Bytes above it may look so too, which changes no answer.
    let has = |word: u64, byte: u8| {
        let zero = word ^ (ONES * u64::from(byte));
        zero.wrapping_sub(ONES) & !zero & (ONES << 7) != 0
    };
    let (words, rest) = key.as_bytes().as_chunks();
    words.iter().map(|word| u64::from_le_bytes(*word)).any(|word| has(word, b'~') || has(word, b'/'))
        || rest.iter().any(|byte| matches!(byte, b'~' | b'/'))
}

#[cfg(test)]
mod tests {
    use super::needs_escape;

    #[test]
    fn what_is_escaped_is_found_at_every_place() {
        for length in 1..20 {
            assert!(!needs_escape(&"x".repeat(length)));
            for place in 0..length {
                for special in ['~', '/'] {
                    let key: String = (0..length).map(|at| if at == place { special } else { '.' }).collect();
                    assert!(needs_escape(&key), "{key}");
                }
            }
        }
        assert!(!needs_escape("0.}\u{7f}é\u{ae}\u{af}"));
    }
}
