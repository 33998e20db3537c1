//! The data of an admission decision.
//!
//! Each request has one [`Decision`]. Warnings, metric labels, the log line, the span and the explanation are all
//! rendered from it. [`Reason`] is a closed set, so that it can be a metric label. Details of one request are
//! human-readable text in separate fields.

use std::fmt;
use std::sync::Arc;

use pillion_api::names::INJECTED_ANNOTATION;
use pillion_api::profile::FailurePolicy;

use crate::profile::CompiledProfile;
use crate::profile::parts::Validation;

pub use crate::reason::Reason;

/// The outcome of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Outcome {
    /// The request is allowed, and at least one profile changes the object.
    Injected,
    /// The request is allowed, and no profile changes the object. The object already contains everything that at least
    /// one matching profile adds.
    Unchanged,
    /// The request is allowed, and no profile takes effect: none matches the object, those that match were left out, or
    /// the patch would be too large. There may still be a patch, for example one that removes a record that Pillion did
    /// not write.
    Skipped,
    /// The request is allowed, because no validation denies the object. Failed validations may still warn or write to
    /// the audit log.
    Validated,
    /// The request is denied.
    Denied,
}

impl Outcome {
    /// All outcomes.
    pub const ALL: [Self; 5] = [Self::Injected, Self::Unchanged, Self::Skipped, Self::Validated, Self::Denied];

    /// Returns the outcome as the value of the metric label, the log field and the span attribute.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Injected => "injected",
            Self::Unchanged => "unchanged",
            Self::Skipped => "skipped",
            Self::Validated => "validated",
            Self::Denied => "denied",
        }
    }
}

/// The outcome of one profile for one object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ProfileOutcome {
    /// The profile changed the object.
    Applied,
    /// The profile matches, but the object already contains everything that it adds.
    Unchanged,
    /// The profile does not apply: it does not match, the pod or its namespace opted out, or another profile takes its
    /// place. The author gets no warning.
    NotMatched,
    /// The profile was not applied, and the author gets a warning.
    Skipped,
    /// The validations of the profile were evaluated, and none of them denies the object.
    Validated,
    /// The profile denies the object.
    Denied,
}

impl ProfileOutcome {
    /// Returns the outcome of a profile that cannot be applied, according to its failure policy.
    pub(crate) const fn of_failure(policy: FailurePolicy) -> Self {
        match policy {
            FailurePolicy::Ignore => Self::Skipped,
            FailurePolicy::Fail => Self::Denied,
        }
    }

    /// Returns the outcome as the value of the metric label, the log field and the span attribute.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Applied => "applied",
            Self::Unchanged => "unchanged",
            Self::NotMatched => "not_matched",
            Self::Skipped => "skipped",
            Self::Validated => "validated",
            Self::Denied => "denied",
        }
    }
}

/// The decision for one profile.
#[derive(Clone, Debug)]
pub struct ProfileDecision {
    /// The profile.
    pub profile: Arc<CompiledProfile>,
    /// The outcome of the profile.
    pub outcome: ProfileOutcome,
    /// The reason for the outcome.
    pub reason: Reason,
    /// Human-readable details of this request, such as the conflicting name or the unknown value.
    pub detail: Option<Box<str>>,
}

/// The consequence of a failed validation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ValidationOutcome {
    /// The object is denied.
    Denied,
    /// The author is warned.
    Warned,
    /// The failure is written to the audit log.
    Audited,
}

impl ValidationOutcome {
    /// Returns the outcome as the value of the log field and the span attribute.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Denied => "denied",
            Self::Warned => "warned",
            Self::Audited => "audited",
        }
    }
}

/// A validation that failed or could not be evaluated, and its consequence.
#[derive(Clone, Debug)]
pub struct ValidationDecision {
    /// The profile of the validation.
    pub profile: Arc<CompiledProfile>,
    /// Index of the validation in the profile's `validations`.
    pub index: usize,
    /// The consequence of the failure.
    pub outcome: ValidationOutcome,
    /// The reason: the validation failed, or could not be evaluated.
    pub reason: Reason,
    /// The message for the author of the object.
    pub message: Box<str>,
}

impl ValidationDecision {
    /// Returns the HTTP status code of the denial: the code of the validation, or 422 if `index` is invalid.
    #[must_use]
    pub fn code(&self) -> u16 {
        self.validation().map_or(422, |validation| validation.code)
    }

    /// Returns the Kubernetes status reason of the denial. `None` if the profile sets none and the code has no default
    /// reason.
    pub(crate) fn status_reason(&self) -> Option<&str> {
        self.validation().map(|validation| &*validation.reason).filter(|reason| !reason.is_empty())
    }

    /// Returns the path of the invalid field, such as `spec.ports`, if the validation specifies one.
    #[must_use]
    pub fn field_path(&self) -> Option<&str> {
        self.validation().and_then(|validation| validation.field_path.as_deref())
    }

    fn validation(&self) -> Option<&Validation> {
        self.profile.validations.get(self.index)
    }
}

/// A warning for the object's author that does not follow from the outcome of a profile.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Notice {
    /// The annotation `pillion.dev/injected` was written by the author, not by Pillion, and was dropped.
    RecordDropped,
    /// A label or annotation requests a profile that does not exist.
    UnknownProfile {
        /// The label or annotation that holds the value.
        key: Box<str>,
        /// The value.
        word: Box<str>,
    },
    /// A label or annotation has a truthy value, but it is the request key of several profiles.
    AmbiguousRequest {
        /// The label or annotation that holds the value.
        key: Box<str>,
    },
    /// A message about a profile: a part that it left out, a pin that has no effect, or a precondition that only warns.
    OfProfile {
        /// The display name of the profile.
        profile: Box<str>,
        /// The message. If it is about a part of the object, it contains the path.
        text: Box<str>,
    },
    /// A parameter value that was replaced by the default, or by the nearest value in the allowed range.
    Parameter {
        /// The display name of the profile.
        profile: Box<str>,
        /// The error in the value, and the value that is used instead.
        message: Box<str>,
    },
}

impl fmt::Display for Notice {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::RecordDropped => write!(
                formatter,
                "the annotation {INJECTED_ANNOTATION} was not written by Pillion and was dropped; was the pod copied?"
            ),
            Self::UnknownProfile { key, word } => {
                write!(formatter, "{key} requests {word:?}, and no profile has this name")
            }
            Self::AmbiguousRequest { key } => {
                write!(formatter, "{key} could request more than one profile; request one by its name")
            }
            Self::OfProfile { profile, text } => write!(formatter, "profile {profile}: {text}"),
            Self::Parameter { profile, message } => write!(formatter, "profile {profile}: {message}"),
        }
    }
}

/// The decision for one request.
#[derive(Clone, Debug)]
pub struct Decision {
    /// The outcome of the request.
    pub outcome: Outcome,
    /// The reason for the outcome.
    pub reason: Reason,
    /// Human-readable details of this request.
    pub detail: Option<Box<str>>,
    /// The requested profiles, in the order in which they are applied. A profile with `activation: Always` counts as
    /// requested. Profiles that are not requested are not listed, to save time.
    pub profiles: Vec<ProfileDecision>,
    /// The failed validations, in the order of the profiles. Empty on the mutating path.
    pub validations: Vec<ValidationDecision>,
    /// Warnings for the object's author that do not follow from the outcome of a profile.
    pub notices: Vec<Notice>,
}

impl Decision {
    /// Creates a decision with the outcome `Skipped` and the given reason, without profiles.
    #[must_use]
    pub const fn skipped(reason: Reason) -> Self {
        Self {
            outcome: Outcome::Skipped,
            reason,
            detail: None,
            profiles: Vec::new(),
            validations: Vec::new(),
            notices: Vec::new(),
        }
    }

    /// Creates a denial with the given reason and detail, without profiles.
    #[must_use]
    pub fn denied(reason: Reason, detail: impl Into<Box<str>>) -> Self {
        Self {
            outcome: Outcome::Denied,
            reason,
            detail: Some(detail.into()),
            profiles: Vec::new(),
            validations: Vec::new(),
            notices: Vec::new(),
        }
    }

    /// Returns the failed validations that deny the object.
    pub fn refusals(&self) -> impl Iterator<Item = &ValidationDecision> {
        self.validations.iter().filter(|failed| failed.outcome == ValidationOutcome::Denied)
    }

    /// Returns the message of the denial. The API server shows it to the author.
    #[must_use]
    pub fn denial_message(&self) -> String {
        self.detail
            .as_deref()
            .map_or_else(|| self.reason.sentence().to_owned(), |detail| format!("{}: {detail}", self.reason.sentence()))
    }
}
