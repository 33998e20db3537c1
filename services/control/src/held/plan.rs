//! Decides what to do about waiting pods: a pure function with state. The caller passes in the time.
//!
//! A stored pod cannot be injected, so its owner must create a new one. The controller deletes the waiting pod, which
//! has never run. Three rules bound this. Only so many pods a second are touched. If an owner's new pods wait again
//! although webhooks answer, the owner is left alone for a while that doubles, and then tried with one pod. A pod that
//! no owner would create again is never deleted; an Event reports it instead.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use pillion_api::names::InjectionLevel;
use pillion_api::opt_in::OptIn;
use tokio::time::Instant;

use super::pod::{HeldPod, Key, OwnerKind};

/// Whether pods that are created now are injected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Injection {
    /// Webhooks answer: a new pod is decided about.
    Answering,
    /// They do not, or it is not known.
    Silent,
    /// Nothing is injected because somebody wants it so: the kill switch. Nobody shall wait.
    SwitchedOff,
}

/// How pods that wait are released.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReleaseSettings {
    /// Pods a second that are deleted or let go at most, and as many at once after a pause. At 20 a second, 600 pods are
    /// released within half a minute; the API server's own controllers make about as many new ones.
    pub pods_per_second: u32,
    /// How long a pod is left alone after something was done about it, whether that went well or not.
    pub retry: Duration,
    /// How long an owner is left alone at first when its new pods wait again. It doubles each time.
    pub first_back_off: Duration,
    /// The longest that it doubles to.
    pub longest_back_off: Duration,
    /// How long after a single pod of an owner in back-off was deleted its others follow, unless the new one waits again.
    pub settle: Duration,
    /// How often namespaces of pods that wait are looked at, whose label may have been taken off.
    pub recheck: Duration,
    /// By which labels namespaces opt in.
    pub opt_in: OptIn,
    /// Namespaces that are left alone whatever their labels say, beside the release's and the system's: no webhook is
    /// called there, so nobody shall wait.
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

/// What is known of a namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// It could not be looked at.
    Unknown,
    /// Its pods are not Pillion's concern: no label, or left alone by name.
    NotOptedIn,
    /// Its level.
    OptedIn(InjectionLevel),
}

/// A pod that waits, and since when this process knows it.
#[derive(Clone, Debug)]
pub struct Waiting {
    /// The pod.
    pub pod: HeldPod,
    /// By the clock of this process: the API server's is another.
    pub since: Instant,
}

/// Something to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Delete it, so that its owner makes a new one.
    Recreate(Key),
    /// Take the gate away; it runs as it is.
    LetGo(Key),
    /// Tell people: it waits, and nobody makes a new one.
    Report(Key),
}

/// What to do now, and when to ask again at the latest.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// In their order.
    pub steps: Vec<Step>,
    /// `None`: when something changes.
    pub again: Option<Instant>,
}

/// What was done before.
#[derive(Debug)]
pub struct Planner {
    settings: ReleaseSettings,
    injection: Injection,
    owners: HashMap<Arc<str>, Attempts>,
    reported: HashSet<Arc<str>>,
    touched: HashMap<Arc<str>, Instant>,
    tokens: f64,
    refilled: Option<Instant>,
}

/// What was tried with one owner's pods.
#[derive(Debug, Default)]
struct Attempts {
    /// When it began. A pod that is known only since is a new one that waits again.
    began: Option<Instant>,
    failures: u32,
    /// Not before then.
    not_before: Option<Instant>,
    /// Whether one pod was deleted to see what becomes of it.
    is_probing: bool,
}

impl Planner {
    /// One that has not done anything yet.
    #[must_use]
    pub fn new(settings: ReleaseSettings) -> Self {
        Self {
            settings,
            injection: Injection::Silent,
            owners: HashMap::new(),
            reported: HashSet::new(),
            touched: HashMap::new(),
            tokens: 0.0,
            refilled: None,
        }
    }

    /// What is to be done now. It is taken as done: the same is not planned again before the time to retry is over.
    pub fn plan(
        &mut self,
        now: Instant,
        injection: Injection,
        pods: &BTreeMap<Key, Waiting>,
        place: impl Fn(&str) -> Place,
    ) -> Plan {
        self.begin(now, injection, pods);
        let mut plan = Plan::default();
        let mut owners: BTreeMap<Arc<str>, Vec<(&Key, &Waiting)>> = BTreeMap::new();
        for (key, waiting) in pods {
            match verdict(injection, place(&key.namespace), waiting.pod.owner_kind) {
                Verdict::Wait => {}
                Verdict::LetGo => self.touch(now, &mut plan, waiting, Step::LetGo(key.clone())),
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
                self.touch(now, &mut plan, waiting, Step::Recreate(key.clone()));
            }
        }
        if !pods.is_empty() {
            plan.ask_again(now + self.settings.recheck);
        }
        plan
    }

    fn begin(&mut self, now: Instant, injection: Injection, pods: &BTreeMap<Key, Waiting>) {
        if injection == Injection::Answering && self.injection != Injection::Answering {
            // What waits now was created while nobody answered: that is no owner's fault.
            for attempts in self.owners.values_mut() {
                *attempts = Attempts { failures: attempts.failures, ..Attempts::default() };
            }
        }
        self.injection = injection;
        let uids: HashSet<&Arc<str>> = pods.values().map(|waiting| &waiting.pod.uid).collect();
        let owners: HashSet<&Arc<str>> = pods.values().map(|waiting| &waiting.pod.owner).collect();
        self.reported.retain(|uid| uids.contains(uid));
        self.touched.retain(|uid, _| uids.contains(uid));
        // An owner is remembered for a while although nothing of its waits: its new pod may be on its way.
        let forget = self.settings.longest_back_off;
        self.owners.retain(|owner, attempts| {
            owners.contains(owner) || attempts.began.is_some_and(|began| now.duration_since(began) < forget)
        });
        let rate = f64::from(self.settings.pods_per_second);
        let gained = self.refilled.map_or(rate, |refilled| now.duration_since(refilled).as_secs_f64() * rate);
        self.tokens = (self.tokens + gained).min(rate);
        self.refilled = Some(now);
    }

    /// Plans a step, unless one was done about this pod just now, or too many about others.
    fn touch(&mut self, now: Instant, plan: &mut Plan, waiting: &Waiting, step: Step) {
        let uid = &waiting.pod.uid;
        if let Some(touched) = self.touched.get(uid).map(|touched| *touched + self.settings.retry)
            && touched > now
        {
            plan.ask_again(touched);
            return;
        }
        if self.tokens < 1.0 {
            let rate = f64::from(self.settings.pods_per_second.max(1));
            plan.ask_again(now + Duration::from_secs_f64((1.0 - self.tokens) / rate));
            return;
        }
        self.tokens -= 1.0;
        self.touched.insert(Arc::clone(uid), now);
        plan.steps.push(step);
    }

    /// How many of an owner's pods may be deleted now.
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
            plan.ask_again(not_before);
            return 0;
        }
        if attempts.failures > 0 && !attempts.is_probing {
            attempts.is_probing = true;
            attempts.began = Some(now);
            attempts.not_before = Some(now + settings.settle);
            plan.ask_again(now + settings.settle);
            return 1;
        }
        if attempts.is_probing {
            // The new one does not wait.
            *attempts = Attempts::default();
        }
        attempts.began.get_or_insert(now);
        pods.len()
    }
}

impl Plan {
    fn ask_again(&mut self, at: Instant) {
        self.again = Some(self.again.map_or(at, |again| again.min(at)));
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    Wait,
    LetGo,
    Report,
    Recreate,
}

/// What becomes of a pod, by nothing but what is known of it now.
const fn verdict(injection: Injection, place: Place, owner: OwnerKind) -> Verdict {
    let level = match place {
        Place::Unknown => return Verdict::Wait,
        Place::NotOptedIn => return Verdict::LetGo,
        Place::OptedIn(level) => level,
    };
    match (injection, level) {
        // In `enabled` namespaces, a pod for which nobody answers runs without.
        (Injection::SwitchedOff, _) | (Injection::Silent, InjectionLevel::Enabled) => Verdict::LetGo,
        (Injection::Silent, InjectionLevel::Held | InjectionLevel::Required) => Verdict::Wait,
        (Injection::Answering, level) => match (owner.makes_new_ones(), level) {
            (true, _) => Verdict::Recreate,
            (false, InjectionLevel::Enabled) => Verdict::LetGo,
            (false, InjectionLevel::Held | InjectionLevel::Required) => Verdict::Report,
        },
    }
}

#[cfg(test)]
mod tests;
