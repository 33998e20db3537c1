//! The API server's rules about combinations of a container's fields. A pod that breaks one is rejected.

use crate::expression::Quantity;
use crate::json::Value;

/// The fields of a container that have such rules, with their types.
pub(crate) const FIELDS: [(&str, &str); 5] = [
    ("resources", "ResourceRequirements"),
    ("livenessProbe", "Probe"),
    ("readinessProbe", "Probe"),
    ("startupProbe", "Probe"),
    ("lifecycle", "Lifecycle"),
];

/// The handlers of a probe or a lifecycle hook.
pub(super) const HANDLERS: [&str; 5] = ["exec", "grpc", "httpGet", "sleep", "tcpSocket"];

/// Returns the rule that a value of this type breaks; `None` if it breaks none. A value that is not whole will be
/// merged into another one, which may have the missing fields.
pub(crate) fn broken_rule(of: &str, value: Value<'_>, is_whole: bool) -> Option<String> {
    match of {
        "Container" => FIELDS.into_iter().find_map(|(field, of)| {
            let rule = broken_rule(of, value.get(field)?, is_whole)?;
            Some(format!("{field}: {rule}"))
        }),
        "Lifecycle" => ["postStart", "preStop"].into_iter().find_map(|hook| {
            let rule = broken_rule("LifecycleHandler", value.get(hook)?, is_whole)?;
            Some(format!("{hook}: {rule}"))
        }),
        "Probe" | "LifecycleHandler" => {
            let found: Vec<_> = HANDLERS.into_iter().filter(|handler| value.get(handler).is_some()).collect();
            match found.as_slice() {
                [_] => None,
                [] => is_whole.then(|| format!("a probe or hook needs one of {}", HANDLERS.join(", "))),
                _ => Some(more_than_one_handler(&found)),
            }
        }
        "ResourceRequirements" => value.get("requests")?.members().find_map(|(name, requests)| {
            let name = name.text();
            more_than_limit(&name, quantity(requests)?, quantity(value.get("limits")?.get(&name)?)?)
        }),
        _ => None,
    }
}

fn quantity(value: Value<'_>) -> Option<Quantity> {
    match value.as_str() {
        Some(text) => Quantity::read(&text),
        None => Quantity::read(value.raw()),
    }
}

/// Describes a probe or hook with several handlers.
pub(super) fn more_than_one_handler(found: &[&str]) -> String {
    format!("a probe or hook does one thing, found {}", found.join(", "))
}

/// Describes requests of a resource above its limit; `None` if they are not above it.
pub(super) fn more_than_limit(name: &str, requests: Quantity, limit: Quantity) -> Option<String> {
    requests
        .is_more_than(limit)
        .then(|| format!("requests {requests} of {name}, which is more than its limit of {limit}"))
}
