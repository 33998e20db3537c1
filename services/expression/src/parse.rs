//! Parses the source of an expression into a syntax tree.
//!
//! The limits are checked while the tree is built: the nesting before each recursion, and the number of nodes when a
//! node is created. So the use of stack and memory is small for every source.

use super::error::{ExpressionError, Span};
use super::lexer::{Lexer, Token, TokenKind};
use super::{MAXIMUM_DEPTH, MAXIMUM_NODES, MAXIMUM_SOURCE};

/// A node of the syntax tree. Each node records its depth, so that a tree never becomes too deep for recursion.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Ast {
    pub(crate) kind: AstKind,
    pub(crate) span: Span,
    pub(crate) depth: usize,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum AstKind {
    Literal(Literal),
    Name(String),
    /// `a.b`, `a.?b`.
    Select {
        operand: Box<Ast>,
        field: String,
        optional: bool,
    },
    /// `a[b]`, `a[?b]`.
    Index {
        operand: Box<Ast>,
        index: Box<Ast>,
        optional: bool,
    },
    /// `f(a)`, `x.f(a)`.
    Call {
        target: Option<Box<Ast>>,
        name: String,
        name_span: Span,
        arguments: Vec<Ast>,
    },
    List(Vec<Item>),
    Map(Vec<Entry>),
    Not(Box<Ast>),
    Negate(Box<Ast>),
    Binary(Operator, Box<Ast>, Box<Ast>),
    Conditional(Box<Ast>, Box<Ast>, Box<Ast>),
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Literal {
    Null,
    Bool(bool),
    Int(i64),
    UInt(u64),
    Double(f64),
    String(Box<str>),
    Bytes(Box<[u8]>),
}

/// An element of a list literal. `optional` is set if the element is written `?x`.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Item {
    pub(crate) optional: bool,
    pub(crate) value: Ast,
}

/// An entry of a map literal. `optional` is set if the entry is written `?k: v`.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Entry {
    pub(crate) optional: bool,
    pub(crate) key: Ast,
    pub(crate) value: Ast,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Operator {
    Or,
    And,
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
    Equal,
    NotEqual,
    In,
    Add,
    Subtract,
    Multiply,
    Divide,
    Remainder,
}

impl Operator {
    pub(crate) fn symbol(self) -> &'static str {
        match self {
            Self::Or => "||",
            Self::And => "&&",
            Self::Less => "<",
            Self::LessOrEqual => "<=",
            Self::Greater => ">",
            Self::GreaterOrEqual => ">=",
            Self::Equal => "==",
            Self::NotEqual => "!=",
            Self::In => "in",
            Self::Add => "+",
            Self::Subtract => "-",
            Self::Multiply => "*",
            Self::Divide => "/",
            Self::Remainder => "%",
        }
    }

    pub(crate) fn of(symbol: &str) -> Option<Self> {
        const ALL: [Operator; 14] = [
            Operator::Or,
            Operator::And,
            Operator::Less,
            Operator::LessOrEqual,
            Operator::Greater,
            Operator::GreaterOrEqual,
            Operator::Equal,
            Operator::NotEqual,
            Operator::In,
            Operator::Add,
            Operator::Subtract,
            Operator::Multiply,
            Operator::Divide,
            Operator::Remainder,
        ];
        ALL.into_iter().find(|operator| operator.symbol() == symbol)
    }

    /// Returns the precedence. Operators with a higher precedence bind more tightly. All operators are
    /// left-associative.
    pub(crate) fn precedence(self) -> u8 {
        match self {
            Self::Or => 1,
            Self::And => 2,
            Self::Less
            | Self::LessOrEqual
            | Self::Greater
            | Self::GreaterOrEqual
            | Self::Equal
            | Self::NotEqual
            | Self::In => 3,
            Self::Add | Self::Subtract => 4,
            Self::Multiply | Self::Divide | Self::Remainder => 5,
        }
    }
}

/// Names that CEL reserves.
const RESERVED: [&str; 17] = [
    "as",
    "break",
    "const",
    "continue",
    "else",
    "for",
    "function",
    "if",
    "import",
    "let",
    "loop",
    "package",
    "namespace",
    "return",
    "var",
    "void",
    "while",
];

/// Parses a whole expression.
pub(crate) fn parse(source: &str) -> Result<Ast, ExpressionError> {
    if source.len() > MAXIMUM_SOURCE {
        return Err(ExpressionError::new(
            MAXIMUM_SOURCE..source.len(),
            format!("the expression has {} bytes; {MAXIMUM_SOURCE} are allowed", source.len()),
        )
        .with_help("put parts of it into variables"));
    }
    let mut lexer = Lexer::new(source, 0);
    let next = lexer.next()?;
    let mut parser = Parser { lexer, next, nodes: 0, nesting: 0, last_end: 0 };
    if parser.next.kind == TokenKind::End {
        return Err(ExpressionError::new(0..source.len(), "the expression is empty"));
    }
    let ast = parser.expression()?;
    match parser.next.kind {
        TokenKind::End => Ok(ast),
        _ => Err(parser.unexpected("an operator or the end of the expression")),
    }
}

struct Parser<'s> {
    lexer: Lexer<'s>,
    next: Token,
    nodes: usize,
    nesting: usize,
    last_end: usize,
}

impl Parser<'_> {
    /// Parses an expression, including conditionals. Expressions in brackets, arguments and elements are also parsed
    /// with this function, so it limits the nesting.
    fn expression(&mut self) -> Result<Ast, ExpressionError> {
        self.nesting += 1;
        if self.nesting > MAXIMUM_DEPTH {
            return Err(self.too_deep(self.span()));
        }
        let condition = self.binary(1)?;
        let ast = if self.take("?")? {
            let yes = self.binary(1)?;
            self.expect(":", "of the conditional `condition ? yes : no`")?;
            let no = self.expression()?;
            let span = condition.span.to(no.span);
            self.node(AstKind::Conditional(Box::new(condition), Box::new(yes), Box::new(no)), span)?
        } else {
            condition
        };
        self.nesting -= 1;
        Ok(ast)
    }

    /// Parses operators with at least this precedence. Recurses at most once for each level of precedence.
    fn binary(&mut self, minimum: u8) -> Result<Ast, ExpressionError> {
        let mut left = self.unary()?;
        while let Some(operator) = self.operator().filter(|operator| operator.precedence() >= minimum) {
            self.advance()?;
            let right = self.binary(operator.precedence() + 1)?;
            let span = left.span.to(right.span);
            left = self.node(AstKind::Binary(operator, Box::new(left), Box::new(right)), span)?;
        }
        Ok(left)
    }

    fn operator(&self) -> Option<Operator> {
        match &self.next.kind {
            TokenKind::Symbol(symbol) => Operator::of(symbol),
            TokenKind::Name(name) if name == "in" => Some(Operator::In),
            _ => None,
        }
    }

    fn unary(&mut self) -> Result<Ast, ExpressionError> {
        let mut signs = Vec::new();
        while let TokenKind::Symbol(sign @ ("!" | "-")) = self.next.kind {
            signs.push((sign, self.span()));
            if signs.len() > MAXIMUM_DEPTH {
                return Err(self.too_deep(self.span()));
            }
            self.advance()?;
        }
        let mut ast = match (signs.last(), &self.next.kind) {
            (Some((sign, span)), TokenKind::Int(_) | TokenKind::Double(_)) if *sign == "-" => {
                let span = *span;
                signs.pop();
                self.negative(span)?
            }
            _ => self.member()?,
        };
        for (sign, span) in signs.into_iter().rev() {
            let span = span.to(ast.span);
            let kind = if sign == "!" { AstKind::Not(Box::new(ast)) } else { AstKind::Negate(Box::new(ast)) };
            ast = self.node(kind, span)?;
        }
        Ok(ast)
    }

    /// Parses a number together with its sign, because the smallest integer is not the negation of a valid integer.
    fn negative(&mut self, sign: Span) -> Result<Ast, ExpressionError> {
        let span = sign.to(self.span());
        let literal = match self.next.kind {
            TokenKind::Int(value) => Literal::Int(0_i64.checked_sub_unsigned(value).unwrap_or(i64::MIN)),
            TokenKind::Double(value) => Literal::Double(-value),
            _ => return Err(self.unexpected("a number")),
        };
        self.advance()?;
        let literal = self.node(AstKind::Literal(literal), span)?;
        self.suffixes(literal)
    }

    fn member(&mut self) -> Result<Ast, ExpressionError> {
        let primary = self.primary()?;
        self.suffixes(primary)
    }

    fn suffixes(&mut self, mut ast: Ast) -> Result<Ast, ExpressionError> {
        loop {
            if self.take(".")? {
                ast = self.selection(ast)?;
            } else if self.take("[")? {
                let optional = self.take("?")?;
                let index = self.expression()?;
                self.expect("]", "of the index")?;
                let span = ast.span.to(self.after_last());
                ast = self.node(AstKind::Index { operand: Box::new(ast), index: Box::new(index), optional }, span)?;
            } else {
                return Ok(ast);
            }
        }
    }

    fn selection(&mut self, operand: Ast) -> Result<Ast, ExpressionError> {
        let optional = self.take("?")?;
        let name_span = self.span();
        let (field, quoted) = match &self.next.kind {
            TokenKind::Name(name) if !matches!(name.as_str(), "true" | "false" | "null" | "in") => {
                (name.clone(), false)
            }
            TokenKind::QuotedName(name) => (name.clone(), true),
            TokenKind::String(text) => {
                let help =
                    format!("use [{text:?}] for a name that is not an identifier, or [?{text:?}] if it may be absent");
                return Err(self.unexpected("the name of a field after the dot").with_help(help));
            }
            _ => return Err(self.unexpected("the name of a field after the dot")),
        };
        self.advance()?;
        if !optional && !quoted && self.take("(")? {
            let arguments = self.list(")", Self::expression)?;
            let span = operand.span.to(self.after_last());
            return self
                .node(AstKind::Call { target: Some(Box::new(operand)), name: field, name_span, arguments }, span);
        }
        let span = operand.span.to(name_span);
        self.node(AstKind::Select { operand: Box::new(operand), field, optional }, span)
    }

    fn primary(&mut self) -> Result<Ast, ExpressionError> {
        let span = self.span();
        let literal = match &self.next.kind {
            TokenKind::Int(value) => match i64::try_from(*value) {
                Ok(value) => Literal::Int(value),
                Err(_) => return Err(ExpressionError::at(span, "this number is too large")),
            },
            TokenKind::UInt(value) => Literal::UInt(*value),
            TokenKind::Double(value) => Literal::Double(*value),
            TokenKind::String(text) => Literal::String(text.as_str().into()),
            TokenKind::Bytes(bytes) => Literal::Bytes(bytes.as_slice().into()),
            TokenKind::Name(name) => match name.as_str() {
                "true" => Literal::Bool(true),
                "false" => Literal::Bool(false),
                "null" => Literal::Null,
                _ => return self.name(),
            },
            TokenKind::Symbol("(") => {
                self.advance()?;
                let ast = self.expression()?;
                self.expect(")", "that closes the parenthesis")?;
                return Ok(Ast { span: span.to(self.after_last()), ..ast });
            }
            TokenKind::Symbol("[") => {
                self.advance()?;
                let items = self.list("]", Self::item)?;
                return self.node(AstKind::List(items), span.to(self.after_last()));
            }
            TokenKind::Symbol("{") => {
                self.advance()?;
                let entries = self.list("}", Self::entry)?;
                return self.node(AstKind::Map(entries), span.to(self.after_last()));
            }
            _ => return Err(self.unexpected("a value")),
        };
        self.advance()?;
        self.node(AstKind::Literal(literal), span)
    }

    fn name(&mut self) -> Result<Ast, ExpressionError> {
        let TokenKind::Name(name) = &self.next.kind else { return Err(self.unexpected("a name")) };
        let (name, span) = (name.clone(), self.span());
        if RESERVED.contains(&name.as_str()) {
            let error = ExpressionError::at(span, format!("`{name}` is a reserved word of CEL"));
            return Err(match name.as_str() {
                "namespace" => error
                    .with_help("use namespaceObject for the namespace's metadata and request.namespace for its name"),
                "if" | "else" => error.with_help("use `condition ? yes : no`"),
                "for" | "while" | "loop" => error.with_help("use map, filter, all or exists on lists"),
                "let" | "var" | "const" => error.with_help("define the value in the variables of the profile"),
                _ => error,
            });
        }
        self.advance()?;
        if self.take("(")? {
            let arguments = self.list(")", Self::expression)?;
            let whole = span.to(self.after_last());
            return self.node(AstKind::Call { target: None, name, name_span: span, arguments }, whole);
        }
        if self.next.kind == TokenKind::Symbol("{") {
            return Err(self
                .unexpected("an operator")
                .with_help("there are no message types; a map is written {'key': value}"));
        }
        self.node(AstKind::Name(name), span)
    }

    fn item(&mut self) -> Result<Item, ExpressionError> {
        let optional = self.take("?")?;
        Ok(Item { optional, value: self.expression()? })
    }

    fn entry(&mut self) -> Result<Entry, ExpressionError> {
        let optional = self.take("?")?;
        let key = self.expression()?;
        self.expect(":", "between key and value of the map's entry")?;
        Ok(Entry { optional, key, value: self.expression()? })
    }

    /// Parses elements that are separated by commas, and the closing symbol. A trailing comma is allowed.
    fn list<T>(
        &mut self,
        close: &'static str,
        mut element: impl FnMut(&mut Self) -> Result<T, ExpressionError>,
    ) -> Result<Vec<T>, ExpressionError> {
        let mut elements = Vec::new();
        while !self.take(close)? {
            elements.push(element(self)?);
            if !self.take(",")? {
                if self.take(close)? {
                    break;
                }
                return Err(self.unexpected(&format!("`,` or `{close}`")));
            }
        }
        Ok(elements)
    }

    fn node(&mut self, kind: AstKind, span: Span) -> Result<Ast, ExpressionError> {
        self.nodes += 1;
        if self.nodes > MAXIMUM_NODES {
            return Err(ExpressionError::at(span, format!("the expression has more than {MAXIMUM_NODES} parts"))
                .with_help("put parts of it into variables"));
        }
        let depth = 1 + match &kind {
            AstKind::Literal(_) | AstKind::Name(_) => 0,
            AstKind::Select { operand, .. } | AstKind::Not(operand) | AstKind::Negate(operand) => operand.depth,
            AstKind::Index { operand, index, .. } => operand.depth.max(index.depth),
            AstKind::Call { target, arguments, .. } => {
                arguments.iter().chain(target.as_deref()).map(|ast| ast.depth).max().unwrap_or(0)
            }
            AstKind::List(items) => items.iter().map(|item| item.value.depth).max().unwrap_or(0),
            AstKind::Map(entries) => {
                entries.iter().map(|entry| entry.key.depth.max(entry.value.depth)).max().unwrap_or(0)
            }
            AstKind::Binary(_, left, right) => left.depth.max(right.depth),
            AstKind::Conditional(condition, yes, no) => condition.depth.max(yes.depth).max(no.depth),
        };
        if depth > MAXIMUM_DEPTH {
            return Err(self.too_deep(span));
        }
        Ok(Ast { kind, span, depth })
    }

    #[expect(clippy::unused_self, reason = "a method, like the functions for other errors")]
    fn too_deep(&self, span: Span) -> ExpressionError {
        ExpressionError::at(span, format!("the expression is nested more than {MAXIMUM_DEPTH} levels deep"))
            .with_help("put parts of it into variables")
    }

    fn unexpected(&self, expected: &str) -> ExpressionError {
        let found = match &self.next.kind {
            TokenKind::End => "the expression ends".to_owned(),
            TokenKind::Symbol(symbol) => format!("there is `{symbol}`"),
            TokenKind::Name(name) => format!("there is `{name}`"),
            TokenKind::QuotedName(_) => "there is a name in backticks".to_owned(),
            TokenKind::String(_) => "there is a string".to_owned(),
            TokenKind::Bytes(_) => "there are bytes".to_owned(),
            TokenKind::Int(_) | TokenKind::UInt(_) | TokenKind::Double(_) => "there is a number".to_owned(),
        };
        let error = ExpressionError::at(self.span(), format!("expected {expected}, but {found}"));
        match &self.next.kind {
            TokenKind::Symbol("=") => error.with_help("use == for equality"),
            TokenKind::Symbol("&") => error.with_help("use && for and"),
            TokenKind::Symbol("|") => error.with_help("use || for or"),
            TokenKind::Name(name) if name == "and" => error.with_help("use && for and"),
            TokenKind::Name(name) if name == "or" => error.with_help("use || for or"),
            TokenKind::Name(name) if name == "not" => error.with_help("use ! for not"),
            _ => error,
        }
    }

    fn expect(&mut self, symbol: &'static str, purpose: &str) -> Result<(), ExpressionError> {
        if self.take(symbol)? { Ok(()) } else { Err(self.unexpected(&format!("`{symbol}` {purpose}"))) }
    }

    fn take(&mut self, symbol: &'static str) -> Result<bool, ExpressionError> {
        let found = self.next.kind == TokenKind::Symbol(symbol);
        if found {
            self.advance()?;
        }
        Ok(found)
    }

    fn advance(&mut self) -> Result<(), ExpressionError> {
        self.last_end = self.next.end;
        self.next = self.lexer.next()?;
        Ok(())
    }

    fn span(&self) -> Span {
        Span::new(self.next.start, self.next.end)
    }

    /// Returns the position after the last consumed token.
    fn after_last(&self) -> Span {
        Span::new(self.last_end, self.last_end)
    }
}
