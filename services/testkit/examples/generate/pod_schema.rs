//! Generates the engine's table of pod fields from the API server's OpenAPI v3 document.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Map, Value as Json};

/// The allowed values of fields, by type and field. The OpenAPI document lists them only in descriptions, so each value
/// is checked against the description, except those in [`UNDESCRIBED`].
const VALUES: [(&str, &str, &[&str]); 19] = [
    ("AppArmorProfile", "type", &["Localhost", "RuntimeDefault", "Unconfined"]),
    ("Container", "imagePullPolicy", &["Always", "IfNotPresent", "Never"]),
    ("Container", "terminationMessagePolicy", &["File", "FallbackToLogsOnError"]),
    ("ContainerPort", "protocol", &["TCP", "UDP", "SCTP"]),
    ("EmptyDirVolumeSource", "medium", &["", "Memory", "HugePages*"]),
    ("HTTPGetAction", "scheme", &["HTTP", "HTTPS"]),
    ("NodeSelectorRequirement", "operator", &["In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt"]),
    ("PodOS", "name", &["linux", "windows"]),
    ("PodSecurityContext", "fsGroupChangePolicy", &["OnRootMismatch", "Always"]),
    ("PodSpec", "dnsPolicy", &["ClusterFirst", "ClusterFirstWithHostNet", "Default", "None"]),
    ("PodSpec", "preemptionPolicy", &["PreemptLowerPriority", "Never"]),
    ("PodSpec", "restartPolicy", &["Always", "OnFailure", "Never"]),
    ("SeccompProfile", "type", &["Localhost", "RuntimeDefault", "Unconfined"]),
    ("SecurityContext", "procMount", &["Default", "Unmasked"]),
    ("Toleration", "effect", &["", "NoSchedule", "PreferNoSchedule", "NoExecute"]),
    ("Toleration", "operator", &["Exists", "Equal", "Lt", "Gt"]),
    ("TopologySpreadConstraint", "whenUnsatisfiable", &["DoNotSchedule", "ScheduleAnyway"]),
    ("VolumeMount", "mountPropagation", &["None", "HostToContainer", "Bidirectional"]),
    ("VolumeMount", "recursiveReadOnly", &["Disabled", "IfPossible", "Enabled"]),
];

/// Allowed values that a description may omit. They come from Kubernetes' constants.
const UNDESCRIBED: [&str; 10] =
    ["", "Memory", "HugePages*", "HTTPS", "HTTP", "None", "HostToContainer", "Bidirectional", "Exists", "Unmasked"];

/// Returns one line for each type in a pod template: `Type field:kind field:kind`.
///
/// # Errors
/// A field has an unknown type, the document does not describe an allowed value, or a field in [`VALUES`] does not
/// exist.
pub(crate) fn table(document: &str) -> Result<String> {
    let document: Json = serde_json::from_str(document).context("cannot parse the OpenAPI document")?;
    let schemas =
        document.pointer("/components/schemas").and_then(Json::as_object).context("a document without schemas")?;
    let mut values: BTreeMap<_, _> = VALUES.iter().map(|(of, field, values)| ((*of, *field), *values)).collect();
    let mut done = BTreeMap::new();
    let roots = ["io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta", "io.k8s.api.core.v1.PodSpec"];
    let mut waiting = BTreeSet::from(roots);
    while let Some(name) = waiting.pop_first() {
        let of = short(name);
        let properties = properties(schemas, name).with_context(|| format!("{name} has no fields"))?;
        let fields: BTreeMap<_, _> = properties.iter().collect();
        let mut line = String::new();
        for (field, schema) in fields {
            let kind = match values.remove(&(of, &**field)) {
                Some(values) => allowed(schema, values),
                None => kind(schema, &mut waiting),
            };
            write!(line, " {field}:{}", kind.with_context(|| format!("{of}.{field}"))?)?;
        }
        if let Some((other, _)) = done.insert(of, (name, line)) {
            ensure!(other == name, "{other} and {name} have the same short name");
        }
        waiting.retain(|name| done.get(short(name)).is_none_or(|(other, _)| other != name));
    }
    ensure!(values.is_empty(), "unknown fields: {:?}", values.keys());
    Ok(done.into_iter().fold(String::new(), |table, (of, (_, line))| table + of + &line + "\n"))
}

/// Returns the fields of a type. `None`: the type is unknown or has no fields.
fn properties<'a>(schemas: &'a Map<String, Json>, name: &str) -> Option<&'a Map<String, Json>> {
    schemas.get(name)?.get("properties")?.as_object()
}

fn short(name: &str) -> &str {
    name.rsplit('.').next().unwrap_or(name)
}

/// Returns the table's notation for a string field with these allowed values.
///
/// # Errors
/// The field's description does not contain one of the values, or the field is not a string.
fn allowed(schema: &Json, values: &[&str]) -> Result<String> {
    let description = schema["description"].as_str().unwrap_or_default();
    for value in values.iter().filter(|value| !UNDESCRIBED.contains(value)) {
        ensure!(description.contains(value), "{value} is not in {description:?}");
    }
    ensure!(schema["type"] == "string", "expected a string, found {schema}");
    Ok(values.join("|"))
}

/// Returns the table's notation for a field with the schema `of`. Adds the types that the schema references to
/// `waiting`.
fn kind<'a>(of: &'a Json, waiting: &mut BTreeSet<&'a str>) -> Result<String> {
    if let Some([one]) = of.get("allOf").and_then(Json::as_array).map(Vec::as_slice) {
        return kind(one, waiting);
    }
    if let Some(reference) = of.get("$ref").and_then(Json::as_str) {
        let name = reference.trim_start_matches("#/components/schemas/");
        return Ok(match short(name) {
            "Quantity" => "quantity".to_owned(),
            "IntOrString" => "intOrString".to_owned(),
            "Time" | "MicroTime" => "string".to_owned(),
            "FieldsV1" => "any".to_owned(),
            of => {
                waiting.insert(name);
                of.to_owned()
            }
        });
    }
    Ok(match (of["type"].as_str(), of.get("format").and_then(Json::as_str)) {
        (Some("array"), _) => format!("[{}]", kind(&of["items"], waiting)?),
        (Some("object"), _) => format!("{{{}}}", kind(&of["additionalProperties"], waiting)?),
        (Some(plain @ ("string" | "boolean")), _) => plain.to_owned(),
        (Some("integer"), Some(format @ ("int32" | "int64"))) => format.to_owned(),
        _ => bail!("no kind for the schema {of}"),
    })
}
