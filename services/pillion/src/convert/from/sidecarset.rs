//! Converts `SidecarSet` resources of `OpenKruise`, which add containers, volumes and metadata to selected pods. The
//! strategy for upgrades of running pods is omitted with a remark, because the profile's own field `rollout` configures
//! them. Hot upgrades need Kruise's controller, so they get a remark too.

use serde_json::{Map, Value as Json, json};

use super::{Converted, Document, Remark, escaped, is_empty_value, literal, object_name, quoted};

/// The label that contains the name of each namespace.
const NAMESPACE_NAME: &str = "kubernetes.io/metadata.name";

/// The fields of a sidecar that Kubernetes containers do not have.
const OF_SIDECARS: [&str; 5] =
    ["podInjectPolicy", "upgradeStrategy", "shareVolumePolicy", "shareVolumeDevicePolicy", "transferEnv"];

/// Fields of the spec that are converted or need no conversion.
const KNOWN: [&str; 10] = [
    "selector",
    "namespace",
    "namespaceSelector",
    "specificNamespace",
    "initContainers",
    "containers",
    "volumes",
    "injectionStrategy",
    "imagePullSecrets",
    "patchPodMetadata",
];

/// Converts each resource to a profile.
///
/// # Errors
/// The first problem of each document that cannot be converted.
pub(crate) fn convert(documents: &[Document]) -> Result<Converted, Vec<Remark>> {
    let mut reader = Reader { notes: Vec::new() };
    let mut converted = Converted::default();
    let mut faults = Vec::new();
    for (index, document) in documents.iter().enumerate() {
        match reader.profile(index, &document.value) {
            Ok(Some(profile)) => converted.profiles.push(profile),
            Ok(None) => {}
            Err(fault) => faults.push(fault),
        }
    }
    converted.notes = reader.notes;
    if faults.is_empty() { Ok(converted) } else { Err(faults) }
}

struct Reader {
    notes: Vec<Remark>,
}

impl Reader {
    /// Converts one resource. Returns `None` if it is paused.
    fn profile(&mut self, index: usize, object: &Json) -> Result<Option<Json>, Remark> {
        let text = |pointer: &str| object.pointer(pointer).and_then(Json::as_str).filter(|text| !text.is_empty());
        let is_kruises = text("/apiVersion").is_some_and(|version| version.starts_with("apps.kruise.io/"));
        if text("/kind") != Some("SidecarSet") || !is_kruises {
            return Err(Remark::new(index, "kind", "this is not a SidecarSet of apps.kruise.io"));
        }
        let name =
            text("/metadata/name").ok_or_else(|| Remark::new(index, "metadata.name", "a SidecarSet needs a name"))?;
        let empty = Map::new();
        let spec = object.get("spec").and_then(Json::as_object).unwrap_or(&empty);
        for (field, _) in
            spec.iter().filter(|(field, value)| !KNOWN.contains(&field.as_str()) && !is_empty_value(value))
        {
            let (message, help) = match field.as_str() {
                "updateStrategy" => (
                    "left out, because the profile's own field `rollout` configures upgrades of running pods",
                    "set `rollout` in the profile (docs/in-place.md), or restart workloads with pillion rollout",
                ),
                "revisionHistoryLimit" => {
                    ("left out, because the controller determines how many revisions are kept", "see docs/revisions.md")
                }
                _ => ("left out, because profiles have no equivalent", "check this field manually"),
            };
            self.notes.push(Remark::new(index, format!("spec.{field}"), message).with_help(help));
        }
        let strategy = |field: &str| object.pointer(&format!("/spec/injectionStrategy/{field}"));
        if strategy("paused").and_then(Json::as_bool) == Some(true) {
            let message = "the SidecarSet is paused and injects into no pod: it is not converted";
            self.notes.push(Remark::new(index, "spec.injectionStrategy.paused", message));
            return Ok(None);
        }
        if strategy("revision").is_some_and(|revision| !is_empty_value(revision)) {
            let message = "the SidecarSet injects an older revision: the profile contains the latest one";
            self.notes.push(Remark::new(index, "spec.injectionStrategy.revision", message));
        }
        let mut profile = Map::new();
        profile.insert("description".to_owned(), escaped(&format!("SidecarSet {name}")).into());
        profile.insert("activation".to_owned(), "Always".into());
        if let Some(selector) = namespaces(spec) {
            profile.insert("namespaceSelector".to_owned(), selector);
        }
        if let Some(selector) = spec.get("selector").filter(|selector| !is_empty_value(selector)) {
            profile.insert("objectSelector".to_owned(), selector.clone());
        }
        let mut pod = Map::new();
        for list in ["initContainers", "containers"] {
            let sidecars = spec.get(list).and_then(Json::as_array).map(Vec::as_slice).unwrap_or_default();
            let sidecars: Vec<Json> = sidecars
                .iter()
                .enumerate()
                .map(|(place, sidecar)| self.container(index, list, place, sidecar))
                .collect::<Result<_, _>>()?;
            if !sidecars.is_empty() {
                pod.insert(list.to_owned(), sidecars.into());
            }
        }
        for list in ["volumes", "imagePullSecrets"] {
            if let Some(value) = spec.get(list).filter(|value| !is_empty_value(value)) {
                pod.insert(list.to_owned(), plain(index, value, &format!("spec.{list}"))?);
            }
        }
        let mut template = Map::new();
        if let Some(annotations) = self.annotations(index, spec)? {
            template.insert("metadata".to_owned(), json!({"annotations": annotations}));
        }
        if !pod.is_empty() {
            template.insert("spec".to_owned(), pod.into());
        }
        profile.insert("template".to_owned(), template.into());
        Ok(Some(json!({
            "apiVersion": "pillion.dev/v1alpha1",
            "kind": "ClusterInjectionProfile",
            "metadata": {"name": object_name(name)},
            "spec": profile,
        })))
    }

    fn container(&mut self, index: usize, list: &str, place: usize, sidecar: &Json) -> Result<Json, Remark> {
        let path = format!("spec.{list}[{place}]");
        let Some(fields) = sidecar.as_object() else { return Err(Remark::new(index, path, "expected a mapping")) };
        let text = |pointer: &str| sidecar.pointer(pointer).and_then(Json::as_str).unwrap_or_default();
        if text("/name").is_empty() {
            return Err(Remark::new(index, path, "a sidecar needs a `name`"));
        }
        let mut container = fields.clone();
        container.retain(|field, value| !OF_SIDECARS.contains(&field.as_str()) && !is_empty_value(value));
        let Json::Object(container) = plain(index, &container.into(), &path)? else {
            return Err(Remark::new(index, path, "expected a mapping"));
        };
        let mut made = Map::new();
        for (field, value) in container {
            let is_name = field == "name";
            made.insert(field, value);
            // By default, sidecars come before the application's containers.
            if is_name && list == "containers" && text("/podInjectPolicy") != "AfterAppContainer" {
                made.insert("$position".to_owned(), "First".into());
            }
        }
        if text("/upgradeStrategy/upgradeType") == "HotUpgrade" {
            let message = "only one container is created: a hot upgrade needs Kruise's own controller";
            self.notes.push(Remark::new(index, format!("{path}.upgradeStrategy"), message));
        }
        if text("/shareVolumePolicy/type") == "enabled" {
            let own = fields.get("volumeMounts").and_then(Json::as_array).into_iter().flatten();
            let own: Vec<_> = own.filter_map(|mount| Some(quoted(mount.get("mountPath")?.as_str()?))).collect();
            let shared = "containers.filter(c, c.type == 'App').map(c, c.?volumeMounts.orValue([])).flatten()";
            let shared = format!("{shared}.filter(m, !(m.mountPath in [{}]))", own.join(", "));
            let mounts = made.entry("volumeMounts").or_insert_with(|| json!([]));
            if let Some(mounts) = mounts.as_array_mut() {
                mounts.push(json!({"$forEach": shared, "$value": "${item}", "$conflict": "Keep"}));
            }
        }
        if !is_empty_value(fields.get("shareVolumeDevicePolicy").unwrap_or(&Json::Null)) {
            let message = "left out: the profile does not share devices of the application";
            self.notes.push(Remark::new(index, format!("{path}.shareVolumeDevicePolicy"), message));
        }
        self.transferred(index, &path, sidecar, &mut made);
        Ok(made.into())
    }

    /// Adds the environment variables that the sidecar copies from an application container.
    fn transferred(&mut self, index: usize, path: &str, sidecar: &Json, container: &mut Map<String, Json>) {
        let transfers = sidecar.get("transferEnv").and_then(Json::as_array).map(Vec::as_slice).unwrap_or_default();
        for (place, transfer) in transfers.iter().enumerate() {
            let path = format!("{path}.transferEnv[{place}]");
            let Some(source) =
                transfer.get("sourceContainerName").and_then(Json::as_str).filter(|name| !name.is_empty())
            else {
                let message = "left out, because the name of the container comes from the pod";
                let remark = Remark::new(index, path, message);
                self.notes.push(remark.with_help("write an element of `env` with $forEach over `containers`"));
                continue;
            };
            let one = transfer.get("envName").and_then(Json::as_str).filter(|name| !name.is_empty());
            let more = transfer.get("envNames").and_then(Json::as_array).into_iter().flatten().filter_map(Json::as_str);
            let names: Vec<String> = one.into_iter().chain(more).map(quoted).collect();
            let from = format!(
                "containers.filter(c, c.name == {}).map(c, c.?env.orValue([])).flatten().filter(e, e.name in [{}])",
                quoted(source),
                names.join(", ")
            );
            let env = container.entry("env").or_insert_with(|| json!([]));
            if let Some(env) = env.as_array_mut() {
                env.push(json!({"$forEach": from, "$value": "${item}", "$conflict": "Keep"}));
            }
        }
    }

    /// Returns the annotations to add to the pod, each with the conflict policy of its patch. Patches with an unknown
    /// policy are omitted with a remark. `None` if no annotation remains.
    fn annotations(&mut self, index: usize, spec: &Map<String, Json>) -> Result<Option<Json>, Remark> {
        let mut annotations = Map::new();
        let patches = spec.get("patchPodMetadata").and_then(Json::as_array).map(Vec::as_slice).unwrap_or_default();
        for (place, patch) in patches.iter().enumerate() {
            let path = format!("spec.patchPodMetadata[{place}]");
            let own = plain(index, patch.get("annotations").unwrap_or(&json!({})), &format!("{path}.annotations"))?;
            let conflict = match patch.get("patchPolicy").and_then(Json::as_str).unwrap_or("Retain") {
                "Retain" => "Keep",
                "Overwrite" => "Replace",
                other => {
                    let message = format!("annotations with the policy {other} are left out");
                    let remark = Remark::new(index, format!("{path}.patchPolicy"), message);
                    self.notes.push(remark.with_help("write them with $value and an expression"));
                    continue;
                }
            };
            for (key, value) in own.as_object().into_iter().flatten() {
                annotations.insert(key.clone(), json!({"$value": value, "$conflict": conflict}));
            }
        }
        Ok((!annotations.is_empty()).then(|| annotations.into()))
    }
}

/// Returns the selector for the resource's namespaces, or `None` if it selects all namespaces.
fn namespaces(spec: &Map<String, Json>) -> Option<Json> {
    // In `v1alpha1`, these fields are in the spec itself; in `v1beta1`, below `specificNamespace`.
    let spec = spec.get("specificNamespace").and_then(Json::as_object).unwrap_or(spec);
    let named =
        |names: Vec<Json>| json!({"matchExpressions": [{"key": NAMESPACE_NAME, "operator": "In", "values": names}]});
    if let Some(name) = spec.get("namespace").filter(|name| !is_empty_value(name)) {
        return Some(named(vec![name.clone()]));
    }
    let selector = spec.get("namespaceSelector").filter(|selector| !is_empty_value(selector))?;
    if let Some(names) = selector.get("namespaces").and_then(Json::as_array).filter(|names| !names.is_empty()) {
        return Some(named(names.clone()));
    }
    let mut selector = selector.clone();
    if let Some(fields) = selector.as_object_mut() {
        fields.shift_remove("namespaces");
    }
    Some(selector)
}

fn plain(index: usize, value: &Json, path: &str) -> Result<Json, Remark> {
    literal(value, path).map_err(|path| Remark::new(index, path, "a key with a `$` is not a Kubernetes field"))
}
