//! Checks templates for pods. Every mistake is found when a profile is stored, not when a pod is created.

use std::collections::HashMap;

use pillion_api::parameter::Parameter;
use serde_json::{Map, Value as Json};

use super::Diagnostic;
use super::elements::{Element, elements, entries, is_computed, literal, value_of};
use super::pod_schema::Kind;
use super::typed::{Root, check_types};

/// The maximum size of a template as JSON, in bytes. A service mesh proxy, the largest in use, needs a tenth of it.
pub const MAX_TEMPLATE_BYTES: usize = 64 * 1024;

/// The maximum nesting of a template.
const MAX_DEPTH: usize = 32;

/// The lists of a pod's spec that hold containers.
const CONTAINER_LISTS: [&str; 2] = ["initContainers", "containers"];

/// Returns whether the size of a template is within its limit. Mistakes go to `diagnostics`.
pub(super) fn is_small(path: &str, template: &Json, diagnostics: &mut Vec<Diagnostic>) -> bool {
    let size = template.to_string().len();
    if size > MAX_TEMPLATE_BYTES {
        let message = format!("the template is {size} bytes as JSON; {MAX_TEMPLATE_BYTES} are allowed");
        diagnostics.push(Diagnostic::new(path, message));
    }
    size <= MAX_TEMPLATE_BYTES
}

/// Checks a template by itself. Returns false if it is nested too deeply for further checks.
pub(super) fn check_template(template: &Json, parameters: &[Parameter], diagnostics: &mut Vec<Diagnostic>) -> bool {
    if !check_values("spec.template", template, 0, diagnostics) {
        return false;
    }
    check_types("spec.template", template, Root::Pod, parameters, diagnostics);
    let Some(fields) = value_of(template).as_object() else {
        diagnostics.push(Diagnostic::new("spec.template", "the template has to be an object"));
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

/// Checks the template of a container rule, a partial container, at `spec.containers[i].template`. Returns false if it
/// is nested too deeply for further checks.
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
        diagnostics.push(Diagnostic::new(path, "the template has to be an object"));
        return true;
    };
    check_types(path, template, Root::Container, parameters, diagnostics);
    if fields.contains_key("name") {
        let diagnostic = Diagnostic::new(format!("{path}.name"), "a rule cannot give a container another name");
        diagnostics.push(diagnostic.with_help("say under match for which containers it is").of_name());
    }
    check_lists(path, fields, diagnostics);
    true
}

/// Returns the mistake in the key of a label or annotation; `None` if the key is valid.
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

/// Checks all values. Returns false if they are nested too deeply.
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
            Diagnostic::new(path, "a template has no null: kubectl apply would drop it")
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
                diagnostics.push(Diagnostic::new(&path, "keys below pillion.dev/ are Pillion's own").of_name());
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

/// An added container needs an image. A clone (`$value`) may bring one.
fn check_image(container: &Element<'_>, diagnostics: &mut Vec<Diagnostic>) {
    if container.is_whole && !container.fields.contains_key("image") {
        diagnostics.push(Diagnostic::new(&container.path, "a container that is added needs an image"));
    }
}

/// `restartPolicy: Always` makes an init container a native sidecar; nothing else is allowed on a container.
fn check_restart_policy(list: &str, container: &Element<'_>, diagnostics: &mut Vec<Diagnostic>) {
    let Some(policy) = container.fields.get("restartPolicy").map(value_of) else { return };
    let path = format!("{}.restartPolicy", container.path);
    if list == "containers" {
        let diagnostic = Diagnostic::new(path, "a container of the pod's main list has no restartPolicy of its own");
        diagnostics.push(diagnostic.with_help("a native sidecar stands in initContainers").of_name());
    } else if policy != "Always" && !is_computed(policy) {
        diagnostics.push(Diagnostic::new(path, "expected Always, which makes it a native sidecar"));
    }
}

/// A volume has exactly one source. Sources that may be left out are not counted, because one may remain.
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

/// Checks the keyed lists of a container.
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

/// The names of elements, each with the path of its latest use.
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
                Diagnostic::new(path, format!("{name:?} is not a name that Kubernetes takes here")).with_help(rule),
            );
        }
        self.check_unique(element, "name", diagnostics);
    }

    /// Checks that no other element has the same string in a field. Conditional elements may share it, because their
    /// conditions decide which one remains.
    fn check_unique(&mut self, element: &Element<'_>, key: &str, diagnostics: &mut Vec<Diagnostic>) {
        let Some(name) = element.fields.get(key).map(value_of).and_then(literal) else { return };
        let now = (element.path.clone(), element.is_conditional);
        let Some((first, was_conditional)) = self.taken.insert(name.clone(), now) else { return };
        if !element.is_conditional && !was_conditional {
            let message = format!("the {key} {name:?} stands at {first} too");
            diagnostics
                .push(Diagnostic::new(format!("{}.{key}", element.path), message).with_help("take one of them away"));
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
    fn what_expressions_decide_is_not_held_against_a_template() {
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
                    {"$each": "true", "value": "3"},
                ]},
            ],
        });
        assert_eq!(spec(&right), Vec::<String>::new());
    }

    #[test]
    fn what_is_wrong_whatever_expressions_say_is_found() {
        for (wrong, told) in [
            (
                json!({"containers": [{"name": "a", "image": "i"}, {"$value": [{"name": "a", "image": "i"}]}]}),
                "s.containers[1].$value[0].name: the name \"a\" stands at s.containers[0] too",
            ),
            (
                json!({"containers": [{"name": "a", "image": "i"}], "initContainers": [{"name": "a", "image": "i"}]}),
                "s.containers[0].name: the name \"a\" stands at s.initContainers[0] too",
            ),
            (
                json!({"containers": [{"$when": "x", "image": "i"}]}),
                "s.containers[0]: an element of this list needs a name",
            ),
            (json!({"containers": [{"$when": "x", "name": "a"}]}), "s.containers[0]: a container that is added needs"),
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
                "s.containers[0].env[1].name: the name \"A\" stands at s.containers[0].env[0] too",
            ),
            (
                json!({"containers": [{"name": "a", "image": "i", "volumeMounts": [
                    {"name": "v", "mountPath": "/a"}, {"name": "w", "mountPath": "/a"}]}]}),
                "s.containers[0].volumeMounts[1].mountPath: the mountPath \"/a\" stands at",
            ),
            (
                json!({"initContainers": [{"name": "a", "image": "i", "restartPolicy": "Never"}]}),
                "s.initContainers[0].restartPolicy: expected Always",
            ),
        ] {
            let diagnostics = spec(&wrong);
            assert!(diagnostics.len() == 1 && diagnostics[0].starts_with(told), "{diagnostics:?} is not {told:?}");
        }
    }

    #[test]
    fn a_rules_template_is_a_part_of_a_container() {
        let diagnostics = |template: &Json| {
            let mut diagnostics = Vec::new();
            check_container_template("t", template, &[], &mut diagnostics);
            diagnostics.iter().map(ToString::to_string).collect::<Vec<_>>()
        };
        assert_eq!(diagnostics(&json!({"env": [{"$when": "x", "name": "A", "value": "b"}]})), Vec::<String>::new());
        for (template, told) in [
            (json!({"name": "x"}), "t.name: a rule cannot give a container another name"),
            (json!({"env": [{"value": "b"}]}), "t.env[0]: an element of env needs name"),
            (json!({"volumeMounts": [{"name": "v"}]}), "t.volumeMounts[0]: an element of volumeMounts needs mountPath"),
            (json!({"imge": "x"}), "t.imge: Kubernetes has no field"),
            (json!([]), "t: the template has to be an object"),
        ] {
            let diagnostics = diagnostics(&template);
            assert!(diagnostics.len() == 1 && diagnostics[0].starts_with(told), "{diagnostics:?} is not {told:?}");
        }
    }
}
