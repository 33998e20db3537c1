//! Writes the status of a profile of either kind.

use kube::api::{Api, ApiResource, DynamicObject, Patch, PatchParams};
use kube::{Client, Resource};
use pillion_api::names::API_VERSION;
use pillion_api::{ClusterInjectionProfile, InjectionProfile};
use pillion_engine::profile::ProfileName;
use serde_json::{Value, json};

/// Returns the kind of the profile with this name.
pub(crate) fn kind(name: &ProfileName) -> &'static str {
    if name.namespace.is_some() { InjectionProfile::KIND } else { ClusterInjectionProfile::KIND }
}

/// Returns the API for the profile with this name.
pub(crate) fn api(client: &Client, name: &ProfileName) -> Api<DynamicObject> {
    by_scope::<ClusterInjectionProfile, InjectionProfile>(client, name).0
}

/// Returns the API and the resource of `N` for a namespaced profile, and of `C` for a cluster profile.
pub(crate) fn by_scope<C, N>(client: &Client, name: &ProfileName) -> (Api<DynamicObject>, ApiResource)
where
    C: Resource<DynamicType = ()>,
    N: Resource<DynamicType = ()>,
{
    if let Some(namespace) = &name.namespace {
        let resource = ApiResource::erase::<N>(&());
        (Api::namespaced_with(client.clone(), namespace, &resource), resource)
    } else {
        let resource = ApiResource::erase::<C>(&());
        (Api::all_with(client.clone(), &resource), resource)
    }
}

/// Writes the fields of the status that `manager` owns, with server-side apply. `guard` is a metadata field (`uid` or
/// `resourceVersion`) and its expected value: if the field has another value, the write fails. Returns the new object.
pub(crate) async fn apply(
    client: &Client,
    name: &ProfileName,
    manager: &str,
    guard: (&str, Option<&str>),
    status: Value,
) -> kube::Result<DynamicObject> {
    let (field, value) = guard;
    let body = json!({
        "apiVersion": API_VERSION,
        "kind": kind(name),
        "metadata": {"name": name.name, field: value},
        "status": status,
    });
    api(client, name).patch_status(&name.name, &PatchParams::apply(manager).force(), &Patch::Apply(&body)).await
}

/// Removes a field of the status. Fails if the profile's `resourceVersion` is not `version`.
pub(crate) async fn remove_field(
    client: &Client,
    name: &ProfileName,
    version: Option<&str>,
    field: &str,
) -> kube::Result<()> {
    let body = json!({"metadata": {"resourceVersion": version}, "status": {field: null}});
    api(client, name).patch_status(&name.name, &PatchParams::default(), &Patch::Merge(&body)).await.map(drop)
}
