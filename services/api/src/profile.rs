//! An injection profile as its author writes it: fields, types and defaults. The engine gives it its meaning.
//!
//! Reading rejects unknown fields: a profile with a field that this build does not know must not take effect in part.

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};
use serde_json::Value;

pub use crate::parameter::EmptyValue;
use crate::parameter::Parameter;
use crate::selector::LabelSelector;

/// What an injection profile says. Both kinds carry it; some fields are for cluster profiles only.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ProfileSpec {
    /// One line for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    /// Start from this cluster profile.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub extends: Option<Extends>,
    /// Which objects the profile is for. Default: pods, when they are created. Other than pods only in cluster profiles.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target: Option<Target>,
    /// Who gets it without asking. Default: `Requested` in a cluster profile, `Always` in a namespaced one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub activation: Option<Activation>,
    /// How a pod or its namespace asks for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub request: Option<RequestKey>,
    /// Whether the pod's author can drop it. `Forbidden` in cluster profiles only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub opt_out: Option<OptOut>,
    /// Which namespaces may have it. Cluster profiles only; default: all that are opted in.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace_selector: Option<LabelSelector>,
    /// Which objects may have it, by their labels. Default: all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub object_selector: Option<LabelSelector>,
    /// Expressions that all have to be true.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64))]
    pub match_conditions: Vec<MatchCondition>,
    /// Of the profiles of one group that got this far, only the first in order is applied.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exclusive_group: Option<String>,
    /// Lower is applied first, then by name; all cluster profiles stand before all namespaced ones. Default: 100.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub order: Option<i32>,
    /// What pod, service account or namespace may set.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 128))]
    pub parameters: Vec<Parameter>,
    /// Objects of the cluster that expressions read. Cluster profiles only.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    pub lookups: Vec<Lookup>,
    /// Expressions with a name, evaluated when they are used.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 128))]
    pub variables: Vec<Variable>,
    /// The partial object that is laid over the one that is being created.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "partial_object")]
    pub template: Option<Value>,
    /// Rules for containers that are already there.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64))]
    pub containers: Vec<ContainerRule>,
    /// Checks of the final object, answered on the validating path.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64))]
    pub validations: Vec<Validation>,
    /// What a fault or a name conflict in this profile does. Default: `Skip`; `Deny` where `optOut` is `Forbidden`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub on_error: Option<OnError>,
    /// Which workloads get the newest revision. Default: all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rollout: Option<Rollout>,
}

/// The cluster profile from which another one starts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Extends {
    /// Name of the cluster profile.
    pub name: String,
}

/// Which objects a profile is for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Target {
    /// API group; empty for the core group.
    #[serde(default)]
    pub group: String,
    /// API version.
    pub version: String,
    /// Resources in the plural, with the subresource behind a slash where there is one: `pods/ephemeralcontainers`.
    #[schemars(length(min = 1, max = 16))]
    pub resources: Vec<String>,
    /// Operations. Default: `CREATE`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 3))]
    pub operations: Vec<Operation>,
}

/// What is being done with an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "UPPERCASE")]
pub enum Operation {
    /// It is created.
    Create,
    /// It is changed.
    Update,
    /// It is deleted.
    Delete,
}

impl Target {
    /// What a profile is for that does not say: pods, when they are created.
    #[must_use]
    pub fn pods() -> Self {
        Self {
            group: String::new(),
            version: "v1".to_owned(),
            resources: vec!["pods".to_owned()],
            operations: vec![Operation::Create],
        }
    }
}

impl Operation {
    /// The operation as Kubernetes writes it.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Create => "CREATE",
            Self::Update => "UPDATE",
            Self::Delete => "DELETE",
        }
    }
}

/// Who gets a profile without asking for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Activation {
    /// Everybody whom the selectors let have it.
    Always,
    /// Only who asks.
    Requested,
    /// Nobody: the profile is there to be extended.
    Never,
}

/// How a pod or its namespace asks for a profile: a label or an annotation of the profile's own.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct RequestKey {
    /// Key of the annotation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 317))]
    pub annotation: Option<String>,
    /// Key of the label. It is looked at before the annotation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 317))]
    pub label: Option<String>,
    /// Further words that ask for this profile, beside its name.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64))]
    pub values: Vec<String>,
    /// Words that ask for the default profile of this key. Default: `true`, `yes`, `y`, `on`, `enabled`, `1`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 16))]
    pub truthy: Option<Vec<String>>,
    /// Words that ask for none. Default: `false`, `no`, `n`, `off`, `disabled`, `0`. Of an empty value `empty` decides.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 16))]
    pub falsy: Option<Vec<String>>,
    /// What an empty value does. Default: `Counts`: it asks for none, as a falsy word does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub empty: Option<EmptyValue>,
    /// What a word that nobody knows does. Default: `Ignore`, with a warning.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub on_unknown: Option<OnUnknown>,
}

/// What a word in a request does that nobody knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum OnUnknown {
    /// The author is warned.
    Ignore,
    /// The pod is refused.
    Deny,
}

/// Whether the pod's author can drop a profile.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum OptOut {
    /// By the pod label `pillion.dev/inject=false`, a falsy request, or `-name` in `pillion.dev/profiles`.
    Allowed,
    /// Not at all.
    Forbidden,
}

/// What a fault or a name conflict in a profile does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum OnError {
    /// The profile is left out, and the author is warned.
    Skip,
    /// The pod is refused.
    Deny,
}

/// An expression that has to be true.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct MatchCondition {
    /// Name, unique in the profile; a child profile replaces its parent's condition by it.
    #[schemars(length(min = 1, max = 63))]
    pub name: String,
    /// The expression, in CEL.
    #[schemars(length(min = 1, max = 1024))]
    pub expression: String,
    /// What happens where it is not true. Default: `NotMatched`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub otherwise: Option<Otherwise>,
    /// Said to the author where it is not true.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
}

/// What happens where a condition is not true.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Otherwise {
    /// The profile is not for this pod: nothing is said.
    NotMatched,
    /// The profile is left out, and the author is told.
    Skip,
    /// The pod is refused.
    Deny,
}

/// An expression with a name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Variable {
    /// Name, as expressions say it: `variables.name`.
    #[schemars(length(min = 1, max = 63))]
    pub name: String,
    /// The expression, in CEL.
    #[schemars(length(min = 1, max = 1024))]
    pub expression: String,
}

/// An object of the cluster, or a list of them, that expressions read as `lookups.name`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Lookup {
    /// Name, as expressions say it.
    #[schemars(length(min = 1, max = 63))]
    pub name: String,
    /// API group; empty for the core group.
    #[serde(default)]
    pub group: String,
    /// API version.
    pub version: String,
    /// Resource in the plural.
    pub resource: String,
    /// Namespace to look in; empty for objects that are in none. Default: the object's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    /// Name of the one object.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub object_name: Option<String>,
    /// Selects a list of objects.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub selector: Option<LabelSelector>,
}

/// A rule for containers that are already there.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ContainerRule {
    /// Name, unique in the profile; a child profile merges its rule into its parent's by it.
    #[schemars(length(min = 1, max = 63))]
    pub name: String,
    /// Which containers. All given parts have to hold. Default: all of type `App`.
    #[serde(default, rename = "match", skip_serializing_if = "Option::is_none")]
    pub match_: Option<ContainerMatch>,
    /// Expressions that skip one container and say why.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64))]
    pub match_conditions: Vec<MatchCondition>,
    /// The partial container that is laid over each.
    #[schemars(schema_with = "partial_object")]
    pub template: Value,
}

/// Which containers a rule is for.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ContainerMatch {
    /// Types of container. Default: `App`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 4))]
    pub types: Vec<ContainerType>,
    /// Names.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64))]
    pub names: Vec<String>,
    /// Images, with `*` for any part.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64))]
    pub images: Vec<String>,
    /// An expression over `container`.
    #[serde(default, rename = "where", skip_serializing_if = "Option::is_none")]
    pub where_: Option<String>,
}

/// Type of a container in a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum ContainerType {
    /// In `containers`.
    App,
    /// In `initContainers`, runs to its end.
    Init,
    /// In `initContainers` with `restartPolicy: Always`.
    Sidecar,
    /// Added by this profile or by one before it.
    Injected,
}

/// A check of the final object.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Validation {
    /// Name, unique in the profile; a child profile replaces its parent's validation by it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 63))]
    pub name: Option<String>,
    /// Has to be true, in CEL.
    #[schemars(length(min = 1, max = 1024))]
    pub expression: String,
    /// Said where it is not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// Machine-readable reason of the refusal.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// HTTP status of the refusal, 400 to 599.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 400, max = 599))]
    pub code: Option<u16>,
    /// The field that is wrong: `.spec.ports`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub field_path: Option<String>,
    /// What happens where it is not true. Default: `Deny`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub action: Option<ValidationAction>,
}

/// What a failed validation does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum ValidationAction {
    /// The object is refused.
    Deny,
    /// The author is warned.
    Warn,
    /// It stands in the audit log.
    Audit,
}

/// Which workloads get the newest revision of a profile; the others keep the promoted one.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Rollout {
    /// Share of the workloads, in percent. Default: 100.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 100))]
    pub percent: Option<u8>,
    /// Only workloads in these namespaces. Default: all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace_selector: Option<LabelSelector>,
}

/// The schema of a partial Kubernetes object: any object. Its fields are checked by the engine, because Kubernetes' own
/// schema of a pod would make the definition hundreds of kilobytes large.
fn partial_object(_: &mut SchemaGenerator) -> Schema {
    json_schema!({"type": "object", "x-kubernetes-preserve-unknown-fields": true})
}
