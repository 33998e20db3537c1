//! Evictions of pods that cannot be upgraded in place, so that their controllers replace them.
//!
//! The profile's status has each eviction from before the request until the pod is replaced. So a new leader continues
//! with the evictions of its predecessor.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::Client;
use kube::api::{DynamicObject, PostParams};
use pillion_api::kinds::{PodEviction, UpgradeStatus};
use serde_json::{Value, json};
use tokio::time::Instant;
use tracing::info;

use super::change::pods as api_of;
use super::progress::{is_ready, restarts};
use crate::audit::ProfilePod;

/// The controllers that replace an evicted pod.
const REPLACING: [(&str, &str); 4] =
    [("apps/v1", "ReplicaSet"), ("apps/v1", "StatefulSet"), ("apps/v1", "DaemonSet"), ("v1", "ReplicationController")];
/// The maximum time that a pod's `terminationGracePeriodSeconds` adds to the time limit for its replacement.
const MAX_GRACE: Duration = Duration::from_hours(1);

/// A phase of a rollout: its revision, and when it began, in seconds since 1970.
pub(super) type PhaseKey = (String, i64);

/// How long after the decision the API server may receive the request for an eviction, in seconds. The request of an
/// earlier leader may be delayed.
const REQUEST_LIMIT: i64 = 15;

/// An eviction whose pod is not replaced yet.
#[derive(Clone, Debug)]
pub(super) struct Eviction {
    /// The eviction, as in the profile's status.
    pub(super) stored: PodEviction,
    phase: PhaseKey,
    /// The latest time at which a new pod must be ready.
    deadline: Instant,
    /// The pods of the controller that do not replace the evicted one, by UID.
    before: HashSet<u128>,
    /// Whether the eviction is from an earlier term. Then `before` may lack pods.
    is_restored: bool,
    /// Whether the API server has evicted the pod. Otherwise, the response is unknown.
    is_certain: bool,
    /// A new pod that is ready, by UID, and since when.
    ready: Option<(u128, Instant)>,
    /// The number of times that a new pod was read.
    reads: usize,
}

/// The state of an eviction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Replacement {
    /// No new pod is ready yet.
    Pending,
    /// A new pod is ready.
    Ready,
    /// No new pod became ready in time.
    Overdue,
    /// The pod was not evicted.
    NotEvicted,
}

/// The evictions of a profile's pods in this term.
#[derive(Debug, Default)]
pub(super) struct Evictions {
    /// The evictions whose pods are not replaced yet.
    pub(super) open: Vec<Eviction>,
    /// The evictions that begin as soon as they are in the profile's status.
    pub(super) planned: Vec<Eviction>,
    /// Whether the evictions of the previous leader are in `open`.
    is_restored: bool,
    /// The phase of the results below. Evictions of other phases do not count.
    phase: Option<PhaseKey>,
    ready: usize,
    overdue: usize,
    /// The controller of the last pod that was not replaced in time.
    last_overdue: String,
    /// The published revision and share of the workloads, in percent, and since when.
    published: Option<(String, u8, Instant)>,
    /// The pods that existed when all replicas used the published share, by UID. `None` before that.
    existing: Option<HashSet<u128>>,
    /// When the eviction of a pod was first refused, by UID.
    refused: HashMap<u128, Instant>,
}

/// The result of a request to evict a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Evicted {
    /// The pod is being deleted.
    Done,
    /// The pod was deleted already, or replaced by one of the same name.
    Gone,
    /// The API server refuses, for this reason. For example, a `PodDisruptionBudget` does not allow the eviction now.
    Refused(String),
}

impl Eviction {
    /// Creates the eviction of a pod with this controller. `all` has the pods of the profile.
    pub(super) fn new(
        (pod, object): (&ProfilePod, &DynamicObject),
        controller: String,
        (to, phase): (&str, &PhaseKey),
        all: &[ProfilePod],
        limit: Duration,
    ) -> Self {
        let grace = object.data.pointer("/spec/terminationGracePeriodSeconds").and_then(Value::as_u64);
        let time = limit + Duration::from_secs(grace.unwrap_or(30)).min(MAX_GRACE);
        let siblings = all.iter().filter(|other| has_controller(other, &pod.namespace, &controller));
        let before = siblings.map(|sibling| sibling.uid).collect();
        let since = Timestamp::now();
        let stored = PodEviction {
            namespace: pod.namespace.to_string(),
            pod: pod.name.to_string(),
            uid: object.metadata.uid.clone().unwrap_or_default(),
            controller,
            revision: to.to_owned(),
            since: Time(since),
            until: Time(since + time),
        };
        Self { before, is_restored: false, deadline: Instant::now() + time, ..Self::from_status(stored, phase) }
    }

    /// Creates an eviction that an earlier leader decided.
    fn from_status(stored: PodEviction, phase: &PhaseKey) -> Self {
        let left = Duration::try_from(stored.until.0 - Timestamp::now()).unwrap_or_default();
        Self {
            phase: phase.clone(),
            deadline: Instant::now() + left,
            before: HashSet::new(),
            is_restored: true,
            is_certain: false,
            ready: None,
            reads: 0,
            stored,
        }
    }

    /// Requests the eviction.
    ///
    /// # Errors
    /// The API server is unavailable. The pod may have been evicted.
    pub(super) async fn request(&mut self, client: &Client) -> kube::Result<Evicted> {
        let evicted = evict(client, &self.stored).await?;
        self.is_certain = evicted == Evicted::Done;
        Ok(evicted)
    }

    /// Looks for a pod that replaces the evicted one. Reads at most two pods.
    ///
    /// # Errors
    /// The API server is unavailable.
    pub(super) async fn follow(
        &mut self,
        client: &Client,
        pods: &[ProfilePod],
        settle: Duration,
    ) -> kube::Result<Replacement> {
        let PodEviction { namespace, pod, uid, controller, revision, since, .. } = &self.stored;
        let api = api_of(client, namespace);
        if !self.is_certain {
            let exists = |found: &DynamicObject| {
                found.metadata.uid.as_ref() == Some(uid) && found.metadata.deletion_timestamp.is_none()
            };
            if api.get_opt(pod).await?.is_some_and(|found| exists(&found)) {
                let may_begin = Timestamp::now().as_second() <= since.0.as_second().saturating_add(REQUEST_LIMIT);
                return Ok(if may_begin { Replacement::Pending } else { Replacement::NotEvicted });
            }
            self.is_certain = true;
        }
        let is_new = |pod: &&ProfilePod| {
            *pod.revision == **revision && !self.before.contains(&pod.uid) && has_controller(pod, namespace, controller)
        };
        let new: Vec<_> = pods.iter().filter(is_new).collect();
        let known = self.ready.and_then(|(uid, _)| new.iter().find(|pod| pod.uid == uid));
        // If several pods are new, each call reads the next one.
        let next = known.or_else(|| new.get(self.reads.checked_rem(new.len())?));
        if let Some(pod) = next {
            self.reads += 1;
            let found = api.get_opt(&pod.name).await?;
            // The clocks of the leader and the API server may differ, so a pod that is slightly older than the eviction
            // counts as new. It cannot be the replacement of an earlier pod of the controller: that replacement was
            // ready for `settle` before this eviction.
            let oldest = since.0 - settle / 2;
            if self.is_restored && found.as_ref().is_some_and(|found| is_older(found, oldest)) {
                self.before.insert(pod.uid);
                return Ok(Replacement::Pending);
            }
            let found = found.and_then(|found| serde_json::to_value(&found).ok());
            let is_ready = found.is_some_and(|found| is_ready(&found) && restarts(&found) == 0);
            let since = self.ready.filter(|(uid, _)| *uid == pod.uid).map_or_else(Instant::now, |(_, since)| since);
            self.ready = is_ready.then_some((pod.uid, since));
            if is_ready {
                // Without a probe, a container is ready as soon as it runs, even if it ends a moment later. So a ready
                // pod is observed for `settle`, even after the deadline.
                let is_settled = since.elapsed() >= settle;
                return Ok(if is_settled { Replacement::Ready } else { Replacement::Pending });
            }
        }
        Ok(if self.is_late() { Replacement::Overdue } else { Replacement::Pending })
    }

    /// Whether the time for the replacement is over.
    pub(super) fn is_late(&self) -> bool {
        Instant::now() >= self.deadline
    }
}

impl Evictions {
    /// Continues with the evictions in a profile's status, unless that has been done in this term.
    pub(super) fn restore(&mut self, status: Option<&UpgradeStatus>, phase: &PhaseKey) {
        if !std::mem::replace(&mut self.is_restored, true) {
            let stored = status.iter().flat_map(|status| &status.evictions);
            self.open.extend(stored.map(|stored| Eviction::from_status(stored.clone(), phase)));
        }
    }

    /// Returns the evictions for the profile's status.
    pub(super) fn stored(&self) -> Vec<PodEviction> {
        self.open.iter().chain(&self.planned).map(|eviction| eviction.stored.clone()).collect()
    }

    /// Records the published revision and its share of the workloads, in percent. `listed` has all pods of the profile.
    /// Returns whether all replicas use the share: it was published at least `settle` ago.
    pub(super) fn publish(&mut self, revision: &str, percent: u8, listed: &HashSet<u128>, settle: Duration) -> bool {
        let known = self.published.take().filter(|(known, share, _)| *known == *revision && *share == percent);
        if known.is_none() {
            self.existing = None;
        }
        let (_, _, since) =
            self.published.insert(known.unwrap_or_else(|| (revision.to_owned(), percent, Instant::now())));
        let is_used = since.elapsed() >= settle;
        if is_used && self.existing.is_none() {
            self.existing = Some(listed.clone());
        }
        is_used
    }

    /// Whether a pod already existed when all replicas began to use the published share. Returns true for all pods
    /// before that. A newer pod got its revision from replicas that use the share, so its eviction would change
    /// nothing.
    pub(super) fn is_old(&self, uid: u128) -> bool {
        self.existing.as_ref().is_none_or(|existing| existing.contains(&uid))
    }

    /// Counts a result of an eviction.
    pub(super) fn count(&mut self, eviction: &Eviction, current: &PhaseKey, is_ready: bool) {
        self.begin(current);
        if eviction.phase != *current {
            return;
        }
        if is_ready {
            self.ready += 1;
        } else {
            self.overdue += 1;
            let PodEviction { namespace, controller, .. } = &eviction.stored;
            self.last_overdue = format!("{controller} in namespace {namespace}");
        }
    }

    /// Forgets the results of another phase.
    fn begin(&mut self, current: &PhaseKey) {
        if self.phase.as_ref() != Some(current) {
            (self.ready, self.overdue) = (0, 0);
            self.phase = Some(current.clone());
        }
    }

    /// Returns why the evictions of a phase have failed: new pods are not ready in time. Up to `max_unavailable` may
    /// fail if more are ready.
    pub(super) fn failure(&self, current: &PhaseKey, max_unavailable: u32) -> Option<String> {
        let Self { ready, overdue, last_overdue, .. } = self;
        let is_current = self.phase.as_ref() == Some(current) && *overdue > 0;
        let most = usize::try_from(max_unavailable).unwrap_or(usize::MAX);
        (is_current && (overdue >= ready || *overdue > most)).then(|| {
            format!(
                "{overdue} evicted pods were not replaced by ready ones in time, and {ready} were; the last one is of \
                 {last_overdue}: look at its new pod and its events"
            )
        })
    }

    /// Whether a pod of this controller is being replaced, or will be.
    pub(super) fn has_open(&self, namespace: &str, controller: &str) -> bool {
        let is_of = |of: &PodEviction| *of.namespace == *namespace && of.controller == controller;
        self.open.iter().chain(&self.planned).any(|eviction| is_of(&eviction.stored))
    }

    /// Records that the eviction of a pod is refused. Returns whether this has lasted longer than `limit`.
    pub(super) fn refuse(&mut self, uid: u128, limit: Duration) -> bool {
        self.refused.entry(uid).or_insert_with(Instant::now).elapsed() > limit
    }

    /// Removes the state of pods that are not listed.
    pub(super) fn forget(&mut self, listed: &HashSet<u128>) {
        self.refused.retain(|uid, _| listed.contains(uid));
    }
}

/// Returns the kind and name of the controller that replaces a pod. The error is the reason why none does.
pub(super) fn controller(pod: &DynamicObject) -> Result<String, String> {
    let owners = pod.metadata.owner_references.iter().flatten();
    let Some(owner) = owners.into_iter().find(|owner| owner.controller == Some(true)) else {
        return Err("no controller would replace it".to_owned());
    };
    if !REPLACING.contains(&(&*owner.api_version, &*owner.kind)) {
        return Err(format!("pods of the kind {} are not evicted", owner.kind));
    }
    Ok(format!("{}/{}", owner.kind, owner.name))
}

/// Whether a pod is in a namespace and has a controller of this kind and name.
fn has_controller(pod: &ProfilePod, namespace: &str, controller: &str) -> bool {
    *pod.namespace == *namespace && pod.owner.as_ref().is_some_and(|owner| ***owner == *controller)
}

/// Whether a pod was created in a second before that of `time`. The API server stores no fractions of seconds.
fn is_older(pod: &DynamicObject, time: Timestamp) -> bool {
    pod.metadata.creation_timestamp.as_ref().is_some_and(|created| created.0.as_second() < time.as_second())
}

/// Evicts a pod.
///
/// # Errors
/// The API server is unavailable. The pod may have been evicted.
async fn evict(client: &Client, PodEviction { namespace, pod, uid, .. }: &PodEviction) -> kube::Result<Evicted> {
    // `Api::evict` does not send preconditions, so it could evict a new pod of the same name.
    let eviction = json!({
        "apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"namespace": namespace, "name": pod},
        "deleteOptions": {"preconditions": {"uid": uid}},
    });
    let (api, parameters) = (api_of(client, namespace), PostParams::default());
    match api.create_subresource::<_, Value>("eviction", pod, &parameters, &eviction).await {
        Ok(_) => {
            info!(namespace, name = pod, "a pod was evicted, because it needs a new revision");
            Ok(Evicted::Done)
        }
        Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => Ok(Evicted::Gone),
        // A disruption budget refuses with 429. Two budgets for one pod, and a webhook that fails, cause 500.
        Err(kube::Error::Api(status)) => {
            Ok(Evicted::Refused(format!("the API server refuses to evict pod {namespace}/{pod}: {}", status.message)))
        }
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use pillion_api::kinds::UpgradePhase;

    use super::*;

    const LIMIT: Duration = Duration::from_mins(1);
    const SETTLE: Duration = Duration::from_secs(10);

    fn object(owners: &Value) -> DynamicObject {
        serde_json::from_value(json!({
            "metadata": {"name": "web-1", "ownerReferences": owners}, "spec": {"terminationGracePeriodSeconds": 30},
        }))
        .unwrap()
    }

    fn owner(version: &str, kind: &str, is_controller: bool) -> Value {
        json!([{"apiVersion": version, "kind": kind, "name": "web", "uid": "u", "controller": is_controller}])
    }

    fn pod(uid: u128, owner: &str) -> ProfilePod {
        ProfilePod {
            namespace: "shop".into(),
            name: format!("web-{uid}").into(),
            uid,
            revision: "r1".into(),
            owner: Some(Arc::new(owner.into())),
            metadata: Arc::new("{}".into()),
        }
    }

    fn eviction(uid: u128, phase: &PhaseKey, all: &[ProfilePod]) -> Eviction {
        let (pod, object) = (pod(uid, "ReplicaSet/web"), object(&owner("apps/v1", "ReplicaSet", true)));
        Eviction::new((&pod, &object), "ReplicaSet/web".to_owned(), ("r2", phase), all, LIMIT)
    }

    #[test]
    fn only_replaced_pods_are_evicted() {
        assert_eq!(controller(&object(&owner("apps/v1", "ReplicaSet", true))), Ok("ReplicaSet/web".to_owned()));
        for owners in [owner("batch/v1", "Job", true), owner("apps/v1", "ReplicaSet", false), json!([])] {
            assert!(controller(&object(&owners)).is_err(), "{owners}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn eviction_knows_its_siblings_and_deadline() {
        let all = [pod(1, "ReplicaSet/web"), pod(2, "ReplicaSet/web"), pod(3, "StatefulSet/web")];
        let eviction = eviction(1, &("r2".to_owned(), 7), &all);
        assert_eq!(eviction.before, HashSet::from([1, 2]));
        assert_eq!(eviction.deadline, Instant::now() + Duration::from_secs(90));
        let stored = &eviction.stored;
        assert_eq!(stored.until.0.as_second() - stored.since.0.as_second(), 90);
    }

    #[tokio::test(start_paused = true)]
    async fn new_leader_continues_with_stored_evictions() {
        let phase = ("r2".to_owned(), 7);
        let mut evictions = Evictions::default();
        evictions.planned.push(eviction(1, &phase, &[]));
        assert!(evictions.has_open("shop", "ReplicaSet/web"), "planned evictions count");
        let status = UpgradeStatus {
            evictions: evictions.stored(),
            ..UpgradeStatus::new("r2", None, UpgradePhase::Upgrading, Time(Timestamp::UNIX_EPOCH))
        };
        let mut next = Evictions::default();
        for _ in 0..2 {
            next.restore(Some(&status), &phase);
            assert_eq!(next.stored(), status.evictions, "they are restored once");
        }
        let [restored] = &next.open[..] else { panic!("{next:?}") };
        assert!(!restored.is_certain && restored.before.is_empty());
        let left = restored.deadline - Instant::now();
        assert!(left > Duration::from_secs(80) && left <= Duration::from_secs(90), "{left:?}");
        tokio::time::advance(Duration::from_secs(90)).await;
        assert!(restored.is_late());
    }

    #[test]
    fn replacement_is_not_older_than_eviction() {
        let mut pod = object(&json!([]));
        let created = |second| Some(Time(Timestamp::from_second(second).unwrap()));
        let time = Timestamp::from_millisecond(100_900).unwrap();
        pod.metadata.creation_timestamp = created(100);
        assert!(!is_older(&pod, time), "the API server has cut the fraction of a second");
        pod.metadata.creation_timestamp = created(99);
        assert!(is_older(&pod, time));
    }

    #[tokio::test(start_paused = true)]
    async fn results_count_for_their_phase() {
        let (first, second) = (("r2".to_owned(), 7), ("r2".to_owned(), 8));
        let mut evictions = Evictions::default();
        let of_first = eviction(1, &first, &[]);
        evictions.count(&of_first, &first, false);
        let failure = evictions.failure(&first, 1).unwrap();
        assert!(failure.contains("ReplicaSet/web in namespace shop"), "{failure}");
        for _ in 0..2 {
            evictions.count(&of_first, &first, true);
        }
        assert_eq!(evictions.failure(&first, 1), None, "more pods are ready");
        evictions.count(&of_first, &first, false);
        assert!(evictions.failure(&first, 1).is_some() && evictions.failure(&first, 3).is_some());
        evictions.count(&of_first, &first, true);
        assert!(evictions.failure(&first, 1).is_some(), "more pods than may be unavailable are not ready");
        assert_eq!(evictions.failure(&first, 2), None);
        // A new phase begins without failures, and evictions of the earlier one do not count.
        assert_eq!(evictions.failure(&second, 1), None);
        evictions.count(&of_first, &second, false);
        assert_eq!(evictions.failure(&second, 1), None);
    }

    #[tokio::test(start_paused = true)]
    async fn pods_are_old_until_replicas_use_share() {
        let mut evictions = Evictions::default();
        let (one, two) = (HashSet::from([1]), HashSet::from([1, 2]));
        assert!(!evictions.publish("r2", 5, &one, SETTLE));
        tokio::time::advance(SETTLE).await;
        assert!(evictions.publish("r2", 5, &one, SETTLE));
        assert!(evictions.publish("r2", 5, &two, SETTLE));
        assert!(evictions.is_old(1) && !evictions.is_old(2));
        // Another revision with the same share begins again.
        assert!(!evictions.publish("r1", 5, &two, SETTLE) && evictions.is_old(2));
    }

    #[tokio::test(start_paused = true)]
    async fn refused_evictions_are_given_up() {
        let mut evictions = Evictions::default();
        assert!(!evictions.refuse(1, LIMIT));
        tokio::time::advance(LIMIT * 2).await;
        assert!(evictions.refuse(1, LIMIT) && !evictions.refuse(2, LIMIT));
        evictions.forget(&HashSet::from([2]));
        assert!(!evictions.refuse(1, LIMIT));
    }
}
