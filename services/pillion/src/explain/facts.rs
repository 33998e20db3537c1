//! The facts for an explanation. They are gathered from a cluster or from files before they are judged.

use std::collections::BTreeMap;
use std::sync::Arc;

use anyhow::bail;
use k8s_openapi::api::admissionregistration::v1::MutatingWebhookConfiguration;
use pillion_api::names::{FailureMode, INJECTED_ANNOTATION, MIRROR_ANNOTATION};
use pillion_api::opt_in::OptIn;
use pillion_control::Release;
use pillion_control::audit::{NamespaceAge, WhyNotCalled};
use pillion_control::informer::cluster_listing::Stored;
use pillion_control::informer::text::Broken;
use pillion_engine::audit::Injected;
use pillion_engine::lookup::LookedUp;
use pillion_engine::snapshot::{Namespace, Snapshot};
use pillion_json::OwnedTape;
use serde::Serialize;
use serde_json::{Map, Value, json};

use crate::finding::{Finding, ObjectRef};
use crate::installation::Unread;
use crate::trial;
use crate::trial::original_object;

/// The facts that all explanations of one run share.
#[derive(Debug)]
pub(crate) struct ExplainFacts {
    pub(crate) release: Release,
    pub(crate) opt_in: OptIn,
    pub(crate) snapshot: Arc<Snapshot>,
    /// The namespace of the objects to explain.
    pub(crate) namespace: NamespaceFacts,
    /// All webhook configurations; `None` if they could not be read.
    pub(crate) configurations: Option<Vec<MutatingWebhookConfiguration>>,
    /// The profiles as stored. Empty for profiles from files.
    pub(crate) stored: Vec<Stored>,
    pub(crate) broken: Vec<Broken>,
    /// The field manager that disabled injection; empty if unknown. `None`: injection is not known to be disabled.
    pub(crate) switched_off: Option<String>,
    /// The finding that no replica is ready, if that is the case.
    pub(crate) no_replica: Option<Finding>,
    /// Facts that show when the API server could not call the webhook, or no replica was ready.
    pub(crate) outages: WebhookOutages,
    /// Facts that could not be read.
    pub(crate) unread: Unread,
    /// The cluster facts of the webhook's policy file.
    pub(crate) cluster: Option<Arc<OwnedTape>>,
    /// Whether the facts come from a cluster, and not from files.
    pub(crate) is_live: bool,
    /// The current time, in seconds since 1970.
    pub(crate) now: i64,
}

/// The facts about one namespace.
#[derive(Debug, Default)]
pub(crate) struct NamespaceFacts {
    pub(crate) name: String,
    /// `None` if the namespace does not exist, or could not be read.
    pub(crate) found: Option<Arc<Namespace>>,
    pub(crate) labels: BTreeMap<String, String>,
    pub(crate) annotations: BTreeMap<String, String>,
    pub(crate) age: NamespaceAge,
}

impl NamespaceFacts {
    /// Returns the failure mode, if the namespace is opted in.
    pub(crate) fn failure_mode(&self) -> Option<FailureMode> {
        self.found.as_ref().and_then(|found| found.failure_mode())
    }
}

/// Facts that show when the API server could not call the webhook, or no replica was ready. Times are in seconds since
/// 1970.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct WebhookOutages {
    /// When the webhook configuration was created. Before that time, the API server did not call the webhook.
    pub(crate) registered: Option<i64>,
    /// The number of ready endpoints.
    pub(crate) ready: Option<usize>,
    /// When the endpoint slices of the webhook's Service last changed.
    pub(crate) endpoints_changed: Option<i64>,
    /// When injection was switched off.
    pub(crate) off_since: Option<i64>,
}

/// The origin of an object to explain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Origin {
    /// A pod in the cluster.
    Stored,
    /// A future pod, from a workload's template or a file.
    Template,
    /// The object of a saved AdmissionReview.
    Review,
    /// A generic pod of a namespace, without requests for profiles.
    GenericPod,
}

/// An object to explain.
#[derive(Debug)]
pub(crate) struct ExplainedObject {
    /// Identifies the object in findings.
    pub(crate) object: ObjectRef,
    pub(crate) origin: Origin,
    /// The review for the engine, with the pod as its author wrote it.
    pub(crate) review: Value,
    /// The pod as stored, if it exists.
    pub(crate) found: Option<Value>,
    /// Whether the creating user is unknown, so that the review's `userInfo` is a placeholder.
    pub(crate) is_user_guessed: bool,
    /// The results of the lookups for the review.
    pub(crate) looked_up: LookedUp,
    /// The topmost workload among the pod's owners, or the workload that has the template.
    pub(crate) workload: Option<Value>,
    /// The name of the service account, and whether it exists. `None`: not looked up, or unknown. Also `None` if the
    /// account `default` does not exist.
    pub(crate) account: Option<(String, bool)>,
    /// The API server's reason for rejecting a pod of the workload, according to the last event.
    pub(crate) rejection: Option<String>,
}

impl ExplainedObject {
    /// Returns the pod as its author wrote it.
    pub(crate) fn pod(&self) -> &Value {
        self.review.pointer("/request/object").unwrap_or(&Value::Null)
    }

    /// Returns the pod as stored, if it exists.
    pub(crate) fn stored_tape(&self) -> Option<OwnedTape> {
        OwnedTape::parse(self.found.as_ref()?.to_string()).ok()
    }

    /// Whether the stored pod has an injection record that Pillion wrote, with at least one profile.
    pub(crate) fn is_injected(&self) -> bool {
        let injected = self.stored_tape().map(|pod| pillion_engine::audit::read(pod.root()).injected);
        matches!(injected, Some(Injected::Profiles(profiles)) if !profiles.is_empty())
    }

    /// Whether the stored pod has terminated (phase `Succeeded` or `Failed`), or is being deleted.
    pub(crate) fn has_ended(&self) -> bool {
        self.found.as_ref().is_some_and(|found| {
            let phase = found.pointer("/status/phase").and_then(Value::as_str);
            found.pointer("/metadata/deletionTimestamp").is_some() || matches!(phase, Some("Succeeded" | "Failed"))
        })
    }

    /// Returns how many pods the workload lacks, how many it should have, and the API server's reason for rejecting
    /// one. `None` if no pod is missing, or if no rejection is known.
    pub(crate) fn missing_pods(&self) -> Option<(i64, i64, &str)> {
        let workload = self.workload.as_ref().filter(|_| self.origin == Origin::Template)?;
        let (wanted, found) = pod_counts(workload)?;
        let conditions = workload.pointer("/status/conditions").and_then(Value::as_array);
        let of_condition = conditions.into_iter().flatten().find_map(|condition| {
            let is = |field: &str, text: &str| condition.get(field).and_then(Value::as_str) == Some(text);
            let failed = is("type", "ReplicaFailure") && is("status", "True");
            condition.get("message").and_then(Value::as_str).filter(|_| failed)
        });
        let why = of_condition.or(self.rejection.as_deref())?;
        (found < wanted).then_some((wanted - found, wanted, why))
    }

    /// Returns the creation time in seconds since 1970, or 0 if unknown.
    pub(crate) fn created(&self) -> i64 {
        let text = self.found.as_ref().and_then(|pod| pod.pointer("/metadata/creationTimestamp")?.as_str());
        text.and_then(|text| text.parse::<jiff::Timestamp>().ok()).map_or(0, jiff::Timestamp::as_second)
    }
}

impl WebhookOutages {
    /// Returns why the webhook may not have responded at this time; `None` if no reason is known.
    pub(crate) fn at(&self, time: i64) -> Option<WhyNotCalled> {
        if self.off_since.is_some_and(|since| since <= time) {
            return Some(WhyNotCalled::SwitchedOff);
        }
        let before_registered = self.registered.is_some_and(|registered| time < registered);
        (before_registered || self.ready == Some(0)).then_some(WhyNotCalled::Unavailable)
    }
}

/// Returns how many pods a workload should have, and how many it has. `None` for a kind without these counts.
pub(crate) fn pod_counts(workload: &Value) -> Option<(i64, i64)> {
    let number = |pointer: &str| workload.pointer(pointer).and_then(Value::as_i64);
    match workload.get("kind")?.as_str()? {
        "DaemonSet" => {
            let scheduled = number("/status/currentNumberScheduled").unwrap_or_default();
            Some((number("/status/desiredNumberScheduled").unwrap_or_default(), scheduled))
        }
        "Deployment" | "ReplicaSet" | "StatefulSet" | "ReplicationController" => {
            Some((number("/spec/replicas").unwrap_or(1), number("/status/replicas").unwrap_or_default()))
        }
        _ => None,
    }
}

/// The controllers that create pods: the kind that contains the pod template, and the controller's service account in
/// `kube-system`.
const CREATORS: [(&str, &str); 7] = [
    ("Deployment", "replicaset-controller"),
    ("ReplicaSet", "replicaset-controller"),
    ("StatefulSet", "statefulset-controller"),
    ("DaemonSet", "daemon-set-controller"),
    ("Job", "job-controller"),
    ("CronJob", "job-controller"),
    ("ReplicationController", "replication-controller"),
];

/// A supported kind of object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::struct_field_names, reason = "Kubernetes calls it the kind of an object")]
pub(crate) struct Kind {
    pub(crate) group: &'static str,
    pub(crate) kind: &'static str,
    pub(crate) plural: &'static str,
    short: &'static str,
    /// JSON pointer to the pod template; empty for pods and namespaces.
    pub(crate) template: &'static str,
}

/// All supported kinds: pods and namespaces, then workloads.
pub(crate) const KINDS: [Kind; 9] = [
    Kind { group: "", kind: "Pod", plural: "pods", short: "po", template: "" },
    Kind { group: "", kind: "Namespace", plural: "namespaces", short: "ns", template: "" },
    Kind { group: "apps", kind: "Deployment", plural: "deployments", short: "deploy", template: "/spec/template" },
    Kind { group: "apps", kind: "StatefulSet", plural: "statefulsets", short: "sts", template: "/spec/template" },
    Kind { group: "apps", kind: "DaemonSet", plural: "daemonsets", short: "ds", template: "/spec/template" },
    Kind { group: "apps", kind: "ReplicaSet", plural: "replicasets", short: "rs", template: "/spec/template" },
    Kind { group: "batch", kind: "Job", plural: "jobs", short: "job", template: "/spec/template" },
    Kind {
        group: "batch",
        kind: "CronJob",
        plural: "cronjobs",
        short: "cj",
        template: "/spec/jobTemplate/spec/template",
    },
    Kind {
        group: "",
        kind: "ReplicationController",
        plural: "replicationcontrollers",
        short: "rc",
        template: "/spec/template",
    },
];

/// The kind and name of the object to explain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Target {
    pub(crate) kind: Kind,
    pub(crate) name: String,
}

impl Target {
    /// Parses the arguments: `KIND/NAME`, `KIND NAME`, or the name of a pod.
    ///
    /// # Errors
    /// The arguments have a different form, or the kind is not supported.
    pub(crate) fn parse(words: &[String]) -> anyhow::Result<Self> {
        let (kind, name) = match words {
            [one] => one.split_once('/').unwrap_or(("pod", one)),
            [kind, name] => (kind.as_str(), name.as_str()),
            _ => bail!("expected KIND/NAME, as in pod/web, deployment/web or namespace/shop"),
        };
        let word = kind.split('.').next().unwrap_or_default().to_lowercase();
        let found = KINDS
            .iter()
            .find(|known| [known.plural, known.short].contains(&&*word) || known.kind.eq_ignore_ascii_case(&word));
        match found {
            Some(kind) if !name.is_empty() => Ok(Self { kind: *kind, name: name.to_owned() }),
            Some(_) => bail!("the name of the {kind} is missing"),
            None => {
                let kinds: Vec<_> = KINDS.iter().map(|known| known.kind.to_lowercase()).collect();
                bail!("{kind:?} is not a supported kind; supported are {}", kinds.join(", "))
            }
        }
    }
}

/// Returns the kind of an object; `None` if the kind is not supported.
pub(crate) fn kind_of(object: &Value) -> Option<Kind> {
    let version = object.get("apiVersion")?.as_str()?;
    let group = version.split_once('/').map_or("", |(group, _)| group);
    let kind = object.get("kind")?.as_str()?;
    KINDS.into_iter().find(|known| (known.group, known.kind) == (group, kind))
}

/// Returns a string field of `metadata`.
pub(crate) fn metadata<'o>(object: &'o Value, field: &str) -> Option<&'o str> {
    object.get("metadata")?.get(field)?.as_str()
}

/// Returns a pod as an object to explain.
pub(crate) fn of_pod(pod: &Value, namespace: &str) -> ExplainedObject {
    let mut pod = pod.clone();
    if let Some(fields) = pod.as_object_mut() {
        fields.insert("apiVersion".to_owned(), "v1".into());
        fields.insert("kind".to_owned(), "Pod".into());
    }
    let name = metadata(&pod, "name").or_else(|| metadata(&pod, "generateName")).unwrap_or_default();
    let is_stored = metadata(&pod, "uid").is_some();
    let mut authors = if is_stored { original_object(&pod) } else { pod.clone() };
    if let Some(metadata) = authors.get_mut("metadata").and_then(Value::as_object_mut) {
        metadata.insert("namespace".to_owned(), namespace.into());
    }
    let node = pod.pointer("/spec/nodeName").and_then(Value::as_str).unwrap_or("node");
    let is_mirror = pod.pointer("/metadata/annotations").is_some_and(|all| all.get(MIRROR_ANNOTATION).is_some());
    let known = if is_mirror {
        Some(json!({"username": format!("system:node:{node}"), "groups": ["system:nodes", "system:authenticated"]}))
    } else {
        controlling(&pod).and_then(kind_of).and_then(creator)
    };
    let is_user_guessed = known.is_none();
    let user = known.unwrap_or_else(unknown_user);
    ExplainedObject {
        object: ObjectRef::new("Pod", Some(namespace), name),
        origin: if is_stored { Origin::Stored } else { Origin::Template },
        review: trial::of_creation(&authors, namespace, &user),
        found: is_stored.then_some(pod),
        is_user_guessed,
        looked_up: LookedUp::default(),
        workload: None,
        account: None,
        rejection: None,
    }
}

/// Returns the user that creates the pods of a kind: the kind's controller, as in kubeadm and most distributions.
/// `None` if the kind has no controller.
fn creator(kind: Kind) -> Option<Value> {
    let (_, account) = CREATORS.into_iter().find(|(known, _)| *known == kind.kind)?;
    Some(json!({
        "username": format!("system:serviceaccount:kube-system:{account}"),
        "groups": ["system:serviceaccounts", "system:serviceaccounts:kube-system", "system:authenticated"],
    }))
}

/// Returns a placeholder for an unknown user.
fn unknown_user() -> Value {
    json!({"username": "pillion-explain", "groups": ["system:authenticated"]})
}

/// Returns the owner reference of the controlling owner.
pub(crate) fn controlling(object: &Value) -> Option<&Value> {
    let owners = object.pointer("/metadata/ownerReferences")?.as_array()?;
    owners.iter().find(|owner| owner.get("controller").and_then(Value::as_bool) == Some(true))
}

/// Returns the pod template of a workload as an object to explain; `None` if the workload has no pod template.
pub(crate) fn of_template(workload: &Value, kind: Kind, namespace: &str) -> Option<ExplainedObject> {
    let template =
        workload.pointer(kind.template).filter(|template| template.is_object() && !kind.template.is_empty())?;
    let name = metadata(workload, "name").unwrap_or_default();
    let mut of_pod = template.get("metadata").and_then(Value::as_object).cloned().unwrap_or_else(Map::new);
    of_pod.remove("name");
    of_pod.insert("generateName".to_owned(), format!("{name}-").into());
    of_pod.insert("namespace".to_owned(), namespace.into());
    // During a rollout, the revision depends on the name of the workload that owns the pod.
    let version = if kind.group.is_empty() { "v1".to_owned() } else { format!("{}/v1", kind.group) };
    if let Some(owner) = trial::owner_reference(workload, &version, kind.kind) {
        of_pod.insert("ownerReferences".to_owned(), json!([owner]));
    }
    let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": of_pod, "spec": template.get("spec")});
    let mut workload = workload.clone();
    if let Some(fields) = workload.as_object_mut() {
        fields.entry("kind").or_insert_with(|| kind.kind.into());
    }
    let user = creator(kind);
    Some(ExplainedObject {
        object: ObjectRef::new(kind.kind, Some(namespace), name),
        origin: Origin::Template,
        is_user_guessed: user.is_none(),
        review: trial::of_creation(&pod, namespace, &user.unwrap_or_else(unknown_user)),
        found: None,
        looked_up: LookedUp::default(),
        workload: Some(workload),
        account: None,
        rejection: None,
    })
}

/// Returns a namespace as an object to explain: a generic pod in it that requests no profile.
pub(crate) fn of_namespace(name: &str) -> ExplainedObject {
    let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "any", "namespace": name},
        "spec": {"containers": [{"name": "any", "image": "any"}]}});
    ExplainedObject {
        object: ObjectRef::new("Namespace", None, name),
        origin: Origin::GenericPod,
        ..of_pod(&pod, name)
    }
}

/// Returns the object of a saved review as an object to explain, in the request's namespace.
pub(crate) fn of_review(review: Value) -> ExplainedObject {
    let request = |field: &str| review.pointer("/request").and_then(|request| request.get(field)?.as_str());
    let object = review.pointer("/request/object").unwrap_or(&Value::Null);
    let kind = review.pointer("/request/kind/kind").and_then(Value::as_str).unwrap_or("Pod");
    let name = [request("name"), metadata(object, "name"), metadata(object, "generateName")];
    let name = name.into_iter().flatten().find(|name| !name.is_empty()).unwrap_or_default();
    let object = ObjectRef::new(kind, request("namespace"), name);
    ExplainedObject {
        object,
        origin: Origin::Review,
        review,
        found: None,
        is_user_guessed: false,
        looked_up: LookedUp::default(),
        workload: None,
        account: None,
        rejection: None,
    }
}

/// Returns the service account of a pod.
pub(crate) fn account_of(pod: &Value) -> &str {
    let field = |name: &str| pod.pointer("/spec")?.get(name)?.as_str().filter(|name| !name.is_empty());
    field("serviceAccountName").or_else(|| field("serviceAccount")).unwrap_or("default")
}

/// A change to a pod that its injection record lists.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Change {
    /// The profile that made the change.
    pub(crate) by: String,
    /// The revision of the profile.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) revision: Option<String>,
    pub(crate) what: ChangeKind,
    /// The path, with list elements by name.
    pub(crate) path: String,
    /// Whether the field is present in the pod. Always true for a removed field.
    pub(crate) present: bool,
}

/// A field manager of an object, and the time of its last write.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Manager {
    pub(crate) manager: String,
    pub(crate) time: String,
}

/// The kind of change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum ChangeKind {
    Added,
    Replaced,
    Removed,
}

/// Returns the changes in the record of a pod, if Pillion wrote the record for this pod.
pub(crate) fn of_own_record(pod: &Value) -> Vec<Change> {
    let tape = OwnedTape::parse(pod.to_string()).ok();
    match tape.map(|tape| pillion_engine::audit::read(tape.root()).injected) {
        Some(Injected::Profiles(_)) => of_record(pod),
        Some(Injected::Foreign | Injected::Nothing) | None => Vec::new(),
    }
}

/// Returns the changes in the injection record of a pod, without checking that Pillion wrote the record.
pub(crate) fn of_record(pod: &Value) -> Vec<Change> {
    let annotation = pod.pointer("/metadata/annotations").and_then(|all| all.get(INJECTED_ANNOTATION));
    let record: Option<Value> = annotation.and_then(Value::as_str).and_then(|text| serde_json::from_str(text).ok());
    let mut changes = Vec::new();
    for entry in record.iter().filter_map(|record| record.get("profiles")?.as_array()).flatten() {
        let text = |field: &str| entry.get(field).and_then(Value::as_str).unwrap_or_default().to_owned();
        let list = |field: &str| entry.get(field).and_then(Value::as_array).into_iter().flatten();
        let mut add = |what, path: &str| {
            let present = what == ChangeKind::Removed || has_path(pod, path);
            let (by, path) = (text("profile"), path.to_owned());
            changes.push(Change { by, revision: Some(text("revision")), what, path, present });
        };
        for path in list("added").filter_map(Value::as_str) {
            add(ChangeKind::Added, path);
        }
        for replaced in list("replaced").filter_map(Value::as_array) {
            let what = if replaced.len() > 2 { ChangeKind::Removed } else { ChangeKind::Replaced };
            if let Some(path) = replaced.first().and_then(Value::as_str) {
                add(what, path);
            }
        }
    }
    changes
}

/// Returns the field managers in `managedFields` with their times, except those of subresources.
pub(crate) fn managers(object: &Value) -> Vec<Manager> {
    let entries = object.pointer("/metadata/managedFields").and_then(Value::as_array).into_iter().flatten();
    let mut managers = Vec::new();
    for entry in entries.filter(|entry| entry.get("subresource").is_none_or(|sub| sub.as_str() == Some(""))) {
        let text = |field: &str| entry.get(field).and_then(Value::as_str).unwrap_or_default().to_owned();
        managers.push(Manager { manager: text("manager"), time: text("time") });
    }
    managers
}

/// Whether a path exists in the object. The path names list elements by their keys. To avoid false alarms, a path is
/// treated as existing if it is unknown whether it exists.
fn has_path(object: &Value, path: &str) -> bool {
    let mut at = object;
    for token in path.split('/').skip(1).map(|token| token.replace("~1", "/").replace("~0", "~")) {
        at = match at {
            Value::Object(map) => match map.get(&token) {
                Some(value) => value,
                None => return false,
            },
            Value::Array(items) => match items.iter().find(|item| is_named(item, &token)) {
                Some(item) => item,
                None => return items.iter().any(|item| !can_be_named(item)),
            },
            _ => return true,
        };
    }
    true
}

/// The fields that identify elements of a pod's lists.
const KEYS: [&str; 10] = [
    "name",
    "mountPath",
    "devicePath",
    "containerPort",
    "protocol",
    "ip",
    "topologyKey",
    "whenUnsatisfiable",
    "conditionType",
    "resourceName",
];

/// Whether a list element has this name. For a scalar, the name is its value. For an object, it is the value of a key,
/// or the values of several keys, separated by commas.
fn is_named(item: &Value, name: &str) -> bool {
    let is_value = |value: &Value, part: &str| match value {
        Value::String(text) => text == part,
        Value::Number(number) => number.to_string() == part,
        _ => false,
    };
    if !item.is_object() {
        return is_value(item, name);
    }
    let value = |part: &str| KEYS.iter().any(|key| item.get(key).is_some_and(|value| is_value(value, part)));
    // The default protocol is TCP.
    let is_default =
        |part: &str| part == "TCP" && item.get("containerPort").is_some() && item.get("protocol").is_none();
    value(name) || name.split(',').all(|part| value(part) || is_default(part))
}

fn can_be_named(item: &Value) -> bool {
    !item.is_object() || KEYS.iter().any(|key| item.get(key).is_some())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn objects_are_typed_as_for_kubectl() {
        let parse = |words: &[&str]| {
            let words: Vec<_> = words.iter().map(|&word| word.to_owned()).collect();
            Target::parse(&words).map(|target| format!("{} {}", target.kind.kind, target.name))
        };
        for (words, expected) in [
            (&["web"][..], "Pod web"),
            (&["pod/web"], "Pod web"),
            (&["deploy", "web"], "Deployment web"),
            (&["deployments.apps/web"], "Deployment web"),
            (&["CronJob/backup"], "CronJob backup"),
            (&["ns/shop"], "Namespace shop"),
        ] {
            assert_eq!(parse(words).unwrap(), expected);
        }
        assert!(parse(&["service/web"]).unwrap_err().to_string().contains("statefulset"));
        assert!(parse(&["pod/"]).unwrap_err().to_string().contains("missing"));
        assert!(parse(&[]).is_err());
    }

    fn pod() -> Value {
        let record = json!({"version": 1, "profiles": [{
            "profile": "nginx", "revision": "ab", "added": [
                "/metadata/annotations/example.com~1a", "/spec/containers/proxy", "/spec/containers/gone",
                "/spec/containers/proxy/ports/80,TCP", "/spec/tolerations/odd", "/spec/volumes/conf",
            ],
            "replaced": [["/spec/containers/app/image", "old:1"], ["/spec/containers/app/env/A", {"name": "A"}, ""]],
        }]});
        json!({
            "metadata": {"annotations": {"example.com/a": "1", "pillion.dev/injected": record.to_string()}},
            "spec": {
                "containers": [{"name": "app"}, {"name": "proxy", "ports": [{"containerPort": 80}]}],
                "tolerations": [{"operator": "Exists"}],
            },
        })
    }

    #[test]
    fn recorded_changes_are_checked_in_pod() {
        let reported: Vec<_> =
            of_record(&pod()).into_iter().map(|change| (change.what, change.path, change.present)).collect();
        let expected = [
            (ChangeKind::Added, "/metadata/annotations/example.com~1a", true),
            (ChangeKind::Added, "/spec/containers/proxy", true),
            (ChangeKind::Added, "/spec/containers/gone", false),
            (ChangeKind::Added, "/spec/containers/proxy/ports/80,TCP", true),
            (ChangeKind::Added, "/spec/tolerations/odd", true),
            (ChangeKind::Added, "/spec/volumes/conf", false),
            (ChangeKind::Replaced, "/spec/containers/app/image", false),
            (ChangeKind::Removed, "/spec/containers/app/env/A", true),
        ];
        let expected: Vec<_> = expected.into_iter().map(|(what, path, is)| (what, path.to_owned(), is)).collect();
        assert_eq!(reported, expected);
        assert!(of_record(&json!({})).is_empty());
    }

    #[test]
    fn managers_are_those_of_the_object_itself() {
        let object = json!({"metadata": {"managedFields": [
            {"manager": "kubectl", "time": "2026-01-01T00:00:00Z"},
            {"manager": "kubelet", "time": "2026-01-01T00:00:01Z", "subresource": "status"},
        ]}});
        let reported: Vec<_> = managers(&object).into_iter().map(|one| (one.manager, one.time)).collect();
        assert_eq!(reported, [("kubectl".to_owned(), "2026-01-01T00:00:00Z".to_owned())]);
    }
}
