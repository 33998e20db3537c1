//! Writes the API server's admission policies and their bindings, and watches them.
//!
//! The whole spec of a stored policy is compared, since server-side apply keeps the fields that other clients added.

use futures::stream::{BoxStream, StreamExt};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::api::{ApiResource, DeleteParams, DynamicObject, PartialObjectMeta, Patch, PatchParams, PostParams};
use kube::runtime::watcher::{self, watcher};
use kube::{Api, Client, Resource};
use serde::Serialize;
use serde_json::{Value, json};
use tracing::debug;

use crate::client::owner_reference;
use crate::client::{chain, config, with_pauses};
use crate::leader::FIELD_MANAGER;

/// The API group of the policies.
pub(crate) const API_GROUP: &str = "admissionregistration.k8s.io/v1";

/// The desired state of one policy or binding.
#[derive(Clone)]
pub(crate) struct PolicyObject {
    api: Api<DynamicObject>,
    object: Value,
    pub(crate) name: String,
    pub(crate) kind: &'static str,
}

/// The observed state of one object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PolicyState {
    InDesiredState,
    Absent,
    Different,
    /// The object's owner is not the current namespace of the release. So Kubernetes would not delete it with the
    /// namespace.
    Unowned,
}

impl PolicyObject {
    /// Creates the desired state of an object.
    ///
    /// # Errors
    /// The object cannot be serialized, which is a bug.
    pub(crate) fn new<K>(client: &Client, object: &K, kind: &'static str) -> serde_json::Result<Self>
    where
        K: Resource<DynamicType = ()> + Serialize,
    {
        let name = object.meta().name.clone().unwrap_or_default();
        let object = serde_json::to_value(object)?;
        let api = Api::all_with(client.clone(), &ApiResource::erase::<K>(&()));
        Ok(Self { api, object, name, kind })
    }

    /// Applies an object with this owner, unless it already is in the desired state. Returns its state before the call.
    pub(crate) async fn put(&self, owner: Option<&OwnerReference>) -> kube::Result<PolicyState> {
        let has_desired_owner =
            |object: &DynamicObject| owner.is_none_or(|owner| owner_reference::has_owner(&object.metadata, owner));
        let before = self.api.get_opt(&self.name).await?;
        let found = match &before {
            None => PolicyState::Absent,
            Some(before) if !has_desired_spec(before, &self.object) => PolicyState::Different,
            Some(before) if !has_desired_owner(before) => PolicyState::Unowned,
            Some(_) => return Ok(PolicyState::InDesiredState),
        };
        let mut object = self.object.clone();
        // If the owner is unknown, send the existing owners, since server-side apply would otherwise remove them.
        let owners = match owner {
            Some(owner) => Some(vec![owner.clone()]),
            None => before.and_then(|before| before.metadata.owner_references),
        };
        if let (Some(owners), Some(metadata)) = (owners, object.get_mut("metadata").and_then(Value::as_object_mut)) {
            metadata.insert("ownerReferences".to_owned(), json!(owners));
        }
        let parameters = PatchParams::apply(FIELD_MANAGER).force();
        let applied = self.api.patch(&self.name, &parameters, &Patch::Apply(&object)).await?;
        if !has_desired_spec(&applied, &self.object) || !has_desired_owner(&applied) {
            // Another client added fields that Pillion never wrote. Server-side apply keeps them, so replace the
            // object.
            let mut replaced = DynamicObject { data: json!({"spec": self.object.get("spec")}), ..applied };
            if let Some(owner) = owner {
                owner_reference::set_owner(&mut replaced.metadata, owner.clone());
            }
            let parameters = PostParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PostParams::default() };
            self.api.replace(&self.name, &parameters, &replaced).await?;
        }
        Ok(found)
    }

    /// Deletes the object. Returns `Different` if it existed, and `InDesiredState` if it did not.
    pub(crate) async fn delete(&self) -> kube::Result<PolicyState> {
        if self.api.get_metadata_opt(&self.name).await?.is_none() {
            return Ok(PolicyState::InDesiredState);
        }
        match self.api.delete(&self.name, &DeleteParams::default()).await {
            Ok(_) => Ok(PolicyState::Different),
            Err(kube::Error::Api(status)) if status.code == 404 => Ok(PolicyState::InDesiredState),
            Err(error) => Err(error),
        }
    }
}

fn has_desired_spec(stored: &DynamicObject, desired: &Value) -> bool {
    stored.data.get("spec") == desired.get("spec") && stored.metadata.deletion_timestamp.is_none()
}

/// Whether the API server has these resources of [`API_GROUP`].
pub(crate) async fn is_supported(client: &Client, resources: &[&str]) -> kube::Result<bool> {
    let found = match client.list_api_group_resources(API_GROUP).await {
        Ok(found) => found.resources,
        Err(kube::Error::Api(status)) if status.code == 404 => return Ok(false),
        Err(error) => return Err(error),
    };
    Ok(resources.iter().all(|wanted| found.iter().any(|found| found.name == *wanted)))
}

/// Returns a stream with an item for each change of the object with this name, and after each list of the watch.
pub(crate) fn changes_of<K>(client: &Client, name: &str) -> BoxStream<'static, ()>
where
    K: Resource<DynamicType = ()> + Clone + std::fmt::Debug + Send + 'static,
    PartialObjectMeta<K>: Resource<DynamicType = ()>,
{
    let config = config(1).fields(&format!("metadata.name={name}"));
    with_pauses(watcher(Api::<PartialObjectMeta<K>>::all(client.clone()), config), || {})
        .filter_map(|event| async {
            match event {
                Ok(watcher::Event::Apply(_) | watcher::Event::Delete(_) | watcher::Event::InitDone) => Some(()),
                Ok(_) => None,
                Err(error) => {
                    debug!(error = chain(&error), "the watch of an admission policy failed");
                    None
                }
            }
        })
        .boxed()
}
