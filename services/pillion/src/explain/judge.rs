//! Derives an explanation from facts, without I/O: the engine computes the decision, [`mod@super::webhooks`] models the
//! API server, and the audit's rules explain the state of a stored pod.

use std::collections::BTreeMap;

use pillion_api::names::{FailureMode, INJECT_LABEL, INJECTION_LABEL, SYSTEM_NAMESPACES};
use pillion_api::opt_in::OptIn;
use pillion_api::profile::Activation;
use pillion_control::informer::cluster_listing;
use pillion_engine::decision::{Decision, Outcome, ProfileOutcome, Reason};
use pillion_engine::profile::CompiledProfile;
use pillion_engine::review::{Endpoint, Facts, RecordTrust, Review};
use pillion_engine::select::considered::Considered;
use serde::Serialize;
use serde_json::Value;

use super::facts::{self, Change, ExplainFacts, ExplainedObject, Manager, Origin};
use super::profiles::{self, ProfileView};
use super::webhooks::{self, CallOutcome, EntryRequest, EntryView};
use crate::availability;
use crate::finding::{Code, Finding, ObjectRef, Severity, sorted};

/// The explanation of one object.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Explanation {
    pub(crate) object: ObjectRef,
    pub(crate) verdict: Verdict,
    /// The entries of webhook configurations for pods, and how the API server treats them.
    pub(crate) webhooks: Vec<EntryView>,
    /// The engine's decision for the object as its author wrote it.
    pub(crate) decision: DecisionView,
    pub(crate) profiles: Vec<ProfileView>,
    pub(crate) changes: Vec<Change>,
    /// The field managers of the object, with the times of their writes.
    pub(crate) managers: Vec<Manager>,
    pub(crate) findings: Vec<Finding>,
}

/// The verdict on an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum Verdict {
    /// The pod has all its profiles, possibly in an earlier revision, and no injected part is missing.
    Injected,
    /// The pod is injected, but lacks one of its profiles or an injected part.
    PartlyInjected,
    /// The pod has no injected parts.
    NotInjected,
    /// A new pod would be injected.
    WouldBeInjected,
    /// A new pod would not be injected.
    WouldNotBeInjected,
    /// A new pod would be rejected.
    WouldBeRejected,
    /// The pod has terminated, or is being deleted: no action is needed.
    Ended,
    /// For a namespace: the API server calls the webhook for its pods, or may call it.
    OptedIn,
    /// For a namespace: the API server does not call the webhook for its pods.
    NotOptedIn,
}

/// The engine's decision.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct DecisionView {
    pub(crate) outcome: &'static str,
    pub(crate) reason: &'static str,
    /// The reason as a sentence, with details of this object.
    pub(crate) message: String,
    /// Warnings for the pod's author.
    pub(crate) notices: Vec<String>,
}

impl Verdict {
    /// Returns the human-readable verdict.
    pub(crate) const fn words(self) -> &'static str {
        match self {
            Self::Injected => "injected",
            Self::PartlyInjected => "partly injected",
            Self::NotInjected => "not injected",
            Self::WouldBeInjected => "would be injected",
            Self::WouldNotBeInjected => "would not be injected",
            Self::WouldBeRejected => "would be rejected",
            Self::Ended => "has ended",
            Self::OptedIn => "opted in",
            Self::NotOptedIn => "not opted in",
        }
    }

    /// Whether the verdict requires no action.
    pub(crate) const fn is_good(self) -> bool {
        matches!(self, Self::Injected | Self::WouldBeInjected | Self::Ended | Self::OptedIn)
    }
}

/// The state of an explanation in progress.
pub(super) struct Judging<'a> {
    pub(super) facts: &'a ExplainFacts,
    pub(super) question: &'a ExplainedObject,
    pub(super) entries: Vec<EntryView>,
    pub(super) decision: Decision,
    pub(super) considered: Vec<Considered>,
    pub(super) findings: Vec<Finding>,
}

/// Explains an object.
pub(crate) fn judge(facts: &ExplainFacts, question: &ExplainedObject) -> Explanation {
    let entries = webhooks::entries(
        facts.configurations.as_deref().unwrap_or_default(),
        &facts.release,
        EntryRequest {
            namespace: &facts.namespace.name,
            namespace_labels: &facts.namespace.labels,
            pod: question.pod(),
            user: question.review.pointer("/request/userInfo").unwrap_or(&Value::Null),
            is_user_guessed: question.is_user_guessed,
            is_dry_run: question.review.pointer("/request/dryRun").and_then(Value::as_bool) == Some(true),
        },
    );
    let (decision, considered) = decide(facts, question, &entries);
    let mut judging = Judging { facts, question, entries, decision, considered, findings: Vec::new() };
    judging.installation();
    judging.call();
    judging.object();
    judging.request();
    judging.selected();
    judging.readiness();
    judging.workload();
    let changes = question.found.as_ref().map(facts::of_own_record).unwrap_or_default();
    let missing = judging.stored(&changes);
    let verdict = judging.verdict(missing);
    if question.origin == Origin::Stored && verdict.is_good() {
        // Injected pods keep working without a webhook replica.
        for finding in judging.findings.iter_mut().filter(|finding| finding.code == Code::NoReadyReplica) {
            finding.severity = Severity::Info;
        }
    }
    let knows_profiles = judging.knows_profiles();
    let Judging { entries, decision, considered, findings, .. } = judging;
    let mut view = view(&decision);
    if !knows_profiles && matches!(decision.reason, Reason::NoProfile | Reason::NotRequested) {
        view.message.push_str(" (not all profiles can be read)");
    }
    Explanation {
        object: question.object.clone(),
        verdict,
        webhooks: entries,
        profiles: profiles::views(&decision, &considered, facts),
        decision: view,
        changes,
        managers: question.found.as_ref().map(facts::managers).unwrap_or_default(),
        findings: sorted(findings),
    }
}

/// Returns the engine's decision for the output.
pub(crate) fn view(decision: &Decision) -> DecisionView {
    DecisionView {
        outcome: decision.outcome.as_str(),
        reason: decision.reason.as_str(),
        message: profiles::describe_reason(decision.reason, decision.detail.as_deref()),
        notices: decision.notices.iter().map(ToString::to_string).collect(),
    }
}

/// Runs the engine on the object, with the endpoint that the API server calls, or with [`Endpoint::Any`] if no call is
/// certain.
fn decide(facts: &ExplainFacts, question: &ExplainedObject, entries: &[EntryView]) -> (Decision, Vec<Considered>) {
    let called = entries.iter().find(|entry| entry.ours && entry.outcome == CallOutcome::Called);
    let endpoint = called.and_then(|entry| entry.failure_mode).map_or(Endpoint::Any, Endpoint::FailureMode);
    let nothing = || (Decision::skipped(Reason::OtherResource), Vec::new());
    let Ok(body) = serde_json::to_vec(&question.review) else { return nothing() };
    let Ok(review) = Review::parse(&body) else { return nothing() };
    let trust = match question.origin {
        // A manifest in a file has no `managedFields`. Its record is trusted, as if an earlier run of this program had
        // written it.
        Origin::Template if !facts.is_live => RecordTrust::AsFound,
        _ => RecordTrust::ManagedFields,
    };
    let asked = Facts {
        namespace: facts.namespace.found.clone(),
        looked_up: question.looked_up.clone(),
        record_trust: trust,
        guardrails: None,
        deadline: None,
    };
    let considered = review.considered(endpoint, &facts.snapshot, &asked);
    match review.decide(endpoint, &facts.snapshot, &asked) {
        Ok(decided) => (decided.decision, considered),
        Err(fault) => {
            let detail = Some(fault.to_string().into());
            (Decision { detail, ..Decision::skipped(Reason::LimitExceeded) }, considered)
        }
    }
}

impl Judging<'_> {
    pub(super) fn find(&mut self, code: Code, message: impl Into<String>) -> &mut Finding {
        self.find_of(code, self.question.object.clone(), message)
    }

    pub(super) fn find_of(&mut self, code: Code, object: ObjectRef, message: impl Into<String>) -> &mut Finding {
        self.findings.push(Finding::new(code, object, message));
        let last = self.findings.len() - 1;
        #[expect(clippy::indexing_slicing, reason = "the element was just pushed")]
        &mut self.findings[last]
    }

    pub(super) fn namespace(&self) -> ObjectRef {
        ObjectRef::new("Namespace", None, &self.facts.namespace.name)
    }

    pub(super) fn has(&self, code: Code) -> bool {
        self.findings.iter().any(|finding| finding.code == code)
    }

    /// Whether the API server calls the webhook, or may call it.
    pub(super) fn is_called(&self) -> bool {
        let is_called = |entry: &EntryView| matches!(entry.outcome, CallOutcome::Called | CallOutcome::Unknown);
        self.entries.iter().any(|entry| entry.ours && is_called(entry))
    }

    /// Whether all profiles could be read.
    pub(super) fn knows_profiles(&self) -> bool {
        !self.facts.unread.iter().any(|(part, _)| part.is_of_profiles())
    }

    /// Reports findings about the object itself.
    fn object(&mut self) {
        match self.decision.reason {
            Reason::MirrorPod => {
                self.find(Code::MirrorPod, "it mirrors a static pod of the kubelet, which admission cannot change");
            }
            Reason::BeingDeleted => {
                self.find(Code::BeingDeleted, "it is being deleted");
            }
            Reason::NoContainers | Reason::OtherOperation | Reason::OtherResource
                if self.question.origin != Origin::GenericPod =>
            {
                let message = self.decision.reason.sentence();
                self.find(Code::NothingToInject, message);
            }
            _ => {}
        }
        let review = self.question.review.get("request");
        if self.question.origin == Origin::Review
            && review.and_then(|request| request.get("dryRun")).and_then(Value::as_bool) == Some(true)
        {
            self.find(Code::DryRun, "the request was a dry run: the object was never stored");
        }
        if let Some((account, false)) = &self.question.account {
            let namespace = self.facts.namespace.name.clone();
            let message =
                format!("service account {account} does not exist, so the API server rejects pods that use it");
            self.find_of(
                Code::ServiceAccountMissing,
                ObjectRef::new("ServiceAccount", Some(&namespace), account),
                message,
            )
            .remedy =
                format!("kubectl -n {namespace} create serviceaccount {account}, or correct spec.serviceAccountName");
        }
    }

    /// Reports findings about the requests for profiles.
    fn request(&mut self) {
        let notices = self.decision.notices.clone();
        for notice in &notices {
            profiles::notice(
                notice,
                &self.considered,
                &self.facts.stored,
                &self.facts.namespace.name,
                |code, profile, message| {
                    let finding = Finding::new(code, self.question.object.clone(), message);
                    self.findings.push(match profile {
                        Some(profile) => finding.of_profile(profile),
                        None => finding,
                    });
                },
            );
        }
        if let Some(workload) = &self.question.workload {
            let misplaced = profiles::misplaced(workload, self.question.pod(), &self.facts.snapshot);
            if !misplaced.is_empty() {
                let kind = workload.get("kind").and_then(Value::as_str).unwrap_or("workload");
                let name = workload.pointer("/metadata/name").and_then(Value::as_str).unwrap_or_default();
                let object = ObjectRef::new(kind, Some(&self.facts.namespace.name), name);
                let keys = misplaced.join(", ");
                let message =
                    format!("{keys} is on the {kind} itself, where it has no effect, and not in its pod template");
                self.find_of(Code::AnnotationOnWorkload, object, message).remedy =
                    format!("move {keys} to spec.template.metadata of the {kind}");
            }
        }
        if self.question.origin == Origin::GenericPod {
            return;
        }
        let excluded = profiles::excluded_by_namespace(&self.considered, self.question.pod(), &self.facts.namespace);
        let is_nothing_asked = self.decision.profiles.is_empty();
        for (profile, is_asked) in excluded {
            if (is_asked || is_nothing_asked) && !self.has(Code::NamespaceSelector) {
                let object = self.namespace();
                self.find_of(Code::NamespaceSelector, object, profiles::namespace_mismatch(&profile)).profile =
                    Some(profile.name().to_string());
            }
        }
        let is_said = [
            Code::AnnotationOnWorkload,
            Code::NamespaceSelector,
            Code::UnknownProfile,
            Code::AmbiguousRequest,
            Code::ProfileNotReady,
            Code::OptedOut,
        ]
        .into_iter()
        .any(|code| self.has(code));
        let is_said = is_said || !self.knows_profiles();
        match self.decision.reason {
            Reason::NoProfile if !is_said => {
                let name = self.facts.namespace.name.clone();
                self.find(Code::NoProfile, format!("no profile matches namespace {name}"));
            }
            Reason::NotRequested if !is_said => {
                let names: Vec<_> = self.considered.iter().map(|one| one.profile.name().to_string()).take(8).collect();
                let near = profiles::near_request(self.question.pod(), &self.considered);
                let near = near.map(|near| format!("; {near}")).unwrap_or_default();
                let message = format!(
                    "neither the pod nor its namespace requests a profile{near}; available: {}",
                    names.join(", ")
                );
                // With a single profile, the remedy can state how to request it.
                let remedy = match self.considered.as_slice() {
                    [one] => profiles::asking(&one.profile),
                    _ => None,
                };
                let finding = self.find(Code::NotRequested, message);
                if let Some(remedy) = remedy {
                    finding.remedy = format!("{remedy}, in the pod template");
                }
            }
            Reason::OptedOut if self.decision.profiles.is_empty() && !self.has(Code::OptedOut) => {
                self.find(Code::OptedOut, "the pod opts out");
            }
            _ => {}
        }
        if self.decision.outcome == Outcome::Denied {
            let message = view(&self.decision).message;
            self.find(Code::Rejected, message);
        }
    }

    /// Reports findings about profiles that were not applied.
    fn selected(&mut self) {
        let decisions = self.decision.profiles.clone();
        for decision in &decisions {
            if !matches!(
                decision.outcome,
                ProfileOutcome::NotMatched | ProfileOutcome::Skipped | ProfileOutcome::Denied
            ) {
                continue;
            }
            let mut code = profiles::code(decision.reason);
            let is_condition = matches!(decision.reason, Reason::MatchCondition | Reason::Precondition);
            if is_condition && self.matches_without_host_network(&decision.profile) {
                code = Some(Code::HostNetwork);
            }
            let Some(code) = code.filter(|code| *code != Code::OptedOut || !self.has(Code::OptedOut)) else { continue };
            let message = profiles::describe_decision(decision);
            let name = decision.profile.name().to_string();
            let is_for_others = decision.outcome == ProfileOutcome::NotMatched
                && match code {
                    Code::OptedOut => true,
                    Code::MatchCondition | Code::ObjectSelector => decision.profile.activation() == Activation::Always,
                    _ => false,
                };
            let finding = self.find(code, message);
            finding.profile = Some(name);
            // An always active profile may exclude this pod intentionally, and a pod may opt out of a profile
            // intentionally.
            if is_for_others {
                finding.severity = Severity::Info;
            }
        }
        let applied = decisions
            .iter()
            .any(|decision| matches!(decision.outcome, ProfileOutcome::Applied | ProfileOutcome::Unchanged));
        // If no profile was applied, a mismatch or an opt-out is an error.
        for finding in self.findings.iter_mut().filter(|_| !applied) {
            if matches!(finding.code, Code::MatchCondition | Code::ObjectSelector | Code::OptedOut) {
                finding.severity = Severity::Error;
            }
        }
    }

    /// Whether the pod sets `hostNetwork`, and the profile would be applied if it did not. Runs the engine on a copy of
    /// the pod without this field.
    fn matches_without_host_network(&self, profile: &CompiledProfile) -> bool {
        if self.question.pod().pointer("/spec/hostNetwork").and_then(Value::as_bool) != Some(true) {
            return false;
        }
        let mut review = self.question.review.clone();
        if let Some(spec) = review.pointer_mut("/request/object/spec").and_then(Value::as_object_mut) {
            spec.remove("hostNetwork");
        }
        let other = ExplainedObject {
            object: self.question.object.clone(),
            origin: self.question.origin,
            review,
            found: None,
            is_user_guessed: self.question.is_user_guessed,
            looked_up: self.question.looked_up.clone(),
            workload: None,
            account: None,
            rejection: None,
        };
        let (decision, _) = decide(self.facts, &other, &self.entries);
        decision.profiles.iter().any(|other| {
            other.profile.name() == profile.name()
                && matches!(other.outcome, ProfileOutcome::Applied | ProfileOutcome::Unchanged)
        })
    }

    /// Reports profiles whose stored version is not active, or that are rolled back. If the object is not a namespace,
    /// reports only profiles that concern the pod.
    fn readiness(&mut self) {
        let facts = self.facts;
        let is_here = |stored: &&cluster_listing::Stored| {
            stored.name.namespace.as_deref().is_none_or(|namespace| namespace == facts.namespace.name)
        };
        for stored in facts.stored.iter().filter(is_here) {
            if self.question.origin != Origin::GenericPod
                && !profiles::concerns(stored, self.question.pod(), &facts.namespace)
            {
                continue;
            }
            let finding = profiles::readiness(stored, &facts.broken).or_else(|| profiles::rolled_back(stored));
            self.findings.extend(finding);
        }
        // A requested profile that is not ready exists, so it is not reported as unknown. The findings that no profile
        // is requested or that there is none are also removed.
        if self.has(Code::ProfileNotReady) {
            let not_ready: Vec<_> = self
                .findings
                .iter()
                .filter(|finding| finding.code == Code::ProfileNotReady)
                .map(|finding| finding.object.name.clone())
                .collect();
            self.findings.retain(|finding| {
                let is_named = |name: &String| finding.profile.as_deref() == Some(name);
                !(matches!(finding.code, Code::NotRequested | Code::NoProfile)
                    || (finding.code == Code::UnknownProfile && not_ready.iter().any(is_named)))
            });
        }
    }

    /// Reports pods that a workload lacks because the API server rejects them.
    fn workload(&mut self) {
        let Some((missing, wanted, why)) = self.question.missing_pods() else { return };
        let message = format!("{missing} of {wanted} pods are missing: {why}");
        let is_failed_call = why.contains("failed calling webhook");
        let restart = self.restart_command().map(|command| format!(". To retry at once: {command}"));
        let finding = self.find(Code::PodsMissing, message);
        if is_failed_call {
            // Workload controllers retry with exponential backoff, from 5 ms to 1000 s.
            let pause = "make a replica ready; the controller manager then retries after a pause of up to 17 minutes";
            finding.remedy = format!("{pause}{}", restart.unwrap_or_default());
        }
    }

    fn verdict(&self, missing: bool) -> Verdict {
        let applies = matches!(self.decision.outcome, Outcome::Injected | Outcome::Unchanged);
        let stands = self.is_called() || self.facts.configurations.is_none();
        match self.question.origin {
            Origin::GenericPod if self.is_called() => Verdict::OptedIn,
            Origin::GenericPod => Verdict::NotOptedIn,
            Origin::Stored if self.question.has_ended() => Verdict::Ended,
            Origin::Stored => match (self.question.is_injected(), missing || self.has(Code::RemovedAfterInjection)) {
                (true, true) => Verdict::PartlyInjected,
                (true, false) => Verdict::Injected,
                (false, _) => Verdict::NotInjected,
            },
            Origin::Template | Origin::Review if self.decision.outcome == Outcome::Denied => Verdict::WouldBeRejected,
            Origin::Template | Origin::Review if stands && self.facts.no_replica.is_some() => {
                match self.facts.namespace.failure_mode() {
                    Some(FailureMode::Required) => Verdict::WouldBeRejected,
                    _ => Verdict::WouldNotBeInjected,
                }
            }
            Origin::Template | Origin::Review if applies && stands && self.facts.switched_off.is_none() => {
                Verdict::WouldBeInjected
            }
            Origin::Template | Origin::Review => Verdict::WouldNotBeInjected,
        }
    }
}

/// A label whose similarity to the opt-in label exceeds this value is considered a misspelt opt-in label.
const MIN_SIMILARITY: f64 = 0.93;
/// Label values that mean "not opted in".
pub(crate) const NO: [&str; 6] = ["disabled", "false", "off", "no", "none", "never"];

impl Judging<'_> {
    /// Reports findings about the installation, which concern every pod.
    pub(super) fn installation(&mut self) {
        let facts = self.facts;
        let release = facts.release.clone();
        let object = || ObjectRef::new("Release", Some(release.namespace()), release.name());
        let (needed, others): (Vec<_>, Vec<_>) = facts.unread.iter().partition(|(part, _)| part.is_needed());
        for (part, why) in needed {
            self.find_of(Code::Unreadable, object(), format!("{part} cannot be read: {why}"));
        }
        // Without these parts, the other findings are still reliable. A tenant usually cannot read any of them, so they
        // are one finding.
        if let [(_, why), ..] = others[..] {
            let parts: Vec<_> = others.iter().map(|(part, _)| part.to_string()).collect();
            let message = format!("{} cannot be read: {why}", parts.join(", "));
            self.find_of(Code::Unreadable, object(), message).severity = Severity::Info;
        }
        if let Some(by) = &facts.switched_off {
            let by = Some(by.as_str()).filter(|by| !by.is_empty());
            self.findings.push(availability::injection_disabled(&release, by));
        }
        if facts.configurations.is_some() && !self.entries.iter().any(|entry| entry.ours) {
            self.findings.push(availability::not_registered(&release));
        }
        if let Some(finding) = &facts.no_replica {
            let then = match facts.namespace.failure_mode() {
                Some(FailureMode::Required) => "; new pods of this namespace are rejected",
                Some(FailureMode::Enabled) => "; new pods of this namespace get no sidecars",
                Some(FailureMode::Held) => "; new pods of this namespace wait",
                None => "",
            };
            let message = format!("{}{then}", finding.message);
            self.findings.push(Finding { message, ..finding.clone() });
        }
    }

    /// Explains why the API server does not call the webhook.
    pub(super) fn call(&mut self) {
        let namespace = &self.facts.namespace;
        if SYSTEM_NAMESPACES.contains(&&*namespace.name) {
            let message =
                format!("{} is a system namespace, and Pillion never injects into system namespaces", namespace.name);
            let object = self.namespace();
            self.find_of(Code::SystemNamespace, object, message);
            return;
        }
        if self.is_called()
            || (self.facts.configurations.is_none()
                && namespace.found.as_ref().is_none_or(|found| found.failure_mode().is_some()))
        {
            return;
        }
        let ours: Vec<_> = self.entries.iter().filter(|entry| entry.ours).cloned().collect();
        if let Some(entry) = ours.iter().find(|entry| entry.outcome == CallOutcome::ObjectSelector) {
            let message = format!("the API server does not call {}: {}", entry.name, entry.detail);
            let remedy =
                "remove the label pillion.dev/inject=false from the pod template if the pod should be injected";
            self.find(Code::OptedOut, message).remedy = remedy.into();
            return;
        }
        for entry in &ours {
            let code = match entry.outcome {
                CallOutcome::ConditionFalse => Code::WebhookCondition,
                CallOutcome::ConditionFailed => Code::WebhookConditionFailed,
                _ => continue,
            };
            let object = ObjectRef::new("MutatingWebhookConfiguration", None, &entry.configuration);
            let policy = if code == Code::WebhookConditionFailed {
                format!("; failurePolicy {} applies", entry.failure_policy)
            } else {
                String::new()
            };
            self.find_of(code, object, format!("entry {}: {}{policy}", entry.name, entry.detail));
            return;
        }
        self.opt_in();
    }

    /// Explains why the namespace is not opted in.
    fn opt_in(&mut self) {
        let (namespace, opt_in) = (&self.facts.namespace, &self.facts.opt_in);
        let object = self.namespace();
        let name = namespace.name.clone();
        if namespace.found.is_none() && self.facts.is_live {
            self.find_of(Code::NotFound, object, format!("namespace {name} does not exist, or cannot be read"));
            return;
        }
        if namespace.found.as_ref().is_some_and(|found| found.failure_mode().is_some()) {
            if self.entries.iter().any(|entry| entry.ours) {
                self.find_of(
                    Code::ExcludedNamespace,
                    object,
                    format!("namespace {name} is opted in, but the webhook configuration excludes its name or has no entry for its failure mode"),
                );
            }
            return;
        }
        let label = namespace.labels.iter().find(|(key, _)| opt_in.labels().iter().any(|label| label.key == **key));
        if let Some((key, value)) = label {
            let values: Vec<_> = opt_in
                .labels()
                .iter()
                .filter(|label| label.key == *key)
                .flat_map(|label| label.values.iter().map(|(value, _)| value.clone()))
                .collect();
            let message =
                format!("the namespace's label {key}={value} does not opt it in; use one of {}", values.join(", "));
            // The values in `NO` show that the namespace is deliberately not opted in.
            let is_meant = NO.contains(&&**value);
            let code = if is_meant { Code::NotOptedIn } else { Code::OptInValueUnknown };
            let remedy = format!(
                "kubectl label namespace {name} {key}={} --overwrite",
                values.first().map_or("enabled", String::as_str)
            );
            self.find_of(code, object, message).remedy = remedy;
            return;
        }
        let snapshot = &self.facts.snapshot;
        let asking = |key: &str| snapshot.profiles().iter().any(|profile| profile.request_keys().any(|own| own == key));
        let remedy = format!("kubectl label namespace {name} {INJECTION_LABEL}=enabled, then restart its workloads");
        if let Some((key, value)) = misspelt(&namespace.labels, opt_in, &asking) {
            let message = format!("the namespace's label {key}={value} looks like a misspelt {INJECTION_LABEL}");
            self.find_of(Code::OptInLabelMisspelt, object, message).remedy = remedy;
            return;
        }
        let labels: Vec<_> = opt_in.labels().iter().map(|label| label.key.clone()).collect();
        self.find_of(
            Code::NotOptedIn,
            object,
            format!("namespace {name} has no label that opts it in: {}", labels.join(" or ")),
        )
        .remedy = remedy;
    }
}

/// Returns a label that resembles `pillion.dev/injection`, unless profiles use it for requests. `None` if no label
/// resembles it, or if there is an opt-in label.
pub(crate) fn misspelt<'l>(
    labels: &'l BTreeMap<String, String>,
    opt_in: &OptIn,
    asks_for_a_profile: &dyn Fn(&str) -> bool,
) -> Option<(&'l str, &'l str)> {
    let known = |key: &str| opt_in.labels().iter().any(|label| label.key == key);
    if labels.keys().any(|key| known(key)) {
        return None;
    }
    let is_alike = |key: &str| {
        let key = key.to_lowercase();
        key == INJECT_LABEL || strsim::jaro_winkler(&key, INJECTION_LABEL) > MIN_SIMILARITY
    };
    labels
        .iter()
        .find(|(key, _)| is_alike(key) && !asks_for_a_profile(key))
        .map(|(key, value)| (key.as_str(), value.as_str()))
}
