//! Checks which expressions of a profile the API server can evaluate, and which variables they need.

use std::collections::BTreeSet;

use pillion_api::ProfileSpec;
use pillion_api::profile::Variable;
use pillion_expression::{Expression, Part, Scope, Source, Text};

use super::asking::quoted;

/// The names that a profile's expression may use.
const NAMES: [&str; 6] = ["object", "oldObject", "request", "namespaceObject", "containers", "primary"];

/// The names that the API server provides too.
const NATIVE: [&str; 5] = ["object", "oldObject", "request", "namespaceObject", "variables"];

/// The fields of `request` in the API server's policies. A webhook sees the whole review.
const REQUEST: [&str; 12] = [
    "kind",
    "resource",
    "subResource",
    "requestKind",
    "requestResource",
    "requestSubResource",
    "name",
    "namespace",
    "operation",
    "userInfo",
    "dryRun",
    "options",
];

/// The expressions of a profile.
pub(super) struct Expressions<'p> {
    spec: &'p ProfileSpec,
    scope: Scope,
}

/// Variables that are used, directly or through other variables.
pub(super) type Used = BTreeSet<String>;

impl<'p> Expressions<'p> {
    pub(super) fn new(spec: &'p ProfileSpec) -> Self {
        let scope = NAMES.into_iter().fold(Scope::new(), Scope::with);
        let scope = ["params", "variables", "lookups"].into_iter().fold(scope, Scope::with_any_members);
        Self { spec, scope }
    }

    /// Returns the variables that an expression uses, or the reason why the API server cannot evaluate it.
    pub(super) fn check(&self, source: &str) -> Result<Used, String> {
        let mut used = Used::new();
        self.collect(source, &mut used)?;
        Ok(used)
    }

    fn collect(&self, source: &str, used: &mut Used) -> Result<(), String> {
        let expression = Expression::compile(source, &self.scope)
            .map_err(|error| format!("the API server does not know what is in it: {error}"))?;
        for path in expression.paths() {
            if !NATIVE.contains(&path.name.as_str()) {
                return Err(not_native(&path.name));
            }
            if path.name == "request" && path.fields.first().is_none_or(|field| !REQUEST.contains(&field.as_str())) {
                let field = path.fields.first().map_or("as a whole", String::as_str);
                return Err(format!("Kubernetes' own policies do not see request {field}"));
            }
            let whole = path.fields.first().is_none_or(|field| field != "metadata");
            if path.name == "namespaceObject" && whole {
                return Err("namespaceObject is only its metadata here, and the whole namespace there".to_owned());
            }
        }
        let foreign = expression.not_native();
        if !foreign.is_empty() {
            return Err(format!("Kubernetes' own policies do not have {}", foreign.join(", ")));
        }
        for name in expression.members("variables") {
            if used.insert(name.to_owned())
                && let Some(variable) = self.variable(name)
            {
                self.collect(&variable.expression, used).map_err(|why| format!("its variable {name}: {why}"))?;
            }
        }
        Ok(())
    }

    /// Whether an expression reads the namespace directly.
    pub(super) fn reads_namespace(&self, source: &str) -> bool {
        Expression::compile(source, &self.scope).is_ok_and(|expression| expression.uses("namespaceObject"))
    }

    fn variable(&self, name: &str) -> Option<&'p Variable> {
        self.spec.variables.iter().find(|variable| variable.name == name)
    }

    /// Returns the used variables in dependency order, as the API server requires.
    pub(super) fn in_order(&self, used: &Used) -> Vec<&'p Variable> {
        let mut ordered: Vec<&Variable> = Vec::new();
        // There are no cycles, so each round places at least one.
        for _ in 0..used.len() {
            for variable in used.iter().filter_map(|name| self.variable(name)) {
                let is_placed = |name: &str| ordered.iter().any(|placed| placed.name == name);
                let needs = Expression::compile(&variable.expression, &self.scope);
                let ready = needs.is_ok_and(|expression| expression.members("variables").all(is_placed));
                if ready && !is_placed(&variable.name) {
                    ordered.push(variable);
                }
            }
        }
        ordered
    }

    /// Converts a message for the API server: a string, or an expression with the variables that it uses.
    pub(super) fn message(&self, text: &str) -> Result<(Message, Used), String> {
        let mut used = Used::new();
        let mut piece =
            |source: &Source| self.collect(&source.text, &mut used).map(|()| format!("string({})", source.text.trim()));
        let pieces = match Text::parse(text).map_err(|error| error.to_string())? {
            Text::Literal(text) => return Ok((Message::Plain(text), used)),
            Text::Whole(source) => vec![piece(&source)?],
            Text::Mixed(parts) => {
                let pieces = parts.iter().map(|part| match part {
                    Part::Text(text) => Ok(quoted(text)),
                    Part::Expression(source) => piece(source),
                });
                pieces.collect::<Result<_, _>>()?
            }
        };
        Ok((Message::Computed(pieces.join(" + ")), used))
    }
}

/// A message for the API server.
pub(super) enum Message {
    Plain(String),
    Computed(String),
}

fn not_native(name: &str) -> String {
    let why = match name {
        "containers" | "primary" => "; name the lists of object.spec",
        "params" => ": the API server reads no annotations as parameters",
        "lookups" => ": the API server looks nothing up",
        _ => "",
    };
    format!("Kubernetes' own policies do not have {name}{why}")
}
