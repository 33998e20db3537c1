//! Checks whether every API server trusts the newest CA, by making each of them call an endpoint.
//!
//! A change of the webhook configuration reaches each API server at its own time, without notice. So the controller
//! serves a small admission endpoint, the *canary*, with a certificate of the newest CA, behind a Service of its own.
//! An entry of the same webhook configuration ([`pillion_api::canary::WEBHOOK`]) leads there, for a kind of which no
//! object is stored. Each API server, at its own address, is asked for a dry run of creating one. It must call the
//! endpoint, and so shows which CA it trusts.
//!
//! Only a proof counts. Each request has a random name; the endpoint records the names that it was called with and the
//! certificate that it showed in that connection's handshake; and a connection serves one call, so that an earlier
//! handshake never counts for a later call.
//!
//! [`server`] is the endpoint, [`asker`] sends the dry runs, [`servers`] lists the API servers, and [`answer`]
//! interprets the responses.
//!
//! RBAC permissions: `create` on `injectioncanaries`; `list` on endpoint slices in the namespace `default`; `get`,
//! `create`, `patch` and `delete` on the one endpoint slice of the canary's Service; and `list` on leases in
//! `kube-system` to count API servers behind one address (without it, one address counts as one API server).

pub mod answer;
pub mod asker;
pub mod metrics;
pub mod server;
pub mod servers;
mod slice;

use std::time::Duration;

pub use answer::{Outcome, Silence, fold};
pub use asker::{Answer, Asked, Asker};
pub use metrics::CanaryMetrics;
pub use server::{Canary, Identity};
pub use slice::{service, slice};

/// Timeouts and limits. Tests scale all durations down.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Settings {
    /// Timeout of one dry run, including the API server's call.
    pub timeout: Duration,
    /// How long an API server that left the list is still asked, and counts as silent without a response: it may be
    /// paused and continue with an old state. At least as long as the rotation waits for silent API servers.
    pub vanished: Duration,
    /// Timeout of one call to the endpoint, from the connection to the response.
    pub call_limit: Duration,
    /// Maximum number of connections to the endpoint; others wait.
    pub connections: usize,
    /// The name in the API servers' certificates, unless the client's configuration has another.
    pub server_name: String,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            timeout: Duration::from_secs(5),
            vanished: Duration::from_mins(2),
            call_limit: Duration::from_secs(5),
            connections: 32,
            server_name: "kubernetes.default.svc".to_owned(),
        }
    }
}
