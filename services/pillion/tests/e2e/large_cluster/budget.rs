//! The budgets of Pillion's processes in a large cluster. They are for two shared cores, on which the API server, etcd,
//! kwok and the writers run too. Memory is anonymous memory (`RssAnon`), in MiB.

use super::{Sizes, exact};

/// The goals for the audit, in seconds: a missed injection is reported within [`FOUND`], and a new leader has audited
/// all pods within [`PASS`].
pub(super) const FOUND: f64 = 30.0;
pub(super) const PASS: f64 = 120.0;

/// The time until a fresh replica is ready, in seconds: the limit of the test `cold_start` on a busy machine. On idle
/// cores, docs/caches.md states 0.9 s.
pub(super) const READY: f64 = 15.0;

/// The memory of a fresh replica with 10,000 namespaces and 2,000 profiles: the limit of the test `cold_start`.
pub(super) const FRESH_REPLICA: f64 = 48.0;

/// The memory of a replica under load: 16 MiB more, for requests and lookups.
pub(super) const REPLICA: f64 = FRESH_REPLICA + 16.0;

/// The processor time of all replicas for an injected pod, in milliseconds. It includes the watches of the replicas. A
/// request alone takes 0.3 ms in docs/benchmarks.md.
pub(super) const REPLICA_PROCESSOR: f64 = 2.0;

/// The processor time of the leader while pods are created, in percent of a core. In the first stage, it still plans
/// new profiles.
pub(super) const LEADER_BUSY: f64 = 150.0;

/// The processor time of the leader without changes, in percent of a core. A leader sends a dry run for each profile,
/// one every two seconds, and plans all profiles after each result.
pub(super) const LEADER_IDLE: f64 = 25.0;

/// The processor time of a replica without requests, and of the controller on standby, in percent of a core.
pub(super) const WAITING: f64 = 5.0;

/// The bytes that the leader receives for a created pod: two events with the pod's metadata. In a first stage with few
/// pods, the responses to its writes for profiles are about half of the bytes.
pub(super) const LEADER_BYTES: f64 = 16_000.0;

/// The bytes that a replica receives from the API server for a created pod. Replicas do not watch pods, but
/// receive each change of a profile's status.
pub(super) const REPLICA_BYTES: f64 = 2_000.0;

/// The processor time of a new leader until its audit is complete, in seconds.
pub(super) const CHANGE_PROCESSOR: f64 = 30.0;

/// The memory of the leader: 40 MiB, 48 KiB for a profile, 2 KiB for a namespace, and 0.5 KiB for an opted-in pod.
/// docs/audit.md states 253 bytes for a pod alone.
pub(super) fn leader(sizes: &Sizes, opted_in: usize) -> f64 {
    40.0 + (48.0 * exact(sizes.profiles) + 2.0 * exact(sizes.namespaces) + 0.5 * exact(opted_in)) / 1024.0
}

/// The list requests of a new leader. It lists all pods in pages of 500, namespaces in pages of 250, and profiles and
/// revisions twice in pages of 100, and also kinds with few objects.
pub(super) fn lists(sizes: &Sizes, pods: usize) -> f64 {
    40.0 + exact(pods) / 500.0 + exact(sizes.namespaces) / 250.0 + 4.0 * exact(sizes.profiles) / 100.0
}
