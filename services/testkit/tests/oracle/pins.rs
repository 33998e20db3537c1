//! The intended differences between the engine and the API server (pins), each with its reason. A pin must be removed
//! when no case needs it any more.

use serde_json::Value as Json;

use crate::oracle::compare::Difference;

/// The API server's kind of merge with which the engine is compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Oracle {
    StrategicMerge,
    ServerSideApply,
}

/// The properties of a case that determine whether a difference is allowed.
pub(crate) struct Case<'a> {
    pub(crate) pod: &'a Json,
    pub(crate) template: &'a Json,
    /// Whether the elements of the template's lists are already in the order that strategic merge would produce.
    pub(crate) is_arranged: bool,
    /// The number of positions where the template and the pod set different members of a one-of.
    pub(crate) switches: usize,
}

/// An intended difference.
pub(crate) struct Pin {
    pub(crate) oracle: Oracle,
    /// The results may differ at this field of the API server's schema, or below it.
    place: &'static str,
    /// Whether only the order of elements may differ.
    only_order: bool,
    /// Returns whether a case is allowed to have the difference.
    holds: fn(&Case<'_>) -> bool,
    /// Whether the difference may be absent from thousands of cases.
    pub(crate) is_rare: bool,
    pub(crate) reason: &'static str,
}

/// The value of [`Pin::place`] that matches every field.
const ANYWHERE: &str = "";

use Oracle::{ServerSideApply, StrategicMerge};

pub(crate) const PINS: [Pin; 9] = [
    Pin {
        oracle: StrategicMerge,
        place: "Container.ports",
        only_order: false,
        holds: has_port_twins,
        is_rare: false,
        reason: "strategic merge identifies ports by number alone, and mixes TCP and UDP ports with the same number",
    },
    Pin {
        oracle: StrategicMerge,
        place: "PodSpec.topologySpreadConstraints",
        only_order: false,
        holds: has_constraint_twins,
        is_rare: false,
        reason: "strategic merge identifies constraints by topologyKey alone, and mixes hard and soft ones",
    },
    Pin {
        oracle: StrategicMerge,
        place: "ResourceRequirements.claims",
        only_order: false,
        holds: always,
        is_rare: false,
        reason: "strategic merge has no merge key for a container's claims, and drops those of the author",
    },
    Pin {
        oracle: StrategicMerge,
        place: "Container.env",
        only_order: true,
        holds: has_references,
        is_rare: false,
        reason: "the engine puts an entry after the one that it refers to as $(NAME), so that Kubernetes expands it",
    },
    Pin {
        oracle: StrategicMerge,
        place: "Container.env",
        only_order: false,
        holds: has_repeated_variable,
        is_rare: false,
        reason: "strategic merge changes the first entry of a repeated variable, although the last entry is effective",
    },
    Pin {
        oracle: StrategicMerge,
        place: ANYWHERE,
        only_order: true,
        holds: is_shuffled,
        is_rare: false,
        reason: "strategic merge sorts the patched elements in the patch's order; the engine keeps the author's order",
    },
    Pin {
        oracle: ServerSideApply,
        place: ANYWHERE,
        only_order: true,
        holds: always,
        is_rare: false,
        reason: "server-side apply sorts the applied elements in its own order; the engine keeps the author's order",
    },
    Pin {
        oracle: ServerSideApply,
        place: "EnvVar.valueFrom",
        only_order: false,
        holds: has_switches,
        is_rare: false,
        reason: "to the API server an empty `value` is absent, so the author's `valueFrom` stays; the engine drops it",
    },
    Pin {
        oracle: ServerSideApply,
        place: "EnvVar.value",
        only_order: false,
        holds: has_repeated_and_bare_variable,
        is_rare: true,
        reason: "if the template has no value, server-side apply drops both entries of a name; the engine keeps one",
    },
];

/// Objects that server-side apply treats as atomic. The engine merges every object by its keys, as strategic merge
/// does. For example, a profile that requires an operating system extends the pod's node selector instead of replacing
/// it.
pub(crate) const ATOMIC: [&str; 18] = [
    "CSIVolumeSource.nodePublishSecretRef",
    "CephFSVolumeSource.secretRef",
    "CinderVolumeSource.secretRef",
    "EnvVarSource.configMapKeyRef",
    "EnvVarSource.fieldRef",
    "EnvVarSource.fileKeyRef",
    "EnvVarSource.resourceFieldRef",
    "EnvVarSource.secretKeyRef",
    "FlexVolumeSource.secretRef",
    "ISCSIVolumeSource.secretRef",
    "NodeAffinity.requiredDuringSchedulingIgnoredDuringExecution",
    "PersistentVolumeClaimSpec.dataSource",
    "PersistentVolumeClaimSpec.selector",
    "PodSpec.nodeSelector",
    "RBDVolumeSource.secretRef",
    "ScaleIOVolumeSource.secretRef",
    "StorageOSVolumeSource.secretRef",
    "TopologySpreadConstraint.labelSelector",
];

/// The reason why a difference is allowed: the pin with this index, an entry of [`ATOMIC`], or a one-of.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum PinnedBy {
    Pin(usize),
    Atomic(String),
    /// Server-side apply keeps both members of a one-of, and then rejects the object.
    OneOf,
}

/// Returns the reason why a difference is allowed. `None`: it is not allowed.
pub(crate) fn pinned(oracle: Oracle, case: &Case<'_>, difference: &Difference) -> Option<PinnedBy> {
    let is_below = |place: &str| place == ANYWHERE || difference.places.iter().any(|other| other == place);
    let pin = PINS.iter().position(|pin| {
        pin.oracle == oracle && is_below(pin.place) && (!pin.only_order || difference.is_order) && (pin.holds)(case)
    });
    if let Some(pin) = pin {
        return Some(PinnedBy::Pin(pin));
    }
    if oracle == StrategicMerge {
        return None;
    }
    let is_atomic = |place: &&String| ATOMIC.contains(&place.as_str());
    difference.places.iter().find(is_atomic).cloned().map(PinnedBy::Atomic)
}

fn always(_: &Case<'_>) -> bool {
    true
}

fn has_switches(case: &Case<'_>) -> bool {
    case.switches > 0
}

fn is_shuffled(case: &Case<'_>) -> bool {
    !case.is_arranged
}

fn has_references(case: &Case<'_>) -> bool {
    case.template.to_string().contains("$(")
}

/// Returns whether the pod sets a variable twice in one element of `containers`.
pub(crate) fn has_repeated_variable(case: &Case<'_>) -> bool {
    case.pod["spec"]["containers"].as_array().into_iter().flatten().any(|container| {
        let names: Vec<_> = container["env"].as_array().into_iter().flatten().map(|entry| &entry["name"]).collect();
        names.iter().enumerate().any(|(place, name)| names[..place].contains(name))
    })
}

/// Returns whether the pod sets a variable twice in one element of `containers`, and the template has a variable
/// without a value in its `containers`.
fn has_repeated_and_bare_variable(case: &Case<'_>) -> bool {
    let is_bare = |entry: &Json| entry.get("value").is_none() && entry.get("valueFrom").is_none();
    let mut containers = case.template["spec"]["containers"].as_array().into_iter().flatten();
    has_repeated_variable(case)
        && containers.any(|container| container["env"].as_array().into_iter().flatten().any(is_bare))
}

/// Returns whether the pod and the template together give a container two ports with the same number and different
/// protocols.
fn has_port_twins(case: &Case<'_>) -> bool {
    let lists = ["containers", "initContainers"];
    let containers = |object: &Json| -> Vec<Json> {
        lists.iter().filter_map(|list| object["spec"][*list].as_array()).flatten().cloned().collect()
    };
    let (theirs, ours) = (containers(case.pod), containers(case.template));
    theirs.iter().chain(&ours).any(|container| {
        let same = theirs.iter().chain(&ours).filter(|other| other["name"] == container["name"]);
        let ports: Vec<_> = same.flat_map(|same| same["ports"].as_array().into_iter().flatten()).collect();
        have_twins(&ports, "containerPort", "protocol", "TCP")
    })
}

fn has_constraint_twins(case: &Case<'_>) -> bool {
    let of = |object: &'_ Json| object["spec"]["topologySpreadConstraints"].as_array().cloned().unwrap_or_default();
    let (theirs, ours) = (of(case.pod), of(case.template));
    let all: Vec<_> = theirs.iter().chain(&ours).collect();
    have_twins(&all, "topologyKey", "whenUnsatisfiable", "")
}

/// Returns whether two elements have the same value of the field `key` but different values of the field `other`. A
/// missing `other` has the value `default`.
fn have_twins(elements: &[&Json], key: &str, other: &str, default: &str) -> bool {
    let rest = |element: &Json| element[other].as_str().unwrap_or(default).to_owned();
    elements.iter().any(|one| elements.iter().any(|two| one[key] == two[key] && rest(one) != rest(two)))
}
