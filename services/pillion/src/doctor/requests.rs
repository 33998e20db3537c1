//! Finds added containers without requests or limits that a quota or an autoscaler of their namespace needs.
//!
//! A quota makes the API server reject pods, so there may be no pod to look at. Therefore, the containers that a
//! generic pod of the namespace would get are also checked.

use std::collections::{BTreeMap, BTreeSet};
use std::pin::pin;
use std::sync::Arc;

use futures::StreamExt;
use k8s_openapi::api::autoscaling::v2::HorizontalPodAutoscaler;
use k8s_openapi::api::core::v1::{LimitRange, ResourceQuota};
use kube::Client;
use kube::api::{Api, ListParams};
use pillion_api::names::SYSTEM_NAMESPACES;
use pillion_control::client::lists;
use pillion_engine::audit::{AddedContainer, AddedResource, added_containers};
use pillion_engine::review::RecordTrust;
use pillion_engine::snapshot::{Namespace, Snapshot};
use pillion_json::OwnedTape;
use serde_json::{Value, json};

use crate::explain::facts::controlling;
use crate::finding::{Code, Finding, ObjectRef};
use crate::{running_pods, trial};

/// The quota fields that need a value in each container: the field, whether it is a limit, and the resource.
const QUOTA_FIELDS: [(&str, bool, Resource); 6] = [
    ("cpu", false, Resource::Cpu),
    ("requests.cpu", false, Resource::Cpu),
    ("limits.cpu", true, Resource::Cpu),
    ("memory", false, Resource::Memory),
    ("requests.memory", false, Resource::Memory),
    ("limits.memory", true, Resource::Memory),
];

/// A resource of a container.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Resource {
    Cpu,
    Memory,
}

/// Something that needs a request or a limit of each container.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Requirement {
    /// A quota of the namespace.
    Quota { name: String, is_limit: bool, resource: Resource },
    /// An autoscaler, with the kind and name of the workload that it scales by the utilization of this resource.
    Autoscaler { name: String, workload: (String, String), resource: Resource },
}

/// An added container that lacks a request or a limit.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Unrequested {
    pub(super) namespace: String,
    pub(super) profile: String,
    pub(super) container: String,
    /// The missing field, such as `requests.cpu`.
    pub(super) field: &'static str,
    /// The kind and name of the object that needs it.
    pub(super) by: (&'static str, String),
}

impl Unrequested {
    /// Returns the finding.
    pub(super) fn finding(&self) -> Finding {
        let Self { namespace, profile, container, field, by: (kind, name) } = self;
        let effect = match *kind {
            "ResourceQuota" => "so the quota rejects new pods with it",
            _ => "so the autoscaler cannot compute the utilization of its pods",
        };
        let message = format!("container {container}, which profile {profile} adds, has no {field}, {effect}");
        let remedy = format!("set resources.{field} of the container in profile {profile}, then restart the workloads");
        let object = ObjectRef::new(kind, Some(namespace), name);
        Finding::new(Code::RequestsMissing, object, message).remedy(remedy).of_profile(profile)
    }
}

impl Requirement {
    fn of_quota(quota: &ResourceQuota) -> Vec<Self> {
        let name = quota.metadata.name.as_deref().unwrap_or_default();
        let spec = quota.spec.as_ref();
        // A quota with scopes may not apply to the pods.
        let is_scoped = spec.is_some_and(|spec| spec.scopes.is_some() || spec.scope_selector.is_some());
        let hard = spec.and_then(|spec| spec.hard.as_ref()).filter(|_| !is_scoped);
        let fields = QUOTA_FIELDS.iter().filter(|(field, ..)| hard.is_some_and(|hard| hard.contains_key(*field)));
        fields
            .map(|(_, is_limit, resource)| Self::Quota {
                name: name.to_owned(),
                is_limit: *is_limit,
                resource: *resource,
            })
            .collect()
    }

    fn of_autoscaler(autoscaler: &HorizontalPodAutoscaler) -> Vec<Self> {
        let name = autoscaler.metadata.name.as_deref().unwrap_or_default();
        let spec = &autoscaler.spec;
        let target = &spec.scale_target_ref;
        let metrics = spec.metrics.iter().flatten().filter_map(|metric| metric.resource.as_ref());
        metrics
            .filter(|metric| metric.target.type_ == "Utilization")
            .filter_map(|metric| {
                let resource = match metric.name.as_str() {
                    "cpu" => Resource::Cpu,
                    "memory" => Resource::Memory,
                    _ => return None,
                };
                let workload = (target.kind.clone(), target.name.clone());
                Some(Self::Autoscaler { name: name.to_owned(), workload, resource })
            })
            .collect()
    }

    /// Returns the missing field, if the container does not meet the requirement. `workload` is the workload of its
    /// pod.
    fn missing(&self, container: &AddedContainer, workload: Option<&(String, String)>) -> Option<&'static str> {
        let of = |resource: Resource| -> &AddedResource {
            match resource {
                Resource::Cpu => &container.cpu,
                Resource::Memory => &container.memory,
            }
        };
        let (is_missing, is_limit, resource) = match self {
            Self::Quota { is_limit: true, resource, .. } => (!of(*resource).is_limited, true, *resource),
            Self::Quota { resource, .. } => (!of(*resource).is_requested, false, *resource),
            Self::Autoscaler { workload: scaled, resource, .. } => {
                let is_scaled = workload == Some(scaled) && !container.is_ending;
                (is_scaled && !of(*resource).is_requested, false, *resource)
            }
        };
        let field = match (is_limit, resource) {
            (false, Resource::Cpu) => "requests.cpu",
            (true, Resource::Cpu) => "limits.cpu",
            (false, Resource::Memory) => "requests.memory",
            (true, Resource::Memory) => "limits.memory",
        };
        is_missing.then_some(field)
    }

    fn by(&self) -> (&'static str, String) {
        match self {
            Self::Quota { name, .. } => ("ResourceQuota", name.clone()),
            Self::Autoscaler { name, .. } => ("HorizontalPodAutoscaler", name.clone()),
        }
    }
}

/// Returns the added containers in opted-in namespaces that do not meet the requirements of a quota or an autoscaler.
/// Quotas and autoscalers that cannot be listed are not checked.
pub(super) async fn unrequested(client: &Client, snapshot: &Snapshot) -> BTreeSet<Unrequested> {
    let all = ListParams::default();
    let quotas = lists::all(&Api::<ResourceQuota>::all(client.clone()), &all).await.unwrap_or_default();
    let autoscalers = lists::all(&Api::<HorizontalPodAutoscaler>::all(client.clone()), &all).await.unwrap_or_default();
    let of_quotas = quotas.iter().map(|quota| (quota.metadata.namespace.clone(), Requirement::of_quota(quota)));
    let of_autoscalers =
        autoscalers.iter().map(|one| (one.metadata.namespace.clone(), Requirement::of_autoscaler(one)));
    let mut requirements: BTreeMap<String, Vec<Requirement>> = BTreeMap::new();
    for (namespace, more) in of_quotas.chain(of_autoscalers) {
        requirements.entry(namespace.unwrap_or_default()).or_default().extend(more);
    }
    let mut found = BTreeSet::new();
    for (name, namespace) in snapshot.namespaces() {
        let Some(requirements) = requirements.get(name).filter(|requirements| !requirements.is_empty()) else {
            continue;
        };
        if namespace.failure_mode().is_none() || SYSTEM_NAMESPACES.contains(&name) {
            continue;
        }
        if !has_defaults(client, name).await {
            found.extend(unmet(name, requirements, &generic_containers(snapshot, name, namespace), None));
        }
        of_pods(client, name, requirements, &mut found).await;
    }
    found
}

/// Whether a `LimitRange` sets requests or limits of new containers, or whether this is unknown.
async fn has_defaults(client: &Client, namespace: &str) -> bool {
    let ranges = lists::all(&Api::<LimitRange>::namespaced(client.clone(), namespace), &ListParams::default()).await;
    let Ok(ranges) = ranges else { return true };
    let mut items = ranges.iter().filter_map(|range| range.spec.as_ref()).flat_map(|spec| &spec.limits);
    items.any(|item| item.default.is_some() || item.default_request.is_some())
}

/// Returns the containers that profiles add to a pod that requests no profile itself.
fn generic_containers(snapshot: &Snapshot, name: &str, namespace: &Arc<Namespace>) -> Vec<AddedContainer> {
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"generateName": "pillion-doctor-", "namespace": name},
        "spec": {"containers": [{"name": "doctor", "image": "registry.k8s.io/pause:3.10"}]},
    });
    injected(snapshot, name, namespace, pod)
        .and_then(|pod| OwnedTape::parse(pod.to_string()).ok())
        .map(|tape| added_containers(tape.root(), RecordTrust::AsFound))
        .unwrap_or_default()
}

/// Returns the injected pod. `None` if the engine does not change it.
fn injected(snapshot: &Snapshot, name: &str, namespace: &Arc<Namespace>, mut pod: Value) -> Option<Value> {
    let decided = trial::decide(&pod, name, namespace, snapshot)?;
    let patch: json_patch::Patch = serde_json::from_slice(&decided.patch?).ok()?;
    json_patch::patch(&mut pod, &patch).ok()?;
    Some(pod)
}

/// Checks the pods of a namespace, page by page. Stops at the first error.
async fn of_pods(client: &Client, namespace: &str, requirements: &[Requirement], found: &mut BTreeSet<Unrequested>) {
    let mut pages = pin!(running_pods::pages(client, Some(namespace), None));
    while let Some(Ok(pods)) = pages.next().await {
        for pod in &pods {
            let Ok(pod) = serde_json::to_value(pod) else { continue };
            let Ok(tape) = OwnedTape::parse(pod.to_string()) else { continue };
            let added = added_containers(tape.root(), RecordTrust::ManagedFields);
            found.extend(unmet(namespace, requirements, &added, workload(&pod).as_ref()));
        }
    }
}

/// Returns the kind and name of a pod's workload. The name of a Deployment is that of the `ReplicaSet` without the hash
/// of the template.
fn workload(pod: &Value) -> Option<(String, String)> {
    let owner = controlling(pod)?;
    let text = |field: &str| owner.get(field).and_then(Value::as_str);
    let (kind, name) = (text("kind")?, text("name")?);
    let hash = pod.pointer("/metadata/labels/pod-template-hash").and_then(Value::as_str);
    let deployment = hash.filter(|_| kind == "ReplicaSet").and_then(|hash| name.strip_suffix(hash)?.strip_suffix('-'));
    let (kind, name) = deployment.map_or((kind, name), |name| ("Deployment", name));
    Some((kind.to_owned(), name.to_owned()))
}

/// Returns the unmet requirements of a pod's added containers.
fn unmet(
    namespace: &str,
    requirements: &[Requirement],
    added: &[AddedContainer],
    workload: Option<&(String, String)>,
) -> Vec<Unrequested> {
    let pairs = added.iter().flat_map(|container| requirements.iter().map(move |requirement| (container, requirement)));
    pairs
        .filter_map(|(container, requirement)| {
            Some(Unrequested {
                namespace: namespace.to_owned(),
                profile: container.profile.to_string(),
                container: container.name.to_string(),
                field: requirement.missing(container, workload)?,
                by: requirement.by(),
            })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use pillion_api::names::FailureMode;
    use pillion_engine::profile::{ProfileName, compile};
    use pillion_engine::snapshot::ProfileSet;

    use super::*;

    fn snapshot() -> Snapshot {
        let spec = json!({"activation": "Always", "template": {"spec": {
            "initContainers": [{"name": "setup", "image": "a"}],
            "containers": [{"name": "shipper", "image": "a", "resources": {"requests": {"memory": "1Mi"}}}]}}});
        let profile = compile(&ProfileName::cluster("log"), &serde_json::from_value(spec).unwrap()).unwrap();
        Snapshot::new(ProfileSet::new([Arc::new(profile)]))
    }

    fn quota(spec: &Value) -> Vec<Requirement> {
        let quota = json!({"metadata": {"name": "q"}, "spec": spec});
        Requirement::of_quota(&serde_json::from_value(quota).unwrap())
    }

    fn autoscaler(metric: &Value) -> Vec<Requirement> {
        let spec =
            json!({"maxReplicas": 2, "scaleTargetRef": {"kind": "Deployment", "name": "web"}, "metrics": [metric]});
        Requirement::of_autoscaler(&serde_json::from_value(json!({"metadata": {"name": "h"}, "spec": spec})).unwrap())
    }

    /// Returns the unmet requirements of a generic pod, each as the container, the field, and the name of the quota or
    /// autoscaler. `workload` is the name of the pod's Deployment.
    fn of(requirements: &[Requirement], workload: Option<&str>) -> Vec<String> {
        let namespace = Arc::new(Namespace::opted_in(FailureMode::Enabled));
        let added = generic_containers(&snapshot(), "shop", &namespace);
        assert_eq!(added.len(), 2, "{added:?}");
        let workload = workload.map(|name| ("Deployment".to_owned(), name.to_owned()));
        let found = unmet("shop", requirements, &added, workload.as_ref());
        found.into_iter().map(|one| format!("{} {} {}", one.container, one.field, one.by.1)).collect()
    }

    #[test]
    fn quota_needs_values_of_all_containers() {
        let hard = |field: &str| quota(&json!({"hard": {field: "1"}}));
        assert_eq!(of(&hard("requests.cpu"), None), ["shipper requests.cpu q", "setup requests.cpu q"]);
        assert_eq!(of(&hard("cpu"), None).len(), 2);
        assert_eq!(of(&hard("requests.memory"), None), ["setup requests.memory q"]);
        assert_eq!(of(&hard("limits.memory"), None), ["shipper limits.memory q", "setup limits.memory q"]);
        assert_eq!(of(&hard("pods"), None), Vec::<String>::new());
        assert_eq!(quota(&json!({"hard": {"requests.cpu": "1"}, "scopes": ["Terminating"]})), []);
        assert_eq!(quota(&json!({})), []);
    }

    #[test]
    fn autoscaler_needs_requests_of_its_running_containers() {
        let metric = |kind: &str, resource: &str, target: &str| {
            let target = json!({"type": target, "averageUtilization": 80});
            autoscaler(&match kind {
                "Resource" => json!({"type": kind, "resource": {"name": resource, "target": target}}),
                _ => {
                    json!({"type": kind, "containerResource": {"container": "web", "name": resource, "target": target}})
                }
            })
        };
        let cpu = metric("Resource", "cpu", "Utilization");
        assert_eq!(of(&cpu, Some("web")), ["shipper requests.cpu h"]);
        for (requirements, workload) in [
            (&cpu, Some("other")),
            (&cpu, None),
            (&metric("Resource", "memory", "Utilization"), Some("web")),
            (&metric("Resource", "cpu", "AverageValue"), Some("web")),
            (&metric("ContainerResource", "cpu", "Utilization"), Some("web")),
        ] {
            assert_eq!(of(requirements, workload), Vec::<String>::new(), "{requirements:?} {workload:?}");
        }
    }

    #[test]
    fn finding_names_object_profile_and_field() {
        let one = |kind: &'static str| {
            let by = (kind, "q".to_owned());
            let (namespace, profile, container) = ("shop".to_owned(), "log".to_owned(), "shipper".to_owned());
            Unrequested { namespace, profile, container, field: "requests.cpu", by }.finding()
        };
        let quota = one("ResourceQuota");
        assert_eq!(
            (quota.object.to_string(), quota.profile.as_deref()),
            ("ResourceQuota shop/q".to_owned(), Some("log"))
        );
        assert_eq!(
            quota.message,
            "container shipper, which profile log adds, has no requests.cpu, so the quota rejects new pods with it"
        );
        assert!(one("HorizontalPodAutoscaler").message.contains("the autoscaler cannot compute"));
    }

    #[test]
    fn pod_of_replica_set_belongs_to_deployment() {
        let pod = |kind: &str, name: &str| {
            let owner = json!({"kind": kind, "name": name, "controller": true});
            json!({"metadata": {"labels": {"pod-template-hash": "5d8"}, "ownerReferences": [owner]}})
        };
        let of = |kind: &str, name: &str| workload(&pod(kind, name)).map(|(kind, name)| format!("{kind}/{name}"));
        assert_eq!(of("ReplicaSet", "web-5d8").unwrap(), "Deployment/web");
        assert_eq!(of("ReplicaSet", "bare").unwrap(), "ReplicaSet/bare");
        assert_eq!(of("StatefulSet", "db").unwrap(), "StatefulSet/db");
        assert_eq!(workload(&json!({"metadata": {}})), None);
    }
}
