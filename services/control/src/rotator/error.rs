//! Errors of a turn.

use std::time::Duration;

use crate::certificates::authority::{MakeError, MissingAuthority};
use crate::trust_probe::server::IdentityError;
use crate::webhook_config::WriteError;

/// Why a turn failed.
#[derive(Debug, thiserror::Error)]
pub(super) enum TurnError {
    /// An object changed while it was read, or before it was written.
    #[error("an object of the rotation was changed by somebody else")]
    Changed,
    /// The turn exceeded its time limit.
    #[error("the API server did not answer within {0:?}")]
    Late(Duration),
    /// An object could not be read.
    #[error("an object of the rotation cannot be read")]
    Read(#[source] kube::Error),
    /// A Secret could not be written.
    #[error("the Secret {name} cannot be written")]
    Secret {
        /// Its name.
        name: String,
        /// The cause.
        #[source]
        source: kube::Error,
    },
    /// A webhook configuration could not be written.
    #[error(transparent)]
    Configuration(WriteError),
    /// A certificate could not be created.
    #[error("no certificate can be made")]
    Make(#[from] MakeError),
    /// The material of a CA in the record is missing.
    #[error(transparent)]
    Missing(#[from] MissingAuthority),
    /// The trust probe cannot serve its new certificate.
    #[error("the canary has nothing to show")]
    Canary(#[from] IdentityError),
    /// The step needs a record, and there is none.
    #[error("the record of the rotation cannot be read")]
    NoRecord,
    /// The record could not be serialized.
    #[error("the record of the rotation makes no text")]
    Text(#[from] serde_json::Error),
}

impl TurnError {
    /// Whether another turn resolves it.
    pub(super) const fn is_conflict(&self) -> bool {
        matches!(
            self,
            Self::Changed | Self::Configuration(WriteError::Changed | WriteError::Behind { .. } | WriteError::NotEmpty)
        )
    }
}
