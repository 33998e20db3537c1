//! The webhook server through its sockets.

mod bad_inputs;
mod clients;
mod fairness;
mod floods;
mod http2;
mod large;
mod log;
mod lookups;
mod memory;
mod namespaces;
mod overload;
#[cfg(test)]
mod support;
mod switch;
mod tls_server;
mod transport;
mod unfinished;
mod validation;
