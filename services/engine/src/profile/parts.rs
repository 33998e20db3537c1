//! Compiles the parameters, variables, conditions, validations and container patches of a profile.

use std::collections::HashMap;

use pillion_api::profile::{
    ContainerPatch as PatchText, ContainerType, MatchCondition as MatchConditionText, Precondition as PreconditionText,
    PreconditionAction, ProfileSpec, Validation as ValidationText, ValidationAction,
};

use super::Diagnostic;
use super::check::{check_container_template, is_small};
use super::pod_schema::Kind;
use super::template::{Choice, Compiler, LocalNames, Node};
use crate::context::{self, ProfileBindings, Variable};
use crate::expression::{Expression, Meter, Scope};
use crate::parameter::{self, Parameter};

/// The maximum length of a computed message, in characters.
const MAX_COMPUTED_MESSAGE: usize = 1024;

/// The maximum length of a message in the spec, in bytes.
const MAX_MESSAGE: usize = 1024;

/// The default status code of a denial, as in the admission policies of Kubernetes.
const DEFAULT_CODE: u16 = 422;

/// Status codes of denials with their status reasons in Kubernetes.
const STATUS_REASONS: [(u16, &str); 6] = [
    (DEFAULT_CODE, "Invalid"),
    (403, "Forbidden"),
    (401, "Unauthorized"),
    (413, "RequestEntityTooLarge"),
    (404, "NotFound"),
    (409, "Conflict"),
];

/// The name of the container in expressions of a container patch.
const CONTAINER: &str = "container";

/// A compiled condition that selects objects or containers.
#[derive(Debug)]
pub(crate) struct MatchCondition {
    pub(crate) name: Box<str>,
    pub(crate) expression: Expression,
}

/// A compiled precondition.
#[derive(Debug)]
pub(crate) struct Precondition {
    pub(crate) name: Box<str>,
    pub(crate) expression: Expression,
    pub(crate) action: PreconditionAction,
    /// The message. If it is `None`, the name of the precondition is shown.
    pub(crate) message: Option<Choice<Box<str>>>,
}

/// A compiled validation: a condition for the final object, and the response for objects that violate it.
#[derive(Debug)]
pub(crate) struct Validation {
    pub(crate) expression: Expression,
    /// The message. If it is `None`, the expression is shown.
    pub(crate) message: Option<Choice<Box<str>>>,
    /// The status reason. Empty if the validation sets none and the status code has no default reason.
    pub(crate) reason: Box<str>,
    /// The HTTP status code of the denial.
    pub(crate) code: u16,
    /// The path of the invalid field, without a leading dot.
    pub(crate) field_path: Option<Box<str>>,
    pub(crate) action: ValidationAction,
}

/// A compiled container patch: matchers for existing containers, and the template to merge into them.
#[derive(Debug)]
pub(crate) struct ContainerPatch {
    pub(crate) name: Box<str>,
    pub(crate) types: Box<[ContainerType]>,
    pub(crate) names: Box<[Box<str>]>,
    /// Image patterns, in which `*` matches any string.
    pub(crate) images: Box<[Box<str>]>,
    /// The expression `match.where`.
    pub(crate) where_: Option<Expression>,
    pub(crate) match_conditions: Box<[MatchCondition]>,
    pub(crate) preconditions: Box<[Precondition]>,
    pub(crate) template: Node,
}

impl Precondition {
    /// Returns the message for a failed precondition. If there is no message, or it is blank or cannot be evaluated,
    /// returns the name.
    pub(crate) fn failure_message<'v>(&'v self, bindings: &ProfileBindings<'v>, meter: &mut Meter) -> Box<str> {
        match &self.message {
            None => self.name.clone(),
            Some(Choice::Constant(text)) => text.clone(),
            Some(Choice::Computed(text)) => {
                let computed = text.evaluate(bindings, meter).ok().filter(|text| !text.trim().is_empty());
                computed.map_or_else(|| self.name.clone(), |text| one_line(&text).into())
            }
        }
    }

    /// Visits all expressions of the precondition.
    pub(super) fn each_expression(&self, see: &mut dyn FnMut(&Expression)) {
        see(&self.expression);
        self.message.iter().for_each(|message| message.each_expression(see));
    }
}

impl Validation {
    /// Visits all expressions of the validation.
    pub(super) fn each_expression(&self, see: &mut dyn FnMut(&Expression)) {
        see(&self.expression);
        self.message.iter().for_each(|message| message.each_expression(see));
    }
}

impl ContainerPatch {
    /// Whether the patch matches the name and the image of a container.
    pub(crate) fn names_match(&self, name: &str, image: &str) -> bool {
        (self.names.is_empty() || self.names.iter().any(|wanted| glob(wanted, name)))
            && (self.images.is_empty() || self.images.iter().any(|wanted| glob(wanted, image)))
    }

    /// Visits all expressions of the patch.
    pub(super) fn each_expression(&self, see: &mut dyn FnMut(&Expression)) {
        self.template.each_expression(see);
        self.preconditions.iter().for_each(|precondition| precondition.each_expression(see));
        self.match_conditions.iter().for_each(|condition| see(&condition.expression));
        self.where_.iter().for_each(see);
    }
}

/// Replaces control characters with spaces, and truncates a string to the maximum length in messages.
pub(crate) fn one_line(text: &str) -> String {
    let shown = text.chars().map(|character| if character.is_control() { ' ' } else { character });
    shown.take(MAX_COMPUTED_MESSAGE).collect()
}

/// Compiles the parameters. `profile` is the scope of the profile, whose limits also apply to the scopes of the
/// defaults.
pub(super) fn compile_parameters(
    spec: &ProfileSpec,
    profile: &Scope,
    diagnostics: &mut Vec<Diagnostic>,
) -> Box<[Parameter]> {
    let mut names = HashMap::new();
    let mut parameters: Vec<Parameter> = Vec::new();
    for (index, text) in spec.parameters.iter().enumerate() {
        let path = format!("spec.parameters[{index}]");
        check_name(&path, &text.name, &mut names, diagnostics);
        // A default may read earlier parameters, but not variables, because variables may read parameters.
        let earlier = spec.parameters.iter().take(index).map(|parameter| parameter.name.as_str());
        let lookups = spec.lookups.iter().map(|lookup| lookup.name.as_str());
        let scope = context::scope(earlier, []).of_the_profile_of(profile).with_members("lookups", lookups);
        match parameter::compile(&path, text, &scope) {
            Ok(parameter) => parameters.push(parameter),
            Err(wrong) => diagnostics.extend(wrong),
        }
    }
    parameters.into()
}

/// Compiles the variables, and sets [`Compiler::variable_locals`].
pub(super) fn compile_variables(spec: &ProfileSpec, compiler: &mut Compiler<'_>) -> Box<[Variable]> {
    let mut names = HashMap::new();
    let mut variables = Vec::new();
    for (index, variable) in spec.variables.iter().enumerate() {
        let path = format!("spec.variables[{index}]");
        check_name(&path, &variable.name, &mut names, compiler.diagnostics);
        let expression = compiler.with_locals(&context::LOCALS, |compiler| {
            compiler.expression_at(&format!("{path}.expression"), &variable.expression)
        });
        if let Some(expression) = expression {
            variables.push(Variable { name: variable.name.as_str().into(), expression, is_local: false });
        }
    }
    check_cycles(&variables, compiler.diagnostics);
    compiler.variable_locals = local_names(&variables);
    for variable in &mut variables {
        variable.is_local = compiler.variable_locals.get(&variable.name).is_some_and(|locals| !locals.is_empty());
    }
    variables.into()
}

/// Returns the local names that each variable reads, directly or through other variables.
fn local_names(variables: &[Variable]) -> LocalNames {
    let mut locals = LocalNames::new();
    // The number of variables limits the length of a chain, and each round resolves at least one more step.
    for _ in 0..=variables.len() {
        let mut changed = false;
        for variable in variables {
            let own = context::LOCALS.into_iter().filter(|local| variable.expression.uses(local));
            let used = variable.expression.members("variables").filter_map(|used| locals.get(used)).flatten().copied();
            let mut needed: Vec<_> = own.chain(used).collect();
            needed.sort_unstable();
            needed.dedup();
            changed |= locals.insert(variable.name.clone(), needed.clone()).is_none_or(|before| before != needed);
        }
        if !changed {
            break;
        }
    }
    locals
}

/// Reports the first variable that depends on itself, directly or through others.
fn check_cycles(variables: &[Variable], diagnostics: &mut Vec<Diagnostic>) {
    for (index, start) in variables.iter().enumerate() {
        let mut seen = vec![false; variables.len()];
        let mut waiting = vec![index];
        while let Some(place) = waiting.pop() {
            let Some(variable) = variables.get(place) else { continue };
            for used in variable.expression.members("variables") {
                let Some(next) = variables.iter().position(|variable| *variable.name == *used) else { continue };
                if next == index {
                    let message = format!("the variable {:?} depends on its own value", start.name);
                    diagnostics.push(Diagnostic::new(format!("spec.variables[{index}].expression"), message));
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

/// Compiles the match conditions of the part at `path`.
pub(super) fn compile_match_conditions(
    path: &str,
    conditions: &[MatchConditionText],
    compiler: &mut Compiler<'_>,
) -> Box<[MatchCondition]> {
    let mut names = HashMap::new();
    let mut result = Vec::with_capacity(conditions.len());
    for (index, condition) in conditions.iter().enumerate() {
        let path = format!("{path}.matchConditions[{index}]");
        check_name(&path, &condition.name, &mut names, compiler.diagnostics);
        if let Some(expression) = compiler.expression_at(&format!("{path}.expression"), &condition.expression) {
            result.push(MatchCondition { name: condition.name.as_str().into(), expression });
        }
    }
    result.into()
}

/// Compiles the preconditions of the part at `path`.
pub(super) fn compile_preconditions(
    path: &str,
    preconditions: &[PreconditionText],
    compiler: &mut Compiler<'_>,
) -> Box<[Precondition]> {
    let mut names = HashMap::new();
    let mut result = Vec::with_capacity(preconditions.len());
    for (index, precondition) in preconditions.iter().enumerate() {
        let path = format!("{path}.preconditions[{index}]");
        check_name(&path, &precondition.name, &mut names, compiler.diagnostics);
        let message = compile_message(&format!("{path}.message"), precondition.message.as_deref(), compiler);
        let expression = compiler.expression_at(&format!("{path}.expression"), &precondition.expression);
        if let (Some(expression), Ok(message)) = (expression, message) {
            let name = precondition.name.as_str().into();
            let action = precondition.action.unwrap_or(PreconditionAction::Skip);
            result.push(Precondition { name, expression, action, message });
        }
    }
    result.into()
}

/// Compiles the validations of a profile. Reports errors, and leaves out validations whose expression or message is
/// invalid.
pub(super) fn compile_validations(spec: &ProfileSpec, compiler: &mut Compiler<'_>) -> Box<[Validation]> {
    let validations = spec.validations.iter().enumerate();
    validations
        .filter_map(|(index, text)| compile_validation(&format!("spec.validations[{index}]"), text, compiler))
        .collect()
}

fn compile_validation(path: &str, text: &ValidationText, compiler: &mut Compiler<'_>) -> Option<Validation> {
    let message = compile_message(&format!("{path}.message"), text.message.as_deref(), compiler);
    let diagnostics = &mut *compiler.diagnostics;
    let field_path = compile_field_path(&format!("{path}.fieldPath"), text.field_path.as_deref(), diagnostics);
    let reason = text.reason.as_deref();
    if reason.is_some_and(|reason| !is_reason(reason)) {
        let diagnostic = Diagnostic::new(format!("{path}.reason"), "a reason is a single CamelCase word");
        diagnostics
            .push(diagnostic.with_help("use a word such as Invalid or Forbidden, and message for the description"));
    }
    if text.code.is_some_and(|code| !(400..=599).contains(&code)) {
        diagnostics.push(Diagnostic::new(format!("{path}.code"), "the status code of a denial is from 400 to 599"));
    }
    let action = text.action.unwrap_or(ValidationAction::Deny);
    if action != ValidationAction::Deny {
        for (field, is_set) in [("code", text.code.is_some()), ("reason", reason.is_some())] {
            if is_set {
                let message = format!("{field} applies only to denials, and this validation denies nothing");
                diagnostics.push(Diagnostic::new(format!("{path}.{field}"), message).with_help("remove it"));
            }
        }
    }
    let of_reason = |reason| STATUS_REASONS.iter().find(|(_, name)| *name == reason).map(|(code, _)| *code);
    let of_code = |code| STATUS_REASONS.iter().find(|(known, _)| *known == code).map_or("", |(_, name)| *name);
    let code = text.code.or_else(|| reason.and_then(of_reason)).unwrap_or(DEFAULT_CODE);
    Some(Validation {
        expression: compiler.expression_at(&format!("{path}.expression"), &text.expression)?,
        message: message.ok()?,
        reason: reason.unwrap_or_else(|| of_code(code)).into(),
        code,
        field_path,
        action,
    })
}

/// An error in a message. It was already added to the diagnostics.
struct InvalidMessage;

/// Compiles a message. `None` if it is missing or blank.
fn compile_message(
    path: &str,
    text: Option<&str>,
    compiler: &mut Compiler<'_>,
) -> Result<Option<Choice<Box<str>>>, InvalidMessage> {
    let Some(text) = text.filter(|text| !text.trim().is_empty()) else { return Ok(None) };
    if text.len() > MAX_MESSAGE {
        let message = format!("a message can have at most {MAX_MESSAGE} bytes, and this one has {}", text.len());
        compiler.diagnostics.push(Diagnostic::new(path, message));
        return Err(InvalidMessage);
    }
    compiler.text_at(path, text).map(Some).ok_or(InvalidMessage)
}

/// Compiles a field path, and removes its leading dot. Field paths in admission policies of Kubernetes begin with a
/// dot, but those in the causes of a status do not.
fn compile_field_path(path: &str, text: Option<&str>, diagnostics: &mut Vec<Diagnostic>) -> Option<Box<str>> {
    let text = text?;
    let field = text.strip_prefix('.').filter(|field| {
        !field.is_empty() && field.len() <= 256 && !field.chars().any(|c| c.is_whitespace() || c.is_control())
    });
    if field.is_none() {
        let diagnostic = Diagnostic::new(path, format!("{text:?} is not the path of a field"));
        diagnostics.push(diagnostic.with_help("begin at the object: .spec.ports, .spec.containers[0].env"));
    }
    field.map(Box::from)
}

fn is_reason(text: &str) -> bool {
    (1..=63).contains(&text.len())
        && text.starts_with(|c: char| c.is_ascii_uppercase())
        && text.bytes().all(|byte| byte.is_ascii_alphanumeric())
}

/// Compiles the container patches. Reports errors, and leaves out invalid patches.
pub(super) fn compile_container_patches(spec: &ProfileSpec, compiler: &mut Compiler<'_>) -> Box<[ContainerPatch]> {
    let mut names = HashMap::new();
    let mut patches = Vec::with_capacity(spec.container_patches.len());
    for (index, text) in spec.container_patches.iter().enumerate() {
        let path = format!("spec.containerPatches[{index}]");
        check_name(&path, &text.name, &mut names, compiler.diagnostics);
        patches.extend(
            compiler.with_locals(&[CONTAINER], |compiler| compile_container_patch(&path, text, spec, compiler)),
        );
    }
    patches.into()
}

fn compile_container_patch(
    path: &str,
    text: &PatchText,
    spec: &ProfileSpec,
    compiler: &mut Compiler<'_>,
) -> Option<ContainerPatch> {
    let before = compiler.diagnostics.len();
    let matched = text.match_.clone().unwrap_or_default();
    let types = if matched.types.is_empty() { vec![ContainerType::App] } else { matched.types };
    let match_conditions = compile_match_conditions(path, &text.match_conditions, compiler);
    let preconditions = compile_preconditions(path, &text.preconditions, compiler);
    let template_path = format!("{path}.template");
    let is_usable = is_small(&template_path, &text.template, compiler.diagnostics)
        && check_container_template(&template_path, &text.template, &spec.parameters, compiler.diagnostics);
    let where_ = matched.where_.as_deref();
    let where_ = where_.and_then(|source| compiler.expression_at(&format!("{path}.match.where"), source));
    if !is_usable {
        return None;
    }
    let template = compiler.template(&template_path, &text.template, Kind::Object("Container"))?;
    let boxed = |texts: &[String]| texts.iter().map(|text| Box::from(text.as_str())).collect();
    (compiler.diagnostics.len() == before).then(|| ContainerPatch {
        name: text.name.as_str().into(),
        types: types.into(),
        names: boxed(&matched.names),
        images: boxed(&matched.images),
        where_,
        match_conditions,
        preconditions,
        template,
    })
}

/// Reports a name that is already used in the same list. `names` contains the names so far, with their paths.
fn check_name(path: &str, name: &str, names: &mut HashMap<String, String>, diagnostics: &mut Vec<Diagnostic>) {
    if let Some(first) = names.insert(name.to_owned(), path.to_owned()) {
        diagnostics.push(Diagnostic::new(format!("{path}.name"), format!("the name {name:?} is also used at {first}")));
    }
}

/// Whether a string matches a pattern in which `*` matches any string.
fn glob(pattern: &str, text: &str) -> bool {
    let mut parts = pattern.split('*');
    let Some(mut rest) = parts.next().and_then(|first| text.strip_prefix(first)) else { return false };
    let Some(last) = pattern.contains('*').then(|| parts.next_back().unwrap_or_default()) else {
        return rest.is_empty();
    };
    // The earliest match of each part leaves the longest rest, so backtracking is not needed.
    for part in parts {
        match rest.split_once(part) {
            Some((_, behind)) => rest = behind,
            None => return false,
        }
    }
    rest.ends_with(last)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value as Json, json};

    use super::glob;
    use crate::profile::{CompiledProfile, ProfileName, compile};

    fn compiled(validation: &Json) -> Result<CompiledProfile, Vec<String>> {
        let spec = json!({"validations": [validation]});
        let compiled = compile(&ProfileName::cluster("p"), &serde_json::from_value(spec).unwrap());
        compiled.map_err(|diagnostics| diagnostics.iter().map(ToString::to_string).collect())
    }

    #[test]
    fn status_and_reason_imply_each_other() {
        for (more, code, reason) in [
            (json!({}), 422, "Invalid"),
            (json!({"reason": "Forbidden"}), 403, "Forbidden"),
            (json!({"reason": "Unauthorized"}), 401, "Unauthorized"),
            (json!({"reason": "RequestEntityTooLarge"}), 413, "RequestEntityTooLarge"),
            (json!({"code": 403}), 403, "Forbidden"),
            (json!({"code": 402}), 402, ""),
            (json!({"reason": "NoEnvironment", "code": 402}), 402, "NoEnvironment"),
            (json!({"reason": "NoEnvironment"}), 422, "NoEnvironment"),
        ] {
            let mut validation = json!({"expression": "true"});
            validation.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            let profile = compiled(&validation).unwrap();
            assert_eq!((profile.validations[0].code, &*profile.validations[0].reason), (code, reason), "{more}");
        }
    }

    #[test]
    fn reports_mistake_with_field_path() {
        for (more, place, expected) in [
            (json!({"expression": "objct.x"}), "expression", "objct"),
            (json!({"message": "no ${objct.x}"}), "message", "objct"),
            (json!({"message": "no ${object.x"}), "message", "not closed"),
            (json!({"message": "x".repeat(2000)}), "message", "1024"),
            (json!({"reason": "not allowed"}), "reason", "CamelCase"),
            (json!({"code": 200}), "code", "400 to 599"),
            (json!({"fieldPath": "spec.ports"}), "fieldPath", "path of a field"),
            (json!({"action": "Warn", "code": 403}), "code", "denies nothing"),
        ] {
            let mut validation = json!({"expression": "true"});
            validation.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            let diagnostics = compiled(&validation).unwrap_err();
            let start = format!("spec.validations[0].{place}: ");
            assert!(
                diagnostics.iter().any(|diagnostic| diagnostic.starts_with(&start) && diagnostic.contains(expected)),
                "{more}: {diagnostics:?}"
            );
        }
    }

    #[test]
    fn pod_names_need_pod_target() {
        let spec = |expression: &str| {
            let target = json!({"group": "apps", "version": "v1", "resources": ["deployments"]});
            json!({"target": target, "validations": [{"expression": expression}]})
        };
        let diagnostics = |expression: &str| {
            let spec = serde_json::from_value(spec(expression)).unwrap();
            compile(&ProfileName::cluster("p"), &spec).map_err(|diagnostics| diagnostics[0].to_string())
        };
        for name in ["containers", "primary"] {
            let diagnostic = diagnostics(&format!("{name} != null")).unwrap_err();
            assert!(diagnostic.contains(name) && diagnostic.contains("only pods"), "{diagnostic}");
        }
        assert!(diagnostics("object.spec.replicas < 9 && oldObject == null").is_ok());
    }

    #[test]
    fn star_matches_any_string() {
        for (pattern, text, like) in [
            ("nginx", "nginx", true),
            ("nginx", "nginx:1", false),
            ("*", "", true),
            ("nginx:*", "nginx:1.27", true),
            ("*/nginx:*", "registry.example.com/nginx:1", true),
            ("*/nginx:*", "nginx:1", false),
            ("a*b*c", "a-b-b-c", true),
            ("a*b*c", "a-c-b", false),
            ("ab*ba", "aba", false),
            ("*.example.com/*", "x.example.com/app", true),
        ] {
            assert_eq!(glob(pattern, text), like, "{pattern} {text}");
        }
    }
}
