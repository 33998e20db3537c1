//! Prints a comparison for users, and as JSON.

use std::fmt::Write as _;

use anyhow::Context;
use serde_json::{Value, json};

use super::{Change, Compared, Rendered};
use crate::difference;

/// Returns a unified diff for each workload that differs.
pub(super) fn workloads(compared: &[Compared]) -> anyhow::Result<String> {
    compared.iter().filter(|one| one.differs()).map(workload).collect()
}

/// Returns a line with the name of a workload, the results of its profiles that differ, and the unified diff of its
/// pod. There is no diff unless the pod is accepted in both states.
pub(super) fn workload(one: &Compared) -> anyhow::Result<String> {
    let mut text = String::new();
    let head = match one.change() {
        Change::Added | Change::Rejected if one.before.is_none() => "added".to_owned(),
        Change::Removed => "removed".to_owned(),
        _ if one.pods == 1 => "1 pod".to_owned(),
        _ => format!("{} pods", one.pods),
    };
    let name = &one.name;
    let _ = writeln!(text, "{name} ({head})");
    for line in profiles(one) {
        let _ = writeln!(text, "  {line}");
    }
    match one.change() {
        Change::Rejected => text.push_str("  its pods would be rejected\n"),
        Change::Admitted => text.push_str("  its pods would no longer be rejected\n"),
        _ => {}
    }
    if let (Some(before), Some(after)) = (pod(one.before.as_ref()), pod(one.after.as_ref())) {
        text.push_str(&difference::of((name, before), (&format!("{name}, changed"), after))?);
    }
    Ok(text)
}

fn pod(state: Option<&Rendered>) -> Option<&Value> {
    state?.pod.as_ref()
}

/// Returns a line for each profile whose result differs; none if the workload is only in the old state.
pub(super) fn profiles(one: &Compared) -> Vec<String> {
    let (before, after) = match (&one.before, &one.after) {
        (_, None) => return Vec::new(),
        (None, Some(after)) => {
            return after.profiles.iter().map(|(profile, result)| format!("{profile}: {result}")).collect();
        }
        (Some(before), Some(after)) => (&before.profiles, &after.profiles),
    };
    let changed = after.iter().filter_map(|(profile, result)| match before.get(profile) {
        Some(was) if was == result => None,
        Some(was) => Some(format!("{profile}: {result}; currently: {was}")),
        None => Some(format!("{profile}: {result}; currently it does not apply")),
    });
    let removed = before.keys().filter(|profile| !after.contains_key(*profile));
    changed.chain(removed.map(|profile| format!("{profile}: would no longer apply"))).collect()
}

/// Formats the number of workloads that differ.
pub(super) fn summary(compared: &[Compared]) -> String {
    let differing = compared.iter().filter(|one| one.differs()).count();
    let mut text = match compared.len() {
        1 => format!("{differing} of 1 workload would be different"),
        all => format!("{differing} of {all} workloads would be different"),
    };
    let added = compared.iter().filter(|one| one.before.is_none()).count();
    let removed = compared.iter().filter(|one| one.after.is_none()).count();
    if added + removed > 0 {
        let _ = write!(text, " ({added} added, {removed} removed)");
    }
    text
}

/// Returns the comparison as JSON.
pub(super) fn value(compared: &[Compared]) -> anyhow::Result<Value> {
    let workloads = compared.iter().map(|one| {
        let patch = match (pod(one.before.as_ref()), pod(one.after.as_ref())) {
            (Some(before), Some(after)) => {
                serde_json::to_value(json_patch::diff(before, after)).context("cannot serialize the patch")?
            }
            _ => Value::Null,
        };
        let rendered = |state: Option<&Rendered>| {
            state.map(|state| json!({"profiles": state.profiles, "rejected": state.pod.is_none()}))
        };
        Ok(json!({
            "workload": one.name, "pods": one.pods, "differs": one.differs(),
            "before": rendered(one.before.as_ref()), "after": rendered(one.after.as_ref()), "patch": patch,
        }))
    });
    let workloads = workloads.collect::<anyhow::Result<Vec<_>>>()?;
    let differing = compared.iter().filter(|one| one.differs()).count();
    Ok(json!({"workloads": workloads, "differing": differing, "same": compared.len() - differing}))
}
