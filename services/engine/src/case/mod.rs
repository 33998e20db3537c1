//! Cases: an object that is created, what there is when it is, and what is expected to become of it.
//!
//! A [`Case`] is what an author of profiles writes down, and [`run`] decides it as an API server would have it decided:
//! the object is mutated, the patch is applied, it is mutated once more, which has to change nothing, and then it is
//! validated. What came of that is a [`Verdict`], as data: where it is not what was expected, it says so place by place.
//!
//! * [`Profiles`]: the profiles that a case is about, with what the one who installs them sets.
//! * `compare`: when two objects mean the same, and where they do not.
//! * `managed`: which fields the author wrote, as the API server says it.

mod compare;
mod difference;
mod expect;
mod managed;
mod profiles;
mod run;

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::{Map, Value as Json};
use thiserror::Error;

use crate::decision::Decision;

pub use self::compare::{missing, unequal};
pub use self::difference::{Aspect, Difference};
pub use self::profiles::Profiles;
pub use self::run::run;

/// A case as it is written.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct Case {
    /// What it shows, in words.
    pub name: String,
    /// The names of the profiles that there are; absent: all of the folder's.
    pub profiles: Option<Vec<String>>,
    /// Defaults of parameters, by profile, as the one who installs it would write them.
    #[serde(default)]
    pub parameters: BTreeMap<String, Map<String, Json>>,
    /// Words that ask for a profile beside its name, by profile: its `request.values`.
    #[serde(default)]
    pub values: BTreeMap<String, Vec<String>>,
    /// What the platform says of the cluster.
    #[serde(default)]
    pub cluster: Map<String, Json>,
    /// The namespace of the object. It is opted in as `enabled` unless its labels say something else of it.
    #[serde(default)]
    pub namespace: Metadata,
    /// The service account of the pod; absent: it is among the objects, or there is none.
    pub service_account: Option<Metadata>,
    /// What look-ups and owners are found among.
    #[serde(default)]
    pub objects: Vec<Json>,
    /// What the API server says of the request, as a merge patch of the review's `request`.
    #[serde(default)]
    pub request: Map<String, Json>,
    /// The object that is created; a Pod of v1 if it does not say what it is.
    pub object: Map<String, Json>,

    /// The object comes out as it went in.
    #[serde(default)]
    pub unchanged: bool,
    /// The whole object behind it, without the record of what was injected.
    pub result: Option<Json>,
    /// A part of the object behind it: maps partially, lists of the same length and order with each element partially.
    pub part: Option<Json>,
    /// Variables of containers, by the container's name and the variable's. A value that is no text is compared with the
    /// variable's text read as JSON, or as JSON in base64; `null`: there is no such variable.
    #[serde(default)]
    pub env: BTreeMap<String, Map<String, Json>>,
    /// A part of the message with which it is refused; absent: it is not refused.
    pub denied: Option<String>,
    /// The HTTP status of the refusal.
    pub code: Option<u16>,
    /// Parts of what the author is told: of a warning, a refusal or why a profile was left out.
    #[serde(default)]
    pub told: Vec<String>,
    /// Why a profile was applied or not, as it stands in metrics, by profile.
    #[serde(default)]
    pub reasons: BTreeMap<String, String>,
}

/// Metadata of an object that is there when a case's object comes.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct Metadata {
    /// Its name.
    pub name: Option<String>,
    /// Its labels.
    #[serde(default)]
    pub labels: BTreeMap<String, String>,
    /// Its annotations.
    #[serde(default)]
    pub annotations: BTreeMap<String, String>,
}

/// What became of a case.
#[derive(Clone, Debug)]
pub struct Verdict {
    /// What was decided on the mutating path.
    pub decision: Decision,
    /// What was decided on the validating path; `None` if it did not come to that.
    pub validation: Option<Decision>,
    /// The object behind it, without the record and without what the case did not say of the object itself.
    pub object: Json,
    /// The refusal, if it was refused.
    pub denied: Option<Denied>,
    /// All that the author is told: the refusal, warnings, and why profiles were left out.
    pub told: Vec<String>,
    /// Where it is not as it was expected; empty if the case passes.
    pub differences: Vec<Difference>,
}

/// A refusal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Denied {
    /// Why, as the author is told.
    pub message: String,
    /// The HTTP status.
    pub code: u16,
}

/// Why a case cannot be run.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum Unusable {
    /// It speaks of a profile that is not there.
    #[error("{field}: there is no profile {name:?}{}", .meant.as_ref().map(|meant| format!("; there is {meant}")).unwrap_or_default())]
    UnknownProfile {
        /// Where it does.
        field: &'static str,
        /// What it calls it.
        name: String,
        /// Those that are there.
        meant: Option<String>,
    },
    /// It sets a parameter that the profile does not have.
    #[error("parameters.{profile}: it has no parameter {parameter:?}; there is {there}")]
    UnknownParameter {
        /// The profile.
        profile: String,
        /// What it calls it.
        parameter: String,
        /// Those that are there.
        there: String,
    },
    /// A profile does not compile, perhaps only with what the case sets.
    #[error("profile {profile} does not compile: {faults}")]
    Profile {
        /// The profile.
        profile: String,
        /// Why not.
        faults: String,
    },
    /// It expects nothing.
    #[error(
        "nothing is expected: add at least one of `unchanged`, `result`, `part`, `env`, `denied`, `told` and `reasons`"
    )]
    NothingExpected,
    /// Something in it is not of the form that is needed.
    #[error("{field}: {message}")]
    Field {
        /// The field.
        field: &'static str,
        /// What is wrong.
        message: String,
    },
    /// The patch that was made is wrong: a fault of this build.
    #[error("the engine is at fault: {0}")]
    Engine(String),
}

impl Case {
    /// Whether anything is expected of it.
    #[must_use]
    pub fn expects_something(&self) -> bool {
        self.unchanged
            || self.result.is_some()
            || self.part.is_some()
            || !self.env.is_empty()
            || self.denied.is_some()
            || !self.told.is_empty()
            || !self.reasons.is_empty()
    }
}

impl Verdict {
    /// Whether everything is as it was expected.
    #[must_use]
    pub fn passes(&self) -> bool {
        self.differences.is_empty()
    }
}

#[cfg(test)]
mod tests;
