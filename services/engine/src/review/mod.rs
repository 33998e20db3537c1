//! Admission reviews: parses and decides a review, and writes the response.
//!
//! A [`Review`] borrows the request body. An invalid body is a [`ReviewError`], which is a client error. If a patch
//! fails its self-check, this is an [`InternalError`], which is a server error, so that the API server applies the
//! failure policy. All decisions, including denials, are successful responses.

mod envelope;
mod context;
mod validate;
mod decide;
mod response;

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Instant;

use pillion_api::names::{FailureMode, MUTATE_PATH, VALIDATE_PATH};
use pillion_api::profile::Operation;
use thiserror::Error;

use crate::decision::Decision;
use crate::json::{BorrowedTape, Kind, Limits, SyntaxError, Value};
use crate::limits::Guardrails;
use crate::lookup::LookedUp;
use crate::patch::CheckFault;
use crate::profile::target::Phase;
use crate::snapshot::{Namespace, Snapshot};

/// The path to which the API server sends a review.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Endpoint {
    /// `/mutate`: the failure mode comes from the labels of the namespace.
    Any,
    /// A path in a mutating webhook configuration. The API server has selected the namespace by this failure mode.
    FailureMode(FailureMode),
    /// `/validate`, for validations. The failure mode comes from the labels of the namespace.
    Validate,
    /// Like [`Endpoint::FailureMode`], for validations.
    ValidateFailureMode(FailureMode),
}

impl Endpoint {
    /// All endpoints.
    pub const ALL: [Self; 8] = [
        Self::Any,
        Self::FailureMode(FailureMode::Enabled),
        Self::FailureMode(FailureMode::Required),
        Self::FailureMode(FailureMode::Held),
        Self::Validate,
        Self::ValidateFailureMode(FailureMode::Enabled),
        Self::ValidateFailureMode(FailureMode::Required),
        Self::ValidateFailureMode(FailureMode::Held),
    ];

    /// Returns the path of the endpoint.
    #[must_use]
    pub const fn path(self) -> &'static str {
        match self {
            Self::Any => MUTATE_PATH,
            Self::FailureMode(failure_mode) => failure_mode.path(),
            Self::Validate => VALIDATE_PATH,
            Self::ValidateFailureMode(failure_mode) => failure_mode.validate_path(),
        }
    }

    /// Returns the phase of the endpoint: mutating or validating.
    pub(crate) const fn phase(self) -> Phase {
        match self {
            Self::Any | Self::FailureMode(_) => Phase::Mutate,
            Self::Validate | Self::ValidateFailureMode(_) => Phase::Validate,
        }
    }

    /// Returns the name of the endpoint as the value of the metric label, the log field and the span attribute.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Any => "any",
            Self::FailureMode(failure_mode) => failure_mode.label_value(),
            Self::Validate => "validate_any",
            Self::ValidateFailureMode(FailureMode::Enabled) => "validate_enabled",
            Self::ValidateFailureMode(FailureMode::Required) => "validate_required",
            Self::ValidateFailureMode(FailureMode::Held) => "validate_held",
        }
    }
}

/// The inputs of a decision that are neither in the request nor in the snapshot.
#[derive(Clone, Debug, Default)]
pub struct Facts {
    /// The namespace of the object. `None` if it was not found.
    pub namespace: Option<Arc<Namespace>>,
    /// The results of the lookups that [`Review::needs`] returned.
    pub looked_up: LookedUp,
    /// The records that are trusted.
    pub record_trust: RecordTrust,
    /// The current guardrails. They may change while the snapshot remains the same. `None` if the guardrails of the
    /// snapshot apply.
    pub guardrails: Option<Arc<Guardrails>>,
    /// The deadline of the request. Expressions fail after it, even if they have steps left. `None` if only the number
    /// of steps is limited.
    pub deadline: Option<Instant>,
}

impl Facts {
    /// Returns the failure mode for the object's namespace: that of the endpoint or, if it has none, that of the
    /// namespace's labels. `None` if the namespace is not opted in or was not found.
    fn failure_mode(&self, endpoint: Endpoint) -> Option<FailureMode> {
        match endpoint {
            Endpoint::FailureMode(failure_mode) | Endpoint::ValidateFailureMode(failure_mode) => Some(failure_mode),
            Endpoint::Any | Endpoint::Validate => {
                self.namespace.as_ref().and_then(|namespace| namespace.failure_mode())
            }
        }
    }
}

/// The injection records that are trusted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RecordTrust {
    /// Records that the author did not write, according to `metadata.managedFields`.
    #[default]
    ManagedFields,
    /// All records. The command line uses this value, because files have no managedFields.
    AsFound,
}

/// The reason why a body is not a valid review. This is a client error.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ReviewError {
    /// The body is empty.
    #[error("the body is empty; expected an AdmissionReview")]
    Empty,
    /// The body is not UTF-8.
    #[error("the body is not UTF-8 at byte {0}; expected an AdmissionReview as JSON")]
    Encoding(usize),
    /// The body is not JSON.
    #[error("the body is not valid JSON: {0}")]
    Syntax(#[from] SyntaxError),
    /// The body is JSON, but not an AdmissionReview of a supported version.
    #[error("{field} is {found}; expected {expected}")]
    Field {
        /// The path of the field.
        field: &'static str,
        /// The value that was found, shortened.
        found: String,
        /// The expected value.
        expected: &'static str,
    },
    /// An object of the envelope has more keys than the API server ever sends.
    #[error("{field} has more than {most} keys; expected an AdmissionReview")]
    TooManyKeys {
        /// The path of the object.
        field: &'static str,
        /// The maximum number of keys.
        most: usize,
    },
    /// An object of the envelope contains a key twice.
    #[error("the key {0:?} occurs twice in one object")]
    Twice(Box<str>),
}

/// The patch failed its self-check. The failure policy of the webhook determines what happens to the object.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("the patch failed its self-check: {0}")]
pub struct InternalError(#[from] CheckFault);

/// The stage of the self-check that failed. It is a closed set, because stages are label values of a metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CheckStage {
    /// The patch could not be parsed as a JSON patch.
    Read,
    /// The patch could not be applied to the object.
    Apply,
    /// The patched object differs from the intended one.
    Compare,
}

impl CheckStage {
    /// All stages.
    pub const ALL: [Self; 3] = [Self::Read, Self::Apply, Self::Compare];

    /// Returns the stage as the value of the metric label.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Apply => "apply",
            Self::Compare => "compare",
        }
    }
}

impl InternalError {
    /// Returns the stage that failed.
    #[must_use]
    pub const fn stage(&self) -> CheckStage {
        match self.0 {
            CheckFault::Operation(_) => CheckStage::Read,
            CheckFault::Path { .. } | CheckFault::Malformed(_) => CheckStage::Apply,
            CheckFault::Result => CheckStage::Compare,
        }
    }
}

/// A decision, and the patch that it requires.
#[derive(Clone, Debug)]
pub struct Decided {
    /// The decision.
    pub decision: Decision,
    /// The JSON patch. `None` if the object is denied or does not change.
    pub patch: Option<Vec<u8>>,
}

impl Decided {
    const fn without_patch(decision: Decision) -> Self {
        Self { decision, patch: None }
    }
}

/// A step in the process of a decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Step {
    /// The profiles for the object are selected.
    Match,
    /// The templates of the selected profiles are merged, and the patch is written.
    Merge,
    /// The patch is applied to the original object, and the result is compared with the intended object.
    SelfCheck,
    /// Validations are evaluated, on the validating path.
    Validate,
}

impl Step {
    /// Returns the name of the tracing span.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Match => "match",
            Self::Merge => "merge",
            Self::SelfCheck => "self_check",
            Self::Validate => "validate",
        }
    }
}

/// Observes the steps of a decision. Each step begins at most once, in the order of [`Step`]. Some decisions end before
/// the first step.
pub trait Observer {
    /// Called when a step begins.
    fn begins(&mut self, step: Step);
}

/// An observer that does nothing, so that the compiler removes the calls.
struct Unobserved;

impl Observer for Unobserved {
    #[inline(always)]
    fn begins(&mut self, _step: Step) {}
}

/// A parsed review. It borrows the request body.
#[derive(Debug)]
pub struct Review<'b> {
    tape: BorrowedTape<'b>,
    envelope: envelope::Envelope<'b>,
}

impl<'b> Review<'b> {
    /// Parses the body of a request.
    ///
    /// # Errors
    /// The body is not an AdmissionReview of version v1 or v1beta1 with a valid request. This is a client error.
    pub fn parse(body: &'b [u8]) -> Result<Self, ReviewError> {
        if body.is_empty() {
            return Err(ReviewError::Empty);
        }
        let text = std::str::from_utf8(body).map_err(|error| ReviewError::Encoding(error.valid_up_to()))?;
        let tape = BorrowedTape::parse(text, Limits::default())?;
        let envelope = envelope::Envelope::read(&tape)?;
        Ok(Self { tape, envelope })
    }

    /// Returns the object of the request, if there is one.
    fn new_object(&self) -> Option<Value<'_>> {
        self.tape.root().at(&["request", "object"]).filter(|object| object.kind() == Kind::Object)
    }

    /// Returns the old object of the request, if there is one.
    fn old_object(&self) -> Option<Value<'_>> {
        self.tape.root().at(&["request", "oldObject"]).filter(|object| object.kind() == Kind::Object)
    }

    /// Returns the UID of the request. The response must repeat it.
    #[must_use]
    pub fn uid(&self) -> &str {
        &self.envelope.uid
    }

    /// Returns the namespace of the object. Empty if it has none.
    #[must_use]
    pub fn namespace(&self) -> &str {
        &self.envelope.namespace
    }

    /// Returns the operation of the request. `None` if profiles cannot target it.
    #[must_use]
    pub const fn operation(&self) -> Option<Operation> {
        self.envelope.operation
    }

    /// Returns the name of the object, or the prefix of its generated name, for logs. `None` if the object has neither,
    /// and for deletions.
    #[must_use]
    pub fn object_name(&self) -> Option<Cow<'_, str>> {
        let metadata = self.new_object()?.get("metadata")?;
        let text = |key| metadata.get(key).and_then(Value::as_str).filter(|name| !name.is_empty());
        text("name").or_else(|| text("generateName"))
    }

    /// Whether the request is a dry run.
    #[must_use]
    pub const fn dry_run(&self) -> bool {
        self.envelope.dry_run
    }

    /// Decides the review.
    ///
    /// # Errors
    /// The patch did not pass its self-check. This is a bug in Pillion.
    pub fn decide(&self, endpoint: Endpoint, snapshot: &Snapshot, facts: &Facts) -> Result<Decided, InternalError> {
        self.decide_observed(endpoint, snapshot, facts, &mut Unobserved)
    }

    /// Decides the review like [`Self::decide`], but also calls the observer at the start of each step.
    ///
    /// # Errors
    /// Like [`Self::decide`].
    pub fn decide_observed(
        &self,
        endpoint: Endpoint,
        snapshot: &Snapshot,
        facts: &Facts,
        observer: &mut impl Observer,
    ) -> Result<Decided, InternalError> {
        decide::decide(self, endpoint, snapshot, facts, observer)
    }

    /// Completes a decision that was not made by [`Self::decide`], such as a decision while injection is disabled. Adds
    /// a patch that removes the scheduling gate of a pod in a `held` namespace; [`Self::decide`] does this itself.
    ///
    /// # Errors
    /// Like [`Self::decide`].
    pub fn without_gate(&self, endpoint: Endpoint, facts: &Facts, decided: Decided) -> Result<Decided, InternalError> {
        let object = self.new_object().filter(|_| endpoint.phase() == Phase::Mutate);
        match (object, facts.failure_mode(endpoint)) {
            (Some(object), Some(failure_mode)) => decide::without_gate(object, failure_mode, decided),
            _ => Ok(decided),
        }
    }

    /// Returns the response body.
    #[must_use]
    pub fn respond(&self, decided: &Decided) -> Vec<u8> {
        response::write(&self.envelope, decided)
    }
}

#[cfg(test)]
mod tests;
