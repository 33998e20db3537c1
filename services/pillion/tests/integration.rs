//! Tests the program as users run it, the chart and the documents, without a cluster.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::print_stdout,
    reason = "a test fails by panicking, also in its helpers"
)]

mod bombs;
mod chart;
mod ci;
mod cli;
mod config;
mod convert;
mod convert_peers;
mod cost;
mod dashboards;
mod deploy;
mod dev;
mod diff;
mod docs;
mod explain;
mod export;
mod inject;
mod lint;
mod load_tests;
mod logs;
mod metrics;
mod playground;
mod soak;
mod support;
mod test_command;
mod traces;
mod uninject;
mod webhook;
