//! Decides a review on the validating path: finds the original and the final object, and evaluates the validations of
//! the selected profiles.

use std::sync::Arc;

use pillion_api::names::{INJECTED_ANNOTATION, MIRROR_ANNOTATION, SYSTEM_NAMESPACES};
use pillion_api::profile::Operation;

use super::envelope::{Envelope, object_of, old_object_of};
use super::found_record::FoundRecord;
use super::{Endpoint, Facts, Observer, RecordTrust, Step};
use crate::context::{Arena, EvalContext};
use crate::decision::{Decision, Outcome, ProfileDecision, ProfileOutcome, Reason};
use crate::expression::Allowances;
use crate::json::{BorrowedTape, Malformed, OwnedTape, Value};
use crate::profile::target::Action;
use crate::record::Record;
use crate::schema;
use crate::select::revisions::TargetObject;
use crate::select::{Selection, select};
use crate::snapshot::{Namespace, Snapshot};
use crate::validate::{self, Objects};

/// Decides whether an object is allowed.
pub(super) fn decide(
    envelope: &Envelope<'_>,
    tape: &BorrowedTape<'_>,
    action: Action<'_>,
    endpoint: Endpoint,
    snapshot: &Snapshot,
    facts: &Facts,
    observer: &mut impl Observer,
) -> Decision {
    if !snapshot.profiles().has_resource(&envelope.namespace, action) {
        return Decision::skipped(Reason::OtherResource);
    }
    let Some(request) = tape.root().get("request") else { return Decision::skipped(Reason::OtherResource) };
    // A deleted object is known by its old state.
    let meant = if action.operation == Operation::Delete { old_object_of(tape) } else { object_of(tape) };
    let Some(meant) = meant else { return Decision::skipped(Reason::OtherResource) };
    if SYSTEM_NAMESPACES.contains(&&*envelope.namespace) {
        return Decision::skipped(Reason::SystemNamespace);
    }
    let Some(level) = facts.level(endpoint) else { return Decision::skipped(Reason::NotOptedIn) };
    if envelope.by_node && meant.at(&["metadata", "annotations", MIRROR_ANNOTATION]).is_some() {
        return Decision::skipped(Reason::MirrorPod);
    }
    let namespace = facts.namespace.clone().unwrap_or_else(|| Arc::new(Namespace::opted_in(level)));
    observer.begins(Step::Match);
    let candidates = snapshot.candidates(&envelope.namespace, &namespace);
    let found = find_record(tape, meant, action.operation, facts.record_trust);
    let original = match found.original_object(meant, schema::of(&envelope.group, &envelope.resource)) {
        Ok(original) => original,
        Err(Malformed { key }) => return Decision::denied(Reason::DuplicateKey, format!("{key:?}")),
    };
    // A deletion has no final object: `object` is null, as in Kubernetes' own policies.
    let object = request.get("object").unwrap_or(meant);
    let allowances = Allowances::until(facts.deadline);
    let context = EvalContext {
        object: original.as_ref().filter(|_| action.operation != Operation::Delete).map_or(object, OwnedTape::root),
        request,
        namespace_name: &envelope.namespace,
        namespace: &namespace,
        uid: &envelope.uid,
        looked_up: &facts.looked_up,
        allowances: &allowances,
    };
    let stored = EvalContext { object, ..context };
    // For a stored object, all active profiles are considered.
    let record = found.genuine().filter(|_| action.operation == Operation::Create);
    let asking = if context.object.is_null() { meant } else { context.object };
    let subject = TargetObject { namespace_name: &envelope.namespace, namespace: &namespace, object: asking, record };
    let candidates = snapshot.chosen(candidates, subject, &facts.looked_up);
    let arena = Arena::new();
    let Selection { mut profiles, notices, reason, .. } = select(&candidates, action, level, context, &arena);
    let ours = found.genuine().map(injected_containers).unwrap_or_default();
    observer.begins(Step::Validate);
    let validations = validate::check(&mut profiles, Objects { stored, ours: &ours });
    let profiles: Vec<_> = profiles.into_iter().map(|selected| selected.decision).collect();
    let (outcome, reason, detail) = conclude(&profiles, reason);
    Decision { outcome, reason, detail, profiles, validations, notices }
}

/// The record of an object. Everyone who may update a stored object may change its annotations, so a record that this
/// update changes is ignored.
fn find_record(tape: &BorrowedTape<'_>, object: Value<'_>, operation: Operation, trust: RecordTrust) -> FoundRecord {
    let text = |object: Value<'_>| {
        let annotation = object.at(&["metadata", "annotations", INJECTED_ANNOTATION])?;
        annotation.as_str().map(std::borrow::Cow::into_owned)
    };
    let is_kept = || old_object_of(tape).and_then(text) == text(object);
    if operation == Operation::Update && !is_kept() { FoundRecord::None } else { FoundRecord::find(object, trust) }
}

/// The names of the containers that the platform's profiles added by a record. Containers of all kinds share their
/// names. A container that was moved from another list belongs to the author, who wrote a part of it.
fn injected_containers(record: &Record) -> Vec<Box<str>> {
    let lists = ["/spec/containers/", "/spec/initContainers/"];
    let name = |pointer: &str| {
        let name = lists.iter().find_map(|list| pointer.strip_prefix(list))?;
        // A deeper pointer is a part of an author's container.
        (!name.contains('/')).then(|| Box::from(name))
    };
    let moved: Vec<_> = record.moved().filter_map(|pointer| name(&pointer)).collect();
    record.added_by_platform().filter_map(|pointer| name(&pointer)).filter(|name| !moved.contains(name)).collect()
}

/// Derives the outcome from the results of all profiles.
fn conclude(profiles: &[ProfileDecision], nothing_asked: Reason) -> (Outcome, Reason, Option<Box<str>>) {
    let mut refusing = profiles.iter().filter(|decision| decision.outcome == ProfileOutcome::Denied).peekable();
    if let Some(first) = refusing.peek() {
        let reason = first.reason;
        let told = refusing.map(|decision| {
            let detail = decision.detail.as_deref().unwrap_or_default();
            format!("profile {}: {detail}", decision.profile.display_name())
        });
        return (Outcome::Denied, reason, Some(told.collect::<Vec<_>>().join("; ").into()));
    }
    // The first failed profile gives the reason, so that a passed one does not hide it.
    let validated = || profiles.iter().filter(|decision| decision.outcome == ProfileOutcome::Validated);
    match validated().find(|decision| decision.reason != Reason::Valid).or_else(|| validated().next()) {
        Some(decision) => (Outcome::Validated, decision.reason, None),
        None => (Outcome::Skipped, profiles.first().map_or(nothing_asked, |decision| decision.reason), None),
    }
}
