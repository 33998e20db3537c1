//! The signals that end a process: the first SIGTERM or SIGINT drains it, and the second ends it at once.

use anyhow::Context;
use tokio::signal::unix::{Signal, SignalKind, signal};

/// The exit code after a second signal: that of a process killed by SIGINT.
const ASKED_TWICE: i32 = 130;

/// The signals that ask the process to end. Once created, they no longer kill the process by themselves.
#[derive(Debug)]
pub(crate) struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    /// Installs the signal handlers.
    ///
    /// # Errors
    /// The operating system rejects them.
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
            tracing::warn!(signal, "asked again to end: ending without waiting for requests");
            std::process::exit(ASKED_TWICE);
        });
    }
}
