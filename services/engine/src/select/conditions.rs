//! A profile's conditions: all are looked at, so that every reason is told.

use std::borrow::Cow;

use pillion_api::parameter::OnInvalid;
use pillion_api::profile::{OnError, Otherwise};

use super::Refusal;
use super::pod::Pod;
use crate::compute::{Computation, Parameters, World};
use crate::expression::Budget;
use crate::parameter::{self, Invalid, Metadata, Sources};
use crate::profile::CompiledProfile;
use crate::report::{ProfileOutcome, Reason};
use crate::snapshot::Namespace;

/// Why a profile's conditions do not hold; `None` if they do. The gravest of several counts, with the reasons of all that
/// are as grave.
pub(super) fn check(profile: &CompiledProfile, world: World<'_>) -> Option<Refusal> {
    if profile.conditions.is_empty() && profile.parameters.is_empty() {
        return None;
    }
    let parameters = match resolve_all(profile, world) {
        Ok(parameters) => parameters,
        Err(refusal) => return Some(refusal),
    };
    let computation = Computation::new(world, &parameters, &profile.variables);
    let mut budget = Budget::new();
    let mut refusals: Vec<Refusal> = Vec::new();
    for condition in &profile.conditions {
        let refusal = match condition.expression.evaluate_bool(&computation, &mut budget) {
            Ok(true) => continue,
            Ok(false) => Refusal {
                outcome: match condition.otherwise {
                    Otherwise::NotMatched => ProfileOutcome::NotMatched,
                    Otherwise::Skip => ProfileOutcome::Skipped,
                    Otherwise::Deny => ProfileOutcome::Denied,
                },
                reason: Reason::MatchCondition,
                detail: Some(condition.message.clone().unwrap_or_else(|| condition.name.clone())),
            },
            Err(error) => Refusal {
                outcome: match profile.on_error {
                    OnError::Skip => ProfileOutcome::Skipped,
                    OnError::Deny => ProfileOutcome::Denied,
                },
                reason: Reason::ExpressionFailed,
                detail: Some(format!("{}: {}", condition.name, error.message()).into()),
            },
        };
        refusals.push(refusal);
    }
    let gravest = refusals.iter().map(|refusal| gravity(refusal.outcome)).max()?;
    refusals.retain(|refusal| gravity(refusal.outcome) == gravest);
    refusals.into_iter().reduce(|first, next| Refusal {
        detail: first.detail.zip(next.detail).map(|(first, next)| format!("{first}; {next}").into()),
        ..first
    })
}

/// The values of a profile's parameters.
pub(crate) fn resolve_all(profile: &CompiledProfile, world: World<'_>) -> Result<Parameters, Refusal> {
    let pod = Pod::of(world);
    let sources = Sources { pod: &pod, service_account: None, namespace: world.namespace };
    let mut values = Parameters::new();
    for parameter in &profile.parameters {
        let value = match parameter::resolve(parameter, sources) {
            Ok(value) => value,
            Err(Invalid { consequence: Some(OnInvalid::Default), .. }) => None,
            Err(Invalid { message, consequence }) => {
                let denies = match consequence {
                    Some(consequence) => consequence == OnInvalid::Deny,
                    None => profile.on_error == OnError::Deny,
                };
                let outcome = if denies { ProfileOutcome::Denied } else { ProfileOutcome::Skipped };
                return Err(Refusal { outcome, reason: Reason::InvalidParameter, detail: Some(message) });
            }
        };
        if let Some(value) = value.or_else(|| parameter.default.clone()) {
            values.push((parameter.name.clone(), value));
        }
    }
    Ok(values)
}

impl Metadata for Pod<'_> {
    fn label(&self, key: &str) -> Option<Cow<'_, str>> {
        Pod::label(*self, key)
    }

    fn annotation(&self, key: &str) -> Option<Cow<'_, str>> {
        Pod::annotation(*self, key)
    }

    fn annotations_below<'m>(&'m self, prefix: &'m str) -> Box<dyn Iterator<Item = (Cow<'m, str>, Cow<'m, str>)> + 'm> {
        Box::new(self.annotations().filter_map(move |(key, value)| {
            let rest = key.text().strip_prefix(prefix)?.to_owned();
            Some((Cow::Owned(rest), value.as_str()?))
        }))
    }
}

impl Metadata for Namespace {
    fn label(&self, key: &str) -> Option<Cow<'_, str>> {
        Self::label(self, key).map(Cow::Borrowed)
    }

    fn annotation(&self, key: &str) -> Option<Cow<'_, str>> {
        Self::annotation(self, key).map(Cow::Borrowed)
    }

    fn annotations_below<'m>(&'m self, prefix: &'m str) -> Box<dyn Iterator<Item = (Cow<'m, str>, Cow<'m, str>)> + 'm> {
        Box::new(
            self.annotations.iter().filter_map(move |(key, value)| {
                Some((Cow::Borrowed(key.strip_prefix(prefix)?), Cow::Borrowed(&**value)))
            }),
        )
    }
}

const fn gravity(outcome: ProfileOutcome) -> u8 {
    match outcome {
        ProfileOutcome::Applied | ProfileOutcome::Unchanged | ProfileOutcome::Validated => 0,
        ProfileOutcome::Skipped => 1,
        // What is silently not for an object needs no word about what else is wrong.
        ProfileOutcome::NotMatched => 2,
        ProfileOutcome::Denied => 3,
    }
}
