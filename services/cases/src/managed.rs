//! Writes `metadata.managedFields` as the API server computes them for a new object, whose author owns all fields.

use serde_json::{Map, Value as Json, json};

use pillion_engine::inject::is_whole;
use pillion_engine::schema::{Field, KeyedList, Type};

/// Fields of objects that managedFields never list.
const UNMANAGED: [&str; 2] = ["apiVersion", "kind"];

/// Fields of metadata that managedFields never list.
const UNMANAGED_METADATA: [&str; 8] =
    ["creationTimestamp", "generation", "managedFields", "name", "namespace", "resourceVersion", "selfLink", "uid"];

/// Returns `managedFields` with one entry, in which the author owns all fields of the object.
pub(crate) fn entry(object: &Map<String, Json>, type_: &'static Type) -> Json {
    let mut written = object.clone();
    written.retain(|key, _| !UNMANAGED.contains(&key.as_str()));
    if let Some(metadata) = written.get_mut("metadata").and_then(Json::as_object_mut) {
        metadata.retain(|key, _| !UNMANAGED_METADATA.contains(&key.as_str()));
    }
    json!([{
        "manager": "author",
        "operation": "Update",
        "apiVersion": object.get("apiVersion"),
        "time": "2026-01-01T00:00:00Z",
        "fieldsType": "FieldsV1",
        "fieldsV1": of_map(&written, Some(type_)),
    }])
}

fn of_map(members: &Map<String, Json>, type_: Option<&'static Type>) -> Json {
    let fields = members.iter().filter(|(_, value)| !value.is_null());
    let fields = fields.map(|(key, value)| {
        let below = match (value, type_.and_then(|type_| type_.field(key))) {
            (Json::Object(_), _) if is_whole(key) => json!({}),
            (Json::Object(members), Some(Field::Object(type_))) => of_map(members, Some(type_)),
            (Json::Object(members), _) => of_map(members, None),
            (Json::Array(items), Some(Field::Keyed(list))) => of_list(items, list),
            _ => json!({}),
        };
        (format!("f:{key}"), below)
    });
    Json::Object(fields.collect())
}

fn of_list(items: &[Json], list: &'static KeyedList) -> Json {
    let elements = items.iter().enumerate().map(|(index, item)| match (item.as_object(), key(item, list)) {
        (Some(members), Some(key)) => {
            let mut below = Map::from_iter([(".".to_owned(), json!({}))]);
            if let Json::Object(fields) = of_map(members, Some(list.element)) {
                below.extend(fields);
            }
            (format!("k:{key}"), Json::Object(below))
        }
        _ => (format!("i:{index}"), json!({})),
    });
    Json::Object(elements.collect())
}

/// Returns the fields that identify an element of a list, as an object.
fn key(item: &Json, list: &KeyedList) -> Option<Json> {
    let fields = list.keys.iter().map(|field| {
        let default = || {
            let (_, default) = list.defaults.iter().find(|(name, _)| name == field)?;
            serde_json::from_str(default).ok()
        };
        Some(((*field).to_owned(), item.get(*field).cloned().or_else(default)?))
    });
    fields.collect::<Option<Map<_, _>>>().map(Json::Object)
}

#[cfg(test)]
mod tests {
    use super::*;
    use pillion_engine::schema;

    /// Removes the `FieldsV1` keys that no profile reads: `.` (ownership of the list item itself) and `v:...` (set
    /// elements).
    fn plain(fields: &Json) -> Json {
        match fields {
            Json::Object(members) => members
                .iter()
                .filter(|(key, _)| *key != "." && !key.starts_with("v:"))
                .map(|(key, value)| (key.clone(), plain(value)))
                .collect::<Map<_, _>>()
                .into(),
            other => other.clone(),
        }
    }

    #[test]
    fn managed_fields_match_real_api_server() {
        let mut compared = 0;
        for text in [
            include_str!("../../engine/tests/reviews/create-bare-pod.json"),
            include_str!("../../engine/tests/reviews/create-deployment-pod.json"),
            include_str!("../../engine/tests/reviews/create-pod-with-native-sidecar.json"),
            include_str!("../../engine/tests/reviews/create-statefulset-pod.json"),
        ] {
            let review: Json = serde_json::from_str(text).unwrap();
            let object = review["request"]["object"].as_object().unwrap();
            let observed = &object["metadata"]["managedFields"];
            // `computed` may contain more fields: earlier admission steps added some, which the author does not own.
            let observed = plain(&observed[0]["fieldsV1"]);
            let computed = plain(&entry(object, &schema::POD)[0]["fieldsV1"]);
            let mut unknown = Vec::new();
            collect_missing(&observed, &computed, "", &mut unknown);
            assert_eq!(unknown, Vec::<String>::new(), "{observed:#}");
            compared += 1;
        }
        assert_eq!(compared, 4);
    }

    /// Collects the fields that are in `observed` only.
    fn collect_missing(observed: &Json, computed: &Json, path: &str, unknown: &mut Vec<String>) {
        for (key, below) in observed.as_object().unwrap() {
            match computed.get(key) {
                Some(other) => collect_missing(below, other, &format!("{path} {key}"), unknown),
                None => unknown.push(format!("{path} {key}")),
            }
        }
    }
}
