//! The engine's table of a pod's fields is what Kubernetes' own schema says. `PILLION_WRITE=1` writes it anew.

#![expect(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing, reason = "a test fails by panicking")]

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::path::Path;

use k8s_openapi::api::core::v1::{Pod, PodSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use schemars::SchemaGenerator;
use serde_json::Value;

const TABLE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/src/profile/pod_schema.txt");

/// Words that are the only values of a field. The bindings' schema leaves them out; that each stands in its field's
/// description is checked.
const WORDS: [(&str, &str, &[&str]); 19] = [
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

/// Words that no description has: they are Kubernetes' constants.
const UNDESCRIBED: [&str; 10] =
    ["", "Memory", "HugePages*", "HTTPS", "HTTP", "None", "HostToContainer", "Bidirectional", "Exists", "Unmasked"];

/// Fields of types, as the schema has them.
type Types = BTreeMap<String, BTreeMap<String, Value>>;

/// The types that a pod's template is made of.
fn types() -> Types {
    let mut generator = SchemaGenerator::default();
    for root in [
        generator.subschema_for::<Pod>(),
        generator.subschema_for::<PodSpec>(),
        generator.subschema_for::<ObjectMeta>(),
    ] {
        assert!(root.get("$ref").is_some(), "{root:?}");
    }
    let mut types = Types::new();
    for (name, schema) in generator.take_definitions(true) {
        let short = short(&name).to_owned();
        let Some(Value::Object(fields)) = schema.get("properties").cloned() else { continue };
        let other = types.insert(short, fields.into_iter().collect());
        assert!(other.is_none(), "two types are called {name}");
    }
    types
}

fn short(name: &str) -> &str {
    name.rsplit('.').next().unwrap()
}

/// How the table writes a type.
fn kind(of: &Value, reached: &mut BTreeSet<String>) -> String {
    if let Some(all) = of.get("allOf").and_then(Value::as_array) {
        let [one] = all.as_slice() else { panic!("{of}") };
        return kind(one, reached);
    }
    if let Some(reference) = of.get("$ref").and_then(Value::as_str) {
        return match short(reference) {
            "Quantity" => "quantity".to_owned(),
            "IntOrString" => "intOrString".to_owned(),
            "Time" | "MicroTime" | "ByteString" => "string".to_owned(),
            "FieldsV1" => "any".to_owned(),
            name => {
                reached.insert(name.to_owned());
                name.to_owned()
            }
        };
    }
    match (of["type"].as_str(), of.get("format").and_then(Value::as_str)) {
        (Some("array"), _) => format!("[{}]", kind(&of["items"], reached)),
        (Some("object"), _) => format!("{{{}}}", kind(&of["additionalProperties"], reached)),
        (Some("string" | "boolean"), _) => of["type"].as_str().unwrap().to_owned(),
        (Some("integer"), Some(format @ ("int32" | "int64"))) => format.to_owned(),
        _ => panic!("{of}"),
    }
}

fn table() -> String {
    let types = types();
    let mut words: BTreeMap<_, _> =
        WORDS.iter().map(|(of, field, words)| ((*of).to_owned() + "." + field, *words)).collect();
    let mut done = BTreeSet::new();
    let mut waiting: BTreeSet<String> = ["ObjectMeta", "PodSpec"].map(String::from).into();
    let mut lines = BTreeMap::new();
    while let Some(name) = waiting.pop_first() {
        if !done.insert(name.clone()) {
            continue;
        }
        let fields = &types[&name];
        let mut line = name.clone();
        for (field, schema) in fields {
            let kind = match words.remove(&format!("{name}.{field}")) {
                Some(words) => {
                    let description = schema["description"].as_str().unwrap();
                    for word in words.iter().filter(|word| !UNDESCRIBED.contains(word)) {
                        assert!(description.contains(word), "{name}.{field}: {word} is not in {description:?}");
                    }
                    assert_eq!(schema["type"], "string");
                    words.join("|")
                }
                None => kind(schema, &mut waiting),
            };
            write!(line, " {field}:{kind}").unwrap();
        }
        lines.insert(name, line);
    }
    assert!(words.is_empty(), "there are no such fields: {words:?}");
    lines.into_values().map(|line| line + "\n").collect()
}

#[test]
fn the_table_is_what_kubernetes_says() {
    let table = table();
    if std::env::var_os("PILLION_WRITE").is_some() {
        std::fs::write(TABLE, &table).unwrap();
    }
    let written = std::fs::read_to_string(Path::new(TABLE)).unwrap_or_default();
    assert!(written == table, "{TABLE} is out of date: run this test with PILLION_WRITE=1");
    assert!(table.lines().count() > 100 && table.len() < 32 * 1024, "{} bytes", table.len());
}
