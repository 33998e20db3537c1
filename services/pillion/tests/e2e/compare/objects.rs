//! The objects of the comparison: the pod, and the profiles and policies that inject the same containers into it.

use anyhow::{Context, Result};
use serde_json::{Value as Json, json};

/// The review of a Deployment's pod, which the benchmarks also use.
const REVIEW: &str = include_str!("../../../../engine/tests/reviews/create-deployment-pod.json");
/// The label of all profiles and policies. The test selects them by it to delete them.
pub(super) const LABEL: &str = "example.com/compare";

/// The source of the additional containers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Side {
    /// The author: the pod is created with these containers, and no admission plugin changes it.
    Author,
    /// Policies of the API server.
    Policies,
    /// The webhook.
    Pillion,
}

/// A state of the cluster whose cost is measured: the source of the containers, and the number of profiles or policies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Cell {
    pub(super) side: Side,
    /// The number of profiles or policies that apply to the pod.
    pub(super) applying: usize,
    /// The number of profiles or policies whose object selector does not match the pod.
    pub(super) idle: usize,
}

/// The number of idle profiles or policies in the cells that have any.
const IDLE: usize = 1_000;
/// The number of applying profiles or policies in the cells that exceed limits. These cells are not measured: their
/// pods are created only to describe the result.
const BEYOND_LIMITS: usize = 1_000;

impl Side {
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Author => "none",
            Self::Policies => "MutatingAdmissionPolicy",
            Self::Pillion => "Pillion",
        }
    }

    /// Returns the namespace in which the pods are created.
    pub(super) const fn namespace(self) -> &'static str {
        match self {
            Self::Author => "none",
            Self::Policies => "policies",
            Self::Pillion => "pillion",
        }
    }
}

impl Cell {
    /// Returns all cells. Neighbours differ in their sides, so that a change of the machine's speed affects all sides.
    pub(super) fn all() -> Vec<Self> {
        let mut cells = Vec::new();
        for (applying, idle) in [(0, 0), (1, 0), (10, 0), (100, 0), (1, IDLE)] {
            for side in [Side::Author, Side::Policies, Side::Pillion] {
                // Such a cell would be the same as another cell.
                let is_same = match side {
                    Side::Author => idle > 0,
                    Side::Policies => applying == 0,
                    Side::Pillion => false,
                };
                if !is_same {
                    cells.push(Self { side, applying, idle });
                }
            }
        }
        cells
    }

    /// Returns cells with more profiles or policies than the sides support. The API server limits the time of a
    /// request, and Pillion limits the size of its injection record.
    pub(super) fn beyond_limits() -> [Self; 2] {
        [Side::Policies, Side::Pillion].map(|side| Self { side, applying: BEYOND_LIMITS, idle: 0 })
    }

    /// Returns the cell with the same final pod, but without admission.
    pub(super) const fn without_admission(self) -> Self {
        Self { side: Side::Author, idle: 0, ..self }
    }

    pub(super) fn describe(self) -> String {
        let Self { applying, idle, .. } = self;
        if idle == 0 { applying.to_string() } else { format!("{applying}, and {idle} idle") }
    }

    /// Returns the pod to create.
    pub(super) fn pod(self) -> Result<Json> {
        let review: Json = serde_json::from_str(REVIEW)?;
        let mut pod = review["request"]["object"].clone();
        let metadata = pod["metadata"].as_object_mut().context("metadata")?;
        metadata.retain(|key, _| ["generateName", "labels", "annotations", "ownerReferences"].contains(&&**key));
        if self.side == Side::Author {
            for (key, item) in [("containers", container as fn(usize) -> Json), ("volumes", volume)] {
                pod["spec"][key].as_array_mut().context("a list")?.extend((0..self.applying).map(item));
            }
        }
        Ok(pod)
    }

    /// Returns a text that only an injected pod contains: the name of the last container.
    pub(super) fn injected(self) -> Option<String> {
        self.applying.checked_sub(1).map(|last| format!("\"name\":\"{}\"", name(last)))
    }

    /// Returns the profiles, or the policies and their bindings, each with the path of its collection.
    pub(super) fn objects(self) -> Vec<(&'static str, Json)> {
        let count = 0..self.applying + self.idle;
        let selector = |number: usize| {
            let label = if number < self.applying { "app.kubernetes.io/name" } else { "example.com/absent" };
            json!({"matchLabels": {label: "checkout"}})
        };
        match self.side {
            Side::Author => Vec::new(),
            Side::Pillion => count.map(|number| (self.paths()[0], profile(number, &selector(number)))).collect(),
            Side::Policies => count
                .flat_map(|number| {
                    let policy = policy(number, &selector(number));
                    self.paths().iter().copied().zip([policy, binding(number)])
                })
                .collect(),
        }
    }

    /// Returns the paths of the collections that contain the objects.
    pub(super) const fn paths(self) -> &'static [&'static str] {
        match self.side {
            Side::Author => &[],
            Side::Policies => &[
                "/apis/admissionregistration.k8s.io/v1/mutatingadmissionpolicies",
                "/apis/admissionregistration.k8s.io/v1/mutatingadmissionpolicybindings",
            ],
            Side::Pillion => &["/apis/pillion.dev/v1alpha1/clusterinjectionprofiles"],
        }
    }
}

/// Returns the name of a container, its volume, and its profile or policy. The names sort in the order of the numbers.
fn name(number: usize) -> String {
    format!("sidecar-{number:04}")
}

fn container(number: usize) -> Json {
    json!({
        "name": name(number), "image": "nginx:1.29", "imagePullPolicy": "IfNotPresent", "ports": [{"containerPort": 80}],
        "volumeMounts": [{"name": name(number), "mountPath": "/etc/nginx"}],
    })
}

fn volume(number: usize) -> Json {
    json!({"name": name(number), "configMap": {"name": "nginx-configmap"}})
}

fn profile(number: usize, object_selector: &Json) -> Json {
    json!({
        "apiVersion": "pillion.dev/v1alpha1", "kind": "ClusterInjectionProfile",
        "metadata": {"name": name(number), "labels": {LABEL: "yes"}},
        "spec": {
            "activation": "Always", "objectSelector": object_selector,
            "template": {"spec": {"containers": [container(number)], "volumes": [volume(number)]}},
        },
    })
}

fn policy(number: usize, object_selector: &Json) -> Json {
    let expression = format!(
        r#"Object{{spec: Object.spec{{
          containers: [Object.spec.containers{{name: "{name}", image: "nginx:1.29", imagePullPolicy: "IfNotPresent",
            ports: [Object.spec.containers.ports{{containerPort: 80}}],
            volumeMounts: [Object.spec.containers.volumeMounts{{name: "{name}", mountPath: "/etc/nginx"}}]}}],
          volumes: [Object.spec.volumes{{name: "{name}",
            configMap: Object.spec.volumes.configMap{{name: "nginx-configmap"}}}}]}}}}"#,
        name = name(number),
    );
    json!({
        "apiVersion": "admissionregistration.k8s.io/v1", "kind": "MutatingAdmissionPolicy",
        "metadata": {"name": name(number), "labels": {LABEL: "yes"}},
        "spec": {
            "reinvocationPolicy": "Never", "failurePolicy": "Fail",
            "matchConstraints": {
                "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": Side::Policies.namespace()}},
                "objectSelector": object_selector,
                "resourceRules": [
                    {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]},
                ],
            },
            "mutations": [{"patchType": "ApplyConfiguration", "applyConfiguration": {"expression": expression}}],
        },
    })
}

fn binding(number: usize) -> Json {
    json!({
        "apiVersion": "admissionregistration.k8s.io/v1", "kind": "MutatingAdmissionPolicyBinding",
        "metadata": {"name": name(number), "labels": {LABEL: "yes"}}, "spec": {"policyName": name(number)},
    })
}
