//! Decides from the status of a pod whether an upgrade in place is complete or has failed.

use std::collections::BTreeMap;

use jiff::Timestamp;
use pillion_engine::in_place::{ContainerChange, ContainerList, is_same_quantity};
use serde_json::Value;

use super::pull::PULL_FAILURES;

/// How long a container without a readiness probe must run before its upgrade is complete, in seconds.
const SETTLE_SECONDS: i64 = 10;

/// The waiting reason of a container that keeps ending.
const CRASHES: &str = "CrashLoopBackOff";

/// The waiting reasons that mean that the kubelet has the image, but cannot start the container.
const START_FAILURES: [&str; 3] = ["CreateContainerConfigError", "CreateContainerError", "RunContainerError"];

/// The state of a pod before its upgrade.
#[derive(Clone, Debug)]
pub(super) struct Baseline {
    changes: Vec<ContainerChange>,
    /// The ids of the containers that ran before, by name.
    container_ids: BTreeMap<String, String>,
    /// The restarts of all containers, by name.
    restarts: BTreeMap<String, i64>,
    was_ready: bool,
    /// Whether a failing container is waited for. While an image is taken back, the status still shows the failure of the
    /// new image.
    is_patient: bool,
}

/// The progress of an upgrade.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Progress {
    /// The changed containers run, and the pod is as ready as before.
    Done,
    /// The upgrade is not complete; the text says what is missing.
    Waiting(String),
    /// The upgrade has failed for this reason.
    Failed(String),
}

impl Baseline {
    /// Reads the state of a pod before these changes.
    pub(super) fn of(pod: &Value, changes: &[ContainerChange]) -> Self {
        let statuses = || statuses(pod).filter_map(|status| Some((name(status)?, status)));
        let id = |status: &Value| Some(status.get("containerID")?.as_str()?.to_owned());
        Self {
            changes: changes.to_vec(),
            container_ids: statuses().filter_map(|(name, status)| Some((name.to_owned(), id(status)?))).collect(),
            restarts: statuses().map(|(name, status)| (name.to_owned(), restarts(status))).collect(),
            was_ready: is_ready(pod),
            is_patient: false,
        }
    }

    /// Returns this state for taking a change back: failures of containers are waited for, and the pod must become as
    /// ready as it was in the state `first`, before the change.
    pub(super) fn back_to(self, first: &Self) -> Self {
        Self { is_patient: true, was_ready: first.was_ready, ..self }
    }

    /// Compares the current pod with the state before. `now` is the current time in seconds since 1970.
    pub(super) fn progress(&self, pod: &Value, now: i64) -> Progress {
        for change in &self.changes {
            let of_container = |status: &&Value| name(status) == Some(change.name.as_str());
            let list = pod.pointer("/status").and_then(|status| status.get(change.list.status_field())?.as_array());
            let Some(status) = list.into_iter().flatten().find(of_container) else {
                return Progress::Waiting(format!("container {} has no status", change.name));
            };
            if change.image.is_some()
                && let Some(progress) = self.of_image(change, pod, status, now)
            {
                return progress;
            }
            if let Some((_, wanted)) = &change.resources
                && let Some(progress) = of_resources(&change.name, pod, status, wanted)
            {
                return progress;
            }
        }
        let is_changed = |name: &str| self.changes.iter().any(|change| change.name == name);
        let restarted = statuses(pod).find_map(|status| {
            let (name, before) = self.restarts.get_key_value(name(status)?).filter(|(name, _)| !is_changed(name))?;
            (restarts(status) > *before).then_some(name)
        });
        if let Some(container) = restarted.filter(|_| !self.is_patient) {
            return Progress::Failed(format!(
                "container {container}, which the upgrade does not change, was restarted"
            ));
        }
        if self.was_ready && !is_ready(pod) {
            return Progress::Waiting("the pod is not ready".to_owned());
        }
        Progress::Done
    }

    /// Returns why the new image of a container does not run yet. `None` if it runs and is ready.
    fn of_image(&self, change: &ContainerChange, pod: &Value, status: &Value, now: i64) -> Option<Progress> {
        let name = &*change.name;
        let reason = status.pointer("/state/waiting/reason").and_then(Value::as_str);
        // Directly after the change, the status may still show that the old image crashes.
        let has_restarted = self.restarts.get(name).is_none_or(|before| restarts(status) > *before);
        let is_failure = |reason: &&str| {
            PULL_FAILURES.contains(reason) || START_FAILURES.contains(reason) || (*reason == CRASHES && has_restarted)
        };
        if let Some(reason) = reason.filter(is_failure) {
            let message = status.pointer("/state/waiting/message").and_then(Value::as_str).unwrap_or_default();
            let text = format!("container {name} does not run: {reason}: {message}");
            return Some(if self.is_patient { Progress::Waiting(text) } else { Progress::Failed(text) });
        }
        let id = status.get("containerID").and_then(Value::as_str);
        let is_new = id.is_some_and(|id| self.container_ids.get(name).is_none_or(|before| before != id));
        let started = status.pointer("/state/running/startedAt").and_then(Value::as_str);
        let started = started.and_then(|time| time.parse::<Timestamp>().ok());
        let is_ready = status.get("ready").and_then(Value::as_bool) == Some(true);
        let Some(started) = started.filter(|_| is_new && is_ready) else {
            return Some(Progress::Waiting(format!("container {name} is not ready with its new image")));
        };
        // Without a probe, a container is ready as soon as it runs, even if it ends a moment later.
        let is_settled = has_probe(change, pod) || now >= started.as_second().saturating_add(SETTLE_SECONDS);
        (!is_settled).then(|| Progress::Waiting(format!("container {name} has just started")))
    }
}

/// Whether a container has a readiness probe.
fn has_probe(change: &ContainerChange, pod: &Value) -> bool {
    let containers = pod.pointer("/spec").and_then(|spec| spec.get(change.list.field())?.as_array());
    let mut found = containers.into_iter().flatten().filter(|one| name(one) == Some(&change.name));
    found.any(|container| container.get("readinessProbe").is_some())
}

/// Returns why the new resources of a container do not apply yet. `None` if they do.
fn of_resources(name: &str, pod: &Value, status: &Value, wanted: &Value) -> Option<Progress> {
    let conditions = pod.pointer("/status/conditions").and_then(Value::as_array).into_iter().flatten();
    let is_pending = |condition: &&Value| condition.get("type").is_some_and(|kind| kind == "PodResizePending");
    let pending = conditions.into_iter().find(is_pending);
    let text = |field: &str| pending.and_then(|pending| pending.get(field)?.as_str()).unwrap_or_default();
    if text("reason") == "Infeasible" {
        return Some(Progress::Failed(format!(
            "the node cannot give container {name} these resources: {}",
            text("message")
        )));
    }
    let has = status.get("resources").unwrap_or(&Value::Null);
    let is_missing = ["requests", "limits"].iter().any(|kind| {
        let wanted = wanted.get(kind).and_then(Value::as_object).into_iter().flatten();
        wanted.into_iter().any(|(resource, value)| {
            has.get(kind).and_then(|has| has.get(resource)).is_none_or(|found| !is_same_quantity(found, value))
        })
    });
    is_missing.then(|| Progress::Waiting(format!("container {name} does not have its new resources")))
}

fn statuses(pod: &Value) -> impl Iterator<Item = &Value> {
    let lists = ContainerList::ALL.into_iter();
    lists.filter_map(|list| pod.pointer("/status")?.get(list.status_field())?.as_array()).flatten()
}

fn name(container: &Value) -> Option<&str> {
    container.get("name")?.as_str()
}

fn restarts(status: &Value) -> i64 {
    status.get("restartCount").and_then(Value::as_i64).unwrap_or_default()
}

fn is_ready(pod: &Value) -> bool {
    let conditions = pod.pointer("/status/conditions").and_then(Value::as_array).into_iter().flatten();
    conditions.into_iter().any(|condition| {
        let is = |field: &str, value: &str| condition.get(field).is_some_and(|found| found == value);
        is("type", "Ready") && is("status", "True")
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// The time when the sidecar started.
    const STARTED: i64 = 1_795_305_600;

    fn pod(sidecar: &Value, app_restarts: i64, ready: &str) -> Value {
        json!({"spec": {"initContainers": [{"name": "shipper"}]}, "status": {
            "conditions": [{"type": "Ready", "status": ready}],
            "containerStatuses": [{"name": "web", "restartCount": app_restarts, "containerID": "w", "ready": true}],
            "initContainerStatuses": [sidecar],
        }})
    }

    /// Returns the status of the sidecar. Its restarts are 1, and 2 with the id `new`.
    fn sidecar(id: &str, state: &Value, ready: bool) -> Value {
        let restarts = if id == "new" { 2 } else { 1 };
        json!({"name": "shipper", "containerID": id, "restartCount": restarts, "ready": ready, "state": state})
    }

    fn running() -> Value {
        json!({"running": {"startedAt": "2026-11-22T00:00:00Z"}})
    }

    fn upgrade(resources: Option<(Value, Value)>) -> ContainerChange {
        let image = resources.is_none().then(|| ("shipper:1".to_owned(), "shipper:2".to_owned()));
        ContainerChange { list: ContainerList::InitContainers, name: "shipper".to_owned(), image, resources }
    }

    #[test]
    fn new_image_must_run_in_ready_pod() {
        let running = running();
        let baseline = Baseline::of(&pod(&sidecar("old", &running, true), 2, "True"), &[upgrade(None)]);
        let later = STARTED + SETTLE_SECONDS;
        let progress = |sidecar: &Value, restarts, ready| baseline.progress(&pod(sidecar, restarts, ready), later);
        let waits = |progress: &Progress, what: &str| assert_eq!(*progress, Progress::Waiting(what.to_owned()));
        let not_ready = "container shipper is not ready with its new image";
        waits(&progress(&sidecar("old", &running, true), 2, "True"), not_ready);
        waits(&progress(&sidecar("new", &running, false), 2, "True"), not_ready);
        waits(&progress(&sidecar("new", &running, true), 2, "False"), "the pod is not ready");
        assert_eq!(progress(&sidecar("new", &running, true), 2, "True"), Progress::Done);
        let restarted = "container web, which the upgrade does not change, was restarted";
        assert_eq!(progress(&sidecar("new", &running, true), 3, "True"), Progress::Failed(restarted.to_owned()));
        let crashing = json!({"waiting": {"reason": "CrashLoopBackOff", "message": "back-off"}});
        let failed = progress(&sidecar("new", &crashing, false), 2, "False");
        assert_eq!(failed, Progress::Failed("container shipper does not run: CrashLoopBackOff: back-off".to_owned()));
        let back =
            baseline.clone().back_to(&baseline).progress(&pod(&sidecar("new", &crashing, false), 2, "False"), later);
        assert!(matches!(back, Progress::Waiting(_)), "{back:?}");
        // The old image crashed already before the change.
        waits(&progress(&sidecar("old", &crashing, false), 2, "False"), not_ready);

        // Without a readiness probe, the container has to run for a while.
        let mut new = pod(&sidecar("new", &running, true), 2, "True");
        let soon = STARTED + SETTLE_SECONDS - 1;
        waits(&baseline.progress(&new, soon), "container shipper has just started");
        new["spec"]["initContainers"][0]["readinessProbe"] = json!({});
        assert_eq!(baseline.progress(&new, soon), Progress::Done);
    }

    #[test]
    fn resize_is_complete_with_allocated_resources() {
        let change = upgrade(Some((json!({"requests": {"cpu": "100m"}}), json!({"requests": {"cpu": "0.2"}}))));
        let with = |cpu: &str| {
            let mut status = sidecar("old", &running(), true);
            status["resources"] = json!({"requests": {"cpu": cpu}});
            pod(&status, 0, "True")
        };
        let baseline = Baseline::of(&with("100m"), &[change]);
        assert!(matches!(baseline.progress(&with("100m"), STARTED), Progress::Waiting(_)));
        assert_eq!(baseline.progress(&with("200m"), STARTED), Progress::Done);
        let mut pending = with("100m");
        pending["status"]["conditions"] =
            json!([{"type": "PodResizePending", "reason": "Infeasible", "message": "too large"}]);
        assert!(matches!(baseline.progress(&pending, STARTED), Progress::Failed(why) if why.ends_with("too large")));
    }
}
