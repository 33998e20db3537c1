//! Connects to every endpoint of the webhook and checks the certificate that it serves.
//!
//! The Secret does not prove what a replica serves, and a ready replica need not be one that the API server trusts. So
//! each address behind the Service gets a TLS connection of its own, whether it is ready, not ready or terminating. Its
//! certificate is checked against the *bundle* that API servers have, and against the *newest* CA alone. The handshake
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

/// Settings of the probes. Tests scale all durations down.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Settings {
    /// Time between two rounds. Rounds with less time between them count as one.
    pub gap: Duration,
    /// Timeout for one endpoint, connection and handshake together.
    pub timeout: Duration,
    /// Number of concurrent probes.
    pub parallel: usize,
    /// How long a certificate must stay valid, at least.
    pub least_left: Duration,
    /// The name of the probed port of the Service. If a slice has only one port, that one is used.
    pub port: String,
    /// Whether to probe the pods that the Service selects as well as its endpoints: the list of endpoints may lag
    /// behind the pods.
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

/// The result for one endpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Probed {
    /// The endpoint.
    pub endpoint: Endpoint,
    /// What it serves.
    pub verdict: Verdict,
    /// Whether API servers with the bundle would trust it.
    pub trusted: bool,
    /// End of its certificate's validity, if readable.
    pub not_after: Option<jiff::Timestamp>,
}
