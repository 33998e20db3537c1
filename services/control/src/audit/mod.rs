//! Finds pods of opted-in namespaces that lack a matching profile, have an older revision, or have a profile that no
//! longer matches. Explains why.
//!
//! The audit compares the injection record of a pod with the profiles that *select* it. It does not apply templates. It
//! works as follows:
//!
//! - **Pods are watched as metadata.** The audit stores each pod's original labels and annotations, and the profiles in
//!   its record (`pod`). Equal data is stored once. It ignores completed and terminating pods, pods into which the
//!   webhook never injects, and pods of namespaces that are not opted in.
//! - **Metadata is sufficient** to decide which profiles are requested or dropped, and which select the pod
//!   ([`pillion_engine::audit`]).
//! - **A profile with conditions**, or with parameters whose invalid values can exclude it, needs the whole pod. The
//!   audit stores only the result. If the profile is in the pod's record, the whole pod is not read, because the
//!   webhook already checked the conditions when the pod was created. So the audit reads few whole pods, and reads each
//!   again only if the profile, the namespace or the pod changes, or if a lookup or a request failed. It pauses between
//!   the requests ([`PodFetch`]).
//! - **When profiles or namespaces change**, the audit judges the stored data again in memory, once for all equal pods.
//!   If only a profile's template has changed, nothing is read again, because the records name the older revision.
//!
//! [`Auditor`] does no I/O: it takes changes, and returns fetches and a [`Report`]. [`run`] is the leader's task. For
//! commands, [`once`] runs the same audit on lists instead of watches, and needs no controller.

mod auditor;
mod cause;
pub mod condition;
mod pod;
mod metrics;
mod once;
pub mod open_reports;
mod requests;
mod report;
mod facts;
mod task;

pub use auditor::{Auditor, PodFetch, ProfilePod};
pub use cause::{Cause, Circumstances, State, WhyNotCalled, cause};
pub use facts::{ClusterFacts, NamespaceAge, ProfileAge, Spans};
pub use metrics::AuditMetrics;
pub use once::{OnceError, PodScope, Served, once, served};
pub(crate) use pod::uid_number;
pub use pod::{AuditedPod, PodChange, PodKey, kind_with_group, read};
pub use report::{Finding, NamespaceAudit, PodCounts, ProfileAudit, Report};
pub use requests::NOT_ENDED;
pub use task::{AuditChannels, AuditQuestion, AuditSettings, Audited, Reads, run};

#[cfg(test)]
mod panics;
#[cfg(test)]
mod tests;
