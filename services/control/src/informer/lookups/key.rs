//! The target of a lookup, and its request.
//!
//! Names come from pods, whose authors may write anything, and become parts of a URL. So a key exists only for valid
//! names.

use std::fmt;
use std::sync::Arc;

use kube::api::{Api, DynamicObject, ListParams};
use kube::core::ApiResource;
use kube::{Client, ResourceExt};
use pillion_api::names::is_dns_name;
use pillion_api::selector::{LabelSelector, Operator};
use pillion_engine::json::OwnedTape;
use pillion_engine::lookup::{self, OwnerReference, Query};
use serde_json::{Value, json};

use super::Fetched;
use crate::guard::guarded;
use crate::informer::lookup_cache::FetchError;
use crate::informer::namespaces::LAST_APPLIED;

/// Maximum size of an object or a list, as JSON.
const OBJECT_BYTES: usize = 256 * 1024;
/// Maximum number of objects in a list.
const LIST_ITEMS: u32 = 200;

/// The target of a request. Equal keys share one cache entry.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Key {
    /// API group; empty for the core group.
    pub group: Box<str>,
    /// API version.
    pub version: Box<str>,
    /// Resource, in the plural.
    pub resource: Box<str>,
    /// The namespace; empty for cluster-scoped objects.
    pub namespace: Box<str>,
    /// Which objects.
    pub which: Which,
}

/// Which objects, and which part of them.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Which {
    /// The metadata of the object with this name.
    Metadata(Box<str>),
    /// The object with this name.
    Named(Box<str>),
    /// All objects that a label selector matches; the selector in its URL form.
    Selected(Box<str>),
}

impl Key {
    /// A service account; `None` if the name is invalid.
    pub(super) fn service_account(namespace: &str, name: &str) -> Option<Self> {
        Self::metadata("", "serviceaccounts", namespace, name)
    }

    /// An owner; `None` if its kind is not looked up or the name is invalid.
    pub(super) fn owner(namespace: &str, owner: &OwnerReference) -> Option<Self> {
        Self::metadata(owner.group(), owner.resource()?, namespace, &owner.name)
    }

    /// All kinds whose metadata is requested are served as v1, whatever version a reference has.
    fn metadata(group: &str, resource: &str, namespace: &str, name: &str) -> Option<Self> {
        (is_dns_name(namespace) && is_dns_name(name)).then(|| Self {
            group: group.into(),
            version: "v1".into(),
            resource: resource.into(),
            namespace: namespace.into(),
            which: Which::Metadata(name.into()),
        })
    }

    /// An object that a profile declares. The engine has validated it; Secrets are excluded here as well.
    pub(super) fn declared(query: &Query) -> Option<Self> {
        let (name, which) = match &query.which {
            lookup::Which::Named(name) => (Some(name), Which::Named(name.clone())),
            lookup::Which::Selected(selector) => (None, Which::Selected(selector_text(selector).into())),
        };
        let is_secret = query.group.is_empty() && &*query.resource == "secrets";
        let parts = [Some(&query.version), Some(&query.resource), name];
        let may_be_empty = [&query.group, &query.namespace];
        let is_right = parts.into_iter().flatten().all(|part| is_dns_name(part))
            && may_be_empty.into_iter().all(|part| part.is_empty() || is_dns_name(part));
        (is_right && !is_secret).then(|| Self {
            group: query.group.clone(),
            version: query.version.clone(),
            resource: query.resource.clone(),
            namespace: query.namespace.clone(),
            which,
        })
    }

    /// Bytes of its strings.
    pub(super) fn bytes(&self) -> usize {
        let (Which::Metadata(text) | Which::Named(text) | Which::Selected(text)) = &self.which;
        [&self.group, &self.version, &self.resource, &self.namespace, text].into_iter().map(|text| text.len()).sum()
    }

    /// Requests the object from the API server.
    pub(super) async fn fetch(self, client: Client) -> Fetched {
        let api_version =
            if self.group.is_empty() { self.version.to_string() } else { format!("{}/{}", self.group, self.version) };
        let resource = ApiResource {
            group: self.group.into(),
            version: self.version.into(),
            api_version,
            kind: String::new(),
            plural: self.resource.into(),
        };
        let api: Api<DynamicObject> = if self.namespace.is_empty() {
            Api::all_with(client, &resource)
        } else {
            Api::namespaced_with(client, &self.namespace, &resource)
        };
        let text = match &self.which {
            Which::Metadata(name) => {
                let Some(object) = api.get_metadata_opt(name).await? else { return Ok(None) };
                let annotations = object.annotations().iter().filter(|(key, _)| *key != LAST_APPLIED);
                let metadata = json!({
                    "name": object.metadata.name,
                    "namespace": object.metadata.namespace,
                    "uid": object.metadata.uid,
                    "labels": object.labels(),
                    "annotations": annotations.collect::<std::collections::BTreeMap<_, _>>(),
                    "ownerReferences": object.owner_references(),
                });
                json!({"metadata": metadata}).to_string()
            }
            Which::Named(name) => {
                let Some(object) = api.get_opt(name).await? else { return Ok(None) };
                serde_json::to_string(&without_managed_fields(object)?)?
            }
            Which::Selected(selector) => {
                let list = api.list(&ListParams::default().labels(selector).limit(LIST_ITEMS)).await?;
                if list.metadata.continue_.is_some_and(|rest| !rest.is_empty()) {
                    return Err(FetchError::refused(format!("there are more than {LIST_ITEMS} of them")));
                }
                let items = list.items.into_iter().map(without_managed_fields).collect::<Result<Vec<_>, _>>()?;
                serde_json::to_string(&items)?
            }
        };
        if text.len() > OBJECT_BYTES {
            let why = format!("{} bytes are more than the {OBJECT_BYTES} that a look-up may bring", text.len());
            return Err(FetchError::refused(why));
        }
        let read = guarded(&"an object that was looked up", || OwnedTape::parse(text)).map_err(FetchError::refused)?;
        Ok(Some(Arc::new(read.map_err(FetchError::refused)?)))
    }
}

impl fmt::Display for Key {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (Which::Metadata(text) | Which::Named(text) | Which::Selected(text)) = &self.which;
        let dot = if self.group.is_empty() { "" } else { "." };
        write!(formatter, "{}{dot}{} {}/{text}", self.resource, self.group, self.namespace)
    }
}

fn without_managed_fields(mut object: DynamicObject) -> Result<Value, serde_json::Error> {
    object.metadata.managed_fields = None;
    serde_json::to_value(object)
}

/// A selector in its URL form: `a=b,c in (d,e),!f`.
fn selector_text(selector: &LabelSelector) -> String {
    let mut requirements: Vec<String> = Vec::new();
    requirements.extend(selector.match_labels.iter().map(|(key, value)| format!("{key}={value}")));
    requirements.extend(selector.match_expressions.iter().map(|requirement| {
        let (key, values) = (&requirement.key, requirement.values.join(","));
        match requirement.operator {
            Operator::In => format!("{key} in ({values})"),
            Operator::NotIn => format!("{key} notin ({values})"),
            Operator::Exists => key.clone(),
            Operator::DoesNotExist => format!("!{key}"),
        }
    }));
    requirements.join(",")
}
