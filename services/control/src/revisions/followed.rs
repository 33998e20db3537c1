//! The profiles whose running pods are upgraded, for [`crate::rollout`].

use pillion_api::kinds::UpgradeStatus;
use pillion_api::profile::{Rollout, RolloutStrategy};
use pillion_engine::profile::ProfileName;

use crate::informer::objects::StoredProfile;

/// The default of `rollout.podTimeoutSeconds`.
pub(crate) const DEFAULT_POD_TIMEOUT_SECONDS: u32 = 300;

/// The profiles that the task for running pods handles.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct FollowedProfiles {
    /// The profiles whose running pods are upgraded.
    pub active: Vec<Followed>,
    /// The profiles whose spec has no strategy for running pods, but whose status still shows an earlier rollout, each
    /// with its `resourceVersion`.
    pub ended: Vec<(ProfileName, Option<String>)>,
}

/// A profile whose running pods are upgraded.
#[derive(Clone, Debug, PartialEq)]
pub struct Followed {
    /// The profile's name.
    pub name: ProfileName,
    /// The version of the object. A write with another version fails.
    pub resource_version: Option<String>,
    /// The rollout in the accepted spec, within the limits.
    pub rollout: Rollout,
    /// The published revision.
    pub revision: String,
    /// The promoted revision, for new pods that do not get the published one.
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
    /// The highest strategy of cluster profiles.
    pub platform: RolloutStrategy,
    /// The highest strategy of namespaced profiles, if cluster profiles may also use it.
    pub namespaced: RolloutStrategy,
    /// Maximum number of pods that a namespaced profile may upgrade or restart at the same time.
    pub namespaced_unavailable: u32,
    /// Maximum time for the upgrade of one pod with a namespaced profile, in seconds.
    pub namespaced_pod_timeout: u32,
}

/// The highest strategy of a profile. A higher one has the same effect as this one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct StrategyLimit {
    pub(super) highest: RolloutStrategy,
    /// The chart's value that determines the limit.
    pub(super) value: &'static str,
}

impl RolloutLimits {
    /// Returns the limit of cluster profiles, or of namespaced ones.
    pub(super) fn strategy(self, is_namespaced: bool) -> StrategyLimit {
        if is_namespaced && self.namespaced < self.platform {
            return StrategyLimit { highest: self.namespaced, value: "rollout.namespaced.strategy" };
        }
        let value = if self.platform < RolloutStrategy::InPlace { "rollout.inPlace" } else { "rollout.restart" };
        StrategyLimit { highest: self.platform, value }
    }

    /// Returns the rollout of a profile within the limits. `None` if its running pods are not upgraded.
    fn apply(self, name: &ProfileName, rollout: &Rollout) -> Option<Rollout> {
        let is_namespaced = name.namespace.is_some();
        let strategy = rollout.strategy.unwrap_or_default().min(self.strategy(is_namespaced).highest);
        strategy.has_running_pods().then(|| {
            let mut rollout = Rollout { strategy: Some(strategy), ..rollout.clone() };
            if is_namespaced {
                rollout.max_unavailable = rollout.max_unavailable.map(|most| most.min(self.namespaced_unavailable));
                let timeout = rollout.pod_timeout_seconds.unwrap_or(DEFAULT_POD_TIMEOUT_SECONDS);
                rollout.pod_timeout_seconds = Some(timeout.min(self.namespaced_pod_timeout));
            }
            rollout
        })
    }
}

impl Followed {
    /// Reads a profile. `None` if its running pods are not upgraded, or if no revision is published. `rollout` is the
    /// rollout in the last valid spec. If it is `None`, running pods are not upgraded.
    pub(super) fn read(profile: &StoredProfile, rollout: Option<&Rollout>, limits: RolloutLimits) -> Option<Self> {
        let status = &profile.status;
        Some(Self {
            name: profile.name.clone(),
            resource_version: profile.resource_version.clone(),
            rollout: limits.apply(&profile.name, rollout?)?,
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
        let limits = RolloutLimits {
            platform: Restart,
            namespaced: InPlace,
            namespaced_unavailable: 10,
            namespaced_pod_timeout: 600,
        };
        let rollout =
            |strategy, most| Rollout { strategy: Some(strategy), max_unavailable: most, ..Rollout::default() };
        let applied = |limits: RolloutLimits, name, strategy, most| {
            let found = limits.apply(name, &rollout(strategy, most))?;
            Some((found.strategy?, found.max_unavailable, found.pod_timeout_seconds))
        };
        assert_eq!(applied(limits, &platform, Restart, Some(500)), Some((Restart, Some(500), None)));
        assert_eq!(applied(limits, &tenant, Restart, Some(5)), Some((InPlace, Some(5), Some(300))));
        assert_eq!(applied(limits, &tenant, InPlace, Some(500)), Some((InPlace, Some(10), Some(300))));
        assert_eq!(applied(limits, &tenant, InPlace, None), Some((InPlace, None, Some(300))), "the default is 1");
        assert_eq!(applied(limits, &tenant, OnCreate, None), None);
        let slow = Rollout { pod_timeout_seconds: Some(86_400), ..rollout(InPlace, None) };
        assert_eq!(limits.apply(&tenant, &slow).unwrap().pod_timeout_seconds, Some(600));
        assert_eq!(limits.apply(&platform, &slow).unwrap().pod_timeout_seconds, Some(86_400));
        // A tenant may do at most what the platform may.
        for (platform, value) in [(OnCreate, "rollout.inPlace"), (InPlace, "rollout.restart")] {
            let limits = RolloutLimits { platform, namespaced: Restart, ..limits };
            assert_eq!(limits.strategy(true), StrategyLimit { highest: platform, value });
            assert_eq!(limits.strategy(false), StrategyLimit { highest: platform, value });
        }
        let own = StrategyLimit { highest: InPlace, value: "rollout.namespaced.strategy" };
        assert_eq!(limits.strategy(true), own);
    }
}
