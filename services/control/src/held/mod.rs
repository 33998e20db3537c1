//! The controller's tasks for `held` namespaces: they install the policies that make pods wait, and release waiting
//! pods.
//!
//! - [`policies`]: creates, updates and removes the API server's policies.
//! - [`pod`]: the data that the controller stores for a waiting pod.
//! - [`plan`]: plans the steps for waiting pods. It does no I/O.
//! - [`release`]: watches waiting pods and executes the plans.
//! - [`wanted`]: decides whether pods should wait, and whether new pods are injected.
//! - [`metrics`]: metrics of the waiting pods, the steps and the policies.

pub mod metrics;
pub mod plan;
pub mod pod;
pub mod policies;
pub mod release;
pub mod wanted;

pub use metrics::HeldMetrics;
pub use plan::{Injection, ReleaseSettings};
pub use policies::PolicySettings;
