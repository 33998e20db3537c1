//! Plans the actions for one profile from its observed state. It does no I/O and reads no clock.
//!
//! - An accepted generation becomes a revision and is published. A rejected generation changes nothing that is
//!   published, and the profile's status gives the reason.
//! - An incomplete rollout keeps the promoted revision. A complete one promotes the newest. A rollout to running pods
//!   ([`crate::rollout`]) is complete once its task has written the phase `Complete` to the status; until then, new
//!   pods get the promoted revision. With the strategy `Restart`, new pods of a share of the workloads get the newest.
//! - `pillion.dev/rollback-to` publishes a kept revision instead of the last accepted one, to all namespaces. If
//!   `pillion.dev/rollback-from` names the revision that is rolled back, the rollback ends once a different revision is
//!   accepted, and that revision is published. The status records the request, so that the rollback does not start
//!   again.
//! - The kept revisions are in the order of their last publication, so that a rollback returns to the previous one. The
//!   last published revisions and all revisions in use are kept.
//! - Each accepted revision gets a dry run, whose result does not prevent publication.
//! - A profile that only its parent bounds is always published with its current parent, to all namespaces. No rollout,
//!   rollback or pin keeps permissions that the platform has withdrawn, and no older revision of the profile is kept.
//!
//! The profile's status has the published revisions and the list of kept ones. One write replaces them together, so no
//! reader sees a part of the change.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use pillion_api::kinds::{ProfileStatus, UpgradePhase};
use pillion_api::names::{ROLLBACK_FROM_ANNOTATION, ROLLBACK_TO_ANNOTATION};
use pillion_api::profile::{Activation, Rollout, RolloutStrategy};
use pillion_api::revision::RevisionBounds;
use pillion_engine::profile::Diagnostic;

use super::conflicts::Conflict;
use super::dry_run::{MESSAGE_BYTES, NOT_ASKED, Verdict};
use super::followed::{RolloutLimits, StrategyLimit};
use crate::informer::objects::RollbackRequest;

/// The condition that shows whether the latest generation is accepted.
pub(super) const ACCEPTED: &str = "Accepted";
/// The condition that shows whether a revision of the profile is served and the stored spec is valid.
pub(super) const READY: &str = "Ready";
/// The condition that shows whether another profile conflicts with this one.
pub(super) const CONFLICTED: &str = "Conflicted";
/// The condition that shows whether the API server accepts a pod with the accepted revision.
pub(super) const VALID: &str = "Valid";

/// The reason of a condition whose status is not known yet.
const PENDING: &str = "Pending";

/// Maximum bytes of a rollback request's identity in the status.
const IDENTITY_BYTES: usize = 200;

/// A generation that compiles.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Accepted {
    /// The revision of the generation.
    pub(super) revision: Box<str>,
    pub(super) activation: Activation,
    pub(super) rollout: Option<Rollout>,
}

/// The observed state of one profile.
#[derive(Clone, Debug)]
pub(super) struct Observed<'o> {
    pub(super) generation: Option<i64>,
    pub(super) is_namespaced: bool,
    /// The last generation that compiles, merged with its current parents.
    pub(super) accepted: Option<Accepted>,
    /// The errors of the stored generation, if it is invalid.
    pub(super) rejected: Option<&'o [Diagnostic]>,
    /// The bounds of the accepted revision.
    pub(super) bounds: Option<RevisionBounds>,
    pub(super) status: &'o ProfileStatus,
    /// The rollback that the annotations request.
    pub(super) rollback: Option<&'o RollbackRequest>,
    /// The existing revisions with their creation times.
    pub(super) existing: &'o BTreeMap<Box<str>, Timestamp>,
    /// Existing revisions that only a parent bounds.
    pub(super) bounded_by_parent: &'o BTreeSet<Box<str>>,
    /// Number of namespaces that the profile may match.
    pub(super) namespaces: i64,
    /// The conflict with another profile.
    pub(super) conflict: Option<&'o Conflict>,
    /// Result of the dry run that this leader made of the accepted revision, if there is one.
    pub(super) verdict: Option<&'o Verdict>,
    /// The reason why the safety net does not cover the profile, although the profile opts in.
    pub(super) uncovered: Option<&'o str>,
}

/// An Event for a profile.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ProfileEvent {
    /// A generation is rejected: for example, it does not compile.
    Rejected(String),
    /// A generation is published.
    Published(String),
    /// A rollback publishes a revision other than the last accepted one.
    RolledBack(String),
    /// The API server rejects a pod with the accepted revision.
    Invalid(String),
}

/// The actions for a profile, in this order.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Plan {
    /// Create the revision of the accepted generation. All other actions wait until the revision exists.
    pub(super) create: bool,
    /// Start a dry run of the accepted revision. No other action waits for the result.
    pub(super) dry_run: bool,
    /// The desired status, if it differs from the stored one. Unchanged conditions keep their transition times. The
    /// writer sets the times of changed ones, which are zero here.
    pub(super) status: Option<ProfileStatus>,
    pub(super) events: Vec<ProfileEvent>,
    /// Revisions to delete.
    pub(super) delete: Vec<Box<str>>,
}

/// The settings of a plan.
#[derive(Clone, Copy, Debug)]
pub(super) struct PlanSettings {
    /// The number of latest revisions that are kept.
    pub(super) keep: usize,
    /// The limits of rollouts to running pods. Strategies beyond them have no effect.
    pub(super) limits: RolloutLimits,
}

/// The revisions to publish.
struct Publication<'o> {
    newest: Option<&'o str>,
    promoted: Option<&'o str>,
    /// Which workloads get `newest`, if not all.
    rollout: Option<Rollout>,
    rollback: RollbackState,
}

/// The state of the rollback that the annotations request.
#[derive(Clone, Debug, PartialEq, Eq)]
enum RollbackState {
    /// No rollback is requested or possible: for example, the request does not match exactly one existing revision.
    None,
    /// The requested revision is published.
    InForce,
    /// The rollback has ended: the accepted revision is or was not the one to roll back. Holds the identity of the
    /// request.
    Ended(String),
}

/// Plans the actions.
pub(super) fn plan(observed: &Observed<'_>, settings: PlanSettings) -> Plan {
    let Observed { accepted, status, existing, .. } = observed;
    if let Some(accepted) = accepted
        && !existing.contains_key(&accepted.revision)
    {
        return Plan { create: true, dry_run: false, status: None, events: Vec::new(), delete: Vec::new() };
    }
    let accepted_revision = match accepted {
        Some(accepted) => Some(&*accepted.revision),
        // Nothing compiles, so the previously accepted revision is used. The exception is a profile that only its
        // parent bounds: the platform has withdrawn its permission.
        None if observed.bounds == Some(RevisionBounds::Parent) => None,
        None => status.accepted_revision.as_deref(),
    };
    let limit = settings.limits.strategy(observed.is_namespaced);
    let publication = publish(observed, accepted_revision, limit.highest);
    let (kept, delete) = keep_latest(observed, &publication, accepted_revision, settings.keep);
    let mut wanted = ProfileStatus {
        conditions: Vec::new(),
        observed_generation: observed.generation,
        activation: match accepted {
            Some(accepted) => Some(accepted.activation),
            None => status.activation.filter(|_| accepted_revision.is_some()),
        },
        revision: publication.newest.map(str::to_owned),
        promoted_revision: publication.promoted.map(str::to_owned),
        accepted_revision: accepted_revision.map(str::to_owned),
        rollout: publication.rollout.clone(),
        revisions: kept,
        ended_rollback: match &publication.rollback {
            RollbackState::Ended(request) => Some(request.clone()),
            RollbackState::None | RollbackState::InForce => None,
        },
        namespaces_matched: Some(observed.namespaces),
        upgrade: None,
    };
    let valid = valid(observed, accepted_revision);
    let dry_run =
        accepted.is_some() && valid.as_ref().is_none_or(|(_, reason, _)| [PENDING, NOT_ASKED].contains(&&**reason));
    wanted.conditions = conditions(observed, &publication, valid, limit);
    let events = events(observed, &wanted, &publication);
    // Conditions of other clients, and the field `upgrade` of the rollout's task, are neither compared nor written.
    let mut known = (*status).clone();
    known.upgrade = None;
    known.conditions.retain(|condition| [ACCEPTED, READY, CONFLICTED, VALID].contains(&&*condition.type_));
    let changed = wanted != known;
    Plan { create: false, dry_run, status: changed.then_some(wanted), events, delete }
}

impl Observed<'_> {
    /// Whether this earlier revision may be served besides the accepted one. If only the parent bounds one of the two,
    /// it may not, since it contains an earlier spec of the parent.
    fn may_be_older(&self, revision: &str) -> bool {
        self.bounds != Some(RevisionBounds::Parent) && !self.bounded_by_parent.contains(revision)
    }
}

fn publish<'o>(observed: &'o Observed<'_>, accepted: Option<&'o str>, highest: RolloutStrategy) -> Publication<'o> {
    let Observed { status, .. } = observed;
    if observed.bounds == Some(RevisionBounds::Parent) {
        let rollback = RollbackState::None;
        return Publication { newest: accepted, promoted: accepted, rollout: None, rollback };
    }
    let (to, rollback) = match (observed.rollback, accepted) {
        (Some(request), Some(accepted)) => roll_back(observed, request, accepted),
        _ => (None, RollbackState::None),
    };
    if let Some(to) = to {
        return Publication { newest: Some(to), promoted: Some(to), rollout: None, rollback };
    }
    let rollout = match &observed.accepted {
        // The accepted spec of a broken profile may come from a revision, which contains no rollout. So keep the active
        // rollout.
        Some(accepted) => {
            accepted.rollout.as_ref().or_else(|| status.rollout.as_ref().filter(|_| observed.rejected.is_some()))
        }
        None => status.rollout.as_ref(),
    };
    let rollout = rollout.and_then(|rollout| unpromoted(rollout, status, accepted, highest));
    let promoted = match rollout {
        None => accepted,
        // Keep the last promoted revision even if it was deleted, since replicas may still serve it. Otherwise pods
        // outside of the rollout would lose the profile.
        Some(_) => {
            last_promoted(status).filter(|promoted| Some(*promoted) == accepted || observed.may_be_older(promoted))
        }
    };
    let rollout = rollout.filter(|_| accepted.is_some() && promoted != accepted);
    Publication { newest: accepted, promoted, rollout, rollback }
}

/// Returns the last promoted revision. If another revision is accepted directly after a rollout to running pods, the
/// revision of that rollout is promoted, although the status does not say so yet.
fn last_promoted(status: &ProfileStatus) -> Option<&str> {
    // The state of an earlier rollout to running pods does not apply to a rollout to a share of the workloads.
    let is_in_place = status.rollout.as_ref().is_none_or(|rollout| matches!(rollout.percent, Some(0 | 100)));
    let complete = status.upgrade.as_ref().filter(|upgrade| {
        is_in_place && upgrade.phase == UpgradePhase::Complete && status.revision.as_deref() == Some(&upgrade.revision)
    });
    complete.map(|upgrade| &*upgrade.revision).or(status.promoted_revision.as_deref())
}

/// Returns which workloads get the accepted revision while it is not promoted. `None` if all of them get it.
///
/// Only the fields that replicas read are published, because replicas of an older version reject a rollout with fields
/// that they do not know.
fn unpromoted(
    rollout: &Rollout,
    status: &ProfileStatus,
    accepted: Option<&str>,
    highest: RolloutStrategy,
) -> Option<Rollout> {
    let strategy = rollout.strategy.unwrap_or_default().min(highest);
    if rollout.strategy.is_some_and(RolloutStrategy::has_running_pods) {
        let upgrade = status.upgrade.as_ref().filter(|upgrade| Some(&*upgrade.revision) == accepted);
        let is_complete = upgrade.is_some_and(|upgrade| upgrade.phase == UpgradePhase::Complete);
        // A rollout that is no longer allowed is only suspended. Otherwise, new pods would get a revision that has
        // failed.
        let is_rolled_out = strategy.has_running_pods() || upgrade.is_some();
        // Before the first promotion, no pod has an older revision that could be upgraded.
        let waits = is_rolled_out && !is_complete && status.promoted_revision.is_some();
        // The pods that replace evicted ones must get the revision. After a failure, new pods get the promoted one.
        let ongoing = upgrade.filter(|upgrade| strategy == RolloutStrategy::Restart && !upgrade.phase.has_failed());
        let percent = ongoing.map_or(0, |upgrade| rollout.step_percent(upgrade.step));
        return waits.then(|| Rollout { percent: Some(percent), ..Rollout::default() });
    }
    let Rollout { percent, namespace_selector, .. } = rollout;
    (percent.unwrap_or(100) < 100 || namespace_selector.is_some()).then(|| Rollout {
        percent: *percent,
        namespace_selector: namespace_selector.clone(),
        ..Rollout::default()
    })
}

/// Returns the revision to which a request rolls back, and the state of the rollback. Without exactly one matching
/// revision, there is no rollback.
fn roll_back<'o>(
    observed: &'o Observed<'_>,
    request: &RollbackRequest,
    accepted: &str,
) -> (Option<&'o str>, RollbackState) {
    let RollbackRequest { to, from, .. } = request;
    let identity = identity(request);
    let has_ended = observed.status.ended_rollback.as_deref() == Some(identity.as_str());
    let is_current = from.as_deref().is_none_or(|from| !from.is_empty() && accepted.starts_with(from));
    if has_ended || !is_current {
        return (None, RollbackState::Ended(identity));
    }
    let available =
        observed.existing.keys().filter(|revision| ***revision == *accepted || observed.may_be_older(revision));
    let mut found = available.filter(|revision| !to.is_empty() && revision.starts_with(&**to));
    match (found.next(), found.next()) {
        (Some(revision), None) => (Some(revision), RollbackState::InForce),
        _ => (None, RollbackState::None),
    }
}

/// Returns the identity of a request, shortened to the length that the status allows.
fn identity(request: &RollbackRequest) -> String {
    let RollbackRequest { to, from, requested_at } = request;
    let (from, requested_at) = (from.as_deref().unwrap_or("-"), requested_at.as_deref().unwrap_or("-"));
    let mut identity = format!("{to} {from} {requested_at}");
    identity.truncate(identity.floor_char_boundary(IDENTITY_BYTES));
    identity
}

/// Returns the revisions to keep, the last published first, and the revisions to delete.
fn keep_latest(
    observed: &Observed<'_>,
    publication: &Publication<'_>,
    accepted: Option<&str>,
    keep: usize,
) -> (Vec<String>, Vec<Box<str>>) {
    let Observed { status, existing, .. } = observed;
    let published = status.revision.as_deref();
    // A rollback leaves the order unchanged, so that the next rollback goes further back.
    let is_next = publication.rollback != RollbackState::InForce && publication.newest != published;
    let mut first: Vec<&str> = Vec::new();
    if is_next {
        first.extend(publication.newest.into_iter().chain(published));
    } else {
        first.extend(accepted.filter(|accepted| !status.revisions.iter().any(|listed| listed == accepted)));
    }
    let listed = status.revisions.iter().map(String::as_str);
    // Without a status, assume that the revisions were published in the order of their creation.
    let mut latest: Vec<_> = existing.iter().collect();
    latest.sort_by_cached_key(|(revision, created)| (Reverse(**created), (*revision).clone()));
    let others = latest.into_iter().map(|(revision, _)| &**revision);
    let in_use = [publication.newest, publication.promoted, accepted];
    let mut seen = BTreeSet::new();
    let (mut kept, mut gone) = (Vec::new(), Vec::new());
    for revision in first.into_iter().chain(listed).chain(others) {
        if !existing.contains_key(revision) || !seen.insert(revision) {
            continue;
        }
        let is_kept = kept.len() < keep && observed.may_be_older(revision);
        if is_kept || in_use.contains(&Some(revision)) {
            kept.push(revision.to_owned());
        } else {
            gone.push(revision.into());
        }
    }
    (kept, gone)
}

/// Returns the condition [`VALID`] of a status, which is about the accepted revision of the same status.
fn valid_before(status: &ProfileStatus) -> Option<&Condition> {
    status.conditions.iter().find(|condition| condition.type_ == VALID)
}

/// Returns the status, the reason and the message of the condition [`VALID`]. If this leader has no result for the
/// accepted revision, returns the stored condition, or the reason [`PENDING`] if the stored one is about a different
/// revision. `None` if there is no accepted revision, or no stored condition about it.
fn valid(observed: &Observed<'_>, accepted: Option<&str>) -> Option<(String, String, String)> {
    let accepted = accepted?;
    if let Some(verdict) = observed.verdict {
        let (state, reason, message) = verdict.condition(accepted);
        return Some((state.to_owned(), reason.to_owned(), message));
    }
    if observed.status.accepted_revision.as_deref() == Some(accepted) {
        let before = valid_before(observed.status)?;
        return Some((before.status.clone(), before.reason.clone(), before.message.clone()));
    }
    Some(("Unknown".to_owned(), PENDING.to_owned(), format!("no dry run of revision {accepted} yet")))
}

fn conditions(
    observed: &Observed<'_>,
    publication: &Publication<'_>,
    valid: Option<(String, String, String)>,
    limit: StrategyLimit,
) -> Vec<Condition> {
    let accepted = match observed.rejected {
        Some(diagnostics) => (ACCEPTED, "False", "Invalid", summary(diagnostics)),
        None => match &observed.accepted {
            Some(accepted) => (ACCEPTED, "True", "Compiled", format!("accepted as revision {}", accepted.revision)),
            None => (ACCEPTED, "Unknown", PENDING, "not compiled yet".to_owned()),
        },
    };
    let strategy = strategy(observed);
    let (state, reason, mut message) = ready(observed, publication, strategy.min(limit.highest));
    if let StrategyLimit { highest, value } = limit
        && strategy > highest
    {
        let effect = match highest {
            RolloutStrategy::OnCreate if publication.rollout.is_some() => "is suspended".to_owned(),
            RolloutStrategy::OnCreate => "has no effect".to_owned(),
            _ => format!("acts as {highest:?}"),
        };
        message = format!("{message}; the strategy {strategy:?} {effect}, because of the chart's value {value}");
    }
    let unknown = observed.rollback.filter(|request| {
        let is_current = |from: &str| publication.newest.is_some_and(|newest| newest.starts_with(from));
        publication.rollback == RollbackState::None && request.from.as_deref().is_none_or(is_current)
    });
    if let Some(RollbackRequest { to, .. }) = unknown {
        let to = to.get(..to.floor_char_boundary(64)).unwrap_or_default();
        message =
            format!("{message}; {ROLLBACK_TO_ANNOTATION} is {to:?}, which does not match exactly one kept revision");
    }
    if let Some(why) = observed.uncovered.filter(|_| publication.newest.is_some()) {
        let why = why.get(..why.floor_char_boundary(MESSAGE_BYTES)).unwrap_or_default();
        message = format!("{message}; the safety net does not cover it: {why}");
    }
    let conflicted = match observed.conflict {
        Some(conflict) => (CONFLICTED, "True", conflict.reason(), conflict.message()),
        None => (CONFLICTED, "False", "NoConflict", "no other profile has the same key or name".to_owned()),
    };
    let ours = [accepted, (READY, state, reason, message), conflicted]
        .map(|(type_, state, reason, message)| (type_, state.to_owned(), reason.to_owned(), message));
    let valid = valid.map(|(state, reason, message)| (VALID, state, reason, message));
    ours.into_iter()
        .chain(valid)
        .map(|(type_, state, reason, message)| {
            let before = observed.status.conditions.iter().find(|condition| condition.type_ == type_);
            let since =
                before.filter(|before| before.status == state).map(|before| before.last_transition_time.clone());
            Condition {
                type_: type_.to_owned(),
                status: state,
                reason,
                message,
                observed_generation: observed.generation,
                last_transition_time: since.unwrap_or(Time(Timestamp::UNIX_EPOCH)),
            }
        })
        .collect()
}

/// Returns the strategy of the accepted generation.
fn strategy(observed: &Observed<'_>) -> RolloutStrategy {
    let rollout = observed.accepted.as_ref().and_then(|accepted| accepted.rollout.as_ref());
    rollout.and_then(|rollout| rollout.strategy).unwrap_or_default()
}

/// Returns the status, the reason and the message of the condition [`READY`], for this effective strategy. The
/// condition is false if the stored spec is invalid, even while an earlier revision is served, so that `kubectl wait`
/// fails on a broken edit.
fn ready(
    observed: &Observed<'_>,
    publication: &Publication<'_>,
    strategy: RolloutStrategy,
) -> (&'static str, &'static str, String) {
    let Some(revision) = publication.newest else {
        let message = "no revision is served: none was ever accepted, or the platform has withdrawn it".to_owned();
        return ("False", "NoRevision", message);
    };
    if observed.rejected.is_some() {
        let message = format!("the last edit is invalid; pods still get the previous revision {revision}");
        return ("False", "LastAccepted", message);
    }
    if publication.rollback == RollbackState::InForce {
        let from = observed.accepted.as_ref().map_or("the accepted revision", |accepted| &*accepted.revision);
        return ("True", "RolledBack", format!("rolled back from {from}: all workloads get revision {revision}"));
    }
    let Some(rollout) = &publication.rollout else {
        return ("True", "Published", format!("all workloads get revision {revision}"));
    };
    let others = match publication.promoted {
        None => "none".to_owned(),
        Some(other) if observed.existing.contains_key(other) => format!("revision {other}"),
        Some(other) => format!("revision {other}, which was deleted: promote or roll back"),
    };
    if strategy == RolloutStrategy::Restart {
        let share = rollout.percent.unwrap_or(100);
        let message = format!(
            "running pods are upgraded or restarted with revision {revision}, see status.upgrade; meanwhile, new pods of \
             {share} % of the workloads get it, and all others get {others}"
        );
        return ("True", "Upgrading", message);
    }
    if strategy == RolloutStrategy::InPlace {
        let message = format!(
            "running pods are upgraded to revision {revision}, see status.upgrade; until they have it, new pods get {others}"
        );
        return ("True", "Upgrading", message);
    }
    let share = rollout.percent.unwrap_or(100);
    let scope = if rollout.namespace_selector.is_some() { " in the selected namespaces" } else { "" };
    let message = format!("{share} % of the workloads{scope} get revision {revision}, all others get {others}");
    ("True", "RollingOut", message)
}

/// Returns the Events for changes of the status. The stored status shows what was reported, so the next leader does not
/// repeat Events.
fn events(observed: &Observed<'_>, wanted: &ProfileStatus, publication: &Publication<'_>) -> Vec<ProfileEvent> {
    let before = |type_: &str| observed.status.conditions.iter().find(|condition| condition.type_ == type_);
    let mut events = Vec::new();
    if let Some(diagnostics) = observed.rejected {
        let known = before(ACCEPTED).filter(|before| before.status == "False");
        if known.is_none_or(|known| known.observed_generation != observed.generation) {
            let serving =
                publication.newest.map_or_else(|| "no revision".to_owned(), |revision| format!("revision {revision}"));
            let invalid = summary(diagnostics);
            events.push(ProfileEvent::Rejected(format!("the last edit is invalid, pods get {serving}: {invalid}")));
        }
    }
    if wanted.revision != observed.status.revision
        && let Some(revision) = &wanted.revision
    {
        let before = observed.status.revision.as_deref().unwrap_or("none");
        events.push(match &publication.rollback {
            RollbackState::InForce => {
                let by = format!("{ROLLBACK_TO_ANNOTATION} and {ROLLBACK_FROM_ANNOTATION}");
                ProfileEvent::RolledBack(format!("revision {revision} is published instead of {before}, by {by}"))
            }
            RollbackState::Ended(_) if observed.status.ended_rollback.is_none() => {
                let ends = "this ends the rollback";
                ProfileEvent::Published(format!("revision {revision} is published instead of {before}; {ends}"))
            }
            _ => ProfileEvent::Published(format!("revision {revision} is published instead of {before}")),
        });
    }
    // The message names the revision, so a new message means another revision or result.
    let invalid = valid_before(wanted).filter(|valid| valid.status == "False");
    if let Some(invalid) = invalid
        && valid_before(observed.status).is_none_or(|before| before.message != invalid.message)
    {
        events.push(ProfileEvent::Invalid(invalid.message.clone()));
    }
    events
}

/// Joins the errors into one message of at most about [`MESSAGE_BYTES`].
pub(super) fn summary(diagnostics: &[Diagnostic]) -> String {
    let mut text = String::new();
    for (number, diagnostic) in diagnostics.iter().enumerate() {
        let line = diagnostic.to_string();
        if !text.is_empty() && text.len() + line.len() > MESSAGE_BYTES {
            let more = diagnostics.len() - number;
            return format!("{text}; and {more} more");
        }
        if !text.is_empty() {
            text.push_str("; ");
        }
        text.push_str(line.get(..line.floor_char_boundary(MESSAGE_BYTES)).unwrap_or_default());
    }
    text
}

#[cfg(test)]
mod tests;
