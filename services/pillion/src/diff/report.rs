//! Prints the differences, workload by workload.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use anyhow::Context;
use pillion_api::names::INJECTED_ANNOTATION;
use pillion_engine::decision::{Decision, Outcome};
use serde_json::{Value, json};

use crate::difference;

/// A pod of a workload, decided with the old and with the new profiles.
#[derive(Clone, Debug)]
pub(super) struct Compared {
    /// The workload: `Deployment shop/web`.
    pub(super) name: String,
    /// The number of its pods, if known.
    pub(super) pods: usize,
    /// With the old profiles.
    pub(super) before: Rendered,
    /// With the new profiles.
    pub(super) after: Rendered,
}

/// The result for a pod.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Rendered {
    /// The pod, without the record and server-side metadata. `None` if it is rejected.
    pub(super) pod: Option<Value>,
    /// The result for each considered profile, in words.
    pub(super) profiles: BTreeMap<String, String>,
}

impl Rendered {
    /// Converts a decision and its patched pod.
    pub(super) fn new(decision: &Decision, mut pod: Value) -> Self {
        if let Some(metadata) = pod.get_mut("metadata").and_then(Value::as_object_mut) {
            for key in ["managedFields", "uid", "resourceVersion", "creationTimestamp", "generation", "selfLink"] {
                metadata.shift_remove(key);
            }
            if let Some(Value::Object(annotations)) = metadata.get_mut("annotations") {
                annotations.shift_remove(INJECTED_ANNOTATION);
                if annotations.is_empty() {
                    metadata.shift_remove("annotations");
                }
            }
        }
        let profiles = decision.profiles.iter().map(|profile| {
            let detail = profile.detail.as_deref().map(|detail| format!(": {detail}")).unwrap_or_default();
            let told =
                format!("{} ({}{detail})", profile.outcome.as_str().replace('_', " "), profile.reason.sentence());
            (profile.profile.display_name().to_owned(), told)
        });
        let mut profiles: BTreeMap<_, _> = profiles.collect();
        let is_denied = decision.outcome == Outcome::Denied;
        if is_denied && profiles.is_empty() {
            profiles.insert("(all)".to_owned(), decision.denial_message());
        }
        Self { pod: (!is_denied).then_some(pod), profiles }
    }
}

impl Compared {
    /// Whether the pod or the result of a profile differs.
    pub(super) fn differs(&self) -> bool {
        self.before != self.after
    }
}

/// Returns a unified diff for each workload that differs.
pub(super) fn text(compared: &[Compared]) -> anyhow::Result<String> {
    let mut text = String::new();
    for one in compared.iter().filter(|one| one.differs()) {
        let Compared { name, pods, before, after } = one;
        let count = if *pods == 1 { "1 pod".to_owned() } else { format!("{pods} pods") };
        let _ = writeln!(text, "{name} ({count})");
        for (profile, told) in &after.profiles {
            match before.profiles.get(profile) {
                Some(was) if was == told => {}
                Some(was) => drop(writeln!(text, "  {profile}: {told}; as it is now: {was}")),
                None => drop(writeln!(text, "  {profile}: {told}; as it is now it does not come into question")),
            }
        }
        for profile in before.profiles.keys().filter(|profile| !after.profiles.contains_key(*profile)) {
            let _ = writeln!(text, "  {profile}: does not come into question any more");
        }
        match (&before.pod, &after.pod) {
            (Some(before), Some(after)) => {
                text.push_str(&difference::of((name, before), (&format!("{name}, changed"), after))?);
            }
            (Some(_), None) => text.push_str("  its pods would be refused\n"),
            (None, Some(_)) => text.push_str("  its pods would not be refused any more\n"),
            (None, None) => {}
        }
    }
    Ok(text)
}

/// Formats how many workloads differ.
pub(super) fn summary(compared: &[Compared]) -> String {
    let differing = compared.iter().filter(|one| one.differs()).count();
    match compared.len() {
        1 => format!("{differing} of 1 workload would be different"),
        all => format!("{differing} of {all} workloads would be different"),
    }
}

/// Returns the comparison as JSON.
pub(super) fn value(compared: &[Compared]) -> anyhow::Result<Value> {
    let workloads = compared.iter().map(|one| {
        let patch = match (&one.before.pod, &one.after.pod) {
            (Some(before), Some(after)) => serde_json::to_value(json_patch::diff(before, after)).context("a patch")?,
            _ => Value::Null,
        };
        let rendered = |rendered: &Rendered| json!({"profiles": rendered.profiles, "refused": rendered.pod.is_none()});
        Ok(json!({
            "workload": one.name, "pods": one.pods, "differs": one.differs(),
            "before": rendered(&one.before), "after": rendered(&one.after), "patch": patch,
        }))
    });
    let workloads = workloads.collect::<anyhow::Result<Vec<_>>>()?;
    let differing = compared.iter().filter(|one| one.differs()).count();
    Ok(json!({"workloads": workloads, "differing": differing, "same": compared.len() - differing}))
}
