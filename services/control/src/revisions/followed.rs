//! The profiles whose running pods are upgraded, for [`crate::rollout`].

use pillion_api::kinds::UpgradeStatus;
use pillion_api::profile::{Rollout, RolloutStrategy};
use pillion_engine::profile::ProfileName;

use crate::informer::objects::StoredProfile;

/// A profile whose running pods are upgraded.
#[derive(Clone, Debug, PartialEq)]
pub struct Followed {
    /// The profile's name.
    pub name: ProfileName,
    /// The version of the object. A write with another version fails.
    pub resource_version: Option<String>,
    /// The rollout in the accepted spec.
    pub rollout: Rollout,
    /// The published revision.
    pub revision: String,
    /// The promoted revision, which new pods get.
    pub promoted: Option<String>,
    /// Whether a rollback has published an earlier revision.
    pub is_rollback: bool,
    /// The annotation that steers the rollout.
    pub steering: Option<Box<str>>,
    /// The state of the rollout to running pods.
    pub upgrade: Option<UpgradeStatus>,
}

impl Followed {
    /// Reads a profile with this accepted rollout. `None` if its running pods are not upgraded, or if no revision is
    /// published.
    pub(super) fn read(profile: &StoredProfile, rollout: Option<&Rollout>) -> Option<Self> {
        let rollout = rollout.filter(|rollout| rollout.strategy == Some(RolloutStrategy::InPlace))?;
        let status = &profile.status;
        Some(Self {
            name: profile.name.clone(),
            resource_version: profile.resource_version.clone(),
            rollout: rollout.clone(),
            revision: status.revision.clone()?,
            promoted: status.promoted_revision.clone(),
            is_rollback: status.rollback().is_some(),
            steering: profile.rollout.clone(),
            upgrade: status.upgrade.clone(),
        })
    }
}
