//! Explains the state of a stored pod: compares its injection record with the expected one, and looks for the cause of
//! a difference at the time of the pod's creation.

use std::sync::Arc;

use pillion_api::names::INJECTION_GATE;
use pillion_control::audit::{self, Cause, Circumstances, ProfileAge, State};
use pillion_engine::audit::Injected;
use pillion_engine::decision::ProfileOutcome;
use serde_json::Value;

use super::facts::{self, Change, ChangeKind, Origin};
use super::judge::Judging;
use super::sidecar;
use super::webhooks::CallOutcome;
use crate::finding::{Code, Severity};

impl Judging<'_> {
    /// Compares the pod with the expected state. Returns true if the pod lacks a profile.
    pub(super) fn stored(&mut self, changes: &[Change]) -> bool {
        let question = self.question;
        let (Some(pod), Some(found)) = (question.stored_tape(), &question.found) else { return false };
        if question.origin != Origin::Stored {
            return false;
        }
        if question.has_ended() {
            // A pod that has terminated or is being deleted needs no action.
            for finding in &mut self.findings {
                finding.severity = Severity::Info;
            }
            self.find(Code::BeingDeleted, "it has ended, or is being deleted");
            return false;
        }
        let gates = found.pointer("/spec/schedulingGates").and_then(Value::as_array).into_iter().flatten();
        if gates.into_iter().any(|gate| gate.get("name").and_then(Value::as_str) == Some(INJECTION_GATE)) {
            self.find(Code::Held, "it waits for its injection: no replica answered when it was created");
        }
        let has = match pillion_engine::audit::read(pod.root()).injected {
            Injected::Foreign if self.has(Code::ForeignRecord) => Vec::new(),
            Injected::Foreign => {
                self.find(Code::ForeignRecord, "its annotation pillion.dev/injected was not written by Pillion");
                Vec::new()
            }
            Injected::Nothing => Vec::new(),
            Injected::Profiles(profiles) => profiles,
        };
        self.report_removed_parts(changes);
        self.failing(found);
        let wanted: Vec<_> = self
            .decision
            .profiles
            .iter()
            .filter(|decision| matches!(decision.outcome, ProfileOutcome::Applied | ProfileOutcome::Unchanged))
            .map(|decision| Arc::clone(&decision.profile))
            .collect();
        let mut missing = false;
        for profile in &wanted {
            let name = profile.display_name();
            let recorded = has.iter().find(|(known, _)| **known == *name).map(|(_, revision)| &**revision);
            let state = match recorded {
                None => State::Missing,
                Some(revision) if *revision != *profile.revision() => State::Outdated,
                Some(_) => continue,
            };
            missing |= state == State::Missing;
            self.explain_state(name, state, !has.is_empty(), (recorded, Some(profile.revision())));
        }
        let has_all = self.knows_profiles();
        for (name, revision) in has.iter().filter(|_| has_all) {
            let active = self.considered.iter().find(|one| one.profile.display_name() == &**name);
            let is_wanted = wanted.iter().any(|profile| profile.display_name() == &**name);
            if !is_wanted && active.is_none_or(|one| one.profile.revision() != &**revision) {
                self.explain_state(name, State::Orphaned, true, (Some(revision), None));
            }
        }
        missing
    }

    /// Reports injected containers that do not run or are not ready, and a pod that no node has room for.
    fn failing(&mut self, pod: &Value) {
        let (facts, question) = (self.facts, self.question);
        let (namespace, name) = (&facts.namespace.name, &question.object.name);
        let restart = self.restart();
        for sidecar in sidecar::failing(pod, facts.now) {
            let remedy = sidecar.remedy(namespace, name, &restart);
            let finding = self.find(Code::SidecarNotRunning, sidecar.message());
            finding.remedy = remedy;
            finding.profile = Some(sidecar.profile);
        }
        if let Some(why) = sidecar::unscheduled(pod) {
            self.find(Code::NotScheduled, why);
        }
    }

    /// Reports injected parts that are missing, and other webhooks that may have removed them.
    fn report_removed_parts(&mut self, changes: &[Change]) {
        let gone: Vec<_> =
            changes.iter().filter(|change| change.what == ChangeKind::Added && !change.present).collect();
        let Some(first) = gone.first() else { return };
        let others: Vec<_> = self
            .entries
            .iter()
            .filter(|entry| !entry.ours && matches!(entry.outcome, CallOutcome::Called | CallOutcome::Unknown))
            .map(|entry| format!("{} of {}", entry.name, entry.configuration))
            .collect();
        let others = if others.is_empty() {
            "no other mutating webhook is called for it now, so a policy or an earlier webhook removed it".to_owned()
        } else {
            format!("other webhooks that are called for it: {}", others.join(", "))
        };
        let paths: Vec<_> = gone.iter().map(|change| change.path.as_str()).collect();
        let message = format!("Pillion added {}, which is missing now; {others}", paths.join(", "));
        self.find(Code::RemovedAfterInjection, message).profile = Some(first.by.clone());
    }

    /// Explains a difference between a stored pod and a profile. `revisions` contains the recorded and the expected
    /// revision.
    fn explain_state(
        &mut self,
        profile: &str,
        state: State,
        is_recorded: bool,
        revisions: (Option<&str>, Option<&str>),
    ) {
        let (has, want) = (revisions.0.unwrap_or_default(), revisions.1.unwrap_or_default());
        let (facts, question) = (self.facts, self.question);
        // If the API server does not call the webhook, the missing profile is explained already.
        if state == State::Missing && !self.is_called() && facts.configurations.is_some() {
            return;
        }
        let created = question.created();
        let stored = facts.stored.iter().find(|stored| stored.name.to_string() == profile);
        let age = stored.map(|stored| ProfileAge::of(&stored.metadata)).unwrap_or_default();
        let circumstances = Circumstances {
            created,
            is_recorded,
            opted_in: facts.namespace.age.opted_in,
            namespace_changed: facts.namespace.age.changed,
            profile_gone: stored.is_none(),
            profile_created: age.created,
            profile_changed: age.changed,
            not_called: facts.outages.at(created),
        };
        let cause = audit::cause(state, &circumstances);
        let (code, message) = match (state, cause) {
            (State::Outdated, _) => {
                (Code::OutdatedRevision, format!("the pod has revision {has} of the profile, and new pods get {want}"))
            }
            (State::Orphaned, _) => {
                (Code::OrphanedProfile, format!("the pod has the profile, but {}", cause.sentence()))
            }
            (_, Cause::BeforeOptIn) => {
                (Code::CreatedBeforeOptIn, self.times("the namespace was opted in", circumstances.opted_in))
            }
            (_, Cause::ProfileCreated) => {
                (Code::CreatedBeforeProfile, self.times("the profile was created", age.created))
            }
            (_, Cause::SwitchedOff) => {
                (Code::SwitchedOff, "injection was disabled when the pod was created".to_owned())
            }
            (_, Cause::NamespaceChanged) => {
                (Code::NamespaceChanged, self.times("the namespace was changed", circumstances.namespace_changed))
            }
            (_, Cause::ProfileChanged | Cause::ProfileDeleted) => {
                (Code::ProfileChanged, self.times("the profile was changed", age.changed))
            }
            (_, Cause::Skipped) => {
                (Code::ProfileSkipped, "the webhook reviewed the pod, and skipped the profile".to_owned())
            }
            (_, Cause::WebhookUnavailable) => (Code::WebhookUnavailable, self.absence()),
            (_, Cause::Unknown) => (Code::Unexplained, self.unexplained()),
        };
        let remedy = self.restart();
        let finding = self.find(code, message);
        finding.profile = Some(profile.to_owned());
        if code != Code::SwitchedOff {
            finding.remedy = remedy;
        }
    }

    fn times(&self, what: &str, when: Option<i64>) -> String {
        let time =
            |seconds: i64| jiff::Timestamp::from_second(seconds).map(|time| time.to_string()).unwrap_or_default();
        let created = self.question.created();
        let shortly = if when.is_some_and(|when| when < created) {
            "; an API server or a replica may not have received this change in time"
        } else {
            ""
        };
        let (created, when) = (time(created), when.map(time).unwrap_or_default());
        format!("the pod was created at {created}, and {what} at {when}{shortly}")
    }

    /// Explains why the webhook may not have responded when the pod was created.
    fn absence(&self) -> String {
        let outages = self.facts.outages;
        if outages.registered.is_some_and(|registered| self.question.created() < registered) {
            return "the webhook was not registered yet when the pod was created, so it has no sidecar".to_owned();
        }
        "Pillion was down when the pod was created, so it has no sidecar; no replica is ready now".to_owned()
    }

    /// Returns the possible causes, for the case that the current state does not show the actual one.
    fn unexplained(&self) -> String {
        let created = self.question.created();
        if !self.facts.is_live {
            let causes = "no replica answered, the namespace was not labelled yet, or the profile did not exist yet";
            return format!("when the pod was created, {causes}; files do not show which of these is the cause");
        }
        let hint = if self.facts.outages.endpoints_changed.is_some_and(|changed| created < changed) {
            "; the endpoints have changed since"
        } else {
            ""
        };
        format!("when the pod was created, either no replica answered in time, or a replica skipped the profile{hint}")
    }

    /// Returns the command that recreates the pods of the workload; `None` if kubectl cannot restart it.
    pub(super) fn restart_command(&self) -> Option<String> {
        let workload = self.question.workload.as_ref()?;
        let kind = workload.get("kind")?.as_str()?.to_lowercase();
        let name = workload.pointer("/metadata/name")?.as_str()?;
        let restarts = ["deployment", "statefulset", "daemonset"].contains(&&*kind);
        restarts.then(|| format!("kubectl -n {} rollout restart {kind} {name}", self.facts.namespace.name))
    }

    /// Returns how to recreate the pod.
    fn restart(&self) -> String {
        let (namespace, name) = (&self.facts.namespace.name, &self.question.object.name);
        let has_controller = self.question.found.as_ref().is_some_and(|pod| facts::controlling(pod).is_some());
        self.restart_command().unwrap_or_else(|| {
            if has_controller {
                format!("kubectl -n {namespace} delete pod {name}: its controller recreates it")
            } else {
                format!("delete and recreate pod {name} yourself: it has no controller")
            }
        })
    }
}
