//! The platform's settings for decisions, which may change while the process runs.

use std::sync::Arc;

use pillion_engine::limits::Guardrails;
use pillion_json::OwnedTape;

/// The platform's settings for one request, which are constant during its decision. When the platform's file changes,
/// the whole value is replaced.
#[derive(Clone, Debug, Default)]
pub struct Policy {
    /// The map that expressions can read as `cluster`. `None`: the map is empty.
    pub cluster: Option<Arc<OwnedTape>>,
    /// The limits on tenants' profiles. `None`: the limits in the snapshot apply.
    pub guardrails: Option<Arc<Guardrails>>,
}
