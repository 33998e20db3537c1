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
    /// The share of the workloads whose new pods get the published revision, in percent. `None`: all of them.
    pub published_percent: Option<u8>,
    /// Whether a rollback has published an earlier revision.
    pub is_rollback: bool,
    /// The annotation that steers the rollout.
    pub steering: Option<Box<str>>,
    /// The state of the rollout to running pods.
    pub upgrade: Option<UpgradeStatus>,
}

/// The strategies with which the controller may change running pods.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Strategies {
    /// `InPlace`.
    pub in_place: bool,
    /// `Restart`.
    pub restart: bool,
}

impl Strategies {
    /// Whether the controller brings new revisions to running pods with this strategy.
    #[must_use]
    pub const fn include(self, strategy: RolloutStrategy) -> bool {
        match strategy {
            RolloutStrategy::OnCreate => false,
            RolloutStrategy::InPlace => self.in_place,
            RolloutStrategy::Restart => self.in_place && self.restart,
        }
    }
}

impl Followed {
    /// Reads a profile with this accepted rollout. `None` if its running pods are not upgraded, or if no revision is
    /// published.
    pub(super) fn read(profile: &StoredProfile, rollout: Option<&Rollout>, strategies: Strategies) -> Option<Self> {
        let rollout = rollout.filter(|rollout| strategies.include(rollout.strategy.unwrap_or_default()))?;
        let status = &profile.status;
        Some(Self {
            name: profile.name.clone(),
            resource_version: profile.resource_version.clone(),
            rollout: rollout.clone(),
            revision: status.revision.clone()?,
            promoted: status.promoted_revision.clone(),
            published_percent: status.rollout.as_ref().map(|rollout| rollout.percent.unwrap_or(100)),
            is_rollback: status.rollback().is_some(),
            steering: profile.rollout.clone(),
            upgrade: status.upgrade.clone(),
        })
    }
}
