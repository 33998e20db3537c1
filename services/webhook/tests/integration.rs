//! Tests the webhook server, mostly over real sockets.

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
