//! Test cases for profiles: an object that is created, the state of the cluster, and the expected result.
//!
//! A profile author writes a [`Case`]. [`run`] passes its object through the steps of an API server: it mutates the
//! object, applies the patch, and validates the result. For a creation that is not denied, it also checks that a second
//! mutation changes nothing, that the result is the same without `metadata.managedFields`, and that undoing the
//! injection restores the object. The [`Verdict`] lists every difference from the expected result with its path.
//!
//! * [`Profiles`] holds the profiles of a folder, and sets the values of a case in them.
//! * `compare` finds the differences between two objects.
//! * `managed` writes `metadata.managedFields` as the API server does.
//!
//! # Example
//!
//! ```
//! use pillion_cases::{Case, Profiles, run};
//! use pillion_engine::profile::ProfileName;
//!
//! let spec = serde_json::json!({"activation": "Always", "template": {"metadata": {"labels": {"team": "a"}}}});
//! let profiles = Profiles::new([(ProfileName::cluster("label"), serde_json::from_value(spec).unwrap())]);
//! let case: Case = serde_json::from_value(serde_json::json!({
//!     "name": "adds the label",
//!     "object": {"spec": {"containers": [{"name": "app", "image": "app:1"}]}},
//!     "part": {"metadata": {"labels": {"team": "a"}}},
//! }))
//! .unwrap();
//! assert!(run(&case, &profiles).unwrap().passes());
//! ```

mod difference;
mod compare;
mod expect;
mod managed;
mod profiles;
mod run;

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::{Map, Value as Json};
use thiserror::Error;

use pillion_engine::decision::Decision;

pub use self::compare::{missing, unequal};
pub use self::difference::{Aspect, Difference};
pub use self::profiles::Profiles;
pub use self::run::run;

/// A test case as its author writes it.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct Case {
    /// The description of the case.
    pub name: String,
    /// The names of the profiles that the case uses; if absent, all profiles of the folder.
    pub profiles: Option<Vec<String>>,
    /// Defaults of parameters that the installer sets, by profile.
    #[serde(default)]
    pub parameters: BTreeMap<String, Map<String, Json>>,
    /// Values that request a profile, by profile. They replace its `requestedBy.values`.
    #[serde(default)]
    pub values: BTreeMap<String, Vec<String>>,
    /// Facts about the cluster, which the platform team sets. Expressions read them as `cluster`.
    #[serde(default)]
    pub cluster: Map<String, Json>,
    /// The namespace of the object. Its failure mode is `enabled` unless its labels set another.
    #[serde(default)]
    pub namespace: Metadata,
    /// The service account of the pod. If absent, the one in `objects` is used, if there is one.
    pub service_account: Option<Metadata>,
    /// The objects that lookups find.
    #[serde(default)]
    pub objects: Vec<Json>,
    /// Changes of the review's `request`, as a merge patch.
    #[serde(default)]
    pub request: Map<String, Json>,
    /// The object to create; by default, a `v1` Pod.
    pub object: Map<String, Json>,

    /// Whether the object must remain unchanged.
    #[serde(default)]
    pub unchanged: bool,
    /// The expected object, without the injection record.
    pub result: Option<Json>,
    /// A part of the expected object. Maps and the elements of lists match partially, but lists must have the same
    /// length and order.
    pub part: Option<Json>,
    /// Expected environment variables, by container and name. If the expected value is not a string, the variable is
    /// parsed as JSON, or as base64 of JSON. `null` means that the variable must not exist.
    #[serde(default)]
    pub env: BTreeMap<String, Map<String, Json>>,
    /// A part of the denial message; if absent, the object must be allowed.
    pub denied: Option<String>,
    /// The HTTP status code of the denial.
    pub code: Option<u16>,
    /// Parts of the expected messages: warnings, the denial, or the details of profiles that were left out.
    #[serde(default)]
    pub messages: Vec<String>,
    /// The expected reasons by profile, as values of the metric label.
    #[serde(default)]
    pub reasons: BTreeMap<String, String>,
}

/// The metadata of an existing object.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct Metadata {
    /// The name of the object.
    pub name: Option<String>,
    /// The labels of the object.
    #[serde(default)]
    pub labels: BTreeMap<String, String>,
    /// The annotations of the object.
    #[serde(default)]
    pub annotations: BTreeMap<String, String>,
}

/// The result of a case.
#[derive(Clone, Debug)]
pub struct Verdict {
    /// The decision on the mutating path.
    pub decision: Decision,
    /// The decision on the validating path; `None` if the mutating path denied the object.
    pub validation: Option<Decision>,
    /// The resulting object, without the injection record and without defaults that the case did not set.
    pub object: Json,
    /// The denial, if there is one.
    pub denied: Option<Denied>,
    /// All messages for the author: the denial, warnings, and why profiles were left out.
    pub messages: Vec<String>,
    /// The differences from the expected result; empty if the case passes.
    pub differences: Vec<Difference>,
}

/// The denial of an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Denied {
    /// The message for the author.
    pub message: String,
    /// The HTTP status code.
    pub code: u16,
}

/// Why a case cannot run.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum Unusable {
    /// The case names a profile that does not exist.
    #[error("{field}: there is no profile {name:?}{}", .existing.as_ref().map(|existing| format!("; there is {existing}")).unwrap_or_default())]
    UnknownProfile {
        /// The field of the case that names the profile.
        field: &'static str,
        /// The unknown name.
        name: String,
        /// The names of the folder's profiles; `None` if it has none.
        existing: Option<String>,
    },
    /// The case sets a parameter that the profile does not have.
    #[error("parameters.{profile}: the profile has no parameter {parameter:?}; there is {existing}")]
    UnknownParameter {
        /// The profile.
        profile: String,
        /// The unknown name.
        parameter: String,
        /// The existing names.
        existing: String,
    },
    /// A profile does not compile. It may compile without the values that the case sets.
    #[error("profile {profile} does not compile: {problems}")]
    Profile {
        /// The profile.
        profile: String,
        /// The diagnostics of the compiler.
        problems: String,
    },
    /// The case has no expectation.
    #[error(
        "nothing is expected: add at least one of `unchanged`, `result`, `part`, `env`, `denied`, `messages` and `reasons`"
    )]
    NothingExpected,
    /// A field does not have the required form.
    #[error("{field}: {message}")]
    Field {
        /// The path of the field.
        field: &'static str,
        /// The description of the error.
        message: String,
    },
    /// The engine failed because of a bug: for example, its patch failed the self-check.
    #[error("internal error of the engine: {0}")]
    Engine(String),
}

impl Case {
    /// Whether the case has an expectation. The field `code` alone is not an expectation.
    #[must_use]
    pub fn expects_something(&self) -> bool {
        self.unchanged
            || self.result.is_some()
            || self.part.is_some()
            || !self.env.is_empty()
            || self.denied.is_some()
            || !self.messages.is_empty()
            || !self.reasons.is_empty()
    }
}

impl Verdict {
    /// Whether the case passes.
    #[must_use]
    pub fn passes(&self) -> bool {
        self.differences.is_empty()
    }
}

#[cfg(test)]
mod tests;
