//! The state of the leader's rollout task during one term.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use arc_swap::ArcSwap;
use kube::Client;
use pillion_engine::snapshot::Snapshot;
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;

use super::RolloutSettings;
use super::known::Known;
use super::metrics::RolloutMetrics;
use super::pull::{PullSite, Puller};
use super::render::Planner;
use super::turns::Turns;
use crate::audit::AuditQuestion;
use crate::informer::index::Status;
use crate::informer::lookups::Lookups;
use crate::release::Release;
use crate::revisions::FollowedProfiles;

/// The inputs and outputs of the task.
#[derive(Debug)]
pub struct RolloutChannels {
    /// Profiles and namespaces, as a [`crate::Publisher`] publishes them.
    pub published: Arc<ArcSwap<Snapshot>>,
    /// The profiles whose running pods are upgraded.
    pub followed: watch::Receiver<Option<FollowedProfiles>>,
    /// The publisher's status. No pod is changed before its first snapshot.
    pub status: watch::Receiver<Status>,
    /// Sends questions about the pods of a profile to the audit.
    pub questions: mpsc::Sender<AuditQuestion>,
    /// Looks up the objects that profiles read.
    pub lookups: Lookups,
    /// The metrics.
    pub metrics: RolloutMetrics,
}

pub(super) struct Task {
    pub(super) client: Client,
    pub(super) settings: RolloutSettings,
    pub(super) channels: RolloutChannels,
    pub(super) planner: Planner,
    /// Pulls the images of namespaced profiles. It has no credentials, because a tenant must not get an image with the
    /// platform's credentials.
    pub(super) tenant_pulls: (PullSite, Puller),
    /// Pulls the images of cluster profiles.
    pub(super) platform_pulls: (PullSite, Puller),
    /// The state of rollouts in memory, by display name of the profile.
    pub(super) known: HashMap<String, Known>,
    /// The order of namespaced profiles.
    pub(super) turns: Turns,
    /// The pods that rollouts of cluster profiles still have to change, by UID. Namespaced profiles do not change them
    /// before that.
    pub(super) reserved: HashSet<u128>,
    /// When the handling of namespaced profiles ends in this round. `None` while cluster profiles are handled.
    pub(super) until: Option<Instant>,
    /// The release.
    pub(super) release: Arc<Release>,
    /// The published snapshot of the last round, and the same snapshot with the guardrails of the settings.
    pub(super) active: (Arc<Snapshot>, Arc<Snapshot>),
    /// When the term began.
    pub(super) began: Instant,
    /// When pods that pull images were last deleted.
    pub(super) cleaned: Instant,
    /// Whether marked pods must be read even if no profile is followed.
    pub(super) has_marked: bool,
    /// The number of rounds of this term.
    pub(super) rounds: usize,
}
