//! Parses the object in question: `pod/web`, `deployment web`, `namespace/shop`; and turns pods into questions.

use anyhow::bail;
use pillion_api::names::MIRROR_ANNOTATION;
use pillion_engine::lookup::LookedUp;
use serde_json::{Map, Value, json};

use super::facts::{Origin, Question};
use crate::finding::ObjectRef;
use crate::trial;
use crate::trial::original_object;

/// The controllers that create pods: the kind with the template, and the controller's service account in `kube-system`.
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
    /// JSON pointer to its pod template; empty for pods and namespaces.
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

/// The object in question.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Target {
    pub(crate) kind: Kind,
    pub(crate) name: String,
}

impl Target {
    /// Parses the arguments: `KIND/NAME`, `KIND NAME`, or the name of a pod.
    ///
    /// # Errors
    /// The arguments have another form, or the kind has no pods.
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
                bail!("{kind:?} is nothing that has pods; there are {}", kinds.join(", "))
            }
        }
    }
}

/// Returns the kind of an object.
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

/// Returns the question about a pod.
pub(crate) fn of_pod(pod: &Value, namespace: &str) -> Question {
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
    let user = known.unwrap_or_else(anybody);
    Question {
        object: ObjectRef::new("Pod", Some(namespace), name),
        origin: if is_stored { Origin::Stored } else { Origin::Template },
        review: trial::of_creation(&authors, namespace, &user),
        found: is_stored.then_some(pod),
        is_user_guessed,
        looked_up: LookedUp::default(),
        workload: None,
        account: None,
    }
}

/// Returns the user that creates the pods of a kind: its controller, as in kubeadm and most distributions.
fn creator(kind: Kind) -> Option<Value> {
    let (_, account) = CREATORS.into_iter().find(|(known, _)| *known == kind.kind)?;
    Some(json!({
        "username": format!("system:serviceaccount:kube-system:{account}"),
        "groups": ["system:serviceaccounts", "system:serviceaccounts:kube-system", "system:authenticated"],
    }))
}

/// Returns a placeholder for an unknown user.
fn anybody() -> Value {
    json!({"username": "pillion-explain", "groups": ["system:authenticated"]})
}

/// Returns the owner reference of the controlling owner.
pub(crate) fn controlling(object: &Value) -> Option<&Value> {
    let owners = object.pointer("/metadata/ownerReferences")?.as_array()?;
    owners.iter().find(|owner| owner.get("controller").and_then(Value::as_bool) == Some(true))
}

/// Returns the question about the pods that a workload creates.
pub(crate) fn of_template(workload: &Value, kind: Kind, namespace: &str) -> Option<Question> {
    let template =
        workload.pointer(kind.template).filter(|template| template.is_object() && !kind.template.is_empty())?;
    let name = metadata(workload, "name").unwrap_or_default();
    let mut of_pod = template.get("metadata").and_then(Value::as_object).cloned().unwrap_or_else(Map::new);
    of_pod.remove("name");
    of_pod.insert("generateName".to_owned(), format!("{name}-").into());
    of_pod.insert("namespace".to_owned(), namespace.into());
    // The rollout of a revision depends on the name of the pods' workload.
    of_pod.insert("ownerReferences".to_owned(), json!([as_owner(workload, kind)]));
    let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": of_pod, "spec": template.get("spec")});
    let mut workload = workload.clone();
    if let Some(fields) = workload.as_object_mut() {
        fields.entry("kind").or_insert_with(|| kind.kind.into());
    }
    let user = creator(kind);
    Some(Question {
        object: ObjectRef::new(kind.kind, Some(namespace), name),
        origin: Origin::Template,
        is_user_guessed: user.is_none(),
        review: trial::of_creation(&pod, namespace, &user.unwrap_or_else(anybody)),
        found: None,
        looked_up: LookedUp::default(),
        workload: Some(workload),
        account: None,
    })
}

/// Returns an owner reference to a workload.
fn as_owner(workload: &Value, kind: Kind) -> Value {
    let version = if kind.group.is_empty() { "v1".to_owned() } else { format!("{}/v1", kind.group) };
    let mut owner = json!({"apiVersion": version, "kind": kind.kind, "name": metadata(workload, "name").unwrap_or_default(),
        "controller": true});
    if let (Some(fields), Some(uid)) = (owner.as_object_mut(), metadata(workload, "uid")) {
        fields.insert("uid".to_owned(), uid.into());
    }
    owner
}

/// Returns the question about a namespace: about a generic pod in it, without requests.
pub(crate) fn of_namespace(name: &str) -> Question {
    let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "any", "namespace": name},
        "spec": {"containers": [{"name": "any", "image": "any"}]}});
    Question { object: ObjectRef::new("Namespace", None, name), origin: Origin::Anybody, ..of_pod(&pod, name) }
}

/// Returns the question about a saved review, in the request's namespace.
pub(crate) fn of_review(review: Value) -> Question {
    let request = |field: &str| review.pointer("/request").and_then(|request| request.get(field)?.as_str());
    let object = review.pointer("/request/object").unwrap_or(&Value::Null);
    let kind = review.pointer("/request/kind/kind").and_then(Value::as_str).unwrap_or("Pod");
    let name = [request("name"), metadata(object, "name"), metadata(object, "generateName")];
    let name = name.into_iter().flatten().find(|name| !name.is_empty()).unwrap_or_default();
    let object = ObjectRef::new(kind, request("namespace"), name);
    Question {
        object,
        origin: Origin::Review,
        review,
        found: None,
        is_user_guessed: false,
        looked_up: LookedUp::default(),
        workload: None,
        account: None,
    }
}

/// Returns the service account of a pod.
pub(crate) fn account_of(pod: &Value) -> &str {
    let field = |name: &str| pod.pointer("/spec")?.get(name)?.as_str().filter(|name| !name.is_empty());
    field("serviceAccountName").or_else(|| field("serviceAccount")).unwrap_or("default")
}

#[cfg(test)]
mod tests {
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
}
