//! Objects as a watch or a list delivers them, without the client's types, so that all code behind them is tested without
//! a cluster.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::runtime::watcher::Event;
use pillion_api::kinds::ProfileStatus;
use pillion_api::names::{ROLLBACK_FROM_ANNOTATION, ROLLBACK_TO_ANNOTATION};
use pillion_engine::profile::ProfileName;
use serde_json::Value;

/// One change from a watch. The first list, and each later one, arrives as [`Change::Listed`] for every object and one
/// [`Change::ListComplete`]: objects missing from the list are gone. All other changes arrive between two lists.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change<K, T> {
    /// The watch was interrupted. An unfinished list starts again: its objects so far do not count.
    Restarted,
    /// An object of the list.
    Listed(T),
    /// The list is complete.
    ListComplete,
    /// An object was created or has changed.
    Applied(T),
    /// The object with this key was deleted.
    Deleted(K),
}

impl<K, T> Change<K, T> {
    /// Converts the client's event. `read` reduces an object, `key` returns its key.
    pub fn from_event<O>(event: Event<O>, read: impl FnOnce(O) -> T, key: impl FnOnce(O) -> K) -> Self {
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
    /// `None` for an object that could not be read.
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

/// A stored profile, not parsed.
#[derive(Clone, Debug, PartialEq)]
pub struct StoredProfile {
    /// Its name.
    pub name: ProfileName,
    /// Changes if the profile is deleted and recreated.
    pub uid: Box<str>,
    /// Rises with each change of the text, but not with changes of the status.
    pub generation: Option<i64>,
    /// Changes with each write.
    pub resource_version: Option<String>,
    /// The text: the object's `spec`. Null if it has none, or if the reader does not need it.
    pub spec: Value,
    /// The status, which names the published revisions.
    pub status: ProfileStatus,
    /// The revision to roll back to, if the annotations request it.
    pub rollback_to: Option<Box<str>>,
    /// The revision that is rolled back.
    pub rollback_from: Option<Box<str>>,
}

/// A change from a watch of profiles.
pub type ProfileChange = Change<ProfileName, StoredProfile>;

impl StoredProfile {
    /// From an object's metadata and its `spec`.
    #[must_use]
    pub fn new(metadata: ObjectMeta, spec: Value) -> Self {
        let annotation = |key: &str| metadata.annotations.as_ref()?.get(key).map(|value| value.trim().into());
        Self {
            uid: metadata.uid.as_deref().unwrap_or_default().into(),
            generation: metadata.generation,
            resource_version: metadata.resource_version.clone(),
            spec,
            status: ProfileStatus::default(),
            rollback_to: annotation(ROLLBACK_TO_ANNOTATION),
            rollback_from: annotation(ROLLBACK_FROM_ANNOTATION),
            name: name(metadata),
        }
    }

    /// Sets the status.
    #[must_use]
    pub fn with_status(self, status: ProfileStatus) -> Self {
        Self { status, ..self }
    }
}

/// The name of the profile with this metadata.
#[must_use]
pub fn name(metadata: ObjectMeta) -> ProfileName {
    ProfileName { namespace: metadata.namespace.map(Into::into), name: metadata.name.unwrap_or_default().into() }
}

/// Parses the status of a profile. If a newer version wrote it and this build cannot read it, only the revisions are
/// taken, and all pods get the promoted one.
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
