//! Decides from a pod whether its upgrade is complete or has failed. It does no I/O and reads no clock. It needs only
//! the pod and the state before the upgrade. The pod's annotation contains that state, so any controller can run this
//! check.

use std::collections::BTreeMap;

use jiff::Timestamp;
use pillion_engine::in_place::{ContainerChange, ContainerList, RunningUpgrade, is_same_quantity};
use serde_json::Value;

use super::pull::PULL_FAILURES;

/// How long a container without a readiness probe must run before its upgrade is complete, in seconds.
const SETTLE_SECONDS: i64 = 10;

/// The waiting reason of a container that crashes repeatedly.
const CRASHES: &str = "CrashLoopBackOff";

/// The waiting reasons that mean that the kubelet has the image, but cannot start the container.
const START_FAILURES: [&str; 3] = ["CreateContainerConfigError", "CreateContainerError", "RunContainerError"];

/// The progress of an upgrade.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Progress {
    /// The changed containers run, and the pod is as ready as before.
    Done,
    /// The upgrade is not complete; the text says what is missing.
    Waiting(String),
    /// The upgrade has failed for this reason.
    Failed(String),
}

/// Returns the state of a pod before it is upgraded at `now`, in seconds since 1970. `previous` has the revisions
/// before the upgrade.
#[must_use]
pub fn baseline(
    pod: &Value,
    changes: &[ContainerChange],
    previous: BTreeMap<String, String>,
    now: i64,
) -> RunningUpgrade {
    // A container that has not started yet will start with the new image, which is no restart.
    let has_started =
        |status: &&Value| status.get("containerID").and_then(Value::as_str).is_some_and(|id| !id.is_empty());
    let restarts = statuses(pod).filter(has_started);
    let restarts = restarts.filter_map(|status| Some((name(status)?.to_owned(), restart_count(status))));
    RunningUpgrade {
        since: now,
        previous,
        to: String::new(),
        is_step_back: false,
        changes: changes.to_vec(),
        restarts: restarts.collect(),
        was_ready: is_ready(pod),
    }
}

/// Compares a pod with its running upgrade. `now` is in seconds since 1970.
#[must_use]
pub fn progress(pod: &Value, running: &RunningUpgrade, now: i64) -> Progress {
    match compare(pod, running, now) {
        // The status may still show the failure of the image that is taken back.
        Progress::Failed(why) if running.is_step_back => Progress::Waiting(why),
        progress => progress,
    }
}

fn compare(pod: &Value, running: &RunningUpgrade, now: i64) -> Progress {
    for change in &running.changes {
        let list = pod.pointer("/status").and_then(|status| status.get(change.list.status_field())?.as_array());
        let Some(status) = list.into_iter().flatten().find(|status| name(status) == Some(&*change.name)) else {
            return Progress::Waiting(format!("container {} has no status", change.name));
        };
        let before = running.restarts.get(&change.name).copied();
        let of_change = of_image(change, pod, status, before, now).or_else(|| of_resources(change, pod, status));
        if let Some(progress) = of_change {
            return progress;
        }
    }
    // In a pod that was not ready, a container may have crashed repeatedly even before the upgrade. So its restarts
    // are not counted.
    let restarted = statuses(pod).filter(|_| running.was_ready).find_map(|status| {
        let (name, before) = running.restarts.get_key_value(name(status)?)?;
        let change = running.changes.iter().find(|change| change.name == *name);
        let allowed = change.map_or(0, |change| allowed_restarts(change, pod));
        (restart_count(status) > before.saturating_add(allowed)).then_some(name)
    });
    if let Some(container) = restarted {
        return Progress::Failed(format!(
            "container {container} was restarted, although the upgrade does not need that"
        ));
    }
    if running.was_ready && !is_ready(pod) {
        return Progress::Waiting("the pod is not ready".to_owned());
    }
    Progress::Done
}

/// Returns how often the kubelet restarts a container because of a change: once for a new image, and once for new
/// resources if the container's `resizePolicy` says so.
fn allowed_restarts(change: &ContainerChange, pod: &Value) -> i64 {
    let policies = spec(change, pod).and_then(|container| container.get("resizePolicy")?.as_array());
    let restarts = policies
        .into_iter()
        .flatten()
        .any(|policy| policy.get("restartPolicy").is_some_and(|policy| policy == "RestartContainer"));
    i64::from(change.image.is_some()) + i64::from(change.resources.is_some() && restarts)
}

/// Returns why the new image of a container does not run yet. `None` if it runs, or if the image does not change.
/// `before` is the number of restarts before the change; `None` if the container had not started.
fn of_image(change: &ContainerChange, pod: &Value, status: &Value, before: Option<i64>, now: i64) -> Option<Progress> {
    change.image.as_ref()?;
    let name = &change.name;
    let text = |pointer: &str| status.pointer(pointer).and_then(Value::as_str).unwrap_or_default();
    let reason = text("/state/waiting/reason");
    let restarts = restart_count(status).saturating_sub(before.unwrap_or_default());
    // Directly after the change, the status may still show that the old image crashes, or that it could not be started.
    let cannot_start = PULL_FAILURES.contains(&reason) || START_FAILURES.contains(&reason);
    let is_failure = (cannot_start && before.is_some()) || (reason == CRASHES && restarts > 0);
    if is_failure {
        let message = text("/state/waiting/message");
        return Some(Progress::Failed(format!("container {name} does not run: {reason}: {message}")));
    }
    if restarts > allowed_restarts(change, pod) {
        return Some(Progress::Failed(format!("container {name} was restarted more than once")));
    }
    let is_new = before.is_none() || restarts > 0;
    let is_ready = is_new && status.get("ready").and_then(Value::as_bool) == Some(true);
    let started = text("/state/running/startedAt").parse::<Timestamp>().ok().filter(|_| is_ready);
    let Some(started) = started else {
        return Some(Progress::Waiting(format!("container {name} is not ready with its new image")));
    };
    // Without a probe, a container is ready as soon as it runs, even if it ends a moment later.
    let has_probe = spec(change, pod).is_some_and(|container| container.get("readinessProbe").is_some());
    let is_settled = has_probe || now >= started.as_second().saturating_add(SETTLE_SECONDS);
    (!is_settled).then(|| Progress::Waiting(format!("container {name} has just started")))
}

/// Returns the changed container in the pod's `spec`.
fn spec<'p>(change: &ContainerChange, pod: &'p Value) -> Option<&'p Value> {
    let mut containers = pod.pointer("/spec")?.get(change.list.field())?.as_array()?.iter();
    containers.find(|container| name(container) == Some(&change.name))
}

/// Returns why the new resources of a container do not apply yet. `None` if they do, or if they do not change.
fn of_resources(change: &ContainerChange, pod: &Value, status: &Value) -> Option<Progress> {
    let (_, wanted) = change.resources.as_ref()?;
    let name = &change.name;
    let pending = condition(pod, "PodResizePending");
    let text = |field: &str| pending.and_then(|pending| pending.get(field)?.as_str()).unwrap_or_default();
    if text("reason") == "Infeasible" {
        let message = text("message");
        return Some(Progress::Failed(format!("the node cannot give container {name} these resources: {message}")));
    }
    let waiting = if text("reason") == "Deferred" {
        format!("the node has no room for the new resources of container {name} now: {}", text("message"))
    } else {
        format!("container {name} does not have its new resources")
    };
    let has = status.get("resources").unwrap_or(&Value::Null);
    let is_missing = ["requests", "limits"].iter().any(|kind| {
        let mut wanted = wanted.get(kind).and_then(Value::as_object).into_iter().flatten();
        wanted.any(|(resource, value)| {
            let found = has.get(kind).and_then(|values| values.get(resource));
            !found.is_some_and(|found| is_same_quantity(found, value))
        })
    });
    is_missing.then_some(Progress::Waiting(waiting))
}

pub(super) fn statuses(pod: &Value) -> impl Iterator<Item = &Value> {
    let lists = ContainerList::ALL.into_iter();
    lists.filter_map(|list| pod.pointer("/status")?.get(list.status_field())?.as_array()).flatten()
}

pub(super) fn name(container: &Value) -> Option<&str> {
    container.get("name")?.as_str()
}

/// Whether the pod is ready.
#[must_use]
pub fn is_ready(pod: &Value) -> bool {
    condition(pod, "Ready").is_some_and(|ready| ready.get("status").is_some_and(|status| status == "True"))
}

/// Returns how often the containers of a pod were restarted.
pub(super) fn restarts(pod: &Value) -> i64 {
    statuses(pod).map(restart_count).sum()
}

fn restart_count(status: &Value) -> i64 {
    status.get("restartCount").and_then(Value::as_i64).unwrap_or_default()
}

fn condition<'p>(pod: &'p Value, type_: &str) -> Option<&'p Value> {
    let conditions = pod.pointer("/status/conditions")?.as_array()?;
    conditions.iter().find(|condition| condition.get("type").is_some_and(|found| found == type_))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// When the sidecar started, in seconds since 1970: 2026-11-22T00:00:00Z.
    const STARTED: i64 = 1_795_305_600;
    const LATER: i64 = STARTED + SETTLE_SECONDS;

    fn pod(sidecar: &Value, app_restarts: i64, ready: &str) -> Value {
        json!({"spec": {"initContainers": [{"name": "shipper"}]}, "status": {
            "conditions": [{"type": "Ready", "status": ready}],
            "containerStatuses": [{"name": "web", "restartCount": app_restarts, "ready": true, "containerID": "id"}],
            "initContainerStatuses": [sidecar],
        }})
    }

    fn sidecar(restarts: i64, state: &Value, ready: bool) -> Value {
        json!({"name": "shipper", "restartCount": restarts, "ready": ready, "state": state, "containerID": "id"})
    }

    fn running() -> Value {
        json!({"running": {"startedAt": "2026-11-22T00:00:00Z"}})
    }

    fn change(resources: Option<(Value, Value)>) -> ContainerChange {
        let image = resources.is_none().then(|| ("shipper:1".to_owned(), "shipper:2".to_owned()));
        ContainerChange { list: ContainerList::InitContainers, name: "shipper".to_owned(), image, resources }
    }

    fn before(pod: &Value, change: ContainerChange) -> RunningUpgrade {
        baseline(pod, &[change], BTreeMap::new(), STARTED - 1)
    }

    #[test]
    fn new_image_must_run_in_ready_pod() {
        let running = running();
        let upgrade = before(&pod(&sidecar(1, &running, true), 2, "True"), change(None));
        let of = |sidecar: &Value, restarts, ready| progress(&pod(sidecar, restarts, ready), &upgrade, LATER);
        let waits = |progress: &Progress, what: &str| assert_eq!(*progress, Progress::Waiting(what.to_owned()));
        let fails = |progress: &Progress, what: &str| assert_eq!(*progress, Progress::Failed(what.to_owned()));
        let not_ready = "container shipper is not ready with its new image";
        waits(&of(&sidecar(1, &running, true), 2, "True"), not_ready);
        waits(&of(&sidecar(2, &running, false), 2, "True"), not_ready);
        waits(&of(&sidecar(2, &running, true), 2, "False"), "the pod is not ready");
        assert_eq!(of(&sidecar(2, &running, true), 2, "True"), Progress::Done);
        let restarted = "container web was restarted, although the upgrade does not need that";
        fails(&of(&sidecar(2, &running, true), 3, "True"), restarted);
        fails(&of(&sidecar(3, &running, true), 2, "True"), "container shipper was restarted more than once");
        let crashing = json!({"waiting": {"reason": "CrashLoopBackOff", "message": "back-off"}});
        let crashes = "container shipper does not run: CrashLoopBackOff: back-off";
        fails(&of(&sidecar(2, &crashing, false), 2, "False"), crashes);
        // The old image had already crashed before the change.
        waits(&of(&sidecar(1, &crashing, false), 2, "False"), not_ready);
        // The image that crashes is taken back.
        let back = RunningUpgrade { is_step_back: true, ..upgrade.clone() };
        waits(&progress(&pod(&sidecar(2, &crashing, false), 2, "False"), &back, LATER), crashes);

        // The application crashed repeatedly before the change.
        let unready = before(&pod(&sidecar(1, &running, true), 2, "False"), change(None));
        assert_eq!(progress(&pod(&sidecar(2, &running, true), 9, "False"), &unready, LATER), Progress::Done);
        // The container had not started before the change.
        let mut starting = pod(&sidecar(0, &json!({"waiting": {"reason": "PodInitializing"}}), false), 2, "False");
        starting["status"]["initContainerStatuses"][0]["containerID"] = json!("");
        let first = before(&starting, change(None));
        assert_eq!(progress(&pod(&sidecar(0, &running, true), 2, "True"), &first, LATER), Progress::Done);

        // Without a readiness probe, the container has to run for a while.
        let mut new = pod(&sidecar(2, &running, true), 2, "True");
        waits(&progress(&new, &upgrade, LATER - 1), "container shipper has just started");
        new["spec"]["initContainers"][0]["readinessProbe"] = json!({});
        assert_eq!(progress(&new, &upgrade, LATER - 1), Progress::Done);
    }

    #[test]
    fn resize_is_complete_with_allocated_resources() {
        let resize = change(Some((json!({"requests": {"cpu": "100m"}}), json!({"requests": {"cpu": "0.2"}}))));
        let with = |cpu: &str| {
            let mut status = sidecar(1, &running(), true);
            status["resources"] = json!({"requests": {"cpu": cpu}});
            pod(&status, 0, "True")
        };
        let upgrade = before(&with("100m"), resize);
        let of = |pod: &Value| progress(pod, &upgrade, STARTED);
        assert!(matches!(of(&with("100m")), Progress::Waiting(_)));
        assert_eq!(of(&with("200m")), Progress::Done);
        // A restart is a failure, unless the container's `resizePolicy` requires it.
        let mut restarted = with("200m");
        restarted["status"]["initContainerStatuses"][0]["restartCount"] = json!(2);
        assert!(matches!(of(&restarted), Progress::Failed(_)));
        let policy = json!([{"resourceName": "cpu", "restartPolicy": "RestartContainer"}]);
        restarted["spec"]["initContainers"][0]["resizePolicy"] = policy;
        assert_eq!(of(&restarted), Progress::Done);
        let mut pending = with("100m");
        pending["status"]["conditions"] =
            json!([{"type": "PodResizePending", "reason": "Infeasible", "message": "too large"}]);
        assert!(matches!(of(&pending), Progress::Failed(why) if why.ends_with("too large")));
        pending["status"]["conditions"][0]["reason"] = json!("Deferred");
        let deferred = "the node has no room for the new resources of container shipper now: too large";
        assert_eq!(of(&pending), Progress::Waiting(deferred.to_owned()));
    }
}
