//! Decides the state of a profile's rollout from its previous state and from its pods. It does no I/O and reads no
//! clock.
//!
//! ```text
//! Upgrading --share of the step has the revision--> Baking --observed, not worse--> Upgrading (next step), or Complete
//! Upgrading, Baking --pause--> Paused --no longer paused--> Upgrading
//! Baking --step with a pause--> AwaitingResume --resume--> Upgrading (next step), or Complete
//! Upgrading, Baking, Paused, AwaitingResume --pod failed--> SteppingBack --pods have returned--> SteppedBack
//! Baking --upgraded pods are worse--> SteppingBack
//! Upgrading, Baking, Paused, AwaitingResume, Halted --undo--> SteppingBack
//! Halted, SteppingBack, SteppedBack --resume--> Upgrading
//! any --a different revision is published--> Upgrading (first step), or Complete if there is nothing to do
//! ```
//!
//! Without a previous revision, a rollout enters `Halted` instead of `SteppingBack`. If `autoRollback` is false, it
//! also does so when a pod has failed or the upgraded pods are worse. If new pods already get the revision, neither
//! stops the rollout.

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use pillion_api::kinds::{MAX_EVICTIONS, UpgradePhase, UpgradeStatus};
use pillion_api::profile::{Rollout, RolloutStep, RolloutStrategy, RolloutWindow};

use super::judge::Verdict;

/// The maximum length of a message in bytes.
const MESSAGE_BYTES: usize = 1024;
/// The maximum length of a request in bytes.
const REQUEST_BYTES: usize = 256;

/// What a user requests with the annotation `pillion.dev/rollout`.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Steering {
    /// Upgrade no further pods.
    Pause,
    /// Continue the rollout of this revision, which has failed or waits for a user.
    Resume(String),
    /// Return to the revision before this one.
    Undo(String),
}

/// Reads the annotation that steers a rollout. `None` if it is invalid.
fn steering(text: &str) -> Option<Steering> {
    let mut words = text.split_whitespace();
    match (words.next()?, words.next()) {
        ("pause", None) => Some(Steering::Pause),
        ("resume", Some(revision)) => Some(Steering::Resume(revision.to_owned())),
        ("undo", Some(revision)) => Some(Steering::Undo(revision.to_owned())),
        _ => None,
    }
}

/// The numbers of a profile's pods, by state. A pod with a running upgrade counts only in `all` and `running`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct PodStates {
    /// All pods with the profile.
    pub(super) all: usize,
    /// Pods with the revision of the rollout.
    pub(super) upgraded: usize,
    /// Pods with a running upgrade, or with a running return to the previous revision. Includes evicted pods that are
    /// not yet replaced by ready ones.
    pub(super) running: usize,
    /// Pods that cannot get the revision in place, or whose upgrade failed.
    pub(super) not_in_place: usize,
    /// Pods that do not have the previous revision; 0 if there is no previous revision.
    pub(super) away: usize,
    /// Pods that do not have the previous revision and cannot return to it.
    pub(super) stuck: usize,
    /// Pods whose workload is in the share of the current step, and that can still get the revision. Only with the
    /// strategy `Restart`.
    pub(super) left_in_share: usize,
}

/// The inputs of a decision.
#[derive(Clone, Debug)]
pub(super) struct Situation<'s> {
    pub(super) rollout: &'s Rollout,
    pub(super) before: Option<&'s UpgradeStatus>,
    /// The published revision.
    pub(super) revision: &'s str,
    pub(super) promoted: Option<&'s str>,
    /// Whether a rollback has published an earlier revision, which needs no observation.
    pub(super) is_rollback: bool,
    /// The annotation `pillion.dev/rollout`.
    pub(super) request: Option<&'s str>,
    pub(super) pods: PodStates,
    /// Why the upgrade of a pod to this revision failed.
    pub(super) failure: Option<&'s str>,
    /// The comparison of upgraded pods with others in this phase, if there was one.
    pub(super) verdict: Option<&'s Verdict>,
    /// Why pods are not upgraded now.
    pub(super) waits: Option<&'s str>,
    /// The current time, in seconds since 1970.
    pub(super) now: i64,
}

/// Whether new pods already get the revision, because of a rollback or an earlier promotion. Such a rollout needs no
/// observation, and the failure of a pod does not stop it.
pub(super) fn is_return(situation: &Situation<'_>) -> bool {
    situation.is_rollback || situation.promoted == Some(situation.revision)
}

/// Returns the steps of a rollout. The last one is always 100 percent.
fn steps(situation: &Situation<'_>) -> Vec<RolloutStep> {
    let mut steps = if is_return(situation) { Vec::new() } else { situation.rollout.steps.clone() };
    if steps.last().is_none_or(|last| last.percent < 100) {
        steps.push(RolloutStep { percent: 100, bake_seconds: None, pause: None });
    }
    steps
}

/// Returns the share of pods or workloads that get the revision in the current phase and step, in percent.
pub(super) fn percent(situation: &Situation<'_>, status: &UpgradeStatus) -> u8 {
    match status.phase {
        UpgradePhase::Upgrading if is_return(situation) => 100,
        UpgradePhase::Upgrading => situation.rollout.step_percent(status.step),
        // Pods may still lack the revision if they were created before all replicas saw the promotion.
        UpgradePhase::Complete => 100,
        _ => 0,
    }
}

/// Returns how many pods still have to be changed in the current phase and step. Pods whose upgrade is running, and
/// pods that cannot be upgraded, do not count.
pub(super) fn left(situation: &Situation<'_>, status: &UpgradeStatus) -> usize {
    let pods = situation.pods;
    if situation.rollout.strategy == Some(RolloutStrategy::Restart) {
        return pods.left_in_share;
    }
    let share = pods.all.saturating_mul(usize::from(percent(situation, status))).div_ceil(100);
    share.saturating_sub(pods.upgraded + pods.running + pods.not_in_place)
}

/// Whether pods may be changed at this time. A rollout to a revision that new pods already get ([`is_return`]) needs no
/// window.
pub(super) fn is_window_open(situation: &Situation<'_>) -> bool {
    let windows = &situation.rollout.windows;
    let is_open = |window: &RolloutWindow| window.is_open(situation.now);
    windows.is_empty() || is_return(situation) || windows.iter().any(is_open)
}

/// Returns how many further pods may be changed now.
pub(super) fn capacity(rollout: &Rollout, pods: PodStates) -> usize {
    let most = usize::try_from(rollout.max_unavailable.unwrap_or(1)).unwrap_or(usize::MAX);
    // The status lists all evictions, so their number is limited.
    let limit = if rollout.strategy == Some(RolloutStrategy::Restart) { MAX_EVICTIONS } else { usize::MAX };
    most.min(limit).saturating_sub(pods.running)
}

/// Returns how long the upgraded pods are observed after the current step, in seconds.
pub(super) fn bake_seconds(situation: &Situation<'_>, step: u32) -> i64 {
    let bake = steps(situation).get(index(step)).and_then(|step| step.bake_seconds);
    i64::from(bake.unwrap_or(0))
}

/// Decides the state of a rollout.
pub(super) fn next(situation: &Situation<'_>) -> UpgradeStatus {
    let mut status = start(situation);
    let phase = status.phase;
    let (next, message) = transition(situation, &status);
    if next != phase {
        status.phase = next;
        status.since = time(situation.now);
        // The upgraded pods are not worse, so the next step begins.
        let is_passed = matches!(phase, UpgradePhase::Baking | UpgradePhase::AwaitingResume);
        status.step += u32::from(is_passed && next == UpgradePhase::Upgrading);
    }
    // A failed rollout is resumed only when no pod has a failure or a running change. Until then, the request is kept.
    let request_waits = phase.has_failed() && next.has_failed();
    match (request(situation, &status), situation.request) {
        (Some(Steering::Undo(_)), Some(text)) => status.handled_request = Some(shortened(text, REQUEST_BYTES)),
        (Some(Steering::Resume(_)), Some(text)) if !request_waits => {
            status.handled_request = Some(shortened(text, REQUEST_BYTES));
        }
        _ => {}
    }
    // As long as the rollout has failed, keep the message of the first failure.
    if !(phase.has_failed() && next.has_failed()) {
        status.message = message.map(|text| shortened(&text, MESSAGE_BYTES));
    }
    status.waiting = situation.waits.map(|text| shortened(text, MESSAGE_BYTES));
    status
}

/// Returns the beginning of a text, with at most this number of bytes.
fn shortened(text: &str, bytes: usize) -> String {
    text.get(..text.floor_char_boundary(bytes)).unwrap_or_default().to_owned()
}

/// Returns the request of a user. `None` if it is invalid, was handled, or is for another revision.
fn request(situation: &Situation<'_>, status: &UpgradeStatus) -> Option<Steering> {
    let text = situation.request?;
    let text = shortened(text, REQUEST_BYTES);
    let steering = steering(&text)?;
    let is_current = match &steering {
        Steering::Pause => true,
        Steering::Resume(revision) | Steering::Undo(revision) => {
            *revision == status.revision && status.handled_request.as_deref() != Some(&*text)
        }
    };
    is_current.then_some(steering)
}

/// Returns the previous state with the current numbers of pods, or the first state of a new rollout. A new rollout is
/// complete at once if all pods already have the revision, and new pods get it.
pub(super) fn start(situation: &Situation<'_>) -> UpgradeStatus {
    let Situation { before, revision, promoted, pods, now, .. } = situation;
    let count = |pods: usize| u32::try_from(pods).unwrap_or(u32::MAX);
    let known = before.filter(|before| before.revision == *revision).cloned();
    let has_nothing_to_do = *promoted == Some(*revision) && pods.upgraded == pods.all;
    let status = known.unwrap_or_else(|| {
        let phase = if has_nothing_to_do { UpgradePhase::Complete } else { UpgradePhase::Upgrading };
        UpgradeStatus::new(revision, promoted.filter(|promoted| promoted != revision), phase, time(*now))
    });
    UpgradeStatus {
        pods: count(pods.all),
        upgraded: count(pods.upgraded),
        upgrading: count(pods.running),
        not_in_place: count(pods.not_in_place),
        ..status
    }
}

/// Returns the next phase. Also returns why the rollout is paused, has failed, or waits for a user.
fn transition(situation: &Situation<'_>, status: &UpgradeStatus) -> (UpgradePhase, Option<String>) {
    use UpgradePhase::{AwaitingResume, Baking, Complete, Halted, Paused, SteppedBack, SteppingBack, Upgrading};
    let Situation { pods, failure, verdict, .. } = situation;
    let failed = |why: &str| {
        let returns = situation.rollout.auto_rollback.unwrap_or(true) && status.previous_revision.is_some();
        (if returns { SteppingBack } else { Halted }, Some(why.to_owned()))
    };
    match (request(situation, status), status.phase) {
        (Some(Steering::Undo(_)), Upgrading | Baking | Paused | AwaitingResume | Halted) => {
            let phase = if status.previous_revision.is_some() { SteppingBack } else { Halted };
            return (phase, Some("a user requested the previous revision".to_owned()));
        }
        (Some(Steering::Resume(_)), phase) if phase.has_failed() && failure.is_none() && pods.running == 0 => {
            return (Upgrading, None);
        }
        (Some(Steering::Resume(_)), AwaitingResume) if failure.is_none() => {
            return (if is_last_step(situation, status) { Complete } else { Upgrading }, None);
        }
        _ => {}
    }
    let is_ongoing = matches!(status.phase, Upgrading | Baking | Paused | AwaitingResume);
    if let (true, Some(why), false) = (is_ongoing, failure, is_return(situation)) {
        return failed(why);
    }
    if let (Some(Steering::Pause), Upgrading | Baking | Paused) = (request(situation, status), status.phase) {
        return (Paused, Some("a user paused the rollout".to_owned()));
    }
    match (status.phase, verdict) {
        (Baking, Some(Verdict::Worse(why))) if !is_return(situation) => failed(why),
        (Paused, _) => (Upgrading, None),
        (Upgrading, _) => {
            let is_reached = left(situation, status) == 0 && pods.running == 0;
            (if is_reached { Baking } else { Upgrading }, None)
        }
        (Baking, Some(_)) => {
            let until = status.since.0.as_second().saturating_add(bake_seconds(situation, status.step));
            match () {
                () if situation.now < until => (Baking, None),
                () if has_pause(situation, status) => (
                    AwaitingResume,
                    Some("the step is complete; the next one begins when a user resumes it".to_owned()),
                ),
                () if is_last_step(situation, status) => (Complete, None),
                () => (Upgrading, None),
            }
        }
        (SteppingBack, _) if pods.running == 0 && pods.away <= pods.stuck => (SteppedBack, None),
        (phase, _) => (phase, None),
    }
}

fn is_last_step(situation: &Situation<'_>, status: &UpgradeStatus) -> bool {
    index(status.step) + 1 >= steps(situation).len()
}

/// Whether the rollout waits for a user after the current step.
fn has_pause(situation: &Situation<'_>, status: &UpgradeStatus) -> bool {
    steps(situation).get(index(status.step)).and_then(|step| step.pause).unwrap_or(false)
}

fn index(step: u32) -> usize {
    usize::try_from(step).unwrap_or(usize::MAX)
}

fn time(seconds: i64) -> Time {
    Time(Timestamp::from_second(seconds).unwrap_or(Timestamp::UNIX_EPOCH))
}

#[cfg(test)]
mod tests;
