//! The audit: pods of opted-in namespaces that lack what their profiles say, or carry an older revision, and why.
//!
//! It compares the record of a pod with *selection*, and renders nothing. What is done when:
//!
//! * **Pods are watched as metadata.** Of each, labels and annotations as its author wrote them are kept, once for all pods
//!   that have the same, and what its record lists (`kept`). Pods that have ended, and those of other namespaces, are not.
//! * **Metadata decides at once** which profiles are asked for, dropped, and select the pod ([`pillion_engine::audit`]).
//! * **A profile with conditions**, or with parameters that can refuse, is decided by the whole pod, and only its verdict is
//!   kept. A pod that has the profile in its record is not asked about: the webhook has decided when it was created. So
//!   whole pods are read only of those that have not, once for each revision of the profile and each change of the
//!   namespace, one request at a time with a pause in between ([`Errand`]).
//! * **When profiles or namespaces change**, what is kept is judged again in memory, once for all pods that are alike. Of a
//!   profile whose template alone has changed nothing has to be read again: its older revision is in the records.
//!
//! The book ([`Auditor`]) is pure: changes in, errands and a [`Report`] out. [`run`] is the task of the leader, and
//! [`once`] is the same for `pillion status`, by lists, with the controller dead.

mod ages;
mod auditor;
mod cause;
pub mod condition;
mod kept;
mod metrics;
mod once;
mod pool;
mod questions;
mod report;
mod spans;
mod surroundings;
mod task;

pub use ages::{NamespaceAge, ProfileAge};
pub use auditor::{Auditor, Errand};
pub use cause::{Cause, Circumstances, Silence, State, cause};
pub use kept::{PodChange, PodKey, Seen, kind_with_group, read};
pub use metrics::AuditMetrics;
pub use once::{OnceError, Served, once, served};
pub use questions::NOT_ENDED;
pub use report::{Finding, ProfileAudit, Report, Standings};
pub use spans::Spans;
pub use surroundings::Surroundings;
pub use task::{AuditSettings, Audited, Parts, Reads, run};

#[cfg(test)]
mod panics;
#[cfg(test)]
mod tests;
