//! Finds injected containers that do not run. This module does no I/O.

use pillion_api::names::INJECTED_ANNOTATION;
use serde_json::Value;

use super::facts::{ChangeKind, of_own_record};

/// The number of restarts after which a container that runs but is not ready is considered failing.
const MANY_RESTARTS: i64 = 3;

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

/// A container that Pillion added and that does not run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FailingSidecar {
    pub(crate) container: String,
    /// The profile that added the container.
    pub(crate) profile: String,
    /// The reason, and the kubelet's message.
    why: String,
    /// Whether the container ran before it failed, so that it has logs.
    pub(crate) has_run: bool,
    /// Whether the kubelet has tried to start the container more than once, or cannot start it.
    pub(crate) is_stuck: bool,
}

impl FailingSidecar {
    /// Returns the failure as a sentence.
    pub(crate) fn message(&self) -> String {
        let Self { container, profile, why, .. } = self;
        format!("container {container}, which profile {profile} added, does not run: {why}")
    }

    /// Returns the remedy. `restart` is the command that recreates the pod.
    pub(crate) fn remedy(&self, namespace: &str, pod: &str, restart: &str) -> String {
        let Self { container, profile, .. } = self;
        if self.has_run {
            let logs = format!("kubectl -n {namespace} logs {pod} -c {container} --previous");
            return format!("find the cause with {logs}; correct profile {profile}, then {restart}");
        }
        format!("correct the container in profile {profile}, for example its image or pull secret, then {restart}")
    }
}

/// Returns the containers of a stored pod that Pillion added and that do not run.
pub(crate) fn failing(pod: &Value) -> Vec<FailingSidecar> {
    // Most pods are not injected, and this check is much cheaper than reading a record.
    if pod.pointer("/metadata/annotations").is_none_or(|all| all.get(INJECTED_ANNOTATION).is_none()) {
        return Vec::new();
    }
    let added: Vec<(String, String)> = of_own_record(pod)
        .into_iter()
        .filter(|change| change.what == ChangeKind::Added)
        .filter_map(|change| {
            let name = ["/spec/containers/", "/spec/initContainers/"]
                .into_iter()
                .find_map(|list| change.path.strip_prefix(list))?;
            (!name.contains('/')).then(|| (name.to_owned(), change.by.clone()))
        })
        .collect();
    let statuses = ["/status/initContainerStatuses", "/status/containerStatuses"].into_iter();
    let statuses = statuses.filter_map(|list| pod.pointer(list)?.as_array()).flatten();
    let failing = statuses.filter_map(|status| {
        let name = status.get("name")?.as_str()?;
        let (container, profile) = added.iter().find(|(added, _)| added == name)?;
        let (why, has_run, is_stuck) = failure(status)?;
        Some(FailingSidecar { container: container.clone(), profile: profile.clone(), why, has_run, is_stuck })
    });
    failing.collect()
}

/// Returns why a container does not run, whether it has run, and whether it is stuck. `None` if it runs, is starting,
/// or has completed.
fn failure(status: &Value) -> Option<(String, bool, bool)> {
    let restarts = status.get("restartCount").and_then(Value::as_i64).unwrap_or_default();
    let last = status.pointer("/lastState/terminated");
    let has_run = restarts > 0 || last.is_some();
    if let Some(waiting) = status.pointer("/state/waiting") {
        let reason = waiting.get("reason").and_then(Value::as_str).unwrap_or_default();
        if reason.is_empty() || STARTING.contains(&reason) {
            return None;
        }
        let message = waiting.get("message").and_then(Value::as_str).unwrap_or_default();
        let why = if message.is_empty() { reason.to_owned() } else { format!("{reason}: {message}") };
        return Some((why, has_run, STUCK.contains(&reason)));
    }
    if let Some(ended) = status.pointer("/state/terminated") {
        let code = ended.get("exitCode").and_then(Value::as_i64).filter(|code| *code != 0)?;
        return Some((format!("it ended with exit code {code}"), true, false));
    }
    let is_ready = status.get("ready").and_then(Value::as_bool) == Some(true);
    let code = last.and_then(|last| last.get("exitCode")?.as_i64());
    (restarts >= MANY_RESTARTS && !is_ready).then(|| {
        let code = code.map(|code| format!(", the last time with exit code {code}")).unwrap_or_default();
        (format!("it was restarted {restarts} times{code}"), true, true)
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn pod(status: &Value) -> Value {
        let record = json!({"version": 1, "profiles": [{"profile": "log", "revision": "ab", "added": [
            "/spec/containers/shipper", "/spec/volumes/logs", "/spec/containers/app/env/LOG", "/spec/initContainers/setup",
        ]}]});
        json!({
            "metadata": {"name": "web", "annotations": {"pillion.dev/injected": record.to_string()},
                "managedFields": [{"manager": "kubectl", "fieldsV1": {"f:spec": {}}}]},
            "spec": {"containers": [{"name": "app"}, {"name": "shipper"}], "initContainers": [{"name": "setup"}]},
            "status": {"containerStatuses": [{"name": "app", "state": {"waiting": {"reason": "CrashLoopBackOff"}}}, status]},
        })
    }

    #[test]
    fn reports_only_failing_containers_of_profiles() {
        let of = |mut status: Value| {
            status["name"] = json!("shipper");
            failing(&pod(&status)).into_iter().map(|one| (one.why, one.has_run, one.is_stuck)).collect::<Vec<_>>()
        };
        let waiting =
            |reason: &str, message: &str| json!({"state": {"waiting": {"reason": reason, "message": message}}});
        assert_eq!(of(waiting("ContainerCreating", "")), []);
        assert_eq!(of(json!({"state": {"running": {}}, "ready": true, "restartCount": 9})), []);
        assert_eq!(of(json!({"state": {"terminated": {"exitCode": 0}}})), []);
        assert_eq!(
            of(waiting("ErrImagePull", "no such image")),
            [("ErrImagePull: no such image".to_owned(), false, false)]
        );
        assert_eq!(of(waiting("ImagePullBackOff", "")), [("ImagePullBackOff".to_owned(), false, true)]);
        let mut crash = waiting("CrashLoopBackOff", "back-off 10s");
        crash["restartCount"] = json!(2);
        assert_eq!(of(crash), [("CrashLoopBackOff: back-off 10s".to_owned(), true, true)]);
        assert_eq!(
            of(json!({"state": {"terminated": {"exitCode": 7}}})),
            [("it ended with exit code 7".to_owned(), true, false)]
        );
        let between = json!({"state": {"running": {}}, "ready": false, "restartCount": 3,
            "lastState": {"terminated": {"exitCode": 1}}});
        assert_eq!(of(between), [("it was restarted 3 times, the last time with exit code 1".to_owned(), true, true)]);
    }

    #[test]
    fn failure_names_container_profile_and_remedy() {
        let mut pod = pod(&json!({"name": "shipper", "state": {"running": {}}, "ready": true}));
        pod["status"]["initContainerStatuses"] =
            json!([{"name": "setup", "state": {"waiting": {"reason": "ImagePullBackOff", "message": "denied"}}}]);
        let found = failing(&pod);
        let [one] = found.as_slice() else { panic!("{found:?}") };
        assert_eq!(one.message(), "container setup, which profile log added, does not run: ImagePullBackOff: denied");
        assert!(one.remedy("shop", "web", "restart").contains("correct the container in profile log"));
        let crashed = FailingSidecar { has_run: true, ..one.clone() };
        assert!(crashed.remedy("shop", "web", "restart").contains("kubectl -n shop logs web -c setup --previous"));
        // A record that was copied from another pod is ignored.
        pod["metadata"]["managedFields"] =
            json!([{"fieldsV1": {"f:metadata": {"f:annotations": {"f:pillion.dev/injected": {}}}}}]);
        assert_eq!(failing(&pod), []);
    }
}
