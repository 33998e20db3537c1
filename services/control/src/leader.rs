//! The context of a task that only the leader runs.

use std::sync::Arc;

use kube::Client;
use tokio_util::sync::CancellationToken;

use crate::release::Release;

/// The field manager of the controller's writes. The tasks of [`crate::audit`] and [`crate::rollout`] use others for
/// the status of profiles and for pods.
pub const FIELD_MANAGER: &str = "pillion-controller";

/// The context of a task that only the leader runs, for one term of leadership.
///
/// For a moment, two controllers may both act as the leader. So no task relies on being the only one: every write is
/// guarded by the object's `resourceVersion`, or its result does not depend on the writer.
#[derive(Clone)]
pub struct LeaderContext {
    /// A client of the API server.
    pub client: Client,
    /// The controller's release.
    pub release: Arc<Release>,
    /// Cancelled when the term ends: the controller has lost the Lease or shuts down. Tasks must then return soon.
    pub stop: CancellationToken,
}

impl std::fmt::Debug for LeaderContext {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("LeaderContext").field("release", &self.release).finish_non_exhaustive()
    }
}
