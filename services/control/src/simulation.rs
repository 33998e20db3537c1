//! Simulates how a running pod would be created with different profiles.

use std::error::Error;
use std::sync::Arc;

use pillion_api::names::{FailureMode, INJECT_LABEL, INJECTED_ANNOTATION, UPGRADED_ANNOTATION, UPGRADING_LABEL};
use pillion_engine::creation::{Creation, original_object};
use pillion_engine::decision::{Decision, Reason};
use pillion_engine::review::{Endpoint, Facts, RecordTrust, Review};
use pillion_engine::snapshot::{Namespace, Snapshot};
use pillion_json::OwnedTape;
use serde_json::{Value, json};

use crate::guard::{Panicked, guarded};
use crate::informer::lookups::Lookups;

/// The UID of simulated requests.
const UID: &str = "00000000-0000-4000-8000-000000000000";
/// The user of simulated requests.
const USER: &str = "pillion-simulation";

/// Why a creation could not be simulated.
#[derive(Debug, thiserror::Error)]
pub enum SimulationError {
    /// The namespace is not opted in.
    #[error("its namespace is not opted in")]
    NotOptedIn,
    /// The decision could not be computed, or its patch does not apply to the pod.
    #[error("{what}")]
    Failed {
        /// What failed.
        what: &'static str,
        /// The cause.
        #[source]
        source: Box<dyn Error + Send + Sync>,
    },
    /// The engine panicked.
    #[error(transparent)]
    Panicked(#[from] Panicked),
}

impl SimulationError {
    fn failed<E: Into<Box<dyn Error + Send + Sync>>>(what: &'static str) -> impl FnOnce(E) -> Self {
        move |source| Self::Failed { what, source: source.into() }
    }
}

/// Returns a pod as its author submitted it. Removes the injection record, because the webhook ignores submitted
/// records, and the label and annotation of an upgrade in place.
#[must_use]
pub fn as_written(pod: &Value) -> Value {
    let mut pod = original_object(pod);
    let marks =
        [("annotations", INJECTED_ANNOTATION), ("annotations", UPGRADED_ANNOTATION), ("labels", UPGRADING_LABEL)];
    for (field, key) in marks {
        let map = pod.pointer_mut("/metadata").and_then(|metadata| metadata.get_mut(field)?.as_object_mut());
        if let Some(map) = map {
            map.shift_remove(key);
        }
    }
    pod
}

/// Simulates the creation of a pod in a namespace with the profiles of `snapshot`. Returns the webhook's decision and
/// the patched pod.
///
/// # Errors
/// The namespace is not opted in, or the decision cannot be computed or applied.
pub async fn created(
    pod: &Value,
    (name, namespace): (&str, &Arc<Namespace>),
    snapshot: &Snapshot,
    lookups: &Lookups,
    cluster: Option<&Arc<OwnedTape>>,
) -> Result<(Decision, Value), SimulationError> {
    let failure_mode = namespace.failure_mode().ok_or(SimulationError::NotOptedIn)?;
    let label = pod.pointer("/metadata/labels").and_then(|labels| labels.get(INJECT_LABEL)).and_then(Value::as_str);
    if failure_mode == FailureMode::Enabled && label == Some("false") {
        // The webhook's object selector excludes such pods.
        return Ok((Decision::skipped(Reason::OptedOut), pod.clone()));
    }
    let user = json!({"username": USER});
    let body = Creation { object: pod, namespace: name, uid: UID, user: &user, dry_run: true }.review().to_string();
    let endpoint = Endpoint::FailureMode(failure_mode);
    let mut facts =
        Facts { namespace: Some(Arc::clone(namespace)), record_trust: RecordTrust::AsFound, ..Facts::default() };
    let object = format!("a pod of namespace {name}");
    // The review is parsed twice, because it borrows the body and must not be held during the lookups.
    let wanted =
        guarded(&object, || Review::parse(body.as_bytes()).map(|review| review.needs(endpoint, snapshot, &facts)))?;
    facts.looked_up = lookups.get(wanted.map_err(SimulationError::failed("cannot parse its review"))?).await;
    facts.looked_up.cluster = cluster.cloned();
    let decided = guarded(&object, || {
        let review = Review::parse(body.as_bytes()).map_err(SimulationError::failed("cannot parse its review"))?;
        review.decide(endpoint, snapshot, &facts).map_err(SimulationError::failed("cannot decide its review"))
    })??;
    let mut changed = pod.clone();
    if let Some(patch) = &decided.patch {
        let patch: json_patch::Patch =
            serde_json::from_slice(patch).map_err(SimulationError::failed("the patch is not a valid JSON patch"))?;
        json_patch::patch(&mut changed, &patch).map_err(SimulationError::failed("the patch does not apply"))?;
    }
    Ok((decided.decision, changed))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_are_removed_from_original_pod() {
        let pod = json!({"metadata": {
            "labels": {"app": "web", UPGRADING_LABEL: "true"},
            "annotations": {"a": "b", UPGRADED_ANNOTATION: "{}", INJECTED_ANNOTATION: "{}"},
        }});
        let written = as_written(&pod);
        assert_eq!(written["metadata"]["labels"], json!({"app": "web"}));
        assert_eq!(written["metadata"]["annotations"], json!({"a": "b"}));
    }
}
