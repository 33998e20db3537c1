//! Whether every API server trusts the newest authority, as it is proven by making each of them call somebody.
//!
//! A change of the webhook configuration reaches each API server in its own time, and nobody is told. So the controller
//! serves a tiny admission endpoint with a leaf of the newest authority, behind a Service of its own; an entry of the very
//! object that is asked about ([`pillion_api::canary::WEBHOOK`]) leads there, for a kind that nobody ever creates; and each
//! API server, by its own address, is asked for a dry run of creating one. It has to call, and so tells whom it trusts.
//!
//! Nothing but a proof counts as one: each request has a name that nobody can guess, the endpoint remembers the names that
//! it was called with and the leaf that it showed in that connection's handshake, and a connection serves one call, so
//! that no handshake of earlier is taken for one of now.
//!
//! [`server`] is the endpoint, [`asker`] asks, [`servers`] says which API servers there are, [`answer`] what an answer means.
//!
//! Roles needed: `create` on `injectioncanaries`; `list` on endpoint slices in the namespace `default`; `get`, `create`,
//! `patch` and `delete` on the one endpoint slice of the canary's Service; and, so that API servers behind one address
//! are counted, `list` on leases in `kube-system` (without it they are not, and one address counts as one API server).

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
