//! Serves admission reviews over TLS.
//!
//! The engine makes the decisions. This crate connects it to the network: it accepts TLS connections, enforces limits,
//! serves the routes, records metrics and traces, and drains without losing a request. It has no Kubernetes client.
//! Instead, the caller passes in a snapshot of the cluster, and functions that look up single objects.
//!
//! A process first creates [`health::Readiness`], a [`tls::ServingCertificate`] and [`metrics::Metrics`], then the
//! [`router::router`], and at last the [`serve::Server`].
//!
//! * `client_text`: truncates text that clients wrote. `counters`: counters with one label.
//! * [`switch`], [`policy`]: settings that can change while the process runs.
//! * [`tls`], [`clients`], [`serve`]: certificates, client authentication, connections.
//! * [`overload`], [`metrics`], [`trace`], [`health`]: limits, observability and readiness.
//! * `body`, `refusal`, [`admission`], [`router`]: the path of a request to its response.

mod client_text;
mod counters;
pub mod switch;
pub mod policy;
pub mod tls;
pub mod overload;
pub mod metrics;
pub mod clients;
mod body;
mod refusal;
pub mod health;
pub mod trace;
pub mod admission;
pub mod router;
pub mod serve;
