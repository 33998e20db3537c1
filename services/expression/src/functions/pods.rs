//! Functions on containers.

use super::{Call, Evaluated, Function, global, shown};
use crate::error::EvaluationError;
use crate::meter::Meter;
use crate::value::{Items, MapBuilder, Value};

pub(super) const FUNCTIONS: &[Function] =
    &[
        global("hasEnv", 2, 16, "hasEnv(container, name, ...)", |call| {
            let entries = listed(call, "env")?;
            for place in 1..call.arguments.len() {
                if named(call, &entries, "name", place)?.is_some() {
                    return Ok(Value::Bool(true));
                }
            }
            Ok(Value::Bool(false))
        }),
        global("envIsRef", 2, 2, "envIsRef(container, name)", |call| {
            let entries = listed(call, "env")?;
            let entry = named(call, &entries, "name", 1)?;
            let source = entry.map(|entry| entry.member("valueFrom", call.meter)).transpose()?.flatten();
            Ok(Value::Bool(source.is_some()))
        }),
        global("hasMount", 2, 2, "hasMount(container, name)", |call| {
            let mounts = listed(call, "volumeMounts")?;
            let field = if call.text(1)?.starts_with('/') { "mountPath" } else { "name" };
            Ok(Value::Bool(named(call, &mounts, field, 1)?.is_some()))
        }),
        global("portNumber", 2, 2, "portNumber(container, port)", |call| {
            let port = call.value(1);
            match number_of(call, 0, port)? {
                Some(number) => Ok(Value::Int(number)),
                None if port.as_str().is_some() => Err(call
                    .error(format!("the container has no port named {:?}", shown(port.as_str().unwrap_or_default())))),
                None => Err(call.wrong(1, "a number or the name of a port")),
            }
        }),
        global("numberedPorts", 2, 2, "numberedPorts(probe, container)", numbered_ports),
    ];

/// Returns a list of a container; an empty one if it is absent.
fn listed<'v>(call: &mut Call<'_, 'v>, field: &str) -> Result<Items<'v>, EvaluationError> {
    items_of(call, 0, field)
}

fn items_of<'v>(call: &mut Call<'_, 'v>, place: usize, field: &str) -> Result<Items<'v>, EvaluationError> {
    let container = call.value(place);
    if !container.is_map() {
        return Err(call.wrong(place, "a container"));
    }
    let list = container.member(field, call.meter)?;
    let items = list.map(|list| list.items(call.meter)).transpose()?.flatten();
    Ok(items.unwrap_or(Items::Own(Vec::new())))
}

/// Returns the last entry whose field equals an argument. Of several environment variables with one name, the last
/// takes effect.
fn named<'e, 'v>(
    call: &mut Call<'_, 'v>,
    entries: &'e [Value<'v>],
    field: &str,
    argument: usize,
) -> Result<Option<&'e Value<'v>>, EvaluationError> {
    let text = call.text(argument)?;
    for entry in entries.iter().rev() {
        if is(entry, field, text, call.meter)? {
            return Ok(Some(entry));
        }
    }
    Ok(None)
}

fn is(entry: &Value<'_>, field: &str, text: &str, meter: &mut Meter) -> Result<bool, EvaluationError> {
    meter.charge(1 + text.len() / 64)?;
    Ok(entry.member(field, meter)?.is_some_and(|value| value.as_str() == Some(text)))
}

/// Returns the number of a port that is given by number or by name.
fn number_of(call: &mut Call<'_, '_>, container: usize, port: &Value<'_>) -> Result<Option<i64>, EvaluationError> {
    Ok(match port {
        Value::Int(number) => Some(*number),
        Value::String(name) => {
            let ports = items_of(call, container, "ports")?;
            let mut number = None;
            for port in ports.iter() {
                if number.is_none() && is(port, "name", name, call.meter)? {
                    number = port.member("containerPort", call.meter)?;
                }
            }
            match number {
                Some(Value::Int(number)) => Some(number),
                _ => name.parse().ok(),
            }
        }
        _ => None,
    })
}

/// Replaces the ports of a probe or handler by numbers. Names that the container does not have are kept.
fn numbered_ports<'v>(call: &mut Call<'_, 'v>) -> Evaluated<'v> {
    let mut probe = MapBuilder::new();
    for (key, value) in call.map(0)? {
        let handles = ["httpGet", "tcpSocket", "grpc"].into_iter().any(|handler| key.is(handler));
        let value = if handles { numbered_handler(call, value)? } else { value };
        probe.insert(key, value, call.meter)?;
    }
    probe.finish(call.meter)
}

/// Replaces the port of a handler by its number, if the container has a port with that name.
fn numbered_handler<'v>(call: &mut Call<'_, 'v>, handler: Value<'v>) -> Evaluated<'v> {
    let Some(port) = handler.member("port", call.meter)? else { return Ok(handler) };
    let (Some(number), Some(entries)) = (number_of(call, 1, &port)?, handler.entries(call.meter)?) else {
        return Ok(handler);
    };
    let mut numbered = MapBuilder::new();
    for (key, value) in entries {
        let value = if key.is("port") { Value::Int(number) } else { value };
        numbered.insert(key, value, call.meter)?;
    }
    numbered.finish(call.meter)
}
