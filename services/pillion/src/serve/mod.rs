//! The commands that serve: `webhook` and `controller` in a cluster, `dev` on a developer's machine.
//!
//! All commands check their configuration before they open a port, and stop in the same way: they report that they are
//! not ready, and then drain.
//!
//! * [`webhook`]: a replica of the webhook; [`servers`]: its two ports; [`certificate`]: its certificate and the CA of
//!   its clients.
//! * [`controller`]: a replica of the controller; [`term`]: its tasks while it leads.
//! * [`dev`]: the webhook without a cluster; [`profile_files`]: profiles from files that change; [`namespaces`]: the
//!   namespaces of `dev`; [`sample`]: a request that shows an injection; [`announce`]: the commands that `dev` prints;
//!   [`playground`]: a web page to try profiles.

mod announce;
mod certificate;
pub(crate) mod controller;
pub(crate) mod dev;
mod namespaces;
mod playground;
mod profile_files;
mod sample;
mod servers;
mod term;
pub(crate) mod webhook;

use std::future::Future;

use anyhow::Context;
use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::config::WebhookPolicy;
use crate::exit::Exit;
use crate::telemetry::logs::LogArgs;
use crate::telemetry::traces::TraceArgs;
use crate::telemetry::{Controls, Telemetry};

/// Runs a service until it ends, then sends the remaining spans.
fn run_service<S: Future<Output = anyhow::Result<()>>>(
    logs: &LogArgs,
    traces: &TraceArgs,
    policy: &WebhookPolicy,
    service: impl FnOnce(Controls) -> S,
) -> anyhow::Result<Exit> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().context("cannot start threads")?;
    runtime.block_on(async {
        let telemetry = Telemetry::start((logs, traces), (&policy.logs, &policy.traces))?;
        let ended = service(telemetry.controls()).await;
        telemetry.shutdown().await;
        ended.map(|()| Exit::Success)
    })
}

/// The exit code after a second signal, as if SIGINT had killed the process.
const EXIT_SECOND_SIGNAL: i32 = 130;

/// The signals that ask the process to end. Once this value is created, the signals no longer kill the process by
/// themselves.
#[derive(Debug)]
pub(crate) struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    /// Installs the signal handlers.
    ///
    /// # Errors
    /// The operating system rejects the handlers.
    pub(crate) fn new() -> anyhow::Result<Self> {
        let signal = |kind| signal(kind).context("cannot listen for signals");
        Ok(Self { terminate: signal(SignalKind::terminate())?, interrupt: signal(SignalKind::interrupt())? })
    }

    /// Waits for the next signal, and returns its name.
    pub(crate) async fn next(&mut self) -> &'static str {
        tokio::select! {
            _ = self.terminate.recv() => "SIGTERM",
            _ = self.interrupt.recv() => "SIGINT",
        }
    }

    /// Ends the process immediately at the next signal.
    pub(crate) fn abort_at_next(mut self) {
        tokio::spawn(async move {
            let signal = self.next().await;
            tracing::warn!(signal, "second signal: stopping without waiting for requests");
            std::process::exit(EXIT_SECOND_SIGNAL);
        });
    }
}
