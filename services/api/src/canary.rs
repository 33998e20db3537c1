//! The kind that proves whom an API server trusts: nobody ever stores one.
//!
//! The webhook configuration has an entry that is called when an [`InjectionCanary`] is created, and for nothing else; who
//! answers serves a leaf of the newest certificate authority. So a dry run of creating one succeeds only at an API server
//! that has this entry, and the authority in it.

use std::borrow::Cow;

use k8s_openapi::ClusterResourceScope;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Resource;
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::names;

/// The plural name, as it stands in URLs, roles and the rule of the entry.
pub const PLURAL: &str = "injectioncanaries";

/// The name of the entry in the webhook configuration. The API server says it when a call fails.
pub const WEBHOOK: &str = "canary.pillion.dev";

/// The path that the entry of the mutating configuration calls.
pub const PATH: &str = "/canary";

/// The path that the entry of the validating configuration calls. Each configuration is an object of its own, and an API server
/// may know the one as it is and the other as it was.
pub const VALIDATE_PATH: &str = "/canary/validate";

/// An object that is created by dry run only.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct InjectionCanary {
    /// `pillion.dev/v1alpha1`.
    pub api_version: String,
    /// `InjectionCanary`.
    pub kind: String,
    /// Its name is that of one request.
    pub metadata: ObjectMeta,
}

impl InjectionCanary {
    /// The value of `kind`.
    pub const KIND: &str = "InjectionCanary";

    /// One of this name.
    #[must_use]
    pub fn new(name: impl Into<String>) -> Self {
        Self {
            api_version: names::API_VERSION.to_owned(),
            kind: Self::KIND.to_owned(),
            metadata: ObjectMeta { name: Some(name.into()), ..ObjectMeta::default() },
        }
    }
}

impl Resource for InjectionCanary {
    type DynamicType = ();
    type Scope = ClusterResourceScope;

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
        PLURAL.into()
    }
    fn meta(&self) -> &ObjectMeta {
        &self.metadata
    }
    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
}

/// The definition: an object with a name and nothing else.
pub(crate) fn definition() -> Result<CustomResourceDefinition, serde_json::Error> {
    serde_json::from_value(json!({
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": format!("{PLURAL}.{}", names::GROUP)},
        "spec": {
            "group": names::GROUP,
            "scope": "Cluster",
            "names": {
                "kind": InjectionCanary::KIND,
                "listKind": "InjectionCanaryList",
                "plural": PLURAL,
                "singular": "injectioncanary",
            },
            "versions": [{
                "name": names::VERSION,
                "served": true,
                "storage": true,
                "schema": {"openAPIV3Schema": {
                    "type": "object",
                    "description": "Created by dry run only, by the controller, to see whom an API server trusts.",
                }},
            }],
        },
    }))
}
