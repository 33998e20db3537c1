//! `pillion rollout pause`, `resume` and `undo`: steer the rollout of a profile to its running pods.
//!
//! The commands set or remove the annotation [`ROLLOUT_ANNOTATION`] of the profile, and the controller acts on it.
//! [`decide`] chooses the change from the profile's strategy, status and current annotation. It does no I/O.

use std::fmt;

use anyhow::{Context, anyhow, bail};
use clap::Args;
use jiff::Timestamp;
use pillion_api::kinds::{UpgradePhase, UpgradeStatus};
use pillion_api::names::ROLLOUT_ANNOTATION;
use pillion_control::informer::cluster_listing::Stored;
use serde_json::json;

use super::status::has_running_pods;
use crate::exit::Exit;
use crate::output;
use crate::profiles::ProfileRef;

/// The value of the annotation that pauses a rollout.
const PAUSE: &str = "pause";

/// The maximum number of attempts to change the annotation. An attempt fails if another client changes the profile at
/// the same time.
const ATTEMPTS: usize = 5;

/// Arguments of `pillion rollout pause`, `resume` and `undo`.
#[derive(Clone, Debug, Args)]
pub(super) struct SteerArgs {
    #[command(flatten)]
    which: ProfileRef,
}

/// What the user wants to do with a rollout.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SteerAction {
    Pause,
    Resume,
    Undo,
}

/// The parts of a profile that determine whether an action is possible.
#[derive(Clone, Copy, Debug)]
struct RolloutState<'s> {
    /// Whether the profile has the strategy `InPlace` or `Restart`.
    is_in_place: bool,
    upgrade: Option<&'s UpgradeStatus>,
    /// The annotation [`ROLLOUT_ANNOTATION`].
    request: Option<&'s str>,
}

/// A change of the annotation.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Change {
    /// Pause the rollout.
    Pause,
    /// Remove the annotation, which ends a pause.
    EndPause,
    /// Continue the rollout of this revision, which has failed or waits for this request.
    Resume(String),
    /// Return from `revision` to `previous`.
    Undo { revision: String, previous: String },
}

/// Why an action is not possible.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Refusal {
    /// The profile has neither the strategy `InPlace` nor `Restart`.
    NotInPlace,
    /// The profile's status has no rollout.
    NoRollout,
    /// The rollout is complete.
    Complete,
    /// A pause was already requested, or the rollout already waits until it is resumed.
    AlreadyPaused,
    /// The rollout has failed, so it cannot be paused.
    Failed(UpgradePhase),
    /// The rollout is running, so it cannot be resumed.
    Running(UpgradePhase),
    /// The request to pause was already removed.
    PauseEnded,
    /// The first revision of a profile has no previous one.
    NoPreviousRevision,
    /// Pods are returning to the previous revision.
    SteppingBack,
    /// Pods have returned to the previous revision.
    SteppedBack,
}

/// Changes the annotation of a profile, and prints what was requested.
///
/// # Errors
/// The action is not possible, or the profile cannot be read or changed.
pub(super) async fn run(action: SteerAction, args: SteerArgs) -> anyhow::Result<Exit> {
    let which = args.which.resolve()?;
    for _ in 0..ATTEMPTS {
        let profile = which.read().await?;
        let change = decide(action, RolloutState::new(&profile.stored));
        let change =
            change.map_err(|refusal| anyhow!(refusal.explain(action, &which.to_string(), &which.arguments())))?;
        match profile.annotate(&json!({ROLLOUT_ANNOTATION: change.annotation(Timestamp::now())})).await {
            Ok(()) => {
                output::print(&format!("{which}: {change}\n"))?;
                return Ok(Exit::Success);
            }
            // The controller writes the status often during a rollout. Another attempt follows.
            Err(kube::Error::Api(status)) if status.code == 409 => {}
            Err(error) => return Err(error).with_context(|| format!("cannot change {which}")),
        }
    }
    bail!("cannot change {which}, because other clients keep changing it: try again")
}

/// Decides how an action changes the annotation.
fn decide(action: SteerAction, state: RolloutState<'_>) -> Result<Change, Refusal> {
    use UpgradePhase::{AwaitingResume, Baking, Complete, Halted, Paused, SteppedBack, SteppingBack, Upgrading};
    let RolloutState { is_in_place, upgrade, request } = state;
    let is_pause_requested = request == Some(PAUSE);
    let has_failed = upgrade.is_some_and(|upgrade| upgrade.phase.has_failed());
    // A requested pause has no revision, so it also stops the next rollout. A user can end it even if there is no
    // rollout.
    if action == SteerAction::Resume && is_pause_requested && !has_failed {
        return Ok(Change::EndPause);
    }
    if !is_in_place {
        return Err(Refusal::NotInPlace);
    }
    let upgrade = upgrade.ok_or(Refusal::NoRollout)?;
    let revision = upgrade.revision.clone();
    match (action, upgrade.phase) {
        (_, Complete) => Err(Refusal::Complete),
        (SteerAction::Pause, AwaitingResume) => Err(Refusal::AlreadyPaused),
        (SteerAction::Pause, Upgrading | Baking | Paused) if is_pause_requested => Err(Refusal::AlreadyPaused),
        (SteerAction::Pause, Upgrading | Baking | Paused) => Ok(Change::Pause),
        (SteerAction::Pause, phase @ (Halted | SteppingBack | SteppedBack)) => Err(Refusal::Failed(phase)),
        (SteerAction::Resume, AwaitingResume | Halted | SteppingBack | SteppedBack) => Ok(Change::Resume(revision)),
        (SteerAction::Resume, Paused) => Err(Refusal::PauseEnded),
        (SteerAction::Resume, phase @ (Upgrading | Baking)) => Err(Refusal::Running(phase)),
        (SteerAction::Undo, SteppingBack) => Err(Refusal::SteppingBack),
        (SteerAction::Undo, SteppedBack) => Err(Refusal::SteppedBack),
        (SteerAction::Undo, Upgrading | Baking | Paused | AwaitingResume | Halted) => {
            let previous = upgrade.previous_revision.clone().ok_or(Refusal::NoPreviousRevision)?;
            Ok(Change::Undo { revision, previous })
        }
    }
}

impl SteerAction {
    const fn as_str(self) -> &'static str {
        match self {
            Self::Pause => "pause",
            Self::Resume => "resume",
            Self::Undo => "undo",
        }
    }
}

impl<'s> RolloutState<'s> {
    fn new(stored: &'s Stored) -> Self {
        let annotations = stored.metadata.annotations.as_ref();
        Self {
            is_in_place: has_running_pods(stored.spec()),
            upgrade: stored.status.upgrade.as_ref(),
            request: annotations.and_then(|all| all.get(ROLLOUT_ANNOTATION)).map(|text| text.trim()),
        }
    }
}

impl Change {
    /// Returns the value of the annotation; `None` if it is removed. The time distinguishes a request from an equal one
    /// that the controller has already handled.
    fn annotation(&self, now: Timestamp) -> Option<String> {
        match self {
            Self::Pause => Some(PAUSE.to_owned()),
            Self::EndPause => None,
            Self::Resume(revision) => Some(format!("resume {revision} {now}")),
            Self::Undo { revision, .. } => Some(format!("undo {revision} {now}")),
        }
    }
}

impl fmt::Display for Change {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Pause => {
                formatter.write_str("requested to pause the rollout; pod upgrades that have begun are completed")
            }
            Self::EndPause => formatter.write_str("ended the pause of the rollout"),
            Self::Resume(revision) => write!(formatter, "requested to resume the rollout of revision {revision}"),
            Self::Undo { revision, previous } => {
                write!(formatter, "requested to undo the rollout of revision {revision}; pods return to {previous}")
            }
        }
    }
}

impl Refusal {
    /// Returns what is wrong, what is expected, and what the user can do. `which` is the profile, and `arguments`
    /// selects it on the command line.
    fn explain(self, action: SteerAction, which: &str, arguments: &str) -> String {
        let verb = action.as_str();
        let retry = format!("change the profile, or continue with `pillion rollout resume {arguments}`");
        match self {
            Self::NotInPlace => format!(
                "{which} has no rollout to {verb}, because its spec.rollout.strategy is neither InPlace nor Restart: set the strategy, or \
                 restart stale workloads with `pillion rollout --apply`"
            ),
            Self::NoRollout => format!(
                "{which} has no rollout to {verb}: the controller begins one after a change of the profile, if the \
                 chart's value rollout.inPlace is true, and rollout.restart for the strategy Restart"
            ),
            Self::Complete if action == SteerAction::Undo => format!(
                "the rollout of {which} is complete, so it cannot be undone: publish an earlier revision with \
                 `pillion profiles rollback {arguments}`"
            ),
            Self::Complete => format!(
                "the rollout of {which} is complete, so there is nothing to {verb}: the next change of the profile begins \
                 another rollout"
            ),
            Self::AlreadyPaused => format!(
                "the rollout of {which} is already paused: continue it with `pillion rollout resume {arguments}`"
            ),
            Self::Failed(phase) => format!(
                "the rollout of {which} cannot be paused in the phase {}, but only in Upgrading or Baking: {retry}",
                phase.as_str()
            ),
            Self::Running(phase) => format!(
                "the rollout of {which} is neither paused nor failed, so there is nothing to resume: it runs, in the phase \
                 {}; see `pillion rollout status {arguments}`",
                phase.as_str()
            ),
            Self::PauseEnded => format!(
                "the pause of the rollout of {which} has already ended: the controller continues it soon; if it does not, \
                 check the controller with `pillion status`"
            ),
            Self::NoPreviousRevision => format!(
                "the rollout of {which} has no previous revision to return to: stop it with \
                 `pillion rollout pause {arguments}`, or change the profile"
            ),
            Self::SteppingBack => format!(
                "the pods of {which} are already returning to the previous revision: see \
                 `pillion rollout status {arguments}`"
            ),
            Self::SteppedBack => {
                format!("the pods of {which} have already returned to the previous revision: {retry}")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rollout::status::tests::upgrade;

    const PHASES: [UpgradePhase; 7] = [
        UpgradePhase::Upgrading,
        UpgradePhase::Baking,
        UpgradePhase::Paused,
        UpgradePhase::Halted,
        UpgradePhase::SteppingBack,
        UpgradePhase::SteppedBack,
        UpgradePhase::Complete,
    ];

    fn decide_in(action: SteerAction, phase: UpgradePhase, request: Option<&str>) -> Result<Change, Refusal> {
        let upgrade = upgrade(phase);
        decide(action, RolloutState { is_in_place: true, upgrade: Some(&upgrade), request })
    }

    #[test]
    fn annotation_follows_from_phase() {
        use Refusal::{AlreadyPaused, Complete, Failed, PauseEnded, Running};
        use UpgradePhase::{Baking, Halted, Paused, SteppedBack, SteppingBack, Upgrading};
        let resume = || Ok(Change::Resume("b2".to_owned()));
        let undo = || Ok(Change::Undo { revision: "b2".to_owned(), previous: "a1".to_owned() });
        let pause = || Ok(Change::Pause);
        let earlier = Some("resume b2 2026-01-01T00:00:00Z");
        for (action, request, expected) in [
            (
                SteerAction::Pause,
                None,
                [
                    pause(),
                    pause(),
                    pause(),
                    Err(Failed(Halted)),
                    Err(Failed(SteppingBack)),
                    Err(Failed(SteppedBack)),
                    Err(Complete),
                ],
            ),
            (
                SteerAction::Pause,
                Some(PAUSE),
                [
                    Err(AlreadyPaused),
                    Err(AlreadyPaused),
                    Err(AlreadyPaused),
                    Err(Failed(Halted)),
                    Err(Failed(SteppingBack)),
                    Err(Failed(SteppedBack)),
                    Err(Complete),
                ],
            ),
            (
                SteerAction::Resume,
                earlier,
                [
                    Err(Running(Upgrading)),
                    Err(Running(Baking)),
                    Err(PauseEnded),
                    resume(),
                    resume(),
                    resume(),
                    Err(Complete),
                ],
            ),
            (
                SteerAction::Resume,
                Some(PAUSE),
                [
                    Ok(Change::EndPause),
                    Ok(Change::EndPause),
                    Ok(Change::EndPause),
                    resume(),
                    resume(),
                    resume(),
                    Ok(Change::EndPause),
                ],
            ),
            (
                SteerAction::Undo,
                Some(PAUSE),
                [undo(), undo(), undo(), undo(), Err(Refusal::SteppingBack), Err(Refusal::SteppedBack), Err(Complete)],
            ),
        ] {
            for (phase, expected) in PHASES.into_iter().zip(expected) {
                assert_eq!(decide_in(action, phase, request), expected, "{action:?} in {phase:?} with {request:?}");
            }
        }
        // In the phase `Paused`, a new pause is accepted only if the annotation no longer requests a pause.
        assert_eq!(decide_in(SteerAction::Pause, Paused, earlier), pause());
    }

    #[test]
    fn profile_without_rollout_is_not_steered() {
        let upgrading = upgrade(UpgradePhase::Upgrading);
        let first = UpgradeStatus { previous_revision: None, ..upgrading.clone() };
        let state = |is_in_place, upgrade| RolloutState { is_in_place, upgrade, request: None };
        for action in [SteerAction::Pause, SteerAction::Resume, SteerAction::Undo] {
            assert_eq!(decide(action, state(true, None)), Err(Refusal::NoRollout));
            assert_eq!(decide(action, state(false, None)), Err(Refusal::NotInPlace));
            assert_eq!(decide(action, state(false, Some(&upgrading))), Err(Refusal::NotInPlace));
        }
        assert_eq!(decide(SteerAction::Undo, state(true, Some(&first))), Err(Refusal::NoPreviousRevision));
        // A pause that remains from an earlier rollout can be ended.
        let paused = RolloutState { request: Some(PAUSE), ..state(false, None) };
        assert_eq!(decide(SteerAction::Resume, paused), Ok(Change::EndPause));
    }

    #[test]
    fn request_has_revision_and_time() {
        let value = |change: Change| change.annotation(Timestamp::UNIX_EPOCH);
        assert_eq!(value(Change::Pause).as_deref(), Some("pause"));
        assert_eq!(value(Change::EndPause), None);
        assert_eq!(value(Change::Resume("b2".to_owned())).as_deref(), Some("resume b2 1970-01-01T00:00:00Z"));
        let undo = Change::Undo { revision: "b2".to_owned(), previous: "a1".to_owned() };
        assert_eq!(undo.to_string(), "requested to undo the rollout of revision b2; pods return to a1");
        assert_eq!(value(undo).as_deref(), Some("undo b2 1970-01-01T00:00:00Z"));
    }

    #[test]
    fn refusal_names_next_command() {
        let explain = |refusal: Refusal, action| refusal.explain(action, "InjectionProfile a/b", "b -n a");
        for (refusal, action, expected) in [
            (Refusal::NotInPlace, SteerAction::Pause, "spec.rollout.strategy is neither InPlace nor Restart"),
            (Refusal::NoRollout, SteerAction::Undo, "has no rollout to undo"),
            (Refusal::Complete, SteerAction::Undo, "`pillion profiles rollback b -n a`"),
            (Refusal::Complete, SteerAction::Pause, "there is nothing to pause"),
            (Refusal::AlreadyPaused, SteerAction::Pause, "`pillion rollout resume b -n a`"),
            (
                Refusal::Failed(UpgradePhase::Halted),
                SteerAction::Pause,
                "in the phase Halted, but only in Upgrading or Baking",
            ),
            (Refusal::Running(UpgradePhase::Baking), SteerAction::Resume, "`pillion rollout status b -n a`"),
            (Refusal::PauseEnded, SteerAction::Resume, "`pillion status`"),
            (Refusal::NoPreviousRevision, SteerAction::Undo, "`pillion rollout pause b -n a`"),
            (Refusal::SteppingBack, SteerAction::Undo, "`pillion rollout status b -n a`"),
            (Refusal::SteppedBack, SteerAction::Undo, "`pillion rollout resume b -n a`"),
        ] {
            let text = explain(refusal, action);
            assert!(text.contains("InjectionProfile a/b") && text.contains(expected), "{text}");
        }
    }
}
