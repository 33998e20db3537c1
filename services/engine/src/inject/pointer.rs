//! Writes JSON pointers as the record has them.

use crate::json::{needs_escape, split_at_escape};

/// Appends a token to a pointer.
pub(super) fn push_token(pointer: &mut String, token: &str) {
    pointer.push('/');
    push_escaped(pointer, token);
}

/// Appends a text, with `~` and `/` escaped.
pub(super) fn push_escaped(pointer: &mut String, token: &str) {
    let mut rest = token;
    if needs_escape(token) {
        while let Some((plain, escape, behind)) = split_at_escape(rest) {
            pointer.push_str(plain);
            pointer.push_str(escape);
            rest = behind;
        }
    }
    pointer.push_str(rest);
}
