//! Checks templates, so that errors are reported when a profile is stored instead of when an object is created.
//!
//! The engine knows the schema of pods, but not of other objects. The API server checks the resulting other objects
//! against its own schemas. The metadata of all objects has the same fields, and templates cannot set some of them.

use std::collections::{HashMap, HashSet};

use pillion_api::parameter::Parameter;
use pillion_api::profile::ProfileSpec;
use serde_json::{Map, Value as Json};

use super::Diagnostic;
use super::elements::{Element, elements, entries, is_computed, literal, value_of};
use super::pod_schema::{Kind, RESTART_POLICIES, is_one_of};
use super::template::without_directives;
use super::typed::{Root, called, check_types};
use super::unmarked::warn_of_unmarked_expressions;
use crate::expression::closest;

/// The maximum size of a template as JSON, in bytes. The largest known template, for a service mesh proxy, is a tenth
/// of this size.
pub const MAX_TEMPLATE_BYTES: usize = 64 * 1024;

/// The maximum nesting of a template.
const MAX_DEPTH: usize = 32;

/// The lists of a pod's spec that contain containers.
const CONTAINER_LISTS: [&str; 2] = ["initContainers", "containers"];

/// Whether the size of a template is within the limit. Otherwise adds an error to `diagnostics`.
pub(super) fn is_small(path: &str, template: &Json, diagnostics: &mut Vec<Diagnostic>) -> bool {
    let size = template.to_string().len();
    if size > MAX_TEMPLATE_BYTES {
        let message = format!("the template is {size} bytes as JSON; {MAX_TEMPLATE_BYTES} are allowed");
        diagnostics.push(Diagnostic::new(path, message));
    }
    size <= MAX_TEMPLATE_BYTES
}

/// Checks the template of a profile for pods. Returns false if it is nested too deeply for further checks.
pub(super) fn check_template(template: &Json, parameters: &[Parameter], diagnostics: &mut Vec<Diagnostic>) -> bool {
    if !check_values("spec.template", template, 0, diagnostics) {
        return false;
    }
    check_types("spec.template", template, Root::Pod, parameters, diagnostics);
    let Some(fields) = value_of(template).as_object() else {
        diagnostics.push(Diagnostic::new("spec.template", "the template must be an object"));
        return true;
    };
    for (name, value) in entries(fields) {
        let path = format!("spec.template.{name}");
        match name.as_str() {
            "metadata" => check_metadata(&path, value, diagnostics),
            "spec" => check_spec(&path, value, diagnostics),
            _ => diagnostics.push(
                Diagnostic::new(path, format!("a pod's template has no field {name:?}"))
                    .with_help("the template is a partial pod: it has metadata and spec")
                    .of_name(),
            ),
        }
    }
    true
}

/// Checks the template of a container patch, which is a partial container. Returns false if it is nested too deeply for
/// further checks.
pub(super) fn check_container_template(
    path: &str,
    template: &Json,
    parameters: &[Parameter],
    diagnostics: &mut Vec<Diagnostic>,
) -> bool {
    if !check_values(path, template, 0, diagnostics) {
        return false;
    }
    let Some(fields) = value_of(template).as_object() else {
        diagnostics.push(Diagnostic::new(path, "the template must be an object"));
        return true;
    };
    check_types(path, template, Root::Container, parameters, diagnostics);
    if fields.contains_key("name") {
        let diagnostic = Diagnostic::new(format!("{path}.name"), "a container patch cannot rename a container");
        diagnostics.push(diagnostic.with_help("select containers by match.names of the patch").of_name());
    }
    check_lists(path, fields, diagnostics);
    true
}

/// Returns the error in the key of a label or annotation. `None` if the key is valid.
pub(super) fn check_key(key: &str) -> Option<String> {
    let (prefix, name) = key.split_once('/').map_or((None, key), |(prefix, name)| (Some(prefix), name));
    let edge = |text: &str| {
        text.starts_with(|c: char| c.is_ascii_alphanumeric()) && text.ends_with(|c: char| c.is_ascii_alphanumeric())
    };
    let name_ok = (1..=63).contains(&name.len())
        && edge(name)
        && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte));
    let prefix_ok = prefix.is_none_or(|prefix| {
        (1..=253).contains(&prefix.len())
            && edge(prefix)
            && prefix.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"-.".contains(&byte))
    });
    (!name_ok || !prefix_ok).then(|| {
        format!("{key:?} is not a key of labels and annotations: an optional DNS name and a slash, then at most 63 letters, digits, '-', '_' and '.'")
    })
}

/// Reports nulls in a template. Returns false if the template is nested too deeply.
pub(super) fn check_values(path: &str, value: &Json, depth: usize, diagnostics: &mut Vec<Diagnostic>) -> bool {
    if depth > MAX_DEPTH {
        diagnostics.push(Diagnostic::new(path, format!("the template is nested more than {MAX_DEPTH} levels deep")));
        return false;
    }
    match value {
        Json::Object(fields) => {
            return fields
                .iter()
                .all(|(name, value)| check_values(&format!("{path}.{name}"), value, depth + 1, diagnostics));
        }
        Json::Array(items) => {
            let mut items = items.iter().enumerate();
            return items.all(|(index, item)| check_values(&format!("{path}[{index}]"), item, depth + 1, diagnostics));
        }
        Json::Null => diagnostics.push(
            Diagnostic::new(path, "a template cannot contain null, because kubectl apply would drop it")
                .with_help("leave the field out"),
        ),
        Json::String(_) | Json::Bool(_) | Json::Number(_) => {}
    }
    true
}

fn check_metadata(path: &str, metadata: &Json, diagnostics: &mut Vec<Diagnostic>) {
    for (name, value) in value_of(metadata).as_object().into_iter().flat_map(entries) {
        let path = format!("{path}.{name}");
        if !matches!(name.as_str(), "labels" | "annotations") {
            diagnostics.push(
                Diagnostic::new(path, format!("a template cannot set metadata.{name}"))
                    .with_help("it can set labels and annotations")
                    .of_name(),
            );
            continue;
        }
        for (key, _) in value_of(value).as_object().into_iter().flat_map(entries) {
            let path = format!("{path}[{key:?}]");
            if let Some(sentence) = check_key(key) {
                diagnostics.push(Diagnostic::new(&path, sentence).of_name());
            }
            if key.starts_with("pillion.dev/") {
                diagnostics.push(Diagnostic::new(&path, "keys below pillion.dev/ are reserved for Pillion").of_name());
            }
        }
    }
}

fn check_spec(path: &str, spec: &Json, diagnostics: &mut Vec<Diagnostic>) {
    let Some(fields) = value_of(spec).as_object() else { return };
    let mut containers = Names::default();
    for list in CONTAINER_LISTS {
        for container in elements(path, fields, list) {
            containers.check_label(&container, diagnostics);
            check_image(&container, diagnostics);
            check_restart_policy(list, &container, diagnostics);
            check_lists(&container.path, container.fields, diagnostics);
        }
    }
    let mut volumes = Names::default();
    for volume in elements(path, fields, "volumes") {
        volumes.check_label(&volume, diagnostics);
        check_source(&volume, diagnostics);
    }
}

/// Checks that an added container has an image. If the container is a copy (`$value`), the image may be that of the
/// original.
fn check_image(container: &Element<'_>, diagnostics: &mut Vec<Diagnostic>) {
    if container.is_whole && !container.fields.contains_key("image") {
        diagnostics.push(Diagnostic::new(&container.path, "an added container needs an image"));
    }
}

/// Checks the restart policy. Only init containers may have one.
fn check_restart_policy(list: &str, container: &Element<'_>, diagnostics: &mut Vec<Diagnostic>) {
    let Some(policy) = container.fields.get("restartPolicy").map(value_of) else { return };
    let path = format!("{}.restartPolicy", container.path);
    if list == "containers" {
        let diagnostic = Diagnostic::new(path, "a container in spec.containers cannot have a restartPolicy");
        diagnostics.push(diagnostic.with_help("a native sidecar belongs in initContainers").of_name());
    } else if let Some(other) = literal(policy).filter(|text| !is_one_of(RESTART_POLICIES, text)) {
        let message = format!("expected {}, found {other:?}", Kind::Word(RESTART_POLICIES).expected());
        diagnostics.push(Diagnostic::new(path, message).with_help("Always makes it a native sidecar"));
    }
}

/// Reports a volume that has more than one unconditional source, or a whole volume that has no source at all. A source
/// is conditional if `$when` or an expression may leave it out.
fn check_source(volume: &Element<'_>, diagnostics: &mut Vec<Diagnostic>) {
    let sources = || entries(volume.fields).filter(|(name, _)| *name != "name");
    let may_be_left_out = |source: &Json| is_computed(source) || source.get("$when").is_some();
    let certain: Vec<_> = sources().filter(|(_, source)| !may_be_left_out(source)).map(|(name, _)| name).collect();
    if certain.len() > 1 {
        let message = format!("a volume has exactly one source, found {certain:?}");
        diagnostics.push(Diagnostic::new(&volume.path, message));
    } else if sources().next().is_none() && volume.is_whole {
        let diagnostic = Diagnostic::new(&volume.path, "a volume has exactly one source, found none");
        diagnostics.push(diagnostic.with_help("for instance emptyDir: {}"));
    }
}

/// Checks the environment variables, ports and mounts of a container: their required fields, unique keys and port
/// numbers.
fn check_lists(path: &str, container: &Map<String, Json>, diagnostics: &mut Vec<Diagnostic>) {
    for (list, keys, unique) in [
        ("env", &["name"][..], Some("name")),
        ("ports", &["containerPort"], None),
        ("volumeMounts", &["mountPath", "name"], Some("mountPath")),
    ] {
        let mut names = Names::default();
        for element in elements(path, container, list) {
            for key in keys.iter().filter(|key| element.is_whole && !element.fields.contains_key(**key)) {
                diagnostics.push(Diagnostic::new(&element.path, format!("an element of {list} needs {key}")));
            }
            if let Some(key) = unique {
                names.check_unique(&element, key, diagnostics);
            }
            let port = (list == "ports").then(|| element.fields.get("containerPort").map(value_of)?.as_i64()).flatten();
            if port.is_some_and(|port| !(1..=65_535).contains(&port)) {
                let path = format!("{}.containerPort", element.path);
                diagnostics.push(Diagnostic::new(path, "expected a port from 1 to 65535"));
            }
        }
    }
}

/// The names of elements, each with the path of its last use, and whether that element is conditional.
#[derive(Default)]
struct Names {
    taken: HashMap<String, (String, bool)>,
}

impl Names {
    /// Checks that an element has a valid and unique name.
    fn check_label(&mut self, element: &Element<'_>, diagnostics: &mut Vec<Diagnostic>) {
        if !element.fields.contains_key("name") && element.is_whole {
            diagnostics.push(Diagnostic::new(&element.path, "an element of this list needs a name"));
        }
        let Some(name) = element.fields.get("name").map(value_of).and_then(literal) else { return };
        if let Some(rule) = Kind::Label.rule_broken_by(&name) {
            let path = format!("{}.name", element.path);
            diagnostics.push(
                Diagnostic::new(path, format!("{name:?} is not a name that Kubernetes accepts here")).with_help(rule),
            );
        }
        self.check_unique(element, "name", diagnostics);
    }

    /// Checks that no other element has the same string in this field. Conditional elements may share it, because their
    /// conditions may exclude each other.
    fn check_unique(&mut self, element: &Element<'_>, key: &str, diagnostics: &mut Vec<Diagnostic>) {
        let Some(name) = element.fields.get(key).map(value_of).and_then(literal) else { return };
        let now = (element.path.clone(), element.is_conditional);
        let Some((first, was_conditional)) = self.taken.insert(name.clone(), now) else { return };
        if !element.is_conditional && !was_conditional {
            let message = format!("the {key} {name:?} is also used at {first}");
            diagnostics
                .push(Diagnostic::new(format!("{}.{key}", element.path), message).with_help("remove one of them"));
        }
    }
}

/// Top-level fields that templates for objects other than pods cannot set, with the reasons.
const FORBIDDEN_FIELDS: [(&str, &str); 3] = [
    ("apiVersion", "the target of the profile determines it"),
    ("kind", "the target of the profile determines it"),
    ("status", "controllers set the status"),
];

/// Metadata fields that templates for objects other than pods can set.
const METADATA: [&str; 4] = ["labels", "annotations", "finalizers", "ownerReferences"];

/// Checks a template for an object other than a pod. Returns false if it is nested too deeply for further checks.
pub(super) fn check_object(template: &Json, diagnostics: &mut Vec<Diagnostic>) -> bool {
    if !check_values("spec.template", template, 0, diagnostics) {
        return false;
    }
    let template = &without_directives(template);
    let Some(fields) = object("spec.template", template, diagnostics) else { return true };
    for (field, why) in FORBIDDEN_FIELDS.iter().filter(|(field, _)| fields.contains_key(*field)) {
        let diagnostic = Diagnostic::new(format!("spec.template.{field}"), format!("a template cannot set {field}"));
        diagnostics.push(diagnostic.with_help(*why));
    }
    if let Some(metadata) = fields.get("metadata") {
        check_object_metadata(metadata, diagnostics);
    }
    true
}

fn check_object_metadata(metadata: &Json, diagnostics: &mut Vec<Diagnostic>) {
    let path = "spec.template.metadata";
    let Some(fields) = object(path, metadata, diagnostics) else { return };
    for field in fields.keys().filter(|field| !METADATA.contains(&field.as_str())) {
        let diagnostic = Diagnostic::new(format!("{path}.{field}"), format!("a template cannot set metadata.{field}"));
        diagnostics.push(diagnostic.with_help(format!("it can set {}", METADATA.join(", "))));
    }
    for map in ["labels", "annotations"] {
        let path = format!("{path}.{map}");
        let entries = fields.get(map).and_then(|entries| object(&path, entries, diagnostics));
        for (key, value) in entries.into_iter().flat_map(Map::iter) {
            let path = format!("{path}[{key:?}]");
            if let Some(sentence) = check_key(key) {
                diagnostics.push(Diagnostic::new(&path, sentence));
            }
            if key.starts_with("pillion.dev/") {
                diagnostics.push(Diagnostic::new(&path, "keys below pillion.dev/ are reserved for Pillion"));
            }
            if !value.is_string() {
                let message = format!("expected a string, found {}", called(value));
                diagnostics.push(Diagnostic::new(&path, message).with_help("quote it"));
            }
        }
    }
    for list in ["finalizers", "ownerReferences"] {
        if let Some(other) = fields.get(list).filter(|value| !value.is_array() && !value.is_string()) {
            let message = format!("expected a list, found {}", called(other));
            diagnostics.push(Diagnostic::new(format!("{path}.{list}"), message));
        }
    }
}

fn object<'t>(path: &str, value: &'t Json, diagnostics: &mut Vec<Diagnostic>) -> Option<&'t Map<String, Json>> {
    let object = value.as_object();
    // The type of an expression's result is not known during compilation.
    if object.is_none() && !value.is_string() {
        diagnostics.push(Diagnostic::new(path, format!("expected an object, found {}", called(value))));
    }
    object
}

/// Returns warnings about a valid profile: mounts of volumes that the profile does not add, container patches with the
/// name of an added container that they do not select, values that older versions of Kubernetes reject, and strings
/// that look like expressions.
#[must_use]
pub fn warnings(spec: &ProfileSpec) -> Vec<Diagnostic> {
    let mut warnings = Vec::new();
    warn_of_unmarked_expressions(spec, &mut warnings);
    let template = spec.template.as_ref().map(value_of).and_then(|template| template.get("spec"));
    let pod = template.map(value_of).and_then(Json::as_object);
    check_patch_names(spec, pod, &mut warnings);
    for container in pod.into_iter().flat_map(|pod| elements("spec.template.spec", pod, "initContainers")) {
        if let Some(policy) = container.fields.get("restartPolicy").map(value_of).and_then(literal)
            && policy != "Always"
        {
            let path = format!("{}.restartPolicy", container.path);
            let message = format!("API servers before 1.35 reject pods with {policy} on an init container");
            warnings.push(Diagnostic::new(path, message));
        }
    }
    let Some(volumes) = added_volumes(pod) else { return warnings };
    for list in CONTAINER_LISTS {
        for container in pod.into_iter().flat_map(|pod| elements("spec.template.spec", pod, list)) {
            check_mounts(&container.path, container.fields, &volumes, &mut warnings);
        }
    }
    for (index, patch) in spec.container_patches.iter().enumerate() {
        if let Some(container) = value_of(&patch.template).as_object() {
            check_mounts(&format!("spec.containerPatches[{index}].template"), container, &volumes, &mut warnings);
        }
    }
    warnings
}

/// Warns of container patches without `match` that have the name of an added container. The name of a patch does not
/// select containers, so such a patch changes the containers of the pod's author.
fn check_patch_names(spec: &ProfileSpec, pod: Option<&Map<String, Json>>, warnings: &mut Vec<Diagnostic>) {
    let added =
        CONTAINER_LISTS.into_iter().flat_map(|list| pod.into_iter().flat_map(move |pod| elements("", pod, list)));
    let names: HashSet<_> =
        added.filter_map(|container| container.fields.get("name").map(value_of).and_then(literal)).collect();
    for (index, patch) in spec.container_patches.iter().enumerate() {
        if patch.match_.is_none() && names.contains(&patch.name) {
            let message = format!("{:?} only names the patch, which changes all containers of type App", patch.name);
            let help = "select containers by match; fields of an added container belong in spec.template.spec";
            warnings.push(Diagnostic::new(format!("spec.containerPatches[{index}].name"), message).with_help(help));
        }
    }
}

/// Returns the names of the volumes that a template adds. `None` if some names are computed.
fn added_volumes(pod: Option<&Map<String, Json>>) -> Option<HashSet<String>> {
    let Some(field) = pod.and_then(|pod| pod.get("volumes")) else { return Some(HashSet::new()) };
    let known = value_of(field).as_array()?.iter().all(|item| !is_computed(item));
    let volumes = pod.into_iter().flat_map(|pod| elements("", pod, "volumes"));
    let names = volumes.map(|volume| volume.fields.get("name").map(value_of).and_then(literal));
    let names: Option<HashSet<_>> = names.collect();
    names.filter(|_| known)
}

fn check_mounts(path: &str, container: &Map<String, Json>, volumes: &HashSet<String>, warnings: &mut Vec<Diagnostic>) {
    for mount in elements(path, container, "volumeMounts") {
        let Some(name) = mount.fields.get("name").map(value_of).and_then(literal) else { continue };
        if !volumes.contains(&name) {
            let message = format!("this profile adds no volume {name:?}; pods without such a volume are not changed");
            let help = match closest(&name, volumes.iter().map(String::as_str)) {
                Some(meant) => format!("did you mean {meant}?"),
                None => "add it to spec.template.spec.volumes, unless the pods have it".to_owned(),
            };
            warnings.push(Diagnostic::new(format!("{}.name", mount.path), message).with_help(help));
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn spec(spec: &Json) -> Vec<String> {
        let mut diagnostics = Vec::new();
        check_spec("s", spec, &mut diagnostics);
        diagnostics.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn accepts_computed_values() {
        let right = json!({
            "volumes": [
                {"name": "v-${index}", "$forEach": "x", "emptyDir": {}},
                {"name": "w", "emptyDir": {"$when": "a"}, "configMap": {"$when": "!a", "name": "c"}},
                {"name": "x", "emptyDir": "${variables.dir}", "secret": {"secretName": "s"}},
                {"$value": "${variables.volume}", "name": "y"},
                {"$prune": "item.name == 'z'"},
                "${variables.volumes}",
            ],
            "initContainers": "${variables.containers}",
            "containers": [
                {"name": "${params.name}", "image": "${params.image}"},
                {"$value": "${primary}", "name": "copy"},
                {"$when": "a", "name": "b", "image": "i:1"},
                {"$when": "!a", "name": "b", "image": "i:2"},
                {"name": "c", "image": {"$value": "i", "$conflict": "Keep"}, "env": [
                    {"$when": "a", "$value": [{"name": "A", "value": "1"}, {"name": "B", "value": "1"}]},
                    {"name": "A", "value": "2"},
                    {"$forEach": "existing", "value": "3"},
                ]},
            ],
        });
        assert_eq!(spec(&right), Vec::<String>::new());
    }

    #[test]
    fn reports_mistakes_beside_expressions() {
        for (wrong, expected) in [
            (
                json!({"containers": [{"name": "a", "image": "i"}, {"$value": [{"name": "a", "image": "i"}]}]}),
                "s.containers[1].$value[0].name: the name \"a\" is also used at s.containers[0]",
            ),
            (
                json!({"containers": [{"name": "a", "image": "i"}], "initContainers": [{"name": "a", "image": "i"}]}),
                "s.containers[0].name: the name \"a\" is also used at s.initContainers[0]",
            ),
            (
                json!({"containers": [{"$when": "x", "image": "i"}]}),
                "s.containers[0]: an element of this list needs a name",
            ),
            (json!({"containers": [{"$when": "x", "name": "a"}]}), "s.containers[0]: an added container needs"),
            (
                json!({"volumes": [{"name": "v", "emptyDir": {}, "configMap": {}}]}),
                "s.volumes[0]: a volume has exactly one source, found [\"emptyDir\", \"configMap\"]",
            ),
            (
                json!({"volumes": [{"$when": "a", "name": "v"}]}),
                "s.volumes[0]: a volume has exactly one source, found none",
            ),
            (
                json!({"containers": [{"name": "a", "image": "i", "env": [{"name": "A"}, {"name": "A"}]}]}),
                "s.containers[0].env[1].name: the name \"A\" is also used at s.containers[0].env[0]",
            ),
            (
                json!({"containers": [{"name": "a", "image": "i", "volumeMounts": [
                    {"name": "v", "mountPath": "/a"}, {"name": "w", "mountPath": "/a"}]}]}),
                "s.containers[0].volumeMounts[1].mountPath: the mountPath \"/a\" is also used at",
            ),
            (
                json!({"initContainers": [{"name": "a", "image": "i", "restartPolicy": "always"}]}),
                "s.initContainers[0].restartPolicy: expected Always, Never or OnFailure, found \"always\"",
            ),
        ] {
            let diagnostics = spec(&wrong);
            assert!(
                diagnostics.len() == 1 && diagnostics[0].starts_with(expected),
                "{diagnostics:?} is not {expected:?}"
            );
        }
    }

    #[test]
    fn checks_template_of_container_patch() {
        let diagnostics = |template: &Json| {
            let mut diagnostics = Vec::new();
            check_container_template("t", template, &[], &mut diagnostics);
            diagnostics.iter().map(ToString::to_string).collect::<Vec<_>>()
        };
        assert_eq!(diagnostics(&json!({"env": [{"$when": "x", "name": "A", "value": "b"}]})), Vec::<String>::new());
        for (template, expected) in [
            (json!({"name": "x"}), "t.name: a container patch cannot rename a container"),
            (json!({"env": [{"value": "b"}]}), "t.env[0]: an element of env needs name"),
            (json!({"volumeMounts": [{"name": "v"}]}), "t.volumeMounts[0]: an element of volumeMounts needs mountPath"),
            (json!({"imge": "x"}), "t.imge: Kubernetes has no field"),
            (json!([]), "t: the template must be an object"),
        ] {
            let diagnostics = diagnostics(&template);
            assert!(
                diagnostics.len() == 1 && diagnostics[0].starts_with(expected),
                "{diagnostics:?} is not {expected:?}"
            );
        }
    }

    fn object_diagnostics(template: &Json) -> Vec<String> {
        let mut diagnostics = Vec::new();
        check_object(template, &mut diagnostics);
        diagnostics.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn rejects_protected_fields_of_objects() {
        for (template, path) in [
            (json!({"kind": "Pod"}), "spec.template.kind"),
            (json!({"status": {"ready": true}}), "spec.template.status"),
            (json!({"metadata": {"name": "x"}}), "spec.template.metadata.name"),
            (json!({"metadata": {"managedFields": []}}), "spec.template.metadata.managedFields"),
            (json!({"metadata": {"finalizers": 1}}), "spec.template.metadata.finalizers"),
            (json!({"metadata": {"labels": {"bad key": "x"}}}), "spec.template.metadata.labels[\"bad key\"]"),
            (json!({"metadata": {"labels": {"n": 1}}}), "spec.template.metadata.labels[\"n\"]"),
            (json!({"metadata": {"annotations": {"pillion.dev/injected": ""}}}), "spec.template.metadata.annotations"),
            (json!([]), "spec.template"),
            (json!({"spec": null}), "spec.template.spec"),
        ] {
            let diagnostics = object_diagnostics(&template);
            let found = diagnostics.iter().any(|diagnostic| diagnostic.starts_with(path));
            assert_eq!(found, !path.is_empty(), "{template}: {diagnostics:?}");
        }
    }

    #[test]
    fn accepts_unknown_fields_of_objects() {
        let template = json!({
            "metadata": {"finalizers": {"$value": ["example.com/a"], "$join": {}}, "labels": {"a": "b"}},
            "spec": {"contaners": "anything", "containers": [{"name": "no-image"}], "health": {"periodSeconds": 5}},
            "data": {"a": "b"},
        });
        assert_eq!(object_diagnostics(&template), Vec::<String>::new());
    }

    fn warnings_of(template: &Json) -> Vec<String> {
        let spec = serde_json::from_value(json!({"template": {"spec": template}})).unwrap();
        warnings(&spec).iter().map(ToString::to_string).collect()
    }

    fn mounting(name: &str, volumes: &Json) -> Json {
        json!({"containers": [{"name": "a", "volumeMounts": [{"name": name, "mountPath": "/a"}]}], "volumes": volumes})
    }

    #[test]
    fn warns_of_mount_without_volume() {
        let found = warnings_of(&mounting("cache", &json!([{"name": "cahce", "emptyDir": {}}])));
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(
            found[0].starts_with("spec.template.spec.containers[0].volumeMounts[0].name: this profile adds no volume")
        );
        assert!(found[0].ends_with("(help: did you mean cahce?)"), "{found:?}");
        assert!(warnings_of(&mounting("cache", &json!([])))[0].contains("unless the pods have it"));
        let patch = json!({"name": "r", "template": {"volumeMounts": [{"name": "x", "mountPath": "/x"}]}});
        let spec = serde_json::from_value(json!({"containerPatches": [patch]})).unwrap();
        let found = warnings(&spec);
        assert_eq!(found[0].path, "spec.containerPatches[0].template.volumeMounts[0].name");
    }

    #[test]
    fn warns_of_patch_named_like_added_container() {
        let paths = |patch: &Json| {
            let template = json!({"spec": {"containers": [{"name": "agent", "image": "i"}]}});
            let spec = serde_json::from_value(json!({"template": template, "containerPatches": [patch]})).unwrap();
            warnings(&spec).into_iter().map(|diagnostic| diagnostic.path).collect::<Vec<_>>()
        };
        assert_eq!(paths(&json!({"name": "agent", "template": {}})), ["spec.containerPatches[0].name"]);
        assert!(paths(&json!({"name": "apps", "template": {}})).is_empty());
        let injected = json!({"name": "agent", "match": {"types": ["Injected"]}, "template": {}});
        assert!(paths(&injected).is_empty());
    }

    #[test]
    fn no_warning_if_volume_may_exist() {
        for volumes in [
            json!([{"name": "cache", "emptyDir": {}}]),
            json!([{"$when": "x", "$value": [{"name": "cache", "emptyDir": {}}]}]),
            json!([{"name": "${params.volume}", "emptyDir": {}}]),
            json!(["${variables.volume}"]),
            json!("${variables.volumes}"),
        ] {
            assert_eq!(warnings_of(&mounting("cache", &volumes)), Vec::<String>::new(), "{volumes}");
        }
        assert_eq!(warnings_of(&mounting("${params.volume}", &json!([]))), Vec::<String>::new());
    }
}
