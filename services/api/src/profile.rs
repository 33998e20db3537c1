//! The spec of an injection profile: fields, types and defaults. The engine defines what each field does.
//!
//! Deserialization rejects unknown fields. So an older version of Pillion rejects a profile that uses a newer field,
//! and never applies it without that field.

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};
use serde_json::Value;

pub use crate::parameter::EmptyValue;
use crate::parameter::Parameter;
use crate::selector::LabelSelector;

/// The spec of an injection profile, for both kinds. Some fields are for cluster profiles only.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ProfileSpec {
    /// A one-line description for readers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    /// The cluster profile that this one extends.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub extends: Option<Extends>,
    /// Which objects the profile applies to. Default: pods on creation. Only cluster profiles can target other objects.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target: Option<Target>,
    /// Which objects get the profile. Default: `Requested` if the profile has `requestedBy`, otherwise `Always`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub activation: Option<Activation>,
    /// The label or annotation by which a pod or its namespace requests the profile.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub requested_by: Option<RequestKey>,
    /// Whether the pod's author can opt out. Only cluster profiles can use `Forbidden`. In `enabled` namespaces, the
    /// label `pillion.dev/inject=false` still opts a pod out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub opt_out: Option<OptOut>,
    /// Selects namespaces. Cluster profiles only. Default: all that are opted in.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace_selector: Option<LabelSelector>,
    /// Selects objects by their labels. Default: all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub object_selector: Option<LabelSelector>,
    /// Expressions that select objects. The profile matches an object if all are true.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64))]
    pub match_conditions: Vec<MatchCondition>,
    /// Expressions that must be true for a matching object. Each specifies what happens otherwise.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64))]
    pub preconditions: Vec<Precondition>,
    /// Of the matching profiles of one group, only the first in order is applied.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exclusive_group: Option<String>,
    /// Profiles are applied in ascending order of this number, then by name. All cluster profiles come before all
    /// namespaced ones. Default: 100.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub order: Option<i32>,
    /// Values that a pod, its service account or its namespace may set.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 128))]
    pub parameters: Vec<Parameter>,
    /// Objects of the cluster that expressions can read. Cluster profiles only.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    pub lookups: Vec<Lookup>,
    /// Named expressions, evaluated when they are used.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 128))]
    pub variables: Vec<Variable>,
    /// A partial object that is merged into the object of the request. Its containers are added. Its strings may
    /// contain expressions in `${}`, but the values of `$when`, `$forEach` and `$prune` are expressions without `${}`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "partial_object")]
    pub template: Option<Value>,
    /// Changes to existing containers.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64))]
    pub container_patches: Vec<ContainerPatch>,
    /// Checks of the final object, evaluated by the validating webhook.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64))]
    pub validations: Vec<Validation>,
    /// How to handle an error or a name conflict in this profile. Default: `Ignore`, or `Fail` if `optOut` is
    /// `Forbidden`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure_policy: Option<FailurePolicy>,
    /// Which workloads get the newest revision. Default: all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rollout: Option<Rollout>,
    /// Whether an admission policy of the API server adds the profile's parts to new pods of `enabled` namespaces while
    /// no replica answers. Cluster profiles only. Needs the chart's value `safetyNet.enabled`. Default: `false`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub safety_net: Option<bool>,
}

/// The cluster profile that a profile extends.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Extends {
    /// Name of the cluster profile.
    pub name: String,
}

/// Which objects a profile applies to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Target {
    /// API group; empty for the core group.
    #[serde(default)]
    pub group: String,
    /// API version.
    pub version: String,
    /// Resources in the plural, with the subresource after a slash: `pods/ephemeralcontainers`.
    #[schemars(length(min = 1, max = 16))]
    pub resources: Vec<String>,
    /// Operations. Default: `CREATE`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 3))]
    pub operations: Vec<Operation>,
}

/// The operation of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "UPPERCASE")]
pub enum Operation {
    /// The object is created.
    Create,
    /// The object is changed.
    Update,
    /// The object is deleted.
    Delete,
}

impl Target {
    /// Returns the default target: pods on creation.
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
    /// Returns the name of the operation in Kubernetes, such as `CREATE`.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Create => "CREATE",
            Self::Update => "UPDATE",
            Self::Delete => "DELETE",
        }
    }
}

/// Which objects get a profile.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Activation {
    /// All objects that the selectors match.
    Always,
    /// Objects that request the profile.
    Requested,
    /// No objects. Such a profile is only a parent of other profiles.
    Never,
}

/// The label or annotation by which a pod or its namespace requests a profile.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct RequestKey {
    /// Key of the annotation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 317))]
    pub annotation: Option<String>,
    /// Key of the label. The label is read before the annotation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 317))]
    pub label: Option<String>,
    /// Further values that request this profile, besides its name.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64))]
    pub values: Vec<String>,
    /// Values that request the default profile of this key. Default: `true`, `yes`, `y`, `on`, `enabled`, `1`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 16))]
    pub truthy: Option<Vec<String>>,
    /// Values that request no profile. Default: `false`, `no`, `n`, `off`, `disabled`, `0`. For an empty value, see
    /// `empty`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 16))]
    pub falsy: Option<Vec<String>>,
    /// How to treat an empty value. Default: `Counts`, so it requests no profile, like a falsy value.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub empty: Option<EmptyValue>,
    /// How to handle a value that requests no known profile. Default: `Ignore`, with a warning.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub on_unknown: Option<OnUnknown>,
}

/// How to handle a value that requests no known profile.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum OnUnknown {
    /// The value is ignored, and the author is warned.
    Ignore,
    /// The pod is rejected.
    Deny,
}

/// Whether the pod's author can opt out of a profile.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum OptOut {
    /// The author can opt out with the pod label `pillion.dev/inject=false`, a falsy request, or `-name` in
    /// `pillion.dev/profiles`.
    Allowed,
    /// The author cannot opt out. In `enabled` namespaces, the label `pillion.dev/inject=false` still keeps the API
    /// server from calling Pillion.
    Forbidden,
}

/// How to handle an error or a name conflict in a profile.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum FailurePolicy {
    /// The profile is skipped, and the author is warned.
    Ignore,
    /// The pod is rejected.
    Fail,
}

/// An expression that selects objects or containers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct MatchCondition {
    /// Name, unique in the list. A child profile replaces its parent's condition of the same name.
    #[schemars(length(min = 1, max = 63))]
    pub name: String,
    /// The CEL expression, without `${}`.
    #[schemars(length(min = 1, max = 1024))]
    pub expression: String,
}

/// An expression that must be true for a selected object or container.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Precondition {
    /// Name, unique in the list. A child profile replaces its parent's precondition of the same name.
    #[schemars(length(min = 1, max = 63))]
    pub name: String,
    /// The CEL expression, without `${}`.
    #[schemars(length(min = 1, max = 1024))]
    pub expression: String,
    /// The message to the author if the expression is not true. Default: the name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// What happens if the expression is not true. Default: `Skip`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub action: Option<PreconditionAction>,
}

/// What happens if a precondition is not true.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum PreconditionAction {
    /// The author is warned. The profile or the container patch is applied.
    Warn,
    /// The author is warned. The profile is skipped, or the container patch leaves the container unchanged.
    Skip,
    /// The pod is rejected.
    Deny,
}

/// A named expression.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Variable {
    /// Name in expressions: `variables.name`.
    #[schemars(length(min = 1, max = 63))]
    pub name: String,
    /// The CEL expression, without `${}`.
    #[schemars(length(min = 1, max = 1024))]
    pub expression: String,
}

/// An object of the cluster, or a list of them, that expressions read as `lookups.name`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Lookup {
    /// Name in expressions.
    #[schemars(length(min = 1, max = 63))]
    pub name: String,
    /// API group; empty for the core group.
    #[serde(default)]
    pub group: String,
    /// API version.
    pub version: String,
    /// Resource in the plural.
    pub resource: String,
    /// The namespace to look in; empty for cluster-scoped objects. Default: the namespace of the request's object.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    /// Name of one object.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub object_name: Option<String>,
    /// Selects a list of objects.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub selector: Option<LabelSelector>,
}

/// Changes to existing containers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ContainerPatch {
    /// Name of the patch, unique in the profile. It does not select containers: `match` does. A child profile merges
    /// its patch into its parent's patch of the same name.
    #[schemars(length(min = 1, max = 63))]
    pub name: String,
    /// Selects containers. All given fields must match. Default: all of type `App`.
    #[serde(default, rename = "match", skip_serializing_if = "Option::is_none")]
    pub match_: Option<ContainerMatch>,
    /// Expressions that select containers. The patch changes a container if all are true.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64))]
    pub match_conditions: Vec<MatchCondition>,
    /// Expressions that must be true for a selected container. Each specifies what happens otherwise.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64))]
    pub preconditions: Vec<Precondition>,
    /// A partial container that is merged into each selected container.
    #[schemars(schema_with = "partial_object")]
    pub template: Value,
}

/// Selects containers.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ContainerMatch {
    /// Types of container. Default: `App`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 4))]
    pub types: Vec<ContainerType>,
    /// Names of containers.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64))]
    pub names: Vec<String>,
    /// Patterns of images, in which `*` matches any string.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64))]
    pub images: Vec<String>,
    /// A CEL expression over `container` that must be true, without `${}`.
    #[serde(default, rename = "where", skip_serializing_if = "Option::is_none")]
    pub where_: Option<String>,
}

/// Type of a container in a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum ContainerType {
    /// A container in `containers`.
    App,
    /// A container in `initContainers` without `restartPolicy: Always`. It runs to completion.
    Init,
    /// A container in `initContainers` with `restartPolicy: Always`.
    Sidecar,
    /// A container that this profile or an earlier one added.
    Injected,
}

/// A check of the final object.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Validation {
    /// Name, unique in the profile. A child profile replaces its parent's validation of the same name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 63))]
    pub name: Option<String>,
    /// The CEL expression that must be true, without `${}`.
    #[schemars(length(min = 1, max = 1024))]
    pub expression: String,
    /// The message if the expression is not true.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// Machine-readable reason for the denial.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// HTTP status of the denial, 400 to 599.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 400, max = 599))]
    pub code: Option<u16>,
    /// The invalid field: `.spec.ports`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub field_path: Option<String>,
    /// What happens if the expression is not true. Default: `Deny`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub action: Option<ValidationAction>,
}

/// The consequence of a failed validation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum ValidationAction {
    /// The object is rejected.
    Deny,
    /// The author is warned.
    Warn,
    /// The violation is written to the audit log.
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
    /// How running pods get the newest revision. Default: `OnCreate`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub strategy: Option<RolloutStrategy>,
    /// The maximum number of pods that are upgraded or restarted at the same time. With the strategy `Restart`, values
    /// above 50 have the same effect as 50. Not with the strategy `OnCreate`. Default: 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1000))]
    pub max_unavailable: Option<u32>,
    /// The shares that are upgraded, in ascending order: of the running pods with the strategy `InPlace`, and of the
    /// workloads with the strategy `Restart`. After each step, the controller compares the upgraded pods with the
    /// others. Not with the strategy `OnCreate`. Default: all in one step.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    pub steps: Vec<RolloutStep>,
    /// How long the upgrade of one pod may take until its containers are ready, in seconds. Not with the strategy
    /// `OnCreate`. Default: 300.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 86_400))]
    pub pod_timeout_seconds: Option<u32>,
    /// Whether a failed rollout returns all pods to the previous revision. Not with the strategy `OnCreate`. Default:
    /// true.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub auto_rollback: Option<bool>,
    /// When pods may be upgraded or restarted. Observations and returns to the previous revision do not wait for a
    /// window. Not with the strategy `OnCreate`. Default: at any time.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    pub windows: Vec<RolloutWindow>,
}

impl Rollout {
    /// Returns the share of the step with this index (from 0), in percent. After the listed steps, the share is 100
    /// percent.
    #[must_use]
    pub fn step_percent(&self, step: u32) -> u8 {
        let step = usize::try_from(step).ok().and_then(|step| self.steps.get(step));
        step.map_or(100, |step| step.percent)
    }
}

/// How running pods get the newest revision of a profile. Each strategy goes further than the one before it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
pub enum RolloutStrategy {
    /// Only new pods get it.
    #[default]
    OnCreate,
    /// The controller changes images, CPU and memory of injected containers in running pods. New pods keep the promoted
    /// revision until all running pods are upgraded.
    InPlace,
    /// Like `InPlace`. The controller also evicts the pods that cannot be changed in place, so that their workloads
    /// replace them. New pods of a workload get the newest revision once the workload is in the share of the step.
    Restart,
}

impl RolloutStrategy {
    /// Whether the controller brings the newest revision to running pods.
    #[must_use]
    pub const fn has_running_pods(self) -> bool {
        matches!(self, Self::InPlace | Self::Restart)
    }
}

/// A part of the week in which pods may be upgraded.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct RolloutWindow {
    /// The days on which the window begins. Default: every day.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 7))]
    pub days: Vec<Weekday>,
    /// When the window begins, in UTC: `HH:MM`.
    #[schemars(length(max = 5), regex(pattern = "^([01][0-9]|2[0-3]):[0-5][0-9]$"))]
    pub start: String,
    /// How long the window is, in hours.
    #[schemars(range(min = 1, max = 24))]
    pub hours: u8,
}

/// A day of the week.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[expect(missing_docs, reason = "the names say it")]
pub enum Weekday {
    Monday,
    Tuesday,
    Wednesday,
    Thursday,
    Friday,
    Saturday,
    Sunday,
}

impl RolloutWindow {
    /// Returns when the window begins, in seconds since midnight. `None` if `start` is invalid.
    #[must_use]
    pub fn start_seconds(&self) -> Option<i64> {
        let (hours, minutes) = self.start.split_once(':')?;
        let number = |text: &str, end: i64| {
            let is_number = text.len() == 2 && text.bytes().all(|byte| byte.is_ascii_digit());
            text.parse::<i64>().ok().filter(|number| is_number && *number < end)
        };
        Some(number(hours, 24)? * 3600 + number(minutes, 60)? * 60)
    }

    /// Whether the window is open at a time in seconds since 1970.
    #[must_use]
    pub fn is_open(&self, now: i64) -> bool {
        const DAY: i64 = 86_400;
        const DAYS: [Weekday; 7] = [
            // 1970 began on a Thursday.
            Weekday::Thursday,
            Weekday::Friday,
            Weekday::Saturday,
            Weekday::Sunday,
            Weekday::Monday,
            Weekday::Tuesday,
            Weekday::Wednesday,
        ];
        let Some(start) = self.start_seconds() else { return false };
        let today = now.div_euclid(DAY);
        // A window may have begun on the day before.
        [today - 1, today].into_iter().any(|day| {
            let weekday = usize::try_from(day.rem_euclid(7)).ok().and_then(|index| DAYS.get(index));
            let is_day = self.days.is_empty() || weekday.is_some_and(|weekday| self.days.contains(weekday));
            let begin = day * DAY + start;
            is_day && (begin..begin + i64::from(self.hours) * 3600).contains(&now)
        })
    }
}

/// A step of a rollout to running pods.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct RolloutStep {
    /// The share that has the newest revision after the step, in percent: of the running pods with the strategy
    /// `InPlace`, and of the workloads with the strategy `Restart`.
    #[schemars(range(min = 1, max = 100))]
    pub percent: u8,
    /// How long the upgraded pods are observed before the next step, in seconds. Default: 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 604_800))]
    pub bake_seconds: Option<u32>,
    /// Whether the rollout waits after the observation until a user resumes it: `pillion rollout resume`. Default:
    /// false.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pause: Option<bool>,
}

/// Returns the schema of a partial Kubernetes object, which allows any object. The engine checks its fields. With
/// Kubernetes' schema of a pod, the CRD would be hundreds of kilobytes large.
fn partial_object(_: &mut SchemaGenerator) -> Schema {
    json_schema!({"type": "object", "x-kubernetes-preserve-unknown-fields": true})
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 2026-11-26, in seconds since 1970.
    const THURSDAY: i64 = 1_795_651_200;

    #[test]
    fn window_is_open_on_its_days_and_past_midnight() {
        let window = |days: &[Weekday], start: &str, hours| RolloutWindow {
            days: days.to_vec(),
            start: start.to_owned(),
            hours,
        };
        let night = window(&[Weekday::Thursday], "22:30", 4);
        for (days, hours, minutes, is_open) in [
            (0, 22, 29, false),
            (0, 22, 30, true),
            (1, 2, 29, true),
            (1, 2, 30, false),
            (1, 22, 30, false),
            (0, 1, 0, false),
        ] {
            let time = THURSDAY + days * 86_400 + hours * 3600 + minutes * 60;
            assert_eq!(night.is_open(time), is_open, "day {days}, {hours}:{minutes}");
        }
        assert!(window(&[], "00:00", 24).is_open(THURSDAY + 3 * 86_400 - 1));
        for start in ["24:00", "9:00", "09:60", "0900", "+9:00", ""] {
            assert_eq!(window(&[], start, 1).start_seconds(), None, "{start}");
        }
    }
}
