//! Evaluates the conditions of a profile. All conditions are evaluated, so that every reason is reported.
//!
//! An invalid parameter is one more reason, unless the conditions say that the profile does not match: a profile never
//! denies an object that it does not match.

use pillion_api::profile::{OnError, Otherwise};

use super::Refusal;
use super::parameters;
use crate::context::{Arena, EvalContext, ProfileBindings};
use crate::decision::{Notice, ProfileOutcome, Reason};
use crate::expression::{Meter, Purpose};
use crate::lookup;
use crate::parameter;
use crate::profile::CompiledProfile;

/// Returns the bindings of a profile if its conditions hold, else the refusal. The gravest refusal counts, with the
/// details of all that are equally grave.
pub(super) fn check<'v>(
    profile: &'v CompiledProfile,
    context: EvalContext<'v>,
    arena: &'v Arena,
    notices: &mut Vec<Notice>,
) -> Result<ProfileBindings<'v>, Refusal> {
    let mut told = Vec::new();
    let (parameters, invalid) = if profile.parameters.is_empty() && profile.lookups.is_empty() {
        (&parameter::NO_VALUES, None)
    } else {
        let (parameters, invalid) = parameters::resolve(profile, context, &mut told);
        (arena.keep_parameters(parameters), invalid)
    };
    let bindings = ProfileBindings::new(context, parameters, profile.definitions());
    let mut meter = bindings.meter(Purpose::Decide, Meter::EXPRESSION);
    let mut refusals: Vec<Refusal> = Vec::new();
    for condition in &profile.conditions {
        let refusal = match condition.expression.evaluate_bool(&bindings, &mut meter) {
            Ok(true) => continue,
            Ok(false) => Refusal {
                outcome: match condition.otherwise {
                    Otherwise::NotMatched => ProfileOutcome::NotMatched,
                    Otherwise::Skip => ProfileOutcome::Skipped,
                    Otherwise::Deny => ProfileOutcome::Denied,
                },
                reason: Reason::MatchCondition,
                detail: Some(condition.told(&bindings, &mut meter)),
            },
            // It reads an invalid parameter, which is reported by itself.
            Err(_) if invalid.is_some() => continue,
            Err(error) => Refusal {
                outcome: match profile.on_error {
                    OnError::Skip => ProfileOutcome::Skipped,
                    OnError::Deny => ProfileOutcome::Denied,
                },
                reason: lookup::reason_of(&error),
                detail: Some(format!("{}: {}", condition.name, error.message()).into()),
            },
        };
        refusals.push(refusal);
    }
    if !refusals.iter().any(|refusal| refusal.outcome == ProfileOutcome::NotMatched) {
        notices.extend(told);
        refusals.extend(invalid);
    }
    let gravest = refusals.iter().map(|refusal| gravity(refusal.outcome)).max();
    refusals.retain(|refusal| Some(gravity(refusal.outcome)) == gravest);
    let refusal = refusals.into_iter().reduce(|first, next| Refusal {
        detail: first.detail.zip(next.detail).map(|(first, next)| format!("{first}; {next}").into()),
        ..first
    });
    refusal.map_or(Ok(bindings), Err)
}

const fn gravity(outcome: ProfileOutcome) -> u8 {
    match outcome {
        ProfileOutcome::Applied | ProfileOutcome::Unchanged | ProfileOutcome::Validated => 0,
        ProfileOutcome::Skipped => 1,
        // If a profile does not match, other mistakes are not reported.
        ProfileOutcome::NotMatched => 2,
        ProfileOutcome::Denied => 3,
    }
}
