//! Objects as a watch or a list delivers them, without the types of kube's client. So code that uses these objects can
//! be tested without a cluster.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::runtime::watcher::Event;
use pillion_api::kinds::ProfileStatus;
use pillion_api::names::{
    ROLLBACK_FROM_ANNOTATION, ROLLBACK_TIME_ANNOTATION, ROLLBACK_TO_ANNOTATION, ROLLOUT_ANNOTATION,
};
use pillion_engine::profile::ProfileName;
use serde_json::Value;

/// A change from a watch. A list arrives as one [`Change::Listed`] for each object and then one
/// [`Change::ListComplete`]. Objects that are missing from the list were deleted. [`Change::Applied`] and
/// [`Change::Deleted`] arrive between two lists.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change<K, T> {
    /// A list begins, or the watch was interrupted. The objects of an unfinished list no longer count as listed.
    Restarted,
    /// An object of a list.
    Listed(T),
    /// The list is complete.
    ListComplete,
    /// An object was created or has changed.
    Applied(T),
    /// The object with this key was deleted.
    Deleted(K),
}

impl<K, T> Change<K, T> {
    /// Converts an event of kube's watcher. `read` reduces an object, and `key` returns its key.
    pub(crate) fn from_event<O>(event: Event<O>, read: impl FnOnce(O) -> T, key: impl FnOnce(O) -> K) -> Self {
        match event {
            Event::Init => Self::Restarted,
            Event::InitApply(object) => Self::Listed(read(object)),
            Event::InitDone => Self::ListComplete,
            Event::Apply(object) => Self::Applied(read(object)),
            Event::Delete(object) => Self::Deleted(key(object)),
        }
    }
}

impl<K, T> Change<K, Option<T>> {
    /// Returns the change with its object, or `None` if the object could not be read.
    #[must_use]
    pub fn known(self) -> Option<Change<K, T>> {
        Some(match self {
            Self::Restarted => Change::Restarted,
            Self::Listed(object) => Change::Listed(object?),
            Self::ListComplete => Change::ListComplete,
            Self::Applied(object) => Change::Applied(object?),
            Self::Deleted(key) => Change::Deleted(key),
        })
    }
}

/// A stored profile whose spec is not parsed.
#[derive(Clone, Debug, PartialEq)]
pub struct StoredProfile {
    /// The profile's name.
    pub name: ProfileName,
    /// The UID of the object. It changes if the profile is deleted and recreated.
    pub uid: Box<str>,
    /// Grows with each change of the spec, but not with changes of the status.
    pub generation: Option<i64>,
    /// Changes with each write of the object.
    pub resource_version: Option<String>,
    /// The object's `spec`. Null if the object has none, or if the reader does not need it.
    pub spec: Value,
    /// The status, which names the published revisions.
    pub status: ProfileStatus,
    /// The rollback that the annotations request.
    pub rollback: Option<Box<RollbackRequest>>,
    /// The annotation that steers the rollout to running pods.
    pub rollout: Option<Box<str>>,
}

/// A request for a rollback, in annotations of a profile.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RollbackRequest {
    /// The revision to publish; its first digits are enough.
    pub to: Box<str>,
    /// The revision to roll back from, if an annotation names it.
    pub from: Option<Box<str>>,
    /// The time of the request, as written in the annotation.
    pub requested_at: Option<Box<str>>,
}

impl RollbackRequest {
    fn read(metadata: &ObjectMeta) -> Option<Self> {
        let annotation = |key: &str| metadata.annotations.as_ref()?.get(key).map(|value| value.trim().into());
        Some(Self {
            to: annotation(ROLLBACK_TO_ANNOTATION)?,
            from: annotation(ROLLBACK_FROM_ANNOTATION),
            requested_at: annotation(ROLLBACK_TIME_ANNOTATION),
        })
    }
}

/// A change from a watch of profiles.
pub type ProfileChange = Change<ProfileName, StoredProfile>;

impl StoredProfile {
    /// Creates a profile from an object's metadata and its `spec`, with an empty status.
    #[must_use]
    pub fn new(metadata: ObjectMeta, spec: Value) -> Self {
        Self {
            uid: metadata.uid.as_deref().unwrap_or_default().into(),
            generation: metadata.generation,
            resource_version: metadata.resource_version.clone(),
            spec,
            status: ProfileStatus::default(),
            rollback: RollbackRequest::read(&metadata).map(Box::new),
            rollout: metadata
                .annotations
                .as_ref()
                .and_then(|all| all.get(ROLLOUT_ANNOTATION))
                .map(|text| text.trim().into()),
            name: name(metadata),
        }
    }

    /// Sets the status.
    #[must_use]
    pub(crate) fn with_status(self, status: ProfileStatus) -> Self {
        Self { status, ..self }
    }
}

/// Returns the name of the profile with this metadata.
#[must_use]
pub fn name(metadata: ObjectMeta) -> ProfileName {
    ProfileName { namespace: metadata.namespace.map(Into::into), name: metadata.name.unwrap_or_default().into() }
}

/// Parses the status of a profile. If this build cannot parse it, for example because a newer version of Pillion wrote
/// it, only the revisions are read. Then all pods get the promoted revision or, if none was promoted, the newest one.
pub(crate) fn read_status(status: Value) -> ProfileStatus {
    let text = |field: &str| status.get(field).and_then(Value::as_str).map(str::to_owned);
    let promoted = text("promotedRevision");
    let revision = text("revision").map(|newest| promoted.unwrap_or(newest));
    let kept = status.get("revisions").and_then(Value::as_array).into_iter().flatten();
    let cautious = ProfileStatus {
        promoted_revision: revision.clone(),
        revision,
        accepted_revision: text("acceptedRevision"),
        revisions: kept.filter_map(Value::as_str).map(str::to_owned).collect(),
        ..ProfileStatus::default()
    };
    serde_json::from_value(status).unwrap_or(cautious)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn unreadable_status_gives_all_pods_the_promoted_revision() {
        let status = json!({
            "revision": "b", "promotedRevision": "a", "acceptedRevision": "b", "revisions": ["b", "a"],
            "rollout": {"percent": 10, "byPhaseOfTheMoon": true},
        });
        let read = read_status(status.clone());
        assert_eq!((read.revision.as_deref(), read.promoted_revision.as_deref()), (Some("a"), Some("a")));
        assert_eq!((read.accepted_revision.as_deref(), read.rollout), (Some("b"), None));
        assert_eq!(read.revisions, ["b", "a"]);
        let mut known = status;
        known["rollout"] = json!({"percent": 10});
        assert_eq!(read_status(known).revision.as_deref(), Some("b"));
        assert_eq!(read_status(Value::Null), ProfileStatus::default());
    }
}
