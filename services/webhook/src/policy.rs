//! The platform's settings for decisions, which may change while the process runs.

use std::sync::Arc;

use pillion_engine::json::OwnedTape;
use pillion_engine::limits::Guardrails;

/// Each request is decided by one of these from its beginning to its end. Whoever reads the platform's file replaces it
/// as a whole.
#[derive(Clone, Debug, Default)]
pub struct Policy {
    /// What expressions read as `cluster`: a map. `None`: an empty one.
    pub cluster: Option<Arc<OwnedTape>>,
    /// What tenants' profiles may do. `None`: what the snapshot says.
    pub guardrails: Option<Arc<Guardrails>>,
}
