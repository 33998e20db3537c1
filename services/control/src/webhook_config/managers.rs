//! Reads from `managedFields` which client wrote a field. The result is for messages only, since a client chooses its
//! own name.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ManagedFieldsEntry, ObjectMeta};
use serde_json::Value;

use crate::leader::FIELD_MANAGER;

/// Maximum bytes of a manager's name in messages.
const NAME_BYTES: usize = 128;

/// The manager of the field at this path (`f:data`, `f:injection`). If it has no manager, the last writer of the
/// object. `None` if that is the controller itself, or unknown.
#[must_use]
pub fn of_field(metadata: &ObjectMeta, path: &[&str]) -> Option<String> {
    let others = || entries(metadata).filter(|entry| entry.manager.as_deref() != Some(FIELD_MANAGER));
    let owns = |entry: &&ManagedFieldsEntry| {
        let fields = entry.fields_v1.as_ref().map(|fields| &fields.0);
        path.iter().try_fold(fields?, |fields, step| fields.get(*step)).map(|_| ())
    };
    let newest = others().filter(|entry| owns(entry).is_some()).max_by_key(|entry| time(entry));
    newest.and_then(name).or_else(|| last(metadata))
}

/// The same for a field of an entry of a webhook configuration.
#[must_use]
pub fn of_entry(metadata: &ObjectMeta, entry: &str, path: &[&str]) -> Option<String> {
    let key = format!("k:{}", Value::from_iter([("name", entry)]));
    let whole: Vec<_> = ["f:webhooks", &key].into_iter().chain(path.iter().copied()).collect();
    of_field(metadata, &whole)
}

/// The last writer, unless it is the controller itself.
fn last(metadata: &ObjectMeta) -> Option<String> {
    let newest = entries(metadata).max_by_key(|entry| (time(entry), entry.manager.as_deref() != Some(FIELD_MANAGER)));
    newest.filter(|entry| entry.manager.as_deref() != Some(FIELD_MANAGER)).and_then(name)
}

fn entries(metadata: &ObjectMeta) -> impl Iterator<Item = &ManagedFieldsEntry> {
    metadata.managed_fields.iter().flatten()
}

fn time(entry: &ManagedFieldsEntry) -> Option<jiff::Timestamp> {
    entry.time.as_ref().map(|time| time.0)
}

fn name(entry: &ManagedFieldsEntry) -> Option<String> {
    let name = entry.manager.as_deref().filter(|name| !name.is_empty())?;
    let end = name.floor_char_boundary(NAME_BYTES);
    Some(name.get(..end)?.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn metadata(entries: &[(&str, &str, Value)]) -> ObjectMeta {
        let entries: Vec<_> = entries
            .iter()
            .map(|(manager, time, fields)| serde_json::json!({"manager": manager, "time": time, "fieldsV1": fields}))
            .collect();
        serde_json::from_value(serde_json::json!({ "managedFields": entries })).unwrap()
    }

    #[test]
    fn who_has_a_field_is_told_and_else_who_wrote_last() {
        let bundle = |entry: &str| serde_json::json!({"f:webhooks": {format!("k:{{\"name\":\"{entry}\"}}"): {"f:clientConfig": {"f:caBundle": {}}}}});
        let (early, late) = ("2026-11-21T10:00:00Z", "2026-11-21T11:00:00Z");
        let path = &["f:clientConfig", "f:caBundle"];
        let known = metadata(&[
            ("vandal", early, bundle("a")),
            ("kubectl", late, bundle("b")),
            (FIELD_MANAGER, late, bundle("a")),
        ]);
        assert_eq!(of_entry(&known, "a", path).as_deref(), Some("vandal"));
        assert_eq!(of_entry(&known, "b", path).as_deref(), Some("kubectl"));
        assert_eq!(of_entry(&known, "c", path).as_deref(), Some("kubectl"), "who wrote last");
        let ours = metadata(&[("vandal", early, bundle("a")), (FIELD_MANAGER, late, bundle("b"))]);
        assert_eq!(of_entry(&ours, "b", path), None, "the last one was the controller");
        assert_eq!(of_field(&ObjectMeta::default(), &["f:data"]), None);
        let long = metadata(&[(&"é".repeat(100), late, Value::Null)]);
        assert_eq!(of_field(&long, &[]).unwrap().len(), NAME_BYTES);
    }
}
