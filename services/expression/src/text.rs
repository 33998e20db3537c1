//! The strings in templates. In them, `${...}` is an expression.
//!
//! `$${` is a literal `${`. `$(NAME)` is not an expression, because Kubernetes replaces it.

use super::error::ExpressionError;
use super::lexer::{Lexer, TokenKind};

/// A string of a template.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Text {
    /// A string without expressions. `$${` is already replaced with `${`.
    Literal(String),
    /// A string that consists of one `${...}`. The result keeps its type.
    Whole(Source),
    /// Literal strings and expressions. The results are inserted as strings.
    Mixed(Vec<Part>),
}

/// A part of a string with expressions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Part {
    /// A literal string.
    Text(String),
    /// An expression. Its result is inserted.
    Expression(Source),
}

/// The source of an expression in a string.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Source {
    /// The source: the part between `${` and `}`.
    pub text: String,
    /// The byte offset of the source in the string. It is added to the ranges of errors.
    pub offset: usize,
}

impl Text {
    /// Parses a string of a template.
    ///
    /// # Errors
    /// A `${` is not closed, or its end cannot be found because of an invalid token. The error contains the range in
    /// the string.
    pub fn parse(text: &str) -> Result<Self, ExpressionError> {
        let mut parts = Vec::new();
        let mut literal = String::new();
        let mut at = 0;
        while let Some(found) = text.get(at..).and_then(|rest| rest.find("${")) {
            let start = at + found;
            if start > at && text.as_bytes().get(start - 1) == Some(&b'$') {
                literal.push_str(text.get(at..start - 1).unwrap_or_default());
                literal.push_str("${");
                at = start + 2;
                continue;
            }
            literal.push_str(text.get(at..start).unwrap_or_default());
            if !literal.is_empty() {
                parts.push(Part::Text(std::mem::take(&mut literal)));
            }
            let end = end_of_expression(text, start)?;
            let source = text.get(start + 2..end).unwrap_or_default().to_owned();
            parts.push(Part::Expression(Source { text: source, offset: start + 2 }));
            at = end + 1;
        }
        literal.push_str(text.get(at..).unwrap_or_default());
        if !literal.is_empty() || parts.is_empty() {
            parts.push(Part::Text(literal));
        }
        Ok(match (parts.len(), parts.pop()) {
            (1, Some(Part::Text(text))) => Self::Literal(text),
            (1, Some(Part::Expression(source))) => Self::Whole(source),
            (_, last) => {
                parts.extend(last);
                Self::Mixed(parts)
            }
        })
    }
}

/// Returns the position of the brace that closes the expression whose `${` is at `start`.
fn end_of_expression(text: &str, start: usize) -> Result<usize, ExpressionError> {
    let unterminated = || {
        ExpressionError::new(start..text.len(), "this `${` is not closed")
            .with_help("close it with `}`, or write `$${` for a literal `${`")
    };
    let mut lexer = Lexer::new(text, start + 2);
    let mut open = 0_usize;
    loop {
        // The compiler reports errors in the expression. Here, only errors that hide its end are reported.
        let token = lexer.next().map_err(|error| if error.range.end == text.len() { unterminated() } else { error })?;
        match token.kind {
            TokenKind::End => return Err(unterminated()),
            TokenKind::Symbol("{") => open += 1,
            TokenKind::Symbol("}") if open == 0 => return Ok(token.start),
            TokenKind::Symbol("}") => open -= 1,
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(text: &str, offset: usize) -> Source {
        Source { text: text.to_owned(), offset }
    }

    fn literal(text: &str) -> Text {
        Text::Literal(text.to_owned())
    }

    #[test]
    fn text_without_expressions_is_literal() {
        for text in ["", "plain", "$", "$(POD_NAME)", "a $ b { c }", "$$", "}"] {
            assert_eq!(Text::parse(text).unwrap(), literal(text));
        }
        assert_eq!(Text::parse("$${x}").unwrap(), literal("${x}"));
        assert_eq!(Text::parse("a $${x} $$${y} b").unwrap(), literal("a ${x} $${y} b"));
    }

    #[test]
    fn single_expression_is_whole() {
        assert_eq!(Text::parse("${a.b}").unwrap(), Text::Whole(source("a.b", 2)));
        for inner in [
            "{'a': {'b': 1}}",
            "'}'",
            r"'\'}'",
            "\"}\"",
            "'''}'}'''",
            "r'\\}'",
            "R\"}\"",
            "b'}'",
            "a // }\n + b",
            "'${x}'",
            "a['}'].map(x, {'k': x})",
        ] {
            assert_eq!(Text::parse(&format!("${{{inner}}}")).unwrap(), Text::Whole(source(inner, 2)), "{inner}");
        }
    }

    #[test]
    fn separates_text_and_expressions() {
        let text = "a-${x}-$(Y)-$${z}-${ {'b': 1}.b }";
        assert_eq!(
            Text::parse(text).unwrap(),
            Text::Mixed(vec![
                Part::Text("a-".into()),
                Part::Expression(source("x", 4)),
                Part::Text("-$(Y)-${z}-".into()),
                Part::Expression(source(" {'b': 1}.b ", 20)),
            ])
        );
        assert_eq!(
            Text::parse("${a}${b}").unwrap(),
            Text::Mixed(vec![Part::Expression(source("a", 2)), Part::Expression(source("b", 6)),])
        );
        assert!(matches!(Text::parse(" ${a}").unwrap(), Text::Mixed(_)));
    }

    #[test]
    fn reports_range_of_unclosed_expression() {
        for (text, range) in [
            ("${", 0..2),
            ("ab ${c", 3..6),
            ("é${'}", 2..6),
            ("${{}", 0..4),
            ("x ${a // }", 2..10),
            ("${a} ${'''}'", 5..12),
        ] {
            let error = Text::parse(text).unwrap_err();
            assert_eq!(error.range, range, "{text}");
            assert_eq!(error.message, "this `${` is not closed", "{text}");
        }
        // The range of the error contains only the invalid part of the expression.
        assert_eq!(Text::parse(r"ab ${'\q'} c").unwrap_err().range, 6..8);
    }
}
