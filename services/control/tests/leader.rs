//! What only the leader does, and how it becomes it, against the real API server.

#![expect(clippy::unwrap_used, reason = "a test says what is wrong by panicking")]

mod canary;
mod clock;
mod lease;
mod probe;

use std::time::Duration;

use pillion_control::Release;
use pillion_control::release::DEFAULT_CLUSTER_DOMAIN;
use pillion_testkit::registration::NAMESPACE;

/// How long what takes a moment may take on a machine with much to do.
const SOON: Duration = Duration::from_mins(1);

fn release() -> Release {
    Release::new("pillion", NAMESPACE, DEFAULT_CLUSTER_DOMAIN).unwrap()
}
