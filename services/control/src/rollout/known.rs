//! The state of a profile's rollout that the leader keeps in memory. It is not stored, and the next leader starts
//! without it.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::time::Duration;

use tokio::time::Instant;

use super::evictions::Evictions;

/// Pause before the next attempt to upgrade a pod that could not be changed in place. The obstacle may be gone by then.
const OBSTACLE_LIFETIME: Duration = Duration::from_mins(30);
/// Pause before the next attempt to change a pod that could not be changed for a temporary reason, such as an exhausted
/// `PodDisruptionBudget`. Meanwhile, other pods are tried.
const DELAY: Duration = Duration::from_secs(10);

/// The task's state for one profile.
#[derive(Debug)]
pub(super) struct Known {
    /// The profile's `resourceVersion` before the task's last write. If the watch still shows this version, it has not
    /// delivered that write.
    pub(super) replaced: Option<String>,
    /// When the status was last written, or the task began.
    pub(super) written: Instant,
    /// When upgraded pods were last compared with others.
    pub(super) judged: Option<Instant>,
    /// The nodes that have pulled the images of the rollout.
    pulled: HashSet<String>,
    /// The nodes that could not pull the images.
    unpulled: HashSet<String>,
    /// Since when an image cannot be pulled, and why.
    unpullable: Option<(Instant, String)>,
    /// Why pods are not changed now.
    pub(super) waits: BTreeSet<String>,
    /// The pods that cannot get a revision in place, with the revision, the time and the reasons, by UID.
    obstacles: HashMap<u128, (Box<str>, Instant, Vec<String>)>,
    /// The pods whose next attempt is delayed, with the time and the reason, by UID.
    delayed: HashMap<u128, (Instant, String)>,
    /// When pods were last delayed, by UID.
    tried: HashMap<u128, Instant>,
    /// The evictions, with the strategy `Restart`.
    pub(super) evictions: Evictions,
}

impl Default for Known {
    fn default() -> Self {
        Self {
            replaced: None,
            written: Instant::now(),
            judged: None,
            pulled: HashSet::new(),
            unpulled: HashSet::new(),
            unpullable: None,
            waits: BTreeSet::new(),
            obstacles: HashMap::new(),
            delayed: HashMap::new(),
            tried: HashMap::new(),
            evictions: Evictions::default(),
        }
    }
}

impl Known {
    /// Returns why an image cannot be pulled, if the failure has lasted longer than `limit`.
    pub(super) fn pull_failure(&self, limit: Duration) -> Option<String> {
        self.unpullable.as_ref().filter(|(since, _)| since.elapsed() > limit).map(|(_, why)| why.clone())
    }

    /// Records that a node has pulled the images.
    pub(super) fn add_pulled(&mut self, node: &str) {
        self.unpullable = None;
        self.unpulled.remove(node);
        self.pulled.insert(node.to_owned());
    }

    /// Records that a node could not pull an image. Returns true if the cause is considered to be the node and not the
    /// image: at least as many nodes have pulled the images as have failed to.
    pub(super) fn add_unpullable(&mut self, node: &str, why: &str) -> bool {
        self.unpulled.insert(node.to_owned());
        let is_of_node = self.unpulled.len() <= self.pulled.len();
        if !is_of_node {
            self.unpullable.get_or_insert_with(|| (Instant::now(), why.to_owned()));
        }
        is_of_node
    }

    /// Returns when a pod was last delayed. `None` if it was never delayed.
    pub(super) fn last_try(&self, uid: u128) -> Option<Instant> {
        self.tried.get(&uid).copied()
    }

    /// Returns why a pod cannot get a revision in place.
    pub(super) fn obstacle(&self, uid: u128, to: &str) -> Option<&[String]> {
        let (of, _, reasons) = self.obstacles.get(&uid)?;
        (**of == *to).then_some(reasons)
    }

    pub(super) fn add_obstacle(&mut self, uid: u128, to: &str, reasons: Vec<String>) {
        self.waits.extend(reasons.first().cloned());
        self.obstacles.insert(uid, (to.into(), Instant::now(), reasons));
    }

    /// Delays the next attempt to change a pod, for this reason.
    pub(super) fn delay(&mut self, uid: u128, why: String) {
        self.waits.insert(why.clone());
        self.delayed.insert(uid, (Instant::now(), why));
        self.tried.insert(uid, Instant::now());
    }

    pub(super) fn is_delayed(&self, uid: u128) -> bool {
        self.delayed.contains_key(&uid)
    }

    /// Removes the state of pods that are not listed, expired obstacles and delays, and reasons that no longer apply.
    pub(super) fn forget(&mut self, listed: &HashSet<u128>) {
        self.obstacles.retain(|uid, (_, since, _)| listed.contains(uid) && since.elapsed() < OBSTACLE_LIFETIME);
        self.delayed.retain(|uid, (since, _)| listed.contains(uid) && since.elapsed() < DELAY);
        self.tried.retain(|uid, _| listed.contains(uid));
        self.evictions.forget(listed);
        let reasons = self.obstacles.values().filter_map(|(_, _, reasons)| reasons.first());
        self.waits = reasons.chain(self.delayed.values().map(|(_, why)| why)).cloned().collect();
    }

    /// Removes the state of the previous phase, and that of the previous rollout if another one has begun.
    pub(super) fn begin_phase(&mut self, is_same_rollout: bool) {
        self.judged = None;
        self.unpullable = None;
        self.waits.clear();
        self.delayed.clear();
        if !is_same_rollout {
            self.pulled.clear();
            self.unpulled.clear();
            self.obstacles.clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn reasons_expire_and_pods_are_tried_again() {
        let mut known = Known::default();
        known.add_obstacle(1, "r2", vec!["env changes".to_owned()]);
        known.delay(2, "PodDisruptionBudget web allows 0".to_owned());
        assert_eq!(known.obstacle(1, "r2"), Some(&["env changes".to_owned()][..]));
        assert_eq!(known.obstacle(1, "r1"), None, "the obstacle is for another revision");
        assert!(known.is_delayed(2) && !known.is_delayed(1));
        assert!(known.last_try(2) > known.last_try(1), "the pod comes after pods that were not delayed");
        assert_eq!(known.waits.len(), 2);
        known.waits.insert("pulling".to_owned());
        known.forget(&HashSet::from([1, 2]));
        assert_eq!(known.waits.len(), 2, "reasons that no longer apply are removed");
        tokio::time::advance(DELAY).await;
        known.forget(&HashSet::from([1, 2]));
        assert!(!known.is_delayed(2) && known.obstacle(1, "r2").is_some());
        known.begin_phase(true);
        assert!(known.obstacle(1, "r2").is_some(), "it is the same rollout");
        known.forget(&HashSet::from([2]));
        assert!(known.obstacle(1, "r2").is_none(), "the pod was deleted");
        known.add_obstacle(1, "r2", vec!["env changes".to_owned()]);
        tokio::time::advance(OBSTACLE_LIFETIME).await;
        known.forget(&HashSet::from([1]));
        assert!(known.obstacle(1, "r2").is_none() && known.waits.is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn image_must_be_unpullable_for_a_while() {
        let mut known = Known::default();
        assert!(!known.add_unpullable("one", "none"), "no node has pulled it");
        assert_eq!(known.pull_failure(Duration::from_secs(30)), None);
        tokio::time::advance(Duration::from_secs(31)).await;
        assert_eq!(known.pull_failure(Duration::from_secs(30)).as_deref(), Some("none"));
        known.add_pulled("one");
        assert_eq!(known.pull_failure(Duration::ZERO), None);
        assert!(known.add_unpullable("two", "none"), "another node has pulled it");
        assert!(!known.add_unpullable("three", "none"), "most nodes cannot pull it");
        known.begin_phase(false);
        assert_eq!(known.pull_failure(Duration::ZERO), None);
    }
}
