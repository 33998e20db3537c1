//! Decides a review on the validating path: evaluates the validations of the selected profiles.
//!
//! On both paths, profiles are selected and configured using the original object, so that the selections agree. The
//! validations then check the object as it will be stored, including all injected changes. Each failed validation
//! becomes a [`ValidationDecision`], from which the denial, the warnings and the audit annotations are rendered.

use std::sync::Arc;

use pillion_api::profile::{FailurePolicy, Operation, ValidationAction};

use super::context::{ReviewContext, malformed_object};
use super::{Observer, Step};
use crate::context::{Arena, EvalContext, Parameters, ProfileBindings};
use crate::decision::{
    Decision, Outcome, ProfileDecision, ProfileOutcome, Reason, ValidationDecision, ValidationOutcome,
};
use crate::expression::{EvaluationError, Meter, Purpose};
use crate::profile::parts::Validation;
use crate::profile::template::Choice;
use crate::profile::{CompiledProfile, one_line};
use crate::record::Record;
use crate::select::{Selected, Selection, select};

/// Decides whether an object is allowed.
pub(super) fn decide(context: &ReviewContext<'_>, observer: &mut impl Observer) -> Decision {
    let original = match context.original() {
        Ok(original) => original,
        Err(malformed) => return malformed_object(&malformed),
    };
    let eval_context = context.eval_context(&original);
    let is_deleted = context.action.operation == Operation::Delete;
    let stored = if is_deleted { eval_context } else { EvalContext { object: context.object, ..eval_context } };
    let candidates = context.candidates(&original);
    let arena = Arena::new();
    let selection = select(&candidates, context.action, context.failure_mode, eval_context, &arena);
    let Selection { mut profiles, notices, reason, .. } = selection;
    let injected = original.record.genuine().map(injected_containers).unwrap_or_default();
    observer.begins(Step::Validate);
    let validations = check_profiles(&mut profiles, stored, &injected);
    let profiles: Vec<_> = profiles.into_iter().map(|selected| selected.decision).collect();
    let (outcome, reason, detail) = conclude(&profiles, reason);
    Decision { outcome, reason, detail, profiles, validations, notices }
}

/// Returns the names of the containers that cluster profiles, or namespaced profiles that only extend one, added
/// according to the record. Names are unique across the lists of containers. A container that was moved from another
/// list belongs to the author, because the author wrote a part of it.
fn injected_containers(record: &Record) -> Vec<Box<str>> {
    let lists = ["/spec/containers/", "/spec/initContainers/"];
    let name = |pointer: &str| {
        let name = lists.iter().find_map(|list| pointer.strip_prefix(list))?;
        // A longer pointer refers to a part of an author's container.
        (!name.contains('/')).then(|| Box::from(name))
    };
    let moved: Vec<_> = record.moved().filter_map(|pointer| name(&pointer)).collect();
    record.added_by_platform().filter_map(|pointer| name(&pointer)).filter(|name| !moved.contains(name)).collect()
}

/// Derives the outcome from the results of all profiles. `nothing_requested` is the reason if no profile was requested.
fn conclude(profiles: &[ProfileDecision], nothing_requested: Reason) -> (Outcome, Reason, Option<Box<str>>) {
    let mut refusing = profiles.iter().filter(|decision| decision.outcome == ProfileOutcome::Denied).peekable();
    if let Some(first) = refusing.peek() {
        let reason = first.reason;
        let messages = refusing.map(|decision| {
            let detail = decision.detail.as_deref().unwrap_or_default();
            format!("profile {}: {detail}", decision.profile.display_name())
        });
        return (Outcome::Denied, reason, Some(messages.collect::<Vec<_>>().join("; ").into()));
    }
    // The reason is that of the first profile with a failed validation, if there is one.
    let validated = || profiles.iter().filter(|decision| decision.outcome == ProfileOutcome::Validated);
    match validated().find(|decision| decision.reason != Reason::Valid).or_else(|| validated().next()) {
        Some(decision) => (Outcome::Validated, decision.reason, None),
        None => (Outcome::Skipped, profiles.first().map_or(nothing_requested, |decision| decision.reason), None),
    }
}

/// Evaluates the validations of each profile that selection left `Unchanged`, and updates its decision. Returns the
/// failed validations. `stored` contains the object as it will be stored, and `injected` the names of injected
/// containers.
fn check_profiles(
    profiles: &mut [Selected<'_>],
    stored: EvalContext<'_>,
    injected: &[Box<str>],
) -> Vec<ValidationDecision> {
    let mut failed = Vec::new();
    for Selected { decision, bindings, .. } in profiles {
        let Some(bindings) = bindings.as_ref().filter(|_| decision.outcome == ProfileOutcome::Unchanged) else {
            continue;
        };
        let before = failed.len();
        check_profile(&decision.profile, bindings.parameters(), stored, injected, &mut failed);
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
    stored: EvalContext<'_>,
    injected: &[Box<str>],
    failed: &mut Vec<ValidationDecision>,
) {
    let bindings = ProfileBindings::new(stored, parameters, profile.definitions()).with_ours(injected);
    let mut meter = bindings.meter(Purpose::Decide, Meter::PROFILE);
    for (index, validation) in profile.validations.iter().enumerate() {
        let (outcome, reason, message) = match validation.expression.evaluate_bool(&bindings, &mut meter) {
            Ok(true) => continue,
            Ok(false) => {
                let message = message(validation, &bindings, &mut meter);
                (outcome_of(validation.action), Reason::ValidationFailed, message)
            }
            Err(error) => (
                failure(profile.failure_policy, validation.action),
                Reason::ExpressionFailed,
                could_not_evaluate(index, &error),
            ),
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

/// Returns the outcome of a validation that cannot be evaluated. It denies the object only if its action is `Deny` and
/// the profile's `failurePolicy` is `Fail`.
const fn failure(policy: FailurePolicy, action: ValidationAction) -> ValidationOutcome {
    match (policy, action) {
        (FailurePolicy::Fail, ValidationAction::Deny) => ValidationOutcome::Denied,
        (_, ValidationAction::Audit) => ValidationOutcome::Audited,
        _ => ValidationOutcome::Warned,
    }
}

fn could_not_evaluate(index: usize, error: &EvaluationError) -> String {
    format!("validation {index} could not be evaluated: {}", error.message())
}

/// Returns the message for a failed validation. If the validation has no message, or if a computed message is blank or
/// fails, returns a message that contains the expression.
fn message<'v>(validation: &'v Validation, bindings: &ProfileBindings<'v>, meter: &mut Meter) -> String {
    let unsaid = || format!("failed expression: {}", validation.expression.source().trim());
    match &validation.message {
        None => unsaid(),
        Some(Choice::Constant(text)) => text.to_string(),
        Some(Choice::Computed(text)) => {
            let text = text.evaluate(bindings, meter);
            text.ok().filter(|text| !text.trim().is_empty()).unwrap_or_else(unsaid)
        }
    }
}
