//! The fields that the author of the request wrote, according to `metadata.managedFields`.
//!
//! In a CREATE review, `managedFields` list the fields that the author wrote, without fields that admission plugins
//! added. The API server computes `managedFields`. They show whether the author wrote a value of an overlay container
//! or a `LimitRange` set it as a default.

use crate::json::Value;

/// The fields that the author of the request wrote.
#[derive(Clone, Copy)]
pub(super) struct ManagedFields<'a> {
    managed: Option<Value<'a>>,
}

impl<'a> ManagedFields<'a> {
    pub(super) fn of(object: Value<'a>) -> Self {
        let managed = object.at(&["metadata", "managedFields"]);
        Self { managed: managed.filter(|managed| managed.items().next().is_some()) }
    }

    /// Returns the maximum number of bytes that [`ManagedFields::wrote`] reads.
    pub(super) fn size(self) -> usize {
        self.managed.map_or(0, |managed| managed.raw().len())
    }

    /// Whether the author wrote the value at a pointer. True if the object has no `managedFields`.
    pub(super) fn wrote(self, pointer: &str) -> bool {
        let Some(managed) = self.managed else { return true };
        managed.items().any(|entry| {
            let fields = entry.get("fieldsV1");
            fields.is_some_and(|fields| names(fields, pointer.split('/').skip(1)))
        })
    }
}

/// Whether a `fieldsV1` set contains the path with these tokens, or a parent that is owned as a whole.
fn names<'p>(fields: Value<'_>, mut tokens: impl Iterator<Item = &'p str>) -> bool {
    let Some(token) = tokens.next() else { return true };
    let name = token.replace("~1", "/").replace("~0", "~");
    let below = fields.members().find_map(|(key, value)| {
        let key = key.text();
        let is_named = match key.split_once(':') {
            Some(("f", field)) => field == name,
            Some(("k", keys)) => is_key(keys, &name),
            _ => false,
        };
        is_named.then_some(value)
    });
    match below {
        // An empty set means either that the field is owned as a whole, or that the author left a map empty: the API
        // server writes `f:resources: {}` for every container.
        Some(below) if below.members().next().is_none() => tokens.next().is_none() || is_whole(&name),
        Some(below) => names(below, tokens),
        None => false,
    }
}

/// Whether a map field with this name is owned as a whole (`x-kubernetes-map-type: atomic`).
#[must_use]
pub fn is_whole(field: &str) -> bool {
    matches!(field, "nodeSelector" | "labelSelector" | "resourceClaimTemplate") || field.ends_with("Ref")
}

/// Whether `keys`, a JSON object, has the key values in `name`, the unescaped token of an element.
fn is_key(keys: &str, name: &str) -> bool {
    // Most keys differ, and this check avoids parsing them.
    if !keys.contains('\\') && !name.split(',').all(|part| keys.contains(part)) {
        return false;
    }
    let Ok(serde_json::Value::Object(keys)) = serde_json::from_str(keys) else { return false };
    let values = keys.values().map(|value| value.as_str().map_or_else(|| value.to_string(), str::to_owned));
    values.collect::<Vec<_>>().join(",") == name
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::json::OwnedTape;

    #[test]
    fn managed_fields_exclude_admission_defaults() {
        let object = json!({"metadata": {"managedFields": [{"fieldsV1": {"f:spec": {"f:nodeSelector": {}, "f:containers": {
            "k:{\"name\":\"proxy\"}": {
                ".": {}, "f:image": {}, "f:args": {}, "f:resources": {},
                "f:env": {".": {}, "k:{\"name\":\"A\"}": {".": {}, "f:name": {}, "f:value": {}}},
                "f:ports": {"k:{\"containerPort\":80,\"protocol\":\"TCP\"}": {"f:name": {}}},
            },
        }}}}]}});
        let tape = OwnedTape::parse(object.to_string()).unwrap();
        let managed = ManagedFields::of(tape.root());
        for (pointer, wrote) in [
            ("/spec/containers/proxy/image", true),
            ("/spec/containers/proxy/env/A/value", true),
            ("/spec/containers/proxy/env/B/value", false),
            ("/spec/containers/proxy/ports/80,TCP/name", true),
            ("/spec/containers/proxy/resources", true),
            ("/spec/containers/proxy/resources/limits/cpu", false),
            ("/spec/nodeSelector/disk", true),
            ("/spec/containers/other/image", false),
        ] {
            assert_eq!(managed.wrote(pointer), wrote, "{pointer}");
        }
        let unknown = OwnedTape::parse("{}").unwrap();
        assert!(
            ManagedFields::of(unknown.root()).wrote("/spec/x"),
            "without managedFields, the author wrote all fields"
        );
    }
}
