//! The controller's part in `held` namespaces: the policies by which their pods wait, and what becomes of pods that wait.
//!
//! * [`policies`]: keeps the API server's policies as they ought to be, or away.
//! * [`pod`]: what is kept of a pod that waits.
//! * [`plan`]: what is to be done about such pods, as a pure function with a memory.
//! * [`release`]: watches for them, and does it.
//! * [`wanted`]: whether pods are to wait at all.
//! * [`metrics`]: how many wait, and what was done.

pub mod metrics;
pub mod plan;
pub mod pod;
pub mod policies;
pub mod release;
pub mod wanted;

pub use metrics::HeldMetrics;
pub use plan::{Injection, ReleaseSettings};
pub use policies::PolicySettings;
