//! Plans the steps for waiting pods. It does no I/O, and the caller passes in the time.
//!
//! A stored pod cannot be injected, so its owner must create a new one. The controller deletes the waiting pod, which
//! has never run. Three rules limit this:
//!
//! - The number of deleted pods per second is limited.
//! - If an owner's new pods wait although webhooks respond, the controller deletes none of them during a back-off,
//!   which doubles each time. Then it deletes one pod, and waits to see if the replacement is injected.
//! - A pod that no owner would create again is never deleted. In `enabled` namespaces, its scheduling gate is removed.
//!   In `held` and `required` namespaces, an Event reports it.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use pillion_api::names::FailureMode;
use pillion_api::opt_in::OptIn;
use tokio::time::Instant;

use super::pod::{HeldPod, Key, OwnerKind};

/// Whether newly created pods are injected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Injection {
    /// Webhooks respond, so a new pod gets a decision.
    Answering,
    /// Webhooks do not respond or are not called for `held` namespaces, or their state is not known.
    Silent,
    /// An administrator disabled injection or the webhooks, so no pod should wait.
    SwitchedOff,
}

/// Settings for releasing waiting pods.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReleaseSettings {
    /// Maximum number of pods that are deleted or ungated per second, and in one burst after a pause. At 20 per second,
    /// 600 pods are released in half a minute. Kubernetes' own controllers create pods at about this rate.
    pub pods_per_second: u32,
    /// Pause before the next step for the same pod, whether the last one succeeded or not.
    pub retry: Duration,
    /// The first back-off of an owner whose new pods wait again. The back-off doubles each time.
    pub first_back_off: Duration,
    /// The longest back-off.
    pub longest_back_off: Duration,
    /// How long an owner's other pods wait after one of its pods was deleted as a test. If the replacement of that pod
    /// waits too, the other pods are not deleted.
    pub settle: Duration,
    /// Time between two reads of the namespaces of waiting pods, since their labels may change.
    pub recheck: Duration,
    /// The labels by which namespaces opt in.
    pub opt_in: OptIn,
    /// Namespaces that are excluded by name, besides the release's and the system's. The API server calls no webhook
    /// for their pods, so no pod should wait.
    pub excluded_namespaces: Vec<String>,
}

impl Default for ReleaseSettings {
    fn default() -> Self {
        Self {
            pods_per_second: 20,
            retry: Duration::from_secs(5),
            first_back_off: Duration::from_secs(10),
            longest_back_off: Duration::from_mins(5),
            settle: Duration::from_secs(5),
            recheck: Duration::from_secs(5),
            opt_in: OptIn::default(),
            excluded_namespaces: Vec::new(),
        }
    }
}

/// State of a namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NamespaceState {
    /// The namespace could not be read, was not read yet, or was deleted.
    Unknown,
    /// The namespace is not opted in by its labels, or is excluded by name.
    NotOptedIn,
    /// The namespace is opted in, with this failure mode.
    OptedIn(FailureMode),
}

/// A waiting pod, and when this process first saw it.
#[derive(Clone, Debug)]
pub struct Waiting {
    /// The pod.
    pub pod: HeldPod,
    /// When this process first saw the pod, by its own clock.
    pub since: Instant,
}

/// A step for a waiting pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Delete the pod, so that its owner creates a new one.
    Recreate(Key),
    /// Remove the pod's scheduling gate, so that it runs without injection.
    RemoveGate(Key),
    /// Record an Event: the pod waits, and no owner would create a new one.
    Report(Key),
}

/// The steps to take now, and when to plan again at the latest.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// The steps, in order.
    pub steps: Vec<Step>,
    /// When to plan again at the latest; `None` until something changes.
    pub again: Option<Instant>,
}

/// Plans steps, and keeps track of the earlier ones.
#[derive(Debug)]
pub struct Planner {
    settings: ReleaseSettings,
    injection: Injection,
    owners: HashMap<Arc<str>, Attempts>,
    reported: HashSet<Arc<str>>,
    stepped_at: HashMap<Arc<str>, Instant>,
    tokens: f64,
    refilled: Option<Instant>,
}

/// The attempts to release one owner's pods.
#[derive(Debug, Default)]
struct Attempts {
    /// Start of the attempts. A waiting pod that was first seen later is a replacement that was not injected.
    began: Option<Instant>,
    failures: u32,
    /// End of the back-off.
    not_before: Option<Instant>,
    /// Whether one pod was deleted to see if its replacement is injected.
    is_probing: bool,
}

impl Planner {
    /// Creates a planner without any earlier steps.
    #[must_use]
    pub fn new(settings: ReleaseSettings) -> Self {
        Self {
            settings,
            injection: Injection::Silent,
            owners: HashMap::new(),
            reported: HashSet::new(),
            stepped_at: HashMap::new(),
            tokens: 0.0,
            refilled: None,
        }
    }

    /// Plans the steps for now. Planned steps are assumed to be executed: none is planned again before
    /// [`ReleaseSettings::retry`] has passed.
    pub fn plan(
        &mut self,
        now: Instant,
        injection: Injection,
        pods: &BTreeMap<Key, Waiting>,
        namespace_state: impl Fn(&str) -> NamespaceState,
    ) -> Plan {
        self.begin(now, injection, pods);
        let mut plan = Plan::default();
        let mut owners: BTreeMap<Arc<str>, Vec<(&Key, &Waiting)>> = BTreeMap::new();
        for (key, waiting) in pods {
            match verdict(injection, namespace_state(&key.namespace), waiting.pod.owner_kind) {
                Verdict::Wait => {}
                Verdict::RemoveGate => self.plan_step(now, &mut plan, waiting, Step::RemoveGate(key.clone())),
                Verdict::Report => {
                    if self.reported.insert(Arc::clone(&waiting.pod.uid)) {
                        plan.steps.push(Step::Report(key.clone()));
                    }
                }
                Verdict::Recreate => {
                    owners.entry(Arc::clone(&waiting.pod.owner)).or_default().push((key, waiting));
                }
            }
        }
        for (owner, mut pods) in owners {
            pods.sort_by_key(|(_, waiting)| waiting.since);
            let may = self.allowance(now, &mut plan, &owner, &pods);
            for (key, waiting) in pods.into_iter().take(may) {
                self.plan_step(now, &mut plan, waiting, Step::Recreate(key.clone()));
            }
        }
        if !pods.is_empty() {
            plan.plan_again_at(now + self.settings.recheck);
        }
        plan
    }

    fn begin(&mut self, now: Instant, injection: Injection, pods: &BTreeMap<Key, Waiting>) {
        if injection == Injection::Answering && self.injection != Injection::Answering {
            // Until now, no webhook was known to respond. Pods that were created meanwhile had to wait, so they do not
            // count as failed attempts.
            for attempts in self.owners.values_mut() {
                *attempts = Attempts { failures: attempts.failures, ..Attempts::default() };
            }
        }
        self.injection = injection;
        let uids: HashSet<&Arc<str>> = pods.values().map(|waiting| &waiting.pod.uid).collect();
        let owners: HashSet<&Arc<str>> = pods.values().map(|waiting| &waiting.pod.owner).collect();
        self.reported.retain(|uid| uids.contains(uid));
        self.stepped_at.retain(|uid, _| uids.contains(uid));
        // Keep the state of an owner without waiting pods for some time, since its next pod may not have appeared yet.
        let forget = self.settings.longest_back_off;
        self.owners.retain(|owner, attempts| {
            owners.contains(owner) || attempts.began.is_some_and(|began| now.duration_since(began) < forget)
        });
        let rate = f64::from(self.settings.pods_per_second);
        let gained = self.refilled.map_or(rate, |refilled| now.duration_since(refilled).as_secs_f64() * rate);
        self.tokens = (self.tokens + gained).min(rate);
        self.refilled = Some(now);
    }

    /// Plans a step, unless this pod had one recently or the rate limit is reached.
    fn plan_step(&mut self, now: Instant, plan: &mut Plan, waiting: &Waiting, step: Step) {
        let uid = &waiting.pod.uid;
        if let Some(stepped_at) = self.stepped_at.get(uid).map(|stepped_at| *stepped_at + self.settings.retry)
            && stepped_at > now
        {
            plan.plan_again_at(stepped_at);
            return;
        }
        if self.tokens < 1.0 {
            let rate = f64::from(self.settings.pods_per_second.max(1));
            plan.plan_again_at(now + Duration::from_secs_f64((1.0 - self.tokens) / rate));
            return;
        }
        self.tokens -= 1.0;
        self.stepped_at.insert(Arc::clone(uid), now);
        plan.steps.push(step);
    }

    /// Returns how many of an owner's pods may be deleted now.
    fn allowance(&mut self, now: Instant, plan: &mut Plan, owner: &Arc<str>, pods: &[(&Key, &Waiting)]) -> usize {
        let settings = &self.settings;
        let attempts = self.owners.entry(Arc::clone(owner)).or_default();
        let is_new = |began| pods.iter().any(|(_, waiting)| waiting.since > began);
        if attempts.began.is_some_and(is_new) {
            let doubled = settings.first_back_off.saturating_mul(1 << attempts.failures.min(16));
            attempts.failures = attempts.failures.saturating_add(1);
            attempts.not_before = Some(now + doubled.min(settings.longest_back_off));
            attempts.is_probing = false;
            attempts.began = Some(now);
        }
        if let Some(not_before) = attempts.not_before.filter(|not_before| *not_before > now) {
            plan.plan_again_at(not_before);
            return 0;
        }
        if attempts.failures > 0 && !attempts.is_probing {
            attempts.is_probing = true;
            attempts.began = Some(now);
            attempts.not_before = Some(now + settings.settle);
            plan.plan_again_at(now + settings.settle);
            return 1;
        }
        if attempts.is_probing {
            // No replacement waits, so new pods are injected again.
            *attempts = Attempts::default();
        }
        attempts.began.get_or_insert(now);
        pods.len()
    }
}

impl Plan {
    fn plan_again_at(&mut self, at: Instant) {
        self.again = Some(self.again.map_or(at, |again| again.min(at)));
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    Wait,
    RemoveGate,
    Report,
    Recreate,
}

/// Returns how to treat a waiting pod, independently of earlier steps.
const fn verdict(injection: Injection, namespace_state: NamespaceState, owner: OwnerKind) -> Verdict {
    let failure_mode = match namespace_state {
        NamespaceState::Unknown => return Verdict::Wait,
        NamespaceState::NotOptedIn => return Verdict::RemoveGate,
        NamespaceState::OptedIn(failure_mode) => failure_mode,
    };
    match (injection, failure_mode) {
        // In `enabled` namespaces, a pod runs without injection while no webhook responds.
        (Injection::SwitchedOff, _) | (Injection::Silent, FailureMode::Enabled) => Verdict::RemoveGate,
        (Injection::Silent, FailureMode::Held | FailureMode::Required) => Verdict::Wait,
        (Injection::Answering, failure_mode) => match (owner.recreates_pods(), failure_mode) {
            (true, _) => Verdict::Recreate,
            (false, FailureMode::Enabled) => Verdict::RemoveGate,
            (false, FailureMode::Held | FailureMode::Required) => Verdict::Report,
        },
    }
}

#[cfg(test)]
mod tests;
