//! Serves admission reviews over TLS.
//!
//! The decisions are the engine's; here is what stands between it and the network: the accept loop and its limits, the
//! certificate, the routes, what is measured, and the end without a lost request. This crate knows no Kubernetes client:
//! what it needs to know of the cluster it is given, as a snapshot and a look-up.
//!
//! In the order in which a process wires it: [`metrics::Metrics`], [`tls::ServingCertificate`], [`health::Readiness`],
//! [`router::router`], [`serve::Server`].

mod client_text;
mod histogram;
mod budget;
pub mod switch;
pub mod policy;
pub mod transport;
pub mod tls;
pub mod overload;
pub mod metrics;
pub mod clients;
mod body;
mod refusal;
pub mod health;
pub mod first;
pub mod trace;
pub mod admission;
pub mod router;
pub mod serve;
