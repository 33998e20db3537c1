//! What was decided, as data. A [`Decision`] is made once for a request, and everything that is shown of it is rendered
//! from this one value: the patch's company of warnings, the metrics' labels, the log line, the span, the explanation.
//!
//! Reasons are a closed set, so that they can be labels of metrics; what is particular to one request stands beside them
//! as a detail, for people only.

use std::fmt;
use std::sync::Arc;

use pillion_api::names::INJECTED_ANNOTATION;

use crate::profile::CompiledProfile;
use crate::profile::validations::Validation;

pub use crate::reason::Reason;

/// What is done with a request as a whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Outcome {
    /// Allowed, with a patch.
    Injected,
    /// Allowed, without a patch: everything that the profiles say is there already.
    Unchanged,
    /// Allowed, without a patch: nothing is to be done.
    Skipped,
    /// Allowed: it passes the validations of the profiles, or those that it does not pass only tell.
    Validated,
    /// Refused.
    Denied,
}

impl Outcome {
    /// All outcomes.
    pub const ALL: [Self; 5] = [Self::Injected, Self::Unchanged, Self::Skipped, Self::Validated, Self::Denied];

    /// The outcome as it stands in metrics, logs and spans.
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

/// What is done with one profile for one object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ProfileOutcome {
    /// It changed the object.
    Applied,
    /// It is for this object, and all that it says is there already.
    Unchanged,
    /// It is not for this object. Nobody is told.
    NotMatched,
    /// It is left out, and the author is told.
    Skipped,
    /// Its validations were evaluated, and it does not refuse the object.
    Validated,
    /// It refuses the object.
    Denied,
}

impl ProfileOutcome {
    /// The outcome as it stands in metrics, logs and spans.
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

/// What was decided about one profile.
#[derive(Clone, Debug)]
pub struct ProfileDecision {
    /// The profile.
    pub profile: Arc<CompiledProfile>,
    /// What is done with it.
    pub outcome: ProfileOutcome,
    /// Why.
    pub reason: Reason,
    /// What is particular to this request: the name that is taken, the word that is not known. For people only.
    pub detail: Option<Box<str>>,
}

/// What follows from a validation that does not hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ValidationOutcome {
    /// The object is refused.
    Denied,
    /// The author is warned.
    Warned,
    /// It stands in the audit log.
    Audited,
}

impl ValidationOutcome {
    /// The outcome as it stands in logs and spans.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Denied => "denied",
            Self::Warned => "warned",
            Self::Audited => "audited",
        }
    }
}

/// A validation that does not hold, or could not be evaluated.
#[derive(Clone, Debug)]
pub struct ValidationDecision {
    /// The profile whose it is.
    pub profile: Arc<CompiledProfile>,
    /// Its place in the profile's `validations`.
    pub index: usize,
    /// What follows.
    pub outcome: ValidationOutcome,
    /// Why: it is not true, or could not be evaluated.
    pub reason: Reason,
    /// What the author of the object is told.
    pub message: Box<str>,
}

impl ValidationDecision {
    /// The HTTP status of the refusal.
    #[must_use]
    pub fn code(&self) -> u16 {
        self.validation().map_or(422, |validation| validation.code)
    }

    /// What Kubernetes calls the refusal, if it has a name.
    #[must_use]
    pub fn status_reason(&self) -> Option<&str> {
        self.validation().map(|validation| &*validation.reason).filter(|reason| !reason.is_empty())
    }

    /// The field that is wrong, if the profile says which: `spec.ports`.
    #[must_use]
    pub fn field_path(&self) -> Option<&str> {
        self.validation().and_then(|validation| validation.field_path.as_deref())
    }

    fn validation(&self) -> Option<&Validation> {
        self.profile.validations.get(self.index)
    }
}

/// Something the author of the object is told, beside what was decided about each profile.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Notice {
    /// The annotation `pillion.dev/injected` was written by the author, not by Pillion, and was dropped.
    RecordDropped,
    /// A word in a request that nobody knows.
    UnknownWord {
        /// Label or annotation in which it stands.
        key: Box<str>,
        /// The word.
        word: Box<str>,
    },
    /// A truthy word that could mean several profiles.
    AmbiguousWord {
        /// Label or annotation in which it stands.
        key: Box<str>,
    },
    /// Something that a profile left out although it was applied.
    OfProfile {
        /// The profile, as it is shown.
        profile: Box<str>,
        /// What, where and why.
        text: Box<str>,
    },
    /// A value that a parameter does not take as it is: the default was taken, or it was moved into its range.
    Parameter {
        /// The profile, as it is displayed.
        profile: Box<str>,
        /// What was wrong with the value, and what was taken.
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
            Self::UnknownWord { key, word } => write!(formatter, "{key} asks for {word:?}, which no profile is called"),
            Self::AmbiguousWord { key } => {
                write!(formatter, "{key} could mean more than one profile; say which one by its name")
            }
            Self::OfProfile { profile, text } => write!(formatter, "profile {profile}: {text}"),
            Self::Parameter { profile, message } => write!(formatter, "profile {profile}: {message}"),
        }
    }
}

/// What was decided about a request.
#[derive(Clone, Debug)]
pub struct Decision {
    /// What is done with it.
    pub outcome: Outcome,
    /// Why.
    pub reason: Reason,
    /// What is particular to this request. For people only.
    pub detail: Option<Box<str>>,
    /// The profiles that came into question, in the order in which they are applied. Profiles that nobody asked for are
    /// not listed, so that a decision costs nothing for them.
    pub profiles: Vec<ProfileDecision>,
    /// The validations that do not hold, in the order of the profiles. Empty on the mutating path.
    pub validations: Vec<ValidationDecision>,
    /// What else the author is told.
    pub notices: Vec<Notice>,
}

impl Decision {
    /// A decision in which no profile came into question.
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

    /// A refusal.
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

    /// The validations for which the object is refused.
    pub fn refusals(&self) -> impl Iterator<Item = &ValidationDecision> {
        self.validations.iter().filter(|failed| failed.outcome == ValidationOutcome::Denied)
    }

    /// Why the object is refused, in words; for the API server to show to its author.
    #[must_use]
    pub fn denial_message(&self) -> String {
        self.detail
            .as_deref()
            .map_or_else(|| self.reason.sentence().to_owned(), |detail| format!("{}: {detail}", self.reason.sentence()))
    }
}
