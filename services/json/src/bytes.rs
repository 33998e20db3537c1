//! Searches strings for bytes, eight bytes at a time. Most strings do not contain the byte, so the search usually reads
//! the whole string.

/// A word of eight bytes, each with the value 1.
pub(crate) const ONES: u64 = u64::MAX / 255;

/// Whether a string contains an ASCII byte.
#[inline]
#[must_use]
pub fn has_byte(text: &str, byte: u8) -> bool {
    any(text.as_bytes(), |word| marked(word, byte) != 0, |other| other == byte)
}

/// Returns the part of a string before the first occurrence of an ASCII byte, or the whole string if there is none.
#[inline]
pub(crate) fn before_byte(text: &str, byte: u8) -> &str {
    let position = find(text.as_bytes(), |word| marked(word, byte), |other| other == byte);
    position.and_then(|position| text.get(..position)).unwrap_or(text)
}

/// Whether any byte satisfies `of_byte`. `of_word` must return whether any of the eight bytes in a word satisfies it.
#[inline]
pub(crate) fn any(text: &[u8], of_word: impl Fn(u64) -> bool, of_byte: impl Fn(u8) -> bool) -> bool {
    // The last eight bytes are tested as one word. It may overlap the previous words.
    let Some(last) = text.last_chunk() else {
        return match (text.first_chunk(), text.last_chunk()) {
            (Some(first), Some(last)) => {
                of_word(u64::from(u32::from_le_bytes(*first)) | u64::from(u32::from_le_bytes(*last)) << 32)
            }
            _ => text.iter().any(|byte| of_byte(*byte)),
        };
    };
    let (words, _) = text.as_chunks();
    words.iter().any(|word| of_word(u64::from_le_bytes(*word))) || of_word(u64::from_le_bytes(*last))
}

/// Returns the position of the first matching byte. `of_word` sets the highest bit of each matching byte in a word.
/// Only the lowest bit that it sets must be correct.
#[inline]
pub(crate) fn find(text: &[u8], of_word: impl Fn(u64) -> u64, of_byte: impl Fn(u8) -> bool) -> Option<usize> {
    let (words, rest) = text.as_chunks();
    for (index, word) in words.iter().enumerate() {
        let marks = of_word(u64::from_le_bytes(*word));
        if marks != 0 {
            return Some(index * 8 + marks.trailing_zeros() as usize / 8);
        }
    }
    let position = rest.iter().position(|byte| of_byte(*byte))?;
    Some(text.len() - rest.len() + position)
}

/// Sets the highest bit of each byte in a word that equals an ASCII byte. Only the lowest bit that is set is certain to
/// be correct.
#[inline]
pub(crate) const fn marked(word: u64, byte: u8) -> u64 {
    let zero = word ^ (ONES * byte as u64);
    zero.wrapping_sub(ONES) & !zero & (ONES << 7)
}

#[cfg(test)]
mod tests {
    use super::{before_byte, has_byte};

    #[test]
    fn finds_byte_at_every_position() {
        for length in 0..20 {
            assert!(!has_byte(&"é".repeat(length), b'i'), "{length}");
            for position in 0..length {
                let text: String = (0..length).map(|at| if at == position { '\\' } else { ']' }).collect();
                assert!(has_byte(&text, b'\\') && !has_byte(&text, b'['), "{text}");
                assert_eq!((before_byte(&text, b'\\'), before_byte(&text, b'[')), (&text[..position], &*text));
            }
        }
    }
}
