//! Decides a review on the mutating path, step by step. Each step may end the decision.

use std::sync::Arc;

use pillion_api::names::{InjectionLevel, MIRROR_ANNOTATION, SYSTEM_NAMESPACES};
use pillion_api::profile::{OnError, Operation};

use super::envelope::{Envelope, object_of};
use super::found_record::FoundRecord;
use super::{Decided, Endpoint, Facts, InternalError, Observer, Step, gate, mark, validating};
use crate::context::{Arena, EvalContext};
use crate::decision::{Decision, Notice, Outcome, ProfileDecision, ProfileOutcome, Reason};
use crate::expression::Allowances;
use crate::inject::{self, Applied, Exclusions, InjectTarget, NamespaceChanges, Verdict};
use crate::json::{BorrowedTape, Malformed, OwnedTape, Value};
use crate::limits::{self, Bounds, Excess};
use crate::patch::{self, CheckFault, MAX_OBJECT_BYTES, MAX_PATCH_BYTES};
use crate::profile::target::Phase;
use crate::record::RecordWriter;
use crate::schema;
use crate::select::revisions::TargetObject;
use crate::select::{Selection, select};
use crate::snapshot::{Namespace, Snapshot};

/// Decides a review. Returns an error if the patch fails its self-check.
pub(super) fn decide(
    envelope: &Envelope<'_>,
    tape: &BorrowedTape<'_>,
    endpoint: Endpoint,
    snapshot: &Snapshot,
    facts: &Facts,
    observer: &mut impl Observer,
) -> Result<Decided, InternalError> {
    let skipped = |reason| Ok(Decided { decision: Decision::skipped(reason), patch: None });
    let Some(action) = envelope.action(endpoint.phase()) else { return skipped(Reason::OtherOperation) };
    if action.phase == Phase::Validate {
        return Ok(Decided {
            decision: validating::decide(envelope, tape, action, endpoint, snapshot, facts, observer),
            patch: None,
        });
    }
    if action.is_pod() && action.operation != Operation::Create {
        return skipped(Reason::OtherOperation);
    }
    if !action.is_pod() && !snapshot.profiles().has_resource(&envelope.namespace, action) {
        return skipped(Reason::OtherResource);
    }
    let Some(object) = object_of(tape) else { return skipped(Reason::OtherResource) };
    if SYSTEM_NAMESPACES.contains(&&*envelope.namespace) {
        return skipped(Reason::SystemNamespace);
    }
    let Some(level) = facts.level(endpoint) else { return skipped(Reason::NotOptedIn) };
    if object.at(&["metadata", "deletionTimestamp"]).is_some_and(|time| !time.is_null()) {
        return skipped(Reason::BeingDeleted);
    }
    if envelope.by_node && object.at(&["metadata", "annotations", MIRROR_ANNOTATION]).is_some() {
        return skipped(Reason::MirrorPod);
    }
    let has_none = |containers: Value<'_>| containers.items().next().is_none();
    if action.is_pod() && object.at(&["spec", "containers"]).is_none_or(has_none) {
        return skipped(Reason::NoContainers);
    }
    // A namespace that was not found has only the failure mode by which the API server matched it.
    let namespace = facts.namespace.clone().unwrap_or_else(|| Arc::new(Namespace::opted_in(level)));
    observer.begins(Step::Match);
    let candidates = snapshot.candidates(&envelope.namespace, &namespace);
    let arena = Arena::new();
    let allowances = Allowances::until(facts.deadline);
    let found = FoundRecord::find(object, facts.record_trust);
    let guardrails = facts.guardrails.as_deref().unwrap_or_else(|| snapshot.guardrails());
    let is_marked = guardrails.record_decisions && level == InjectionLevel::Required && action.is_pod();
    let type_ = schema::of(&envelope.group, &envelope.resource);
    let decided = found.original_object(object, type_).and_then(|original| {
        let original = original.as_ref().map_or(object, OwnedTape::root);
        let subject = TargetObject {
            namespace_name: &envelope.namespace,
            namespace: &namespace,
            object: original,
            record: found.genuine(),
        };
        let candidates = snapshot.chosen(Arc::clone(&candidates), subject, &facts.looked_up);
        let context = EvalContext {
            object: original,
            request: tape.root().get("request").unwrap_or(object),
            namespace_name: &envelope.namespace,
            namespace: &namespace,
            uid: &envelope.uid,
            looked_up: &facts.looked_up,
            allowances: &allowances,
        };
        let bounds = Bounds { namespace: &namespace, guardrails };
        let selection = select(&candidates, action, level, context, &arena);
        let record = found.genuine();
        let taken_over = record.and_then(|record| record.taken_over(|name, parent| selection.heir(name, parent)));
        let record = taken_over.as_ref().or(record);
        let work = record.and_then(|record| NamespaceChanges::of(record, |name| selection.has_stand_in(name)));
        let subject = InjectTarget { object, type_, context, arena: &arena, earlier: record };
        inject(subject, level, is_marked, selection, &found, work.as_ref(), bounds, observer)
    });
    match decided {
        Ok(decided) if is_marked && found.genuine().is_none() => mark::settle(object, decided?),
        Ok(decided) => gate::settle(object, level, decided?),
        // The author wrote it, and the API server never sends such an object, because it has decoded it.
        Err(Malformed { key }) => {
            Ok(Decided { decision: Decision::denied(Reason::DuplicateKey, format!("{key:?}")), patch: None })
        }
    }
}

#[expect(clippy::too_many_arguments, reason = "there is one caller, and no two of them belong together")]
fn inject<'v>(
    subject: InjectTarget<'v>,
    level: InjectionLevel,
    is_marked: bool,
    selection: Selection<'v>,
    found: &FoundRecord,
    earlier: Option<&'v NamespaceChanges<'v>>,
    bounds: Bounds<'_>,
    observer: &mut impl Observer,
) -> Result<Result<Decided, InternalError>, Malformed> {
    let Selection { profiles, mut notices, denied, reason } = selection;
    let object = subject.object;
    if matches!(found, FoundRecord::Foreign) {
        notices.push(Notice::RecordDropped);
    }
    if let Some((reason, detail)) = denied {
        let profiles = profiles.into_iter().map(|selected| selected.decision).collect();
        let decision = Decision { profiles, notices, ..Decision::denied(reason, detail) };
        return Ok(Ok(Decided { decision, patch: None }));
    }
    observer.begins(Step::Merge);
    let apply = |without: Exclusions<'_, 'v>| {
        let mut applied = inject::apply(&profiles, subject, without, bounds)?;
        let record = applied.record.take().or_else(|| is_marked.then(RecordWriter::empty));
        inject::set_record(&mut applied.document, record)?;
        gate::take_away(&mut applied.document, level)?;
        Ok(applied)
    };
    let mut applied = apply(Exclusions::default())?;
    // Namespaced profiles are applied only if the patch has room for them after all cluster profiles.
    let excess = profiles
        .iter()
        .any(|selected| selected.stands_in)
        .then(|| too_large(object, patch::length(&applied.document)))
        .flatten();
    let stand_ins = excess.as_deref();
    if stand_ins.is_some() {
        applied = apply(Exclusions { stand_ins, namespaces: None })?;
    }
    if let Some(work) = earlier {
        let alone = apply(Exclusions { stand_ins, namespaces: Some(("", work)) })?;
        if let Err(excess) = interference(&applied, &alone) {
            applied = apply(Exclusions { stand_ins, namespaces: Some((&excess.to_string(), work)) })?;
        }
    }
    let Applied { document, verdicts, .. } = applied;
    let patch = match patch::write(&document) {
        Some(patch) => {
            observer.begins(Step::SelfCheck);
            match patch::check(object, patch, &document) {
                Ok(patch) => Some(patch),
                Err(CheckFault::Malformed(malformed)) => return Err(malformed),
                Err(fault) => return Ok(Err(InternalError(fault))),
            }
        }
        None => None,
    };
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
    Ok(Ok(conclude(object, decisions, notices, reason, patch)))
}

/// Checks that the changes of the platform's profiles alone are part of the joint result. An earlier pass may have
/// applied namespaced profiles before changes that the platform's profiles make only now.
fn interference(together: &Applied<'_>, alone: &Applied<'_>) -> Result<(), Excess> {
    let protected = alone.protected.as_ref().ok_or_else(Excess::unreadable)?;
    limits::check_interference(&alone.document, &together.document, protected)
}

/// The message about a patch that is too large.
fn too_large(object: Value<'_>, patch: usize) -> Option<String> {
    let object = object.raw().len();
    let message = || {
        format!(
            "a patch of {patch} bytes on an object of {object} bytes; {MAX_PATCH_BYTES} and {MAX_OBJECT_BYTES} are allowed"
        )
    };
    (!patch::fits(patch, object)).then(message)
}

/// Derives the decision from the results of all profiles.
fn conclude(
    object: Value<'_>,
    profiles: Vec<ProfileDecision>,
    notices: Vec<Notice>,
    nothing_asked: Reason,
    patch: Option<Vec<u8>>,
) -> Decided {
    let refusing = profiles.iter().find(|decision| decision.outcome == ProfileOutcome::Denied);
    let too_large = patch.as_ref().and_then(|patch| too_large(object, patch.len()));
    let is_sent = too_large.is_none();
    let strict = || profiles.iter().any(|decision| decision.profile.on_error == OnError::Deny);
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
        let reason = profiles.first().map_or(nothing_asked, |decision| decision.reason);
        (Outcome::Skipped, reason, None)
    };
    // There may be a patch without any applied profile: it drops a record that is not genuine.
    let sends_patch = refusing.is_none() && is_sent;
    let patch = if sends_patch { patch } else { None };
    Decided { decision: Decision { outcome, reason, detail, profiles, validations: Vec::new(), notices }, patch }
}
