//! Finds pods in manifests: pods themselves, the pod templates of workloads, and items of lists. Also converts the
//! patch of such a pod to a patch of the whole manifest.

use anyhow::Context;
use clap::ValueEnum;
use json_patch::Patch;
use serde_json::{Map, Value, json};

use crate::difference;
use crate::output::{self, Format};
use crate::trial;

/// The kinds with a pod template: group, kind, and JSON pointer to the template.
const WORKLOADS: [(&str, &str, &str); 8] = [
    ("apps", "Deployment", "/spec/template"),
    ("apps", "StatefulSet", "/spec/template"),
    ("apps", "DaemonSet", "/spec/template"),
    ("apps", "ReplicaSet", "/spec/template"),
    ("batch", "Job", "/spec/template"),
    ("batch", "CronJob", "/spec/jobTemplate/spec/template"),
    ("", "ReplicationController", "/spec/template"),
    ("", "PodTemplate", "/template"),
];

/// The maximum nesting depth of lists.
const MAX_LISTS: usize = 8;

/// The position of a pod in a document, and the object that it belongs to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    /// JSON pointer from the document to the pod or the template.
    pub(crate) pointer: String,
    /// Kind of the pod or workload.
    pub(crate) kind: String,
    /// Name of the pod or workload, or its `generateName`.
    pub(crate) name: Option<String>,
    /// Namespace of the pod or workload, if it sets one.
    pub(crate) namespace: Option<String>,
    /// API version of the pod or workload.
    pub(crate) api_version: String,
    /// JSON pointer from the workload to the template; empty for a pod.
    below: &'static str,
}

/// Returns all pods of a document, in order.
pub(crate) fn pods(document: &Value) -> Vec<Place> {
    let mut places = Vec::new();
    collect(document, "", None, 0, &mut places);
    places
}

/// Collects the pods of an object. `assumed` is the version and kind of a list item that does not specify them, because
/// the list implies them, as in a `PodList`.
fn collect(object: &Value, pointer: &str, assumed: Option<(&str, &str)>, depth: usize, places: &mut Vec<Place>) {
    let text = |field: &str| object.get(field).and_then(Value::as_str);
    let (Some(version), Some(kind)) = (
        text("apiVersion").or_else(|| assumed.map(|(version, _)| version)),
        text("kind").or_else(|| assumed.map(|(_, kind)| kind)),
    ) else {
        return;
    };
    if let (Some(item), Some(items)) = (kind.strip_suffix("List"), object.get("items").and_then(Value::as_array)) {
        if depth < MAX_LISTS {
            let assumed = (!item.is_empty()).then_some((version, item));
            for (index, item) in items.iter().enumerate() {
                collect(item, &format!("{pointer}/items/{index}"), assumed, depth + 1, places);
            }
        }
        return;
    }
    let group = version.split_once('/').map_or("", |(group, _)| group);
    let below = if (group, kind) == ("", "Pod") {
        Some("")
    } else {
        WORKLOADS.iter().find(|(g, k, _)| (*g, *k) == (group, kind)).map(|(_, _, template)| *template)
    };
    let Some(below) = below.filter(|below| object.pointer(below).is_some_and(Value::is_object)) else { return };
    let metadata = |field: &str| Some(object.get("metadata")?.get(field)?.as_str()?.to_owned());
    places.push(Place {
        pointer: format!("{pointer}{below}"),
        kind: kind.to_owned(),
        name: metadata("name").or_else(|| metadata("generateName")),
        namespace: metadata("namespace"),
        api_version: version.to_owned(),
        below,
    });
}

impl Place {
    /// Formats the object's name: `Deployment shop/web`.
    pub(crate) fn describe(&self, default_namespace: &str) -> String {
        let namespace = self.namespace.as_deref().unwrap_or(default_namespace);
        format!("{} {namespace}/{}", self.kind, self.name.as_deref().unwrap_or("?"))
    }

    /// Returns the path from the document to the pod or workload, in the format of [`crate::load::yaml::Node::place`]:
    /// `items[0]`. It is empty unless the document is a list.
    pub(crate) fn path(&self) -> String {
        let pointer = self.pointer.strip_suffix(self.below).unwrap_or(&self.pointer);
        pointer.split("/items/").skip(1).map(|index| format!("items[{index}]")).collect::<Vec<_>>().join(".")
    }

    /// Returns the workload that contains the template. `None` for a pod, and for a `PodTemplate`.
    pub(crate) fn workload<'d>(&self, document: &'d Value) -> Option<&'d Value> {
        let pointer = self.pointer.strip_suffix(self.below).filter(|_| !self.below.is_empty())?;
        document.pointer(pointer).filter(|_| self.kind != "PodTemplate")
    }

    /// Returns the owner reference from the pod to its workload. `None` for a pod, for a `PodTemplate`, and for a
    /// workload without a name.
    pub(crate) fn owner(&self, document: &Value) -> Option<Value> {
        trial::owner_reference(self.workload(document)?, &self.api_version, &self.kind)
    }

    /// Returns the pod as the API server would send it to a webhook: with its namespace and, for a template, in the
    /// form in which a controller would create it. The workload itself is the owner. In a cluster, an object with a
    /// generated name is between a Deployment or CronJob and its pods, but that name cannot be derived from a manifest.
    pub(crate) fn pod(&self, document: &Value, namespace: &str) -> Value {
        let part = |field: &str| document.pointer(&self.pointer).and_then(|pod| pod.get(field)).cloned();
        let mut metadata = match part("metadata") {
            Some(Value::Object(metadata)) => metadata,
            _ => Map::new(),
        };
        metadata.insert("namespace".to_owned(), namespace.into());
        if !self.below.is_empty() {
            metadata.remove("name");
            metadata.insert("generateName".to_owned(), format!("{}-", self.name.as_deref().unwrap_or("pod")).into());
        }
        if let Some(owner) = self.owner(document) {
            metadata.insert("ownerReferences".to_owned(), json!([owner]));
        }
        let mut pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": metadata});
        if let Some(fields) = pod.as_object_mut() {
            let rest = document.pointer(&self.pointer).and_then(Value::as_object).into_iter().flatten();
            let rest = rest.filter(|(key, _)| !["apiVersion", "kind", "metadata"].contains(&key.as_str()));
            fields.extend(rest.map(|(key, value)| (key.clone(), value.clone())));
        }
        pod
    }
}

/// Applies the patch of a pod to its document, and returns the patch of the document. `patch` is `None` if nothing
/// changes.
pub(crate) fn apply(document: &mut Value, place: &Place, patch: Option<&[u8]>) -> anyhow::Result<Vec<Value>> {
    let Some(patch) = patch else { return Ok(Vec::new()) };
    let mut operations: Vec<Value> = serde_json::from_slice(patch).context("the patch is not a list of operations")?;
    for operation in &mut operations {
        for field in ["path", "from"] {
            if let Some(Value::String(path)) = operation.get_mut(field) {
                path.insert_str(0, &place.pointer);
            }
        }
    }
    // The reviewed pod had metadata, but the manifest may have none.
    let bare = document.pointer(&place.pointer).is_some_and(|pod| pod.get("metadata").is_none_or(Value::is_null));
    let metadata = format!("{}/metadata", place.pointer);
    let touched = operations.iter().any(|operation| {
        let target = operation.get("path").and_then(Value::as_str);
        target
            .and_then(|path| path.strip_prefix(&metadata))
            .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    });
    if bare && touched {
        operations.insert(0, json!({"op": "add", "path": metadata, "value": {}}));
    }
    let rfc6902: Patch =
        serde_json::from_value(Value::Array(operations.clone())).context("the patch is not a valid JSON patch")?;
    json_patch::patch(document, &rfc6902).context("the patch does not apply")?;
    if bare && touched {
        metadata_first(document, place);
    }
    Ok(operations)
}

/// Moves new metadata to its usual position; a JSON patch does not define the order of keys.
fn metadata_first(document: &mut Value, place: &Place) {
    let Some(Value::Object(pod)) = document.pointer_mut(&place.pointer) else { return };
    if let Some(metadata) = pod.shift_remove("metadata") {
        let index = pod.keys().take_while(|key| ["apiVersion", "kind"].contains(&key.as_str())).count();
        pod.shift_insert(index, "metadata".to_owned(), metadata);
    }
}

/// The output format.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Output {
    /// The objects, as YAML documents.
    Yaml,
    /// One JSON object; a List for several objects.
    Json,
    /// The JSON patch (RFC 6902) of each document.
    Patch,
    /// A unified diff of the YAML of each changed document, in colours on a terminal.
    Diff,
}

/// A document of a manifest, before and after the change.
#[derive(Clone, Debug)]
pub(crate) struct Changed {
    /// The document as read.
    pub(crate) before: Value,
    /// The changed document.
    pub(crate) after: Value,
    /// The JSON patch from `before` to `after`.
    pub(crate) patch: Vec<Value>,
}

/// Prints documents. `what` describes the change, such as `injected`.
pub(crate) fn print(
    documents: Vec<Changed>,
    output: Output,
    what: &str,
    default_namespace: &str,
) -> anyhow::Result<()> {
    let format = match output {
        Output::Patch => {
            let patches = documents.into_iter().map(|document| output::json(&Value::Array(document.patch)));
            return output::print(&patches.collect::<anyhow::Result<String>>()?);
        }
        Output::Diff => {
            let differences = documents.iter().map(|document| diff(document, what, default_namespace));
            return output::show(&differences.collect::<anyhow::Result<String>>()?);
        }
        Output::Yaml => Format::Yaml,
        Output::Json => Format::Json,
    };
    let objects: Vec<_> = documents.into_iter().map(|document| document.after).collect();
    output::print(&output::objects(&objects, format)?)
}

fn diff(Changed { before, after, .. }: &Changed, what: &str, default_namespace: &str) -> anyhow::Result<String> {
    let name = name(before, default_namespace);
    difference::of((&name, before), (&format!("{name}, {what}"), after))
}

/// Returns the label of a document: the kind and name of its only pod or workload, else the document's kind.
fn name(document: &Value, default_namespace: &str) -> String {
    match pods(document).as_slice() {
        [one] => one.describe(default_namespace),
        _ => document.get("kind").and_then(Value::as_str).unwrap_or("document").to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pointers(document: &Value) -> Vec<String> {
        pods(document).into_iter().map(|place| format!("{} {}", place.kind, place.pointer)).collect()
    }

    #[test]
    fn pods_and_templates_are_found_at_any_depth() {
        let template = json!({"spec": {"containers": []}});
        let document = json!({"apiVersion": "v1", "kind": "List", "items": [
            {"apiVersion": "v1", "kind": "Pod", "spec": {}},
            {"apiVersion": "v1", "kind": "ConfigMap"},
            {"apiVersion": "apps/v1", "kind": "Deployment", "spec": {"template": template}},
            {"apiVersion": "batch/v1", "kind": "CronJob", "spec": {"jobTemplate": {"spec": {"template": template}}}},
            {"apiVersion": "v1", "kind": "PodList", "items": [{"spec": {}}]},
            {"apiVersion": "example.com/v1", "kind": "Deployment", "spec": {"template": template}},
            {"apiVersion": "apps/v1", "kind": "StatefulSet", "spec": {}},
        ]});
        assert_eq!(
            pointers(&document),
            [
                "Pod /items/0",
                "Deployment /items/2/spec/template",
                "CronJob /items/3/spec/jobTemplate/spec/template",
                "Pod /items/4/items/0",
            ]
        );
    }

    #[test]
    fn lists_in_lists_are_bounded() {
        let mut document = json!({"apiVersion": "v1", "kind": "Pod"});
        for _ in 0..100 {
            document = json!({"apiVersion": "v1", "kind": "List", "items": [document]});
        }
        assert_eq!(pods(&document), []);
    }

    #[test]
    fn template_becomes_pod_like_controller() {
        let document = json!({
            "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web", "namespace": "shop"},
            "spec": {"template": {"metadata": {"labels": {"a": "b"}}, "spec": {"x": 1}}},
        });
        let place = &pods(&document)[0];
        assert_eq!(place.describe("default"), "Deployment shop/web");
        let pod = place.pod(&document, "shop");
        let owner = json!({"apiVersion": "apps/v1", "kind": "Deployment", "name": "web", "controller": true});
        let metadata =
            json!({"labels": {"a": "b"}, "namespace": "shop", "generateName": "web-", "ownerReferences": [owner]});
        assert_eq!(pod, json!({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": {"x": 1}}));
    }

    #[test]
    fn pods_without_named_workload_have_no_owner() {
        let of = |version: &str, kind: &str, metadata: Value, template: Value| {
            let document = json!({"apiVersion": version, "kind": kind, "metadata": metadata,
                "spec": {"template": template, "containers": []}, "template": template});
            pods(&document)[0].pod(&document, "shop")["metadata"]["ownerReferences"].clone()
        };
        let template = || json!({"spec": {}});
        assert_eq!(of("v1", "Pod", json!({"name": "web"}), template()), Value::Null);
        assert_eq!(of("v1", "PodTemplate", json!({"name": "web"}), template()), Value::Null);
        assert_eq!(of("batch/v1", "Job", json!({"generateName": "sync-"}), template()), Value::Null);
        let stored = of("batch/v1", "Job", json!({"name": "sync", "uid": "u"}), template());
        let expected = json!({"apiVersion": "batch/v1", "kind": "Job", "name": "sync", "controller": true, "uid": "u"});
        assert_eq!(stored, json!([expected]));
    }

    #[test]
    fn pod_patch_applies_to_its_document() {
        let before = json!({"apiVersion": "v1", "kind": "List", "items": [
            {"apiVersion": "apps/v1", "kind": "Deployment", "spec": {"template": {"spec": {"a": 1}}}}]});
        let patch = json!([
            {"op": "add", "path": "/metadata/labels", "value": {"x": "y"}},
            {"op": "move", "from": "/spec/a", "path": "/spec/b"},
        ]);
        let mut after = before.clone();
        let place = &pods(&before)[0];
        let operations = apply(&mut after, place, Some(patch.to_string().as_bytes())).unwrap();
        let expected = r#"{"metadata":{"labels":{"x":"y"}},"spec":{"b":1}}"#;
        assert_eq!(after["items"][0]["spec"]["template"].to_string(), expected);
        let mut again = before;
        json_patch::patch(&mut again, &serde_json::from_value::<Patch>(operations.into()).unwrap()).unwrap();
        assert_eq!(again, after);
        assert!(apply(&mut after, place, None).unwrap().is_empty());
    }

    #[test]
    fn inapplicable_patch_is_reported_without_changes() {
        let mut document = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {}, "spec": {}});
        let before = document.clone();
        let place = pods(&document)[0].clone();
        let patch = br#"[{"op":"add","path":"/spec/a","value":1},{"op":"remove","path":"/spec/b"}]"#;
        assert!(apply(&mut document, &place, Some(patch)).is_err());
        assert_eq!(document, before);
    }
}
