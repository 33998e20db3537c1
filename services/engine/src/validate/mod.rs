//! Validations: checks the object as it will be stored, with everything that was injected.
//!
//! Profiles are selected and configured as on the mutating path, by the object as its author wrote it, so that both
//! paths select the same profiles. Their validations then see the final object. Each failed validation becomes a
//! [`ValidationDecision`], from which the denial, the warnings and the audit annotations are rendered.

use std::sync::Arc;

use pillion_api::profile::{OnError, ValidationAction};

use crate::context::{EvalContext, Parameters, ProfileBindings};
use crate::decision::{ProfileOutcome, Reason, ValidationDecision, ValidationOutcome};
use crate::expression::{EvaluationError, Meter, Purpose};
use crate::profile::template::Choice;
use crate::profile::validations::Validation;
use crate::profile::{CompiledProfile, one_line};
use crate::select::Selected;

/// The objects of a validation.
#[derive(Clone, Copy)]
pub(crate) struct Objects<'v> {
    /// The context, with the object as it will be stored.
    pub(crate) stored: EvalContext<'v>,
    /// Names of the injected containers.
    pub(crate) ours: &'v [Box<str>],
}

/// Evaluates the validations of each profile that selection left `Unchanged`, and updates its decision. Returns the
/// failed validations.
pub(crate) fn check(profiles: &mut [Selected<'_>], objects: Objects<'_>) -> Vec<ValidationDecision> {
    let mut failed = Vec::new();
    for Selected { decision, bindings, .. } in profiles {
        let Some(bindings) = bindings.as_ref().filter(|_| decision.outcome == ProfileOutcome::Unchanged) else {
            continue;
        };
        let before = failed.len();
        check_profile(&decision.profile, bindings.parameters(), objects, &mut failed);
        let own = failed.get(before..).unwrap_or_default();
        let refusing: Vec<_> = own.iter().filter(|failed| failed.outcome == ValidationOutcome::Denied).collect();
        let first = refusing.first().copied().or_else(|| own.first());
        decision.reason = first.map_or(Reason::Valid, |failed| failed.reason);
        if refusing.is_empty() {
            decision.outcome = ProfileOutcome::Validated;
        } else {
            let messages: Vec<_> = refusing.iter().map(|failed| &*failed.message).collect();
            decision.outcome = ProfileOutcome::Denied;
            decision.detail = Some(messages.join("; ").into());
        }
    }
    failed
}

fn check_profile(
    profile: &Arc<CompiledProfile>,
    parameters: &Parameters,
    objects: Objects<'_>,
    failed: &mut Vec<ValidationDecision>,
) {
    let bindings = ProfileBindings::new(objects.stored, parameters, profile.definitions()).with_ours(objects.ours);
    let mut meter = bindings.meter(Purpose::Decide, Meter::PROFILE);
    for (index, validation) in profile.validations.iter().enumerate() {
        let (outcome, reason, message) = match validation.expression.evaluate_bool(&bindings, &mut meter) {
            Ok(true) => continue,
            Ok(false) => {
                let message = message(validation, &bindings, &mut meter);
                (outcome_of(validation.action), Reason::ValidationFailed, message)
            }
            Err(error) => {
                (on_error(profile.on_error, validation.action), Reason::ExpressionFailed, told(index, &error))
            }
        };
        failed.push(ValidationDecision {
            profile: Arc::clone(profile),
            index,
            outcome,
            reason,
            message: one_line(&message).into(),
        });
    }
}

const fn outcome_of(action: ValidationAction) -> ValidationOutcome {
    match action {
        ValidationAction::Deny => ValidationOutcome::Denied,
        ValidationAction::Warn => ValidationOutcome::Warned,
        ValidationAction::Audit => ValidationOutcome::Audited,
    }
}

/// The outcome of a validation that cannot be evaluated. It denies the object if it could have denied it and `onError`
/// is `Deny`.
const fn on_error(on_error: OnError, action: ValidationAction) -> ValidationOutcome {
    match (on_error, action) {
        (OnError::Deny, ValidationAction::Deny) => ValidationOutcome::Denied,
        (_, ValidationAction::Audit) => ValidationOutcome::Audited,
        _ => ValidationOutcome::Warned,
    }
}

fn told(index: usize, error: &EvaluationError) -> String {
    format!("validation {index} could not be evaluated: {}", error.message())
}

/// The message for an object that fails a validation. If the message itself fails, the object still does not pass.
fn message<'v>(validation: &'v Validation, bindings: &ProfileBindings<'v>, meter: &mut Meter) -> String {
    let unsaid = || format!("failed expression: {}", validation.expression.source().trim());
    match &validation.message {
        None => unsaid(),
        Some(Choice::Known(text)) => text.to_string(),
        Some(Choice::Found(text)) => {
            let text = text.evaluate(bindings, meter);
            text.ok().filter(|text| !text.trim().is_empty()).unwrap_or_else(unsaid)
        }
    }
}

#[cfg(test)]
mod tests;
