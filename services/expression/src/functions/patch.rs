//! JSON Patch functions, for changes that templates cannot express.

use json_patch::{PatchOperation, patch};

use super::{Call, Evaluated, Function, global, shown};
use crate::MAXIMUM_RESULT;
use crate::value::Value;

pub(super) const FUNCTIONS: &[Function] = &[global("jsonPatch", 2, 2, "jsonPatch(value, operations)", json_patch)];

/// The maximum number of operations of one patch.
const OPERATIONS: usize = 64;

/// Bytes of memory for each byte of copied JSON.
const MEMORY: usize = 16;

fn json_patch<'v>(call: &mut Call<'_, 'v>) -> Evaluated<'v> {
    let mut value = call.value(0).to_json(call.meter)?.unwrap_or_default();
    let memory = call.meter.memory_left();
    let operations = call.value(1).to_json(call.meter)?.unwrap_or_default();
    // The error for an invalid operation contains it, escaped.
    call.meter.charge((memory - call.meter.memory_left()) / 2)?;
    let operations: Vec<PatchOperation> = serde_json::from_value(operations)
        .map_err(|error| call.error(format!("the operations are no JSON patch: {}", shown(&error.to_string()))))?;
    if operations.len() > OPERATIONS {
        return Err(call.error(format!("a patch has at most {OPERATIONS} operations")));
    }
    let mut size = value.to_string().len();
    for (place, operation) in operations.iter().enumerate() {
        // An operation processes at most the whole value, which is measured again afterwards.
        let copies = !matches!(operation, PatchOperation::Remove(_) | PatchOperation::Test(_));
        call.meter.charge(10 + size)?;
        call.meter.charge_memory(if copies { size.saturating_mul(MEMORY) } else { 0 })?;
        patch(&mut value, std::slice::from_ref(operation))
            .map_err(|error| call.error(format!("operation {place} cannot be applied: {}", error.kind)))?;
        size = value.to_string().len();
        if size > MAXIMUM_RESULT {
            return Err(call.error("the result is too large"));
        }
    }
    Value::from_json(value, call.meter)
}
