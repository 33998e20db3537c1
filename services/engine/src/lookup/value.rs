//! What was looked up, as values of expressions.

use super::OwnerChain;
use super::owners::Owner;
use crate::compute::World;
use crate::expression::{EvaluationError, Key, Map, TextValue, Value};
use crate::json;

/// The names that stand for what was looked up.
pub(crate) const NAMES: [&str; 4] = ["serviceAccount", "owner", "owners", "cluster"];

/// The value of one of [`NAMES`]; `None` for any other name.
pub(crate) fn value<'v>(world: &World<'v>, name: &str) -> Option<Result<Value<'v>, EvaluationError>> {
    Some(match name {
        "serviceAccount" => service_account(world),
        "owner" => owners(world).map(|mut owners| owners.pop().map_or(Value::none(), Value::some)),
        "owners" => owners(world).map(Value::list),
        "cluster" => Ok(match &world.looked_up.cluster {
            Some(facts) if facts.root().is_null() => {
                return Some(Err(EvaluationError::new("what the platform says of the cluster is not known here")));
            }
            Some(facts) => Value::from(facts.root()),
            None => Value::map(Map::new()),
        }),
        _ => return None,
    })
}

/// The service account's metadata; an empty optional if there is none.
fn service_account<'v>(world: &World<'v>) -> Result<Value<'v>, EvaluationError> {
    let object = world.looked_up.service_account.known("the service account")?;
    let metadata = object.and_then(|object| object.root().get("metadata"));
    Ok(metadata.map_or(Value::none(), |metadata| Value::some(Value::from(metadata))))
}

/// The owners, the nearest first. Those that are known from the pod alone need no look-up.
fn owners<'v>(world: &World<'v>) -> Result<Vec<Value<'v>>, EvaluationError> {
    let what = "the owner";
    if let Some(chain) = known_from_pod(world) {
        // Nothing of a chain that is made here is borrowed, as nothing of it was looked up.
        return Ok(chain.owners().iter().map(|owner| owner_value(owner, None)).collect());
    }
    let chain = world.looked_up.owners.known(what)?;
    let owners = chain.map(OwnerChain::owners).unwrap_or_default();
    Ok(owners.iter().map(|owner| owner_value(owner, owner.object.as_ref().map(|object| object.root()))).collect())
}

/// The owners, if nobody had to look anything up to know all their names.
fn known_from_pod(world: &World<'_>) -> Option<OwnerChain> {
    if !matches!(world.looked_up.owners, super::Answer::NotAsked) {
        return None;
    }
    Some(OwnerChain::of_pod(world.object, false)).filter(|chain| !chain.is_open())
}

/// `{apiVersion, kind, name}`, and what else is known: `uid`, `labels`, `annotations`.
fn owner_value<'v>(owner: &Owner, object: Option<json::Value<'v>>) -> Value<'v> {
    let key = |name: &'static str| Key::String(TextValue::Borrowed(name));
    let reference = &owner.reference;
    let mut fields: Map<'v> = [
        (key("apiVersion"), Value::owned(&*reference.api_version)),
        (key("kind"), Value::owned(&*reference.kind)),
        (key("name"), Value::owned(&*reference.name)),
    ]
    .into_iter()
    .collect();
    if let Some(uid) = &reference.uid {
        fields.insert(key("uid"), Value::owned(&**uid));
    }
    for name in ["labels", "annotations"] {
        let part = object.map(|object| object.at(&["metadata", name]));
        // Of an object that was looked up it is known that it has none.
        if let Some(part) = part {
            fields.insert(key(name), part.map_or_else(|| Value::map(Map::new()), Value::from));
        }
    }
    Value::map(fields)
}
