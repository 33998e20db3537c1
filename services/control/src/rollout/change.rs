//! Changes the containers of a running pod.
//!
//! Resources are written first, and images last, together with the annotation. So the annotation never claims a change
//! that was not made. If the process ends between the two writes, the next plan finds the new resources and continues.

use k8s_openapi::api::core::v1::Pod;
use kube::api::{ApiResource, DynamicObject, Patch, PatchParams};
use kube::{Api, Client};
use pillion_api::names::{UPGRADED_ANNOTATION, UPGRADING_LABEL};
use pillion_engine::in_place::{ContainerChange, ContainerList, Upgraded};
use serde_json::{Map, Value, json};

/// Returns the API for the pods of a namespace.
#[must_use]
pub fn pods(client: &Client, namespace: &str) -> Api<DynamicObject> {
    Api::namespaced_with(client.clone(), namespace, &ApiResource::erase::<Pod>(&()))
}

/// Makes changes in a pod and writes its annotation as the field manager `manager`. If `upgraded` has only the UID, the
/// annotation is removed. `is_marked` says whether the pod has the label [`UPGRADING_LABEL`] afterwards.
///
/// # Errors
/// The API server is unavailable or rejects a change: with the code 409 if the pod has changed since it was read.
pub async fn apply(
    client: &Client,
    manager: &str,
    pod: &DynamicObject,
    changes: &[ContainerChange],
    upgraded: &Upgraded,
    is_marked: bool,
) -> kube::Result<()> {
    let api = pods(client, pod.metadata.namespace.as_deref().unwrap_or_default());
    let name = pod.metadata.name.as_deref().unwrap_or_default();
    let parameters = PatchParams { field_manager: Some(manager.to_owned()), ..PatchParams::default() };
    let uid = pod.metadata.uid.as_deref();
    let resources = spec(changes, |change| Some(json!({"resources": change.resources.as_ref()?.1})));
    let images = spec(changes, |change| Some(json!({"image": change.image.as_ref()?.1})));
    let is_empty = *upgraded == Upgraded { uid: upgraded.uid.clone(), ..Upgraded::default() };
    let annotation = serde_json::to_string(upgraded).map_err(kube::Error::SerdeError)?;
    let annotation = (!is_empty).then_some(annotation);
    // A strategic merge finds containers by their names.
    let with_images = |version: &Option<String>| {
        Patch::Strategic(json!({
            "metadata": {
                "uid": uid, "resourceVersion": version,
                "labels": {UPGRADING_LABEL: is_marked.then_some("true")},
                "annotations": {UPGRADED_ANNOTATION: annotation},
            },
            "spec": images,
        }))
    };
    let mut version = pod.metadata.resource_version.clone();
    if !resources.is_empty() {
        // If the API server rejects the images, the resources stay as they are.
        let dry_run = PatchParams { dry_run: true, ..parameters.clone() };
        api.patch(name, &dry_run, &with_images(&version)).await?;
        let patch = json!({"metadata": {"uid": uid, "resourceVersion": version}, "spec": resources});
        let written = api.patch_subresource("resize", name, &parameters, &Patch::Strategic(patch)).await?;
        version = written.metadata.resource_version;
    }
    api.patch(name, &parameters, &with_images(&version)).await?;
    Ok(())
}

/// Returns the part of a patch's `spec` with the given fields of each changed container.
fn spec(changes: &[ContainerChange], fields: impl Fn(&ContainerChange) -> Option<Value>) -> Map<String, Value> {
    let mut spec = Map::new();
    for list in ContainerList::ALL {
        let of_list = changes.iter().filter(|change| change.list == list);
        let containers: Vec<_> = of_list
            .filter_map(|change| {
                let mut container = fields(change)?;
                container.as_object_mut()?.insert("name".to_owned(), change.name.clone().into());
                Some(container)
            })
            .collect();
        if !containers.is_empty() {
            spec.insert(list.field().to_owned(), containers.into());
        }
    }
    spec
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patch_names_each_changed_container() {
        let change = |list, name: &str, image: Option<&str>| ContainerChange {
            list,
            name: name.to_owned(),
            image: image.map(|to| ("old".to_owned(), to.to_owned())),
            resources: Some((json!({}), json!({"requests": {"cpu": "1"}}))),
        };
        let changes = [
            change(ContainerList::InitContainers, "shipper", Some("shipper:2")),
            change(ContainerList::Containers, "proxy", None),
        ];
        let images = spec(&changes, |change| Some(json!({"image": change.image.as_ref()?.1})));
        assert_eq!(Value::Object(images), json!({"initContainers": [{"image": "shipper:2", "name": "shipper"}]}));
        let resources = spec(&changes, |change| Some(json!({"resources": change.resources.as_ref()?.1})));
        assert_eq!(resources.keys().collect::<Vec<_>>(), ["containers", "initContainers"]);
    }
}
