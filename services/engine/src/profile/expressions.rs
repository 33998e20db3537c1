//! Compiles the parameters, variables, conditions and validations of a profile.

use std::collections::HashMap;

use pillion_api::profile::{MatchCondition, Otherwise, ProfileSpec};

use super::Diagnostic;
use super::template::{Choice, Compiler, LocalNames};
use super::validations::{self, Validation};
use crate::context::{self, ProfileBindings, Variable};
use crate::expression::{Expression, Meter, Scope};
use crate::parameter::{self, Parameter};

/// A compiled condition.
#[derive(Debug)]
pub(crate) struct Condition {
    pub(crate) name: Box<str>,
    pub(crate) expression: Expression,
    pub(crate) otherwise: Otherwise,
    /// The message; without one, the name is shown.
    pub(crate) message: Option<Choice<Box<str>>>,
}

impl Condition {
    /// Returns the message for a failed condition. If the message itself fails, the name is returned.
    pub(crate) fn told<'v>(&'v self, bindings: &ProfileBindings<'v>, meter: &mut Meter) -> Box<str> {
        match &self.message {
            None => self.name.clone(),
            Some(Choice::Known(text)) => text.clone(),
            Some(Choice::Found(text)) => {
                let made = text.evaluate(bindings, meter).ok().filter(|text| !text.trim().is_empty());
                made.map_or_else(|| self.name.clone(), |text| one_line(&text).into())
            }
        }
    }

    /// Visits all expressions of the condition.
    pub(crate) fn each_expression(&self, see: &mut dyn FnMut(&Expression)) {
        see(&self.expression);
        if let Some(message) = &self.message {
            message.each_expression(see);
        }
    }
}

/// Replaces control characters by spaces, and truncates a string to a length that fits into messages.
pub(crate) fn one_line(text: &str) -> String {
    text.chars().map(|character| if character.is_control() { ' ' } else { character }).take(MAX_MADE).collect()
}

/// The maximum length of a computed message in characters.
const MAX_MADE: usize = 1024;

/// The compiled expressions of a profile.
pub(super) struct Computed {
    pub(super) parameters: Box<[Parameter]>,
    pub(super) variables: Box<[Variable]>,
    pub(super) conditions: Box<[Condition]>,
    /// The scope of all expressions.
    pub(super) scope: Scope,
    /// The local names that each variable reads.
    pub(super) locals: LocalNames,
    pub(super) validations: Box<[Validation]>,
}

/// Compiles parameters, variables, conditions and validations. Mistakes go to `diagnostics`.
pub(super) fn compile(spec: &ProfileSpec, is_for_pods: bool, diagnostics: &mut Vec<Diagnostic>) -> Computed {
    let mut names = HashMap::new();
    let mut parameters: Vec<Parameter> = Vec::new();
    let whole = Scope::new();
    let lookups = || spec.lookups.iter().map(|lookup| lookup.name.as_str());
    for (index, text) in spec.parameters.iter().enumerate() {
        let path = format!("spec.parameters[{index}]");
        check_name(&path, &text.name, &mut names, diagnostics);
        // A default may read earlier parameters, but no variables: variables may read parameters.
        let earlier = spec.parameters.iter().take(index).map(|parameter| parameter.name.as_str());
        let scope = context::scope(earlier, []).of_the_profile_of(&whole).with_members("lookups", lookups());
        match parameter::compile(&path, text, &scope) {
            Ok(parameter) => parameters.push(parameter),
            Err(wrong) => diagnostics.extend(wrong),
        }
    }
    let scope = context::scope(
        spec.parameters.iter().map(|parameter| parameter.name.as_str()),
        spec.variables.iter().map(|variable| variable.name.as_str()),
    )
    .of_the_profile_of(&whole)
    .with_members("lookups", lookups());
    let scope = if is_for_pods { scope } else { context::without_pod(scope) };
    let mut names = HashMap::new();
    let mut variables = Vec::new();
    let everywhere = LocalNames::new();
    for (index, variable) in spec.variables.iter().enumerate() {
        let path = format!("spec.variables[{index}]");
        check_name(&path, &variable.name, &mut names, diagnostics);
        let mut compiler = Compiler::new(&scope, &context::LOCALS, &everywhere, diagnostics);
        if let Some(expression) = compiler.condition(&format!("{path}.expression"), &variable.expression) {
            variables.push(Variable { name: variable.name.as_str().into(), expression, is_local: false });
        }
    }
    check_cycles(&variables, diagnostics);
    let locals = local_names(&variables);
    for variable in &mut variables {
        variable.is_local = locals.get(&variable.name).is_some_and(|needed| !needed.is_empty());
    }
    let conditions = conditions("spec.matchConditions", &spec.match_conditions, &[], (&scope, &locals), diagnostics);
    let validations = validations::compile(spec, (&scope, &locals), diagnostics);
    Computed { parameters: parameters.into(), variables: variables.into(), conditions, validations, scope, locals }
}

/// Compiles a list of conditions. `locals` are the local names in scope.
pub(super) fn conditions(
    path: &str,
    conditions: &[MatchCondition],
    locals: &[&str],
    (scope, needs): (&Scope, &LocalNames),
    diagnostics: &mut Vec<Diagnostic>,
) -> Box<[Condition]> {
    let mut names = HashMap::new();
    let compiled = conditions.iter().enumerate().filter_map(|(index, condition)| {
        let path = format!("{path}[{index}]");
        check_name(&path, &condition.name, &mut names, diagnostics);
        let message = condition.message.as_deref();
        let message =
            validations::compile_message(&format!("{path}.message"), message, locals, (scope, needs), diagnostics);
        let mut compiler = Compiler::new(scope, locals, needs, diagnostics);
        Some(Condition {
            name: condition.name.as_str().into(),
            expression: compiler.condition(&format!("{path}.expression"), &condition.expression)?,
            otherwise: condition.otherwise.unwrap_or(Otherwise::NotMatched),
            message: message?,
        })
    });
    compiled.collect()
}

/// Returns the local names that each variable reads, directly or through other variables.
fn local_names(variables: &[Variable]) -> LocalNames {
    let mut needs = LocalNames::new();
    // A chain is at most as long as the number of variables, and each round resolves one more step.
    for _ in 0..=variables.len() {
        let mut changed = false;
        for variable in variables {
            let own = context::LOCALS.into_iter().filter(|local| variable.expression.uses(local));
            let used = variable.expression.members("variables").filter_map(|used| needs.get(used)).flatten().copied();
            let mut needed: Vec<_> = own.chain(used).collect();
            needed.sort_unstable();
            needed.dedup();
            changed |= needs.insert(variable.name.clone(), needed.clone()).is_none_or(|before| before != needed);
        }
        if !changed {
            break;
        }
    }
    needs
}

pub(super) fn check_name(
    path: &str,
    name: &str,
    names: &mut HashMap<String, String>,
    diagnostics: &mut Vec<Diagnostic>,
) {
    if let Some(first) = names.insert(name.to_owned(), path.to_owned()) {
        diagnostics.push(Diagnostic::new(format!("{path}.name"), format!("the name {name:?} stands at {first} too")));
    }
}

/// Reports variables that read themselves, directly or through others.
fn check_cycles(variables: &[Variable], diagnostics: &mut Vec<Diagnostic>) {
    for (index, start) in variables.iter().enumerate() {
        let mut seen = vec![false; variables.len()];
        let mut waiting = vec![index];
        while let Some(place) = waiting.pop() {
            let Some(variable) = variables.get(place) else { continue };
            for used in variable.expression.members("variables") {
                let Some(next) = variables.iter().position(|variable| *variable.name == *used) else { continue };
                if next == index {
                    let path = format!("spec.variables[{index}].expression");
                    diagnostics.push(Diagnostic::new(
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
