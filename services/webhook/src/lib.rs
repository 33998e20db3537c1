//! Serves admission reviews over TLS.
//!
//! The decisions are the engine's; here is what stands between it and the network: the accept loop and its limits, the
//! certificate, the routes, what is measured, and the end without a lost request. This crate knows no Kubernetes client:
//! what it needs to know of the cluster it is given, as a snapshot and a look-up.
//!
//! In the order in which a process wires it: [`metrics::Metrics`], [`tls::ServingCertificate`], [`health::Readiness`],
//! [`router::router`], [`serve::Server`].

mod body;
mod budget;
mod canary;
pub mod clients;
mod connection;
mod decision;
pub mod first;
pub mod health;
pub mod metrics;
pub mod overload;
pub mod policy;
mod profiles;
mod refusal;
pub mod router;
pub mod serve;
pub mod switch;
pub mod tls;
pub mod trace;
pub mod transport;
