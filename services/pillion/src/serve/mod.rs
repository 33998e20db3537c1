//! The commands that serve: `webhook` and `controller` in a cluster, `dev` on a developer's machine.
//!
//! All check everything that can be wrong before a port is bound, and end the same way: not ready first, then drained.
//!
//! * [`servers`]: a replica's two ports and what stands behind them; [`operations`]: the second of them.
//! * [`controller`]: a replica of the controller; [`term`]: what it does while it leads.
//! * [`signals`]: how a process is asked to end.
//! * [`certificate`]: the serving certificate from files that change; [`self_made`]: one of our own making.
//! * [`client_authority`]: who may call, from a file that changes.
//! * [`descriptors`]: as many connections as are allowed.
//! * [`profile_files`]: profiles from files that change.
//! * [`namespaces`]: namespaces without a cluster.
//! * [`sample`]: a request that shows an injection; [`folder`]: where it is put; [`announce`]: how people are told;
//!   [`own_path`]: how they call this program.
//! * [`playground`]: a page to try profiles on.

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

/// Runs a service to its end, then sends what is left of its traces.
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
