//! Runs a short command's future to its end on one thread.

use std::future::Future;

use anyhow::Context;

/// Runs it to its end.
///
/// # Errors
/// Its own, or that there is no way to wait.
pub(crate) fn block_on<T>(work: impl Future<Output = anyhow::Result<T>>) -> anyhow::Result<T> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().context("cannot start")?;
    runtime.block_on(work)
}
