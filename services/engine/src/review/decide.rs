//! Decides a review on the mutating path.
//!
//! An admission policy adds a scheduling gate to every pod, except mirror pods, that is created in a `held` namespace.
//! The gate marks pods that have no decision yet. Therefore the patch of every decision removes the gate, even if
//! nothing is injected or a profile is left out because of its `failurePolicy`. The gate remains if there is no
//! response, and on denied pods. Other gates keep their order.
//!
//! Another admission policy rejects pods, except mirror pods, in `required` namespaces that have no injection record.
//! If the guardrails set `recordDecisions`, every decision that allows such a pod writes a record. The record is empty
//! if nothing is injected.

use pillion_api::names::{FailureMode, INJECTION_GATE};
use pillion_api::profile::FailurePolicy;

use super::context::{FoundRecord, ReviewContext, malformed_object};
use super::{Decided, Endpoint, Facts, InternalError, Observer, Review, Step, validate};
use crate::context::Arena;
use crate::decision::{Decision, Notice, Outcome, ProfileDecision, ProfileOutcome, Reason};
use crate::inject::{self, Applied, Exclusions, InjectTarget, NamespaceChanges, PolicyChanges, Verdict};
use crate::json::{Document, Kind, Malformed, SlotId, Value};
use crate::limits::{self, Excess, TenantLimits};
use crate::patch::{self, CheckFault, MAX_OBJECT_BYTES, MAX_PATCH_BYTES};
use crate::profile::target::Phase;
use crate::record::RecordWriter;
use crate::select::{Selected, Selection, select};
use crate::snapshot::Snapshot;

/// The changes that namespaced profiles made in an earlier pass, which is an earlier call of the webhook for the
/// object. A stand-in is a namespaced profile that is applied instead of the cluster profile that it extends.
#[derive(Clone, Copy)]
struct EarlierNamespacedChanges<'v> {
    /// The changes of profiles that are not stand-ins, if there are any.
    changes: Option<&'v NamespaceChanges<'v>>,
    /// Whether that pass applied a stand-in. If so, this pass keeps the stand-ins even if they prevent another cluster
    /// profile from being applied: the object already contains the changes of the stand-in, and the cluster profile
    /// that it extends might not make them again.
    had_stand_in: bool,
}

/// The reason why an object cannot be injected.
enum MutateError {
    /// The object has a duplicate key. API servers never send such an object, because they decode objects first.
    Malformed(Malformed),
    /// The patch failed its self-check.
    SelfCheck(InternalError),
}

impl From<Malformed> for MutateError {
    fn from(malformed: Malformed) -> Self {
        Self::Malformed(malformed)
    }
}

impl From<CheckFault> for MutateError {
    fn from(error: CheckFault) -> Self {
        match error {
            CheckFault::Malformed(malformed) => Self::Malformed(malformed),
            error => Self::SelfCheck(InternalError(error)),
        }
    }
}

/// Decides a review. Fails if the patch does not pass its self-check.
pub(super) fn decide(
    review: &Review<'_>,
    endpoint: Endpoint,
    snapshot: &Snapshot,
    facts: &Facts,
    observer: &mut impl Observer,
) -> Result<Decided, InternalError> {
    let context = match ReviewContext::for_decision(review, endpoint, snapshot, facts) {
        Ok(context) => context,
        Err(reason) => return Ok(Decided::without_patch(Decision::skipped(reason))),
    };
    observer.begins(Step::Match);
    if context.action.phase == Phase::Validate {
        return Ok(Decided::without_patch(validate::decide(&context, observer)));
    }
    match mutate(&context, observer) {
        Ok(decided) => Ok(decided),
        Err(MutateError::Malformed(malformed)) => Ok(Decided::without_patch(malformed_object(&malformed))),
        Err(MutateError::SelfCheck(error)) => Err(error),
    }
}

/// Selects the profiles for an object, and merges them into it.
fn mutate(context: &ReviewContext<'_>, observer: &mut impl Observer) -> Result<Decided, MutateError> {
    let (object, failure_mode, guardrails) = (context.object, context.failure_mode, context.guardrails());
    let marks = guardrails.record_decisions && failure_mode == FailureMode::Required && context.action.is_pod();
    let original = context.original()?;
    let arena = Arena::new();
    let eval_context = context.eval_context(&original);
    let candidates = context.candidates(&original);
    let selection = select(&candidates, context.action, failure_mode, eval_context, &arena);

    // The record of an earlier pass. A cluster profile takes over the entries of its former stand-ins.
    let record = original.record.genuine();
    let taken_over =
        record.and_then(|record| record.taken_over(|name, parent| selection.successor_revision(name, parent)));
    let record = taken_over.as_ref().or(record);
    let policy = original.policy.as_ref().map(PolicyChanges::of);
    let changes = record.and_then(|record| NamespaceChanges::of(record, |name| selection.has_stand_in(name)));
    let had_stand_in = record.is_some_and(|record| {
        selection.profiles.iter().any(|selected| selected.stands_in && record.has(selected.profile.display_name()))
    });
    let earlier = EarlierNamespacedChanges { changes: changes.as_ref(), had_stand_in };

    let Selection { profiles, mut notices, denied, reason } = selection;
    if matches!(original.record, FoundRecord::Foreign) {
        notices.push(Notice::RecordDropped);
    }
    if let Some((reason, detail)) = denied {
        let profiles = profiles.into_iter().map(|selected| selected.decision).collect();
        return Ok(Decided::without_patch(Decision { profiles, notices, ..Decision::denied(reason, detail) }));
    }

    observer.begins(Step::Merge);
    let limits = TenantLimits { namespace: &context.namespace, guardrails };
    let (type_, policy) = (context.type_(), policy.as_ref());
    let target = InjectTarget { object, type_, context: eval_context, arena: &arena, earlier: record, policy, limits };
    let finish = |applied: &mut Applied<'_>| {
        let record = applied.record.take().or_else(|| marks.then(RecordWriter::empty));
        inject::set_record(&mut applied.document, record)?;
        remove_gate(&mut applied.document, failure_mode)
    };
    let Applied { document, verdicts, .. } = apply_profiles(&profiles, target, earlier, &finish)?;

    let patch = match patch::write(&document) {
        Some(patch) => {
            observer.begins(Step::SelfCheck);
            Some(patch::check(object, patch, &document)?)
        }
        None => None,
    };
    // The patch also removes the changes of the policy. The limits do not include this.
    let excess = patch.as_ref().and_then(|patch| {
        let length = if policy.is_some() { patch::length(&document) } else { patch.len() };
        too_large(target.object_without_policy(), length)
    });
    drop(document);
    let mut decisions = Vec::with_capacity(profiles.len());
    for (selected, verdict) in profiles.into_iter().zip(verdicts) {
        let decision = selected.decision;
        decisions.push(match verdict {
            Some(Verdict { outcome, reason, detail, notes }) => {
                let profile = decision.profile;
                notices.extend(
                    notes.into_iter().map(|text| Notice::OfProfile { profile: profile.display_name().into(), text }),
                );
                ProfileDecision { profile, outcome, reason, detail }
            }
            None => decision,
        });
    }
    let decided = conclude(decisions, notices, reason, patch, excess);
    let is_marked = marks && record.is_none();
    let settled = if policy.is_some() || is_marked {
        settle(object, decided, |document| {
            if let Some(policy) = policy {
                *document = policy.undone(object, type_)?;
            }
            if is_marked {
                inject::set_record(document, Some(RecordWriter::empty()))?;
            }
            remove_gate(document, failure_mode)
        })
    } else {
        without_gate(object, failure_mode, decided)
    };
    settled.map_err(MutateError::SelfCheck)
}

/// Applies the profiles. Leaves out namespaced profiles that make the result too large, prevent a cluster profile from
/// being applied, or interfere with its changes. `finish` completes each result before its size is checked.
fn apply_profiles<'v>(
    profiles: &[Selected<'v>],
    target: InjectTarget<'v>,
    earlier: EarlierNamespacedChanges<'v>,
    finish: &dyn Fn(&mut Applied<'v>) -> Result<(), Malformed>,
) -> Result<Applied<'v>, Malformed> {
    let apply = |exclusions: Exclusions<'_, 'v>| {
        let mut applied = inject::apply(profiles, target, exclusions)?;
        finish(&mut applied)?;
        Ok(applied)
    };
    let mut applied = apply(Exclusions::default())?;

    // Other cluster profiles are applied after the stand-ins, so only the complete patch shows whether the stand-ins
    // make the patch too large.
    let mut has_stand_ins = profiles.iter().any(|selected| selected.stands_in);
    let excess =
        if has_stand_ins { too_large(target.object_without_policy(), patch::length(&applied.document)) } else { None };
    let stand_ins = excess.as_deref();
    if stand_ins.is_some() {
        applied = apply(Exclusions { stand_ins, others: None })?;
        has_stand_ins = false;
    }

    let mut interfering = None;
    if let Some(changes) = earlier.changes {
        let alone = apply(Exclusions { stand_ins, others: Some(("", changes)) })?;
        if let Err(excess) = interference(&applied, &alone) {
            interfering = Some((excess.to_string(), changes));
            applied = apply(Exclusions { stand_ins, others: others(interfering.as_ref()) })?;
        }
    }

    if has_stand_ins && !earlier.had_stand_in && applied.verdicts.iter().flatten().any(Verdict::is_skipped) {
        let others = others(interfering.as_ref());
        let without = apply(Exclusions { stand_ins: Some(""), others })?;
        if let Some(why) = displaced(profiles, &applied, &without) {
            applied = apply(Exclusions { stand_ins: Some(&why), others })?;
        }
    }
    Ok(applied)
}

/// Returns [`Exclusions::others`] for interfering profiles: the reason to leave out the namespaced profiles, and their
/// changes from an earlier pass.
fn others<'p, 'v>(
    interfering: Option<&'p (String, &'v NamespaceChanges<'v>)>,
) -> Option<(&'p str, &'v NamespaceChanges<'v>)> {
    interfering.map(|(why, changes)| (why.as_str(), *changes))
}

/// Returns the reason to leave out stand-ins for cluster profiles: a cluster profile is left out in `with`, the result
/// with stand-ins, but not in `without`.
///
/// `None` if there is no such profile, or if another cluster profile is left out only in `without`.
fn displaced(profiles: &[Selected<'_>], with: &Applied<'_>, without: &Applied<'_>) -> Option<String> {
    let mut message = None;
    for (place, selected) in profiles.iter().enumerate() {
        if selected.profile.name().namespace.is_some() {
            continue;
        }
        let left_out = |applied: &Applied<'_>| {
            let verdict = applied.verdicts.get(place).cloned().flatten();
            verdict.filter(Verdict::is_skipped)
        };
        match (left_out(with), left_out(without)) {
            (None, Some(_)) => return None,
            (Some(verdict), None) if message.is_none() => {
                let (name, reason) = (selected.profile.display_name(), verdict.reason.sentence());
                let detail = verdict.detail.unwrap_or_default();
                message =
                    Some(format!("it would prevent the cluster profile {name} from being applied: {reason}: {detail}"));
            }
            _ => {}
        }
    }
    message
}

/// Checks that the result of all profiles contains the protected changes in `alone`, the result of the cluster
/// profiles. The two can differ if an earlier pass already applied a namespaced profile, and a cluster profile changes
/// the object in this pass.
fn interference(together: &Applied<'_>, alone: &Applied<'_>) -> Result<(), Excess> {
    let protected = alone.protected.as_ref().ok_or_else(Excess::unreadable)?;
    limits::check_interference(&alone.document, &together.document, protected)
}

/// Returns a message if a patch of `patch` bytes is too large for the object.
fn too_large(object: Value<'_>, patch: usize) -> Option<String> {
    let object = object.raw().len();
    let message = || {
        format!(
            "a patch of {patch} bytes for an object of {object} bytes; {MAX_PATCH_BYTES} and {MAX_OBJECT_BYTES} in \
             total are allowed"
        )
    };
    (!patch::fits(patch, object)).then(message)
}

/// Derives the decision from the results of all profiles. `nothing_requested` is the reason if no profile was
/// requested. `too_large` is the message if the patch is too large to be sent.
fn conclude(
    profiles: Vec<ProfileDecision>,
    notices: Vec<Notice>,
    nothing_requested: Reason,
    patch: Option<Vec<u8>>,
    too_large: Option<String>,
) -> Decided {
    let refusing = profiles.iter().find(|decision| decision.outcome == ProfileOutcome::Denied);
    let is_sent = too_large.is_none();
    let strict = || profiles.iter().any(|decision| decision.profile.failure_policy == FailurePolicy::Fail);
    let has = |outcome| profiles.iter().any(|decision| decision.outcome == outcome);
    let (outcome, reason, detail) = if let Some(decision) = refusing {
        let place = decision.detail.as_deref().unwrap_or_default();
        let detail = format!("profile {}: {place}", decision.profile.display_name());
        (Outcome::Denied, decision.reason, Some(detail.into()))
    } else if let Some(detail) = too_large {
        let outcome = if strict() { Outcome::Denied } else { Outcome::Skipped };
        (outcome, Reason::LimitExceeded, Some(detail.into()))
    } else if has(ProfileOutcome::Applied) {
        (Outcome::Injected, Reason::Injected, None)
    } else if has(ProfileOutcome::Unchanged) {
        (Outcome::Unchanged, Reason::AlreadyInjected, None)
    } else {
        let reason = profiles.first().map_or(nothing_requested, |decision| decision.reason);
        (Outcome::Skipped, reason, None)
    };
    // There may be a patch even if no profile was applied, such as one that drops a record that is not genuine.
    let sends_patch = refusing.is_none() && is_sent;
    let patch = if sends_patch { patch } else { None };
    Decided { decision: Decision { outcome, reason, detail, profiles, validations: Vec::new(), notices }, patch }
}

/// Removes the scheduling gate from a document if the namespace is `held`. Also removes the list of gates if it is then
/// empty.
fn remove_gate(document: &mut Document<'_>, failure_mode: FailureMode) -> Result<(), Malformed> {
    if failure_mode != FailureMode::Held {
        return Ok(());
    }
    let Some(spec) = document.member(Document::ROOT, "spec")? else { return Ok(()) };
    let Some(gates) = document.member(spec, "schedulingGates")? else { return Ok(()) };
    if document.kind(gates) != Kind::Array {
        return Ok(());
    }
    document.open(gates)?;
    let all: Vec<SlotId> = document.children(gates).collect();
    let mut own = Vec::new();
    for gate in &all {
        let is_own = match document.member(*gate, "name")? {
            Some(name) => document.raw(name).is_some_and(is_the_gate),
            None => false,
        };
        own.extend(is_own.then_some(*gate));
    }
    if own.len() == all.len() && !own.is_empty() {
        document.remove(gates, spec);
    } else {
        for gate in own {
            document.remove(gate, gates);
        }
    }
    Ok(())
}

/// Whether a JSON string is the name of the gate. The name contains no characters to escape, but a client may escape
/// some.
fn is_the_gate(raw: &str) -> bool {
    serde_json::from_str::<String>(raw).is_ok_and(|name| name == INJECTION_GATE)
}

/// Removes the scheduling gate of a `held` namespace if the decision allows the object without a patch.
pub(super) fn without_gate(
    object: Value<'_>,
    failure_mode: FailureMode,
    decided: Decided,
) -> Result<Decided, InternalError> {
    if failure_mode != FailureMode::Held {
        return Ok(decided);
    }
    settle(object, decided, |document| remove_gate(document, failure_mode))
}

/// If a decision allows the object without a patch, applies `change` and adds the patch to the decision.
fn settle<'v>(
    object: Value<'v>,
    decided: Decided,
    change: impl FnOnce(&mut Document<'v>) -> Result<(), Malformed>,
) -> Result<Decided, InternalError> {
    if decided.patch.is_some() || decided.decision.outcome == Outcome::Denied {
        return Ok(decided);
    }
    let mut document = Document::new(object);
    change(&mut document).map_err(CheckFault::Malformed)?;
    let Some(patch) = patch::write(&document) else { return Ok(decided) };
    let patch = patch::check(object, patch, &document)?;
    Ok(Decided { patch: Some(patch), ..decided })
}
