//! Resolves the parameters of a profile for one object: the values that were set, or the defaults.

use std::borrow::Cow;

use pillion_api::parameter::OnInvalid;
use pillion_api::profile::OnError;

use super::Refusal;
use super::pod::Pod;
use crate::context::{EvalContext, Parameters, ProfileBindings};
use crate::decision::{Notice, ProfileOutcome, Reason};
use crate::expression::{EvaluationError, Meter, Purpose};
use crate::namespace::NamespaceMetadata;
use crate::parameter::{self, Invalid, Metadata, Parameter, Resolved, Sources};
use crate::profile::CompiledProfile;

/// Resolves the parameters of a profile. Warnings for their authors go to `notices`.
///
/// Computed defaults are evaluated here, in the order of the parameters. A default that fails, and an invalid value,
/// are errors of the expressions that read the parameter, so they cost nothing otherwise. The refusal reports all
/// invalid values.
pub(super) fn resolve(
    profile: &CompiledProfile,
    context: EvalContext<'_>,
    notices: &mut Vec<Notice>,
) -> (Parameters, Option<Refusal>) {
    let pod = Pod::new(context.object);
    // The service account is only read if a parameter may come from it.
    let is_asked = profile.parameters.iter().any(Parameter::asks_service_account);
    let account = if is_asked { context.looked_up.service_account.known("the service account") } else { Ok(None) };
    let account = account.map(|object| object.map(|object| Pod::new(object.root())));
    let service_account = account.as_ref().map(|account| account.as_ref().map(|account| account as &dyn Metadata));
    let sources = Sources { pod: &pod, service_account, namespace: context.namespace };
    let mut values = Parameters::new(&profile.lookups, context.looked_up, context.namespace_name);
    let definitions = profile.definitions();
    let mut meter = context.meter(definitions.owner, Purpose::Decide, Meter::EXPRESSION);
    let mut tell = |message: Box<str>| {
        notices.push(Notice::Parameter { profile: profile.display_name().into(), message });
    };
    let mut invalid: Option<Refusal> = None;
    for parameter in &profile.parameters {
        let value = match parameter::resolve(parameter, sources) {
            Ok(Resolved { value, moved }) => {
                moved.into_iter().for_each(&mut tell);
                value
            }
            Err(Invalid { consequence: Some(OnInvalid::Default), message }) => {
                tell(format!("{message}; the default is taken").into());
                Ok(None)
            }
            Err(Invalid { message, consequence }) => {
                let denies = match consequence {
                    Some(consequence) => consequence == OnInvalid::Deny,
                    None => profile.on_error == OnError::Deny,
                };
                let outcome = if denies { ProfileOutcome::Denied } else { ProfileOutcome::Skipped };
                let reason = Reason::InvalidParameter;
                values.push(&parameter.name, Err(EvaluationError::new(reason.sentence())));
                let refusal = Refusal { outcome, reason, detail: Some(message) };
                invalid = Some(match invalid.take() {
                    Some(first) => graver(first, refusal),
                    None => refusal,
                });
                continue;
            }
        };
        let value = match value {
            Ok(None) => parameter.default_value(&ProfileBindings::new(context, &values, definitions), &mut meter),
            set => set,
        };
        if let Some(value) = value.transpose() {
            values.push(&parameter.name, value);
        }
    }
    (values, invalid)
}

/// Returns the graver of two refusals, or both in one.
fn graver(first: Refusal, next: Refusal) -> Refusal {
    match (first.outcome == ProfileOutcome::Denied, next.outcome == ProfileOutcome::Denied) {
        (true, false) => first,
        (false, true) => next,
        _ => Refusal {
            detail: first.detail.zip(next.detail).map(|(first, next)| format!("{first}; {next}").into()),
            ..first
        },
    }
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

impl Metadata for NamespaceMetadata {
    fn label(&self, key: &str) -> Option<Cow<'_, str>> {
        Self::label(self, key).map(Cow::Borrowed)
    }

    fn annotation(&self, key: &str) -> Option<Cow<'_, str>> {
        Self::annotation(self, key).map(Cow::Borrowed)
    }

    fn annotations_below<'m>(&'m self, prefix: &'m str) -> Box<dyn Iterator<Item = (Cow<'m, str>, Cow<'m, str>)> + 'm> {
        Box::new(
            self.annotations()
                .filter_map(move |(key, value)| Some((Cow::Borrowed(key.strip_prefix(prefix)?), Cow::Borrowed(value)))),
        )
    }
}
