//! An admission review: its envelope read, decided about, and answered.
//!
//! A [`Review`] borrows the request's body. Reading it finds everything for which the *caller* is to blame
//! ([`ReviewError`]: a client error); deciding may find a fault of this build ([`InternalError`]: a server error, so that the
//! failure policy decides); what is decided about the object is neither, and is always a proper answer.

mod answer;
mod considered;
mod decide;
mod envelope;
mod found_record;
mod gate;
mod mark;
mod needs;
mod observe;
mod validating;

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Instant;

use pillion_api::names::{InjectionLevel, MUTATE_PATH, VALIDATE_PATH};
use pillion_api::profile::Operation;
use thiserror::Error;

use crate::decision::Decision;
use crate::json::{BorrowedTape, Limits, SyntaxError};
use crate::limits::Guardrails;
use crate::lookup::{LookedUp, Wanted};
use crate::patch::CheckFault;
use crate::profile::target::Phase;
use crate::snapshot::{Namespace, Snapshot};

pub use self::observe::{Observer, Step, Unobserved};

/// Which path a review came in by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Endpoint {
    /// `/mutate`: whether the namespace is opted in is for us to find out.
    Any,
    /// A path of the API server's: it has found the namespace to be opted in so.
    Level(InjectionLevel),
    /// `/validate`: as [`Endpoint::Any`], for validations.
    Validate,
    /// A path of the API server's for validations.
    ValidateLevel(InjectionLevel),
}

impl Endpoint {
    /// All endpoints.
    pub const ALL: [Self; 8] = [
        Self::Any,
        Self::Level(InjectionLevel::Enabled),
        Self::Level(InjectionLevel::Required),
        Self::Level(InjectionLevel::Held),
        Self::Validate,
        Self::ValidateLevel(InjectionLevel::Enabled),
        Self::ValidateLevel(InjectionLevel::Required),
        Self::ValidateLevel(InjectionLevel::Held),
    ];

    /// The endpoint of a path, `None` if it is not one.
    #[must_use]
    pub fn from_path(path: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|endpoint| endpoint.path() == path)
    }

    /// The path.
    #[must_use]
    pub const fn path(self) -> &'static str {
        match self {
            Self::Any => MUTATE_PATH,
            Self::Level(level) => level.path(),
            Self::Validate => VALIDATE_PATH,
            Self::ValidateLevel(level) => level.validate_path(),
        }
    }

    /// What is asked for on this path: a patch, or whether the object is allowed.
    pub(crate) const fn phase(self) -> Phase {
        match self {
            Self::Any | Self::Level(_) => Phase::Mutate,
            Self::Validate | Self::ValidateLevel(_) => Phase::Validate,
        }
    }

    /// The endpoint as it stands in metrics, logs and spans.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Any => "any",
            Self::Level(level) => level.label_value(),
            Self::Validate => "validate_any",
            Self::ValidateLevel(InjectionLevel::Enabled) => "validate_enabled",
            Self::ValidateLevel(InjectionLevel::Required) => "validate_required",
            Self::ValidateLevel(InjectionLevel::Held) => "validate_held",
        }
    }
}

/// What is known beside the request and the snapshot.
#[derive(Clone, Debug, Default)]
pub struct Facts {
    /// The namespace of the object; `None` if it could not be found.
    pub namespace: Option<Arc<Namespace>>,
    /// What was looked up: all that [`Review::needs`] asks for.
    pub looked_up: LookedUp,
    /// Which records are believed.
    pub record_trust: RecordTrust,
    /// What the platform allows tenants' profiles to do, where that changes while the snapshot stays; `None`: what the
    /// snapshot says.
    pub guardrails: Option<Arc<Guardrails>>,
    /// When the request has to be answered. Expressions end there, also where they have steps left; `None`: only their
    /// steps end them.
    pub deadline: Option<Instant>,
}

impl Facts {
    /// The failure mode of the object's namespace. The API server has read it for an endpoint that names one; for the other
    /// endpoints the namespace tells.
    fn level(&self, endpoint: Endpoint) -> Option<InjectionLevel> {
        match endpoint {
            Endpoint::Level(level) | Endpoint::ValidateLevel(level) => Some(level),
            Endpoint::Any | Endpoint::Validate => self.namespace.as_ref().and_then(|namespace| namespace.level()),
        }
    }
}

/// Which records of an earlier injection are believed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RecordTrust {
    /// Those that `metadata.managedFields` show not to be the author's.
    #[default]
    ManagedFields,
    /// Any. For the command line, whose files have no managedFields.
    AsFound,
}

/// Why a body is not a review that can be answered. The caller is to blame.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ReviewError {
    /// There is nothing in it.
    #[error("the body is empty; expected an AdmissionReview")]
    Empty,
    /// It is not UTF-8.
    #[error("the body is not UTF-8 at byte {0}; expected an AdmissionReview as JSON")]
    Encoding(usize),
    /// It is not JSON.
    #[error("the body is not JSON that can be read: {0}")]
    Syntax(#[from] SyntaxError),
    /// It is JSON, but not an AdmissionReview of a version that is known.
    #[error("{field} is {found}; expected {expected}")]
    Field {
        /// The field.
        field: &'static str,
        /// What is there, shortened.
        found: String,
        /// What should be.
        expected: &'static str,
    },
    /// An object of the envelope has more keys than any that the API server sends.
    #[error("{field} has more than {most} keys; expected an AdmissionReview")]
    TooManyKeys {
        /// The object.
        field: &'static str,
        /// How many it may have.
        most: usize,
    },
    /// A key of the envelope stands twice.
    #[error("{0:?} stands twice in one object; which one counts is not certain")]
    Twice(Box<str>),
}

/// What this build did wrong. The failure policy decides about the object.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("the patch did not pass its check before it was sent: {0}")]
pub struct InternalError(#[from] CheckFault);

/// Where the check of a patch failed. A closed set: each is a label value of a metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CheckStage {
    /// It could not be read as a JSON patch.
    Read,
    /// It could not be applied to the object.
    Apply,
    /// The patched object is not the one that was meant.
    Compare,
}

impl CheckStage {
    /// All stages.
    pub const ALL: [Self; 3] = [Self::Read, Self::Apply, Self::Compare];

    /// The stage as it stands in metrics.
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
    /// Where the check failed.
    #[must_use]
    pub const fn stage(&self) -> CheckStage {
        match self.0 {
            CheckFault::Operation(_) => CheckStage::Read,
            CheckFault::Path { .. } | CheckFault::Malformed(_) => CheckStage::Apply,
            CheckFault::Result => CheckStage::Compare,
        }
    }
}

/// A decision with the patch that carries it out.
#[derive(Clone, Debug)]
pub struct Decided {
    /// What was decided.
    pub decision: Decision,
    /// The JSON patch; `None` if nothing is changed.
    pub patch: Option<Vec<u8>>,
}

/// A review that was read, over the body that it came in.
#[derive(Debug)]
pub struct Review<'b> {
    tape: BorrowedTape<'b>,
    envelope: envelope::Envelope<'b>,
}

impl<'b> Review<'b> {
    /// Reads a body.
    ///
    /// # Errors
    /// If it is not an AdmissionReview of version v1 or v1beta1 with a request. The caller is to blame.
    pub fn parse(body: &'b [u8]) -> Result<Self, ReviewError> {
        if body.is_empty() {
            return Err(ReviewError::Empty);
        }
        let text = std::str::from_utf8(body).map_err(|error| ReviewError::Encoding(error.valid_up_to()))?;
        let tape = BorrowedTape::parse(text, Limits::default())?;
        let envelope = envelope::Envelope::read(&tape)?;
        Ok(Self { tape, envelope })
    }

    /// The id of the request, which the answer repeats.
    #[must_use]
    pub fn uid(&self) -> &str {
        &self.envelope.uid
    }

    /// The namespace of the object; empty if it has none.
    #[must_use]
    pub fn namespace(&self) -> &str {
        &self.envelope.namespace
    }

    /// What is being done.
    #[must_use]
    pub const fn operation(&self) -> Option<Operation> {
        self.envelope.operation
    }

    /// The name of the object, or what its name will begin with. For logs.
    #[must_use]
    pub fn object_name(&self) -> Option<Cow<'_, str>> {
        let object = envelope::object_of(&self.tape)?;
        let metadata = object.get("metadata")?;
        let text = |key| metadata.get(key).and_then(crate::json::Value::as_str).filter(|name| !name.is_empty());
        text("name").or_else(|| text("generateName"))
    }

    /// Whether nothing will be stored.
    #[must_use]
    pub const fn dry_run(&self) -> bool {
        self.envelope.dry_run
    }

    /// What has to be looked up before anything can be decided. It reads nothing of `facts` but the namespace. Nearly
    /// always it is empty, and then costs next to nothing.
    #[must_use]
    pub fn needs(&self, endpoint: Endpoint, snapshot: &Snapshot, facts: &Facts) -> Wanted {
        needs::wanted(&self.envelope, &self.tape, endpoint, snapshot, facts)
    }

    /// Decides what is done with the object.
    ///
    /// # Errors
    /// If the patch that was made does not pass its check: a fault of this build.
    pub fn decide(&self, endpoint: Endpoint, snapshot: &Snapshot, facts: &Facts) -> Result<Decided, InternalError> {
        self.decide_observed(endpoint, snapshot, facts, &mut Unobserved)
    }

    /// [`Self::decide`], and the observer is told which step begins.
    ///
    /// # Errors
    /// As [`Self::decide`].
    pub fn decide_observed(
        &self,
        endpoint: Endpoint,
        snapshot: &Snapshot,
        facts: &Facts,
        observer: &mut impl Observer,
    ) -> Result<Decided, InternalError> {
        decide::decide(&self.envelope, &self.tape, endpoint, snapshot, facts, observer)
    }

    /// Adds to a decision that was made without [`Self::decide`], such as that nothing is injected at all at present, that a
    /// pod of a `held` namespace need not wait. What [`Self::decide`] gives has it already.
    ///
    /// # Errors
    /// As [`Self::decide`].
    pub fn without_gate(&self, endpoint: Endpoint, facts: &Facts, decided: Decided) -> Result<Decided, InternalError> {
        let object = envelope::object_of(&self.tape).filter(|_| endpoint.phase() == Phase::Mutate);
        match (object, facts.level(endpoint)) {
            (Some(object), Some(level)) => gate::settle(object, level, decided),
            _ => Ok(decided),
        }
    }

    /// The answer, as the body to send.
    #[must_use]
    pub fn respond(&self, decided: &Decided) -> Vec<u8> {
        answer::write(&self.envelope, decided)
    }
}

#[cfg(test)]
mod tests;
