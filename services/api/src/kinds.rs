//! The kinds of custom resources: a cluster-scoped profile for the platform team, a namespaced profile for tenants, and
//! a revision kind for each of the two.
//!
//! Both kinds of profiles have the same `spec`. The rules of the CRD (see [`crate::crd`]) and the engine reject fields
//! in namespaced profiles that are only for cluster profiles.

use std::borrow::Cow;

use k8s_openapi::ClusterResourceScope;
use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, ObjectMeta, Time};
use kube::Resource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::names;
use crate::profile::{Activation, ProfileSpec, Rollout};
use crate::revision::RevisionSpec;

/// The plural names of the kinds, as in URLs and RBAC rules.
pub mod plural {
    /// The plural of [`super::ClusterInjectionProfile`].
    pub const CLUSTER: &str = "clusterinjectionprofiles";
    /// The plural of [`super::InjectionProfile`].
    pub const NAMESPACED: &str = "injectionprofiles";
    /// The plural of [`super::ClusterProfileRevision`].
    pub const CLUSTER_REVISION: &str = "clusterprofilerevisions";
    /// The plural of [`super::ProfileRevision`].
    pub const NAMESPACED_REVISION: &str = "profilerevisions";
}

/// The status of a profile, written by the controller.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ProfileStatus {
    /// The conditions `Accepted`, `Ready`, `Conflicted`, `Valid`, and `Injected`, which the audit sets.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "conditions")]
    pub conditions: Vec<Condition>,
    /// The generation that the rest of the status describes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// Which objects get the profile: `spec.activation`, or its default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub activation: Option<Activation>,
    /// The served revision. During a rollout, only a share of the workloads gets it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64))]
    pub revision: Option<String>,
    /// The revision for the workloads that do not get `revision`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64))]
    pub promoted_revision: Option<String>,
    /// The last accepted revision. It differs from `revision` during a rollback.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64))]
    pub accepted_revision: Option<String>,
    /// The workloads that get `revision`, if not all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rollout: Option<Rollout>,
    /// The stored revisions, most recently published first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64), inner(length(max = 64)))]
    pub revisions: Vec<String>,
    /// A rollback request that has ended but whose annotations are still present. It does not start again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 256))]
    pub ended_rollback: Option<String>,
    /// The number of namespaces in which the profile may apply.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespaces_matched: Option<i64>,
    /// The rollout to running pods, with the strategy `InPlace` or `Restart`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub upgrade: Option<UpgradeStatus>,
}

/// The state of a rollout to running pods.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct UpgradeStatus {
    /// The revision that running pods get.
    #[schemars(length(max = 64))]
    pub revision: String,
    /// The revision to which a failed rollout returns.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64))]
    pub previous_revision: Option<String>,
    /// The phase.
    pub phase: UpgradePhase,
    /// The current step, from 0.
    pub step: u32,
    /// When the current phase began.
    #[schemars(schema_with = "time")]
    pub since: Time,
    /// The number of running pods that have the profile.
    pub pods: u32,
    /// The number of pods with the revision whose containers are ready.
    pub upgraded: u32,
    /// The number of pods whose containers are not ready yet after the change.
    pub upgrading: u32,
    /// The number of pods that must be recreated to get the revision.
    pub not_in_place: u32,
    /// The last handled request to resume or undo, copied from the annotation `pillion.dev/rollout`. It is not handled
    /// again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 256))]
    pub handled_request: Option<String>,
    /// Why the rollout was paused or has failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 1024))]
    pub message: Option<String>,
    /// Why pods are not changed now, or cannot be changed in place.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 1024))]
    pub waiting: Option<String>,
    /// The evicted pods that are not replaced yet, with the strategy `Restart`. The controller writes an eviction here
    /// before it evicts the pod, so that a new leader knows of it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 50))]
    pub evictions: Vec<PodEviction>,
}

/// Maximum number of [`UpgradeStatus::evictions`]. It keeps the status small, because all replicas receive each change
/// of the status.
pub const MAX_EVICTIONS: usize = 50;

/// An evicted pod that is not replaced yet.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PodEviction {
    /// The namespace of the pod.
    #[schemars(length(max = 63))]
    pub namespace: String,
    /// The name of the pod.
    #[schemars(length(max = 253))]
    pub pod: String,
    /// The UID of the pod.
    #[schemars(length(max = 64))]
    pub uid: String,
    /// The kind and name of the controller that replaces the pod, such as `ReplicaSet/web-5d8`.
    #[schemars(length(max = 320))]
    pub controller: String,
    /// The revision that the new pod should have.
    #[schemars(length(max = 64))]
    pub revision: String,
    /// When the controller decided to evict the pod.
    #[schemars(schema_with = "time")]
    pub since: Time,
    /// The time by which the new pod must be ready.
    #[schemars(schema_with = "time")]
    pub until: Time,
}

impl UpgradeStatus {
    /// Returns the state of a rollout of this revision that is in its first step. All counts of pods are 0.
    #[must_use]
    pub fn new(revision: &str, previous_revision: Option<&str>, phase: UpgradePhase, since: Time) -> Self {
        Self {
            revision: revision.to_owned(),
            previous_revision: previous_revision.map(str::to_owned),
            phase,
            step: 0,
            since,
            pods: 0,
            upgraded: 0,
            upgrading: 0,
            not_in_place: 0,
            handled_request: None,
            message: None,
            waiting: None,
            evictions: Vec::new(),
        }
    }
}

/// The phase of a rollout to running pods.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum UpgradePhase {
    /// Pods are upgraded until the share of the current step is reached.
    Upgrading,
    /// The share of the current step is reached, and the upgraded pods are observed.
    Baking,
    /// No further pod is upgraded until the rollout is resumed.
    Paused,
    /// A step with a pause is complete, and the next one begins when a user resumes the rollout.
    AwaitingResume,
    /// The rollout has failed. No further pod is upgraded.
    Halted,
    /// The rollout has failed, and pods return to the previous revision.
    SteppingBack,
    /// The rollout has failed, and all pods that could return to the previous revision have done so.
    SteppedBack,
    /// All pods that can be upgraded have the revision.
    Complete,
}

impl UpgradePhase {
    /// Whether the rollout has failed.
    #[must_use]
    pub const fn has_failed(self) -> bool {
        matches!(self, Self::Halted | Self::SteppingBack | Self::SteppedBack)
    }

    /// Whether the rollout has ended: the controller changes no further pod, unless a user resumes the rollout.
    #[must_use]
    pub const fn has_ended(self) -> bool {
        matches!(self, Self::Halted | Self::SteppedBack | Self::Complete)
    }

    /// Returns the phase as in the status.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Upgrading => "Upgrading",
            Self::Baking => "Baking",
            Self::Paused => "Paused",
            Self::AwaitingResume => "AwaitingResume",
            Self::Halted => "Halted",
            Self::SteppingBack => "SteppingBack",
            Self::SteppedBack => "SteppedBack",
            Self::Complete => "Complete",
        }
    }
}

/// An active rollback.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ActiveRollback<'s> {
    /// The served revision.
    pub to: &'s str,
    /// The last accepted revision, which is not served.
    pub from: &'s str,
}

impl ProfileStatus {
    /// Returns the active rollback. `None` if the last accepted revision is served, or if no revision is served or
    /// accepted yet.
    #[must_use]
    pub fn rollback(&self) -> Option<ActiveRollback<'_>> {
        let (to, from) = (self.revision.as_deref()?, self.accepted_revision.as_deref()?);
        (to != from).then_some(ActiveRollback { to, from })
    }
}

macro_rules! kind {
    ($(#[$doc:meta])* $kind:ident, $plural:expr, $scope:ty, { $($fields:tt)* }) => {
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
        #[serde(rename_all = "camelCase")]
        pub struct $kind {
            /// `pillion.dev/v1alpha1`. The API server omits it from the items of a list.
            #[serde(default)]
            pub api_version: String,
            /// The kind. The API server omits it from the items of a list.
            #[serde(default)]
            pub kind: String,
            /// Name, labels, generation and other metadata.
            pub metadata: ObjectMeta,
            $($fields)*
        }

        impl $kind {
            /// The value of `kind`.
            pub const KIND: &str = stringify!($kind);
        }

        impl Resource for $kind {
            type DynamicType = ();
            type Scope = $scope;

            fn kind((): &()) -> Cow<'_, str> {
                Self::KIND.into()
            }
            fn group((): &()) -> Cow<'_, str> {
                names::GROUP.into()
            }
            fn version((): &()) -> Cow<'_, str> {
                names::VERSION.into()
            }
            fn plural((): &()) -> Cow<'_, str> {
                $plural.into()
            }
            fn meta(&self) -> &ObjectMeta {
                &self.metadata
            }
            fn meta_mut(&mut self) -> &mut ObjectMeta {
                &mut self.metadata
            }
        }
    };
}

macro_rules! profile_kind {
    ($(#[$doc:meta])* $kind:ident, $plural:expr, $scope:ty) => {
        kind!(
            $(#[$doc])*
            #[derive(Default)]
            $kind, $plural, $scope, {
                /// The spec of the profile.
                pub spec: ProfileSpec,
                /// The status, written by the controller.
                #[serde(default, skip_serializing_if = "Option::is_none")]
                pub status: Option<ProfileStatus>,
            }
        );
    };
}

macro_rules! revision_kind {
    ($(#[$doc:meta])* $kind:ident, $plural:expr, $scope:ty) => {
        kind!($(#[$doc])* $kind, $plural, $scope, {
            /// The content of the revision.
            pub spec: RevisionSpec,
        });
    };
}

profile_kind!(
    /// A profile of the platform team. It may apply in every namespace that is opted in.
    ClusterInjectionProfile,
    plural::CLUSTER,
    ClusterResourceScope
);
profile_kind!(
    /// A profile of a tenant. It applies only to pods of its own namespace.
    InjectionProfile,
    plural::NAMESPACED,
    NamespaceResourceScope
);
revision_kind!(
    /// An accepted version of a cluster profile.
    ClusterProfileRevision,
    plural::CLUSTER_REVISION,
    ClusterResourceScope
);
revision_kind!(
    /// An accepted version of a namespaced profile. Only the controller may write it, because it contains the limits of
    /// the profile.
    ProfileRevision,
    plural::NAMESPACED_REVISION,
    NamespaceResourceScope
);

/// Returns Kubernetes' schema for a time.
fn time(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
    schemars::json_schema!({"type": "string", "format": "date-time"})
}

/// Returns Kubernetes' schema for a list of conditions. The list's key is `type`, so server-side apply merges
/// conditions by type.
fn conditions(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
    schemars::json_schema!({
        "type": "array",
        "x-kubernetes-list-type": "map",
        "x-kubernetes-list-map-keys": ["type"],
        "items": {
            "type": "object",
            "required": ["lastTransitionTime", "message", "reason", "status", "type"],
            "properties": {
                "lastTransitionTime": {"type": "string", "format": "date-time"},
                "message": {"type": "string", "maxLength": 32768},
                "observedGeneration": {"type": "integer", "format": "int64", "minimum": 0},
                "reason": {"type": "string", "minLength": 1, "maxLength": 1024},
                "status": {"type": "string", "enum": ["True", "False", "Unknown"]},
                "type": {"type": "string", "maxLength": 316}
            }
        }
    })
}
