//! The values of a profile's parameters and lookups, which its expressions read by name.

use std::sync::Arc;

use serde_json::Value as Json;

use crate::expression::{EvaluationError, Meter, Value};
use crate::json::OwnedTape;
use crate::lookup::{Answer, Declared, LookedUp};

/// The values of one profile for one object. Parameters without value and default are absent. A parameter with an error
/// makes every expression fail that reads it, and nothing else.
#[derive(Debug, Default)]
pub(crate) struct Values {
    parameters: Vec<(Arc<str>, Result<Json, EvaluationError>)>,
    lookups: Vec<(Box<str>, Answer<Arc<OwnedTape>>)>,
}

/// The values of a profile without parameters and lookups, like most.
pub(crate) static NONE: Values = Values { parameters: Vec::new(), lookups: Vec::new() };

impl Values {
    /// Creates the values with the results of the declared lookups, without parameters.
    pub(crate) fn new(declared: &[Declared], looked_up: &LookedUp, namespace: &str) -> Self {
        let answer = |lookup: &Declared| (lookup.name.clone(), looked_up.object(&lookup.query(namespace)));
        Self { parameters: Vec::new(), lookups: declared.iter().map(answer).collect() }
    }

    /// Adds the value of a parameter.
    pub(crate) fn push(&mut self, name: &Arc<str>, value: Result<Json, EvaluationError>) {
        self.parameters.push((Arc::clone(name), value));
    }

    /// The value of a parameter; `None` if it was not set and has no default.
    ///
    /// # Errors
    /// The value is invalid, or could not be looked up or computed.
    pub(crate) fn parameter(&self, name: &str) -> Option<Result<&Json, Box<str>>> {
        let (_, value) = self.parameters.iter().find(|(known, _)| **known == *name)?;
        Some(value.as_ref().map_err(|error| error.message().into()))
    }

    /// A member of `params` or `lookups`; `None` for any other name.
    pub(crate) fn member(
        &self,
        name: &str,
        member: &str,
        meter: &mut Meter,
    ) -> Option<Result<Option<Value<'_>>, EvaluationError>> {
        match name {
            "params" => {
                let value = self.parameters.iter().find(|(name, _)| **name == *member).map(|(_, value)| value);
                Some(value.map(|value| value.as_ref().map(Value::from).map_err(Clone::clone)).transpose())
            }
            "lookups" => {
                let answer = self.lookups.iter().find(|(name, _)| **name == *member).map(|(_, answer)| answer);
                let known = answer.map_or(Ok(None), |answer| answer.known(&format!("lookups.{member}")));
                Some(known.and_then(|found| found.map(|object| Value::read(object.root(), meter)).transpose()))
            }
            _ => None,
        }
    }
}
