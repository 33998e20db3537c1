//! The platform's settings for decisions, which may change while the process runs.

use std::sync::Arc;

use pillion_engine::limits::Guardrails;
use pillion_json::OwnedTape;

/// The settings of one request, constant during its decision. The value is replaced as a whole when the platform's file
/// changes.
#[derive(Clone, Debug, Default)]
pub struct Policy {
    /// The map that expressions read as `cluster`. `None`: an empty one.
    pub cluster: Option<Arc<OwnedTape>>,
    /// The limits of tenants' profiles. `None`: those of the snapshot.
    pub guardrails: Option<Arc<Guardrails>>,
}
