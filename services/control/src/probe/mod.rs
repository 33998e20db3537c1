//! Connects to every endpoint of the webhook and judges the certificate that it serves.
//!
//! The Secret does not prove what a replica serves, and a ready replica need not be one that the API server trusts. So
//! each address behind the Service gets a TLS connection of its own, whether it is ready, not ready or terminating. Its
//! certificate is judged against the *bundle* that API servers have, and against the *newest* CA alone. The handshake
//! proves that the replica has the key.
//!
//! [`targets`] selects the endpoints, [`dial`] connects, [`judge`] gives the verdict, [`fold`] summarises verdicts for
//! the rotation, and [`run`] repeats it. With certificates of another issuer (such as cert-manager) nothing rotates,
//! and probing is the same: [`Expected::of_strangers`] knows only the bundle.
//!
//! RBAC permissions: `list` on endpoint slices in the release's namespace; `get` on its Service and `list` on pods
//! there, if [`Settings::pods`] is set; and for [`report`] `get` on the webhook configuration, and `get` and `create`
//! on the `ConfigMap` of the kill switch.

pub mod dial;
pub mod fold;
pub mod judge;
pub mod metrics;
mod run;
pub mod targets;

use std::time::Duration;

pub use fold::{Key, Rounds};
pub use judge::{Expected, Judge, Known, Unfit, Verdict};
pub use metrics::ProbeMetrics;
pub use run::{Found, Prober, report, run};
pub use targets::{Endpoint, Replicas, Selected};

/// How probing is done. All durations scale down for tests.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Settings {
    /// Between two rounds. Rounds that are nearer to each other count as one.
    pub gap: Duration,
    /// How long one endpoint may take, connection and handshake together.
    pub timeout: Duration,
    /// How many endpoints are probed at one time.
    pub parallel: usize,
    /// How long a leaf has to be good for, at least.
    pub least_left: Duration,
    /// The Service's port that is probed, by name; the only one of a slice that has one port.
    pub port: String,
    /// Whether the pods that the Service selects are probed beside its endpoints: whoever keeps the list of endpoints may be
    /// late, and a pod that it does not know yet or not any more is one all the same.
    pub pods: bool,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            gap: Duration::from_secs(10),
            timeout: Duration::from_secs(3),
            parallel: 16,
            least_left: Duration::from_hours(24),
            port: "https".to_owned(),
            pods: true,
        }
    }
}

/// One endpoint, and what was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Probed {
    /// Where.
    pub endpoint: Endpoint,
    /// What it serves.
    pub verdict: Verdict,
    /// Whether API servers with the bundle would call it.
    pub trusted: bool,
    /// When its leaf ends, if it shows one that can be read.
    pub not_after: Option<jiff::Timestamp>,
}
