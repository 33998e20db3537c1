//! Tests the webhook server, mostly over real sockets.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::print_stdout,
    reason = "a test reports failures by panicking, also in its helpers"
)]

mod bad_inputs;
mod clients;
mod decisions;
mod fairness;
mod floods;
mod http2;
mod lookups;
mod overload;
#[cfg(test)]
mod support;
mod tls_server;
mod transport;
mod unfinished;
