//! The context of a review, shared by the decisions on both paths, the lookups, and the explanations.

use std::borrow::Cow;
use std::sync::Arc;

use pillion_api::names::{FailureMode, INJECTED_ANNOTATION, MIRROR_ANNOTATION, SYSTEM_NAMESPACES};
use pillion_api::profile::Operation;

use super::{Endpoint, Facts, RecordTrust, Review};
use crate::context::EvalContext;
use crate::decision::{Decision, Reason};
use crate::expression::Allowances;
use crate::inject::without_record;
use crate::json::{Malformed, OwnedTape, Value};
use crate::limits::Guardrails;
use crate::lookup::Wanted;
use crate::profile::target::{Action, Phase};
use crate::record::{self, Record};
use crate::schema::{self, Type};
use crate::select::candidates::Candidates;
use crate::select::considered::{Considered, considered};
use crate::select::revisions::{self, TargetObject};
use crate::select::wanted;
use crate::snapshot::{Namespace, Snapshot};

/// A review with its object, its namespace and the snapshot.
pub(super) struct ReviewContext<'r> {
    review: &'r Review<'r>,
    snapshot: &'r Snapshot,
    facts: &'r Facts,
    pub(super) action: Action<'r>,
    pub(super) failure_mode: FailureMode,
    pub(super) namespace: Arc<Namespace>,
    /// The object of the request. For validations of a deletion, the old object.
    pub(super) object: Value<'r>,
    allowances: Allowances,
}

/// The original object of a review, without injection, and the injection record in the object.
pub(super) struct OriginalObject {
    /// The record of earlier passes, without the entries in `policy`.
    pub(super) record: FoundRecord,
    /// The record of the safety net's admission policy, which the API server evaluates before it calls the webhook for
    /// a new pod. The webhook undoes the changes in this record, and makes its decision as if the policy did not exist.
    pub(super) policy: Option<Record>,
    /// The object without the changes in the record. `None` if there is no genuine record.
    restored: Option<OwnedTape>,
}

impl<'r> ReviewContext<'r> {
    /// Returns the context for a decision, or the reason to skip the object.
    pub(super) fn for_decision(
        review: &'r Review<'r>,
        endpoint: Endpoint,
        snapshot: &'r Snapshot,
        facts: &'r Facts,
    ) -> Result<Self, Reason> {
        let envelope = &review.envelope;
        let action = envelope.action(endpoint.phase()).ok_or(Reason::OtherOperation)?;
        let injects_pod = action.phase == Phase::Mutate && action.is_pod();
        if injects_pod && action.operation != Operation::Create {
            return Err(Reason::OtherOperation);
        }
        if !injects_pod && !snapshot.profiles().has_resource(&envelope.namespace, action) {
            return Err(Reason::OtherResource);
        }
        let object = review.object(action).ok_or(Reason::OtherResource)?;
        if SYSTEM_NAMESPACES.contains(&&*envelope.namespace) {
            return Err(Reason::SystemNamespace);
        }
        let context =
            Self::with_object(review, endpoint, snapshot, facts, (action, object)).ok_or(Reason::NotOptedIn)?;
        if action.phase == Phase::Mutate
            && object.at(&["metadata", "deletionTimestamp"]).is_some_and(|time| !time.is_null())
        {
            return Err(Reason::BeingDeleted);
        }
        if envelope.by_node && object.at(&["metadata", "annotations", MIRROR_ANNOTATION]).is_some() {
            return Err(Reason::MirrorPod);
        }
        let is_empty = |containers: Value<'_>| containers.items().next().is_none();
        if injects_pod && object.at(&["spec", "containers"]).is_none_or(is_empty) {
            return Err(Reason::NoContainers);
        }
        Ok(context)
    }

    /// Returns the context. `None` if profiles cannot target the operation, the review has no object, or the namespace
    /// is not opted in.
    fn new(review: &'r Review<'r>, endpoint: Endpoint, snapshot: &'r Snapshot, facts: &'r Facts) -> Option<Self> {
        let action = review.envelope.action(endpoint.phase())?;
        Self::with_object(review, endpoint, snapshot, facts, (action, review.object(action)?))
    }

    /// Like [`Self::new`], with the action and the object of the review, which the caller has read.
    fn with_object(
        review: &'r Review<'r>,
        endpoint: Endpoint,
        snapshot: &'r Snapshot,
        facts: &'r Facts,
        (action, object): (Action<'r>, Value<'r>),
    ) -> Option<Self> {
        let failure_mode = facts.failure_mode(endpoint)?;
        // If the namespace was not found, only the failure mode of the endpoint is known.
        let namespace = facts.namespace.clone().unwrap_or_else(|| Arc::new(Namespace::opted_in(failure_mode)));
        let allowances = Allowances::until(facts.deadline);
        Some(Self { review, snapshot, facts, action, failure_mode, namespace, object, allowances })
    }

    pub(super) fn guardrails(&self) -> &Guardrails {
        self.facts.guardrails.as_deref().unwrap_or_else(|| self.snapshot.guardrails())
    }

    /// Returns the schema of the object.
    pub(super) fn type_(&self) -> &'static Type {
        schema::of(self.action.group, self.action.resource)
    }

    /// Returns the original object, and the injection record that is found in the object.
    pub(super) fn original(&self) -> Result<OriginalObject, Malformed> {
        let record = if self.changes_stored_record() {
            FoundRecord::None
        } else {
            FoundRecord::find(self.object, self.facts.record_trust)
        };
        let restored = match &record {
            FoundRecord::Genuine(record) => without_record(self.object, record, self.type_())?,
            FoundRecord::None | FoundRecord::Foreign => None,
        };
        let undoes_policy = self.action.phase == Phase::Mutate && self.action.operation == Operation::Create;
        let (record, policy) = if undoes_policy { record.split_policy() } else { (record, None) };
        Ok(OriginalObject { record, policy, restored })
    }

    /// Whether the update of a stored object changes its record. Such a record is ignored, because any client that may
    /// update a stored object may also change its annotations.
    fn changes_stored_record(&self) -> bool {
        if self.action.phase != Phase::Validate || self.action.operation != Operation::Update {
            return false;
        }
        let text = |object: Value<'r>| {
            let annotation = object.at(&["metadata", "annotations", INJECTED_ANNOTATION])?;
            annotation.as_str().map(Cow::into_owned)
        };
        self.review.old_object().and_then(text) != text(self.object)
    }

    /// Returns the context for expressions, with the original object.
    pub(super) fn eval_context<'e>(&'e self, original: &'e OriginalObject) -> EvalContext<'e> {
        let envelope = &self.review.envelope;
        let request = self.review.request();
        let object = if self.action.operation == Operation::Delete {
            // A deletion has no final object, so `object` is null, as in the admission policies of Kubernetes.
            request.get("object").unwrap_or(self.object)
        } else {
            original.restored.as_ref().map_or(self.object, OwnedTape::root)
        };
        EvalContext {
            object,
            request,
            namespace_name: &envelope.namespace,
            namespace: &self.namespace,
            uid: &envelope.uid,
            looked_up: &self.facts.looked_up,
            allowances: &self.allowances,
        }
    }

    /// Returns the profiles for the namespace, each at the revision that applies to the object.
    pub(super) fn candidates(&self, original: &OriginalObject) -> Arc<Candidates> {
        // The validating path uses the revisions in the record only for the request that creates the object. For later
        // requests, it uses the active revisions.
        let is_recorded = self.action.phase == Phase::Mutate || self.action.operation == Operation::Create;
        let record = original.record.genuine().filter(|_| is_recorded);
        let target = self.target(original, record);
        self.snapshot.choose_revisions(self.namespace_candidates(), target, &self.facts.looked_up)
    }

    /// Returns the lookups that a decision may need. Conditions are not evaluated, so some lookups may turn out to be
    /// unnecessary.
    fn needs(&self) -> Wanted {
        if self.action.operation == Operation::Delete {
            return Wanted::default();
        }
        let is_new = self.action.operation == Operation::Create;
        let candidates = self.namespace_candidates();
        let has_record = || self.object.at(&["metadata", "annotations", INJECTED_ANNOTATION]).is_some();
        if !candidates.wants_lookups()
            && !revisions::may_need_revisions(&candidates, self.object, is_new && has_record())
        {
            return Wanted::default();
        }
        // A malformed object needs no lookups, because the decision denies it.
        let Ok(original) = self.original() else { return Wanted::default() };
        let target = self.target(&original, original.record.genuine().filter(|_| is_new));
        let (candidates, revisions) = self.snapshot.missing_revisions(candidates, target);
        let mut wanted = wanted(&candidates, self.action, self.failure_mode, target.namespace_name, target.object);
        wanted.objects.extend(revisions);
        wanted
    }

    fn namespace_candidates(&self) -> Arc<Candidates> {
        self.snapshot.candidates(&self.review.envelope.namespace, &self.namespace)
    }

    /// Returns the object for which revisions are chosen.
    fn target<'t>(&'t self, original: &'t OriginalObject, record: Option<&'t Record>) -> TargetObject<'t> {
        let EvalContext { object, namespace_name, namespace, .. } = self.eval_context(original);
        TargetObject { namespace_name, namespace, object: if object.is_null() { self.object } else { object }, record }
    }
}

impl Review<'_> {
    /// Returns the request of the review.
    fn request(&self) -> Value<'_> {
        // The field exists, because the envelope was parsed from it.
        self.tape.root().get("request").unwrap_or_else(|| self.tape.root())
    }

    /// Returns the object that the decision is about, if there is one. For the validation of a deletion, it is the old
    /// object.
    fn object(&self, action: Action<'_>) -> Option<Value<'_>> {
        match (action.phase, action.operation) {
            (Phase::Validate, Operation::Delete) => self.old_object(),
            _ => self.new_object(),
        }
    }

    /// Returns the lookups that a decision may need. Of `facts`, only the namespace and the record trust affect the
    /// result. Most reviews need no lookups, and the check for this case is fast.
    #[must_use]
    pub fn needs(&self, endpoint: Endpoint, snapshot: &Snapshot, facts: &Facts) -> Wanted {
        if SYSTEM_NAMESPACES.contains(&self.namespace()) {
            return Wanted::default();
        }
        ReviewContext::new(self, endpoint, snapshot, facts).map(|context| context.needs()).unwrap_or_default()
    }

    /// Returns the cluster profiles and the namespace's profiles for `pillion explain`. Requested profiles have the
    /// values and sources of their parameters. [`Review::decide`] does not need the result. Empty if the namespace is
    /// not opted in, or if the review has no valid object.
    #[must_use]
    pub fn considered(&self, endpoint: Endpoint, snapshot: &Snapshot, facts: &Facts) -> Vec<Considered> {
        let Some(context) = ReviewContext::new(self, endpoint, snapshot, facts) else { return Vec::new() };
        let Ok(original) = context.original() else { return Vec::new() };
        let candidates = context.candidates(&original);
        let profiles = snapshot.profiles().iter();
        considered(profiles, &candidates, context.action, context.failure_mode, context.eval_context(&original))
    }
}

/// The injection record in the annotations of an object.
pub(super) enum FoundRecord {
    None,
    Genuine(Record),
    /// A record that Pillion did not write, or that this version cannot read.
    Foreign,
}

impl FoundRecord {
    /// Reads the record of an object.
    fn find(object: Value<'_>, trust: RecordTrust) -> Self {
        let Some(annotation) = object.at(&["metadata", "annotations", INJECTED_ANNOTATION]) else { return Self::None };
        if trust == RecordTrust::ManagedFields && !record::is_genuine(object) {
            return Self::Foreign;
        }
        match annotation.as_str().and_then(|text| Record::read(&text)) {
            Some(record) => Self::Genuine(record),
            None => Self::Foreign,
        }
    }

    /// Separates the entries of the safety net's admission policy from a genuine record.
    fn split_policy(self) -> (Self, Option<Record>) {
        match self.genuine().and_then(Record::split_policy) {
            Some((policy, webhook)) => (webhook.map_or(Self::None, Self::Genuine), Some(policy)),
            None => (self, None),
        }
    }

    /// Returns the record, if it is genuine.
    pub(super) const fn genuine(&self) -> Option<&Record> {
        match self {
            Self::Genuine(record) => Some(record),
            Self::None | Self::Foreign => None,
        }
    }
}

/// Denies an object with a duplicate key.
pub(super) fn malformed_object(malformed: &Malformed) -> Decision {
    Decision::denied(Reason::DuplicateKey, format!("{:?}", malformed.key))
}
