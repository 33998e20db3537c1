//! Tests the expression language: every example in its documentation, rejected expressions, limits, and expressions of
//! real profiles.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "test helpers fail by panicking"
)]

mod bombs;
mod limits;
mod mistakes;
mod oracle;
mod page;
mod profiles;
mod tapes;

use std::cell::RefCell;
use std::collections::BTreeMap;

use pillion_expression::{Bindings, EvaluationError, Expression, Meter, Outcome, Part, Scope, Text, Value};
use serde_json::Value as Json;

/// Names with members.
const NAMESPACES: [&str; 3] = ["params", "variables", "lookups"];

/// Names whose values are optionals.
const OPTIONALS: [&str; 3] = ["owner", "serviceAccount", "existing"];

/// A scope with values for its names, and with variables that are evaluated when they are read.
#[derive(Default)]
struct Environment {
    values: BTreeMap<String, Json>,
    variables: BTreeMap<String, Expression>,
    read: RefCell<Vec<String>>,
}

impl Environment {
    fn new(values: Json) -> Self {
        let Json::Object(values) = values else { panic!("the values must be an object") };
        Self { values: values.into_iter().collect(), ..Self::default() }
    }

    fn with(mut self, name: &str, value: Json) -> Self {
        self.values.insert(name.to_owned(), value);
        self
    }

    /// Adds variables as pairs of name and source. Each variable may read all others.
    fn variables(mut self, variables: &[(&str, &str)]) -> Self {
        let scope = self.scope().with_members("variables", variables.iter().map(|(name, _)| *name));
        for (name, source) in variables {
            let expression = Expression::compile(source, &scope).unwrap_or_else(|error| panic!("{name}: {error:?}"));
            self.variables.insert((*name).to_owned(), expression);
        }
        self
    }

    fn scope(&self) -> Scope {
        let scope = Scope::new().with_members("variables", self.variables.keys());
        self.values.iter().fold(scope, |scope, (name, value)| match value {
            Json::Object(members) if NAMESPACES.contains(&name.as_str()) => scope.with_members(name, members.keys()),
            _ => scope.with(name),
        })
    }

    fn run(&self, source: &str) -> Result<Outcome, EvaluationError> {
        self.run_within(source, &mut Meter::new())
    }

    fn run_within(&self, source: &str, meter: &mut Meter) -> Result<Outcome, EvaluationError> {
        let expression =
            Expression::compile(source, &self.scope()).unwrap_or_else(|error| panic!("{source}: {error:?}"));
        expression.evaluate_outcome(&self, meter)
    }

    fn value(&self, source: &str) -> Json {
        match self.run(source) {
            Ok(Outcome::Value(value)) => value,
            other => panic!("{source}: {other:?}"),
        }
    }

    fn error(&self, source: &str) -> EvaluationError {
        self.run(source).expect_err(source)
    }

    /// Evaluates the expressions in a template string, and returns the resulting string.
    fn text(&self, text: &str) -> String {
        let scope = self.scope();
        let evaluate = |source: &str| {
            let expression = Expression::compile(source, &scope).unwrap();
            expression.evaluate_text(&self, &mut Meter::new()).unwrap()
        };
        match Text::parse(text).unwrap() {
            Text::Literal(text) => text,
            Text::Whole(source) => evaluate(&source.text),
            Text::Mixed(parts) => parts
                .into_iter()
                .map(|part| match part {
                    Part::Text(text) => text,
                    Part::Expression(source) => evaluate(&source.text),
                })
                .collect(),
        }
    }
}

impl<'e> Bindings<'e> for &'e Environment {
    fn value(&self, name: &str, meter: &mut Meter) -> Result<Value<'e>, EvaluationError> {
        self.read.borrow_mut().push(name.to_owned());
        let value = self.values.get(name).ok_or_else(|| EvaluationError::new(format!("{name} does not exist")))?;
        Ok(match value {
            Json::Null if OPTIONALS.contains(&name) => Value::none(),
            value if OPTIONALS.contains(&name) => Value::some(value.into(), meter)?,
            value => value.into(),
        })
    }

    fn member(&self, name: &str, member: &str, meter: &mut Meter) -> Result<Option<Value<'e>>, EvaluationError> {
        if name == "variables" {
            let expression = &self.variables[member];
            return expression.evaluate(self, meter).map(Some);
        }
        Ok(self.values[name].get(member).map(Value::from))
    }

    fn seed(&self) -> &'static str {
        "3a9f12f0-18d7-406d-861c-e6c005cfdef1"
    }
}

fn empty() -> Environment {
    Environment::new(serde_json::json!({}))
}
