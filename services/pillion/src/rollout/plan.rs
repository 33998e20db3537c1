//! Groups the audit's findings by workload, and decides whether a workload can be restarted and whether its disruption
//! budgets allow it now. Only the lookup of owners calls the API server.
//!
//! A rolling update ignores budgets, because controllers delete pods instead of evicting them. Therefore, a restart
//! begins only if each budget of the workload's pods allows as many disruptions as the workload's strategy causes at
//! one time.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::Context;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use kube::Client;
use kube::api::DynamicObject;
use pillion_control::audit::{Cause, Finding, State};
use pillion_control::rollout::budgets::{self, Disruption};
use pillion_engine::audit::{self, Injected};
use pillion_json::OwnedTape;
use serde_json::Value;

use crate::workload::{Owners, Workload};

/// The planned restart of a workload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Plan {
    /// Restart the workload now.
    Restart,
    /// Restart the workload once its disruption budgets allow it. Contains the reason for the wait.
    Wait(String),
    /// Do not restart the workload. Contains the reason, and the alternative if there is one.
    Skip(String),
}

/// Returns the disruption of restarting this workload.
pub(super) fn disruption(kind: &str, workload: &Value) -> Disruption {
    Disruption {
        labels: workload.pointer("/spec/template/metadata/labels").cloned(),
        pods: max_unavailable_pods(kind, workload),
    }
}

/// Returns why workloads of a kind cannot be restarted, and how to replace their pods if that is possible. `None` if
/// workloads of this kind can be restarted.
pub(super) fn of_kind(kind: &str) -> Option<&'static str> {
    match kind {
        "Deployment" | "StatefulSet" | "DaemonSet" => None,
        "Pod" => Some("it has no controller: delete and recreate it yourself"),
        "Job" | "CronJob" => Some("its pods are not replaced: those of its next run will be up to date"),
        "ReplicaSet" | "ReplicationController" => Some("it replaces pods only when they are deleted: delete its pods"),
        _ => Some("a controller of another kind creates its pods: restart them as its documentation describes"),
    }
}

/// Plans the restart of a Deployment, a `StatefulSet` or a `DaemonSet`, given the budgets of its namespace and the
/// restarts in progress there. The status of a budget may not include these restarts yet. Once it does, they are
/// counted twice, which only delays the restart.
pub(super) fn of(kind: &str, workload: &Value, budgets: &[PodDisruptionBudget], ongoing: &[&Disruption]) -> Plan {
    let at = |pointer: &str| workload.pointer(pointer);
    if workload.pointer("/metadata/deletionTimestamp").is_some_and(|time| !time.is_null()) {
        return Plan::Skip("it is being deleted".to_owned());
    }
    if at("/spec/paused").and_then(Value::as_bool) == Some(true) {
        return Plan::Skip("it is paused: kubectl rollout resume".to_owned());
    }
    if at("/spec/updateStrategy/type").and_then(Value::as_str) == Some("OnDelete") {
        return Plan::Skip("its strategy is OnDelete: delete its pods to update them".to_owned());
    }
    if let Some(partition) =
        at("/spec/updateStrategy/rollingUpdate/partition").and_then(Value::as_u64).filter(|p| *p > 0)
    {
        return Plan::Skip(format!("its partition is {partition}: pods with a lower ordinal would not be restarted"));
    }
    let disruption = disruption(kind, workload);
    match budgets::refusal(&disruption, budgets, ongoing) {
        None => Plan::Restart,
        Some(refusal) => {
            Plan::Wait(format!("the restart removes {} of its pods at once, and {refusal}", disruption.pods))
        }
    }
}

/// Returns the maximum number of pods that a restart removes before new ones are available.
fn max_unavailable_pods(kind: &str, workload: &Value) -> i64 {
    let at = |pointer: &str| workload.pointer(pointer);
    let replicas = match kind {
        "DaemonSet" => at("/status/desiredNumberScheduled").and_then(Value::as_i64).unwrap_or(1),
        _ => at("/spec/replicas").and_then(Value::as_i64).unwrap_or(1),
    };
    match kind {
        "Deployment" if at("/spec/strategy/type").and_then(Value::as_str) == Some("Recreate") => replicas,
        "Deployment" => {
            let of = |field| at(&format!("/spec/strategy/rollingUpdate/{field}"));
            let unavailable =
                of("maxUnavailable").map_or_else(|| share(25, replicas, false), |v| count(v, replicas, false));
            let surge = of("maxSurge").map_or_else(|| share(25, replicas, true), |v| count(v, replicas, true));
            // If both are 0, one pod may be unavailable, since the rolling update could not make progress otherwise.
            if unavailable == 0 && surge == 0 { 1 } else { unavailable }
        }
        "DaemonSet" => {
            let of = |field| at(&format!("/spec/updateStrategy/rollingUpdate/{field}"));
            let surge = of("maxSurge").map_or(0, |v| count(v, replicas, true));
            let unavailable = of("maxUnavailable").map_or(1, |v| count(v, replicas, true));
            if surge > 0 { 0 } else { unavailable.max(1) }
        }
        _ => at("/spec/updateStrategy/rollingUpdate/maxUnavailable").map_or(1, |v| count(v, replicas, true)).max(1),
    }
}

/// Converts a value to a number of pods. The value is a number such as `3`, or a share of the replicas such as `25%`.
/// An invalid value means all replicas.
fn count(value: &Value, replicas: i64, rounds_up: bool) -> i64 {
    match value {
        Value::String(text) => text
            .strip_suffix('%')
            .and_then(|share| share.parse().ok())
            .map_or(replicas, |percent| share(percent, replicas, rounds_up)),
        other => other.as_i64().unwrap_or(replicas),
    }
}

fn share(percent: i64, replicas: i64, rounds_up: bool) -> i64 {
    let hundredths = percent.saturating_mul(replicas);
    if rounds_up { hundredths.saturating_add(99) / 100 } else { hundredths / 100 }
}

/// A workload whose pods differ from their profiles.
#[derive(Clone, Debug)]
pub(super) struct Stale {
    /// The workload.
    pub(super) workload: Workload,
    /// The names of the pods that differ.
    pub(super) pods: BTreeSet<Box<str>>,
    /// The differences, by profile.
    pub(super) profiles: BTreeMap<Box<str>, ProfileDifference>,
}

/// The difference between pods and a profile.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ProfileDifference {
    /// The first state that was found.
    pub(super) state: State,
    /// All causes that the audit found.
    pub(super) causes: BTreeSet<Cause>,
    /// The expected revisions; empty if the profile should not be injected.
    pub(super) want: BTreeSet<Box<str>>,
    /// The revisions that the pods carry; empty if all pods lack the profile.
    pub(super) has: BTreeSet<Box<str>>,
}

impl Stale {
    /// Returns the reason not to restart, if new pods would have the same differences.
    pub(super) fn reason_not_to_restart(&self) -> Option<&'static str> {
        self.profiles.values().all(ProfileDifference::is_skipped_by_webhook).then_some(
            "the webhook skipped the profile for its pods, and would skip it again: pillion explain shows why",
        )
    }

    /// Returns the difference that a new pod still has, such as `without profile nginx`.
    ///
    /// # Errors
    /// The pod cannot be parsed.
    pub(super) fn remaining_difference(&self, pod: &DynamicObject) -> anyhow::Result<Option<String>> {
        let text = serde_json::to_string(pod).context("cannot serialize a pod")?;
        let tape = OwnedTape::parse(text).context("cannot parse a pod")?;
        Ok(self.is_wrong(&audit::read(tape.root()).injected))
    }

    fn is_wrong(&self, injected: &Injected) -> Option<String> {
        // Skipped profiles are ignored, because the webhook skips them in new pods too.
        self.profiles.iter().filter(|(_, wrong)| !wrong.is_skipped_by_webhook()).find_map(|(profile, wrong)| {
            let has = match injected {
                Injected::Profiles(all) => all.iter().find(|(name, _)| name == profile).map(|(_, revision)| revision),
                Injected::Nothing | Injected::Foreign => None,
            };
            let is_right = match has {
                Some(revision) => wrong.want.contains(revision),
                None => wrong.want.is_empty(),
            };
            (!is_right).then(|| match has {
                Some(revision) => format!("with revision {revision} of profile {profile}"),
                None => format!("without profile {profile}"),
            })
        })
    }
}

impl ProfileDifference {
    /// Whether the webhook reviewed all of the pods, and skipped the profile.
    fn is_skipped_by_webhook(&self) -> bool {
        self.causes.iter().all(|cause| *cause == Cause::Skipped)
    }
}

/// Groups findings by workload, in the order of namespaces, kinds and names.
pub(super) async fn by_workload(
    client: &Client,
    findings: impl Iterator<Item = Finding>,
) -> anyhow::Result<Vec<Stale>> {
    let mut owners = Owners::new(client.clone());
    let mut grouped: BTreeMap<Workload, Vec<Finding>> = BTreeMap::new();
    for finding in findings {
        let owner = finding.owner.as_deref().and_then(|owner| owner.split_once('/'));
        let workload = owners.workload(&finding.namespace, &finding.pod, owner).await;
        let about = || format!("cannot determine the workload of pod {}/{}", finding.namespace, finding.pod);
        grouped.entry(workload.with_context(about)?).or_default().push(finding);
    }
    Ok(grouped.into_iter().map(|(workload, findings)| stale_workload(workload, findings)).collect())
}

fn stale_workload(workload: Workload, findings: Vec<Finding>) -> Stale {
    let pods: BTreeSet<_> = findings.iter().map(|finding| finding.pod.clone()).collect();
    let mut profiles: BTreeMap<Box<str>, ProfileDifference> = BTreeMap::new();
    for Finding { profile, state, cause, want, has, .. } in findings {
        let empty =
            || ProfileDifference { state, causes: BTreeSet::new(), want: BTreeSet::new(), has: BTreeSet::new() };
        let wrong = profiles.entry(profile).or_insert_with(empty);
        wrong.causes.insert(cause);
        wrong.want.extend(want);
        wrong.has.extend(has);
    }
    Stale { workload, pods, profiles }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn budget(selector: &Value, allowed: i32, generations: (i64, i64)) -> PodDisruptionBudget {
        serde_json::from_value(json!({
            "apiVersion": "policy/v1", "kind": "PodDisruptionBudget",
            "metadata": {"name": "web", "generation": generations.0},
            "spec": {"selector": selector},
            "status": {"disruptionsAllowed": allowed, "observedGeneration": generations.1,
                       "currentHealthy": 3, "desiredHealthy": 2, "expectedPods": 3},
        }))
        .unwrap()
    }

    fn deployment(strategy: &Value) -> Value {
        let template = json!({"metadata": {"labels": {"app": "web"}}});
        json!({"metadata": {"name": "web"}, "spec": {"replicas": 4, "strategy": strategy, "template": template}})
    }

    #[test]
    fn budget_must_allow_unavailable_pods_of_strategy() {
        let web = || json!({"matchLabels": {"app": "web"}});
        let rolling = |unavailable: Value, surge: Value| {
            deployment(
                &json!({"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": unavailable, "maxSurge": surge}}),
            )
        };
        for (workload, allowed, restarts) in [
            (deployment(&json!({})), 1, true),
            (deployment(&json!({})), 0, false),
            (deployment(&json!({"type": "Recreate"})), 3, false),
            (deployment(&json!({"type": "Recreate"})), 4, true),
            (rolling(json!("50%"), json!(0)), 1, false),
            (rolling(json!("50%"), json!(0)), 2, true),
            // A pod is removed only once a new one is available.
            (rolling(json!(0), json!(1)), 0, true),
            (rolling(json!("10%"), json!(0)), 0, false),
        ] {
            let plan = of("Deployment", &workload, &[budget(&web(), allowed, (1, 1))], &[]);
            assert_eq!(plan == Plan::Restart, restarts, "{workload} with {allowed}: {plan:?}");
        }
        // The budget's controller has not observed this generation yet.
        let unseen = budget(&web(), 4, (2, 1));
        assert!(matches!(of("Deployment", &deployment(&json!({})), &[unseen], &[]), Plan::Wait(_)));
        let others = [budget(&json!({"matchLabels": {"app": "db"}}), 0, (1, 1)), budget(&Value::Null, 0, (1, 1))];
        assert_eq!(of("Deployment", &deployment(&json!({})), &others, &[]), Plan::Restart);
        let all = budget(&json!({}), 0, (1, 1));
        let Plan::Wait(why) = of("StatefulSet", &deployment(&json!({})), &[all], &[]) else { panic!("it should wait") };
        assert_eq!(why, "the restart removes 1 of its pods at once, and PodDisruptionBudget web allows 0");
    }

    #[test]
    fn restarts_share_disruption_budget() {
        let shared = || [budget(&json!({"matchLabels": {"app": "web"}}), 1, (1, 1))];
        let web = deployment(&json!({}));
        let other = disruption("Deployment", &web);
        let Plan::Wait(why) = of("Deployment", &web, &shared(), &[&other]) else { panic!("it should wait") };
        assert!(why.ends_with("PodDisruptionBudget web allows 1, of which others use 1"), "{why}");
        let db = json!({"spec": {"replicas": 1, "template": {"metadata": {"labels": {"app": "db"}}}}});
        assert_eq!(of("Deployment", &web, &shared(), &[&disruption("StatefulSet", &db)]), Plan::Restart);
    }

    #[test]
    fn workload_that_restart_cannot_fix_is_left() {
        for (change, reason) in [
            (json!({"paused": true}), "kubectl rollout resume"),
            (json!({"updateStrategy": {"type": "OnDelete"}}), "OnDelete"),
            (json!({"updateStrategy": {"rollingUpdate": {"partition": 2}}}), "partition is 2"),
        ] {
            let plan = of("StatefulSet", &json!({"spec": change}), &[], &[]);
            assert!(matches!(&plan, Plan::Skip(why) if why.contains(reason)), "{plan:?}");
        }
        for kind in ["Pod", "Job", "CronJob", "ReplicaSet", "GameServer"] {
            assert!(of_kind(kind).is_some(), "{kind}");
        }
        assert_eq!(of_kind("DaemonSet"), None);
    }

    #[test]
    fn daemon_set_nodes_are_counted_like_controller() {
        let of = |update: Value| {
            max_unavailable_pods(
                "DaemonSet",
                &json!({"spec": {"updateStrategy": {"rollingUpdate": update}}, "status": {"desiredNumberScheduled": 10}}),
            )
        };
        assert_eq!(of(json!({})), 1);
        assert_eq!(of(json!({"maxUnavailable": "25%"})), 3);
        assert_eq!(of(json!({"maxUnavailable": 0, "maxSurge": 1})), 0);
    }

    fn finding(pod: &str, profile: &str, state: State, cause: Cause) -> Finding {
        Finding {
            namespace: "shop".into(),
            pod: pod.into(),
            owner: None,
            profile: profile.into(),
            state,
            cause,
            want: (state != State::Orphaned).then(|| "new".into()),
            has: (state != State::Missing).then(|| "old".into()),
        }
    }

    fn stale(findings: Vec<Finding>) -> Stale {
        stale_workload(Workload::new("shop", "Deployment", "web"), findings)
    }

    #[test]
    fn pods_are_counted_once_across_profiles() {
        let stale = stale(vec![
            finding("a", "nginx", State::Outdated, Cause::ProfileChanged),
            finding("a", "otel", State::Missing, Cause::WebhookUnavailable),
            finding("b", "nginx", State::Outdated, Cause::ProfileChanged),
        ]);
        assert_eq!(stale.pods.len(), 2);
        assert_eq!(stale.profiles.keys().map(|name| &**name).collect::<Vec<_>>(), ["nginx", "otel"]);
        let nginx = &stale.profiles["nginx"];
        assert_eq!(
            (nginx.state, &nginx.want, &nginx.has),
            (State::Outdated, &["new".into()].into(), &["old".into()].into())
        );
        assert_eq!(stale.reason_not_to_restart(), None);
    }

    #[test]
    fn new_pod_is_checked_for_fixable_states() {
        let stale = stale(vec![
            finding("a", "nginx", State::Outdated, Cause::ProfileChanged),
            finding("a", "otel", State::Missing, Cause::Skipped),
            finding("a", "old", State::Orphaned, Cause::ProfileChanged),
        ]);
        let profiles = |all: &[(&str, &str)]| {
            Injected::Profiles(all.iter().map(|(name, revision)| ((*name).into(), (*revision).into())).collect())
        };
        assert_eq!(stale.is_wrong(&profiles(&[("nginx", "new")])), None);
        for (has, reason) in [
            (Injected::Nothing, "without profile nginx"),
            (Injected::Foreign, "without profile nginx"),
            (profiles(&[("nginx", "old")]), "with revision old of profile nginx"),
            (profiles(&[("nginx", "new"), ("old", "r")]), "with revision r of profile old"),
        ] {
            assert_eq!(stale.is_wrong(&has).as_deref(), Some(reason), "{has:?}");
        }
    }

    #[test]
    fn restart_is_in_vain_for_left_out_profiles() {
        let left_out = || finding("a", "nginx", State::Missing, Cause::Skipped);
        assert!(stale(vec![left_out()]).reason_not_to_restart().is_some());
        let also = finding("b", "nginx", State::Missing, Cause::WebhookUnavailable);
        assert!(stale(vec![left_out(), also]).reason_not_to_restart().is_none());
    }
}
