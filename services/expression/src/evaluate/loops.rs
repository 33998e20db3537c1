//! Evaluates macros over the items of a list, the keys of a map, or the value of an optional.

use super::{Evaluated, Evaluation};
use crate::error::EvaluationError;
use crate::functions::lists;
use crate::program::{Loop, LoopKind, Node};
use crate::value::{Items, ListBuilder, Value};

impl<'v> Evaluation<'_, 'v> {
    #[inline(never)]
    pub(super) fn map_optional(&mut self, parts: &'v [Node; 2], flat: bool) -> Evaluated<'v> {
        let [target, body] = parts;
        match self.value(target)? {
            Value::Optional(None) => Ok(Value::none()),
            Value::Optional(Some(present)) => {
                let result = self.with_local(present.value().clone(), body)?;
                match (flat, result) {
                    (false, result) => Value::some(result, self.meter),
                    (true, result @ Value::Optional(_)) => Ok(result),
                    (true, result) => {
                        Err(EvaluationError::new(format!("optFlatMap gives an optional, not {}", result.described()))
                            .with_help("use optMap")
                            .within(body.span))
                    }
                }
            }
            value => Err(EvaluationError::new(format!("optMap is called on an optional, not {}", value.described()))
                .within(target.span)),
        }
    }

    #[inline(never)]
    pub(super) fn looped(&mut self, looped: &'v Loop) -> Evaluated<'v> {
        let range = self.value(&looped.range)?;
        let items = if let Some(items) = range.items(self.meter)? {
            items
        } else if let Some(entries) = range.entries(self.meter)? {
            self.meter.charge_items(entries.len())?;
            Items::Own(entries.iter().map(|(key, _)| key.to_value()).collect())
        } else {
            let error = EvaluationError::new(format!("a loop goes over a list or a map, not {}", range.described()));
            let error = match range {
                Value::Optional(_) => error.with_help("say what counts if it is absent: .orValue([])"),
                _ => error,
            };
            return Err(error.within(looped.range.span));
        };
        match looped.kind {
            LoopKind::All => self.search(&items, &looped.body, false),
            LoopKind::Exists => self.search(&items, &looped.body, true),
            LoopKind::ExistsOne => {
                let mut found = 0_usize;
                for item in items.iter() {
                    found += usize::from(self.test(item, &looped.body)?);
                }
                Ok(Value::Bool(found == 1))
            }
            LoopKind::Filter => {
                let mut kept = ListBuilder::new();
                for item in items.iter() {
                    if self.test(item, &looped.body)? {
                        kept.push(item.clone(), self.meter)?;
                    }
                }
                kept.finish(self.meter)
            }
            LoopKind::Map => {
                let mut mapped = ListBuilder::new();
                for item in items.iter() {
                    if let Some(filter) = &looped.filter
                        && !self.test(item, filter)?
                    {
                        continue;
                    }
                    let value = self.with_local(item.clone(), &looped.body)?;
                    mapped.push(value, self.meter)?;
                }
                mapped.finish(self.meter)
            }
            LoopKind::SortBy => {
                self.meter.charge_items(items.len().saturating_mul(2))?;
                let mut keyed = Vec::with_capacity(items.len());
                for item in items.iter() {
                    keyed.push((self.with_local(item.clone(), &looped.body)?, item.clone()));
                }
                lists::sort(&mut keyed, |(key, _)| key, self.meter).map_err(|error| error.within(looped.body.span))?;
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

    /// Searches for an item for which the condition gives the decisive result. It also decides if the condition fails
    /// for other items.
    fn search(&mut self, items: &[Value<'v>], condition: &'v Node, decisive: bool) -> Evaluated<'v> {
        let mut failed = None;
        for item in items {
            match self.test(item, condition) {
                Ok(value) if value == decisive => return Ok(Value::Bool(decisive)),
                Ok(_) => {}
                Err(error) => {
                    let error = self.meter.go_on_after(error)?;
                    failed.get_or_insert(error);
                }
            }
        }
        failed.map_or(Ok(Value::Bool(!decisive)), Err)
    }
}
