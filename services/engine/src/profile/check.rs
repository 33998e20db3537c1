//! What a template may say. Everything here is found when a profile is stored, not when a pod is created.

use std::collections::HashMap;

use serde_json::{Map, Value as Json};

use super::Diagnostic;
use super::template::without_directives;
use super::typed::check_types;

/// How deep a template may be nested.
const MAX_DEPTH: usize = 32;

/// The lists of a pod's spec whose elements a template adds by name, and what a name is.
const CONTAINER_LISTS: [&str; 2] = ["initContainers", "containers"];

/// Checks a template, as far as a template can be wrong by itself. Whether it is not nested too deeply to be looked at
/// further.
pub(super) fn check_template(template: &Json, faults: &mut Vec<Diagnostic>) -> bool {
    if !check_values("spec.template", template, 0, faults) {
        return false;
    }
    let template = &without_directives(template);
    check_types(template, faults);
    let Some(fields) = template.as_object() else {
        faults.push(Diagnostic::new("spec.template", "the template has to be an object"));
        return true;
    };
    for (name, value) in fields {
        let path = format!("spec.template.{name}");
        match name.as_str() {
            "metadata" => check_metadata(&path, value, faults),
            "spec" => check_spec(&path, value, faults),
            _ => faults.push(
                Diagnostic::new(path, format!("a pod's template has no field {name:?}"))
                    .with_help("the template is a partial pod: it has metadata and spec"),
            ),
        }
    }
    true
}

/// What is wrong with the key of a label or annotation; `None` if nothing is.
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

/// What is wrong in any value, wherever it stands. Whether it is not nested too deeply.
pub(super) fn check_values(path: &str, value: &Json, depth: usize, faults: &mut Vec<Diagnostic>) -> bool {
    if depth > MAX_DEPTH {
        faults.push(Diagnostic::new(path, format!("the template is nested more than {MAX_DEPTH} levels deep")));
        return false;
    }
    match value {
        Json::Object(fields) => {
            return fields
                .iter()
                .all(|(name, value)| check_values(&format!("{path}.{name}"), value, depth + 1, faults));
        }
        Json::Array(items) => {
            let mut items = items.iter().enumerate();
            return items.all(|(index, item)| check_values(&format!("{path}[{index}]"), item, depth + 1, faults));
        }
        Json::String(text) if text.contains("${") => faults.push(
            Diagnostic::new(path, "expressions in ${...} are not supported by this build")
                .with_help("write the value itself"),
        ),
        Json::Null => faults.push(
            Diagnostic::new(path, "a template has no null: kubectl apply would drop it")
                .with_help("leave the field out"),
        ),
        Json::String(_) | Json::Bool(_) | Json::Number(_) => {}
    }
    true
}

fn check_metadata(path: &str, metadata: &Json, faults: &mut Vec<Diagnostic>) {
    let Some(fields) = object(path, metadata, faults) else { return };
    for (name, value) in fields {
        let path = format!("{path}.{name}");
        if !matches!(name.as_str(), "labels" | "annotations") {
            faults.push(
                Diagnostic::new(path, format!("a template cannot set metadata.{name}"))
                    .with_help("it can set labels and annotations"),
            );
            continue;
        }
        for (key, value) in object(&path, value, faults).into_iter().flatten() {
            let path = format!("{path}[{key:?}]");
            if let Some(sentence) = check_key(key) {
                faults.push(Diagnostic::new(&path, sentence));
            }
            if key.starts_with("pillion.dev/") {
                faults.push(Diagnostic::new(&path, "keys below pillion.dev/ are Pillion's own"));
            }
            if !value.is_string() {
                faults.push(
                    Diagnostic::new(&path, format!("expected a string, found {}", kind(value))).with_help("quote it"),
                );
            }
        }
    }
}

fn check_spec(path: &str, spec: &Json, faults: &mut Vec<Diagnostic>) {
    let Some(fields) = object(path, spec, faults) else { return };
    let mut containers = HashMap::new();
    for list in CONTAINER_LISTS {
        for (path, container) in elements(path, fields, list, faults) {
            let taken = check_name(&path, container, 63, &mut containers, faults);
            if let Some(image) = taken.then(|| container.get("image")) {
                match image {
                    Some(Json::String(image)) if !image.trim().is_empty() => {}
                    Some(other) => faults.push(Diagnostic::new(
                        format!("{path}.image"),
                        format!("expected the name of an image, found {}", kind(other)),
                    )),
                    None => faults.push(Diagnostic::new(&path, "a container that is added needs an image")),
                }
            }
            check_restart_policy(&path, list, container, faults);
            check_keyed(&path, container, "env", &["name"], faults);
            check_keyed(&path, container, "ports", &["containerPort"], faults);
            check_keyed(&path, container, "volumeMounts", &["mountPath", "name"], faults);
            for (path, port) in elements(&path, container, "ports", faults) {
                let number = port.get("containerPort").and_then(Json::as_i64);
                if number.is_some_and(|number| !(1..=65_535).contains(&number)) {
                    faults.push(Diagnostic::new(format!("{path}.containerPort"), "expected a port from 1 to 65535"));
                }
            }
        }
    }
    let mut volumes = HashMap::new();
    for (path, volume) in elements(path, fields, "volumes", faults) {
        check_name(&path, volume, 63, &mut volumes, faults);
        let sources: Vec<_> = volume.keys().filter(|field| *field != "name").collect();
        if sources.len() != 1 {
            let found = if sources.is_empty() { "none".to_owned() } else { format!("{sources:?}") };
            faults.push(Diagnostic::new(path, format!("a volume has exactly one source, found {found}")));
        }
    }
}

/// `restartPolicy: Always` makes an init container a native sidecar; nothing else is allowed on a container.
fn check_restart_policy(path: &str, list: &str, container: &Map<String, Json>, faults: &mut Vec<Diagnostic>) {
    let Some(policy) = container.get("restartPolicy") else { return };
    let path = format!("{path}.restartPolicy");
    if list == "containers" {
        let fault = Diagnostic::new(path, "a container of the pod's main list has no restartPolicy of its own");
        faults.push(fault.with_help("a native sidecar stands in initContainers"));
    } else if policy != "Always" {
        faults.push(Diagnostic::new(path, "expected Always, which makes it a native sidecar"));
    }
}

/// Checks the name of an element, and that no other has it. Whether it has one at all.
fn check_name(
    path: &str,
    element: &Map<String, Json>,
    longest: usize,
    taken: &mut HashMap<String, String>,
    faults: &mut Vec<Diagnostic>,
) -> bool {
    let Some(name) = element.get("name").and_then(Json::as_str) else {
        faults.push(Diagnostic::new(path, "an element of this list needs a name"));
        return false;
    };
    let label = (1..=longest).contains(&name.len())
        && name.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-')
        && !name.starts_with('-')
        && !name.ends_with('-');
    if !label {
        faults.push(
            Diagnostic::new(format!("{path}.name"), format!("{name:?} is not a name that Kubernetes takes here"))
                .with_help("at most 63 lower-case letters, digits and '-', with a letter or digit at both ends"),
        );
    }
    if let Some(first) = taken.insert(name.to_owned(), path.to_owned()) {
        faults.push(Diagnostic::new(format!("{path}.name"), format!("the name {name:?} stands at {first} too")));
    }
    true
}

/// Checks that the elements of a container's list are objects with their keys.
fn check_keyed(path: &str, container: &Map<String, Json>, list: &str, keys: &[&str], faults: &mut Vec<Diagnostic>) {
    for (path, element) in elements(path, container, list, faults) {
        for key in keys.iter().filter(|key| !element.contains_key(**key)) {
            faults.push(Diagnostic::new(&path, format!("an element of {list} needs {key}")));
        }
    }
}

/// The elements of a list of objects, each with its path. What is not a list of objects is a fault.
fn elements<'t>(
    path: &str,
    fields: &'t Map<String, Json>,
    list: &str,
    faults: &mut Vec<Diagnostic>,
) -> Vec<(String, &'t Map<String, Json>)> {
    let path = format!("{path}.{list}");
    let items = match fields.get(list) {
        None => return Vec::new(),
        Some(Json::Array(items)) => items,
        Some(other) => {
            faults.push(Diagnostic::new(path, format!("expected a list, found {}", kind(other))));
            return Vec::new();
        }
    };
    let mut elements = Vec::new();
    for (index, item) in items.iter().enumerate() {
        let path = format!("{path}[{index}]");
        if let Some(element) = object(&path, item, faults) {
            elements.push((path, element));
        }
    }
    elements
}

pub(super) fn object<'t>(path: &str, value: &'t Json, faults: &mut Vec<Diagnostic>) -> Option<&'t Map<String, Json>> {
    let object = value.as_object();
    if object.is_none() {
        faults.push(Diagnostic::new(path, format!("expected an object, found {}", kind(value))));
    }
    object
}

pub(super) const fn kind(value: &Json) -> &'static str {
    match value {
        Json::Null => "null",
        Json::Bool(_) => "a boolean",
        Json::Number(_) => "a number",
        Json::String(_) => "a string",
        Json::Array(_) => "a list",
        Json::Object(_) => "an object",
    }
}
