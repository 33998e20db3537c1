//! Runs a short command's future to its end on one thread.

use std::future::Future;

use anyhow::Context;

/// Runs the future to its end.
///
/// # Errors
/// The future's own error, or the runtime cannot be created.
pub(crate) fn block_on<T>(work: impl Future<Output = anyhow::Result<T>>) -> anyhow::Result<T> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().context("cannot start")?;
    runtime.block_on(work)
}
