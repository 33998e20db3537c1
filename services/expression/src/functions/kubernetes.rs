//! Functions on containers, image references and names, and JSON patches for changes that templates cannot describe.

use json_patch::{PatchOperation, patch};
use sha2::{Digest, Sha256};

use super::{Call, Evaluated, Function, global, part_of, strings, truncated};
use crate::MAXIMUM_RESULT;
use crate::error::EvaluationError;
use crate::meter::Meter;
use crate::value::{Items, Key, MapBuilder, Text, Value};

pub(super) const FUNCTIONS: &[Function] = &[
    global("hasEnv(container, name, ...)", |call| {
        let entries = items_of(call, 0, "env")?;
        for index in 1..call.arguments.len() {
            if named(call, &entries, "name", index)?.is_some() {
                return Ok(Value::Bool(true));
            }
        }
        Ok(Value::Bool(false))
    }),
    global("envIsRef(container, name)", |call| {
        let entries = items_of(call, 0, "env")?;
        let entry = named(call, &entries, "name", 1)?;
        let source = entry.map(|entry| entry.member("valueFrom", call.meter)).transpose()?.flatten();
        Ok(Value::Bool(source.is_some()))
    }),
    global("hasMount(container, name)", |call| {
        let mounts = items_of(call, 0, "volumeMounts")?;
        let field = if call.text(1)?.starts_with('/') { "mountPath" } else { "name" };
        Ok(Value::Bool(named(call, &mounts, field, 1)?.is_some()))
    }),
    global("portNumber(container, port)", |call| {
        let port = call.value(1);
        match number_of(call, 0, port)? {
            Some(number) => Ok(Value::Int(number)),
            None if port.as_str().is_some() => Err(call
                .error(format!("the container has no port named {:?}", truncated(port.as_str().unwrap_or_default())))),
            None => Err(call.type_error(1, "a number or the name of a port")),
        }
    }),
    global("numberedPorts(probe, container)", numbered_ports),
    global("image(text)", image),
    global("short(text, length)", |call| {
        let (text, length) = (call.text(0)?, call.size(1)?);
        if length <= HASH {
            return Err(call.error(format!("the length must be greater than {HASH}")));
        }
        call.meter.charge_memory(text.len())?;
        let text = short(text, length);
        Value::owned(&text, call.meter)
    }),
    global("dnsLabel(text)", |call| {
        let text = call.text(0)?;
        call.meter.charge_memory(2 * text.len())?;
        let text = dns_label(text);
        if text.is_empty() {
            return Err(call.error("the string has no letter or digit"));
        }
        call.short_text(&text)
    }),
    global("jitter(minimum, maximum)", jitter),
    global("jsonPatch(value, operations)", json_patch),
];

/// Returns the items of the list `field` in a container. The argument with the index `index` is the container. Empty if
/// the list is absent.
fn items_of<'v>(call: &mut Call<'_, 'v>, index: usize, field: &str) -> Result<Items<'v>, EvaluationError> {
    let container = call.value(index);
    if !container.is_map() {
        return Err(call.type_error(index, "a container"));
    }
    let list = container.member(field, call.meter)?;
    let items = list.map(|list| list.items(call.meter)).transpose()?.flatten();
    Ok(items.unwrap_or(Items::Own(Vec::new())))
}

/// Returns the last entry whose `field` equals the argument with the index `argument`. `None` if there is no such
/// entry. If several environment variables have the same name, the last one takes effect.
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

/// Returns the port number for a number, for the name of a port of the container, or for a string that contains a
/// number. `None` for any other value.
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

/// Replaces port names in the handlers of a probe or lifecycle hook with numbers. Keeps names that the container does
/// not have.
fn numbered_ports<'v>(call: &mut Call<'_, 'v>) -> Evaluated<'v> {
    let mut probe = MapBuilder::new();
    for (key, value) in call.map(0)? {
        let handles = ["httpGet", "tcpSocket", "grpc"].into_iter().any(|handler| key.is(handler));
        let value = if handles { numbered_handler(call, value)? } else { value };
        probe.insert(key, value, call.meter)?;
    }
    probe.finish(call.meter)
}

/// Replaces the port of a handler with its number, if [`number_of`] finds one. The second argument of the call is the
/// container.
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

/// The length of a hash suffix: a dash and eight hexadecimal digits.
const HASH: usize = 9;

/// The maximum length of a DNS label in characters.
const LABEL: usize = 63;

/// Splits an image reference into its parts. Missing parts are empty.
fn image<'v>(call: &mut Call<'_, 'v>) -> Evaluated<'v> {
    let text = call.text(0)?;
    let (rest, digest) = text.split_once('@').unwrap_or((text, ""));
    // Only a colon after the last slash precedes a tag. Other colons precede a port.
    let (rest, tag) = match rest.rsplit_once(':') {
        Some((name, tag)) if !tag.contains('/') => (name, tag),
        _ => (rest, ""),
    };
    let (registry, name) = match rest.split_once('/') {
        Some((first, name)) if first.contains(['.', ':']) || first == "localhost" => (first, name),
        _ => ("", rest),
    };
    let parts = [("registry", registry), ("name", name), ("tag", tag), ("digest", digest)];
    let mut image = MapBuilder::new();
    for (key, value) in parts {
        let value = if value.is_empty() { Value::text("") } else { part_of(text, value, call.meter)? };
        image.insert(Key::String(Text::Borrowed(key)), value, call.meter)?;
    }
    image.finish(call.meter)
}

/// Shortens a string to at most this number of characters. A shortened string ends with a hash of the whole string, so
/// that it is still unique.
fn short(text: &str, length: usize) -> String {
    if text.chars().count() <= length {
        return text.to_owned();
    }
    let head: String = text.chars().take(length - HASH).collect();
    let hash = strings::hexadecimal(Sha256::digest(text.as_bytes()).get(..4).unwrap_or_default());
    format!("{}-{hash}", head.trim_end_matches(['-', '.', '_']))
}

fn dns_label(text: &str) -> String {
    let label = |character: char| if character.is_ascii_alphanumeric() { character.to_ascii_lowercase() } else { '-' };
    let text: String = text.chars().map(label).collect();
    short(text.trim_matches('-'), LABEL)
}

/// Returns a number in the range of the two arguments. It is evenly distributed over requests, but constant within one
/// request.
fn jitter<'v>(call: &mut Call<'_, 'v>) -> Evaluated<'v> {
    let (minimum, maximum) = (call.int(0)?, call.int(1)?);
    let span = i128::from(maximum) - i128::from(minimum) + 1;
    if span < 1 {
        return Err(call.error("the maximum is less than the minimum"));
    }
    call.meter.charge(20)?;
    let digest = Sha256::digest(call.seed.as_bytes());
    let hash = digest.iter().take(8).fold(0_i128, |hash, byte| (hash << 8) | i128::from(*byte));
    let number = i128::from(minimum) + hash % span;
    i64::try_from(number).map(Value::Int).map_err(|_| call.error("the range is too large"))
}

/// The maximum number of operations in a patch.
const OPERATIONS: usize = 64;

/// The memory that is charged for each byte of copied JSON, in bytes.
const MEMORY: usize = 16;

fn json_patch<'v>(call: &mut Call<'_, 'v>) -> Evaluated<'v> {
    let mut value = call.value(0).to_json(call.meter)?.unwrap_or_default();
    let memory = call.meter.memory_left();
    let operations = call.value(1).to_json(call.meter)?.unwrap_or_default();
    // If an operation is invalid, the error message contains it with escapes, which takes additional steps.
    call.meter.charge((memory - call.meter.memory_left()) / 2)?;
    let operations: Vec<PatchOperation> = serde_json::from_value(operations).map_err(|error| {
        call.error(format!("the operations are not a JSON patch: {}", truncated(&error.to_string())))
    })?;
    if operations.len() > OPERATIONS {
        return Err(call.error(format!("a patch can have at most {OPERATIONS} operations")));
    }
    let mut size = value.to_string().len();
    for (index, operation) in operations.iter().enumerate() {
        // An operation processes at most the whole value. The size of the value is measured again after each operation.
        let copies = !matches!(operation, PatchOperation::Remove(_) | PatchOperation::Test(_));
        call.meter.charge(10 + size)?;
        call.meter.charge_memory(if copies { size.saturating_mul(MEMORY) } else { 0 })?;
        patch(&mut value, std::slice::from_ref(operation))
            .map_err(|error| call.error(format!("operation {index} cannot be applied: {}", error.kind)))?;
        size = value.to_string().len();
        if size > MAXIMUM_RESULT {
            return Err(call.error("the result is too large"));
        }
    }
    Value::from_json(value, call.meter)
}
