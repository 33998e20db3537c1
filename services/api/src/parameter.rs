//! A parameter of a profile: who may set it (pod, service account or namespace), from which key, and within which
//! bounds.

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// What a label or an annotation says whose value is empty, or white space. Default: `Counts`, it is a value like any
/// other, and a request of it asks for none. `Absent`: it is as if it was not there, and who comes next decides.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum EmptyValue {
    /// It is a value like any other.
    #[default]
    Counts,
    /// It is as if it was not there: who comes next decides.
    Absent,
}

impl EmptyValue {
    /// Whether this value says something.
    #[must_use]
    pub fn says(self, value: &str) -> bool {
        self == Self::Counts || !value.trim().is_empty()
    }
}

/// A value that pod, service account or namespace may set. It is put into a JSON node and never becomes text that is
/// parsed again.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Parameter {
    /// Name, as expressions say it: `params.name`.
    #[schemars(length(min = 1, max = 63))]
    pub name: String,
    /// Type of the value. Only a profile that extends another one leaves it out: the parent's parameter of this name has it.
    #[serde(default, rename = "type", skip_serializing_if = "Option::is_none")]
    pub type_: Option<ParameterType>,
    /// The value where nobody sets one; may be an expression.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "any_value")]
    pub default: Option<Value>,
    /// Key of the annotation that sets it; of several, the first that is present.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "any_value")]
    pub annotation: Option<Keys>,
    /// Key of the label that sets it; of several, the first that is present.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "any_value")]
    pub label: Option<Keys>,
    /// What an empty value of these does. Default: `Counts`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub empty: Option<EmptyValue>,
    /// Prefix of the annotations that set it: a map of the rest of each key to its value.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub annotation_prefix: Option<String>,
    /// Who may set it; the most specific wins. Absent or empty: only the profile. In a profile that extends another one,
    /// absent means the parent's sources, and empty takes them away.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 3))]
    pub sources: Option<Vec<Source>>,
    /// Whether the sources replace one another or are united. Default: `Replace`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub merge: Option<ParameterMerge>,
    /// How text becomes a list, a map or an object. Default: `CSV` for lists, `Pairs` for maps, `JSON` for objects.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub format: Option<TextFormat>,
    /// The only values that are allowed.
    #[serde(default, rename = "enum", skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "any_list")]
    pub enum_: Vec<Value>,
    /// Regular expression that text has to match; of a boolean or a number, the text that it is read from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 1024))]
    pub pattern: Option<String>,
    /// Longest text, in bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_length: Option<u32>,
    /// Smallest number, quantity or duration.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "any_value")]
    pub minimum: Option<Value>,
    /// Largest number, quantity or duration.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "any_value")]
    pub maximum: Option<Value>,
    /// What each item of a list has to be: `type`, `pattern` and so on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "any_value")]
    pub items: Option<Value>,
    /// Moves a number into its range instead of refusing it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub clamp: Option<bool>,
    /// What a value does that is not allowed. Default: as `onError`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub on_invalid: Option<OnInvalid>,
    /// The families of annotations of a parameter of type `records`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32))]
    pub fields: Vec<RecordField>,
}

/// Type of a parameter's value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum ParameterType {
    /// Text.
    String,
    /// Whole number.
    Integer,
    /// Number.
    Number,
    /// `true` or `false`.
    Boolean,
    /// Kubernetes' quantity: `100m`, `1Gi`.
    Quantity,
    /// `1h30m`.
    Duration,
    /// List of values.
    List,
    /// Map from text to text.
    Map,
    /// Any object.
    Object,
    /// Families of annotations, joined by what follows their prefix.
    Records,
}

/// One key, or several of which the first that is present counts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Keys {
    /// One key.
    One(String),
    /// Several keys.
    FirstOf(Vec<String>),
}

/// Who may set a parameter, the most specific first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Source {
    /// The pod's labels and annotations.
    Pod,
    /// The labels and annotations of its service account.
    ServiceAccount,
    /// The annotations of its namespace, or a namespaced profile that extends this one.
    Namespace,
}

/// Whether the sources of a parameter replace one another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum ParameterMerge {
    /// The most specific source is the value.
    Replace,
    /// Maps are united by key, lists by the `name` of their items.
    Merge,
}

/// How the text of an annotation becomes a value.
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

/// What a value does that a parameter does not allow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum OnInvalid {
    /// The default is taken, and the author is warned.
    Default,
    /// The profile is left out, and the author is warned.
    Skip,
    /// The pod is refused.
    Deny,
}

/// One field of the records of a parameter of type `records`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct RecordField {
    /// Name of the field in a record.
    #[schemars(length(min = 1, max = 63))]
    pub name: String,
    /// Prefix of its annotations; what follows it names the record.
    pub annotation_prefix: String,
    /// Whether such an annotation makes a record, rather than only adding to one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub opens: Option<bool>,
}

fn any_value(_: &mut SchemaGenerator) -> Schema {
    json_schema!({"x-kubernetes-preserve-unknown-fields": true})
}

fn any_list(_: &mut SchemaGenerator) -> Schema {
    json_schema!({"type": "array", "items": {"x-kubernetes-preserve-unknown-fields": true}, "maxItems": 64})
}
