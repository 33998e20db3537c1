//! The controller's part in `held` namespaces: installs the policies that make pods wait, and releases waiting pods.
//!
//! * [`policies`]: creates, updates and removes the API server's policies.
//! * [`pod`]: the controller's data of a waiting pod.
//! * [`plan`]: decides the steps for waiting pods; a pure function with state.
//! * [`release`]: watches waiting pods and executes the plan.
//! * [`wanted`]: whether pods should wait at all.
//! * [`metrics`]: counts waiting pods and actions.

pub mod metrics;
pub mod plan;
pub mod pod;
pub mod policies;
pub mod release;
pub mod wanted;

pub use metrics::HeldMetrics;
pub use plan::{Injection, ReleaseSettings};
pub use policies::PolicySettings;
