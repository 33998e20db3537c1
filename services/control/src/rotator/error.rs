//! Why a turn failed.

use std::time::Duration;

use crate::certificates::authority::{MakeError, MissingAuthority};
use crate::trust_probe::server::IdentityError;
use crate::webhook_config::WriteError;

/// Why a turn came to nothing.
#[derive(Debug, thiserror::Error)]
pub(super) enum TurnError {
    /// Something changed while it was read, or before it was written.
    #[error("an object of the rotation was changed by somebody else")]
    Changed,
    /// It took too long.
    #[error("the API server did not answer within {0:?}")]
    Late(Duration),
    /// Something cannot be read.
    #[error("an object of the rotation cannot be read")]
    Read(#[source] kube::Error),
    /// A Secret cannot be written.
    #[error("the Secret {name} cannot be written")]
    Secret {
        /// Which one.
        name: String,
        /// Why.
        #[source]
        source: kube::Error,
    },
    /// A configuration cannot be written.
    #[error(transparent)]
    Configuration(WriteError),
    /// No certificate can be made.
    #[error("no certificate can be made")]
    Make(#[from] MakeError),
    /// The record speaks of an authority that is not there.
    #[error(transparent)]
    Missing(#[from] MissingAuthority),
    /// The canary cannot show what was made for it.
    #[error("the canary has nothing to show")]
    Canary(#[from] IdentityError),
    /// There is no record, though the step is one that needs it.
    #[error("the record of the rotation cannot be read")]
    NoRecord,
    /// The record cannot be written down.
    #[error("the record of the rotation makes no text")]
    Text(#[from] serde_json::Error),
}

impl TurnError {
    /// Whether looking again will do.
    pub(super) const fn is_conflict(&self) -> bool {
        matches!(
            self,
            Self::Changed | Self::Configuration(WriteError::Changed | WriteError::Behind { .. } | WriteError::NotEmpty)
        )
    }
}
