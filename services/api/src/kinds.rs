//! The two kinds that carry a profile, as they stand in the cluster: one for the platform team, one for tenants.
//!
//! They share one `spec`, so that a tenant's profile can be read with the same eyes as the platform's; what is for
//! cluster profiles only is refused in the other by the definition's rules (see [`crate::crd`]) and again by the engine.

use std::borrow::Cow;

use k8s_openapi::ClusterResourceScope;
use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, ObjectMeta};
use kube::Resource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::names;
use crate::profile::ProfileSpec;

/// Plural names, as they stand in URLs and roles.
pub mod plural {
    /// Of [`super::ClusterInjectionProfile`].
    pub const CLUSTER: &str = "clusterinjectionprofiles";
    /// Of [`super::InjectionProfile`].
    pub const NAMESPACED: &str = "injectionprofiles";
}

/// What the controller has found out about a profile.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ProfileStatus {
    /// `Accepted`, `Ready`, `Conflicted`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "conditions")]
    pub conditions: Vec<Condition>,
    /// The generation that the rest of the status speaks of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// The newest accepted revision.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub revision: Option<String>,
    /// The revision of those who do not get the newest.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub promoted_revision: Option<String>,
    /// How many namespaces the profile may act in.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespaces_matched: Option<i64>,
}

macro_rules! profile_kind {
    ($(#[$doc:meta])* $kind:ident, $plural:expr, $scope:ty) => {
        $(#[$doc])*
        #[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
        #[serde(rename_all = "camelCase")]
        pub struct $kind {
            /// `pillion.dev/v1alpha1`, and the kind. The API server leaves them out of the items of a list.
            #[serde(default)]
            pub api_version: String,
            /// See `api_version`.
            #[serde(default)]
            pub kind: String,
            /// Name, labels, generation and so on.
            pub metadata: ObjectMeta,
            /// What the profile says.
            pub spec: ProfileSpec,
            /// What the controller has found out.
            #[serde(default, skip_serializing_if = "Option::is_none")]
            pub status: Option<ProfileStatus>,
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

profile_kind!(
    /// A profile of the platform team. It may act in every namespace that is opted in.
    ClusterInjectionProfile,
    plural::CLUSTER,
    ClusterResourceScope
);
profile_kind!(
    /// A profile of a tenant. It acts on pods of its own namespace only.
    InjectionProfile,
    plural::NAMESPACED,
    NamespaceResourceScope
);

/// Kubernetes' own schema of a list of conditions, keyed by type for server-side apply.
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
