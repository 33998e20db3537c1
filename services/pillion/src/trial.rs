//! Builds the review of a creation, which commands pass to the engine in place of an API server.

use pillion_engine::creation::Creation;
use serde_json::Value;

/// The UID of simulated requests.
const UID: &str = "00000000-0000-4000-8000-000000000000";

/// Returns the review of creating a pod by dry run. `user` is the request's `userInfo`.
pub(crate) fn review(pod: &Value, namespace: &str, user: &Value) -> Value {
    Creation { object: pod, namespace, uid: UID, user, dry_run: true }.review()
}

/// Returns the review of creating a pod without dry run.
pub(crate) fn of_creation(pod: &Value, namespace: &str, user: &Value) -> Value {
    Creation { object: pod, namespace, uid: UID, user, dry_run: false }.review()
}
