//! Tests the election and the leader's tasks with a real API server.

#![expect(clippy::unwrap_used, reason = "tests report failures by panicking")]

mod canary;
mod clock;
mod lease;
mod probe;

use std::time::Duration;

use pillion_control::Release;
use pillion_control::release::DEFAULT_CLUSTER_DOMAIN;
use pillion_testkit::registration::NAMESPACE;

/// Time limit for short operations on a busy machine.
const SOON: Duration = Duration::from_mins(1);

fn release() -> Release {
    Release::new("pillion", NAMESPACE, DEFAULT_CLUSTER_DOMAIN).unwrap()
}
