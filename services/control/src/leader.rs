//! The context of a task that only the leader runs.

use std::sync::Arc;

use kube::Client;
use tokio_util::sync::CancellationToken;

use crate::release::Release;

/// Who manages fields that the controller writes by server-side apply.
pub const FIELD_MANAGER: &str = "pillion-controller";

/// A term of leadership, as the tasks see it that only the leader does.
///
/// Two may believe that they lead, for a moment: so nobody relies on this, and every write is guarded by the object's
/// `resourceVersion` or is such that it does not matter who makes it.
#[derive(Clone)]
pub struct Leading {
    /// The way to the API server.
    pub client: Client,
    /// Whose controller this is.
    pub release: Arc<Release>,
    /// Cancelled when the term is over: not the leader any more, or asked to end. Tasks return soon after.
    pub stop: CancellationToken,
}

impl std::fmt::Debug for Leading {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Leading").field("release", &self.release).finish_non_exhaustive()
    }
}
