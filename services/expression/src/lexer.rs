//! Splits the source of an expression into tokens.
//!
//! The same lexer finds the end of an expression in a template: it distinguishes the brace that closes `${` from braces
//! in strings, comments and map literals. It only allocates memory for names and literals, and its time is linear in
//! the length of the source.

use super::error::ExpressionError;

/// A token of an expression.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Token {
    pub(crate) kind: TokenKind,
    pub(crate) start: usize,
    pub(crate) end: usize,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum TokenKind {
    /// An integer without its sign. For the smallest negative integer, the value exceeds `i64::MAX` by one.
    Int(u64),
    UInt(u64),
    Double(f64),
    String(String),
    Bytes(Vec<u8>),
    /// A name, including `true`, `false`, `null` and `in`.
    Name(String),
    /// A name in backticks. It is only valid after a dot.
    QuotedName(String),
    Symbol(&'static str),
    End,
}

/// All symbols. A symbol comes before its own prefixes.
const SYMBOLS: [&str; 27] = [
    "||", "&&", "==", "!=", "<=", ">=", "<", ">", "!", "+", "-", "*", "/", "%", "?", ":", ".", ",", "(", ")", "[", "]",
    "{", "}", "=", "&", "|",
];

/// Reads the tokens of an expression one by one.
pub(crate) struct Lexer<'s> {
    text: &'s str,
    at: usize,
}

impl<'s> Lexer<'s> {
    pub(crate) fn new(text: &'s str, at: usize) -> Self {
        Self { text, at }
    }

    /// Returns the next token. At the end of the source, always returns [`TokenKind::End`].
    pub(crate) fn next(&mut self) -> Result<Token, ExpressionError> {
        self.skip_blanks();
        let start = self.at;
        let rest = self.rest();
        let Some(first) = rest.chars().next() else { return Ok(self.token(TokenKind::End, start)) };
        let kind = match first {
            '0'..='9' => self.number()?,
            '.' if rest.as_bytes().get(1).is_some_and(u8::is_ascii_digit) => self.number()?,
            '"' | '\'' => self.string(Prefix::default())?,
            '`' => self.quoted_name()?,
            'a'..='z' | 'A'..='Z' | '_' => match Prefix::of(rest) {
                Some(prefix) => self.string(prefix)?,
                None => TokenKind::Name(self.name()),
            },
            _ => self.symbol(first)?,
        };
        Ok(self.token(kind, start))
    }

    fn token(&self, kind: TokenKind, start: usize) -> Token {
        Token { kind, start, end: self.at }
    }

    fn rest(&self) -> &'s str {
        self.text.get(self.at..).unwrap_or_default()
    }

    fn skip_blanks(&mut self) {
        loop {
            let rest = self.rest();
            let trimmed = rest.trim_start_matches([' ', '\t', '\n', '\r', '\u{c}']);
            self.at += rest.len() - trimmed.len();
            if !trimmed.starts_with("//") {
                return;
            }
            self.at += trimmed.find('\n').unwrap_or(trimmed.len());
        }
    }

    fn name(&mut self) -> String {
        let rest = self.rest();
        let length = rest.bytes().position(|byte| !is_name(byte)).unwrap_or(rest.len());
        self.at += length;
        rest.get(..length).unwrap_or_default().to_owned()
    }

    fn quoted_name(&mut self) -> Result<TokenKind, ExpressionError> {
        let start = self.at;
        let inner = self.rest().get(1..).unwrap_or_default();
        let Some(length) = inner.find('`') else {
            return Err(ExpressionError::new(start..self.text.len(), "the closing backtick of this name is missing"));
        };
        self.at += length + 2;
        Ok(TokenKind::QuotedName(inner.get(..length).unwrap_or_default().to_owned()))
    }

    fn symbol(&mut self, first: char) -> Result<TokenKind, ExpressionError> {
        let rest = self.rest();
        if let Some(symbol) = SYMBOLS.iter().find(|symbol| rest.starts_with(**symbol)) {
            self.at += symbol.len();
            return Ok(TokenKind::Symbol(symbol));
        }
        let error = ExpressionError::new(
            self.at..self.at + first.len_utf8(),
            format!("the character {first:?} is not allowed outside of strings"),
        );
        Err(match first {
            '$' if rest.starts_with("${") => error.with_help("this is already an expression; remove `${` and `}`"),
            '$' => error.with_help("`$(NAME)` is text: put it into quotes, '$(NAME)'"),
            '\u{2018}' | '\u{2019}' | '\u{201c}' | '\u{201d}' => error.with_help("use straight quotes, ' or \""),
            _ => error,
        })
    }

    fn number(&mut self) -> Result<TokenKind, ExpressionError> {
        let start = self.at;
        let bytes = self.rest().as_bytes();
        let digits = |from: usize| bytes.iter().skip(from).take_while(|byte| byte.is_ascii_digit()).count();
        let hexadecimal = matches!(bytes, [b'0', b'x' | b'X', ..]);
        let mut double = false;
        let mut length = if hexadecimal {
            2 + bytes.iter().skip(2).take_while(|byte| byte.is_ascii_hexdigit()).count()
        } else {
            digits(0)
        };
        if !hexadecimal {
            if bytes.get(length) == Some(&b'.') && digits(length + 1) > 0 {
                double = true;
                length += 1 + digits(length + 1);
            }
            if matches!(bytes.get(length), Some(b'e' | b'E')) {
                let sign = usize::from(matches!(bytes.get(length + 1), Some(b'+' | b'-')));
                let exponent = digits(length + 1 + sign);
                if exponent > 0 {
                    double = true;
                    length += 1 + sign + exponent;
                }
            }
        }
        let unsigned = !double && matches!(bytes.get(length), Some(b'u' | b'U'));
        let text = self.rest().get(..length).unwrap_or_default();
        self.at += length + usize::from(unsigned);
        if self.rest().bytes().next().is_some_and(is_name) {
            let end = self.at + self.rest().bytes().take_while(|byte| is_name(*byte)).count();
            return Err(ExpressionError::new(start..end, "this is neither a number nor a name"));
        }
        let too_large = || ExpressionError::new(start..start + length, "this number is too large");
        if double {
            return text
                .parse()
                .ok()
                .filter(|number: &f64| number.is_finite())
                .map(TokenKind::Double)
                .ok_or_else(too_large);
        }
        let value = match text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")) {
            Some(hex) => u64::from_str_radix(hex, 16),
            None => text.parse(),
        }
        .map_err(|_| too_large())?;
        match (unsigned, value) {
            (true, _) => Ok(TokenKind::UInt(value)),
            (false, 0..=0x8000_0000_0000_0000) => Ok(TokenKind::Int(value)),
            (false, _) => Err(too_large().with_help("append u to make it an unsigned integer")),
        }
    }

    fn string(&mut self, prefix: Prefix) -> Result<TokenKind, ExpressionError> {
        let start = self.at;
        self.at += prefix.length;
        let rest = self.rest();
        let Some(quote) = rest.chars().next() else { return self.no_end(start) };
        let triple = rest.starts_with(&quote.to_string().repeat(3));
        self.at += if triple { 3 } else { 1 };
        let mut literal = Literal { bytes: Vec::new(), prefix };
        loop {
            let at = self.at;
            let mut chars = self.rest().chars();
            let Some(next) = chars.next() else { return self.no_end(start) };
            if next == quote && (!triple || chars.as_str().starts_with(&quote.to_string().repeat(2))) {
                self.at += if triple { 3 } else { 1 };
                return literal.finish().ok_or_else(|| {
                    ExpressionError::new(start..self.at, "the escapes of this string are not valid UTF-8")
                });
            }
            if !triple && (next == '\n' || next == '\r') {
                return self.no_end(start);
            }
            self.at += next.len_utf8();
            if next == '\\' && !prefix.raw {
                self.at += literal.escape(chars.as_str()).map_err(|length| {
                    ExpressionError::new(
                        at..(at + 1 + length).min(self.text.len()),
                        "this escape is not valid in a string",
                    )
                    .with_help(
                        r"escapes are \\ \' \n \t \r \xHH \uHHHH; a backslash is written \\, or the string r'...'",
                    )
                })?;
            } else {
                literal.push(next);
            }
        }
    }

    fn no_end(&self, start: usize) -> Result<TokenKind, ExpressionError> {
        Err(ExpressionError::new(start..self.text.len(), "the closing quote of this string is missing")
            .with_help("add the closing quote"))
    }
}

/// The prefix of a string literal.
#[derive(Clone, Copy, Default)]
struct Prefix {
    raw: bool,
    bytes: bool,
    length: usize,
}

impl Prefix {
    fn of(text: &str) -> Option<Self> {
        let mut prefix = Self::default();
        for byte in text.bytes().take(3) {
            match byte {
                b'\'' | b'"' => return (prefix.length > 0).then_some(prefix),
                b'r' | b'R' if !prefix.raw => prefix.raw = true,
                b'b' | b'B' if !prefix.bytes => prefix.bytes = true,
                _ => return None,
            }
            prefix.length += 1;
        }
        None
    }
}

/// A string literal that is being read.
struct Literal {
    bytes: Vec<u8>,
    prefix: Prefix,
}

impl Literal {
    fn push(&mut self, character: char) {
        self.bytes.extend_from_slice(character.encode_utf8(&mut [0; 4]).as_bytes());
    }

    /// Parses the escape at the start of `rest`, which follows a backslash. Returns its length, or an error with the
    /// length of its invalid part.
    fn escape(&mut self, rest: &str) -> Result<usize, usize> {
        let Some(kind) = rest.chars().next() else { return Err(0) };
        let number = |from: usize, length: usize, radix: u32| {
            let digits =
                rest.get(from..from + length).filter(|digits| digits.bytes().all(|byte| byte.is_ascii_hexdigit()));
            digits.and_then(|digits| u32::from_str_radix(digits, radix).ok()).ok_or(from + length)
        };
        let (value, length) = match kind {
            'a' => (7, 1),
            'b' => (8, 1),
            'f' => (12, 1),
            'n' => (10, 1),
            'r' => (13, 1),
            't' => (9, 1),
            'v' => (11, 1),
            '\\' | '?' | '"' | '\'' | '`' => (u32::from(kind), 1),
            'x' | 'X' => (number(1, 2, 16)?, 3),
            'u' if !self.prefix.bytes => (number(1, 4, 16)?, 5),
            'U' if !self.prefix.bytes => (number(1, 8, 16)?, 9),
            '0'..='3' => (number(0, 3, 8)?, 3),
            _ => return Err(kind.len_utf8()),
        };
        if self.prefix.bytes {
            self.bytes.push(u8::try_from(value).map_err(|_| length)?);
        } else {
            self.push(char::from_u32(value).ok_or(length)?);
        }
        Ok(length)
    }

    fn finish(self) -> Option<TokenKind> {
        if self.prefix.bytes {
            Some(TokenKind::Bytes(self.bytes))
        } else {
            String::from_utf8(self.bytes).ok().map(TokenKind::String)
        }
    }
}

fn is_name(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_'
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kinds(text: &str) -> Vec<TokenKind> {
        let mut lexer = Lexer::new(text, 0);
        let mut kinds = Vec::new();
        loop {
            match lexer.next().unwrap().kind {
                TokenKind::End => return kinds,
                kind => kinds.push(kind),
            }
        }
    }

    fn only(text: &str) -> TokenKind {
        let mut kinds = kinds(text);
        assert_eq!(kinds.len(), 1, "{text}");
        kinds.pop().unwrap()
    }

    fn error_of(text: &str) -> ExpressionError {
        let mut lexer = Lexer::new(text, 0);
        loop {
            match lexer.next() {
                Ok(token) => assert_ne!(token.kind, TokenKind::End, "{text} has no error"),
                Err(error) => return error,
            }
        }
    }

    #[test]
    fn reads_all_kinds_of_strings() {
        let string = |text: &str| TokenKind::String(text.to_owned());
        assert_eq!(only("'i'"), string("i"));
        assert_eq!(only(r#"'a "b" }'"#), string("a \"b\" }"));
        assert_eq!(only(r#""a 'b'""#), string("a 'b'"));
        assert_eq!(only("'''a\n'b' ''c'''"), string("a\n'b' ''c"));
        assert_eq!(only("\"\"\"a \"b\" \"\"\""), string("a \"b\" "));
        assert_eq!(only(r"r'a\n'"), string(r"a\n"));
        assert_eq!(only(r#"R"\d+""#), string(r"\d+"));
        assert_eq!(only(r"'\x41\u00e9\101\n\\\''"), string("AéA\n\\'"));
        assert_eq!(only(r"b'\xff\0001'"), TokenKind::Bytes(vec![0xff, 0, b'1']));
        assert_eq!(only(r"br'\x'"), TokenKind::Bytes(br"\x".to_vec()));
        assert_eq!(only("b'é'"), TokenKind::Bytes("é".as_bytes().to_vec()));
    }

    #[test]
    fn reads_all_kinds_of_numbers() {
        assert_eq!(
            kinds("1 0x1F 2u 1.5 1e3 .5 9223372036854775808"),
            [
                TokenKind::Int(1),
                TokenKind::Int(31),
                TokenKind::UInt(2),
                TokenKind::Double(1.5),
                TokenKind::Double(1000.0),
                TokenKind::Double(0.5),
                TokenKind::Int(0x8000_0000_0000_0000),
            ]
        );
        // A digit must follow the dot in a number, so this dot selects a field.
        assert_eq!(kinds("1.x")[1], TokenKind::Symbol("."));
    }

    #[test]
    fn skips_comments() {
        assert_eq!(kinds("1 // } 'x\n+ 2"), [TokenKind::Int(1), TokenKind::Symbol("+"), TokenKind::Int(2)]);
    }

    #[test]
    fn errors_have_range_and_help() {
        assert_eq!(error_of("a + 'b").range, 4..6);
        assert_eq!(error_of("a + 'b\n'").range, 4..8);
        assert_eq!(error_of(r"'a\qb'").range, 2..4);
        assert_eq!(error_of(r"'\ud800'").range, 1..7);
        assert_eq!(error_of("12ab").range, 0..4);
        assert!(error_of("$(POD_NAME)").help.unwrap().contains("quotes"));
        assert!(error_of("${x}").help.unwrap().contains("already"));
        assert_eq!(error_of("18446744073709551615").message, "this number is too large");
        assert_eq!(error_of("a.`b").range, 2..4);
        assert_eq!(error_of(r"'\x4é'").range, 1..5);
    }
}
