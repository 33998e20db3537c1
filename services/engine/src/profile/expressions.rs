//! A profile's variables and conditions, compiled.

use std::collections::HashMap;

use pillion_api::profile::{MatchCondition, Otherwise, ProfileSpec};

use super::Diagnostic;
use super::validations::{self, Validation};
use crate::compute::{self, Variable};
use crate::expression::{Expression, ExpressionError, Scope};
use crate::parameter::{self, Parameter};

/// A condition that was found to be right.
#[derive(Debug)]
pub(crate) struct Condition {
    pub(crate) name: Box<str>,
    pub(crate) expression: Expression,
    pub(crate) otherwise: Otherwise,
    pub(crate) message: Option<Box<str>>,
}

/// All that a profile computes.
pub(super) struct Computed {
    pub(super) parameters: Box<[Parameter]>,
    pub(super) variables: Box<[Variable]>,
    pub(super) conditions: Box<[Condition]>,
    pub(super) validations: Box<[Validation]>,
}

/// Compiles parameters, variables, conditions and validations. What is wrong goes to `faults`.
pub(super) fn compile(spec: &ProfileSpec, is_for_pods: bool, faults: &mut Vec<Diagnostic>) -> Computed {
    let mut names = HashMap::new();
    let mut parameters = Vec::new();
    for (index, text) in spec.parameters.iter().enumerate() {
        let path = format!("spec.parameters[{index}]");
        check_name(&path, &text.name, &mut names, faults);
        match parameter::compile(&path, text) {
            Ok(parameter) => parameters.push(parameter),
            Err(wrong) => faults.extend(wrong),
        }
    }
    let scope = compute::scope(
        spec.parameters.iter().map(|parameter| parameter.name.as_str()),
        spec.variables.iter().map(|variable| variable.name.as_str()),
    );
    let scope = if is_for_pods { scope } else { compute::without_pod(scope) };
    let mut names = HashMap::new();
    let mut variables = Vec::new();
    for (index, variable) in spec.variables.iter().enumerate() {
        let path = format!("spec.variables[{index}]");
        check_name(&path, &variable.name, &mut names, faults);
        if let Some(expression) = expression(&path, &variable.expression, &scope, faults) {
            variables.push(Variable { name: variable.name.as_str().into(), expression });
        }
    }
    check_cycles(&variables, faults);
    let mut names = HashMap::new();
    let conditions = spec.match_conditions.iter().enumerate().filter_map(|(index, condition)| {
        let path = format!("spec.matchConditions[{index}]");
        check_name(&path, &condition.name, &mut names, faults);
        compile_condition(&path, condition, &scope, faults)
    });
    let conditions = conditions.collect();
    let validations = validations::compile(spec, &scope, faults);
    Computed { parameters: parameters.into(), variables: variables.into(), conditions, validations }
}

fn compile_condition(
    path: &str,
    condition: &MatchCondition,
    scope: &Scope,
    faults: &mut Vec<Diagnostic>,
) -> Option<Condition> {
    Some(Condition {
        name: condition.name.as_str().into(),
        expression: expression(path, &condition.expression, scope, faults)?,
        otherwise: condition.otherwise.unwrap_or(Otherwise::NotMatched),
        message: condition.message.as_deref().map(Box::from),
    })
}

pub(super) fn expression(path: &str, source: &str, scope: &Scope, faults: &mut Vec<Diagnostic>) -> Option<Expression> {
    match Expression::compile(source, scope) {
        Ok(expression) => Some(expression),
        Err(error) => {
            faults.push(diagnostic(format!("{path}.expression"), source, &error));
            None
        }
    }
}

/// An expression's mistake with the piece of source that it is about.
pub(super) fn diagnostic(path: String, source: &str, error: &ExpressionError) -> Diagnostic {
    let piece = source.get(error.range.clone()).filter(|piece| !piece.is_empty());
    let message = piece.map_or_else(|| error.message.clone(), |piece| format!("{}: `{piece}`", error.message));
    Diagnostic { path, message, help: error.help.clone() }
}

fn check_name(path: &str, name: &str, names: &mut HashMap<String, String>, faults: &mut Vec<Diagnostic>) {
    if let Some(first) = names.insert(name.to_owned(), path.to_owned()) {
        faults.push(Diagnostic::new(format!("{path}.name"), format!("the name {name:?} stands at {first} too")));
    }
}

/// A variable that is needed for its own value has none.
fn check_cycles(variables: &[Variable], faults: &mut Vec<Diagnostic>) {
    for (index, start) in variables.iter().enumerate() {
        let mut seen = vec![false; variables.len()];
        let mut waiting = vec![index];
        while let Some(place) = waiting.pop() {
            let Some(variable) = variables.get(place) else { continue };
            for used in variable.expression.members("variables") {
                let Some(next) = variables.iter().position(|variable| *variable.name == *used) else { continue };
                if next == index {
                    let path = format!("spec.variables[{index}].expression");
                    faults.push(Diagnostic::new(
                        path,
                        format!("the variable {:?} is needed for its own value", start.name),
                    ));
                    return;
                }
                if let Some(seen) = seen.get_mut(next).filter(|seen| !**seen) {
                    *seen = true;
                    waiting.push(next);
                }
            }
        }
    }
}
