//! Questions about containers.

use super::{Call, Evaluated, Function, global};
use crate::expression::error::EvaluationError;
use crate::expression::value::{Items, Key, Map, Text, Value};

pub(super) const FUNCTIONS: &[Function] = &[
    global("hasEnv", 2, 16, "hasEnv(container, name, ...)", |call| {
        let entries = listed(call, "env")?;
        let mut names = Vec::with_capacity(call.arguments.len());
        for place in 1..call.arguments.len() {
            names.push(call.text(place)?);
        }
        Ok(Value::Bool(entries.iter().any(|entry| names.iter().any(|name| is(entry, "name", name)))))
    }),
    global("envIsRef", 2, 2, "envIsRef(container, name)", |call| {
        let (entries, name) = (listed(call, "env")?, call.text(1)?);
        // Of two entries with one name the last one counts.
        let entry = entries.iter().rev().find(|entry| is(entry, "name", name));
        Ok(Value::Bool(entry.is_some_and(|entry| entry.member("valueFrom").is_some())))
    }),
    global("hasMount", 2, 2, "hasMount(container, name)", |call| {
        let (mounts, name) = (listed(call, "volumeMounts")?, call.text(1)?);
        let field = if name.starts_with('/') { "mountPath" } else { "name" };
        Ok(Value::Bool(mounts.iter().any(|mount| is(mount, field, name))))
    }),
    global("portNumber", 2, 2, "portNumber(container, port)", |call| {
        let port = call.value(1);
        match number_of(call, 0, port)? {
            Some(number) => Ok(Value::Int(number)),
            None if port.as_str().is_some() => {
                Err(call.error(format!("the container has no port named {:?}", port.as_str().unwrap_or_default())))
            }
            None => Err(call.wrong(1, "a number or the name of a port")),
        }
    }),
    global("numberedPorts", 2, 2, "numberedPorts(probe, container)", numbered_ports),
];

/// A list that a container has; an empty one if it has none.
fn listed<'v>(call: &mut Call<'_, 'v>, field: &str) -> Result<Items<'v>, EvaluationError> {
    items_of(call, 0, field)
}

fn items_of<'v>(call: &mut Call<'_, 'v>, place: usize, field: &str) -> Result<Items<'v>, EvaluationError> {
    let container = call.value(place);
    if !container.is_map() {
        return Err(call.wrong(place, "a container"));
    }
    let items = container.member(field).and_then(|list| list.items()).unwrap_or(Items::Own(Vec::new()));
    call.budget.charge(items.len() + container.lookup_cost())?;
    Ok(items)
}

fn is(entry: &Value<'_>, field: &str, text: &str) -> bool {
    entry.member(field).is_some_and(|value| value.as_str() == Some(text))
}

/// The number of a port that is given by number or by name.
fn number_of(call: &mut Call<'_, '_>, container: usize, port: &Value<'_>) -> Result<Option<i64>, EvaluationError> {
    Ok(match port {
        Value::Int(number) => Some(*number),
        Value::String(name) => {
            let ports = items_of(call, container, "ports")?;
            let named = ports.iter().find(|port| is(port, "name", name)).and_then(|port| port.member("containerPort"));
            match named {
                Some(Value::Int(number)) => Some(number),
                _ => name.parse().ok(),
            }
        }
        _ => None,
    })
}

/// A probe or handler whose ports are all numbers. A name that the container does not have stays.
fn numbered_ports<'v>(call: &mut Call<'_, 'v>) -> Evaluated<'v> {
    let mut probe: Map<'v> = call.map(0)?.into_iter().collect();
    for kind in ["httpGet", "tcpSocket", "grpc"] {
        let key = Key::String(Text::Borrowed(kind));
        let Some(handler) = probe.get(&key).cloned() else { continue };
        let Some(port) = handler.member("port") else { continue };
        let (Some(number), Some(entries)) = (number_of(call, 1, &port)?, handler.entries()) else { continue };
        let mut handler: Map<'v> = entries.into_iter().collect();
        handler.insert(Key::String(Text::Borrowed("port")), Value::Int(number));
        probe.insert(key, Value::map(handler));
    }
    Ok(Value::map(probe))
}
