//! Compares disruptions with `PodDisruptionBudget`s. While a changed container is not ready, its pod is not ready
//! either, so an upgrade in place counts as the disruption of one pod.

use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use pillion_api::selector::LabelSelector;
use serde_json::Value;

/// Pods that are disrupted, or will be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Disruption {
    /// The labels of the pods.
    pub labels: Option<Value>,
    /// The number of pods.
    pub pods: i64,
}

/// Returns which budget does not allow a disruption, such as `PodDisruptionBudget web allows 0`. `None` if all budgets
/// allow it. `ongoing` has the disruptions that the status of a budget may not include yet.
#[must_use]
pub fn refusal(disruption: &Disruption, budgets: &[PodDisruptionBudget], ongoing: &[&Disruption]) -> Option<String> {
    for budget in budgets.iter().filter(|budget| selects(budget, disruption.labels.as_ref())) {
        let name = budget.metadata.name.as_deref().unwrap_or_default();
        let status = budget.status.as_ref();
        let is_known = status.is_some_and(|status| status.observed_generation >= budget.metadata.generation);
        let allowed =
            status.filter(|_| is_known).map_or(0, |status| i64::from(status.disruptions_allowed.unwrap_or(0)));
        let beside = ongoing.iter().filter(|taken| selects(budget, taken.labels.as_ref()));
        let beside: i64 = beside.map(|taken| taken.pods).fold(0, i64::saturating_add);
        if disruption.pods > allowed.saturating_sub(beside) {
            let others = if beside == 0 { String::new() } else { format!(", of which others use {beside}") };
            return Some(format!("PodDisruptionBudget {name} allows {allowed}{others}"));
        }
    }
    None
}

/// Whether a budget selects pods with these labels.
fn selects(budget: &PodDisruptionBudget, labels: Option<&Value>) -> bool {
    let selector = budget.spec.as_ref().and_then(|spec| spec.selector.as_ref());
    let selector = selector.and_then(|selector| serde_json::to_value(selector).ok());
    // A budget without a selector selects no pods.
    let Some(selector) = selector else { return false };
    // A budget with an invalid selector is treated as if it selected all pods.
    serde_json::from_value::<LabelSelector>(selector)
        .map_or(true, |selector| selector.matches(|label| labels?.get(label)?.as_str()))
}
