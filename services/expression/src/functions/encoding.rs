//! Functions that encode values as strings and decode them.

use std::fmt::Write as _;

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, STANDARD_NO_PAD};
use sha2::{Digest, Sha256};

use super::{Call, Function, global, shown};
use crate::MAXIMUM_RESULT;
use crate::error::EvaluationError;
use crate::value::Value;

pub(super) const FUNCTIONS: &[Function] = &[
    global("base64.encode", 1, 1, "base64.encode(bytes)", |call| {
        let bytes = bytes_of(call)?;
        call.meter.charge_text(bytes.len() / 3 * 4 + 4)?;
        let text = STANDARD.encode(bytes);
        call.short(&text)
    }),
    global("base64.decode", 1, 1, "base64.decode(text)", |call| {
        let text = call.text(0)?;
        call.meter.charge_memory(text.len())?;
        let engine = if text.ends_with('=') || text.len() % 4 == 0 { &STANDARD } else { &STANDARD_NO_PAD };
        let bytes = engine.decode(text.as_bytes());
        let bytes = bytes.map_err(|_| call.error(format!("{:?} is not base64", shown(text))))?;
        Value::bytes(&bytes, call.meter)
    }),
    global("sha256", 1, 1, "sha256(value)", |call| {
        let text = hexadecimal(&Sha256::digest(bytes_of(call)?));
        call.short(&text)
    }),
    global("toJson", 1, 1, "toJson(value)", |call| {
        let json = call.value(0).to_json(call.meter)?.unwrap_or_default();
        let mut length = Length(0);
        serde_json::to_writer(&mut length, &json).map_err(|error| call.error(error))?;
        call.meter.charge_text(length.0)?;
        call.short(&json.to_string())
    }),
    global("parseJson", 1, 1, "parseJson(text)", |call| {
        let text = readable(call)?;
        let value: serde_json::Value =
            serde_json::from_str(text).map_err(|error| call.error(format!("the text is not JSON: {error}")))?;
        Value::from_json(value, call.meter)
    }),
    global("isJson", 1, 1, "isJson(text)", |call| {
        let text = readable(call)?;
        Ok(Value::Bool(serde_json::from_str::<serde::de::IgnoredAny>(text).is_ok()))
    }),
    global("parseYaml", 1, 1, "parseYaml(text)", |call| {
        let text = readable(call)?;
        // YAML is parsed much more slowly than JSON, and aliases may repeat values up to the parser's limits.
        call.meter.charge(text.len().saturating_mul(8))?;
        call.meter.charge_memory(pillion_json::yaml::MAXIMUM_NODES.min(text.len().saturating_mul(64)) * VALUE)?;
        let value = pillion_json::yaml::parse(text).map_err(|message| call.error(message))?;
        Value::from_json(value, call.meter)
    }),
];

fn bytes_of<'a>(call: &mut Call<'a, '_>) -> Result<&'a [u8], EvaluationError> {
    let bytes: &[u8] = match call.value(0) {
        Value::Bytes(bytes) => bytes,
        Value::String(text) => text.as_bytes(),
        _ => return Err(call.wrong(0, "a string or bytes")),
    };
    call.meter.charge(bytes.len() / 4)?;
    Ok(bytes)
}

/// Returns the string to decode, if it is short enough.
fn readable<'a>(call: &mut Call<'a, '_>) -> Result<&'a str, EvaluationError> {
    let text = call.text(0)?;
    if text.len() > MAXIMUM_RESULT {
        return Err(call.error(format!("a text of {} bytes is too long to be read", text.len())));
    }
    call.meter.charge(text.len() / 4)?;
    // A value can follow each comma, colon and opening bracket.
    let values = 1 + text.bytes().filter(|byte| b",:[{".contains(byte)).count();
    call.meter.charge(values)?;
    call.meter.charge_memory(text.len() + values.saturating_mul(VALUE))?;
    Ok(text)
}

/// Bytes of memory of a decoded value, including its entry in a list or map.
const VALUE: usize = 96;

/// A writer that only counts bytes.
struct Length(usize);

impl std::io::Write for Length {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0 += bytes.len();
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

pub(super) fn hexadecimal(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len() * 2);
    for byte in bytes {
        // Writing to a string never fails.
        let _ = write!(text, "{byte:02x}");
    }
    text
}
