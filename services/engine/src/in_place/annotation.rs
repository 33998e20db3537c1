//! The annotation `pillion.dev/upgraded` of a running pod. It holds all state of the pod's upgrade, so that a
//! controller replica can continue an upgrade that a different replica began.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::ContainerChange;

/// The maximum size of the annotation in bytes. A larger one is ignored.
const MAX_BYTES: usize = 16 * 1024;

/// The content of the annotation.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Upgraded {
    /// The UID of the pod. A copied manifest contains the annotation of another pod, which is ignored.
    pub uid: String,
    /// The profiles with a revision other than the recorded one, because of an upgrade in place, by display name.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub profiles: BTreeMap<String, UpgradedProfile>,
    /// The last failed upgrade of each profile, by display name. It is not tried again.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub failed: BTreeMap<String, FailedUpgrade>,
    /// When the image of each container was last changed, in seconds since 1970, by container name.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub changed: BTreeMap<String, i64>,
    /// The upgrade whose containers are not ready yet.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub running: Option<RunningUpgrade>,
}

/// The revisions of one profile.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UpgradedProfile {
    /// The revision in the injection record.
    pub from: String,
    /// The revision that the last upgrade applied.
    pub to: String,
}

/// An upgrade that failed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FailedUpgrade {
    /// The revision to which the pod was to be upgraded.
    pub revision: String,
    /// Why the upgrade failed.
    pub why: String,
}

/// An upgrade whose containers are not ready yet, with the state of the pod before it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct RunningUpgrade {
    /// When the pod was changed, in seconds since 1970.
    pub since: i64,
    /// The revisions of the changed profiles before the upgrade, by display name.
    pub previous: BTreeMap<String, String>,
    /// The revision that the profile gets. Empty if several profiles change, or if a failed upgrade is taken back.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub to: String,
    /// Whether the upgrade returns to an earlier revision, after a failure or at a user's request. While it runs, the
    /// status may still show the failure of the later revision.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub is_step_back: bool,
    /// The changes that the upgrade makes to containers.
    pub changes: Vec<ContainerChange>,
    /// The restart counts of all containers before the change, by container name.
    pub restarts: BTreeMap<String, i64>,
    /// Whether the pod was ready before the change.
    pub was_ready: bool,
}

impl Upgraded {
    /// Parses the annotation of the pod with this UID. `None` if it is too large, invalid, or belongs to a different
    /// pod.
    #[must_use]
    pub fn read(text: &str, uid: &str) -> Option<Self> {
        if text.len() > MAX_BYTES {
            return None;
        }
        serde_json::from_str::<Self>(text).ok().filter(|upgraded| upgraded.uid == uid)
    }

    /// Returns the current revision of a profile. `recorded` is the revision of the profile in the pod's injection
    /// record.
    #[must_use]
    pub fn revision<'r>(&'r self, profile: &str, recorded: &'r str) -> &'r str {
        let upgrade = self.profiles.get(profile).filter(|upgrade| upgrade.from == recorded);
        upgrade.map_or(recorded, |upgrade| &upgrade.to)
    }

    /// Returns the annotation with `running` as the current upgrade. Also sets the time of the last change for each
    /// container whose image changes.
    #[must_use]
    pub fn with_running(self, running: RunningUpgrade) -> Self {
        let images = running.changes.iter().filter(|change| change.image.is_some());
        let mut changed = self.changed;
        changed.extend(images.map(|change| (change.name.clone(), running.since)));
        Self { changed, running: Some(running), ..self }
    }

    /// Returns the annotation without the running upgrade, for a pod whose upgrade is complete.
    #[must_use]
    pub fn completed(&self) -> Self {
        Self { running: None, ..self.clone() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn annotation_of_other_pod_is_ignored() {
        let profile = UpgradedProfile { from: "r1".to_owned(), to: "r2".to_owned() };
        let upgraded = Upgraded {
            uid: "a".to_owned(),
            profiles: BTreeMap::from([("log".to_owned(), profile)]),
            ..Upgraded::default()
        };
        let text = serde_json::to_string(&upgraded).unwrap();
        assert_eq!(text, r#"{"uid":"a","profiles":{"log":{"from":"r1","to":"r2"}}}"#);
        assert_eq!(Upgraded::read(&text, "a"), Some(upgraded.clone()));
        let long = format!("{text}{}", " ".repeat(MAX_BYTES));
        for (text, uid) in [(&*text, "b"), ("{}", "a"), ("[", "a"), (&*long, "a")] {
            assert_eq!(Upgraded::read(text, uid), None, "{text:.20}");
        }
        assert_eq!(upgraded.revision("log", "r1"), "r2");
        assert_eq!(upgraded.revision("log", "r0"), "r0", "the record is of another revision");
        assert_eq!(upgraded.revision("other", "r1"), "r1");
    }
}
