//! The controller's part in the safety net, an admission policy of the API server that injects while no replica
//! responds. Updates the policy when the published revisions of the profiles that opt in change.
//!
//! - [`content`]: reads the published revisions, and converts them to the content of the policy.
//! - [`task`]: creates, updates and removes the policy and its binding.
//! - [`metrics`]: the state of the policy, and the number of covered profiles.

pub mod content;
pub mod metrics;
pub mod task;

pub use metrics::SafetyNetMetrics;
pub use task::{NetInputs, NetSettings, remove, run, run_disabled};
