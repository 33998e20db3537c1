//! Compiles the validations of a profile: conditions on the final object, and messages for objects that violate them.

use pillion_api::profile::{ProfileSpec, Validation as Text, ValidationAction};

use super::Diagnostic;
use super::template::{Choice, Compiler, LocalNames};
use crate::expression::{Expression, Scope};

/// The default status code of a denial, the same as in Kubernetes' admission policies.
const DEFAULT_CODE: u16 = 422;

/// Kubernetes' status reasons by status code.
const STATUS_REASONS: [(u16, &str); 6] = [
    (DEFAULT_CODE, "Invalid"),
    (403, "Forbidden"),
    (401, "Unauthorized"),
    (413, "RequestEntityTooLarge"),
    (404, "NotFound"),
    (409, "Conflict"),
];

/// The maximum length of a message in bytes.
const MAX_MESSAGE: usize = 1024;

/// A compiled validation.
#[derive(Debug)]
pub(crate) struct Validation {
    pub(crate) expression: Expression,
    /// The message; the expression is shown if there is none.
    pub(crate) message: Option<Choice<Box<str>>>,
    /// The status reason; empty if it is not set and the status code implies none.
    pub(crate) reason: Box<str>,
    /// The HTTP status code of the denial.
    pub(crate) code: u16,
    /// The path of the invalid field, without a leading dot.
    pub(crate) field_path: Option<Box<str>>,
    pub(crate) action: ValidationAction,
}

impl Validation {
    /// Visits all expressions of the validation.
    pub(crate) fn each_expression(&self, see: &mut dyn FnMut(&Expression)) {
        see(&self.expression);
        if let Some(message) = &self.message {
            message.each_expression(see);
        }
    }
}

/// Compiles the validations. Mistakes go to `diagnostics`.
pub(super) fn compile(
    spec: &ProfileSpec,
    known: (&Scope, &LocalNames),
    diagnostics: &mut Vec<Diagnostic>,
) -> Box<[Validation]> {
    let validations = spec.validations.iter().enumerate();
    validations
        .filter_map(|(index, text)| compile_one(&format!("spec.validations[{index}]"), text, known, diagnostics))
        .collect()
}

fn compile_one(
    path: &str,
    text: &Text,
    known @ (scope, locals): (&Scope, &LocalNames),
    diagnostics: &mut Vec<Diagnostic>,
) -> Option<Validation> {
    let message = compile_message(&format!("{path}.message"), text.message.as_deref(), &[], known, diagnostics);
    let field_path = compile_field_path(&format!("{path}.fieldPath"), text.field_path.as_deref(), diagnostics);
    let reason = text.reason.as_deref();
    if reason.is_some_and(|reason| !is_reason(reason)) {
        let diagnostic = Diagnostic::new(format!("{path}.reason"), "a reason is one word in CamelCase, for programs");
        diagnostics
            .push(diagnostic.with_help("Invalid, Forbidden, Unauthorized; the sentence for people is the message"));
    }
    if text.code.is_some_and(|code| !(400..=599).contains(&code)) {
        diagnostics.push(Diagnostic::new(format!("{path}.code"), "the status of a refusal is from 400 to 599"));
    }
    let action = text.action.unwrap_or(ValidationAction::Deny);
    if action != ValidationAction::Deny {
        for (field, said) in [("code", text.code.is_some()), ("reason", reason.is_some())] {
            if said {
                let message = format!("a {field} is a refusal's, and this validation refuses nothing");
                diagnostics.push(Diagnostic::new(format!("{path}.{field}"), message).with_help("leave it out"));
            }
        }
    }
    let of_reason = |reason| STATUS_REASONS.iter().find(|(_, name)| *name == reason).map(|(code, _)| *code);
    let of_code = |code| STATUS_REASONS.iter().find(|(known, _)| *known == code).map_or("", |(_, name)| *name);
    let code = text.code.or_else(|| reason.and_then(of_reason)).unwrap_or(DEFAULT_CODE);
    Some(Validation {
        expression: Compiler::new(scope, &[], locals, diagnostics)
            .condition(&format!("{path}.expression"), &text.expression)?,
        message: message?,
        reason: reason.unwrap_or_else(|| of_code(code)).into(),
        code,
        field_path,
        action,
    })
}

/// Compiles a message: `Some(None)` if there is none, `None` if it is invalid. `local` are the local names in scope.
#[expect(clippy::option_option, reason = "nothing said and something wrong said are two things")]
pub(super) fn compile_message(
    path: &str,
    text: Option<&str>,
    local: &[&str],
    (scope, locals): (&Scope, &LocalNames),
    diagnostics: &mut Vec<Diagnostic>,
) -> Option<Option<Choice<Box<str>>>> {
    let Some(text) = text.filter(|text| !text.trim().is_empty()) else { return Some(None) };
    if text.len() > MAX_MESSAGE {
        let message = format!("a message has at most {MAX_MESSAGE} bytes, this one {}", text.len());
        diagnostics.push(Diagnostic::new(path, message));
        return None;
    }
    Compiler::new(scope, local, locals, diagnostics).words(path, text).map(Some)
}

/// Compiles a field path. Admission policies write it with a leading dot, the causes of a status without.
fn compile_field_path(path: &str, text: Option<&str>, diagnostics: &mut Vec<Diagnostic>) -> Option<Box<str>> {
    let text = text?;
    let field = text.strip_prefix('.').filter(|field| {
        !field.is_empty() && field.len() <= 256 && !field.chars().any(|c| c.is_whitespace() || c.is_control())
    });
    if field.is_none() {
        let message = format!("{text:?} is not the path of a field");
        diagnostics.push(
            Diagnostic::new(path, message).with_help("begin at the object: .spec.ports, .spec.containers[0].env"),
        );
    }
    field.map(Box::from)
}

fn is_reason(text: &str) -> bool {
    (1..=63).contains(&text.len())
        && text.starts_with(|c: char| c.is_ascii_uppercase())
        && text.bytes().all(|byte| byte.is_ascii_alphanumeric())
}

#[cfg(test)]
mod tests {
    use serde_json::{Value as Json, json};

    use crate::profile::{CompiledProfile, ProfileName, compile};

    fn compiled(validation: &Json) -> Result<CompiledProfile, Vec<String>> {
        let spec = json!({"validations": [validation]});
        let compiled = compile(&ProfileName::cluster("p"), &serde_json::from_value(spec).unwrap());
        compiled.map_err(|diagnostics| diagnostics.iter().map(ToString::to_string).collect())
    }

    #[test]
    fn status_and_reason_follow_from_each_other_as_in_kubernetes() {
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
    fn a_mistake_is_told_with_its_place() {
        for (more, place, told) in [
            (json!({"expression": "objct.x"}), "expression", "objct"),
            (json!({"message": "no ${objct.x}"}), "message", "objct"),
            (json!({"message": "no ${object.x"}), "message", "not closed"),
            (json!({"message": "x".repeat(2000)}), "message", "1024"),
            (json!({"reason": "not allowed"}), "reason", "CamelCase"),
            (json!({"code": 200}), "code", "400 to 599"),
            (json!({"fieldPath": "spec.ports"}), "fieldPath", "path of a field"),
            (json!({"action": "Warn", "code": 403}), "code", "refuses nothing"),
        ] {
            let mut validation = json!({"expression": "true"});
            validation.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            let diagnostics = compiled(&validation).unwrap_err();
            let start = format!("spec.validations[0].{place}: ");
            assert!(
                diagnostics.iter().any(|diagnostic| diagnostic.starts_with(&start) && diagnostic.contains(told)),
                "{more}: {diagnostics:?}"
            );
        }
    }

    #[test]
    fn what_only_a_pod_has_is_not_in_scope_elsewhere() {
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
            assert!(diagnostic.contains(name) && diagnostic.contains("only a pod"), "{diagnostic}");
        }
        assert!(diagnostics("object.spec.replicas < 9 && oldObject == null").is_ok());
    }
}
