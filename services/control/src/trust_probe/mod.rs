//! Checks whether every API server trusts the newest CA, by making each of them call an endpoint.
//!
//! A change of the webhook configuration reaches each API server at its own time, without notice. So the controller
//! serves a small admission endpoint, the *canary*, with a certificate of the newest CA, behind a Service of its own.
//! An entry of the same webhook configuration ([`pillion_api::canary::WEBHOOK`]) leads there, for a kind of which no
//! object is stored. Each API server, at its own address, is asked for a dry run of creating one. It must call the
//! endpoint, and so shows which CA it trusts.
//!
//! Only a proof counts. Each request has a random name; the endpoint remembers the names that it was called with and
//! the certificate that it showed in that connection's handshake; and a connection serves one call, so that an earlier
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

/// How long things take, and how much is taken at one time. All durations scale down for tests.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Settings {
    /// How long one API server may take to answer, its call of the canary among it.
    pub timeout: Duration,
    /// How long an API server that is not listed any more is still asked, and counts as one that is silent if it does not
    /// answer: it may be one that is stopped, and goes on with what it knew. At least as long as the rotation waits for API
    /// servers that are silent.
    pub vanished: Duration,
    /// How long one call of the canary may take, from the connection to the answer.
    pub call_limit: Duration,
    /// How many connections the canary has at one time; more wait.
    pub connections: usize,
    /// The name in the certificates of API servers, where the client's configuration says no other.
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
