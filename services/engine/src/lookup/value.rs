//! What was looked up, as values of expressions.

use super::OwnerChain;
use super::owners::Owner;
use crate::compute::World;
use crate::expression::{EvaluationError, Key, MapBuilder, Meter, TextValue, Value};
use crate::json;

/// The names that stand for what was looked up.
pub(crate) const NAMES: [&str; 4] = ["serviceAccount", "owner", "owners", "cluster"];

/// The value of one of [`NAMES`]; `None` for any other name.
pub(crate) fn value<'v>(
    world: &World<'v>,
    name: &str,
    meter: &mut Meter,
) -> Option<Result<Value<'v>, EvaluationError>> {
    Some(match name {
        "serviceAccount" => service_account(world, meter),
        "owner" => owners(world, meter).and_then(|mut owners| Value::optional(owners.pop(), meter)),
        "owners" => owners(world, meter).and_then(|owners| Value::list(owners, meter)),
        "cluster" => match &world.looked_up.cluster {
            Some(facts) if facts.root().is_null() => {
                return Some(Err(EvaluationError::new("what the platform says of the cluster is not known here")));
            }
            Some(facts) => Value::read(facts.root(), meter),
            None => Value::map([], meter),
        },
        _ => return None,
    })
}

/// The service account's metadata; an empty optional if there is none.
fn service_account<'v>(world: &World<'v>, meter: &mut Meter) -> Result<Value<'v>, EvaluationError> {
    let object = world.looked_up.service_account.known("the service account")?;
    let metadata = object.and_then(|object| object.root().get("metadata"));
    let metadata = metadata.map(|metadata| Value::read(metadata, meter)).transpose()?;
    Value::optional(metadata, meter)
}

/// The owners, the nearest first. Those that are known from the pod alone need no look-up.
fn owners<'v>(world: &World<'v>, meter: &mut Meter) -> Result<Vec<Value<'v>>, EvaluationError> {
    let what = "the owner";
    if let Some(chain) = known_from_pod(world) {
        // Nothing of a chain that is made here is borrowed, as nothing of it was looked up.
        return chain.owners().iter().map(|owner| owner_value(owner, None, meter)).collect();
    }
    let chain = world.looked_up.owners.known(what)?;
    let owners = chain.map(OwnerChain::owners).unwrap_or_default();
    owners.iter().map(|owner| owner_value(owner, owner.object.as_ref().map(|object| object.root()), meter)).collect()
}

/// The owners, if nobody had to look anything up to know all their names.
fn known_from_pod(world: &World<'_>) -> Option<OwnerChain> {
    if !matches!(world.looked_up.owners, super::Answer::NotAsked) {
        return None;
    }
    Some(OwnerChain::of_pod(world.object, false)).filter(|chain| !chain.is_open())
}

/// `{apiVersion, kind, name}`, and what else is known: `uid`, `labels`, `annotations`.
fn owner_value<'v>(
    owner: &Owner,
    object: Option<json::Value<'v>>,
    meter: &mut Meter,
) -> Result<Value<'v>, EvaluationError> {
    let key = |name: &'static str| Key::String(TextValue::Borrowed(name));
    let reference = &owner.reference;
    let texts = [
        ("apiVersion", Some(&*reference.api_version)),
        ("kind", Some(&*reference.kind)),
        ("name", Some(&*reference.name)),
        ("uid", reference.uid.as_deref()),
    ];
    let mut fields = MapBuilder::new();
    for (name, text) in texts {
        if let Some(text) = text {
            fields.insert(key(name), Value::owned(text, meter)?, meter)?;
        }
    }
    for name in ["labels", "annotations"] {
        let part = object.map(|object| object.at(&["metadata", name]));
        // Of an object that was looked up it is known that it has none.
        if let Some(part) = part {
            let part = match part {
                Some(part) => Value::read(part, meter)?,
                None => Value::map([], meter)?,
            };
            fields.insert(key(name), part, meter)?;
        }
    }
    fields.finish(meter)
}
