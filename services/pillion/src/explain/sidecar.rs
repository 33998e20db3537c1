//! Finds injected containers that do not run or are not ready, and injected pods that no node has room for. This module
//! does no I/O.

use std::fmt;

use jiff::Timestamp;
use pillion_api::names::INJECTED_ANNOTATION;
use serde_json::Value;

use super::facts::{ChangeKind, of_own_record};

/// The number of restarts after which a container that runs but is not ready is considered failing.
const MANY_RESTARTS: i64 = 3;

/// The time after which a container that runs but is not ready is considered failing, in seconds.
const LONG_NOT_READY: i64 = 60;

/// The time after which an init container that still runs is considered failing, in seconds. The application starts
/// only after this container has completed.
const LONG_INIT: i64 = 300;

/// The waiting reasons that do not mean a failure.
const STARTING: [&str; 2] = ["ContainerCreating", "PodInitializing"];

/// The waiting reasons that mean that the kubelet has tried to start the container more than once, or cannot start it.
const STUCK: [&str; 6] = [
    "ImagePullBackOff",
    "InvalidImageName",
    "ErrImageNeverPull",
    "CreateContainerConfigError",
    "CreateContainerError",
    "CrashLoopBackOff",
];

/// A container that Pillion added and that does not run, or is not ready.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FailingSidecar {
    pub(crate) container: String,
    /// The profile that added the container.
    pub(crate) profile: String,
    failure: Failure,
    /// Whether the container ran before it failed, so that it has logs.
    pub(crate) has_run: bool,
    /// Whether the kubelet has tried to start the container more than once, or cannot start it.
    pub(crate) is_stuck: bool,
}

/// Why a container does not run, or is not ready.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Failure {
    /// The kubelet does not start it. The text is the kubelet's reason and message.
    Waiting(String),
    /// It terminated with this exit code.
    Ended(i64),
    /// It was restarted this often, the last time after this exit code.
    Restarted(i64, Option<i64>),
    /// It used more memory than its limit. `None`: it has no limit, so the node ran out of memory.
    OutOfMemory(Option<String>),
    /// Its startup or readiness probe has not succeeded for this number of seconds.
    NotReady(&'static str, i64),
    /// It is an init container that has been running for this number of seconds, and the other containers wait for it.
    StillRuns(i64),
}

impl fmt::Display for Failure {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Waiting(why) => write!(formatter, "does not run: {why}"),
            Self::Ended(code) => write!(formatter, "does not run: it ended with exit code {code}"),
            Self::Restarted(times, code) => {
                write!(formatter, "does not run: it was restarted {times} times")?;
                code.map_or(Ok(()), |code| write!(formatter, ", the last time with exit code {code}"))
            }
            Self::OutOfMemory(Some(limit)) => {
                write!(formatter, "does not run: it used more memory than its limit of {limit}")
            }
            Self::OutOfMemory(None) => formatter.write_str("does not run: the node had no memory left for it"),
            Self::NotReady(probe, seconds) => {
                write!(formatter, "is not ready: its {probe} has not succeeded for {seconds} seconds")
            }
            Self::StillRuns(seconds) => {
                let minutes = seconds / 60;
                write!(formatter, "has been running for {minutes} minutes, and the other containers wait until it ends")
            }
        }
    }
}

impl FailingSidecar {
    /// Returns the failure as a sentence.
    pub(crate) fn message(&self) -> String {
        let Self { container, profile, failure, .. } = self;
        format!("container {container}, which profile {profile} added, {failure}")
    }

    /// Returns the remedy. `restart` describes how to recreate the pod.
    pub(crate) fn remedy(&self, namespace: &str, pod: &str, restart: &str) -> String {
        let Self { container, profile, failure, .. } = self;
        let logs = format!("kubectl -n {namespace} logs {pod} -c {container}");
        match failure {
            Failure::OutOfMemory(_) => {
                format!("raise the memory of the container in profile {profile}, then {restart}")
            }
            Failure::NotReady(..) | Failure::StillRuns(_) => {
                format!("find the cause with {logs}; correct profile {profile}, then {restart}")
            }
            _ if self.has_run => {
                format!("find the cause with {logs} --previous; correct profile {profile}, then {restart}")
            }
            _ => format!(
                "correct the container in profile {profile}, for example its image or pull secret, then {restart}"
            ),
        }
    }
}

/// Returns the containers of a stored pod that Pillion added and that are failing: see [`Failure`]. Containers that are
/// still starting are not included. `now` is the current time in seconds since 1970.
pub(crate) fn failing(pod: &Value, now: i64) -> Vec<FailingSidecar> {
    // Most pods are not injected, and this check is much cheaper than reading a record.
    if pod.pointer("/metadata/annotations").is_none_or(|all| all.get(INJECTED_ANNOTATION).is_none()) {
        return Vec::new();
    }
    let added = added_containers(pod);
    let lists = [("containers", "containerStatuses"), ("initContainers", "initContainerStatuses")];
    let mut failing = Vec::new();
    for (list, statuses) in lists {
        let statuses = pod.pointer("/status").and_then(|status| status.get(statuses)?.as_array());
        for status in statuses.into_iter().flatten() {
            let Some(name) = status.get("name").and_then(Value::as_str) else { continue };
            let Some((container, profile)) = added.iter().find(|(added, _)| added == name) else { continue };
            let specs = pod.pointer("/spec").and_then(|spec| spec.get(list)?.as_array()).into_iter().flatten();
            let spec = specs.into_iter().find(|spec| spec.get("name").is_some_and(|found| found == name));
            let spec = spec.unwrap_or(&Value::Null);
            let is_init = list == "initContainers" && spec.get("restartPolicy").is_none_or(|policy| policy != "Always");
            if let Some((failure, has_run, is_stuck)) = failure(status, spec, is_init, now) {
                let (container, profile) = (container.clone(), profile.clone());
                failing.push(FailingSidecar { container, profile, failure, has_run, is_stuck });
            }
        }
    }
    failing
}

/// Returns why no node can run a stored pod, with the requests of the containers that Pillion added. `None` if the
/// scheduler has not reported the pod as unschedulable, or if Pillion added no requests.
pub(crate) fn unscheduled(pod: &Value) -> Option<String> {
    let conditions = pod.pointer("/status/conditions")?.as_array()?;
    let unscheduled = |condition: &&Value| {
        is(condition, "type", "PodScheduled")
            && is(condition, "status", "False")
            && is(condition, "reason", "Unschedulable")
    };
    let why = conditions.iter().find(unscheduled)?.get("message").and_then(Value::as_str).unwrap_or_default();
    let requests: Vec<_> = added_containers(pod)
        .into_iter()
        .filter_map(|(name, profile)| {
            let lists = ["containers", "initContainers"].into_iter();
            let specs = lists.filter_map(|list| pod.pointer("/spec")?.get(list)?.as_array()).flatten();
            let spec = specs.into_iter().find(|spec| is(spec, "name", &name))?;
            let requests = spec.pointer("/resources/requests")?.as_object().filter(|all| !all.is_empty())?;
            let requests: Vec<_> = requests
                .iter()
                .map(|(resource, value)| format!("{resource} {}", value.as_str().unwrap_or_default()))
                .collect();
            Some(format!("container {name} of profile {profile} requests {}", requests.join(", ")))
        })
        .collect();
    (!requests.is_empty()).then(|| format!("no node has room for it: {why} ({})", requests.join("; ")))
}

/// Returns the names of the containers that Pillion added, each with its profile.
fn added_containers(pod: &Value) -> Vec<(String, String)> {
    let added = of_own_record(pod).into_iter().filter(|change| change.what == ChangeKind::Added);
    added
        .filter_map(|change| {
            let name = ["/spec/containers/", "/spec/initContainers/"]
                .into_iter()
                .find_map(|list| change.path.strip_prefix(list))?;
            (!name.contains('/')).then(|| (name.to_owned(), change.by.clone()))
        })
        .collect()
}

/// Returns why a container does not run or is not ready, whether it has run, and whether it is stuck. `None` if it
/// runs, is starting, or has completed. `spec` is the container in the pod's spec.
fn failure(status: &Value, spec: &Value, is_init: bool, now: i64) -> Option<(Failure, bool, bool)> {
    let restarts = status.get("restartCount").and_then(Value::as_i64).unwrap_or_default();
    let last = status.pointer("/lastState/terminated");
    let has_run = restarts > 0 || last.is_some();
    let ended_by_memory = |ended: Option<&Value>| ended.is_some_and(|ended| is(ended, "reason", "OOMKilled"));
    let out_of_memory = || {
        let limit = spec.pointer("/resources/limits/memory").and_then(Value::as_str);
        Failure::OutOfMemory(limit.map(str::to_owned))
    };
    if let Some(waiting) = status.pointer("/state/waiting") {
        let reason = waiting.get("reason").and_then(Value::as_str).unwrap_or_default();
        if reason.is_empty() || STARTING.contains(&reason) {
            return None;
        }
        let message = waiting.get("message").and_then(Value::as_str).unwrap_or_default();
        let why = if message.is_empty() { reason.to_owned() } else { format!("{reason}: {message}") };
        let failure = if ended_by_memory(last) { out_of_memory() } else { Failure::Waiting(why) };
        return Some((failure, has_run, STUCK.contains(&reason)));
    }
    if let Some(ended) = status.pointer("/state/terminated") {
        let code = ended.get("exitCode").and_then(Value::as_i64).filter(|code| *code != 0)?;
        let failure = if ended_by_memory(Some(ended)) { out_of_memory() } else { Failure::Ended(code) };
        return Some((failure, true, false));
    }
    let is_ready = status.get("ready").and_then(Value::as_bool) == Some(true);
    if restarts >= MANY_RESTARTS && !is_ready {
        let code = last.and_then(|last| last.get("exitCode")?.as_i64());
        let failure = if ended_by_memory(last) { out_of_memory() } else { Failure::Restarted(restarts, code) };
        return Some((failure, true, true));
    }
    let started = status.pointer("/state/running/startedAt")?.as_str()?.parse::<Timestamp>().ok()?;
    let seconds = now.saturating_sub(started.as_second());
    if is_init {
        return (seconds >= LONG_INIT).then_some((Failure::StillRuns(seconds), true, false));
    }
    let has_started = status.get("started").and_then(Value::as_bool) != Some(false);
    let probe = if has_started { "readiness probe" } else { "startup probe" };
    (!is_ready && seconds >= LONG_NOT_READY).then_some((Failure::NotReady(probe, seconds), true, false))
}

fn is(object: &Value, field: &str, value: &str) -> bool {
    object.get(field).is_some_and(|found| found == value)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// Ten minutes after the containers of these tests have started.
    const NOW: i64 = 1_795_305_600 + 600;

    fn pod(status: &Value) -> Value {
        let record = json!({"version": 1, "profiles": [{"profile": "log", "revision": "ab", "added": [
            "/spec/containers/shipper", "/spec/volumes/logs", "/spec/containers/app/env/LOG", "/spec/initContainers/setup",
        ]}]});
        json!({
            "metadata": {"name": "web", "annotations": {"pillion.dev/injected": record.to_string()},
                "managedFields": [{"manager": "kubectl", "fieldsV1": {"f:spec": {}}}]},
            "spec": {"containers": [{"name": "app"}, {"name": "shipper", "resources": {"limits": {"memory": "16Mi"}}}], "initContainers": [{"name": "setup"}]},
            "status": {"containerStatuses": [{"name": "app", "state": {"waiting": {"reason": "CrashLoopBackOff"}}}, status]},
        })
    }

    #[test]
    fn reports_only_failing_containers_of_profiles() {
        let of = |mut status: Value| {
            status["name"] = json!("shipper");
            let found = failing(&pod(&status), NOW).into_iter();
            found.map(|one| (one.failure, one.has_run, one.is_stuck)).collect::<Vec<_>>()
        };
        let waiting =
            |reason: &str, message: &str| json!({"state": {"waiting": {"reason": reason, "message": message}}});
        assert_eq!(of(waiting("ContainerCreating", "")), []);
        assert_eq!(of(json!({"state": {"running": {}}, "ready": true, "restartCount": 9})), []);
        assert_eq!(of(json!({"state": {"terminated": {"exitCode": 0}}})), []);
        assert_eq!(
            of(waiting("ErrImagePull", "no such image")),
            [(Failure::Waiting("ErrImagePull: no such image".to_owned()), false, false)]
        );
        let back_off = Failure::Waiting("ImagePullBackOff".to_owned());
        assert_eq!(of(waiting("ImagePullBackOff", "")), [(back_off, false, true)]);
        let mut crash = waiting("CrashLoopBackOff", "back-off 10s");
        crash["restartCount"] = json!(2);
        assert_eq!(of(crash.clone()), [(Failure::Waiting("CrashLoopBackOff: back-off 10s".to_owned()), true, true)]);
        crash["lastState"] = json!({"terminated": {"exitCode": 137, "reason": "OOMKilled"}});
        assert_eq!(of(crash), [(Failure::OutOfMemory(Some("16Mi".to_owned())), true, true)]);
        assert_eq!(of(json!({"state": {"terminated": {"exitCode": 7}}})), [(Failure::Ended(7), true, false)]);
        let between = json!({"state": {"running": {}}, "ready": false, "restartCount": 3,
            "lastState": {"terminated": {"exitCode": 1}}});
        assert_eq!(of(between), [(Failure::Restarted(3, Some(1)), true, true)]);
        let not_ready = |started: bool| json!({"state": {"running": {"startedAt": "2026-11-22T00:00:00Z"}}, "ready": false, "started": started});
        let seconds = NOW - 1_795_305_600;
        assert_eq!(of(not_ready(true)), [(Failure::NotReady("readiness probe", seconds), true, false)]);
        assert_eq!(of(not_ready(false)), [(Failure::NotReady("startup probe", seconds), true, false)]);
    }

    #[test]
    fn unscheduled_pod_names_added_requests() {
        let mut pod = pod(&json!({"name": "shipper"}));
        assert_eq!(unscheduled(&pod), None);
        let message = "0/3 nodes are available: 3 Insufficient cpu.";
        pod["status"]["conditions"] =
            json!([{"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}]);
        assert_eq!(unscheduled(&pod), None, "the profile adds no requests");
        pod["spec"]["containers"][1]["resources"]["requests"] = json!({"cpu": "2", "memory": "1Gi"});
        let expected = "no node has room for it: 0/3 nodes are available: 3 Insufficient cpu. \
                        (container shipper of profile log requests cpu 2, memory 1Gi)";
        assert_eq!(unscheduled(&pod).as_deref(), Some(expected));
    }

    #[test]
    fn init_container_that_does_not_end_is_reported() {
        let mut pod = pod(&json!({"name": "shipper", "state": {"running": {}}, "ready": true}));
        pod["status"]["initContainerStatuses"] =
            json!([{"name": "setup", "state": {"running": {"startedAt": "2026-11-22T00:00:00Z"}}}]);
        let messages = |pod: &Value, now| failing(pod, now).iter().map(FailingSidecar::message).collect::<Vec<_>>();
        let waits = "container setup, which profile log added, has been running for 10 minutes, and the other containers wait until it ends";
        assert_eq!(messages(&pod, NOW), [waits]);
        assert_eq!(messages(&pod, NOW - LONG_INIT - 1), <[String; 0]>::default());
        // A native sidecar runs as long as the pod.
        pod["spec"]["initContainers"][0]["restartPolicy"] = json!("Always");
        pod["status"]["initContainerStatuses"][0]["ready"] = json!(true);
        assert_eq!(messages(&pod, NOW), <[String; 0]>::default());
    }

    #[test]
    fn failure_names_container_profile_and_remedy() {
        let mut pod = pod(&json!({"name": "shipper", "state": {"running": {}}, "ready": true}));
        pod["status"]["initContainerStatuses"] =
            json!([{"name": "setup", "state": {"waiting": {"reason": "ImagePullBackOff", "message": "denied"}}}]);
        let found = failing(&pod, NOW);
        let [one] = found.as_slice() else { panic!("{found:?}") };
        assert_eq!(one.message(), "container setup, which profile log added, does not run: ImagePullBackOff: denied");
        assert!(one.remedy("shop", "web", "restart").contains("correct the container in profile log"));
        let crashed = FailingSidecar { has_run: true, ..one.clone() };
        assert!(crashed.remedy("shop", "web", "restart").contains("kubectl -n shop logs web -c setup --previous"));
        // A record that was copied from another pod is ignored.
        pod["metadata"]["managedFields"] =
            json!([{"fieldsV1": {"f:metadata": {"f:annotations": {"f:pillion.dev/injected": {}}}}}]);
        assert_eq!(failing(&pod, NOW), []);
    }
}
