//! The profiles that opt in to the safety net, for [`crate::safety_net`], and whether its policy covers them.

use std::collections::BTreeMap;

use crate::informer::objects::StoredProfile;

/// A cluster profile that opts in to the safety net.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OptedIn {
    /// The profile's name.
    pub name: Box<str>,
    /// The revision that all new pods get, or the reason why there is none.
    pub revision: Result<String, String>,
}

/// For each cluster profile that opts in to the safety net, whether the policy covers it, or the reason why not.
pub type Coverage = BTreeMap<Box<str>, Result<(), String>>;

impl OptedIn {
    /// Reads a profile. `None` if no revision is published, or if the profile is namespaced.
    pub(super) fn read(profile: &StoredProfile) -> Option<Self> {
        if profile.name.namespace.is_some() {
            return None;
        }
        let status = &profile.status;
        let published = status.revision.clone()?;
        let is_for_all = status.rollout.is_none() && status.promoted_revision.as_ref() == Some(&published);
        let revision = if is_for_all {
            Ok(published)
        } else {
            Err("spec.rollout: during a rollout, workloads get different revisions".to_owned())
        };
        Some(Self { name: profile.name.name.clone(), revision })
    }
}
