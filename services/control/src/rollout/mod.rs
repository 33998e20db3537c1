//! Brings new revisions to running pods. Changes the images and the resources of injected containers in place, and
//! waits until the containers run. With the strategy `Restart`, evicts pods that cannot be changed in place.
//!
//! Used by the leader's task and by the command `pillion rollout --in-place`:
//!
//! - [`Planner`] simulates the creation of a pod with two sets of revisions, and plans the difference
//!   ([`pillion_engine::in_place`]).
//! - [`Puller`] pulls an image to a node before a pod there is changed to it.
//! - [`budgets`] compares disruptions with `PodDisruptionBudget`s.
//! - [`change`] changes a pod.
//! - [`progress()`] decides from a pod's status whether an upgrade is complete or has failed.
//!
//! Used only by the leader's task ([`run`]):
//!
//! - `steps`: decides the state of a profile's rollout, a pure function.
//! - `judge`: compares upgraded pods with others, a pure function.
//! - `marked`: completes running upgrades, or takes them back.
//! - `known`: the state of a profile's rollout that the leader keeps in memory.
//! - `state`: the state of the task.
//! - `pods`: brings a revision to pods, within the limits.
//! - `evictions`: evicts pods that cannot be upgraded in place, with the strategy `Restart`.
//! - `turns`: the order in which namespaced profiles are handled.
//! - `task`: the loop over the profiles.
//!
//! The task needs no memory of an earlier term. The request that writes the new image of a pod also writes its
//! annotation ([`pillion_engine::in_place::Upgraded`]). The annotation contains all that is needed to complete the
//! upgrade or to take it back. The label [`UPGRADING_LABEL`](pillion_api::names::UPGRADING_LABEL) marks these pods, so
//! that the next leader finds them with one list. Everything that no pod shows, such as the current step, is in the
//! profile's status.

pub mod budgets;
pub mod change;
mod evictions;
mod judge;
mod known;
mod marked;
mod metrics;
mod pods;
mod progress;
mod pull;
mod render;
mod state;
mod steps;
mod task;
mod turns;

use std::sync::Arc;
use std::time::Duration;

use pillion_engine::limits::Guardrails;
use pillion_json::OwnedTape;

pub use metrics::RolloutMetrics;
pub use progress::{Progress, baseline, is_ready, progress};
pub use pull::{ImageState, PullLimits, PullSite, Puller, delete_pods};
pub use render::{PlanError, Planner, PodUpgrade, Target, Upgrade};
pub use state::RolloutChannels;
pub use task::run;

/// The field manager of changes to pods, and of the status field `upgrade`.
const MANAGER: &str = "pillion-controller-rollout";

/// Settings of rollouts to running pods.
#[derive(Clone, Debug)]
pub struct RolloutSettings {
    /// Time between two rounds.
    pub interval: Duration,
    /// Maximum number of requests per second.
    pub requests_per_second: u32,
    /// Names of Secrets in the release's namespace with credentials for registries. They are used only for cluster
    /// profiles.
    pub pull_secrets: Vec<String>,
    /// Time between two comparisons of upgraded pods with others.
    pub judge_interval: Duration,
    /// The limits of namespaced profiles, as the webhook applies them.
    pub guardrails: Guardrails,
    /// The time after which all replicas use a share of the workloads that a status has published.
    pub publish_settle: Duration,
    /// How long the pod that replaces an evicted one must be ready.
    pub settle: Duration,
    /// The platform's facts about the cluster, as the webhook knows them.
    pub cluster: Option<Arc<OwnedTape>>,
}

impl Default for RolloutSettings {
    /// Has a round every 2 s, sends at most 20 requests per second, and compares pods every 10 s. Replicas use a
    /// published share after 10 s, and new pods must be ready for 10 s.
    fn default() -> Self {
        Self {
            interval: Duration::from_secs(2),
            requests_per_second: 20,
            pull_secrets: Vec::new(),
            judge_interval: Duration::from_secs(10),
            publish_settle: Duration::from_secs(10),
            settle: Duration::from_secs(10),
            guardrails: Guardrails::default(),
            cluster: None,
        }
    }
}
