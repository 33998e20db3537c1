//! Evaluates compiled expressions.

use std::borrow::Cow;

use super::compile::{Access, Element, Expression, Index, Invocation, Loop, LoopKind, Member, Node, NodeKind, Select};
use super::error::{EvaluationError, Span};
use super::functions::{Call, collections, truncated};
use super::meter::Meter;
use super::operators::{arithmetic, equal, mismatch, negate, order};
use super::output::Outcome;
use super::parse::{Literal, Operator};
use super::scope::{LONGEST_NAME, closest};
use super::value::{Items, ListBuilder, MapBuilder, Value, whole};

/// The values for the names of a scope during one evaluation. A value is requested only when an expression reads it.
pub trait Bindings<'v> {
    /// Returns the value of a name that was added with [`Scope::with`](super::Scope::with).
    fn value(&self, name: &str, meter: &mut Meter) -> Result<Value<'v>, EvaluationError>;

    /// Returns a member of a name that was added with [`Scope::with_members`](super::Scope::with_members) or
    /// [`Scope::with_any_members`](super::Scope::with_any_members). `None` if the member is absent. If the member must
    /// be evaluated, the implementation charges `meter`.
    fn member(&self, name: &str, member: &str, meter: &mut Meter) -> Result<Option<Value<'v>>, EvaluationError>;

    /// Returns the seed for the function `jitter`, which is the UID of the request.
    fn seed(&self) -> &str;
}

impl Expression {
    /// Evaluates the expression. Requests only the values that the evaluation needs.
    ///
    /// # Errors
    /// An operation fails, for example because a value is absent or has the wrong type. Or a limit of the meter is
    /// reached.
    pub fn evaluate<'v>(
        &'v self,
        bindings: &dyn Bindings<'v>,
        meter: &mut Meter,
    ) -> Result<Value<'v>, EvaluationError> {
        meter.enter()?;
        let mut evaluation = Evaluation { bindings, meter, locals: Vec::new() };
        let result = evaluation.value(self.root());
        meter.leave();
        let value = result?;
        // If a limit was reached, the evaluation fails even if the error was absorbed.
        meter.charge(0)?;
        Ok(value)
    }

    /// Evaluates the expression as a condition.
    ///
    /// # Errors
    /// Like [`Expression::evaluate`]. Also fails if the result is not a bool.
    pub fn evaluate_bool<'v>(
        &'v self,
        bindings: &dyn Bindings<'v>,
        meter: &mut Meter,
    ) -> Result<bool, EvaluationError> {
        self.evaluate(bindings, meter)?.to_bool().map_err(|error| error.within(self.root().span))
    }

    /// Evaluates the expression as a part of a longer string.
    ///
    /// # Errors
    /// Like [`Expression::evaluate`]. Also fails if the result is not a string, number or bool.
    pub fn evaluate_text<'v>(
        &'v self,
        bindings: &dyn Bindings<'v>,
        meter: &mut Meter,
    ) -> Result<String, EvaluationError> {
        let value = self.evaluate(bindings, meter)?;
        meter.charge_bytes(value.as_str().map_or(0, str::len))?;
        value.to_text().map(Cow::into_owned).map_err(|error| error.within(self.root().span))
    }

    /// Evaluates the expression for a field or an element.
    ///
    /// # Errors
    /// Like [`Expression::evaluate`]. Also fails if the result is too large or cannot be represented in JSON.
    pub fn evaluate_outcome<'v>(
        &'v self,
        bindings: &dyn Bindings<'v>,
        meter: &mut Meter,
    ) -> Result<Outcome, EvaluationError> {
        let value = self.evaluate(bindings, meter)?;
        value.to_outcome(meter).map_err(|error| error.within(self.root().span))
    }
}

/// The number of arguments that can be passed without an allocation. Few functions take more.
const FEW: usize = 3;

struct Evaluation<'a, 'v> {
    bindings: &'a dyn Bindings<'v>,
    meter: &'a mut Meter,
    locals: Vec<Value<'v>>,
}

type Evaluated<'v> = Result<Value<'v>, EvaluationError>;

impl<'v> Evaluation<'_, 'v> {
    /// Evaluates a node. Expressions nest up to [`MAXIMUM_DEPTH`](super::MAXIMUM_DEPTH) levels deep, so code that needs
    /// large stack frames is in separate functions.
    fn value(&mut self, node: &'v Node) -> Evaluated<'v> {
        self.meter.charge(1)?;
        match &node.kind {
            NodeKind::Literal(literal) => self.constant(literal),
            NodeKind::Type(name) => Ok(Value::Type(name)),
            NodeKind::Name(name) => {
                self.bindings.value(name, self.meter).map_err(|error| without_range(error, node.span))
            }
            NodeKind::Member(member) => self.member(member, node.span),
            NodeKind::Local(index) => Ok(self.locals.get(*index).cloned().unwrap_or(Value::Null)),
            NodeKind::Select(select) => self.select(select, node.span),
            NodeKind::Has(select) => self.has(select, node.span),
            NodeKind::Index(index) => self.index(index, node.span),
            NodeKind::Not(operand) => Ok(Value::Bool(!self.bool(operand)?)),
            NodeKind::Negate(operand) => {
                let value = self.value(operand)?;
                negate(&value).map_err(|error| error.within(node.span))
            }
            NodeKind::And(operands) => self.logical(operands, false),
            NodeKind::Or(operands) => self.logical(operands, true),
            NodeKind::Binary(operator, operands) => self.binary(*operator, operands, node.span),
            NodeKind::Conditional(parts) => {
                let [condition, yes, no] = &**parts;
                if self.bool(condition)? { self.value(yes) } else { self.value(no) }
            }
            NodeKind::Call(invocation) => self.call(invocation, node.span),
            NodeKind::List(elements) => self.list(elements),
            NodeKind::Map(entries) => self.map(entries),
            NodeKind::Loop(iteration) => self.iterate(iteration),
            NodeKind::Bind(parts) => {
                let [value, body] = &**parts;
                let value = self.value(value)?;
                self.with_local(value, body)
            }
            NodeKind::MapOptional { parts, flat } => self.map_optional(parts, *flat),
        }
    }

    fn with_local(&mut self, value: Value<'v>, body: &'v Node) -> Evaluated<'v> {
        self.locals.push(value);
        let result = self.value(body);
        self.locals.pop();
        result
    }

    fn bool(&mut self, node: &'v Node) -> Result<bool, EvaluationError> {
        let value = self.value(node)?;
        value.to_bool().map_err(|error| error.within(node.span))
    }

    #[inline(never)]
    fn member(&mut self, member: &'v Member, span: Span) -> Evaluated<'v> {
        let found = self
            .bindings
            .member(&member.of, &member.name, self.meter)
            .map_err(|error| without_range(error, span))?
            .filter(|value| !matches!(value, Value::Optional(None)) || member.access == Access::Plain);
        match (member.access, found) {
            (Access::Plain, Some(value)) => Ok(value),
            (Access::Plain, None) => Err(EvaluationError::new(format!("{}.{} is not set", member.of, member.name))
                .with_help(format!("provide a default: {}.?{}.orValue(...)", member.of, member.name))
                .within(span)),
            (Access::Optional, Some(value)) => match value {
                Value::Optional(_) => Ok(value),
                value => Value::some(value, self.meter),
            },
            (Access::Optional, None) => Ok(Value::none()),
            (Access::Has, found) => Ok(Value::Bool(found.is_some())),
        }
    }

    #[inline(never)]
    fn select(&mut self, select: &'v Select, span: Span) -> Evaluated<'v> {
        let operand = self.value(&select.operand)?;
        let field = &*select.field;
        // A field of an optional is also an optional.
        let (operand, optional) = match &operand {
            Value::Optional(None) => return Ok(Value::none()),
            Value::Optional(Some(present)) => (present.value(), true),
            value => (value, select.optional),
        };
        match operand.member(field, self.meter)? {
            Some(found @ Value::Optional(_)) if select.optional => Ok(found),
            Some(found) if optional => Value::some(found, self.meter),
            Some(found) => Ok(found),
            None if optional => Ok(Value::none()),
            None => Err(self.no_field(operand, field)?.within(span)),
        }
    }

    #[inline(never)]
    fn has(&mut self, select: &'v Select, span: Span) -> Evaluated<'v> {
        let operand = self.value(&select.operand)?;
        let operand = match &operand {
            Value::Optional(None) => return Ok(Value::Bool(false)),
            Value::Optional(Some(present)) => present.value(),
            value if value.is_map() => value,
            value => return Err(self.no_field(value, &select.field)?.within(span)),
        };
        Ok(Value::Bool(operand.member(&select.field, self.meter)?.is_some()))
    }

    #[inline(never)]
    fn index(&mut self, index: &'v Index, span: Span) -> Evaluated<'v> {
        let operand = self.value(&index.operand)?;
        let key = self.value(&index.key)?;
        let (operand, optional) = match &operand {
            Value::Optional(None) => return Ok(Value::none()),
            Value::Optional(Some(present)) => (present.value(), true),
            value => (value, index.optional),
        };
        let found = if operand.is_list() {
            let index = match &key {
                Value::Int(index) => usize::try_from(*index).ok(),
                Value::UInt(index) => usize::try_from(*index).ok(),
                Value::Double(index) => whole(*index).and_then(|index| usize::try_from(index).ok()),
                _ if optional => None,
                _ => {
                    return Err(EvaluationError::new(format!("a list is indexed with an int, not {}", key.describe()))
                        .within(span));
                }
            };
            index.map(|index| operand.item(index, self.meter)).transpose()?.flatten()
        } else {
            key.to_key().map(|key| operand.entry(&key, self.meter)).transpose()?.flatten()
        };
        match found {
            Some(found @ Value::Optional(_)) if optional => Ok(found),
            Some(found) if optional => Value::some(found, self.meter),
            Some(found) => Ok(found),
            None if optional => Ok(Value::none()),
            None => Err(no_index(operand, &key, self.meter)?.within(span)),
        }
    }

    /// Evaluates `&&` and `||`. An operand with the value `decisive` determines the result, even if the other operand
    /// fails, unless it fails because of a limit of the meter.
    fn logical(&mut self, operands: &'v [Node; 2], decisive: bool) -> Evaluated<'v> {
        let [left, right] = operands;
        let left = match self.bool(left) {
            Ok(value) if value == decisive => return Ok(Value::Bool(decisive)),
            Ok(value) => Ok(value),
            Err(error) => Err(self.meter.absorb(error)?),
        };
        match (left, self.bool(right)?) {
            (_, right) if right == decisive => Ok(Value::Bool(decisive)),
            (Ok(_), right) => Ok(Value::Bool(right)),
            (Err(error), _) => Err(error),
        }
    }

    #[inline(never)]
    fn binary(&mut self, operator: Operator, operands: &'v [Node; 2], span: Span) -> Evaluated<'v> {
        let [left, right] = operands;
        let left = self.value(left)?;
        let right = self.value(right)?;
        self.operate(operator, &left, &right).map_err(|error| error.within(span))
    }

    fn operate(&mut self, operator: Operator, left: &Value<'v>, right: &Value<'v>) -> Evaluated<'v> {
        let mut ordered = |wanted: fn(std::cmp::Ordering) -> bool| match order(left, right, self.meter)? {
            Some(found) => Ok(Value::Bool(wanted(found))),
            None => Err(mismatch(operator, left, right)),
        };
        match operator {
            Operator::Equal | Operator::NotEqual => {
                // An optional never equals a value that is not an optional, so this comparison is probably a mistake.
                if matches!(left, Value::Optional(_)) != matches!(right, Value::Optional(_)) {
                    return Err(mismatch(operator, left, right));
                }
                Ok(Value::Bool(equal(left, right, self.meter)? == (operator == Operator::Equal)))
            }
            Operator::Less => ordered(std::cmp::Ordering::is_lt),
            Operator::LessOrEqual => ordered(std::cmp::Ordering::is_le),
            Operator::Greater => ordered(std::cmp::Ordering::is_gt),
            Operator::GreaterOrEqual => ordered(std::cmp::Ordering::is_ge),
            Operator::In => self.contains(left, right),
            _ => arithmetic(operator, left, right, self.meter),
        }
    }

    fn contains(&mut self, value: &Value<'v>, container: &Value<'v>) -> Evaluated<'v> {
        if let Some(items) = container.items(self.meter)? {
            for item in items.iter() {
                if equal(item, value, self.meter)? {
                    return Ok(Value::Bool(true));
                }
            }
            return Ok(Value::Bool(false));
        }
        if !container.is_map() {
            return Err(mismatch(Operator::In, value, container));
        }
        match value.to_key() {
            Some(key) => Ok(Value::Bool(container.entry(&key, self.meter)?.is_some())),
            // A double cannot be a key if it has a fraction, or is too large to be exact.
            None if matches!(value, Value::Double(_)) => Ok(Value::Bool(false)),
            None => Err(mismatch(Operator::In, value, container)),
        }
    }

    #[inline(never)]
    fn call(&mut self, invocation: &'v Invocation, span: Span) -> Evaluated<'v> {
        let count = invocation.arguments.len();
        let (mut few, mut many) = ([const { Value::Null }; FEW], Vec::new());
        let arguments = if let Some(few) = few.get_mut(..count) {
            few
        } else {
            many.resize(count, Value::Null);
            &mut many
        };
        for (index, argument) in arguments.iter_mut().zip(&invocation.arguments) {
            *index = self.value(argument)?;
        }
        let function = invocation.function;
        let mut call = Call {
            function,
            arguments,
            pattern: invocation.pattern.as_ref(),
            seed: self.bindings.seed(),
            meter: self.meter,
        };
        (function.run)(&mut call).map_err(|error| error.within(span))
    }

    #[inline(never)]
    fn list(&mut self, elements: &'v [Element]) -> Evaluated<'v> {
        let mut list = ListBuilder::with_capacity(elements.len(), self.meter)?;
        for element in elements {
            let value = self.value(&element.value)?;
            let value = if element.optional { value.unwrapped() } else { Some(value) };
            if let Some(value) = value {
                list.push(value, self.meter)?;
            }
        }
        list.finish(self.meter)
    }

    #[inline(never)]
    fn map(&mut self, entries: &'v [(Node, Element)]) -> Evaluated<'v> {
        let mut map = MapBuilder::new();
        for (key_node, element) in entries {
            let key = self.value(key_node)?;
            let key = key.to_key().ok_or_else(|| {
                EvaluationError::new(format!("the key of a map cannot be {}", key.describe())).within(key_node.span)
            })?;
            let value = self.value(&element.value)?;
            let value = if element.optional { value.unwrapped() } else { Some(value) };
            if let Some(value) = value
                && let Some(_earlier) = map.insert(key, value, self.meter)?
            {
                return Err(EvaluationError::new("this key is already in the map").within(key_node.span));
            }
        }
        map.finish(self.meter)
    }

    fn constant(&mut self, literal: &'v Literal) -> Evaluated<'v> {
        Ok(match literal {
            Literal::Null => Value::Null,
            Literal::Bool(value) => Value::Bool(*value),
            Literal::Int(number) => Value::Int(*number),
            Literal::UInt(number) => Value::UInt(*number),
            Literal::Double(number) => Value::Double(*number),
            Literal::String(text) => Value::text(text),
            Literal::Bytes(bytes) => Value::bytes(bytes, self.meter)?,
        })
    }

    /// Returns the error for a missing field. If the map is small, the error suggests a similar field, if there is one.
    /// Fails if the meter's budget is too small for the search.
    #[cold]
    fn no_field(&mut self, value: &Value<'_>, field: &str) -> Result<EvaluationError, EvaluationError> {
        if !value.is_map() {
            let found = value.describe();
            return Ok(EvaluationError::new(format!("{found} has no fields, so it has no `{field}`")));
        }
        let error = EvaluationError::new(format!("there is no field `{field}`"));
        // Do not search for similar names in large maps, because a loop may create many such errors.
        let is_small = value.lookup_cost() <= FEW_STEPS && value.count(self.meter)?.is_some_and(|count| count <= 32);
        let names = if is_small { value.entries(self.meter)?.unwrap_or_default() } else { Vec::new() };
        let names: Vec<_> = names.iter().map(|(key, _)| key.to_text()).collect();
        // Comparing two names takes time in proportion to the product of their lengths.
        let letters: usize = names.iter().map(|name| name.len().min(LONGEST_NAME)).sum();
        self.meter.charge(field.len() * letters / LETTERS)?;
        Ok(match closest(field, names.iter().map(|name| &**name)) {
            Some(suggestion) => {
                error.with_help(format!("did you mean `{suggestion}`? If it may be absent: .?{field}.orValue(...)"))
            }
            None => error.with_help(format!("if it may be absent: .?{field}.orValue(...), or has(...)")),
        })
    }

    #[inline(never)]
    fn map_optional(&mut self, parts: &'v [Node; 2], flat: bool) -> Evaluated<'v> {
        let [target, body] = parts;
        match self.value(target)? {
            Value::Optional(None) => Ok(Value::none()),
            Value::Optional(Some(present)) => {
                let result = self.with_local(present.value().clone(), body)?;
                match (flat, result) {
                    (false, result) => Value::some(result, self.meter),
                    (true, result @ Value::Optional(_)) => Ok(result),
                    (true, result) => Err(EvaluationError::new(format!(
                        "the expression of optFlatMap must return an optional, not {}",
                        result.describe()
                    ))
                    .with_help("use optMap")
                    .within(body.span)),
                }
            }
            value => Err(EvaluationError::new(format!("optMap is called on an optional, not {}", value.describe()))
                .within(target.span)),
        }
    }

    #[inline(never)]
    fn iterate(&mut self, iteration: &'v Loop) -> Evaluated<'v> {
        let range = self.value(&iteration.range)?;
        let items = if let Some(items) = range.items(self.meter)? {
            items
        } else if let Some(entries) = range.entries(self.meter)? {
            self.meter.charge_items(entries.len())?;
            Items::Own(entries.iter().map(|(key, _)| key.to_value()).collect())
        } else {
            let error = EvaluationError::new(format!("a loop needs a list or a map, not {}", range.describe()));
            let error = match range {
                Value::Optional(_) => error.with_help("provide a default for an absent value: .orValue([])"),
                _ => error,
            };
            return Err(error.within(iteration.range.span));
        };
        match iteration.kind {
            LoopKind::All => self.search(&items, &iteration.body, false),
            LoopKind::Exists => self.search(&items, &iteration.body, true),
            LoopKind::ExistsOne => {
                let mut found = 0_usize;
                for item in items.iter() {
                    found += usize::from(self.test(item, &iteration.body)?);
                }
                Ok(Value::Bool(found == 1))
            }
            LoopKind::Filter => {
                let mut filtered = ListBuilder::new();
                for item in items.iter() {
                    if self.test(item, &iteration.body)? {
                        filtered.push(item.clone(), self.meter)?;
                    }
                }
                filtered.finish(self.meter)
            }
            LoopKind::Map => {
                let mut mapped = ListBuilder::new();
                for item in items.iter() {
                    if let Some(filter) = &iteration.filter
                        && !self.test(item, filter)?
                    {
                        continue;
                    }
                    let value = self.with_local(item.clone(), &iteration.body)?;
                    mapped.push(value, self.meter)?;
                }
                mapped.finish(self.meter)
            }
            LoopKind::SortBy => {
                self.meter.charge_items(items.len().saturating_mul(2))?;
                let mut keyed = Vec::with_capacity(items.len());
                for item in items.iter() {
                    keyed.push((self.with_local(item.clone(), &iteration.body)?, item.clone()));
                }
                collections::sort(&mut keyed, |(key, _)| key, self.meter)
                    .map_err(|error| error.within(iteration.body.span))?;
                Value::list(keyed.into_iter().map(|(_, item)| item), self.meter)
            }
        }
    }

    fn test(&mut self, item: &Value<'v>, condition: &'v Node) -> Result<bool, EvaluationError> {
        self.locals.push(item.clone());
        let result = self.bool(condition);
        self.locals.pop();
        result
    }

    /// Searches for an item for which the condition returns `decisive`. Such an item determines the result, even if the
    /// condition fails for other items, unless it fails because of a limit of the meter.
    fn search(&mut self, items: &[Value<'v>], condition: &'v Node, decisive: bool) -> Evaluated<'v> {
        let mut failed = None;
        for item in items {
            match self.test(item, condition) {
                Ok(value) if value == decisive => return Ok(Value::Bool(decisive)),
                Ok(_) => {}
                Err(error) => {
                    let error = self.meter.absorb(error)?;
                    failed.get_or_insert(error);
                }
            }
        }
        failed.map_or(Ok(Value::Bool(!decisive)), Err)
    }
}

/// The number of character comparisons that cost one step.
const LETTERS: usize = 8;

/// A map is small if a lookup in it takes at most this number of steps.
const FEW_STEPS: usize = 16;

#[cold]
fn without_range(error: EvaluationError, span: Span) -> EvaluationError {
    error.without_range().within(span)
}

#[cold]
fn no_index(operand: &Value<'_>, key: &Value<'_>, meter: &mut Meter) -> Result<EvaluationError, EvaluationError> {
    let wanted = key.to_text().unwrap_or_else(|_| Cow::Borrowed(key.describe()));
    let wanted = truncated(&wanted);
    if operand.is_list() {
        let count = operand.count(meter)?.unwrap_or(0);
        return Ok(EvaluationError::new(format!("there is no item {wanted} in a list of {count}"))
            .with_help(format!("if it may be absent: [?{wanted}].orValue(...)")));
    }
    if operand.is_map() {
        return Ok(EvaluationError::new(format!("there is no key {wanted:?}"))
            .with_help(format!("if it may be absent: [?{wanted:?}].orValue(...)")));
    }
    let found = operand.describe();
    Ok(EvaluationError::new(format!("{found} is neither a list nor a map and cannot be indexed")))
}
