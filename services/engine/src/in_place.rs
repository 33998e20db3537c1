//! Decides whether a running pod can be upgraded to the active revisions of its profiles without being recreated.
//!
//! The API server allows few changes of a running pod. An upgrade in place changes only the images, the CPU and the
//! memory of containers. After such a change, the kubelet restarts only the changed container, or none.
//!
//! The caller renders the pod twice: `before` is the original pod with the revisions that were injected, and `after` is
//! the original pod with the active revisions. Both are compared with each other, and not with the running pod, because
//! the API server and other webhooks add fields to the running pod. Of the running pod, only the values that change are
//! compared. Such a value must equal that of `before`, or that of `after` if an interrupted upgrade has already written
//! it. Otherwise another client has changed it, and the pod is not upgraded in place.

mod annotation;

use std::collections::BTreeSet;
use std::fmt;

use pillion_api::names::INJECTED_ANNOTATION;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

pub use annotation::{FailedUpgrade, RunningUpgrade, Upgraded, UpgradedProfile};

use crate::expression::Quantity;

/// The fields below the resources of a container that can change in a running pod.
const RESOURCE_FIELDS: [(&str, &str); 4] =
    [("requests", "cpu"), ("requests", "memory"), ("limits", "cpu"), ("limits", "memory")];

/// The resources that determine the `QoS` class.
const QOS_RESOURCES: [&str; 2] = ["cpu", "memory"];

/// The maximum number of [`Obstacle::Field`] in a plan.
const MAX_FIELDS: usize = 5;

/// How to bring a running pod to the active revisions of its profiles.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PodPlan {
    /// The active revisions require no change of the pod.
    Same,
    /// All differences between the revisions can be applied to the running pod.
    InPlace(Vec<ContainerChange>),
    /// At least one difference between the revisions cannot be applied to the running pod.
    Recreate(Vec<Obstacle>),
}

/// The changes of one injected container.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ContainerChange {
    /// The list that contains the container.
    pub list: ContainerList,
    /// The name of the container.
    pub name: String,
    /// The old and the new image. `None` if the image does not change, or the running container already has the new
    /// one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<(String, String)>,
    /// The old and the new resources, each with only `requests` and `limits` of CPU and memory. `None` if they do not
    /// change. The running container may already have some of the new values.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resources: Option<(Value, Value)>,
}

/// A list of containers in a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum ContainerList {
    /// `spec.containers`.
    Containers,
    /// `spec.initContainers`, which contains native sidecars.
    InitContainers,
}

pillion_api::labelled! {
    /// The `QoS` class of a pod. It cannot change while the pod runs.
    #[derive(PartialOrd, Ord)]
    pub enum QosClass {
        /// Each container, or the pod itself, limits both CPU and memory, and the requests equal the limits.
        Guaranteed => "Guaranteed",
        /// The pod or a container requests or limits CPU or memory, but the pod is not `Guaranteed`.
        Burstable => "Burstable",
        /// Neither the pod nor a container requests or limits CPU or memory.
        BestEffort => "BestEffort",
    }
}

/// Why a running pod cannot be upgraded in place.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Obstacle {
    /// The field changes, and an upgrade in place cannot change it. For most such fields, the API server rejects a
    /// change in a running pod.
    Field(String),
    /// A field of an init container changes. This container is not a sidecar, so it has already run.
    HasRun {
        /// The name of the container.
        container: String,
        /// The field, such as `image`.
        field: &'static str,
    },
    /// The running container has neither the old nor the new value of the field, so another client has changed it.
    Edited {
        /// The name of the container.
        container: String,
        /// The field, such as `image`.
        field: &'static str,
    },
    /// A limit, a request or an image is added or removed. In a running pod, the API server only lets existing values
    /// change.
    AddedOrRemoved {
        /// The name of the container.
        container: String,
        /// The field, such as `limits.memory`.
        field: String,
    },
    /// The `QoS` class of the pod would change.
    QosClass {
        /// The class of the running pod.
        from: QosClass,
        /// The class with the new resources.
        to: QosClass,
    },
}

impl ContainerList {
    /// Both lists of containers, in the order in which they are compared.
    pub const ALL: [Self; 2] = [Self::Containers, Self::InitContainers];

    /// Returns the name of the list in the pod's `spec`.
    #[must_use]
    pub const fn field(self) -> &'static str {
        match self {
            Self::Containers => "containers",
            Self::InitContainers => "initContainers",
        }
    }

    /// Returns the name of the list with the states of these containers, in the pod's `status`.
    #[must_use]
    pub const fn status_field(self) -> &'static str {
        match self {
            Self::Containers => "containerStatuses",
            Self::InitContainers => "initContainerStatuses",
        }
    }
}

impl fmt::Display for Obstacle {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Field(field) => write!(formatter, "{field} changes"),
            Self::HasRun { container, field } => {
                write!(formatter, "the {field} of init container {container} changes, which has already run")
            }
            Self::Edited { container, field } => {
                write!(formatter, "another client has changed the {field} of container {container}")
            }
            Self::AddedOrRemoved { container, field } => {
                write!(formatter, "{field} of container {container} is added or removed")
            }
            Self::QosClass { from, to } => {
                write!(formatter, "the QoS class of the pod would change from {} to {}", from.as_str(), to.as_str())
            }
        }
    }
}

/// Returns the plan for one running pod: whether the differences between `before` and `after` can be applied to it.
/// `added` contains the JSON pointers of the elements that the pod's injection record lists as added
/// ([`crate::audit::added`]).
#[must_use]
pub fn plan(running: &Value, before: &Value, after: &Value, added: &[Box<str>]) -> PodPlan {
    let (mut before, mut after) = (before.clone(), after.clone());
    let (mut changes, mut obstacles) = (Vec::new(), BTreeSet::new());
    for list in ContainerList::ALL {
        let prefix = format!("/spec/{}/", list.field());
        let names = added.iter().filter_map(|pointer| pointer.strip_prefix(&prefix)).filter(|name| !name.contains('/'));
        for name in names {
            let (Some(old), Some(new)) = (container(&mut before, list, name), container(&mut after, list, name)) else {
                // The container is missing in `before`, in `after`, or in both. If only one of them lacks it,
                // `collect_differences` reports this below.
                continue;
            };
            let comparison =
                Comparison { name, has_run: has_run(list, new), running: running_container(running, list, name) };
            let image = comparison.image(old, new, &mut obstacles);
            let resources = comparison.resources(old, new, &mut obstacles);
            if image.is_some() || resources.is_some() {
                changes.push(ContainerChange { list, name: name.to_owned(), image, resources });
            }
        }
    }
    for pod in [&mut before, &mut after] {
        if let Some(annotations) = pod.pointer_mut("/metadata/annotations").and_then(Value::as_object_mut) {
            annotations.remove(INJECTED_ANNOTATION);
        }
    }
    let mut fields = Vec::new();
    collect_differences(&before, &after, "", &mut fields);
    obstacles.extend(fields.into_iter().map(Obstacle::Field));
    if changes.iter().any(|change| change.resources.is_some()) {
        let (from, to) = (qos_class(running), qos_class(&with_new_resources(running, &changes)));
        if from != to {
            obstacles.insert(Obstacle::QosClass { from, to });
        }
    }
    match (obstacles.is_empty(), changes.is_empty()) {
        (false, _) => PodPlan::Recreate(obstacles.into_iter().collect()),
        (true, true) => PodPlan::Same,
        (true, false) => PodPlan::InPlace(changes),
    }
}

/// Returns the `QoS` class of a pod, as Kubernetes computes it.
#[must_use]
pub fn qos_class(pod: &Value) -> QosClass {
    let spec = pod.get("spec").unwrap_or(&Value::Null);
    let mut total = Totals::default();
    let of_pod = spec.get("resources").unwrap_or(&Value::Null);
    let has_both_limits = if has_quantity(of_pod) {
        total.add(of_pod)
    } else {
        let lists = ContainerList::ALL.into_iter().filter_map(|list| spec.get(list.field())?.as_array());
        lists.flatten().fold(true, |all, container| {
            let resources = container.get("resources").unwrap_or(&Value::Null);
            total.add(resources) && all
        })
    };
    let Totals { requests, limits } = total;
    let is_zero = |quantity: &Quantity| !quantity.is_more_than(Quantity::default());
    if requests.iter().chain(&limits).all(is_zero) {
        QosClass::BestEffort
    } else if has_both_limits && requests.iter().zip(limits).all(|(request, limit)| is_equal(*request, limit)) {
        QosClass::Guaranteed
    } else {
        QosClass::Burstable
    }
}

/// Whether two quantities are equal, even in different notations. Values that are not quantities are compared as JSON.
#[must_use]
pub fn is_same_quantity(one: &Value, other: &Value) -> bool {
    match (quantity(one), quantity(other)) {
        (Some(one), Some(other)) => is_equal(one, other),
        _ => one == other,
    }
}

/// The sums of requests and limits, in the order of [`QOS_RESOURCES`].
#[derive(Default)]
struct Totals {
    requests: [Quantity; 2],
    limits: [Quantity; 2],
}

impl Totals {
    /// Adds the resources of a container or of a pod. Returns whether they limit both CPU and memory.
    fn add(&mut self, resources: &Value) -> bool {
        let mut limited = 0;
        for (kind, sums) in [("requests", &mut self.requests), ("limits", &mut self.limits)] {
            for (resource, sum) in QOS_RESOURCES.iter().zip(sums) {
                let found = resources.get(kind).and_then(|values| quantity(values.get(resource)?));
                if let Some(found) = found.filter(|found| found.is_more_than(Quantity::default())) {
                    *sum = sum.plus(found);
                    limited += usize::from(kind == "limits");
                }
            }
        }
        limited == QOS_RESOURCES.len()
    }
}

/// Whether resources contain a request or a limit of CPU or memory.
fn has_quantity(resources: &Value) -> bool {
    RESOURCE_FIELDS.iter().any(|(kind, resource)| resources.get(kind).is_some_and(|all| all.get(resource).is_some()))
}

/// Returns the running pod with the new resources in `changes`.
fn with_new_resources(running: &Value, changes: &[ContainerChange]) -> Value {
    let mut pod = running.clone();
    for change in changes {
        let Some((_, to)) = &change.resources else { continue };
        let Some(container) = container(&mut pod, change.list, &change.name) else { continue };
        for (kind, resource) in RESOURCE_FIELDS {
            let Some(value) = to.get(kind).and_then(|values| values.get(resource)) else { continue };
            let resources = container.get_mut("resources").and_then(Value::as_object_mut);
            if let Some(values) = resources.and_then(|all| all.get_mut(kind)?.as_object_mut()) {
                values.insert(resource.to_owned(), value.clone());
            }
        }
    }
    pod
}

/// Whether a container is an init container but not a sidecar. In a running pod, such a container has already run to
/// completion.
fn has_run(list: ContainerList, container: &Map<String, Value>) -> bool {
    list == ContainerList::InitContainers && container.get("restartPolicy").is_none_or(|policy| policy != "Always")
}

/// Returns the container with this name. `None` if the pod does not have it.
fn container<'p>(pod: &'p mut Value, list: ContainerList, name: &str) -> Option<&'p mut Map<String, Value>> {
    let all = pod.pointer_mut("/spec")?.get_mut(list.field())?.as_array_mut()?;
    all.iter_mut().find(|one| one.get("name").is_some_and(|found| found == name))?.as_object_mut()
}

fn running_container<'p>(pod: &'p Value, list: ContainerList, name: &str) -> Option<&'p Value> {
    let all = pod.pointer("/spec")?.get(list.field())?.as_array()?;
    all.iter().find(|one| one.get("name").is_some_and(|found| found == name))
}

/// The comparison of one injected container.
struct Comparison<'p> {
    name: &'p str,
    has_run: bool,
    /// The container in the running pod.
    running: Option<&'p Value>,
}

impl Comparison<'_> {
    /// Removes the image from `old` and `new`. Returns both images if they differ, unless one is missing or the running
    /// container already has the new one. Adds an obstacle if the image cannot be changed.
    fn image(
        &self,
        old: &mut Map<String, Value>,
        new: &mut Map<String, Value>,
        obstacles: &mut BTreeSet<Obstacle>,
    ) -> Option<(String, String)> {
        let (from, to) = (old.remove("image"), new.remove("image"));
        if from == to {
            return None;
        }
        let (Some(Value::String(from)), Some(Value::String(to))) = (from, to) else {
            obstacles.insert(Obstacle::AddedOrRemoved { container: self.name.to_owned(), field: "image".to_owned() });
            return None;
        };
        let running = self.running.and_then(|found| found.get("image")?.as_str());
        if self.has_run {
            obstacles.insert(Obstacle::HasRun { container: self.name.to_owned(), field: "image" });
        } else if running == Some(to.as_str()) {
            return None;
        } else if running != Some(from.as_str()) {
            obstacles.insert(Obstacle::Edited { container: self.name.to_owned(), field: "image" });
        }
        Some((from, to))
    }

    /// Removes requests and limits of CPU and memory from `old` and `new`. Returns the old and the new values of those
    /// that change, and adds an obstacle if one cannot be changed.
    fn resources(
        &self,
        old: &mut Map<String, Value>,
        new: &mut Map<String, Value>,
        obstacles: &mut BTreeSet<Obstacle>,
    ) -> Option<(Value, Value)> {
        let (mut from, mut to) = (Map::new(), Map::new());
        for (kind, resource) in RESOURCE_FIELDS {
            let (old_value, new_value) = (take_resource(old, kind, resource), take_resource(new, kind, resource));
            let (Some(old_value), Some(new_value)) = (&old_value, &new_value) else {
                if old_value != new_value {
                    let field = format!("{kind}.{resource}");
                    obstacles.insert(Obstacle::AddedOrRemoved { container: self.name.to_owned(), field });
                }
                continue;
            };
            if is_same_quantity(old_value, new_value) {
                continue;
            }
            let running = self.running.and_then(|found| found.get("resources")?.get(kind)?.get(resource));
            let is_known = |found: &Value| is_same_quantity(found, old_value) || is_same_quantity(found, new_value);
            if self.has_run {
                obstacles.insert(Obstacle::HasRun { container: self.name.to_owned(), field: "resources" });
            } else if !running.is_some_and(is_known) {
                obstacles.insert(Obstacle::Edited { container: self.name.to_owned(), field: "resources" });
            }
            for (map, value) in [(&mut from, old_value), (&mut to, new_value)] {
                let values = map.entry(kind).or_insert_with(|| Value::Object(Map::new()));
                if let Some(values) = values.as_object_mut() {
                    values.insert(resource.to_owned(), value.clone());
                }
            }
        }
        (!from.is_empty()).then(|| (Value::Object(from), Value::Object(to)))
    }
}

/// Removes and returns a resource of a container. Also removes maps that become empty.
fn take_resource(container: &mut Map<String, Value>, kind: &str, resource: &str) -> Option<Value> {
    let resources = container.get_mut("resources")?.as_object_mut()?;
    let values = resources.get_mut(kind)?.as_object_mut()?;
    let value = values.remove(resource);
    if values.is_empty() {
        resources.remove(kind);
    }
    if resources.is_empty() {
        container.remove("resources");
    }
    value
}

fn quantity(value: &Value) -> Option<Quantity> {
    match value {
        Value::String(text) => Quantity::read(text),
        number => Quantity::read(&number.to_string()),
    }
}

fn is_equal(one: Quantity, other: Quantity) -> bool {
    !one.is_more_than(other) && !other.is_more_than(one)
}

/// Collects the fields in which two values differ, such as `spec.initContainers[shipper].env`, but at most
/// [`MAX_FIELDS`].
fn collect_differences(one: &Value, other: &Value, path: &str, fields: &mut Vec<String>) {
    if one == other || fields.len() >= MAX_FIELDS {
        return;
    }
    match (one, other) {
        (Value::Object(one), Value::Object(other)) => {
            let keys: BTreeSet<_> = one.keys().chain(other.keys()).collect();
            for key in keys {
                let below = if path.is_empty() { key.clone() } else { format!("{path}.{key}") };
                match (one.get(key), other.get(key)) {
                    (Some(one), Some(other)) => collect_differences(one, other, &below, fields),
                    _ if fields.len() < MAX_FIELDS => fields.push(below),
                    _ => {}
                }
            }
        }
        (Value::Array(one), Value::Array(other)) if names(one).is_some_and(|all| Some(all) == names(other)) => {
            for (one, other) in one.iter().zip(other) {
                let name = one.get("name").and_then(Value::as_str).unwrap_or_default();
                collect_differences(one, other, &format!("{path}[{name}]"), fields);
            }
        }
        _ => fields.push(path.to_owned()),
    }
}

/// Returns the names of the elements of a list. `None` if an element has no name.
fn names(list: &[Value]) -> Option<Vec<&str>> {
    list.iter().map(|element| element.get("name")?.as_str()).collect()
}

#[cfg(test)]
mod tests;
