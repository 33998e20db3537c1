//! Compiles the source of an expression into a program: resolves names and functions, and rejects unknown ones.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::MAXIMUM_LOOPS;
use super::error::{ExpressionError, Span};
use super::functions::{self, Function, Style};
use super::parse::parse;
use super::parse::{Ast, AstKind, Literal, Operator};
use super::pattern::Pattern;
use super::scope::{Scope, closest};

/// A compiled expression. It is immutable, so several threads can evaluate it.
#[derive(Clone, Debug)]
pub struct Expression {
    program: Arc<Program>,
}

#[derive(Debug)]
struct Program {
    source: Box<str>,
    root: Node,
    paths: Box<[Path]>,
}

/// A value in the scope that an expression reads.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Path {
    /// The name, such as `object`, `params` or `owner`.
    pub name: String,
    /// The fields below the name that are constant in the source, such as `["spec", "hostNetwork"]`. The expression may
    /// read everything below the last one.
    pub fields: Vec<String>,
}

/// The names of types. Expressions can use them as values.
const TYPES: [&str; 12] =
    ["bool", "int", "uint", "double", "string", "bytes", "list", "map", "null_type", "type", "duration", "quantity"];

#[derive(Debug)]
pub(crate) struct Node {
    pub(crate) kind: NodeKind,
    pub(crate) span: Span,
}

#[derive(Debug)]
pub(crate) enum NodeKind {
    Literal(Literal),
    /// The name of a type.
    Type(&'static str),
    /// A name in the scope.
    Name(Box<str>),
    /// A member of a name that has members.
    Member(Box<Member>),
    /// A local variable of the expression. The number is its index among the enclosing bindings.
    Local(usize),
    Select(Box<Select>),
    /// `has(a.b)`.
    Has(Box<Select>),
    Index(Box<Index>),
    Not(Box<Node>),
    Negate(Box<Node>),
    And(Box<[Node; 2]>),
    Or(Box<[Node; 2]>),
    Binary(Operator, Box<[Node; 2]>),
    Conditional(Box<[Node; 3]>),
    Call(Box<Invocation>),
    List(Box<[Element]>),
    Map(Box<[(Node, Element)]>),
    Loop(Box<Loop>),
    /// `cel.bind`: evaluates the first part once, and then the second part, which may use the value of the first part.
    Bind(Box<[Node; 2]>),
    /// `optMap`, `optFlatMap`: evaluates the second part with the value of the first part, an optional. If the optional
    /// is empty, the result is also empty. If `flat` is set, the second part returns an optional.
    MapOptional {
        parts: Box<[Node; 2]>,
        flat: bool,
    },
}

#[derive(Debug)]
pub(crate) struct Member {
    pub(crate) of: Box<str>,
    pub(crate) name: Box<str>,
    pub(crate) access: Access,
}

/// The syntax of an access to a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    Plain,
    Optional,
    Has,
}

#[derive(Debug)]
pub(crate) struct Select {
    pub(crate) operand: Node,
    pub(crate) field: Box<str>,
    pub(crate) optional: bool,
}

#[derive(Debug)]
pub(crate) struct Index {
    pub(crate) operand: Node,
    pub(crate) key: Node,
    pub(crate) optional: bool,
}

#[derive(Debug)]
pub(crate) struct Invocation {
    pub(crate) function: &'static Function,
    pub(crate) arguments: Box<[Node]>,
    /// The compiled regular expression, if the argument that contains it is a literal.
    pub(crate) pattern: Option<Pattern>,
}

#[derive(Debug)]
pub(crate) struct Element {
    pub(crate) optional: bool,
    pub(crate) value: Node,
}

/// A macro that binds each item of a list, or each key of a map, to a variable in turn.
#[derive(Debug)]
pub(crate) struct Loop {
    pub(crate) kind: LoopKind,
    pub(crate) range: Node,
    pub(crate) filter: Option<Node>,
    pub(crate) body: Node,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LoopKind {
    All,
    Exists,
    ExistsOne,
    Map,
    Filter,
    SortBy,
}

impl Expression {
    /// Compiles an expression against a scope.
    ///
    /// # Errors
    /// Returns the first error, such as invalid syntax, an exceeded limit, or an unknown name or function.
    pub fn compile(source: &str, scope: &Scope) -> Result<Self, ExpressionError> {
        let ast = parse(source)?;
        let span = ast.span;
        let mut compiler = Compiler { scope, locals: Vec::new(), loops: 0, nodes: 0, paths: BTreeSet::new() };
        let root = compiler.node(ast)?;
        scope.add_nodes(compiler.nodes).map_err(|message| ExpressionError::at(span, message))?;
        let paths = compiler.paths.into_iter().collect();
        Ok(Self { program: Arc::new(Program { source: source.into(), root, paths }) })
    }

    /// Returns the source of the expression.
    #[must_use]
    pub fn source(&self) -> &str {
        &self.program.source
    }

    /// Whether the expression reads the given name of the scope.
    #[must_use]
    pub fn uses(&self, name: &str) -> bool {
        self.program.paths.iter().any(|path| path.name == name)
    }

    /// Returns the members of a name that the expression reads, such as the variables of `variables`.
    pub fn members(&self, name: &str) -> impl Iterator<Item = &str> {
        let mut last = None;
        let paths = self.program.paths.iter().filter(move |path| path.name == name);
        paths.filter_map(|path| path.fields.first().map(String::as_str)).filter(move |member| {
            // Paths are sorted, so duplicates are next to each other.
            let fresh = last != Some(*member);
            last = Some(*member);
            fresh
        })
    }

    /// Returns a sorted list of all paths in the scope that the expression reads.
    #[must_use]
    pub fn paths(&self) -> &[Path] {
        &self.program.paths
    }

    pub(crate) fn root(&self) -> &Node {
        &self.program.root
    }
}

struct Compiler<'s> {
    scope: &'s Scope,
    locals: Vec<String>,
    loops: usize,
    nodes: usize,
    paths: BTreeSet<Path>,
}

impl Compiler<'_> {
    fn node(&mut self, ast: Ast) -> Result<Node, ExpressionError> {
        self.record(&ast);
        self.unrecorded_node(ast)
    }

    /// Compiles a node without recording its path. The caller has recorded the path or a longer one.
    fn unrecorded_node(&mut self, ast: Ast) -> Result<Node, ExpressionError> {
        let span = ast.span;
        self.nodes += 1;
        let kind = match ast.kind {
            AstKind::Literal(literal) => NodeKind::Literal(literal),
            AstKind::Name(name) => self.name(name, span)?,
            AstKind::Select { operand, field, optional } => {
                if let Some(name) = self.with_members(&operand) {
                    let access = if optional { Access::Optional } else { Access::Plain };
                    self.member(name, field, access, span)?
                } else {
                    NodeKind::Select(Box::new(Select {
                        operand: self.operand(*operand)?,
                        field: field.into(),
                        optional,
                    }))
                }
            }
            AstKind::Index { operand, index, optional } => self.index(*operand, *index, optional, span)?,
            AstKind::Call { target, name, name_span, arguments } => {
                self.call(target.map(|target| *target), &name, name_span, arguments, span)?
            }
            AstKind::List(items) => NodeKind::List(
                items
                    .into_iter()
                    .map(|item| Ok(Element { optional: item.optional, value: self.node(item.value)? }))
                    .collect::<Result<_, _>>()?,
            ),
            AstKind::Map(entries) => NodeKind::Map(
                entries
                    .into_iter()
                    .map(|entry| {
                        let key = self.node(entry.key)?;
                        Ok((key, Element { optional: entry.optional, value: self.node(entry.value)? }))
                    })
                    .collect::<Result<_, _>>()?,
            ),
            AstKind::Not(operand) => NodeKind::Not(Box::new(self.node(*operand)?)),
            AstKind::Negate(operand) => NodeKind::Negate(Box::new(self.node(*operand)?)),
            AstKind::Binary(operator, left, right) => {
                let operands = Box::new([self.node(*left)?, self.node(*right)?]);
                match operator {
                    Operator::And => NodeKind::And(operands),
                    Operator::Or => NodeKind::Or(operands),
                    _ => NodeKind::Binary(operator, operands),
                }
            }
            AstKind::Conditional(condition, yes, no) => {
                NodeKind::Conditional(Box::new([self.node(*condition)?, self.node(*yes)?, self.node(*no)?]))
            }
        };
        Ok(Node { kind, span })
    }

    /// Compiles the operand of a field or an index. If the operand is a path, it is not recorded, because the caller
    /// has recorded the longer path.
    fn operand(&mut self, ast: Ast) -> Result<Node, ExpressionError> {
        if self.path(&ast).is_some() { self.unrecorded_node(ast) } else { self.node(ast) }
    }

    fn record(&mut self, ast: &Ast) {
        if let Some((name, fields)) = self.path(ast) {
            self.paths.insert(Path { name: name.to_owned(), fields });
        }
    }

    /// Returns the name and the fields of a path that begins with a name in the scope. `None` for other expressions.
    fn path<'a>(&self, ast: &'a Ast) -> Option<(&'a str, Vec<String>)> {
        match &ast.kind {
            AstKind::Name(name) if !self.is_local(name) && self.scope.has(name) => Some((name, Vec::new())),
            AstKind::Select { operand, field, .. } => {
                let (name, mut fields) = self.path(operand)?;
                fields.push(field.clone());
                Some((name, fields))
            }
            AstKind::Index { operand, index, .. } => match &index.kind {
                AstKind::Literal(Literal::String(key)) => {
                    let (name, mut fields) = self.path(operand)?;
                    fields.push(key.to_string());
                    Some((name, fields))
                }
                _ => None,
            },
            _ => None,
        }
    }

    fn is_local(&self, name: &str) -> bool {
        self.locals.iter().any(|local| local == name)
    }

    fn name(&self, name: String, span: Span) -> Result<NodeKind, ExpressionError> {
        if let Some(place) = self.locals.iter().rposition(|local| *local == name) {
            return Ok(NodeKind::Local(place));
        }
        if self.scope.has_members(&name) {
            return Err(ExpressionError::at(span, format!("`{name}` cannot be used as a value"))
                .with_help(format!("use one of its members, as in {name}.x")));
        }
        if self.scope.has(&name) {
            return Ok(NodeKind::Name(name.into()));
        }
        if let Some(kind) = TYPES.iter().find(|kind| **kind == name) {
            return Ok(NodeKind::Type(kind));
        }
        let error = ExpressionError::at(span, format!("there is no `{name}` here"));
        if let Some(why) = self.scope.absence(&name) {
            return Err(error.with_help(why));
        }
        let candidates = self.scope.names().chain(self.locals.iter().map(String::as_str));
        Err(if let Some(suggestion) = closest(&name, candidates) {
            error.with_help(format!("did you mean `{suggestion}`?"))
        } else if functions::named(&name).next().is_some() {
            error.with_help(format!("`{name}` is a function: {name}(...)"))
        } else {
            let names: Vec<_> = self.scope.names().collect();
            error.with_help(format!("available names: {}", names.join(", ")))
        })
    }

    /// Returns the name if the expression is only a name with members. `None` for other expressions.
    fn with_members(&self, ast: &Ast) -> Option<String> {
        match &ast.kind {
            AstKind::Name(name) if !self.is_local(name) && self.scope.has_members(name) => Some(name.clone()),
            _ => None,
        }
    }

    fn member(&self, name: String, member: String, access: Access, span: Span) -> Result<NodeKind, ExpressionError> {
        if let Err(members) = self.scope.check_member(&name, &member) {
            let error = ExpressionError::at(span, format!("there is no `{name}.{member}`"));
            return Err(match closest(&member, members.iter().map(String::as_str)) {
                Some(suggestion) => error.with_help(format!("did you mean `{name}.{suggestion}`?")),
                None if members.is_empty() => error.with_help(format!("`{name}` has no members")),
                None => {
                    let members: Vec<_> = members.iter().map(String::as_str).collect();
                    error.with_help(format!("available members: {}", members.join(", ")))
                }
            });
        }
        Ok(NodeKind::Member(Box::new(Member { of: name.into(), name: member.into(), access })))
    }

    fn index(&mut self, operand: Ast, index: Ast, optional: bool, span: Span) -> Result<NodeKind, ExpressionError> {
        if let Some(name) = self.with_members(&operand) {
            let AstKind::Literal(Literal::String(member)) = index.kind else {
                return Err(ExpressionError::at(
                    index.span,
                    format!("the member of `{name}` must be a string literal"),
                )
                .with_help(format!("the members that are read must be known before evaluation, as in {name}.x")));
            };
            let access = if optional { Access::Optional } else { Access::Plain };
            return self.member(name, member.into(), access, span);
        }
        // A computed key ends the recorded path: the expression may read everything below the operand.
        let goes_on = matches!(index.kind, AstKind::Literal(Literal::String(_)));
        let operand = if goes_on { self.operand(operand)? } else { self.node(operand)? };
        Ok(NodeKind::Index(Box::new(Index { operand, key: self.node(index)?, optional })))
    }

    fn call(
        &mut self,
        target: Option<Ast>,
        name: &str,
        name_span: Span,
        arguments: Vec<Ast>,
        span: Span,
    ) -> Result<NodeKind, ExpressionError> {
        let Some(target) = target else {
            if name == "has" {
                return self.has(arguments, span);
            }
            return self.invoke(Style::Global, name, name_span, arguments, span);
        };
        // The target may be the first part of a function name that contains a dot: base64.encode(...).
        if let AstKind::Name(library) = &target.kind
            && !self.is_local(library)
            && !self.scope.has(library)
        {
            if library == "cel" && name == "bind" {
                return self.bind(arguments, span);
            }
            let qualified = format!("{library}.{name}");
            if functions::named(&qualified).next().is_some() || functions::is_library(library) {
                return self.invoke(Style::Global, &qualified, target.span.to(name_span), arguments, span);
            }
        }
        if let Some(kind) = macro_kind(name) {
            return self.iterate(kind, target, name, arguments, span);
        }
        if matches!(name, "optMap" | "optFlatMap") {
            return self.map_optional(target, name, arguments, span);
        }
        let mut all = Vec::with_capacity(arguments.len() + 1);
        all.push(target);
        all.extend(arguments);
        self.invoke(Style::Member, name, name_span, all, span)
    }

    /// Compiles a function call. The first argument of a member function is its receiver.
    fn invoke(
        &mut self,
        style: Style,
        name: &str,
        name_span: Span,
        arguments: Vec<Ast>,
        span: Span,
    ) -> Result<NodeKind, ExpressionError> {
        let count = arguments.len();
        let mut same_style = functions::named(name).filter(|function| function.style == style).peekable();
        if same_style.peek().is_none() {
            return Err(unknown_function(style, name, name_span));
        }
        let candidates: Vec<_> = same_style.collect();
        let Some(function) = candidates.iter().find(|function| function.takes(count)) else {
            let signatures: Vec<_> = candidates.iter().map(|function| function.signature).collect();
            let count = count - usize::from(style == Style::Member);
            return Err(ExpressionError::at(span, format!("`{name}` does not take {count} arguments"))
                .with_help(format!("use {}", signatures.join(" or "))));
        };
        let pattern = match function.pattern.and_then(|place| arguments.get(place)) {
            Some(Ast { kind: AstKind::Literal(Literal::String(pattern)), span, .. }) => {
                Some(self.scope.pattern(pattern).map_err(|message| ExpressionError::at(*span, message))?)
            }
            _ => None,
        };
        let arguments = arguments.into_iter().map(|argument| self.node(argument)).collect::<Result<_, _>>()?;
        Ok(NodeKind::Call(Box::new(Invocation { function, arguments, pattern })))
    }

    fn has(&mut self, arguments: Vec<Ast>, span: Span) -> Result<NodeKind, ExpressionError> {
        let wrong = || {
            ExpressionError::at(span, "`has` takes one field, has(a.b)")
                .with_help("use 'key' in a for a key that is not a name, and .hasValue() for an optional")
        };
        let [argument] = <[Ast; 1]>::try_from(arguments).map_err(|_| wrong())?;
        self.record(&argument);
        let AstKind::Select { operand, field, optional: false } = argument.kind else { return Err(wrong()) };
        if let Some(name) = self.with_members(&operand) {
            return self.member(name, field, Access::Has, span);
        }
        Ok(NodeKind::Has(Box::new(Select { operand: self.operand(*operand)?, field: field.into(), optional: false })))
    }

    fn iterate(
        &mut self,
        kind: LoopKind,
        target: Ast,
        name: &str,
        arguments: Vec<Ast>,
        span: Span,
    ) -> Result<NodeKind, ExpressionError> {
        let mut parts = arguments.into_iter();
        let variable = parts.next();
        let (filter, body) = match (parts.next(), parts.next(), parts.next()) {
            (Some(body), None, None) => (None, Some(body)),
            (Some(filter), Some(body), None) if kind == LoopKind::Map => (Some(filter), Some(body)),
            _ => (None, None),
        };
        let (Some(variable), Some(body)) = (variable, body) else {
            let help = match kind {
                LoopKind::Map => "use list.map(x, value) or list.map(x, condition, value)".to_owned(),
                LoopKind::SortBy => "use list.sortBy(x, key)".to_owned(),
                _ => format!("use list.{name}(x, condition)"),
            };
            return Err(
                ExpressionError::at(span, format!("`{name}` takes a variable name and an expression")).with_help(help)
            );
        };
        let variable = self.variable(variable, name)?;
        let range = self.node(target)?;
        self.loops += 1;
        if self.loops > MAXIMUM_LOOPS {
            return Err(ExpressionError::at(span, format!("more than {MAXIMUM_LOOPS} loops are nested"))
                .with_help("compute the inner one in a variable"));
        }
        self.locals.push(variable);
        let filter = filter.map(|filter| self.node(filter)).transpose()?;
        let body = self.node(body)?;
        self.locals.pop();
        self.loops -= 1;
        Ok(NodeKind::Loop(Box::new(Loop { kind, range, filter, body })))
    }

    fn map_optional(
        &mut self,
        target: Ast,
        name: &str,
        arguments: Vec<Ast>,
        span: Span,
    ) -> Result<NodeKind, ExpressionError> {
        let [variable, body] = <[Ast; 2]>::try_from(arguments).map_err(|_| {
            ExpressionError::at(span, format!("`{name}` takes a variable name and an expression"))
                .with_help(format!("use optional.{name}(x, value)"))
        })?;
        let variable = self.variable(variable, name)?;
        let target = self.node(target)?;
        self.locals.push(variable);
        let body = self.node(body)?;
        self.locals.pop();
        Ok(NodeKind::MapOptional { parts: Box::new([target, body]), flat: name == "optFlatMap" })
    }

    fn bind(&mut self, arguments: Vec<Ast>, span: Span) -> Result<NodeKind, ExpressionError> {
        let [variable, value, body] = <[Ast; 3]>::try_from(arguments)
            .map_err(|_| ExpressionError::at(span, "`cel.bind` takes a variable name, its value, and an expression"))?;
        let variable = self.variable(variable, "cel.bind")?;
        let value = self.node(value)?;
        self.locals.push(variable);
        let body = self.node(body)?;
        self.locals.pop();
        Ok(NodeKind::Bind(Box::new([value, body])))
    }

    fn variable(&self, ast: Ast, of: &str) -> Result<String, ExpressionError> {
        let AstKind::Name(name) = ast.kind else {
            return Err(ExpressionError::at(ast.span, format!("the first argument of `{of}` must be a variable name")));
        };
        // Reject a local variable that hides a name of the scope, because readers could confuse them.
        if self.scope.has(&name) {
            return Err(
                ExpressionError::at(ast.span, format!("`{name}` is already defined")).with_help("choose another name")
            );
        }
        Ok(name)
    }
}

fn macro_kind(name: &str) -> Option<LoopKind> {
    Some(match name {
        "all" => LoopKind::All,
        "exists" => LoopKind::Exists,
        "exists_one" | "existsOne" => LoopKind::ExistsOne,
        "map" => LoopKind::Map,
        "filter" => LoopKind::Filter,
        "sortBy" => LoopKind::SortBy,
        _ => return None,
    })
}

const MACROS: [&str; 9] = ["all", "exists", "exists_one", "map", "filter", "sortBy", "optMap", "optFlatMap", "has"];

fn unknown_function(style: Style, name: &str, span: Span) -> ExpressionError {
    let error = ExpressionError::at(span, format!("there is no function `{name}`"));
    if let Some(function) = functions::named(name).next() {
        return error.with_help(match style {
            Style::Global => format!("it is called on a value: {}", function.signature),
            Style::Member => format!("it is not called on a value: {}", function.signature),
        });
    }
    match name {
        "timestamp" | "now" => {
            return error.with_help("expressions have no access to the time, so that their results are reproducible");
        }
        "length" | "len" | "count" => return error.with_help("use value.size()"),
        "toLowerCase" | "lower" | "toLower" => return error.with_help("use text.lowerAscii()"),
        "toUpperCase" | "upper" | "toUpper" => return error.with_help("use text.upperAscii()"),
        "default" | "getOrDefault" => return error.with_help("use a.?b.orValue(value)"),
        _ => {}
    }
    if MACROS.contains(&name) {
        return error.with_help(format!("it is called on a list: list.{name}(x, ...)"));
    }
    match closest(name, functions::all().map(|function| function.name).chain(MACROS)) {
        Some(suggestion) => error.with_help(format!("did you mean `{suggestion}`?")),
        None => error.with_help("docs/expressions.md lists all functions"),
    }
}
