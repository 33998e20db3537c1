//! Converts configurations of morvencao's sidecar injector. A configuration contains containers and volumes under one
//! key of a `ConfigMap`. Pods request injection with an annotation.

use serde_json::{Map, Value as Json, json};

use super::{Converted, Document, Remark, literal, object_name};

/// The lists that a configuration can contain.
const LISTS: [&str; 3] = ["initContainers", "containers", "volumes"];

/// The default prefix of the annotations.
pub(crate) const PREFIX: &str = "sidecar-injector-webhook.morven.me";

/// Options of the conversion.
#[derive(Clone, Debug)]
pub(crate) struct Options {
    /// The prefix of the annotations, without the slash.
    pub(crate) prefix: String,
    /// The name of the profile. A number is appended to the names of further profiles.
    pub(crate) name: String,
}

/// Converts each configuration to a profile.
///
/// # Errors
/// The first problem of each document that cannot be converted.
pub(crate) fn convert(documents: &[Document], options: &Options) -> Result<Converted, Vec<Remark>> {
    let mut converted = Converted::default();
    let mut faults = Vec::new();
    for (index, document) in documents.iter().enumerate() {
        let name = match index {
            0 => object_name(&options.name),
            _ => object_name(&format!("{}-{}", options.name, index + 1)),
        };
        match profile(index, document, &name, options, &mut converted.notes) {
            Ok(profile) => converted.profiles.push(profile),
            Err(fault) => faults.push(fault),
        }
    }
    if documents.len() > 1 {
        let message = "there is more than one configuration, and pods request all of them with the same annotation";
        let help = "give each its own `requestedBy.values`, or keep only one";
        converted.notes.push(Remark::new(1, "", message).with_help(help));
    }
    if faults.is_empty() { Ok(converted) } else { Err(faults) }
}

fn profile(
    index: usize,
    document: &Document,
    name: &str,
    options: &Options,
    notes: &mut Vec<Remark>,
) -> Result<Json, Remark> {
    let fault = |path: &str, message: &str| Remark::new(index, path, message);
    let Some(fields) = document.value.as_object() else {
        return Err(fault("", "a configuration is a mapping with containers and volumes"));
    };
    let mut spec = Map::new();
    for (field, value) in fields.iter().filter(|(_, value)| !value.is_null()) {
        if !LISTS.contains(&field.as_str()) {
            notes.push(fault(field, "left out, because the injector ignores this field"));
            continue;
        }
        let items = value.as_array().ok_or_else(|| fault(field, "expected a list"))?;
        for (place, item) in items.iter().enumerate() {
            if item.get("name").and_then(Json::as_str).is_none_or(str::is_empty) {
                return Err(Remark::new(
                    index,
                    format!("{field}[{place}]"),
                    format!("each element of {field} needs a `name`"),
                ));
            }
        }
        if !items.is_empty() {
            let list =
                literal(value, field).map_err(|path| fault(&path, "a key with a `$` is not a Kubernetes field"))?;
            spec.insert(field.clone(), list);
        }
    }
    if spec.is_empty() {
        return Err(fault("", "the configuration has neither containers nor volumes"));
    }
    let prefix = &options.prefix;
    let status = format!("{prefix}/status");
    // The injector skips pods with the status `injected`, and overwrites any other status.
    let not_yet = format!("object.metadata.?annotations[?'{status}'].orValue('').lowerAscii() != 'injected'");
    Ok(json!({
        "apiVersion": "pillion.dev/v1alpha1",
        "kind": "ClusterInjectionProfile",
        "metadata": {"name": name},
        "spec": {
            "description": "The containers and volumes that the sidecar injector added",
            "activation": "Requested",
            "requestedBy": {"annotation": format!("{prefix}/inject"), "truthy": ["y", "yes", "true", "on"]},
            "preconditions": [
                {"name": "not-yet", "expression": not_yet, "message": "is injected already"},
            ],
            "template": {
                "metadata": {"annotations": {status: {"$value": "injected", "$conflict": "Replace"}}},
                "spec": spec,
            },
        },
    }))
}
