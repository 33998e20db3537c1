//! Accepts profiles. The leader compiles each generation of a profile. If it compiles, the leader stores it as an
//! immutable revision, and publishes it in the profile's status. Replicas serve the published revisions
//! ([`crate::informer::published`]).
//!
//! - `plan`: decides the actions for one profile; a pure function of the observed state.
//! - `conflicts`: finds profiles that conflict with one another.
//! - `dry_run`: builds the pod for the API server's dry run, and interprets the response.
//! - `observe`: watches profiles and their revisions.
//! - `execute`: executes the plans. `schedule` decides when. `dry_runs` tracks dry runs.
//! - `profile_status`: writes the status of a profile.
//! - `followed`, `opted_in`: the profiles for the tasks of rollouts and of the safety net.
//!
//! The task is level-triggered: after a change, it plans all profiles again. A profile in its desired state costs only
//! a comparison. Accepted revisions are stored in the cluster, so the next leader continues from there. Before it
//! starts its watches, it reads the accepted specs, and uses them for profiles that are broken now.
//!
//! The watches of profiles and namespaces are those of a [`Publisher`](crate::informer::watch::Publisher), which also
//! publishes the snapshot for the leader's other tasks. kube's `Controller` is not used: it reconciles one object at a
//! time. But a plan depends on all profiles (conflicts, parents, shares of memory) and on the number of namespaces.
//!
//! A revision is created before its profile's status names it, and deleted after the status no longer names it. Each
//! write of the status requires the observed `resourceVersion`, so a leader that was paused gets a conflict.

mod conflicts;
mod dry_run;
mod execute;
mod followed;
mod opted_in;
mod observe;
mod plan;
pub(crate) mod profile_event;
pub(crate) mod profile_status;
mod schedule;
mod dry_runs;

use std::time::Duration;

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

pub use execute::run;
pub(crate) use followed::DEFAULT_POD_TIMEOUT_SECONDS;
pub use followed::{Followed, FollowedProfiles, RolloutLimits};
pub use opted_in::{Coverage, OptedIn};

use tokio::sync::watch;

use crate::informer::share;
use crate::labels::Label;
use plan::PlanSettings;

/// The label with the bounds of a revision. The bounds are also in the spec, but the watches read only the metadata.
const BOUNDS_LABEL: &str = "pillion.dev/bounds";
/// The value of [`BOUNDS_LABEL`] for a revision with only the limits of its parent.
const BOUNDED_BY_PARENT: &str = "Parent";

/// Settings for accepting profiles and keeping revisions.
#[derive(Clone, Debug)]
pub struct Settings {
    /// How many of the latest revisions of a profile are kept. Published and accepted revisions are always kept.
    pub keep: usize,
    /// How long changes are collected before all profiles are planned.
    pub settle: Duration,
    /// Minimum time between two counts of matching namespaces.
    pub count_every: Duration,
    /// Pause after a failed write, even if something changes meanwhile.
    pub retry: Duration,
    /// The memory limits of namespaced profiles.
    pub memory: share::Limits,
    /// Sends the profiles whose running pods are upgraded to [`crate::rollout`], once all profiles are known. `None` if
    /// that task does not run.
    pub followed: Option<watch::Sender<Option<FollowedProfiles>>>,
    /// The limits of rollouts to running pods. Strategies beyond them have no effect.
    pub limits: RolloutLimits,
    /// The connection to the task of the safety net, or the reason why that task does not run.
    pub safety_net: Result<NetChannels, &'static str>,
}

/// The connection to the task of the safety net, [`crate::safety_net`].
#[derive(Clone, Debug)]
pub struct NetChannels {
    /// Sends the profiles that opt in, once all profiles are known.
    pub opted_in: watch::Sender<Option<Vec<OptedIn>>>,
    /// The coverage of these profiles.
    pub coverage: watch::Receiver<Coverage>,
}

impl Settings {
    const fn planning(&self) -> PlanSettings {
        PlanSettings { keep: self.keep, limits: self.limits }
    }
}

impl Default for Settings {
    /// Keeps 10 revisions, has the default memory limits, and neither upgrades running pods nor maintains a safety net.
    /// Collects changes for 100 ms, counts namespaces at most once a minute, and retries writes after 2 s.
    fn default() -> Self {
        Self {
            keep: 10,
            settle: Duration::from_millis(100),
            count_every: Duration::from_mins(1),
            retry: Duration::from_secs(2),
            memory: share::Limits::default(),
            followed: None,
            limits: RolloutLimits::default(),
            safety_net: Err("the chart's value safetyNet.enabled is false"),
        }
    }
}

/// Metrics of accepting and publishing profiles. Clones share the values.
#[derive(Clone, Debug, Default)]
pub struct Metrics {
    rejected: Gauge,
    created: Counter,
    deleted: Counter,
    writes: Family<Label, Counter>,
    pub(crate) events_dropped: Counter,
}

impl Metrics {
    /// Sets the gauges to 0 when leadership ends.
    pub fn reset(&self) {
        self.rejected.set(0);
    }

    /// Creates the metrics and registers them with the prefix `pillion_controller`.
    pub fn register(registry: &mut Registry) -> Self {
        let metrics = Self::default();
        let registry = registry.sub_registry_with_prefix("pillion_controller");
        let text = "Profiles whose latest generation was rejected. Their last accepted revision, if any, stays active";
        registry.register("rejected_profiles", text, metrics.rejected.clone());
        registry.register("revisions_created", "Revisions that were created", metrics.created.clone());
        registry.register("revisions_deleted", "Old revisions that were deleted", metrics.deleted.clone());
        let text = "Writes of the status of profiles, by result";
        registry.register("profile_status_writes", text, metrics.writes.clone());
        let text = "Kubernetes Events that were dropped: too many, or rejected by the API server";
        registry.register("events_dropped", text, metrics.events_dropped.clone());
        for result in ["written", "conflict", "failed"] {
            drop(metrics.write(result));
        }
        metrics
    }

    fn write(&self, result: &'static str) -> Counter {
        self.writes.get_or_create_owned(&[("result", result)])
    }
}
