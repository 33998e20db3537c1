//! Functions that write values as text and read them from it.

use std::fmt::Write as _;
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, STANDARD_NO_PAD};
use sha2::{Digest, Sha256};

use super::{Call, Function, global, maps};
use crate::expression::MAXIMUM_RESULT;
use crate::expression::error::EvaluationError;
use crate::expression::value::Value;

pub(super) const FUNCTIONS: &[Function] = &[
    global("base64.encode", 1, 1, "base64.encode(bytes)", |call| {
        let text = STANDARD.encode(bytes_of(call)?);
        call.made(text)
    }),
    global("base64.decode", 1, 1, "base64.decode(text)", |call| {
        let text = call.text(0)?;
        call.budget.charge_bytes(text.len())?;
        let engine = if text.ends_with('=') || text.len() % 4 == 0 { &STANDARD } else { &STANDARD_NO_PAD };
        let bytes = engine.decode(text.as_bytes());
        let bytes = bytes.map_err(|_| call.error(format!("{:?} is not base64", maps::shown(text))))?;
        Ok(Value::Bytes(Arc::from(bytes)))
    }),
    global("sha256", 1, 1, "sha256(value)", |call| {
        let text = hexadecimal(&Sha256::digest(bytes_of(call)?));
        call.made(text)
    }),
    global("toJson", 1, 1, "toJson(value)", |call| {
        let json = call.value(0).to_json()?.unwrap_or_default().to_string();
        call.made(json)
    }),
    global("parseJson", 1, 1, "parseJson(text)", |call| {
        let text = readable(call)?;
        let value: serde_json::Value =
            serde_json::from_str(text).map_err(|error| call.error(format!("the text is not JSON: {error}")))?;
        counted(call, &value)?;
        Ok(Value::from(value))
    }),
    global("isJson", 1, 1, "isJson(text)", |call| {
        let value = serde_json::from_str::<serde_json::Value>(readable(call)?);
        value.iter().try_for_each(|value| counted(call, value))?;
        Ok(Value::Bool(value.is_ok()))
    }),
    global("parseYaml", 1, 1, "parseYaml(text)", |call| {
        let text = readable(call)?;
        // It is read much more slowly than JSON.
        call.budget.charge(text.len())?;
        let value = crate::yaml::parse(text).map_err(|message| call.error(message))?;
        counted(call, &value)?;
        Ok(Value::from(value))
    }),
];

fn bytes_of<'a>(call: &mut Call<'a, '_>) -> Result<&'a [u8], EvaluationError> {
    let bytes: &[u8] = match call.value(0) {
        Value::Bytes(bytes) => bytes,
        Value::String(text) => text.as_bytes(),
        _ => return Err(call.wrong(0, "a string or bytes")),
    };
    call.budget.charge(bytes.len() / 4)?;
    Ok(bytes)
}

/// A text that is short enough to be read.
fn readable<'a>(call: &mut Call<'a, '_>) -> Result<&'a str, EvaluationError> {
    let text = call.text(0)?;
    if text.len() > MAXIMUM_RESULT {
        return Err(call.error(format!("a text of {} bytes is too long to be read", text.len())));
    }
    call.budget.charge(text.len() / 4)?;
    Ok(text)
}

fn counted(call: &mut Call<'_, '_>, value: &serde_json::Value) -> Result<(), EvaluationError> {
    call.budget.charge(1)?;
    match value {
        serde_json::Value::Array(items) => items.iter().try_for_each(|item| counted(call, item)),
        serde_json::Value::Object(members) => members.values().try_for_each(|value| counted(call, value)),
        _ => Ok(()),
    }
}

pub(super) fn hexadecimal(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len() * 2);
    for byte in bytes {
        // Writing to a string does not fail.
        let _ = write!(text, "{byte:02x}");
    }
    text
}
