//! The budgets of an installation in a large cluster. All are for two shared cores, on which the API server, etcd, kwok
//! and the writers run too.

use super::Sizes;

/// The goals for the audit, in seconds: a missed injection is reported within this time, and a new leader has judged
/// all pods within this time.
pub(super) const FOUND: f64 = 30.0;
pub(super) const PASS: f64 = 120.0;

/// The time until a fresh replica is ready, in seconds. docs/caches.md states 0.9 s on two idle cores.
pub(super) const READY: f64 = 5.0;

/// The resident memory of a replica, in MiB: what the chart requests for it.
pub(super) const REPLICA_MEMORY: f64 = 96.0;

/// The processor time of all replicas for an injected pod, in milliseconds. docs/benchmarks.md states 0.3 ms for the
/// tests' build.
pub(super) const REPLICA_PROCESSOR: f64 = 2.0;

/// Returns the resident memory of the leader, in MiB.
pub(super) fn leader_memory(sizes: &Sizes, opted_in: usize) -> f64 {
    let _ = sizes;
    200.0 + per_10_000(opted_in) * 10.0
}

fn per_10_000(count: usize) -> f64 {
    f64::from(u32::try_from(count).unwrap_or(u32::MAX)) / 10_000.0
}
