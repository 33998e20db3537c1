//! Reads from `managedFields` when a field was set: the time at which its manager last changed one of its fields.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ManagedFieldsEntry, ObjectMeta, Time};
use pillion_api::opt_in::OptIn;
use serde_json::Value;

/// Times of changes of a namespace, in seconds since 1970.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NamespaceAge {
    /// When the opt-in label was set, or somewhat earlier.
    pub opted_in: Option<i64>,
    /// When another label or annotation last changed.
    pub changed: Option<i64>,
}

/// Times of changes of a profile, in seconds since 1970.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProfileAge {
    /// When it was created.
    pub created: Option<i64>,
    /// When its text last changed.
    pub changed: Option<i64>,
}

impl NamespaceAge {
    /// Reads the metadata of a namespace; `opt_in` has the labels by which namespaces opt in.
    #[must_use]
    pub fn of(metadata: &ObjectMeta, opt_in: &OptIn) -> Self {
        let is_opt_in_label =
            |field: &str| opt_in.labels().iter().any(|label| field.strip_prefix("f:") == Some(&*label.key));
        let fields = |entry: &ManagedFieldsEntry, part: &str| {
            let fields = entry.fields_v1.as_ref().map(|fields| &fields.0);
            fields.and_then(|fields| fields.get("f:metadata")?.get(part)).cloned()
        };
        let sets = |entry: &ManagedFieldsEntry| {
            let labels = fields(entry, "f:labels");
            labels.iter().filter_map(Value::as_object).any(|labels| labels.keys().any(|field| is_opt_in_label(field)))
        };
        let others = |entry: &ManagedFieldsEntry| {
            let names = ["f:labels", "f:annotations"].map(|part| fields(entry, part));
            let is_other = |name: &String| name.starts_with("f:") && !is_opt_in_label(name);
            names.iter().flatten().filter_map(Value::as_object).any(|fields| fields.keys().any(is_other))
        };
        Self { opted_in: latest(metadata, sets), changed: latest(metadata, others) }
    }
}

impl ProfileAge {
    /// Reads the metadata of a profile.
    #[must_use]
    pub fn of(metadata: &ObjectMeta) -> Self {
        let created = metadata.creation_timestamp.as_ref().map(seconds);
        let text = |entry: &ManagedFieldsEntry| {
            entry.subresource.as_deref().unwrap_or_default().is_empty()
                && entry.fields_v1.as_ref().is_some_and(|fields| fields.0.get("f:spec").is_some())
        };
        Self { created, changed: latest(metadata, text) }
    }
}

/// Converts to seconds since 1970.
pub(super) fn seconds(time: &Time) -> i64 {
    time.0.as_second()
}

fn latest(metadata: &ObjectMeta, is_it: impl Fn(&ManagedFieldsEntry) -> bool) -> Option<i64> {
    let entries = metadata.managed_fields.iter().flatten().filter(|entry| is_it(entry));
    entries.filter_map(|entry| entry.time.as_ref()).map(seconds).max()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn metadata(managed: &Value) -> ObjectMeta {
        let metadata = json!({"creationTimestamp": "1970-01-01T00:00:10Z", "managedFields": managed});
        serde_json::from_value(metadata).unwrap()
    }

    #[test]
    fn the_label_is_as_old_as_what_its_manager_did_last() {
        let namespace = metadata(&json!([
            {"time": "1970-01-01T00:00:10Z",
             "fieldsV1": {"f:metadata": {"f:labels": {".": {}, "f:kubernetes.io/metadata.name": {}}}}},
            {"time": "1970-01-01T00:01:00Z", "fieldsV1": {"f:metadata": {"f:labels": {"f:pillion.dev/injection": {}}}}},
            {"time": "1970-01-01T00:02:00Z", "subresource": "status", "fieldsV1": {"f:status": {"f:phase": {}}}},
        ]));
        let (own, both) = (OptIn::default(), OptIn::with(["istio-injection=enabled"]).unwrap());
        for opt_in in [&own, &both] {
            assert_eq!(NamespaceAge::of(&namespace, opt_in), NamespaceAge { opted_in: Some(60), changed: Some(10) });
            assert_eq!(NamespaceAge::of(&ObjectMeta::default(), opt_in), NamespaceAge::default());
        }
        let kept = metadata(&json!([
            {"time": "1970-01-01T00:01:00Z", "fieldsV1": {"f:metadata": {"f:labels": {"f:istio-injection": {}}}}},
        ]));
        assert_eq!(NamespaceAge::of(&kept, &own), NamespaceAge { opted_in: None, changed: Some(60) });
        assert_eq!(NamespaceAge::of(&kept, &both), NamespaceAge { opted_in: Some(60), changed: None });
    }

    #[test]
    fn a_profile_changes_with_its_text_and_not_with_its_status() {
        let profile = metadata(&json!([
            {"time": "1970-01-01T00:00:30Z", "fieldsV1": {"f:spec": {"f:template": {}}}},
            {"time": "1970-01-01T00:01:00Z", "subresource": "status", "fieldsV1": {"f:status": {}, "f:spec": {}}},
        ]));
        assert_eq!(ProfileAge::of(&profile), ProfileAge { created: Some(10), changed: Some(30) });
    }
}
