//! A parameter of a profile: who may set it (pod, service account or namespace), from which key, and within which
//! bounds.

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// How to treat a label or an annotation whose value is empty or white space. With `Counts`, the default, it is treated
/// like any other value; an empty request requests no profile. With `Absent`, it is ignored, and the next source is
/// used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum EmptyValue {
    /// An empty value is treated like any other value.
    #[default]
    Counts,
    /// An empty value is ignored, and the next source is used.
    Absent,
}

impl EmptyValue {
    /// Whether `value` is used: always with `Counts`, and with `Absent` only if it is not blank.
    #[must_use]
    pub fn says(self, value: &str) -> bool {
        self == Self::Counts || !value.trim().is_empty()
    }
}

/// A value that a pod, its service account or its namespace may set. It becomes a JSON value, and is never inserted
/// into text that is parsed again.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Parameter {
    /// Name in expressions: `params.name`.
    #[schemars(length(min = 1, max = 63))]
    pub name: String,
    /// Type of the value. Only a profile that extends another one can omit it, and inherits the type of the parent's
    /// parameter.
    #[serde(default, rename = "type", skip_serializing_if = "Option::is_none")]
    pub type_: Option<ParameterType>,
    /// The value if no source sets one. Its strings may contain expressions in `${}`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "any_value")]
    pub default: Option<Value>,
    /// Key of the annotation that sets the parameter. Of several keys, the first existing one is used.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "any_value")]
    pub annotation: Option<Keys>,
    /// Key of the label that sets the parameter. Of several keys, the first existing one is used.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "any_value")]
    pub label: Option<Keys>,
    /// How to treat an empty value. Default: `Counts`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub empty: Option<EmptyValue>,
    /// Prefix of the annotations that set the parameter. The value is a map from the suffix of each key to the
    /// annotation's value.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub annotation_prefix: Option<String>,
    /// The sources that may set the parameter. The most specific wins. Absent or empty: only the profile sets it. In a
    /// profile that extends another one, absent inherits the parent's sources, and empty removes them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 3))]
    pub sources: Option<Vec<Source>>,
    /// Whether sources replace each other or merge. Default: `Replace`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub merge: Option<ParameterMerge>,
    /// Format of a list, a map or an object in an annotation or a label. Default: `CSV` for lists, `Pairs` for maps,
    /// `JSON` for objects.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub format: Option<TextFormat>,
    /// The allowed values.
    #[serde(default, rename = "enum", skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "any_list")]
    pub enum_: Vec<Value>,
    /// A regular expression that a string value must match. It also checks booleans and numbers, as their author wrote
    /// them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 1024))]
    pub pattern: Option<String>,
    /// Maximum length of a string value, in bytes. It also applies to booleans and numbers, as their author wrote them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_length: Option<u32>,
    /// Minimum of a number, quantity or duration.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "any_value")]
    pub minimum: Option<Value>,
    /// Maximum of a number, quantity or duration.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "any_value")]
    pub maximum: Option<Value>,
    /// Constraints on each item of a list: `type`, `pattern` and so on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "any_value")]
    pub items: Option<Value>,
    /// Whether a number outside its range is replaced by the nearest allowed number instead of being rejected.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub clamp: Option<bool>,
    /// How to handle an invalid value. Default: follows `failurePolicy`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub on_invalid: Option<OnInvalid>,
    /// The fields of the records of a parameter of type `records`. Each is read from the annotations with one prefix.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32))]
    pub fields: Vec<RecordField>,
}

/// Type of a parameter's value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum ParameterType {
    /// String.
    String,
    /// Whole number.
    Integer,
    /// Number.
    Number,
    /// `true` or `false`.
    Boolean,
    /// Kubernetes quantity: `100m`, `1Gi`.
    Quantity,
    /// Duration: `1h30m`.
    Duration,
    /// List of values.
    List,
    /// Map from strings to strings.
    Map,
    /// Any object.
    Object,
    /// List of records. Annotations with the same key after the prefix form one record.
    Records,
}

/// One key or several keys. Of several keys, the first existing one is used.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Keys {
    /// One key.
    One(String),
    /// Several keys.
    FirstOf(Vec<String>),
}

/// The sources that may set a parameter, the most specific first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Source {
    /// The pod's labels and annotations.
    Pod,
    /// The labels and annotations of the pod's service account.
    ServiceAccount,
    /// The labels and annotations of the pod's namespace, or a namespaced profile that extends the profile.
    Namespace,
}

/// Whether the sources of a parameter replace each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum ParameterMerge {
    /// The value of the most specific source is used.
    Replace,
    /// Maps merge by key, lists by the `name` of their items.
    Merge,
}

/// The format of a list, a map or an object in an annotation or a label.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum TextFormat {
    /// `a,b,c`.
    #[serde(rename = "CSV")]
    Csv,
    /// `k=v,k=v`.
    Pairs,
    /// JSON.
    #[serde(rename = "JSON")]
    Json,
    /// YAML.
    #[serde(rename = "YAML")]
    Yaml,
}

/// How to handle an invalid value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum OnInvalid {
    /// The default is used, and the author is warned.
    Default,
    /// The profile is skipped, and the author is warned.
    Skip,
    /// The pod is rejected.
    Deny,
}

/// One field of the records of a parameter of type `records`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct RecordField {
    /// Name of the field in a record.
    #[schemars(length(min = 1, max = 63))]
    pub name: String,
    /// Prefix of the field's annotations. The rest of the key names the record.
    pub annotation_prefix: String,
    /// Whether an annotation with this prefix creates a record. Otherwise it only adds to an existing record.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub opens: Option<bool>,
}

fn any_value(_: &mut SchemaGenerator) -> Schema {
    json_schema!({"x-kubernetes-preserve-unknown-fields": true})
}

fn any_list(_: &mut SchemaGenerator) -> Schema {
    json_schema!({"type": "array", "items": {"x-kubernetes-preserve-unknown-fields": true}, "maxItems": 64})
}
