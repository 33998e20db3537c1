//! Explains why the API server calls the webhook for an object or does not: the installation, the entry's selectors and
//! conditions, and the labels of the namespace.

use std::collections::BTreeMap;

use pillion_api::names::{INJECT_LABEL, INJECTION_LABEL, SYSTEM_NAMESPACES};
use pillion_api::opt_in::OptIn;
use pillion_control::webhook_config::switch::INJECTION_KEY;

use super::judge::Judging;
use super::webhooks::Outcome;
use crate::finding::{Code, ObjectRef, Severity};
use crate::installation::switching;

/// The minimum similarity at which a label is considered a misspelt opt-in label.
const ALIKE: f64 = 0.93;
/// Label values that mean "not opted in".
pub(crate) const NO: [&str; 6] = ["disabled", "false", "off", "no", "none", "never"];

impl Judging<'_> {
    /// Reports findings about the installation, which apply to every pod.
    pub(super) fn installation(&mut self) {
        let facts = self.facts;
        let release = facts.release.clone();
        for (part, why) in &facts.unread {
            let object = ObjectRef::new("Release", Some(release.namespace()), release.name());
            let finding = self.find_of(Code::Unreadable, object, format!("{part} cannot be read: {why}"));
            // Other findings are reliable without this part.
            if !part.is_needed() {
                finding.severity = Severity::Info;
            }
        }
        if let Some(who) = &facts.switched_off {
            let object = ObjectRef::new("ConfigMap", Some(release.namespace()), release.switch());
            self.find_of(Code::SwitchedOff, object, format!("injection is switched off for the whole cluster{who}"))
                .remedy = switching(&release, INJECTION_KEY, "enabled");
        }
        if facts.configurations.is_some() && !self.entries.iter().any(|entry| entry.ours) {
            let object = ObjectRef::new("MutatingWebhookConfiguration", None, release.configuration());
            self.find_of(
                Code::NotRegistered,
                object,
                "no entry of a webhook configuration has the API server call Pillion for pods",
            );
        }
    }

    /// Explains why the API server does not call the webhook.
    pub(super) fn call(&mut self) {
        let namespace = &self.facts.namespace;
        if SYSTEM_NAMESPACES.contains(&&*namespace.name) {
            let message =
                format!("{} is one of the system's namespaces, which are never injected into", namespace.name);
            let object = self.namespace();
            self.find_of(Code::SystemNamespace, object, message);
            return;
        }
        if self.is_called()
            || (self.facts.configurations.is_none()
                && namespace.found.as_ref().is_none_or(|found| found.level().is_some()))
        {
            return;
        }
        let ours: Vec<_> = self.entries.iter().filter(|entry| entry.ours).cloned().collect();
        if let Some(entry) = ours.iter().find(|entry| entry.outcome == Outcome::ObjectSelector) {
            let message = format!("the API server does not call {}: {}", entry.name, entry.detail);
            let remedy = "take the label pillion.dev/inject=false away from the pod template if it should be injected";
            self.find(Code::OptedOut, message).remedy = remedy.into();
            return;
        }
        for entry in &ours {
            let code = match entry.outcome {
                Outcome::ConditionFalse => Code::WebhookCondition,
                Outcome::ConditionFailed => Code::WebhookConditionFailed,
                _ => continue,
            };
            let object = ObjectRef::new("MutatingWebhookConfiguration", None, &entry.configuration);
            let policy = if code == Code::WebhookConditionFailed {
                format!("; failurePolicy {} decides", entry.failure_policy)
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
            self.find_of(Code::NotFound, object, format!("there is no namespace {name}, or it cannot be read"));
            return;
        }
        if namespace.found.as_ref().is_some_and(|found| found.level().is_some()) {
            if self.entries.iter().any(|entry| entry.ours) {
                self.find_of(
                    Code::ExcludedNamespace,
                    object,
                    format!("namespace {name} is opted in, and the webhook configuration leaves it out by its name or has no entry for its level"),
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
                format!("the namespace's label {key}={value} opts nobody in; it may be {}", values.join(", "));
            // These values mean that the namespace is not opted in on purpose.
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
            let message = format!("the namespace's label {key}={value} is not {INJECTION_LABEL}, which it looks like");
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

/// Returns a label that resembles an opt-in label, unless it requests a profile.
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
        key == INJECT_LABEL || strsim::jaro_winkler(&key, INJECTION_LABEL) > ALIKE
    };
    labels
        .iter()
        .find(|(key, _)| is_alike(key) && !asks_for_a_profile(key))
        .map(|(key, value)| (key.as_str(), value.as_str()))
}
