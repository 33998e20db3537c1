//! The signals that end a process: the first SIGTERM or SIGINT drains it, and the second ends it at once.

use anyhow::Context;
use tokio::signal::unix::{Signal, SignalKind, signal};

/// The exit code of a process that was asked twice: that of a shell's child that died of SIGINT.
const ASKED_TWICE: i32 = 130;

/// The signals that ask the process to end. From its making on, they do not end it by themselves.
#[derive(Debug)]
pub(crate) struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    /// # Errors
    /// The operating system refuses.
    pub(crate) fn new() -> anyhow::Result<Self> {
        let signal = |kind| signal(kind).context("cannot listen for signals");
        Ok(Self { terminate: signal(SignalKind::terminate())?, interrupt: signal(SignalKind::interrupt())? })
    }

    /// Waits for the next one, and says which it was.
    pub(crate) async fn next(&mut self) -> &'static str {
        tokio::select! {
            _ = self.terminate.recv() => "SIGTERM",
            _ = self.interrupt.recv() => "SIGINT",
        }
    }

    /// Ends the process at once at the next signal, whatever it is doing.
    pub(crate) fn abort_at_next(mut self) {
        tokio::spawn(async move {
            let signal = self.next().await;
            tracing::warn!(signal, "asked again to end: ending without waiting for requests");
            std::process::exit(ASKED_TWICE);
        });
    }
}
