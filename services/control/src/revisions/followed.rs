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
    /// The rollout in the accepted spec, within the limits. It has no strategy if running pods are no longer upgraded, but
    /// the status still shows an earlier rollout.
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

/// The limits of rollouts to running pods. The default allows none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RolloutLimits {
    /// The furthest strategy of cluster profiles.
    pub platform: RolloutStrategy,
    /// The furthest strategy of namespaced profiles, if cluster profiles may also use it.
    pub namespaced: RolloutStrategy,
    /// Maximum number of pods that a namespaced profile may upgrade or restart at the same time.
    pub namespaced_unavailable: u32,
}

impl RolloutLimits {
    /// Returns the furthest strategy of cluster profiles, or of namespaced ones.
    #[must_use]
    pub fn furthest(self, is_namespaced: bool) -> RolloutStrategy {
        if is_namespaced { self.platform.min(self.namespaced) } else { self.platform }
    }

    /// Returns the rollout of a profile within the limits. `None` if its running pods are not upgraded.
    fn apply(self, name: &ProfileName, rollout: &Rollout) -> Option<Rollout> {
        let is_namespaced = name.namespace.is_some();
        let strategy = rollout.strategy.filter(|strategy| strategy.has_running_pods())?;
        (strategy <= self.furthest(is_namespaced)).then(|| {
            let mut rollout = rollout.clone();
            if is_namespaced {
                rollout.max_unavailable = rollout.max_unavailable.map(|most| most.min(self.namespaced_unavailable));
            }
            rollout
        })
    }
}

impl Followed {
    /// Reads a profile with this accepted rollout. `None` if its running pods are not upgraded and never were, or if no
    /// revision is published.
    pub(super) fn read(profile: &StoredProfile, rollout: Option<&Rollout>, limits: RolloutLimits) -> Option<Self> {
        let status = &profile.status;
        let allowed = rollout.and_then(|rollout| limits.apply(&profile.name, rollout));
        let rollout = allowed.or_else(|| status.upgrade.is_some().then(Rollout::default))?;
        Some(Self {
            name: profile.name.clone(),
            resource_version: profile.resource_version.clone(),
            rollout,
            revision: status.revision.clone()?,
            promoted: status.promoted_revision.clone(),
            published_percent: status.rollout.as_ref().map(|rollout| rollout.percent.unwrap_or(100)),
            is_rollback: status.rollback().is_some(),
            steering: profile.rollout.clone(),
            upgrade: status.upgrade.clone(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn namespaced_profiles_have_their_own_limits() {
        use RolloutStrategy::{InPlace, OnCreate, Restart};
        let (platform, tenant) = (ProfileName::cluster("a"), ProfileName::namespaced("shop", "a"));
        let limits = RolloutLimits { platform: Restart, namespaced: InPlace, namespaced_unavailable: 10 };
        let rollout =
            |strategy, most| Rollout { strategy: Some(strategy), max_unavailable: most, ..Rollout::default() };
        let most =
            |name, strategy, most| limits.apply(name, &rollout(strategy, most)).map(|found| found.max_unavailable);
        assert_eq!(most(&platform, Restart, Some(500)), Some(Some(500)));
        assert_eq!(most(&tenant, Restart, Some(5)), None);
        assert_eq!(most(&tenant, InPlace, Some(500)), Some(Some(10)));
        assert_eq!(most(&tenant, InPlace, Some(3)), Some(Some(3)));
        assert_eq!(most(&tenant, InPlace, None), Some(None), "the default is 1");
        assert_eq!(most(&tenant, OnCreate, None), None);
        let without_platform = RolloutLimits { platform: OnCreate, ..limits };
        assert_eq!(without_platform.furthest(true), OnCreate, "a tenant may do at most what the platform may");
    }
}
