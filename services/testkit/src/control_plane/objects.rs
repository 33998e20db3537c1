//! Creates objects for tests: objects from YAML, namespaces and CRDs.

use std::time::Duration;

use anyhow::{Context, bail, ensure};
use http::Request;
use k8s_openapi::api::core::v1::Namespace;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::Client;
use kube::api::{Api, DynamicObject, ObjectMeta, Patch, PatchParams, PostParams};
use kube::core::GroupVersionKind;
use kube::discovery::{Scope, pinned_kind};
use serde_json::Value;

use super::ControlPlane;
use crate::eventually::eventually;

/// The field manager of objects that the testkit applies.
pub(crate) const MANAGER: &str = "pillion-testkit";

/// How long the API server may take to serve the resources of a new CRD.
const CRD_LIMIT: Duration = Duration::from_mins(1);
/// The media type that kubectl requests to discover the resources of all API groups.
const DISCOVERY: &str = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";

impl ControlPlane {
    /// Applies YAML with server-side apply and strict validation, like `kubectl apply --server-side`. The YAML contains
    /// any number of objects and lists of objects. Namespaced objects whose YAML names no namespace are created in
    /// `default`.
    ///
    /// This does not run kubectl, because each of its runs takes about as much processor time as the rest of a short
    /// test.
    ///
    /// # Errors
    /// The text is not YAML, an object has no name or an unknown kind, or the API server rejects an object.
    pub async fn apply_yaml(&self, yaml: &str) -> anyhow::Result<()> {
        let client = self.client();
        let documents = match serde_json::from_str(yaml) {
            Ok(document) => vec![document],
            Err(_) => serde_saphyr::from_multiple::<Value>(yaml).context("the objects are not YAML")?,
        };
        for document in documents {
            let is_list = document.get("kind").is_some_and(|kind| kind == "List");
            let objects = match document.get("items").and_then(Value::as_array) {
                Some(items) if is_list => items.clone(),
                _ => vec![document],
            };
            for object in objects.iter().filter(|object| !object.is_null()) {
                apply(&client, object).await?;
            }
        }
        Ok(())
    }

    /// Creates a namespace with these labels, or sets them on an existing one.
    ///
    /// # Errors
    /// The API server rejects the namespace.
    pub async fn create_namespace(&self, name: &str, labels: &[(&str, &str)]) -> anyhow::Result<()> {
        create_namespace(&self.client(), name, labels).await
    }

    /// Applies CRDs, and waits until the API server serves each version that a CRD marks as served.
    ///
    /// # Errors
    /// The API server rejects a CRD, or does not serve it within a minute; the error contains its conditions.
    pub async fn apply_crds(&self, crds: &[CustomResourceDefinition]) -> anyhow::Result<()> {
        let api: Api<CustomResourceDefinition> = Api::all(self.client());
        let params = PatchParams::apply(MANAGER).force();
        let mut names = Vec::new();
        for crd in crds {
            let name = crd.metadata.name.as_deref().context("a CustomResourceDefinition without a name")?;
            api.patch(name, &params, &Patch::Apply(crd))
                .await
                .with_context(|| format!("the API server rejects the CustomResourceDefinition {name}"))?;
            names.push(name);
        }
        self.wait_for_crds(&names).await
    }

    /// Waits until the API server serves these CRDs, for example after kubectl has applied them.
    ///
    /// # Errors
    /// A CRD is not served within a minute; the error contains its conditions.
    pub async fn wait_for_crds(&self, names: &[&str]) -> anyhow::Result<()> {
        let client = self.client();
        let api: Api<CustomResourceDefinition> = Api::all(client.clone());
        for name in names {
            let what = format!("the API server serves {name}");
            eventually(CRD_LIMIT, &what, async || {
                let crd = api.get(name).await?;
                let conditions = crd.status.and_then(|status| status.conditions).unwrap_or_default();
                if !conditions.iter().any(|each| each.type_ == "Established" && each.status == "True") {
                    bail!("it is not established; its conditions: {conditions:?}");
                }
                // The condition `Established` is set shortly before the resource's path responds. Discovery may list
                // the resource later than both.
                let kinds = Request::get("/apis").header("accept", DISCOVERY).body(Vec::new())?;
                let kinds: Value = client.request(kinds).await?;
                for version in crd.spec.versions.iter().filter(|version| version.served) {
                    let is_served = serves_resource(&kinds, &crd.spec.group, &version.name, &crd.spec.names.plural);
                    ensure!(is_served, "discovery does not list the CRD's version {}", version.name);
                    let path = format!("/apis/{}/{}/{}", crd.spec.group, version.name, crd.spec.names.plural);
                    client.request_text(Request::get(format!("{path}?limit=1")).body(Vec::new())?).await?;
                }
                Ok(())
            })
            .await?;
        }
        Ok(())
    }
}

/// Applies an object with server-side apply and strict validation.
async fn apply(client: &Client, object: &Value) -> anyhow::Result<()> {
    let text = |pointer: &str| object.pointer(pointer).and_then(Value::as_str);
    let (version, kind) = (text("/apiVersion").unwrap_or_default(), text("/kind").unwrap_or_default());
    let name = text("/metadata/name").with_context(|| format!("the {kind} has no name: {object}"))?;
    let (group, version) = version.rsplit_once('/').unwrap_or(("", version));
    let (resource, capabilities) = pinned_kind(client, &GroupVersionKind::gvk(group, version, kind))
        .await
        .with_context(|| format!("the API server does not know the kind {kind} in {group}/{version}"))?;
    let api: Api<DynamicObject> = match capabilities.scope {
        Scope::Cluster => Api::all_with(client.clone(), &resource),
        Scope::Namespaced => {
            Api::namespaced_with(client.clone(), text("/metadata/namespace").unwrap_or("default"), &resource)
        }
    };
    api.patch(name, &PatchParams::apply(MANAGER).validation_strict(), &Patch::Apply(object))
        .await
        .with_context(|| format!("the API server rejects the {kind} {name}"))?;
    Ok(())
}

/// Returns whether the discovery document `kinds` contains the resource `plural` in this group and version. If the
/// document has an unknown format, also returns `true`.
fn serves_resource(kinds: &Value, group: &str, version: &str, plural: &str) -> bool {
    let list = |of: &Value, key: &str| of.get(key).and_then(Value::as_array).cloned();
    let Some(groups) = list(kinds, "items") else { return true };
    let groups = groups.iter().filter(|each| each.pointer("/metadata/name").is_some_and(|name| name == group));
    let versions = groups.flat_map(|each| list(each, "versions").unwrap_or_default());
    let versions = versions.filter(|each| each.get("version").is_some_and(|name| name == version));
    let mut resources = versions.flat_map(|each| list(&each, "resources").unwrap_or_default());
    resources.any(|each| each.get("resource").is_some_and(|name| name == plural))
}

pub(crate) async fn create_namespace(client: &Client, name: &str, labels: &[(&str, &str)]) -> anyhow::Result<()> {
    let labels = labels.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
    let metadata = ObjectMeta { name: Some(name.to_owned()), labels: Some(labels), ..ObjectMeta::default() };
    let namespace = Namespace { metadata, ..Namespace::default() };
    Api::<Namespace>::all(client.clone())
        .patch(name, &PatchParams::apply(MANAGER).force(), &Patch::Apply(&namespace))
        .await
        .with_context(|| format!("cannot create namespace {name}"))?;
    Ok(())
}

pub(super) async fn create_if_absent<K>(api: &Api<K>, object: &K) -> anyhow::Result<()>
where
    K: Clone + std::fmt::Debug + serde::Serialize + serde::de::DeserializeOwned,
{
    match api.create(&PostParams::default(), object).await {
        Ok(_) => Ok(()),
        Err(kube::Error::Api(status)) if status.is_already_exists() => Ok(()),
        Err(error) => Err(error).context("the API server rejects an object"),
    }
}
