//! The API server's rules about several fields of a container together. The API server rejects a pod that violates one.

use crate::expression::Quantity;
use crate::json::Value;
use crate::schema::{HOOK_HANDLERS, PROBE_HANDLERS};

/// The fields of a container that the rules are about, with the names of their types.
pub(crate) const FIELDS: [(&str, &str); 5] = [
    ("resources", "ResourceRequirements"),
    ("livenessProbe", "Probe"),
    ("readinessProbe", "Probe"),
    ("startupProbe", "Probe"),
    ("lifecycle", "Lifecycle"),
];

/// Whether a value has all its fields.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Completeness {
    Complete,
    /// The value is merged into another one, so a missing handler is not a violation.
    Partial,
}

/// Returns a description of the rule that a value of a type violates; `None` if it violates none. A null field counts as
/// absent.
pub(crate) fn violation(type_name: &str, value: Value<'_>, completeness: Completeness) -> Option<String> {
    let field = |name: &str| value.get(name).filter(|field| !field.is_null());
    let below = |name: &str, type_name: &str| {
        let rule = violation(type_name, field(name)?, completeness)?;
        Some(format!("{name}: {rule}"))
    };
    match type_name {
        "Container" => FIELDS.into_iter().find_map(|(name, type_name)| below(name, type_name)),
        "Lifecycle" => ["postStart", "preStop"].into_iter().find_map(|hook| below(hook, "LifecycleHandler")),
        "ResourceRequirements" => field("requests")?.members().find_map(|(name, requests)| {
            let name = name.text();
            above_limit(&name, quantity(requests)?, quantity(field("limits")?.get(&name)?)?)
        }),
        _ => {
            let known = handlers(type_name)?;
            let found: Vec<_> = known.iter().copied().filter(|handler| field(handler).is_some()).collect();
            match found.as_slice() {
                [_] => None,
                [] if completeness == Completeness::Partial => None,
                found => Some(wrong_number_of_handlers(known, found)),
            }
        }
    }
}

/// The handlers of which a probe or hook has exactly one; `None` for another type.
pub(super) fn handlers(type_name: &str) -> Option<&'static [&'static str]> {
    match type_name {
        "Probe" => Some(&PROBE_HANDLERS),
        "LifecycleHandler" => Some(&HOOK_HANDLERS),
        _ => None,
    }
}

fn quantity(value: Value<'_>) -> Option<Quantity> {
    match value.as_str() {
        Some(text) => Quantity::read(&text),
        None => Quantity::read(value.raw()),
    }
}

pub(super) fn wrong_number_of_handlers(known: &[&str], found: &[&str]) -> String {
    let found = if found.is_empty() { "none".to_owned() } else { found.join(", ") };
    format!("expected exactly one of {}; found {found}", known.join(", "))
}

/// Describes a request above the limit of its resource; `None` if it is not above.
pub(super) fn above_limit(name: &str, requests: Quantity, limit: Quantity) -> Option<String> {
    requests
        .is_more_than(limit)
        .then(|| format!("requests {requests} of {name}, which is more than its limit of {limit}"))
}
