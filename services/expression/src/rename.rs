//! Renames the members of a name in the source of an expression.

use super::error::ExpressionError;
use super::lexer::{Lexer, TokenKind};

/// Returns the source of an expression with the members of `name` renamed: with the name `variables`, `variables.a`
/// becomes `variables.b` if `rename` returns `b` for `a`. Members in brackets, such as `variables['a']`, keep their
/// names.
///
/// # Errors
/// The source contains an invalid token.
pub fn rename_members(source: &str, name: &str, rename: impl Fn(&str) -> String) -> Result<String, ExpressionError> {
    let mut lexer = Lexer::new(source, 0);
    let mut renamed = String::with_capacity(source.len());
    let mut copied = 0;
    let (mut is_after_dot, mut is_member) = (false, false);
    let mut is_after_name = false;
    loop {
        let token = lexer.next()?;
        let mut is_name = false;
        match &token.kind {
            TokenKind::End => break,
            TokenKind::Name(member) if is_member && is_after_dot => {
                renamed.push_str(source.get(copied..token.start).unwrap_or_default());
                renamed.push_str(&rename(member));
                copied = token.end;
                is_member = false;
            }
            TokenKind::Name(found) => {
                is_name = found == name && !is_after_dot;
                is_member = false;
            }
            // In `variables.?a`, a question mark follows the dot.
            TokenKind::Symbol("?") if is_after_dot && is_member => continue,
            TokenKind::Symbol(".") => is_member = is_after_name,
            _ => is_member = false,
        }
        is_after_dot = matches!(token.kind, TokenKind::Symbol("."));
        is_after_name = is_name;
    }
    renamed.push_str(source.get(copied..).unwrap_or_default());
    Ok(renamed)
}

#[cfg(test)]
mod tests {
    use super::rename_members;

    #[test]
    fn renames_only_members_of_the_name() {
        for (source, expected) in [
            ("variables.a + variables.b", "variables.p_a + variables.p_b"),
            ("variables.?a.orValue(object.a)", "variables.?p_a.orValue(object.a)"),
            ("object.variables.a + 'variables.a'", "object.variables.a + 'variables.a'"),
            ("has(variables.a) ? variables . a.b : x", "has(variables.p_a) ? variables . p_a.b : x"),
            ("variables", "variables"),
        ] {
            assert_eq!(rename_members(source, "variables", |name| format!("p_{name}")).unwrap(), expected);
        }
    }
}
