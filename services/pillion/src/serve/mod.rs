//! The commands that serve: `webhook` and `controller` in a cluster, `dev` on a developer's machine.
//!
//! All of them check their configuration before they open a port, and end in the same way: first not ready, then
//! drained.
//!
//! * [`servers`]: a replica's two ports; [`operations`]: the second of them.
//! * [`controller`]: a replica of the controller; [`term`]: its tasks while it leads.
//! * [`signals`]: the signals that end a process.
//! * [`certificate`]: the serving certificate from files that change; [`self_made`]: a self-signed one.
//! * [`client_authority`]: the CA of clients, from a file that changes.
//! * [`descriptors`]: raises the limit of file descriptors to the limit of connections.
//! * [`profile_files`]: profiles from files that change.
//! * [`namespaces`]: namespaces without a cluster.
//! * [`sample`]: a request that shows an injection; [`folder`]: the folder for its files; [`announce`]: how `dev`
//!   announces it; [`own_path`]: how to call this program in commands.
//! * [`playground`]: a web page to try profiles.

mod announce;
pub(crate) mod certificate;
pub(crate) mod client_authority;
pub(crate) mod controller;
mod descriptors;
pub(crate) mod dev;
mod folder;
mod namespaces;
mod operations;
mod own_path;
mod playground;
mod profile_files;
mod sample;
mod self_made;
mod servers;
mod signals;
mod term;
pub(crate) mod webhook;

use std::future::Future;
use std::process::ExitCode;

use anyhow::Context;

use crate::config::WebhookPolicy;
use crate::telemetry::logs::LogArgs;
use crate::telemetry::traces::TraceArgs;
use crate::telemetry::{Controls, Telemetry};

/// Runs a service until it ends, then sends the remaining spans.
fn run_service<S: Future<Output = anyhow::Result<()>>>(
    logs: &LogArgs,
    traces: &TraceArgs,
    policy: &WebhookPolicy,
    service: impl FnOnce(Controls) -> S,
) -> anyhow::Result<ExitCode> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().context("cannot start threads")?;
    runtime.block_on(async {
        let telemetry = Telemetry::start((logs, traces), (&policy.logs, &policy.traces))?;
        let ended = service(telemetry.controls()).await;
        telemetry.shutdown().await;
        ended.map(|()| ExitCode::SUCCESS)
    })
}
